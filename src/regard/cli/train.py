"""The verb ``regard train``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import Device, Source, Target
from regard.errors import UsageError

# What each task takes, for --list; the help must not wait for torch.
TASKS = {
    "translate": "pairs of texts: sentences and translations, words and their sounds",
    "lm": "texts: a model that goes on from a beginning",
    "mlm": "texts: a model that fills in what is masked",
    "xlm": "texts of several languages, and pairs of translations: a model that fills in what is masked",
    "plm": "texts: a model that predicts tokens in any order, and fills in what is masked",
    "instruct": "prompts and answers: a language model that answers",
    "classify": "texts with classes: sentiment, topic, spam",
    "tag": "sentences with a tag a word: named entities, parts of speech",
    "regress": "texts with numbers: ratings, similarity",
    "classify-images": "images with classes",
    "reconstruct": "images: an encoder that learns by filling in hidden patches",
    "contrast": "images: an encoder that learns to tell them apart, whatever was done to them",
    "generate-images": "images: a model that makes more of them",
}


def train(
    task: Annotated[
        str | None,
        Parameter(
            help="What to train for: translate, lm, mlm, xlm, plm, instruct, classify, regress, tag; of images "
            "classify-images, reconstruct, contrast, generate-images."
        ),
    ] = None,
    *,
    data: Annotated[
        str | None,
        Parameter(
            help="Training data: pairs as .tsv, .csv, .jsonl, .parquet or train.de,train.en; texts as .txt, .jsonl or "
            "a folder; images as a folder a class, .csv or .parquet of files and classes, IDX, .npz; or catalogue:NAME."
        ),
    ] = None,
    out: Annotated[
        Path | None, Parameter(help="The run's folder. The same command goes on where it was stopped.")
    ] = None,
    recipe: Annotated[str | None, Parameter(help="A recipe's name, or a YAML file.")] = None,
    dev: Annotated[str | None, Parameter(help="Development data; left out, a part of the training data.")] = None,
    test: Annotated[str | None, Parameter(help="Test data; left out, a part of the training data.")] = None,
    source: Source = None,
    target: Target = None,
    set_: Annotated[
        list[str] | None,
        Parameter(name="--set", negative="", help="Change a setting: training.max_steps=1000. Repeatable."),
    ] = None,
    device: Device = "auto",
    list_: Annotated[bool, Parameter(name="--list", negative="", help="List tasks and recipes.")] = False,
    quiet: Annotated[bool, Parameter(negative="", help="Show no progress.")] = False,
) -> None:
    """Train a model, score it beside baselines, write a report."""
    from regard.training import recipe as recipes

    if list_:
        for name, what in TASKS.items():
            print(f"{name:16} {what}")
        print("\nrecipes:", ", ".join(recipes.names()))
        return
    if task not in TASKS:
        what = "no task" if task is None else f"unknown task {task!r}"
        raise UsageError(what, mend=f"choose from {', '.join(TASKS)}")
    if out is None:
        raise UsageError("no folder for the run", mend="give --out runs/NAME")
    values = recipes.with_data(recipes.read_for(task, recipe), data, dev, test, source, target)
    resolved = recipes.resolve(values, set_ or [], recipe or task)
    from regard.training import run

    result = run.run(resolved, out, device=device, quiet=quiet, command=["regard", *sys.argv[1:]])
    metric = result.metric
    print(f"{metric} {result.scores[metric]:.4f} on held-out data")
    for name, scores in result.scores["baselines"].items():
        if metric in scores:
            print(f"  {name}: {scores[metric]:.4f}")
    for name, scores in result.scores["also_test"].items():
        print(f"{metric} {scores[metric]:.4f} on {name}")
    print(f"report: {(out / 'report.html').resolve()}")
