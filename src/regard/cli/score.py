"""The verb ``regard score``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import Device, Json, Model, Source, Target, check_model_path, write_json, write_line


def score(
    model: Model,
    *,
    data: Annotated[str, Parameter(help="Pairs; - reads TSV from standard input.", allow_leading_hyphen=True)],
    source: Source = None,
    target: Target = None,
    json: Json = False,
    device: Device = "auto",
) -> None:
    """Print the natural-log probability of each target given its source, end included, no length penalty."""
    from regard.data import read_pairs
    from regard.tasks import folder
    from regard.training import hardware

    translator = folder.load(check_model_path(model), hardware.choose(device))
    for logprob, tokens in translator.score(read_pairs(data, source=source, target=target)):
        if json:
            write_json({"logprob": logprob, "tokens": tokens})
        else:
            write_line(f"{logprob:.6f}\t{tokens}")
