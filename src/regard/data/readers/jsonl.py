"""JSON lines: an object a line."""

import json

from regard.data.examples import Pair, list_names, make_pair, source_names
from regard.data.readers.text import empty_file, numbered_lines, shown
from regard.errors import DataError, FormatError


def read_jsonl(path: str, *, source: str | None, target: str | None, text_cap_bytes: int) -> list[Pair]:
    """Read pairs from JSON objects; further keys are ignored.

    Args:
        path: A file.
        source: Key of the source, or two with a comma between; None means ``source``.
        target: Key of the target; None means ``target``.
        text_cap_bytes: Most bytes that a line may have.

    Returns:
        The pairs in file order, at least one.

    Raises:
        DataError: The file is missing or empty, a key is missing, or a line has an empty side or too many bytes.
        FormatError: Bytes are not UTF-8 or hold NUL, a line is no JSON object, a value is no string, or a string
            holds NUL or a lone surrogate.
        ResourceError: The file cannot be read.
    """
    pairs: list[Pair] = []
    for number, line in numbered_lines(path, text_cap_bytes=text_cap_bytes):
        where = f"{shown(path)}, line {number}"
        value = _parse(line, where)
        names = source_names(value, source or "source", where=where)
        texts = [_string(value, name, where) for name in names]
        wanted = _string(value, target or "target", where)
        pairs.append(make_pair(texts, wanted, number, where=where, text_cap_bytes=text_cap_bytes))
    if not pairs:
        raise empty_file(path)
    return pairs


def _parse(line: str, where: str) -> dict[str, object]:
    """Parse one line into an object."""
    if not line or line.isspace():
        raise DataError("the line is blank", where=where, mend="remove it")
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        what = f"not JSON ({error.msg} at character {error.pos + 1})"
        raise FormatError(what, where=where, mend="write one JSON object a line") from None
    except RecursionError:
        raise FormatError("JSON nested too deeply", where=where, mend="write flat objects") from None
    except ValueError as error:  # an integer of thousands of digits
        raise FormatError(f"not JSON that can be read ({error})", where=where) from None
    if not isinstance(value, dict):
        raise FormatError(f"{_kind(value)} instead of an object", where=where, mend="write one JSON object a line")
    return value


def _string(value: dict[str, object], key: str, where: str) -> str:
    """Take the string under a key."""
    if key not in value:
        raise DataError(f"no key {key!r}", where=where, mend=f"the keys are {list_names(list(value), key)}")
    text = value[key]
    if not isinstance(text, str):
        raise FormatError(f"{key!r} is {_kind(text)} instead of a string", where=where, mend="write it as a string")
    return text


def _kind(value: object) -> str:
    """Name the JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
