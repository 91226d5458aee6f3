"""Sequences of like lengths, brought together into dense blocks: how kernels for dense tensors serve ragged rows.

Sequences are sorted by their numbers of keys and queries, jointly, and cut into groups; within a group the shorter ones
are filled up. A new group costs a kernel call, filling up costs arithmetic: the cut is where the two balance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks import Grid, Mask
from regard.attention.segments import Segments

# One more kernel call (with its share of index work) takes as long as this many scores of a small head.
CALL_COST_SCORES = 2048


@dataclass(frozen=True)
class Group:
    """Sequences that share one dense call.

    Attributes:
        sequences_B: int64, indices in the batch.
        queries: Query places T of each.
        keys: Key places S of each.
        query_lengths_B: int64, real queries of each.
        key_lengths_B: int64, real keys of each.
        filled_keys: Some sequence has fewer keys than the group: they need a mask.
    """

    sequences_B: Tensor
    queries: int
    keys: int
    query_lengths_B: Tensor
    key_lengths_B: Tensor
    filled_keys: bool

    def __len__(self) -> int:
        """Count the sequences."""
        return self.sequences_B.shape[0]

    def grid(self, num_heads: int) -> Grid:
        """Say where the group's scores stand, for masks and biases.

        Args:
            num_heads: Query heads H.

        Returns:
            Index tensors that broadcast to (B, H, T, S).
        """
        device = self.sequences_B.device
        return Grid(
            sequence=self.sequences_B[:, None, None, None],
            head=torch.arange(num_heads, device=device)[None, :, None, None],
            query=torch.arange(self.queries, device=device)[None, None, :, None],
            key=torch.arange(self.keys, device=device)[None, None, None, :],
            shift=(self.key_lengths_B - self.query_lengths_B)[:, None, None, None],
        )

    def allowed(self, mask: Mask | None, at: Grid) -> Tensor | None:
        """Evaluate a mask together with the ends of the sequences.

        Args:
            mask: What queries may attend to; None is everything in their sequence.
            at: The group's grid.

        Returns:
            bool, broadcastable to (B, H, T, S), True = may attend; None where all may attend to all.
        """
        allowed = None if mask is None else mask.allow(at)
        if self.filled_keys:
            real = at.key < self.key_lengths_B[:, None, None, None]
            allowed = real if allowed is None else allowed & real
        return allowed


@dataclass(frozen=True)
class Plan:
    """How the rows of a batch are laid out as groups, and back.

    Attributes:
        groups: The groups, one behind the other in the layout. Sequences without queries, or without keys, are in none.
        query_rows: int64, row of each query place; None where the layout is the batch itself.
        query_places: int64, place of each query row, or one past the last for queries without any key.
        key_rows: int64, row of each key place; None where the layout is the batch itself.
        key_places: int64, place of each key row, or one past the last for keys without any query.
        k_segments: The keys' segments, alive as long as the plan; None where they are the queries' own, which hold it.
    """

    groups: tuple[Group, ...]
    query_rows: Tensor | None
    query_places: Tensor | None
    key_rows: Tensor | None
    key_places: Tensor | None
    k_segments: Segments | None = field(repr=False)

    def lay_out(self, rows: Tensor, side: str) -> list[Tensor]:
        """Bring rows into groups.

        Args:
            rows: Queries, or keys or values, (N, heads, K).
            side: ``query`` or ``key``.

        Returns:
            A tensor (B, places, heads, K) for each group.
        """
        if not self.groups:
            return []
        if side == "key" and self.k_segments is not None and self.k_segments.form == "slots":
            return [self._slots(rows, self.k_segments)]
        index, places = (self.query_rows, self.query_places) if side == "query" else (self.key_rows, self.key_places)
        sizes = [(len(g), g.queries if side == "query" else g.keys) for g in self.groups]
        laid = rows if index is None else _Take.apply(rows, index, places)
        parts = laid.split([count * size for count, size in sizes]) if len(sizes) > 1 else (laid,)
        return [part.unflatten(0, size) for part, size in zip(parts, sizes, strict=True)]

    def _slots(self, rows: Tensor, segments: Segments) -> Tensor:
        """See slots as they lie, up to the bound; what lies beyond their lengths reaches nothing, NaN neither."""
        laid = rows.unflatten(0, (len(segments), segments.capacity))[:, : segments.max_len]
        if segments.clean or not self.groups[0].filled_keys:
            return laid
        beyond_BS = torch.arange(segments.max_len, device=rows.device)[None] >= segments.lengths_B[:, None]
        return laid.masked_fill(beyond_BS[:, :, None, None], 0.0)

    def take_back(self, contexts: list[Tensor]) -> Tensor:
        """Bring the groups' results back into the batch's order.

        Args:
            contexts: (B, T, H, K) of each group; at least one.

        Returns:
            (N, H, K); zeros for queries without any key.
        """
        flat = [context.flatten(0, 1) for context in contexts]
        if self.query_places is None:
            return flat[0]
        zero_row = flat[0].new_zeros(1, *flat[0].shape[1:])
        return _Give.apply(torch.cat([*flat, zero_row]), self.query_places)


class _Take(torch.autograd.Function):
    """rows[index]; the gradient is a gather too, since every row has at most one real place.

    Fill-up places repeat a row of their own sequence. Their gradient is exactly zero: masked keys get none, and the
    results of filled-up queries are never read.
    """

    @staticmethod
    def forward(rows: Tensor, index: Tensor, places: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        return rows.index_select(0, index)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyrefly: ignore[bad-override]
        (places,) = ctx.saved_tensors
        return torch.cat([grad, grad.new_zeros(1, *grad.shape[1:])]).index_select(0, places), None, None


class _Give(torch.autograd.Function):
    """laid[places]; places that nobody reads get a zero gradient."""

    @staticmethod
    def forward(laid: Tensor, places: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        return laid.index_select(0, places)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.num_places = inputs[0].shape[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyrefly: ignore[bad-override]
        (places,) = ctx.saved_tensors
        full = grad.new_zeros(ctx.num_places, *grad.shape[1:])
        full[places] = grad  # only the zero row is written more than once, and nothing reads its gradient
        return full, None


class _Nothing(torch.autograd.Function):
    """Zeros that belong to the graph: every gradient is zero, whatever the inputs hold, NaN too."""

    @staticmethod
    def forward(q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        return q_NHK.new_zeros(*q_NHK.shape[:2], v_MGK.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        needed = zip(ctx.saved_tensors, ctx.needs_input_grad, strict=True)
        return tuple(torch.zeros_like(x) if needs else None for x, needs in needed)


def nothing(q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor) -> Tensor:
    """Give the result of a batch in which no query has a key.

    Args:
        q_NHK: Queries.
        k_MGK: Keys.
        v_MGK: Values.

    Returns:
        Zeros, (N, H, K) with the values' head size; gradients through them are zero.
    """
    return _Nothing.apply(q_NHK, k_MGK, v_MGK)


def plan(q_segments: Segments, k_segments: Segments) -> Plan:
    """Lay queries and keys out as groups of like lengths; computed once for a pair of segments, but by a compiler.

    Args:
        q_segments: Sequences of the queries, uniform or ragged; uniform where the keys are slots.
        k_segments: Sequences of the keys, as many.

    Returns:
        The plan.
    """
    if torch.compiler.is_compiling():  # a graph that knew segments by their identity would serve one batch alone
        return _make(q_segments, k_segments)
    known = q_segments.derived("plans", dict[int, Plan])
    if id(k_segments) not in known:
        known[id(k_segments)] = _make(q_segments, k_segments)
    return known[id(k_segments)]


def _cut(lengths: list[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Cut (keys, queries, sequence), sorted, into groups."""
    groups: list[list[tuple[int, int, int]]] = []
    queries = keys = 0
    for item in lengths:
        more_queries, more_keys = max(queries, item[1]), max(keys, item[0])
        if groups:
            count = len(groups[-1])
            together = (count + 1) * more_queries * more_keys - count * queries * keys
            if together <= item[0] * item[1] + CALL_COST_SCORES:
                groups[-1].append(item)
                queries, keys = more_queries, more_keys
                continue
        groups.append([item])
        keys, queries = item[0], item[1]
    return groups


