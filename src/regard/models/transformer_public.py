"""The Transformer's public checkpoints and sizes, and its enrolment.

Marian (Junczys-Dowmunt et al. 2018) is the paper's model, post-norm, and Pegasus (Zhang et al. 2020) the same with
norms before the sublayers; both put all sines of a position before all cosines, and have a bias at the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from regard.attention.positions import sinusoidal
from regard.errors import FormatError
from regard.models.interface import Share
from regard.models.public import Layout, Rule, both, choose, count, expect, flag, number
from regard.models.registry import Family, Size, register
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.values import ACTIVATION_NAMES, ACTIVATIONS
from regard.models.weights import check_sines

Norm = Literal["pre", "post"]

_TABLES = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")
_NORM_EPS = 1e-5  # theirs is no setting


def _read(values: Mapping[str, Any], where: str, *, norm: Norm, architecture: str) -> TransformerConfig:
    named = values.get("architectures") or [architecture]
    if named != [architecture]:
        raise FormatError(f"architectures are {str(named)[:60]}", where=where, mend=f"known: {architecture}")
    is_pre = norm == "pre"
    expect(values, where, is_encoder_decoder=True, is_decoder=False, is_causal=True, normalize_embedding=False)
    expect(values, where, normalize_before=is_pre, add_final_layer_norm=is_pre, static_position_embeddings=True)
    for name in ("attention_heads", "ffn_dim"):
        one, other = (count(values, f"{side}_{name}", where) for side in ("encoder", "decoder"))
        if one != other:
            what = f"encoder_{name} is {one} and decoder_{name} is {other}; only equal ones are known here"
            raise FormatError(what, where=where)
    source_size = count(values, "vocab_size", where)
    target_size = source_size
    if values.get("decoder_vocab_size") is not None:
        target_size = count(values, "decoder_vocab_size", where)
    width = count(values, "d_model", where)
    if width % 2:
        raise FormatError(f"d_model is {width}; only even widths have sinusoidal positions here", where=where)
    return TransformerConfig(
        source_vocab_size=source_size,
        target_vocab_size=target_size,
        embed_dim=width,
        mlp_dim=count(values, "encoder_ffn_dim", where),
        num_heads=count(values, "encoder_attention_heads", where),
        encoder_layers=count(values, "encoder_layers", where),
        decoder_layers=count(values, "decoder_layers", where),
        norm=norm,
        activation=choose(values, "activation_function", ACTIVATIONS, where),
        share=_share(values, where, source_size, target_size),
        positions="sinusoidal-halves",
        max_len=count(values, "max_position_embeddings", where),
        dropout=number(values, "dropout", where, 0.1),
        attention_dropout=number(values, "attention_dropout", where, 0.0),
        mlp_dropout=number(values, "activation_dropout", where, 0.0),
        norm_eps=_NORM_EPS,
        scale_embed=flag(values, "scale_embedding", where, False),
        output_bias=True,
    )


def _share(values: Mapping[str, Any], where: str, source_size: int, target_size: int) -> Share:
    shared = flag(values, "share_encoder_decoder_embeddings", where, True)
    tied = flag(values, "tie_word_embeddings", where, True)
    if not shared:
        return "target" if tied else "none"
    if not tied:
        what = "one table for source and target, and another for the output, are not known here"
        raise FormatError(what, where=where)
    if source_size != target_size:
        what = f"one table is shared by a vocabulary of {source_size} and one of {target_size} tokens"
        raise FormatError(what, where=where)
    return "all"


def _write(config: TransformerConfig, *, norm: Norm) -> dict[str, Any]:
    first_free = min(config.source_vocab_size, config.target_vocab_size) - 1  # Marian's padding token is its last
    values: dict[str, Any] = {"vocab_size": config.source_vocab_size}
    if norm == "post":
        shared = config.share == "all"
        values |= {"decoder_vocab_size": config.target_vocab_size, "share_encoder_decoder_embeddings": shared}
    for side in ("encoder", "decoder"):
        values |= {f"{side}_attention_heads": config.num_heads, f"{side}_ffn_dim": config.mlp_dim}
    return values | {
        "d_model": config.embed_dim,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "activation_function": ACTIVATION_NAMES[config.activation],
        "tie_word_embeddings": config.tie,
        "scale_embedding": config.scale_embed,
        "max_position_embeddings": config.max_len,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.mlp_dropout,
        "is_encoder_decoder": True,
        "pad_token_id": first_free,
        "decoder_start_token_id": first_free,
        "bos_token_id": None,
        "eos_token_id": 0,
        "forced_eos_token_id": None,
    }


def _rules(config: TransformerConfig) -> Iterator[Rule]:
    if config.share == "all":
        names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
        yield Rule("shared.weight", "source_embed.weight", copies=names)
    else:
        yield Rule("encoder.embed_tokens.weight", "source_embed.weight")
        copies = ("lm_head.weight",) if config.tie else ()
        yield Rule("decoder.embed_tokens.weight", "target_embed.weight", copies=copies)
    for side in ("encoder", "decoder"):
        attentions = [("self_attn", "self")] + ([("encoder_attn", "cross")] if side == "decoder" else [])
        layers = [("fc1", "mlp.up_proj"), ("fc2", "mlp.down_proj"), ("final_layer_norm", "mlp_norm")]
        for theirs, ours in attentions:
            layers += [(f"{theirs}.{part}_proj", f"{ours}_attn.{part}_proj") for part in ("q", "k", "v", "out")]
            layers += [(f"{theirs}_layer_norm", f"{ours}_norm")]
        for theirs, ours in layers:
            yield from both(f"{side}.layers.{{i}}.{theirs}", f"{side}.{{i}}.{ours}", layers=f"{side}_layers")
        if config.norm == "pre":
            yield from both(f"{side}.layer_norm", f"{side}_norm")
    if not config.tie:
        yield Rule("lm_head.weight", "output.weight", outside=True)
    yield Rule("final_logits_bias", "output.bias", outside=True, row=True)


def _lacks(config: TransformerConfig, *, norm: Norm) -> str:
    """Say which settings neither layout, or not the one of this norm, can hold."""
    odd = [
        (config.norm != norm, f"its norm is {norm}"),
        (config.positions not in ("sinusoidal", "sinusoidal-halves"), f"has no {config.positions} positions"),
        (config.position_dim > 0, "concatenates no positions"),
        (config.rotary_base > 0, "has no rotary positions"),
        (config.num_kv_heads not in (0, config.num_heads), "has no grouped heads"),
        (config.norm_eps != _NORM_EPS, f"norm_eps is {_NORM_EPS}"),
        (config.embed_dim % 2 == 1, "has no odd width"),
        (norm == "pre" and config.share != "all", "shares all tables"),
    ]
    return ", ".join(reason for is_odd, reason in odd if is_odd)


def _adapt(config: TransformerConfig, tensors: dict[str, Tensor]) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """Say the same with all sines before all cosines, and with an output bias, of zeros where there is none."""
    if config.positions == "sinusoidal":
        tensors = {name: _halved(name, tensor) for name, tensor in tensors.items()}
        config = replace(config, positions="sinusoidal-halves")
    if "output.bias" not in tensors:
        table = tensors.get("target_embed.weight", tensors["source_embed.weight"])
        tensors = {**tensors, "output.bias": table.new_zeros(config.target_vocab_size)}
        config = replace(config, output_bias=True)
    return config, tensors


_READS_WIDTH = (
    "_embed.weight",
    "output.weight",
    ".q_proj.weight",
    ".k_proj.weight",
    ".v_proj.weight",
    ".up_proj.weight",
)
_WRITES_WIDTH = tuple(f"{layer}.{end}" for layer in ("out_proj", "down_proj", "_norm") for end in ("weight", "bias"))


def _halved(name: str, tensor: Tensor) -> Tensor:
    """Bring the axis of width D from (sine, cosine), (sine, cosine), … to all sines, all cosines.

    Numbering the D coordinates anew, in all tensors alike, leaves the function as it was: a norm does not look at their
    order, and each product is summed over them.
    """
    if name.endswith(_READS_WIDTH):
        return torch.cat([tensor[:, 0::2], tensor[:, 1::2]], 1)
    return torch.cat([tensor[0::2], tensor[1::2]]) if name.endswith(_WRITES_WIDTH) else tensor


def _check(config: TransformerConfig, theirs: Mapping[str, Tensor], where: str) -> None:
    check_sines(theirs, _TABLES, config.embed_dim, where)


def _tables(config: TransformerConfig) -> dict[str, Tensor]:
    return {name: sinusoidal(torch.arange(config.max_len), config.embed_dim, "halves") for name in _TABLES}


def _layout(model_type: str, architecture: str, norm: Norm, **rest: Any) -> Layout:
    return Layout(
        model_type=model_type,
        architecture=lambda config: architecture,
        prefix="model.",
        rules=_rules,
        head="",  # a tied output table is one more name of the embedding
        embed="",
        buffers=_TABLES,
        read=partial(_read, norm=norm, architecture=architecture),
        write=partial(_write, norm=norm),
        lacks=partial(_lacks, norm=norm),
        adapt=_adapt,
        check=_check,
        **rest,
    )


_PUBLIC = (
    _layout("marian", "MarianMTModel", "post"),
    _layout("pegasus", "PegasusForConditionalGeneration", "pre", tables=_tables),
)

_BASE = TransformerConfig(37000, 37000)
_NOTE = (
    "37,000 BPE tokens shared by source, target and output, as in the paper's English-German set-up. {why} Attention "
    "projections have biases here."
)

register(
    Family(
        name="transformer",
        config=TransformerConfig,
        build=Transformer,
        tiny=(
            TransformerConfig(23, 23, 16, 24, 2, encoder_layers=2, decoder_layers=2),
            TransformerConfig(
                23,
                29,
                16,
                24,
                4,
                2,
                2,
                2,
                norm="pre",
                activation="gelu",
                share="target",
                positions="none",
                rotary_base=1e4,
            ),
            TransformerConfig(
                23, 29, 16, 24, 2, 0, 1, 1, share="none", positions="learned", position_dim=4, attention_dropout=0.1
            ),
            TransformerConfig(
                23, 23, 16, 24, 2, 0, 1, 2, positions="sinusoidal-halves", scale_embed=False, output_bias=True
            ),
        ),
        # Vaswani et al. 2017, table 3.
        sizes=(
            Size(
                "transformer-base",
                _BASE,
                "65 M",
                _NOTE.format(why="The paper's 65 M is met with about 40,700 tokens, its 37,000 being approximate."),
            ),
            Size(
                "transformer-big",
                replace(_BASE, embed_dim=1024, mlp_dim=4096, num_heads=16, dropout=0.3),
                "213 M",
                _NOTE.format(why="The paper's 213 M is met with about 35,700 tokens."),
            ),
        ),
        public=_PUBLIC,
    )
)
