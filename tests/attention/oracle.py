"""Attention as loops over sequences, heads, queries and keys in float64, written from the definitions alone.

Nothing here is taken from regard: what both say must be right, or wrong twice by accident.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Place:
    """Where one score stands: sequence, head, query and key, and how many queries and keys the sequence has."""

    sequence: int
    head: int
    query: int
    key: int
    queries: int
    keys: int

    @property
    def place(self) -> int:
        """The query's place among the keys: the last query stands at the last key."""
        return self.query + self.keys - self.queries

    @property
    def distance(self) -> int:
        return self.place - self.key


Score = Callable[[int, Sequence[float], Sequence[float], int], float]  # head, query, key, distance
Bias = Callable[[Place], float]
Allow = Callable[[Place], bool]

# ------------------------------------------------------------------------------------------------------------ attention


def places(heads: int, q_lengths: Sequence[int], k_lengths: Sequence[int]) -> Iterator[Place]:
    for sequence, (queries, keys) in enumerate(zip(q_lengths, k_lengths, strict=True)):
        for head in range(heads):
            for query in range(queries):
                for key in range(keys):
                    yield Place(sequence, head, query, key, queries, keys)


def starts(lengths: Sequence[int], capacity: int | None = None) -> list[int]:
    """First row of each sequence: one behind the other, or in slots of one capacity."""
    if capacity is not None:
        return [slot * capacity for slot in range(len(lengths))]
    return [sum(lengths[:sequence]) for sequence in range(len(lengths))]


