"""Public checkpoints against the public implementation: its own random start, through our map, and back."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.errors import CheckpointError, DataError, FormatError, RegardError
from regard.models.bert import Bert, BertConfig
from regard.models.public import read_folder, write_folder
from regard.models.weights import read_tensors, write_tensors

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer
LENGTHS = (5, 1, 17, 9)


def gpt2(**change: Any) -> nn.Module:
    values = {"vocab_size": 61, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32, "bos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**values, "eos_token_id": 0, **change}))


def llama(**change: Any) -> nn.Module:
    values = {
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "tie_word_embeddings": True,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**values, **change}))


def bert(kind: str, **change: Any) -> nn.Module:
    """A model of the BERT kin, by the name of its class."""
    family = re.sub("(ForMaskedLM|ForPreTraining|Model)$", "", kind)
    values = {
        "vocab_size": 61,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "max_position_embeddings": 32,
        "pad_token_id": 1,
    }
    config = getattr(transformers, f"{family}Config")(**{**values, **change})
    return getattr(transformers, kind)(config)


def xlm(kind: str, **change: Any) -> nn.Module:
    values = {"vocab_size": 61, "emb_dim": 24, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 32}
    return getattr(transformers, kind)(transformers.XLMConfig(**{**values, "pad_token_id": 1, **change}))


CASES = {
    "bert": lambda: bert("BertModel"),
    "bert, masked": lambda: bert("BertForMaskedLM"),
    "bert, both heads, relu, large epsilon": lambda: bert("BertForPreTraining", hidden_act="relu", layer_norm_eps=1e-2),
    "bert, quick gelu": lambda: bert("BertForMaskedLM", hidden_act="quick_gelu"),
    "bert, swish": lambda: bert("BertForMaskedLM", hidden_act="swish"),
    "bert, untied": lambda: bert("BertForMaskedLM", tie_word_embeddings=False),
    "roberta": lambda: bert("RobertaForMaskedLM", type_vocab_size=1, layer_norm_eps=1e-5),
    "roberta, relu": lambda: bert("RobertaForMaskedLM", type_vocab_size=1, hidden_act="relu"),
    "xlm-roberta, relu": lambda: bert("XLMRobertaForMaskedLM", type_vocab_size=1, hidden_act="relu"),
    "electra, replaced, relu": lambda: bert("ElectraForPreTraining", embedding_size=12, hidden_act="relu"),
    "electra, masked, relu": lambda: bert("ElectraForMaskedLM", embedding_size=12, hidden_act="relu"),
    "roformer, masked, relu": lambda: bert("RoFormerForMaskedLM", embedding_size=12, hidden_act="relu"),
    "xlm-roberta": lambda: bert("XLMRobertaForMaskedLM", type_vocab_size=1),
    "roberta, another padding token": lambda: bert("RobertaForMaskedLM", type_vocab_size=1, pad_token_id=0),
    "xlm-roberta, another padding token": lambda: bert("XLMRobertaModel", type_vocab_size=1, pad_token_id=2),
    "roformer": lambda: bert("RoFormerModel", embedding_size=24),
    "roformer, masked": lambda: bert("RoFormerForMaskedLM", embedding_size=12),
    "electra, replaced": lambda: bert("ElectraForPreTraining", embedding_size=12),
    "electra, masked": lambda: bert("ElectraForMaskedLM", embedding_size=12),
    "electra, one width": lambda: bert("ElectraModel", embedding_size=24),
    "xlm": lambda: xlm("XLMModel", n_langs=5),
    "xlm, masked": lambda: xlm("XLMWithLMHeadModel", n_langs=5),
    "xlm, one language, relu, untied": lambda: xlm(
        "XLMWithLMHeadModel", gelu_activation=False, tie_word_embeddings=False, layer_norm_eps=1e-2
    ),
    "gpt2": lambda: gpt2(),
    "gpt2, untied, relu": lambda: gpt2(tie_word_embeddings=False, activation_function="relu", n_inner=40),
    "gpt2, exact gelu, small epsilon": lambda: gpt2(activation_function="gelu", layer_norm_epsilon=1e-12),
    "gpt2, swish": lambda: gpt2(activation_function="swish"),
    "llama, tanh": lambda: llama(hidden_act="gelu_new"),
    "llama": lambda: llama(),
    "llama, untied, all heads, another base": lambda: llama(
        tie_word_embeddings=False, num_key_value_heads=6, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    ),
    "llama, large epsilon": lambda: llama(rms_norm_eps=1e-2),
}
every_case = pytest.mark.parametrize("name", CASES)


def theirs_of(name: str) -> nn.Module:
    """Their model, moved so far from its start that biases and norms matter."""
    torch.manual_seed(0)
    model = CASES[name]()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("embed_positions.weight"):  # sines and cosines, in the file for no reason
                parameter += 0.3 * torch.randn_like(parameter)
        state = model.state_dict()
        for end in ("cls.predictions", "lm_head"):  # two names for one bias
            if f"{end}.decoder.bias" in state:
                state[f"{end}.bias"].copy_(state[f"{end}.decoder.bias"])
    return model.eval()


def without_casts(theirs: nn.Module) -> nn.Module:
    """What they compute in float32 whatever the model is in (RMS norms, rotary angles, XLM's weights), in its own."""

    def norm(module: nn.Module) -> None:
        module.forward = lambda x: nn.functional.rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)

    def angles(module: nn.Module) -> None:
        config = module.config
        size = config.hidden_size // config.num_attention_heads
        steps_F = torch.arange(0, size, 2, dtype=torch.float64) / size
        frequencies_F = config.rope_parameters["rope_theta"] ** -steps_F

        def forward(_: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
            angles_BTK = (position_ids[..., None] * frequencies_F).repeat(1, 1, 2)
            return angles_BTK.cos(), angles_BTK.sin()

        module.forward = forward

    def attention(module: nn.Module) -> None:
        def forward(x_BTD: Tensor, mask_BT: Tensor, **_: Any) -> tuple[Tensor]:
            parts = (module.q_lin, module.k_lin, module.v_lin)
            q, k, v = (part(x_BTD).unflatten(-1, (module.n_heads, -1)).transpose(1, 2) for part in parts)
            scores = q @ k.transpose(2, 3) / module.head_dim**0.5
            weights = scores.masked_fill(mask_BT[:, None, None] == 0, -torch.inf).softmax(-1)
            return (module.out_lin((weights @ v).transpose(1, 2).flatten(2)),)

        module.forward = forward

    for module in theirs.modules():
        if type(module).__name__ == "MultiHeadAttention":
            attention(module)
        if type(module).__name__ == "RoFormerSinusoidalPositionalEmbedding":
            places, size = module.weight.shape
            angles_TF = torch.arange(places)[:, None] * 10000.0 ** -(
                torch.arange(0, size, 2, dtype=torch.float64) / size
            )
            module.weight = nn.Parameter(torch.cat([angles_TF.sin(), angles_TF.cos()], 1), requires_grad=False)
        if type(module).__name__ == "LlamaRMSNorm":
            norm(module)
        elif type(module).__name__ == "LlamaRotaryEmbedding":
            angles(module)
    return theirs


def layers_of(theirs: nn.Module, texts: list[Tensor]) -> list[list[Tensor]]:
    """For each text what every layer gives, and the logits: padded to one length in their way, real tokens compared."""
    longest = max(len(text) for text in texts)
    padded = torch.stack([nn.functional.pad(text, (0, longest - len(text)), value=1) for text in texts])
    mask = torch.stack([(torch.arange(longest) < len(text)).long() for text in texts])
    with torch.inference_mode():
        out = theirs(input_ids=padded, attention_mask=mask, output_hidden_states=True)
    logits = out.get("logits", out.get("prediction_logits"))
    if logits is not None and logits.dim() == 2:  # one number a token
        logits = logits[..., None]
    layers = [*out.hidden_states, *([] if logits is None else [logits])]
    return [[layer[place, : len(text)] for place, text in enumerate(texts)] for layer in layers]


def layers_of_ours(ours: nn.Module, texts: list[Tensor]) -> list[list[Tensor]]:
    seen: list[Tensor] = []
    embed = ours.embed_proj if hasattr(ours, "embed_proj") else ours.embed
    hooks = [module.register_forward_hook(lambda _, __, out: seen.append(out)) for module in (embed, *ours.blocks[:-1])]
    with torch.inference_mode():
        hidden_ND = ours(torch.cat(texts), Segments.ragged([len(text) for text in texts]))
        layers = [*seen, hidden_ND, *([] if getattr(ours.config, "head", "") == "none" else [ours.head(hidden_ND)])]
    for hook in hooks:
        hook.remove()
    return [list(layer.split([len(text) for text in texts])) for layer in layers]


def worst(one: list[list[Tensor]], other: list[list[Tensor]]) -> list[float]:
    pairs = zip(one, other, strict=True)
    return [max(float((a.double() - b.double()).abs().max()) for a, b in zip(*layers, strict=True)) for layers in pairs]


@every_case
def test_every_layer_is_theirs_and_what_we_write_they_read(name: str, tmp_path: Path) -> None:
    theirs = theirs_of(name)
    texts = [torch.randint(3, 61, (length,)) for length in LENGTHS]
    theirs.double().save_pretrained(tmp_path / "theirs")
    family, ours, warnings = read_folder(tmp_path / "theirs")
    assert warnings == []
    exact = layers_of(without_casts(copy.deepcopy(theirs)), texts)
    assert len(exact) >= 3 + 1
    assert max(worst(layers_of_ours(ours.eval(), texts), exact)) <= 1e-10
    # In float32 our error is that of arithmetic, at most twice theirs.
    theirs.float().save_pretrained(tmp_path / "float32")
    _, narrow, _ = read_folder(tmp_path / "float32")
    for mine, error in zip(
        worst(layers_of_ours(narrow.eval(), texts), exact), worst(layers_of(theirs, texts), exact), strict=True
    ):
        assert mine <= 2 * error + 1e-7
    # Back: they load what we wrote, without a tensor missing or left over, and hold the same bytes.
    (tmp_path / "ours").mkdir()
    write_folder(tmp_path / "ours", family, narrow)
    back, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state, wanted = back.state_dict(), theirs.state_dict()
    assert state.keys() == wanted.keys()
    assert all(state[key].numpy().tobytes() == wanted[key].numpy().tobytes() for key in wanted)
    assert back.config.tie_word_embeddings == theirs.config.tie_word_embeddings
    # And it is the same function: settings that no tensor shows went along.
    assert max(worst(layers_of(back.eval(), texts), layers_of(theirs, texts))) == 0


def test_languages_are_theirs(tmp_path: Path) -> None:
    theirs = theirs_of("xlm").double()
    theirs.save_pretrained(tmp_path)
    _, ours, _ = read_folder(tmp_path)
    assert (ours.config.num_languages, ours.config.num_types) == (5, 0)
    tokens, languages = torch.randint(3, 61, (2, 13)), torch.randint(0, 5, (2, 13))
    with torch.inference_mode():
        wanted = without_casts(theirs)(input_ids=tokens, langs=languages).last_hidden_state.flatten(0, 1)
        found = ours.eval()(tokens.flatten(), Segments.uniform(2, 13), languages_N=languages.flatten())
        plain = ours(tokens.flatten(), Segments.uniform(2, 13))
    assert float((found - wanted).abs().max()) <= 1e-10
    assert float((found - plain).abs().max()) > 0.1


def test_parts_of_a_checkpoint_are_one(tmp_path: Path) -> None:
    theirs = theirs_of("llama")
    theirs.save_pretrained(tmp_path / "parts", max_shard_size="8KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    theirs.save_pretrained(tmp_path / "whole")
    one, other = (read_folder(tmp_path / which)[1].state_dict() for which in ("parts", "whole"))
    assert all(torch.equal(one[key], other[key]) for key in other)


def test_an_output_table_that_differs_from_the_embedding_is_kept_and_told(tmp_path: Path) -> None:
    theirs = theirs_of("gpt2, untied, relu")
    theirs.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "tie_word_embeddings": True}))
    _, ours, warnings = read_folder(tmp_path)
    assert len(warnings) == 1
    assert "differs from the embedding" in warnings[0]
    assert torch.equal(ours.output.weight, theirs.lm_head.weight)
    assert torch.equal(ours.embed.weight, theirs.transformer.wte.weight)


