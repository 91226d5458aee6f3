"""Training Transformer-base on ragged batches: real tokens a second, ours against transformers' MarianMTModel, padded.

Both train on the same sentences (lengths drawn evenly from 8 to 56 tokens on each side), with the same sizes, dropout,
precision and fused Adam; one step of ours and one of theirs in turn, so that a machine's moods meet both alike. A real
token is one of the sentences; padding counts for nobody.

    python -m benchmarks.ragged_training --rounds 7              # CPU
    python -m benchmarks.ragged_training --device cuda --precision bf16 --compile --sentences 400
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from regard.attention import Segments
from regard.layers.block import Block
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.task import cross_entropy
from regard.training import hardware

VOCABULARY = 32_000
PAD = VOCABULARY


def sentences(count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw pairs of token sequences with lengths from 8 to 56."""
    draws = np.random.default_rng(seed)
    sizes = draws.integers(8, 57, (count, 2))
    return [(draws.integers(4, VOCABULARY, s), draws.integers(4, VOCABULARY, t)) for s, t in sizes]


def flat(pairs: Sequence[tuple[np.ndarray, np.ndarray]], device: torch.device) -> tuple[Any, ...]:
    """Lay the batch out as rows and segments."""
    source, target = (torch.from_numpy(np.concatenate(side)).to(device) for side in zip(*pairs, strict=True))
    segments = [Segments.ragged([len(pair[side]) for pair in pairs], device) for side in (0, 1)]
    return source, segments[0], target, segments[1]


def padded(pairs: Sequence[tuple[np.ndarray, np.ndarray]], device: torch.device) -> dict[str, Tensor]:
    """Lay the batch out as a rectangle, with a mask and ignored labels."""

    def rectangle(arrays: Sequence[np.ndarray], fill: int) -> Tensor:
        rows = torch.full((len(arrays), max(map(len, arrays))), fill)
        for row, array in zip(rows, arrays, strict=True):
            row[: len(array)] = torch.from_numpy(array)
        return rows.to(device)

    sources, targets = zip(*pairs, strict=True)
    source, target = rectangle(sources, PAD), rectangle(targets, PAD)
    mask = (source != PAD).long()
    labels = target.masked_fill(target == PAD, -100)
    return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target, "labels": labels}


def ours() -> nn.Module:
    """Build Transformer-base of regard."""
    return Transformer(TransformerConfig(VOCABULARY, VOCABULARY))


def theirs() -> nn.Module:
    """Build the same sizes of transformers' Marian (one more token: its padding)."""
    config = MarianConfig(
        vocab_size=VOCABULARY + 1,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        activation_function="relu",
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        max_position_embeddings=64,
        pad_token_id=PAD,
        eos_token_id=0,
        forced_eos_token_id=0,
        decoder_start_token_id=PAD,
    )
    return MarianMTModel(config)


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile both models")
    parser.add_argument("--sentences", type=int, default=48, help="sentences of a batch")
    parser.add_argument("--rounds", type=int, default=7, help="steps of each, in turn; the first two are not counted")
    arguments = parser.parse_args()
    device = hardware.choose(arguments.device)
    models = {"regard": ours().to(device).train(), "transformers": theirs().to(device).train()}
    optimizers = {name: torch.optim.Adam(m.parameters(), 1e-4, fused=True) for name, m in models.items()}

    criterion: Callable = cross_entropy
    their_loss: Callable = models["transformers"]
    if arguments.compile:  # ours as regard's training does it, theirs whole, from token ids to the loss
        for block in (module for module in models["regard"].modules() if isinstance(module, Block)):
            block.compile(dynamic=True)
        criterion, their_loss = (torch.compile(part, dynamic=True) for part in (criterion, their_loss))

    def loss_of(name: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Tensor:
        if name == "transformers":
            return their_loss(**padded(pairs, device)).loss
        source_M, source_segments, target_N, target_segments = flat(pairs, device)
        hidden_ND = models["regard"](source_M, source_segments, target_N, target_segments)
        return criterion(models["regard"].head(hidden_ND), target_N, 0.0).sum / len(target_N)

    def step(name: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=arguments.precision == "bf16"):
            loss = loss_of(name, pairs)
        loss.backward()
        optimizers[name].step()
        optimizers[name].zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    seconds: dict[str, list[float]] = {name: [] for name in models}
    counts = []
    for number in range(arguments.rounds):
        pairs = sentences(arguments.sentences, number)
        counts.append(sum(len(target) for _, target in pairs))
        for name in models:
            seconds[name].append(step(name, pairs))
    rates = {name: [n / s for n, s in zip(counts, of, strict=True)][2:] for name, of in seconds.items()}
    ratios = [a / b for a, b in zip(rates["regard"], rates["transformers"], strict=True)]
    print(f"{hardware.describe(device)}; transformers {transformers.__version__}; {arguments.precision}")
    for name, values in rates.items():
        print(f"{name:13} {statistics.median(values):10,.0f} real target tokens/s")
    print(f"ratio         {statistics.median(ratios):10.2f}  (from {min(ratios):.2f} to {max(ratios):.2f})")
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(json.dumps({"tokens_per_s": medians, "ratio": statistics.median(ratios), **vars(arguments)}))


if __name__ == "__main__":
    main()
