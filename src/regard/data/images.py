"""Pictures with labels, from every form in which people keep them; resized, and decoded when they are needed.

==========================================  ======================================================================
``cats/``, ``dogs/`` in a folder            pictures at any depth, a folder a class; without labels any folder
``labels.csv``, ``.tsv``                    columns ``image`` (path from the table's folder) and ``label``; or a label
                                            and one column a pixel
``train.parquet``                           columns ``image`` (bytes, a struct of bytes and path, or a path), ``label``
``train-images-idx3-ubyte``, ``….gz``       with ``train-labels-idx1-ubyte`` beside it
``train.npz``                               arrays ``images`` (N, Y, X or N, Y, X, C), ``labels`` and ``classes``
``train.npy``                               one such array, without labels
==========================================  ======================================================================

Headers are checked while a folder or table is read: a file that is no picture, or too large, is named at once.
A file that is damaged further on is named when it is decoded.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.readers.arrays import read_npy, read_npz
from regard.data.readers.idx import NAME as IDX_NAME
from regard.data.readers.idx import read_idx
from regard.data.readers.image_folder import read_files, read_folder
from regard.data.readers.image_parquet import read_parquet
from regard.data.readers.image_table import read_table
from regard.data.readers.picture import CAPS, EXTENSIONS, LUMA, Caps, decode
from regard.data.readers.pictures import ArrayPictures, Pictures, in_threads
from regard.data.readers.text import shown
from regard.errors import DataError, UsageError

__all__ = ["CAPS", "Caps", "Images", "decode", "read_images", "read_named"]


Fit = Literal["crop", "squash"]
Resample = Literal["bilinear", "bicubic"]
_DRAFT = 2  # a JPEG is decoded smaller as long as it keeps this many times the wanted size
_READERS: dict[str, Callable[..., Pictures]] = {
    **{".npz": read_npz, ".npy": read_npy, ".csv": read_table, ".tsv": read_table, ".parquet": read_parquet},
}


@dataclass(frozen=True, eq=False, slots=True)
class Images:
    """Pictures brought to one size and one number of planes when they are asked for.

    Args:
        pictures: Where they come from.
        numbers: Which of those these are, in their order.
        size: Rows and columns that each is brought to.
        channels: Planes: 1 or 3.
        fit: How a picture of another shape is brought to ``size``: ``crop`` cuts the largest part of that shape out of
            its middle, ``squash`` keeps all of it and bends its shape.
        labels: For each the name of its class; empty where there are none.
        resample: How pixels are averaged or made when a picture is resized, both as Pillow does it.
        share: Of the part that is cut, the share of its sides that is kept, out of its middle.
    """

    pictures: Pictures
    numbers: np.ndarray
    size: tuple[int, int]
    channels: int
    fit: Fit
    labels: tuple[str, ...]
    resample: Resample = "bicubic"
    share: float = 1.0

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.numbers)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in their order: the file's own, else sorted, numbers as numbers."""
        return self.pictures.classes

    def batch(self, indices: Sequence[int] | np.ndarray) -> Tensor:
        """Give pictures.

        Args:
            indices: Which, 0-based.

        Returns:
            Unsigned bytes, shape (B, C, Y, X).

        Raises:
            DataError: A picture is damaged; the message names it.
            ResourceError: A file cannot be read any more.
        """
        numbers = self.numbers[np.asarray(indices, dtype=np.int64)]
        if isinstance(self.pictures, ArrayPictures):
            return self._fitted(self.pictures.array_NYXC[numbers])
        if not len(numbers):
            return torch.empty((0, self.channels, *self.size), dtype=torch.uint8)
        return torch.cat(list(in_threads(self._one, numbers.tolist())))

    def where(self, index: int) -> str:
        """Name a picture.

        Args:
            index: Which, 0-based.

        Returns:
            Its path from the folder or table, or file and 1-based number.
        """
        return self.pictures.where(int(self.numbers[index]))

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Images":
        """Choose some; nothing is decoded.

        Args:
            indices: Which, 0-based, in the order wanted.

        Returns:
            Those.
        """
        chosen = np.asarray(indices, dtype=np.int64)
        labels = tuple(self.labels[index] for index in chosen.tolist()) if self.labels else ()
        return replace(self, numbers=self.numbers[chosen], labels=labels)

    def digest(self) -> str:
        """Hash what is stored of each picture, its label, and how it is brought to size; all files are read.

        Returns:
            SHA-256 in hexadecimal; a copy in another folder has the same.
        """
        found = hashlib.sha256(
            json.dumps([len(self), *self.size, self.channels, self.fit, self.resample, self.share]).encode()
        )

        def one(number: int) -> bytes:
            return hashlib.sha256(self.pictures.stored(number)).digest()

        for index, stored in enumerate(in_threads(one, self.numbers.tolist())):
            found.update(stored)
            found.update(hashlib.sha256(self.labels[index].encode() if self.labels else b"").digest())
        return found.hexdigest()

    def keys(self) -> list[str]:
        """Hash the pixels of each picture at its own size, so that copies in other files or formats are found.

        Returns:
            A key for each, equal where all pixels are.

        Raises:
            DataError: A picture is damaged; the message names it.
        """

        def one(number: int) -> str:
            pixels_YXC = self.pictures.pixels(number)
            return hashlib.sha256(repr(pixels_YXC.shape).encode() + pixels_YXC.tobytes()).hexdigest()

        return list(in_threads(one, self.numbers.tolist()))

    def _one(self, number: int) -> Tensor:
        rows, columns, _ = self.pictures.shape(number)
        scale = max(self.size[0] / rows, self.size[1] / columns) / self.share
        least = (math.ceil(_DRAFT * scale * rows), math.ceil(_DRAFT * scale * columns))
        return self._fitted(self.pictures.pixels(number, least)[None])

    def _fitted(self, pixels_BYXC: np.ndarray) -> Tensor:
        """Bring pictures of one shape to the wanted planes and size."""
        planes_BYXC = _with_channels(pixels_BYXC, self.channels)
        if self.fit == "crop":
            planes_BYXC = _middle(planes_BYXC, self.size, self.share)
        images_BCYX = torch.from_numpy(np.array(planes_BYXC.transpose(0, 3, 1, 2), order="C"))
        if images_BCYX.shape[2:] == self.size or not len(images_BCYX):
            return images_BCYX.reshape(-1, self.channels, *self.size)
        return F.interpolate(images_BCYX, size=self.size, mode=self.resample, antialias=True)


