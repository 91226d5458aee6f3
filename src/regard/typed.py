"""What people type or send: checked before anything reads it."""

from __future__ import annotations

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
