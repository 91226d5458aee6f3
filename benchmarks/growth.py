"""How time grows: with the length of a text, the number of texts, and the size of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import ours
from benchmarks.suite import Race, Round, Setting

REFERENCE = "transformers"


def rows(setting: Setting) -> Iterator[Race]:
    """GPT-2 reading longer and longer texts, writing more and more at once, and growing itself."""
    base = replace(ours.config(setting, "gpt"), num_layers=setting.size(6, 2), max_len=setting.size(2112, 256))
    for length in (128, 512, 2048) if not setting.is_tiny else (8, 16):
        name = f"Length: reading {length:,} tokens"
        yield _row(setting, name, "-growing", base, 1, length, 1, "GPT-2 with 6 layers")
    count = setting.size(16, 3)
    for batch in (1, 4, 16) if not setting.is_tiny else (1, 2):
        name = f"Batch: writing {batch} at once"
        yield _row(setting, name, "-growing", base, batch, 16, count, f"GPT-2 with 6 layers, {count} tokens each")
    sizes = ((256, 4), (512, 8), (1024, 16)) if not setting.is_tiny else ((32, 2),)
    for width, heads in sizes:
        settings = replace(base, embed_dim=width, num_heads=heads, num_layers=max(width // 64, 1), max_len=256)
        name = f"Size: width {width}, {settings.num_layers} layers, writing"
        yield _row(setting, name, f"-{width}", settings, 1, 16, count, f"{count} tokens")


def _row(setting: Setting, name: str, tag: str, settings: Any, batch: int, length: int, count: int, what: str) -> Race:
    amount = batch * (count if count > 1 else length)
    race = Race("growth", name, "tokens", amount, REFERENCE, (), what)
    race.rounds = 3
    prompts = ours.prompts(setting, "gpt", batch, length)

    def mine(precision: str) -> Round:
        model = ours.load(ours.public(setting, "gpt", settings, tag), setting.device, precision)
        return lambda: ours.greedy(model, prompts, count)

    def theirs() -> Round:
        from benchmarks.peers import hf

        model = hf.load("GPT2LMHeadModel", ours.public(setting, "gpt", settings, tag), setting.device, setting.dtype)
        return lambda: hf.greedy(model, prompts, count)

    for precision in ("fp32", "int8") if setting.device.type == "cpu" else ("bf16",):
        race.ours(f"regard {precision}", partial(mine, precision))
    race.peer(REFERENCE, theirs)
    return race
