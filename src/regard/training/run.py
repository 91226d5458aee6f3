"""A whole run: data → tokenizers → model → training → final model → scores beside baselines → report."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import settings
from regard.errors import ConfigError, ResourceError, UsageError
from regard.files import json_bytes, locked, write_aside
from regard.metrics.measure import Measure
from regard.models.weights import fit
from regard.tasks import folder
from regard.tasks.registry import TASKS
from regard.tasks.task import PREPARED, Evaluated, Task
from regard.training import blocks, hardware, report
from regard.training.loop import Standing, Trainer
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.version import __version__

STARTING = ".starting"  # in a run's folder until its settings are kept


@dataclass(frozen=True)
class Result:
    """What a run gives.

    Attributes:
        folder: The run's folder.
        model: The final model, ready to be used.
        scores: Metrics of the test part, and ``baselines``, as in scores.json.
        metric: The metric that matters most among the scores.
        standing: Where training ended.
    """

    folder: Path
    model: Any
    scores: dict[str, Any]
    metric: str
    standing: Standing


def run(
    recipe: Recipe, out: Path, *, device: str = "auto", quiet: bool = False, command: list[str] | None = None
) -> Result:
    """Train a model and everything around it. A run that was interrupted goes on from its newest checkpoint.

    Args:
        recipe: The settings.
        out: The run's folder; made where it is missing.
        device: ``auto``, ``cpu``, ``cuda``, …
        quiet: Show no progress.
        command: What the user typed, for the report; None for Python.

    Returns:
        The final model and its scores.

    Raises:
        UsageError: The folder holds a run with other settings.
        ResourceError: The folder cannot be made; or the model is to be compiled, and nothing is there to do it with.
    """
    target = hardware.choose(device)
    if recipe.training.compile:
        hardware.check_compiler(target)
    is_new = _check_folder(recipe, out)
    with (
        locked(out),
        hardware.threads_kept(),
        Progress(recipe.training.max_steps, recipe.training.max_seconds, quiet) as progress,
    ):
        with _starting(out, is_new):
            task: Task = TASKS[recipe.task].prepare(recipe.settings, recipe.training.seed, out, is_new)
            _check_whole(recipe, task)
            progress.reads = task.reads
            torch.manual_seed(recipe.training.seed)
            model = task.build()
            # Only now: where settings or data were wrong, nothing is left that the mended command would meet.
            if is_new:
                write_aside(out / "config.yaml", settings.write_yaml(recipe.as_mapping()))
        folder.save_tokenizers(out, task.tokenizers())
        parameters = sum(p.numel() for p in model.parameters())
        if target.type == "cpu":
            _set_threads(recipe, out, task, model)
        described = hardware.describe(target)  # here, where the threads are the run's
        if not quiet:
            progress.say(f"{task.counts}; {parameters:,} parameters; {described}")
            for note in task.notes:
                progress.say(note)
        digests = {"settings": _digest(recipe), "data": task.digest}
        with _tensorboard(out) as events:
            trainer = Trainer(task, model, recipe.training, out, target, progress, digests, events)
            standing = trainer.run()
        if not quiet:
            progress.say(f"trained {standing.step:,} steps in {standing.seconds:,.0f} s; scoring …")
        weights, averaged = trainer.final_weights()
        fit(weights, model, where=str(out))
        product = task.product(model, target)
        folder.save(out / "model", product)  # first of all: whatever happens while it is scored, the model is there
        evaluated = _signed(task.test(product), task, recipe, averaged)
        baselines = task.baselines(evaluated)
        others = {name: task.baselines(one) for name, one in evaluated.others.items()}
    scores = _scores(recipe, task, evaluated, baselines, others, standing, averaged)
    facts = report.Facts(
        title=f"{out.name}: {recipe.settings.model.get('family', 'transformer')}",
        command=shlex.join(command) if command else "regard.train(…)",
        # config.yaml is written once, when a run starts.
        started=datetime.fromtimestamp((out / "config.yaml").stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        hardware=described,
        counts=f"{task.counts}; {parameters:,} parameters",
        data_notes=[*task.data_notes, *task.notes, f"SHA-256 of the data: {digests['data']}."],
        log=out / "metrics.jsonl",
    )
    write_aside(
        out / "report.html",
        report.page(
            recipe, task, product, evaluated, baselines, others, standing, averaged, facts, task.figures(product)
        ),
    )
    write_aside(out / "model" / "README.md", report.card(recipe, scores, facts))
    write_aside(out / "outputs.jsonl", _outputs(evaluated))
    write_aside(out / "scores.json", json_bytes(scores))
    # Where the loss decides, the first of the metrics stands for it.
    metric = task.monitor if task.monitor in evaluated.measures else next(iter(evaluated.measures))
    return Result(out, product, scores, metric, standing)


def _check_whole(recipe: Recipe, task: Task) -> None:
    """Refuse to cut a batch that is compared as a whole: the sum over its parts would be another loss."""
    if task.needs_whole_batch and recipe.training.accumulate > 1:
        what = f"accumulate is {recipe.training.accumulate}, and this task compares the whole batch"
        mend = "leave it out; a larger batch_images, in parts, needs no more memory"
        raise ConfigError(what, where="training", mend=mend)


def _check_folder(recipe: Recipe, out: Path) -> bool:
    """Make the run's folder, or check that it holds this run; say whether it is new."""
    path = out / "config.yaml"
    try:
        if path.exists():
            old = settings.read_yaml(path.read_text("utf-8"), str(path))
            changed = list(_differences(old, recipe.as_mapping()))
            if changed:
                shown = ", ".join(changed[:5])
                mend = "give another --out, or the settings it was started with"
                raise UsageError(f"holds a run with other settings ({shown})", where=str(out), mend=mend)
            return False
        out.mkdir(parents=True, exist_ok=True)
        left = {entry.name for entry in out.iterdir() if not entry.name.startswith(".")}
        if left - ({PREPARED} if (out / STARTING).exists() else set()):
            raise UsageError("the folder is not empty and holds no run", where=str(out), mend="give another --out")
    except OSError as error:
        raise ResourceError(f"cannot use the folder: {error.strerror}", where=str(out)) from error
    return True


