"""Where attention and recurrences on a CPU go to our own kernels: the places that ask for others."""

from __future__ import annotations

from torch import nn

from regard.attention import recording
from regard.attention.backends import dense, static
from regard.attention.sites import Site
from regard.kernels import recurrences, sequences, slots
from regard.kernels.native import Kernel, choose
from regard.layers import cells
from regard.layers.recurrent import Recurrent


def use_own_kernels(kernel: str | None = None) -> Kernel | None:
    """Have our own kernels attend and unroll recurrences from now on, in the whole process.

    They attend within sequences, with gradients, and into slots, compute the weights that are recorded, and run
    recurrent layers over whole sequences, with gradients. They take float32 on a CPU, and decline all else.
    ``REGARD_KERNEL=torch`` leaves everything to PyTorch.

    Args:
        kernel: ``native``, ``torch`` or ``auto``; see :func:`regard.kernels.native.choose`.

    Returns:
        The kernels; None where there are none, or PyTorch was chosen: then nothing changes.

    Raises:
        UsageError: Another word is given.
        ResourceError: ``native``, and there are no kernels of our own.
    """
    own = choose(kernel)
    if own is not None:
        dense.own, static.own, recording.own = sequences.attend, slots.attend, sequences.weigh
        cells.own = recurrences.unroll
    return own


def can_use_own_kernels(model: nn.Module) -> bool:
    """Say whether a model has anything for these kernels to do.

    Args:
        model: Any.

    Returns:
        Whether it attends or recurs somewhere, and its weights are all on the CPU.
    """
    serves = any(isinstance(one, Site | Recurrent) for one in model.modules())
    return serves and all(one.is_cpu for one in model.parameters())
