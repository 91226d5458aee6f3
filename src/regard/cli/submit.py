"""The verb ``regard submit``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import Device, Model, check_model_path


def submit(
    model: Model,
    *,
    layout: Annotated[str, Parameter(help="The benchmark: glue-cola, …, glue-ax (takes a model of glue-mnli).")],
    data: Annotated[Path, Parameter(help="The folder of its test file.")],
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="The folder of the files for the server.")],
    device: Device = "auto",
) -> None:
    """Label a benchmark's hidden test file, and write what its server takes (CoLA.tsv, MNLI-m.tsv and MNLI-mm.tsv, …).

    Example: regard submit runs/cola --layout glue-cola --data GLUE/CoLA -o submission
    """
    from regard.tasks import folder
    from regard.tasks.labeller import Labeller
    from regard.tasks.submission import submit as write
    from regard.training import hardware

    labeller = folder.load_as(Labeller, check_model_path(model), hardware.choose(device))
    for one in write(labeller, layout, data, out):
        print(f"{one.path}: {one.rows:,} predictions")
        if one.too_long:
            what = f"of {one.too_long:,} texts over {labeller.max_tokens} tokens the beginning is read"
            print(f"regard: note: {one.path.name}: {what}", file=sys.stderr)
