"""Weights that may be larger than memory: in a file that nobody else sees, mapped as an ordinary array.

The file has no name and is gone with the array. It lies where temporary files do: TMPDIR says where.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from torch import Tensor

from regard.attention import Rows
from regard.errors import DataError
from regard.files import writing

SPILL_BYTES = 16 << 20  # of one layer; what is larger goes into a file
SPAN_BYTES = 8 << 20  # of float64 numbers that are looked at at once


class Sheet:
    """The weights of one layer while they come in.

    Args:
        shape: Heads, queries and keys.

    Raises:
        ResourceError: There is no room for the file.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape, self.count = shape, 0
        size_bytes = 4 * prod(shape)
        self._file = _file_of(size_bytes) if size_bytes > SPILL_BYTES else None
        if self._file is not None:
            weakref.finalize(self, self._file.close)  # where an error leaves it behind
        self._array = np.zeros(shape if self._file is None else (0, 0, 0), np.float32)

    def put(self, first: int, weights_HTS: Tensor) -> None:
        """Write the rows of some queries; keys that they do not have weigh 0.

        Args:
            first: The first query.
            weights_HTS: Of all heads.

        Raises:
            DataError: They do not fit.
            ResourceError: The disk is full.
        """
        heads, queries, keys = weights_HTS.shape
        if heads != self.shape[0] or first + queries > self.shape[1] or keys > self.shape[2]:
            raise DataError(f"rows {tuple(weights_HTS.shape)} at {first}, where {self.shape} are expected")
        self.count += queries
        block_HTS = weights_HTS.float().cpu().numpy()
        if self._file is None:
            self._array[:, first : first + queries, :keys] = block_HTS
            return
        block_HTS = np.pad(block_HTS, ((0, 0), (0, 0), (0, self.shape[2] - keys)))
        with writing(Path(tempfile.gettempdir())):
            for head, block_TS in enumerate(block_HTS):
                self._file.seek(4 * (head * self.shape[1] + first) * self.shape[2])
                rest = block_TS.data.cast("B")
                while rest:
                    rest = rest[self._file.write(rest) :]

    def array(self) -> npt.NDArray[np.float32]:
        """Give the weights when all are there.

        Returns:
            float32, H × T × S, read-only.
        """
        if self._file is not None:
            with writing(Path(tempfile.gettempdir())), self._file:
                # The mapping keeps the file, which is closed here.
                self._array, self._file = np.asarray(np.memmap(self._file, np.float32, "r", shape=self.shape)), None
        self._array.setflags(write=False)
        return self._array


def _file_of(size_bytes: int) -> IO[bytes]:
    """Make a file of zeros that has no name."""
    with writing(Path(tempfile.gettempdir())):
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it lives as long as its sheet
        file.truncate(size_bytes)
        return file


class Sheets:
    """A sink of :class:`regard.attention.record`: each layer's first rows, call behind call, as many as are wanted.

    Attributes:
        within: Of each layer: its queries and keys are the same tokens.
        num_queries: Rows that a layer has in all; read when its first block comes.

    Args:
        num_queries: The same.
    """

    def __init__(self, num_queries: int) -> None:
        self.num_queries, self.within = num_queries, dict[str, bool]()
        self._sheets: dict[str, Sheet] = {}

    def __call__(self, name: str, rows: Rows) -> None:
        """Take a block."""
        if name not in self._sheets:
            heads, _, keys = rows.weights_HTS.shape
            self._sheets[name], self.within[name] = Sheet((heads, self.num_queries, keys)), rows.within
        sheet = self._sheets[name]
        if sheet.count < sheet.shape[1]:
            sheet.put(sheet.count, rows.weights_HTS)

    def weights(self, name: str) -> npt.NDArray[np.float32]:
        """Give a layer's weights.

        Args:
            name: Its name.

        Returns:
            float32, H × T × S, read-only.

        Raises:
            DataError: Not all rows have come.
        """
        sheet = self._sheets[name]
        if sheet.count < sheet.shape[1]:
            raise DataError(f"{sheet.count} of {sheet.shape[1]} rows were recorded", where=name)
        return sheet.array()


def spans(count: int, item_bytes: int) -> Iterator[slice]:
    """Cut so many items into parts that are small enough to be copied.

    Args:
        count: Items.
        item_bytes: Of the copy of one.

    Yields:
        The parts, in order; one item at least is in each.

    Example:
        >>> [(one.start, one.stop) for one in spans(5, SPAN_BYTES // 2)]
        [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, SPAN_BYTES // max(1, item_bytes))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
