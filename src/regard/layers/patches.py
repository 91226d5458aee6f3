"""Images as rows of patches, and where in the image each of them stands."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from regard.attention.positions import sincos_2d
from regard.errors import ConfigError, UsageError

GridKind = Literal["learned", "sincos"]


def grid_of(pixels_BCYX: Tensor, num_channels: int, patch_size: int) -> tuple[int, int]:
    """Say how many whole patches an image has.

    Args:
        pixels_BCYX: Images.
        num_channels: Channels that the model reads.
        patch_size: Side P of a patch in pixels.

    Returns:
        Rows and columns of patches; what is left over at the bottom and at the right belongs to none.

    Raises:
        UsageError: It is no batch of images, has other channels, or is smaller than a patch.
    """
    if pixels_BCYX.dim() != 4 or pixels_BCYX.shape[1] != num_channels:
        what = f"pixels of shape {tuple(pixels_BCYX.shape)}"
        raise UsageError(what, mend=f"give (images, {num_channels} channels, height, width)")
    height, width = pixels_BCYX.shape[2:]
    if min(height, width) < patch_size:
        raise UsageError(f"an image of {height} × {width} pixels", mend=f"a patch has {patch_size} × {patch_size}")
    return height // patch_size, width // patch_size


def _tiles(pixels_BCYX: Tensor, patch_size: int) -> Tensor:
    """Cut images; shape (images, channels, grid rows, grid columns, P, P), no copy."""
    return pixels_BCYX.unfold(2, patch_size, patch_size).unfold(3, patch_size, patch_size)


def unfold(pixels_BCYX: Tensor, patch_size: int) -> Tensor:
    """Lay the pixels of each patch out in the order of a convolution's weights: channel, row, column.

    Args:
        pixels_BCYX: Images of at least a patch.
        patch_size: Side P of a patch in pixels.

    Returns:
        patches_BTF: T patches, row by row, of F = C · P · P numbers each.
    """
    return _tiles(pixels_BCYX, patch_size).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def patchify(pixels_BCYX: Tensor, patch_size: int) -> Tensor:
    """Lay the pixels of each patch out in the order in which MAE predicts them: row, column, channel.

    Args:
        pixels_BCYX: Images of at least a patch.
        patch_size: Side P of a patch in pixels.

    Returns:
        patches_BTF: T patches, row by row, of F = P · P · C numbers each.

    Source: He et al. 2021, as released.
    """
    return _tiles(pixels_BCYX, patch_size).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)


def unpatchify(patches_BTF: Tensor, grid: tuple[int, int], patch_size: int) -> Tensor:
    """Put patches together again: the reverse of :func:`patchify`.

    Args:
        patches_BTF: Patches, row by row, the numbers of each in the order row, column, channel.
        grid: Rows and columns of patches.
        patch_size: Side P of a patch in pixels.

    Returns:
        pixels_BCYX of rows · P × columns · P pixels.
    """
    tiles = patches_BTF.unflatten(2, (patch_size, patch_size, -1)).unflatten(1, grid)
    return tiles.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


def interpolate(table_ND: Tensor, grid: tuple[int, int], target: tuple[int, int]) -> Tensor:
    """Stretch a table of positions over another grid, bicubically (a = −0.75, no antialiasing).

    The target is a size, not a factor: a factor that is rounded once too often loses a row of patches.

    Args:
        table_ND: One vector for each place of the grid, row by row.
        grid: Its rows and columns.
        target: Rows and columns wanted.

    Returns:
        One vector for each place of the target, row by row; computed in float32 at least, in the table's dtype.

    Source: Dosovitskiy et al. 2020, §3.2; as DINO, DINOv2 and transformers do it.
    """
    if grid == target:
        return table_ND
    wide_ND = table_ND.to(torch.promote_types(table_ND.dtype, torch.float32))
    image_DYX = wide_ND.unflatten(0, grid).permute(2, 0, 1)
    stretched = nn.functional.interpolate(image_DYX[None], size=target, mode="bicubic", align_corners=False)
    return stretched[0].permute(1, 2, 0).flatten(0, 1).to(table_ND.dtype)


class PatchEmbedding(nn.Module):
    """x = W · patch + b for each patch: a convolution whose stride is its kernel, as one matrix product.

    Weights start as those of a convolution in the released code: variance 1 / F, cut off at two deviations; bias zero.

    Args:
        num_channels: Channels C of the images.
        embed_dim: Width D.
        patch_size: Side P of a patch in pixels.

    Source: Dosovitskiy et al. 2020, §3.1, equation 1.
    """

    def __init__(self, num_channels: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        self.num_channels, self.patch_size = num_channels, patch_size
        inputs = num_channels * patch_size**2
        self.proj = nn.Linear(inputs, embed_dim)
        # A normal distribution that is cut off at two deviations has 0.8796 of its deviation left.
        std = inputs**-0.5 / 0.87962566103423978
        nn.init.trunc_normal_(self.proj.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(self.proj.bias)

    def grid(self, pixels_BCYX: Tensor) -> tuple[int, int]:
        """Say how many patches images have.

        Args:
            pixels_BCYX: Images.

        Returns:
            Rows and columns.
        """
        return grid_of(pixels_BCYX, self.num_channels, self.patch_size)

    def forward(self, pixels_BCYX: Tensor, visible_BT: Tensor | None = None) -> Tensor:
        """Turn patches into vectors.

        Args:
            pixels_BCYX: Images of at least a patch; what is left over at the bottom and at the right is not read.
            visible_BT: int64, the places of those patches of each image that are read, in the order of the result; None
                reads all, row by row.

        Returns:
            x_ND, image after image.

        Raises:
            UsageError: The images have other channels, or are smaller than a patch.
        """
        self.grid(pixels_BCYX)
        patches_BTF = unfold(pixels_BCYX, self.patch_size)
        if visible_BT is not None:  # before the product: what is not read costs nothing
            patches_BTF = patches_BTF.take_along_dim(visible_BT[..., None], 1)
        return self.proj(patches_BTF.flatten(0, 1))


class GridPositions(nn.Module):
    """A vector for each place of a grid, and for each of the tokens before it.

    Learned ones start from a normal distribution of deviation 0.02. Fixed ones are sines and cosines of column and row,
    zero before the grid; they stand in the model's state, so that a file's own table is used, and are not trained.

    Args:
        grid: Rows and columns of the table.
        embed_dim: Width D; a multiple of 4 for fixed ones.
        num_extra: Tokens before the grid.
        kind: ``learned`` or ``sincos``.

    Raises:
        ConfigError: The kind is unknown.
        UsageError: Fixed ones, and the width is no multiple of 4.

    Source: Dosovitskiy et al. 2020, §3.1; fixed: He et al. 2021, appendix A.1, as released.
    """

    weight: Tensor

    def __init__(self, grid: tuple[int, int], embed_dim: int, *, num_extra: int, kind: GridKind) -> None:
        super().__init__()
        if kind not in get_args(GridKind):
            raise ConfigError(f"unknown positions {kind!r}", mend=f"choose {' or '.join(get_args(GridKind))}")
        self.grid, self.num_extra = grid, num_extra
        if kind == "learned":
            self.weight = nn.Parameter(torch.empty(num_extra + grid[0] * grid[1], embed_dim))
            nn.init.normal_(self.weight, std=0.02)
        else:
            table_ND = torch.cat([torch.zeros(num_extra, embed_dim), sincos_2d(*grid, embed_dim)])
            self.register_buffer("weight", table_ND)

    def forward(self, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Give the positions of a grid of any size.

        Args:
            grid: Rows and columns of patches.

        Returns:
            Vectors of the tokens before the grid, one row each, and those of the grid's places, row by row.
        """
        extra_ED, table_ND = self.weight[: self.num_extra], self.weight[self.num_extra :]
        return extra_ED, interpolate(table_ND, self.grid, grid)
