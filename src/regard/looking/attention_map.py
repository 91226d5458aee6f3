"""The weights of one layer, with what stands on either axis: a text's tokens, the places or boxes of a picture.

Legend: T queries, S keys, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from regard.errors import DataError
from regard.looking.places import Boxes, Places
from regard.looking.spill import spans
from regard.looking.text import visible

Side = tuple[str, ...] | Places | Boxes
Weights = npt.NDArray[np.float32]
SUM_TOLERANCE = 1e-3  # bfloat16 rows miss 1 by up to about that much


def free_names(side: Side) -> tuple[str, ...]:
    """Name the rows of a side that stand at no place of a grid: tokens, regions, what comes before places."""
    return side.before if isinstance(side, Places) else side.names() if isinstance(side, Boxes) else side


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The weights of one layer, head by head.

    Args:
        layer: The layer's name in the model.
        kind: "self" where queries and keys are the same tokens, else "cross".
        queries: The T tokens that attend, or the places or boxes.
        keys: The S tokens that are attended to, or the places or boxes; S is the rows of one window.
        weights_HTS: Weights from 0 to 1, kept as float32: the array itself where it is read-only, else a copy. A row
            sums to 1, or to 0 where the query attends to nothing.

    Raises:
        DataError: A shape that does not fit the tokens, a value that is not a weight, or a row with another sum.
    """

    layer: str
    kind: Literal["self", "cross"]
    queries: Side
    keys: Side
    weights_HTS: Weights

    def __post_init__(self) -> None:
        """Check every number once, so that nothing that draws has to."""
        for side in ("queries", "keys"):
            given = getattr(self, side)
            object.__setattr__(self, side, given if isinstance(given, Places | Boxes) else tuple(given))
        where = f"attention map {visible(self.layer)!r}"
        if self.kind not in ("self", "cross"):
            raise DataError(f"kind is {self.kind!r}", where=where, mend="it is 'self' or 'cross'")
        if not all(isinstance(token, str) for token in (*self.query_tokens, *self.key_tokens)):
            raise DataError("a token is not a string", where=where)
        if self.kind == "self" and self.queries != self.keys:
            raise DataError("self-attention with other keys than queries", where=where, mend="its kind is 'cross'")
        if isinstance(self.keys, Places) and self.keys.num_windows > 1:
            windows = self.queries.num_windows if isinstance(self.queries, Places) else 1
            if windows != self.keys.num_windows:
                raise DataError(f"{windows} windows attend to {self.keys.num_windows}", where=where)
        weights_in: object = self.weights_HTS
        is_float = isinstance(weights_in, np.ndarray) and weights_in.dtype.kind == "f"
        try:
            weights = np.asarray(weights_in, dtype=None if is_float else np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError("weights are not an array of numbers", where=where) from error
        num_queries, num_keys = len(self.query_tokens), len(self.key_tokens)
        if weights.ndim != 3 or weights.shape[1:] != (num_queries, num_keys) or 0 in weights.shape:
            raise DataError(
                f"weights have the shape {weights.shape}",
                where=where,
                mend=f"it is (heads, {num_queries}, {num_keys}), none 0",
            )
        _check_weights(weights, where)
        if weights.dtype != np.float32 or weights.flags.writeable:
            weights = weights.astype(np.float32)
            weights.setflags(write=False)
        object.__setattr__(self, "weights_HTS", weights)

    @property
    def query_tokens(self) -> tuple[str, ...]:
        """The name of each query."""
        return self.queries.names() if isinstance(self.queries, Places | Boxes) else self.queries

    @property
    def key_tokens(self) -> tuple[str, ...]:
        """The name of each key; of several windows, the first one's."""
        if not isinstance(self.keys, Places):
            return self.keys.names() if isinstance(self.keys, Boxes) else self.keys
        return self.keys.names()[: len(self.keys.before) + self.keys.rows_GW.shape[1]]

    def key_name(self, query: int, key: int) -> str:
        """Name a key as one query sees it: each window has keys of its own."""
        if not isinstance(self.keys, Places) or self.keys.num_windows == 1:
            return self.key_tokens[key]
        rows_GW = self.keys.rows_GW
        window = query * len(rows_GW) // len(self.query_tokens)
        return self.keys.name(int(rows_GW[window, key]))

    def mean(self) -> AttentionMap:
        """Average over the heads; for each query, over those that attend to anything.

        Returns:
            The same map with one head.
        """
        num_heads, num_queries, num_keys = self.weights_HTS.shape
        mean_HTS = np.empty((1, num_queries, num_keys), np.float32)
        for some in spans(num_queries, 8 * num_heads * num_keys):
            weights_HTS = self.weights_HTS[:, some].astype(np.float64)
            attending_T1 = (weights_HTS.sum(-1) > 0.5).sum(0)[:, None]
            mean_HTS[0, some] = weights_HTS.sum(0) / np.maximum(attending_T1, 1)
        mean_HTS.setflags(write=False)
        return AttentionMap(self.layer, self.kind, self.queries, self.keys, mean_HTS)


def _check_weights(weights_HTS: npt.NDArray[np.floating], where: str) -> None:
    """Refuse what is no weights, a part at a time: there may be more of them than memory."""
    num_heads, num_queries, num_keys = weights_HTS.shape
    low, high = np.inf, -np.inf
    bad: tuple[int, int, float] | None = None
    for head in range(num_heads):
        for some in spans(num_queries, 8 * num_keys):
            weights_TS = weights_HTS[head, some].astype(np.float64)
            if not np.isfinite(weights_TS).all():
                raise DataError("a weight is not finite", where=where)
            low, high = min(low, float(weights_TS.min())), max(high, float(weights_TS.max()))
            sums_T = weights_TS.sum(-1)
            wrong_T = np.minimum(abs(sums_T - 1), abs(sums_T)) > SUM_TOLERANCE
            if bad is None and wrong_T.any():
                first = int(wrong_T.argmax())
                bad = head, some.start + first, float(sums_T[first])
    if low < -SUM_TOLERANCE or high > 1 + SUM_TOLERANCE:
        raise DataError(f"weights from {low:.4g} to {high:.4g}", where=where, mend="they are 0 to 1")
    if bad is not None:
        what = f"head {bad[0]}, query {bad[1]} sums to {bad[2]:.4g}"
        raise DataError(what, where=where, mend="a row sums to 1, or to 0")
