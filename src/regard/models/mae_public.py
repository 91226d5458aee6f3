"""MAE's public checkpoints and sizes, and its enrolment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from regard.models.mae import Mae, MaeConfig
from regard.models.public import Layout, Rule, both
from regard.models.registry import Family, Size, register
from regard.models.values import architecture, count, flag, number
from regard.models.vit_public import block_rules, embed_rules, read_sizes, write_sizes

_NAME = "ViTMAEForPreTraining"


def _read(values: Mapping[str, Any], where: str) -> MaeConfig:
    architecture(values, where, {_NAME: None})
    return MaeConfig(
        **read_sizes(values, where),
        decoder_dim=count(values, "decoder_hidden_size", where, 512),
        decoder_layers=count(values, "decoder_num_hidden_layers", where, 8),
        decoder_heads=count(values, "decoder_num_attention_heads", where, 16),
        decoder_mlp_dim=count(values, "decoder_intermediate_size", where, 2048),
        mask_ratio=number(values, "mask_ratio", where, 0.75),
        normalize_pixels=flag(values, "norm_pix_loss", where, False),
    )


def _write(config: MaeConfig) -> dict[str, Any]:
    return {
        **write_sizes(config),
        "decoder_hidden_size": config.decoder_dim,
        "decoder_num_hidden_layers": config.decoder_layers,
        "decoder_num_attention_heads": config.decoder_heads,
        "decoder_intermediate_size": config.decoder_mlp_dim,
        "mask_ratio": config.mask_ratio,
        "norm_pix_loss": config.normalize_pixels,
    }


def _rules(config: MaeConfig) -> Iterator[Rule]:
    patches = "vit.embeddings.patch_embeddings.projection"
    tokens = ("vit.embeddings.cls_token", "vit.embeddings.position_embeddings")
    yield from embed_rules(config, patches, *tokens, ours="encoder.")
    yield from block_rules("vit.encoder.layer", "encoder.blocks")
    yield from both("vit.layernorm", "encoder.norm")
    yield from both("decoder.decoder_embed", "decoder_embed")
    yield Rule("decoder.mask_token", "mask_token", row=True)
    yield Rule("decoder.decoder_pos_embed", "decoder_positions.weight", row=True)
    yield from block_rules("decoder.decoder_layers", "decoder", layers="decoder_layers")
    yield from both("decoder.decoder_norm", "decoder_norm")
    yield from both("decoder.decoder_pred", "output")


_PUBLIC = Layout(
    model_type="vit_mae",
    architecture=lambda config: _NAME,
    prefix="",
    rules=_rules,
    head="",
    embed="",
    buffers=(),
    read=_read,
    write=_write,
    # As transformers 5 writes what it read as the rules have it.
    spellings=(("decoder.decoder_encoder.layer.", "decoder.decoder_layers."),),
)

# He et al. 2021, §4 and table 1: encoders as in ViT, one decoder for all.
_BASE = MaeConfig()
_LARGE = replace(_BASE, embed_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096)
_HUGE = replace(_LARGE, patch_size=14, embed_dim=1280, num_layers=32, mlp_dim=5120)
_NOTE = "Encoder and decoder, images of 224 × 224; the tables of sines are not counted."

register(
    Family(
        name="mae",
        config=MaeConfig,
        build=Mae,
        tiny=(
            MaeConfig((12, 20), 3, 4, 16, 2, 2, 24, 8, 1, 2, 12, dropout=0.1),
            MaeConfig((14, 14), 1, 7, 16, 1, 4, 24, 12, 2, 3, 20, 0.5, normalize_pixels=False, attention_dropout=0.1),
        ),
        sizes=(
            Size("mae-vit-b/16", _BASE, None, _NOTE),
            Size("mae-vit-l/16", _LARGE, None, _NOTE),
            Size("mae-vit-h/14", _HUGE, None, _NOTE),
        ),
        public=(_PUBLIC,),
    )
)