def read_images(
    path: str | Path,
    *,
    size: tuple[int, int] | None,
    channels: int | None,
    image: str | None = None,
    label: str | None = None,
    labelled: bool = True,
    fit: Fit = "crop",
    resample: Resample = "bicubic",
    share: float = 1.0,
) -> Images:
    """Read pictures.

    Args:
        path: A folder, a table, a file of arrays, or, without labels, one picture.
        size: Rows and columns that each is brought to; None means that all have the size of the first.
        channels: Planes that each is brought to, 1 or 3; None means 1 where all are grey, else 3.
        image: Column or array of the images; None means the usual names.
        label: Column or array of the labels; None means the usual names. Of a table of pixels without a header,
            ``first`` or ``last``.
        labelled: Whether labels are read; then each picture must have one.
        fit: As for :class:`Images`.
        resample: Likewise.
        share: Likewise.

    Returns:
        The pictures in the order of the file; those of a folder sorted by path.

    Raises:
        UsageError: Size, channels, or a name cannot apply.
        DataError: Something is missing, empty or too large, or sizes differ and ``size`` is None; the message names it.
        FormatError: A file is not what it claims to be.
        ResourceError: A file cannot be read, or Parquet is asked for without pyarrow.
    """
    if channels not in (None, 1, 3):
        raise UsageError(f"{channels} channels", mend="choose 1 (grey) or 3 (colour)")
    if size is not None and min(size) < 1:
        raise UsageError(f"a size of {size[0]} × {size[1]}", mend="give rows and columns, 1 or more")
    name = os.fspath(path)
    if not name or "\0" in name:
        raise DataError("not a file name", where=ascii(name), mend="give the name of a folder or file")
    pictures = _read(name, image=image, label=label, labelled=labelled)
    shapes = [pictures.shape(0)] if isinstance(pictures, ArrayPictures) else map(pictures.shape, range(len(pictures)))
    first: tuple[int, int] | None = size
    is_grey = True
    for index, (rows, columns, depth) in enumerate(shapes):
        is_grey &= depth == 1
        first = first or (rows, columns)
        if size is None and (rows, columns) != first:
            what = f"{rows} × {columns} pixels (rows × columns), and the first picture has {first[0]} × {first[1]}"
            raise DataError(
                what,
                where=pictures.where(index),
                mend="give a size that all are brought to: --set 'data.size=[64, 64]'",
            )
    assert first is not None, "every reader refuses to give no picture"
    planes = channels or (1 if is_grey else 3)
    return Images(pictures, np.arange(len(pictures)), first, planes, fit, pictures.labels, resample, share)


