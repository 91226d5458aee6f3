"""Attention into cache slots: static shapes, for cached decoding.

Where :data:`own` is set, it is asked first: another kernel for the same, which may decline.

Queries are uniform (T new tokens, or T beams, for each slot); keys are slots of one capacity of which the first
``lengths_B`` places count. Nothing beyond ``max_len`` is read, nothing beyond a slot's length reaches a result. The
slots are one dense block as they lie. What may be attended to is the same in every layer: it is worked out once a step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention.backends.dense import added, fused
from regard.attention.groups import Group, nothing
from regard.attention.masks import Mask
from regard.attention.positions import Bias
from regard.attention.scores import DotScore
from regard.attention.segments import Segments

# Given queries, keys, values, the mask to add or None, filled places of each slot or None, and the scale: the contexts;
# or None for what it does not serve. Whoever has such a kernel puts it here: attention knows of none.
Own = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, float | None], Tensor | None]
own: Own | None = None


def run(
    q_NHK: Tensor,
    k_MGK: Tensor,
    v_MGK: Tensor,
    q_segments: Segments,
    k_segments: Segments,
    mask: Mask | None,
    bias: Bias | None,
    score: DotScore,
    dropout_p: float,
) -> Tensor:
    """Attend; see :func:`regard.attention.attend` for the arguments."""
    count, queries, bound = len(k_segments), q_segments.max_len, k_segments.max_len
    q_NHK = score.query(q_NHK)
    if not (count and queries and bound):
        return nothing(q_NHK, k_MGK, v_MGK)
    q_BTHK = q_NHK.view(count, queries, *q_NHK.shape[1:])
    k_BSGK, v_BSGK = (x.view(count, k_segments.capacity, *x.shape[1:])[:, :bound] for x in (k_MGK, v_MGK))
    is_filled = _is_filled(k_segments)
    if is_filled and not k_segments.clean:
        beyond_BS = torch.arange(bound, device=q_NHK.device)[None] >= k_segments.lengths_B[:, None]
        k_BSGK, v_BSGK = (x.masked_fill(beyond_BS[:, :, None, None], 0.0) for x in (k_BSGK, v_BSGK))
    if own is not None and not dropout_p and not torch.compiler.is_compiling():
        attn_mask, lengths_B = limits(q_BTHK, q_segments, k_segments, mask, bias)
        if (found := own(q_BTHK, k_BSGK, v_BSGK, attn_mask, lengths_B, score.scale)) is not None:
            return found
    mask = _seen(q_segments, mask)
    attn_mask = None
    if is_filled or mask is not None or bias is not None:
        attn_mask = _mask(q_BTHK, q_segments, k_segments, mask, bias, is_filled)
    finds = k_segments.least_len > 0 and mask is None and bias is None
    return fused(q_BTHK, k_BSGK, v_BSGK, attn_mask, dropout_p, False, score.scale, finds).flatten(0, 1)


def limits(
    q_BTHK: Tensor, q_segments: Segments, k_segments: Segments, mask: Mask | None, bias: Bias | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """Say what queries see of their slots, for a kernel that needs no mask where lengths say it.

    Args:
        q_BTHK: A tensor with as many heads, and the dtype and device of the mask.
        q_segments: The queries.
        k_segments: The slots.
        mask: What a query may attend to in its slot.
        bias: Added to the scores.

    Returns:
        A mask to add, broadcastable to (B, H, T, S), or None; and without one the filled places of each slot, or None
        where all are filled.
    """
    mask, is_filled = _seen(q_segments, mask), _is_filled(k_segments)
    if mask is None and bias is None:
        return None, k_segments.lengths_B if is_filled else None
    return _mask(q_BTHK, q_segments, k_segments, mask, bias, is_filled), None


def _is_filled(k_segments: Segments) -> bool:
    """Whether places behind the last may have to be left out: unless the host knows that all slots are full."""
    known = k_segments.known_lengths
    return known is None or min(known) < k_segments.max_len


def _seen(q_segments: Segments, mask: Mask | None) -> Mask | None:
    """Leave out a mask that hides nothing: one new query stands at the last key, and sees all that there is."""
    return None if q_segments.max_len == 1 and mask is not None and mask.window() == (-1, 0) else mask


def _mask(
    q_BTHK: Tensor, q_segments: Segments, k_segments: Segments, mask: Mask | None, bias: Bias | None, is_filled: bool
) -> Tensor | None:
    """Make the kernel's mask, or find that of the layer before: the segments and the mask are those of the step."""

    def make() -> Tensor | None:
        sequences_B = torch.arange(len(q_segments), device=q_BTHK.device)
        sizes = q_segments.max_len, k_segments.max_len
        group = Group(sequences_B, *sizes, q_segments.lengths_B, k_segments.lengths_B, is_filled)
        made = added(group, mask, bias, q_BTHK)
        if made is None or made.dtype != torch.bool or made.is_cuda:
            return made
        # The kernel would turn a bool into floats at every call.
        return torch.zeros(made.shape, dtype=q_BTHK.dtype, device=made.device).masked_fill_(~made, float("-inf"))

    if bias is not None or torch.compiler.is_compiling():
        return make()
    made: dict[tuple[int, int, torch.dtype], tuple[object, Tensor | None]] = k_segments.derived("masks", dict)
    key = id(mask), q_segments.max_len, q_BTHK.dtype
    if key not in made:
        made[key] = mask, make()  # the mask is kept with it, so that its identity is not another's
    return made[key][1]
