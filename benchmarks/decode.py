"""Writing: GPT-2 token by token and its prompt, and Transformer-base with beam search, on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import ours
from benchmarks.limits import has_bf16
from benchmarks.results import Goal
from benchmarks.suite import NotMeasured, Race, Round, Setting
from regard.attention import Segments
from regard.models.public import read_folder

BYTES = {"fp32": 4, "bf16": 2, "int8": 1}
NO_BF16 = "the processor has no bf16 arithmetic"
REFERENCE = "transformers fp32"


def rows(setting: Setting) -> Iterator[Race]:
    """GPT-2: one text, several, and a prompt."""
    for batch in (1, 8):
        goals = {1: (2.5, 5.3), 8: (2.5, 4.4)}[batch]
        yield _greedy(setting, batch, goals)
    yield _prefill(setting)


def _greedy(setting: Setting, batch: int, goals: tuple[float, float]) -> Race:
    count, length = setting.size(32 if batch == 1 else 16, 4), setting.size(16, 5)
    what = f"prompt of {length}, {count} new tokens"
    name = f"GPT-2 124M, decode, batch {batch}"
    wanted = [Goal("regard fp32", REFERENCE, goals[0]), Goal("regard int8", REFERENCE, goals[1])]
    race = Race("decode", name, "tokens", batch * count, REFERENCE, wanted, what)
    prompts = ours.prompts(setting, "gpt", batch, length)

    def mine(precision: str) -> Round:
        model = ours.load(ours.public(setting, "gpt"), setting.device, precision)
        return lambda: ours.greedy(model, prompts, count)

    _enter(race, setting, mine, _bounds(setting, count, batch * (length + count - 1)))
    _peers(race, setting, prompts, count)
    return race


def _prefill(setting: Setting) -> Race:
    length = setting.size(1023, 40)
    wanted = [Goal("regard int8", REFERENCE, 2.3)]
    what = "one prompt, one token after it"
    race = Race("decode", f"GPT-2 124M, prefill, {length:,} tokens", "tokens", length, REFERENCE, wanted, what)
    prompts = ours.prompts(setting, "gpt", 1, length)

    def mine(precision: str) -> Round:
        model = ours.load(ours.public(setting, "gpt"), setting.device, precision)
        return lambda: ours.greedy(model, prompts, 1)

    _enter(race, setting, mine, _bounds(setting, 1, length))
    _peers(race, setting, prompts, 1)
    return race


def _enter(race: Race, setting: Setting, mine: Callable[[str], Round], bounds: dict[str, float]) -> None:
    """Enter ours in each precision."""
    for precision in BYTES:
        note = NO_BF16 if precision == "bf16" and not has_bf16() else ""
        race.ours(f"regard {precision}", partial(mine, precision), limit_s=bounds.get(precision), note=note)


def _bounds(setting: Setting, steps: int, tokens: int) -> dict[str, float]:
    """Seconds that GPT-2's products take at least: each matrix is read once a step, and multiplied with every token."""
    c = ours.config(setting, "gpt")
    table = c.vocab_size * c.embed_dim
    body = c.num_layers * 12 * c.embed_dim**2
    flops = 2 * body * tokens + 2 * table * steps
    read = {name: size * (body + table) * steps for name, size in BYTES.items()}
    limits = setting.limits
    is_reading = limits.seconds(flops, 0) < limits.seconds(0, read["fp32"])  # else a rate of products is needed
    return {
        name: limits.seconds(flops, size, name) for name, size in read.items() if is_reading or name in limits.flops
    }


def _peers(race: Race, setting: Setting, prompts: Tensor, count: int) -> None:
    """Enter those that write with GPT-2."""
    public = partial(ours.public, setting, "gpt")
    bounds = _bounds(setting, count, len(prompts) * (prompts.shape[1] + count - 1))

    def theirs(dtype: torch.dtype) -> Round:
        from benchmarks.peers import hf

        if dtype is torch.bfloat16 and not has_bf16():
            raise NotMeasured(NO_BF16)
        model = hf.load("GPT2LMHeadModel", public(), setting.device, dtype)
        return lambda: hf.greedy(model, prompts, count)

    def translated(precision: str) -> Round:
        from benchmarks.peers import ct2

        folder = setting.folder("gpt-ctranslate2", lambda folder: ct2.write_gpt2(folder, public()))
        return ct2.greedy(ct2.generator(folder, precision), prompts, count)

    def exported(file: str) -> Round:
        from benchmarks.peers import onnx_graph

        return onnx_graph.greedy(onnx_graph.session(onnx_gpt2(setting) / file), prompts, count)

    race.peer(REFERENCE, partial(theirs, torch.float32), limit_s=bounds["fp32"])
    race.peer("transformers bf16", partial(theirs, torch.bfloat16), limit_s=bounds.get("bf16"))
    race.peer("CTranslate2 fp32", partial(translated, "float32"), limit_s=bounds["fp32"])
    race.peer("CTranslate2 int8", partial(translated, "int8"), limit_s=bounds.get("int8"))
    race.peer("onnxruntime fp32", partial(exported, "model.onnx"), limit_s=bounds["fp32"])
    race.peer("onnxruntime int8", partial(exported, "int8.onnx"), limit_s=bounds.get("int8"))


def onnx_gpt2(setting: Setting) -> Path:
    """Give the folder of GPT-2 as onnxruntime reads it."""
    from benchmarks.peers import onnx_graph

    heads = ours.config(setting, "gpt").num_heads

    def make(folder: Path) -> None:
        onnx_graph.write_gpt2(folder, ours.public(setting, "gpt"), heads)
        onnx_graph.quantize(folder)

    return setting.folder("gpt-onnxruntime", make)


