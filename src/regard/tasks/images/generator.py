"""A trained generator of images in use."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.pixels import Pixels
from regard.decoding import DecodeOptions
from regard.errors import UsageError
from regard.models.gan import Gan
from regard.tasks.images.classifier import BATCH_IMAGES
from regard.tasks.task import evaluating

MAX_IMAGES = 100_000


def latents(count: int, latent_dim: int, seed: int, first: int = 0) -> Tensor:
    """Draw what images are made from; those of an image depend on the seed and its number alone.

    Args:
        count: Images.
        latent_dim: Numbers of each.
        seed: Of the draws.
        first: Number of the first image.

    Returns:
        latents_BZ, float32, normally distributed.
    """
    rows = [
        # Other draws than those of masks and orders with the same two numbers.
        np.random.Generator(np.random.Philox(counter=[0, 0, 0, 2], key=[seed, number])).standard_normal(latent_dim)
        for number in range(first, first + count)
    ]
    return torch.from_numpy(np.array(rows, np.float32).reshape(count, latent_dim))


class ImageGenerator:
    """A model that makes images: what ``regard.load`` gives for the task ``generate-images``.

    Args:
        model: The generator with its discriminator.
        pixels: How images become its numbers, and back.
        device: Where it runs.
    """

    verbs = ("generate",)
    task = "generate-images"
    options: DecodeOptions | None = None
    max_tokens = 1

    def __init__(self, model: Gan, pixels: Pixels, device: torch.device | None = None) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.model, self.pixels = model.to(self.device).eval(), pixels

    def tokenizers(self) -> dict[str, Any]:
        """Give no tokenizer: images have none."""
        return {}

    def generate(self, count: int, seed: int = 1, *, first: int = 0, batch_images: int = BATCH_IMAGES) -> Tensor:
        """Make images; each depends on the seed and its number alone, not on how many are made beside it.

        Args:
            count: How many.
            seed: Of the draws that they are made from; at least 0.
            first: Number of the first.
            batch_images: Images of a batch.

        Returns:
            images_NCYX, uint8, on the CPU.

        Raises:
            UsageError: The count or the seed is out of range.
        """
        if not 1 <= count <= MAX_IMAGES:
            raise UsageError(f"{count} images", mend=f"ask for 1 to {MAX_IMAGES:,} at once")
        if not 0 <= seed < 1 << 63:
            raise UsageError(f"the seed is {seed}", mend="give a whole number, at least 0")
        made: list[Tensor] = []
        with evaluating(self.model), torch.inference_mode():
            for start in range(0, count, batch_images):
                some = min(batch_images, count - start)
                latents_BZ = latents(some, self.model.config.latent_dim, seed, first + start).to(self.device)
                made.append(self.pixels.shown(self.model.generator(latents_BZ)).cpu())
        return torch.cat(made)
