"""Pages of pictures as a person uses them, in a real browser, from the file."""

import numpy as np
import pytest
from looking_examples import some_pictures, some_report
from seeing_examples import MiniConv, MiniWindows, some_seen

from regard.looking import over_picture, rollout
from regard.looking.text import weight_text

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(watched, tmp_path):
    """Opens maps, and looks at the end that the page did nothing but load itself."""
    paths = []

    def open_maps(maps):
        paths.append(tmp_path / "a look? #1 %41.html")
        maps.save(paths[-1])
        watched.open(paths[-1])
        return watched.page

    yield open_maps
    watched.check_quiet(paths[-1])


def readout(page):
    return page.locator(".shown output").text_content()


def choose(page, label):
    page.locator(f'.tile[aria-label="{label}"]').click()


def pane(page, rest=""):
    return page.locator(f".shown .map:not([hidden]) {rest}")


def drawn(page):
    """Shades of all cells; NaN outside the window."""
    found = pane(page, ".p").evaluate_all(
        "cells => cells.map(c => c.classList.contains('out') ? null : Number(c.getAttribute('fill-opacity')))"
    )
    found = found[: len(found) - 5] if len(found) > 5 else found  # the last five are the scale's
    return np.array([np.nan if one is None else one for one in found])


def expected(laid):
    most = np.nanmax(laid, initial=0) or 1
    return np.array([np.nan if np.isnan(w) else w / most for w in laid.reshape(-1)])


def check_drawn(page, laid):
    np.testing.assert_allclose(drawn(page), expected(laid), rtol=0, atol=0.001)
    most = pane(page, ".ramp .tick").all_text_contents()[-1]
    assert float(most) == pytest.approx(np.nanmax(laid), abs=1e-4)


def at(page, grid, place):
    """The middle of a place, from the picture's corner."""
    box = pane(page, ".shades").bounding_box()
    y, x = divmod(place, grid[1])
    return {"x": (x + 0.5) * box["width"] / grid[1], "y": (y + 0.5) * box["height"] / grid[0]}


def point(page, grid, place):
    pane(page, ".shades").hover(position=at(page, grid, place))


def away(page):
    page.mouse.move(2, 2)


def test_the_class_token_s_weights_are_shown_first(opened):
    maps = some_seen()
    page = opened(maps)
    assert page.locator(".shown h2").text_content() == "Self-attention, mean of 2 heads"
    assert page.locator(".shown .about").text_content() == "blocks.1.self_attn"
    last = maps.maps[1]
    check_drawn(page, over_picture(last.mean().weights_HTS[0], last.queries, last.keys))
    chip = pane(page, ".chip.asks")
    assert chip.get_attribute("aria-pressed") == "true"
    assert chip.locator("small").text_content() == weight_text(float(last.mean().weights_HTS[0, 0, 0]))
    assert readout(page).startswith("Point at a place to see what it attends to")


def test_a_place_pointed_at_is_the_query_until_the_pointer_leaves(opened):
    maps = some_seen()
    page = opened(maps)
    choose(page, "self-attention, head 1, blocks.0.self_attn")
    weights, side = maps.weights("blocks.0.self_attn", head=1), maps.maps[0].keys
    for place in (0, 18, 34):
        point(page, (5, 7), place)
        laid = over_picture(weights, side, side, query=place + 1)
        check_drawn(page, laid)
        best = int(laid.argmax())
        told = f"{side.name(place)} → most to {side.name(best)}  {weight_text(float(laid.max()))}"
        assert readout(page)[:-1] == told[:-1]  # but for the rounding of the last digit
        assert abs(float(readout(page)[-6:]) - laid.max()) < 1e-4
    away(page)
    check_drawn(page, over_picture(weights, side, side))
    assert readout(page).startswith("Point at a place")
    assert pane(page, ".ask").count() == 0


def test_a_place_clicked_stays_and_its_weights_are_read_by_pointing(opened):
    maps = some_seen()
    page = opened(maps)
    weights, side = maps.maps[1].mean().weights_HTS[0], maps.maps[1].keys
    before = page.locator(".tile").evaluate_all("tiles => tiles.map(t => t.style.getPropertyValue('--m'))")
    pane(page, ".shades").click(position=at(page, (5, 7), 9))
    point(page, (5, 7), 30)
    laid = over_picture(weights, side, side, query=10)
    check_drawn(page, laid)
    told, weight = readout(page).split("  ")
    assert told == "row 2, column 3 → row 5, column 3"
    assert float(weight) == pytest.approx(laid[4, 2], abs=1e-4)
    assert [pane(page, ".ask").get_attribute(name) for name in ("x", "y")] == ["2", "1"]
    assert [pane(page, ".reads").get_attribute(name) for name in ("x", "y")] == ["2", "4"]
    away(page)
    check_drawn(page, laid)
    page.wait_for_timeout(300)
    after = page.locator(".tile").evaluate_all("tiles => tiles.map(t => t.style.getPropertyValue('--m'))")
    assert all(a != b and a.startswith("url(data:image/png") for a, b in zip(after, before, strict=True))
    choose(page, "self-attention, head 0, blocks.0.self_attn")  # another head, the same place
    check_drawn(page, over_picture(maps.weights("blocks.0.self_attn", head=0), side, side, query=10))
    pane(page, ".shades").click(position=at(page, (5, 7), 9))
    away(page)
    check_drawn(page, over_picture(maps.weights("blocks.0.self_attn", head=0), side, side))


