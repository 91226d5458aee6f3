"""The verb ``regard look``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import Device, Model, check_model_path, check_text
from regard.errors import UsageError


def look(
    model: Model,
    text: Annotated[str, Parameter(help="The input to look at: a text, or an image file.", allow_leading_hyphen=True)],
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="The page (.html), or the weights (.json).")],
    target: Annotated[str | None, Parameter(help="An output to look at; left out, the model writes one.")] = None,
    layers: Annotated[
        list[str] | None, Parameter(negative="", help="Names or patterns of layers; left out, all. Repeatable.")
    ] = None,
    language: Annotated[str, Parameter(help="Of the text, for a model that is told it.")] = "",
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
    import regard
    from regard.looking.reading import look as maps_of

    maps = maps_of(regard.load(check_model_path(model), device), text, target, layers, language)
    maps.save(out)
    if maps.output:
        print(maps.output)
    print(f"page: {out.resolve()}")
