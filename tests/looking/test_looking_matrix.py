"""Matrices of signed numbers: every cell's place, shade, sign and number, from hand-computed values."""

import base64
import math
import xml.etree.ElementTree as ET
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from regard.errors import DataError
from regard.looking.heat import shade
from regard.looking.matrix import MAX_CELLS, matrix, numbers_text, picture

VALUES = [[0.5, -1.25, 0.0], [-math.inf, 2.5, -0.004]]


def of_class(svg, name):
    return [e for e in ET.fromstring(svg).iter() if name in e.get("class", "").split()]


def cells(svg):
    return [e for e in ET.fromstring(svg).iter("rect") if e.get("class") in ("plus", "minus")]


def test_every_cell_has_its_place_its_shade_its_sign_and_its_number():
    svg = matrix(VALUES, label="a", rows=["r", "s"], columns=["x", "y", "z"])
    drawn = cells(svg)
    assert [e.get("class") for e in drawn] == ["plus", "minus", "plus", "minus", "plus", "minus"]
    shares = [0.2, 0.5, 0.0, 0.0, 1.0, 0.0016]  # of the largest finite number; what is infinite has no shade
    expected = [0.62 * shade(share) for share in shares]
    np.testing.assert_allclose([float(e.get("fill-opacity")) for e in drawn], expected, rtol=0, atol=0.0006)
    texts = ["0.50", "−1.25", "0.00", "−∞", "2.50", "0.00"]
    assert [e.text for e in of_class(svg, "figure")] == texts
    places = ["r, x", "r, y", "r, z", "s, x", "s, y", "s, z"]
    assert [e.find("title").text for e in drawn] == [f"{p}: {t}" for p, t in zip(places, texts, strict=True)]
    xs, ys = ([float(e.get(axis)) for e in drawn] for axis in "xy")
    assert xs[0] < xs[1] < xs[2]
    assert xs[:3] == xs[3:]
    assert ys[0] == ys[1] == ys[2] < ys[3] == ys[4] == ys[5]


def test_the_largest_number_can_be_given():
    drawn = cells(matrix([[1.0, -2.0]], label="a", largest=4.0, decimals=None))
    assert [float(e.get("fill-opacity")) for e in drawn] == [round(shade(0.25), 3), round(shade(0.5), 3)]
    assert ET.fromstring(matrix([[0.0]], label="a")).find("rect[@class='plus']").get("fill-opacity") == "0.000"


def test_names_widen_their_columns_or_are_turned():
    short = matrix([[1.0, 2.0]], label="a", columns=["sat", "down"], decimals=0)
    assert "rotate" not in short
    assert float(cells(short)[0].get("width")) > 35
    long = matrix([[1.0, 2.0]], label="a", columns=["sat", "a very long name"])
    turned = [e for e in of_class(long, "axis") if "rotate(-45" in e.get("transform", "")]
    assert [e.text for e in turned] == ["sat", "a very long name"]


def test_strangers_words_stay_words():
    word = '<b title="x">&'
    root = ET.fromstring(matrix([[1.0]], label=word, rows=[word], columns=[word]))
    assert root.get("aria-label") == word
    assert [e.text for e in root.iter("text")][:2] == [word, word]
    assert {e.tag for e in root.iter()} == {"svg", "rect", "text", "title"}


def test_a_picture_has_a_pixel_for_each_number():
    values = np.array([[1.0, -0.5, 0.0, 0.25], [-1.0, 0.125, 0.5, -0.25], [0.0, 1.0, -1.0, 0.5]])
    svg = picture(values, label="a", y_label="p", x_label="q", cell=5)
    image = next(ET.fromstring(svg).iter("image"))
    pixels = np.asarray(Image.open(BytesIO(base64.b64decode(image.get("href").partition(",")[2]))))
    assert pixels.shape == (3, 4, 4)
    for y in range(3):
        for x in range(4):
            assert tuple(pixels[y, x, :3]) == ((47, 111, 192) if values[y, x] >= 0 else (217, 101, 26))
            assert pixels[y, x, 3] == round(255 * shade(abs(values[y, x])))
    assert [image.get(side) for side in ("width", "height")] == ["20", "15"]
    assert "".join(of_class(svg, "soft")[0].itertext()) == "p ↓ · q →"


def test_numbers_can_be_read():
    assert numbers_text([[1, -2.345], [10, 0]]) == " 1.00 −2.35\n10.00  0.00"


@pytest.mark.parametrize(
    ("values", "names"),
    [([1.0], {}), ([[]], {}), (np.zeros((1, MAX_CELLS + 1)), {}), ([[1.0]], {"rows": ["a", "b"]})],
)
def test_what_cannot_be_drawn_is_refused(values, names):
    with pytest.raises(DataError, match="matrix"):
        matrix(values, label="a", **names)


def test_a_picture_of_nothing_is_refused():
    with pytest.raises(DataError, match="picture"):
        picture([[]], label="a", y_label="p", x_label="q")
