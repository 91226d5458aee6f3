"""Sentences in columns, a word a line with its tag, blank lines between (Tjong Kim Sang & De Meulder 2003)."""

from regard.data.examples import Pair, make_pair
from regard.data.readers.text import empty_file, numbered_lines, shown
from regard.errors import DataError, UsageError


def read_conll(path: str, *, source: str | None, target: str | None, text_cap_bytes: int) -> list[Pair]:
    """Read words from the first column and tags from the last; lines of -DOCSTART- and comments ("# ") are passed over.

    Args:
        path: A file.
        source: Must be None: columns have no names.
        target: Must be None.
        text_cap_bytes: Most bytes that a line, and a sentence, may have.

    Returns:
        For each sentence its words and its tags, each joined by spaces; the line is that of the first word.

    Raises:
        UsageError: Columns are named.
        DataError: The file is missing or empty, a line has one column, or a sentence too many bytes.
        FormatError: Bytes are not UTF-8, or hold NUL.
        ResourceError: The file cannot be read.
    """
    if source is not None or target is not None:
        raise UsageError("columns without names", where=shown(path), mend="leave --source and --target out")
    pairs: list[Pair] = []
    words: list[str] = []
    tags: list[str] = []
    start = 0

    def finish() -> None:
        if words:
            where = f"{shown(path)}, line {start}"
            pairs.append(
                make_pair([" ".join(words)], " ".join(tags), start, where=where, text_cap_bytes=text_cap_bytes)
            )
        words.clear()
        tags.clear()

    for number, line in numbered_lines(path, text_cap_bytes=text_cap_bytes):
        columns = line.split()
        if not columns or columns[0] == "-DOCSTART-":
            finish()
        elif line.startswith("# "):  # a comment (CoNLL-U); a word "#" has a tab behind it
            continue
        elif len(columns) > 1:
            start = start if words else number
            words.append(columns[0])
            tags.append(columns[-1])
        else:
            mend = "write a word, its tag, and blank lines between sentences"
            raise DataError("a word without a tag", where=f"{shown(path)}, line {number}", mend=mend)
    finish()
    if not pairs:
        raise empty_file(path)
    return pairs
