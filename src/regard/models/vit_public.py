"""ViT's public checkpoints and sizes, and its enrolment: the layouts of Hugging Face and of timm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from regard.errors import FormatError
from regard.models.public import Layout, Rule, both
from regard.models.registry import Family, Size, register
from regard.models.values import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    TIMM_RATES,
    architecture,
    choose,
    count,
    expect,
    flag,
    number,
    pair,
    timm_settings,
)
from regard.models.vit import Vit, VitConfig

# -------------------------------------------------------------------------------------------------------- Hugging Face

_HEADS = {"ViTModel": False, "ViTForImageClassification": True}


def read_sizes(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Take what a ViT and an MAE of the Hugging Face layout say of their encoder in the same words.

    Args:
        values: config.json.
        where: Its path.

    Returns:
        Our settings by name.

    Raises:
        FormatError: A setting is missing, or none that we have.
    """
    expect(values, where, qkv_bias=True)
    height, width = pair(values, "patch_size", where, 16)
    if height != width:
        raise FormatError(f"patches of {height} × {width}; only square ones are known here", where=where)
    return {
        "image_size": pair(values, "image_size", where, 224),
        "num_channels": count(values, "num_channels", where, 3),
        "patch_size": height,
        "embed_dim": count(values, "hidden_size", where),
        "num_layers": count(values, "num_hidden_layers", where),
        "num_heads": count(values, "num_attention_heads", where),
        "mlp_dim": count(values, "intermediate_size", where),
        "activation": choose(values, "hidden_act", ACTIVATIONS, where),
        "dropout": number(values, "hidden_dropout_prob", where, 0.0),
        "attention_dropout": number(values, "attention_probs_dropout_prob", where, 0.0),
        "norm_eps": number(values, "layer_norm_eps", where, 1e-12),
    }


def write_sizes(config: Any) -> dict[str, Any]:
    """Say of an encoder what :func:`read_sizes` takes.

    Args:
        config: Settings of a ViT or an MAE.

    Returns:
        Entries of config.json.
    """
    height, width = config.image_size
    return {
        "image_size": height if height == width else [height, width],
        "num_channels": config.num_channels,
        "patch_size": config.patch_size,
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "qkv_bias": True,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
    }


def block_rules(theirs: str, ours: str, **how: Any) -> Iterator[Rule]:
    """Give the rules of blocks in the Hugging Face layout.

    Args:
        theirs: What their names begin with.
        ours: What our names begin with.
        **how: Further fields of the rules.

    Yields:
        A rule for each tensor.
    """
    for inner, own in (
        ("layernorm_before", "self_norm"),
        ("attention.attention.query", "self_attn.q_proj"),
        ("attention.attention.key", "self_attn.k_proj"),
        ("attention.attention.value", "self_attn.v_proj"),
        ("attention.output.dense", "self_attn.out_proj"),
        ("layernorm_after", "mlp_norm"),
        ("intermediate.dense", "mlp.up_proj"),
        ("output.dense", "mlp.down_proj"),
    ):
        yield from both(f"{theirs}.{{i}}.{inner}", f"{ours}.{{i}}.{own}", **how)


def embed_rules(config: Any, patches: str, class_token: str, positions: str, ours: str = "") -> Iterator[Rule]:
    """Give the rules of what stands before the blocks.

    Args:
        config: Settings of a ViT or an MAE.
        patches: Their name of the convolution.
        class_token: Their name of the class token; empty where there is none.
        positions: Their name of the table.
        ours: What our names begin with.

    Yields:
        A rule for each tensor.
    """
    kernel = (config.embed_dim, config.num_channels, config.patch_size, config.patch_size)
    yield Rule(f"{patches}.weight", f"{ours}patches.proj.weight", shape=kernel)
    yield Rule(f"{patches}.bias", f"{ours}patches.proj.bias")
    if class_token:
        yield Rule(class_token, f"{ours}class_token", row=True)
    yield Rule(positions, f"{ours}positions.weight", row=True)


def _read(values: Mapping[str, Any], where: str) -> VitConfig:
    sizes = read_sizes(values, where)
    expect(values, where, pooler_act="tanh")
    if values.get("pooler_output_size") not in (None, sizes["embed_dim"]):
        expect(values, where, pooler_output_size=sizes["embed_dim"])
    if not _HEADS[architecture(values, where, _HEADS)]:
        return VitConfig(**sizes)
    names = values.get("id2label")
    # Where neither is said, transformers has two classes.
    labels = len(names) if isinstance(names, dict) else count(values, "num_labels", where, 2)
    return VitConfig(**sizes, num_classes=labels)


def _write(config: VitConfig) -> dict[str, Any]:
    names = {str(i): f"LABEL_{i}" for i in range(config.num_classes)}
    labels = {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}} if names else {}
    return {**write_sizes(config), "pooler_output_size": config.embed_dim, "pooler_act": "tanh", **labels}