@contextmanager
def _starting(out: Path, is_new: bool) -> Generator[None]:
    """Leave nothing of a start that fails; what a killed one left goes when the next begins.

    A file tells what is ours in a folder that is no run yet: until it is one, the same or a mended command may begin.
    """
    mark = out / STARTING
    if is_new:
        shutil.rmtree(out / PREPARED, ignore_errors=True)
        write_aside(mark, b"")
    try:
        yield
    except BaseException:
        if is_new:
            shutil.rmtree(out / PREPARED, ignore_errors=True)
            mark.unlink(missing_ok=True)
        raise
    mark.unlink(missing_ok=True)


def _differences(old: Any, new: Any, name: str = "") -> Any:
    """Name the settings in which two mappings differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
    elif settings.plain(old) != settings.plain(new):
        yield name


def _set_threads(recipe: Recipe, out: Path, task: Task, model: nn.Module) -> None:
    """Set the number of threads. It is kept with the run: on another number sums round differently."""
    threads, path = recipe.training.threads, out / "threads.json"
    if not threads and path.exists():
        threads = int(json.loads(path.read_text("utf-8"))["threads"])
    if not threads:
        blocks.quicken(model, recipe.training.precision)  # tried as it will be trained
        batch = task.batch(0)
        before = [buffer.clone() for buffer in model.buffers()]  # some move as the model reads: estimates, averages

        def work() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=recipe.training.precision == "bf16"):
                loss = task.loss(model, batch)
            loss.sum.backward()

        threads = hardware.quickest_threads(work)
        model.zero_grad(set_to_none=True)
        for buffer, was in zip(model.buffers(), before, strict=True):
            buffer.copy_(was)
    if not path.exists():
        write_aside(path, json_bytes({"threads": threads}))
    torch.set_num_threads(threads)


def _digest(recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps(recipe.as_mapping(), sort_keys=True).encode()).hexdigest()


@contextmanager
def _tensorboard(out: Path) -> Generator[Callable[[str, float, int], None] | None]:
    """Write TensorBoard events where the extra is installed."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        yield None
        return
    with ExitStack() as stack:
        writers: list[SummaryWriter] = []

        def write(name: str, value: float, step: int) -> None:
            if not writers:  # events of steps that a killed run took after its last checkpoint count no more
                writers.append(SummaryWriter(str(out / "tensorboard"), flush_secs=30, purge_step=step))
                stack.callback(writers[0].close)
            writers[0].add_scalar(name, value, step)

        yield write


def _outputs(evaluated: Evaluated) -> str:
    """Write what scores were computed from, an input a line; those of further test sets name theirs."""
    names = ("source", "references", "output")
    lines: list[str] = []
    for test, one in (("", evaluated), *evaluated.others.items()):
        rows = zip(one.sources, one.references, one.outputs, strict=True)
        told = {"test": test} if test else {}
        lines += [json.dumps(told | dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n" for row in rows]
    return "".join(lines)


def _signed(evaluated: Evaluated, task: Task, recipe: Recipe, averaged: list[int]) -> Evaluated:
    """Add to each score's signature what the model and its outputs depend on."""
    how = f"{task.signature()}|avg:{len(averaged)}|seed:{recipe.training.seed}"
    signed = {name: replace(one, signature=one.signature + how) for name, one in evaluated.measures.items()}
    others = {name: _signed(one, task, recipe, averaged) for name, one in evaluated.others.items()}
    return replace(evaluated, measures=signed, others=others)


def _scores(
    recipe: Recipe,
    task: Task,
    evaluated: Evaluated,
    baselines: dict[str, dict[str, Measure]],
    others: dict[str, dict[str, dict[str, Measure]]],
    standing: Standing,
    averaged: list[int],
) -> dict[str, Any]:
    """Lay scores.json out: metric → value, with baselines, signatures and what the figures depend on."""
    systems: dict[str, dict[str, Any]] = {name: _values(of) for name, of in baselines.items()}
    for one in recipe.comparisons:
        systems.setdefault(one.system, {}).update({one.metric: one.value, "note": one.note})
    lengths = report.by_length(evaluated, task.lengths) if task.lengths else []
    return {
        **_values(evaluated.measures),
        "by_length": [{"words": name, "inputs": count, **_values(of or {})} for name, count, of in lengths],
        "also_test": {
            name: {
                **_values(one.measures),
                "inputs": len(one.sources),
                "baselines": {system: _values(of) for system, of in others[name].items()},
                "signatures": {metric: measure.signature for metric, measure in one.measures.items()},
            }
            for name, one in evaluated.others.items()
        },
        "baselines": systems,
        "signatures": {name: one.signature for name, one in evaluated.measures.items()},
        "steps": standing.step,
        "training_seconds": round(standing.seconds, 1),
        "averaged_steps": averaged,
        "version": __version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _values(measures: Mapping[str, Measure]) -> dict[str, float]:
    return {name: one.value for name, one in measures.items()}
