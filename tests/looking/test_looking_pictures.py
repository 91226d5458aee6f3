"""Positions, sizes and numbers of pictures, from hand-computed values; well-formedness by a strict XML parser."""

import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

from regard.errors import DataError, UsageError
from regard.looking.heat import MAX_TOKENS, heat_map, scale_legend, shade
from regard.looking.scale import Scale, log_ticks, ticks
from regard.looking.svg import MAX_POINTS, Bar, Series, bar_chart, grouped_bars, line_chart
from regard.looking.text import decimals_for, text_width, token_label, weight_text


def by_class(svg, name):
    return [e for e in ET.fromstring(svg).iter() if name in e.get("class", "").split()]


def numbers(element, *names):
    return [float(element.get(name)) for name in names]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 3, [0, 1, 2, 3]),
        (0, 12, [0, 2.5, 5, 7.5, 10]),
        (-7, 18, [-5, 0, 5, 10, 15]),
        (1234, 1239, [1234, 1235, 1236, 1237, 1238, 1239]),
        (0, 20000, [0, 5000, 10000, 15000, 20000]),
        (3e-7, 8e-7, [3e-7, 4e-7, 5e-7, 6e-7, 7e-7, 8e-7]),
    ],
)
def test_ticks_are_round_and_exact(low, high, expected):
    assert ticks(low, high) == expected


def test_log_ticks():
    assert log_ticks(0.3, 7) == [0.5, 1, 2, 5]
    assert log_ticks(1, 1000) == [1, 10, 100, 1000]


def test_scale_places_values():
    assert [Scale(2, 12, 30, 230)(v) for v in (2, 7, 12)] == [30, 130, 230]
    assert Scale(0, 4, 100, 20)(1) == 80
    log = Scale(1, 10_000, 0, 400, log=True)
    assert [round(log(v), 9) for v in (1, 10, 100, 10_000)] == [0, 100, 200, 400]


def test_scale_is_widened_to_round_numbers():
    wide = Scale.around(0.31, 3.7, 0, 1)
    assert (wide.low, wide.high) == (0, 4)
    assert (Scale.around(5, 5, 0, 1).low, Scale.around(5, 5, 0, 1).high) == (
        2,
        8,
    )  # half and one and a half of 5, to whole steps
    assert (Scale.around(0, 0, 0, 1).low, Scale.around(0, 0, 0, 1).high) == (0, 1)
    assert (Scale.around(-3, -3, 0, 1).low, Scale.around(-3, -3, 0, 1).high) == (-5, -1)
    nearly = Scale.around(1.0, 1.0 + 2e-16, 0, 1)
    assert (nearly.low, nearly.high) == (0.4, 1.6)


@pytest.mark.parametrize(("low", "high", "log"), [(1, 1, False), (2, 1, False), (0, 1, True), (0, math.inf, False)])
def test_no_range_is_refused(low, high, log):
    with pytest.raises(DataError, match="is no range"):
        Scale(low, high, 0, 1, log)


def test_heat_map_places_every_weight():
    svg = heat_map([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]], ["p", "q"], ["a", "b", "c"], label="two by three")
    cells = by_class(svg, "w")
    assert [c.find("title").text for c in cells] == [
        "p → a  0", "p → b  0.2500", "p → c  0.7500", "q → a  1.0000", "q → b  0", "q → c  0",
    ]  # fmt: skip
    assert [float(c.get("fill-opacity")) for c in cells] == [0, 0.379, 0.818, 1, 0, 0]
    # So few tokens have cells of 40 and letters of 14: left 14 · 0.59 + 10, rounded up to 19; above 14 + 8 = 22.
    assert [numbers(c, "x", "y") for c in cells[:4]] == [[19.5, 22.5], [59.5, 22.5], [99.5, 22.5], [19.5, 62.5]]
    assert {(c.get("width"), c.get("height")) for c in cells} == {("39", "39")}
    assert ET.fromstring(svg).get("viewBox") == "0 0 143 106"
    keys, queries = by_class(svg, "k"), by_class(svg, "q")
    assert [(k.text, float(k.get("x")), k.get("transform")) for k in keys] == [
        ("a", 39, None), ("b", 79, None), ("c", 119, None),
    ]  # fmt: skip
    assert [q.text for q in queries] == ["p", "q"]
    assert ET.fromstring(svg).get("aria-label") == "two by three"


@pytest.mark.parametrize("count", [3, 8, 12, 25, 40, 60, MAX_TOKENS])
def test_heat_map_stays_legible_and_inside(count):
    tokens = [f"token{i}" for i in range(count)]
    svg = heat_map(np.eye(count), tokens, tokens, label="x")
    root = ET.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    cells = by_class(svg, "w")
    size, cell = float(root.get("font-size")), float(cells[0].get("width")) + 1
    assert size >= 11
    assert cell > size * 1.2  # rows of letters do not touch
    left, top = numbers(cells[0], "x", "y")
    assert left > max(text_width(t, size) for t in tokens)
    angle = 45 if cell >= 18 else 90
    assert all(k.get("transform").startswith(f"rotate(-{angle} ") for k in by_class(svg, "k"))
    slope = math.sin(math.radians(angle))
    assert top > max(text_width(t, size) for t in tokens) * slope  # no label leaves the picture above …
    ends = [float(k.get("x")) + text_width(k.text, size) * math.cos(math.radians(angle)) for k in by_class(svg, "k")]
    assert max(ends) <= width  # … or at the right
    assert numbers(cells[-1], "x")[0] + cell <= width
    assert numbers(cells[-1], "y")[0] + cell <= height


