"""Swin: a pyramid of grids, read by attention in windows that move from one block to the next.

Paper: Liu et al. 2021, "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows". Ours differs in:
images of any size, filled up behind their ends, and what is beyond an end is masked in attention; the released code
lets tokens attend to zeros there, which is a setting. Windows larger than a grid become smaller on that side alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.attention.compiling import eagerly
from regard.attention.positions import WindowBias
from regard.errors import ConfigError
from regard.layers.block import Block
from regard.layers.patches import PatchEmbedding
from regard.layers.windows import WindowPadding, Windows, windows_of
from regard.models.interface import Features, ImageEncoder, check_image_size

WindowShrink = Literal["side", "both"]
MAX_STAGES = 8  # the width doubles from one to the next


@dataclass(frozen=True)
class SwinConfig:
    """Settings of a Swin.

    Attributes:
        image_size: Height and width in pixels of the images that it is made for.
        num_channels: Channels of the images.
        num_classes: Classes; 0 for no head.
        patch_size: Side of a patch in pixels.
        embed_dim: Width D of the first stage; it doubles from one to the next.
        num_layers: Blocks of each stage.
        num_heads: Heads H of each stage.
        window_size: Side M of a window in tokens: one for all stages, or one for each.
        window_padding: What a window's places beyond the grid are: ``masked``, or ``zeros`` that are attended to, as in
            the released code; ``zeros-after-shift`` as in timm. See :func:`regard.layers.windows.windows_of`.
        window_shrink: Where a grid is not larger than a window on one side, the window becomes as small and is not
            shifted: on that ``side`` alone, or on ``both``, as in the released code.
        mlp_ratio: Inner width of the MLPs, in widths of their stage.
        activation: Of the MLPs.
        dropout: On embeddings, each sublayer's result and the MLPs' inner activations.
        attention_dropout: On attention weights.
        drop_path: Probability that an image goes past a sublayer of the last block; from the first, 0, it rises evenly.
        norm_eps: Of layer norms.
    """

    image_size: tuple[int, ...] = (224, 224)
    num_channels: int = 3
    num_classes: int = 0
    patch_size: int = 4
    embed_dim: int = 96
    num_layers: tuple[int, ...] = (2, 2, 6, 2)
    num_heads: tuple[int, ...] = (3, 6, 12, 24)
    window_size: tuple[int, ...] = (7,)
    window_padding: WindowPadding = "masked"
    window_shrink: WindowShrink = "side"
    mlp_ratio: float = 4.0
    activation: str = "gelu"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.1
    norm_eps: float = 1e-5

    def window(self, stage: int) -> int:
        """Give the side of a stage's windows, before a small grid makes them smaller."""
        return self.window_size[0 if len(self.window_size) == 1 else stage]

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Say how large the grid of each stage is.

        Args:
            height: Of the image, in pixels.
            width: Of the image, in pixels.

        Returns:
            Height and width in tokens, with what it takes to fill up patches and merged tokens.
        """
        sides = [self.patch_size * 2**stage for stage in range(len(self.num_layers))]
        return [(-(-height // side), -(-width // side)) for side in sides]

    def fit(self, stage: int, grid: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Fit windows to a grid.

        Args:
            stage: Number of the stage.
            grid: Height and width of its grid in tokens.

        Returns:
            Height and width of the windows, and by how many tokens those of every other block are shifted.
        """
        side = self.window(stage)
        (height, width), (is_low, is_narrow) = grid, (grid[0] <= side, grid[1] <= side)
        if self.window_shrink == "both" and (is_low or is_narrow):
            side = min(side, height, width)
            return (side, side), (0, 0)
        shift = (0 if is_low else side // 2, 0 if is_narrow else side // 2)
        return (min(side, height), min(side, width)), shift


class Merging(nn.Module):
    """y = W norm([x_00; x_10; x_01; x_11]): squares of four tokens become one token of twice the width.

    A grid of odd sides is filled up with zeros.

    Args:
        embed_dim: Width D before.
        norm_eps: Of the norm.

    Source: Liu et al. 2021, §3.1.
    """

    def __init__(self, embed_dim: int, norm_eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * embed_dim, norm_eps)
        self.proj = nn.Linear(4 * embed_dim, 2 * embed_dim, bias=False)

    def forward(self, x_ND: Tensor, grid: tuple[int, int]) -> Tensor:
        """Merge tokens.

        Args:
            x_ND: Row by row of the grid, image after image.
            grid: Height and width in tokens.

        Returns:
            The tokens of a grid of half the height and width, rounded up.
        """
        x_BYXD = x_ND.unflatten(0, (-1, *grid))
        x_BYXD = nn.functional.pad(x_BYXD, (0, 0, 0, grid[1] % 2, 0, grid[0] % 2))
        squares = x_BYXD.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5)
        return self.proj(self.norm(squares.flatten(3).flatten(0, 2)))


