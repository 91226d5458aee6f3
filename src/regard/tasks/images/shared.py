"""What training on images shares, whatever is learnt from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from regard.data.augment import Augment, AugmentConfig
from regard.data.batching import Order
from regard.data.pixels import Pixels
from regard.tasks.images.corpus import ImageCorpus
from regard.tasks.task import Task


class ImageTask(Task):
    """Base of the tasks on images of one size; see :class:`regard.tasks.task.Task`.

    Args:
        corpus: The data.
        pixels: How images become a model's numbers.
        augment: What is drawn for each image in training.
        batch_images: Images of a micro-batch.
        seed: Of the order of batches and of augmentation.
    """

    unit = "image"
    reads = "image"

    def __init__(
        self, corpus: ImageCorpus, pixels: Pixels, augment: AugmentConfig, batch_images: int, seed: int
    ) -> None:
        self.corpus, self.pixels, self.seed = corpus, pixels, seed
        self.data_notes, self.notes = corpus.notes, list[str]()
        self.augment = Augment(augment, seed, corpus.train.size)
        self.order = Order([np.ones(len(corpus.train), np.int64)], batch_images, seed)

    @property
    def counts(self) -> str:
        """What is trained on, in numbers."""
        return self.corpus.counts

    @property
    def digest(self) -> str:
        """Hash of all images and classes."""
        return self.corpus.digest()

    def tokenizers(self) -> dict[str, Any]:
        """Give no tokenizer: images have none."""
        return {}

    def drawn(self, index: int, view: int = 0) -> tuple[Tensor, np.ndarray]:
        """Draw the training images of a micro-batch, a pure function of (seed, index, view).

        Args:
            index: Number of the micro-batch.
            view: Number of the view, where an image is shown several times.

        Returns:
            images_BCYX, uint8, augmented; and which images they are.
        """
        epoch, chosen = self.order.where(index)
        return self.augment(self.corpus.train.batch(chosen), epoch, chosen, view), chosen

    def name_batch(self, index: int) -> str:
        """Say which training images a micro-batch holds."""
        chosen = sorted(self.order.at(index).tolist())
        shown = ", ".join(self.corpus.train.where(number) for number in chosen[:4])
        return f"{shown}, …" if len(chosen) > 4 else shown

    def tokens(self, batch: Any) -> int:
        """Count what the loss is a mean over: images are all of one size."""
        return self.count(batch)

    def signature(self) -> str:
        """Say what the scores depend on besides the model."""
        return f"|size:{self.pixels.size[0]}x{self.pixels.size[1]}"
