"""Attention as a network of pipes: how much of each input can reach an output at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from regard.errors import UsageError
from regard.looking.attention_map import AttentionMap
from regard.looking.rollout import check_stack, residual_steps

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MAX_PIPES = 200_000  # weights of all layers; beyond, a row takes minutes
_UNITS = 1 << 24  # a weight of 1 in whole numbers, which is what the flow is computed in


def attention_flow(maps: Sequence[AttentionMap], queries: Sequence[int] | None = None) -> npt.NDArray[np.float64]:
    """Follow attention through the layers as a flow: no step carries more than its weight, whatever the way taken.

    Nodes are the tokens of each layer; from token t of layer l to token s of layer l−1 leads a pipe of the capacity
    Â_l[t, s], Â_l = (A_l + I) / 2 as in :func:`regard.looking.rollout.rollout`. Entry (t, s) is the largest flow from t
    of the last layer to input s, for each s alone; rows are divided by their sums.

    Rollout multiplies along ways and adds them up, so that much is spread over many; here the narrowest pipe counts.

    Args:
        maps: Self-attention of layers over the same T tokens or places, the first layer first.
        queries: Rows to compute, each T flows; None for all.

    Returns:
        len(queries) × T; rows sum to 1. Capacities are whole multiples of 2⁻²⁴.

    Raises:
        UsageError: As for rollout, a row that is not there, or over MAX_PIPES weights in the layers.

    Source: Abnar and Zuidema (2020), "Quantifying Attention Flow in Transformers", section 3.
    """
    from scipy.sparse.csgraph import maximum_flow  # 0.2 s to import; most maps are looked at without

    check_stack(maps, "attention flow")
    num_tokens = len(maps[0].query_tokens)
    pipes = len(maps) * num_tokens**2
    if pipes > MAX_PIPES:
        raise UsageError(f"{pipes:,} weights; at most {MAX_PIPES:,}", where="attention flow", mend="use rollout")
    asked = range(num_tokens) if queries is None else queries
    if any(not 0 <= query < num_tokens for query in asked):
        raise UsageError(f"queries {list(asked)} of {num_tokens}", where="attention flow", mend="count them from 0")
    network = _network(list(residual_steps(maps)), num_tokens)
    last = len(maps) * num_tokens
    flows = np.array(
        [[maximum_flow(network, last + t, s).flow_value for s in range(num_tokens)] for t in asked], dtype=np.float64
    ).reshape(len(asked), num_tokens)
    return flows / flows.sum(1, keepdims=True)


def _network(steps_TT: Sequence[npt.NDArray[np.float64]], num_tokens: int) -> csr_array:
    """Join the layers: node l · T + t is token t after layer l, layer 0 the input."""
    from scipy.sparse import csr_array

    starts: list[npt.NDArray[np.intp]] = []
    ends: list[npt.NDArray[np.intp]] = []
    capacities: list[npt.NDArray[np.int32]] = []
    for layer, step_TT in enumerate(steps_TT, 1):
        capacity_TT = np.rint(step_TT * _UNITS).astype(np.int32)
        query_P, key_P = np.nonzero(capacity_TT)
        starts.append(layer * num_tokens + query_P)
        ends.append((layer - 1) * num_tokens + key_P)
        capacities.append(capacity_TT[query_P, key_P])
    size = (len(steps_TT) + 1) * num_tokens
    joined = (np.concatenate(starts), np.concatenate(ends))
    return csr_array((np.concatenate(capacities), joined), shape=(size, size))
