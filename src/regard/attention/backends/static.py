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
    # Slots need a mask unless the host knows that all are full up to the bound.
    known = k_segments.known_lengths
    is_filled = known is None or min(known) < bound
    if is_filled and not k_segments.clean:
        beyond_BS = torch.arange(bound, device=q_NHK.device)[None] >= k_segments.lengths_B[:, None]
        k_BSGK, v_BSGK = (x.masked_fill(beyond_BS[:, :, None, None], 0.0) for x in (k_BSGK, v_BSGK))
    # One new query stands at the last key: it sees all that there is.
    mask = None if queries == 1 and mask is not None and mask.window() == (-1, 0) else mask
    asked = None if dropout_p or torch.compiler.is_compiling() else own
    if asked is not None and mask is None and bias is None:
        lengths_B = k_segments.lengths_B if is_filled else None
        if (found := asked(q_BTHK, k_BSGK, v_BSGK, None, lengths_B, score.scale)) is not None:
            return found
    attn_mask = None
    if is_filled or mask is not None or bias is not None:
        attn_mask = _mask(q_BTHK, q_segments, k_segments, mask, bias, is_filled)
        if asked is not None and (found := asked(q_BTHK, k_BSGK, v_BSGK, attn_mask, None, score.scale)) is not None:
            return found
    return fused(q_BTHK, k_BSGK, v_BSGK, attn_mask, dropout_p, False, score.scale).flatten(0, 1)


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
