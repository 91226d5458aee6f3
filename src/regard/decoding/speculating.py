"""What may come next, proposed ahead: read in one pass with the newest token, and kept as far as it is what comes.

A token that is proposed is kept where it is the one that would have been chosen without it: the best, or the one drawn
by the same number. So outputs are those of one token at a time, the draws among them; where two tokens are equally good
but for the last bits of a sum, a pass over several tokens may round them the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.decoding.choosing import best, draw, log_norms, penalized, widened
from regard.decoding.options import DecodeOptions
from regard.kernels import native
from regard.layers.packed import is_packed
from regard.models.interface import LanguageModel
from regard.models.states import Room, TextState

_LONGEST, _SHORTEST = 3, 2  # tokens at a text's end that are looked for earlier in it


class Proposer(Protocol):
    """Proposes tokens for texts that are written side by side."""

    def admit(self, before: int, tokens_N: Tensor, segments: Segments, room: Room) -> None:
        """Take new texts in behind those that are there.

        Args:
            before: Texts that are there.
            tokens_N: int64, the prompts, but for the last token of each.
            segments: Which belong together.
            room: What they may come to hold.
        """
        ...

    def keep(self, order: Sequence[int]) -> None:
        """Go on with some of the texts.

        Args:
            order: For each new place the old one.
        """
        ...

    def propose(
        self, texts: Sequence[Sequence[int]], count: int, options: DecodeOptions, points: Sequence[Sequence[float]]
    ) -> list[list[int]]:
        """Say what may come next.

        Args:
            texts: Tokens of each text so far.
            count: How many tokens to propose at most.
            options: How tokens are chosen.
            points: Where they are drawn, the numbers that decide on those tokens, of each text.

        Returns:
            Tokens for each text; as few as one likes.
        """
        ...


class Lookup:
    """Proposes what came the last time that a text's last few tokens were there: no second model is asked."""

    def admit(self, before: int, tokens_N: Tensor, segments: Segments, room: Room) -> None:
        return

    def keep(self, order: Sequence[int]) -> None:
        return

    def propose(
        self, texts: Sequence[Sequence[int]], count: int, options: DecodeOptions, points: Sequence[Sequence[float]]
    ) -> list[list[int]]:
        return [_behind(np.array(text, np.int64), count) for text in texts]


def _behind(text_N: np.ndarray, count: int) -> list[int]:
    """Find the last earlier place of a text's end, and give what follows it there."""
    for length in range(_LONGEST, _SHORTEST - 1, -1):
        starts = len(text_N) - length
        if starts < 1:
            continue
        is_same_N = np.ones(starts, bool)
        for place in range(length):
            is_same_N &= text_N[place : starts + place] == text_N[starts + place]
        found = np.flatnonzero(is_same_N)
        if len(found):
            return text_N[found[-1] + length :][:count].tolist()
    return []


class Draft:
    """Proposes what a smaller model of the same vocabulary writes.

    Args:
        model: The smaller model.
        context: Tokens that it reads at once.
    """

    def __init__(self, model: LanguageModel, context: int) -> None:
        self.model, self.context = model, context
        self.is_packed = isinstance(model, nn.Module) and is_packed(model)
        self._state: TextState | None = None
        self._read: list[tuple[int, list[int]]] = []  # of each text, tokens that came, and behind them what it expected

    def admit(self, before: int, tokens_N: Tensor, segments: Segments, room: Room) -> None:
        fresh = self.model.start(tokens_N, segments, 1, room)
        if not before or self._state is None:
            self._state, self._read = fresh, [(length, list[int]()) for length in segments.lengths]
            return
        self._state = self._state.put(torch.arange(before, before + len(segments)), fresh)
        self._read += [(length, list[int]()) for length in segments.lengths]

    def keep(self, order: Sequence[int]) -> None:
        if self._state is not None and order:
            rows_B = torch.tensor(order)
            self._state = self._state.select(rows_B, rows_B)
            self._read = [self._read[place] for place in order]

    def propose(
        self, texts: Sequence[Sequence[int]], count: int, options: DecodeOptions, points: Sequence[Sequence[float]]
    ) -> list[list[int]]:
        lengths = [len(text) for text in texts]
        # What came since is read first, as many of the last tokens of each text.
        behind = max(length - _came(text, *read) for length, text, read in zip(lengths, texts, self._read, strict=True))
        if self._state is None or behind > min(lengths) or max(lengths) + count - 1 > self.context:
            return [[] for _ in texts]
        state = self._state.rewind([length - behind for length in lengths])
        found: list[list[int]] = [[] for _ in texts]
        tokens = [token for text in texts for token in text[len(text) - behind :]]
        device = next(self.model.parameters()).device
        for ahead in range(count):
            with nullcontext() if self.is_packed else native.together():
                logits_NV, state = self.model.extend(torch.tensor(tokens, device=device), state)
            logits_BV = widened(logits_NV.unflatten(0, (len(texts), -1))[:, -1])
            if options.repetition_penalty != 1.0:
                seen = [[*text, *new] for text, new in zip(texts, found, strict=True)]
                logits_BV = penalized(logits_BV, seen, options.repetition_penalty)
            if options.banned:
                logits_BV = logits_BV.index_fill(1, torch.tensor(options.banned, device=device), -torch.inf)
            if options.sample:
                points_B = np.array([some[ahead] for some in points])
                token_B1 = draw(logits_BV, log_norms(logits_BV), options, points_B)
            else:
                token_B1 = best(logits_BV, 1)[1]
            tokens = token_B1[:, 0].tolist()
            for new, token in zip(found, tokens, strict=True):
                new.append(token)
        self._state = state
        self._read = [(len(text), new[:-1]) for text, new in zip(texts, found, strict=True)]  # the last is not read
        return found


def _came(text: Sequence[int], length: int, expected: Sequence[int]) -> int:
    """Count the tokens of a text that were read, the expected ones as far as they are what came."""
    for token in expected:
        if length == len(text) or text[length] != token:
            break
        length += 1
    return length
