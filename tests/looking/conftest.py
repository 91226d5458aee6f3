"""A browser for pages as a person opens them, and maps small enough to check by eye."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from regard.looking import AttentionMap, ByLength, Curve, Maps, Report, Sample, Score

_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("these tests need Debian's chromium: apt-get install -y chromium", pytrace=False)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=_ARGS)
        yield started
        started.close()


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

    def _refuse(self, dialog) -> None:
        self.seen.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: Path) -> None:
        self.requests.clear()
        self.page.goto(path.as_uri())

    def check_quiet(self, path: Path) -> None:
        """The page did nothing but load itself; pictures are in it."""
        assert self.seen == []
        assert [url for url in self.requests if not url.startswith("data:image/")] == [path.as_uri()]


@pytest.fixture(params=[1440, 360], ids=["desktop", "telephone"])
def watched(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": request.param, "height": 800})
    yield Watched(context)
    context.close()


def some_weights(num_heads: int, num_queries: int, num_keys: int) -> np.ndarray:
    weights = np.random.default_rng(5).random((num_heads, num_queries, num_keys)) ** 4
    return weights / weights.sum(-1, keepdims=True)


def some_maps(word: str = "x") -> Maps:
    """An encoder–decoder of two layers and two heads, three source and five target tokens; `word` in every place."""
    source, target = (word, f"a{word}", f"{word}b"), (word, f"c{word}", "d", "e", "f")
    maps = []
    for i in range(2):
        maps += [
            AttentionMap(f"encoder.{i}.{word}", "self", source, source, some_weights(2, 3, 3)),
            AttentionMap(f"decoder.{i}.self.{word}", "self", target, target, some_weights(2, 5, 5)),
            AttentionMap(f"decoder.{i}.cross.{word}", "cross", target, source, some_weights(2, 5, 3)),
        ]
    return Maps(word, word, word, tuple(maps), {word: word})


def some_report(word: str = "x") -> Report:
    """Everything a report can hold, with `word` in every place."""
    scores = [Score(word, 3.0, word, word, word, "lower"), Score(f"{word}2", 0.5, "", "", word)]
    return Report(
        title=word,
        command=word,
        started=word,
        seconds=61,
        hardware=word,
        settings={word: {word: word, "list": [word, 1, 2.5, None, True]}},
        curves=[Curve(word, [1, 2, 3], [3.0, 2.0, 1.5], word), Curve(f"{word}2", [1, 3], [3.0, 2.5], word)],
        scores=scores,
        baselines=[Score(word, 4.0, word, word, f"other {word}", "lower")],
        by_length=[ByLength(word, [word, f"{word} long"], [3, 4], {word: [1.0, 2.0], f"other {word}": [1.5, None]})],
        samples=[Sample(word, word, word, "right"), Sample(word, word, word, "wrong"), Sample(word, word, word)],
        maps=[some_maps(word)],
        notes=[word],
        lead=word,
        data={word: word},
    )
