"""The verb ``regard convert``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import check_model_path


def convert(
    model: Annotated[
        str, Parameter(help="A run's folder, a Hugging Face or timm folder, or a GGUF file (Llama-type).")
    ],
    *,
    to: Annotated[str, Parameter(help="huggingface, timm (images) or regard.")],
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="The new folder.")],
) -> None:
    """Write a model as a Hugging Face or timm folder, or in regard's own form: whole, or not at all.

    Example: regard convert runs/mine --to huggingface -o mine-hf
    """
    from regard.tasks.convert import convert as write

    done = write(check_model_path(model), out, to)
    for note in done.notes:
        print(f"regard: note: {note}", file=sys.stderr)
    counts = f"{done.tensors} tensors, {done.parameters:,} parameters, {done.size_bytes:,} bytes"
    print(f"{out}: a {done.family}, {counts}")
