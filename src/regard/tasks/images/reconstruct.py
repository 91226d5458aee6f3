"""Reconstruction: most patches of an image are hidden and rebuilt from the rest (masked autoencoder).

Paper: He et al. 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.augment import AugmentConfig
from regard.data.images import Images
from regard.data.pixels import Pixels
from regard.data.sheets import sheet
from regard.metrics.measure import Measure
from regard.models.reconstructor import ImageReconstructor
from regard.tasks.building import build
from regard.tasks.images.corpus import ImageCorpus, ImageData, read_corpus
from regard.tasks.images.probing import Probing
from regard.tasks.images.reconstructor import Reconstructor
from regard.tasks.images.shared import ImageTask
from regard.tasks.task import Batch, Evaluated, Loss, check_counts, evaluating

NUM_FIGURES = 12
FLAT = "zeros: each patch's own mean, where patches are normalized"
BATCH_IMAGES = 250  # of held-out images: the draws that hide their patches depend on it


@dataclass(frozen=True)
class ReconstructConfig:
    """Settings of the task.

    Attributes:
        data: Where images come from. Classes are not trained on; where there are any they tell how good vectors are.
        model: ``family`` and its settings; how much is hidden is one of them.
        augment: What is drawn for each image in training.
        batch_images: Images of a micro-batch.
    """

    data: ImageData
    model: dict[str, Any] = field(default_factory=lambda: {"family": "mae"})
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    batch_images: int = 256

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range.
        """
        check_counts(batch_images=self.batch_images)


@dataclass(frozen=True)
class PlainImages(Batch):
    """Images alone.

    Attributes:
        images_BCYX: uint8, augmented.
    """

    images_BCYX: Tensor


class ReconstructTask(ImageTask):
    """Training on images with hidden patches; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        corpus: The data.
        seed: Of the order of batches and of augmentation.
    """

    monitor = "loss"
    higher_is_better = False

    def __init__(self, config: ReconstructConfig, corpus: ImageCorpus, seed: int) -> None:
        super().__init__(corpus, Pixels.of(corpus.train), config.augment, config.batch_images, seed)
        self.config, self.probing = config, Probing(corpus)

    @staticmethod
    def prepare(config: ReconstructConfig, seed: int, folder: Path, is_new: bool) -> ReconstructTask:
        """Read and split the images.

        Args:
            config: The settings.
            seed: Of the split and of the order of batches.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.
        """
        return ReconstructTask(config, read_corpus(config.data, seed, labelled=False), seed)

    def build(self) -> ImageReconstructor:
        """Build the model, with fresh weights."""
        given = {"image_size": self.pixels.size, "num_channels": len(self.pixels.mean)}
        return build(self.config.model, "mae", given, ImageReconstructor, "rebuild images", "model")

    def batch(self, index: int) -> PlainImages:
        """Make a micro-batch, a pure function of (seed, index)."""
        return PlainImages(self.drawn(index)[0])

    def count(self, batch: PlainImages) -> int:
        """Count the images: of each as many patches are hidden."""
        return len(batch.images_BCYX)

    def loss(self, model: ImageReconstructor, batch: PlainImages) -> Loss:
        """Compute the mean loss of each image's hidden patches, summed over images; which are hidden is drawn."""
        pixels_BCYX = self.pixels(batch.images_BCYX)
        total, hidden = model.loss(pixels_BCYX, model(pixels_BCYX))
        mean = total * (len(pixels_BCYX) / hidden)
        return Loss(mean, mean.detach())

    def product(self, model: ImageReconstructor, device: torch.device) -> Reconstructor:
        """Put the model together with what its use needs."""
        return Reconstructor(model, self.pixels, device)

    def validate(self, model: ImageReconstructor, device: torch.device) -> dict[str, float]:
        """Compute the loss on development images, and where there are classes how near their vectors lie together."""
        product = self.product(model, device)
        return {"loss": self._error(product, self.corpus.dev), **self.probing.validate(product.encoder())}

    def test(self, product: Reconstructor) -> Evaluated:
        """Rebuild the test images, and classify them by what the encoder's vectors give away."""
        how = f"reconstruction_error|n:{len(self.corpus.test)}|patches hidden by seed {self.seed}|version:regard-1"
        error = Measure("reconstruction_error", self._error(product, self.corpus.test), how)
        found = self.probing.test(product.encoder())
        return replace(found, measures={"reconstruction_error": error, **found.measures})

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Rebuild by nothing, and with the model before training; classify by pixels and by that model's vectors."""
        torch.manual_seed(self.seed)
        untrained = Reconstructor(self.build(), self.pixels)
        error = Measure("reconstruction_error", self._error(untrained, self.corpus.test), "before training")
        found = self.probing.baselines(untrained.encoder())
        flat = Measure("reconstruction_error", self._error(untrained, self.corpus.test, flat=True), "zeros")
        return {
            FLAT: {"reconstruction_error": flat},
            "the model before training": {"reconstruction_error": error},
            **found,
        }

    def figures(self, product: Reconstructor) -> list[tuple[str, str, bytes]]:
        """Show test images, what the model sees of them, and what it makes of that."""
        images_BCYX = self.corpus.test.batch(range(min(NUM_FIGURES, len(self.corpus.test))))
        shown = product.shown(images_BCYX, self._draws())
        about = (
            "Threes: the image, what the model sees of it, and what it rebuilds (hidden patches rebuilt, the others as "
            "they are), in the image's own brightness: of each patch the model predicts the pattern, and its mean and "
            "spread are the true ones."
        )
        rows = torch.stack([images_BCYX, *shown], 1).flatten(0, 1)
        return [("Rebuilt images", about, sheet(rows, columns=12))]

    def _error(self, product: Reconstructor, images: Images, *, flat: bool = False) -> float:
        total = hidden = 0.0
        with evaluating(product.model), torch.inference_mode():
            draws = self._draws()
            for start in range(0, len(images), BATCH_IMAGES):
                chosen = range(start, min(start + BATCH_IMAGES, len(images)))
                error, count = product.error(images.batch(chosen), draws, flat=flat)
                total, hidden = total + error, hidden + count
        return total / hidden

    def _draws(self) -> torch.Generator:
        """Give the draws that hide patches of held-out images: the same at every validation."""
        return torch.Generator().manual_seed(self.seed)
