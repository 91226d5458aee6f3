"""Parquet of pictures, through the optional package pyarrow, as the public hub's data sets have it."""

import io
import json
import os
from typing import Any

import numpy as np

from regard.data.examples import find_column
from regard.data.readers.image_folder import read_files
from regard.data.readers.picture import header
from regard.data.readers.pictures import IMAGE_NAMES, LABEL_NAMES, EncodedPictures, find_name, in_threads, name_labels
from regard.data.readers.text import empty_file, opened, shown
from regard.errors import DataError, FormatError, ResourceError


def read_parquet(path: str, *, image: str | None, label: str | None, labelled: bool) -> EncodedPictures:
    """Read pictures from a column of bytes, of structs with ``bytes``, or of paths from the file's folder.

    The bytes are held in memory as they are, not decoded.

    Args:
        path: A file.
        image: Column of the pictures; None means ``image`` or another usual name.
        label: Column of the labels, whole numbers or texts; None means ``label`` or ``class``. The names of numbers are
            taken from the file's metadata (``huggingface``) where they stand there.
        labelled: Whether labels are read.

    Returns:
        The pictures in the order of the rows.

    Raises:
        DataError: The file is missing or empty, a column is missing, or a cell is null.
        FormatError: The file is not Parquet, a column holds something else, or a picture is none.
        ResourceError: pyarrow is missing, or the file cannot be read.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        mend = "install the extra: pip install 'regard[parquet]'"
        raise ResourceError("Parquet needs the package pyarrow", where=shown(path), mend=mend) from None

    with opened(path) as file:
        try:
            table = pyarrow.parquet.ParquetFile(file)
            names = table.schema_arrow.names
            chosen = [find_name(names, IMAGE_NAMES, image)]
            chosen += [find_name(names, LABEL_NAMES, label)] if labelled else []
            for name in chosen:
                find_column(names, name, where=shown(path))
            found = table.read(columns=chosen)
            for name in chosen:
                if found.column(name).null_count:
                    row = found.column(name).is_null().to_pylist().index(True) + 1
                    mend = "fill it in or remove the row"
                    raise DataError(f"{name!r} is null", where=f"{shown(path)}, row {row}", mend=mend)
            values = found.column(chosen[1]).to_pylist() if labelled else []
        except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file system's own; pyarrow reports damaged pages as OSError without a number
            reason = str(error).splitlines()[0][:200]
            raise FormatError(f"not Parquet that can be read ({reason})", where=shown(path)) from None
    if not found.num_rows:
        raise empty_file(path)
    labels: tuple[str, ...] = ()
    classes: list[str] | None = None
    if labelled:
        classes = _class_names(table.schema_arrow.metadata, chosen[1])
        labels = name_labels(np.array(values), classes, where=f"{shown(path)}, {chosen[1]!r}")
    column = found.column(chosen[0])
    if pyarrow.types.is_struct(column.type):
        fields = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
        if {"bytes", "path"} <= fields.keys():
            column = fields["path" if fields["bytes"].null_count else "bytes"]
    wheres = [f"{shown(path)}, row {row}" for row in range(1, found.num_rows + 1)]
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        folder = os.path.realpath(os.path.dirname(path))
        return read_files(folder, column.to_pylist(), labels, classes, wheres)
    if not (pyarrow.types.is_binary(column.type) or pyarrow.types.is_large_binary(column.type)):
        mend = "store each picture's file as bytes"
        raise FormatError(f"column {chosen[0]!r} holds {column.type}", where=shown(path), mend=mend)

    def read(index: int) -> bytes:
        data = column[index].as_py()
        return data if isinstance(data, bytes) else b""

    def measure(index: int) -> tuple[int, int, int]:
        data = read(index)
        return header(io.BytesIO(data), len(data), wheres[index])

    shapes = list(in_threads(measure, range(found.num_rows)))
    return EncodedPictures(read, wheres, shapes, labels, classes)


def _class_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str] | None:
    """Find the names of classes that the datasets library keeps in a file's metadata."""
    try:
        node: Any = json.loads((metadata or {})[b"huggingface"])
        for key in ("info", "features", column, "names"):
            node = node[key]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    return node if isinstance(node, list) and all(isinstance(name, str) and name for name in node) else None
