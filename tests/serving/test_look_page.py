"""The served page as a person uses it, in a real browser: what it shows is what Python computes."""

import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import numpy as np
import pytest
from browsing import Watched
from looking_examples import a_png
from payloads import PAYLOADS
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect
from serving_tools import Live

import regard
from regard.attention import silence
from regard.looking import Maps
from regard.looking.masked import save_masked
from regard.looking.text import token_label, weight_text

TEXT = "Nobody sang yesterday."
CROSS = "Cross-attention, output to source"


class Served(Watched):
    """A page that may ask the server it came from, and nobody else."""

    def __init__(self, live: Live, browser: Browser, width: int) -> None:
        self.live = live
        self.context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True)
        super().__init__(self.context)
        self.page.set_default_timeout(20_000)
        self.page.goto(live.address)
        self.models().wait_for()

    def models(self) -> Locator:
        return self.page.get_by_role("combobox", name=re.compile("^Model"))

    def run(self, text: str, target: str = "", model: str = "marian") -> None:
        """Type an input and run it."""
        self.models().select_option(model)
        self.page.get_by_label(re.compile("^Text")).fill(text)
        self.page.get_by_label(re.compile("^Output")).fill(target)
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.settle()

    def settle(self) -> None:
        """Wait until nothing runs."""
        self.page.wait_for_timeout(400)  # heads that are switched are run after a quarter of a second
        expect(self.page.locator("form.ask-form")).to_have_attribute("aria-busy", "false")

    def forgive(self, status: int) -> None:
        """Forget the browser's own note of an answer that refuses."""
        note = f"status of {status}"
        assert [one for one in self.seen if note in one]
        self.seen = [one for one in self.seen if note not in one]

    def readout(self) -> str:
        return self.page.locator("output").first.inner_text()

    def check_quiet(self, path=None) -> None:
        assert self.seen == []
        strange = [url for url in self.requests if not url.startswith((self.live.address, "data:image/", "blob:"))]
        assert strange == []


@pytest.fixture(params=[1440, 360], ids=["desktop", "telephone"])
def served(live: Live, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Served]:
    page = Served(live, browser, request.param)
    yield page
    page.check_quiet()
    page.context.close()


@pytest.fixture(scope="module")
def model(marian):
    return regard.load(marian)


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def choose(page: Page, title: str) -> None:
    """Choose a map of the grid."""
    tab(page, "Heads") if page.viewport_size["width"] < 800 else None
    page.locator(".tile").and_(page.get_by_label(re.compile(f"^{re.escape(title)}"))).first.click()


def expected_row(maps: Maps, layer: str, head: int | None, query: int) -> list[str]:
    one = next(one for one in maps.maps if one.layer == layer)
    weights_TS = one.mean().weights_HTS[0] if head is None else one.weights_HTS[head]
    queries, keys = one.query_tokens, one.key_tokens
    return [
        f"{token_label(queries[query])} → {token_label(key)}  {weight_text(float(weight))}"
        for key, weight in zip(keys, weights_TS[query], strict=True)
    ]


def read_row(served: Served, query: int, count: int) -> list[str]:
    """Walk along a row of the matrix with the arrow keys."""
    matrix = served.page.get_by_role("application", name=re.compile("weights"))
    matrix.focus()
    served.page.keyboard.press("Escape")
    served.page.keyboard.press("ArrowRight")  # the first cell
    for _ in range(query):
        served.page.keyboard.press("ArrowDown")
    found = []
    for key in range(count):
        if key:
            served.page.keyboard.press("ArrowRight")
        served.page.wait_for_timeout(60)
        found.append(served.readout())
    return found


def test_an_input_is_typed_run_and_its_weights_read_exactly(served, model):
    served.run(TEXT)
    shown = regard.look(model, TEXT)
    expect(served.page.get_by_role("heading", level=1)).to_have_text(TEXT)
    expect(served.page.locator("main")).to_contain_text(shown.output)
    assert served.live.host in served.page.url
    choose(served.page, "Cross-attention, head 1")
    tab(served.page, "Matrix")
    for query in (0, 2):
        wanted = expected_row(shown, "decoder.0.cross_attn", 1, query)
        assert read_row(served, query, 5) == wanted[:5]
    choose(served.page, "Cross-attention, mean")
    tab(served.page, "Matrix")
    assert read_row(served, 1, 4) == expected_row(shown, "decoder.0.cross_attn", None, 1)[:4]


