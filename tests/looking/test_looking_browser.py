"""Both pages as a person uses them, in a real browser, from the file."""

import numpy as np
import pytest
from looking_examples import some_maps, some_report

from regard.looking import AttentionMap, Maps, rollout
from regard.looking.text import weight_text

pytestmark = pytest.mark.slow


@pytest.fixture
def look(watched, tmp_path):
    path = tmp_path / "a look? #1 %41.html"
    some_maps("w").save(path)
    watched.open(path)
    yield watched.page
    watched.check_quiet(path)


@pytest.fixture
def report(watched, tmp_path):
    path = tmp_path / "report.html"
    some_report("w").save(path)
    watched.open(path)
    yield watched.page
    watched.check_quiet(path)


def readout(page):
    return page.locator(".shown output").text_content()


def cell(page, query, key):
    shown = page.locator(".shown .map:not([hidden]) svg")
    return shown.locator(".w").nth(query * int(shown.get_attribute("data-keys")) + key)


def test_the_alignment_is_shown_first_and_read_by_hovering(look):
    weights = some_maps("w").alignment().weights_HTS[0]
    assert look.locator(".shown h2").text_content() == "Alignment: cross-attention, mean of 2 heads"
    assert look.locator(".shown .about").text_content() == "decoder.1.cross.w"
    cell(look, 1, 2).hover()
    assert readout(look) == f"cw → wb  {weight_text(weights[1, 2])}"
    assert look.locator(".shown svg .q.on").all_text_contents() == ["cw"]
    assert look.locator(".shown .map:not([hidden]) svg .k.on").all_text_contents() == ["wb"]
    look.mouse.move(1, 1)
    assert readout(look).startswith("A row is a token that attends")


def test_a_thumbnail_shows_its_head(look):
    maps = some_maps("w")
    look.locator('.tile[aria-label="self-attention, head 1, decoder.0.self.w"]').click()
    assert look.locator(".shown h2").text_content() == "Self-attention, head 1"
    assert look.locator(".shown .about").text_content() == "decoder.0.self.w"
    weights = maps.weights("decoder.0.self.w", head=1)
    tokens = ["w", "cw", "d", "e", "f"]
    for query, key in ((0, 0), (3, 4), (4, 1)):
        cell(look, query, key).hover()
        assert readout(look) == f"{tokens[query]} → {tokens[key]}  {weight_text(weights[query, key])}"
    shades = [float(c.get_attribute("fill-opacity")) for c in look.locator(".shown .map:not([hidden]) .w").all()]
    np.testing.assert_allclose(shades, weights.reshape(-1) ** 0.7, rtol=0, atol=0.0006)
    assert look.locator(".shown .map:visible").count() == 1
    assert look.locator(".tile[aria-pressed=true]").count() == 1
    assert look.locator(".tokens:not([hidden]) [data-side=q] .tok").all_text_contents() == tokens


def test_rollout_is_there_to_choose(look):
    maps = some_maps("w")
    look.locator('.tile[aria-label^="rollout through 2 layers"]').first.click()
    assert look.locator(".shown h2").text_content() == "Rollout through 2 layers, residual connections included"
    through = rollout([m for m in maps.maps if m.layer.startswith("encoder")])
    cell(look, 2, 1).hover()
    assert readout(look) == f"wb → aw  {weight_text(through[2, 1])}"


def test_everything_works_from_the_keyboard(look):
    look.locator(".tile[aria-pressed=true]").focus()
    look.keyboard.press("ArrowRight")  # from the mean of layer 1 to its head 0
    assert look.locator(".shown h2").text_content() == "Cross-attention, head 0"
    assert look.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    look.keyboard.press("ArrowUp")
    assert look.locator(".shown .about").text_content() == "decoder.0.cross.w"
    look.locator(".shown .map:not([hidden]) svg").focus()
    weights = some_maps("w").weights("decoder.0.cross.w", head=0)
    for key, (t, s), text in (
        ("ArrowRight", (0, 0), "w → w"),
        ("ArrowRight", (0, 1), "w → aw"),
        ("ArrowDown", (1, 1), "cw → aw"),
        ("ArrowLeft", (1, 0), "cw → w"),
        ("ArrowLeft", (1, 0), "cw → w"),  # the row ends here
        ("ArrowUp", (0, 0), "w → w"),
        ("ArrowUp", (0, 0), "w → w"),
    ):
        look.keyboard.press(key)
        assert readout(look) == f"{text}  {weight_text(weights[t, s])}"


def test_an_output_token_shades_the_source(look):
    weights = some_maps("w").alignment().weights_HTS[0]
    look.locator(".tokens:not([hidden]) [data-side=q] .tok").nth(3).hover()
    shades = look.locator(".tokens:not([hidden]) [data-side=k] .tok").evaluate_all(
        "toks => toks.map(t => Number(t.style.getPropertyValue('--w')))"
    )
    np.testing.assert_allclose(shades, weights[3] ** 0.7, rtol=0, atol=0.0006)
    assert readout(look).startswith("e → ")


def test_weights_of_every_size_read_the_same_in_python_and_in_the_browser(watched, tmp_path):
    row = np.array([0.99, 0.00994, 0.00005, 0.0000081, 1e-9, 0.0])
    row[0] += 1 - row.sum()
    keys = tuple("abcdef")
    one = AttentionMap("l", "cross", ("q",), keys, np.stack([[row], [row[::-1]]]))
    Maps("t", "s", "o", (one,)).save(tmp_path / "sizes.html")
    watched.open(tmp_path / "sizes.html")
    for head in (0, 1):
        watched.page.locator(".tile").nth(1 + head).click()
        titles = watched.page.locator(".shown .w title").all_text_contents()
        assert titles == [
            f"q → {k}  {weight_text(float(w))}" for k, w in zip(keys, one.weights_HTS[head, 0], strict=True)
        ]
    watched.check_quiet(tmp_path / "sizes.html")


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
        assert watched.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, word
        watched.check_quiet(path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("draw", [some_maps, some_report], ids=["look", "report"])
def test_text_can_be_read_in_light_and_dark(draw, scheme, watched, tmp_path):
    draw("w").save(tmp_path / "page.html")
    watched.page.emulate_media(color_scheme=scheme)
    watched.open(tmp_path / "page.html")
    pairs = watched.page.evaluate(
        """() => [...document.querySelectorAll('main *')].filter(e => [...e.childNodes].some(n => n.nodeType === 3 &&
            n.data.trim()) && e.tagName !== 'title' && e.getClientRects().length).map(e => [e.tagName + '.' +
            (e.getAttribute('class') || ''), getComputedStyle(e)[e.ownerSVGElement ? 'fill' : 'color'],
            getComputedStyle(document.body).backgroundColor])"""
    )
    assert len(pairs) > 20
    for name, ink, paper in pairs:
        assert contrast(ink, paper) >= 4.5, (name, ink, paper)
    # The page is dark where dark is asked for.
    assert (luminance(pairs[0][2]) < 0.1) == (scheme == "dark")


def luminance(colour):
    channels = [int(c) / 255 for c in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    """WCAG 2's contrast of two colours; 4.5 is its least for small text."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
