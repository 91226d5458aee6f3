"""Which tokens of a batch belong together.

A batch is one long row of tokens ``x_ND`` and the segments it is made of; there is no padding. Token-wise layers never
see this file: attention alone is told where a sequence starts and ends.

Shape legend, used all over regard: N tokens in the batch, B sequences, T queries, S keys, D width, F MLP width, H query
heads, G key–value heads, K head size, V vocabulary, L layers, C capacity of a cache slot.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, TypeVar

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from regard.errors import UsageError

T = TypeVar("T")
Form = Literal["uniform", "ragged", "slots"]


def round_up(length: int) -> int:
    """Round a maximum length up to one of a few values, so that kernels specialised on it are few.

    Args:
        length: A length in tokens, ≥ 0.

    Returns:
        The least of 0, 16, 32, 48, 64, 96, 128, 192, 256, 384, … that is not smaller.
    """
    bound = 16
    while bound < length:
        if bound >= 32 and bound * 3 // 2 >= length:
            return bound * 3 // 2
        bound *= 2
    return bound if length else 0


@dataclass(frozen=True, eq=False)
class Segments:
    """The sequences that a row of tokens is made of.

    ``uniform``: B sequences of one length, stored one after the other: plain dense tensors, the fastest path.
    ``ragged``: B sequences of any lengths (0 allowed), stored one after the other.
    ``slots``: B slots of one capacity, of which the first ``lengths_B`` places are filled: a cache, with static shapes.

    Make one with :meth:`uniform`, :meth:`ragged` or :meth:`slots`, once, where the batch is made. Holds tensors (and an
    upper bound of the lengths), and is a pytree.

    Attributes:
        form: One of the three forms.
        lengths_B: int64, tokens of each sequence.
        starts_B: int64, row of each sequence's first token.
        num_rows: Rows that a tensor with these segments has: tokens, or places of all slots.
        max_len: No length is greater. Exact for uniform, a rounded bound for ragged, any bound up to the capacity for
            slots.
        capacity: Places of a slot; 0 for the other forms.
        clean: For slots: the maker promises finite numbers beyond the lengths, so that nothing need be cleared there.
        least_len: For slots: no length is less.
        origin: Index of each sequence in the batch that a caller knows, where a model attends for some of its sequences
            or in another order; None where it is that batch. Recorders name sequences by it.
    """

    form: Form
    lengths_B: Tensor
    starts_B: Tensor
    num_rows: int
    max_len: int
    capacity: int = 0
    clean: bool = False
    least_len: int = 0
    origin: tuple[int, ...] | None = None
    # See `derived`: what is there follows from the fields above alone, so a copy without it behaves alike.
    _derived: dict[Hashable, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    @staticmethod
    def uniform(count: int, length: int, device: torch.device | str | None = None) -> Segments:
        """Make B sequences of one length.

        Args:
            count: Sequences, ≥ 0.
            length: Tokens of each, ≥ 0.
            device: Where attention runs; None is torch's default.

        Returns:
            The segments of ``count * length`` rows.
        """
        lengths_B = torch.full((count,), length, dtype=torch.int64, device=device)
        starts_B = torch.arange(count, dtype=torch.int64, device=device) * length
        return Segments("uniform", lengths_B, starts_B, count * length, length)

    @staticmethod
    def ragged(lengths: Sequence[int], device: torch.device | str | None = None) -> Segments:
        """Make sequences of the given lengths; equal lengths give the uniform form.

        Args:
            lengths: Tokens of each sequence, each ≥ 0.
            device: Where attention runs; None is torch's default.

        Returns:
            The segments of ``sum(lengths)`` rows.

        Raises:
            UsageError: A length is negative.
        """
        lengths = tuple(lengths)
        if any(n < 0 for n in lengths):
            raise UsageError(f"a sequence has {min(lengths)} tokens", where="Segments.ragged")
        if lengths and len(set(lengths)) == 1:
            return Segments.uniform(len(lengths), lengths[0], device)
        starts = (0, *accumulate(lengths))[: len(lengths)]
        segments = Segments(
            "ragged",
            torch.tensor(lengths, dtype=torch.int64, device=device),
            torch.tensor(starts, dtype=torch.int64, device=device),
            sum(lengths),
            round_up(max(lengths, default=0)),
        )
        segments._derived["lengths"] = lengths
        return segments

    @staticmethod
    def slots(
        lengths_B: Tensor,
        capacity: int,
        max_len: int | None = None,
        clean: bool = False,
        known_lengths: tuple[int, ...] | None = None,
        least_len: int = 0,
    ) -> Segments:
        """Make the slots of a cache.

        Args:
            lengths_B: int64, places of each slot that are filled, each ≤ capacity.
            capacity: Places of a slot; row ``b * capacity`` is the first of slot b.
            max_len: A bound of the lengths known on the host, so that nothing beyond it is read; None is the capacity.
            clean: All places beyond the lengths hold finite numbers; False clears them at every use.
            known_lengths: The lengths, where the host has them without waiting for the device.
            least_len: A length that each has at least, where the host knows one.

        Returns:
            The segments of ``B * capacity`` rows.
        """
        count, bound = lengths_B.shape[0], capacity if max_len is None else max_len
        starts_B = torch.arange(count, dtype=torch.int64, device=lengths_B.device) * capacity
        segments = Segments("slots", lengths_B, starts_B, count * capacity, bound, capacity, clean, least_len)
        if known_lengths is not None:
            segments._derived["lengths"] = known_lengths
        return segments

    def __len__(self) -> int:
        """Count the sequences."""
        return self.lengths_B.shape[0]

    def derived(self, name: Hashable, make: Callable[[], T]) -> T:
        """Compute something from the segments once, and keep it with them.

        Args:
            name: What it is.
            make: Computes it, from these segments alone.

        Returns:
            What ``make`` gave the first time.
        """
        if torch.compiler.is_compiling():  # keeping it would be a side effect, and each batch a graph of its own
            return make()
        if name not in self._derived:
            with torch.inference_mode(False):  # who looks first may be in inference mode, who trains later is not
                self._derived[name] = make()
        return self._derived[name]

    @property
    def known_lengths(self) -> tuple[int, ...] | None:
        """The lengths, where the host has them already; None where asking would wait for the device."""
        return self._derived.get("lengths")

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths on the host. Waits for the device once where the segments were not made there."""
        if "lengths" not in self._derived:
            same = self.form == "uniform"
            lengths = (self.max_len,) * len(self) if same else tuple(self.lengths_B.tolist())
            if self.form == "slots":
                return lengths  # not kept: a kernel's choice must not depend on who has looked (a recorder, say)
            self._derived["lengths"] = lengths
        return self._derived["lengths"]

    def positions_N(self) -> Tensor:
        """Number the tokens of each sequence from 0.

        Returns:
            int64, one position a row; for slots, the places of the slot.
        """
        return self.derived("positions", self._positions)

    def _positions(self) -> Tensor:
        if self.form == "ragged":
            rows_N = torch.arange(self.num_rows, device=self.lengths_B.device)
            return rows_N - self.starts_B[self.sequence_N()]
        size = self.capacity if self.form == "slots" else self.max_len
        return torch.arange(size, device=self.lengths_B.device).repeat(len(self))

    def sequence_N(self) -> Tensor:
        """Say to which sequence each token belongs.

        Returns:
            int64, index of the sequence (or slot) of each row.
        """
        return self.derived("sequence", self._sequence)

    def _sequence(self) -> Tensor:
        if self.form == "ragged":  # by search, not by repeating: its shape is known without waiting for the device
            rows_N = torch.arange(self.num_rows, device=self.lengths_B.device)
            return torch.searchsorted(self.starts_B + self.lengths_B, rows_N, right=True)
        sequences_B = torch.arange(len(self), device=self.lengths_B.device)
        return sequences_B.repeat_interleave(self.capacity or self.max_len)

    def rows(self, sequence: Tensor, place: Tensor) -> Tensor:
        """Find the rows of places, for tables that have one entry a row: masks and scores look them up.

        Args:
            sequence: int64, indices of sequences.
            place: int64, indices in their sequence, broadcastable with these.

        Returns:
            int64 rows. A place beyond its sequence's end, where a kernel fills up, gives any row that is there.
        """
        return (self.starts_B[sequence] + place).clamp(max=max(self.num_rows - 1, 0))

    def to(self, device: torch.device | str) -> Segments:
        """Copy to a device.

        Args:
            device: Where attention runs.

        Returns:
            Equal segments there; these where they are there already.
        """
        if self.lengths_B.device == torch.device(device):
            return self
        moved = Segments(
            self.form,
            self.lengths_B.to(device, non_blocking=True),
            self.starts_B.to(device, non_blocking=True),
            self.num_rows,
            self.max_len,
            self.capacity,
            self.clean,
            self.least_len,
            self.origin,
        )
        if "lengths" in self._derived:
            moved._derived["lengths"] = self._derived["lengths"]
        return moved


pytree.register_pytree_node(
    Segments,
    lambda s: ([s.lengths_B, s.starts_B], (s.form, s.num_rows, s.max_len, s.capacity, s.clean, s.least_len, s.origin)),
    lambda tensors, context: Segments(context[0], tensors[0], tensors[1], *context[1:]),  # type: ignore[index]
    serialized_type_name="regard.attention.Segments",
)
