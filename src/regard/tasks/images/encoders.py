"""What training on images starts from: a fresh image encoder, or one from a run of ours or a public folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard import settings
from regard.data.images import Images
from regard.data.pixels import Pixels
from regard.errors import ConfigError
from regard.files import read_config
from regard.models.interface import HoldsImageEncoder, ImageEncoder
from regard.models.public import read_folder
from regard.models.registry import families
from regard.places import existing, on_disk
from regard.tasks.building import build
from regard.tasks.plain import CONFIG_CAP_BYTES, MODEL_TYPE, load_model

# What a trained encoder may be given another of: none of them is learnt, nor decides what learnt weights mean.
FREE = ("dropout", "attention_dropout", "drop_path", "pooling", "norm_pooled", "window_padding", "window_shrink")
LEAVE_OUT = "leave it out: a trained encoder has its own"


def fresh(model: Mapping[str, Any], pixels: Pixels, num_classes: int, does: str) -> ImageEncoder:
    """Build an image encoder for the images at hand.

    Args:
        model: ``family`` and its settings.
        pixels: Size and channels of the images.
        num_classes: Classes of the head; 0 for none.
        does: What it is for, for messages.

    Returns:
        The encoder, with fresh weights.
    """
    given = {"image_size": pixels.size, "num_channels": len(pixels.mean), "num_classes": num_classes}
    return build(model, "vit", given, ImageEncoder, does, "model")


def model_folder(path: str | Path) -> Path:
    """Find the folder with the model in a run's folder.

    Args:
        path: A run's folder, or the model's own.

    Returns:
        The model's folder.
    """
    source = on_disk(path)
    return source / "model" if (source / "model" / "config.json").is_file() else source


def read_encoder(init: str) -> tuple[ImageEncoder, Pixels]:
    """Read an image encoder, of a model that was trained for something else its part that sees.

    Args:
        init: A run's folder of ours, the model folder in it, or a public folder.

    Returns:
        The encoder, and how its images are normalized.

    Raises:
        ConfigError: The folder holds no image encoder.
    """
    folder = model_folder(existing(init))
    path = folder / "config.json"
    kind = read_config(path, CONFIG_CAP_BYTES).get("model_type") if path.is_file() else None
    name, model = load_model(folder) if kind == MODEL_TYPE else read_folder(folder)[:2]
    encoder = model.image_encoder() if isinstance(model, HoldsImageEncoder) else model
    if not isinstance(encoder, ImageEncoder):
        raise ConfigError(f"a {name} is no image encoder", where=init, mend="give a vit, swin, mae or convnet")
    return encoder.float(), Pixels.read(folder)


def starting(init: str, images: Images) -> tuple[ImageEncoder | None, Pixels]:
    """Read the encoder that training starts from, and say how images are normalized.

    Args:
        init: As :func:`read_encoder` takes it; empty for a fresh encoder.
        images: The training part.

    Returns:
        The encoder, None for a fresh one; and the normalization, a trained encoder's own, with images brought to size
        as these are.

    Raises:
        ConfigError: The images have another number of channels.
    """
    if not init:
        return None, Pixels.of(images)
    encoder, pixels = read_encoder(init)
    if images.channels != len(pixels.mean):
        what = f"the encoder reads {len(pixels.mean)} channels, the images have {images.channels}"
        raise ConfigError(what, where=init, mend=f"set data.channels: {len(pixels.mean)}")
    return encoder, replace(pixels, size=images.size, fit=images.fit, resample=images.resample, share=images.share)


def refit(encoder: ImageEncoder, pixels: Pixels, num_classes: int, model: Mapping[str, Any], init: str) -> ImageEncoder:
    """Make a trained encoder over for other images and classes: all but its head stays.

    Args:
        encoder: The trained one.
        pixels: Size and channels of the new images.
        num_classes: Classes of the new head; 0 for none.
        model: Settings that may be changed all the same, those in ``FREE``; others have to be the encoder's own.
        init: Where it comes from, for messages.

    Returns:
        The encoder with a fresh head.

    Raises:
        ConfigError: A setting is none that can be changed, or the encoder is of another family.
    """
    own = next(name for name, known in families().items() if isinstance(encoder.config, known.config))
    if (wanted := model.get("family", own)) != own:
        raise ConfigError(f"model.family is {str(wanted)[:40]!r}, the encoder is a {own}", where=init, mend=LEAVE_OUT)
    names = {item: value for item, value in model.items() if item != "family"}
    for name, value in names.items():
        if not hasattr(encoder.config, name) or name in ("image_size", "num_channels", "num_classes"):
            raise ConfigError(f"model.{name} is no setting to change", where=init, mend=LEAVE_OUT)
        has = settings.plain(getattr(encoder.config, name))
        if name not in FREE and settings.plain(value) != has:
            what = f"model.{name} is {str(value)[:40]}, the encoder's is {has}"
            raise ConfigError(what, where=init, mend=LEAVE_OUT)
    # Classes of the same number need not be the same classes: the old head goes first.
    return encoder.adapted(num_classes=0).adapted(image_size=tuple(pixels.size), num_classes=num_classes, **names)
