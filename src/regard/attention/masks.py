"""Which keys a query may attend to. Masks combine with ``&``; in a mask tensor True means *may attend*.

A mask is a function of where a score stands (:class:`Grid`), so that one definition serves every backend: evaluated on
whole axes it gives the bool tensor of the dense backend, on scalars the ``mask_mod`` of a block-sparse one.

A sequence's end is not a mask: it is in the segments. A query that no key is left for gets zeros and gives no gradient.

``causal`` and ``window`` count from the end: the last query stands at the last key. With T queries and S keys, query i
stands at key position i + S − T, so that one new query sees all of a cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.segments import Segments
from regard.errors import UsageError


@dataclass(frozen=True)
class Grid:
    """Where scores stand: index tensors that broadcast to (B, H, T, S), or scalars.

    Attributes:
        sequence: Index of the sequence in the batch.
        head: Index of the query head.
        query: Index of the query in its sequence.
        key: Index of the key in its sequence.
        shift: S − T of the sequence: ``query + shift`` is the query's place among the keys.
    """

    sequence: Tensor
    head: Tensor
    query: Tensor
    key: Tensor
    shift: Tensor

    @property
    def distance(self) -> Tensor:
        """Places from the key forward to the query; negative for keys that lie ahead."""
        return self.query + self.shift - self.key


class Mask(ABC):
    """Base of all masks."""

    @abstractmethod
    def allow(self, at: Grid) -> Tensor:
        """Say which scores count.

        Args:
            at: Where the scores stand.

        Returns:
            bool, True = may attend, broadcastable to (B, H, T, S).
        """

    def window(self) -> tuple[int, int] | None:
        """Describe the mask as a band, for kernels that know bands only.

        Returns:
            (places back, places ahead) that a query sees, −1 for all of that side; None where the mask is not a band.
        """
        return None

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        """Refuse a batch that the mask does not cover, which would be read wrongly rather than fail.

        Args:
            sequences: Sequences B.
            heads: Query heads H.
            queries: The most queries of a sequence.
            keys: The most keys of a sequence, where the host knows them; otherwise 0.

        Raises:
            UsageError: It is too small, or made for another batch.
        """
        return  # a mask without tensors of its own covers every batch

    def __and__(self, other: Mask) -> Mask:
        """Allow what both allow."""
        return All((self, other))


@dataclass(frozen=True)
class All(Mask):
    """Allow what every part allows.

    Attributes:
        parts: The masks to combine.
    """

    parts: tuple[Mask, ...]

    def allow(self, at: Grid) -> Tensor:
        allowed = self.parts[0].allow(at)
        for part in self.parts[1:]:
            allowed = allowed & part.allow(at)
        return allowed

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        for part in self.parts:
            part.check(sequences, heads, queries, keys)

    def window(self) -> tuple[int, int] | None:
        bands = [part.window() for part in self.parts]
        if any(band is None for band in bands):
            return None
        sides = zip(*(band for band in bands if band is not None), strict=True)
        back, ahead = (min((n for n in side if n >= 0), default=-1) for side in sides)
        return back, ahead


@dataclass(frozen=True)
class Window(Mask):
    """Allow keys within a band around the query.

    Attributes:
        back: Keys before the query that it sees; −1 for all.
        ahead: Keys after the query that it sees; −1 for all.
    """

    back: int
    ahead: int

    def allow(self, at: Grid) -> Tensor:
        allowed = torch.ones_like(at.distance, dtype=torch.bool)
        if self.back >= 0:
            allowed = allowed & (at.distance <= self.back)
        if self.ahead >= 0:
            allowed = allowed & (at.distance >= -self.ahead)
        return allowed

    def window(self) -> tuple[int, int]:
        return self.back, self.ahead


@dataclass(frozen=True)
class Blocks(Mask):
    """Cut the sequence into blocks; a query sees its own block. With a shift: shifted windows.

    Attributes:
        size: Tokens of a block.
        shift: Places by which the cuts move towards the start.
    """

    size: int
    shift: int = 0

    def allow(self, at: Grid) -> Tensor:
        return (at.query + at.shift + self.shift) // self.size == (at.key + self.shift) // self.size


@dataclass(frozen=True)
class Prefix(Mask):
    """Causal, but the first keys are seen by every query (prefix language model).

    Attributes:
        lengths_B: int64, keys of each sequence that every query sees.
    """

    lengths_B: Tensor

    def allow(self, at: Grid) -> Tensor:
        return (at.distance >= 0) | (at.key < self.lengths_B[at.sequence])

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        if len(self.lengths_B) != sequences:
            raise UsageError(
                f"{len(self.lengths_B)} prefix lengths for {sequences} sequences", mend="give one for each"
            )


@dataclass(frozen=True)
class Documents(Mask):
    """Packed documents: a query sees the keys of its own document.

    Attributes:
        ids_BS: Document of each token. Queries are the last T of the S tokens.
    """

    ids_BS: Tensor

    def allow(self, at: Grid) -> Tensor:
        # Padded queries of a group stand beyond the row; what they see is never read, so any index in range will do.
        query = (at.query + at.shift).clamp(0, self.ids_BS.shape[1] - 1)
        key = at.key.clamp(max=self.ids_BS.shape[1] - 1)
        return self.ids_BS[at.sequence, query] == self.ids_BS[at.sequence, key]

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        if len(self.ids_BS) != sequences or self.ids_BS.shape[1] < keys:
            raise UsageError(
                f"document ids of shape {tuple(self.ids_BS.shape)} for {sequences} sequences of up to {keys} keys",
                mend="give the document of each token of each sequence",
            )


@dataclass(frozen=True, eq=False)
class Ranks(Mask):
    """A query sees the keys of its sequence that come before it in an order which is not the order of places.

    Attributes:
        q_ranks_N: int64, rank of each query.
        q_segments: The queries' sequences.
        k_ranks_M: int64, rank of each key.
        k_segments: The keys' sequences.
        strict: Keys of the query's own rank are not seen.
    """

    q_ranks_N: Tensor
    q_segments: Segments
    k_ranks_M: Tensor
    k_segments: Segments
    strict: bool

    def allow(self, at: Grid) -> Tensor:
        query = self.q_ranks_N[self.q_segments.rows(at.sequence, at.query)]
        key = self.k_ranks_M[self.k_segments.rows(at.sequence, at.key)]
        return key < query if self.strict else key <= query

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        sides = ((self.q_ranks_N, self.q_segments), (self.k_ranks_M, self.k_segments))
        if any(len(segments) != sequences or len(ranks) != segments.num_rows for ranks, segments in sides):
            of = " and ".join(f"{len(ranks)} ranks of {len(segments)} sequences" for ranks, segments in sides)
            raise UsageError(f"{of} for {sequences} sequences", where="attend", mend="give one for each row")


@dataclass(frozen=True)
class Tensors(Mask):
    """Any mask, given as a tensor.

    Attributes:
        allowed_BHTS: bool, True = may attend. B may divide the number of sequences (it is repeated), H may be 1.
    """

    allowed_BHTS: Tensor

    def allow(self, at: Grid) -> Tensor:
        batch, heads, queries, keys = self.allowed_BHTS.shape
        return self.allowed_BHTS[
            at.sequence % batch,
            at.head.clamp(max=heads - 1) if heads > 1 else 0,  # what all heads share is not written out for each
            at.query.clamp(max=queries - 1),
            at.key.clamp(max=keys - 1),
        ]

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        check_tensor("mask", self.allowed_BHTS, sequences, heads, queries, keys)


@dataclass(frozen=True)
class Where(Mask):
    """Any mask, given as a function.

    Attributes:
        function: From a :class:`Grid` to bool, True = may attend.
    """

    function: Callable[[Grid], Tensor]

    def allow(self, at: Grid) -> Tensor:
        return self.function(at)


def check_tensor(what: str, given_BHTS: Tensor, sequences: int, heads: int, queries: int, keys: int) -> None:
    """Refuse a mask or bias tensor that does not cover a batch; see :meth:`Mask.check`.

    Args:
        what: What the tensor is, for the message.
        given_BHTS: The tensor.
        sequences: Sequences B.
        heads: Query heads H.
        queries: The most queries of a sequence.
        keys: The most keys of a sequence, or 0.

    Raises:
        UsageError: B does not divide the sequences, H is neither 1 nor the heads, or T or S is too small.
    """
    batch, own_heads, rows, columns = given_BHTS.shape
    fits = batch and sequences % batch == 0 and own_heads in (1, heads) and rows >= queries and columns >= keys
    if not fits:
        raise UsageError(
            f"a {what} of (B, H, T, S) = {tuple(given_BHTS.shape)}",
            where="attend",
            mend=f"cover {sequences} sequences, {heads} heads, {queries} queries and {keys} keys",
        )


def causal() -> Mask:
    """Do not look ahead: a query sees the keys up to its own place (Vaswani et al. 2017, §3.2.3)."""
    return Window(-1, 0)


def window(back: int, ahead: int) -> Mask:
    """See a band of keys around the query.

    Args:
        back: Keys before the query, ≥ 0, or −1 for all.
        ahead: Keys after the query, ≥ 0, or −1 for all.

    Returns:
        The mask.

    Raises:
        UsageError: A side is below −1.
    """
    if back < -1 or ahead < -1:
        raise UsageError(f"a window of {back} back and {ahead} ahead", mend="give counts ≥ 0, or -1 for all")
    return Window(back, ahead)


def blocks(size: int, shift: int = 0) -> Mask:
    """See the own block of the sequence; with a shift, shifted windows (Liu et al. 2021, §3.2, in one dimension).

    Args:
        size: Tokens of a block, ≥ 1.
        shift: Places by which the cuts move towards the start, ≥ 0.

    Returns:
        The mask.

    Raises:
        UsageError: The size is below 1 or the shift below 0.
    """
    if size < 1 or shift < 0:
        raise UsageError(f"blocks of {size} tokens shifted by {shift}", mend="give a size ≥ 1 and a shift ≥ 0")
    return Blocks(size, shift)


def prefix(lengths_B: Tensor) -> Mask:
    """Causal, but for a prefix that all see (Raffel et al. 2020, §3.2.1).

    Args:
        lengths_B: int64, keys of each sequence that every query sees.

    Returns:
        The mask.
    """
    return Prefix(lengths_B)


def documents(ids_BS: Tensor) -> Mask:
    """Keep packed documents apart.

    Args:
        ids_BS: Document of each token.

    Returns:
        The mask.
    """
    return Documents(ids_BS)


def ranks(
    q_ranks_N: Tensor, q_segments: Segments, k_ranks_M: Tensor, k_segments: Segments, strict: bool = False
) -> Mask:
    """See what comes earlier in an order of one's own: a factorization order (Yang et al. 2019, §2.2 and §2.3).

    Args:
        q_ranks_N: int64, rank of each query.
        q_segments: The queries' sequences.
        k_ranks_M: int64, rank of each key.
        k_segments: The keys' sequences.
        strict: Keys of the query's own rank are not seen either.

    Returns:
        The mask.
    """
    return Ranks(q_ranks_N, q_segments, k_ranks_M, k_segments, strict)


def tensor(allowed: Tensor) -> Mask:
    """Use a bool tensor as a mask.

    Args:
        allowed: bool, True = may attend, (T, S), (H, T, S) or (B, H, T, S), where B divides the number of sequences and
            H may be 1.

    Returns:
        The mask.

    Raises:
        UsageError: Not bool, or not of two to four dimensions.
    """
    if allowed.dtype != torch.bool or not 2 <= allowed.dim() <= 4:
        raise UsageError(
            f"a mask of type {allowed.dtype} and shape {tuple(allowed.shape)}",
            mend="give a bool tensor, True = may attend, of shape (T, S), (H, T, S) or (B, H, T, S)",
        )
    return Tensors(allowed[(None,) * (4 - allowed.dim())])


def where(function: Callable[[Grid], Tensor]) -> Mask:
    """Use a function as a mask.

    Args:
        function: From a :class:`Grid` to bool, True = may attend, broadcastable to (B, H, T, S). It is asked about
            places beyond a sequence's end too, up to the longest sequence's; what it says there counts for nothing.

    Returns:
        The mask.
    """
    return Where(function)
