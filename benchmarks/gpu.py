"""The parts of the suite on one GPU, the most wanted first: rows for which no time is left say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import growth, looking, ours, ragged_training, steps, training
from benchmarks.encode import bert_flops
from benchmarks.results import Goal
from benchmarks.suite import Part, Race, Round, Setting
from regard.decoding.fixed import How, steps_for

DEFAULT, STATIC, BARE = "transformers", "transformers, static cache, compiled", "bare compiled step in a CUDA graph"


def train_gpt2(setting: Setting) -> Iterator[Race]:
    """GPT-2, B 32 × 1,024."""
    precision = "bf16" if setting.device.type == "cuda" else "fp32"  # a processor may have no bf16 arithmetic
    mine, theirs, plain = (f"{name} {precision}" for name in ("regard", "transformers", "plain model"))
    goals = [
        Goal(f"{mine}, compiled", theirs, 3.5),
        Goal(f"{mine}, compiled", f"{theirs}, compiled", 1.45),
        Goal(f"{mine}, compiled", f"{plain}, compiled", 1.05),
        Goal(f"{mine}, compiled", "", 0.65),
    ]
    batch, length = setting.size(32, 2), setting.size(1024, 16)
    yield training.gpt2(setting, batch, length, precisions=(precision,), compiles=(False, True), goals=goals)


def write_gpt2(setting: Setting) -> Iterator[Race]:
    """GPT-2, one text and many."""
    for batch, goals in ((1, (13.0, 3.3, 1.0)), (32, (8.0, 2.0, 1.0))):
        yield _decode(setting, batch, goals)


def _decode(setting: Setting, batch: int, goals: tuple[float, ...]) -> Race:
    settings = ours.config(setting, "gpt")
    count, length = setting.size(128, 4), setting.size(32, 5)
    peers = zip((DEFAULT, STATIC, BARE), goals, strict=True)
    wanted = [Goal("regard, compiled", peer, least) for peer, least in peers]
    what = f"bf16, prompt of {length}, {count} new tokens"
    name = f"GPT-2 124M, decode, batch {batch}"
    race = Race("decode", name, "tokens", batch * count, DEFAULT, wanted, what)
    prompts = ours.prompts(setting, "gpt", batch, length)
    table = settings.vocab_size * settings.embed_dim
    read = 2 * (settings.num_layers * 12 * settings.embed_dim**2 + table) * count
    limit = setting.limits.seconds(0, read)

    def mine(compiles: bool) -> Round:
        model = ours.load(ours.public(setting, "gpt"), setting.device)
        quick = steps_for(model, _how(setting, compiles), {})
        return lambda: ours.greedy(model, prompts, count, quick)

    def theirs(**how: Any) -> Round:
        from benchmarks.peers import hf

        model = hf.load("GPT2LMHeadModel", ours.public(setting, "gpt"), setting.device, setting.dtype)
        return lambda: hf.greedy(model, prompts, count, **how)

    def bare() -> Round:
        from benchmarks.peers.plain import decode_step

        compiled = partial(steps.compiled(setting), dynamic=False)
        one = decode_step(settings, batch, setting.device, setting.dtype, compiled)
        return lambda: [one() for _ in range(count)]

    race.ours("regard", partial(mine, False), limit_s=limit)
    race.ours("regard, compiled", partial(mine, True), limit_s=limit)
    race.peer(DEFAULT, theirs, limit_s=limit)
    race.peer(STATIC, partial(theirs, cache_implementation="static"), limit_s=limit)
    race.peer(BARE, bare, limit_s=limit)
    return race


def _how(setting: Setting, compiles: bool) -> How | None:
    """Say how steps are taken, as after ``regard.load``; in a trial on a processor the model takes them."""
    if setting.device.type != "cuda":
        return None
    return "compiled graph" if compiles else "graph"


def train_ragged(setting: Setting) -> Iterator[Race]:
    """Transformer-base over ragged sentences."""
    precision = "bf16" if setting.device.type == "cuda" else "fp32"
    goals = [Goal(f"regard {precision}, compiled", f"transformers {precision}, compiled", 3.0)]
    yield ragged_training.row(
        setting, is_ragged=True, count=setting.size(400, 3), precisions=[precision], compiles=True, goals=goals
    )


def translate(setting: Setting) -> Iterator[Race]:
    """Transformer-base, beam 4."""
    batch, length, count, beams = setting.size(64, 2), setting.size(25, 5), setting.size(40, 4), 4
    what = f"bf16, {batch} sentences of {length} tokens, {count} new"
    goals = [Goal("regard, compiled", DEFAULT, 8.0)]
    race = Race("translate", f"Transformer-base, beam {beams}", "sentences", batch, DEFAULT, goals, what)
    sources = ours.prompts(setting, "transformer", batch, length)

    def mine(compiles: bool) -> Round:
        model = ours.load(ours.public(setting, "transformer"), setting.device)
        quick = steps_for(model, _how(setting, compiles), {})
        return lambda: ours.beam(model, sources, count, beams, quick)

    def theirs() -> Round:
        from benchmarks.peers import hf

        model = hf.load("MarianMTModel", ours.public(setting, "transformer"), setting.device, setting.dtype)
        return lambda: hf.beam(model, sources, count, beams)

    race.ours("regard", partial(mine, False))
    race.ours("regard, compiled", partial(mine, True))
    race.peer(DEFAULT, theirs)
    yield race


def encode(setting: Setting) -> Iterator[Race]:
    """BERT-base over ragged texts."""
    c = ours.config(setting, "bert")
    batch, longest = setting.size(256, 4), setting.size(128, 20)
    draws = torch.Generator().manual_seed(3)
    lengths = torch.randint(8, longest + 1, (batch,), generator=draws).tolist()
    texts = [torch.randint(4, c.vocab_size, (n,), generator=draws).to(setting.device) for n in lengths]
    goals = [Goal("regard", "transformers, padded", 2.0)]
    what = f"bf16, {batch} texts of 8 to {longest} tokens"
    name = "BERT-base, encode, ragged"
    race = Race("encode", name, "real tokens", sum(lengths), "transformers, padded", goals, what)
    flops = bert_flops(c, lengths)
    limit = setting.limits.seconds(flops, 0, "bf16") if "bf16" in setting.limits.flops else None

    def mine(compiles: bool) -> Round:
        model = ours.load(ours.public(setting, "bert"), setting.device)
        if compiles:
            steps.compile_blocks(model, setting)
        return ours.encode(model, texts)

    def theirs(compiles: bool) -> Round:
        from benchmarks.peers import hf

        model = hf.load("BertModel", ours.public(setting, "bert"), setting.device, setting.dtype)
        return hf.encode(steps.compiled(setting)(model) if compiles else model, texts)

    race.ours("regard", partial(mine, False), limit_s=limit)
    race.ours("regard, compiled", partial(mine, True), limit_s=limit)
    race.peer("transformers, padded", partial(theirs, False), limit_s=limit)
    race.peer("transformers, padded, compiled", partial(theirs, True), limit_s=limit)
    yield race


def train_images(setting: Setting) -> Iterator[Race]:
    """ViT-B/16 and Swin-T: a step over pictures."""
    yield _train(setting, "vit", "ViT-B/16", ("transformers", "torchvision"), 1.4)
    yield _train(setting, "swin", "Swin-T", ("torchvision",), 2.5)


def _train(setting: Setting, name: str, shown: str, beside: tuple[str, ...], least: float) -> Race:
    settings = ours.config(setting, name)
    batch, (height, width) = setting.size(128, 2), settings.image_size
    goals = [Goal("regard, compiled", peer, least) for peer in beside]
    what = f"bf16, {batch} pictures of {height} × {width}"
    race = Race("train", f"{shown}, train", "images", batch, DEFAULT, goals, what)
    draws = torch.Generator().manual_seed(12)
    pixels_BCYX = torch.randn(batch, 3, height, width, generator=draws).to(setting.device)
    labels_B = torch.randint(0, settings.num_classes, (batch,), generator=draws).to(setting.device)
    precision = "bf16" if setting.device.type == "cuda" else "fp32"

    def of(model: nn.Module, scores: Callable[[Tensor], Tensor]) -> Round:
        def loss() -> Tensor:
            return nn.functional.cross_entropy(scores(pixels_BCYX).float(), labels_B)

        return steps.step(model, loss, setting, precision)

    def mine(compiles: bool) -> Round:
        from regard.models.registry import family

        model: Any = family(name).build(settings).to(setting.device).train()
        if compiles:
            steps.compile_blocks(model, setting)
        return of(model, lambda pixels: model.head(model.pool(model(pixels))))

    def theirs(compiles: bool) -> Round:
        from benchmarks.peers import hf

        kind = {"vit": "ViTForImageClassification", "swin": "SwinForImageClassification"}[name]
        model = hf.load(kind, ours.public(setting, name), setting.device).train()
        quick = steps.compiled(setting)(model) if compiles else model
        return of(model, lambda pixels: quick(pixels).logits)

    def torchvisions() -> Round:
        from torchvision import models

        model = {"vit": models.vit_b_16, "swin": models.swin_t}[name]().to(setting.device).train()
        return of(model, model)

    race.ours("regard", partial(mine, False))
    race.ours("regard, compiled", partial(mine, True))
    race.peer("transformers", partial(theirs, False))
    race.peer("transformers, compiled", partial(theirs, True))
    race.peer("torchvision", torchvisions)
    return race


PARTS: dict[str, Part] = {
    "gpt2": train_gpt2,
    "decode": write_gpt2,
    "ragged": train_ragged,
    "translate": translate,
    "encode": encode,
    "images": train_images,
    "recording": looking.rows,
    "growth": growth.rows,
}
