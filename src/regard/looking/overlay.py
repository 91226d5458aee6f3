"""Attention over a picture: shades in the cells of its grid, never smoothed: a cell is what a weight is of.

On a picture the strongest shade is the largest weight that it shows, half of it half as strong, and the legend says
which that is: of hundreds of places the best may have a hundredth. The picture under the shades is grey, so that colour
means attention alone.
"""

import base64
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from regard.errors import UsageError
from regard.looking.attention_map import AttentionMap, Side, free_names
from regard.looking.heat import mask_image
from regard.looking.places import Picture, Places
from regard.looking.png import address, png_size
from regard.looking.rollout import over_picture, rollout
from regard.looking.text import Json, escape, token_label, weight_text

MAX_NUMBERS = 1 << 24  # weights of a page, two bytes each
_SIDE_PX = 560
_SHARP_PX = 160
_PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)
HOW_PLACES = "Point at a place to see what it attends to; click, or use the arrow keys, to keep it. Escape: back."
HOW_TOKENS = "Choose a token to see what it attends to."


def strongest(laid_YX: npt.NDArray[np.float64]) -> float:
    """Give the largest weight over a picture; 0 where there is none."""
    return max(0.0, float(np.nanmax(laid_YX, initial=0.0)))


def shades(picture: Picture, laid_YX: npt.NDArray[np.float64], label: str, *, focus: bool = False) -> str:
    """Draw a picture with shades over it.

    Args:
        picture: The picture.
        laid_YX: Weights from `over_picture`.
        label: What it shows, for those who hear the page.
        focus: The arrow keys reach it.

    Returns:
        An element as wide as its place allows.
    """
    height, width = png_size(picture.png)
    grid_height, grid_width = laid_YX.shape
    most = strongest(laid_YX) or 1.0
    cells = []
    for y in range(grid_height):
        for x in range(grid_width):
            weight = float(laid_YX[y, x])
            look = 'class="p out"' if np.isnan(weight) else f'class="p" fill-opacity="{weight / most:.3f}"'
            cells.append(f'<rect {look} x="{x}" y="{y}" width="1" height="1"/>')
    head = f'viewBox="0 0 {grid_width} {grid_height}" preserveAspectRatio="none"'
    reach = ' tabindex="0"' if focus else ""
    wide = min(_SIDE_PX, round(_SIDE_PX * width / height))
    svg = f'<svg class="shades" {head}{reach} role="img" aria-label="{escape(label)}">{"".join(cells)}</svg>'
    image = f'<img class="under {sharp(picture.png)}" src="{address(picture.png)}" alt="{escape(picture.name)}">'
    return f'<div class="over" style="--wide:{wide}px;aspect-ratio:{width}/{height}">{image}{svg}</div>'


def sharp(png: bytes) -> str:
    """Give the style of a picture that is enlarged: the pixels of a small one are seen as they are, not smoothed."""
    return "sharp" if max(png_size(png)) < _SHARP_PX else ""


def ramp(most: float) -> str:
    """Draw what the shades over a picture mean.

    Args:
        most: The weight of the strongest shade.

    Returns:
        An svg element.
    """
    parts = []
    for i, part in enumerate(_PARTS):
        parts.append(f'<rect class="ground" x="{i * 52}" y="0" width="52" height="10"/>')
        parts.append(f'<rect class="p" x="{i * 52}" y="0" width="52" height="10" fill-opacity="{part:.3f}"/>')
        text = weight_text(part * most)
        parts.append(f'<text class="tick" x="{i * 52 + 26}" y="24" text-anchor="middle">{text}</text>')
    head = 'class="chart ramp" viewBox="0 0 260 28" width="260" height="28" role="img"'
    return f'<svg {head} aria-label="shades of weights over the picture">{"".join(parts)}</svg>'


def pane(one: AttentionMap, picture: Picture, label: str) -> str:
    """Draw what a page shows of the maps of one stack: one picture, and the tokens that stand nowhere.

    Args:
        one: The map to begin with, of one head.
        picture: The picture that its queries or keys are on.
        label: What it shows.

    Returns:
        Elements that the page's script knows.
    """
    weights_TS = one.weights_HTS[0]
    asks, answers = free_names(one.queries), free_names(one.keys)
    both = asks == answers and one.queries == one.keys
    line = _chips("asks" + (" answers" if both else ""), "attends", asks, weights_TS[0] if both else None)
    if isinstance(one.queries, Places):
        every = "every place, their mean"
        line += f'<button type="button" class="chip" data-every aria-pressed="{_yes(not asks)}">{every}</button>'
    lines = [f'<div class="chips"><span class="soft">attends</span>{line}</div>']
    if answers and not both:
        row_S = weights_TS[0] if asks else weights_TS.mean(0)
        told = _chips("answers", "is attended to", answers, row_S)
        lines.append(f'<div class="chips"><span class="soft">is attended to</span>{told}</div>')
    if isinstance(one.keys, Places):
        laid_YX = over_picture(weights_TS, one.queries, one.keys)
    else:
        laid_YX = np.zeros(one.queries.grid if isinstance(one.queries, Places) else (1, 1))
    switch = '<label class="switch"><input type="checkbox" checked> shades over the picture</label>'
    foot = f'<div class="foot">{ramp(strongest(laid_YX))}{switch}</div>' if isinstance(one.keys, Places) else ""
    return f"{shades(picture, laid_YX, label, focus=True)}{foot}{''.join(lines)}"


