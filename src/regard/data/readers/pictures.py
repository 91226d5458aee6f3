"""What every reader of pictures gives: pictures by their number, from arrays or from encoded files."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from regard.data.readers.picture import MIN_SIDE, decode
from regard.data.readers.text import shown
from regard.errors import DataError, FormatError

IMAGE_NAMES = ("image", "img", "file_name", "filename", "file", "path")
LABEL_NAMES = ("label", "class")
_CHUNK_ITEMS = 32
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Pictures(ABC):
    """Pictures in the order of their file.

    Args:
        labels: For each picture the name of its class; empty where there are none.
        classes: The names of the classes in their order; None: those of the labels, numbers as numbers and first.

    Attributes:
        labels: As given.
        classes: The names in their order.
    """

    def __init__(self, labels: Sequence[str] = (), classes: Sequence[str] | None = None) -> None:
        self.labels = tuple(labels)
        self.classes = tuple(sorted(set(labels), key=_by_number) if classes is None else classes)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def shape(self, index: int) -> tuple[int, int, int]:
        """Tell rows, columns and planes (1 or 3) of a picture without decoding it.

        Args:
            index: 0-based number of the picture.

        Returns:
            The shape that :meth:`pixels` will have.
        """

    @abstractmethod
    def pixels(self, index: int, least: tuple[int, int] | None = None) -> np.ndarray:
        """Give a picture.

        Args:
            index: 0-based number of the picture.
            least: As for :func:`regard.data.readers.picture.decode`.

        Returns:
            Unsigned bytes, shape (Y, X, C).

        Raises:
            DataError: The picture cannot be decoded; the message names it.
        """

    @abstractmethod
    def stored(self, index: int) -> bytes:
        """Give the bytes that a picture is stored in.

        Args:
            index: 0-based number of the picture.

        Returns:
            Bytes that differ where pictures do.
        """

    @abstractmethod
    def where(self, index: int) -> str:
        """Name a picture.

        Args:
            index: 0-based number of the picture.

        Returns:
            Its file, or file and 1-based number.
        """


class ArrayPictures(Pictures):
    """Pictures of one size in one array, which may be mapped from a file.

    Args:
        array: Unsigned bytes, shape (N, Y, X) or (N, Y, X, C) with C = 1 or 3.
        path: The file that it is from.
        labels: As for :class:`Pictures`.
        classes: As for :class:`Pictures`.

    Raises:
        FormatError: The array is no such array.
        DataError: It holds no picture, or there are labels for more or fewer.
    """

    def __init__(
        self, array: np.ndarray, path: str, labels: Sequence[str] = (), classes: Sequence[str] | None = None
    ) -> None:
        super().__init__(labels, classes)
        if array.dtype != np.uint8:
            mend = "save images as uint8, 0 to 255"
            raise FormatError(f"images are {array.dtype} instead of uint8", where=shown(path), mend=mend)
        self.array_NYXC = array[..., None] if array.ndim == 3 else array
        if self.array_NYXC.ndim != 4 or self.array_NYXC.shape[3] not in (1, 3):
            what = f"images have the shape {array.shape}"
            raise FormatError(what, where=shown(path), mend="save (N, rows, columns) or (N, rows, columns, 3)")
        if len(array) == 0 or min(self.array_NYXC.shape[1:3]) < MIN_SIDE:
            what = f"images of the shape {array.shape} are no pictures"
            raise DataError(what, where=shown(path), mend=f"give pictures of {MIN_SIDE} × {MIN_SIDE} or more")
        if labels and len(labels) != len(array):
            raise DataError(f"{len(labels):,} labels for {len(array):,} images", where=shown(path))
        self._path = path

    def __len__(self) -> int:
        return len(self.array_NYXC)

    def shape(self, index: int) -> tuple[int, int, int]:
        _, rows, columns, planes = self.array_NYXC.shape
        return rows, columns, planes

    def pixels(self, index: int, least: tuple[int, int] | None = None) -> np.ndarray:
        return np.asarray(self.array_NYXC[index])

    def stored(self, index: int) -> bytes:
        return self.array_NYXC[index].tobytes()

    def where(self, index: int) -> str:
        return f"{shown(self._path)}, image {index + 1}"


class EncodedPictures(Pictures):
    """Pictures that are decoded whenever they are asked for.

    Args:
        read: Gives a picture's file by its number.
        wheres: Name of each picture.
        shapes: Rows, columns and planes of each, from its header.
        labels: As for :class:`Pictures`.
        classes: As for :class:`Pictures`.
        root: The folder that the names are from, for errors.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        wheres: Sequence[str],
        shapes: Sequence[tuple[int, int, int]],
        labels: Sequence[str] = (),
        classes: Sequence[str] | None = None,
        root: str = "",
    ) -> None:
        super().__init__(labels, classes)
        self._read, self._wheres, self._root = read, wheres, root
        self._shapes = np.array(shapes, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._wheres)

    def shape(self, index: int) -> tuple[int, int, int]:
        rows, columns, planes = self._shapes[index].tolist()
        return rows, columns, planes

    def pixels(self, index: int, least: tuple[int, int] | None = None) -> np.ndarray:
        return decode(self._read(index), os.path.join(self._root, self._wheres[index]), least=least)

    def stored(self, index: int) -> bytes:
        return self._read(index)

    def where(self, index: int) -> str:
        return self._wheres[index]


