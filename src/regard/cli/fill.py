"""The verb ``regard fill``."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import (
    Device,
    Json,
    Precision,
    answers,
    check_model_path,
    in_batches,
    leaving_blank,
    make_ready,
    write_json,
    write_line,
)
from regard.errors import UsageError


def fill(
    model: Annotated[str, Parameter(help="A run's folder or its model folder, or a public folder.")],
    *,
    top_k: Annotated[int, Parameter(help="Candidates of each mask that --json prints.")] = 5,
    language: Annotated[str, Parameter(help="Of the lines, for a model that is told it.")] = "",
    batch: Annotated[int | None, Parameter(help="Lines filled in together. [default: 64; 1 on a terminal]")] = None,
    json: Json = False,
    device: Device = "auto",
    precision: Precision = "fp32",
) -> None:
    """Fill in the masks in each line of standard input: <mask>, or as the model has it ([MASK]).

    Printed is the line with the likeliest token for each mask, line breaks as spaces; --json has the candidates.
    Blank lines stay blank.

    Example: regard fill runs/book <<< "In the <mask> was the word"
    """
    batch = (1 if sys.stdin.isatty() else 64) if batch is None else batch
    for name, value in {"top-k": top_k, "batch": batch}.items():
        if value < 1:
            raise UsageError(f"--{name} is {value}", mend="give at least 1")
    from regard import api
    from regard.tasks.filler import Filled, Filler

    loaded = api.load_for_use(check_model_path(model), device)
    if not isinstance(loaded, Filler):
        raise UsageError("this model fills in no masks", where=model, mend="give a masked language model")
    make_ready(loaded, precision)

    def fill_in(texts: list[str]) -> list[Filled]:
        return loaded.fill(texts, top_k, language=language)

    def answer(texts: list[str], done: int) -> None:
        for one in answers(texts, done, leaving_blank(fill_in)):
            if one is None:
                write_line("")
            elif json:
                masks = [[{"text": c.text, "probability": c.probability} for c in mask] for mask in one.masks]
                write_json({"text": one.text, "masks": masks})
            else:
                write_line(" ".join(one.text.splitlines()))

    in_batches(sys.stdin, batch, answer)
