"""A trained image encoder in use: vectors of images, and their classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.images import Images, read_named
from regard.data.pixels import Pixels
from regard.decoding import DecodeOptions
from regard.models.interface import ImageEncoder
from regard.tasks.labeller import Classes, Label
from regard.tasks.task import evaluating

BATCH_IMAGES = 64


class ImageEmbedder:
    """An image encoder that gives vectors: what pre-training leaves, and public encoders without classes.

    Args:
        model: The encoder.
        pixels: How images become its numbers.
        task: What it was trained for.
        device: Where it runs.
    """

    verbs: tuple[str, ...] = ("embed",)
    options: DecodeOptions | None = None
    max_tokens = 1

    def __init__(self, model: ImageEncoder, pixels: Pixels, task: str, device: torch.device | None = None) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.model, self.pixels, self.task = model.to(self.device).eval(), pixels, task

    def tokenizers(self) -> dict[str, Any]:
        """Give no tokenizer: images have none."""
        return {}

    def images(self, paths: Sequence[str | Path]) -> Images:
        """Read image files, brought to the model's size.

        Args:
            paths: The files.

        Returns:
            The images.

        Raises:
            DataError: A file is missing or no image that is read.
        """
        return read_named(paths, **self.pixels.framing)

    def embed(self, images: Images | Sequence[str | Path], batch_images: int = BATCH_IMAGES) -> np.ndarray:
        """Give each image a vector; it does not depend on the images beside it.

        Args:
            images: Images of the model's size, or files.
            batch_images: Images of a batch.

        Returns:
            float32, (images, D).
        """
        return self._run(images, self._pooled, batch_images).numpy()

    def vectors(self, images_BCYX: Tensor) -> Tensor:
        """Give each image of a batch a vector.

        Args:
            images_BCYX: uint8, of the model's size.

        Returns:
            pooled_BD in float32, on the CPU.
        """
        with evaluating(self.model), torch.inference_mode():
            return self._pooled(self.pixels(images_BCYX.to(self.device))).float().cpu()

    def _pooled(self, pixels_BCYX: Tensor) -> Tensor:
        return self.model.pool(self.model(pixels_BCYX))

    def _run(
        self, images: Images | Sequence[str | Path], compute: Callable[[Tensor], Tensor], batch_images: int
    ) -> Tensor:
        found = images if isinstance(images, Images) else self.images(images)
        rows = []
        with evaluating(self.model), torch.inference_mode():
            for start in range(0, len(found), batch_images):
                images_BCYX = found.batch(range(start, min(start + batch_images, len(found)))).to(self.device)
                rows.append(compute(self.pixels(images_BCYX)).float().cpu())
        return torch.cat(rows) if rows else torch.zeros(0, self.model.width)


class ImageClassifier(ImageEmbedder):
    """An image encoder with a head: what ``regard.load`` gives for classes of images.

    Args:
        model: The encoder with its head.
        pixels: How images become its numbers.
        goal: Its classes.
        device: Where it runs.
    """

    verbs = ("classify", "embed")

    def __init__(self, model: ImageEncoder, pixels: Pixels, goal: Classes, device: torch.device | None = None) -> None:
        super().__init__(model, pixels, "classify-images", device)
        self.goal = goal

    def classify(self, images: Images | Sequence[str | Path], batch_images: int = BATCH_IMAGES) -> list[Label]:
        """Label images; a label does not depend on the images beside it.

        Args:
            images: Images of the model's size, or files.
            batch_images: Images of a batch.

        Returns:
            The label of each, with the probability of every class.
        """
        outputs_BV = self.outputs(images, batch_images)
        rows = outputs_BV.softmax(-1).tolist()
        return [
            Label(label, dict(zip(self.goal.names, row, strict=True)))
            for label, row in zip(self.goal.labels(outputs_BV), rows, strict=True)
        ]

    def outputs(self, images: Images | Sequence[str | Path], batch_images: int = BATCH_IMAGES) -> Tensor:
        """Score the classes of images.

        Args:
            images: Images of the model's size, or files.
            batch_images: Images of a batch.

        Returns:
            outputs_BV, on the CPU.
        """
        return self._run(images, self.model.classify, batch_images)
