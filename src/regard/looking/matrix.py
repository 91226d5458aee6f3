"""Matrices of signed numbers: small ones cell by cell with their numbers, large ones as a picture with axes.

A diverging scale: one colour above zero, another below, the stronger the larger the number. What a number's shade means
is said by `largest`, for every matrix anew.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from regard.errors import DataError
from regard.looking.heat import shade
from regard.looking.png import address, png
from regard.looking.scale import ticks
from regard.looking.svg import px
from regard.looking.text import escape, text_width

MAX_CELLS = 1024  # more than that are neither legible nor light: `picture` draws them
_STRONGEST = 0.62  # opacity of the largest number: figures are legible over it, in light and dark
_TINTS = {True: (47, 111, 192), False: (217, 101, 26)}  # of pixels above and below zero, over light and over dark
_SIZE, _TALL = 13.5, 29  # of letters; of a cell with a number
_NAME_PX = 66  # names that are no wider widen their columns instead of being turned


def matrix(
    values_YX: npt.ArrayLike,
    *,
    label: str,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    decimals: int | None = 2,
    largest: float | None = None,
    cell: int = 25,
) -> str:
    """Draw a matrix cell by cell.

    Args:
        values_YX: Numbers, at most MAX_CELLS; −∞ and NaN stay without a shade.
        label: What it shows, for those who hear the page.
        rows: Names of the rows, at the left; none for none.
        columns: Names of the columns, above; none for none.
        decimals: Of the number written in each cell; None writes none.
        largest: The number that has the strongest shade; None is the largest of these.
        cell: Side of a cell without a number, px.

    Returns:
        An svg element of a fixed size.

    Raises:
        DataError: Not a matrix of 1 to MAX_CELLS numbers, or names that do not fit it.
    """
    values = np.asarray(values_YX, np.float64)
    if values.ndim != 2 or not 1 <= values.size <= MAX_CELLS:
        raise DataError(f"numbers of the shape {values.shape}", where="matrix", mend=f"give 1 to {MAX_CELLS} in rows")
    height, width = values.shape
    if len(rows) not in (0, height) or len(columns) not in (0, width):
        raise DataError(f"{len(rows)} × {len(columns)} names for {height} × {width} numbers", where="matrix")
    texts = [[number_text(value, 2 if decimals is None else decimals) for value in row] for row in values]
    wide, tall = cell, cell
    if decimals is not None:
        widest = _widest(columns)
        longest = max(_widest([text for row in texts for text in row]) + 10, widest + 6 if widest <= _NAME_PX else 0)
        wide, tall = math.ceil(longest), _TALL
    turned = max(map(_wide, columns), default=0) > wide - 3
    left = math.ceil(_widest(rows) + 8) if rows else 1
    top = 1 if not columns else math.ceil(_widest(columns) * 0.72 + 14) if turned else 20
    # A slanted name reaches over the columns at its right.
    over = max((_wide(n) * 0.72 + 9 - (width - x - 0.5) * wide for x, n in enumerate(columns)), default=0)
    right = max(over, 0) if turned else 0
    parts = [f'<rect class="ground" x="{left}" y="{top}" width="{width * wide}" height="{height * tall}"/>']
    for x, name in enumerate(columns):
        at, y = left + (x + 0.5) * wide + (4 if turned else 0), top - 6
        turn = f' transform="rotate(-45 {px(at)} {y})"' if turned else ""
        place = f'x="{px(at)}" y="{y}" text-anchor="{"start" if turned else "middle"}"{turn}'
        parts.append(f'<text class="axis" {place}>{escape(name)}</text>')
    for y, name in enumerate(rows):
        place = f'x="{left - 6}" y="{px(top + (y + 0.5) * tall + 4.5)}" text-anchor="end"'
        parts.append(f'<text class="axis" {place}>{escape(name)}</text>')
    shades_YX = _shades(values, largest) * (1 if decimals is None else _STRONGEST)
    for y in range(height):
        for x in range(width):
            value, text = values[y, x], texts[y][x]
            row, column = rows[y] if rows else str(y), columns[x] if columns else str(x)
            box = f'x="{left + x * wide}" y="{top + y * tall}" width="{wide - 1}" height="{tall - 1}"'
            kind = "minus" if value < 0 else "plus"
            tint = f'class="{kind}" fill-opacity="{shades_YX[y, x]:.3f}"'
            title = f"<title>{escape(row)}, {escape(column)}: {text}</title>"
            parts.append(f"<rect {tint} {box}>{title}</rect>")
            if decimals is not None:
                place = f'x="{px(left + (x + 0.5) * wide - 0.5)}" y="{px(top + tall / 2 + y * tall + 4.5)}"'
                parts.append(f'<text class="figure" text-anchor="middle" {place}>{text}</text>')
    return _svg(left + width * wide + right + 1, top + height * tall + 1, label, parts)


def picture(
    values_YX: npt.ArrayLike,
    *,
    label: str,
    y_label: str,
    x_label: str,
    largest: float | None = None,
    cell: int = 8,
) -> str:
    """Draw a large matrix as pixels with numbered axes.

    Args:
        values_YX: Finite numbers.
        label: What it shows, for those who hear the page.
        y_label: What its rows are.
        x_label: What its columns are.
        largest: The number that has the strongest shade; None is the largest of these.
        cell: Side of a cell, px.

    Returns:
        An svg element of a fixed size.

    Raises:
        DataError: Not a matrix.
    """
    values = np.asarray(values_YX, np.float64)
    if values.ndim != 2 or not values.size:
        raise DataError(f"numbers of the shape {values.shape}", where="picture", mend="give rows and columns")
    height, width = values.shape
    alpha = np.rint(255 * _shades(values, largest)).astype(np.uint8)
    tints = np.where((values >= 0)[..., None], *(np.array(_TINTS[sign], np.uint8) for sign in (True, False)))
    pixels = address(png(np.concatenate([tints, alpha[..., None]], -1)))
    left, top = 30, 22
    box = f'x="{left}" y="{top}" width="{width * cell}" height="{height * cell}"'
    parts = [
        f'<text class="soft" x="0" y="13">{escape(y_label)} ↓ · {escape(x_label)} →</text>',
        f'<rect class="ground" {box}/>',
        f'<image class="pixels" {box} preserveAspectRatio="none" href="{pixels}"/>',
    ]
    for tick in (int(one) for one in ticks(0, height - 1) if one == int(one)):
        y = px(top + (tick + 0.5) * cell + 4)
        parts.append(f'<text class="tick" x="{left - 6}" y="{y}" text-anchor="end">{tick}</text>')
    for tick in (int(one) for one in ticks(0, width - 1) if one == int(one)):
        x = px(left + (tick + 0.5) * cell)
        parts.append(f'<text class="tick" x="{x}" y="{top + height * cell + 15}" text-anchor="middle">{tick}</text>')
    return _svg(left + width * cell + 10, top + height * cell + 20, label, parts)


def number_text(value: float, decimals: int = 2) -> str:
    """Write a number of a matrix; what rounds to zero has no sign.

    >>> [number_text(v) for v in (-0.726, -0.001, 1.0, float("-inf"), float("nan"))]
    ['−0.73', '0.00', '1.00', '−∞', 'nan']
    """
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:.{decimals}f}"
    return text.replace("-", "−" if float(text) else "")


def numbers_text(values_YX: npt.ArrayLike, decimals: int = 2) -> str:
    """Write a matrix as lines of columns, for those who would rather read it."""
    lines = [[number_text(value, decimals) for value in row] for row in np.asarray(values_YX, np.float64)]
    wide = max(len(text) for line in lines for text in line)
    return "\n".join(" ".join(text.rjust(wide) for text in line) for line in lines)


def _shades(values_YX: npt.NDArray[np.float64], largest: float | None) -> npt.NDArray[np.float64]:
    sizes = np.where(np.isfinite(values_YX), np.abs(values_YX), 0.0)
    top = float(sizes.max()) if largest is None else largest
    return np.vectorize(shade, otypes=[np.float64])(sizes / top if top > 0 else sizes)


def _wide(text: str) -> float:
    return text_width(text, _SIZE)


def _widest(texts: Sequence[str]) -> float:
    return max(map(_wide, texts), default=0.0)


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {px(width)} {px(height)}" width="{px(width)}" height="{px(height)}"'
    return f'<svg class="matrix" {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
