"""A large map as a pyramid of small pictures: what a page draws of it at any zoom.

Level 0 is the map; each level above has a cell for two by two of the one below: their largest, so that a single strong
weight is seen from any distance.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from regard.errors import UsageError
from regard.looking.attention_map import Weights

TILE = 256  # cells on a side
_POWER = 0.7  # as in heat.shade
_BLOCK = 512  # rows of the map that are read at once
Number = TypeVar("Number", np.float32, np.uint8)


class Pyramid:
    """The levels of one map.

    Args:
        weights_TS: The map, which may lie on disk: it is read once for all levels from 1 up, and where tiles of level 0
            are asked for.

    Attributes:
        num_levels: Levels; the last is one tile.
    """

    def __init__(self, weights_TS: Weights) -> None:
        self._weights_TS = weights_TS
        self._levels: list[npt.NDArray[np.uint8]] = []
        largest, self.num_levels = max(weights_TS.shape), 1
        while largest > TILE:
            largest, self.num_levels = -(-largest // 2), self.num_levels + 1

    @property
    def size_bytes(self) -> int:
        """What it keeps, or will keep once a level from 1 up was asked for."""
        return self._weights_TS.size // 3 if self.num_levels > 1 else 0

    def tile(self, level: int, y: int, x: int) -> npt.NDArray[np.uint8]:
        """Give a tile.

        Args:
            level: From 0; each halves the one before. Above the last, all that is left is one tile, halved further.
            y: Row of the tile.
            x: Column of the tile.

        Returns:
            Shades, round(255 · w^0.7), at most TILE × TILE.

        Raises:
            UsageError: There is no such tile.
        """
        rows, columns = (-(-size // (1 << min(max(level, 0), 40))) for size in self._weights_TS.shape)
        if not (level >= 0 and 0 <= y * TILE < rows and 0 <= x * TILE < columns):
            raise UsageError(f"no tile ({y}, {x}) on level {level}", where="tile", mend="count from 0")
        if level == 0:
            return _shades(self._weights_TS[y * TILE : (y + 1) * TILE, x * TILE : (x + 1) * TILE])
        if not self._levels:
            blocks = range(0, len(self._weights_TS), _BLOCK)
            self._levels = [np.concatenate([_shades(_halved(self._weights_TS[i : i + _BLOCK])) for i in blocks])]
        while len(self._levels) < level:
            self._levels.append(_halved(self._levels[-1]))
        return self._levels[level - 1][y * TILE : (y + 1) * TILE, x * TILE : (x + 1) * TILE]


def _shades(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.rint(255 * np.clip(weights, 0, 1) ** np.float32(_POWER)).astype(np.uint8)


def _halved(cells: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Take the largest of two by two; an odd last row or column stands alone."""
    for axis in (0, 1):
        first, second = (cells[i::2] if axis == 0 else cells[:, i::2] for i in (0, 1))
        joined = first.copy()
        most = second.shape[axis]
        part = joined[:most] if axis == 0 else joined[:, :most]
        np.maximum(part, second, out=part)
        cells = joined
    return cells
