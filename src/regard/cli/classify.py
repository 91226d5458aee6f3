"""The verb ``regard classify``."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import (
    Device,
    Json,
    Model,
    Precision,
    answers,
    check_model_path,
    for_named,
    in_batches,
    leaving_blank,
    make_ready,
    write_json,
    write_line,
)
from regard.errors import UsageError


def classify(
    model: Model,
    *,
    truncate: Annotated[bool, Parameter(negative="", help="Read the beginning of a line that is too long.")] = False,
    languages: Annotated[str, Parameter(help="Of the texts, de, or of both of each line, en,de; if it is told.")] = "",
    batch: Annotated[int, Parameter(help="Lines read before labels are printed.")] = 256,
    json: Json = False,
    device: Device = "auto",
    precision: Precision = "fp32",
) -> None:
    """Label each line of standard input, in order: its class, or its number. Of two texts, a tab stands between.

    A model of images takes the name of an image file on each line. Blank lines stay blank.

    Example: regard classify runs/mood < texts.txt
    """
    from regard import api
    from regard.tasks.images.classifier import ImageClassifier
    from regard.tasks.labeller import Classes, Label, Labeller

    labeller = api.load_for_use(check_model_path(model), device)
    if not isinstance(labeller, Labeller | ImageClassifier):
        verbs = " or ".join(f"regard {verb}" for verb in labeller.verbs)
        raise UsageError(f"a model for the task {labeller.task!r}", where=model, mend=f"use it with {verbs}")
    make_ready(labeller, precision)

    def write(one: Label | None) -> None:
        if one is None:
            write_line("")
        elif json:
            # A number's text is what is printed; in JSON it is the number.
            label = one.label if isinstance(labeller.goal, Classes) else float(one.label)
            write_json({"label": label, **({"probabilities": one.probabilities} if one.probabilities else {})})
        else:
            write_line(one.label)

    def answer(texts: list[str], done: int) -> None:
        if isinstance(labeller, ImageClassifier):
            for_named(texts, labeller.classify, write)
            return

        def label(some: list[str]) -> list[Label]:
            pairs = [tuple(text.split("\t", 1)) for text in some]
            return labeller.classify(pairs, truncate=truncate, languages=languages)

        for one in answers(texts, done, leaving_blank(label), "split the line, or read its beginning with --truncate"):
            write(one)

    in_batches(sys.stdin, batch, answer)
