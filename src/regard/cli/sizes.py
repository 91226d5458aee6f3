"""regard sizes"""

from __future__ import annotations

from regard.cli.options import Json, write_json


def sizes(*, json: Json = False) -> None:
    """Count the parameters of published sizes from the real modules, beside what the papers print."""
    from regard.models.registry import families
    from regard.tasks.folder import count_parameters

    rows = []
    for family in families().values():
        for size in family.sizes:
            rows.append((size.name, count_parameters(family.build, size.config), size.paper, size.note))
    for name, count, paper, note in rows:
        if json:
            write_json({"name": name, "parameters": count, "paper": paper, "note": note})
        else:
            print(f"{name:18} {count:>13,}  paper: {paper or 'not printed':8}  {note}")
