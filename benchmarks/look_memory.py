"""Looking at every head of a GPT-2 of 124 million parameters over 1,024 tokens: peak memory; and what recording costs.

Memory: in a fresh process, above what the loaded model holds, while the maps of all layers are made and every head is
read once; and then while the page's server gives each head's thumbnail, all its tiles and a row of it. Time: one layer
of twelve recorded as it is for a page, beside the forward pass alone, in turn, so that a machine's moods meet both
alike; what counts is the processor's time, the clock's is told beside it. The weights are random: neither memory nor
time depends on them.

    python -m benchmarks.look_memory --rounds 9
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import models, pre_tokenizers

from regard.attention import Segments, record
from regard.decoding import DecodeOptions
from regard.looking.reading import look
from regard.looking.spill import Sheets
from regard.looking.tiles import TILE
from regard.models.registry import families
from regard.serving.runs import Runs
from regard.tasks.generator import Generator
from regard.tasks.public_text import PublicVocabulary

MOST_BYTES = 1 << 30
MOST_COST = 0.15
FIELDS = ("VmRSS", "VmHWM", "RssAnon", "RssFile")


def status() -> dict[str, int]:
    """Memory of this process in bytes, as the kernel counts it."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) * 1024 for name in FIELDS}


class Peaks(threading.Thread):
    """The most of each kind of memory, looked up every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.done = status(), threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.005):
            self.most = {name: max(value, self.most[name]) for name, value in status().items()}


def generator(tokens: int) -> Generator:
    """Build the model, with a vocabulary of as many words as it has tokens."""
    size = next(size for one in families().values() for size in one.sizes if size.name == "gpt2")
    one = next(one for one in families().values() if size in one.sizes)
    torch.manual_seed(0)
    inner = tokenizers.Tokenizer(models.WordLevel({f"w{n}": n for n in range(size.config.vocab_size)}, "w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    vocabulary = PublicVocabulary(inner, None, [0])
    return Generator(one.build(size.config), vocabulary, DecodeOptions(length_penalty=0.0), tokens)


def text(tokens: int, seed: int = 0) -> str:
    return " ".join(f"w{n}" for n in np.random.default_rng(seed).integers(1, 50_000, tokens))


def memory(product: Generator, tokens: int) -> dict[str, float]:
    """Look, read every head, and tell the peaks above the loaded model in MiB."""
    before = status()
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    peaks = Peaks()
    peaks.start()
    begin = time.perf_counter()
    maps = look(product, text(tokens), target="")
    made = time.perf_counter() - begin
    total = 0.0
    for layer in maps.layers:
        for head in range(len(maps.weights(layer))):
            total += float(maps.weights(layer, head).sum(dtype=np.float64))
    # What the page asks for: each head's thumbnail, its tiles at full size, and a row.
    runs = Runs([], Path())
    number, tiles = runs.keep(maps, "", None), range(-(-tokens // TILE))
    for i, one in enumerate(maps.maps):
        for head in ("mean", *range(len(one.weights_HTS))):
            runs.tile(number, f"{i}.{head}", (tokens // 96).bit_length(), 0, 0)
            for y, x in itertools.product(tiles, tiles):
                runs.tile(number, f"{i}.{head}", 0, y, x)
            runs.row(number, f"{i}.{head}", tokens - 1)
    peaks.done.set()
    peaks.join()
    rows = sum(one.weights_HTS.shape[0] * one.weights_HTS.shape[1] for one in maps.maps)
    assert abs(total - rows) < 1e-3 * rows, (total, rows)
    after = {name: max(peaks.most[name], value) for name, value in status().items()}
    return {
        "weights_MiB": sum(one.weights_HTS.nbytes for one in maps.maps) / 2**20,
        "model_VmRSS_MiB": before["VmRSS"] / 2**20,
        "peak_above_model_MiB": (after["VmHWM"] - before["VmRSS"]) / 2**20,
        "RssAnon_above_model_MiB": (after["RssAnon"] - before["RssAnon"]) / 2**20,
        "RssFile_above_model_MiB": (after["RssFile"] - before["RssFile"]) / 2**20,
        "seconds": made,
    }


def cost(product: Generator, tokens: int, rounds: int) -> dict[str, Any]:
    """Time the forward pass alone and with one layer recorded, in turn."""
    tokens_N = torch.tensor(product.tokenizer.encode(text(tokens)))
    names = [name for name, _ in product.model.named_modules() if name.endswith("self_attn")]
    walls: dict[str, list[float]] = {"plain": [], "recorded": []}
    times: dict[str, list[float]] = {"plain": [], "recorded": []}
    with torch.inference_mode():
        for number in range(rounds + 1):
            for kind in ("plain", "recorded") if number % 2 else ("recorded", "plain"):
                wall, begin = time.perf_counter(), time.process_time()
                if kind == "plain":
                    product.model(tokens_N, Segments.ragged([tokens]))
                else:
                    with record(product.model, names[number % len(names)], sink=Sheets(tokens)):
                        product.model(tokens_N, Segments.ragged([tokens]))
                times[kind].append(time.process_time() - begin)
                walls[kind].append(time.perf_counter() - wall)
    found: dict[str, Any] = {"rounds": rounds}
    for name, values in (("cpu", times), ("wall", walls)):
        plain, recorded = values["plain"][1:], values["recorded"][1:]  # the first round warms up
        costs = [one / other - 1 for one, other in zip(recorded, plain, strict=True)]
        found[f"{name}_forward_s"], found[f"{name}_recorded_s"] = statistics.median(plain), statistics.median(recorded)
        found[f"{name}_cost_median"], found[f"{name}_cost_from_to"] = statistics.median(costs), [min(costs), max(costs)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9, help="0 leaves the times out")
    arguments = parser.parse_args()
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ": unknown")
    hardware = {
        "cpu": cpu.split(":", 1)[1].strip() or platform.machine(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
    }
    product = generator(arguments.tokens)
    print(json.dumps({"hardware": hardware}))
    found = memory(product, arguments.tokens)
    print(json.dumps({"memory": found}))
    fits = found["peak_above_model_MiB"] * 2**20 <= MOST_BYTES
    if arguments.rounds:
        timed = cost(product, arguments.tokens, arguments.rounds)
        print(json.dumps({"time": timed}))
        fits = fits and timed["cpu_cost_median"] <= MOST_COST
    if not fits:
        raise SystemExit("more than it may be")


if __name__ == "__main__":
    main()
