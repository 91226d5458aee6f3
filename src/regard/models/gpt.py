"""GPT-2: a causal language model of pre-norm blocks with learned positions.

Paper: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", §2.3. The Megatron-LM sizes (Shoeybi
et al. 2019, table 4) are the same model. Ours differs in: no padding (flat rows and segments); queries, keys and values
are three projections instead of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from regard.layers.block import Block
from regard.layers.embed import Embedding
from regard.models.causal import CausalStack
from regard.models.public import Layout, Rule, choose, count, expect, number
from regard.models.registry import Family, Size, register
from regard.models.values import ACTIVATION_NAMES, ACTIVATIONS


@dataclass(frozen=True)
class GPTConfig:
    """Settings of a GPT-2.

    Attributes:
        vocab_size: Tokens of the vocabulary.
        embed_dim: Width D.
        num_layers: Blocks.
        num_heads: Heads H.
        mlp_dim: Inner width of the MLPs; 0 is 4 D.
        max_len: Positions of the learned table: tokens of a text at most.
        activation: Of the MLPs.
        tie: The output table is the input's.
        dropout: On embeddings and each sublayer's result.
        attention_dropout: On attention weights.
        norm_eps: Of layer norms.
    """

    vocab_size: int
    embed_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_dim: int = 0
    max_len: int = 1024
    activation: str = "gelu-tanh"
    tie: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_eps: float = 1e-5


class GPT(CausalStack):
    """x = E[token] + P[position]; x ← block(x), causal; logits = norm(x) Eᵀ.

    Args:
        config: The settings.

    Raises:
        UsageError: The heads do not divide the width.
        ConfigError: The activation has no such name.

    Source: Radford et al. 2019, §2.3: norms before each sublayer and at the end, weights of residual layers scaled by
    1/√(2 · layers) at the start.
    """

    def __init__(self, config: GPTConfig) -> None:
        c = config
        super().__init__(
            c,
            Embedding(
                c.vocab_size, c.embed_dim, positions="learned", max_len=c.max_len, scale=False, dropout_p=c.dropout
            ),
            [
                Block(
                    c.embed_dim,
                    c.num_heads,
                    c.mlp_dim or 4 * c.embed_dim,
                    norm="pre",
                    activation=c.activation,
                    dropout_p=c.dropout,
                    attention_dropout_p=c.attention_dropout,
                    norm_eps=c.norm_eps,
                )
                for _ in range(c.num_layers)
            ],
            nn.LayerNorm(c.embed_dim, c.norm_eps),
            nn.Linear(c.embed_dim, c.vocab_size, bias=False),
        )
        for name, parameter in self.named_parameters():
            if name.endswith(("out_proj.weight", "down_proj.weight")):  # what writes to the residual stream
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * c.num_layers))


def _read(values: Mapping[str, Any], where: str) -> GPTConfig:
    plain = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
    expect(values, where, **plain, is_causal=True)
    return GPTConfig(
        vocab_size=count(values, "vocab_size", where),
        embed_dim=count(values, "n_embd", where),
        num_layers=count(values, "n_layer", where),
        num_heads=count(values, "n_head", where),
        mlp_dim=0 if values.get("n_inner") is None else count(values, "n_inner", where),
        max_len=count(values, "n_positions", where),
        activation=choose(values, "activation_function", ACTIVATIONS, where),
        tie=bool(values.get("tie_word_embeddings", True)),
        dropout=number(values, "resid_pdrop", where, 0.1),
        attention_dropout=number(values, "attn_pdrop", where, 0.1),
        norm_eps=number(values, "layer_norm_epsilon", where, 1e-5),
    )


def _write(config: GPTConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "n_embd": config.embed_dim,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_inner": config.mlp_dim or None,
        "n_positions": config.max_len,
        "activation_function": ACTIVATION_NAMES[config.activation],
        "tie_word_embeddings": config.tie,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.norm_eps,
    }


def _rules(config: GPTConfig) -> Iterator[Rule]:
    yield Rule("wte.weight", "embed.weight")
    yield Rule("wpe.weight", "embed.positions.weight")
    for end in ("weight", "bias"):
        parts = tuple(f"blocks.{{i}}.self_attn.{part}_proj.{end}" for part in "qkv")
        yield Rule(f"h.{{i}}.attn.c_attn.{end}", parts, transposed=True)
        yield Rule(f"h.{{i}}.attn.c_proj.{end}", f"blocks.{{i}}.self_attn.out_proj.{end}", transposed=True)
        yield Rule(f"h.{{i}}.mlp.c_fc.{end}", f"blocks.{{i}}.mlp.up_proj.{end}", transposed=True)
        yield Rule(f"h.{{i}}.mlp.c_proj.{end}", f"blocks.{{i}}.mlp.down_proj.{end}", transposed=True)
        yield Rule(f"h.{{i}}.ln_1.{end}", f"blocks.{{i}}.self_norm.{end}")
        yield Rule(f"h.{{i}}.ln_2.{end}", f"blocks.{{i}}.mlp_norm.{end}")
        yield Rule(f"ln_f.{end}", f"norm.{end}")
    yield Rule("lm_head.weight", "output.weight", outside=True)


_PUBLIC = Layout(
    model_type="gpt2",
    architecture=lambda config: "GPT2LMHeadModel",
    prefix="transformer.",
    rules=_rules,
    head="lm_head.weight",
    embed="wte.weight",
    buffers=(".attn.bias", ".attn.masked_bias"),
    read=_read,
    write=_write,
)
_SMALL = GPTConfig(50257)
_NOTE = "50,257 BPE tokens, 1,024 positions. {why}"
_COUNTED = "The paper's print is too low; its authors' released weights have as many as are counted here."
_MEGATRON = (
    "The paper's 50,257 BPE tokens filled up to 51,200 (a multiple of 128 for each of 8 parts), 1,024 positions."
)


def _size(name: str, layers: int, width: int, heads: int, paper: str, note: str, vocab_size: int = 50257) -> Size:
    config = replace(_SMALL, vocab_size=vocab_size, num_layers=layers, embed_dim=width, num_heads=heads)
    return Size(name, config, paper, note)


register(
    Family(
        name="gpt",
        config=GPTConfig,
        build=GPT,
        tiny=(
            GPTConfig(23, 16, 2, 2, max_len=128),
            GPTConfig(23, 12, 1, 3, 20, 128, activation="gelu", tie=False, attention_dropout=0.0, norm_eps=1e-6),
        ),
        sizes=(
            # Radford et al. 2019, table 2.
            _size("gpt2", 12, 768, 12, "117 M", _NOTE.format(why=_COUNTED)),
            _size("gpt2-medium", 24, 1024, 16, "345 M", _NOTE.format(why=_COUNTED)),
            _size("gpt2-large", 36, 1280, 20, "762 M", _NOTE.format(why=_COUNTED)),
            _size("gpt2-xl", 48, 1600, 25, "1,542 M", _NOTE.format(why=_COUNTED)),
            # Shoeybi et al. 2019, table 1.
            _size("megatron-1.2b", 40, 1536, 16, "1.2 B", _MEGATRON, 51200),
            _size("megatron-2.5b", 54, 1920, 20, "2.5 B", _MEGATRON, 51200),
            _size("megatron-4.2b", 64, 2304, 24, "4.2 B", _MEGATRON, 51200),
            _size("megatron-8.3b", 72, 3072, 32, "8.3 B", _MEGATRON, 51200),
        ),
        public=(_PUBLIC,),
    )
)
