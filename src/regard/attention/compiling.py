"""What is traced, and what a traced model runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

_MOST_GRAPHS = 64


def eagerly(function: F) -> F:
    """Leave a function out where ``torch.compile`` traces its caller: it runs as it is, between two graphs.

    For what depends on the lengths of the batch at hand: a graph of it would serve no other batch.

    Args:
        function: The function.

    Returns:
        The function itself, marked where a caller is traced.
    """
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function


def compiled(function: F, *, dynamic: bool, **how: Any) -> F:
    """Compile a function by ``torch.compile``, with room for all of its graphs.

    Torch gives a function's code eight graphs, whichever objects they are for, and runs it uncompiled from then on. But
    all blocks share their code: four stages of Swin with windows that are shifted or not, in training and in
    evaluation, are sixteen graphs.

    Args:
        function: The function.
        dynamic: Sizes are variables of its graphs; else each size has a graph of its own.
        **how: More for ``torch.compile``.

    Returns:
        The compiled function.
    """
    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _MOST_GRAPHS)
    return torch.compile(function, dynamic=dynamic, **how)  # type: ignore[bad-return]
