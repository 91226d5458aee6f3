"""Keys and values kept for decoding: a value that is passed in and returned, never stored on a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.attention.past import Past
from regard.attention.segments import Segments, round_up
from regard.errors import ContextError, UsageError


@dataclass(frozen=True, eq=False)
class KVCache:
    """Keys and values of B slots.

    The storage is handed on: after ``new = old.append(…)`` use ``new`` alone. It stays where it is while it has room,
    whatever joins, leaves or changes its order.

    Attributes:
        k_store: Keys, (slots, C, G, K), of which the first B slots are in use.
        v_store: Values, likewise.
        past: How far the slots are filled; one object for the caches of all layers, so that what follows from it is
            worked out once.
    """

    k_store: Tensor
    v_store: Tensor
    past: Past

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
        k_store = like.new_zeros(count, capacity, num_kv_heads, head_dim)
        v_store = like.new_zeros(count, capacity, num_kv_heads, head_dim if value_dim is None else value_dim)
        return KVCache(k_store, v_store, Past.nothing(count, like.device))

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

    @property
    def k_BCGK(self) -> Tensor:
        """Keys; only the first ``lengths_B`` places of a slot mean anything, the others hold finite numbers."""
        return self.k_store if self.k_store.shape[0] == self.past.slots else self.k_store[: self.past.slots]

    @property
    def v_BCGK(self) -> Tensor:
        """Values, likewise."""
        return self.v_store if self.v_store.shape[0] == self.past.slots else self.v_store[: self.past.slots]

    @property
    def lengths_B(self) -> Tensor:
        """int64, tokens so far: of each slot, or of each row where several share a slot."""
        return self.past.lengths_B

    @property
    def max_len(self) -> int:
        """A bound of the filled places, known on the host."""
        return self.past.max_len

    @property
    def even(self) -> bool:
        """The host knows that every slot is filled up to ``max_len``."""
        return self.past.even

    @property
    def segments(self) -> Segments:
        """The slots, as what attention is told."""
        return self.past.segments(self.k_store.shape[1])

    def positions_N(self, segments: Segments) -> Tensor:
        """Number new tokens behind those that are there.

        Args:
            segments: How many of them go to each slot.

        Returns:
            int64, position of each.
        """
        return self.past.positions_N(segments)

    def reserve(self, capacity: int, slots: int = 0) -> KVCache:
        """Make room.

        Args:
            capacity: Places that a slot must have.
            slots: Slots that there must be.

        Returns:
            This cache where there is room already; else one with more, at most twice as much as asked for.
        """
        more_slots = max(slots - self.k_store.shape[0], 0)
        more = max(round_up(capacity) - self.k_store.shape[1], 0) if capacity > self.k_store.shape[1] else 0
        if not more and not more_slots:
            return self
        stores: list[Tensor] = []
        for x in (self.k_store, self.v_store):
            y = x.new_zeros(x.shape[0] + more_slots, x.shape[1] + more, *x.shape[2:])
            y[: self.past.slots, : self.max_len] = x[: self.past.slots, : self.max_len]
            stores.append(y)
        return replace(self, k_store=stores[0], v_store=stores[1])

    def first(self, count: int) -> KVCache:
        """Keep the first slots only, without copying.

        Args:
            count: Slots to keep.

        Returns:
            A view of them.
        """
        return replace(self, past=self.past.first(count))

    def append(self, k_NGK: Tensor, v_NGK: Tensor, segments: Segments) -> KVCache:
        """Add tokens behind those that are there.

        Args:
            k_NGK: Keys of the new tokens.
            v_NGK: Values.
            segments: Which slot they go to: one sequence for each slot, uniform or ragged.

        Returns:
            The cache with them; this one is used up. It refuses what :meth:`after` refuses.
        """
        grown = self.after(segments, k_NGK.shape[0])
        if not len(k_NGK):
            return grown
        for mine, new in ((self.k_BCGK, k_NGK), (self.v_BCGK, v_NGK)):
            if self.past.even and segments.form == "uniform":
                mine[:, self.max_len : grown.max_len] = new.view(len(segments), -1, *new.shape[1:])
            else:
                mine[self.past.places(segments)] = new
        return grown

    def after(self, segments: Segments, rows: int) -> KVCache:
        """Give the cache as it is when new tokens have come, for who writes them to their places.

        Args:
            segments: Which slot they go to: one sequence for each slot, uniform or ragged.
            rows: How many they are.

        Returns:
            The cache with them; this one is used up.

        Raises:
            UsageError: The new tokens are not of one sequence for each slot.
            ContextError: A slot would hold more than its capacity.
        """
        if len(segments) != self.past.slots or rows != segments.num_rows:
            what = f"{rows} rows of {len(segments)} sequences for {self.past.slots} slots"
            raise UsageError(what, where="KVCache", mend="give one sequence for each slot")
        past = self.past.after(segments)
        if past.max_len > self.k_store.shape[1]:
            most = segments.max_len if segments.form == "uniform" else max(segments.lengths, default=0)
            raise ContextError(f"{self.max_len} + {most} tokens in a cache for {self.k_store.shape[1]}")
        return KVCache(self.k_store, self.v_store, past)

    def select(self, index_R: Tensor) -> KVCache:
        """Give slots in another order: some left out, some repeated.

        Args:
            index_R: int64, for each new slot the old one that it continues.

        Returns:
            The cache; this one stays usable.
        """
        # Copy what is filled only; the rest of the new storage has zeros, not another slot's past.
        index = index_R.tolist()
        k_store = self.k_store.new_zeros(len(index), *self.k_store.shape[1:])
        v_store = self.v_store.new_zeros(len(index), *self.v_store.shape[1:])
        index_R = index_R.to(self.k_store.device)
        k_store[:, : self.max_len] = self.k_store[:, : self.max_len][index_R]
        v_store[:, : self.max_len] = self.v_store[:, : self.max_len][index_R]
        return KVCache(k_store, v_store, self.past.select(index))

    def take(self, slots: Sequence[int], past: Past) -> KVCache:
        """Go on with some of the slots where they lie: only those are copied that fill gaps.

        Args:
            slots: For each new slot the old one.
            past: How far they are filled.

        Returns:
            The cache; this one is used up.
        """
        moved = [(here, slot) for here, slot in enumerate(slots) if here != slot]
        if any(slot < len(slots) for _, slot in moved) or len({slot for _, slot in moved}) < len(moved):
            return replace(self.select(torch.tensor(slots, dtype=torch.int64)), past=past)
        for here, slot in moved:
            for store in (self.k_store, self.v_store):
                store[here, : self.max_len] = store[slot, : self.max_len]
        return replace(self, past=past)

    def put(self, index_R: Tensor, other: KVCache) -> KVCache:
        """Give some slots another past, shorter or longer than theirs; slots behind the last are new.

        Args:
            index_R: int64, on the host, the rows that go on from there, each once.
            other: What they go on from, a row for each.

        Returns:
            The cache with them; this one is used up.
        """
        past, slot, place = self.past.put(index_R.tolist(), other.past)
        cache = self.reserve(max(past.max_len, other.max_len), past.slots)
        count = other.max_len
        for mine, theirs in ((cache.k_store, other.k_BCGK), (cache.v_store, other.v_BCGK)):
            if place is None:  # whole slots: what they held before goes
                mine[slot, count : max(self.max_len, count)] = 0.0
                mine[slot, :count] = theirs[:, :count]
            else:
                mine[slot[:, None], place] = theirs[:, :count]
        return replace(cache, past=past)


def shared(caches: Sequence[KVCache]) -> tuple[KVCache, ...]:
    """Give the caches of all layers one past, so that what follows from it is worked out once.

    Args:
        caches: Caches that are filled alike.

    Returns:
        The same with the first one's past.
    """
    return tuple(replace(cache, past=caches[0].past) for cache in caches)
