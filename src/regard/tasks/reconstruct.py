"""Reconstruction: three quarters of an image's patches are hidden and told from the rest (masked autoencoder).

Paper: He et al. 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from regard.data.augment import AugmentConfig
from regard.tasks.image_data import ImageData
from regard.tasks.task import Batch, check_counts

DEV_DRAW = 2**31 - 1  # masks of held-out images: always the same, and drawn as for no batch of a run
NUM_FIGURES = 16


@dataclass(frozen=True)
class ReconstructConfig:
    """Settings of the task.

    Attributes:
        data: Where images come from. Classes are not trained on; where there are any they tell how good vectors are.
        model: ``family`` and its settings; how much is masked is one of them.
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
class MaskedImageBatch(Batch):
    """Images and the draws that decide what is hidden.

    Attributes:
        images_BCYX: uint8, augmented.
        noise_BN: A number for each patch; those with the smallest stay visible.
    """

    images_BCYX: Tensor
    noise_BN: Tensor