def test_a_thumbnail_redrawn_has_the_shades_of_the_place(opened):
    maps = some_seen()
    page = opened(maps)
    pane(page, ".shades").click(position=at(page, (5, 7), 3))
    page.wait_for_timeout(300)
    alpha = page.evaluate(
        """async () => {
          const tile = document.querySelector('.tile[aria-label="self-attention, head 1, blocks.0.self_attn"]');
          const image = new Image();
          image.src = tile.style.getPropertyValue('--m').slice(4, -1);
          await image.decode();
          const canvas = document.createElement('canvas');
          Object.assign(canvas, {width: image.width, height: image.height});
          const onto = canvas.getContext('2d', {willReadFrequently: true});
          onto.drawImage(image, 0, 0);
          const zoom = image.width / 7, found = [];
          for (let y = 0; y < 5; y++) for (let x = 0; x < 7; x++) {
            found.push(onto.getImageData((x + 0.95) * zoom, (y + 0.95) * zoom, 1, 1).data[3]);
          }
          return found;
        }"""
    )
    side = maps.maps[0].keys
    laid = over_picture(maps.weights("blocks.0.self_attn", head=1), side, side, query=4)
    np.testing.assert_allclose(alpha, 255 * expected(laid), rtol=0, atol=2)


def test_rollout_and_the_mean_of_all_places_are_there_to_choose(opened):
    maps = some_seen()
    page = opened(maps)
    page.locator('.tile[aria-label^="rollout through 2 layers"]').click()
    through, side = rollout(maps.maps), maps.maps[0].keys
    check_drawn(page, over_picture(through, side, side))
    pane(page, ".chip[data-every]").click()
    check_drawn(page, through[1:, 1:].mean(0).reshape(5, 7))
    assert readout(page).startswith("every place → most to row")
    assert pane(page, ".chip[data-every]").get_attribute("aria-pressed") == "true"
    assert pane(page, ".chip.asks").get_attribute("aria-pressed") == "false"


