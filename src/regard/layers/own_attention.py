"""Where attention on a CPU goes to our own kernels: the three places that ask for others."""

from __future__ import annotations

from torch import nn

from regard.attention import recording
from regard.attention.backends import dense, static
from regard.attention.sites import Site
from regard.kernels import sequences, slots
from regard.kernels.native import Kernel, choose


def attend_by_kernels(kernel: str | None = None) -> Kernel | None:
    """Have our own kernels attend from now on, in the whole process, and compute the weights that are recorded.

    They attend within sequences, with gradients, and into slots. They take float32 on a CPU, and decline all else.
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
    return own


def attends_on_cpu(model: nn.Module) -> bool:
    """Say whether a model has anything for these kernels to do.

    Args:
        model: Any.

    Returns:
        Whether it attends somewhere, and its weights are all on the CPU.
    """
    return any(isinstance(one, Site) for one in model.modules()) and all(one.is_cpu for one in model.parameters())
