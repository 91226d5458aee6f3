"""Recurrences over sequences of any lengths by our own kernels, with gradients; see ``recurrences.cpp``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels import native

_KEPT = (0, 4, 5)  # numbers that gradients need, for each of a state, by cell
_GRU = 1  # whose states and inputs do not give the same to every gate: their gradients differ


def unroll(
    cell: int, x_DNG: Tensor, w_DGH: Tensor, b_DG: Tensor, start: tuple[Tensor, ...], sizes: Sequence[int]
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """Run D recurrences of one shape side by side over all times, in float32 on a CPU.

    Its gradients are neither differentiated again nor taken in batches (``is_grads_batched``).

    Args:
        cell: 0 for Elman's, 1 for a GRU, 2 for an LSTM.
        x_DNG: What the inputs give to the gates, all first tokens first, then all second ones; at each time, those of
            the longest sequences first.
        w_DGH: Recurrent weights.
        b_DG: Their biases.
        start: Parts (D, B, H) of the first state, longest sequence first: h, and an LSTM's c.
        sizes: How many sequences have a token at each time; of the first, all.

    Returns:
        h_DNH, in the order of the input, and the parts (D, B, H) of the last state of each sequence; None where the
        kernels do not serve.
    """
    leaves = (x_DNG, w_DGH, b_DG, *start)
    if (kernel := native.loaded()) is None or not native.are_plain(*leaves):
        return None
    sizes_T = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    asks = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)
    run: Callable[..., tuple[Tensor, ...]] = _Unroll.apply if asks else partial(_forward, False)
    h_DNH, *others = run(cell, sizes_T, kernel, *(leaf.contiguous() for leaf in leaves))
    return h_DNH, tuple(others[: len(start)])


def _forward(
    keeps: bool,
    cell: int,
    sizes_T: Tensor,
    kernel: native.Kernel,
    x_DNG: Tensor,
    w_DGH: Tensor,
    b_DG: Tensor,
    *start: Tensor,
) -> tuple[Tensor, ...]:
    """Compute the states, the last ones, and what the backward pass needs: an LSTM's c, and what the cell keeps."""
    size = w_DGH.shape[2]
    states = [x_DNG.new_empty(*x_DNG.shape[:2], size) for _ in start]
    last = [torch.empty_like(part) for part in start]
    kept_DNK = x_DNG.new_empty(*x_DNG.shape[:2], _KEPT[cell] * size if keeps else 0)
    given = _describe(cell, sizes_T, x_DNG, w_DGH, b_DG, start, states, last, kept_DNK if keeps else None)
    kernel.recurrence(ctypes.addressof(given), native.threads(), native.team())
    return states[0], *last, *states[1:], kept_DNK


def _describe(
    cell: int,
    sizes_T: Tensor,
    x_DNG: Tensor,
    w_DGH: Tensor,
    b_DG: Tensor | None,
    start: Sequence[Tensor],
    states: Sequence[Tensor],
    last: Sequence[Tensor],
    kept_DNK: Tensor | None,
) -> native.Recurrence:
    """Say where all of it lies; the tensors have to live until the kernel has run."""
    given = native.Recurrence(cell, w_DGH.shape[0], start[0].shape[1], w_DGH.shape[2], len(sizes_T))
    given.sizes, given.x, given.weights = sizes_T.data_ptr(), x_DNG.data_ptr(), w_DGH.data_ptr()
    given.bias, given.kept = (0 if one is None else one.data_ptr() for one in (b_DG, kept_DNK))
    for name, parts in (("start", start), ("last", last)):
        for part, tensor in zip("hc", parts, strict=False):
            setattr(given, f"{name}_{part}", tensor.data_ptr())
    given.h, given.c = states[0].data_ptr(), states[1].data_ptr() if len(states) > 1 else 0
    return given


class _Unroll(torch.autograd.Function):
    """The kernel, with its own gradients: time by time those of states, and those of the weights in one product."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:  # pyrefly: ignore[bad-override]
        return _forward(True, *inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.cell, ctx.sizes_T, ctx.kernel = inputs[:3]
        ctx.parts = len(inputs) - 6
        others = output[1 + ctx.parts :]
        ctx.save_for_backward(*inputs[3:5], *inputs[6:], output[0], *others)
        ctx.mark_non_differentiable(*others)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_h_DNH: Tensor, *d_others: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        # Hooks of saved tensors may give them back in another layout.
        x_DNG, w_DGH, *rest = (saved.contiguous() for saved in ctx.saved_tensors)
        start, states, kept_DNK = rest[: ctx.parts], rest[ctx.parts : -1], rest[-1]
        d_h_DNH, d_x_DNG = d_h_DNH.contiguous(), torch.empty_like(x_DNG)
        d_gates_DNG = torch.empty_like(x_DNG) if ctx.cell == _GRU else d_x_DNG
        d_start = [part.clone(memory_format=torch.contiguous_format) for part in d_others[: ctx.parts]]
        given = _describe(ctx.cell, ctx.sizes_T, x_DNG, w_DGH, None, start, states, (), kept_DNK)
        places = [tensor.data_ptr() for tensor in (d_h_DNH, d_x_DNG, d_gates_DNG, *d_start)]
        gradients = native.RecurrenceGradients(*places)
        where = ctypes.addressof(given), ctypes.addressof(gradients)
        ctx.kernel.recurrence_back(*where, native.threads(), native.team())
        before_DNH = torch.cat([start[0], *_before(states[0], ctx.sizes_T.tolist())], 1)
        with torch.autocast("cpu", enabled=False):
            d_w_DGH = torch.bmm(d_gates_DNG.transpose(1, 2), before_DNH)
        return None, None, None, d_x_DNG, d_w_DGH, d_gates_DNG.sum(1), *d_start


def _before(h_DNH: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Give the states before all times but the first: those of the time before, of the sequences that go on."""
    starts = accumulate(sizes, initial=0)
    return [h_DNH[:, low : low + size] for low, size in zip(starts, sizes[1:], strict=False)]
