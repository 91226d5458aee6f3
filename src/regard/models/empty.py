"""Models of which no number is wanted: made without memory, or made for numbers that a file will bring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

M = TypeVar("M", bound=nn.Module)


class NoDraws(TorchFunctionMode):
    """Leaves out the drawing of weights, and what is done to them after: numbers that a file's take the place of.

    On the meta device, where there is no memory, torch would load its compiler to draw nothing; elsewhere memory that
    nobody writes to costs nothing. A cut normal distribution is drawn until nothing is beyond its bounds: nothing is.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Give the tensor back as it is where weights would be drawn, and find none of them beyond a bound."""
        kwargs = kwargs or {}
        if func.__name__ in ("lt", "gt") and isinstance(args[0], nn.Parameter):
            return torch.zeros((), dtype=torch.bool).expand(args[0].shape)
        if func in (Tensor.normal_, Tensor.uniform_) and not (args[0].is_meta or isinstance(args[0], nn.Parameter)):
            return args[0].zero_()
        if func.__name__ in ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_"):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        if func.__name__ in ("erfinv_", "mul_", "add_", "clamp_") and isinstance(args[0], nn.Parameter):
            return args[0]  # what makes a cut normal distribution of an even one
        return func(*args, **kwargs)


def without_memory(build: Callable[[Any], M], config: Any) -> M:
    """Make a model that has sizes and no numbers: what is wrong with its settings is said at once, however large it is.

    Args:
        build: Makes the model.
        config: Its settings.

    Returns:
        The model, on the meta device.
    """
    with torch.device("meta"), NoDraws():
        return build(config)
