"""Attention as shades: the matrix of an alignment as SVG.

One scale serves every picture, so shades can be compared across heads, layers and pages.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from regard.errors import DataError, UsageError
from regard.looking.svg import px
from regard.looking.text import escape, text_width, token_label, weight_text

MAX_TOKENS = 128  # more than that on a side is neither legible nor light
_POWER = 0.7


def shade(weight: float) -> float:
    """Give the opacity of a cell, weight^0.7: 0.05 is seen, a diffuse row stays pale. The page of maps has the same.

    >>> [round(shade(w), 3) for w in (0.0, 0.05, 0.5, 1.0)]
    [0.0, 0.123, 0.616, 1.0]
    """
    return min(max(weight, 0.0), 1.0) ** _POWER


def heat_map(
    weights_TS: npt.ArrayLike,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    *,
    label: str,
) -> str:
    """Draw an alignment matrix: keys above, queries at the left, a cell the stronger its shade the larger its weight.

    Args:
        weights_TS: Weights, 0 to 1.
        query_tokens: The T tokens that attend.
        key_tokens: The S tokens that are attended to.
        label: What it shows, for those who hear the page.

    Returns:
        An svg element as wide as it needs to be legible; it may shrink to three quarters.

    Raises:
        DataError: A shape that does not fit the tokens.
        UsageError: More than MAX_TOKENS tokens on a side.

    Source: the form is that of Bahdanau, Cho and Bengio (2015), figure 3.
    """
    weights = np.asarray(weights_TS, dtype=np.float64)
    num_queries, num_keys = len(query_tokens), len(key_tokens)
    if weights.shape != (num_queries, num_keys) or 0 in weights.shape:
        raise DataError(f"weights {weights.shape} for {num_queries} × {num_keys} tokens", where="heat map")
    if max(num_queries, num_keys) > MAX_TOKENS:
        raise UsageError(
            f"{num_queries} × {num_keys} tokens",
            where="heat map",
            mend=f"it is legible up to {MAX_TOKENS} on a side; look at a shorter text, or save the numbers as .json",
        )
    cell, size = _cell_size(max(num_queries, num_keys))
    queries, keys = [token_label(t) for t in query_tokens], [token_label(t) for t in key_tokens]
    key_widths = [text_width(k, size) for k in keys]
    fits = [w <= cell - 2 for w in key_widths]
    turn = 45 if cell >= 18 else 90
    upright = fits.count(False) <= 2  # letters stay upright though an end mark does not fit
    angles = [0 if fit and upright else turn for fit in fits]
    left = math.ceil(max(text_width(q, size) for q in queries) + 10)
    top = math.ceil(max(w * math.sin(math.radians(a)) for w, a in zip(key_widths, angles, strict=True)) + size + 8)
    right = 4.0
    for s, (w, angle) in enumerate(zip(key_widths, angles, strict=True)):
        if angle == 45:  # a slanted label reaches over the columns at its right
            right = max(right, w * math.cos(math.radians(45)) + size - (num_keys - s - 0.5) * cell)
    width, height = math.ceil(left + num_keys * cell + right), top + num_queries * cell + 4

    parts = [f'<rect class="ground" x="{left}" y="{top}" width="{num_keys * cell}" height="{num_queries * cell}"/>']
    for s, (key, angle) in enumerate(zip(keys, angles, strict=True)):
        y = top - 6
        x = left + (s + 0.5) * cell + (size * 0.35 * math.sin(math.radians(angle)))
        turned = f' transform="rotate(-{angle} {px(x)} {px(y)})"' if angle else ""
        place = f'x="{px(x)}" y="{px(y)}" text-anchor="{"start" if angle else "middle"}"{turned}'
        parts.append(f'<text class="k" {place}>{escape(key)}</text>')
    for t, query in enumerate(queries):
        y = top + (t + 0.5) * cell + size * 0.35
        parts.append(f'<text class="q" x="{left - 7}" y="{px(y)}" text-anchor="end">{escape(query)}</text>')
    for t, query in enumerate(queries):
        for s, key in enumerate(keys):
            weight = float(weights[t, s])
            x, y = px(left + s * cell + 0.5), px(top + t * cell + 0.5)
            place = f'x="{x}" y="{y}" width="{cell - 1}" height="{cell - 1}"'
            title = f"{escape(query)} → {escape(key)}  {weight_text(weight)}"
            parts.append(
                f'<rect class="hit w" {place} fill-opacity="{shade(weight):.3f}"><title>{title}</title></rect>'
            )
    head = f'class="heat" viewBox="0 0 {width} {height}" data-keys="{num_keys}" font-size="{size}"'
    fit = f'style="--w:{width}px"'
    return f'<svg {head} {fit} tabindex="0" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _cell_size(num_tokens: int) -> tuple[int, float]:
    for limit, cell, size in ((8, 40, 14), (12, 34, 14), (18, 27, 13), (26, 22, 12), (40, 17, 11.5)):
        if num_tokens <= limit:
            return cell, size
    return 14, 11


def scale_legend() -> str:
    """Draw what the shades of a heat map mean."""
    parts = []
    for i, weight in enumerate((0.0, 0.05, 0.25, 0.5, 1.0)):
        parts.append(f'<rect class="ground" x="{i * 44}" y="0" width="44" height="10"/>')
        parts.append(f'<rect class="w" x="{i * 44}" y="0" width="44" height="10" fill-opacity="{shade(weight):.3f}"/>')
        parts.append(f'<text class="tick" x="{i * 44 + 22}" y="24" text-anchor="middle">{weight:g}</text>')
    head = 'class="chart scale" viewBox="0 0 220 28" width="220" height="28" role="img"'
    return f'<svg {head} aria-label="shades of weights from 0 to 1">{"".join(parts)}</svg>'
