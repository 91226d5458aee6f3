"""The verb ``regard embed``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from regard.cli.options import (
    Device,
    Precision,
    answers,
    check_model_path,
    for_named,
    in_batches,
    make_ready,
    write_json,
    write_line,
)
from regard.errors import UsageError


def embed(
    model: Annotated[str, Parameter(help="A folder with config.json, model.safetensors and tokenizer.json.")],
    *,
    pooling: Annotated[str | None, Parameter(help="mean, cls or last. [default: as the model was made for]")] = None,
    truncate: Annotated[bool, Parameter(negative="", help="Read the beginning of a line that is too long.")] = False,
    batch: Annotated[int, Parameter(help="Lines read before vectors are printed.")] = 256,
    device: Device = "auto",
    precision: Precision = "fp32",
) -> None:
    """Give each line of standard input a vector: one JSON object a line, {"embedding": […]}, in order.

    A model of images takes the name of an image file on each line, and leaves a blank one blank; a blank text has a
    vector too.

    Example: regard embed all-MiniLM-L6-v2 < texts.txt > vectors.jsonl
    """
    from regard.tasks.embedder import load_embedder
    from regard.tasks.folder import load
    from regard.tasks.images.public import is_of_images, load_images
    from regard.tasks.plain import is_trained
    from regard.training import hardware

    target = hardware.choose(device)
    if is_of_images(check_model_path(model)):
        images = load_images(model, target)
        make_ready(images, precision)

        def write(vector: Any) -> None:
            write_line("") if vector is None else write_json({"embedding": vector.tolist()})

        in_batches(sys.stdin, batch, lambda paths, _: for_named(paths, images.embed, write))
        return
    if is_trained(model):
        other = load(model, target)
        what = f"a model for the task {other.task!r} gives no vectors of texts"
        raise UsageError(what, where=model, mend=f"give a public encoder, or use regard {other.verbs[0]}")
    embedder, warnings = load_embedder(model, target)
    make_ready(embedder, precision)
    for warning in warnings:
        print(f"regard: warning: {warning}", file=sys.stderr)

    def answer(texts: list[str], done: int) -> None:
        def vectors(some: Sequence[str], first: int) -> Any:
            return embedder.embed(some, pooling, truncate=truncate)  # type: ignore[arg-type]

        mend = "split the line, or read its beginning with --truncate"
        for vector in answers(texts, done, vectors, mend):
            write_json({"embedding": vector.tolist()})

    in_batches(sys.stdin, batch, answer)
