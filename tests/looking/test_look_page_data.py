"""The page's own arithmetic and its words beside Python's, read off the page in a browser."""

import numpy as np
import pytest
from looking_examples import some_weights
from page_driver import alphas, choose, cursor, readout, settle
from payloads import PAYLOADS

from regard.looking import AttentionMap, Maps
from regard.looking.text import token_label, weight_text

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(watched, tmp_path):
    def open_map(*maps):
        Maps("t", "s", "o", maps).save(tmp_path / "page.html")
        watched.open(tmp_path / "page.html")
        return watched.page

    yield open_map
    watched.check_quiet(tmp_path / "page.html")


def test_weights_of_every_size_read_the_same(opened):
    # 1/32, 3/32, 5/32 lie exactly between two numbers of four decimals, where rounding differs between languages.
    row = np.array([0.65, 1 / 32, 3 / 32, 5 / 32, 0.00994, 0.00005, 0.0000081, 1e-9, 0.0])
    row[0] += 1 - row.sum()
    keys = tuple("abcdefghi")
    one = AttentionMap("l", "cross", ("q",), keys, np.stack([[row], [row[::-1]]]))
    page = opened(one)
    for head in (0, 1):
        choose(page, f"Cross-attention, head {head}, l")
        told = [cursor(page, 0, s) for s in range(9)]
        assert told == [
            f"q → {k}  {weight_text(float(w))}" for k, w in zip(keys, one.weights_HTS[head, 0], strict=True)
        ]


def test_tokens_are_named_the_same(opened):
    others = ("", " ", "a b", "x" * 39, "x" * 40, "x" * 41, "é" * 50, "🙂" * 45, "\u200d\u200c", "می‌شود", "\n\t\r")
    tokens = (*PAYLOADS, *others)
    page = opened(AttentionMap("l", "self", tokens, tokens, some_weights(1, len(tokens), len(tokens))))
    assert page.locator(".tokens .asks .tok").all_text_contents() == [token_label(t, 40) for t in tokens]
    for t in range(0, len(tokens), 7):
        page.locator(".tokens .asks .tok").nth(t).hover()
        assert readout(page).startswith(f"{token_label(tokens[t])} → ")


def test_the_mean_is_over_heads_that_attend(opened):
    weights = some_weights(3, 4, 5).astype(np.float64)
    weights[1, 2] = weights[0, 3] = weights[1, 3] = 0  # one head, then two, attend to nothing
    weights[:, 1] = 0
    one = AttentionMap("l", "cross", tuple("wxyz"), tuple("abcde"), weights)
    page, mean = opened(one), one.mean().weights_HTS[0]
    for t in range(4):
        for s in (0, 4):
            assert cursor(page, t, s) == f"{'wxyz'[t]} → {'abcde'[s]}  {weight_text(float(mean[t, s]))}"


def test_large_maps_are_pooled_to_the_largest_and_read_exactly(opened):
    count = 733
    tokens = tuple(f"t{i}" for i in range(count))
    weights = some_weights(2, count, count) ** 3
    weights /= weights.sum(-1, keepdims=True)
    one = AttentionMap("l.0", "self", tokens, tokens, weights)
    page = opened(one)  # over 2^20 weights: their square roots are stored, in 65,535 steps
    corners = np.arange(0, count, 8)
    pooled = np.array([[weights[1, y : y + 8, x : x + 8].max() for x in corners] for y in corners])
    tile = page.locator('.tile[aria-label="Self-attention, head 1, l.0"]')
    np.testing.assert_allclose(alphas(tile.locator("canvas")), 255 * pooled**0.7, rtol=0, atol=0.6)
    tile.click()
    page.locator(".steps input").fill("701")
    settle(page)
    order = np.argsort(-weights[1, 700], kind="stable")[:8]
    names = page.locator(".strongest bdi").all_text_contents()
    told = [float(text) for text in page.locator(".strongest li .figure").all_text_contents()]
    assert names == ["t700", *(f"t{s}" for s in order)]
    np.testing.assert_allclose(told, weights[1, 700, order], rtol=0, atol=1 / 65535 + 5e-5)
    page.get_by_label("list").fill("20")
    assert page.locator(".strongest li").count() == 20
