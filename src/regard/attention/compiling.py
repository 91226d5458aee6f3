"""What a traced model runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

F = TypeVar("F", bound=Callable[..., object])


def eagerly(function: F) -> F:
    """Leave a function out where ``torch.compile`` traces its caller: it runs as it is, between two graphs.

    For what depends on the lengths of the batch at hand: a graph of it would serve no other batch.

    Args:
        function: The function.

    Returns:
        The function itself, marked where a caller is traced.
    """
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function
