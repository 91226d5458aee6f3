"""Swin's public checkpoints and sizes, and its enrolment: the layouts of Hugging Face and of timm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from regard.attention.masks import Tensors
from regard.errors import CheckpointError, FormatError
from regard.layers.windows import WindowPadding, windows_of
from regard.models.public import Layout, Rule, both
from regard.models.registry import Family, Size, check_bounds, register
from regard.models.swin import MAX_STAGES, Swin, SwinConfig, WindowShrink
from regard.models.values import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    TIMM_RATES,
    architecture,
    choose,
    count,
    expect,
    number,
    pair,
    timm_settings,
)

_BUFFERS = ("relative_position_index", "attn_mask")
_EPS = 1e-5  # of the norms of embeddings and merged tokens, whatever config.json says of the others


def _blocks(config: SwinConfig) -> Iterator[tuple[int, int]]:
    return ((stage, i) for stage, blocks in enumerate(config.num_layers) for i in range(blocks))


def _differs(config: SwinConfig, **of: Any) -> bool:
    """Whether a model of its own size of images would be another function with other rules of its windows."""
    other = replace(config, **of)
    for stage, grid in enumerate(config.grids(*config.image_size)):
        (size, shift), theirs = config.fit(stage, grid), other.fit(stage, grid)
        is_filled = any(length % side for length, side in zip(grid, size, strict=True))
        if (size, shift) != theirs or (is_filled and config.window_padding != other.window_padding):
            return True
    return False


def _lacks(config: SwinConfig, **of: Any) -> str:
    if config.norm_eps != _EPS:
        return f"norms have the epsilon {_EPS}"
    is_small = any(min(grid) < config.window(stage) for stage, grid in enumerate(config.grids(*config.image_size)))
    if is_small:
        return "no grid is smaller than a window"
    return "attends to places beyond the grid, or shifts other windows" if _differs(config, **of) else ""


def _check(config: SwinConfig, theirs: Mapping[str, Tensor], where: str) -> None:
    """What older files hold of offsets and masks is what every model makes anew."""
    for name, held in theirs.items():
        if not name.endswith(_BUFFERS):
            continue
        found = re.search(r"layers\.(\d{1,3})\.blocks\.(\d{1,4})\.", name)
        if found is None or (int(found[1]), int(found[2])) not in set(_blocks(config)):
            raise CheckpointError(f"{name[:80]} belongs to no layer", where=where)
        grid = config.grids(*config.image_size)[int(found[1])]
        size, shift = config.fit(int(found[1]), grid)
        tokens = size[0] * size[1]
        windows = -(-grid[0] // size[0]) * -(-grid[1] // size[1])
        is_mask = name.endswith(_BUFFERS[1])
        # Before anything is made of a size that config.json says.
        fits = held.shape == ((windows, tokens, tokens) if is_mask else (tokens, tokens))
        if not fits or not _holds(held, is_mask, (grid, size, shift), config.window_padding):
            raise CheckpointError(f"{name} is not that of windows of {size[0]} × {size[1]}", where=where)


def _holds(held: Tensor, is_mask: bool, cut: tuple[Any, Any, Any], padding: WindowPadding) -> bool:
    if is_mask:
        mask = windows_of(1, *cut, padding, held.device).mask
        return isinstance(mask, Tensors) and torch.equal(held == 0, mask.allowed_BHTS[:, 0])
    _, (height, width), _ = cut
    rows, columns = (torch.arange(height).repeat_interleave(width), torch.arange(width).repeat(height))
    down, right = rows[:, None] - rows + height - 1, columns[:, None] - columns + width - 1
    return torch.equal(held.long(), down * (2 * width - 1) + right)


def _own(values: Mapping[str, Any], usual: Mapping[str, str], where: str) -> dict[str, Any]:
    """Take the rules of windows: theirs have no others, but those of a model trained here are kept for us to read."""
    known = {"window_padding": get_args(WindowPadding), "window_shrink": get_args(WindowShrink)}
    return {name: choose({**usual, **values}, name, {one: one for one in known[name]}, where) for name in usual}


def _others(config: SwinConfig, usual: Mapping[str, str]) -> dict[str, str]:
    return {name: getattr(config, name) for name, value in usual.items() if getattr(config, name) != value}


def _counts(values: Mapping[str, Any], name: str, where: str) -> tuple[int, ...]:
    """Take a setting that is a whole number for each stage."""
    value = values.get(name)
    is_list = isinstance(value, (list, tuple)) and 1 <= len(value) <= MAX_STAGES
    if not is_list or not all(type(one) is int for one in value):
        raise FormatError(
            f"{name} is {str(value)[:40]}, not a number for each of 1 to {MAX_STAGES} stages", where=where
        )
    return tuple(value)


# -------------------------------------------------------------------------------------------------------- Hugging Face

_HEADS = {"SwinModel": False, "SwinForImageClassification": True}
_RULES = {"window_padding": "zeros", "window_shrink": "both"}


def _read(values: Mapping[str, Any], where: str) -> SwinConfig:
    expect(values, where, qkv_bias=True, use_absolute_embeddings=False, layer_norm_eps=_EPS)
    side, width = pair(values, "patch_size", where, 4)
    if side != width:
        raise FormatError(f"patches of {side} × {width}; only square ones are known here", where=where)
    names, labels = values.get("id2label"), 0
    if _HEADS[architecture(values, where, _HEADS)]:
        # Where neither is said, transformers has two classes.
        labels = len(names) if isinstance(names, dict) else count(values, "num_labels", where, 2)
    return SwinConfig(
        image_size=pair(values, "image_size", where, 224),
        num_channels=count(values, "num_channels", where, 3),
        num_classes=labels,
        patch_size=side,
        embed_dim=count(values, "embed_dim", where),
        num_layers=_counts(values, "depths", where),
        num_heads=_counts(values, "num_heads", where),
        window_size=(count(values, "window_size", where),),
        mlp_ratio=float(number(values, "mlp_ratio", where, 4.0)),
        activation=choose(values, "hidden_act", ACTIVATIONS, where),
        dropout=number(values, "hidden_dropout_prob", where, 0.0),
        attention_dropout=number(values, "attention_probs_dropout_prob", where, 0.0),
        drop_path=number(values, "drop_path_rate", where, 0.1),
        **_own(values, _RULES, where),
    )


def _write(config: SwinConfig) -> dict[str, Any]:
    height, width = config.image_size
    names = {str(i): f"LABEL_{i}" for i in range(config.num_classes)}
    labels = {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}} if names else {}
    return {
        "image_size": height if height == width else [height, width],
        "num_channels": config.num_channels,
        "patch_size": config.patch_size,
        "embed_dim": config.embed_dim,
        "depths": list(config.num_layers),
        "num_heads": list(config.num_heads),
        "window_size": config.window(0),
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": True,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "drop_path_rate": config.drop_path,
        "use_absolute_embeddings": False,
        "layer_norm_eps": config.norm_eps,
        **_others(config, _RULES),
        **labels,
    }


def _kernel(config: SwinConfig) -> tuple[int, ...]:
    return config.embed_dim, config.num_channels, config.patch_size, config.patch_size


def _rules(config: SwinConfig) -> Iterator[Rule]:
    patches = "embeddings.patch_embeddings.projection"
    yield Rule(f"{patches}.weight", "patches.proj.weight", shape=_kernel(config))
    yield Rule(f"{patches}.bias", "patches.proj.bias")
    yield from both("embeddings.norm", "embed_norm")
    for stage in range(1, len(config.num_layers)):  # theirs merges at the end of the stage before
        yield from both(f"encoder.layers.{stage - 1}.downsample.norm", f"stages.{stage}.merging.norm")
        yield Rule(f"encoder.layers.{stage - 1}.downsample.reduction.weight", f"stages.{stage}.merging.proj.weight")
    for stage, i in _blocks(config):
        block = f"encoder.layers.{stage}.blocks.{i}"
        for inner, own in (
            ("layernorm_before", "self_norm"),
            ("attention.self.query", "self_attn.q_proj"),
            ("attention.self.key", "self_attn.k_proj"),
            ("attention.self.value", "self_attn.v_proj"),
            ("attention.output.dense", "self_attn.out_proj"),
            ("layernorm_after", "mlp_norm"),
            ("intermediate.dense", "mlp.up_proj"),
            ("output.dense", "mlp.down_proj"),
        ):
            yield from both(f"{block}.{inner}", f"stages.{stage}.blocks.{i}.{own}")
        table = f"{block}.attention.self.relative_position_bias_table"
        yield Rule(table, f"stages.{stage}.biases.{i}.weight")
    yield from both("layernorm", "norm")
    if config.num_classes:
        yield from both("classifier", "head", outside=True)


def _lacks_here(config: SwinConfig) -> str:
    if len(set(config.window_size)) > 1:
        return "windows have one size"
    return _lacks(config, **_RULES)


# ---------------------------------------------------------------------------------------------------------------- timm

_TIMM_WIDTHS: dict[str, dict[str, Any]] = {
    "tiny": {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)},
    "small": {"embed_dim": 96, "depths": (2, 2, 18, 2), "num_heads": (3, 6, 12, 24)},
    "base": {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)},
    "large": {"embed_dim": 192, "depths": (2, 2, 18, 2), "num_heads": (6, 12, 24, 48)},
}
# What timm's own constructors say.
_TIMM: dict[str, dict[str, Any]] = {
    **{
        f"swin_{name}_patch4_window7_224": {**widths, "window_size": 7, "img_size": 224}
        for name, widths in _TIMM_WIDTHS.items()
    },
    **{
        f"swin_{name}_patch4_window12_384": {**_TIMM_WIDTHS[name], "window_size": 12, "img_size": 384}
        for name in ("base", "large")
    },
    "swin_s3_tiny_224": {**_TIMM_WIDTHS["tiny"], "window_size": (7, 7, 14, 7), "img_size": 224},
    "swin_s3_small_224": {**_TIMM_WIDTHS["small"], "window_size": (14, 14, 14, 7), "img_size": 224},
    "swin_s3_base_224": {
        **_TIMM_WIDTHS["small"],
        "depths": (2, 2, 30, 2),
        "window_size": (7, 7, 14, 7),
        "img_size": 224,
    },
}
_TIMM_RULES = {"window_padding": "zeros-after-shift", "window_shrink": "side"}


def _read_timm(values: Mapping[str, Any], where: str) -> SwinConfig:
    usual = {"global_pool": "avg", "patch_size": 4}
    said = timm_settings(values, _TIMM, usual, ("mlp_ratio", "qkv_bias"), where)
    expect(said, where, qkv_bias=True, global_pool="avg")
    config = SwinConfig(
        image_size=pair(said, "img_size", where),
        num_channels=count(said, "in_chans", where),
        num_classes=count(said, "num_classes", where),
        patch_size=pair(said, "patch_size", where)[0],
        embed_dim=count(said, "embed_dim", where),
        num_layers=_counts(said, "depths", where),
        num_heads=_counts(said, "num_heads", where),
        mlp_ratio=float(number(said, "mlp_ratio", where, 4.0)),
        **{
            ours: number(said, theirs, where, 0.1 if ours == "drop_path" else 0.0)
            for theirs, ours in TIMM_RATES.items()
        },
        **_own(values, _TIMM_RULES, where),
    )
    check_bounds(config, where)
    if _lacks_patches(config):
        raise FormatError(f"img_size is {list(config.image_size)}, no multiple of patches", where=where)
    return replace(config, window_size=_timm_windows(said["window_size"], config, where))


def _timm_windows(said: Any, config: SwinConfig, where: str) -> tuple[int, ...]:
    """Windows of each stage. Theirs are made for the grids of ``img_size``, and are no larger than these."""
    is_pair = isinstance(said, (list, tuple)) and len(said) == 2 and not isinstance(said[0], (list, tuple))
    grids = config.grids(*config.image_size)
    each = said if isinstance(said, (list, tuple)) and not is_pair else [said] * len(grids)
    if len(each) != len(grids):
        raise FormatError(f"window_size is {str(said)[:40]} for {len(grids)} stages", where=where)
    windows = []
    for one, grid in zip(each, grids, strict=True):
        height, width = (min(sides) for sides in zip(pair({"": one}, "", where), grid, strict=True))
        if height != width:
            raise FormatError(f"windows of {height} × {width}; only square ones are known here", where=where)
        windows.append(height)
    return tuple(windows) if len(set(windows)) > 1 else (windows[0],)


def _timm_name(config: SwinConfig) -> str:
    """Name the architecture with just these sizes, or else one whose sizes ``model_args`` changes."""
    sizes = (config.embed_dim, config.num_layers, config.num_heads)
    for name, of in _TIMM.items():
        image, theirs = of["img_size"], (of["embed_dim"], of["depths"], of["num_heads"])
        windows = of["window_size"] if isinstance(of["window_size"], tuple) else (of["window_size"],)
        if sizes == theirs and (windows, (image, image)) == (config.window_size, config.image_size):
            return name
    return next(iter(_TIMM))


def _write_timm(config: SwinConfig) -> dict[str, Any]:
    return {
        "architecture": _timm_name(config),
        "num_classes": config.num_classes,
        "num_features": config.embed_dim * 2 ** (len(config.num_layers) - 1),
        "global_pool": "avg",
        "pretrained_cfg": {
            "num_classes": config.num_classes,
            "input_size": [config.num_channels, *config.image_size],
            "fixed_input_size": True,
            "first_conv": "patch_embed.proj",
            "classifier": "head.fc",
        },
        "model_args": {
            "img_size": list(config.image_size),
            "patch_size": config.patch_size,
            "embed_dim": config.embed_dim,
            "depths": list(config.num_layers),
            "num_heads": list(config.num_heads),
            # A list of two numbers would be a height and a width.
            "window_size": [[config.window(stage)] * 2 for stage in range(len(config.num_layers))],
            "mlp_ratio": config.mlp_ratio,
        },
        **_others(config, _TIMM_RULES),
    }


def _timm_rules(config: SwinConfig) -> Iterator[Rule]:
    yield Rule("patch_embed.proj.weight", "patches.proj.weight", shape=_kernel(config))
    yield Rule("patch_embed.proj.bias", "patches.proj.bias")
    yield from both("patch_embed.norm", "embed_norm")
    for stage in range(1, len(config.num_layers)):
        yield from both(f"layers.{stage}.downsample.norm", f"stages.{stage}.merging.norm")
        yield Rule(f"layers.{stage}.downsample.reduction.weight", f"stages.{stage}.merging.proj.weight")
    for stage, i in _blocks(config):
        block, own = f"layers.{stage}.blocks.{i}", f"stages.{stage}.blocks.{i}"
        for inner, name in (("norm1", "self_norm"), ("attn.proj", "self_attn.out_proj"), ("norm2", "mlp_norm")):
            yield from both(f"{block}.{inner}", f"{own}.{name}")
        for end in ("weight", "bias"):
            yield Rule(f"{block}.attn.qkv.{end}", tuple(f"{own}.self_attn.{part}_proj.{end}" for part in "qkv"))
        for inner, name in (("fc1", "up_proj"), ("fc2", "down_proj")):
            yield from both(f"{block}.mlp.{inner}", f"{own}.mlp.{name}")
        yield Rule(f"{block}.attn.relative_position_bias_table", f"stages.{stage}.biases.{i}.weight")
    yield from both("norm", "norm")
    if config.num_classes:
        yield from both("head.fc", "head")


def _lacks_patches(config: SwinConfig) -> bool:
    return any(side % config.patch_size for side in config.image_size)


def _timm_lacks(config: SwinConfig) -> str:
    if _lacks_patches(config):
        return "images are multiples of patches"
    return "activations are gelu" if config.activation != "gelu" else _lacks(config, **_TIMM_RULES)


# ----------------------------------------------------------------------------------------------------------- enrolment

_PUBLIC = (
    Layout(
        model_type="swin",
        architecture=lambda config: "SwinForImageClassification" if config.num_classes else "SwinModel",
        prefix="swin.",
        rules=_rules,
        head="",
        embed="",
        buffers=_BUFFERS,
        read=_read,
        write=_write,
        lacks=_lacks_here,
        check=_check,
        labels=("id2label", "label2id"),
    ),
    Layout(
        model_type="timm/swin",
        form="timm",
        architecture=_timm_name,
        prefix="",
        rules=_timm_rules,
        head="",
        embed="",
        buffers=_BUFFERS,
        read=_read_timm,
        write=_write_timm,
        lacks=_timm_lacks,
        check=_check,
        labels=("pretrained_cfg", "label_names", "label_descriptions"),
    ),
)

# Liu et al. 2021, §3.3; parameters as the release prints them, stochastic depth as in its settings.
_TINY = SwinConfig(num_classes=1000, drop_path=0.2)
_SMALL = replace(_TINY, num_layers=(2, 2, 18, 2), drop_path=0.3)
_BASE = replace(_SMALL, embed_dim=128, num_heads=(4, 8, 16, 32), drop_path=0.5)
_LARGE = replace(_SMALL, embed_dim=192, num_heads=(6, 12, 24, 48), drop_path=0.2)
_NOTE = "With a head of 1,000 classes, images of 224 × 224; without the head {}."

register(
    Family(
        name="swin",
        config=SwinConfig,
        build=Swin,
        tiny=(
            SwinConfig((16, 24), 3, 5, 2, 8, (2, 1), (2, 4), (4,), drop_path=0.1, dropout=0.1),
            SwinConfig((12, 20), 1, 3, 2, 8, (2, 2, 1), (1, 2, 4), (3, 2, 2), "zeros", "both", 2.0, drop_path=0.2),
            SwinConfig((14, 10), 2, 4, 2, 8, (3,), (2,), (4,), "zeros-after-shift", attention_dropout=0.1),
            SwinConfig((9, 9), 1, 0, 4, 8, (1, 1), (2, 2), activation="relu", dropout=0.1, norm_eps=1e-6),
        ),
        sizes=(
            Size("swin-t", _TINY, "28 M", _NOTE.format("27.5 M")),
            Size("swin-s", _SMALL, "50 M", _NOTE.format("48.8 M")),
            Size("swin-b", _BASE, "88 M", _NOTE.format("86.7 M")),
            Size("swin-l", _LARGE, "197 M", _NOTE.format("195.0 M")),
        ),
        public=_PUBLIC,
    )
)
