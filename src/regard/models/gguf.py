"""GGUF files of Llama-type models: weights, dequantized, and their byte-level BPE tokenizer.

The format and its quantized blocks are read by the ``gguf`` package of the format's own authors (``pip install
'regard[gguf]'``); what is ours is the map to our names and the order of rotary coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from regard.errors import CheckpointError, DataError, FormatError, ResourceError
from regard.models import registry
from regard.models.llama import Llama, LlamaConfig
from regard.models.weights import build_like

if TYPE_CHECKING:
    from gguf import GGUFReader
    from tokenizers import Tokenizer

_NAMES = {
    "attn_norm": "self_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Our settings' names there, and their kinds.
_SETTINGS: dict[str, tuple[str, type]] = {
    "embed_dim": ("llama.embedding_length", int),
    "num_layers": ("llama.block_count", int),
    "num_heads": ("llama.attention.head_count", int),
    "num_kv_heads": ("llama.attention.head_count_kv", int),
    "mlp_dim": ("llama.feed_forward_length", int),
    "max_len": ("llama.context_length", int),
    "rotary_base": ("llama.rope.freq_base", float),
    "norm_eps": ("llama.attention.layer_norm_rms_epsilon", float),
}
T = TypeVar("T")
_CONTROL = 3  # the format's type of tokens that are no text
_USER_DEFINED = 4  # and of those that are text, and never cut
_ENDS = ("eos", "eot", "eom")  # of a text, of a turn, of a message: the format's runtime stops at each


class Loaded(NamedTuple):
    """What a GGUF file holds.

    Attributes:
        model: The model in float32.
        tokenizer: Its tokenizer.
        start_id: Token before a text; None where the file says that none is added, as it does by default.
        end_ids: Tokens that end a text.
        special_ids: Special tokens that the file names, by the names that config.json has for them.
    """

    model: Llama
    tokenizer: Tokenizer
    start_id: int | None
    end_ids: tuple[int, ...]
    special_ids: dict[str, int]


def read_gguf(path: Path) -> Loaded:
    """Read a Llama-type model.

    Args:
        path: The file.

    Returns:
        The model, its tokenizer, and the tokens around a text.

    Raises:
        DataError: There is no such file.
        ResourceError: The ``gguf`` package is missing.
        FormatError: It is no GGUF file, or of an architecture or tokenizer that is not known here.
        CheckpointError: Tensors are missing, left over or of another shape.
    """
    if not path.is_file():
        raise DataError("no such file", where=str(path))
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ResourceError("reading GGUF needs the gguf package", mend="pip install 'regard[gguf]'") from error
    try:
        reader = GGUFReader(path)
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise FormatError(f"not a GGUF file that can be read ({error})", where=str(path)) from error
    config = _config(reader, str(path))
    registry.check_bounds(config, str(path))
    model = build_like(Llama, config, dict(_weights(reader, config, str(path))), path)
    special = _special(reader, {"bos": "bos", "eos": "eos", "pad": "padding"}, str(path))
    adds_start = _field(reader, "tokenizer.ggml.add_bos_token", bool, str(path), False)
    start_id = special.get("bos_token_id") if adds_start else None
    ends = tuple(dict.fromkeys(_special(reader, {end: end for end in _ENDS}, str(path)).values()))
    return Loaded(cast(Llama, model), _tokenizer(reader, str(path)), start_id, ends, special)


def _special(reader: GGUFReader, names: Mapping[str, str], where: str) -> dict[str, int]:
    """Give the numbers of special tokens that the file names, by such names as config.json has for them."""
    fields = {f"{ours}_token_id": f"tokenizer.ggml.{theirs}_token_id" for ours, theirs in names.items()}
    found = {n: _field(reader, key, int, where) for n, key in fields.items() if reader.get_field(key) is not None}
    most = len(_field(reader, "tokenizer.ggml.tokens", list, where))
    if any(not 0 <= number < most for number in found.values()):
        raise FormatError(f"a special token is beyond the {most} tokens", where=where)
    return found


def _field(reader: GGUFReader, name: str, kind: type[T], where: str, default: T | None = None) -> T:
    field = reader.get_field(name)
    value = default if field is None else field.contents()
    if not isinstance(value, kind):
        what = "is missing" if value is None else f"is a {type(value).__name__}, not a {kind.__name__}"
        raise FormatError(f"{name} {what}", where=where)
    return value


def _config(reader: GGUFReader, where: str) -> LlamaConfig:
    kind = _field(reader, "general.architecture", str, where)
    if kind != "llama":
        raise FormatError(f"architecture {kind[:40]!r}", where=where, mend="known: llama")
    tokens = _field(reader, "tokenizer.ggml.tokens", list, where)
    usual = {"num_kv_heads": _field(reader, "llama.attention.head_count", int, where), "rotary_base": 10000.0}
    sizes: dict[str, Any] = {
        ours: _field(reader, theirs, kind, where, usual.get(ours)) for ours, (theirs, kind) in _SETTINGS.items()
    }
    tie = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = LlamaConfig(vocab_size=len(tokens), tie=tie, **sizes)
    _check_others(reader, config, where)
    return config


def _others(config: LlamaConfig) -> dict[str, tuple[Any, ...]]:
    """Give the values of further keys with which the model is still ours, the usual one first."""
    head_dim = config.embed_dim // max(config.num_heads, 1)
    off, one = (0.0,), (1.0, 0.0)  # of factors too the format's runtime takes 0 for none
    return {
        "llama.vocab_size": (config.vocab_size,),
        "llama.tensor_data_layout": ("Meta AI original pth",),  # neighbouring coordinates are rotated
        "llama.rope.dimension_count": (head_dim,),
        "llama.rope.scaling.type": ("none",),
        "llama.rope.scaling.factor": one,
        "llama.rope.scaling.attn_factor": one,
        "llama.rope.scale_linear": one,
        "llama.attention.key_length": (head_dim,),
        "llama.attention.value_length": (head_dim,),
        "llama.attention.causal": (True,),
        "llama.attention.scale": (max(head_dim, 1) ** -0.5, 0.0),
        "llama.attention.sliding_window": off,
        "llama.attention.clamp_kqv": off,
        "llama.attention.max_alibi_bias": off,
        "llama.attn_logit_softcapping": off,
        "llama.final_logit_softcapping": off,
        "llama.logit_scale": one,
        "llama.embedding_scale": one,
        "llama.residual_scale": one,
        "llama.use_parallel_residual": (False,),
        "llama.expert_count": off,
        "llama.expert_used_count": off,
        "split.count": (1, 0),
    }


def _check_others(reader: GGUFReader, config: LlamaConfig, where: str) -> None:
    """Refuse what would make another model of the same tensors; what only describes the file is not looked at."""
    known, read = _others(config), {name for name, _ in _SETTINGS.values()}
    for name, field in reader.fields.items():
        if name in read or not (name in known or name.startswith("llama.")):
            continue
        value = field.contents()
        if name not in known:
            raise FormatError(f"{name[:60]} is not known here", where=where, mend="give a plain Llama-type model")
        if not any(_same(value, one) for one in known[name]):
            raise FormatError(f"{name} is {str(value)[:40]}; only {known[name][0]} is known here", where=where)


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, float) or isinstance(other, float):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and math.isclose(value, other, rel_tol=1e-6)  # the file has 24 bits
    return type(value) is type(other) and value == other


def _weights(reader: GGUFReader, config: LlamaConfig, where: str) -> Iterator[tuple[str, Tensor]]:
    """Give our names and tensors."""
    from gguf.quants import dequantize

    outer = {"token_embd.weight": "embed.weight", "output_norm.weight": "norm.weight", "output.weight": "output.weight"}
    for tensor in reader.tensors:
        name: str = tensor.name
        try:
            value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        except NotImplementedError as error:
            raise FormatError(f"{name} is quantized as {tensor.tensor_type.name}, unknown", where=where) from error
        if name in outer:
            yield outer[name], value
            continue
        _, _, rest = name.partition("blk.")
        number, _, inner = rest.partition(".")
        ours = _NAMES.get(inner.removesuffix(".weight"))
        if not (number.isdecimal() and ours and inner.endswith(".weight")):
            raise CheckpointError(f"no layer here takes the tensor {name[:60]!r}", where=where)
        if inner in ("attn_q.weight", "attn_k.weight"):
            heads = config.num_heads if inner == "attn_q.weight" else config.num_kv_heads
            # The format pairs neighbouring coordinates for rotation, we pair i with i + K/2.
            if value.dim() != 2 or len(value) % (2 * heads):
                raise CheckpointError(f"{name} of shape {tuple(value.shape)} is not that of {heads} heads", where=where)
            value = value.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        yield f"blocks.{number}.{ours}.weight", value


def _tokenizer(reader: GGUFReader, where: str) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, cut = (_field(reader, f"tokenizer.ggml.{name}", str, where, "") for name in ("model", "pre"))
    if kind != "gpt2":
        raise FormatError(f"a {kind[:40]!r} tokenizer", where=where, mend="known: gpt2, byte-level BPE")
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cuts = {
        "gpt-2": by_bytes,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_bytes]),
    }
    if cut not in cuts:
        raise FormatError(f"text is cut by {cut[:40]!r}", where=where, mend=f"known: {', '.join(cuts)}")
    tokens, merges, types = (
        _field(reader, f"tokenizer.ggml.{name}", list, where) for name in ("tokens", "merges", "token_type")
    )
    try:
        pairs = [tuple(merge.split(" ")) for merge in merges]
        tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
        added = [
            AddedToken(token, special=of == _CONTROL, normalized=False)
            for token, of in zip(tokens, types, strict=True)
            if of in (_CONTROL, _USER_DEFINED)
        ]
    except Exception as error:  # the library raises bare Exceptions
        raise FormatError(f"the tokenizer is damaged ({str(error)[:80]})", where=where) from error
    tokenizer.pre_tokenizer = cuts[cut]
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(added)
    return tokenizer