class Stage(nn.Module):
    """Blocks over grids of one size: x ← block(x) in windows, those of every other block shifted by half of one.

    Args:
        embed_dim: Width D.
        num_heads: Heads H.
        mlp_dim: Inner width of the MLPs.
        window: Side M of a window in tokens.
        merges: Tokens are merged first.
        drop_paths: Probability of each block that an image goes past a sublayer.
        activation: Of the MLPs.
        dropout_p: Of each sublayer's result and the MLPs' inner activations.
        attention_dropout_p: Of attention weights.
        norm_eps: Of layer norms.

    Source: Liu et al. 2021, §3.1 and §3.2, equation 3.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        *,
        window: int,
        merges: bool,
        drop_paths: list[float],
        activation: str,
        dropout_p: float,
        attention_dropout_p: float,
        norm_eps: float,
    ) -> None:
        super().__init__()
        self.merging = Merging(embed_dim // 2, norm_eps) if merges else None
        self.blocks = nn.ModuleList(
            Block(
                embed_dim,
                num_heads,
                mlp_dim,
                norm="pre",
                activation=activation,
                dropout_p=dropout_p,
                attention_dropout_p=attention_dropout_p,
                mlp_dropout_p=dropout_p,
                drop_path_p=drop_path_p,
                norm_eps=norm_eps,
            )
            for drop_path_p in drop_paths
        )
        self.biases = nn.ModuleList(WindowBias(num_heads, window) for _ in drop_paths)

    def forward(self, x_ND: Tensor, segments: Segments, windows: tuple[Windows, Windows]) -> Tensor:
        """Read grids.

        Args:
            x_ND: Row by row of the grid, image after image.
            segments: Which rows are one image.
            windows: Those of the first block, and those of the second; further blocks take turns.

        Returns:
            y_ND.
        """
        for i, (block, bias) in enumerate(zip(self.blocks, self.biases, strict=True)):
            seen = windows[i % 2]
            x_ND = block(x_ND, segments, bias=cast(WindowBias, bias).within(seen.size), windows=seen)
        return x_ND


class Swin(ImageEncoder):
    """x = norm(W · patches); x ← stage(x), each with half the grid and twice the width; norm; mean.

    Args:
        config: The settings.

    Raises:
        ConfigError: The size of images is no height and width; stages, heads and windows differ in number; or a name is
            unknown.
        UsageError: The heads do not divide the width.

    Source: Liu et al. 2021, §3; weights start as in the released code.
    """

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        c = self.config = config
        check_image_size(c.image_size)
        _check(c)
        stages, blocks = len(c.num_layers), sum(c.num_layers)
        widths = [c.embed_dim * 2**stage for stage in range(stages)]
        paths = iter([c.drop_path * i / max(blocks - 1, 1) for i in range(blocks)])
        self.width, self.num_depths = widths[-1], blocks + 2
        self.patches = PatchEmbedding(c.num_channels, c.embed_dim, c.patch_size)
        self.embed_norm = nn.LayerNorm(c.embed_dim, c.norm_eps)
        self.dropout = nn.Dropout(c.dropout)
        self.stages = nn.ModuleList(
            Stage(
                widths[stage],
                c.num_heads[stage],
                int(c.mlp_ratio * widths[stage]),
                window=c.window(stage),
                merges=stage > 0,
                drop_paths=[next(paths) for _ in range(c.num_layers[stage])],
                activation=c.activation,
                dropout_p=c.dropout,
                attention_dropout_p=c.attention_dropout,
                norm_eps=c.norm_eps,
            )
            for stage in range(stages)
        )
        self.norm = nn.LayerNorm(self.width, c.norm_eps)
        self.head = nn.Linear(self.width, c.num_classes) if c.num_classes else None
        for module in (*self.stages.modules(), self.head):
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, pixels_BCYX: Tensor) -> Features:
        """Encode images.

        Args:
            pixels_BCYX: Floats, normalized as the model was trained; height and width may be others than
                ``config.image_size``. Patches at the bottom and at the right are filled up with zeros.

        Returns:
            The features of the last stage's grid.

        Raises:
            UsageError: Another number of channels, or an image smaller than a patch.
        """
        self.patches.grid(pixels_BCYX)
        count, (height, width) = len(pixels_BCYX), pixels_BCYX.shape[2:]
        patch, device = self.config.patch_size, pixels_BCYX.device
        pixels_BCYX = nn.functional.pad(pixels_BCYX, (0, -width % patch, 0, -height % patch))
        every = eagerly(self._windows)(count, height, width, device)  # most of it is kept from the batch before
        x_ND, grid = self.dropout(self.embed_norm(self.patches(pixels_BCYX))), every[0][0].grid
        segments = Segments.uniform(count, grid[0] * grid[1], device)
        for module, windows in zip(self.stages, every, strict=True):
            merging = cast(Stage, module).merging
            if merging is not None:
                x_ND, grid = merging(x_ND, grid), windows[0].grid
                segments = Segments.uniform(count, grid[0] * grid[1], device)
            x_ND = module(x_ND, segments, windows)
        return Features(self.norm(x_ND), segments, grid)

    def windows(self, pixels_BCYX: Tensor) -> dict[str, Windows]:
        """Say which windows each layer sees of images, to tell where in the grid a recorded row stands.

        Args:
            pixels_BCYX: As :meth:`forward` takes them.

        Returns:
            Windows by the names that a recorder gives the layers.
        """
        count, (height, width) = len(pixels_BCYX), pixels_BCYX.shape[2:]
        return {
            f"stages.{stage}.blocks.{i}.self_attn": windows[i % 2]
            for stage, windows in enumerate(self._windows(count, height, width, pixels_BCYX.device))
            for i in range(self.config.num_layers[stage])
        }

    def places(self, layer: str, size: tuple[int, int]) -> tuple[tuple[int, int], Sequence[Sequence[int]]]:
        """Say where the rows of a layer's windows stand."""
        _, stage, _, block, _ = layer.split(".")
        seen = self._windows(1, *size, torch.device("cpu"))[int(stage)][int(block) % 2]
        return seen.grid, seen.places_BW.tolist()

    def pool(self, features: Features) -> Tensor:
        """Make one vector of each image: the mean of its tokens."""
        return features.hidden_ND.unflatten(0, (len(features.segments), -1)).mean(1)

    def depth(self, name: str) -> int:
        """Say how deep a parameter stands: 0 before the blocks, then a block each, then all behind them.

        What merges tokens stands with the block before it (Xie et al. 2022, SimMIM, as released).
        """
        part, _, rest = name.partition(".")
        if part != "stages":
            return 0 if part in ("patches", "embed_norm") else self.num_depths - 1
        stage, what, number, *_ = rest.split(".")
        before = sum(self.config.num_layers[: int(stage)])
        return before if what == "merging" else before + int(number) + 1

    def _windows(self, count: int, height: int, width: int, device: torch.device) -> list[tuple[Windows, Windows]]:
        """Windows of each stage: those of its first block, and those of its second."""
        found: list[tuple[Windows, Windows]] = []
        for stage, grid in enumerate(self.config.grids(height, width)):
            size, shift = self.config.fit(stage, grid)
            padding = self.config.window_padding
            plain, shifted = (windows_of(count, grid, size, by, padding, device) for by in ((0, 0), shift))
            found.append((plain, shifted))
        return found


def _check(c: SwinConfig) -> None:
    """Refuse settings that do not go together."""
    stages = len(c.num_layers)
    if not 1 <= stages <= MAX_STAGES:
        raise ConfigError(f"num_layers is {list(c.num_layers)}", mend=f"give the blocks of 1 to {MAX_STAGES} stages")
    if len(c.num_heads) != stages:
        raise ConfigError(f"num_heads is {list(c.num_heads)} for {stages} stages", mend="give one number for each")
    if len(c.window_size) not in (1, stages):
        raise ConfigError(
            f"window_size is {list(c.window_size)} for {stages} stages", mend="give one number, or one for each"
        )
    for name, value, known in (
        ("window_padding", c.window_padding, WindowPadding),
        ("window_shrink", c.window_shrink, WindowShrink),
    ):
        if value not in get_args(known):
            raise ConfigError(f"unknown {name} {value!r}", mend=f"choose from {', '.join(get_args(known))}")
    if not 1 / c.embed_dim <= c.mlp_ratio <= 64:
        raise ConfigError(f"mlp_ratio is {c.mlp_ratio}", mend="give a number up to 64, such as 4")
