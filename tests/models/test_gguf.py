"""GGUF files, written by the format's own library from the public implementation's Llama."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regard.attention import Segments
from regard.errors import CheckpointError, DataError, FormatError
from regard.models.gguf import read_gguf

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOKENS = ["<end>", *"abcdefgh", "Ġ", "ab", "abc", "Ġa", *"0123"]


def theirs_of(tie: bool) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=tie,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def write(
    path: Path,
    theirs: nn.Module,
    kind: str,
    *,
    architecture: str = "llama",
    leave: str = "",
    more: str = "",
    odd: np.ndarray | None = None,
    merges: tuple[str, ...] = ("a b", "ab c", "Ġ a"),
    keys: dict[str, Any] | None = None,
    cut: str = "smollm",
    tokens: list[str] = TOKENS,
    types: dict[str, int] | None = None,
) -> None:
    """Write a file as the format's converters do; ``theirs`` gets its weights back as the file keeps them."""
    config, quantization = theirs.config, gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_list(tokens)
    writer.add_token_types([{"<end>": 3, **(types or {})}.get(token, 1) for token in tokens])
    writer.add_token_merges(list(merges))
    for key, value in (keys or {}).items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, parameter in theirs.named_parameters():
        with torch.no_grad():
            array = parameter.numpy().copy()
            if array.ndim == 2 and kind != "F32":
                packed = gguf.quants.quantize(array, quantization)
                array = gguf.quants.dequantize(packed, quantization)
                parameter.copy_(torch.from_numpy(array))
        short = name.removeprefix("model.").removesuffix(".weight")
        outer = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
        if short in outer:
            full = outer[short]
        else:
            _, number, inner = short.split(".", 2)
            full = f"blk.{number}.{NAMES[inner]}"
            heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
            if inner in heads:  # neighbouring coordinates make a pair there
                array = array.reshape(heads[inner], 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        if full == leave:
            continue
        if array.ndim == 2 and kind != "F32":
            packed = gguf.quants.quantize(np.ascontiguousarray(array), quantization)
            writer.add_tensor(f"{full}.weight", packed, raw_dtype=quantization)
        else:
            writer.add_tensor(f"{full}.weight", array)
    if more:
        writer.add_tensor(more, np.zeros(3, np.float32) if odd is None else odd)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
def test_logits_are_theirs(kind: str, tie: bool, tmp_path: Path) -> None:
    theirs = theirs_of(tie)
    write(tmp_path / "model.gguf", theirs, kind)
    ours, tokenizer, *_ = read_gguf(tmp_path / "model.gguf")
    assert ours.config.tie == tie
    tokens = torch.randint(0, len(TOKENS), (20,))
    with torch.inference_mode():
        wanted = theirs(input_ids=tokens[None]).logits[0]
        got = ours.eval().head(ours(tokens, Segments.uniform(1, 20)))
    assert wanted.std() > 0.1
    assert (got - wanted).abs().max() < 1e-4
    assert tokenizer.encode("abc a12<end>").tokens == ["abc", "Ġa", "1", "2", "<end>"]
    assert tokenizer.decode(tokenizer.encode("abc a12").ids) == "abc a12"


# What stands in public files of models that are plain, or could: a head has 16 coordinates.
PLAIN = {
    "general.languages": ["en"],
    "imatrix.chunk_count": 7,
    "llama.vocab_size": len(TOKENS),
    "llama.tensor_data_layout": "Meta AI original pth",
    "llama.rope.dimension_count": 16,
    "llama.rope.scaling.type": "none",
    "llama.rope.scaling.factor": 1.0,
    "llama.attention.key_length": 16,
    "llama.attention.value_length": 16,
    "llama.attention.causal": True,
    "llama.attention.scale": 0.25,
    "llama.expert_count": 0,
    "split.count": 0,
    "split.tensors.count": 7,
}


def test_keys_that_say_what_is_so_anyway_change_nothing(tmp_path: Path) -> None:
    theirs = theirs_of(True)
    write(tmp_path / "plain.gguf", theirs, "F32")
    write(tmp_path / "told.gguf", theirs, "F32", keys=PLAIN)
    one, other = (read_gguf(tmp_path / f"{name}.gguf").model for name in ("plain", "told"))
    assert one.config == other.config
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.vocab_size", 12),
        ("llama.tensor_data_layout", "reference"),
        ("llama.rope.dimension_count", 8),
        ("llama.rope.scaling.type", "linear"),
        ("llama.rope.scaling.factor", 4.0),
        ("llama.rope.scale_linear", 4.0),
        ("llama.attention.key_length", 8),
        ("llama.attention.value_length", 8),
        ("llama.attention.causal", False),
        ("llama.attention.scale", 0.5),
        ("llama.attention.sliding_window", 3),
        ("llama.attention.clamp_kqv", 0.1),
        ("llama.attention.max_alibi_bias", 8.0),
        ("llama.final_logit_softcapping", 3.0),
        ("llama.logit_scale", 3.0),
        ("llama.embedding_scale", 3.0),
        ("llama.residual_scale", 0.5),
        ("llama.use_parallel_residual", True),
        ("llama.expert_count", 2),
        ("llama.expert_count", "none"),
        ("llama.no_such_key", 0),
        ("split.count", 2),
    ],
)
def test_keys_that_would_make_another_model_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", theirs_of(True), "F32", keys={key: value})
    with pytest.raises(FormatError, match=f"model.gguf: {re.escape(key)} is ") as caught:
        read_gguf(tmp_path / "model.gguf")
    assert "\n" not in str(caught.value)


