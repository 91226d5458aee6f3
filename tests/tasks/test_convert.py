"""Models from one form to another: the same tensors, the same outputs, or nothing at all."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from public_encoder import write_encoder
from public_translator import SENTENCES, train, write_translator

import regard
from regard.api import load_for_use
from regard.attention import silence, switch_off
from regard.data import Pair
from regard.data.tokenizer import Kind
from regard.data.tokenizer import Tokenizer as OwnTokenizer
from regard.decoding import DecodeOptions
from regard.errors import DataError, FormatError, RegardError, ResourceError, UsageError
from regard.models.bert import Bert, BertConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.llama import Llama, LlamaConfig
from regard.models.public import read_folder, write_folder
from regard.models.weights import read_tensors
from regard.tasks import folder, plain
from regard.tasks.convert import rewrite
from regard.tasks.embedder import read_tokenizer
from regard.tasks.encoders import LabelTokenizerConfig, start
from regard.tasks.filler import Filler, OwnMasks
from regard.tasks.generator import Generator
from regard.tasks.labeller import TextPairs
from regard.tasks.pairs import PairTokenizer, TokenizerConfig
from regard.tasks.translator import Translator, build_model

PAIRS = [Pair(f"word {number} of many", f"{number} wort", number) for number in range(40)]
TEXTS = ["word 7 of many", "of", "", "many words </s> of 31"]


def translator(source: Kind = "byte-bpe", shared: bool = True, **model: Any) -> Translator:
    torch.manual_seed(0)
    tokenizer = PairTokenizer.train(PAIRS, TokenizerConfig(source, "whitespace", shared, 300))
    sizes = {"embed_dim": 16, "mlp_dim": 24, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    values = {"family": "transformer", **sizes, **model}
    values = {key: value for key, value in values.items() if value is not None}
    made = build_model(values, tokenizer, "test")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        if values.get("share") == "none":  # or the end would come at once
            made.output.bias[tokenizer.target.end_id] -= 4.0
    return Translator(made, tokenizer, DecodeOptions(3, length_penalty=0.0, max_extra_tokens=6), 40)


def run_of(tmp_path: Path, one: Translator) -> Path:
    """A run's folder, as far as using it needs one."""
    folder.save(tmp_path / "run" / "model", one)
    return tmp_path / "run"


CASES = {
    "post": {},
    "pre": {"norm": "pre", "activation": "gelu"},
    "halves": {"positions": "sinusoidal-halves"},
    "two tokenizers": {"source": "characters", "shared": False, "share": "target"},
    "three tables": {"source": "characters", "shared": False, "share": "none"},
}


@pytest.mark.parametrize("name", CASES)
def test_there_and_back_it_is_the_same_model(name: str, tmp_path: Path) -> None:
    one = translator(**CASES[name])
    done = regard.convert(run_of(tmp_path, one), tmp_path / "hub", to="huggingface")
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert config["model_type"] == ("pegasus" if name == "pre" else "marian")
    assert (done.path, done.family) == (tmp_path / "hub", "transformer")
    tensors = read_tensors(tmp_path / "hub" / "model.safetensors")
    wanted_parameters = sum(parameter.numel() for parameter in one.model.parameters())
    assert (done.tensors, done.parameters) == (len(tensors), wanted_parameters)
    assert done.size_bytes == sum(path.stat().st_size for path in (tmp_path / "hub").iterdir())
    assert any("two tokenizers" in note for note in done.notes) == (name in ("two tokenizers", "three tables"))
    wanted = one.hypotheses(TEXTS)
    regard.convert(tmp_path / "hub", tmp_path / "back", to="regard")
    for path in ("hub", "back"):
        again = regard.load(tmp_path / path)
        assert again.max_tokens == 40
        assert again.options == replace(
            one.options, n_best=1, length_offset=0.0, max_extra_tokens=50, banned=again.options.banned
        )
        found = again.hypotheses(TEXTS, one.options)
        for mine, theirs in zip(found, wanted, strict=True):
            assert [h.text for h in mine] == [h.text for h in theirs]
            assert all(abs(a.logprob - b.logprob) < 1e-4 for a, b in zip(mine, theirs, strict=True))
    assert any(hypotheses[0].token_ids for hypotheses in wanted)


