"""PyTorch's flex_attention: any mask and bias over ragged rows without holding the scores, on CUDA.

Dot-product scores; no dropout on the weights. The rows of the batch are one long sequence for the kernel; the segments
are part of the mask, so blocks between different sequences are skipped. Within a block what is masked is multiplied by
zero: a number that is not finite may reach the sequences beside its own, as it does on no other backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from regard.attention.groups import nothing
from regard.attention.masks import Grid, Mask
from regard.attention.positions import Bias
from regard.attention.scores import DotScore
from regard.attention.segments import Segments


def refusal(q_NHK: Tensor, score: object, dropout_p: float) -> str | None:
    """Say why the backend cannot serve a request; None where it can."""
    if not q_NHK.is_cuda:
        return f"it runs on CUDA (its CPU form has no backward pass), the tensors are on {q_NHK.device.type}"
    if not isinstance(score, DotScore):
        return "it takes dot-product scores only"
    return "it takes no dropout on the weights" if dropout_p else None


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
    num_queries, num_keys = q_NHK.shape[0], k_MGK.shape[0]
    if not num_queries or not num_keys:
        return nothing(q_NHK, k_MGK, v_MGK)
    q_sequence_N, k_sequence_M = q_segments.sequence_N(), k_segments.sequence_N()
    q_place_N, k_place_M = q_segments.positions_N(), k_segments.positions_N()
    shift_B = k_segments.lengths_B - q_segments.lengths_B

    def at(head: Tensor, query: Tensor, key: Tensor) -> Grid:
        sequence = q_sequence_N[query]
        return Grid(sequence, head, q_place_N[query], k_place_M[key], shift_B[sequence])

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        together = q_sequence_N[query] == k_sequence_M[key]
        return together if mask is None else together & mask.allow(at(head, query, key))

    def score_mod(value: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return value if bias is None else value + bias(at(head, query, key)).to(value.dtype)

    block_mask = create_block_mask(mask_mod, 1, q_NHK.shape[1], num_queries, num_keys, device=str(q_NHK.device))
    context_HNK = _kernel(q_NHK.is_cuda)(
        score.query(q_NHK).transpose(0, 1)[None],
        k_MGK.transpose(0, 1)[None],
        v_MGK.transpose(0, 1)[None],
        score_mod=None if bias is None else score_mod,
        block_mask=block_mask,
        scale=1 / math.sqrt(q_NHK.shape[-1]) if score.scale is None else score.scale,
        enable_gqa=q_NHK.shape[1] != k_MGK.shape[1],
    )
    return context_HNK[0].transpose(0, 1)


_compiled: list[Callable[..., Any]] = []


def _kernel(on_cuda: bool) -> Callable[..., Any]:
    """Compile once a process; the uncompiled form holds all scores and is for tests of the mask functions."""
    if not on_cuda:
        return flex_attention
    if not _compiled:
        _compiled.append(torch.compile(flex_attention, dynamic=True))
    return _compiled[0]
