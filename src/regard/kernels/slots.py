"""Attention of a few queries into cache slots by our own kernel; see ``slots.cpp``."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from regard.kernels import calls, native


def attend(
    q_BTHK: Tensor,
    k_BSGK: Tensor,
    v_BSGK: Tensor,
    attn_mask: Tensor | None,
    lengths_B: Tensor | None,
    scale: float | None,
) -> Tensor | None:
    """Attend by the kernel of our own, in float32 on a CPU where no gradient is asked for.

    Args:
        q_BTHK: Queries, T for each slot.
        k_BSGK: The first S places of each slot's keys.
        v_BSGK: Values, likewise.
        attn_mask: float32, added to the scores, broadcastable to (B, H, T, S); None for none.
        lengths_B: int64, places of each slot that count; None is all of them.
        scale: Factor of the dot product; None is 1/√K.

    Returns:
        context_NHK, zeros for a query without a key; None where the kernel does not serve.
    """
    if (kernel := native.loaded()) is None:
        return None
    inputs = (q_BTHK, k_BSGK, v_BSGK)
    if not native.are_plain(*inputs) or any(x.stride(-1) != 1 for x in inputs):
        return None
    if any(x.stride(2) != x.shape[3] for x in inputs[1:]):
        return None
    masks = () if attn_mask is None else (attn_mask,)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, *masks)):
        return None
    if attn_mask is not None and attn_mask.dtype != torch.float32:
        return None
    count, queries, heads, _ = q_BTHK.shape
    slots, kept = describe(queries, heads, k_BSGK, v_BSGK, attn_mask, lengths_B, scale)
    y_NHK = q_BTHK.new_empty(count * queries, heads, v_BSGK.shape[3])
    slots.q, slots.y = q_BTHK.data_ptr(), y_NHK.data_ptr()
    # Slots follow each other at one distance.
    slots.q_row, slots.q_head = q_BTHK.stride(0) if queries == 1 else q_BTHK.stride(1), q_BTHK.stride(2)
    kernel.slots(ctypes.addressof(slots), native.threads())
    del kept  # not before: the kernel was given places in it
    return y_NHK


def describe(
    queries: int,
    heads: int,
    k_BSGK: Tensor,
    v_BSGK: Tensor,
    attn_mask: Tensor | None,
    lengths_B: Tensor | None,
    scale: float | None,
) -> tuple[calls.Slots, tuple[Tensor | None, ...]]:
    """Say what is attended to, without the queries and the place of the result.

    Args:
        queries: T, of each slot.
        heads: H.
        k_BSGK: As for :func:`attend`.
        v_BSGK: Likewise.
        attn_mask: Likewise.
        lengths_B: Likewise.
        scale: Likewise.

    Returns:
        What the kernel is told, and the tensors that have to live until it has run.
    """
    (count, bound, groups, key), value = k_BSGK.shape, v_BSGK.shape[3]
    lengths_B = None if lengths_B is None else lengths_B.to(torch.int64).contiguous()
    mask, strides = 0, (0, 0, 0)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(count, heads, queries, bound)
        attn_mask = attn_mask if attn_mask.stride(3) == 1 else attn_mask.contiguous()
        mask, strides = attn_mask.data_ptr(), attn_mask.stride()[:3]
    slots = calls.Slots(
        *(0, k_BSGK.data_ptr(), v_BSGK.data_ptr(), 0),
        *(mask, 0 if lengths_B is None else lengths_B.data_ptr()),
        *(count, queries, heads, groups, key, value, bound),
        *(0, 0),
        *(k_BSGK.stride(0), k_BSGK.stride(1), v_BSGK.stride(0), v_BSGK.stride(1)),
        *strides,
        key**-0.5 if scale is None else scale,
    )
    return slots, (k_BSGK, v_BSGK, attn_mask, lengths_B)
