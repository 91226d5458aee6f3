"""Charts as inline SVG: learning curves, bars, groups of bars.

Every picture takes its colours from the page (page.css), so it follows light and dark; and every mark that carries a
number carries it as its `<title>` too, so the exact value is a hover away even where no script runs.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from regard.errors import DataError
from regard.looking.scale import Scale
from regard.looking.text import decimals_for, escape, short_number, shorten, text_width, visible

NUM_COLOURS = 6  # series colours that page.css defines
MAX_POINTS = 600  # of a curve; more than a screen can show
MAX_SLICES = 120  # places of a curve chart that answer to the pointer
WIDE = 480  # a picture at least so wide has room for labels at the side
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "1 3")  # curves can be told apart without colour


@dataclass(frozen=True)
class Series:
    """One curve.

    Args:
        name: Its name.
        xs: Ascending positions.
        ys: Values, as many; one that is not finite leaves a gap.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class Bar:
    """One bar.

    Args:
        name: What it belongs to.
        value: Its length; finite.
        ours: Drawn in the accent colour.
    """

    name: str
    value: float
    ours: bool = False


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    width: int = 720,
    height: int = 300,
) -> str:
    """Draw curves over a common axis, named at their ends, or in a legend where the picture is narrow.

    Args:
        series: The curves.
        x_label: Name of the horizontal axis.
        y_label: Name of the vertical axis.
        log_x: Logarithmic horizontal axis; positions of 0 and less leave gaps.
        log_y: Logarithmic vertical axis; values of 0 and less leave gaps.
        width: Width.
        height: Height.

    Returns:
        An svg element.

    Raises:
        DataError: A curve with another number of positions than values.
    """
    for one in series:
        if len(one.xs) != len(one.ys):
            raise DataError(f"{len(one.xs)} positions, {len(one.ys)} values", where=f"curve {visible(one.name)!r}")
    kept = [[(x, y) for x, y in zip(s.xs, s.ys, strict=True) if _is_drawn(x, y, log_x, log_y)] for s in series]
    points = [point for curve in kept for point in curve]
    label = f"{y_label} over {x_label}"
    if not points:
        return _frame(width, 60, label, [f'<text class="soft" x="0" y="34">No values of {escape(y_label)}</text>'])
    at_side = width >= WIDE
    legend, legend_height = ("", 0) if at_side else _legend([s.name for s in series], 0, width)
    names = [shorten(visible(s.name), 24) for s in series]
    right = max(text_width(name, 13) for name in names) + 24 if at_side else 14
    top, bottom = legend_height + 30, height - 40
    y_scale = Scale.around(min(y for _, y in points), max(y for _, y in points), bottom, top, log_y)
    left = max(text_width(short_number(tick), 12) for tick in y_scale.ticks()) + 12
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    x_scale = Scale(x_low, x_high if x_high > x_low else x_low + 1, left, width - right, log_x)

    parts = [legend, f'<text class="soft" x="0" y="{legend_height + 12}">{_axis_name(y_label, width)}</text>']
    parts += _y_axis(y_scale, left, width - right)
    for tick in x_scale.ticks(6 if at_side else 4):
        x = px(x_scale(tick))
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 17}" text-anchor="middle">{short_number(tick)}</text>')
    middle = px((left + width - right) / 2)
    parts.append(
        f'<text class="soft" x="{middle}" y="{height - 4}" text-anchor="middle">{_axis_name(x_label, width)}</text>'
    )
    ends: list[tuple[float, int]] = []
    for i, one in enumerate(series):
        runs = [[(x_scale(x), y_scale(y)) for x, y in run] for run in _runs(one, log_x, log_y)]
        for run in runs:
            line = " ".join(f"{px(x)},{px(y)}" for x, y in run)
            parts.append(f'<polyline class="curve s{i % NUM_COLOURS}" stroke-dasharray="{_dash(i)}" points="{line}"/>')
            if len(run) == 1:
                parts.append(
                    f'<circle class="dot s{i % NUM_COLOURS}" cx="{px(run[0][0])}" cy="{px(run[0][1])}" r="3"/>'
                )
        if runs:
            ends.append((runs[-1][-1][1], i))
    if at_side:
        for y, i in _apart(ends, 16, bottom):
            x = width - right + 6
            parts.append(_key_line(i, x, y))
            parts.append(f'<text class="name" x="{px(x + 16)}" y="{px(y + 4)}">{escape(names[i])}</text>')
    parts += _slices(series, kept, x_scale, top, bottom, x_label)
    return _frame(width, height, label, parts)


