"""How a lecture's pictures are laid out: what is seen and why, the equation, the drawing, the source, the lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from regard.looking.lecture.listing import listing
from regard.looking.matrix import matrix, numbers_text
from regard.looking.page import responsive
from regard.looking.svg import Series, line_chart
from regard.looking.text import escape, visible

WIDE_PX, NARROW_PX = 620, 328


@dataclass(frozen=True)
class Picture:
    """One picture of a lecture.

    Attributes:
        title: Its title.
        told: What is seen and why, one paragraph each; with marks like `equation`'s.
        equation: The equation, a line each; see `equation`.
        source: Paper and section.
        drawn: Elements.
        lines: The function whose lines computed it; None where an earlier picture printed them.
        wide: The drawing takes the page's whole width.
    """

    title: str
    told: tuple[str, ...]
    equation: tuple[str, ...]
    source: str
    drawn: str
    lines: Callable[..., object] | None
    wide: bool = False


def laid_out(one: Picture) -> str:
    """Lay a picture out.

    Args:
        one: The picture.

    Returns:
        A figure.
    """
    told = "".join(f"<p>{marked(text)}</p>" for text in one.told)
    lines = "".join(f"<div>{equation(line)}</div>" for line in one.equation)
    source = f'<p class="source">{escape(one.source)}</p>'
    head = f'<h3>{marked(one.title)}</h3><div class="equation">{lines}</div>'
    caption = f'<figcaption>{head}<div class="told">{told}{source}</div></figcaption>'
    code = "" if one.lines is None else folded("In Python", f'<pre class="lines">{_kept(listing(one.lines))}</pre>')
    kind = "lesson wide-lesson" if one.wide else "lesson"
    return f'<figure class="{kind}">{caption}<div class="drawn">{one.drawn}{code}</div></figure>'


def _kept(text: str) -> str:
    return "\n".join(map(escape, text.splitlines()))


def equation(text: str) -> str:
    """Set an equation: _{…} is a subscript, ^{…} a superscript, single letters are slanted.

    >>> equation("PE_{p} = sin(p / 2^{i})")
    'PE<sub><i>p</i></sub> = sin(<i>p</i> / 2<sup><i>i</i></sup>)'
    """
    slanted = re.sub(r"(?<![^\W\d_])([A-Za-zα-ω])(?![^\W\d_])", r"<i>\1</i>", escape(text))
    slanted = re.sub(r"_\{((?:[^{}])*)\}", r"<sub>\1</sub>", slanted)
    return re.sub(r"\^\{((?:[^{}])*)\}", r"<sup>\1</sup>", slanted)


def marked(text: str) -> str:
    """Set a sentence: what stands between two ` is an equation, the rest is text."""
    parts = text.split("`")
    return "".join(f'<span class="math">{equation(p)}</span>' if i % 2 else escape(p) for i, p in enumerate(parts))


def folded(name: str, body: str) -> str:
    """Fold something away under its name."""
    return f"<details><summary>{escape(name)}</summary>{body}</details>"


def numbers(values_YX: Tensor, decimals: int = 2) -> str:
    """Fold the numbers of a picture away."""
    text = numbers_text(values_YX.tolist(), decimals)
    return folded("Numbers", f'<div class="scroll"><pre class="numbers">{text}</pre></div>')


def scrolled(drawn: str) -> str:
    """Let a drawing that is wider than the page scroll in a box of its own."""
    return f'<div class="scroll">{drawn}</div>'


def named(name: str, drawn: str, note: str = "") -> str:
    """Write a name above a drawing, and something about it."""
    said = f' <span class="soft">{marked(note)}</span>' if note else ""
    return f'<div class="named"><p>{marked(name)}{said}</p>{scrolled(drawn)}</div>'


def signed(
    name: str,
    values_YX: Tensor,
    *,
    rows: Iterable[str] = (),
    columns: Iterable[str] = (),
    decimals: int | None = 2,
    largest: float | None = None,
    note: str | None = None,
) -> str:
    """Draw a matrix under its name.

    Args:
        name: Its name, with marks like `equation`'s.
        values_YX: Its numbers.
        rows: Names of its rows.
        columns: Names of its columns.
        decimals: Of the numbers written; None writes none.
        largest: The number of the strongest shade; None is the largest.
        note: What stands beside the name; None is its shape.

    Returns:
        Elements.
    """
    drawn = matrix(
        values_YX.tolist(),
        label=visible(re.sub(r"[`_^{}]", "", name)),
        rows=list(rows),
        columns=list(columns),
        decimals=decimals,
        largest=largest,
    )
    return named(name, drawn, f"{values_YX.shape[0]} × {values_YX.shape[1]}" if note is None else note)


def beside(*parts: str) -> str:
    """Put drawings and the signs between them side by side, in as many lines as they need."""
    return f'<div class="beside">{"".join(p if p.startswith("<") else _sign(p) for p in parts)}</div>'


def _sign(text: str) -> str:
    return f'<span class="sign">{escape(text)}</span>'


def curves(
    series: Iterable[Series],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    wide: int = WIDE_PX,
) -> str:
    """Draw curves, for wide screens and for narrow ones.

    Args:
        series: The curves.
        x_label: Name of the horizontal axis.
        y_label: Name of the vertical axis.
        log_x: Logarithmic horizontal axis.
        log_y: Logarithmic vertical axis.
        wide: Width where there is room, px.

    Returns:
        Elements.
    """
    kept = list(series)
    return responsive(
        lambda width: line_chart(kept, x_label=x_label, y_label=y_label, log_x=log_x, log_y=log_y, width=width),
        wide,
        NARROW_PX,
    )


def scientific(value: float | Tensor) -> str:
    r"""Write a small difference.

    >>> [scientific(v) for v in (3.33e-16, 0.0, 1.25)]
    ['3.3\xa0×\xa010⁻¹⁶', '0', '1.25']
    """
    number = float(value)
    if number == 0 or 0.01 <= abs(number) < 1000:
        return f"{number:.3g}"
    digits, power = f"{number:.1e}".split("e")
    return f"{digits}\u00a0×\u00a010{str(int(power)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
