"""Comma-separated pairs (RFC 4180): a header line, double quotes around cells that need them."""

import csv

from regard.data.examples import Pair, find_column, make_pair, source_names
from regard.data.readers.text import empty_file, numbered_lines_with_ends, shown
from regard.errors import DataError, FormatError


def read_csv(path: str, *, source: str | None, target: str | None, text_cap_bytes: int) -> list[Pair]:
    """Read pairs from comma-separated columns with a header; further columns are ignored.

    Args:
        path: A file.
        source: Column of the source, or two with a comma between; None means ``source``.
        target: Column of the target; None means ``target``.
        text_cap_bytes: Most bytes that a line and a cell may have.

    Returns:
        The pairs in file order, at least one; a pair's line is where its row starts.

    Raises:
        DataError: The file is missing or empty, a column is missing, or a row has the wrong number of columns, an
            empty side or too many bytes.
        FormatError: Bytes are not UTF-8 or hold NUL, or quotes do not close.
        ResourceError: The file cannot be read.
    """
    # The csv module has one limit for the whole process, in characters; it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), text_cap_bytes))
    lines = numbered_lines_with_ends(path, text_cap_bytes=text_cap_bytes)
    rows = csv.reader((text for _, text in lines), strict=True)
    names: list[str] = []
    sources, column = [0], 1
    pairs: list[Pair] = []
    start = 1
    try:
        for cells in rows:
            where = f"{shown(path)}, line {start}"
            if not cells:
                raise DataError("the line is blank", where=where, mend="remove it")
            if not names:
                names = cells
                sources, column = _columns(cells, source or "source", target or "target", where)
            elif len(cells) != len(names):
                what, mend = f"{len(cells)} columns instead of {len(names)}", "quote cells that hold commas"
                raise DataError(what, where=where, mend=mend)
            else:
                texts = [cells[place] for place in sources]
                pairs.append(make_pair(texts, cells[column], start, where=where, text_cap_bytes=text_cap_bytes))
            start = rows.line_num + 1
    except csv.Error as error:
        raise FormatError(f"not CSV ({error})", where=f"{shown(path)}, line {start}", mend="check the quotes") from None
    if not pairs:
        raise empty_file(path)
    return pairs


def _columns(names: list[str], source: str, target: str, where: str) -> tuple[list[int], int]:
    """Find the columns; a file cut with semicolons gets its own remedy."""
    if len(names) == 1 and ";" in names[0]:
        raise DataError("the header has semicolons and no comma", where=where, mend="separate columns with commas")
    wanted = source_names(names, source, where=where)
    return [find_column(names, name, where=where) for name in wanted], find_column(names, target, where=where)