def in_threads(work: Callable[[_In], _Out], items: Sequence[_In]) -> Iterator[_Out]:
    """Do like work on many items, in as many threads as torch has; Pillow and torch let others run meanwhile.

    Args:
        work: What to do; it may raise.
        items: On what.

    Yields:
        The results in the order of the items.
    """
    workers = min(torch.get_num_threads(), len(items))
    if workers < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        # In portions, so that neither results nor tasks of a whole folder are held at once, and an error ends it soon.
        for start in range(0, len(items), workers * _CHUNK_ITEMS):
            yield from pool.map(work, items[start : start + workers * _CHUNK_ITEMS])


def find_name(names: Sequence[str], usual: Sequence[str], wanted: str | None) -> str:
    """Choose a column by the name given, else by the first usual one that is there.

    Args:
        names: The names that the file has.
        usual: What such a column is called elsewhere.
        wanted: The name given; None if none was.

    Returns:
        A name, which the file need not have.
    """
    return wanted if wanted is not None else next((name for name in usual if name in names), usual[0])


def name_labels(values: np.ndarray, classes: Sequence[str] | None, *, where: str) -> tuple[str, ...]:
    """Turn stored labels into names.

    Args:
        values: Class numbers, from 0 where the classes have names; or names.
        classes: The names of the classes; None if they have none.
        where: The file, as an error should show it.

    Returns:
        A name for each.

    Raises:
        FormatError: The values are neither whole numbers nor texts, or not in one row.
        DataError: A number has no class, or a name is empty.
    """
    if values.ndim != 1 or values.dtype.kind not in "iuU":
        what = f"labels are {values.dtype} of the shape {values.shape}"
        raise FormatError(what, where=where, mend="save one whole number or text for each image")
    if values.dtype.kind == "U" or classes is None:
        names = tuple(map(str, values.tolist()))
        if not all(names):
            raise DataError(f"image {names.index('') + 1} has an empty label", where=where)
        return names
    outside = np.flatnonzero((values < 0) | (values >= len(classes)))
    if len(outside):
        what = f"image {outside[0] + 1} has the label {values[outside[0]]}, and there are {len(classes)} classes"
        raise DataError(what, where=where, mend="number the classes from 0")
    return tuple(classes[value] for value in values.tolist())


def _by_number(name: str) -> tuple[bool, int, str]:
    """Sort digits as numbers, before everything else."""
    is_number = name.isascii() and name.isdigit() and len(name) < 19
    return not is_number, int(name) if is_number else 0, name
