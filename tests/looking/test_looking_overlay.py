"""Shades over a picture, their scale and stored weights, from hand-computed values; figures of reports."""

import base64
import re
import xml.etree.ElementTree as ET
import zlib
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from looking_examples import a_png, some_pictures, some_report, some_weights
from PIL import Image

from regard.errors import DataError, FormatError, UsageError
from regard.looking import Figure, Maps, Picture, Sample, form, look_page, report_page
from regard.looking.overlay import ramp, shades, summaries
from regard.looking.png import png
from regard.looking.stacks import stacks_of


def picture_of(address):
    return Image.open(BytesIO(base64.b64decode(address.removeprefix("data:image/png;base64,"))))


def cells(html, name="p"):
    root = ET.fromstring(html.replace(">", " />", 1) if html.startswith("<img") else re.search("<svg.*</svg>", html)[0])
    return [e for e in root.iter("rect") if name in e.get("class").split()]


def test_every_cell_has_the_shade_of_its_share_of_the_largest():
    laid = np.array([[0.02, 0.01, 0.0], [np.nan, 0.005, 0.02]])
    html = shades(Picture("p", a_png(8, 12)), laid, "two by three")
    assert [(float(c.get("x")), float(c.get("y")), c.get("width"), c.get("height")) for c in cells(html)] == [
        (x, y, "1", "1") for y in (0, 1) for x in (0, 1, 2)
    ]
    assert [c.get("fill-opacity") for c in cells(html)] == ["1.000", "0.500", "0.000", None, "0.250", "1.000"]
    assert [c.get("class") for c in cells(html)] == ["p", "p", "p", "p out", "p", "p"]
    assert 'viewBox="0 0 3 2" preserveAspectRatio="none"' in html
    assert 'style="--wide:560px;aspect-ratio:12/8"' in html  # 560 is the limit: 840 would keep the height
    assert 'class="under sharp"' in html
    assert 'class="under "' in shades(Picture("p", a_png(200, 160)), laid, "large")


def test_where_nothing_is_attended_to_nothing_is_shaded():
    assert {c.get("fill-opacity") for c in cells(shades(Picture("p", a_png()), np.zeros((2, 2)), "x"))} == {"0.000"}


def test_the_scale_says_the_largest_weight():
    svg = ET.fromstring(ramp(0.0424))
    assert [t.text for t in svg.iter("text")] == ["0", "0.0106", "0.0212", "0.0318", "0.0424"]
    opacities = [float(r.get("fill-opacity")) for r in svg.iter("rect") if r.get("class") == "p"]
    assert opacities == [0, 0.25, 0.5, 0.75, 1]


def test_weights_are_stored_to_the_four_decimals_that_are_read():
    weights = np.array([[[0.0, 1.0, 0.25, 0.0001, -0.0005, 1.0005]]])
    assert stored(weights).tolist() == [0, 65535, 32768, 655, 0, 65535]
    many = some_weights(1, 40, 500)
    read = (stored(many).reshape(many.shape) / 65535) ** 2
    assert abs(read - many).max() <= 1 / 65535
    small = many[(many > 1e-6) & (many < 1e-4)]
    assert len(small) > 1000
    np.testing.assert_allclose(read[(many > 1e-6) & (many < 1e-4)], small, rtol=0.02)


def stored(weights):
    found = form.coded(weights, exact=False)
    assert found["coding"] == "root-u2"
    return np.frombuffer(zlib.decompress(base64.b64decode(found["data"])), "<u2")


def test_a_page_too_large_for_a_browser_is_refused(monkeypatch):
    maps = some_pictures()
    sizes = sum(one.weights_HTS.size for one in maps.maps)
    monkeypatch.setattr(form, "MAX_WHOLE", sizes)
    look_page(maps)
    monkeypatch.setattr(form, "MAX_WHOLE", sizes - 1)
    with pytest.raises(UsageError, match=f"{sizes} weights; a page holds {sizes - 1}; look at fewer layers"):
        look_page(maps)


