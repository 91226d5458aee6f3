"""Keys and values kept for decoding: a value that is passed in and returned, never stored on a module."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from regard.attention.segments import Segments, round_up
from regard.errors import ContextError, UsageError


@dataclass(frozen=True, eq=False)
class KVCache:
    """Keys and values of B slots.

    The storage is handed on: after ``new = old.append(…)`` use ``new`` alone.

    Attributes:
        k_BCGK: Keys; only the first ``lengths_B`` places of a slot mean anything, the others hold zeros.
        v_BCGK: Values, likewise.
        lengths_B: int64, filled places.
        max_len: A bound of the lengths known on the host.
        even: The host knows that every length is ``max_len``.
    """

    k_BCGK: Tensor
    v_BCGK: Tensor
    lengths_B: Tensor
    max_len: int
    even: bool

    @staticmethod
    def empty(
        count: int, capacity: int, num_kv_heads: int, head_dim: int, like: Tensor, value_dim: int | None = None
    ) -> KVCache:
        """Make slots with nothing in them.

        Args:
            count: Slots B.
            capacity: Places C of a slot.
            num_kv_heads: Key–value heads G.
            head_dim: Head size K.
            like: A tensor whose device and dtype the cache has.
            value_dim: Head size of the values; None is K.

        Returns:
            The cache.
        """
        lengths_B = torch.zeros(count, dtype=torch.int64, device=like.device)
        k_BCGK = like.new_zeros(count, capacity, num_kv_heads, head_dim)
        v_BCGK = like.new_zeros(count, capacity, num_kv_heads, head_dim if value_dim is None else value_dim)
        return KVCache(k_BCGK, v_BCGK, lengths_B, 0, True)

    @staticmethod
    def filled(k_MGK: Tensor, v_MGK: Tensor, segments: Segments) -> KVCache:
        """Lay the keys and values of a batch out as slots, once, for queries that come step by step.

        Args:
            k_MGK: Keys of all sequences.
            v_MGK: Values.
            segments: Which of them belong together.

        Returns:
            A cache whose capacity is the greatest length.
        """
        longest = max(segments.lengths, default=0)
        cache = KVCache.empty(len(segments), longest, k_MGK.shape[1], k_MGK.shape[2], k_MGK, v_MGK.shape[2])
        return cache.append(k_MGK, v_MGK, segments)

    @cached_property
    def segments(self) -> Segments:
        """The slots, as what attention is told."""
        known = (self.max_len,) * len(self.lengths_B) if self.even else None
        return Segments.slots(self.lengths_B, self.k_BCGK.shape[1], self.max_len, clean=True, known_lengths=known)

    def reserve(self, capacity: int) -> KVCache:
        """Make room.

        Args:
            capacity: Places that a slot must have.

        Returns:
            This cache where there is room already; else one with more, at most twice as much as asked for.
        """
        if capacity <= self.k_BCGK.shape[1]:
            return self
        more = round_up(capacity) - self.k_BCGK.shape[1]
        k_BCGK, v_BCGK = (nn.functional.pad(x, (0, 0, 0, 0, 0, more)) for x in (self.k_BCGK, self.v_BCGK))
        return replace(self, k_BCGK=k_BCGK, v_BCGK=v_BCGK)

    def first(self, count: int) -> KVCache:
        """Keep the first slots only, without copying.

        Args:
            count: Slots to keep.

        Returns:
            A view of them.
        """
        lengths_B = self.lengths_B[:count]
        return replace(self, k_BCGK=self.k_BCGK[:count], v_BCGK=self.v_BCGK[:count], lengths_B=lengths_B)

    def append(self, k_NGK: Tensor, v_NGK: Tensor, segments: Segments) -> KVCache:
        """Add tokens behind those that are there.

        Args:
            k_NGK: Keys of the new tokens.
            v_NGK: Values.
            segments: Which slot they go to: one sequence for each slot, uniform or ragged.

        Returns:
            The cache with them; this one is used up.

        Raises:
            UsageError: The new tokens are not of one sequence for each slot.
            ContextError: A slot would hold more than its capacity.
        """
        if len(segments) != len(self.lengths_B) or k_NGK.shape[0] != segments.num_rows:
            what = f"{k_NGK.shape[0]} rows of {len(segments)} sequences for {len(self.lengths_B)} slots"
            raise UsageError(what, where="KVCache.append", mend="give one sequence for each slot")
        most = segments.max_len if segments.form == "uniform" else max(segments.lengths, default=0)
        capacity = self.k_BCGK.shape[1]
        if self.max_len + most > capacity and int((self.lengths_B + segments.lengths_B).max()) > capacity:
            raise ContextError(f"{self.max_len} + {most} tokens in a cache for {capacity}")
        if self.even and segments.form == "uniform":
            places = slice(self.max_len, self.max_len + most)
            self.k_BCGK[:, places] = k_NGK.unflatten(0, (len(segments), most))
            self.v_BCGK[:, places] = v_NGK.unflatten(0, (len(segments), most))
        else:
            slot_N = segments.sequence_N()
            place_N = self.lengths_B[slot_N] + segments.positions_N()
            self.k_BCGK[slot_N, place_N] = k_NGK
            self.v_BCGK[slot_N, place_N] = v_NGK
        lengths_B = self.lengths_B + segments.lengths_B
        even = self.even and segments.form == "uniform"
        return KVCache(self.k_BCGK, self.v_BCGK, lengths_B, min(self.max_len + most, capacity), even)

    def select(self, index_R: Tensor) -> KVCache:
        """Give slots in another order: some left out, some repeated.

        Args:
            index_R: int64, for each new slot the old one that it continues.

        Returns:
            The cache; this one stays usable.
        """
        # Copy what is filled only; the rest of the new storage has zeros, not another slot's past.
        k_RCGK = self.k_BCGK.new_zeros(len(index_R), *self.k_BCGK.shape[1:])
        v_RCGK = self.v_BCGK.new_zeros(len(index_R), *self.v_BCGK.shape[1:])
        k_RCGK[:, : self.max_len] = self.k_BCGK[:, : self.max_len][index_R]
        v_RCGK[:, : self.max_len] = self.v_BCGK[:, : self.max_len][index_R]
        return KVCache(k_RCGK, v_RCGK, self.lengths_B[index_R], self.max_len, self.even)

    def put(self, index_R: Tensor, other: KVCache) -> KVCache:
        """Give some slots another past, shorter or longer than theirs.

        The lengths are read back to the host, once.

        Args:
            index_R: int64, the slots, each once.
            other: What they are to hold, a slot for each.

        Returns:
            The cache with them; this one is used up.
        """
        places = other.k_BCGK.shape[1]
        cache = self.reserve(places)
        for mine, theirs in ((cache.k_BCGK, other.k_BCGK), (cache.v_BCGK, other.v_BCGK)):
            mine[index_R] = nn.functional.pad(theirs, (0, 0, 0, 0, 0, mine.shape[1] - places))
        lengths_B = cache.lengths_B.index_copy(0, index_R, other.lengths_B)
        lengths = lengths_B.tolist()
        return replace(cache, lengths_B=lengths_B, max_len=max(lengths), even=len(set(lengths)) == 1)
