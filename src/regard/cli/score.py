"""The verb ``regard score``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import (
    Device,
    Json,
    Model,
    Precision,
    Source,
    Target,
    check_model_path,
    make_ready,
    write_json,
    write_line,
)
from regard.errors import UsageError


def score(
    model: Model,
    *,
    data: Annotated[
        str, Parameter(help="Pairs (- reads TSV from standard input); or texts.", allow_leading_hyphen=True)
    ],
    source: Source = None,
    target: Target = None,
    json: Json = False,
    device: Device = "auto",
    precision: Precision = "fp32",
) -> None:
    """Print the natural-log probability of each target given its source, or of each text; ends included."""
    from regard import api
    from regard.data import read_pairs
    from regard.data.documents import read_documents
    from regard.tasks.generator import Generator
    from regard.tasks.translator import Translator

    loaded = api.load_for_use(check_model_path(model), device)
    make_ready(loaded, precision)
    if isinstance(loaded, Generator):
        scores = loaded.score(list(read_documents(data)))
    elif isinstance(loaded, Translator):
        scores = loaded.score(read_pairs(data, source=source, target=target))
    else:
        raise UsageError("this model gives texts no probability", where=model, mend=f"use regard {loaded.verbs[0]}")
    for logprob, tokens in scores:
        if json:
            write_json({"logprob": logprob, "tokens": tokens})
        else:
            write_line(f"{logprob:.6f}\t{tokens}")