def test_heat_map_refuses_what_it_cannot_show():
    with pytest.raises(DataError, match=r"\(1, 2\) for 2 × 1 tokens"):
        heat_map([[1, 0]], ["a", "b"], ["c"], label="x")
    many = ["a"] * (MAX_TOKENS + 1)
    with pytest.raises(UsageError, match="129 × 129 tokens; it is legible up to 128"):
        heat_map(np.eye(len(many)), many, many, label="x")


def test_letters_stay_upright_beside_an_end_mark():
    keys = by_class(heat_map([[0.5] * 4], ["x"], ["a", "b", "c", "</sentence>"], label="x"), "k")
    assert [bool(k.get("transform")) for k in keys] == [False, False, False, True]


def test_line_chart_places_points():
    svg = line_chart([Series("a", [0, 5, 10], [0, 2, 4])], x_label="step", y_label="loss", width=720, height=300)
    (curve, _) = by_class(svg, "curve")  # the line, and its key at the end
    # Above 30, below 260. Left, for an axis of one digit: 12 · 0.59 + 12 = 19.08. Right: 13 · 0.59 + 24 = 31.67.
    assert curve.get("points") == "19.1,260 353.7,145 688.3,30"
    texts = [(t.text, t.get("text-anchor")) for t in by_class(svg, "tick")]
    assert texts[:5] == [(str(v), "end") for v in (0, 1, 2, 3, 4)]
    assert [t for t, side in texts if side == "middle"] == ["0", "2", "4", "6", "8", "10"]
    assert [t.text for t in by_class(svg, "name")] == ["a"]
    assert [t.text for t in by_class(svg, "soft")] == ["loss", "step"]


def test_line_chart_tells_the_latest_value_of_each_curve():
    series = [Series("train", [1, 2, 3], [4.0, 3.0, 2.0]), Series("dev", [2], [5.0])]
    svg = line_chart(series, x_label="step", y_label="loss")
    assert [g.find("title").text for g in by_class(svg, "slice")] == [
        "step 1  ·  train 4",
        "step 2  ·  train 3  ·  dev 5",
        "step 3  ·  train 2  ·  dev 5 (at 2)",
    ]


def test_log_axis_and_gaps():
    series = [Series("a", [0, 1, 2, 3, 4], [100.0, 10.0, float("nan"), 1.0, 0.0])]
    svg = line_chart(series, x_label="step", y_label="loss", log_y=True)
    runs = [c.get("points").split() for c in by_class(svg, "curve") if c.tag.endswith("polyline")]
    assert [len(run) for run in runs] == [2, 1]
    ys = [float(p.split(",")[1]) for run in runs for p in run]
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.2)  # equal ratios, equal distances
    assert len(by_class(svg, "dot")) == 1  # a lone point is seen


def test_a_long_curve_keeps_its_peak_and_its_ends():
    ys = [1.0] * 50_000
    ys[31_337] = 90.0
    svg = line_chart([Series("a", range(50_000), ys)], x_label="step", y_label="loss")
    points = next(c for c in by_class(svg, "curve") if c.tag.endswith("polyline")).get("points").split()
    assert len(points) <= MAX_POINTS + 2
    # The axis goes from 0 to 100 over 260 … 30, so 90 is at 53 and 1 at 257.7.
    assert [p.split(",")[1] for p in points].count("53") == 1
    assert {p.split(",")[1] for p in points} == {"53", "257.7"}
    assert points[-1].split(",")[0] == max(points, key=lambda p: float(p.split(",")[0])).split(",")[0]
    assert len(svg) < 60_000


@pytest.mark.parametrize("ends", [(1.0, 1.01, 0.0, 0.01, 0.02), (10.0, 9.99, 9.98, 9.97, 9.96)], ids=["low", "high"])
def test_labels_of_close_curves_are_apart(ends):
    series = [Series(name, [0, 1], [0, y]) for name, y in zip("abcde", ends, strict=True)]
    ys = sorted(float(t.get("y")) for t in by_class(line_chart(series, x_label="s", y_label="l"), "name"))
    assert min(b - a for a, b in pairwise(ys)) >= 15.9
    assert ys[0] >= 30  # not above the curves' own ground, which is 30 to 260
    assert ys[-1] <= 265


def test_line_chart_without_values_says_so():
    svg = line_chart([Series("a", [1], [float("nan")])], x_label="step", y_label="loss")
    assert ET.fromstring(svg)[0].text == "No values of loss"
    with pytest.raises(DataError, match="2 positions, 1 values"):
        line_chart([Series("a", [1, 2], [1.0])], x_label="step", y_label="loss")


