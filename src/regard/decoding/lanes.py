"""What is known of a source while it is decoded, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from regard.decoding.options import DecodeOptions


@dataclass(frozen=True)
class Hypothesis:
    """An output.

    Attributes:
        tokens: Without start and end.
        logprob: Natural-log probability of the tokens, and of the end where it came.
        score: ``logprob`` over the length penalty: what hypotheses are ranked by.
        ended: The end token was chosen; False where the limit cut the output.
        proposed: Tokens that were proposed ahead while it was written.
        accepted: Of these, the ones that came.
    """

    tokens: list[int]
    logprob: float
    score: float
    ended: bool
    proposed: int = 0
    accepted: int = 0


@dataclass
class Lane:
    """A source while it is decoded.

    Attributes:
        number: Index of the source.
        limit: Tokens of its output at most.
        tokens: Of each prefix, the rows of the source.
        logprobs: Of each prefix.
        done: What has ended.
        proposed: Tokens that were proposed ahead.
        accepted: Of these, the ones that came.
    """

    number: int
    limit: int
    tokens: list[list[int]] = field(default_factory=lambda: [list[int]()])
    logprobs: list[float] = field(default_factory=lambda: [0.0])
    done: list[Hypothesis] = field(default_factory=list)
    proposed: int = 0
    accepted: int = 0

    def is_done(self, live: list[float], options: DecodeOptions) -> bool:
        """Say whether nothing that is still going enters the results.

        Args:
            live: Log-probabilities of the prefixes that go on by one token, the best first.
            options: How outputs are chosen.

        Returns:
            Whether the search is over.
        """
        stops_full = options.early_stopping == "full"
        if not live or (stops_full and len(self.done) >= options.beam):
            return True
        results = options.n_best if stops_full else options.beam
        if len(self.done) < results:
            return False
        # A log-probability only falls; the penalty that helps it most is that of the longest output.
        length = len(self.tokens[0]) + 1 if options.early_stopping == "current" else self.limit + 1
        reachable = live[0] / penalty(length, options.length_penalty, options.length_offset)
        return sorted((h.score for h in self.done), reverse=True)[results - 1] >= reachable


@dataclass
class Group:
    """Lanes that are decoded side by side, each with as many rows.

    Attributes:
        lanes: The sources.
        state: Where the model stands.
        scored: Scores behind the newest token of each row, where the model has read it already; else it has not.
    """

    lanes: list[Lane]
    state: Any
    scored: Any = None

    @property
    def width(self) -> int:
        """Rows of each lane."""
        return len(self.lanes[0].tokens)


def penalty(length: int, alpha: float, offset: float = 5.0) -> float:
    """Compute ((k + length) / (k + 1))^α, the length counted with the end token (k is 5 in Wu et al. 2016, eq. 14)."""
    return ((offset + length) / (offset + 1)) ** alpha


def filled(kept: list[int]) -> list[int]:
    """Order what stays so that little moves: the last ones fill the gaps.

    Args:
        kept: Places that stay, in order.

    Returns:
        For each new place the old one.

    Example:
        >>> filled([0, 2, 3, 5])
        [0, 5, 2, 3]
    """
    order = list(range(len(kept)))
    behind = [place for place in kept if place >= len(kept)]
    stays = set(kept)
    return [place if place in stays else behind.pop() for place in order]


def window_start(length: int, context: int) -> int:
    """Say where a model's window begins in a text that may be longer than its context.

    A window that is full gives up its older tokens when one more comes: the last ⌊context/2⌋ (at least one) stay, the
    new one among them, and are read again. Where it begins depends on the text's length alone, so going on from a text
    that was written so far is going on with it.

    Args:
        length: Tokens of the text so far.
        context: Tokens that the model reads at once.

    Returns:
        Place of the window's first token.

    Example:
        >>> [window_start(length, 6) for length in (5, 6, 7, 10, 11)]
        [0, 0, 4, 4, 8]
    """
    step = context + 1 - max(context // 2, 1)
    return max(-(-(length - context) // step), 0) * step
