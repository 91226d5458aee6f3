"""Attention within sequences of any lengths by our own kernels, with gradients; see ``sequences.cpp``."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels import calls, native

Rows = tuple[Tensor, Tensor]  # int64: the first row of each sequence, and how many


def attend(
    q_NHK: Tensor,
    k_MGK: Tensor,
    v_MGV: Tensor,
    queries: Rows,
    keys: Rows,
    band: tuple[int, int],
    attn_mask: Tensor | None,
    dropout_p: float,
    scale: float | None,
    v_HK: Tensor | None = None,
) -> Tensor | None:
    """Attend by the kernels of our own, in float32 on a CPU.

    The backward pass computes the weights again from the queries and keys: besides its inputs and the result, two
    numbers for each query and head are kept. Its gradients are neither differentiated again nor taken in batches
    (``is_grads_batched``).

    Args:
        q_NHK: Queries.
        k_MGK: Keys.
        v_MGV: Values.
        queries: Rows of each sequence's queries; together they are all rows, each once.
        keys: Of its keys and values, likewise.
        band: How far a query sees back and ahead, counted from the last key; −1 for all the way.
        attn_mask: Of uniform sequences alone: bool, True = may attend, or float32, added to the scores; broadcastable
            to (B, H, T, S). No gradient goes to it. None for none.
        dropout_p: Probability that a weight is dropped, in steps of 2⁻³²; below 1. Which ones follows from a seed
            that is drawn from torch's generator.
        scale: Factor of the dot product; None is 1/√K.
        v_HK: Of the additive score vᵀ tanh(q + k); None for a dot product.

    Returns:
        context_NHV, zeros for a query without a key; None where the kernels do not serve.
    """
    inputs = (q_NHK, k_MGK, v_MGV)
    leaves = inputs if v_HK is None else (*inputs, v_HK)
    if (kernel := native.loaded()) is None or not native.are_plain(*leaves):
        return None
    if any(x.stride(-1) != 1 for x in leaves) or not q_NHK.shape[2] or isinstance(scale, Tensor):
        return None
    if v_HK is not None and (v_HK.shape != q_NHK.shape[1:] or not v_HK.is_contiguous()):
        return None
    asks = torch.is_grad_enabled() and any(x.requires_grad for x in leaves)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = addend(attn_mask, q_NHK)
        elif not native.are_plain(attn_mask) or (torch.is_grad_enabled() and attn_mask.requires_grad):
            return None
        count = len(queries[0])
        attn_mask = attn_mask.expand(count, q_NHK.shape[1], q_NHK.shape[0] // count, k_MGK.shape[0] // count)
        attn_mask = _by_rows(attn_mask)
    most = q_NHK.shape[0] + k_MGK.shape[0]
    how = calls.Sequences(
        back=min(band[0], most),
        ahead=min(band[1], most),
        seed=int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if dropout_p else 0,
        dropped=min(round(dropout_p * 2**32), 2**32 - 1),
        scale=1.0 if v_HK is not None else q_NHK.shape[2] ** -0.5 if scale is None else scale,
    )
    places = [x.to(torch.int64).contiguous() for x in (*queries, *keys)]
    run: Callable[..., tuple[Tensor, Tensor]] = _Attend.apply if asks else partial(_forward, keeps=False)
    return run(*inputs, v_HK, attn_mask, *places, how, kernel)[0]


def weigh(q_THK: Tensor, k_SGK: Tensor, keys: int, band: tuple[int, int], scale: float | None) -> Tensor | None:
    """Compute the weights of one sequence's queries: softmax(scale · q · k) over the keys that each sees.

    Args:
        q_THK: Queries.
        k_SGK: Keys; the last stands where the last query does.
        keys: How many there are, with those behind the last, which no query sees.
        band: How far a query sees back and ahead; −1 for all the way.
        scale: Factor of the dot product; None is 1/√K.

    Returns:
        weights_HTS, detached, zeros for what is not seen; None where the kernels do not serve.
    """
    if (kernel := native.loaded()) is None or not native.are_plain(q_THK, k_SGK) or not q_THK.shape[2]:
        return None
    if q_THK.stride(-1) != 1 or k_SGK.stride(-1) != 1 or isinstance(scale, Tensor):
        return None
    most = q_THK.shape[0] + k_SGK.shape[0]
    places = [torch.tensor([number], device="cpu") for number in (0, len(q_THK), 0, len(k_SGK))]
    how = calls.Sequences(
        back=min(band[0], most), ahead=min(band[1], most), scale=q_THK.shape[2] ** -0.5 if scale is None else scale
    )
    given = _describe(how, (q_THK, k_SGK, k_SGK[..., :0]), None, None, places)
    shape = (q_THK.shape[1], q_THK.shape[0], keys)
    weights_HTS = native.room(4 * math.prod(shape), kernel).view(torch.float32).view(shape)
    kernel.weights(ctypes.addressof(given), weights_HTS.data_ptr(), keys, native.threads(), native.team())
    return weights_HTS


def addend(attn_mask: Tensor, like: Tensor) -> Tensor:
    """Make a mask one that is added to the scores, and have the numbers of a row stand one after the other.

    Args:
        attn_mask: bool, True = may attend, or floats, added to the scores.
        like: A tensor of the type and device of the scores.

    Returns:
        Floats, likewise.
    """
    if attn_mask.dtype == torch.bool:
        return like.new_zeros(attn_mask.shape).masked_fill_(~attn_mask, float("-inf"))
    return _by_rows(attn_mask)


def _by_rows(x: Tensor) -> Tensor:
    """Have the numbers of a row stand one after the other."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _describe(
    how: calls.Sequences,
    inputs: Sequence[Tensor],
    v_HK: Tensor | None,
    attn_mask: Tensor | None,
    places: Sequence[Tensor],
) -> calls.Sequences:
    """Say what is attended to; the tensors have to live until the kernel has run."""
    q_NHK, k_MGK, v_MGV = inputs
    mask, masks = (0, (1, 0, 0, 0, 0)) if attn_mask is None else _masks(attn_mask)
    return calls.Sequences(
        *(x.data_ptr() for x in inputs),
        *(0, 0, mask, 0 if v_HK is None else v_HK.data_ptr()),
        *(x.data_ptr() for x in places),
        *(len(places[0]), q_NHK.shape[1], *k_MGK.shape[1:], v_MGV.shape[2]),
        *(stride for x in inputs for stride in x.stride()[:2]),
        *masks,
        *(how.back, how.ahead, how.narrow, how.seed, how.dropped, how.scale),
    )


