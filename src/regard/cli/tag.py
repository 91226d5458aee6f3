"""The verb ``regard tag``."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import (
    Device,
    Json,
    Model,
    Precision,
    check_model_path,
    in_batches,
    make_ready,
    write_json,
    write_line,
)


def tag(
    model: Model,
    *,
    batch: Annotated[int, Parameter(help="Lines read before tags are printed.")] = 256,
    json: Json = False,
    device: Device = "auto",
    precision: Precision = "fp32",
) -> None:
    """Tag the words of each line of standard input: a tag a word, in order, words being what stands between spaces.

    Example: regard tag runs/entities < texts.txt
    """
    from regard.tasks import folder
    from regard.tasks.tagger import Tagger
    from regard.training import hardware

    tagger = folder.load_as(Tagger, check_model_path(model), hardware.choose(device))
    make_ready(tagger, precision)

    def answer(texts: list[str], done: int) -> None:
        for text, tags in zip(texts, tagger.tag(texts), strict=True):
            if json:
                write_json({"words": text.split(), "tags": tags})
            else:
                write_line(" ".join(tags))

    in_batches(sys.stdin, batch, answer)