def _rules(config: VitConfig) -> Iterator[Rule]:
    names = ("embeddings.patch_embeddings.projection", "embeddings.cls_token", "embeddings.position_embeddings")
    yield from embed_rules(config, *names)
    yield from block_rules("encoder.layer", "blocks")
    yield from both("layernorm", "norm")
    if config.pooler:
        yield from both("pooler.dense", "pooler")
    if config.num_classes:
        yield from both("classifier", "head", outside=True)


def _lacks(config: VitConfig) -> str:
    if not config.class_token or config.pooling != "cls":
        return "takes the class token's vector"
    return "has a pooler or a head, not both" if config.pooler and config.num_classes else ""


def _learned(config: VitConfig, tensors: dict[str, Tensor]) -> tuple[VitConfig, dict[str, Tensor]]:
    """Fixed positions stand in their file like learned ones."""
    return replace(config, positions="learned"), tensors


# ---------------------------------------------------------------------------------------------------------------- timm

_TIMM_WIDTHS = {
    "tiny": {"embed_dim": 192, "num_heads": 3},
    "small": {"embed_dim": 384, "num_heads": 6},
    "base": {"embed_dim": 768, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
    "huge": {"embed_dim": 1280, "depth": 32, "num_heads": 16},
}
_TIMM_IMAGES = {
    "tiny": ((16, 224), (16, 384)),
    "small": ((32, 224), (32, 384), (16, 224), (16, 384), (8, 224)),
    "base": ((32, 224), (32, 384), (16, 224), (16, 384), (8, 224)),
    "large": ((32, 224), (32, 384), (16, 224), (16, 384), (14, 224)),
    "huge": ((14, 224),),
}
# What timm's own constructors say for the architectures that are a ViT as the paper has it.
_TIMM = {
    f"vit_{name}_patch{patch}_{image}": {**widths, "patch_size": patch, "img_size": image}
    for name, widths in _TIMM_WIDTHS.items()
    for patch, image in _TIMM_IMAGES[name]
}
_TIMM_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu-tanh",
    "quick_gelu": "gelu-quick",
    "relu": "relu",
    "silu": "silu",
}
_TIMM_POOLINGS = {"token": "cls", "avg": "mean"}
_TIMM_EPS = 1e-6


def _read_timm(values: Mapping[str, Any], where: str) -> VitConfig:
    usual = {"global_pool": "token", "act_layer": "gelu"}
    more = ("depth", "mlp_ratio", "qkv_bias", "class_token", "fc_norm")
    said = timm_settings(values, _TIMM, usual, more, where)
    expect(said, where, qkv_bias=True)
    pooling = choose(said, "global_pool", _TIMM_POOLINGS, where)
    norm_pooled = pooling == "mean" if said.get("fc_norm") is None else flag(said, "fc_norm", where, False)
    if norm_pooled and pooling == "cls":
        raise FormatError("fc_norm is True with global_pool 'token', which is not known here", where=where)
    width, ratio = count(said, "embed_dim", where), number(said, "mlp_ratio", where, 4.0)
    try:
        mlp_dim = int(width * ratio)
    except (OverflowError, ValueError) as error:  # infinite, or no number
        raise FormatError(f"mlp_ratio is {ratio} and embed_dim {str(width)[:20]}", where=where) from error
    return VitConfig(
        image_size=pair(said, "img_size", where),
        num_channels=count(said, "in_chans", where),
        num_classes=count(said, "num_classes", where),
        patch_size=pair(said, "patch_size", where)[0],
        embed_dim=width,
        num_layers=count(said, "depth", where, 12),
        num_heads=count(said, "num_heads", where),
        mlp_dim=mlp_dim,
        class_token=flag(said, "class_token", where, True),
        pooling="cls" if pooling == "cls" else "mean",
        norm_pooled=norm_pooled,
        activation=choose(said, "act_layer", _TIMM_ACTIVATIONS, where),
        norm_eps=_TIMM_EPS,
        **{ours: number(said, theirs, where, 0.0) for theirs, ours in TIMM_RATES.items()},
    )


def _timm_name(config: VitConfig) -> str:
    """Name the architecture with just these sizes, or else one whose sizes ``model_args`` changes."""
    sizes = (config.embed_dim, config.num_layers, config.num_heads, config.patch_size, config.image_size)
    for name, of in _TIMM.items():
        image = of["img_size"]
        if sizes == (of["embed_dim"], of.get("depth", 12), of["num_heads"], of["patch_size"], (image, image)):
            return name
    return "vit_base_patch16_224"