def score_table(
    score: Score,
    q: Array,
    k: Array,
    q_lengths: Sequence[int],
    k_lengths: Sequence[int],
    capacity: int | None = None,
) -> dict[Place, float]:
    """Every score; query heads h · H/G … (h + 1) · H/G − 1 share key head h."""
    heads, key_heads = q.shape[1], k.shape[1]
    q_starts, k_starts = starts(q_lengths), starts(k_lengths, capacity)
    queries, keys = q.tolist(), k.tolist()
    table = {}
    for at in places(heads, q_lengths, k_lengths):
        query = queries[q_starts[at.sequence] + at.query][at.head]
        key = keys[k_starts[at.sequence] + at.key][at.head * key_heads // heads]
        table[at] = score(at.head, query, key, at.distance)
    return table


def combine(
    scores: dict[Place, float],
    v: Array,
    heads: int,
    q_lengths: Sequence[int],
    k_lengths: Sequence[int],
    biases: dict[Place, float] | None = None,
    allowed: dict[Place, bool] | None = None,
    capacity: int | None = None,
) -> tuple[Array, list[Array]]:
    """Softmax over what is allowed, then the weighted sum; a query with nothing allowed gets zeros.

    Returns:
        The context (N, heads, value size), and for each sequence its weights (heads, queries, keys).
    """
    q_starts, k_starts = starts(q_lengths), starts(k_lengths, capacity)
    context = np.zeros((sum(q_lengths), heads, v.shape[2]))
    weights = [np.zeros((heads, t, s)) for t, s in zip(q_lengths, k_lengths, strict=True)]
    rows: dict[tuple[int, int, int], list[tuple[int, float]]] = {}
    for at, value in scores.items():
        if allowed is None or allowed[at]:
            total = value + (biases[at] if biases is not None else 0.0)
            rows.setdefault((at.sequence, at.head, at.query), []).append((at.key, total))
    for (sequence, head, query), row in rows.items():
        top = max(total for _, total in row)
        powers = [(key, math.exp(total - top)) for key, total in row]
        norm = sum(power for _, power in powers)
        for key, power in powers:
            weights[sequence][head, query, key] = power / norm
            value = v[k_starts[sequence] + key, head * v.shape[1] // heads]
            context[q_starts[sequence] + query, head] += power / norm * value
    return context, weights


def attention(
    q: Array,
    k: Array,
    v: Array,
    q_lengths: Sequence[int],
    k_lengths: Sequence[int],
    score: Score,
    bias: Bias | None = None,
    allow: Allow | None = None,
    capacity: int | None = None,
) -> tuple[Array, list[Array]]:
    """Context and weights; see :func:`combine`."""
    heads = q.shape[1]
    scores = score_table(score, q, k, q_lengths, k_lengths, capacity)
    biases = None if bias is None else {at: bias(at) for at in scores}
    allowed = None if allow is None else {at: allow(at) for at in scores}
    return combine(scores, v, heads, q_lengths, k_lengths, biases, allowed, capacity)


# --------------------------------------------------------------------------------------------------------------- scores


def dot(scale: float | None) -> Score:
    """scale · q · k; None is 1/√K."""

    def score(head: int, query: Sequence[float], key: Sequence[float], distance: int) -> float:
        factor = 1 / math.sqrt(len(query)) if scale is None else scale
        return factor * sum(a * b for a, b in zip(query, key, strict=True))

    return score


def general(weight: Array) -> Score:
    """qᵀ W_h k."""
    weights = weight.tolist()

    def score(head: int, query: Sequence[float], key: Sequence[float], distance: int) -> float:
        return sum(a * weights[head][i][j] * b for i, a in enumerate(query) for j, b in enumerate(key))

    return score


def additive(v: Array) -> Score:
    """v_hᵀ tanh(q + k)."""
    vs = v.tolist()

    def score(head: int, query: Sequence[float], key: Sequence[float], distance: int) -> float:
        return sum(w * math.tanh(a + b) for w, a, b in zip(vs[head], query, key, strict=True))

    return score


def relative(u: Array, w: Array, r: Array) -> Score:
    """(q + u_h) · k / √K + (q + w_h) · r_d / √K, r_d the rows of head h of W_r times the sinusoid of distance d."""
    us, ws, rs = u.tolist(), w.tolist(), r.tolist()

    @cache
    def encoded(head: int, distance: int) -> list[float]:
        dim = len(us[0])
        wave = sinusoid(distance, len(rs[0]), halves=True)
        return [sum(a * b for a, b in zip(rs[head * dim + c], wave, strict=True)) for c in range(dim)]

    def score(head: int, query: Sequence[float], key: Sequence[float], distance: int) -> float:
        r_d = encoded(head, distance)
        content = sum((a + b) * c for a, b, c in zip(query, us[head], key, strict=True))
        position = sum((a + b) * c for a, b, c in zip(query, ws[head], r_d, strict=True))
        return (content + position) / math.sqrt(len(query))

    return score


# ------------------------------------------------------------------------------------------------------------ positions


def sinusoid(position: float, dim: int, halves: bool = False, base: float = 10000.0) -> list[float]:
    """sin and cos of position / base^(2i/D): alternating, or all sines and then all cosines."""
    angles = [position / base ** (2 * i / dim) for i in range(dim // 2)]
    if halves:
        return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return [wave(a) for a in angles for wave in (math.sin, math.cos)]


def rotated(x: Array, positions: Sequence[float], pairs: bool, base: float = 10000.0) -> Array:
    """Pairs of coordinates, (2i, 2i + 1) or (i, i + K/2), turned by the row's position times base^(−2i/K)."""
    out = np.empty(x.shape)
    half = x.shape[2] // 2
    for row, position in enumerate(positions):
        for head in range(x.shape[1]):
            for i in range(half):
                first, second = (2 * i, 2 * i + 1) if pairs else (i, i + half)
                angle = position * base ** (-2 * i / x.shape[2])
                a, b = x[row, head, first], x[row, head, second]
                out[row, head, first] = a * math.cos(angle) - b * math.sin(angle)
                out[row, head, second] = a * math.sin(angle) + b * math.cos(angle)
    return out


def alibi_slopes(heads: int) -> list[float]:
    """For n a power of two 2^(−8/n) and its powers; else those of the power below, then every second of the next."""
    power = 1
    while power * 2 <= heads:
        power *= 2
    own = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    if power == heads:
        return own
    return own + alibi_slopes(2 * power)[0::2][: heads - power]


def alibi(heads: int) -> Bias:
    slopes = alibi_slopes(heads)
    return lambda at: -slopes[at.head] * abs(at.distance)


def t5_bucket(distance: int, buckets: int, greatest: int, both: bool) -> int:
    """Half of the buckets exact, half logarithmic up to the greatest distance, by whole numbers alone.

    j is the largest with (d / exact)^far ≥ (greatest / exact)^j, that is j ≤ far · log(d / exact) / log(greatest /
    exact).
    """
    offset = 0
    if both:
        buckets //= 2
        offset = buckets if distance < 0 else 0
        distance = abs(distance)
    distance = max(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return offset + distance
    far, j = buckets - exact, 0
    while distance**far * exact ** (j + 1) >= greatest ** (j + 1) * exact**far:
        j += 1
    return offset + min(exact + j, buckets - 1)


def t5(weight: Array, greatest: int, both: bool) -> Bias:
    return lambda at: weight[t5_bucket(at.distance, len(weight), greatest, both), at.head]


def swin(weight: Array, window: int, width: int) -> Bias:
    """A number for each head and offset (down, right) between two tokens of a window that is stored row by row."""

    def bias(at: Place) -> float:
        down = at.query // width - at.key // width
        right = at.query % width - at.key % width
        return weight[(down + window - 1) * (2 * window - 1) + right + window - 1, at.head]

    return bias


def table(values: Array) -> Callable[[Place], float]:
    """Entries of a tensor (B, H, T, S): sequences go round B; one head serves all."""

    def entry(at: Place) -> float:
        return values[at.sequence % len(values), at.head if values.shape[1] > 1 else 0, at.query, at.key].item()

    return entry


# ---------------------------------------------------------------------------------------------------------------- masks


def window(back: int | None, ahead: int | None) -> Allow:
    """Keys from ``back`` places before the query to ``ahead`` after it; None for no end. Causal is (None, 0)."""

    def allow(at: Place) -> bool:
        near_enough = back is None or at.key >= at.place - back
        return near_enough and (ahead is None or at.key <= at.place + ahead)

    return allow


def blocks(size: int, shift: int) -> Allow:
    """Cuts lie before places −shift, size − shift, 2 · size − shift, …; a query sees what no cut parts from it."""

    def allow(at: Place) -> bool:
        low, high = sorted((at.place, at.key))
        return not any((cut + shift) % size == 0 for cut in range(low + 1, high + 1))

    return allow


def prefix(lengths: Sequence[int]) -> Allow:
    return lambda at: at.key <= at.place or at.key < lengths[at.sequence]


def documents(ids: Sequence[Sequence[int]]) -> Allow:
    return lambda at: ids[at.sequence][at.place] == ids[at.sequence][at.key]


def every(*parts: Allow) -> Allow:
    return lambda at: all(part(at) for part in parts)
