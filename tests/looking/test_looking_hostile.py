"""Strangers' text in every place of both pages: it stays text, in the file and in a browser."""

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from looking_examples import some_maps, some_pictures, some_report
from page_driver import cursor, tab
from payloads import PAYLOADS

from regard.looking import look_page, report_page
from regard.looking.heat import heat_map
from regard.looking.page import CSP
from regard.looking.svg import Bar, Series, bar_chart, grouped_bars, line_chart
from regard.looking.text import escape, token_label, visible, weight_text

PLAIN = "x"
VOID = {"meta", "link", "img", "input"}


class Structure(HTMLParser):
    """Elements and attributes of a page as a browser's tokenizer finds them, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: set[tuple[str, str]] = set()
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.other: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] in ("script", "style") else self.text).append(data)

    def handle_comment(self, data):
        self.other.append(data)

    def unknown_decl(self, data):
        self.other.append(data)

    def handle_pi(self, data):
        self.other.append(data)


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize(
    "draw",
    [lambda p: look_page(some_maps(p)), lambda p: look_page(some_pictures(p)), lambda p: report_page(some_report(p))],
    ids=["look", "picture", "report"],
)
def test_a_page_has_the_same_elements_whatever_its_text_says(draw, payload):
    page = draw(payload)
    found, plain = Structure(page), Structure(draw(PLAIN))
    assert found.open == []
    # Words decide where a name breaks and whether it is turned, so there may be more texts, and `transform` in them.
    assert [t for t in found.tags if t != "text"] == [t for t in plain.tags if t != "text"]
    assert found.attributes - plain.attributes <= {("text", "transform")}
    assert found.other == []
    assert found.scripts[-1] == plain.scripts[-1]  # the script that runs is always the same
    assert visible(payload) in "".join(found.text)
    page.encode("utf-8")


@pytest.mark.parametrize("payload", PAYLOADS)
def test_pictures_are_well_formed_whatever_their_labels_say(payload):
    pictures = [
        heat_map([[1.0, 0.0]], [payload], [payload, "b"], label=payload),
        line_chart([Series(payload, [1, 2], [1.0, 2.0])], x_label=payload, y_label=payload),
        line_chart([Series(payload, [1, 2], [1.0, 2.0])], x_label=payload, y_label=payload, width=340),
        bar_chart([Bar(payload, 1.0)], label=payload, unit=payload),
        grouped_bars([payload], [(payload, [1.0])], x_label=payload, y_label=payload),
    ]
    for picture in pictures:
        root = ET.fromstring(picture)  # a strict parser: any stray <, & or " is an error
        assert {e.tag for e in root.iter()} <= {"svg", "g", "rect", "line", "text", "title", "polyline", "circle"}
        assert not [name for e in root.iter() for name in e.attrib if name.startswith("on") or "href" in name]
    assert ET.fromstring(pictures[0]).get("aria-label") == visible(payload)
    assert ET.fromstring(pictures[0]).find("text").text == token_label(payload)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_is_escaped_has_nothing_left_to_hide(payload):
    safe = escape(payload)
    assert not re.search(
        r"[<>\"'\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]", safe
    )
    assert not re.search(r"&(?!amp;|lt;|gt;|quot;|#x27;)", safe)


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("draw", [some_maps, some_pictures], ids=["look", "picture"])
def test_data_in_the_page_cannot_end_its_element(draw, payload):
    store = look_page(draw(payload)).split('<script type="application/json" id="look">')[1].split("</script>")[0]
    assert not set(store) & set("<>&\u2028\u2029")
    run = json.loads(store)["runs"][0]
    assert run["title"] == payload
    assert payload in [token for side in run["sides"] for token in side.get("tokens", side.get("before"))]


def test_every_page_carries_the_policy_before_anything_it_could_load():
    look, report = look_page(some_maps()), report_page(some_report())
    for page in (look, report):
        head = page.index('<meta http-equiv="Content-Security-Policy" content="')
        assert head < min(page.index("<script"), page.index("<style"), page.index("<link"))
    assert CSP == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    assert f'content="{CSP}"' in report
    found = Structure(look)
    policy = look.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    allowed = re.findall(r"(script|style)-src 'sha256-([^']*)'", policy)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found.scripts]
    assert [(kind, hashes.index(value)) for kind, value in allowed] == [("script", 2), ("style", 0)]


@pytest.mark.slow
def test_a_browser_does_nothing_that_a_text_asks_for(watched, tmp_path):
    narrow = watched.page.viewport_size["width"] < 800
    for i, payload in enumerate(PAYLOADS[narrow::2]):  # every other one is opened on a telephone, the rest on a desk
        things = {"look": some_maps(payload), "picture": some_pictures(payload), "report": some_report(payload)}
        for name, thing in things.items():
            path = tmp_path / f"{name}{i}.html"
            thing.save(path)
            watched.open(path)
            watched.check_quiet(path)
            page = watched.page
            if name == "picture":  # the chip of a token that is a stranger's too
                page.locator('.tile[aria-label^="Self-attention, head 0, 0.look"]').click()
                page.locator(".chip.asks").click()
                assert page.locator(".chip.asks bdi").text_content() == token_label(payload, 40), payload
            if name == "look":  # titles, tokens and their weights are put in place by the script
                page.locator(".tile").nth(1).click()
                label, weight = token_label(payload), thing.weights(f"decoder.0.cross.{payload}", head=0)[0, 0]
                assert cursor(page, 0, 0) == f"{label} → {label}  {weight_text(weight)}", payload
                assert page.locator(".tokens .tok").first.text_content() == token_label(payload, 40), payload
            if name != "report":
                assert page.locator("h1").text_content() == visible(payload)
                for view in ("Heads", "Lines", "Details"):
                    tab(page, view)
                assert visible(payload) in page.locator(".details .pairs dd").all_text_contents()
            watched.check_quiet(path)
