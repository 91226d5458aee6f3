"""Training: steps of GPT-2, of Transformer-base and of a small model; the optimizer and the loss alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import ours, ragged_training, steps
from benchmarks.limits import has_bf16
from benchmarks.results import Goal
from benchmarks.suite import Race, Round, Setting
from regard.attention import Segments
from regard.models.registry import family
from regard.models.transformer import Transformer, TransformerConfig
from regard.training import optimizers
from regard.training.config import TrainingConfig


def gpt2(
    setting: Setting,
    batch: int,
    length: int,
    *,
    precisions: tuple[str, ...],
    compiles: tuple[bool, ...],
    goals: list[Goal],
) -> Race:
    """Training GPT-2: ours, transformers and the plain model, eager and compiled."""
    settings = ours.config(setting, "gpt")
    ids_BT = ours.prompts(setting, "gpt", batch, length)
    what = f"{batch} texts of {length:,} tokens"
    reference = f"transformers {precisions[0]}"
    race = Race("train", "GPT-2 124M, train", "tokens", batch * length, reference, goals, what)
    flops = gpt2_flops(settings, batch, length)

    def mine(precision: str, compile_: bool) -> Round:
        model = family("gpt").build(settings)
        loss = steps.loss_of(model, setting, precision, compile_)
        segments = Segments.uniform(batch, length, setting.device)
        tokens_N = ids_BT.flatten()
        return steps.step(model, lambda: loss(model(tokens_N, segments), tokens_N), setting, precision)

    def theirs(precision: str, compile_: bool) -> Round:
        from benchmarks.peers import hf

        model = hf.load("GPT2LMHeadModel", ours.public(setting, "gpt"), setting.device).train()
        quick = steps.compiled(setting)(model) if compile_ else model
        return steps.step(model, lambda: quick(ids_BT, labels=ids_BT).loss, setting, precision)

    def plain(precision: str, compile_: bool) -> Round:
        from benchmarks.peers.plain import PlainGPT

        c = settings
        model = PlainGPT(c.vocab_size, c.max_len, c.embed_dim, c.num_heads, c.num_layers).to(setting.device)
        quick = steps.compiled(setting)(model) if compile_ else model
        return steps.step(model, lambda: quick(ids_BT), setting, precision)

    for name, make in (("regard", mine), ("transformers", theirs), ("plain model", plain)):
        for precision in precisions:
            limit = setting.limits.seconds(flops, 0, precision) if precision in setting.limits.flops else None
            enter = race.ours if make is mine else race.peer
            for compile_ in compiles:
                shown = f"{name} {precision}{', compiled' if compile_ else ''}"
                enter(shown, partial(make, precision, compile_), limit_s=limit)
    return race


def gpt2_flops(c: Any, batch: int, length: int) -> float:
    """Operations of a step's products, forward and backward; half of attention's, the causal half, counts."""
    matrices = c.num_layers * 12 * c.embed_dim**2 + c.vocab_size * c.embed_dim
    attention = c.num_layers * 2 * length * c.embed_dim
    return 3 * batch * length * (2 * matrices + attention)


def rows(setting: Setting) -> Iterator[Race]:
    """Steps on a CPU."""
    bf16 = has_bf16()
    batch, length = setting.size(4, 2), setting.size(256, 20)
    goals = [Goal("regard bf16", "transformers fp32", 2.3)] if bf16 else []
    yield gpt2(setting, batch, length, precisions=("fp32", "bf16"), compiles=(False,), goals=goals)
    goals = [Goal("regard bf16", "transformers fp32", 2.0)] if bf16 else []
    yield ragged_training.row(setting, is_ragged=False, count=setting.size(32, 3), goals=goals)
    goals = [Goal("regard bf16" if bf16 else "regard fp32", "transformers fp32", 3.0)]
    yield ragged_training.row(setting, is_ragged=True, count=setting.size(48, 3), goals=goals)


def small(setting: Setting) -> Iterator[Race]:
    """A Transformer of a million parameters, from words of letters to sounds."""
    vocab, width, heads, layers, inner = (79, 128, 4, 2, 512) if not setting.is_tiny else (79, 16, 2, 1, 32)
    count = setting.size(128, 8)
    draws = np.random.default_rng(7)
    batches = []
    for _ in range(8):  # a sound for most letters
        letters = np.clip(np.round(draws.normal(8, 2, count)), 5, 12).astype(int)
        sounds = np.maximum(letters - draws.integers(0, 3, count), 3)
        batches.append(
            [(draws.integers(2, vocab, s), draws.integers(2, vocab, t)) for s, t in zip(letters, sounds, strict=True)]
        )
    tokens = sum(len(target) for pairs in batches for _, target in pairs) / len(batches)
    goals = [Goal("regard", "torch.nn.Transformer", 2.0)]
    what = f"{count} words of 5 to 12 letters"
    race = Race(
        "small", "1 M parameters, train", "target tokens", tokens * len(batches), "torch.nn.Transformer", goals, what
    )

    def mine() -> Round:
        sizes = {"embed_dim": width, "mlp_dim": inner, "num_heads": heads}
        model = Transformer(
            TransformerConfig(vocab, vocab, **sizes, encoder_layers=layers, decoder_layers=layers, dropout=0.1)
        )
        loss = steps.loss_of(model, setting)
        turns = cycle([ragged_training.flat(pairs, setting.device) for pairs in batches])

        def of_batch() -> Tensor:
            source_M, source_segments, target_N, target_segments = next(turns)
            return loss(model(source_M, source_segments, target_N, target_segments), target_N)

        return _several(steps.step(model, of_batch, setting, "fp32"), len(batches))

    def torchs() -> Round:
        from benchmarks.peers.torch_nn import Seq2seq

        model = Seq2seq(vocab, width, heads, layers, inner, 0.1).train()
        pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
        sides = [[pad([torch.from_numpy(pair[side]) for pair in pairs]) for side in (0, 1)] for pairs in batches]
        turns = cycle(sides)
        return _several(steps.step(model, lambda: model(*next(turns)), setting, "fp32"), len(batches))

    race.ours("regard", mine)
    race.peer("torch.nn.Transformer", torchs, note="padded")
    yield race


def _several(one: Round, count: int) -> Round:
    """A round of several steps: one of a small model is over too soon to be timed."""
    return lambda: [one() for _ in range(count)]


def optimizer(setting: Setting) -> Iterator[Race]:
    """AdamW over all parameters of GPT-2."""
    settings = ours.config(setting, "gpt")
    race = Race("optimizer", "AdamW over GPT-2 124M", "steps", 1, "torch foreach")
    shared: list[nn.Module] = []

    def model() -> nn.Module:
        if not shared:
            shared.append(family("gpt").build(settings))
            for parameter in shared[0].parameters():
                parameter.grad = torch.randn_like(parameter)
        return shared[0]

    def mine() -> Round:
        made = optimizers.make(model(), TrainingConfig(max_steps=1, learning_rate=1e-4, optimizer="adamw"))
        return made.step

    def torchs(**how: bool) -> Round:
        return torch.optim.AdamW(model().parameters(), 1e-4, **how).step

    numbers = sum(p.numel() for p in family("gpt").build(settings).parameters()) if setting.is_tiny else 124_439_808
    limit = setting.limits.seconds(0, 16 * numbers)  # weight, gradient and two averages, read alone
    race.ours("regard (fused)", mine, limit_s=limit)
    race.peer("torch foreach", partial(torchs, foreach=True), limit_s=limit)
    race.peer("torch for-loop", partial(torchs, foreach=False), limit_s=limit)
    race.peer("torch fused", partial(torchs, fused=True), limit_s=limit)
    yield race


def loss(setting: Setting) -> Iterator[Race]:
    """The loss over a vocabulary, with the last layer, forward and backward: ours; torch's, which holds all scores."""
    tokens, width = setting.size(2048, 40), setting.size(512, 16)
    for vocab in (32_000, 128_000) if not setting.is_tiny else (199,):
        what = f"{tokens:,} tokens, width {width}"
        race = Race("loss", f"Cross-entropy, {vocab:,} tokens of a vocabulary", "tokens", tokens, "torch", (), what)
        labels_N = torch.randint(0, vocab, (tokens,), generator=torch.Generator().manual_seed(8))

        def mine(vocab: int = vocab, labels_N: Tensor = labels_N) -> Round:
            from regard.models.gpt import GPT, GPTConfig

            model = GPT(GPTConfig(vocab, width, 1, 1, max_len=8, tie=False))
            criterion = steps.loss_of(model, setting)
            return _differentiated(model.output, width, labels_N, criterion)

        def torchs(vocab: int = vocab, labels_N: Tensor = labels_N) -> Round:
            output = nn.Linear(width, vocab, bias=False)
            return _differentiated(output, width, labels_N, lambda x, y: nn.functional.cross_entropy(output(x), y))

        race.ours("regard", mine)
        race.peer("torch", torchs)
        yield race


def _differentiated(
    output: nn.Module, width: int, labels_N: Tensor, criterion: Callable[[Tensor, Tensor], Tensor]
) -> Round:
    hidden_ND = torch.randn(len(labels_N), width, requires_grad=True)

    def run() -> None:
        criterion(hidden_ND, labels_N).backward()
        hidden_ND.grad = None
        output.zero_grad(set_to_none=True)

    return run
