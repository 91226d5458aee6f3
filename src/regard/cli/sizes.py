"""The verb ``regard sizes``."""

from __future__ import annotations

from regard.cli.options import Json, write_json


def sizes(*, json: Json = False) -> None:
    """Count the parameters of published sizes from the real modules, beside what the papers print."""
    from regard.models.registry import families
    from regard.models.weights import count_parameters

    for family in families().values():
        for size in family.sizes:
            count = count_parameters(family.build, size.config)
            if json:
                write_json({"name": size.name, "parameters": count, "paper": size.paper, "note": size.note})
            else:
                print(f"{size.name:18} {count:>13,}  paper: {size.paper or 'not printed':8}  {size.note}")