@pytest.mark.parametrize(
    ("change", "base"),
    [
        ({"rope_parameters": None, "rope_theta": 500.0}, 500.0),
        ({"rope_parameters": {"rope_theta": 77.0}, "rope_theta": 500.0}, 77.0),
        ({"rope_parameters": {"type": "default", "rope_theta": 77.0}}, 77.0),
        (
            {"rope_parameters": {"rope_theta": 77.0}, "rope_scaling": {"rope_type": "default"}, "rope_theta": 500.0},
            500.0,
        ),
        ({"rope_parameters": None, "rope_scaling": {"type": "default", "rope_theta": 77.0}}, 77.0),
    ],
)
def test_the_base_of_rotary_positions_is_read_wherever_they_read_it(
    change: dict[str, Any], base: float, tmp_path: Path
) -> None:
    theirs_of("llama").save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    assert read_folder(tmp_path)[1].config.rotary_base == base
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert theirs.config.rope_parameters["rope_theta"] == base
    assert theirs.config.rope_parameters["rope_type"] == "default"


def test_what_lies_turned_in_a_file_is_not_copied(tmp_path: Path) -> None:
    theirs = theirs_of("gpt2")
    theirs.save_pretrained(tmp_path)
    block = read_folder(tmp_path)[1].blocks[0]
    assert block.mlp.up_proj.weight.T.is_contiguous()
    q_proj, k_proj = block.self_attn.q_proj.weight, block.self_attn.k_proj.weight
    assert q_proj.untyped_storage().data_ptr() == k_proj.untyped_storage().data_ptr()


