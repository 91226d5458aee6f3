"""What a run tells its reader: report.html and the model card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from regard.errors import ContextError, UsageError
from regard.looking import ByLength, Curve, Figure, Maps, Report, Sample, Score, Table, report_page
from regard.looking.png import png
from regard.looking.reading import look
from regard.looking.seeing import look_at
from regard.looking.seq2seq import can_look
from regard.metrics.measure import Measure
from regard.metrics.measure import metric as read_as
from regard.metrics.strings import measure
from regard.models.interface import ImageEncoder
from regard.tasks.generator import Generator
from regard.tasks.task import Evaluated, Product, Task
from regard.training.loop import Standing
from regard.training.recipe import Recipe

NUM_SAMPLES = 20
NUM_MAPS = 3


@dataclass(frozen=True)
class Facts:
    """What the report says about a run besides its scores.

    Attributes:
        title: What was trained.
        command: What repeats it.
        started: When, in UTC.
        hardware: Processor or card, threads, versions.
        counts: Pairs, vocabularies, parameters.
        data_notes: Source, licence, split and hash of the data.
        log: metrics.jsonl.
    """

    title: str
    command: str
    started: str
    hardware: str
    counts: str
    data_notes: list[str]
    log: Path


def page(
    recipe: Recipe,
    task: Task,
    product: Product,
    evaluated: Evaluated,
    baselines: dict[str, dict[str, Measure]],
    others: dict[str, dict[str, dict[str, Measure]]],
    standing: Standing,
    averaged: list[int],
    facts: Facts,
    figures: Sequence[tuple[str, str, bytes]] = (),
) -> str:
    """Write report.html.

    Args:
        recipe: The resolved settings.
        task: What it was trained on.
        product: The final model.
        evaluated: Its scores on the test part.
        baselines: Others' scores on the same inputs.
        others: Likewise on each further test set.
        standing: Where training ended.
        averaged: Steps whose weights the final model is the mean of.
        facts: All else.
        figures: Pictures that the task has made: title, sentence, PNG.

    Returns:
        The page.
    """
    first = task.monitor
    order = sorted(evaluated.measures, key=lambda name: name != first)
    maps = _maps(product, evaluated)
    data = {"size": facts.counts, **{f"note {i}": note for i, note in enumerate(facts.data_notes, 1)}}
    how = f"The final model is the mean of the weights after steps {', '.join(map(str, averaged))}."
    return report_page(
        Report(
            title=facts.title,
            command=facts.command,
            started=facts.started,
            seconds=standing.seconds,
            hardware=facts.hardware,
            settings=recipe.as_mapping(),
            curves=_curves(facts.log, standing, task),
            scores=[_score(evaluated.measures[name], "this model") for name in order],
            baselines=[
                *(_score(of[name], system) for system, of in baselines.items() for name in order if name in of),
                *(_score(Measure(c.metric, c.value, c.note), c.system) for c in recipe.comparisons),
            ],
            tables=_other_tests(evaluated, others, order),
            by_length=_by_length(task, evaluated, first),
            figures=[Figure(title, about, data) for title, about, data in figures],
            samples=_samples(evaluated, first),
            maps=maps,
            notes=[how, f"Training took {standing.step:,} steps over {standing.tokens:,} {task.reads}s."],
            data=data,
        )
    )


def _maps(product: Any, evaluated: Evaluated) -> list[Maps]:
    """Look at some inputs; an output that a poor model wrote beyond the context cannot be read again: left out."""
    found: list[Maps] = []
    # What a language model writes is longer than a picture.
    if isinstance(product, Generator) or not can_look(product):
        return found
    if isinstance(product.model, ImageEncoder):
        shown = zip(evaluated.images[:NUM_MAPS], evaluated.sources, evaluated.outputs, strict=False)
        return [look_at(product, image_CYX, source, output) for image_CYX, source, output in shown]
    for source in evaluated.sources[:NUM_MAPS]:
        with suppress(ContextError, UsageError):  # of which language an input is, only the task knows
            found.append(look(product, source))
    return found


def _score(one: Measure, system: str) -> Score:
    metric = read_as(one.name)
    value, unit = (100 * one.value, "%") if metric.is_fraction else (one.value, "")
    return Score(metric.title, value, unit, one.signature, system, metric.better)


def _other_tests(
    evaluated: Evaluated, others: dict[str, dict[str, dict[str, Measure]]], order: Sequence[str]
) -> list[Table]:
    """Lay out the scores on further test sets: a row a set; of baselines the metric that matters most."""
    if not evaluated.others:
        return []
    sets = {"the test part": evaluated, **evaluated.others}
    systems = list(next(iter(others.values())))
    head = ["Test set", "Inputs", *(read_as(name).title for name in order)]
    rows = []
    for name, one in sets.items():
        theirs = [others[name][system][order[0]] for system in systems] if name in others else [None] * len(systems)
        shown = [*(one.measures[metric] for metric in order), *theirs]
        rows.append([name, f"{len(one.sources):,}", *("" if m is None else _written(m) for m in shown)])
    return [Table("Further test sets", "", [*head, *(f"{system}: {head[2]}" for system in systems)], rows)]


def _written(one: Measure) -> str:
    score = _score(one, "")
    return f"{score.value:.2f} %" if score.unit else f"{score.value:.4f}"


def _curves(log: Path, standing: Standing, task: Task) -> list[Curve]:
    """Draw the training loss, averaged over a two-hundredth of the run, and what validations found.

    Parts that are trained in turns have a curve each.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for line in log.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if "loss" in entry:
            found.setdefault(entry.get("turn", "training"), []).append((entry["step"], entry["loss"]))
    curves = []
    for name, points in found.items():
        width = max(1, len(points) // 200)
        windows = [points[i : i + width] for i in range(0, len(points), width)]
        steps, means = [some[-1][0] for some in windows], [sum(v for _, v in some) / len(some) for some in windows]
        curves.append(Curve(name, steps, means, f"loss per {task.unit}"))
    at = [v["step"] for v in standing.validations]
    curves.append(Curve("development", at, [v["loss"] for v in standing.validations], f"loss per {task.unit}"))
    monitor = task.monitor
    if monitor != "loss":
        scale, unit = (100, " in %") if read_as(monitor).is_fraction else (1, "")
        values = [scale * v[monitor] for v in standing.validations]
        curves.append(Curve("development", at, values, f"{read_as(monitor).title}{unit}"))
    return curves


def _by_length(task: Task, evaluated: Evaluated, metric: str) -> list[ByLength]:
    edges = task.lengths
    if not edges or metric == "loss":
        return []
    scores = by_length(evaluated, edges)
    scale, unit = (100, " in %") if read_as(metric).is_fraction else (1, "")
    values = [None if one is None else scale * one[metric].value for _, _, one in scores]
    bins, counts = [name for name, _, _ in scores], [count for _, count, _ in scores]
    return [ByLength(f"{read_as(metric).title}{unit}", bins, counts, {"this model": values})]


def by_length(evaluated: Evaluated, edges: tuple[int, ...]) -> list[tuple[str, int, dict[str, Measure] | None]]:
    """Score inputs of like length together.

    Args:
        evaluated: Inputs, references and outputs.
        edges: Greatest length, in words, of each group but the last, ascending.

    Returns:
        For each group its name, its number of inputs, and its measures; None where it is empty.
    """
    groups: list[list[int]] = [[] for _ in range(len(edges) + 1)]
    for index, source in enumerate(evaluated.sources):
        groups[sum(len(source.split()) > edge for edge in edges)].append(index)
    lows = [1, *(edge + 1 for edge in edges)]
    names = [*(f"{low} to {edge}" for low, edge in zip(lows, edges, strict=False)), f"over {edges[-1]}"]
    scored = []
    for name, members in zip(names, groups, strict=True):
        outputs, references = [evaluated.outputs[i] for i in members], [evaluated.references[i] for i in members]
        scored.append((name, len(members), measure(outputs, references) if members else None))
    return scored


def _samples(evaluated: Evaluated, metric: str) -> list[Sample]:
    """Show the first inputs of the test part, right or wrong."""
    samples = []
    pictures = [png(image_CYX.permute(1, 2, 0).cpu().numpy()) for image_CYX in evaluated.images[:NUM_SAMPLES]]
    for source, references, output, picture in zip_longest(
        evaluated.sources[:NUM_SAMPLES],
        evaluated.references[:NUM_SAMPLES],
        evaluated.outputs[:NUM_SAMPLES],
        pictures,
    ):
        mark = ("right" if output in references else "wrong") if read_as(metric).is_fraction else ""
        samples.append(Sample(source, " / ".join(references), output, mark, picture))
    return samples


def card(recipe: Recipe, scores: dict[str, Any], facts: Facts) -> str:
    """Write the model card, README.md of the model's folder."""
    lines = [
        f"# {facts.title}",
        "",
        f"A model made by regard {scores['version']} on {scores['date']}.",
        "",
        "| metric | value | signature |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {read_as(name).title} | {scores[name]:.4f} | `{signature}` |"
        for name, signature in scores["signatures"].items()
    ]
    lines += ["", "Data:", "", f"- {facts.counts}", *(f"- {note}" for note in facts.data_notes)]
    lines += ["", f"Hardware: {facts.hardware}.", "", f"Made by `{facts.command}`; task {recipe.task}.", ""]
    return "\n".join(lines)
