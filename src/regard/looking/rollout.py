"""How much of each input reaches each output, through all layers; and what a row of weights says about a picture."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from regard.errors import UsageError
from regard.looking.attention_map import AttentionMap, Side, free_names
from regard.looking.places import Places
from regard.looking.text import visible


def rollout(
    maps: Sequence[AttentionMap], *, heads: Literal["mean", "max"] = "mean", discard: float = 0.0
) -> npt.NDArray[np.float64]:
    """Follow attention through the layers, half of each step taken by the residual connection.

    R = Â_L … Â_2 Â_1 with Â_l = (A_l + I) / 2, rows divided by their sums, A_l the mean of layer l over its heads, or
    the largest of them.

    A query that attends to nothing keeps itself alone.

    Args:
        maps: Self-attention of layers over the same T tokens or places, the first layer first.
        heads: How A_l is made of the heads.
        discard: Share of A_l's T · T weights, the smallest, that count as 0; of equal ones the earlier. In [0, 1).

    Returns:
        T × T; row t says how much of each input token is in position t of the last layer; rows sum to 1.

    Raises:
        UsageError: No map, a cross-attention, maps over different tokens or in several windows, or another discard.

    Source: Abnar and Zuidema (2020), "Quantifying Attention Flow in Transformers", section 3. The largest head and the
    discarded share are usual for vision transformers; neither is in the paper.
    """
    check_stack(maps, "rollout")
    if not 0 <= discard < 1:
        raise UsageError(f"discard is {discard}", where="rollout", mend="it is a share in [0, 1)")
    if heads not in ("mean", "max"):
        raise UsageError(f"heads is {heads!r}", where="rollout", mend="it is 'mean' or 'max'")
    through_TT = np.eye(len(maps[0].query_tokens))
    for step_TT in residual_steps(maps, heads, discard):
        through_TT = step_TT @ through_TT
    return through_TT


def check_stack(maps: Sequence[AttentionMap], where: str) -> None:
    """Refuse layers that attention cannot be followed through.

    Args:
        maps: Layers, the first one first.
        where: What asks.

    Raises:
        UsageError: No map, a cross-attention, maps over different tokens or in several windows.
    """
    if not maps:
        raise UsageError("no layer", where=where, mend="give at least one self-attention map")
    for one in maps:
        if one.kind != "self" or one.queries != maps[0].queries:
            raise UsageError(
                "not self-attention over the tokens of the first layer",
                where=visible(one.layer),
                mend="give the layers of one stack",
            )
        if isinstance(one.queries, Places) and one.queries.num_windows > 1:
            raise UsageError("attends in windows", where=visible(one.layer), mend="look at its layers one by one")


def residual_steps(
    maps: Sequence[AttentionMap], heads: Literal["mean", "max"] = "mean", discard: float = 0.0
) -> Iterator[npt.NDArray[np.float64]]:
    """Give what each layer passes on: Â_l, the mean or largest head and the residual connection, half and half.

    Args:
        maps: Layers that `check_stack` lets through.
        heads: How heads are joined.
        discard: Share of the smallest weights that count as 0.

    Yields:
        T × T for each layer; rows sum to 1.
    """
    eye_TT = np.eye(len(maps[0].query_tokens))
    for one in maps:
        fused_TT = (one.mean().weights_HTS[0] if heads == "mean" else one.weights_HTS.max(0)).astype(np.float64)
        smallest = np.argsort(fused_TT, axis=None, kind="stable")[: int(discard * fused_TT.size)] if discard else []
        np.put(fused_TT, smallest, 0.0)
        step_TT = (fused_TT + eye_TT) / 2
        yield step_TT / step_TT.sum(1, keepdims=True)


def over_picture(
    weights_TS: npt.NDArray[np.floating], queries: Side, keys: Places, query: int | None = None
) -> npt.NDArray[np.float64]:
    """Lay what a query attends to over the grid of a picture.

    Args:
        weights_TS: Weights of a map with these sides, one head's or `rollout`'s.
        queries: What attends.
        keys: The places that are attended to.
        query: Index of the query. None is the first that stands at no place (a class token, a word); where all stand at
            places, each place gets the mean over the queries that can attend to it.

    Returns:
        Y × X; NaN where the query cannot attend: outside its window.
    """
    rows_GW, before = keys.rows_GW, len(keys.before)
    laid = np.full(keys.grid[0] * keys.grid[1], np.nan)
    free = len(free_names(queries))
    if query is None and free:
        query = 0
    if query is not None:
        window = query * len(rows_GW) // len(weights_TS)
        places_W, weights_W = rows_GW[window], weights_TS[query, before:]
        laid[places_W[places_W >= 0]] = weights_W[places_W >= 0]
    elif isinstance(queries, Places):
        standing_GT = queries.rows_GW >= 0
        weights_GTS = weights_TS.reshape(len(rows_GW), -1, weights_TS.shape[1]).astype(np.float64)
        for places_W, standing_T, window_TS in zip(
            rows_GW, standing_GT.reshape(len(rows_GW), -1), weights_GTS, strict=True
        ):
            if standing_T.any():
                laid[places_W[places_W >= 0]] = window_TS[standing_T].mean(0)[before:][places_W >= 0]
    return laid.reshape(keys.grid)
