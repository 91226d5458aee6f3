"""The verb ``regard look``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import Device, Model, check_model_path, check_text
from regard.errors import UsageError


def look(
    model: Model,
    text: Annotated[str, Parameter(help="The input to look at.", allow_leading_hyphen=True)],
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="The page (.html), or the weights (.json).")],
    target: Annotated[str | None, Parameter(help="An output to look at; left out, the model writes one.")] = None,
    layers: Annotated[
        list[str] | None, Parameter(negative="", help="Names or patterns of layers; left out, all. Repeatable.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Draw what a model attends to, as one self-contained page."""
    if out.suffix not in (".html", ".json"):
        raise UsageError(
            f"cannot write {out.suffix or 'a file without an ending'}", where=str(out), mend="give .html or .json"
        )
    check_text(text, "text")
    if target is not None:
        check_text(target, "--target")
    if target:
        check_text(target, "target")
    from regard.looking.seq2seq import look as maps_of
    from regard.tasks import folder
    from regard.tasks.translator import Translator
    from regard.training import hardware

    translator = folder.load_as(Translator, check_model_path(model), hardware.choose(device))
    maps = maps_of(translator, text, target, layers)
    maps.save(out)
    print(maps.output)
    print(f"page: {out.resolve()}")