def test_bars_start_at_zero_and_are_as_long_as_their_values():
    bars = [Bar("ours", 40.0, ours=True), Bar("half", 20.0), Bar("nothing", 0.0)]
    svg = bar_chart(bars, label="BLEU", unit="points", width=640)
    drawn = by_class(svg, "bar")
    assert len({d.get("x") for d in drawn}) == 1
    ours, half, nothing = (float(d.get("width")) for d in drawn)
    assert ours == pytest.approx(2 * half, abs=0.2)
    assert nothing == 1  # a hair, so that there is something to point at
    assert [t.text for t in by_class(svg, "value")] == ["40.00\u202fpoints", "20.00\u202fpoints", "0.00\u202fpoints"]
    assert ["ours" in d.get("class").split() for d in drawn] == [True, False, False]
    assert drawn[0].find("title").text == "ours  40\u202fpoints"
    svg = bar_chart([Bar("a", 40.0), Bar("b", 30.0)], label="x")
    high, low = by_class(svg, "bar")
    assert float(high.get("width")) == pytest.approx(float(low.get("width")) * 4 / 3, abs=0.2)
    assert float(low.get("x")) > float(by_class(svg, "name")[1].get("x"))  # beside its name, not below it


def test_bars_below_zero_reach_to_the_left():
    up, down = by_class(bar_chart([Bar("a", 2.0), Bar("b", -1.0)], label="x"), "bar")
    zero = float(by_class(bar_chart([Bar("a", 2.0), Bar("b", -1.0)], label="x"), "zero")[0].get("x1"))
    assert float(up.get("x")) == zero
    assert float(down.get("x")) + float(down.get("width")) == pytest.approx(zero, abs=0.11)
    assert float(up.get("width")) == pytest.approx(2 * float(down.get("width")), abs=0.2)


def test_bars_refuse_what_is_no_number():
    for bars in ([], [Bar("a", float("nan"))]):
        with pytest.raises(DataError, match="no bar, or a value that is not finite"):
            bar_chart(bars, label="x")


def test_grouped_bars_have_a_place_for_each_system():
    svg = grouped_bars(
        ["1 to 5", "6 to 10"], [("a", [10, 5]), ("b", [None, 10])], x_label="length", y_label="BLEU", width=500
    )
    drawn = [e for e in by_class(svg, "bar") if "hit" in e.get("class").split()]
    assert [d.find("title").text for d in drawn] == [
        "length 1 to 5  ·  a  10",
        "length 6 to 10  ·  a  5",
        "length 6 to 10  ·  b  10",
    ]
    heights = [float(d.get("height")) for d in drawn]
    assert heights[0] == heights[2] == pytest.approx(2 * heights[1], abs=0.2)
    x_a, x_b = float(drawn[1].get("x")), float(drawn[2].get("x"))
    assert x_b - x_a == 34
    with pytest.raises(DataError, match="do not fit the groups"):
        grouped_bars(["x"], [("a", [1.0, 2.0])], x_label="length", y_label="BLEU")
    with pytest.raises(DataError, match="do not fit the groups"):
        grouped_bars(["x"], [("a", [None])], x_label="length", y_label="BLEU")


def test_group_names_break_into_two_lines_where_the_picture_is_narrow():
    groups = ["1 to 4", "13 and more"] * 3
    svg = grouped_bars(groups, [("a", [1.0] * 6)], x_label="length", y_label="BLEU", width=340)
    assert [t.text for t in by_class(svg, "tick") if t.get("text-anchor") == "middle"][:3] == [
        "1 to 4",
        "13 and",
        "more",
    ]


def test_scale_legend_has_the_shades_of_the_cells():
    assert [float(r.get("fill-opacity")) for r in by_class(scale_legend(), "w")] == [
        round(shade(w), 3) for w in (0, 0.05, 0.25, 0.5, 1)
    ]


def test_small_texts():
    assert token_label("") == "∅"
    assert token_label(" a ") == "␣a␣"
    assert token_label("a" * 30) == "a" * 17 + "…"
    assert weight_text(1 / 3) == "0.3333"
    assert [decimals_for([v, 0]) for v in (123.4, 36.1, 0.71)] == [1, 2, 4]
    assert text_width("漢字", 10) == 20
    assert text_width("e\u0301", 10) == text_width("e", 10)


def test_a_logarithmic_horizontal_axis():
    svg = line_chart([Series("a", [0, 1, 10, 100], [4.0, 1.0, 2.0, 3.0])], x_label="n", y_label="y", log_x=True)
    (curve,) = by_class(svg, "curve")[:1]
    xs = [float(point.split(",")[0]) for point in curve.get("points").split()]
    assert len(xs) == 3  # nothing is left of zero
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.11)
    assert [e.text for e in by_class(svg, "tick") if e.get("text-anchor") == "middle"] == [
        "1",
        "2",
        "5",
        "10",
        "20",
        "50",
        "100",
    ]
