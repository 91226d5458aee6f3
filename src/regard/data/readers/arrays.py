"""Arrays as NumPy writes them: ``.npz`` with ``images``, ``labels`` and ``classes``, or ``.npy`` with images alone.

Neither reader unpickles. What is stored as it is gets mapped into memory, what is compressed is read whole.
"""

import math
import os
import struct
import zipfile
import zlib
from typing import IO

import numpy as np

from regard.data.examples import list_names
from regard.data.readers.pictures import ArrayPictures, name_labels
from regard.data.readers.text import opened, shown
from regard.errors import DataError, FormatError

_READ_CAP_BYTES = 1 << 34  # of what is not mapped but read
_CHUNK_BYTES = 1 << 24
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a member of a ZIP archive: the lengths of its name and of its extra field


def read_npz(path: str, *, image: str | None, label: str | None, labelled: bool) -> ArrayPictures:
    """Read images and labels from the arrays of one file.

    Args:
        path: A file.
        image: Name of the images' array, unsigned bytes of the shape (N, Y, X) or (N, Y, X, C); None means ``images``.
        label: Name of the labels' array, whole numbers or texts; None means ``labels``.
        labelled: Whether labels are read. The array ``classes`` gives their names, if it is there.

    Returns:
        The images; mapped where the file is not compressed.

    Raises:
        DataError: An array is missing, counts differ, a label has no class, or an array is too large.
        FormatError: The file is no archive of plain arrays.
        ResourceError: The file cannot be read.
    """
    image, label = image or "images", label or "labels"
    with opened(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

                def take(name: str) -> np.ndarray:
                    if name not in infos:
                        mend = f"it has {list_names(list(infos), name)}"
                        raise DataError(f"no array is named {name!r}", where=shown(path), mend=mend)
                    return _member(path, archive, infos[name])

                classes = list(name_labels(take("classes"), None, where=shown(path))) if "classes" in infos else None
                labels = name_labels(take(label), classes, where=shown(path)) if labelled else ()
                return ArrayPictures(take(image), path, labels, classes if labelled else None)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError) as error:
            raise FormatError(f"not an archive of arrays ({error})", where=shown(path), mend="write it anew") from None


def read_npy(path: str, *, image: str | None, label: str | None, labelled: bool) -> ArrayPictures:
    """Map the images of one array.

    Args:
        path: A file.
        image: Must be None: there is one array.
        label: Must be None.
        labelled: Must be False: there are no labels.

    Returns:
        The images.

    Raises:
        DataError: Labels are wanted, or the array holds no picture.
        FormatError: The file is no plain array.
        ResourceError: The file cannot be read.
    """
    if labelled or image is not None or label is not None:
        mend = "save images and labels with numpy.savez: .npz"
        raise DataError("one array has no labels and no names", where=shown(path), mend=mend)
    with opened(path) as file:
        array = _mapped(path, file, os.fstat(file.fileno()).st_size)
    return ArrayPictures(array, path)


def _member(path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Take one array out of an archive."""
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
        with opened(path) as file:
            file.seek(info.header_offset)
            start = file.read(_LOCAL_HEADER.size)
            if len(start) < _LOCAL_HEADER.size:
                raise FormatError("not an archive of arrays (it ends early)", where=shown(path))
            file.seek(sum(_LOCAL_HEADER.unpack(start)), os.SEEK_CUR)
            return _mapped(path, file, info.file_size)
    with archive.open(info) as member:
        dtype, shape, num_bytes = _array_header(path, member, info.file_size)
        if num_bytes > _READ_CAP_BYTES:
            raise DataError(f"{num_bytes:,} bytes are too many to unpack", where=shown(path), mend="use numpy.savez")
        data = bytearray()
        while len(data) < num_bytes and (chunk := member.read(min(_CHUNK_BYTES, num_bytes - len(data)))):
            data += chunk
    if len(data) < num_bytes:
        raise FormatError(f"the array {info.filename!r} ends early", where=shown(path), mend="write it anew")
    return np.frombuffer(data, dtype).reshape(shape)


def _mapped(path: str, file: IO[bytes], file_bytes: int) -> np.ndarray:
    """Map the array that begins where the file stands."""
    start = file.tell()
    dtype, shape, num_bytes = _array_header(path, file, file_bytes)
    offset = file.tell()
    if offset + num_bytes > os.fstat(file.fileno()).st_size or num_bytes > file_bytes - (offset - start):
        raise FormatError("the array ends early", where=shown(path), mend="write it anew")
    if not num_bytes:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape)


def _array_header(path: str, file: IO[bytes], file_bytes: int) -> tuple[np.dtype, tuple[int, ...], int]:
    """Read kind, shape and bytes of an array; its declared size is not believed."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, is_fortran, dtype = read(file)
    except (ValueError, KeyError, OSError) as error:
        reason = str(error).splitlines()[0][:120]
        raise FormatError(f"not an array ({reason})", where=shown(path), mend="write it anew with numpy") from None
    if dtype.hasobject or is_fortran or any(side < 0 for side in shape):
        what = "an array of Python objects" if dtype.hasobject else "an array in Fortran's order"
        raise FormatError(what, where=shown(path), mend="save plain arrays (numpy.ascontiguousarray)")
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes > file_bytes:
        raise FormatError("the array ends early", where=shown(path), mend="write it anew")
    return dtype, shape, num_bytes
