"""Tables of pictures: a file and a label a row, or a pixel a column; commas (RFC 4180) or tabs between the cells."""

import csv
import math
import os
from collections.abc import Iterator, Sequence

import numpy as np

from regard.data.examples import find_column
from regard.data.readers.image_folder import read_files
from regard.data.readers.pictures import IMAGE_NAMES, LABEL_NAMES, ArrayPictures, Pictures, find_name
from regard.data.readers.text import empty_file, numbered_lines_with_ends, shown
from regard.errors import DataError, FormatError

_LINE_CAP_BYTES = 1 << 22
_ENDS = {"first": 0, "last": -1}


def read_table(path: str, *, image: str | None, label: str | None, labelled: bool) -> Pictures:
    """Read a table, ``.csv`` or ``.tsv``.

    A first row of whole numbers alone is no header: every cell of the table is then a pixel, 0 to 255, or a label.
    With a header, pixels are all columns but the label's where no column is ``image`` or has a usual name of it
    (``file_name``, ``path``, …). Pixels are grey, row by row of a square picture.

    Args:
        path: The table.
        image: Column of the files, as paths from the table's folder.
        label: Column of the labels; None means ``label`` or ``class``. Without a header ``first`` or ``last``.
        labelled: Whether labels are read. If not, a table of pixels has no other column, or ``label`` names it.

    Returns:
        The pictures in the order of the rows.

    Raises:
        DataError: The table has no row, a column is missing, a row has another number of cells, a label is empty, a
            pixel is none, pixels make no square, or a file is missing or outside the table's folder.
        FormatError: The table is not UTF-8, quotes do not close, or a file is no picture.
        ResourceError: A file cannot be read.
    """
    rows = _rows(path, "," if path.lower().endswith(".csv") else "\t")
    header = next(rows, None)
    if header is None:
        raise empty_file(path)
    line, names = header
    where = f"{shown(path)}, line {line}"
    if all(cell.isascii() and cell.isdigit() for cell in names):
        if labelled and label not in _ENDS:
            mend = "say whether the label is the first or the last column, or give the columns names in the first row"
            raise DataError("numbers without names", where=where, mend=mend)
        place = None if label is None else find_column(["first", "last"], label, where=where)
        column = None if place is None else place * (len(names) - 1)
        return _read_pixels(path, names, column, [(line, names)], rows, labelled=labelled)
    if image is not None or any(name in names for name in IMAGE_NAMES):
        files = find_column(names, find_name(names, IMAGE_NAMES, image), where=where)
        column = find_column(names, find_name(names, LABEL_NAMES, label), where=where) if labelled else None
        return _read_named(path, files, column, rows)
    wanted = find_name(names, LABEL_NAMES, label)
    column = find_column(names, wanted, where=where) if labelled or wanted in names else None
    return _read_pixels(path, names, column, [], rows, labelled=labelled)


def _read_named(path: str, files: int, column: int | None, rows: Iterator[tuple[int, list[str]]]) -> Pictures:
    """Read a table of files."""
    names: list[str] = []
    labels: list[str] = []
    wheres: list[str] = []
    for line, cells in rows:
        wheres.append(f"{shown(path)}, line {line}")
        names.append(cells[files])
        if not cells[files]:
            raise DataError("a row without a file", where=wheres[-1], mend="fill it in or remove the row")
        if column is not None:
            labels.append(_label(cells[column], wheres[-1]))
    if not names:
        raise empty_file(path)
    return read_files(os.path.realpath(os.path.dirname(path)), names, labels, wheres=wheres)


def _read_pixels(
    path: str,
    names: Sequence[str],
    column: int | None,
    first: list[tuple[int, list[str]]],
    rows: Iterator[tuple[int, list[str]]],
    *,
    labelled: bool,
) -> Pictures:
    """Read a table of pixels."""
    side = math.isqrt(len(names) - (column is not None))
    if side * side != len(names) - (column is not None):
        what = f"{len(names) - (column is not None):,} columns of pixels make no square picture"
        mend = "name the column of labels, or give a column of files (image)"
        raise DataError(what, where=shown(path), mend=mend)
    data = bytearray()
    labels: list[str] = []
    for line, cells in (row for part in (first, rows) for row in part):
        where = f"{shown(path)}, line {line}"
        if column is not None:
            label = cells.pop(column)
            labels += [_label(label, where)] if labelled else []
        try:
            data += bytes(map(int, cells))
        except ValueError:
            mend = "write whole numbers from 0 to 255"
            raise DataError(f"{_no_pixel(cells)!r} is no pixel", where=where, mend=mend) from None
    if not data:
        raise empty_file(path)
    return ArrayPictures(np.frombuffer(data, np.uint8).reshape(-1, side, side), path, labels)


def _no_pixel(cells: Sequence[str]) -> str:
    return next(cell for cell in cells if not (cell.isdigit() and cell.isascii() and int(cell[:4]) < 256))[:20]


def _label(text: str, where: str) -> str:
    if not text or text.isspace():
        raise DataError("a row without a label", where=where, mend="fill it in or remove the row")
    return text


def _rows(path: str, between: str) -> Iterator[tuple[int, list[str]]]:
    """Read rows, each with the number of its first line; all have as many cells as the first."""
    # The csv module has one limit for the whole process, in characters; it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), _LINE_CAP_BYTES))
    lines = (text for _, text in numbered_lines_with_ends(path, text_cap_bytes=_LINE_CAP_BYTES))
    quoting = csv.QUOTE_MINIMAL if between == "," else csv.QUOTE_NONE
    rows = csv.reader(lines, delimiter=between, quoting=quoting, strict=True)
    start, width = 1, 0
    try:
        for cells in rows:
            where = f"{shown(path)}, line {start}"
            width = width or len(cells)
            if not cells:
                raise DataError("the line is blank", where=where, mend="remove it")
            if len(cells) != width:
                raise DataError(f"{len(cells)} columns instead of {width}", where=where, mend="give each row the same")
            yield start, cells
            start = rows.line_num + 1
    except csv.Error as error:
        raise FormatError(f"not CSV ({error})", where=f"{shown(path)}, line {start}", mend="check the quotes") from None