def _is_drawn(x: float, y: float, log_x: bool, log_y: bool) -> bool:
    return math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x) and (y > 0 or not log_y)


def _runs(series: Series, log_x: bool, log_y: bool) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in _thin(list(zip(series.xs, series.ys, strict=True))):
        if _is_drawn(x, y, log_x, log_y):
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the lowest and the highest point of equal stretches, and both ends: a peak stays a peak."""
    if len(points) <= MAX_POINTS:
        return points
    bounds = [i * len(points) // (MAX_POINTS // 2) for i in range(MAX_POINTS // 2 + 1)]
    chosen = {0, len(points) - 1}
    for low, high in pairwise(bounds):
        chosen.add(min(range(low, high), key=lambda i: points[i][1]))
        chosen.add(max(range(low, high), key=lambda i: points[i][1]))
    return [points[i] for i in sorted(chosen)]


def _slices(
    series: Sequence[Series],
    kept: list[list[tuple[float, float]]],
    scale: Scale,
    top: float,
    bottom: float,
    x_label: str,
) -> list[str]:
    """Lay upright strips over the curves; each tells the values known at its middle."""
    xs = sorted({x for curve in kept for x, _ in curve})
    if len(xs) > MAX_SLICES:
        xs = [xs[round(i * (len(xs) - 1) / (MAX_SLICES - 1))] for i in range(MAX_SLICES)]
    positions = [[x for x, _ in curve] for curve in kept]
    edges = [scale.start, *(scale((a + b) / 2) for a, b in pairwise(xs)), scale.end]
    parts = []
    for x, low, high in zip(xs, edges, edges[1:], strict=False):
        told = [f"{x_label} {x:,.6g}"]
        for one, curve, places in zip(series, kept, positions, strict=True):
            if known := bisect_right(places, x):  # the latest value, with its position where that is another
                at, value = curve[known - 1]
                told.append(f"{visible(one.name)} {value:.5g}" + (f" (at {at:,.6g})" if at != x else ""))
        title = escape("  ·  ".join(told))
        area = f'x="{px(low)}" y="{px(top)}" width="{px(high - low)}" height="{px(bottom - top)}"'
        rule = f'<line x1="{px(scale(x))}" x2="{px(scale(x))}" y1="{px(top)}" y2="{px(bottom)}"/>'
        parts.append(f'<g class="hit slice"><title>{title}</title><rect {area}/>{rule}</g>')
    return parts


def _apart(ends: list[tuple[float, int]], distance: float, bottom: float) -> list[tuple[float, int]]:
    """Push labels apart that would cover each other, downwards, then up from the lower edge."""
    placed: list[tuple[float, int]] = []
    for y, i in sorted(ends):
        placed.append((max(y, placed[-1][0] + distance) if placed else y, i))
    limit = bottom
    for at in range(len(placed) - 1, -1, -1):
        y, i = placed[at]
        placed[at] = (min(y, limit), i)
        limit = placed[at][0] - distance
    return placed


def bar_chart(bars: Sequence[Bar], *, label: str, unit: str = "", width: int = 640) -> str:
    """Draw scores side by side as bars from zero, the value written at each.

    Args:
        bars: The bars, in the order to show.
        label: What the length says.
        unit: Written after each value; empty for none.
        width: Width; names stand above their bars under WIDE.

    Returns:
        An svg element.

    Raises:
        DataError: No bar, or a value that is not finite.
    """
    if not bars or not all(math.isfinite(bar.value) for bar in bars):
        raise DataError("no bar, or a value that is not finite", where=f"bars of {visible(label)!r}")
    digits = decimals_for([bar.value for bar in bars])
    after = f"\u202f{shorten(visible(unit), 12)}" if unit else ""
    values = [f"{bar.value:.{digits}f}{after}" for bar in bars]
    names = [shorten(visible(bar.name), 34) for bar in bars]
    above = width < WIDE
    left = 0.0 if above else min(max(text_width(name, 14) for name in names) + 14, width * 0.45)
    room = max(text_width(value, 14) for value in values) + 12
    low, high = min(0.0, *(bar.value for bar in bars)), max(0.0, *(bar.value for bar in bars))
    start = left + (room if low < 0 else 0)
    scale = Scale(low, high if high > low else low + 1, start, width - (room if high > 0 else 0) - 2)
    row, thick = (48, 20) if above else (36, 22)
    parts = []
    for i, bar in enumerate(bars):
        y = i * row + (20 if above else (row - thick) / 2)
        zero, end = scale(0), scale(bar.value)
        kind = "ours" if bar.ours else "theirs"
        name_x, name_y, anchor = (0.0, i * row + 14, "start") if above else (left - 12, y + thick / 2 + 5, "end")
        value_x, side = (end + 8, "start") if bar.value >= 0 else (end - 8, "end")
        box = f'x="{px(min(zero, end))}" y="{px(y)}" width="{px(max(abs(end - zero), 1))}" height="{thick}"'
        title = f"<title>{escape(bar.name)}  {bar.value:.6g}{escape(after)}</title>"
        parts.append(
            f'<text class="name {kind}" x="{px(name_x)}" y="{px(name_y)}" text-anchor="{anchor}">'
            f"{escape(names[i])}</text>"
        )
        parts.append(f'<rect class="hit bar {kind}" {box} rx="1.5">{title}</rect>')
        place = f'x="{px(value_x)}" y="{px(y + thick / 2 + 5)}" text-anchor="{side}"'
        parts.append(f'<text class="value {kind}" {place}>{escape(values[i])}</text>')
    zero, tall = px(scale(0)), len(bars) * row
    parts.append(f'<line class="zero" x1="{zero}" x2="{zero}" y1="0" y2="{tall}"/>' if not above else "")
    return _frame(width, tall, label, parts)


def grouped_bars(
    groups: Sequence[str],
    values: Sequence[tuple[str, Sequence[float | None]]],
    *,
    x_label: str,
    y_label: str,
    width: int = 720,
    height: int = 300,
) -> str:
    """Draw several systems' scores group by group, such as by source length.

    Args:
        groups: Names of the groups, from left to right.
        values: Each system's name and its scores, one a group; None where there is none.
        x_label: What the groups are.
        y_label: What the scores are.
        width: Width.
        height: Height.

    Returns:
        An svg element.

    Raises:
        DataError: A system with another number of scores than groups, a score that is not finite, or no score at all.
    """
    flat = [v for _, scores in values for v in scores if v is not None]
    if not flat or not all(math.isfinite(v) for v in flat) or any(len(scores) != len(groups) for _, scores in values):
        raise DataError("scores do not fit the groups, or are not finite", where=f"bars of {visible(y_label)!r}")
    legend, legend_height = _legend([name for name, _ in values], 0, width, boxes=True)
    pitch = (width - 48) / len(groups)  # a little less than it is, for the axis is not known yet
    labels = [_two_lines(visible(group), pitch) for group in groups]
    top, bottom = legend_height + 30, height - 28 - 13 * max(len(lines) for lines in labels)
    scale = Scale.around(min(0.0, *flat), max(0.0, *flat), bottom, top)
    left = max(text_width(short_number(tick), 12) for tick in scale.ticks()) + 12
    pitch = (width - left) / len(groups)
    thick = min(pitch * 0.76 / len(values), 34)
    parts = [
        legend,
        f'<text class="soft" x="0" y="{legend_height + 12}">{_axis_name(y_label, width)}</text>',
        *_y_axis(scale, left, width),
    ]
    for g, group in enumerate(groups):
        centre = left + (g + 0.5) * pitch
        for row, line in enumerate(labels[g]):
            place = f'x="{px(centre)}" y="{bottom + 17 + 13 * row}" text-anchor="middle"'
            parts.append(f'<text class="tick" {place}>{escape(line)}</text>')
        for i, (system, scores) in enumerate(values):
            value = scores[g]
            if value is None:
                continue
            x, y, tall = centre + (i - len(values) / 2) * thick, scale(value), max(abs(scale(value) - scale(0)), 1)
            box = f'x="{px(x + 0.5)}" y="{px(min(y, scale(0)))}" width="{px(thick - 1)}" height="{px(tall)}"'
            title = escape(f"{x_label} {group}  ·  {system}  {value:.6g}")
            parts.append(f'<rect class="hit bar s{i % NUM_COLOURS}" {box}><title>{title}</title></rect>')
    middle = px((left + width) / 2)
    parts.append(
        f'<text class="soft" x="{middle}" y="{height - 4}" text-anchor="middle">{_axis_name(x_label, width)}</text>'
    )
    return _frame(width, height, f"{y_label} by {x_label}", parts)


def _two_lines(name: str, room: float) -> list[str]:
    """Break a name that is too wide at the space nearest to its middle; each half is cut where it is still too wide."""
    lines = [name]
    if text_width(name, 12) > room and " " in name:
        at = min((i for i, c in enumerate(name) if c == " "), key=lambda i: abs(2 * i + 1 - len(name)))
        lines = [name[:at], name[at + 1 :]]
    return [shorten(line, max(3, int(room / 6))) for line in lines]


def _axis_name(name: str, width: float) -> str:
    return escape(shorten(visible(name), int(width / 8)))


def _y_axis(scale: Scale, left: float, right: float) -> list[str]:
    parts = []
    for tick in scale.ticks():
        y = scale(tick)
        parts.append(f'<line class="grid" x1="{px(left)}" x2="{px(right)}" y1="{px(y)}" y2="{px(y)}"/>')
        parts.append(
            f'<text class="tick" x="{px(left - 8)}" y="{px(y + 4)}" text-anchor="end">{short_number(tick)}</text>'
        )
    return parts


def _legend(names: Sequence[str], top: float, width: float, *, boxes: bool = False) -> tuple[str, float]:
    parts: list[str] = []
    x, y = 0.0, top + 12
    for i, name in enumerate(names):
        short = shorten(visible(name), 30)
        step = text_width(short, 13) + 38
        if x and x + step > width:
            x, y = 0.0, y + 20
        mark = f'<rect class="bar s{i % NUM_COLOURS}" x="{px(x)}" y="{px(y - 9)}" width="11" height="11"/>'
        parts.append(mark if boxes else _key_line(i, x, y - 4))
        parts.append(f'<text class="name" x="{px(x + 18)}" y="{px(y)}">{escape(short)}</text>')
        x += step
    return "".join(parts), y + 10


def _key_line(i: int, x: float, y: float) -> str:
    shape = f'x1="{px(x)}" x2="{px(x + 12)}" y1="{px(y)}" y2="{px(y)}"'
    return f'<line class="curve s{i % NUM_COLOURS}" stroke-dasharray="{_dash(i)}" {shape}/>'


def _dash(i: int) -> str:
    return _DASHES[i % len(_DASHES)]


def _frame(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    head = f'class="chart" viewBox="0 0 {px(width)} {px(height)}" role="img" aria-label="{escape(label)}"'
    return f'<svg {head} style="width:100%;max-width:{px(width)}px">{"".join(parts)}</svg>'


def px(value: float) -> str:
    """Write a coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
