"""What images are compared by: the vectors of a trained image encoder, or pixels."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.files import sha256
from regard.models.registry import families
from regard.tasks.images.classifier import ImageEmbedder
from regard.tasks.images.encoders import model_folder, read_encoder

SIDE = 8


class Extractor(Protocol):
    """Gives images vectors.

    Attributes:
        name: What it is, precisely enough for a score's signature.
    """

    name: str

    def __call__(self, images_BCYX: Tensor) -> Tensor:
        """Give each image a vector.

        Args:
            images_BCYX: uint8.

        Returns:
            features_BD, floats on the CPU.
        """
        ...


class AveragedPixels:
    """Pixels from 0 to 1, averaged over a grid of 8 × 8: all that can be had without a trained encoder."""

    name = f"pixels averaged to {SIDE}x{SIDE}"

    def __call__(self, images_BCYX: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(images_BCYX.double() / 255, SIDE).flatten(1)


class EncoderFeatures:
    """The pooled vectors of a trained image encoder.

    Args:
        path: A run's folder of ours, the model folder in it, or a public folder.
        size: Height and width of the images; they are read as they are, whatever the encoder was trained on.
        channels: Channels of the images.
        device: Where it runs.

    Raises:
        ConfigError: The folder holds no image encoder, or one for another number of channels.
    """

    def __init__(self, path: str, size: tuple[int, int], channels: int, device: torch.device) -> None:
        encoder, pixels = read_encoder(path)
        if len(pixels.mean) != channels:
            what = f"the encoder reads {len(pixels.mean)} channels, the images have {channels}"
            raise ConfigError(what, where=f"features: {path}", mend=f"set data.channels: {len(pixels.mean)}")
        family = next(name for name, known in families().items() if isinstance(encoder.config, known.config))
        self.name = f"{family}, sha256 {_digest(model_folder(path))}"
        self._embedder = ImageEmbedder(encoder, replace(pixels, size=size), "features", device)

    def __call__(self, images_BCYX: Tensor) -> Tensor:
        return self._embedder.vectors(images_BCYX)


def extractor(path: str, size: tuple[int, int], channels: int, device: torch.device) -> Extractor:
    """Choose what images are compared by.

    Args:
        path: A folder with an image encoder; empty for averaged pixels.
        size: Height and width of the images.
        channels: Channels of the images.
        device: Where it runs.

    Returns:
        The extractor.
    """
    return EncoderFeatures(path, size, channels, device) if path else AveragedPixels()


def _digest(folder: Path) -> str:
    """SHA-256 of a model's weights; of several files, of their sums in the order of their names."""
    sums = [sha256(path) for path in sorted(folder.glob("*.safetensors"))]
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