def _write_timm(config: VitConfig) -> dict[str, Any]:
    pooling = {ours: theirs for theirs, ours in _TIMM_POOLINGS.items()}[config.pooling]
    return {
        "architecture": _timm_name(config),
        "num_classes": config.num_classes,
        "num_features": config.embed_dim,
        "global_pool": pooling,
        "pretrained_cfg": {
            "num_classes": config.num_classes,
            "input_size": [config.num_channels, *config.image_size],
            "fixed_input_size": True,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
        "model_args": {
            "img_size": list(config.image_size),
            "patch_size": config.patch_size,
            "embed_dim": config.embed_dim,
            "depth": config.num_layers,
            "num_heads": config.num_heads,
            "mlp_ratio": config.mlp_dim / config.embed_dim,
            "class_token": config.class_token,
            "global_pool": pooling,
            "fc_norm": config.norm_pooled,
            "act_layer": {ours: theirs for theirs, ours in _TIMM_ACTIVATIONS.items()}[config.activation],
        },
    }


def _timm_rules(config: VitConfig) -> Iterator[Rule]:
    yield from embed_rules(config, "patch_embed.proj", "cls_token" if config.class_token else "", "pos_embed")
    for inner, own in (("norm1", "self_norm"), ("attn.proj", "self_attn.out_proj"), ("norm2", "mlp_norm")):
        yield from both(f"blocks.{{i}}.{inner}", f"blocks.{{i}}.{own}")
    for end in ("weight", "bias"):
        parts = tuple(f"blocks.{{i}}.self_attn.{part}_proj.{end}" for part in "qkv")
        yield Rule(f"blocks.{{i}}.attn.qkv.{end}", parts)
    for inner, own in (("fc1", "up_proj"), ("fc2", "down_proj")):
        yield from both(f"blocks.{{i}}.mlp.{inner}", f"blocks.{{i}}.mlp.{own}")
    yield from both("fc_norm" if config.norm_pooled else "norm", "norm")
    if config.num_classes:
        yield from both("head", "head")


def _timm_lacks(config: VitConfig) -> str:
    if config.pooler:
        return "has no pooler"
    if config.norm_eps != _TIMM_EPS:
        return f"norms have the epsilon {_TIMM_EPS}"
    ratio = config.mlp_dim / config.embed_dim
    return "" if int(config.embed_dim * ratio) == config.mlp_dim else "the MLPs' width has no ratio to the width"


# ----------------------------------------------------------------------------------------------------------- enrolment

_PUBLIC = (
    Layout(
        model_type="vit",
        architecture=lambda config: "ViTForImageClassification" if config.num_classes else "ViTModel",
        prefix="vit.",
        rules=_rules,
        head="",
        embed="",
        buffers=(),
        read=_read,
        write=_write,
        lacks=_lacks,
        adapt=_learned,
        # Whether a ViTModel has its pooler, config.json does not say.
        told=lambda config, theirs: replace(config, pooler="pooler.dense.weight" in theirs and not config.num_classes),
        labels=("id2label", "label2id"),
    ),
    Layout(
        model_type="timm/vit",
        form="timm",
        architecture=_timm_name,
        prefix="",
        rules=_timm_rules,
        head="",
        embed="",
        buffers=(),
        read=_read_timm,
        write=_write_timm,
        lacks=_timm_lacks,
        adapt=_learned,
        labels=("pretrained_cfg", "label_names", "label_descriptions"),
    ),
)

# Dosovitskiy et al. 2020, table 1.
_BASE = VitConfig(num_classes=1000)
_LARGE = replace(_BASE, embed_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096)
_HUGE = replace(_LARGE, patch_size=14, embed_dim=1280, num_layers=32, mlp_dim=5120)
_NOTE = "With a head of 1,000 classes, images of 224 × 224; without the head {}."

register(
    Family(
        name="vit",
        config=VitConfig,
        build=Vit,
        tiny=(
            VitConfig((14, 21), 3, 5, 7, 16, 2, 2, 24, dropout=0.1, drop_path=0.1),
            VitConfig((8, 8), 1, 3, 4, 16, 1, 4, 20, "sincos", pooling="mean", norm_pooled=True, dropout=0.1),
            VitConfig((8, 12), 2, 4, 4, 16, 2, 2, 20, class_token=False, pooling="mean", attention_dropout=0.1),
            VitConfig((9, 9), 1, 4, 4, 16, 1, 2, 20, pooler=True, activation="relu", dropout=0.1),
        ),
        sizes=(
            Size("vit-b/16", _BASE, "86 M", _NOTE.format("85.8 M")),
            Size(
                "vit-l/16",
                _LARGE,
                "307 M",
                _NOTE.format("303.3 M") + " The paper prints 2.7 M more, and does not say of what.",
            ),
            Size("vit-h/14", _HUGE, "632 M", _NOTE.format("630.8 M")),
        ),
        public=_PUBLIC,
    )
)
