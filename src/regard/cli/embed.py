"""The verb ``regard embed``."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import Device, check_model_path, lines, write_json
from regard.errors import ContextError, UsageError


def embed(
    model: Annotated[str, Parameter(help="A folder with config.json, model.safetensors and tokenizer.json.")],
    *,
    pooling: Annotated[str | None, Parameter(help="mean, cls or last. [default: as the model was made for]")] = None,
    truncate: Annotated[bool, Parameter(negative="", help="Read the beginning of a line that is too long.")] = False,
    batch: Annotated[int, Parameter(help="Lines read before vectors are printed.")] = 256,
    device: Device = "auto",
) -> None:
    """Give each line of standard input a vector: one JSON object a line, {"embedding": […]}, in order.

    Example: regard embed all-MiniLM-L6-v2 < texts.txt > vectors.jsonl
    """
    if batch < 1:
        raise UsageError(f"--batch is {batch}", mend="give at least 1")
    from regard.tasks.embedder import load_embedder
    from regard.training import hardware

    embedder, warnings = load_embedder(check_model_path(model), hardware.choose(device))
    for warning in warnings:
        print(f"regard: warning: {warning}", file=sys.stderr)
    waiting: list[str] = []
    done = 0

    def flush() -> None:
        nonlocal done
        try:
            vectors = embedder.embed(waiting, pooling, truncate=truncate, first=done)  # type: ignore[arg-type]
        except ContextError as error:
            mend = "split the line, or read its beginning with --truncate"
            raise ContextError(error.what, where="standard input", mend=mend) from error
        for vector in vectors:
            write_json({"embedding": vector.tolist()})
        done += len(waiting)
        waiting.clear()

    for text in lines(sys.stdin):
        waiting.append(text)
        if len(waiting) == batch:
            flush()
    flush()
