"""What attention is tested on: forms of batches, scores, masks, positions and biases, each with its loops.

All inputs and parameters are multiples of 1/8, so that bfloat16 holds them exactly and one oracle serves every dtype.
Sizes are distinct primes where the form lets them be.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from attention import oracle
from torch import Tensor

from regard.attention import Segments, attend, masks, positions, scores

HEADS, HEAD_DIM, VALUE_DIM, WINDOW = 3, 2, 5, 5
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 6e-2}  # values are up to 2

# ---------------------------------------------------------------------------------------------------------------- forms


@dataclass(frozen=True)
class Form:
    """Lengths of queries and keys, key heads, and how the rows are stored."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    key_heads: int = HEADS
    capacity: int | None = None
    selfish: bool = False  # queries and keys have the same segments
    split: bool = False  # a group for each sequence

    def segments(self) -> tuple[Segments, Segments]:
        q_segments = Segments.ragged(self.queries)
        if self.selfish:
            return q_segments, q_segments
        if self.capacity is not None:
            return q_segments, Segments.slots(torch.tensor(self.keys), self.capacity)
        return q_segments, Segments.ragged(self.keys)

    @property
    def backends(self) -> tuple[str, ...]:
        return ("reference", "static") if self.capacity is not None else ("reference", "dense")

    @property
    def key_rows(self) -> int:
        return len(self.keys) * self.capacity if self.capacity is not None else sum(self.keys)


FORMS = {
    "uniform self": Form((7, 7), (7, 7), selfish=True),
    "uniform cross": Form((7, 7), (11, 11), key_heads=1),
    "uniform, more queries": Form((11, 11), (5, 5)),
    "ragged self": Form((5, 0, 7, 1), (5, 0, 7, 1), key_heads=1, selfish=True),
    "ragged self, groups": Form((5, 0, 7, 1, 2), (5, 0, 7, 1, 2), selfish=True, split=True),
    "ragged cross": Form((5, 0, 7, 2, 3, 1), (7, 3, 0, 11, 2, 5), key_heads=1),
    "ragged cross, groups": Form((5, 0, 7, 2, 3), (7, 3, 0, 11, 2), split=True),
    "uniform to ragged": Form((2, 2, 2), (5, 0, 13)),
    "slots": Form((2, 2, 2, 2), (0, 11, 7, 1), key_heads=1, capacity=13),
    "one query to slots": Form((1, 1, 1), (5, 11, 2), capacity=11),
}


def eighths(*shape: int, seed: int) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).clamp(-2, 2) * 8).round().double() / 8


