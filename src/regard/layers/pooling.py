"""From the vectors of a text's tokens to one of the text."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from regard.attention import Segments
from regard.errors import UsageError

Pooling = Literal["mean", "cls", "last"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


def check_pooling(pooling: str) -> None:
    """Refuse a pooling that there is not.

    Args:
        pooling: Its name.

    Raises:
        UsageError: It is unknown.
    """
    if pooling not in POOLINGS:
        raise UsageError(f"unknown pooling {pooling!r}", mend=f"choose from {', '.join(POOLINGS)}")


def pool(hidden_ND: Tensor, segments: Segments, pooling: Pooling) -> Tensor:
    """Give each sequence a vector.

    mean: (1/T) Σ_t h_t;  cls: h_1;  last: h_T.

    Args:
        hidden_ND: Vectors of the tokens.
        segments: Which belong together; each has at least one.
        pooling: How.

    Returns:
        pooled_BD.
    """
    if pooling == "mean":
        sums_BD = hidden_ND.new_zeros(len(segments), hidden_ND.shape[1])
        return sums_BD.index_add(0, segments.sequence_N(), hidden_ND) / segments.lengths_B[:, None]
    ends_B = segments.starts_B + segments.lengths_B - 1
    return hidden_ND[segments.starts_B if pooling == "cls" else ends_B]
