"""Pages of pictures as a person uses them, in a real browser, from the file."""

import numpy as np
import pytest
from looking_examples import some_pictures, some_report, some_weights
from page_driver import alphas, choose, cursor, pixels, readout, settle, tab, title
from seeing_examples import MiniConv, MiniWindows, some_seen
from test_looking_browser import check_contrasts

from regard.looking import AttentionMap, Maps, look_page, over_picture, rollout
from regard.looking.places import Boxes
from regard.looking.text import weight_text

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(watched, tmp_path):
    """Opens maps, and looks at the end that the page did nothing but load itself."""
    paths = []

    def open_maps(maps):
        paths.append(tmp_path / "a look? #1 %41.html")
        paths[-1].write_text(look_page(maps), "utf-8")
        watched.open(paths[-1])
        return watched.page

    yield open_maps
    watched.check_quiet(paths[-1])


OUTSIDE = 203  # the opacity of what covers places that a query cannot attend to


def drawn(page):
    """Shares of the largest weight in all cells; NaN outside the window."""
    settle(page)
    found = pixels(page.locator(".over canvas.shades")).reshape(-1, 4)
    outside = (found[:, 3] == OUTSIDE) & (found[:, 1] > 200)  # paper, not heat
    return np.where(outside, np.nan, found[:, 3] / 255)


def expected(laid):
    most = np.nanmax(laid, initial=0) or 1
    return np.array([np.nan if np.isnan(w) else w / most for w in laid.reshape(-1)])


def check_drawn(page, laid):
    np.testing.assert_allclose(drawn(page), expected(laid), rtol=0, atol=0.0025)
    most = page.locator(".ramp span").all_text_contents()[-1]
    assert float(most) == pytest.approx(np.nanmax(laid), abs=1e-4)


def at(page, grid, place):
    """The middle of a place, from the picture's corner."""
    box = page.locator(".over").bounding_box()
    y, x = divmod(place, grid[1])
    return {"x": (x + 0.5) * box["width"] / grid[1], "y": (y + 0.5) * box["height"] / grid[0]}


def point(page, grid, place):
    page.locator(".over").hover(position=at(page, grid, place))


def outlined(page, kind, grid):
    """The place that is outlined."""
    rect = page.locator(f".over .{kind}")
    y, x = (float(rect.get_attribute(name)) * size for name, size in (("y", grid[0]), ("x", grid[1])))
    return round(y) * grid[1] + round(x)


def away(page):
    page.mouse.move(2, 2)


def test_the_class_token_s_weights_are_shown_first(opened):
    maps = some_seen()
    page = opened(maps)
    assert title(page) == ("Self-attention, mean of 2 heads", "blocks.1.self_attn")
    last = maps.maps[1]
    check_drawn(page, over_picture(last.mean().weights_HTS[0], last.queries, last.keys))
    chip = page.locator(".chip.asks")
    assert chip.get_attribute("aria-pressed") == "true"
    assert chip.locator("small").text_content() == weight_text(float(last.mean().weights_HTS[0, 0, 0]))
    assert readout(page).startswith("Point at a place to see what it attends to")


def test_a_place_pointed_at_is_the_query_until_the_pointer_leaves(opened):
    maps = some_seen()
    page = opened(maps)
    choose(page, "Self-attention, head 1, blocks.0.self_attn")
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
    assert page.locator(".over .ask").count() == 0


def test_a_place_clicked_stays_and_its_weights_are_read_by_pointing(opened):
    maps = some_seen()
    page = opened(maps)
    weights, side = maps.maps[1].mean().weights_HTS[0], maps.maps[1].keys
    tiles = page.locator(".tile canvas")
    before = [alphas_of_heat(tiles.nth(i)) for i in range(6)]
    page.locator(".over").click(position=at(page, (5, 7), 9))
    point(page, (5, 7), 30)
    laid = over_picture(weights, side, side, query=10)
    check_drawn(page, laid)
    told, weight = readout(page).split("  ")
    assert told == "row 2, column 3 → row 5, column 3"
    assert float(weight) == pytest.approx(laid[4, 2], abs=1e-4)
    assert outlined(page, "ask", (5, 7)) == 9
    assert outlined(page, "reads", (5, 7)) == 30
    away(page)
    check_drawn(page, laid)
    after = [alphas_of_heat(tiles.nth(i)) for i in range(6)]
    assert all((a != b).any() for a, b in zip(after, before, strict=True))
    choose(page, "Self-attention, head 0, blocks.0.self_attn")  # another head, the same place
    check_drawn(page, over_picture(maps.weights("blocks.0.self_attn", head=0), side, side, query=10))
    page.locator(".over").click(position=at(page, (5, 7), 9))
    away(page)
    check_drawn(page, over_picture(maps.weights("blocks.0.self_attn", head=0), side, side))


