"""Recurrences over sequences of any lengths by our own kernels, with gradients; see ``recurrences.cpp``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels import calls, native

# By cell: gates, parts of a state, and numbers that gradients need, for each of a state.
_GATES, _PARTS, _KEPT = (1, 3, 4), (1, 1, 2), (0, 4, 5)
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
    if not _fit(cell, leaves, sizes):  # of what does not, PyTorch says what is wrong
        return None
    sizes_T = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    asks = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)
    run: Callable[..., tuple[Tensor, ...]] = _Unroll.apply if asks else partial(_forward, False)
    h_DNH, *others = run(cell, sizes_T, kernel, *(leaf.contiguous() for leaf in leaves))
    return h_DNH, tuple(others[: len(start)])


def _fit(cell: int, leaves: Sequence[Tensor], sizes: Sequence[int]) -> bool:
    """Say whether all shapes are what the kernel takes them for."""
    x_DNG, w_DGH, b_DG, *start = leaves
    if w_DGH.dim() != 3 or len(start) != _PARTS[cell] or not sizes:
        return False
    directions, gates, hidden = w_DGH.shape
    wanted = [(directions, sum(sizes), gates), (directions, gates), *[(directions, sizes[0], hidden)] * len(start)]
    falls = all(size >= after > 0 for size, after in pairwise((*sizes, 1)))
    return falls and gates == _GATES[cell] * hidden > 0 and [tuple(x.shape) for x in (x_DNG, b_DG, *start)] == wanted


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
    x_DNG: Tensor | None,
    w_DGH: Tensor,
    b_DG: Tensor | None,
    start: Sequence[Tensor],
    states: Sequence[Tensor],
    last: Sequence[Tensor],
    kept_DNK: Tensor | None,
) -> calls.Recurrence:
    """Say where all of it lies; the tensors have to live until the kernel has run."""
    given = calls.Recurrence(cell, w_DGH.shape[0], start[0].shape[1], w_DGH.shape[2], len(sizes_T))
    given.sizes, given.weights = sizes_T.data_ptr(), w_DGH.data_ptr()
    given.x, given.bias, given.kept = (0 if one is None else one.data_ptr() for one in (x_DNG, b_DG, kept_DNK))
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
        ctx.cell, ctx.sizes_T, ctx.kernel, _, w_DGH, _, *start = inputs
        h_DNH, *others = output
        *c_DNH, kept_DNK = others[len(start) :]  # behind the last states
        ctx.save_for_backward(w_DGH, kept_DNK, *start, h_DNH, *c_DNH)
        ctx.mark_non_differentiable(*c_DNH, kept_DNK)
        ctx.set_materialize_grads(False)  # zeros for all that is kept
        ctx.parts = len(start)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_h_DNH: Tensor | None, *d_others: Tensor | None) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        # Hooks of saved tensors may give them back in another layout.
        w_DGH, kept_DNK, *rest = (saved.contiguous() for saved in ctx.saved_tensors)
        start, states = rest[: ctx.parts], rest[ctx.parts :]
        h_DNH = states[0]
        d_h_DNH = torch.zeros_like(h_DNH) if d_h_DNH is None else d_h_DNH.resolve_neg().contiguous()
        d_start = [
            torch.zeros_like(part) if d_last is None else d_last.clone(memory_format=torch.contiguous_format)
            for part, d_last in zip(start, d_others, strict=False)
        ]
        d_x_DNG = h_DNH.new_empty(*h_DNH.shape[:2], w_DGH.shape[1])
        d_gates_DNG = torch.empty_like(d_x_DNG) if ctx.cell == _GRU else d_x_DNG
        given = _describe(ctx.cell, ctx.sizes_T, None, w_DGH, None, start, states, (), kept_DNK)
        places = [tensor.data_ptr() for tensor in (d_h_DNH, d_x_DNG, d_gates_DNG, *d_start)]
        gradients = calls.RecurrenceGradients(*places)
        where = ctypes.addressof(given), ctypes.addressof(gradients)
        ctx.kernel.recurrence_back(*where, native.threads(), native.team())
        d_w_DGH = d_b_DG = None
        if ctx.needs_input_grad[4]:
            before_DNH = torch.cat([start[0], *_before(h_DNH, ctx.sizes_T.tolist())], 1)
            with torch.autocast("cpu", enabled=False):
                d_w_DGH = torch.bmm(d_gates_DNG.transpose(1, 2), before_DNH)
        if ctx.needs_input_grad[5]:
            d_b_DG = d_gates_DNG.sum(1)
        return None, None, None, d_x_DNG, d_w_DGH, d_b_DG, *d_start


def _before(h_DNH: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Give the states before all times but the first: those of the time before, of the sequences that go on."""
    starts = accumulate(sizes, initial=0)
    return [h_DNH[:, low : low + size] for low, size in zip(starts, sizes[1:], strict=False)]
