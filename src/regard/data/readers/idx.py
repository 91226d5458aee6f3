"""IDX, the format of MNIST (LeCun et al. 1998): big-endian header, unsigned bytes; plain or gzip."""

import gzip
import math
import os
import re
import zlib

import numpy as np

from regard.data.readers.pictures import ArrayPictures, name_labels
from regard.data.readers.text import opened, shown
from regard.errors import DataError, FormatError, UsageError

NAME = re.compile(r"idx[13]-ubyte(\.gz)?$", re.IGNORECASE)
_IMAGES = re.compile(r"(images?)([-.])idx3", re.IGNORECASE)
_UNSIGNED_BYTES = 8
_READ_CAP_BYTES = 1 << 34  # of what is not mapped but unpacked


def read_idx(path: str, *, image: str | None, label: str | None, labelled: bool) -> ArrayPictures:
    """Read images, and labels from the file beside it: ``train-labels-idx1-ubyte`` for ``train-images-idx3-ubyte``.

    Args:
        path: The file of images; with ``.gz`` it is unpacked into memory, else mapped.
        image: Must be None: there are no names.
        label: Must be None.
        labelled: Whether labels are read; either file may have ``.gz`` or not.

    Returns:
        The images.

    Raises:
        UsageError: A name is given.
        DataError: A file is missing, counts differ, or there is too much to unpack.
        FormatError: A file is not IDX of unsigned bytes, or its size is not what it declares.
        ResourceError: A file cannot be read.
    """
    if image is not None or label is not None:
        raise UsageError("IDX has no names", where=shown(path), mend="leave the names out")
    images = _read(path, 3)
    if not labelled:
        return ArrayPictures(images, path)
    folder, name = os.path.split(path)
    beside, count = _IMAGES.subn(_labels_name, name, count=1)
    if not count:
        what = "the name does not tell that of its labels"
        raise DataError(what, where=shown(path), mend="name them …-images-idx3-ubyte and …-labels-idx1-ubyte")
    plain = os.path.join(folder, beside.removesuffix(".gz"))
    labels = plain if os.path.exists(plain) else f"{plain}.gz"
    return ArrayPictures(images, path, name_labels(_read(labels, 1), None, where=shown(labels)))


def _labels_name(match: re.Match[str]) -> str:
    plural = "s" if match[1][-1] in "sS" else ""
    return f"label{plural}{match[2]}idx1"


def _read(path: str, num_axes: int) -> np.ndarray:
    """Read one array of unsigned bytes."""
    header_bytes = 4 + 4 * num_axes
    with opened(path) as file:
        is_packed = path.lower().endswith(".gz")
        try:
            stream = gzip.GzipFile(fileobj=file) if is_packed else file
            start = stream.read(header_bytes)
            if len(start) < header_bytes or start[:4] != bytes((0, 0, _UNSIGNED_BYTES, num_axes)):
                raise FormatError(f"not IDX of unsigned bytes with {num_axes} axes", where=shown(path))
            shape = tuple(np.frombuffer(start, ">u4", num_axes, 4).tolist())
            num_bytes = math.prod(shape)
            if not is_packed:
                left = os.fstat(file.fileno()).st_size - header_bytes
                if left == num_bytes and num_bytes:
                    return np.memmap(path, np.uint8, "r", header_bytes, shape)
                raise _other_size(path, num_bytes, left)
            if num_bytes > _READ_CAP_BYTES:
                raise DataError(f"{num_bytes:,} bytes are too many to unpack", where=shown(path), mend="unpack it")
            data = stream.read(num_bytes + 1)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise FormatError(f"not gzip ({error})", where=shown(path), mend="fetch it again") from None
    if len(data) != num_bytes or not num_bytes:
        raise _other_size(path, num_bytes, len(data))
    return np.frombuffer(data, np.uint8).reshape(shape)


def _other_size(path: str, num_bytes: int, found: int) -> FormatError:
    what = f"the header declares {num_bytes:,} bytes and {'more follow' if found > num_bytes else f'{found:,} follow'}"
    return FormatError(what, where=shown(path), mend="fetch it again")
