"""Readers, a format a file; the extension of the file's name alone chooses.

========================  ==================================================================================
``pairs.tsv``, ``-``      two columns; with column names, a header and any columns (``-`` is standard input)
``pairs.csv``             a header, columns ``source`` and ``target`` or as named
``pairs.jsonl``           an object a line, keys ``source`` and ``target`` or as named
``pairs.parquet``         columns ``source`` and ``target`` or as named
``tags.conll``, ``.bio``  a word a line, its tag in the last column, blank lines between sentences
``train.de,train.en``     two parallel files, source first
``train``                 the same, with ``source="de", target="en"``
========================  ==================================================================================
"""

import os
from pathlib import Path

from regard.data.examples import Pair
from regard.data.readers.conll import read_conll
from regard.data.readers.csv import read_csv
from regard.data.readers.jsonl import read_jsonl
from regard.data.readers.parallel import read_parallel
from regard.data.readers.parquet import read_parquet
from regard.data.readers.text import STDIN, read_text, shown
from regard.data.readers.tsv import read_tsv
from regard.errors import DataError, UsageError

__all__ = ["TEXT_CAP_BYTES", "read_lines", "read_pairs"]

TEXT_CAP_BYTES = 65536
_READERS = {
    **{".tsv": read_tsv, ".csv": read_csv, ".jsonl": read_jsonl, ".parquet": read_parquet},
    **{".conll": read_conll, ".bio": read_conll},
}


def read_pairs(
    path: str | Path, *, source: str | None = None, target: str | None = None, text_cap_bytes: int = TEXT_CAP_BYTES
) -> list[Pair]:
    """Read pairs of texts.

    Args:
        path: A file, two parallel files joined by a comma, their common prefix, or ``-`` for TSV on standard input.
        source: Column or key of the source (of two texts both, with a comma between), or the suffix of a parallel
            file; None means ``source``, or for TSV that there is no header.
        target: As ``source``, for the target.
        text_cap_bytes: Most bytes that a line (a cell in Parquet) may have.

    Returns:
        The pairs in file order, at least one, texts unchanged, no side empty.

    Raises:
        UsageError: Names are given that cannot apply, or both sides get the same name.
        DataError: A file is missing, empty, of no known extension, or its content is bad (FormatError: not even
            the format that it claims); the message names file and line.
        ResourceError: A file cannot be read, or Parquet is asked for without pyarrow.
    """
    name = os.fspath(path)
    _check_path(name)
    if source is not None and source == target:
        raise UsageError(f"source and target are both {source!r}", mend="name two columns")
    if name == STDIN:
        return read_tsv(name, source=source, target=target, text_cap_bytes=text_cap_bytes)
    if "," in name and not os.path.exists(name):
        parts = name.split(",")
        if len(parts) != 2 or not all(parts):
            raise UsageError("not two files", where=shown(name), mend="write source and target: train.de,train.en")
        if source is not None or target is not None:
            mend = "drop the names; the first file is the source"
            raise UsageError("two parallel files have no column names", where=shown(name), mend=mend)
        return read_parallel(*parts, text_cap_bytes=text_cap_bytes)
    extension = Path(name).suffix.lower()
    if reader := _READERS.get(extension):
        return reader(name, source=source, target=target, text_cap_bytes=text_cap_bytes)
    if source is not None and target is not None and not os.path.isfile(name):
        return read_parallel(f"{name}.{source}", f"{name}.{target}", text_cap_bytes=text_cap_bytes)
    raise _unknown_format(name, extension)


def read_lines(path: str | Path, *, text_cap_bytes: int = TEXT_CAP_BYTES) -> list[str]:
    """Read lines of plain text, whatever the extension; blank lines are kept.

    Args:
        path: A file, or ``-`` for standard input.
        text_cap_bytes: Most bytes that a line may have.

    Returns:
        The lines without their ends; line N of the file is item N - 1.

    Raises:
        DataError: The file is missing, a folder, empty or blank, or a line is over the cap.
        FormatError: Bytes are not UTF-8, or hold NUL.
        ResourceError: The file cannot be read.
    """
    name = os.fspath(path)
    _check_path(name)
    return read_text(name, text_cap_bytes=text_cap_bytes)


def _check_path(name: str) -> None:
    """Refuse what no file system takes as a name."""
    if not name or "\0" in name:
        raise DataError("not a file name", where=ascii(name), mend="give the name of a file")


def _unknown_format(name: str, extension: str) -> DataError:
    """Word the error for a name whose extension tells no format, with the likeliest remedy."""
    if os.path.isdir(name):
        return DataError("this is a folder", where=shown(name), mend="name a file in it")
    mend = f"pairs come as {', '.join(_READERS)}, as train.de,train.en, or as train with source de and target en"
    if extension == ".json":
        mend = "write one object a line and name the file .jsonl"
    elif extension == ".txt":
        mend = "write source, one tab, target a line and name the file .tsv"
    what = f"{extension} is no known format of pairs" if extension else "the name has no extension"
    return DataError(what, where=shown(name), mend=mend)
