"""regard sizes"""

from __future__ import annotations

from regard.cli.options import Json, write_json


def sizes(*, json: Json = False) -> None:
    """Count the parameters of published sizes from the real modules, beside what the papers print."""
    import torch

    from regard.models.registry import families

    rows = []
    for family in families().values():
        for size in family.sizes:
            with torch.device("meta"):
                model = family.build(size.config)
            count = sum(parameter.numel() for parameter in model.parameters())
            rows.append((size.name, count, size.paper, size.note))
    for name, count, paper, note in rows:
        if json:
            write_json({"name": name, "parameters": count, "paper": paper, "note": note})
        else:
            print(f"{name:18} {count:>13,}  paper: {paper or 'not printed':8}  {note}")
