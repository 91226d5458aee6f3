"""ViT: an image as a row of patches, read by a Transformer encoder.

Paper: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words"; mean pooling as in fine-tuning of He et al. 2021,
"Masked Autoencoders Are Scalable Vision Learners". Ours differs in: images of any size of at least a patch, with
positions stretched over their grid; and patches can be left out before anything is computed for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.errors import ConfigError
from regard.layers.block import Block
from regard.layers.patches import GridKind, GridPositions, PatchEmbedding
from regard.models.interface import Features, ImageEncoder, check_image_size


@dataclass(frozen=True)
class VitConfig:
    """Settings of a ViT.

    Attributes:
        image_size: Height and width in pixels of the images that positions are made for.
        num_channels: Channels of the images.
        num_classes: Classes; 0 for no head.
        patch_size: Side of a patch in pixels.
        embed_dim: Width D.
        num_layers: Blocks.
        num_heads: Heads H.
        mlp_dim: Inner width of the MLPs.
        positions: A ``learned`` table, or fixed sines and cosines of row and column (``sincos``).
        class_token: A learned token stands before the patches.
        pooling: What an image's vector is made of: the class token (``cls``), or the ``mean`` of the patches.
        norm_pooled: The last norm stands behind the mean instead of before it.
        pooler: The pooled vector goes through a layer with tanh.
        activation: Of the MLPs.
        dropout: On embeddings, each sublayer's result and the MLPs' inner activations.
        attention_dropout: On attention weights.
        drop_path: Probability that an image goes past a sublayer of the last block; from the first, 0, it rises evenly.
        norm_eps: Of layer norms.
    """

    image_size: tuple[int, ...] = (224, 224)
    num_channels: int = 3
    num_classes: int = 0
    patch_size: int = 16
    embed_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    positions: GridKind = "learned"
    class_token: bool = True
    pooling: Literal["cls", "mean"] = "cls"
    norm_pooled: bool = False
    pooler: bool = False
    activation: str = "gelu"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    norm_eps: float = 1e-6


def grid_for(image_size: tuple[int, ...], patch_size: int) -> tuple[int, int]:
    """Say which grid of patches positions are made for.

    Args:
        image_size: Height and width in pixels.
        patch_size: Side of a patch in pixels.

    Returns:
        Rows and columns.

    Raises:
        ConfigError: The size is no height and width, or smaller than a patch.
    """
    height, width = check_image_size(image_size)
    if min(height, width) < patch_size:
        raise ConfigError(f"patch_size is {patch_size} in images of {height} × {width}", mend="make patches smaller")
    return height // patch_size, width // patch_size


class Vit(ImageEncoder):
    """x = [class token; W · patches] + positions; x ← block(x); norm.

    Args:
        config: The settings.

    Raises:
        ConfigError: The size of images is no height and width, or smaller than a patch; a pooling is unknown; the class
            token is to be pooled, and there is none; or its norm is to stand behind a mean that is not taken.
        UsageError: The heads do not divide the width.

    Source: Dosovitskiy et al. 2020, §3.1, equations 1 to 4.
    """

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        c = self.config = config
        if c.pooling not in ("cls", "mean"):
            raise ConfigError(f"unknown pooling {c.pooling!r}", mend="choose cls or mean")
        if c.pooling == "cls" and not c.class_token:
            raise ConfigError("pooling is cls, and there is no class token", mend="set pooling: mean")
        if c.norm_pooled and c.pooling == "cls":
            raise ConfigError("norm_pooled is for a mean of patches", mend="set pooling: mean")
        self.width, self.num_depths = c.embed_dim, c.num_layers + 2
        self.patches = PatchEmbedding(c.num_channels, c.embed_dim, c.patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, c.embed_dim)) if c.class_token else None
        grid = grid_for(c.image_size, c.patch_size)
        self.positions = GridPositions(grid, c.embed_dim, num_extra=int(c.class_token), kind=c.positions)
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(
            Block(
                c.embed_dim,
                c.num_heads,
                c.mlp_dim,
                norm="pre",
                activation=c.activation,
                dropout_p=c.dropout,
                attention_dropout_p=c.attention_dropout,
                mlp_dropout_p=c.dropout,
                drop_path_p=c.drop_path * i / max(c.num_layers - 1, 1),
                norm_eps=c.norm_eps,
            )
            for i in range(c.num_layers)
        )
        self.norm = nn.LayerNorm(c.embed_dim, c.norm_eps)
        self.pooler = nn.Linear(c.embed_dim, c.embed_dim) if c.pooler else None
        self.head = nn.Linear(c.embed_dim, c.num_classes) if c.num_classes else None
        if self.pooler is not None:
            nn.init.xavier_uniform_(self.pooler.weight)
            nn.init.zeros_(self.pooler.bias)
        if self.head is not None:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, pixels_BCYX: Tensor, visible_BT: Tensor | None = None) -> Features:
        """Encode images, or the visible part of them.

        Args:
            pixels_BCYX: Floats, normalized as the model was trained; height and width may be others than
                ``config.image_size``. What is left over at the bottom and at the right, less than a patch, is not read.
            visible_BT: int64, the places of the patches of each image that are read, counted row by row: equally many
                for every image. The others cost nothing. None reads all.

        Returns:
            The features: the class token, then the patches. Visible ones stand in a grid of one row, in the order in
            which they were given.

        Raises:
            UsageError: Another number of channels, or an image smaller than a patch.
        """
        count, grid = len(pixels_BCYX), self.patches.grid(pixels_BCYX)
        extra_ED, table_ND = self.positions(grid)
        x_BTD = self.patches(pixels_BCYX, visible_BT).unflatten(0, (count, -1))
        x_BTD = x_BTD + (table_ND if visible_BT is None else table_ND[visible_BT])
        if self.class_token is not None:
            x_BTD = torch.cat([(self.class_token + extra_ED).expand(count, 1, -1), x_BTD], 1)
        segments = Segments.uniform(count, x_BTD.shape[1], x_BTD.device)
        x_ND = self.dropout(x_BTD.flatten(0, 1))
        for block in self.blocks:
            x_ND = block(x_ND, segments)
        x_ND = x_ND if self.config.norm_pooled else self.norm(x_ND)
        grid = grid if visible_BT is None else (1, visible_BT.shape[1])
        return Features(x_ND, segments, grid, num_extra=int(self.config.class_token))

    def pool(self, features: Features) -> Tensor:
        """Make one vector of each image: the class token's, or the mean of the patches'."""
        rows_BTD = features.hidden_ND.unflatten(0, (len(features.segments), -1))
        pooled_BD = rows_BTD[:, 0] if self.config.pooling == "cls" else rows_BTD[:, features.num_extra :].mean(1)
        pooled_BD = self.norm(pooled_BD) if self.config.norm_pooled else pooled_BD
        return pooled_BD if self.pooler is None else torch.tanh(self.pooler(pooled_BD))

    def weights_for(self, config: Any) -> dict[str, Tensor]:
        """Give what stays with other settings: positions are stretched over their grid; a norm that moves is new."""
        kept = super().weights_for(config)
        if config.norm_pooled and not self.config.norm_pooled:
            kept = {name: one for name, one in kept.items() if not name.startswith("norm.")}
        grid = grid_for(config.image_size, config.patch_size)
        return {**kept, "positions.weight": torch.cat(self.positions(grid)).detach().cpu()}

    def depth(self, name: str) -> int:
        """Say how deep a parameter stands: 0 before the blocks, then a block each, then all behind them."""
        part, _, rest = name.partition(".")
        if part == "blocks":
            return int(rest.partition(".")[0]) + 1
        return 0 if part in ("patches", "class_token", "positions") else self.num_depths - 1
