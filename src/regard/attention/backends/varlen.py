"""PyTorch's variable-length flash attention: ragged rows as they are, on CUDA.

bfloat16 and float16; no mask, causal or a window; dot-product scores; no bias; no dropout on the weights; head sizes
that are multiples of 8, up to 256. The kernel's bands are counted from the end, as ours are; it writes zeros where no
key is left for a query (none in the sequence, or none in the band), and such a row's gradients are zero.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from regard.attention.backends.reference import repeat_heads
from regard.attention.groups import nothing
from regard.attention.masks import Mask
from regard.attention.positions import Bias
from regard.attention.scores import DotScore
from regard.attention.segments import Segments


def refusal(
    q_NHK: Tensor, v_MGK: Tensor, mask: Mask | None, bias: Bias | None, score: object, dropout_p: float
) -> str | None:
    """Say why the backend cannot serve a request; None where it can."""
    if not q_NHK.is_cuda:
        return f"it runs on CUDA, the tensors are on {q_NHK.device.type}"
    if q_NHK.dtype not in (torch.bfloat16, torch.float16):
        return f"it takes bfloat16 and float16, not {str(q_NHK.dtype).removeprefix('torch.')}"
    if mask is not None and mask.window() is None:
        return "it takes causal and window masks only"
    if bias is not None:
        return "it takes no bias"
    if not isinstance(score, DotScore):
        return "it takes dot-product scores only"
    if dropout_p:
        return "it takes no dropout on the weights"
    if q_NHK.shape[-1] != v_MGK.shape[-1]:
        return "it takes values of the queries' head size only"
    if q_NHK.shape[-1] % 8 or q_NHK.shape[-1] > 256:
        return f"it takes head sizes that are multiples of 8 up to 256, not {q_NHK.shape[-1]}"
    return None


def boundaries(segments: Segments) -> Tensor:
    """Give the int32 row boundaries that the kernel takes, B + 1 of them."""
    ends_B = segments.starts_B + segments.lengths_B
    return torch.cat([ends_B.new_zeros(1), ends_B]).to(torch.int32)


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
    from torch.nn.attention.varlen import varlen_attn  # not in every CPU build

    if not q_NHK.shape[0] or not k_MGK.shape[0]:
        return nothing(q_NHK, k_MGK, v_MGK)  # the kernel cannot be launched on no rows
    band = (-1, -1) if mask is None else mask.window() or (-1, -1)
    most_keys = k_segments.max_len
    if band[1] < 0 <= band[0]:
        # The kernel takes "all ahead" for "as many ahead as there are keys at most": too few where queries are more.
        most_keys += q_segments.max_len
    scale = 1 / math.sqrt(q_NHK.shape[-1]) if score.scale is None else score.scale
    context = varlen_attn(
        score.query(q_NHK),
        repeat_heads(k_MGK[None], q_NHK.shape[1])[0],
        repeat_heads(v_MGK[None], q_NHK.shape[1])[0],
        boundaries(q_segments),
        boundaries(k_segments),
        q_segments.max_len,
        most_keys,
        scale=scale,
        window_size=band,
    )
    return cast(Tensor, context)  # a tuple only where more than the result is asked for