def test_pointing_at_a_cell_reads_it(served, model):
    served.run(TEXT, "Her two brothers")
    shown = regard.look(model, TEXT, target="Her two brothers")
    tab(served.page, "Matrix")
    canvas = served.page.locator(".matrix canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    rows = range(len(shown.maps[-1].query_tokens))
    every = {text for query in rows for text in expected_row(shown, "decoder.0.cross_attn", None, query)}
    found = set()
    for part in (0.55, 0.7, 0.85):
        served.page.mouse.move(box["x"] + part * box["width"] * 0.98, box["y"] + part * box["height"])
        served.page.wait_for_timeout(120)
        found.add(served.readout())
    assert found & every
    assert all(text in every or text.startswith("A row is a token") for text in found)


def test_a_head_switched_off_changes_output_and_scores_and_comes_back(served, model):
    served.run(TEXT, "sold")
    whole = regard.look(model, TEXT, target="sold").scores["log-probability"]
    with silence(model.model, {"decoder.0.cross_attn": [1]}):
        masked = regard.look(model, TEXT, target="sold").scores["log-probability"]
    if served.page.viewport_size["width"] < 800:
        tab(served.page, "Heads")
    served.page.get_by_role("switch", name=re.compile(r"^Cross-attention, head 1")).first.click()
    served.settle()
    scores = served.page.locator("dl.scores").first
    expect(scores).to_contain_text(f"{masked:.4f}".replace("-", "−"))
    change = masked - whole
    expect(scores).to_contain_text(f"{'+' if change >= 0 else '−'}{abs(change):.4f}")
    expect(served.page.get_by_label(re.compile("Cross-attention, head 1.*, off$"))).to_be_attached()
    served.page.get_by_role("button", name="All on").click()
    served.settle()
    expect(scores).to_contain_text(f"{whole:.4f}".replace("-", "−"))


def test_the_masked_model_is_saved(served, model):
    served.run(TEXT)
    if served.page.viewport_size["width"] < 800:
        tab(served.page, "Heads")
    served.page.get_by_role("switch", name=re.compile(r"^Cross-attention, head 0")).first.click()
    served.settle()
    name = f"masked-{served.page.viewport_size['width']}"
    served.page.get_by_label("Save the model without them as").fill(name)
    served.page.get_by_role("button", name="Save", exact=True).click()
    told = served.page.get_by_text("Saved in")
    told.wait_for()
    path = told.locator(".mono").inner_text()
    with silence(model.model, {"decoder.0.cross_attn": [0]}):
        wanted = regard.look(model, TEXT, target="sold").scores
    assert regard.look(regard.load(path), TEXT, target="sold").scores == pytest.approx(wanted)
    served.page.get_by_role("button", name="Save", exact=True).click()  # it is there now
    expect(served.page.get_by_role("alert")).to_contain_text(name)
    served.forgive(422)


def test_steps_are_chosen_by_keys_and_undone(served, model):
    served.run(TEXT)
    served.page.get_by_role("button", name="Step by step").click()
    steps = served.page.get_by_role("application", name="Step by step")
    expect(steps.get_by_role("heading")).to_have_text("Step 1")
    first = regard.looking.doing.next_tokens(model, TEXT, [], 8).candidates
    expect(steps.get_by_role("listitem").first).to_contain_text(f"{first[0].probability:.4f}")
    steps.focus()
    served.settle()
    served.page.keyboard.press("2")
    served.settle()
    expect(steps.get_by_role("heading")).to_have_text("Step 2")
    second = regard.looking.doing.next_tokens(model, TEXT, [first[1].token], 8).candidates
    expect(steps.get_by_role("listitem").first).to_contain_text(f"{second[0].probability:.4f}")
    served.page.keyboard.press("Enter")
    served.settle()
    expect(steps.get_by_role("heading")).to_have_text("Step 3")
    served.page.keyboard.press("Backspace")
    expect(steps.get_by_role("heading")).to_have_text("Step 2")
    served.page.get_by_role("button", name="Leave").click()
    served.settle()
    expect(steps).to_have_count(0)


def test_two_inputs_are_compared_side_by_side(served, model):
    served.run(TEXT, "sold")
    served.page.get_by_role("button", name="Pin to compare").click()
    served.run("The committee voted against it.", "sold")
    headings = served.page.get_by_role("heading", level=1)
    expect(headings).to_have_count(2)
    assert set(headings.all_inner_texts()) == {TEXT, "The committee voted against it."}
    first, second = (
        regard.look(model, text, target="sold").scores["log-probability"]
        for text in (TEXT, "The committee voted against it.")
    )
    expect(served.page.locator("main")).to_contain_text(f"{abs(second - first):.4f}")
    served.page.get_by_role("button", name="Unpin").click()
    expect(headings).to_have_count(1)


def test_two_models_are_compared_from_the_beginning(marian, browser, tmp_path):
    other = tmp_path / "other"
    save_masked(marian, {"decoder.0.cross_attn": [0, 1]}, other)
    live = Live([str(marian), TEXT, "--against", str(other), "--target", "sold", "--no-browser"])
    try:
        served = Served(live, browser, 1440)
        expect(served.page.get_by_role("heading", level=1)).to_have_count(2)
        scores = [regard.look(path, TEXT, target="sold").scores["log-probability"] for path in (marian, other)]
        assert scores[0] != pytest.approx(scores[1])
        for name, score in zip(("marian", "other"), scores, strict=True):
            expect(served.page.locator("main")).to_contain_text(name)
            expect(served.page.locator("main")).to_contain_text(f"{score:.4f}".replace("-", "−"))
        served.check_quiet()
        served.context.close()
    finally:
        live.stop()


def test_downloads_hold_what_is_shown(served, model):
    served.run(TEXT, "sold")
    tab(served.page, "Matrix")
    found = {}
    for kind in ("PNG", "SVG", "JSON"):
        with served.page.expect_download() as waiting:
            served.page.get_by_role("group", name="Download").get_by_text(kind, exact=True).click()
        found[kind] = waiting.value.path().read_bytes()
    image = Image.open(io.BytesIO(found["PNG"]))
    assert len(image.convert("RGB").getcolors(1 << 24)) > 8
    svg = ET.fromstring(found["SVG"].decode())
    assert svg.tag.endswith("svg")
    assert not [one for one in svg.iter() if one.tag.endswith(("script", "foreignObject"))]
    shown = regard.look(model, TEXT, target="sold")
    stored = Maps.from_json(found["JSON"].decode())
    assert stored.layers == shown.layers
    for ours, theirs in zip(stored.maps, shown.maps, strict=True):
        np.testing.assert_allclose(ours.weights_HTS, theirs.weights_HTS, rtol=0, atol=1e-6)


def test_everything_can_be_done_with_keys_alone(served, model):
    page, pressed = served.page, 0

    def reach(what: str) -> None:
        """Press Tab until the focus is on something whose name or label begins so."""
        nonlocal pressed
        for _ in range(80):
            page.keyboard.press("Tab")
            pressed += 1
            name = page.evaluate(
                "() => { const e = document.activeElement; "
                "return e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText || ''; }"
            )
            if name.startswith(what):
                return
        raise AssertionError(f"{what} cannot be reached")

    served.models().select_option("marian")
    page.evaluate("document.activeElement.blur()")
    reach("Text")
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    served.settle()
    reach("Matrix")
    page.keyboard.press("Home")
    expect(page.get_by_role("tab", name="Heads")).to_have_attribute("aria-selected", "true")
    reach("Cross-attention, mean")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Cross-attention, head 1")
    page.keyboard.press("x")
    served.settle()
    expect(page.get_by_role("group", name="Heads that are off")).to_be_visible()
    page.keyboard.press("x")
    served.settle()
    page.get_by_role("tab", name="Heads").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Matrix")).to_have_attribute("aria-selected", "true")
    wanted = expected_row(regard.look(model, TEXT), "decoder.0.cross_attn", 1, 0)
    assert read_row(served, 0, 3) == wanted[:3]


def test_a_picture_is_looked_at(served, vit, tmp_path):
    path = tmp_path / "a disc.png"
    path.write_bytes(a_png(24, 24))
    served.models().select_option("vit")
    served.page.get_by_label("Picture").set_input_files(path)
    served.page.get_by_role("button", name="Run", exact=True).click()
    served.settle()
    expect(served.page.get_by_role("heading", level=1)).to_have_text("a disc.png")
    tab(served.page, "Picture")
    assert served.page.get_by_role("application").count() >= 1
    shown = regard.look(regard.load(vit), path)
    expect(served.page.locator("main")).to_contain_text(shown.output)


def test_what_is_refused_is_told_beside_its_field(served):
    served.models().select_option("marian")
    served.page.get_by_label(re.compile("^Text")).fill("nobody sang " * 100)
    served.page.get_by_role("button", name="Run", exact=True).click()
    expect(served.page.get_by_role("alert").first).to_contain_text("context is 128")
    served.forgive(413)
    served.run(TEXT)
    expect(served.page.get_by_role("heading", level=1)).to_have_text(TEXT)
    assert json.loads(served.live.ask("/api/models").body)


@pytest.mark.slow
def test_strangers_text_stays_text(served, vit, tmp_path):
    """As an input, an output, a file's name, and what the server says of it."""
    path = tmp_path / "picture.png"
    path.write_bytes(a_png(24, 24))
    data = path.read_bytes()
    served.run(TEXT, "sold")
    narrow = served.page.viewport_size["width"] < 800
    for number, payload in enumerate(PAYLOADS[narrow::2]):  # every other one on a telephone, the rest on a desk
        text = payload.replace("\0", "").strip()
        if number % 10 == 9:
            served.models().select_option("vit")
            name = text.encode("utf-8", "replace").decode()
            served.page.get_by_label("Picture").set_input_files({"name": name, "mimeType": "image/png", "buffer": data})
            served.page.get_by_role("button", name="Run", exact=True).click()
            served.settle()
            continue
        if any(0xD800 <= ord(c) < 0xE000 for c in text):
            continue  # no keyboard types it; the page is given it in the test of files
        served.run(text, text)
        if number % 10 < 4:
            tab(served.page, ("Heads", "Matrix", "Lines", "Details")[number % 10])
    served.seen = [one for one in served.seen if "the server responded with a status of 4" not in one]
    assert served.page.locator("main script, main iframe, main object, main base, main style").count() == 0
