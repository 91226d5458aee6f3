"""Training Transformer-base: real target tokens a second, ours against transformers' MarianMTModel, padded.

Both train on the same sentences (of one length, or with lengths drawn evenly from 8 to 56 tokens on each side), with
the same sizes, dropout, precision and fused Adam; one step of ours and one of theirs in turn, so that a machine's moods
meet both alike. A real token is one of the sentences; padding counts for nobody. It is a part of the suite, and alone:

    python -m benchmarks.ragged_training --rounds 7              # CPU
    python -m benchmarks.ragged_training --device cuda --precision bf16 --compile --sentences 400
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import steps
from benchmarks.limits import Limits
from benchmarks.results import Goal
from benchmarks.suite import Race, Round, Setting
from regard.attention import Segments
from regard.models.transformer import Transformer, TransformerConfig
from regard.training import hardware

BASE = {"embed_dim": 512, "mlp_dim": 2048, "num_heads": 8, "encoder_layers": 6, "decoder_layers": 6}
TINY = {"embed_dim": 32, "mlp_dim": 64, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
LENGTHS = (8, 56)
BATCHES = 8  # that many are drawn, and taken in turn by all contenders alike

Pairs = Sequence[tuple[np.ndarray, np.ndarray]]


def sentences(count: int, seed: int, vocabulary: int, lengths: tuple[int, int] = LENGTHS) -> Pairs:
    """Draw pairs of token sequences."""
    draws = np.random.default_rng(seed)
    sizes = draws.integers(lengths[0], lengths[1] + 1, (count, 2))
    return [(draws.integers(4, vocabulary, s), draws.integers(4, vocabulary, t)) for s, t in sizes]


def flat(pairs: Pairs, device: torch.device) -> tuple[Any, ...]:
    """Lay the batch out as rows and segments."""
    source, target = (torch.from_numpy(np.concatenate(side)).to(device) for side in zip(*pairs, strict=True))
    segments = [Segments.ragged([len(pair[side]) for pair in pairs], device) for side in (0, 1)]
    return source, segments[0], target, segments[1]


def padded(pairs: Pairs, device: torch.device, padding: int) -> dict[str, Tensor]:
    """Lay the batch out as a rectangle, with a mask and ignored labels."""

    def rectangle(arrays: Sequence[np.ndarray], fill: int) -> Tensor:
        rows = torch.full((len(arrays), max(map(len, arrays))), fill)
        for row, array in zip(rows, arrays, strict=True):
            row[: len(array)] = torch.from_numpy(array)
        return rows.to(device)

    sources, targets = zip(*pairs, strict=True)
    source, target = rectangle(sources, padding), rectangle(targets, padding)
    mask = (source != padding).long()
    labels = target.masked_fill(target == padding, -100)
    return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target, "labels": labels}


def ours(vocabulary: int, sizes: dict[str, int]) -> nn.Module:
    """Build Transformer-base of regard."""
    return Transformer(TransformerConfig(vocabulary, vocabulary, **sizes))


def theirs(vocabulary: int, sizes: dict[str, int]) -> nn.Module:
    """Build the same sizes of transformers' Marian (one more token: its padding)."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocabulary + 1,
        d_model=sizes["embed_dim"],
        encoder_layers=sizes["encoder_layers"],
        decoder_layers=sizes["decoder_layers"],
        encoder_ffn_dim=sizes["mlp_dim"],
        decoder_ffn_dim=sizes["mlp_dim"],
        encoder_attention_heads=sizes["num_heads"],
        decoder_attention_heads=sizes["num_heads"],
        activation_function="relu",
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        max_position_embeddings=64,
        pad_token_id=vocabulary,
        eos_token_id=0,
        forced_eos_token_id=0,
        decoder_start_token_id=vocabulary,
    )
    return MarianMTModel(config)


def row(
    setting: Setting,
    *,
    is_ragged: bool,
    count: int,
    precisions: Sequence[str] = ("fp32", "bf16"),
    compiles: bool = False,
    goals: Sequence[Goal] = (),
) -> Race:
    """Enter ours and transformers'.

    Args:
        setting: Of the run.
        is_ragged: Lengths differ.
        count: Sentences of a batch.
        precisions: Of the products.
        compiles: ``torch.compile``, ours block by block as regard's training does it, theirs whole.
        goals: What ours should reach.
    """
    vocabulary, sizes = (199, TINY) if setting.is_tiny else (32_000, BASE)
    lengths = LENGTHS if is_ragged else (32, 32)
    batches = [sentences(count, seed, vocabulary, lengths) for seed in range(BATCHES)]
    tokens = sum(len(target) for pairs in batches for _, target in pairs) / BATCHES
    name = f"Transformer-base, train, {'ragged' if is_ragged else 'full'}"
    shown = f"{lengths[0]} to {lengths[1]}" if is_ragged else f"{lengths[0]}"
    what = f"{count} sentences of {shown} tokens, 32 k vocabulary"
    suffix = ", compiled" if compiles else ""
    reference = f"transformers {precisions[0]}{suffix}"
    race = Race("train", name, "target tokens", tokens, reference, goals, what)

    def mine(precision: str) -> Round:
        model = ours(vocabulary, sizes)
        loss = steps.loss_of(model, setting, precision, compiles)
        turns = cycle([flat(pairs, setting.device) for pairs in batches])

        def of_batch() -> Tensor:
            source_M, source_segments, target_N, target_segments = next(turns)
            return loss(model(source_M, source_segments, target_N, target_segments), target_N)

        return steps.step(model, of_batch, setting, precision)

    def of_theirs(precision: str) -> Round:
        model = theirs(vocabulary, sizes).to(setting.device).train()
        quick: Callable[..., Any] = steps.compiled(setting)(model, dynamic=True) if compiles else model
        turns = cycle([padded(pairs, setting.device, vocabulary) for pairs in batches])
        return steps.step(model, lambda: quick(**next(turns)).loss, setting, precision)

    for precision in precisions:
        race.ours(f"regard {precision}{suffix}", partial(mine, precision))
    for precision in precisions:
        race.peer(f"transformers {precision}{suffix}", partial(of_theirs, precision))
    return race


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile both models")
    parser.add_argument("--sentences", type=int, default=48, help="sentences of a batch")
    parser.add_argument("--rounds", type=int, default=7, help="steps of each, in turn, after two that warm up")
    given = parser.parse_args()
    device = hardware.choose(given.device)
    with tempfile.TemporaryDirectory() as scratch:
        setting = Setting(device, Limits({}, 1.0), Path(scratch), rounds=given.rounds, row_s=float("inf"))
        race = row(setting, is_ragged=True, count=given.sentences, precisions=[given.precision], compiles=given.compile)
        found = race.run(setting)
    print(hardware.describe(device))
    for figure in found.figures:
        if figure.rate is None:
            raise SystemExit(f"{figure.name}: not measured ({figure.reason})")
        print(f"{figure.name:28} {figure.rate.median:10,.0f} real target tokens/s")
    times = found.times(found.figures[0].name, found.reference)
    assert times is not None, "both were measured"
    print(f"{'ratio':28} {times.median:10.2f}  (from {times.least:.2f} to {times.greatest:.2f})")
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
