"""Products in training by a processor that multiplies matrices of bfloat16, all else in float32; see ``amx.cpp``."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import UsageError
from regard.kernels import calls, native

# In float32 splitting all that is multiplied takes time too: so many multiplications, and as wide a layer, make up for
# it. Beside MKL on two cores with AVX-512 a layer's two passes are 1.1 to 1.3 times as fast from a width of 512 on.
_SPLIT_WORK, _SPLIT_WIDTH = 1 << 28, 384


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor | None:
    """Compute y = x Wᵀ + b on a CPU, by a processor that multiplies matrices of bfloat16.

    Where autocast asks for bfloat16, x and W are rounded to it while they are laid out for the processor; sums, y and
    all gradients are float32. Autocast's own products round their results too, and leave narrow tensors to all that
    comes behind them. Without autocast x and W are split instead: see :class:`Multiplier`. In the backward pass
    gradients are rounded, or split, likewise:

        ∂x = ∂y W,    ∂W = ∂yᵀ x,    ∂b = Σ ∂y (not rounded).

    Args:
        x: float32, (…, I).
        weight_OI: float32.
        bias_O: float32, or None.

    Returns:
        y, (…, O); None where the kernels do not serve.
    """
    fits = weight_OI.dim() == 2 and x.shape[-1:] == weight_OI.shape[1:]
    fits = fits and (bias_O is None or bias_O.shape == weight_OI.shape[:1])
    if not fits or (multiplier := serving(x, weight_OI, bias_O)) is None:
        return None
    y_NO = _Linear.apply(x.unsqueeze(0).flatten(0, -2), weight_OI, bias_O, multiplier)
    return y_NO.view(*x.shape[:-1], len(weight_OI))


def serving(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Multiplier | None:
    """Give what multiplies x Wᵀ + b and its gradients, where our kernels do.

    Args:
        x: (…, I).
        weight_OI: The weights.
        bias_O: None for none.

    Returns:
        Of one part where autocast asks for bfloat16; of three where it asks for nothing, and there is so much to do
        that it pays. None where it asks for another dtype, a tensor is not plain, or the processor does not multiply
        matrices.
    """
    asks = torch.is_autocast_enabled("cpu")
    if asks and torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return None
    if not asks and (x.numel() * len(weight_OI) < _SPLIT_WORK or not is_wide(weight_OI)):
        return None
    tensors = (x, weight_OI) if bias_O is None else (x, weight_OI, bias_O)
    if (kernel := native.loaded()) is None or not kernel.multiplies() or not native.are_plain(*tensors):
        return None
    return Multiplier(kernel, 1 if asks else 3)


def is_wide(weight_OI: Tensor) -> bool:
    """Say whether splitting can pay in float32.

    Args:
        weight_OI: A layer's weights.

    Returns:
        Whether its inputs and outputs are many enough; how many rows there are says the rest.
    """
    return min(weight_OI.shape) >= _SPLIT_WIDTH


@dataclass(frozen=True)
class Multiplier:
    """Products of float32 by matrices of bfloat16, with float32 sums.

    Of one part, numbers are rounded. Of three, each is a sum of three bfloat16, which loses nothing, and six of the
    nine products are summed: the rest is less than float32 rounds. So the error is float32's; but what is not finite,
    or beyond 3.39 · 10³⁸, makes NaN of what it goes into, as a sum beyond may become, and digits below 10⁻³⁸ are lost.

    Attributes:
        kernel: The kernels, which multiply.
        parts: 1 or 3.

    Source: Henry, Tang and Heinecke 2019, §III.
    """

    kernel: native.Kernel
    parts: int

    def __call__(
        self,
        x_NI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None = None,
        *,
        out: Tensor | None = None,
        adds: bool = False,
    ) -> Tensor:
        """Compute y = x Wᵀ + b; no gradient goes through it.

        Args:
            x_NI: float32 on the CPU.
            weight_OI: float32 on the CPU.
            bias_O: float32 on the CPU, its numbers side by side; None for none.
            out: Where y goes, (N, O), its rows' numbers side by side; None makes it.
            adds: To what is there.

        Returns:
            y_NO.

        Raises:
            UsageError: The kernels do not multiply, shapes do not fit, or the numbers of a row of ``out`` do not stand
                side by side.
        """
        x_NI, weight_OI = (one if 1 in one.stride() else one.contiguous() for one in (x_NI, weight_OI))
        bias_O = None if bias_O is None else bias_O.contiguous()
        shape = (len(x_NI), len(weight_OI))
        if out is None:
            out = x_NI.new_empty(shape)
        fits = (
            x_NI.shape[1] == weight_OI.shape[1] and out.shape == shape and (bias_O is None or len(bias_O) == shape[1])
        )
        is_by_rows = shape[1] <= 1 or (out.stride(1) == 1 and (shape[0] <= 1 or out.stride(0) >= shape[1]))
        if not (self.kernel.multiplies() and fits and is_by_rows):
            what = (
                f"a product of {tuple(x_NI.shape)} and {tuple(weight_OI.shape)} into {tuple(out.shape)}, {out.stride()}"
            )
            raise UsageError(what, where="regard.kernels.rounded")
        given = calls.Product(
            len(x_NI),
            *weight_OI.shape,
            *(None if one is None else one.data_ptr() for one in (x_NI, weight_OI, bias_O, out)),
            *x_NI.stride(),
            *weight_OI.stride(),
            out.stride(0),
            adds,
            self.parts,
        )
        self.kernel.multiply(ctypes.addressof(given), native.threads(), native.team())
        return out


class _Linear(torch.autograd.Function):
    """x Wᵀ + b; its gradients are such products too, so that they can be differentiated again."""

    @staticmethod
    def forward(  # pyrefly: ignore[bad-override]
        ctx: Any, x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, multiplier: Multiplier
    ) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI)
        ctx.multiplier = multiplier
        return multiplier(x_NI, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        x_NI, weight_OI = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        if not native.are_plain(grad_NO, x_NI, weight_OI):  # a gradient that is batched, or inputs that a hook changed
            grads = (
                grad_NO @ weight_OI if wants_x else None,
                grad_NO.transpose(-2, -1) @ x_NI if wants_weight else None,
            )
        else:
            grads = (
                _Linear.apply(grad_NO, weight_OI.T, None, ctx.multiplier) if wants_x else None,
                _Linear.apply(grad_NO.T, x_NI.T, None, ctx.multiplier) if wants_weight else None,
            )
        return *grads, grad_NO.sum(-2) if wants_bias else None, None
