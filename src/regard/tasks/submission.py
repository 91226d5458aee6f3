"""What a trained model says of a benchmark's hidden test set, in the files that its server takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.data.benchmarks import LAYOUTS, Layout, locate, read_published
from regard.errors import DataError, UsageError
from regard.files import write_aside, writing
from regard.tasks.labeller import Classes, Labeller, cut


@dataclass(frozen=True)
class Submission:
    """A file for the server.

    Attributes:
        path: Where it is.
        rows: Predictions in it.
        too_long: Texts of which the beginning was read.
    """

    path: Path
    rows: int
    too_long: int


def submit(labeller: Labeller, name: str, data: str | Path, out: str | Path) -> list[Submission]:
    """Label a benchmark's hidden test files and write what its server takes: columns index and prediction.

    Args:
        labeller: The model.
        name: The benchmark, a key of :data:`regard.data.benchmarks.LAYOUTS`.
        data: The folder of the test files.
        out: Folder of the new files; made where it is missing. Nothing is written before all is labelled.

    Returns:
        The files.

    Raises:
        UsageError: There is no such benchmark, its test labels are public, or the model's labels are others.
        DataError: A test file is bad.
        ResourceError: A file cannot be written.
    """
    known = [key for key, one in LAYOUTS.items() if one.hidden]
    if name not in known:
        raise UsageError(f"no submission for {name[:40]!r}", where="submit", mend=f"choose from {', '.join(known)}")
    of = LAYOUTS[name]
    _check_labels(labeller, of, name)
    written = {file: _predict(labeller, of, locate(data, source, of)) for file, source in of.hidden.items()}
    folder = Path(out)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for file, (lines, _) in written.items():
        write_aside(folder / file, "index\tprediction\n" + "".join(f"{line}\n" for line in lines))
    return [Submission(folder / file, len(lines), too_long) for file, (lines, too_long) in written.items()]


def _check_labels(labeller: Labeller, of: Layout, name: str) -> None:
    goal = labeller.goal
    if goal.task != of.task:
        raise UsageError(f"a model for the task {goal.task!r}", where=name, mend=f"use one of regard train {of.task}")
    if isinstance(goal, Classes) and not {*goal.names} <= {*of.labels}:
        shown = ", ".join(one[:20] for one in goal.names[:5])
        mend = f"use a model trained on the labels {', '.join(of.labels)}"
        raise UsageError(f"the model's classes are {shown}", where=name, mend=mend)


def _predict(labeller: Labeller, of: Layout, path: str) -> tuple[list[str], int]:
    """Label a test file: its lines for the server, and how many texts were too long."""
    found = read_published(path, of.columns, of, is_hidden=True)
    seen: set[str] = set()
    for key, pair in zip(found.keys, found.pairs, strict=True):
        if not key.isdecimal() or key in seen:
            what = f"the index {key[:20]!r} comes twice" if key in seen else f"{key[:20]!r} is no index"
            raise DataError(what, where=f"{path}, line {pair.line}", mend="take the file as it is published")
        seen.add(key)
    rows = labeller.tokenizer.encode_all([pair.texts for pair in found.pairs])
    too_long = sum(len(ids) > labeller.max_tokens for ids, _ in rows)
    predicted = labeller.goal.predictions(labeller.outputs([cut(row, labeller.max_tokens) for row in rows]))
    if not of.labels:
        least, most = of.bounds
        predicted = [f"{min(max(float(one), least), most):.3f}" for one in predicted]
    return [f"{key}\t{label}" for key, label in zip(found.keys, predicted, strict=True)], too_long