def test_everything_works_from_the_keyboard(opened):
    maps = some_seen()
    page = opened(maps)
    page.locator(".tile[aria-pressed=true]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    assert page.locator(".shown .about").text_content() == "blocks.0.self_attn"
    weights, side = maps.weights("blocks.0.self_attn", head=0), maps.maps[0].keys
    pane(page, ".shades").focus()
    for key, place in (
        ("ArrowRight", 0), ("ArrowRight", 1), ("ArrowDown", 8), ("ArrowLeft", 7), ("ArrowLeft", 7), ("ArrowUp", 0),
        ("ArrowUp", 0), *(("ArrowRight", min(1 + i, 6)) for i in range(7)), *(("ArrowLeft", 5 - i) for i in range(6)),
    ):  # fmt: skip
        page.keyboard.press(key)
        check_drawn(page, over_picture(weights, side, side, query=place + 1))
        assert pane(page, ".shades").get_attribute("aria-label") == f"Self-attention, head 0: {side.name(place)}"
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    told, weight = readout(page).split("  ")
    assert told == "row 1, column 1 → row 1, column 2"
    assert float(weight) == pytest.approx(weights[1, 2], abs=1e-4)
    page.keyboard.press("Escape")
    check_drawn(page, over_picture(weights, side, side))
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # the switch
    assert pane(page, ".over.bare").count() == 1
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # every place
    check_drawn(page, weights[1:, 1:].mean(0).reshape(5, 7))


def test_a_window_is_all_that_a_place_sees(opened):
    maps = some_seen(MiniWindows)
    page = opened(maps)
    first, second = maps.maps
    mean = second.mean().weights_HTS[0]
    check_drawn(page, over_picture(mean, second.queries, second.keys))
    choose(page, "self-attention, head 1, blocks.0.self_attn")  # a finer grid
    weights, side = maps.weights("blocks.0.self_attn", head=1), first.keys
    rows = list(side.rows_GW.reshape(-1))
    for place in (0, 17, 34):
        point(page, (5, 7), place)
        check_drawn(page, over_picture(weights, side, side, query=rows.index(place)))
        assert np.isnan(drawn(page)).sum() == 35 - {0: 4, 17: 4, 34: 1}[place]
    pane(page, ".shades").click(position=at(page, (5, 7), 0))
    point(page, (5, 7), 2)
    assert readout(page) == "row 1, column 1 → row 1, column 3  outside its window"
    choose(page, "self-attention, head 1, blocks.1.self_attn")  # the same place on a coarser one
    check_drawn(page, over_picture(maps.weights("blocks.1.self_attn", head=1), second.keys, second.keys, query=0))


def test_a_convolutional_network_s_attention_is_there_too(opened):
    maps = some_seen(MiniConv)
    page = opened(maps)
    one = maps.maps[0]
    check_drawn(page, over_picture(one.weights_HTS[0], one.queries, one.keys))
    point(page, (5, 7), 11)
    check_drawn(page, one.weights_HTS[0, 11].reshape(5, 7))


def test_a_word_is_laid_over_the_picture(opened):
    maps = some_pictures("w")
    page = opened(maps)
    choose(page, "cross-attention, 0.say.w")
    weights = maps.weights("0.say.w", head=0)
    for i, word in enumerate(("w", "cw", "d")):
        pane(page, ".chip.asks").nth(i).click()
        check_drawn(page, weights[i].reshape(3, 2))
        assert pane(page, ".chip.asks[aria-pressed=true] bdi").text_content() == word
    point(page, (3, 2), 4)
    told, weight = readout(page).split("  ")
    assert told == "d → row 3, column 1"
    assert float(weight) == pytest.approx(weights[2, 4], abs=1e-4)


def test_a_place_tells_the_words_that_it_attends_to(opened):
    maps = some_pictures("w")
    page = opened(maps)
    choose(page, "cross-attention, head 1, 0.hear.w")
    weights = maps.weights("0.hear.w", head=1)
    for place in (0, 5):
        point(page, (3, 2), place)
        told = [float(t) for t in pane(page, ".chip.answers small").all_text_contents()]
        np.testing.assert_allclose(told, weights[place], rtol=0, atol=1e-4)
    away(page)
    told = [float(text) for text in pane(page, ".chip.answers small").all_text_contents()]
    np.testing.assert_allclose(told, weights.mean(0), rtol=0, atol=1e-4)
    point(page, (3, 2), 5)
    assert readout(page).startswith(f"row 3, column 2 → most to {('w', 'cw', 'd')[int(weights[5].argmax())]}")


def test_texts_beside_pictures_read_as_ever(opened):
    maps = some_pictures("w")
    page = opened(maps)
    assert page.locator(".shown .scale").is_hidden()
    choose(page, "self-attention, head 1, 0.text.w")
    pane(page, "svg .w").nth(5).hover()
    assert readout(page) == f"cw → d  {weight_text(float(maps.weights('0.text.w', head=1)[1, 2]))}"
    assert page.locator(".shown .scale").is_visible()
    away(page)
    assert readout(page).startswith("A row is a token that attends")


def test_the_picture_can_be_seen_without_shades(opened):
    page = opened(some_seen())
    under, over = pane(page, ".under"), pane(page, ".shades")
    assert under.evaluate("e => getComputedStyle(e).filter") == "grayscale(1)"
    assert over.evaluate("e => getComputedStyle(e).opacity") == "1"
    page.get_by_label("shades over the picture").uncheck()
    assert under.evaluate("e => getComputedStyle(e).filter") == "none"
    assert over.evaluate("e => getComputedStyle(e).opacity") == "0"


def test_the_picture_keeps_its_shape_and_cells_cover_it(opened):
    page = opened(some_seen(size=(20, 28)))
    box = pane(page, ".over").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(28 / 20, rel=0.01)
    corner = pane(page, ".shades .p").last.bounding_box()
    assert corner["x"] + corner["width"] == pytest.approx(box["x"] + box["width"], abs=1)
    assert corner["y"] + corner["height"] == pytest.approx(box["y"] + box["height"], abs=1)
    assert corner["width"] == pytest.approx(box["width"] / 7, abs=1)


@pytest.mark.parametrize("draw", [some_pictures, some_report], ids=["look", "report"])
def test_nothing_is_wider_than_the_screen(draw, watched, tmp_path):
    for i, word in enumerate(["w", "Donaudampfschifffahrtsgesellschaftskapitänswitwe" * 6, "many words " * 60]):
        path = tmp_path / f"{i}.html"
        draw(word).save(path)
        watched.open(path)
        assert watched.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, word
        tiles = watched.page.locator(".tile")
        for k in range(tiles.count()):  # every stack's pane
            if tiles.nth(k).get_attribute("tabindex") == "0":
                tiles.nth(k).click()
                assert watched.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, word
        watched.check_quiet(path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(scheme, watched, tmp_path):
    from test_looking_browser import contrast

    some_seen().save(tmp_path / "page.html")
    watched.page.emulate_media(color_scheme=scheme)
    watched.open(tmp_path / "page.html")
    pairs = watched.page.evaluate(
        """() => [...document.querySelectorAll('main *')].filter(e => [...e.childNodes].some(n => n.nodeType === 3 &&
            n.data.trim()) && e.tagName !== 'title' && e.getClientRects().length).map(e => [e.tagName + '.' +
            (e.getAttribute('class') || ''), getComputedStyle(e)[e.ownerSVGElement ? 'fill' : 'color'],
            getComputedStyle(document.body).backgroundColor])"""
    )
    assert len(pairs) > 15
    for name, ink, paper in pairs:
        assert contrast(ink, paper) >= 4.5, (name, ink, paper)
