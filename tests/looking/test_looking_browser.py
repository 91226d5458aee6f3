"""Both pages as a person uses them, in a real browser, from the file."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from looking_examples import some_maps, some_report
from page_driver import alphas, choose, cursor, pixels, points, readout, settle, tab, title
from PIL import Image

from regard.looking import AttentionMap, Maps, look_page, rollout
from regard.looking.text import weight_text

pytestmark = pytest.mark.slow
HOW = "A row is a token that attends"
SVG = "{http://www.w3.org/2000/svg}"
SOURCE, TARGET = ["w", "aw", "wb"], ["w", "cw", "d", "e", "f"]


@pytest.fixture
def opened(watched, tmp_path):
    """Opens pages, and looks at the end that the last did nothing but load itself."""
    paths = []

    def open_maps(*maps):
        paths.append(tmp_path / "a look? #1 %41.html")
        paths[-1].write_text(look_page(*maps), "utf-8")
        watched.open(paths[-1])
        return watched.page

    yield open_maps
    watched.check_quiet(paths[-1])


@pytest.fixture
def look(opened):
    return opened(some_maps("w"))


@pytest.fixture
def report(watched, tmp_path):
    path = tmp_path / "report.html"
    some_report("w").save(path)
    watched.open(path)
    yield watched.page
    watched.check_quiet(path)


def link(weights, query, key, queries=TARGET, keys=SOURCE):
    return f"{queries[query]} → {keys[key]}  {weight_text(float(weights[query, key]))}"


def test_the_alignment_is_shown_first_and_read_by_pointing(look):
    weights = some_maps("w").alignment().weights_HTS[0]
    assert title(look) == ("Cross-attention, mean of 2 heads", "decoder.1.cross.w")
    found = points(look)
    assert {told for told in found if "→" in told} == {link(weights, t, s) for t in range(5) for s in range(3)}
    # Rows go down, columns to the right.
    assert found[link(weights, 1, 2)][1] > found[link(weights, 0, 2)][1]
    assert found[link(weights, 1, 2)][0] > found[link(weights, 1, 1)][0]
    look.mouse.move(1, 1)
    assert readout(look).startswith(HOW)


def test_a_cell_has_the_shade_of_its_weight(look):
    weights = some_maps("w").alignment().weights_HTS[0]
    found = points(look, 13)
    look.mouse.move(1, 1)
    settle(look)
    drawn = pixels(look.locator(".matrix canvas"))
    ratio = drawn.shape[1] / look.locator(".matrix canvas").bounding_box()["width"]
    ground, ink = np.array([244, 244, 241]), np.array([16, 38, 74])
    seen = 0
    for t in range(5):
        for s in range(3):
            x, y = found.get(link(weights, t, s), (None, None))
            if x is None:
                continue
            around = drawn[int(y * ratio) - 2 : int(y * ratio) + 3, int(x * ratio) - 2 : int(x * ratio) + 3, :3]
            shade = weights[t, s] ** 0.7
            wanted = ground * (1 - shade) + ink * shade
            assert abs(around - wanted).max(-1).min() <= 3, (t, s)
            seen += 1
    assert seen > 10


def test_a_thumbnail_shows_its_head(look):
    weights = some_maps("w").weights("decoder.0.self.w", head=1)
    tile = look.locator('.tile[aria-label="Self-attention, head 1, decoder.0.self.w"]')
    np.testing.assert_allclose(alphas(tile.locator("canvas")), 255 * weights**0.7, rtol=0, atol=0.51)
    tile.click()
    assert title(look) == ("Self-attention, head 1", "decoder.0.self.w")
    for query, key in ((0, 0), (3, 4), (4, 1)):
        assert cursor(look, query, key) == link(weights, query, key, TARGET, TARGET)
    assert look.locator(".tile[aria-pressed=true]").count() == 1
    assert look.locator(".tokens .asks .tok").all_text_contents() == TARGET


def test_rollout_is_there_to_choose(look):
    maps = some_maps("w")
    look.locator('.tile[aria-label^="Rollout through 2 layers"]').first.click()
    assert title(look)[0] == "Rollout through 2 layers, residual connections included"
    through = rollout([m for m in maps.maps if m.layer.startswith("encoder")])
    assert cursor(look, 2, 1) == link(through, 2, 1, SOURCE, SOURCE)


def test_everything_works_from_the_keyboard(look):
    look.locator(".tile[aria-pressed=true]").focus()
    look.keyboard.press("ArrowRight")  # from the mean of layer 1 to its head 0
    assert title(look)[0] == "Cross-attention, head 0"
    assert look.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    look.keyboard.press("ArrowUp")
    assert title(look)[1] == "decoder.0.cross.w"
    look.locator(".matrix").focus()
    weights = some_maps("w").weights("decoder.0.cross.w", head=0)
    for key, (t, s) in (
        ("ArrowRight", (0, 0)),
        ("ArrowRight", (0, 1)),
        ("ArrowDown", (1, 1)),
        ("ArrowLeft", (1, 0)),
        ("ArrowLeft", (1, 0)),  # the row ends here
        ("ArrowUp", (0, 0)),
        ("ArrowUp", (0, 0)),
        ("End", (0, 2)),
        ("Home", (0, 0)),
    ):
        look.keyboard.press(key)
        assert readout(look) == link(weights, t, s)
    look.keyboard.press("Enter")  # the row stays
    look.mouse.move(1, 1)
    assert look.locator(".strongest h3 bdi").text_content() == "w"
    order = np.argsort(-weights[0], kind="stable")
    assert look.locator(".strongest li").all_text_contents() == [
        f"{SOURCE[s]}{weight_text(float(weights[0, s]))}" for s in order if weights[0, s] > 0
    ]
    look.locator(".matrix").focus()
    look.keyboard.press("Escape")
    assert readout(look).startswith(HOW)
    assert look.locator(".strongest").count() == 0


def test_tabs_are_walked_with_the_arrow_keys(look):
    look.get_by_role("tab", name="Matrix").focus()
    for key, name in (("ArrowRight", "Lines"), ("End", "Details"), ("ArrowRight", "Heads"), ("ArrowLeft", "Details")):
        look.keyboard.press(key)
        chosen = look.locator('[role=tab][aria-selected="true"]')
        assert chosen.all_text_contents() == [name]
        assert look.evaluate("document.activeElement.textContent") == name
        assert look.locator("[role=tab][tabindex='0']").count() == 1
    look.keyboard.press("Home")
    assert look.locator(".tile").count() == 18 + 2 * 2  # with rollout and flow of both stacks of self-attention
    choose(look, "Self-attention, head 0, encoder.1.w")  # the whole width is the grid's: a choice opens the map
    assert title(look) == ("Self-attention, head 0", "encoder.1.w")
    assert look.locator(".matrix").count() == 1


@pytest.mark.parametrize("num_keys", [13, 15, 16, 17, 19])
def test_every_column_is_in_sight(opened, num_keys):
    """Slanted names need room at the right, which makes cells smaller, whose names then are not slanted."""
    keys = (*"abcdefghijklmnopqrstuvw"[: num_keys - 1], "</s>")
    weights = np.full((1, 3, num_keys), 1 / num_keys)
    page = opened(Maps("t", "s", "", (AttentionMap("l", "cross", tuple("xyz"), keys, weights),)))
    box, told = page.locator(".matrix").bounding_box(), []
    y = box["y"] + page.locator(".matrix canvas").bounding_box()["height"] - 12
    for x in range(20, int(box["width"]), 7):
        page.mouse.move(box["x"] + x, y)
        told.append(readout(page))
    assert {text.split(" → ")[1].split("  ")[0] for text in told if "→" in text} == set(keys)


def test_a_map_is_enlarged_moved_and_fitted(opened):
    tokens = tuple(f"t{i}" for i in range(211))
    weights = np.random.default_rng(3).random((1, 211, 211))
    one = AttentionMap("l", "self", tokens, tokens, weights / weights.sum(-1, keepdims=True))
    page = opened(Maps("t", "s", "", (one,)))
    page.locator(".matrix").focus()
    box = page.locator(".matrix canvas").bounding_box()
    middle = (box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6)

    def read(x=0, y=0):
        page.mouse.move(middle[0] + x, middle[1] + y)
        settle(page)
        return tuple(int(token[1:]) for token in readout(page).split("  ")[0].split(" → "))

    seen = read()
    assert 60 < seen[0] < 180
    assert read(x=2)[1] - seen[1] <= 2  # a cell is a pixel or a few
    page.mouse.wheel(0, -2000)  # around the pointer: what was under it stays
    page.mouse.wheel(0, -2000)
    near = read()
    assert abs(near[0] - seen[0]) <= 2
    assert abs(near[1] - seen[1]) <= 4
    for _ in range(12):
        page.keyboard.press("+")
    far = read(x=96)
    assert far[1] == read()[1] + 2  # 48 pixels at most
    before = read()
    page.mouse.down()
    page.mouse.move(middle[0] - 96, middle[1] - 48, steps=4)
    page.mouse.up()
    assert read() == (before[0] + 1, before[1] + 2)
    page.keyboard.press("Shift+ArrowRight")
    assert read()[1] - before[1] in (3, 4)  # 60 pixels
    page.mouse.move(1, 1)
    assert page.locator(".strongest").count() == 0  # what was dragged was not clicked
    page.get_by_role("button", name="Fit").click()
    assert read() == seen


def test_details_tell_every_layer(look):
    tab(look, "Details")
    told = look.locator("tbody tr").all_text_contents()
    assert told[2].startswith("decoder.0.cross.wcross2 × 5 × 3")
    assert len(told) == 6


def test_an_output_token_shades_the_source(look):
    weights = some_maps("w").alignment().weights_HTS[0]
    look.locator(".tokens .asks .tok").nth(3).hover()
    shades = look.locator(".tokens dd:not(.asks) .tok").evaluate_all(
        "toks => toks.map(t => Number(t.style.getPropertyValue('--w')))"
    )
    np.testing.assert_allclose(shades, weights[3] ** 0.7, rtol=0, atol=1e-6)
    assert readout(look) == link(weights, 3, int(weights[3].argmax()))


def test_the_slider_steps_through_the_output(look):
    weights = some_maps("w").alignment().weights_HTS[0]
    slider = look.locator(".steps input")
    slider.fill("4")
    assert look.locator(".steps span").text_content() == "4 of 5"
    best = int(weights[3].argmax())
    assert look.locator(".strongest li").first.text_content() == f"{SOURCE[best]}{weight_text(float(weights[3, best]))}"
    assert look.locator(".tokens .asks .tok.on").all_text_contents() == ["e"]


def test_lines_are_told_token_by_token(look):
    tab(look, "Lines")
    weights = some_maps("w").alignment().weights_HTS[0]
    look.locator(".lines").focus()
    for t in range(5):
        look.keyboard.press("ArrowDown")
        best = int(weights[t].argmax())
        assert readout(look) == f"{TARGET[t]} → most to {SOURCE[best]}  {weight_text(float(weights[t, best]))}"
    heads = look.get_by_role("group", name="Heads drawn")
    assert heads.locator("[aria-pressed=true]").all_text_contents() == ["mean"]
    heads.get_by_role("button", name="1").click()
    heads.get_by_role("button", name="mean").click()
    assert heads.locator("[aria-pressed=true]").all_text_contents() == ["1"]
    one = some_maps("w").weights("decoder.1.cross.w", head=1)[4]
    assert readout(look).endswith(weight_text(float(one.max())))


def test_two_runs_stand_side_by_side_and_are_read_together(opened):
    first, second = replace(some_maps("w"), scores={"fit": -1.5}), replace(some_maps("v"), scores={"fit": -3.25})
    page = opened(first, second)
    assert page.locator("h1").all_text_contents() == ["w", "v"]
    assert page.locator(".scores").all_text_contents() == ["fit −1.5000+1.7500 from the run beside it", "fit −3.2500"]
    weights = first.alignment().weights_HTS[0]
    told = cursor(page, 4, 1)
    assert told == link(weights, 4, 1)
    assert readout(page, 1) == told.replace("aw", "av")
    choose(page, "Self-attention, head 1, encoder.0.w")
    assert page.locator(".shown .about").all_text_contents() == ["encoder.0.w", "encoder.0.v"]


def test_every_number_is_downloaded_as_it_was(look):
    maps = some_maps("w")
    with look.expect_download() as found:
        look.get_by_role("button", name="JSON").click()
    assert found.value.suggested_filename == "look.json"
    with open(found.value.path(), encoding="utf-8") as file:
        text = file.read()
    read = Maps.from_json(text)
    assert json.loads(text) == json.loads(maps.to_json())
    for mine, theirs in zip(read.maps, maps.maps, strict=True):
        assert mine.weights_HTS.tobytes() == theirs.weights_HTS.tobytes()


def test_pictures_are_downloaded(look):
    with look.expect_download() as found:
        look.get_by_role("button", name="SVG").click()
    root = ET.parse(found.value.path()).getroot()
    weights = some_maps("w").alignment().weights_HTS[0]
    opacities = [float(e.get("fill-opacity")) for e in root.iter(f"{SVG}rect") if e.get("fill-opacity")]
    wanted = [w for w in (weights.reshape(-1) ** 0.7).round(3) if w]
    np.testing.assert_allclose(opacities, wanted, rtol=0, atol=0.0011)
    words = [e.text for e in root.iter(f"{SVG}text")]
    assert words == ["Cross-attention, mean of 2 heads", *TARGET, *SOURCE]
    box = look.locator(".matrix canvas").bounding_box()
    with look.expect_download() as found:
        look.get_by_role("button", name="PNG").click()
    with open(found.value.path(), "rb") as file:
        size = Image.open(BytesIO(file.read())).size
    assert size == (round(2 * box["width"]), round(2 * box["height"]))


def test_the_report_is_read_by_hovering(report):
    assert report.locator(".big").all_text_contents() == ["3.00w", "0.5000"]
    wide = report.viewport_size["width"] > 620
    side = ".wide" if wide else ".narrow"
    assert report.locator(f".result {side}:visible").count() == 2
    figure = report.locator(f"figure:has({side} .slice)").first
    figure.locator(f"{side} .slice").nth(1).hover()
    assert figure.locator("output").text_content() == "step 2  ·  w 2  ·  w2 3 (at 1)"
    weights = some_maps("w").alignment().weights_HTS[0]
    picture = report.locator("figure:has(svg.heat)")
    picture.locator(".w").nth(4).hover()
    assert picture.locator("output").text_content() == f"cw → aw  {weight_text(weights[1, 1])}"


@pytest.mark.parametrize("draw", [some_maps, some_report], ids=["look", "report"])
def test_nothing_is_wider_than_the_screen(draw, watched, tmp_path):
    for i, word in enumerate(["w", "Donaudampfschifffahrtsgesellschaftskapitänswitwe" * 6, "many words " * 60]):
        path = tmp_path / f"{i}.html"
        draw(word).save(path)
        watched.open(path)
        tabs = watched.page.get_by_role("tab")
        for k in range(tabs.count() or 1):
            if tabs.count():
                tabs.nth(k).click()
                settle(watched.page)
            assert watched.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (word, k)
        watched.check_quiet(path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("draw", [some_maps, some_report], ids=["look", "report"])
def test_text_can_be_read_in_light_and_dark(draw, scheme, watched, tmp_path):
    draw("w").save(tmp_path / "page.html")
    watched.page.emulate_media(color_scheme=scheme)
    watched.open(tmp_path / "page.html")
    tabs = watched.page.get_by_role("tab")
    for k in range(tabs.count() or 1):
        if tabs.count():
            tabs.nth(k).click()
        check_contrasts(watched.page, at_least=20)
    # The page is dark where dark is asked for.
    paper = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(paper) < 0.1) == (scheme == "dark")


def test_the_switch_of_colours_overrules_the_system(watched, tmp_path):
    some_maps("w").save(tmp_path / "page.html")
    watched.page.emulate_media(color_scheme="dark")
    watched.open(tmp_path / "page.html")
    for chosen, dark in (("light", False), ("dark", True), ("auto", True)):
        watched.page.get_by_label("Colours").select_option(chosen)
        settle(watched.page)
        paper = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (luminance(paper) < 0.1) == dark
        letters = pixels(watched.page.locator(".matrix canvas"))[:, :28]  # names of rows, drawn in ink
        assert (letters[letters[..., 3] > 250][:, :3].mean() > 128) == dark
    watched.check_quiet(tmp_path / "page.html")


def luminance(colour):
    channels = [int(c) / 255 for c in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    """WCAG 2's contrast of two colours; 4.5 is its least for small text."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


_COLOURS = """() => {
  const parse = colour => {
    const found = colour.match(/[\\d.]+/g).map(Number);
    return found.length > 3 ? found : [...found, 1];
  };
  const paper = element => {  // what stands behind a text: backgrounds, one over the other
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    let below = [255, 255, 255];
    for (const [r, g, b, a] of layers.reverse()) below = [r, g, b].map((c, i) => c * a + below[i] * (1 - a));
    return `rgb(${below.map(Math.round)})`;
  };
  const shown = e => !['title', 'NOSCRIPT', 'OPTION'].includes(e.tagName) && e.getClientRects().length;
  const told = [...document.querySelectorAll('main *')].filter(e =>
    shown(e) && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  const ink = e => getComputedStyle(e)[e.ownerSVGElement ? 'fill' : 'color'];
  return told.map(e => [`${e.tagName}.${e.getAttribute('class') || ''}`, ink(e), paper(e)]);
}"""


def check_contrasts(page, at_least):
    """Every text can be read on what stands behind it."""
    pairs = page.evaluate(_COLOURS)
    assert len(pairs) > at_least
    for name, ink, paper in pairs:
        assert contrast(ink, paper) >= 4.5, (name, ink, paper)
