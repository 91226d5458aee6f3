"""See attention: exact weights of chosen layers, heads and queries, while the forward pass stays on its fast kernel.

    with record(model, layers=["decoder.*.cross_attn"], heads=[0]) as rows:
        model(...)
    rows["decoder.0.cross_attn"][0].weights_HTS

The rows are computed beside the forward pass from the same queries and keys by the reference formula, so nothing that
the model computes changes, in training, evaluation or cached decoding; and memory grows with what was asked for alone.
With a sink it does not grow at all: rows are handed over in blocks while the model runs, and none is kept. Dropout on
the weights is not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import chain
from types import TracebackType

import torch
from torch import Tensor, nn

from regard.attention.backends import reference
from regard.attention.masks import Grid, Mask
from regard.attention.positions import Bias
from regard.attention.scores import DotScore, Score
from regard.attention.segments import Segments
from regard.attention.sites import Site, check_heads, find_sites
from regard.errors import UsageError

BLOCK_BYTES = 8 << 20  # of the weights that are computed at once; larger blocks leave the caches and are slower


@dataclass(frozen=True)
class Rows:
    """Recorded weights of one sequence in one call, or a block of them.

    Attributes:
        sequence: Index of the sequence in the batch that the model was given.
        heads: The query heads, in the order of the rows.
        queries: The queries' indices in the call, in the order of the rows.
        num_queries: Queries that were asked for of this sequence in this call: more than ``queries`` in a block.
        within: Queries and keys are the same tokens: self-attention over a whole sequence.
        weights_HTS: Weights of those heads and queries over all keys of the sequence, detached.
    """

    sequence: int
    heads: tuple[int, ...]
    queries: tuple[int, ...]
    num_queries: int
    within: bool
    weights_HTS: Tensor


Sink = Callable[[str, Rows], None]

# Given queries_THK and keys_SGK of one sequence, how many keys there are with those behind the last, the band and the
# scale of the dot product: weights_HTS, or None for what it does not serve. Whoever has such a kernel puts it here.
Own = Callable[[Tensor, Tensor, int, tuple[int, int], float | None], Tensor | None]
own: Own | None = None


class record(Mapping[str, list[Rows]]):  # noqa: N801 - used like a function: with record(model) as rows
    """Record attention rows inside a ``with`` block. A mapping from a layer's name to its rows, call by call.

    It holds the layers that attended: asking for another raises, and none is ever empty.

    Args:
        model: The model whose attention is recorded.
        layers: Names of layers, or patterns with ``*``; None for every layer that attends.
        heads: Query heads; None for all.
        queries: Indices of queries in each call, negative ones from the end; those that a sequence lacks are left out.
            None for all.
        sequences: Indices of sequences in the batch; None for all.
        sink: Called with a layer's name and blocks of its rows as soon as they are computed, the queries of each
            sequence in their order. The weights of a block are at most BLOCK_BYTES, or one query's. Nothing is kept
            then, and the mapping stays empty. None keeps everything.

    Raises:
        UsageError: The model has no such layer; no head, query or sequence is asked for; a head is out of range; or the
            block ended without any row.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: str | Sequence[str] | None = None,
        heads: Sequence[int] | None = None,
        queries: Sequence[int] | None = None,
        sequences: Sequence[int] | None = None,
        sink: Sink | None = None,
    ) -> None:
        for what, asked in (("layers", layers), ("heads", heads), ("queries", queries), ("sequences", sequences)):
            if asked is not None and not len(asked):
                raise UsageError(f"{what} is empty", where="record", mend="name some, or leave it out for all")
        patterns = ["*"] if layers is None else [layers] if isinstance(layers, str) else list(layers)
        chosen = find_sites(model, patterns, "record")
        self._names = {id(site): name for name, site in chosen.items()}
        self._rows: dict[str, list[Rows]] = {name: [] for name in chosen}
        self._heads, self._queries, self._sequences = heads, queries, sequences
        self._sink, self._is_empty = sink, True

    def __enter__(self) -> record:
        """Start recording."""
        self._token = _active.set((*_active.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop recording."""
        _active.reset(self._token)
        if kind is None and self._is_empty:
            raise UsageError(
                "nothing was recorded",
                where="record",
                mend="run the model, uncompiled, inside the with block, with queries and sequences that it has",
            )

    def __getitem__(self, name: str) -> list[Rows]:
        """Give the rows of a layer, in the order of the calls."""
        if not self._rows.get(name):
            raise UsageError(f"layer {name!r} was not recorded", where="record", mend=f"recorded: {', '.join(self)}")
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        """Name the recorded layers."""
        return (name for name, rows in self._rows.items() if rows)

    def __len__(self) -> int:
        """Count the recorded layers."""
        return sum(map(bool, self._rows.values()))

    @torch.no_grad()
    def _take(
        self,
        site: Site,
        q_NHK: Tensor,
        k_MGK: Tensor,
        q_segments: Segments,
        k_segments: Segments,
        mask: Mask | None,
        bias: Bias | None,
        score: Score,
    ) -> None:
        layer = self._names[id(site)]
        for blocks in self._sequences_of(q_NHK, k_MGK, q_segments, k_segments, mask, bias, score):
            self._is_empty = False
            if self._sink is None:
                self._rows[layer].append(_joined(blocks))
                continue
            for block in blocks:
                self._sink(layer, block)

    def _sequences_of(
        self,
        q_NHK: Tensor,
        k_MGK: Tensor,
        q_segments: Segments,
        k_segments: Segments,
        mask: Mask | None,
        bias: Bias | None,
        score: Score,
    ) -> Iterator[Iterator[Rows]]:
        """Go through the sequences of a call that were asked for, each of them in blocks."""
        num_heads = q_NHK.shape[1]
        heads = tuple(range(num_heads)) if self._heads is None else tuple(self._heads)
        check_heads(heads, num_heads, "record")
        heads_H = torch.tensor(heads, device=q_NHK.device)
        key_heads_H = heads_H // (num_heads // k_MGK.shape[1])
        is_all = heads == tuple(range(num_heads))
        band = (-1, -1) if mask is None else mask.window()
        within = q_segments is k_segments
        q_lengths, k_lengths = q_segments.lengths, k_segments.lengths

        def blocks(sequence: int, name: int, queries: tuple[int, ...]) -> Iterator[Rows]:
            length, keys = q_lengths[sequence], k_lengths[sequence]
            q_start, k_start = int(q_segments.starts_B[sequence]), int(k_segments.starts_B[sequence])

            def asked(some: tuple[int, ...]) -> Tensor | None:
                """Ask the other kernel, for queries that stand one after the other."""
                if own is None or band is None or bias is not None or not isinstance(score, DotScore):
                    return None
                seen = _aligned(band, some[-1] + keys - length, keys)
                if seen is None or some != tuple(range(some[0], some[0] + len(some))):
                    return None
                q_THK, k_SGK = q_NHK[q_start + some[0] : q_start + some[-1] + 1], k_MGK[k_start : k_start + seen]
                if not is_all:
                    q_THK, k_SGK = q_THK[:, heads_H], k_SGK[:, key_heads_H]
                return own(score.query(q_THK, heads_H), k_SGK, keys, band, score.scale)

            if self._sink is None and (weights_HTS := asked(queries)) is not None:
                yield Rows(name, heads, queries, len(queries), within, weights_HTS)
                return
            k_BSHK: Tensor | None = None
            step = max(1, BLOCK_BYTES // max(1, len(heads) * keys * q_NHK.element_size()))
            for first in range(0, len(queries), step):
                some = queries[first : first + step]
                if (weights_HTS := asked(some)) is not None:
                    yield Rows(name, heads, some, len(queries), within, weights_HTS)
                    continue
                k_BSHK = k_MGK[k_start : k_start + keys][:, key_heads_H][None] if k_BSHK is None else k_BSHK
                queries_T = torch.tensor(some, device=q_NHK.device)
                seen = _seen(mask, max(some) + keys - length, keys)
                at = Grid(
                    sequence=torch.full((1, 1, 1, 1), sequence, device=q_NHK.device),
                    head=heads_H[None, :, None, None],
                    query=queries_T[None, None, :, None],
                    key=torch.arange(seen, device=q_NHK.device)[None, None, None],
                    shift=torch.full((1, 1, 1, 1), keys - length, device=q_NHK.device),
                )
                q_BTHK = q_NHK[q_start + queries_T][:, heads_H][None]
                allowed = None if mask is None else mask.allow(at)
                weights_HTS = reference.weights(q_BTHK, k_BSHK[:, :seen], score, bias, allowed, at)[0]
                weights_HTS = nn.functional.pad(weights_HTS, (0, keys - seen)) if seen < keys else weights_HTS
                yield Rows(name, heads, some, len(queries), within, weights_HTS)

        for sequence, name in enumerate(q_segments.origin or range(len(q_segments))):
            if self._sequences is not None and name not in self._sequences:
                continue
            length = q_lengths[sequence]
            places = range(length) if self._queries is None else [q + length if q < 0 else q for q in self._queries]
            queries = tuple(place for place in places if 0 <= place < length)
            if queries:
                yield blocks(sequence, name, queries)


def _seen(mask: Mask | None, place: int, keys: int) -> int:
    """Count the keys up to the last that queries at a place, and before it, see: of what is ahead of them nothing."""
    ahead = ((-1, -1) if mask is None else mask.window() or (-1, -1))[1]
    return keys if ahead < 0 else min(max(place + ahead + 1, 0), keys)


def _aligned(band: tuple[int, int], place: int, keys: int) -> int | None:
    """Count the keys up to a place, or all: as many as stand before a kernel that takes the last for the query's place.

    None where these are not what queries up to that place see of all keys.
    """
    if place + 1 == keys or band == (-1, -1):
        return keys
    return place + 1 if band[1] == 0 and place >= 0 else None


def _joined(blocks: Iterator[Rows]) -> Rows:
    """Give the blocks of a sequence as one; each goes to its place as it comes, and is not kept beside it."""
    first = next(blocks)
    if len(first.queries) == first.num_queries:
        return first
    heads, _, keys = first.weights_HTS.shape
    weights_HTS = first.weights_HTS.new_empty(heads, first.num_queries, keys)
    queries: list[int] = []
    for block in chain([first], blocks):
        weights_HTS[:, len(queries) : len(queries) + len(block.queries)] = block.weights_HTS
        queries += block.queries
    return replace(first, queries=tuple(queries), weights_HTS=weights_HTS)


_active: ContextVar[tuple[record, ...]] = ContextVar("regard_recorders", default=())


class paused:  # noqa: N801 - used like a function: with paused()
    """Show recorders nothing inside a ``with`` block: where a forward pass that they have seen runs once more."""

    def __enter__(self) -> None:
        """Turn away from the recorders."""
        self._token = _active.set(())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Turn back."""
        _active.reset(self._token)


def is_watched(*sites: Site) -> bool:
    """Say whether a recorder waits for what one of some layers attends to.

    Args:
        *sites: The layers.

    Returns:
        Whether one does, here and now.
    """
    return any(id(site) in recorder._names for recorder in _active.get() for site in sites)


def offer(
    site: Site | None,
    q_NHK: Tensor,
    k_MGK: Tensor,
    q_segments: Segments,
    k_segments: Segments,
    mask: Mask | None,
    bias: Bias | None,
    score: Score,
) -> None:
    """Show an attention call to the recorders that are on; :func:`regard.attention.attend` calls this."""
    if site is None or torch.compiler.is_compiling():
        return
    for recorder in _active.get():
        if id(site) in recorder._names:
            recorder._take(site, q_NHK, k_MGK, q_segments, k_segments, mask, bias, score)