def read_named(
    paths: Sequence[str | Path],
    *,
    size: tuple[int, int],
    channels: int,
    fit: Fit = "crop",
    resample: Resample = "bicubic",
    share: float = 1.0,
    first: int = 0,
) -> Images:
    """Read pictures that a user names one by one.

    Args:
        paths: The files; a link is followed.
        size: Rows and columns that each is brought to.
        channels: Planes that each is brought to.
        fit: As for :class:`Images`.
        resample: Likewise.
        share: Likewise.
        first: Number of the first in the user's input, for messages.

    Returns:
        The pictures, in that order, without labels.

    Raises:
        UsageError: A name is empty or a URL: nothing is fetched.
        DataError: A file is missing or its header is refused; the message names it.
        FormatError: A file is no picture.
        ResourceError: A file cannot be read.
    """
    names = [os.fspath(path) for path in paths]
    for number, name in enumerate(names, first + 1):
        if not name.strip() or "\0" in name:
            raise UsageError("no file name", where=f"image {number}", mend="name one file a line")
        if "://" in name:
            raise UsageError("an image is a file, not a URL", where=shown(name), mend="download it first")
    inside = [os.path.relpath(os.path.realpath(name), os.sep) for name in names]
    pictures = read_files(os.sep, inside, wheres=[shown(name) for name in names])
    return Images(pictures, np.arange(len(names)), size, channels, fit, (), resample, share)


def _read(name: str, *, image: str | None, label: str | None, labelled: bool) -> Pictures:
    """Choose the reader by what the name says."""
    if os.path.isdir(name):
        return read_folder(name, image=image, label=label, labelled=labelled)
    if IDX_NAME.search(name):
        return read_idx(name, image=image, label=label, labelled=labelled)
    extension = Path(name).suffix.lower()
    if reader := _READERS.get(extension):
        return reader(name, image=image, label=label, labelled=labelled)
    if extension in EXTENSIONS or extension == ".svg" or not os.path.lexists(name):
        if labelled and not os.path.lexists(name):
            raise DataError("no such file or folder", where=shown(name), mend="check the name")
        if labelled:
            mend = "give a folder that has a folder of pictures for each class"
            raise DataError("one picture has no label", where=shown(name), mend=mend)
        folder, file = os.path.split(os.path.abspath(name))
        return read_files(os.path.realpath(folder), [file])
    what = f"{extension} is no known format of images" if extension else "the name has no extension"
    mend = f"images come as folders, pictures, {', '.join(_READERS)}, or …-idx3-ubyte"
    raise DataError(what, where=shown(name), mend=mend)


def _with_channels(pixels_BYXC: np.ndarray, channels: int) -> np.ndarray:
    """Make grey of colours, or equal planes of grey."""
    if pixels_BYXC.shape[3] == channels:
        return pixels_BYXC
    if channels == 3:
        return np.broadcast_to(pixels_BYXC, (*pixels_BYXC.shape[:3], 3))
    luma_BYX = (pixels_BYXC @ np.array(LUMA, dtype=np.uint32) + (1 << 15)) >> 16
    return luma_BYX.astype(np.uint8)[..., None]


def _middle(pixels_BYXC: np.ndarray, size: tuple[int, int], share: float) -> np.ndarray:
    """Cut the largest part of the wanted shape out of the middle, or a share of its sides.

    It is cut before it is resized: a long thin picture would grow beyond all bounds.
    """
    _, rows, columns, _ = pixels_BYXC.shape
    kept_rows = max(1, round(min(rows, columns * size[0] / size[1]) * share))
    kept_columns = max(1, round(min(columns, rows * size[1] / size[0]) * share))
    top, left = (rows - kept_rows) // 2, (columns - kept_columns) // 2
    return pixels_BYXC[:, top : top + kept_rows, left : left + kept_columns]
