"""The page of maps as tests use it: what it says, what is chosen, and the pixels of its canvases."""

import base64
from io import BytesIO

import numpy as np
from PIL import Image
from playwright.sync_api import Locator, Page

_PNG = """canvas => {
  const copy = Object.assign(document.createElement('canvas'), {width: canvas.width, height: canvas.height});
  copy.getContext('2d', {willReadFrequently: true}).drawImage(canvas, 0, 0);
  return copy.toDataURL('image/png').split(',')[1];
}"""


def readout(page: Page, pane: int = 0) -> str:
    return page.locator(".shown output").nth(pane).text_content() or ""


def title(page: Page) -> tuple[str | None, str | None]:
    return page.locator(".shown h2").first.text_content(), page.locator(".shown .about").first.text_content()


def choose(page: Page, name: str) -> None:
    page.locator(f'.tile[aria-label="{name}"]').click()


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def alphas(canvas: Locator) -> np.ndarray:
    """Opacity of every pixel, 0 to 255, once the canvas is drawn."""
    canvas.scroll_into_view_if_needed()
    handle = canvas.element_handle()
    canvas.page.wait_for_function("canvas => canvas.width > 0", arg=handle)
    return pixels(canvas)[..., 3]


def pixels(canvas: Locator) -> np.ndarray:
    """Red, green, blue, alpha of every pixel."""
    return np.asarray(Image.open(BytesIO(base64.b64decode(canvas.evaluate(_PNG)))).convert("RGBA"))


def settle(page: Page) -> None:
    """Two frames: what was asked for has come, and is drawn."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def cursor(page: Page, query: int, key: int) -> str:
    """Puts the (first) matrix's cursor on a cell with the arrow keys, and reads it once its row has come."""
    page.locator(".matrix").first.focus()
    page.keyboard.press("Escape")
    settle(page)
    at_rest = readout(page)
    for pressed in ("ArrowDown", *["ArrowDown"] * query, *["ArrowRight"] * key):
        page.keyboard.press(pressed)
    output = page.locator(".shown output").first.element_handle()
    page.wait_for_function("([output, before]) => output.textContent !== before", arg=[output, at_rest])
    settle(page)
    return readout(page)


def points(page: Page, step: int = 17) -> dict[str, tuple[float, float]]:
    """Moves the pointer over the whole matrix; gives each readout and a point where it was read."""
    box = page.locator(".matrix canvas").bounding_box()
    assert box is not None
    found: dict[str, tuple[float, float]] = {}
    for y in range(2, int(box["height"]), step):
        for x in range(2, int(box["width"]), step):
            page.mouse.move(box["x"] + x, box["y"] + y)
            found.setdefault(readout(page), (x, y))
    return found
