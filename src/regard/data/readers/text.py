r"""Plain text, a line an item; the way of every text format from bytes to lines.

A line ends with ``\n`` or ``\r\n`` and with nothing else: U+2028, U+0085, form feed and their like stay inside
the line, so that line N is line N in every editor and in the other file of a parallel pair.
"""

import codecs
import difflib
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from regard.data.examples import over_cap
from regard.errors import DataError, FormatError, ResourceError

STDIN = "-"


def read_text(path: str, *, text_cap_bytes: int) -> list[str]:
    """Read lines of plain text; blank lines are kept.

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
    lines = [text for _, text in numbered_lines(path, text_cap_bytes=text_cap_bytes)]
    if all(not text or text.isspace() for text in lines):
        raise empty_file(path)
    return lines


def numbered_lines(path: str, *, text_cap_bytes: int) -> Iterator[tuple[int, str]]:
    """Read lines without their ends.

    Args:
        path: A file, or ``-`` for standard input.
        text_cap_bytes: Most bytes that a line may have.

    Yields:
        1-based line number and text.

    Raises:
        DataError: The file is missing or a folder, or a line is over the cap.
        FormatError: Bytes are not UTF-8, or hold NUL.
        ResourceError: The file cannot be read.
    """
    for number, text in numbered_lines_with_ends(path, text_cap_bytes=text_cap_bytes):
        yield number, text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def numbered_lines_with_ends(path: str, *, text_cap_bytes: int) -> Iterator[tuple[int, str]]:
    """Read lines as they stand, less a byte order mark at the start of the file.

    Args:
        path: A file, or ``-`` for standard input.
        text_cap_bytes: Most bytes that a line may have, its end not counted.

    Yields:
        1-based line number and text with its end.

    Raises:
        DataError: The file is missing or a folder, or a line is over the cap.
        FormatError: Bytes are not UTF-8, or hold NUL.
        ResourceError: The file cannot be read.
    """
    with opened(path) as file:
        number = 0
        # The limit keeps a file without line ends from filling memory; the mark and the end are not counted.
        while data := file.readline(text_cap_bytes + len(codecs.BOM_UTF8) + len(b"\r\n")):
            number += 1
            where = f"{shown(path)}, line {number}"
            skipped = len(codecs.BOM_UTF8) if number == 1 and data.startswith(codecs.BOM_UTF8) else 0
            data = data[skipped:]
            if len(data.rstrip(b"\r\n")) > text_cap_bytes:
                raise over_cap(where, text_cap_bytes)
            try:
                text = data.decode()
            except UnicodeDecodeError as error:
                what = f"byte {skipped + error.start + 1} (0x{data[error.start]:02x}) is not UTF-8"
                raise FormatError(what, where=where, mend="save the file as UTF-8") from None
            if (position := data.find(b"\0")) >= 0:
                mend = "remove it"
                raise FormatError(f"NUL at byte {skipped + position + 1}", where=where, mend=mend)
            yield number, text


@contextmanager
def opened(path: str) -> Generator[BinaryIO, None, None]:
    """Open a file for reading bytes; every failure of the file system becomes one of our errors.

    Args:
        path: A file, or ``-`` for standard input.

    Yields:
        The open file.

    Raises:
        DataError: The file is missing or a folder, or the path cannot be a path.
        ResourceError: The file cannot be read.
    """
    try:
        if path == STDIN:
            yield sys.stdin.buffer
        else:
            with open(path, "rb") as file:
                yield file
    except IsADirectoryError:
        raise DataError("this is a folder", where=shown(path), mend="name a file in it") from None
    except (FileNotFoundError, NotADirectoryError):
        raise DataError("no such file", where=shown(path), mend=_nearest(path)) from None
    except PermissionError:
        raise ResourceError("not allowed to read it", where=shown(path), mend="change its permissions") from None
    except OSError as error:
        raise ResourceError(f"cannot be read ({error.strerror or error})", where=shown(path)) from None


def _nearest(path: str) -> str:
    """Say which existing file was perhaps meant."""
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return f"there is no folder {shown(folder)}"
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {shown(os.path.join(folder, close[0]))}?" if close else "check the name"


def empty_file(path: str) -> DataError:
    """Word the error for a file without text.

    Args:
        path: The file.

    Returns:
        The error, to be raised.
    """
    return DataError("the file is empty", where=shown(path), mend="give a file with at least one line of text")


def shown(path: str) -> str:
    """Write a path for a message: one printable line, whatever the name holds.

    Args:
        path: A path, or ``-`` for standard input.

    Returns:
        The path as it is where it is printable, quoted and escaped where not.
    """
    if path == STDIN:
        return "standard input"
    return path if path.isprintable() else ascii(path)