def test_names_without_the_heads_module_are_read_too(tmp_path: Path) -> None:
    theirs = theirs_of("gpt2")
    theirs.save_pretrained(tmp_path)
    tensors = read_tensors(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    write_tensors(tmp_path / "model.safetensors", {**bare, "h.0.attn.bias": torch.ones(1, 1, 32, 32)})
    assert torch.equal(read_folder(tmp_path)[1].embed.weight, theirs.transformer.wte.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "t5"},
            "model_type is 't5'; known: bert, electra, gpt2, llama, marian, pegasus, roberta, roformer, ",
        ),
        ({"activation_function": "swish9"}, "activation_function is 'swish9'; known: gelu, relu"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True; only False"),
        ({"n_embd": None}, "n_embd is None, not a number"),
        ({"n_embd": "24"}, "n_embd is '24', not a number"),
        ({"n_embd": 24.0}, "n_embd is 24.0, not a whole number"),
    ],
)
def test_settings_that_are_not_ours_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    theirs_of("gpt2").save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(FormatError, match=message):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("roberta", {"pad_token_id": 31}, "pad_token_id is 31, and positions count from behind it, in a table of 32"),
        ("roberta", {"pad_token_id": None}, "pad_token_id is None, not a number"),
        ("gpt2", {"is_causal": False}, "is_causal is False; only True"),
        ("llama", {"is_causal": False}, "is_causal is False; only True"),
        ("llama", {"rope_parameters": {"type": "linear", "factor": 2.0}}, "type is 'linear'; only 'default'"),
        ("llama", {"rope_parameters": {"factor": 2.0}}, "rope_parameters has 'factor' and no rope_type"),
        ("llama", {"rope_parameters": {"full_attention": {}}}, "rope_parameters has 'full_attention' and no rope_type"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type is 'dynamic'; only 'default'"),
        ("llama", {"rope_scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'; only 'default'"),
    ],
)
def test_settings_of_other_families_that_are_not_ours_are_refused(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    theirs_of(name).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(FormatError, match=message):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_embd": 2_400}, "config describes"),
        ({"n_embd": 36}, "does not fit the model"),
        ({"n_head": 7}, "does not divide into 7 heads"),
        ({"n_layer": 10**9}, "num_layers is 1000000000"),
        ({"layer_norm_epsilon": -1.0}, "norm_eps is -1.0"),
    ],
)
def test_sizes_that_the_file_does_not_bear_out_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    theirs_of("gpt2").save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(RegardError, match=message) as caught:
        read_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_tensors_that_are_missing_or_left_over_are_refused(tmp_path: Path) -> None:
    theirs_of("gpt2").save_pretrained(tmp_path)
    tensors = read_tensors(tmp_path / "model.safetensors")
    name = "transformer.h.1.mlp.c_fc.weight"
    write_tensors(tmp_path / "model.safetensors", {key: value for key, value in tensors.items() if key != name})
    with pytest.raises(CheckpointError, match=r"lacks h\.1\.mlp\.c_fc\.weight"):
        read_folder(tmp_path)
    write_tensors(tmp_path / "model.safetensors", {**tensors, "transformer.h.1.gate": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"no layer here takes: transformer\.h\.1\.gate"):
        read_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match="never unpickled"):
        read_folder(tmp_path)


