"""A browser for pages as a person opens them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, sync_playwright

_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def started() -> Iterator[Browser]:
    """Start Debian's chromium; one for all tests of a process."""
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("these tests need Debian's chromium: apt-get install -y chromium", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGS)
        yield browser
        browser.close()


class Watched:
    """A browser context that writes down whatever a page should never do."""

    def __init__(self, context: BrowserContext) -> None:
        self.seen: list[str] = []
        self.requests: list[str] = []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.seen.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        self.page.on("dialog", self._refuse)
        self.page.on("popup", lambda page: self.seen.append(f"popup: {page.url}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _refuse(self, dialog: Dialog) -> None:
        self.seen.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: Path) -> None:
        self.requests.clear()
        self.page.goto(path.as_uri())

    def check_quiet(self, path: Path) -> None:
        """The page did nothing but load itself; pictures are in it."""
        assert self.seen == []
        assert [url for url in self.requests if not url.startswith("data:image/")] == [path.as_uri()]