def _masks(attn_mask_BHTS: Tensor) -> tuple[int, tuple[int, ...]]:
    """Say where masks lie, how many there are, and the numbers from one to the next, of heads and rows too."""
    return attn_mask_BHTS.data_ptr(), (len(attn_mask_BHTS), 0, *attn_mask_BHTS.stride()[:3])


def within(
    rows: Rows, heads: int, groups: int, size: int, band: tuple[int, int], attn_mask_BHTS: Tensor | None
) -> calls.Sequences:
    """Describe scaled dot-product attention within sequences, of queries, keys and values that the kernel has.

    Args:
        rows: The first row of each sequence and how many it has: int64, without gaps. They have to live until the
            kernel has run, as has the mask.
        heads: Query heads H.
        groups: Heads of keys and values.
        size: Of a head.
        band: How far a query sees back and ahead; −1 for all the way.
        attn_mask_BHTS: float32, added to the scores; H is all heads, the last dimension without gaps. Sequence i has
            that of i modulo B. None for none.

    Returns:
        What the kernel is given, without the rows themselves.
    """
    starts_B, lengths_B = (x.data_ptr() for x in rows)
    described = calls.Sequences(q_starts=starts_B, k_starts=starts_B, q_lengths=lengths_B, k_lengths=lengths_B, masks=1)
    if attn_mask_BHTS is not None:
        described.mask, (described.masks, _, *strides) = _masks(attn_mask_BHTS)
        described.mask_sequence, described.mask_head, described.mask_row = strides
    described.sequences, described.heads, described.groups = len(rows[0]), heads, groups
    described.key = described.value = size
    described.back, described.ahead = band
    described.scale = size**-0.5
    return described


def _forward(
    q_NHK: Tensor,
    k_MGK: Tensor,
    v_MGV: Tensor,
    v_HK: Tensor | None,
    attn_mask: Tensor | None,
    q_starts_B: Tensor,
    q_lengths_B: Tensor,
    k_starts_B: Tensor,
    k_lengths_B: Tensor,
    how: calls.Sequences,
    kernel: native.Kernel,
    keeps: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute the contexts and, where it is asked for, what the backward pass needs of the scores."""
    places = (q_starts_B, q_lengths_B, k_starts_B, k_lengths_B)
    given = _describe(how, (q_NHK, k_MGK, v_MGV), v_HK, attn_mask, places)
    y_NHV = q_NHK.new_empty(*q_NHK.shape[:2], v_MGV.shape[2])
    norms_NH2 = q_NHK.new_empty(*q_NHK.shape[:2], 2) if keeps else y_NHV
    given.y, given.norms = y_NHV.data_ptr(), norms_NH2.data_ptr() if keeps else 0
    kernel.sequences(ctypes.addressof(given), native.threads(), native.team())
    return y_NHV, norms_NH2


class _Attend(torch.autograd.Function):
    """The kernel, with its own gradients."""

    forward = staticmethod(_forward)  # pyrefly: ignore[bad-override]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:5], *output)
        ctx.mark_non_differentiable(output[1])
        # Not saved with the others: segments may have been made in inference mode.
        ctx.places, ctx.how, ctx.kernel = inputs[5:9], *inputs[9:11]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NHV: Tensor, _: Any) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        # Hooks of saved tensors may give them back in another layout.
        *rows, v_HK, attn_mask, y_NHV, norms_NH2 = ctx.saved_tensors
        inputs = [_by_rows(x) for x in rows]
        grad_NHV, y_NHV, norms_NH2 = _by_rows(grad_NHV.resolve_neg()), y_NHV.contiguous(), norms_NH2.contiguous()
        v_HK = None if v_HK is None else v_HK.contiguous()
        attn_mask = None if attn_mask is None else _by_rows(attn_mask)
        given = _describe(ctx.how, inputs, v_HK, attn_mask, ctx.places)
        given.y, given.norms = y_NHV.data_ptr(), norms_NH2.data_ptr()
        grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
        v_BHK = None if v_HK is None else v_HK.new_empty(len(ctx.places[0]), *v_HK.shape)
        gradients = calls.Gradients(
            grad_NHV.data_ptr(),
            *grad_NHV.stride()[:2],
            *(0 if x is None else x.data_ptr() for x in (*grads, v_BHK)),
        )
        threads, team = native.threads(), native.team()
        ctx.kernel.sequences_back(ctypes.addressof(given), ctypes.addressof(gradients), threads, team)
        return (*grads, None if v_BHK is None else v_BHK.sum(0), *(None,) * 8)