def test_a_report_shows_rollout_and_last_layer_beside_the_picture():
    maps = some_pictures()
    grid, windows = (stack for stack in stacks_of(maps) if stack.picture and stack.maps[0].kind == "self")
    assert [title for title, _ in summaries(grid)] == ["rollout through 2 layers", "last layer, mean of 3 heads"]
    assert [title for title, _ in summaries(windows)] == ["last layer, mean of 2 heads"]
    # By hand: A = mean over heads, R = (A_2 + I)(A_1 + I) / 4, the class token's row without itself.
    first, second = (one.weights_HTS.astype(np.float64).mean(0) for one in maps.maps[:2])
    through = (second + np.eye(7)) / 2 @ ((first + np.eye(7)) / 2)
    np.testing.assert_allclose(summaries(grid)[0][1], through[0, 1:].reshape(2, 3), atol=1e-6)
    np.testing.assert_allclose(summaries(grid)[1][1], second[0, 1:].reshape(2, 3), atol=1e-6)
    page = report_page(replace(some_report(), maps=[maps]))
    shown = page[page.index("Where it looked") :]
    assert re.findall(r'<p class="soft">([^<]*\d[^<]*)</p><svg', shown) == [
        "rollout through 2 layers", "last layer, mean of 3 heads", "last layer, mean of 2 heads",
    ]  # fmt: skip


def test_a_report_shows_figures_and_pictures_of_samples():
    figure = Figure("Views", "A row an image.", a_png(4, 6), "grid of views")
    sample = Sample("cat/3.png", "cat", "dog", "wrong", a_png(5, 7))
    page = report_page(replace(some_report(), figures=[figure, Figure("Bare", "", a_png())], samples=[sample]))
    found = {
        address: (height, alt)
        for address, height, alt in re.findall(r'<img src="([^"]*)" width="\d+" height="(\d+)" alt="([^"]*)">', page)
    }
    assert list(found.values()) == [("4", "grid of views"), ("8", "Bare")]
    assert picture_of(next(iter(found))).size == (6, 4)
    assert '<h3>Views</h3><p class="soft">A row an image.</p>' in page
    thumb = re.search(r'<img class="thumb sharp" src="([^"]*)" alt="cat/3.png">', page)
    assert picture_of(thumb[1]).size == (7, 5)
    assert page.index("<th>Verdict</th><th>Picture</th><th>Source</th>") < page.index('data-name="Picture"')
    assert "<th>Picture</th>" not in report_page(replace(some_report(), samples=[Sample("a", "b", "c")]))
    with pytest.raises(FormatError, match="not PNG"):
        Figure("t", "a", b"<svg/>")
    with pytest.raises(FormatError, match="not PNG"):
        Sample("t", "a", "b", "", b"<svg/>")


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 2), (5, 7, 3), (5, 7, 4)])
def test_png_keeps_every_pixel(shape):
    pixels = np.random.default_rng(2).integers(0, 256, shape, dtype=np.uint8)
    image = Image.open(BytesIO(png(pixels)))
    assert image.size == (7, 5)
    assert np.asarray(image).tolist() == (pixels[..., 0] if shape[2:] == (1,) else pixels).tolist()
    assert png(pixels[::-1]) != png(pixels)  # a view with another order is written as it reads


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((2, 3)), np.zeros((2, 3, 5), np.uint8), np.zeros((0, 3), np.uint8), np.zeros((1, 9000), np.uint8)],
)
def test_what_is_no_picture_is_not_written(pixels):
    with pytest.raises(DataError, match="picture"):
        png(pixels)


def test_stacks_with_pictures_have_titles_of_their_own():
    maps = some_pictures()
    assert [stack.title for stack in stacks_of(maps)] == [
        "Cross-attention, tokens to the picture",
        "Cross-attention, the picture to tokens",
        "Self-attention over the picture",
        "Self-attention over the picture",
        "Self-attention of the output",
    ]
    alone = Maps("t", "s", "", maps.maps[:1], pictures=maps.pictures)
    assert [stack.rolls for stack in stacks_of(alone)] == [False]
