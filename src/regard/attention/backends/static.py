"""Attention into cache slots: static shapes, for cached decoding.

Queries are uniform (T new tokens, or T beams, for each slot); keys are slots of one capacity of which the first
``lengths_B`` places count. Nothing beyond ``max_len`` is read, nothing beyond a slot's length reaches a result.
"""

from __future__ import annotations

from torch import Tensor

from regard.attention.backends import dense
from regard.attention.groups import Group
from regard.attention.masks import Mask
from regard.attention.positions import Bias
from regard.attention.scores import DotScore
from regard.attention.segments import Segments


def group_of(q_segments: Segments, k_segments: Segments) -> Group:
    """See the whole batch as one group."""
    # Where the host knows that every slot is full up to max_len, no mask is needed.
    full = k_segments._derived.get("lengths")
    filled = full is None or min(full, default=0) < k_segments.max_len
    return Group(
        sequences_B=q_segments.lengths_B.new_ones(len(q_segments)).cumsum(0) - 1,
        queries=q_segments.max_len,
        keys=k_segments.max_len,
        query_lengths_B=q_segments.lengths_B,
        key_lengths_B=k_segments.lengths_B,
        filled_keys=filled,
        filled_queries=False,
    )


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
    count, capacity, bound = len(q_segments), k_segments.capacity, k_segments.max_len
    if not count or not q_segments.max_len or not bound:
        return q_NHK.new_zeros(q_NHK.shape[0], q_NHK.shape[1], v_MGK.shape[-1])
    group = group_of(q_segments, k_segments)
    q_BTHK = score.query(q_NHK).unflatten(0, (count, q_segments.max_len))
    k_BSGK, v_BSGK = (x.unflatten(0, (count, capacity))[:, :bound] for x in (k_MGK, v_MGK))
    if group.filled_keys:
        k_BSGK, v_BSGK = dense.clear(k_BSGK, k_segments.lengths_B), dense.clear(v_BSGK, k_segments.lengths_B)
    only_causal = mask is not None and mask.window() == (-1, 0) and q_segments.max_len == 1
    attn_mask = dense.added(group, None if only_causal else mask, bias, q_BTHK)  # one new query stands at the last key
    return dense.fused(q_BTHK, k_BSGK, v_BSGK, attn_mask, dropout_p, False, score.scale).flatten(0, 1)
