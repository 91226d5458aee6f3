"""What people type or send: checked before anything reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from regard.errors import ContextError, FormatError, UsageError

# A text over this many bytes is refused before it is tokenized.
TEXT_CAP_BYTES = 65_536


def check_typed(text: str, what: str) -> str:
    """Refuse a text that is empty, over the cap, or not valid Unicode.

    Args:
        text: From the command line or a request.
        what: Its name, for messages.

    Returns:
        The text.

    Raises:
        UsageError: It is empty or only spaces.
        ContextError: It is over the cap.
        FormatError: It holds NUL, or bytes that are not UTF-8.
    """
    if not text.strip():
        raise UsageError("an empty text", where=what, mend="give some words")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise FormatError("not UTF-8", where=f"{what}, character {error.start + 1}") from error
    if "\0" in text:
        raise FormatError("a NUL character", where=f"{what}, character {text.index(chr(0)) + 1}")
    if size > TEXT_CAP_BYTES:
        raise ContextError(f"{size:,} bytes; at most {TEXT_CAP_BYTES:,} are read", where=what, mend="split the text")
    return text


def check_texts(texts: Iterable[Any], where: str, in_parts: bool = False) -> list[Any]:
    """Refuse one string in place of a list, which would be read letter by letter, and what is no text.

    Args:
        texts: From a program.
        where: What they were given to, for messages.
        in_parts: Whether a text may be several strings: a pair, or words.

    Returns:
        The texts.

    Raises:
        UsageError: They are no list, or one of them is no text.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        shown = f"{texts[:40]!r}" if isinstance(texts, str) else type(texts).__name__
        raise UsageError(f"{shown} is no list", where=where, mend="give a list of texts: [text]")
    listed = list(texts)
    for number, text in enumerate(listed, 1):
        is_parted = in_parts and isinstance(text, Sequence) and all(isinstance(part, str) for part in text)
        if not (isinstance(text, str) or is_parted):
            mend = "give strings" + (", or lists of strings" if in_parts else "")
            raise UsageError(f"text {number} is of the type {type(text).__name__}", where=where, mend=mend)
    return listed
