"""An image encoder with a projection on top, in whose space views of one image are brought together (SimCLR)."""

from __future__ import annotations

from torch import Tensor, nn

from regard.models.interface import HoldsImageEncoder, ImageEncoder


class Contrastive(nn.Module, HoldsImageEncoder):
    """z = W₂ · relu(W₁ · pool(encoder(image)) + b₁) + b₂.

    The projection is thrown away afterwards: what lies before it serves other uses better.

    Args:
        encoder: The encoder, without a head.
        projection_dim: Width of z.

    Source: Chen et al. 2020, §2.1, §4.2.
    """

    def __init__(self, encoder: ImageEncoder, projection_dim: int) -> None:
        super().__init__()
        self.encoder, self.config = encoder, encoder.config
        self.projection = nn.Sequential(
            nn.Linear(encoder.width, encoder.width), nn.ReLU(), nn.Linear(encoder.width, projection_dim)
        )

    def image_encoder(self) -> ImageEncoder:
        """Give the encoder alone."""
        return self.encoder

    def forward(self, pixels_BCYX: Tensor) -> Tensor:
        """Project images.

        Args:
            pixels_BCYX: As the encoder takes them.

        Returns:
            z_BD.
        """
        return self.projection(self.encoder.pool(self.encoder(pixels_BCYX)))
