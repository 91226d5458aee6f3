"""A map of 8,192 × 8,192 weights in the served page, in a real browser: how soon it is there, how smoothly it moves.

The map stands for one head of a language model: causal, each token looks at the first one, at those just before it and
at one far behind. It lies on disk, as a recorded one of that size does. Opening counts from the address typed to the
map drawn; moving is a drag of three seconds at a zoom at which the browser has to fetch parts of the map.

    python -m benchmarks.look_large
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from regard.looking import AttentionMap, Maps

ARGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
DRAG_S = 3.0
# The diagonal, and what is scattered below it.
DRAWN = """() => {
  const canvas = document.querySelector('.matrix canvas');
  if (!canvas || canvas.width < 50) return false;
  const {width, height} = canvas, onto = canvas.getContext('2d');
  const {data} = onto.getImageData(width / 4, height / 4, width / 2, height / 2);
  let drawn = 0;
  for (let i = 4; i < data.length; i += 4) drawn += data[i] !== data[0] || data[i + 1] !== data[1] ? 1 : 0;
  return drawn > 400;
}"""
COUNT = """() => {
  window.frames_ = [];
  const count = now => { window.frames_.push(now); window.counting_ = requestAnimationFrame(count); };
  requestAnimationFrame(count);
}"""


def large_map(tokens: int) -> Maps:
    """Write the weights into a file without a name, and map it."""
    with tempfile.TemporaryFile() as file:
        rng = np.random.default_rng(0)
        for start in range(0, tokens, 256):
            rows = np.arange(start, min(start + 256, tokens))
            block = np.zeros((len(rows), tokens), np.float32)
            for i, t in enumerate(rows):
                block[i, max(0, t - 6) : t + 1] += 0.5 / min(t + 1, 7)
                block[i, 0] += 0.3
                block[i, int(rng.integers(0, t + 1))] += 0.2
            file.write(block.tobytes())
        file.flush()
        weights_HTS = np.memmap(file, np.float32, "r", shape=(1, tokens, tokens))
    names = tuple(f"w{i}" for i in range(tokens))
    return Maps("A long text", "A long text", "", (AttentionMap("0.self_attn", "self", names, names, weights_HTS),))


def serve_map(tokens: int) -> None:
    """Serve the map as `regard look` serves a run."""
    from regard.serving.listening import listen, names, serve
    from regard.serving.look import look_app
    from regard.serving.runs import Runs

    runs = Runs([], Path())
    number = runs.keep(large_map(tokens), "", None)
    taken = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    app = look_app(runs, [number], names("127.0.0.1", port, []))
    serve(app, taken, lambda: print(f"page: http://127.0.0.1:{port}/", flush=True))


def drag(page: Page) -> dict[str, float]:
    """Move the map for three seconds; count the frames that the browser draws."""
    box = page.locator(".matrix canvas").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(COUNT)
    begin, step = time.monotonic(), 0
    while time.monotonic() - begin < DRAG_S:
        step += 1
        far = 220 * np.sin(step / 25)
        page.mouse.move(x + far, y + far * 0.7)
    found = page.evaluate("() => { cancelAnimationFrame(window.counting_); return window.frames_; }")
    page.mouse.up()
    gaps = np.diff(found)
    return {
        "frames_per_s": 1000 * len(gaps) / (found[-1] - found[0]),
        "slowest_frame_ms": float(gaps.max()),
        "p95_frame_ms": float(np.quantile(gaps, 0.95)),
        "moves": step,
    }


class _Ending:
    """Ends a server, whatever happened."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self.close = server.terminate


def measure(tokens: int, width: int = 1440) -> dict[str, Any]:
    """Serve the map, open it, move it."""
    command = [sys.executable, "-m", "benchmarks.look_large", "--serve", "--tokens", str(tokens)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        contextlib.closing(_Ending(server)),
        sync_playwright() as playwright,
    ):
        assert server.stdout is not None
        address = server.stdout.readline().split()[1]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGS)
        page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
        page.goto("about:blank")
        begin = time.perf_counter()
        page.goto(address, wait_until="commit")
        while not page.evaluate(DRAWN):  # the page's policy forbids what a waiting browser would evaluate by itself
            if time.perf_counter() - begin > 60:
                raise TimeoutError("the map was not drawn within a minute")
            page.wait_for_timeout(20)
        opened = time.perf_counter() - begin
        fitted = drag(page)
        for _ in range(14):
            page.get_by_role("button", name="Enlarge").click()
        page.wait_for_timeout(500)
        enlarged = drag(page)
        heap = page.evaluate("() => performance.memory.usedJSHeapSize")
        browser.close()
    return {
        "tokens": tokens,
        "opened_s": opened,
        "whole": fitted,
        "enlarged": enlarged,
        "js_heap_MiB": heap / 2**20,
        "machine": platform.processor() or platform.machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--serve", action="store_true", help="serve the map alone")
    given = parser.parse_args()
    if given.serve:
        serve_map(given.tokens)
    else:
        print(json.dumps(measure(given.tokens), indent=1))


if __name__ == "__main__":
    main()
