"""Windows of a grid: attention in small rectangles of tokens, by one gather there and one back."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from regard.attention import Segments
from regard.attention.masks import Mask, tensor

WindowPadding = Literal["masked", "zeros", "zeros-after-shift"]


@dataclass(frozen=True, eq=False)
class Windows:
    """A batch of grids, each cut into windows; with a shift the cuts move, and the windows at the ends close a circle.

    What :meth:`take` lays out and :meth:`give` takes back is a permutation of the grid's rows, and so one gather each
    way; where windows are as wide as the grid their rows lie side by side already, and nothing is moved. Make one with
    :func:`windows_of`.

    Attributes:
        segments: Sequences of W tokens, window by window in rows of windows, image after image.
        mask: Which tokens of a window see each other; None for all.
        grid: Height and width of each grid in tokens.
        size: Height and width of a window in tokens.
        places_BW: int64, for the windows B of one image: where in the grid each token stands, counted row by row; −1
            beyond the grid.

    Source: Liu et al. 2021, §3.2.
    """

    segments: Segments
    mask: Mask | None
    grid: tuple[int, int]
    size: tuple[int, int]
    places_BW: Tensor
    _count: int = field(repr=False)
    _rows_N: Tensor | None = field(repr=False)
    _filled_N: Tensor | None = field(repr=False)
    _back_N: Tensor | None = field(repr=False)

    @property
    def num_rows(self) -> int:
        """Rows of all grids."""
        return self._count * self.grid[0] * self.grid[1]

    @cached_property
    def places_M(self) -> Tensor | None:
        """int64, for each token of ``segments`` its row in the grids, −1 beyond them; None where nothing is moved."""
        if self._rows_N is None:
            return None
        places_W = self.places_BW.flatten()
        images_B1 = torch.arange(self._count, device=places_W.device)[:, None] * (self.grid[0] * self.grid[1])
        return torch.where(places_W >= 0, places_W + images_B1, -1).flatten()

    @cached_property
    def of_one_image(self) -> Segments:
        """The windows of one image."""
        windows, tokens = self.places_BW.shape
        return Segments.uniform(windows, tokens, self.places_BW.device)

    def take(self, x_ND: Tensor) -> Tensor:
        """Lay the rows of grids out as rows of windows.

        Args:
            x_ND: Tokens, row by row of the grid, image after image.

        Returns:
            One row a token of ``segments``; zeros beyond the grid.
        """
        if self._rows_N is None or self._back_N is None:
            return x_ND
        return _Take.apply(x_ND, self._count, self._rows_N, self._filled_N, self._back_N)

    def give(self, x_MD: Tensor) -> Tensor:
        """Bring the rows of windows back into grids; what stands beyond a grid is left out.

        Args:
            x_MD: One row a token of ``segments``.

        Returns:
            Tokens, row by row of the grid, image after image.
        """
        if self._rows_N is None or self._back_N is None:
            return x_MD
        return _Give.apply(x_MD, self._count, self._rows_N, self._filled_N, self._back_N)

    def within(self, mask: Mask | None) -> Mask | None:
        """Add a mask of one's own.

        Args:
            mask: Over the tokens of each window; None for none.

        Returns:
            What both allow; None where that is all.
        """
        if mask is None or self.mask is None:
            return self.mask if mask is None else mask
        return self.mask & mask

    def locate(self, sequence: int) -> tuple[int, Tensor]:
        """Say where a window stands, for pictures of what was recorded there.

        Args:
            sequence: Index of a sequence of ``segments``.

        Returns:
            The image, and places_W of the window's tokens in its grid; see ``places_BW``.
        """
        image, window = divmod(sequence, len(self.places_BW))
        return image, self.places_BW[window]


def windows_of(
    count: int,
    grid: tuple[int, int],
    size: tuple[int, int],
    shift: tuple[int, int] = (0, 0),
    padding: WindowPadding = "masked",
    device: torch.device | str | None = None,
) -> Windows:
    """Cut grids into windows. What was made before is kept.

    A grid that the windows do not divide is filled up at the bottom and at the right. Places of fill-up are ``masked``:
    no token sees them. Or they are ``zeros`` that all tokens of their window see, as in the released code; in timm's,
    the grid is shifted first and filled up behind that (``zeros-after-shift``), so that ends which the shift brings
    together may see each other.

    Args:
        count: Images.
        grid: Height and width of each in tokens.
        size: Height and width of a window.
        shift: Tokens by which the windows move down and to the right, less than their size.
        padding: What becomes of places beyond the grid.
        device: Where attention runs; None is torch's default.

    Returns:
        The windows.
    """
    return _made(count, grid, size, shift, padding, torch.empty(0, device=device).device)


@lru_cache(maxsize=64)
def _made(
    count: int,
    grid: tuple[int, int],
    size: tuple[int, int],
    shift: tuple[int, int],
    padding: WindowPadding,
    device: torch.device,
) -> Windows:
    with (
        torch.inference_mode(False),
        torch.device("cpu"),
    ):  # who looks first may be in inference mode, who trains is not
        (rows_Y, ends_Y), (columns_X, ends_X) = (
            _axis(*sides, after=padding == "zeros-after-shift") for sides in zip(grid, size, shift, strict=True)
        )
        is_real_YX = (rows_Y >= 0)[:, None] & (columns_X >= 0)
        places_YX = torch.where(is_real_YX, rows_Y[:, None] * grid[1] + columns_X, -1)
        regions_YX = 2 * ends_Y[:, None].long() + ends_X
        if padding == "masked":
            regions_YX = torch.where(is_real_YX, regions_YX, -1)
        places_BW, regions_BW = _cut(places_YX, size), _cut(regions_YX, size)
        sees_BTS = regions_BW[:, :, None] == regions_BW[:, None, :]
        mask = None if sees_BTS.all() else tensor(sees_BTS[:, None].to(device))
        flat_N = places_BW.flatten()
        moved = not torch.equal(flat_N, torch.arange(grid[0] * grid[1]))
        filled_N = (flat_N < 0).nonzero().flatten()
        segments = Segments.uniform(count * len(places_BW), places_BW.shape[1], device)
        return Windows(
            segments,
            mask,
            grid,
            size,
            places_BW.to(device),
            count,
            flat_N.clamp(min=0).to(device) if moved else None,
            filled_N.to(device) if len(filled_N) else None,
            flat_N.argsort()[len(filled_N) :].to(device) if moved else None,
        )


def _axis(length: int, window: int, shift: int, after: bool) -> tuple[Tensor, Tensor]:
    """Places along a side of the filled-up grid, −1 beyond the grid; and which of them the shift brought to the end."""
    full = -(-length // window) * window
    at = torch.arange(full)
    places = (at + shift) % (length if after else full)
    return torch.where((at < length) if after else (places < length), places, -1), at >= full - shift


def _cut(x_YX: Tensor, size: tuple[int, int]) -> Tensor:
    """Rows of windows from a grid that they divide."""
    return x_YX.unflatten(1, (-1, size[1])).unflatten(0, (-1, size[0])).transpose(1, 2).flatten(2).flatten(0, 1)


def _laid(x_ND: Tensor, count: int, rows_N: Tensor, filled_N: Tensor | None) -> Tensor:
    laid_BND = x_ND.unflatten(0, (count, -1)).index_select(1, rows_N)
    laid_BND = laid_BND if filled_N is None else laid_BND.index_fill_(1, filled_N, 0.0)
    return laid_BND.flatten(0, 1)


def _back(x_MD: Tensor, count: int, back_N: Tensor) -> Tensor:
    return x_MD.unflatten(0, (count, -1)).index_select(1, back_N).flatten(0, 1)


class _Take(torch.autograd.Function):
    """Rows of grids as rows of windows. The gradient is the way back: every row of a grid has just one place."""

    @staticmethod
    def forward(x_ND: Tensor, count: int, rows_N: Tensor, filled_N: Tensor | None, back_N: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        return _laid(x_ND, count, rows_N, filled_N)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.count = inputs[1]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        return _back(grad, ctx.count, ctx.saved_tensors[2]), None, None, None, None


class _Give(torch.autograd.Function):
    """Rows of windows as rows of grids. The gradient is the way there, and zero beyond the grid."""

    @staticmethod
    def forward(x_MD: Tensor, count: int, rows_N: Tensor, filled_N: Tensor | None, back_N: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        return _back(x_MD, count, back_N)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.count = inputs[1]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        rows_N, filled_N, _ = ctx.saved_tensors
        return _laid(grad, ctx.count, rows_N, filled_N), None, None, None, None