def alphas_of_heat(canvas):
    """How much of the shades' colour is in each pixel of a thumbnail: grey has as much red as blue."""
    alphas(canvas)  # once it is in sight, and drawn
    for _ in range(3):
        settle(canvas.page)
    found = pixels(canvas).astype(float)
    return (found[..., 0] - found[..., 2]) / 255


def test_a_thumbnail_redrawn_has_the_shades_of_the_place(opened):
    maps = some_seen()
    page = opened(maps)
    page.locator(".over").click(position=at(page, (5, 7), 3))
    tile = page.locator('.tile[aria-label="Self-attention, head 1, blocks.0.self_attn"] canvas')
    tile.scroll_into_view_if_needed()
    found = alphas_of_heat(tile)
    height, width = found.shape
    side = maps.maps[0].keys
    laid = over_picture(maps.weights("blocks.0.self_attn", head=1), side, side, query=4)
    middles = found[(np.arange(5) * 2 + 1) * height // 10][:, (np.arange(7) * 2 + 1) * width // 14]
    np.testing.assert_allclose(middles.reshape(-1), expected(laid) * (255 - 31) / 255, rtol=0, atol=0.012)  # #ff5a1f


def test_rollout_and_the_mean_of_all_places_are_there_to_choose(opened):
    maps = some_seen()
    page = opened(maps)
    page.locator('.tile[aria-label^="Rollout through 2 layers"]').click()
    through, side = rollout(maps.maps), maps.maps[0].keys
    check_drawn(page, over_picture(through, side, side))
    page.locator(".chip.every").click()
    check_drawn(page, through[1:, 1:].mean(0).reshape(5, 7))
    assert readout(page).startswith("every place → most to row")
    assert page.locator(".chip.every").get_attribute("aria-pressed") == "true"
    assert page.locator(".chip.asks").get_attribute("aria-pressed") == "false"


def test_everything_works_from_the_keyboard(opened):
    maps = some_seen()
    page = opened(maps)
    page.locator(".tile[aria-pressed=true]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    assert title(page)[1] == "blocks.0.self_attn"
    weights, side = maps.weights("blocks.0.self_attn", head=0), maps.maps[0].keys
    page.locator(".over").focus()
    for key, place in (
        ("ArrowRight", 0), ("ArrowRight", 1), ("ArrowDown", 8), ("ArrowLeft", 7), ("ArrowLeft", 7), ("ArrowUp", 0),
        ("ArrowUp", 0), *(("ArrowRight", min(1 + i, 6)) for i in range(7)), *(("ArrowLeft", 5 - i) for i in range(6)),
    ):  # fmt: skip
        page.keyboard.press(key)
        check_drawn(page, over_picture(weights, side, side, query=place + 1))
        assert page.locator(".over").get_attribute("aria-label") == f"Self-attention, head 0: {side.name(place)}"
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    told, weight = readout(page).split("  ")
    assert told == "row 1, column 1 → row 1, column 2"
    assert float(weight) == pytest.approx(weights[1, 2], abs=1e-4)
    page.keyboard.press("Escape")
    check_drawn(page, over_picture(weights, side, side))
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # the switch
    assert page.locator(".over.bare").count() == 1
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
    choose(page, "Self-attention, head 1, blocks.0.self_attn")  # a finer grid
    weights, side = maps.weights("blocks.0.self_attn", head=1), first.keys
    rows = list(side.rows_GW.reshape(-1))
    for place in (0, 17, 34):
        point(page, (5, 7), place)
        check_drawn(page, over_picture(weights, side, side, query=rows.index(place)))
        assert np.isnan(drawn(page)).sum() == 35 - {0: 4, 17: 4, 34: 1}[place]
    page.locator(".over").click(position=at(page, (5, 7), 0))
    point(page, (5, 7), 2)
    assert readout(page) == "row 1, column 1 → row 1, column 3  outside its window"
    edges = page.locator(".over .window").get_attribute("d").split("M")[1:]
    assert len(edges) == 8  # a window of two by two has eight edges of cells
    assert "0.2857142857142857 0L0.2857142857142857 0.2" in edges
    choose(page, "Self-attention, head 1, blocks.1.self_attn")  # the same place on a coarser one
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
    choose(page, "Cross-attention, 0.say.w")
    weights = maps.weights("0.say.w", head=0)
    for i, word in enumerate(("w", "cw", "d")):
        page.locator(".chip.asks").nth(i).click()
        check_drawn(page, weights[i].reshape(3, 2))
        assert page.locator(".chip.asks[aria-pressed=true] bdi").text_content() == word
    point(page, (3, 2), 4)
    told, weight = readout(page).split("  ")
    assert told == "d → row 3, column 1"
    assert float(weight) == pytest.approx(weights[2, 4], abs=1e-4)


def test_a_place_tells_the_words_that_it_attends_to(opened):
    maps = some_pictures("w")
    page = opened(maps)
    choose(page, "Cross-attention, head 1, 0.hear.w")
    weights = maps.weights("0.hear.w", head=1)
    for place in (0, 5):
        point(page, (3, 2), place)
        told = [float(t) for t in page.locator(".chip.answers small").all_text_contents()]
        np.testing.assert_allclose(told, weights[place], rtol=0, atol=1e-4)
    away(page)
    told = [float(text) for text in page.locator(".chip.answers small").all_text_contents()]
    np.testing.assert_allclose(told, weights.mean(0), rtol=0, atol=1e-4)
    point(page, (3, 2), 5)
    assert readout(page).startswith(f"row 3, column 2 → most to {('w', 'cw', 'd')[int(weights[5].argmax())]}")


def test_texts_beside_pictures_are_read_as_a_matrix(opened):
    maps = some_pictures("w")
    page = opened(maps)
    choose(page, "Self-attention, head 1, 0.text.w")
    assert page.locator(".over").count() == 0
    told = cursor(page, 1, 2)
    assert told == f"cw → d  {weight_text(float(maps.weights('0.text.w', head=1)[1, 2]))}"
    page.keyboard.press("Escape")
    assert readout(page).startswith("A row is a token that attends")
    choose(page, "Cross-attention, 0.say.w")  # and back on the picture
    assert page.locator(".over").count() == 1


def test_places_are_read_as_a_matrix_too(opened):
    maps = some_seen(MiniWindows)
    page = opened(maps)
    tab(page, "Matrix")
    weights, side = maps.maps[1].mean().weights_HTS[0], maps.maps[1].keys
    query = side.rows_GW.shape[1] + 1  # the second row of the second window: its keys have names of their own
    told = cursor(page, query, 0)
    assert told == f"{side.names()[query]} → {maps.maps[1].key_name(query, 0)}  {weight_text(float(weights[query, 0]))}"
    page.keyboard.press("Enter")
    tab(page, "Picture")
    check_drawn(page, over_picture(weights, side, side, query=query))


def test_boxes_are_shaded_named_and_asked(opened):
    names = ("cat", "room", "ball")
    side = Boxes(0, ((0.1, 0.2, 0.5, 0.9), (0.0, 0.0, 1.0, 1.0), (0.6, 0.1, 0.9, 0.4)), names, ("all",))
    words = ("a", "b")
    maps = Maps(
        "t", "s", "", (
            AttentionMap("0.say", "cross", words, side, some_weights(2, 2, 4)),
            AttentionMap("0.look", "self", side, side, some_weights(1, 4, 4)),
        ), pictures=some_pictures().pictures,
    )  # fmt: skip
    page = opened(maps)
    mean = maps.maps[0].mean().weights_HTS[0]
    for row, word in enumerate(words):
        page.locator(".chip.asks").nth(row).click()
        shares = [float(box.get_attribute("fill-opacity")) for box in page.locator(".over .box").all()]
        np.testing.assert_allclose(shares, 0.75 * mean[row, 1:] / mean[row, 1:].max(), atol=0.002)
        point(page, (10, 10), 22)  # in the cat, which is in the room
        assert readout(page) == f"{word} → cat  {weight_text(float(mean[row, 1]))}"
        point(page, (10, 10), 99)
        assert readout(page) == f"{word} → room  {weight_text(float(mean[row, 2]))}"
    assert page.locator(".over .name").all_text_contents() == [*names]
    choose(page, "Self-attention, 0.look")
    weights = maps.maps[1].weights_HTS[0]
    point(page, (10, 10), 28)
    best = int(weights[3, 1:].argmax())
    assert readout(page) == f"ball → most to {names[best]}  {weight_text(float(weights[3, 1 + best]))}"


def test_the_picture_can_be_seen_without_shades(opened):
    page = opened(some_seen())
    under, over = page.locator(".under"), page.locator("canvas.shades")
    assert under.evaluate("e => getComputedStyle(e).filter") == "grayscale(1)"
    assert over.evaluate("e => getComputedStyle(e).opacity") == "0.88"
    page.get_by_label("shades over the picture").uncheck()
    assert under.evaluate("e => getComputedStyle(e).filter") == "none"
    assert over.evaluate("e => getComputedStyle(e).opacity") == "0"


def test_the_picture_keeps_its_shape_and_cells_cover_it(opened):
    page = opened(some_seen(size=(20, 28)))
    box, cells = (page.locator(name).bounding_box() for name in (".over", "canvas.shades"))
    assert box["width"] / box["height"] == pytest.approx(28 / 20, rel=0.01)
    assert cells == pytest.approx(box, abs=1)
    assert pixels(page.locator("canvas.shades")).shape == (5, 7, 4)


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
    some_seen().save(tmp_path / "page.html")
    watched.page.emulate_media(color_scheme=scheme)
    watched.open(tmp_path / "page.html")
    for name in ("Picture", "Heads", "Matrix"):
        tab(watched.page, name)
        check_contrasts(watched.page, at_least=15)