def _make(q_segments: Segments, k_segments: Segments) -> Plan:
    device = q_segments.lengths_B.device
    kept = None if k_segments is q_segments else k_segments
    if q_segments.form == "uniform" and k_segments.form in ("uniform", "slots"):
        if not (len(q_segments) and q_segments.max_len and k_segments.max_len):
            return Plan((), None, None, None, None, kept)
        # Slots need a mask unless the host knows that all are full up to the bound.
        known = k_segments.known_lengths
        filled = k_segments.form == "slots" and (known is None or min(known) < k_segments.max_len)
        sequences_B = torch.arange(len(q_segments), device=device)
        sizes = q_segments.max_len, k_segments.max_len
        group = Group(sequences_B, *sizes, q_segments.lengths_B, k_segments.lengths_B, filled)
        return Plan((group,), None, None, None, None, kept)

    pairs = zip(k_segments.lengths, q_segments.lengths, range(len(q_segments)), strict=True)
    q_starts, k_starts = _starts(q_segments), _starts(k_segments)
    groups: list[Group] = []
    query_rows: list[Tensor] = []
    key_rows: list[Tensor] = []
    for members in _cut(sorted(item for item in pairs if item[0] and item[1])):
        keys, queries, sequences = (torch.tensor(column) for column in zip(*members, strict=True))
        most_queries, most_keys = int(queries.max()), int(keys.max())
        query_rows.append(_rows(q_starts[sequences], queries, most_queries))
        key_rows.append(_rows(k_starts[sequences], keys, most_keys))
        filled = bool((keys < most_keys).any())
        on_device = (t.to(device) for t in (sequences, queries, keys))
        sequences_B, queries_B, keys_B = on_device
        groups.append(Group(sequences_B, most_queries, most_keys, queries_B, keys_B, filled))
    query_index, query_places = _index(query_rows, q_segments.num_rows)
    key_index, key_places = _index(key_rows, k_segments.num_rows)
    query_side = query_index.to(device), query_places.to(device)
    return Plan(tuple(groups), *query_side, key_index.to(device), key_places.to(device), kept)


def _starts(segments: Segments) -> Tensor:
    lengths = torch.tensor(segments.lengths, dtype=torch.int64)
    return lengths.cumsum(0) - lengths


def _rows(starts_B: Tensor, lengths_B: Tensor, most: int) -> Tensor:
    """Rows of a group's places; a fill-up place repeats its sequence's last row, marked by a negative number."""
    places = torch.arange(most)[None]
    last_B1 = (starts_B + lengths_B - 1)[:, None]
    return torch.where(places < lengths_B[:, None], starts_B[:, None] + places, -1 - last_B1).flatten()


def _index(rows: list[Tensor], num_rows: int) -> tuple[Tensor, Tensor]:
    """Turn marked rows into the index of each place and the place of each row."""
    marked = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64)
    real = marked >= 0
    places = torch.full((num_rows,), len(marked), dtype=torch.int64)
    places[marked[real]] = torch.nonzero(real)[:, 0]
    return torch.where(real, marked, -1 - marked), places
