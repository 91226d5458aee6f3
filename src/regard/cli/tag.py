"""The verb ``regard tag``."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import Device, Json, Model, check_model_path, lines, write_json, write_line
from regard.errors import DataError, UsageError


def tag(
    model: Model,
    *,
    batch: Annotated[int, Parameter(help="Lines read before tags are printed.")] = 256,
    json: Json = False,
    device: Device = "auto",
) -> None:
    """Tag the words of each line of standard input: a tag a word, in order, words being what stands between spaces.

    Example: regard tag runs/entities < texts.txt
    """
    if batch < 1:
        raise UsageError(f"--batch is {batch}", mend="give at least 1")
    from regard.tasks import folder
    from regard.tasks.tagger import Tagger
    from regard.training import hardware

    tagger = folder.load_as(Tagger, check_model_path(model), hardware.choose(device))
    waiting: list[str] = []

    def flush() -> None:
        for text, tags in zip(waiting, tagger.tag(waiting), strict=True):
            if json:
                write_json({"words": text.split(), "tags": tags})
            else:
                write_line(" ".join(tags))
        waiting.clear()

    try:
        for text in lines(sys.stdin):
            waiting.append(text)
            if len(waiting) == batch:
                flush()
    except DataError:
        flush()  # what came before a bad line is answered before the error is told
        raise
    flush()
