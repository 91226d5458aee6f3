"""Matmul, softmax, matmul: any score, mask, bias and dropout, in the input's dtype.

It holds all scores of a group in memory. The other backends are tested against the same loops as this one. Recorded
attention rows are computed by :func:`weights`, or by a kernel that is tested against it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention.groups import nothing, plan
from regard.attention.masks import Grid, Mask
from regard.attention.positions import Bias
from regard.attention.scores import Score
from regard.attention.segments import Segments


def weights(
    q_BTHK: Tensor, k_BSHK: Tensor, score: Score, bias: Bias | None, allowed: Tensor | None, at: Grid
) -> Tensor:
    """Compute softmax over the keys of score + bias.

    Args:
        q_BTHK: Queries.
        k_BSHK: Keys, one head for each query head.
        score: The similarity function.
        bias: Floats added to the scores, or None.
        allowed: bool, broadcastable to (B, H, T, S), True = may attend, or None for all.
        at: Where the scores stand.

    Returns:
        weights_BHTS. Each row sums to 1; a row that no key is left for is zero.
    """
    if not k_BSHK.shape[1]:
        return q_BTHK.new_zeros(q_BTHK.shape[0], q_BTHK.shape[2], q_BTHK.shape[1], 0)
    scores_BHTS = score(q_BTHK, k_BSHK, at)
    if bias is not None:
        bias_BHTS = bias(at).to(scores_BHTS.dtype)
        scores_BHTS = scores_BHTS + bias_BHTS
        # A bias of −inf is a mask too, and a row that it empties is zero like any other empty row.
        open_BHTS = bias_BHTS != float("-inf")
        allowed = open_BHTS if allowed is None else allowed & open_BHTS
    if allowed is None:
        return scores_BHTS.softmax(-1)
    # The lowest finite number rather than −inf: a row without keys is uniform here, never NaN, and zeroed below.
    lowest, closed = torch.finfo(scores_BHTS.dtype).min, ~allowed
    weights_BHTS = scores_BHTS.masked_fill(closed, lowest).softmax(-1)
    if weights_BHTS.requires_grad:
        return weights_BHTS.masked_fill(closed, 0.0)
    return weights_BHTS.masked_fill_(closed, 0.0)


def repeat_heads(x_BSGK: Tensor, num_heads: int) -> Tensor:
    """Give each query head its key–value head: query heads h · H/G … (h + 1) · H/G − 1 share head h."""
    groups = num_heads // x_BSGK.shape[2]
    return x_BSGK if groups == 1 else x_BSGK.repeat_interleave(groups, 2)


def run(
    q_NHK: Tensor,
    k_MGK: Tensor,
    v_MGK: Tensor,
    q_segments: Segments,
    k_segments: Segments,
    mask: Mask | None,
    bias: Bias | None,
    score: Score,
    dropout_p: float,
) -> Tensor:
    """Attend; see :func:`regard.attention.attend` for the arguments."""
    num_heads = q_NHK.shape[1]
    layout = plan(q_segments, k_segments)
    if not layout.groups:
        return nothing(q_NHK, k_MGK, v_MGK)
    contexts = []
    laid = (layout.lay_out(q_NHK, "query"), layout.lay_out(k_MGK, "key"), layout.lay_out(v_MGK, "key"))
    for group, q_BTHK, k_BSGK, v_BSGK in zip(layout.groups, *laid, strict=True):
        at = group.grid(num_heads)
        k_BSHK, v_BSHK = repeat_heads(k_BSGK, num_heads), repeat_heads(v_BSGK, num_heads)
        weights_BHTS = weights(q_BTHK, k_BSHK, score, bias, group.allowed(mask, at), at)
        weights_BHTS = nn.functional.dropout(weights_BHTS, dropout_p)
        contexts.append(torch.einsum("bhts,bshk->bthk", weights_BHTS, v_BSHK))
    return layout.take_back(contexts)
