"""How far the slots of caches are filled, and where what is new goes: worked out once for the caches of all layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.attention.masks import Mask, causal
from regard.attention.segments import Segments

_CAUSAL = causal()


class Past:
    """Slots of which the first places are filled: one row of tokens a slot.

    It is a value: what comes after it is another one.

    Args:
        lengths_B: int64, filled places of each slot.
        known: The same on the host; None where the host does not know, as in a step whose shapes are fixed.
        bound: No length is greater, where the host does not know them; then it stays as it is.
        uniform: Segments of rows with the same number of new tokens, by that number, as they were made before.
        least: No length is less, where the host does not know them.
        deepest: No row has more tokens, where the host does not know how many; None is ``bound``.
    """

    def __init__(
        self,
        lengths_B: Tensor,
        known: tuple[int, ...] | None,
        bound: int = 0,
        uniform: dict[tuple[int, int], Segments] | None = None,
        least: int = 0,
        deepest: int | None = None,
    ) -> None:
        self.lengths_B, self.known = lengths_B, known
        self.max_len = bound if known is None else max(known, default=0)
        self.least = least if known is None else min(known, default=0)
        self._deepest = deepest
        self.even = known is not None and len(set(known)) <= 1
        self._uniform = {} if uniform is None else uniform
        self._after: tuple[Segments, Past] | None = None
        self._places: tuple[Segments, tuple[Tensor, Tensor]] | None = None
        self._segments: tuple[int, Segments] | None = None

    @staticmethod
    def nothing(count: int, device: torch.device) -> Past:
        """Say that slots are empty.

        Args:
            count: Slots.
            device: Where they are.

        Returns:
            Their past.
        """
        return Past(torch.zeros(count, dtype=torch.int64, device=device), (0,) * count)

    @property
    def slots(self) -> int:
        """Slots in use."""
        return self.lengths_B.shape[0]

    @property
    def on_host(self) -> bool:
        """The host knows where new tokens go."""
        return self.known is not None

    @property
    def rows(self) -> int:
        """Rows of tokens that go on."""
        return self.slots

    @property
    def deepest(self) -> int:
        """The most tokens of a row, or a bound of it."""
        return self.max_len if self._deepest is None else self._deepest

    @property
    def mask(self) -> Mask:
        """What new tokens may attend to in their slot: the same object each time."""
        return _CAUSAL

    def new(self, tokens: int = 1) -> Segments:
        """Give the segments of new tokens, the same number for each slot.

        Args:
            tokens: How many for each.

        Returns:
            Uniform segments, the same object at each step while the slots are as many.
        """
        key = (self.slots, tokens)
        if key not in self._uniform:
            self._uniform.clear()
            self._uniform[key] = Segments.uniform(self.slots, tokens, self.lengths_B.device)
        return self._uniform[key]

    def after(self, segments: Segments) -> Past:
        """Say how far slots are filled when new tokens have come.

        Args:
            segments: How many go to each slot.

        Returns:
            The past with them; the same object where it is asked for again.
        """
        if self._after is None or self._after[0] is not segments:
            known = self.known
            if known is not None:
                known = tuple(a + b for a, b in zip(known, segments.lengths, strict=True))
            lengths_B = self.lengths_B + segments.lengths_B
            least = self.least + (segments.max_len if segments.form == "uniform" else 0)
            self._after = segments, Past(lengths_B, known, self.max_len, self._uniform, least)
        return self._after[1]

    def places(self, segments: Segments) -> tuple[Tensor, Tensor]:
        """Find the slot and the place of each new token.

        Args:
            segments: How many go to each slot.

        Returns:
            int64 indices of slots and of places.
        """
        if self._places is None or self._places[0] is not segments:
            slot_N = segments.sequence_N()
            if segments.form == "uniform" and segments.max_len == 1 and len(segments) == self.slots:
                place_N = self.lengths_B
            else:
                place_N = self.lengths_B[slot_N] + segments.positions_N()
            self._places = segments, (slot_N, place_N)
        return self._places[1]

    def positions_N(self, segments: Segments) -> Tensor:
        """Number new tokens behind those that are there.

        Args:
            segments: How many go to each slot.

        Returns:
            int64, position of each.
        """
        return self.places(segments)[1]

    def segments(self, capacity: int) -> Segments:
        """Give the slots as what attention is told.

        Args:
            capacity: Places of a slot.

        Returns:
            The slots.
        """
        if self._segments is None or self._segments[0] != capacity:
            slots = Segments.slots(self.lengths_B, capacity, self.max_len, True, self.known, self.least)
            self._segments = capacity, slots
        return self._segments[1]

    def select(self, slots: Sequence[int]) -> Past:
        """Say how far slots in another order are filled.

        Args:
            slots: For each new slot the old one.

        Returns:
            Their past.
        """
        index_B = torch.tensor(slots, dtype=torch.int64, device=self.lengths_B.device)
        known = None if self.known is None else tuple(self.known[slot] for slot in slots)
        return Past(self.lengths_B[index_B], known, self.max_len)

    def first(self, count: int) -> Past:
        """Say how far the first slots are filled.

        Args:
            count: How many of them.

        Returns:
            Their past; the bound is that of all.
        """
        known = None if self.known is None else self.known[:count]
        past = Past(self.lengths_B[:count], known, self.max_len)
        past.max_len, past.even = self.max_len, past.even and past.max_len == self.max_len
        return past

    def rewind(self, lengths: Sequence[int]) -> Past:
        """Forget the last tokens of slots.

        Args:
            lengths: What is to be left of each.

        Returns:
            The shorter past.
        """
        lengths_B = torch.tensor(lengths, dtype=torch.int64, device=self.lengths_B.device)
        return Past(lengths_B, tuple(lengths), uniform=self._uniform)

    def put(self, index: Sequence[int], other: Past) -> tuple[Past, Tensor, Tensor | None]:
        """Say how far slots are filled when some have another past.

        Args:
            index: The slots; those behind the last are new.
            other: Their past.

        Returns:
            The new past, the slot of each row of the other, and the places that its tokens take, (rows, places) or a
            part of it; None for the first ones.
        """
        lengths = list(self.lengths_B.tolist() if self.known is None else self.known)
        others = other.lengths_B.tolist() if other.known is None else other.known
        lengths += [0] * (max(index, default=-1) + 1 - len(lengths))
        for slot, length in zip(index, others, strict=True):
            lengths[slot] = length
        device = self.lengths_B.device
        lengths_B = torch.tensor(lengths, dtype=torch.int64, device=device)
        return Past(lengths_B, tuple(lengths)), torch.tensor(index, dtype=torch.int64, device=device), None