# What a stranger's config.json may hold in the place of any value.
ODD = (None, [], {}, "x", -1, 0, 10**30, 1.5, True, [[]], {"rope_type": []})


@pytest.mark.parametrize("name", ["gpt2", "llama", "roberta", "electra, masked", "xlm, masked"])
def test_any_odd_setting_is_refused_in_one_line_or_means_nothing(name: str, tmp_path: Path) -> None:
    theirs_of(name).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    told: list[str] = []
    for key in values:
        for odd in ODD:
            (tmp_path / "config.json").write_text(json.dumps({**values, key: odd}))
            try:
                read_folder(tmp_path)
            except RegardError as error:
                told.append(str(error))
    assert len(told) > 80
    assert not any("\n" in line for line in told)


def test_settings_without_a_public_form_are_not_written(tmp_path: Path) -> None:
    for change, why in (
        ({"first_position": 2, "head": "none"}, ""),
        ({"pooler": True}, ""),
        ({"num_languages": 3}, ""),
        ({"rotary_base": 100.0}, "roformer: rotary positions have the base 10,000"),
        ({"rotary_base": 1e4, "first_position": 2}, "roberta: has no rotary positions"),
        ({"reset_positions": True}, "bert: counts positions through two texts"),
        ({"first_position": 2, "activation": "relu"}, "roberta: the head's activation is gelu"),
        ({"token_dim": 8, "activation": "relu"}, "electra: the head's activation is gelu"),
        ({"head_activation": "relu"}, "bert: the head's activation is that of the MLPs"),
    ):
        model = Bert(BertConfig(23, 16, 1, 2, 20, 64, **change))
        with pytest.raises(DataError, match=f"no public layout.*{why}"):
            write_folder(tmp_path, "bert", model)
    assert list(tmp_path.iterdir()) == []


