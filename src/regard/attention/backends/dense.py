"""PyTorch's scaled_dot_product_attention on groups of like lengths: any mask, bias and dropout, dot-product scores.

The default on CPU, and for uniform batches everywhere. Where attention is full or causal over whole sequences no mask
is made, so that the fused kernels are taken.

Where :data:`own` is set, it is asked first: another kernel for the same, which may decline. It needs no groups where
what a query sees is a band of its sequence, and takes a mask or bias where the sequences are uniform.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from regard.attention.groups import Group, nothing, plan
from regard.attention.masks import Mask
from regard.attention.positions import Bias
from regard.attention.scores import DotScore
from regard.attention.segments import Segments

# Given queries, keys, values, the first row and the number of rows of each sequence's queries, and of its keys, the
# band, a mask as SDPA takes it or None, the probability of dropout, the scale of the dot product, and the vector of an
# additive score or None: the contexts, or None for what it does not serve. Whoever has such a kernel puts it here:
# attention knows of none.
Rows = tuple[Tensor, Tensor]
Band = tuple[int, int]
Own = Callable[
    [Tensor, Tensor, Tensor, Rows, Rows, Band, Tensor | None, float, float | None, Tensor | None], Tensor | None
]
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
    q_NHK = score.query(q_NHK)
    asked = partial(ask, q_NHK, k_MGK, v_MGK, q_segments, k_segments, dropout_p=dropout_p, scale=score.scale)
    is_band = bias is None and (mask is None or mask.window() is not None)
    if is_band and (found := asked(mask)) is not None:
        return found
    layout = plan(q_segments, k_segments)
    if not layout.groups:
        return nothing(q_NHK, k_MGK, v_MGK)
    # Fill-up keys stand behind all real queries, so between equal segments the causal kernel leaves them out by itself.
    only_causal = mask is not None and mask.window() == (-1, 0)
    is_causal = bias is None and only_causal and q_segments is k_segments
    # One new query stands at the last key: it sees all that there is.
    mask = None if only_causal and q_segments.form == "uniform" and q_segments.max_len == 1 else mask
    contexts = []
    laid = (layout.lay_out(q_NHK, "query"), layout.lay_out(k_MGK, "key"), layout.lay_out(v_MGK, "key"))
    for group, q_BTHK, k_BSGK, v_BSGK in zip(layout.groups, *laid, strict=True):
        attn_mask = None if is_causal else added(group, mask, bias, q_BTHK)
        is_whole = layout.query_rows is None and layout.key_rows is None
        if not is_band and is_whole and attn_mask is not None and (found := asked(None, attn_mask)) is not None:
            return found
        contexts.append(fused(q_BTHK, k_BSGK, v_BSGK, attn_mask, dropout_p, is_causal, score.scale))
    return layout.take_back(contexts)


def ask(
    q_NHK: Tensor,
    k_MGK: Tensor,
    v_MGK: Tensor,
    q_segments: Segments,
    k_segments: Segments,
    mask: Mask | None,
    attn_mask: Tensor | None = None,
    *,
    dropout_p: float,
    scale: float | None = None,
    v_HK: Tensor | None = None,
) -> Tensor | None:
    """Ask the other kernel, where there is one; a gradient of keys in slots is nothing that it knows.

    Args:
        q_NHK: Queries.
        k_MGK: Keys.
        v_MGK: Values.
        q_segments: Sequences of the queries.
        k_segments: Sequences of the keys.
        mask: What a query sees of its sequence; None is all.
        attn_mask: As SDPA takes it, of uniform sequences.
        dropout_p: Probability that a weight is dropped.
        scale: Factor of the dot product; None is 1/√K.
        v_HK: The vector of an additive score; None for a dot product.

    Returns:
        The contexts; None where there is no such kernel, or it does not serve, or the mask is not a band.
    """
    band = (-1, -1) if mask is None else mask.window()
    differs = k_segments.form == "slots" and torch.is_grad_enabled()
    if own is None or band is None or differs or torch.compiler.is_compiling():
        return None
    queries, keys = ((x.starts_B, x.lengths_B) for x in (q_segments, k_segments))
    return own(q_NHK, k_MGK, v_MGK, queries, keys, band, attn_mask, dropout_p, scale, v_HK)


def added(group: Group, mask: Mask | None, bias: Bias | None, q_BTHK: Tensor) -> Tensor | None:
    """Make the kernel's mask: bool without a bias, else the bias with −inf where nothing may be attended to."""
    at = group.grid(q_BTHK.shape[2])
    allowed = group.allowed(mask, at)
    if bias is None:
        return allowed
    bias_BHTS = bias(at).to(q_BTHK.dtype)
    return bias_BHTS if allowed is None else bias_BHTS.masked_fill(~allowed, float("-inf"))


def fused(
    q_BTHK: Tensor,
    k_BSGK: Tensor,
    v_BSGK: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    finds: bool = False,
) -> Tensor:
    """Call the kernel on one dense block.

    Args:
        q_BTHK: Queries.
        k_BSGK: Keys.
        v_BSGK: Values.
        attn_mask: bool or float, broadcastable to (B, H, T, S), or None.
        dropout_p: Probability that a weight is dropped.
        is_causal: Let the kernel leave out keys ahead; T = S.
        scale: Factor of the dot product; None is 1/√K.
        finds: The caller knows that a key is left for every query.

    Returns:
        context_BTHK; zeros for a query that no key is left for.
    """
    shape = (q_BTHK.shape[0], q_BTHK.shape[2], q_BTHK.shape[1], k_BSGK.shape[1])
    lost_BHT1 = None
    if attn_mask is not None and q_BTHK.is_cuda and not finds:
        # Kernels differ in what they make of a query without keys: let it see all, and throw away what it saw.
        closed = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask == float("-inf")
        lost_BHT1 = closed.all(-1, keepdim=True)
        attn_mask = attn_mask.masked_fill(lost_BHT1, True if attn_mask.dtype == torch.bool else 0.0)
    context_BHTK = nn.functional.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BSGK.transpose(1, 2),
        v_BSGK.transpose(1, 2),
        attn_mask=attn_mask if attn_mask is None else attn_mask.expand(shape),
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=bool(q_BTHK.shape[2] != k_BSGK.shape[2]),  # a compiler's symbol is none
    )
    if lost_BHT1 is not None:
        context_BHTK = context_BHTK.masked_fill(lost_BHT1, 0.0)
    return context_BHTK.transpose(1, 2)
