"""Recurrent cells, and their run over all times with one gradient of the weights.

Each cell is a pair of functions, value and derivative. Left to autograd, the gradient of the recurrent weights would be
computed and added up once for every time; a recurrence is known from end to end once it has run, so here one product
over all tokens gives it. What is sequential by nature, the state and its gradient, is all that runs time by time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

tanh_backward, sigmoid_backward = torch.ops.aten.tanh_backward.grad_input, torch.ops.aten.sigmoid_backward.grad_input

# The parts of a recurrent state: LSTMs have two, h and c, the others h alone.
State = tuple[Tensor, ...]

# Runs a recurrence instead of what is here, or declines (None): kernels that regard.layers.own_kernels puts here.
own: Callable[[int, Tensor, Tensor, Tensor, State, Sequence[int]], tuple[Tensor, State] | None] | None = None


class Cell(ABC):
    """One step of a recurrence. Everywhere the last dimension is the gates' (G) or the state's (H), any others lead.

    Attributes:
        num_gates: G / H.
        num_parts: Tensors of a state; the first is h.
        adds: The gates see the sum of what input and state give them, so both have one gradient.
        number: By which our own kernels know it.
    """

    num_gates: ClassVar[int]
    num_parts: ClassVar[int]
    adds: ClassVar[bool]
    number: ClassVar[int]

    @staticmethod
    @abstractmethod
    def forward(x_BG: Tensor, h_BG: Tensor, before: State) -> tuple[State, State]:
        """Step.

        Args:
            x_BG: What the input gives to the gates.
            h_BG: What the state before gives to them.
            before: That state.

        Returns:
            The new state, and what :meth:`backward` needs.
        """

    @staticmethod
    @abstractmethod
    def backward(d_after: State, before: State, kept: State, d_x_BG: Tensor, d_h_BG: Tensor) -> State:
        """Go back.

        Args:
            d_after: Gradient of the new state.
            before: The state before.
            kept: From :meth:`forward`.
            d_x_BG: Where to write the gradient of x_BG.
            d_h_BG: Where to write that of h_BG; the same tensor where the cell :attr:`adds`.

        Returns:
            Gradient of the state before, but for what reaches it through h_BG.
        """


class Elman(Cell):
    """h' = tanh(x + h) (Elman 1990)."""

    num_gates, num_parts, adds, number = 1, 1, True, 0

    @staticmethod
    def forward(x_BG: Tensor, h_BG: Tensor, before: State) -> tuple[State, State]:
        new = torch.tanh(x_BG + h_BG)
        return (new,), (new,)

    @staticmethod
    def backward(d_after: State, before: State, kept: State, d_x_BG: Tensor, d_h_BG: Tensor) -> State:
        tanh_backward(d_after[0], kept[0], grad_input=d_x_BG)
        return (torch.zeros_like(d_x_BG),)


class GRU(Cell):
    """r, z = σ(x + h);  n = tanh(x_n + r · h_n);  h' = n + z · (h − n) (Cho et al. 2014, §2.3)."""

    num_gates, num_parts, adds, number = 3, 1, False, 1

    @staticmethod
    def forward(x_BG: Tensor, h_BG: Tensor, before: State) -> tuple[State, State]:
        size = before[0].shape[-1]
        (x_rz, x_n), (h_rz, h_n) = x_BG.split([2 * size, size], -1), h_BG.split([2 * size, size], -1)
        rz = torch.sigmoid(x_rz + h_rz)
        r, z = rz.chunk(2, -1)
        n = torch.tanh(torch.addcmul(x_n, r, h_n))
        return (torch.lerp(n, before[0], z),), (r, z, n, h_n)

    @staticmethod
    def backward(d_after: State, before: State, kept: State, d_x_BG: Tensor, d_h_BG: Tensor) -> State:
        r, z, n, h_n = kept
        (d_r, d_z, d_n), size = d_x_BG.chunk(3, -1), n.shape[-1]
        through = d_after[0] * z
        tanh_backward(d_after[0] - through, n, grad_input=d_n)
        sigmoid_backward(d_n * h_n, r, grad_input=d_r)
        sigmoid_backward((before[0] - n).mul_(d_after[0]), z, grad_input=d_z)
        d_h_BG[..., : 2 * size] = d_x_BG[..., : 2 * size]
        torch.mul(d_n, r, out=d_h_BG[..., 2 * size :])
        return (through,)


