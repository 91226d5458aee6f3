"""Readers of texts without labels, one after the other: a corpus need not fit in memory.

===================  ==============================================================================
``book.txt``         texts between blank lines (``blank``), a text a line (``line``), or one text (``file``)
``texts.jsonl``      an object a line, key ``text`` or as named
``folder``           every ``.txt`` and ``.jsonl`` file in it and below, in the order of their paths
===================  ==============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from regard.data.examples import check_text
from regard.data.readers.text import numbered_lines, shown
from regard.errors import ConfigError, DataError, FormatError

Between = Literal["blank", "line", "file"]
LINE_CAP_BYTES = 1 << 24
SUFFIXES = (".txt", ".jsonl")


def read_documents(path: str | Path, between: Between = "blank", key: str = "text") -> Iterator[str]:
    """Read texts.

    Args:
        path: A file or a folder.
        between: What stands between two texts of a plain text file.
        key: Of the text in JSONL.

    Yields:
        Each text that is not blank, without space around it.

    Raises:
        ConfigError: ``between`` is unknown.
        DataError: A file is missing or of another kind, or there is no text.
        FormatError: Bytes are not UTF-8, a line of JSONL is not an object with the text, or a text holds NUL or a lone
            surrogate.
        ResourceError: A file cannot be read.
    """
    if between not in get_args(Between):
        raise ConfigError(f"unknown separation {between!r}", mend=f"choose from {', '.join(get_args(Between))}")
    is_empty = True
    for file in _files(Path(path)):
        texts = _objects(file, key) if file.suffix == ".jsonl" else _plain(file, between)
        for text in texts:
            if text := text.strip():
                is_empty = False
                yield text
    if is_empty:
        raise DataError("no text", where=shown(str(path)), mend="give a file with text in it")


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not found:
            raise DataError(f"no {' or '.join(SUFFIXES)} file in it", where=shown(str(path)))
        return found
    if path.suffix not in SUFFIXES and path.exists():
        raise DataError(f"texts come as {' or '.join(SUFFIXES)}", where=shown(str(path)), mend="rename the file")
    return [path]


def _plain(path: Path, between: Between) -> Iterator[str]:
    lines = (text for _, text in numbered_lines(str(path), text_cap_bytes=LINE_CAP_BYTES))
    if between == "line":
        yield from lines
        return
    held: list[str] = []
    for line in lines:
        if between == "blank" and not line.strip():
            yield "\n".join(held)
            held.clear()
        else:
            held.append(line)
    yield "\n".join(held)


def _objects(path: Path, key: str) -> Iterator[str]:
    for number, line in numbered_lines(str(path), text_cap_bytes=LINE_CAP_BYTES):
        if not line.strip():
            continue
        where = f"{shown(str(path))}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FormatError("not JSON", where=where, mend="write one object a line") from error
        text = value.get(key) if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise FormatError(f"no text under {key!r}", where=where, mend="name the key with data.key")
        check_text(text, where=where, text_cap_bytes=LINE_CAP_BYTES)  # escapes write what no line of UTF-8 can
        yield text
