"""Llama: a causal language model of pre-norm blocks with rotary positions, RMS norms, gated MLPs and grouped heads.

Papers: Touvron et al. 2023a, "LLaMA", §2.2; Touvron et al. 2023b, "Llama 2", §2.2 (grouped heads). Ours differs in: no
padding (flat rows and segments).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from regard.errors import FormatError
from regard.layers.block import Block
from regard.layers.embed import Embedding
from regard.models.causal import CausalStack
from regard.models.public import Layout, Rule, choose, count, expect, number
from regard.models.registry import Family, register
from regard.models.values import ACTIVATION_NAMES, ACTIVATIONS


@dataclass(frozen=True)
class LlamaConfig:
    """Settings of a Llama.

    Attributes:
        vocab_size: Tokens of the vocabulary.
        embed_dim: Width D.
        num_layers: Blocks.
        num_heads: Query heads H.
        num_kv_heads: Key–value heads G; 0 is H.
        mlp_dim: Inner width of the gated MLPs.
        max_len: Tokens of a text at most, as the model was trained.
        rotary_base: Of the rotary positions.
        activation: Of the gate.
        tie: The output table is the input's.
        dropout: On embeddings and each sublayer's result.
        norm_eps: Of RMS norms.
    """

    vocab_size: int
    embed_dim: int = 512
    num_layers: int = 8
    num_heads: int = 8
    num_kv_heads: int = 0
    mlp_dim: int = 1408
    max_len: int = 2048
    rotary_base: float = 10000.0
    activation: str = "silu"
    tie: bool = True
    dropout: float = 0.0
    norm_eps: float = 1e-5


class Llama(CausalStack):
    """x = E[token]; x ← block(x), causal, rotated; logits = norm(x) Wᵀ.

    Args:
        config: The settings.

    Raises:
        UsageError: The heads do not divide the width, or the key–value heads the heads.
        ConfigError: The activation has no such name.

    Source: Touvron et al. 2023a, §2.2.
    """

    def __init__(self, config: LlamaConfig) -> None:
        c = config
        super().__init__(
            c,
            Embedding(c.vocab_size, c.embed_dim, positions="none", scale=False, dropout_p=c.dropout),
            [
                Block(
                    c.embed_dim,
                    c.num_heads,
                    c.mlp_dim,
                    norm="pre",
                    num_kv_heads=c.num_kv_heads or None,
                    activation=c.activation,
                    dropout_p=c.dropout,
                    rotary_base=c.rotary_base,
                    norm_eps=c.norm_eps,
                    make_norm=nn.RMSNorm,
                    gated=True,
                    use_bias=False,
                )
                for _ in range(c.num_layers)
            ],
            nn.RMSNorm(c.embed_dim, c.norm_eps),
            nn.Linear(c.embed_dim, c.vocab_size, bias=False),
        )


def _rope(values: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """Take a section about rotary positions, which may tell their base, and that nothing scales them."""
    rope = values.get(name) or {}
    if not isinstance(rope, dict):
        raise FormatError(f"{name} is no section", where=where)
    expect(rope, where, rope_type="default", type="default")
    other = sorted(rope.keys() - {"rope_theta"})
    if other and not rope.keys() & {"rope_type", "type"}:
        mend = 'write "rope_type": "default" there if nothing scales positions'
        raise FormatError(f"{name} has {other[0][:40]!r} and no rope_type", where=where, mend=mend)
    return rope


def _read(values: Mapping[str, Any], where: str) -> LlamaConfig:
    expect(values, where, attention_bias=False, mlp_bias=False, rope_interleaved=False, is_causal=True)
    # Where a file has both, the older name counts alone.
    rope = _rope(values, "rope_scaling", where) or _rope(values, "rope_parameters", where)
    config = LlamaConfig(
        vocab_size=count(values, "vocab_size", where),
        embed_dim=count(values, "hidden_size", where),
        num_layers=count(values, "num_hidden_layers", where),
        num_heads=count(values, "num_attention_heads", where),
        num_kv_heads=count(values, "num_key_value_heads", where, 0),
        mlp_dim=count(values, "intermediate_size", where),
        max_len=count(values, "max_position_embeddings", where),
        rotary_base=float(number({**values, **rope}, "rope_theta", where, 10000.0)),
        activation=choose(values, "hidden_act", ACTIVATIONS, where),
        tie=bool(values.get("tie_word_embeddings", False)),
        norm_eps=number(values, "rms_norm_eps", where),
    )
    if values.get("head_dim") is not None:
        expect(values, where, head_dim=config.embed_dim // max(config.num_heads, 1))
    return config


def _write(config: LlamaConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads or config.num_heads,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_len,
        "rope_theta": config.rotary_base,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "tie_word_embeddings": config.tie,
        "rms_norm_eps": config.norm_eps,
    }


def _rules(config: LlamaConfig) -> Iterator[Rule]:
    yield Rule("embed_tokens.weight", "embed.weight")
    for theirs, ours in (
        *((f"self_attn.{part}_proj", f"self_attn.{part}_proj") for part in "qkv"),
        ("self_attn.o_proj", "self_attn.out_proj"),
        *((f"mlp.{part}_proj", f"mlp.{part}_proj") for part in ("gate", "up", "down")),
        ("input_layernorm", "self_norm"),
        ("post_attention_layernorm", "mlp_norm"),
    ):
        yield Rule(f"layers.{{i}}.{theirs}.weight", f"blocks.{{i}}.{ours}.weight")
    yield Rule("norm.weight", "norm.weight")
    yield Rule("lm_head.weight", "output.weight", outside=True)


_PUBLIC = Layout(
    model_type="llama",
    architecture=lambda config: "LlamaForCausalLM",
    prefix="model.",
    rules=_rules,
    head="lm_head.weight",
    embed="embed_tokens.weight",
    buffers=(".rotary_emb.inv_freq",),
    read=_read,
    write=_write,
)

register(
    Family(
        name="llama",
        config=LlamaConfig,
        build=Llama,
        tiny=(
            LlamaConfig(23, 16, 2, 4, 2, 24, 64, dropout=0.1),
            LlamaConfig(23, 12, 1, 3, 0, 20, 64, rotary_base=1e5, tie=False, dropout=0.1, norm_eps=1e-6),
        ),
        public=(_PUBLIC,),
    )
)