class LSTM(Cell):
    """i, f, o = σ(x + h);  g = tanh(x + h);  c' = f · c + i · g;  h' = o · tanh(c') (Hochreiter & Schmidhuber 1997)."""

    num_gates, num_parts, adds, number = 4, 2, True, 2

    @staticmethod
    def forward(x_BG: Tensor, h_BG: Tensor, before: State) -> tuple[State, State]:
        size = before[0].shape[-1]
        in_if, in_g, in_o = (x_BG + h_BG).split([2 * size, size, size], -1)
        (i, f), g, o = torch.sigmoid(in_if).chunk(2, -1), torch.tanh(in_g), torch.sigmoid(in_o)
        c = torch.addcmul(f * before[1], i, g)
        squashed = torch.tanh(c)
        return (o * squashed, c), (i, f, g, o, squashed)

    @staticmethod
    def backward(d_after: State, before: State, kept: State, d_x_BG: Tensor, d_h_BG: Tensor) -> State:
        (i, f, g, o, squashed), (d_i, d_f, d_g, d_o) = kept, d_x_BG.chunk(4, -1)
        d_c = torch.ops.aten.tanh_backward(d_after[0] * o, squashed).add_(d_after[1])
        sigmoid_backward(d_c * g, i, grad_input=d_i)
        sigmoid_backward(d_c * before[1], f, grad_input=d_f)
        tanh_backward(d_c * i, g, grad_input=d_g)
        sigmoid_backward(d_after[0] * squashed, o, grad_input=d_o)
        return torch.zeros_like(d_c), d_c.mul_(f)


def unroll(
    cell: type[Cell], x_DNG: Tensor, w_DGH: Tensor, b_DG: Tensor, start: State, sizes: list[int]
) -> tuple[Tensor, State]:
    """Run D recurrences of one shape side by side over all times.

    Args:
        cell: What a step does.
        x_DNG: What the inputs give to the gates, all first tokens first, then all second ones; at each time, those of
            the longest sequences first.
        w_DGH: Recurrent weights.
        b_DG: Their biases.
        start: Parts (D, B, H) of the first state, longest sequence first.
        sizes: How many sequences have a token at each time.

    Returns:
        h_DNH, in the order of the input, and the parts (D, B, H) of the last state of each sequence.
    """
    # Under autocast too it runs in the weights' precision: what a recurrence rounds, it rounds at every time.
    x_DNG = x_DNG.to(w_DGH.dtype)
    if own is not None and (done := own(cell.number, x_DNG, w_DGH, b_DG, start, sizes)) is not None:
        return done
    h_DNH, *last = _Unroll.apply(cell, sizes, x_DNG, w_DGH, b_DG, *start)
    return h_DNH, tuple(last)


class _Unroll(torch.autograd.Function):
    """See :func:`unroll`."""

    @staticmethod
    def forward(  # pyrefly: ignore[bad-override]
        ctx: Any, cell: type[Cell], sizes: list[int], x_DNG: Tensor, w_DGH: Tensor, b_DG: Tensor, *start: Tensor
    ) -> tuple[Tensor, ...]:
        with torch.autocast(x_DNG.device.type, enabled=False):
            w_DHG, b_D1G = w_DGH.transpose(1, 2), b_DG[:, None]
            now: State = start
            last = [part.clone() for part in now]
            states = [x_DNG.new_empty(*x_DNG.shape[:2], part.shape[-1]) for part in now]
            kept_at: list[tuple[Tensor, ...]] = []
            low = 0
            for size, after in zip(sizes, [*sizes[1:], 0], strict=True):
                rows, before = slice(low, low + size), tuple(part[:, :size] for part in now)
                h_DBG = torch.baddbmm(b_D1G, before[0], w_DHG)
                now, kept = cell.forward(x_DNG[:, rows], h_DBG, before)
                for part, whole, ends in zip(now, states, last, strict=True):
                    whole[:, rows] = part
                    ends[:, after:size] = part[:, after:]
                kept_at.append((*before, *kept))
                low += size
        ctx.cell, ctx.sizes, ctx.each = cell, sizes, len(kept_at[0])
        ctx.save_for_backward(w_DGH, *(tensor for kept in kept_at for tensor in kept))
        return states[0], *last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_h_DNH: Tensor, *d_last: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        cell, (w_DGH, *kept_at), high = ctx.cell, ctx.saved_tensors, d_h_DNH.shape[1]
        with torch.autocast(w_DGH.device.type, enabled=False):
            carried = [part.clone() for part in d_last]  # a sequence's last state is met where it ends
            d_x_DNG = d_h_DNH.new_empty(*d_h_DNH.shape[:2], w_DGH.shape[1])
            d_gates_DNG = d_x_DNG if cell.adds else torch.empty_like(d_x_DNG)
            states = []
            for time in reversed(range(len(ctx.sizes))):
                size, kept = ctx.sizes[time], tuple(kept_at[time * ctx.each : (time + 1) * ctx.each])
                rows, before = slice(high - size, high), kept[: cell.num_parts]
                going = tuple(part[:, :size] for part in carried)
                going[0].add_(d_h_DNH[:, rows])
                d_before = cell.backward(going, before, kept[cell.num_parts :], d_x_DNG[:, rows], d_gates_DNG[:, rows])
                torch.baddbmm(d_before[0], d_gates_DNG[:, rows], w_DGH, out=going[0])
                for part, new in zip(going[1:], d_before[1:], strict=True):
                    part.copy_(new)
                states.append(before[0])
                high -= size
            d_w_DGH = torch.bmm(d_gates_DNG.transpose(1, 2), torch.cat(states[::-1], 1))
        return None, None, d_x_DNG, d_w_DGH, d_gates_DNG.sum(1), *carried