@cache
def tensors(form: str) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in float64; NaN in places of slots that are not filled."""
    f = FORMS[form]
    q = eighths(sum(f.queries), HEADS, HEAD_DIM, seed=1)
    k, v = (eighths(f.key_rows, f.key_heads, size, seed=size) for size in (HEAD_DIM, VALUE_DIM))
    if f.capacity is not None:
        beyond = torch.arange(f.capacity)[None] >= torch.tensor(f.keys)[:, None]
        k[beyond.flatten()], v[beyond.flatten()] = torch.nan, torch.nan
    return q, k, v


# --------------------------------------------------------------------------------------------- scores, masks and biases

Params = dict[str, np.ndarray]


@dataclass(frozen=True)
class ScoreCase:
    make: Callable[[], scores.Score]
    loops: Callable[[Params], oracle.Score]


@dataclass(frozen=True)
class MaskCase:
    """A mask, as we make it and as the oracle says it; where None, it means nothing for the form."""

    make: Callable[[Form], masks.Mask | None]
    loops: Callable[[Form], oracle.Allow | None]
    fits: Callable[[Form], bool] = lambda form: True


@dataclass(frozen=True)
class PositionCase:
    """A bias, or a rotation of queries and keys, or both."""

    make: Callable[[Form], positions.Bias | Tensor | None] = lambda form: None
    loops: Callable[[Form, Params], oracle.Bias | None] = lambda form, params: None
    rotary: str | None = None


SCORES = {
    "scaled dot": ScoreCase(scores.ScaledDot, lambda p: oracle.dot(None)),
    "dot": ScoreCase(scores.Dot, lambda p: oracle.dot(1.0)),
    "dot with a scale": ScoreCase(lambda: scores.DotScore(0.25), lambda p: oracle.dot(0.25)),
    "general": ScoreCase(lambda: scores.General(HEADS, HEAD_DIM), lambda p: oracle.general(p["weight_HKK"])),
    "additive": ScoreCase(lambda: scores.Additive(HEADS, HEAD_DIM), lambda p: oracle.additive(p["v_HK"])),
    "relative": ScoreCase(
        lambda: scores.Relative(HEADS, HEAD_DIM, 4),
        lambda p: oracle.relative(p["content_bias_HK"], p["position_bias_HK"], p["r_proj.weight"]),
    ),
}


def some_mask(form: Form, batch: int, heads: int) -> Tensor:
    """About two thirds may attend; now and then a row is empty."""
    shape = (batch, heads, max(form.queries), max(form.keys))
    return torch.rand(shape, generator=torch.Generator().manual_seed(7)) < 0.65


def divisor(form: Form) -> int:
    count = len(form.queries)
    return count // 2 if count % 2 == 0 else count


def document_ids(form: Form) -> list[list[int]]:
    return [
        [(place * place + sequence) // 5 % 3 for place in range(max(form.keys))] for sequence in range(len(form.keys))
    ]


def prefix_lengths(form: Form) -> list[int]:
    return [(3 * sequence + 2) % 5 for sequence in range(len(form.keys))]


def some_ranks(form: Form, queries: bool) -> list[list[int]]:
    """Of queries or keys; some are equal."""
    lengths = form.queries if queries else form.keys
    return [
        [(5 * place + 3 * sequence + queries) % 7 for place in range(length)] for sequence, length in enumerate(lengths)
    ]


def rank_rows(form: Form, queries: bool) -> Tensor:
    rows = some_ranks(form, queries)
    if form.capacity is not None and not queries:
        rows = [row + [0] * (form.capacity - len(row)) for row in rows]
    return torch.tensor([rank for row in rows for rank in row], dtype=torch.int64)


def rank_mask(strict: bool) -> MaskCase:
    def make(form: Form) -> masks.Mask:
        q_segments, k_segments = form.segments()
        return masks.ranks(rank_rows(form, True), q_segments, rank_rows(form, False), k_segments, strict)

    def loops(form: Form) -> oracle.Allow:
        queries, keys = some_ranks(form, True), some_ranks(form, False)
        return lambda at: keys[at.sequence][at.key] + strict <= queries[at.sequence][at.query]

    return MaskCase(make, loops)


def keys_enough(form: Form) -> bool:
    """Documents: the queries are the last of the keys."""
    return all(t <= s for t, s in zip(form.queries, form.keys, strict=True))


def tensor_mask(batch: Callable[[Form], int], heads: int, drop: int) -> MaskCase:
    """The first ``drop`` dimensions are left out of the tensor."""
    return MaskCase(
        lambda f: masks.tensor(some_mask(f, batch(f), heads)[(0,) * drop]),
        lambda f: oracle.table(some_mask(f, batch(f), heads).numpy()),
    )


MASKS = {
    "none": MaskCase(lambda f: None, lambda f: None),
    "causal": MaskCase(lambda f: masks.causal(), lambda f: oracle.window(None, 0)),
    "window": MaskCase(lambda f: masks.window(2, 1), lambda f: oracle.window(2, 1)),
    "window, open ahead": MaskCase(lambda f: masks.window(1, -1), lambda f: oracle.window(1, None)),
    "blocks": MaskCase(lambda f: masks.blocks(3), lambda f: oracle.blocks(3, 0)),
    "blocks, shifted": MaskCase(lambda f: masks.blocks(5, 2), lambda f: oracle.blocks(5, 2)),
    "prefix": MaskCase(
        lambda f: masks.prefix(torch.tensor(prefix_lengths(f))), lambda f: oracle.prefix(prefix_lengths(f))
    ),
    "documents": MaskCase(
        lambda f: masks.documents(torch.tensor(document_ids(f))),
        lambda f: oracle.documents(document_ids(f)),
        keys_enough,
    ),
    "tensor TS": tensor_mask(lambda f: 1, 1, 2),
    "tensor HTS": tensor_mask(lambda f: 1, HEADS, 1),
    "tensor BHTS": tensor_mask(divisor, HEADS, 0),
    "where": MaskCase(
        lambda f: masks.where(lambda at: (at.query + 2 * at.key + at.head + at.sequence) % 3 != 0),
        lambda f: lambda at: (at.query + 2 * at.key + at.head + at.sequence) % 3 != 0,
    ),
    "ranks": rank_mask(strict=False),
    "ranks, strict": rank_mask(strict=True),
    "bands": MaskCase(
        lambda f: masks.window(3, -1) & masks.causal() & masks.window(4, 2),
        lambda f: oracle.every(oracle.window(3, None), oracle.window(None, 0), oracle.window(4, 2)),
    ),
    "causal documents": MaskCase(
        lambda f: masks.causal() & masks.documents(torch.tensor(document_ids(f))),
        lambda f: oracle.every(oracle.window(None, 0), oracle.documents(document_ids(f))),
        keys_enough,
    ),
    "window, blocks, tensor": MaskCase(
        lambda f: masks.window(4, 4) & masks.blocks(7, 1) & masks.tensor(some_mask(f, 1, HEADS)),
        lambda f: oracle.every(oracle.window(4, 4), oracle.blocks(7, 1), oracle.table(some_mask(f, 1, HEADS).numpy())),
    ),
}


def some_bias(form: Form, batch: int, heads: int) -> Tensor:
    return eighths(batch, heads, max(form.queries), max(form.keys), seed=11)


def tensor_bias(batch: Callable[[Form], int], heads: int, drop: int) -> PositionCase:
    return PositionCase(
        lambda f: some_bias(f, batch(f), heads)[(0,) * drop],
        lambda f, p: oracle.table(some_bias(f, batch(f), heads).numpy()),
    )


POSITIONS = {
    "none": PositionCase(),
    "rotary, halves": PositionCase(rotary="halves"),
    "rotary, pairs": PositionCase(rotary="pairs"),
    "bias TS": tensor_bias(lambda f: 1, 1, 2),
    "bias HTS": tensor_bias(lambda f: 1, HEADS, 1),
    "bias BHTS": tensor_bias(divisor, 1, 0),
    "ALiBi": PositionCase(lambda f: positions.Alibi(HEADS), lambda f, p: oracle.alibi(HEADS)),
    "T5": PositionCase(
        lambda f: positions.RelativeBias(HEADS, 12, 9), lambda f, p: oracle.t5(p["weight"], greatest=9, both=True)
    ),
    "T5, one direction": PositionCase(
        lambda f: positions.RelativeBias(HEADS, 7, 11, bidirectional=False),
        lambda f, p: oracle.t5(p["weight"], greatest=11, both=False),
    ),
    "Swin": PositionCase(
        lambda f: positions.WindowBias(HEADS, WINDOW), lambda f, p: oracle.swin(p["weight"], WINDOW, WINDOW)
    ),
    "Swin, smaller windows": PositionCase(
        lambda f: positions.WindowBias(HEADS, 9).within((9, 3)), lambda f, p: oracle.swin(p["whole.weight"], 9, 3)
    ),
    "rotary and ALiBi": PositionCase(
        lambda f: positions.Alibi(HEADS), lambda f, p: oracle.alibi(HEADS), rotary="halves"
    ),
}


def filled(module: torch.nn.Module) -> torch.nn.Module:
    """Parameters that are multiples of 1/8, the same at every call."""
    module.double()
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(eighths(*parameter.shape, seed=20 + index))
    return module


def parameters(module: object) -> Params:
    named = module.named_parameters() if isinstance(module, torch.nn.Module) else ()
    return {name: parameter.detach().numpy() for name, parameter in named}


def made_score(name: str) -> scores.Score:
    return filled(SCORES[name].make())


def made_position(name: str, form: Form) -> positions.Bias | Tensor | None:
    made = POSITIONS[name].make(form)
    return filled(made) if isinstance(made, torch.nn.Module) else made


def cast(given: object, dtype: torch.dtype) -> object:
    return given.to(dtype) if isinstance(given, Tensor | torch.nn.Module) else given


def key_positions(form: Form) -> list[int]:
    if form.capacity is not None:
        return [place for _ in form.keys for place in range(form.capacity)]
    return [place for length in form.keys for place in range(length)]


def query_positions(form: Form) -> list[int]:
    """Queries are the last of the keys, where there are enough keys."""
    ends = zip(form.queries, form.keys, strict=True)
    return [max(keys - queries, 0) + place for queries, keys in ends for place in range(queries)]


# --------------------------------------------------------------------------------------------------------------- oracle


@cache
def oracle_scores(form: str, score: str, rotary: str | None) -> dict[oracle.Place, float]:
    f, (q, k, _) = FORMS[form], (x.numpy() for x in tensors(form))
    if rotary is not None:
        q = oracle.rotated(q, query_positions(f), rotary == "pairs")
        k = oracle.rotated(k, key_positions(f), rotary == "pairs")
    return oracle.score_table(SCORES[score].loops(parameters(made_score(score))), q, k, f.queries, f.keys, f.capacity)


@cache
def oracle_mask(form: str, mask: str) -> dict[oracle.Place, bool] | None:
    f = FORMS[form]
    allow = MASKS[mask].loops(f)
    return None if allow is None else {at: allow(at) for at in oracle.places(HEADS, f.queries, f.keys)}


@cache
def oracle_bias(form: str, position: str) -> dict[oracle.Place, float] | None:
    f = FORMS[form]
    bias = POSITIONS[position].loops(f, parameters(made_position(position, f)))
    return None if bias is None else {at: bias(at) for at in oracle.places(HEADS, f.queries, f.keys)}


@cache
def expected(form: str, score: str, mask: str, position: str) -> Tensor:
    f = FORMS[form]
    table = oracle_scores(form, score, POSITIONS[position].rotary)
    biases, allowed = oracle_bias(form, position), oracle_mask(form, mask)
    context, _ = oracle.combine(table, tensors(form)[2].numpy(), HEADS, f.queries, f.keys, biases, allowed, f.capacity)
    return torch.from_numpy(context)


# ----------------------------------------------------------------------------------------------------------------- ours


def rotated(form: Form, q: Tensor, k: Tensor, rotary: str | None) -> tuple[Tensor, Tensor]:
    if rotary is None:
        return q, k
    q_positions, k_positions = (torch.tensor(p, device=q.device) for p in (query_positions(form), key_positions(form)))
    return positions.rotate(q, q_positions, layout=rotary), positions.rotate(k, k_positions, layout=rotary)


@dataclass
class Request:
    """What attend is asked, in one dtype; leaves that gradients are taken of."""

    form: Form
    rows: tuple[Tensor, Tensor, Tensor]
    segments: tuple[Segments, Segments]
    mask: masks.Mask | None
    bias: positions.Bias | Tensor | None
    score: scores.Score
    rotary: str | None

    def __call__(self, backend: str | None) -> Tensor:
        q, k, v = self.rows
        q, k = rotated(self.form, q, k, self.rotary)
        return attend(q, k, v, *self.segments, mask=self.mask, bias=self.bias, score=self.score, backend=backend)

    @property
    def leaves(self) -> dict[str, Tensor]:
        found = dict(zip("qkv", self.rows, strict=True))
        found |= {f"score.{name}": p for name, p in self.score.named_parameters()}
        if isinstance(self.bias, torch.nn.Module):
            found |= {f"bias.{name}": p for name, p in self.bias.named_parameters()}
        return found


def request(form: str, score: str, mask: str, position: str, dtype: torch.dtype) -> Request:
    f = FORMS[form]
    return Request(
        f,
        tuple(x.to(dtype, copy=True) for x in tensors(form)),
        f.segments(),
        MASKS[mask].make(f),
        cast(made_position(position, f), dtype),
        made_score(score).to(dtype),
        POSITIONS[position].rotary,
    )


def combinations(form: str, score: str, step: int) -> Iterator[tuple[str, str]]:
    """Every ``step``-th of the pairs of mask and position, others for each form and score."""
    offset = 3 * list(FORMS).index(form) + list(SCORES).index(score)
    for (i, mask), (j, position) in itertools.product(enumerate(MASKS), enumerate(POSITIONS)):
        if (i + j + offset) % step == 0 and MASKS[mask].fits(FORMS[form]):
            yield mask, position