def translation(setting: Setting) -> Iterator[Race]:
    """Transformer-base, beam 4."""
    batch, length, count, beams = setting.size(16, 2), setting.size(25, 5), setting.size(40, 4), 4
    wanted = [Goal("regard fp32", REFERENCE, 1.5), Goal("regard int8", REFERENCE, 3.0)]
    what = f"{batch} sentences of {length} tokens, {count} new"
    race = Race("translate", f"Transformer-base, beam {beams}", "sentences", batch, REFERENCE, wanted, what)
    sources = ours.prompts(setting, "transformer", batch, length)
    public = partial(ours.public, setting, "transformer")

    def mine(precision: str) -> Round:
        model = ours.load(public(), setting.device, precision)
        return lambda: ours.beam(model, sources, count, beams)

    def theirs(dtype: torch.dtype) -> Round:
        from benchmarks.peers import hf

        if dtype is torch.bfloat16 and not has_bf16():
            raise NotMeasured(NO_BF16)
        model = hf.load("MarianMTModel", public(), setting.device, dtype)
        return lambda: hf.beam(model, sources, count, beams)

    def translated(precision: str) -> Round:
        from benchmarks.peers import ct2

        folder = setting.folder("transformer-ctranslate2", lambda folder: ct2.write_marian(folder, public()))
        return ct2.beam(ct2.translator(folder, precision), sources, count, beams)

    _enter(race, setting, mine, {})
    race.peer(REFERENCE, partial(theirs, torch.float32))
    race.peer("transformers bf16", partial(theirs, torch.bfloat16))
    race.peer("CTranslate2 fp32", partial(translated, "float32"))
    race.peer("CTranslate2 int8", partial(translated, "int8"))
    yield race


def precision(setting: Setting) -> Iterator[Race]:
    """What rounding weights costs and gives: GPT-2's scores of a text beside those of float64."""
    length = setting.size(512, 40)
    tokens_N = ours.prompts(setting, "gpt", 1, length)[0]
    race = Race("precision", "GPT-2 124M, scores of a text", "tokens", length, "regard fp32", (), f"{length} tokens")
    public = partial(ours.public, setting, "gpt")
    models: dict[str, Any] = {}

    def scores(model: Any) -> Tensor:
        with torch.inference_mode():
            return model.head(model(tokens_N, Segments.ragged([length])))

    def make(kind: str) -> Round:
        models[kind] = ours.load(public(), setting.device, kind)
        return lambda: scores(models[kind])

    def error(kind: str) -> str:
        if not exact:
            exact.append(scores(read_folder(public())[1].eval().double()))
        return _error(scores(models[kind]).double(), exact[0])

    exact: list[Tensor] = []
    for kind in BYTES:
        race.ours(f"regard {kind}", partial(make, kind), note=partial(error, kind))
    yield race


def _error(found: Tensor, exact: Tensor) -> str:
    """Say how far scores are from the exact ones, as a share of how the exact ones differ; and what that changes."""
    rms = float((found - exact).square().mean().sqrt() / exact.std())
    logp, wanted = found.log_softmax(-1), exact.log_softmax(-1)
    divergence = float((wanted.exp() * (wanted - logp)).sum(-1).mean())
    same = float((found.argmax(-1) == exact.argmax(-1)).double().mean())
    return f"error {rms:.1e} of the scores' deviation, KL {max(divergence, 0.0):.1e} nats, same best token {same:.1%}"


def batching(setting: Setting) -> Iterator[Race]:
    """Outputs of many lengths: the next prompt takes the place of one that ended, or batch follows batch."""
    from regard.decoding import DecodeOptions, decode

    texts, most, batch = setting.size(24, 4), setting.size(64, 6), setting.size(8, 2)
    length = setting.size(16, 4)
    draws = torch.Generator().manual_seed(5)
    limits = torch.randint(most // 8 + 1, most + 1, (texts,), generator=draws).tolist()
    prompts = ours.prompts(setting, "gpt", texts, length)
    what = f"{texts} prompts of {length}, {most // 8 + 1} to {most} new tokens each, {batch} at a time"
    race = Race("batching", "GPT-2 124M, outputs of many lengths", "tokens", sum(limits), REFERENCE, (), what)

    def some(model: Any, rows: slice, **how: int) -> None:
        prompts_BT, wanted = prompts[rows], limits[rows]
        options = DecodeOptions(max_extra_tokens=most, length_penalty=0.0)
        segments = Segments.uniform(len(wanted), length - 1)
        decode(
            model,
            prompts_BT[:, :-1].flatten(),
            segments,
            start_id=prompts_BT[:, -1],
            end_id=(),
            options=options,
            limits=wanted,
            **how,
        )

    def lots() -> list[slice]:
        return [slice(start, start + batch) for start in range(0, texts, batch)]

    def mine(work: Callable[[Any], object]) -> Round:
        model = ours.load(ours.public(setting, "gpt"), setting.device)
        return lambda: work(model)

    def replaced(model: Any) -> None:
        some(model, slice(0, texts), lanes=batch)

    def in_lots(model: Any) -> None:
        for rows in lots():
            some(model, rows)

    def together(model: Any) -> None:
        some(model, slice(0, texts))

    def theirs() -> Round:
        from benchmarks.peers import hf

        model = hf.load("GPT2LMHeadModel", ours.public(setting, "gpt"), setting.device)
        return lambda: [hf.greedy(model, prompts[rows], max(limits[rows])) for rows in lots()]

    race.ours(f"regard, {batch} at a time, the next take the place of those that end", partial(mine, replaced))
    race.ours(f"regard, in batches of {batch}, which those that end leave", partial(mine, in_lots))
    race.ours("regard, all at once", partial(mine, together))
    race.peer(REFERENCE, theirs, note="each batch waits for its longest")
    yield race
