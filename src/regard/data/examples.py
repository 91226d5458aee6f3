"""Examples as they leave a file, and the checks that every reader makes on their text."""

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from regard.errors import DataError, FormatError

_BETWEEN = "\t"  # two texts of one row stand in one source, this between them
_SHOWN_NAMES = 8
_SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True)
class Pair:
    """A source text and the target text that belongs to it.

    Args:
        source: Text to read; never empty.
        target: Text to write; never empty.
        line: 1-based line (row in Parquet) where the pair starts in its file.
        second_at: Where in the source the second of two texts begins; 0 for one text, which may hold tabs.
    """

    source: str
    target: str
    line: int
    second_at: int = field(default=0, repr=False)

    @staticmethod
    def of(texts: Sequence[str], target: str, line: int) -> "Pair":
        """Make a pair of a row's text, or of its two with a tab between, and their target."""
        return Pair(_BETWEEN.join(texts), target, line, len(texts[0]) + len(_BETWEEN) if len(texts) > 1 else 0)

    @property
    def texts(self) -> tuple[str, ...]:
        """The text that the source is, or the two."""
        if not self.second_at:
            return (self.source,)
        return self.source[: self.second_at - len(_BETWEEN)], self.source[self.second_at :]


def make_pair(texts: Sequence[str], target: str, line: int, *, where: str, text_cap_bytes: int) -> Pair:
    """Check both sides and join them.

    Args:
        texts: Text of the source side, or the two that stand there.
        target: Text of the target side.
        line: 1-based line or row in the file.
        where: File and line, as an error should show it.
        text_cap_bytes: Most UTF-8 bytes that a side may have.

    Returns:
        The pair, its texts unchanged.

    Raises:
        DataError: A side, or one of two texts, is empty or only white space; or a side is over the cap.
        FormatError: A side holds NUL or a lone surrogate.
    """
    if len(texts) > 1 and not all(text.strip() for text in texts):
        raise DataError("one of two texts is empty", where=where, mend="fill it in or remove the row")
    pair = Pair.of(texts, target, line)
    for side, text in (("source", pair.source), ("target", target)):
        check_text(text, where=f"{where}, {side}", text_cap_bytes=text_cap_bytes)
        if not text or text.isspace():
            raise DataError(f"the {side} side is empty", where=where, mend="fill it in or remove the pair")
    return pair


def check_text(text: str, *, where: str, text_cap_bytes: int) -> None:
    """Refuse text that UTF-8 cannot carry, that holds NUL, or that is too long.

    Args:
        text: Decoded text.
        where: File and line, as an error should show it.
        text_cap_bytes: Most UTF-8 bytes that the text may have.

    Raises:
        FormatError: NUL or a lone surrogate.
        DataError: The text is over the cap.
    """
    if "\0" in text:
        raise FormatError(f"NUL at character {text.index(chr(0)) + 1}", where=where, mend="remove it")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        surrogate = f"\\u{ord(text[error.start]):04x}"
        what = f"lone surrogate {surrogate} at character {error.start + 1}"
        raise FormatError(what, where=where, mend="write the whole pair of surrogates, or remove it") from None
    if size_bytes > text_cap_bytes:
        raise over_cap(where, text_cap_bytes)


def over_cap(where: str, text_cap_bytes: int) -> DataError:
    """Word the error for text over the byte cap.

    Args:
        where: File and line, as an error should show it.
        text_cap_bytes: The cap.

    Returns:
        The error, to be raised.
    """
    return DataError(f"longer than {text_cap_bytes:,} bytes", where=where, mend="split the text")


def find_column(names: Sequence[str], wanted: str, *, where: str) -> int:
    """Find a column by its exact name.

    Args:
        names: The names that the file has.
        wanted: The name to find.
        where: File and line of the names.

    Returns:
        0-based position of the column.

    Raises:
        DataError: No column, or more than one, has that name.
    """
    found = [position for position, name in enumerate(names) if name == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"{len(found)} columns are named {wanted!r}", where=where, mend="give each its own name")
    raise DataError(f"no column is named {wanted!r}", where=where, mend=f"the names are {list_names(names, wanted)}")


def source_names(known: Collection[str], wanted: str, *, where: str) -> list[str]:
    """Tell one column's name from two with a comma between; a column whose own name has the comma comes first.

    Args:
        known: The names that the file has.
        wanted: What the user gave for the source.
        where: File and line of the names.

    Returns:
        One name or two.

    Raises:
        DataError: There are three names or more.
    """
    names = [wanted] if wanted in known else [name.strip() for name in wanted.split(",")]
    if len(names) > 2:
        raise DataError(f"{len(names)} columns for the source", where=where, mend="name one text, or two")
    return names


def list_names(names: Sequence[str], wanted: str) -> str:
    """List names for an error message, kept short whatever the file holds.

    Args:
        names: The names that exist.
        wanted: The name that was not found; names like it come first.

    Returns:
        Quoted names on one line.
    """
    close = difflib.get_close_matches(wanted, [name[:_SHOWN_CHARS] for name in names[:1000]], n=1)
    ordered = close + [name for name in names[: _SHOWN_NAMES + 1] if name not in close]
    shown = ", ".join(ascii(name[:_SHOWN_CHARS]) for name in ordered[:_SHOWN_NAMES])
    return f"{shown}, …" if len(names) > _SHOWN_NAMES else shown or "(none)"
