"""The verb ``regard data``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regard.cli.options import Json, write_json


def list_all(*, json: Json = False) -> None:
    """List the data sets."""
    from regard.data.catalogue import ENTRIES

    for name, entry in ENTRIES.items():
        if json:
            found = {"name": name, "description": entry.description, entry.unit: entry.num_items}
            write_json({**found, "licence": entry.licence})
        else:
            print(f"{name:20} {entry.num_items:>8,} {entry.unit:6}  {entry.description}; {entry.licence}")


def get(
    name: Annotated[str, Parameter(help="A name that `regard data list` shows.")],
    *,
    out: Annotated[Path | None, Parameter(help="Folder to put it in; left out, the cache.")] = None,
    seed: Annotated[int, Parameter(help="Of the split.")] = 0,
) -> None:
    """Fetch a data set with the package's own client, verify it, split it without leaks."""
    from regard.data import catalogue

    folder = catalogue.get(name, out, seed=seed)
    print(catalogue.ENTRIES[name].notice)
    print(folder)
