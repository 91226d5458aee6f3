"""A model without some of its heads, as a folder of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from regard.attention import switch_off
from regard.errors import DataError, UsageError
from regard.files import folder_aside
from regard.models.weights import gather
from regard.tasks import folder
from regard.tasks.convert import new_folder, rewrite


def save_masked(model: Any, heads_off: Mapping[str, Sequence[int]], out: str | Path) -> Path:
    """Write a model whose switched-off heads stay off, whole or not at all; ``regard.load`` opens it.

    The weights that read these heads are zero in the new folder; all else is as it was.

    Args:
        model: A run's folder, the model folder in it, a public folder or a GGUF file; or a loaded model, which stays
            as it is.
        heads_off: Query heads by the name of their layer; see :func:`regard.attention.switch_off`.
        out: The new folder; nothing is there yet, or an empty folder.

    Returns:
        Where it is.

    Raises:
        UsageError: Something is at ``out``, the model has no such layer or head, a layer has no weights of its own that
            read its heads; or a loaded model that no folder of ours can hold.
        DataError: There is no model.
        ResourceError: The disk is full, a permission or an optional package is missing.
    """

    def mask(module: nn.Module) -> None:
        switch_off(module, heads_off)

    if isinstance(model, str | Path):
        return rewrite(model, out, mask).path
    if not isinstance(model, folder.Product):
        raise _refusal()
    target, masked = new_folder(out), copy.deepcopy(model.model)
    mask(masked)
    with folder_aside(target) as new:
        folder.save(new, model, gather(masked))
        del masked
        try:  # what was loaded from a public folder may hold what only that folder says
            again = folder.load(new)
        except DataError as error:
            raise _refusal() from error
        if _kinds(again) != _kinds(model):
            raise _refusal()
    return target


def _kinds(product: folder.Product) -> tuple[type, type]:
    return type(product), type(getattr(product, "tokenizer", None))


def _refusal() -> UsageError:
    what, mend = "this loaded model cannot be written by itself", "give the folder that it was loaded from"
    return UsageError(what, where="save_masked", mend=mend)
