"""Tab-separated pairs: no quoting, no escapes, a pair a line."""

from regard.data.examples import Pair, find_column, make_pair, source_names
from regard.data.readers.text import empty_file, numbered_lines, shown
from regard.errors import DataError


def read_tsv(path: str, *, source: str | None, target: str | None, text_cap_bytes: int) -> list[Pair]:
    """Read pairs from tab-separated columns.

    Without column names each line holds exactly source and target. With a name (the other one defaults to
    ``source`` or ``target``) the first line is the header, and further columns are ignored.

    Args:
        path: A file, or ``-`` for standard input.
        source: Column of the source, or two with a comma between; None with ``target`` None means that there is no
            header.
        target: Column of the target; None as for ``source``.
        text_cap_bytes: Most bytes that a line may have.

    Returns:
        The pairs in file order, at least one.

    Raises:
        DataError: The file is missing or empty, a column is missing, or a line has the wrong number of columns,
            an empty side or too many bytes.
        FormatError: Bytes are not UTF-8, or hold NUL.
        ResourceError: The file cannot be read.
    """
    lines = numbered_lines(path, text_cap_bytes=text_cap_bytes)
    sources, column, width = [0], 1, 2
    mend = "write source, one tab, target; or name the columns of a header line"
    if source is not None or target is not None:
        number, header = next(lines, (0, ""))
        if not number:
            raise empty_file(path)
        names, where = header.split("\t"), f"{shown(path)}, line 1"
        wanted = source_names(names, source or "source", where=where)
        sources = [find_column(names, name, where=where) for name in wanted]
        column = find_column(names, target or "target", where=where)
        width, mend = len(names), "give each line the columns of the header"
    pairs: list[Pair] = []
    for number, line in lines:
        where, cells = f"{shown(path)}, line {number}", line.split("\t")
        if len(cells) != width:
            what = f"{len(cells)} columns instead of {width}" if line else "the line is blank"
            raise DataError(what, where=where, mend=mend if line else "remove it")
        texts = [cells[place] for place in sources]
        pairs.append(make_pair(texts, cells[column], number, where=where, text_cap_bytes=text_cap_bytes))
    if not pairs:
        raise empty_file(path)
    return pairs
