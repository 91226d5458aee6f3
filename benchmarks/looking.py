"""Recording: a forward pass of twelve layers with the maps of one layer and one sequence, and without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks import ours
from benchmarks.limits import has_bf16
from benchmarks.results import Goal
from benchmarks.suite import Race, Round, Setting
from regard.attention import Segments, record

RECORDED, EAGER, PLAIN = (
    "regard, one layer and sequence recorded",
    "transformers eager, all maps",
    "regard, not recording",
)
NARROW, NARROW_EAGER = "regard bf16, one layer and sequence recorded", "transformers bf16 eager, all maps"


def rows(setting: Setting) -> Iterator[Race]:
    """GPT-2's size over one text on a CPU, several on a GPU."""
    length = setting.size(2048, 24)
    batch = setting.size(8, 2) if setting.device.type == "cuda" else 1
    settings = replace(ours.config(setting, "gpt"), max_len=length)
    is_narrow_too = setting.device.type == "cpu" and has_bf16()  # on a GPU all is
    goals = [Goal(RECORDED, EAGER, 4.0), Goal(RECORDED, PLAIN, 1 / 1.1)]
    if is_narrow_too:
        goals += [Goal(NARROW, EAGER, 4.0), Goal(NARROW, NARROW_EAGER, 4.0)]
    what = f"{batch} text{'s' if batch > 1 else ''} of {length:,} tokens, {settings.num_layers} layers"
    race = Race("recording", "Forward with attention maps", "tokens", batch * length, EAGER, goals, what)
    tokens_BT = ours.prompts(setting, "gpt", batch, length)
    tokens_N = tokens_BT.flatten()
    segments = Segments.uniform(batch, length, setting.device)

    def mine(records: bool, precision: str = "fp32") -> Round:
        model = ours.load(ours.public(setting, "gpt", settings, "-long"), setting.device, precision)

        def run() -> object:
            with torch.inference_mode():
                if not records:
                    return model(tokens_N, segments)
                with record(model, "blocks.1.self_attn", sequences=[0]) as rows:
                    model(tokens_N, segments)
                return rows

        return run

    def theirs(maps: bool, dtype: torch.dtype = setting.dtype) -> Round:
        from benchmarks.peers import hf

        folder = ours.public(setting, "gpt", settings, "-long")
        kind = "eager" if maps else "sdpa"
        model = hf.load("GPT2Model", folder, setting.device, dtype, kind)

        def run() -> object:
            with torch.inference_mode():
                return model(tokens_BT, output_attentions=maps, use_cache=False)

        return run

    race.ours(RECORDED, lambda: mine(True))
    race.ours(PLAIN, lambda: mine(False))
    race.peer(EAGER, lambda: theirs(True))
    race.peer("transformers sdpa, no maps", lambda: theirs(False))
    if is_narrow_too:
        race.ours(NARROW, lambda: mine(True, "bf16"))
        race.peer(NARROW_EAGER, lambda: theirs(True, torch.bfloat16))
    yield race
