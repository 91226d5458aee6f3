"""Parallel files: line N of one is the translation of line N of the other."""

from itertools import zip_longest

from regard.data.examples import Pair, make_pair
from regard.data.readers.text import empty_file, numbered_lines, shown
from regard.errors import DataError


def read_parallel(source_path: str, target_path: str, *, text_cap_bytes: int) -> list[Pair]:
    """Read pairs from two files of equal length.

    Args:
        source_path: File with a source text a line.
        target_path: File with a target text a line.
        text_cap_bytes: Most bytes that a line may have.

    Returns:
        The pairs in file order, at least one.

    Raises:
        DataError: A file is missing or empty, the lengths differ, or a line is empty or over the cap.
        FormatError: Bytes are not UTF-8, or hold NUL.
        ResourceError: A file cannot be read.
    """
    pairs: list[Pair] = []
    counts = [0, 0]
    paths = source_path, target_path
    blank: DataError | None = None
    for row in zip_longest(*(numbered_lines(path, text_cap_bytes=text_cap_bytes) for path in paths)):
        texts = ["", ""]
        for side, item in enumerate(row):
            if item is not None:
                counts[side], texts[side] = item
        if blank is None and None not in row:
            where = " and ".join(shown(path) for path, text in zip(paths, texts, strict=True) if not text.strip())
            if where:
                # Unequal lengths explain more than the blank line that comes of them, so they are told first.
                blank = DataError(
                    "the line is empty", where=f"{where}, line {counts[0]}", mend="remove it from both files"
                )
            else:
                where = f"{shown(source_path)} and {shown(target_path)}, line {counts[0]}"
                pairs.append(make_pair(texts[:1], texts[1], counts[0], where=where, text_cap_bytes=text_cap_bytes))
    for path, count in zip(paths, counts, strict=True):
        if not count:
            raise empty_file(path)
    if counts[0] != counts[1]:
        what = f"{counts[0]:,} lines, but {shown(target_path)} has {counts[1]:,}"
        raise DataError(what, where=shown(source_path), mend="make line N of one belong to line N of the other")
    if blank is not None:
        raise blank
    return pairs
