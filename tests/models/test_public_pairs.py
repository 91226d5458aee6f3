"""Public encoder–decoders against the public implementation: its own random start, through our map, and back."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.attention.positions import sinusoidal
from regard.decoding import DecodeOptions, decode
from regard.errors import CheckpointError, DataError, FormatError, RegardError
from regard.models.public import read_folder, write_folder
from regard.models.rnn import RNN, RNNConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.weights import read_tensors, write_tensors

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer
SOURCES, TARGETS = (5, 1, 17, 9), (3, 11, 1, 7)
PAD, END = 52, 0


def model_of(kind: str, **change: Any) -> nn.Module:
    values = {
        "vocab_size": 61,
        "d_model": 24,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 40,
        "max_position_embeddings": 32,
        "pad_token_id": PAD,
        "decoder_start_token_id": PAD,
        "eos_token_id": END,
        "forced_eos_token_id": None,
        "scale_embedding": True,
    }
    config, model = ("MarianConfig", "MarianMTModel") if kind == "marian" else ("PegasusConfig", None)
    made = getattr(transformers, config)(**{**values, **change})
    return getattr(transformers, model or "PegasusForConditionalGeneration")(made)


TWO = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 53}
CASES = {
    "swish": lambda: model_of("marian", activation_function="swish"),
    "unscaled, relu": lambda: model_of("marian", scale_embedding=False, activation_function="relu"),
    "two tables": lambda: model_of("marian", **TWO),
    "three tables": lambda: model_of("marian", **TWO, tie_word_embeddings=False, activation_function="gelu_new"),
    "norms before": lambda: model_of("pegasus", activation_function="relu"),
}
every_case = pytest.mark.parametrize("name", CASES)


def theirs_of(name: str) -> nn.Module:
    """Their model, moved so far from its start that biases and norms matter; positions stay what they are."""
    torch.manual_seed(0)
    model = CASES[name]()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "embed_positions" not in key:
                parameter += 0.3 * torch.randn_like(parameter)
        model.final_logits_bias += 0.5 * torch.randn_like(model.final_logits_bias)
    return model.eval()


def padded(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    longest = max(len(text) for text in texts)
    rows = torch.stack([nn.functional.pad(text, (0, longest - len(text)), value=PAD) for text in texts])
    return rows, torch.stack([(torch.arange(longest) < len(text)).long() for text in texts])


def layers_of(theirs: nn.Module, sources: list[Tensor], targets: list[Tensor]) -> list[list[Tensor]]:
    """What every layer of both stacks gives, and the logits: padded in their way, real tokens compared."""
    (source, source_mask), (target, target_mask) = padded(sources), padded(targets)
    with torch.inference_mode():
        out = theirs(
            input_ids=source,
            attention_mask=source_mask,
            decoder_input_ids=target,
            decoder_attention_mask=target_mask,
            output_hidden_states=True,
        )
    sides = [(out.encoder_hidden_states, sources), ((*out.decoder_hidden_states, out.logits), targets)]
    return [
        [layer[place, : len(text)] for place, text in enumerate(texts)] for layers, texts in sides for layer in layers
    ]


def layers_of_ours(ours: Transformer, sources: list[Tensor], targets: list[Tensor]) -> list[list[Tensor]]:
    """Likewise, without padding; the last of a stack is behind its norm, as theirs is."""
    seen: list[Tensor] = []
    modules = []
    for embed, stack, norm in (
        (ours.source_embed, ours.encoder, ours.encoder_norm),
        (ours.target_embed, ours.decoder, ours.decoder_norm),
    ):
        modules += [embed, *stack[:-1], norm]
    hooks = [module.register_forward_hook(lambda _, __, out: seen.append(out)) for module in modules]
    lengths = [[len(text) for text in texts] for texts in (sources, targets)]
    segments = [Segments.ragged(one) for one in lengths]
    with torch.inference_mode():
        hidden_ND = ours(torch.cat(sources), segments[0], torch.cat(targets), segments[1])
        seen.append(ours.head(hidden_ND))
    for hook in hooks:
        hook.remove()
    return [list(layer.split(lengths[place > len(ours.encoder)])) for place, layer in enumerate(seen)]


def worst(one: list[list[Tensor]], other: list[list[Tensor]]) -> list[float]:
    pairs = zip(one, other, strict=True)
    return [max(float((a.double() - b.double()).abs().max()) for a, b in zip(*layers, strict=True)) for layers in pairs]


def texts_of(lengths: tuple[int, ...], first: int = 1) -> list[Tensor]:
    return [torch.randint(first, PAD, (length,)) for length in lengths]


@every_case
def test_every_layer_is_theirs_and_what_we_write_they_read(name: str, tmp_path: Path) -> None:
    theirs = theirs_of(name)
    texts = texts_of(SOURCES), texts_of(TARGETS)
    theirs.double().save_pretrained(tmp_path / "theirs")
    family, ours, warnings = read_folder(tmp_path / "theirs")
    assert (family, warnings) == ("transformer", [])
    exact = layers_of(copy.deepcopy(theirs), *texts)
    assert len(exact) == 3 + 4 + 1
    assert max(worst(layers_of_ours(ours.eval(), *texts), exact)) <= 1e-10
    # In float32 our error is that of arithmetic, at most twice theirs.
    theirs.float().save_pretrained(tmp_path / "float32")
    _, narrow, _ = read_folder(tmp_path / "float32")
    for mine, error in zip(
        worst(layers_of_ours(narrow.eval(), *texts), exact), worst(layers_of(theirs, *texts), exact), strict=True
    ):
        assert mine <= 2 * error + 1e-7
    # Back: they load what we wrote, without a tensor missing or left over, and hold the same bytes.
    (tmp_path / "ours").mkdir()
    write_folder(tmp_path / "ours", family, narrow)
    back, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    state, wanted = back.state_dict(), theirs.state_dict()
    assert state.keys() == wanted.keys()
    assert all(state[key].numpy().tobytes() == wanted[key].numpy().tobytes() for key in wanted)


@every_case
@pytest.mark.parametrize("beam", [1, 4])
def test_outputs_are_theirs(name: str, beam: int, tmp_path: Path) -> None:
    theirs = theirs_of(name).double()
    sources, limit = texts_of((5, 9, 2, 12, 7, 3)), 20
    rows, mask = padded(sources)
    ended = 0
    # The likelier the end, the more outputs end by themselves, at different lengths.
    for more in (4.0, 8.0, 12.0):
        with torch.no_grad():
            theirs.final_logits_bias[0, END] += more
            theirs.final_logits_bias[0, PAD] = 50.0  # what has to be banned: it would always win
        theirs.save_pretrained(tmp_path)
        ours = read_folder(tmp_path)[1].eval()
        for alpha in (0.0, 1.0)[: 1 + (beam > 1)]:
            out = theirs.generate(
                input_ids=rows,
                attention_mask=mask,
                num_beams=beam,
                do_sample=False,
                length_penalty=alpha,
                early_stopping="never" if alpha == 0 else beam > 1,
                max_new_tokens=limit,
                bad_words_ids=[[PAD]],
            )
            for source, row in zip(sources, out[:, 1:].tolist(), strict=True):
                tokens = row[: row.index(END)] if END in row else row
                options = DecodeOptions(
                    beam,
                    length_penalty=alpha,
                    length_offset=0.0,
                    banned=(PAD,),
                    max_extra_tokens=max(limit - len(source), 0),
                )
                segments = Segments.ragged([len(source)])
                best = decode(ours, source, segments, start_id=PAD, end_id=END, options=options)[0][0]
                # Beams that the limit cuts are ranked by rules of either side's own.
                if beam == 1 or (best.ended and len(tokens) < limit):
                    ended += best.ended
                    assert best.tokens == tokens
    assert ended >= 6


def change_config(folder: Path, **change: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **change}))


def test_tables_of_positions_and_other_names_of_a_table_are_read_where_they_are_right(tmp_path: Path) -> None:
    theirs_of("swish").save_pretrained(tmp_path)
    plain = read_tensors(tmp_path / "model.safetensors")
    tables = {f"model.{side}.embed_positions.weight": sinusoidal(torch.arange(32), 24, "halves") for side in SIDES}
    table = plain["model.shared.weight"]
    copies = {name: table.clone() for name in ("lm_head.weight", "model.encoder.embed_tokens.weight")}
    write_tensors(tmp_path / "model.safetensors", {**plain, **tables, **copies})
    assert torch.equal(read_folder(tmp_path)[1].source_embed.weight, table)
    bare = {name: tensor for name, tensor in plain.items() if name != "model.shared.weight"}
    write_tensors(tmp_path / "model.safetensors", {**bare, "lm_head.weight": table})
    assert torch.equal(read_folder(tmp_path)[1].source_embed.weight, table)
    write_tensors(tmp_path / "model.safetensors", {**plain, "lm_head.weight": table + 1})
    with pytest.raises(CheckpointError, match=r"no layer here takes: lm_head\.weight"):
        read_folder(tmp_path)
    learned = {name: value + 0.01 for name, value in tables.items()}
    write_tensors(tmp_path / "model.safetensors", {**plain, **learned})
    with pytest.raises(CheckpointError, match="holds other positions than sines and cosines"):
        read_folder(tmp_path)
    write_tensors(tmp_path / "model.safetensors", {k: v for k, v in plain.items() if k != "final_logits_bias"})
    with pytest.raises(CheckpointError, match="lacks final_logits_bias"):
        read_folder(tmp_path)


SIDES = ("encoder", "decoder")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_attention_heads": 6}, "encoder_attention_heads is 4 and decoder_attention_heads is 6; only equal"),
        ({"encoder_ffn_dim": 48}, "encoder_ffn_dim is 48 and decoder_ffn_dim is 40; only equal"),
        ({"is_causal": False}, "is_causal is False; only True"),
        ({"normalize_before": True}, "normalize_before is True; only False"),
        ({"static_position_embeddings": False}, "static_position_embeddings is False; only True"),
        ({"tie_word_embeddings": False}, "another for the output"),
        ({"decoder_vocab_size": 53}, "a vocabulary of 61 and one of 53 tokens"),
        ({"d_model": 23}, "d_model is 23; only even widths"),
        ({"scale_embedding": "yes"}, "scale_embedding is 'yes', neither true nor false"),
        ({"architectures": ["MarianForCausalLM"]}, r"architectures are \['MarianForCausalLM'\]"),
        ({"activation_function": "tanh"}, "activation_function is 'tanh'"),
    ],
)
def test_settings_that_are_not_ours_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    theirs_of("swish").save_pretrained(tmp_path)
    change_config(tmp_path, **change)
    with pytest.raises(FormatError, match=message) as caught:
        read_folder(tmp_path)
    assert "\n" not in str(caught.value)


# What a stranger's config.json may hold in the place of any value.
ODD = (None, [], {}, "x", -1, 0, 10**30, 1.5, True, [[]], {"rope_type": []})


def test_any_odd_setting_is_refused_in_one_line_or_means_nothing(tmp_path: Path) -> None:
    theirs_of("swish").save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    told: list[str] = []
    for key in values:
        for odd in ODD:
            (tmp_path / "config.json").write_text(json.dumps({**values, key: odd}))
            try:
                read_folder(tmp_path)
            except RegardError as error:
                told.append(str(error))
    assert len(told) > 120
    assert not any("\n" in line for line in told)


# Ours as they train: sines and cosines interleaved, no bias at the output.
OURS = {
    "post": TransformerConfig(61, 61, 24, 40, 4, encoder_layers=2, decoder_layers=3),
    "two vocabularies": TransformerConfig(61, 53, 24, 40, 4, encoder_layers=1, decoder_layers=2, share="target"),
    "all apart": TransformerConfig(61, 53, 24, 40, 4, encoder_layers=1, decoder_layers=1, share="none"),
    "pre": TransformerConfig(61, 61, 24, 40, 4, encoder_layers=2, decoder_layers=3, norm="pre", activation="gelu"),
}


@pytest.mark.parametrize("name", OURS)
def test_a_model_as_trained_here_is_the_same_function_there(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours = Transformer(OURS[name]).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    write_folder(tmp_path, "transformer", ours.double())
    kind = "PegasusForConditionalGeneration" if name == "pre" else "MarianMTModel"
    theirs, info = getattr(transformers, kind).from_pretrained(
        tmp_path, output_loading_info=True, dtype=torch.float64, attn_implementation="eager"
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    texts = texts_of(SOURCES), texts_of(TARGETS)
    assert max(worst(layers_of(theirs.eval(), *texts)[-1:], layers_of_ours(ours, *texts)[-1:])) <= 1e-10
    # And what they save is read back as the same function.
    again = read_folder(tmp_path)[1]
    assert max(worst(layers_of_ours(again.eval(), *texts)[-1:], layers_of_ours(ours, *texts)[-1:])) <= 1e-10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": "learned"}, "marian: has no learned positions; pegasus: its norm is pre, has no learned"),
        ({"rotary_base": 1e4}, "has no rotary positions"),
        ({"num_kv_heads": 2}, "has no grouped heads"),
        ({"norm_eps": 1e-6}, "norm_eps is 1e-05"),
        ({"norm": "pre", "share": "target"}, "pegasus: shares all tables"),
    ],
)
def test_settings_without_a_public_form_are_not_written(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as caught:
        write_folder(tmp_path, "transformer", Transformer(replace(OURS["post"], **change)))
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="a 'rnn' has no public layout"):
        write_folder(tmp_path, "rnn", RNN(RNNConfig(61, 61)))
    assert list(tmp_path.iterdir()) == []