@pytest.mark.peer
@pytest.mark.parametrize("name", ["post", "pre"])
def test_a_trained_model_is_used_there_as_here(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    one = translator(**CASES[name])
    regard.convert(run_of(tmp_path, one), tmp_path / "hub", to="huggingface")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hub").eval()
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (3, 47)
    for text in TEXTS[:2]:
        rows = tokenizer([text], return_tensors="pt")
        assert rows.input_ids[0].tolist() == [*one.tokenizer.source.encode(text), one.tokenizer.source.end_id]
        best = one.hypotheses([text], replace(one.options, beam=1))[0][0]
        most = rows.input_ids.shape[1] + 6
        out = model.generate(
            input_ids=rows.input_ids, attention_mask=rows.attention_mask, num_beams=1, max_new_tokens=most
        )[0, 1:].tolist()
        assert [token for token in out if token != one.tokenizer.target.end_id] == list(best.token_ids)[:most]
        shown = tokenizer.decode(out, skip_special_tokens=True)
        assert shown.split() == one.tokenizer.target.decode(best.token_ids).split()


def test_sentencepiece_models_go_along(tmp_path: Path) -> None:
    write_translator(tmp_path / "hub")
    regard.convert(tmp_path / "hub", tmp_path / "own", to="regard")
    regard.convert(tmp_path / "own", tmp_path / "back", to="huggingface")
    for name in ("source.spm", "target.spm", "model.safetensors"):
        assert (tmp_path / "hub" / name).read_bytes() == (tmp_path / "back" / name).read_bytes()
    for name in ("vocab.json", "config.json"):
        values, wanted = (json.loads((tmp_path / path / name).read_text()) for path in ("back", "hub"))
        assert values == wanted
    models = [regard.load(tmp_path / path) for path in ("hub", "own", "back")]
    outputs = [model.translate(["The captain sang.", "nobody"]) for model in models]
    assert outputs[0] == outputs[1] == outputs[2]
    assert models[0].options == models[1].options == models[2].options
    assert not (tmp_path / "back" / "pieces.json").exists()


@pytest.mark.peer
def test_a_sentencepiece_model_of_an_encoder_is_read_in_every_form(tmp_path: Path) -> None:
    import transformers

    hub, own, back = (tmp_path / name for name in ("hub", "own", "back"))
    hub.mkdir()
    (hub / "sentencepiece.bpe.model").write_bytes(train(SENTENCES, 90))
    torch.manual_seed(4)
    sizes = {"vocab_size": 120, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"intermediate_size": 24, "max_position_embeddings": 66, "type_vocab_size": 1}
    transformers.XLMRobertaForMaskedLM(transformers.XLMRobertaConfig(**sizes, **more)).save_pretrained(hub)
    text = "The old <mask> sang."
    wanted = regard.load(hub).fill([text])[0]
    regard.convert(hub, own, to="regard")
    regard.convert(own, back, to="huggingface")
    config = json.loads((back / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("xlm-roberta", ["XLMRobertaForMaskedLM"])
    assert regard.load(back).fill([text])[0] == wanted
    ids = [read_tokenizer(place, 120).encode(text).ids for place in (hub, own, back)]
    assert ids[0] == ids[1] == ids[2] == transformers.AutoTokenizer.from_pretrained(back)(text).input_ids
    assert regard.load(own).embed(["The old captain"]).shape == (1, 16)


def test_half_precision_stays(tmp_path: Path) -> None:
    write_translator(tmp_path / "hub")
    _, model, _ = read_folder(tmp_path / "hub")
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    ids = {key: config[key] for key in ("pad_token_id", "decoder_start_token_id", "eos_token_id")}
    write_folder(tmp_path / "hub", "transformer", model.bfloat16(), ids)
    regard.convert(tmp_path / "hub", tmp_path / "own", to="regard")
    assert json.loads((tmp_path / "own" / "config.json").read_text())["dtype"] == "bfloat16"
    assert {tensor.dtype for tensor in read_tensors(tmp_path / "own" / "model.safetensors").values()} == {
        torch.bfloat16
    }


def test_an_encoder_keeps_what_lies_beside_it(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    hub.mkdir()
    write_encoder(hub)
    (hub / "1_Pooling").mkdir()
    (hub / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    config = json.loads((hub / "config.json").read_text())
    (hub / "config.json").write_text(
        json.dumps({**config, "id2label": {"0": "a"}, "pad_token_id": 5, "auto_map": {"AutoModel": "evil.Model"}})
    )
    regard.convert(hub, tmp_path / "own", to="regard")
    regard.convert(tmp_path / "own", tmp_path / "back", to="huggingface")
    assert (hub / "model.safetensors").read_bytes() == (tmp_path / "back" / "model.safetensors").read_bytes()
    back = json.loads((tmp_path / "back" / "config.json").read_text())
    assert back == {**config, "id2label": {"0": "a"}, "pad_token_id": 5}
    wanted = regard.load(hub).embed(["a b", "c"])
    odd = tmp_path / "odd"
    odd.mkdir()
    plain.save_plain(odd, "bert", Bert(BertConfig(23, 16, 1, 2, 20, 64, pooler=True)))
    with pytest.raises(DataError, match="a 'bert' of these settings has no public layout"):
        regard.convert(odd, tmp_path / "new" / "hub", to="huggingface")
    assert not (tmp_path / "new").exists()
    for path in ("own", "back"):
        again = regard.load(tmp_path / path)
        assert again.pooling == "cls"
        assert np.array_equal(again.embed(["a b", "c"]), wanted)
    with pytest.raises(FormatError, match="a bert that no task of regard has trained is not ready for use"):
        folder.load(tmp_path / "own")
    with pytest.raises(FormatError, match="a model for the task 'translate', which it alone serves"):
        plain.load_plain(run_of(tmp_path, translator()) / "model")


@pytest.mark.peer
def test_gguf_becomes_either(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    tokens = ["<end>", *"abcdefgh", "Ġ", "ab"]
    model = Llama(LlamaConfig(len(tokens), 16, 1, 2, 2, 24, 32))
    path = tmp_path / "tiny.gguf"
    write_gguf(gguf, path, model, tokens, turn_end=8)
    done = regard.convert(path, tmp_path / "hub", to="huggingface")
    assert done.notes == ("weights are in float32: those of the file were dequantized",)
    regard.convert(path, tmp_path / "own", to="regard")
    regard.convert(tmp_path / "own", tmp_path / "back", to="huggingface")
    for name in ("model.safetensors", "tokenizer.json", "config.json", "tokenizer_config.json"):
        assert (tmp_path / "hub" / name).exists()
    assert (tmp_path / "hub" / "model.safetensors").read_bytes() == (
        tmp_path / "back" / "model.safetensors"
    ).read_bytes()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    assert (theirs.config.eos_token_id, theirs.config.bos_token_id) == ([0, 8], None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    assert tokenizer.eos_token == "<end>"
    ids = tokenizer("abcab")["input_ids"]
    assert ids == [10, 3, 10]
    with torch.inference_mode():
        wanted = model.head(model.eval()(torch.tensor(ids), regard.Segments.ragged([3])))
        assert float((theirs(torch.tensor([ids])).logits[0] - wanted).abs().max()) < 1e-4
    for form in ("hub", "own"):
        generator = regard.load(tmp_path / form)
        assert generator.end_ids == (0, 8)
        assert generator.generate(["abcab"])[0].text == regard.load(path).generate(["abcab"])[0].text


def test_weights_that_lie_turned_in_a_file_do_so_for_use_alone(tmp_path: Path) -> None:
    write_folder(tmp_path, "gpt", GPT(GPTConfig(300, embed_dim=32, num_layers=1, num_heads=2, max_len=16)))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{n}": n for n in range(300)}, "w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    usual, for_use = regard.load(tmp_path), load_for_use(tmp_path)
    assert torch.nn.utils.parameters_to_vector(usual.model.parameters()).isfinite().all()
    assert not all(parameter.is_contiguous() for parameter in for_use.model.parameters())
    for name, parameter in usual.model.named_parameters():
        assert torch.equal(parameter, for_use.model.get_parameter(name))


def test_other_weights_of_a_gguf_file_are_written_in_our_form(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    tokens = ["<end>", *"abcdefgh", "Ġ", "ab"]
    write_gguf(gguf, tmp_path / "tiny.gguf", Llama(LlamaConfig(len(tokens), 16, 1, 2, 2, 24, 32)), tokens)
    done = rewrite(tmp_path / "tiny.gguf", tmp_path / "own", lambda model: switch_off(model, {"*": [1]}))
    assert done.notes == ("weights are in float32: those of the file were dequantized",)
    before, after = regard.load(tmp_path / "tiny.gguf"), regard.load(tmp_path / "own")
    (plain,) = before.score(["abcab"])
    with silence(before.model, {"*": [1]}):
        (wanted,) = before.score(["abcab"])
    assert after.score(["abcab"])[0] == pytest.approx(wanted, rel=1e-6)
    assert wanted != pytest.approx(plain, rel=1e-6)
    assert after.end_ids == (0,)


def write_gguf(gguf: Any, path: Path, model: Llama, tokens: list[str], turn_end: int = 0) -> None:
    """Write a Llama as the format has it: neighbouring coordinates are rotated, ours are half a head apart."""
    config, names = model.config, {"self_norm": "attn_norm", "mlp_norm": "ffn_norm", "out_proj": "attn_output"}
    names |= {f"{part}_proj": f"attn_{part}" for part in "qkv"}
    names |= {f"{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_len)
    writer.add_embedding_length(config.embed_dim)
    writer.add_feed_forward_length(config.mlp_dim)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rotary_base)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, *[1] * (len(tokens) - 1)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_eot_token_id(turn_end)
    writer.add_tensor("token_embd.weight", model.embed.weight.detach().numpy())
    writer.add_tensor("output_norm.weight", model.norm.weight.detach().numpy())
    for number, block in enumerate(model.blocks):
        for name, tensor in block.state_dict().items():
            *_, layer, _ = name.split(".")
            value = tensor
            if layer in ("q_proj", "k_proj"):
                heads = config.num_heads if layer == "q_proj" else config.num_kv_heads
                value = value.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
            writer.add_tensor(f"blk.{number}.{names[layer]}.weight", value.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


RECURRENT = {"family": "rnn", "mlp_dim": None, "num_heads": None, "encoder_layers": None, "decoder_layers": None}
REFUSED = {
    "recurrent": (RECURRENT, "a 'rnn' has no public layout"),
    "learned positions": ({"positions": "learned"}, "marian: has no learned positions"),
    "rotary": ({"rotary_base": 1e4}, "has no rotary positions"),
    "pre, two tables": ({"norm": "pre", "share": "target"}, "pegasus: shares all tables"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_such_form_is_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    change, message = REFUSED[name]
    run = run_of(tmp_path, translator(**change))
    with pytest.raises(DataError, match=message) as caught:
        regard.convert(run, tmp_path / "new" / "hub", to="huggingface")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_request_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, translator())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text('{"model_type": "t5"}')
    for path, out, to, kind, message in (
        (run, "new", "onnx", UsageError, "unknown form 'onnx'; choose from huggingface, timm, regard"),
        (run, "new", "regard", UsageError, "in the form 'regard' already"),
        (run, "full", "huggingface", UsageError, "something is there already; give a new folder"),
        (run, "full/mine", "huggingface", UsageError, "something is there already"),
        (tmp_path / "odd", "new", "regard", FormatError, "model_type is 't5'; known: bert"),
        (tmp_path / "none", "new", "regard", RegardError, "no model here"),
        ("owner/name", "new", "regard", UsageError, "fetches no model by name"),
    ):
        with pytest.raises(kind, match=message) as caught:
            regard.convert(path, tmp_path / out, to=to)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    assert (tmp_path / "full" / "mine").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "odd", "run"]
    (tmp_path / "empty").mkdir()
    assert regard.convert(run, tmp_path / "empty", to="huggingface").tensors > 20


def test_what_fails_on_the_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, translator())

    def full(*_: object) -> None:
        raise ResourceError("the disk is full")

    monkeypatch.setattr("regard.tasks.convert.folders.save_tokenizers", full)
    with pytest.raises(ResourceError, match="the disk is full"):
        regard.convert(run, tmp_path / "hub", to="huggingface")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.peer
def test_a_trained_language_model_becomes_a_public_one(tmp_path: Path) -> None:
    import transformers

    tokenizer = OwnTokenizer.train(["the light of day"], "byte-bpe", 290)
    torch.manual_seed(3)
    model = GPT(GPTConfig(tokenizer.vocab_size, 16, 2, 2, max_len=40))
    options = DecodeOptions(max_extra_tokens=8, length_penalty=0.0)
    own = Generator(model, tokenizer, options, 40)
    folder.save(tmp_path / "own", own)
    done = regard.convert(tmp_path / "own", tmp_path / "hub", to="huggingface")
    assert done.family == "gpt"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub").eval()
    ids = [tokenizer.start_id, *tokenizer.encode("the light")]
    with torch.inference_mode():
        wanted = model(torch.tensor(ids), regard.Segments.ragged([len(ids)]))
        assert float((theirs(torch.tensor([ids])).logits[0] - model.head(wanted)).abs().max()) < 1e-5
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")("the light").input_ids == ids
    again = regard.load(tmp_path / "hub")
    assert (again.start_id, again.end_ids) == (tokenizer.start_id, (tokenizer.end_id,))
    assert again.generate(["the light"], options)[0].text == own.generate(["the light"], options)[0].text
    with pytest.raises(UsageError, match="in the form 'regard' already"):
        regard.convert(tmp_path / "own", tmp_path / "x", to="regard")


@pytest.mark.peer
def test_a_trained_masked_model_becomes_a_public_one_and_is_gone_on_from(tmp_path: Path) -> None:
    import transformers

    tokenizer = OwnTokenizer.train(["the light of day"], "byte-bpe", 290, mask=True)
    TextPairs.around(tokenizer)
    torch.manual_seed(3)
    model = Bert(BertConfig(tokenizer.vocab_size, 16, 1, 2, 20, max_len=40)).eval()
    own = Filler(model, OwnMasks(tokenizer), 40)
    folder.save(tmp_path / "own", own)
    regard.convert(tmp_path / "own", tmp_path / "hub", to="huggingface")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hub").eval()
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    ids = own.tokenizer.encode("the <mask> of day")
    assert reader("the <mask> of day")["input_ids"] == ids
    with torch.inference_mode():
        wanted = model.head(model(torch.tensor(ids), regard.Segments.ragged([len(ids)])))
        assert float((theirs(torch.tensor([ids])).logits[0] - wanted).abs().max()) < 1e-5
    again = regard.load(tmp_path / "hub")
    assert again.fill(["the <mask> of day"])[0].text == own.fill(["the <mask> of day"])[0].text
    begin = start(str(tmp_path / "hub"), 40, -1.0, {}, LabelTokenizerConfig(), [], None)
    assert torch.equal(begin.encoder().token_embed.weight, model.token_embed.weight)
