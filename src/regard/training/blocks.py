"""What training does to modules, without a word of it in them: to be quick, to compile, to forget inside blocks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from regard.attention.compiling import compiled
from regard.attention.recording import paused
from regard.errors import ConfigError
from regard.kernels.rounded import is_wide
from regard.layers.block import Block
from regard.layers.dropout import Dropout
from regard.layers.own_kernels import can_use_own_kernels, use_own_kernels
from regard.layers.relative import RelativeBlock
from regard.layers.rounded_linear import RoundedLinear
from regard.models.weights import lay_by_rows


def quicken(model: nn.Module, precision: str) -> None:
    """Let every dropout draw its bits by :class:`regard.layers.dropout.Dropout`, and on a CPU our own kernels attend.

    Weights come to lie row by row. Where a processor multiplies matrices of bfloat16, our kernels multiply for linear
    layers too, of float32 for wide ones: see :class:`regard.layers.rounded_linear.RoundedLinear`.

    Args:
        model: The model, where it is trained.
        precision: ``fp32`` or ``bf16``.
    """
    lay_by_rows(model)
    kernel = use_own_kernels() if can_use_own_kernels(model) else None
    multiplies = kernel is not None and kernel.multiplies()
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = Dropout
        elif type(module) is nn.Linear and multiplies and (precision == "bf16" or is_wide(module.weight)):
            module.__class__ = RoundedLinear


def compile_blocks(model: nn.Module, **how: Any) -> None:
    """Compile a model block by block: all layers share a graph or two, so any depth is compiled in the same time.

    Args:
        model: The model; batches may differ in every size, sizes are variables of the graph.
        **how: More for ``torch.compile``.
    """
    for block in (module for module in model.modules() if isinstance(module, Block)):
        block.forward = compiled(block.forward, dynamic=True, **how)  # type: ignore[method-assign]


def checkpoint_blocks(model: nn.Module) -> None:
    """Keep of each block only what enters it, and compute what is inside again in the backward pass.

    Nothing changes but memory and time: dropout draws the same numbers again, in the same precision.

    Args:
        model: The model, compiled already where it will be.

    Raises:
        ConfigError: It has no block.

    Source: Chen et al. 2016, §3.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block | RelativeBlock)]
    if not blocks:
        what = "training.checkpoint_activations is true for a model without Transformer blocks"
        raise ConfigError(what, mend="leave it out")
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=_once_recorded)  # type: ignore[method-assign]


def _once_recorded() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Where the forward pass runs, and where it runs again: recorders have seen it already."""
    return nullcontext(), paused()
