"""Attention of a few queries into cache slots by our own kernel; see ``slots.cpp``."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from regard.kernels import native


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
    if any(x.dtype != torch.float32 or not x.is_cpu or x.stride(-1) != 1 for x in inputs):
        return None
    if any(x.stride(2) != x.shape[3] for x in inputs[1:]):
        return None
    masks = () if attn_mask is None else (attn_mask,)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, *masks)):
        return None
    (count, queries, heads, key), (bound, groups, value) = q_BTHK.shape, v_BSGK.shape[1:]
    mask, strides = 0, (0, 0, 0)
    if attn_mask is not None:
        if attn_mask.dtype != torch.float32:
            return None
        attn_mask = attn_mask.expand(count, heads, queries, bound)
        attn_mask = attn_mask if attn_mask.stride(3) == 1 else attn_mask.contiguous()
        mask, strides = attn_mask.data_ptr(), attn_mask.stride()[:3]
    q_row = q_BTHK.stride(0) if queries == 1 else q_BTHK.stride(1)  # slots follow each other at one distance
    y_NHK = q_BTHK.new_empty(count * queries, heads, value)
    slots = native.Slots(
        *(x.data_ptr() for x in (*inputs, y_NHK)),
        mask,
        0 if lengths_B is None else lengths_B.data_ptr(),
        *(count, queries, heads, groups, key, value, bound),
        *(q_row, q_BTHK.stride(2)),
        *(k_BSGK.stride(0), k_BSGK.stride(1), v_BSGK.stride(0), v_BSGK.stride(1)),
        *strides,
        key**-0.5 if scale is None else scale,
    )
    kernel.slots(ctypes.addressof(slots), native.threads())
    return y_NHK
