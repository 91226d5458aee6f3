"""Strangers' text made safe and legible, numbers made short, files written whole.

Tokens, titles and file names come from anywhere. Whatever goes into an element or an attribute passes through `escape`;
`script_json` alone puts data into a script element.
"""

import html
import json
import unicodedata
from collections.abc import Mapping, Sequence

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

_NAMED = {"\n": "↵", "\t": "⇥", "\r": "␍"}
_JOINERS = "\u200c\u200d"  # they shape Persian, Indic scripts and emoji, and hide nothing
_SCRIPT_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def visible(text: str) -> str:
    r"""Show what would be invisible or reorder its neighbours: controls, bidi marks, lone surrogates, non-characters.

    Args:
        text: Any string.

    Returns:
        The text with such characters as signs, like ↵ or ⟨U+202E⟩; it can be encoded as UTF-8.

    >>> visible("a\u202eb\n")
    'a⟨U+202E⟩b↵'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_NAMED.get(c) or (f"⟨U+{ord(c):04X}⟩" if _is_hidden(c) else c) for c in text)


def _is_hidden(c: str) -> bool:
    code = ord(c)
    not_a_character = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return not_a_character or (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in _JOINERS)


def escape(text: str) -> str:
    """Make text safe as the content of an element or of a quoted attribute, in HTML and in SVG.

    Args:
        text: Any string.

    Returns:
        Visible text without markup.

    >>> escape('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(visible(text), quote=True)


def token_label(token: str, limit: int = 18) -> str:
    """Name a token in a picture: its spaces are shown, an empty one is ∅, a long one ends in an ellipsis.

    Args:
        token: A token as the tokenizer spells it.
        limit: Characters at most.

    Returns:
        Visible text, not yet escaped.
    """
    return shorten(visible(token[: limit + 1]).replace(" ", "␣") or "∅", limit)


def shorten(text: str, limit: int) -> str:
    """Cut text to a number of characters, the last an ellipsis where something was cut.

    Args:
        text: Any string.
        limit: Characters at most.

    Returns:
        The text or its beginning.
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def text_width(text: str, size: float) -> float:
    """Estimate how wide a text is in a usual sans-serif face; a picture cannot ask the browser before it is drawn.

    Args:
        text: Text on one line.
        size: Font size.

    Returns:
        The width in the unit of the size, rather too large than too small.
    """
    return size * sum(_advance(c) for c in text)


def _advance(c: str) -> float:
    if unicodedata.combining(c):
        return 0.0
    if unicodedata.east_asian_width(c) in "WF":
        return 1.0
    if c in "iljI.,'|:;! tfr()[]-":
        return 0.36
    if c in "mwMW@%":
        return 0.9
    return 0.7 if c.isupper() else 0.59


def script_json(data: Json) -> str:
    r"""Write data as JSON that no byte sequence can end a script element with.

    Args:
        data: Numbers, strings, lists, mappings; finite.

    Returns:
        ASCII without <, > and &.

    >>> script_json("</script>")
    '"\\u003c/script\\u003e"'
    """
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_SCRIPT_ESCAPES)


def weight_text(weight: float) -> str:
    """Write an attention weight: four decimals, or two digits and a power of ten where these would say nothing.

    The page's script writes the same.

    >>> [weight_text(w) for w in (1.0, 0.8125, 0.00002, 0.0)]
    ['1.0000', '0.8125', '2.0e-5', '0']
    """
    if weight >= 0.0001:
        return f"{weight:.4f}"
    if weight <= 0:
        return "0"
    digits, power = f"{weight:.1e}".split("e")
    return f"{digits}e{int(power)}"


def short_number(value: float) -> str:
    """Write a number on an axis.

    >>> [short_number(v) for v in (0.25, 500, 2500, 20000, 1_500_000, 1e-5)]
    ['0.25', '500', '2.5k', '20k', '1.5M', '1e-05']
    """
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.6g}{letter}"
    return f"{value:.6g}"


def decimals_for(values: Sequence[float]) -> int:
    """Choose one number of decimals for numbers that stand beside each other.

    Args:
        values: Finite numbers, at least one.

    Returns:
        1 where the largest is 100 or more, 2 where it is 1 or more, else 4.
    """
    top = max(abs(v) for v in values)
    return 1 if top >= 100 else 2 if top >= 1 else 4


def duration_text(seconds: float) -> str:
    """Write a duration as people say it.

    >>> [duration_text(s) for s in (0.4, 42, 61, 3720, 90061)]
    ['0.4 s', '42 s', '1 min 1 s', '1 h 2 min', '1 d 1 h']
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next((i for i, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)
