"""What families offer that rebuild hidden parts of images: training and pictures need no more."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.models.interface import HoldsImageEncoder, ImageEncoder


@dataclass(frozen=True)
class Reconstruction:
    """What was rebuilt of a batch of images from some of their patches.

    Attributes:
        predicted_BTF: For each patch, row by row, its numbers in the order row, column, channel; as they are trained
            for, which need not be pixels.
        masked_BT: Whether the patch was hidden.
        grid: Rows and columns of patches.
    """

    predicted_BTF: Tensor
    masked_BT: Tensor
    grid: tuple[int, int]


class ImageReconstructor(nn.Module, HoldsImageEncoder):
    """Base of the families that learn to see by rebuilding what is hidden of an image.

    Attributes:
        config: The family's settings, with ``image_size`` and ``num_channels``.
        encoder: What sees, an :class:`ImageEncoder`.
    """

    config: Any
    encoder: Any

    @abstractmethod
    def patches(self, pixels_BCYX: Tensor) -> tuple[int, int]:
        """Say how many patches images have, of which some are hidden.

        Args:
            pixels_BCYX: Images.

        Returns:
            Rows and columns.

        Raises:
            UsageError: Another number of channels, or an image smaller than a patch.
        """

    @abstractmethod
    def forward(self, pixels_BCYX: Tensor, noise_BT: Tensor | None = None) -> Reconstruction:
        """Hide patches and rebuild them from the others.

        Args:
            pixels_BCYX: Floats, normalized; height and width may be others than ``config.image_size``.
            noise_BT: A number for each patch; those with the smallest are kept. None draws them.

        Returns:
            What was rebuilt.

        Raises:
            UsageError: Another number of channels, or an image of too few patches.
        """

    @abstractmethod
    def loss(self, pixels_BCYX: Tensor, rebuilt: Reconstruction) -> tuple[Tensor, Tensor]:
        """Compare what was rebuilt with what was hidden.

        Args:
            pixels_BCYX: The images.
            rebuilt: From :meth:`forward`.

        Returns:
            The sum over hidden patches, at least float32, and how many there are.
        """

    @abstractmethod
    def pictures(self, pixels_BCYX: Tensor, rebuilt: Reconstruction) -> tuple[Tensor, Tensor]:
        """Turn what was rebuilt into images like those that went in.

        Args:
            pixels_BCYX: The images.
            rebuilt: From :meth:`forward`.

        Returns:
            pixels_BCYX of all patches as they were rebuilt, and masked_B1YX, whether a pixel was hidden; both without
            what is left over at the bottom and at the right.
        """

    @abstractmethod
    def take_encoder(self, num_classes: int = 0, **change: Any) -> ImageEncoder:
        """Take the encoder out for fine-tuning.

        Args:
            num_classes: Of a new head; 0 for none.
            **change: Other settings of the encoder, such as ``drop_path``.

        Returns:
            A model of its own, with copies of the weights.
        """

    def image_encoder(self) -> ImageEncoder:
        """Give the encoder alone, as fine-tuning begins with it."""
        return self.take_encoder()
