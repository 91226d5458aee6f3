"""Relative scores of one call: queries that stand anywhere among the keys, encodings shared by layers, types.

Source: Dai et al. 2019, §3.3; Yang et al. 2019, §2.3 (queries for targets alone) and §2.5 (types).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.attention.masks import Grid
from regard.attention.scores import Relative, Score
from regard.attention.segments import Segments


@dataclass(frozen=True, eq=False)
class Standing:
    """Where the queries and keys of one call stand, and of which types they are; for :class:`RelativeAt`.

    Attributes:
        q_segments: The queries' sequences.
        k_segments: The keys' sequences.
        low: The distance that the first row of the projected encodings belongs to.
        places_N: int64, place of each query among its sequence's keys; None where the last query stands at the last
            key, the one before it at the key before it, and so on.
        q_types_N: int64, type of each query; None leaves types out of the score.
        k_types_M: int64, type of each key.
    """

    q_segments: Segments
    k_segments: Segments
    low: int
    places_N: Tensor | None = None
    q_types_N: Tensor | None = None
    k_types_M: Tensor | None = None

    def distance(self, at: Grid) -> Tensor:
        """Give the places from the keys forward to the queries.

        Args:
            at: Where the scores stand.

        Returns:
            int64, broadcastable to (B, H, T, S).
        """
        if self.places_N is None:
            return at.distance
        return self.places_N[self.q_segments.rows(at.sequence, at.query)] - at.key

    def same_type(self, at: Grid) -> Tensor | None:
        """Tell queries and keys of one type from those of two.

        Args:
            at: Where the scores stand.

        Returns:
            bool, broadcastable to (B, H, T, S); None where types are left out.
        """
        if self.q_types_N is None or self.k_types_M is None:
            return None
        query = self.q_types_N[self.q_segments.rows(at.sequence, at.query)]
        return query == self.k_types_M[self.k_segments.rows(at.sequence, at.key)]


class RelativeAt(Score):
    """A relative score of one call, whose queries and keys stand where they are said to.

    Args:
        score: Whose parameters it has.
        r_RHK: Its projected encodings of all distances that there are from a key to a query, from ``standing.low`` on.
        standing: Where queries and keys stand.
    """

    def __init__(self, score: Relative, r_RHK: Tensor, standing: Standing) -> None:
        super().__init__()
        self.score, self.r_RHK, self.where = score, r_RHK, standing

    def forward(self, q_BTHK: Tensor, k_BSHK: Tensor, at: Grid) -> Tensor:
        index, r_RHK = self.where.distance(at) - self.where.low, self.r_RHK
        if not self.where.q_segments.form == self.where.k_segments.form == "uniform":
            # What this group needs of all distances. Of places that fill a group up any will do: none is read.
            low, high = (int(n) for n in index.clamp(0, len(r_RHK) - 1).aminmax())
            index, r_RHK = index.clamp(low, high) - low, r_RHK[low : high + 1]
        r_RHK = r_RHK.to(q_BTHK.dtype)
        return self.score.compare(q_BTHK, k_BSHK, at.head.flatten(), index, r_RHK, self.where.same_type(at))