def test_positions_of_a_roformer_are_sines_or_refused(tmp_path: Path) -> None:
    theirs_of("roformer").save_pretrained(tmp_path)
    tensors = read_tensors(tmp_path / "model.safetensors")
    name = "encoder.embed_positions.weight"
    write_tensors(tmp_path / "model.safetensors", {**tensors, name: tensors[name] + 0.1})
    with pytest.raises(CheckpointError, match="other positions than sines"):
        read_folder(tmp_path)
    write_tensors(tmp_path / "model.safetensors", {key: value for key, value in tensors.items() if key != name})
    assert read_folder(tmp_path)[1].config.rotary_base == 10000.0
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "rotary_value": True}))
    with pytest.raises(FormatError, match="rotary_value is True"):
        read_folder(tmp_path)


def test_languages_keep_their_names(tmp_path: Path) -> None:
    named = {"num_types": 0, "num_languages": 3, "languages": ("de", "en", "fr"), "transform": False}
    model = Bert(BertConfig(23, 16, 1, 2, 64, 64, reset_positions=True, **named))
    write_folder(tmp_path, "bert", model)
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["lang2id"] == {"de": 0, "en": 1, "fr": 2}
    assert values["id2lang"] == {"0": "de", "1": "en", "2": "fr"}
    assert read_folder(tmp_path)[1].config.languages == ("de", "en", "fr")
    for odd in ({"de": 0, "en": 1}, {"de": 0, "en": 1, "fr": 3}, {"de": "0", "en": 1, "fr": 2}, 7, None):
        (tmp_path / "config.json").write_text(json.dumps({**values, "lang2id": odd}))
        assert read_folder(tmp_path)[1].config.languages == ()
