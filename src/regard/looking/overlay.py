"""Attention over a picture: shades in the cells of its grid, never smoothed: a cell is what a weight is of.

On a picture the strongest shade is the largest weight that it shows, half of it half as strong, and the legend says
which that is: of hundreds of places the best may have a hundredth. The picture under the shades is grey, so that colour
means attention alone.
"""

import numpy as np
import numpy.typing as npt

from regard.looking.places import Picture, Places
from regard.looking.png import address, png_size
from regard.looking.rollout import over_picture, rollout
from regard.looking.stacks import Stack
from regard.looking.text import escape, weight_text

_SIDE_PX = 560
_SHARP_PX = 160
_PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def strongest(laid_YX: npt.NDArray[np.float64]) -> float:
    """Give the largest weight over a picture; 0 where there is none."""
    return max(0.0, float(np.nanmax(laid_YX, initial=0.0)))


def shades(picture: Picture, laid_YX: npt.NDArray[np.float64], label: str) -> str:
    """Draw a picture with shades over it.

    Args:
        picture: The picture.
        laid_YX: Weights from `over_picture`.
        label: What it shows, for those who hear the page.

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
    wide = min(_SIDE_PX, round(_SIDE_PX * width / height))
    svg = f'<svg class="shades" {head} role="img" aria-label="{escape(label)}">{"".join(cells)}</svg>'
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


def summaries(stack: Stack) -> list[tuple[str, npt.NDArray[np.float64]]]:
    """Choose what a report shows beside a picture: the rollout where there is one, and the last layer's mean.

    Args:
        stack: Self-attention.

    Returns:
        Titles and weights over the picture; nothing where the last layer's keys are no places.
    """
    last = stack.maps[-1]
    found: list[tuple[str, npt.NDArray[np.float64]]] = []
    if not isinstance(last.keys, Places):
        return []
    if stack.rolls:
        title = f"rollout through {len(stack.maps)} layers"
        found.append((title, over_picture(rollout(stack.maps), last.queries, last.keys)))
    mean = over_picture(last.mean().weights_HTS[0], last.queries, last.keys)
    return [*found, (f"last layer, mean of {len(last.weights_HTS)} heads", mean)]