def _chips(kind: str, title: str, tokens: Sequence[str], row_S: npt.NDArray[np.float32] | None) -> str:
    """Name tokens; those that ask can be pressed, those that answer tell their weight."""
    found = []
    for i, token in enumerate(tokens):
        weight = "" if row_S is None else weight_text(float(row_S[i]))
        text = f"<bdi>{escape(token_label(token, 40))}</bdi><small>{weight}</small>"
        if "asks" in kind:
            state = f'aria-pressed="{_yes(i == 0)}" title="{escape(title)}"'
            found.append(f'<button type="button" class="chip {kind}" data-token="{i}" {state}>{text}</button>')
        else:
            found.append(f'<span class="chip {kind}" data-token="{i}" title="{escape(title)}">{text}</span>')
    return "".join(found)


def _yes(value: bool) -> str:
    return "true" if value else "false"


def side_json(side: Side) -> Json:
    """Give the page's script one side of a map.

    Args:
        side: Tokens or places.

    Returns:
        The free tokens; and of places the grid and the rows of the windows.
    """
    tokens = [token_label(token, 40) for token in free_names(side)]
    if not isinstance(side, Places):
        return {"tokens": tokens, "grid": None, "windows": [[]]}
    return {"tokens": tokens, "grid": list(side.grid), "windows": side.rows_GW.tolist()}


def weights_json(weights_HTS: npt.NDArray[np.floating]) -> str:
    """Give the page's script weights as their square roots in steps of 1/65535.

    That is half of their size, keeps the four decimals that the page writes, and of small ones two digits: beside a
    token that takes nearly all, hundreds of places share a hundredth.
    """
    steps = np.rint(65535 * np.sqrt(np.clip(weights_HTS, 0, 1))).astype("<u2")
    return base64.b64encode(steps.tobytes()).decode("ascii")


def thumbnail(weights_TS: npt.NDArray[np.floating], queries: Side, keys: Places) -> str:
    """Draw a head as a mask of its default query's weights, the largest the strongest.

    Args:
        weights_TS: One head's weights, or a rollout.
        queries: What attends.
        keys: The places that are attended to.

    Returns:
        A PNG as a data address.
    """
    laid_YX = over_picture(weights_TS, queries, keys)
    return mask_image(np.nan_to_num(laid_YX / (strongest(laid_YX) or 1.0)), power=1)


def check_size(maps: Sequence[AttentionMap]) -> None:
    """Refuse maps that no browser would open.

    Args:
        maps: Those on pictures.

    Raises:
        UsageError: More than MAX_NUMBERS weights.
    """
    numbers = sum(one.weights_HTS.size for one in maps)
    if numbers > MAX_NUMBERS:
        raise UsageError(
            f"{numbers:,} weights; a page holds {MAX_NUMBERS:,}",
            where="look",
            mend="look at fewer layers, or save the numbers as .json",
        )


def can_roll(maps: Sequence[AttentionMap]) -> bool:
    """Say whether the maps are one stack over one whole grid, of more than a layer."""
    first = maps[0]
    whole = isinstance(first.queries, Places) and first.queries.num_windows == 1
    return whole and len(maps) > 1 and all(one.kind == "self" and one.queries == first.queries for one in maps)


def summaries(maps: Sequence[AttentionMap]) -> list[tuple[str, npt.NDArray[np.float64]]]:
    """Choose what a report shows beside a picture: the rollout where there is one, and the last layer's mean.

    Args:
        maps: The self-attention of one stack, the first layer first.

    Returns:
        Titles and weights over the picture.
    """
    last = maps[-1]
    found: list[tuple[str, npt.NDArray[np.float64]]] = []
    if not isinstance(last.keys, Places):
        return []
    if can_roll(maps):
        found.append((f"rollout through {len(maps)} layers", over_picture(rollout(maps), last.queries, last.keys)))
    mean = over_picture(last.mean().weights_HTS[0], last.queries, last.keys)
    return [*found, (f"last layer, mean of {len(last.weights_HTS)} heads", mean)]