def test_tokens_that_users_have_defined_stay_whole(tmp_path: Path) -> None:
    """They are matched before text is cut, and are text all the same; ordinary ones are made by merges alone."""
    tokens = [*TOKENS[:-2], "<a b>", "h g"]
    write(tmp_path / "model.gguf", theirs_of(True), "F32", tokens=tokens, types={"<a b>": 4})
    tokenizer = read_gguf(tmp_path / "model.gguf").tokenizer
    found = tokenizer.encode("abc<a b>h a<end>")
    assert found.tokens == ["abc", "<a b>", "h", "Ġa", "<end>"]
    assert found.ids == [tokens.index(token) for token in found.tokens]
    assert tokenizer.decode(found.ids) == "abc<a b>h a"


def test_a_turn_and_a_message_end_a_text_too(tmp_path: Path) -> None:
    def ends(**ids: int) -> tuple[int, ...]:
        keys = {f"tokenizer.ggml.{name}_token_id": number for name, number in ids.items()}
        write(tmp_path / "model.gguf", theirs_of(True), "F32", keys=keys)
        return read_gguf(tmp_path / "model.gguf").end_ids

    assert ends() == ()
    assert ends(eos=0) == ends(eos=0, eot=0) == (0,)
    assert ends(eot=2) == (2,)
    assert ends(eos=0, eot=2, eom=3, bos=4) == (0, 2, 3)
    with pytest.raises(FormatError, match="a special token is beyond the 17 tokens"):
        ends(eot=17)


@pytest.mark.parametrize("cut", ["default", "llama-bpe"])
def test_other_ways_to_cut_text_are_refused(cut: str, tmp_path: Path) -> None:
    """The format's default takes digits by threes and punctuation apart, as GPT-2 does not."""
    write(tmp_path / "model.gguf", theirs_of(True), "F32", cut=cut)
    with pytest.raises(FormatError, match=f"text is cut by '{cut}'; known: gpt-2, smollm"):
        read_gguf(tmp_path / "model.gguf")


def test_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(DataError, match="no such file"):
        read_gguf(path)
    path.write_bytes(b"GGUF" + b"\x03\x00\x00\x00" + b"\xff" * 40)
    with pytest.raises(FormatError, match="not a GGUF file"):
        read_gguf(path)
    path.write_bytes(b"no such thing at all, really not")
    with pytest.raises(FormatError, match="not a GGUF file"):
        read_gguf(path)
    write(path, theirs_of(True), "F32", architecture="gemma")
    with pytest.raises(FormatError, match="architecture 'gemma'; known: llama"):
        read_gguf(path)
    write(path, theirs_of(True), "F32", leave="blk.1.ffn_up")
    with pytest.raises(CheckpointError, match=r"blocks\.1\.mlp\.up_proj\.weight"):
        read_gguf(path)
    write(path, theirs_of(True), "F32", more="blk.0.gate")
    with pytest.raises(CheckpointError, match=r"no layer here takes the tensor 'blk\.0\.gate'"):
        read_gguf(path)
    write(path, theirs_of(True), "F32", more="blk.0.gate", odd=np.zeros(3, np.int32))
    with pytest.raises(FormatError, match=r"blk\.0\.gate is quantized as I32, unknown"):
        read_gguf(path)
    write(
        path,
        theirs_of(True),
        "F32",
        leave="blk.0.attn_q",
        more="blk.0.attn_q.weight",
        odd=np.zeros((6, 64), np.float32),
    )
    with pytest.raises(CheckpointError, match=r"attn_q\.weight of shape \(6, 64\) is not that of 4 heads"):
        read_gguf(path)
    for merges in (("a b", "x y"), ("a",)):
        write(path, theirs_of(True), "F32", merges=merges)
        with pytest.raises(FormatError, match="the tokenizer is damaged"):
            read_gguf(path)
