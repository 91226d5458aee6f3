"""Where decoding stands, and the room that it is given: what a search asks of a model's state, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from torch import Tensor


@dataclass(frozen=True)
class Room:
    """What a batch that is decoded may come to hold, so that its caches are made once and never move.

    Attributes:
        sources: Sources (or prompts) that are decoded side by side.
        tokens: Tokens of a row, its prompt among them.
        new: Of these, tokens that are written.
        source_tokens: Tokens of an encoded source.
        beams: Rows of a source, now or later.
    """

    sources: int
    tokens: int
    new: int
    source_tokens: int = 0
    beams: int = 1

    @property
    def places(self) -> int:
        """Places of a source's slot: beams share what they have in common, at worst the prompt alone."""
        return self.tokens if self.beams == 1 else self.tokens + (self.beams - 1) * self.new + 2 * self.beams + 8


class DecoderState(Protocol):
    """Where decoding stands: R rows, the beams of a source side by side."""

    def select(self, rows_R: Tensor, sources_B: Tensor | None) -> Self:
        """Go on from other rows, as many for each source.

        Args:
            rows_R: int64, on the host, for each new row the old one that it continues.
            sources_B: int64, on the host, for each new source the old one; None where the sources stay.

        Returns:
            The state; this one is used up.
        """
        ...

    def put(self, rows_R: Tensor, other: Self) -> Self:
        """Let all rows of some sources go on from elsewhere.

        Args:
            rows_R: int64, on the host, the rows, each once; those behind the last are new.
            other: Where they go on, a row for each.

        Returns:
            The state; this one is used up.
        """
        ...


class TextState(DecoderState, Protocol):
    """Where a language model stands: R rows, the beams of a prompt side by side."""

    def rewind(self, lengths: Sequence[int]) -> Self:
        """Forget the last tokens of rows.

        Args:
            lengths: Tokens that are to be left of each row, one row a prompt.

        Returns:
            The state; this one is used up.
        """
        ...


class Steps(Protocol):
    """What takes a step: the model, or another in its place."""

    def step(self, tokens_R: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read one token a row.

        Args:
            tokens_R: int64, tokens.
            state: Where decoding stands; it is used up.

        Returns:
            logits_RV, and the new state.
        """
        ...
