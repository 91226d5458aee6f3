"""A browser for pages as a person opens them."""

from collections.abc import Iterator

import pytest
from browsing import Watched
from playwright.sync_api import Browser


@pytest.fixture(params=[1440, 360], ids=["desktop", "telephone"])
def watched(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": request.param, "height": 800})
    yield Watched(context)
    context.close()
