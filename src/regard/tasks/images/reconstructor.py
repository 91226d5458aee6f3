"""A trained model that rebuilds images from some of their patches, in use: its vectors, and what it makes of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.images import Images
from regard.data.pixels import Pixels
from regard.decoding import DecodeOptions
from regard.models.reconstructor import ImageReconstructor, Reconstruction
from regard.tasks.images.classifier import BATCH_IMAGES, ImageEmbedder
from regard.tasks.task import evaluating

_HIDDEN_LEVEL = 128  # grey


class Reconstructor:
    """A model that rebuilds images.

    Args:
        model: The model.
        pixels: How images become its numbers.
        device: Where it runs.
    """

    verbs = ("embed",)
    task = "reconstruct"
    options: DecodeOptions | None = None
    max_tokens = 1

    def __init__(self, model: ImageReconstructor, pixels: Pixels, device: torch.device | None = None) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.model, self.pixels = model.to(self.device).eval(), pixels

    def tokenizers(self) -> dict[str, Any]:
        """Give no tokenizer: images have none."""
        return {}

    def encoder(self) -> ImageEmbedder:
        """Take the encoder out, with copies of its weights as they are now."""
        return ImageEmbedder(self.model.image_encoder(), self.pixels, self.task, self.device)

    def embed(self, images: Images | Sequence[str | Path], batch_images: int = BATCH_IMAGES) -> np.ndarray:
        """Give each image a vector: the encoder's, of the whole image.

        Args:
            images: Images of the model's size, or files.
            batch_images: Images of a batch.

        Returns:
            float32, (images, D).
        """
        return self._embedder.embed(images, batch_images)

    def error(
        self, images_BCYX: Tensor, draws: torch.Generator | None = None, *, flat: bool = False
    ) -> tuple[float, int]:
        """Say how far what is rebuilt of hidden patches is from what was there.

        Args:
            images_BCYX: uint8.
            draws: What is hidden; None draws from torch's generator.
            flat: Put zeros in place of what is rebuilt: where patches are normalized, each one's own mean.

        Returns:
            The sum over hidden patches, and their number.
        """
        pixels_BCYX, rebuilt = self._rebuilt(images_BCYX, draws)
        rebuilt = replace(rebuilt, predicted_BTF=torch.zeros_like(rebuilt.predicted_BTF)) if flat else rebuilt
        total, count = self.model.loss(pixels_BCYX, rebuilt)
        return float(total), int(count)

    def shown(self, images_BCYX: Tensor, draws: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Show what the model sees of images, and what it makes of that.

        Args:
            images_BCYX: uint8.
            draws: What is hidden; None draws from torch's generator.

        Returns:
            The images with hidden patches grey, and with those rebuilt; uint8. What is left over at the bottom and at
            the right belongs to no patch and stays.
        """
        pixels_BCYX, rebuilt = self._rebuilt(images_BCYX, draws)
        made_BCYX, hidden_B1YX = self.model.pictures(pixels_BCYX, rebuilt)
        height, width = made_BCYX.shape[-2:]
        seen_BCYX, whole_BCYX = images_BCYX.clone(), images_BCYX.clone()
        hidden_B1YX = hidden_B1YX.cpu()
        area = (..., slice(height), slice(width))
        seen_BCYX[area] = seen_BCYX[area].masked_fill(hidden_B1YX, _HIDDEN_LEVEL)
        whole_BCYX[area] = torch.where(hidden_B1YX, self.pixels.shown(made_BCYX).cpu(), whole_BCYX[area])
        return seen_BCYX, whole_BCYX

    def _rebuilt(self, images_BCYX: Tensor, draws: torch.Generator | None) -> tuple[Tensor, Reconstruction]:
        with evaluating(self.model), torch.inference_mode():
            pixels_BCYX = self.pixels(images_BCYX.to(self.device))
            rows, columns = self.model.patches(pixels_BCYX)
            noise_BT = torch.rand(len(images_BCYX), rows * columns, generator=draws).to(self.device)
            return pixels_BCYX, self.model(pixels_BCYX, noise_BT)

    @cached_property
    def _embedder(self) -> ImageEmbedder:
        return self.encoder()
