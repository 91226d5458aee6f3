"""regard: attention models on your own data.

    import regard
    result = regard.train("translate", data="pairs.tsv", out="runs/mine")
    model = regard.load("runs/mine")
    model.translate(["Der Vertrag wurde unterzeichnet."])
    regard.look(model, "Der Vertrag wurde unterzeichnet.")

Names are imported when they are first used, so that ``import regard`` costs nothing.

Threads that wait for each other spin while nobody else wants the cores, and soon sleep while somebody does, so that
what else runs on the machine keeps its share: GOMP_SPINCOUNT becomes 30,000, and whoever trains or loads a model is
watched (:func:`regard.sharing.watch`), unless OMP_WAIT_POLICY or GOMP_SPINCOUNT are set; where that cannot be
watched, or the cores are more than 32, it becomes 300, and threads soon sleep. And where a container's share
of the processor is less than its cores and OMP_NUM_THREADS is not set, it becomes the whole cores of that share. The
OpenMP library reads both once, when torch is loaded: who imports torch before sets them himself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from regard.sharing import give_way
from regard.version import __version__ as __version__

if TYPE_CHECKING:
    from regard.api import convert, evaluate, load, look, submit, train
    from regard.attention import KVCache, MultiHeadAttention, Segments, attend, masks, positions, record, scores
    from regard.decoding import DecodeOptions
    from regard.errors import RegardError

give_way()

_WHERE = {
    "regard.api": ("convert", "evaluate", "load", "look", "submit", "train"),
    "regard.attention": ("KVCache", "MultiHeadAttention", "Segments", "attend", "record"),
    "regard.decoding": ("DecodeOptions",),
    "regard.errors": ("RegardError",),
}
_MODULES = {
    "masks": "regard.attention.masks",
    "positions": "regard.attention.positions",
    "scores": "regard.attention.scores",
}
_HOME = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "DecodeOptions",
    "KVCache",
    "MultiHeadAttention",
    "RegardError",
    "Segments",
    "attend",
    "convert",
    "evaluate",
    "load",
    "look",
    "masks",
    "positions",
    "record",
    "scores",
    "submit",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOME:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted({*globals(), *__all__})
