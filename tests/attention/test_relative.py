"""Relative scores of one call, with types and queries that stand anywhere, against loops in float64."""

import itertools
import math

import pytest
import torch
from attention import oracle
from attention.cases import eighths, filled
from torch import Tensor, nn
from torch.func import functional_call

from regard.attention import MultiHeadAttention, Segments, attend, masks, record
from regard.attention.relative import RelativeAt, Standing
from regard.attention.scores import Relative
from regard.errors import UsageError

HEADS, HEAD_DIM, WIDTH = 3, 2, 6
KEYS = (7, 3, 11, 0, 2)
PLACES = ((6, 0), (), (10, 3, 3), (), (1,))  # of each sequence's queries among its keys
LOW, HIGH = -10, 10


def score_of(types: bool = True) -> Relative:
    return filled(Relative(HEADS, HEAD_DIM, WIDTH, types=types))  # type: ignore[return-value]


def rows(count: int, seed: int) -> Tensor:
    return eighths(count, HEADS, HEAD_DIM, seed=seed)


def loops(
    score: Relative,
    places: list[list[int]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    types: tuple[Tensor, Tensor] | None,
    clamp: int,
) -> Tensor:
    """Softmax over a sequence's keys of the sum of content, position and type, one number after the other."""
    content, position = score.content_bias_HK.tolist(), score.position_bias_HK.tolist()
    weight = score.r_proj.weight.tolist()
    out, query, start = torch.zeros(len(q), HEADS, HEAD_DIM, dtype=torch.float64), 0, 0
    for b, keys in enumerate(KEYS):
        for place in places[b]:
            for h in range(HEADS if keys else 0):
                a = q[query, h].tolist()
                numbers = []
                for key in range(keys):
                    distance = place - key
                    distance = max(-clamp, min(clamp, distance)) if clamp else distance
                    wave = oracle.sinusoid(distance, WIDTH, halves=True)
                    r = [
                        sum(x * y for x, y in zip(weight[h * HEAD_DIM + c], wave, strict=True)) for c in range(HEAD_DIM)
                    ]
                    total = sum((x + u) * y for x, u, y in zip(a, content[h], k[start + key, h].tolist(), strict=True))
                    total += sum((x + u) * y for x, u, y in zip(a, position[h], r, strict=True))
                    if types is not None:
                        other = int(types[0][query] != types[1][start + key])
                        of_type = score.type_embed_2HK[other, h].tolist()
                        total += sum(
                            (x + u) * y for x, u, y in zip(a, score.type_bias_HK[h].tolist(), of_type, strict=True)
                        )
                    numbers.append(math.exp(total / math.sqrt(HEAD_DIM)))
                values = v[start : start + keys, h]
                out[query, h] = sum(n * value for n, value in zip(numbers, values, strict=True)) / sum(numbers)
            query += 1
        start += keys
    return out


@pytest.mark.parametrize(("types", "anywhere", "clamp"), list(itertools.product([False, True], [False, True], [0, 3])))
def test_a_call_equals_loops(types: bool, anywhere: bool, clamp: int) -> None:
    score = score_of()
    k_segments = Segments.ragged(KEYS)
    places = [list(of) for of in PLACES] if anywhere else [list(range(keys)) for keys in KEYS]
    q_segments = Segments.ragged([len(of) for of in places]) if anywhere else k_segments
    q, k, v = rows(q_segments.num_rows, 1), rows(sum(KEYS), 2), rows(sum(KEYS), 3)
    given = tuple(torch.arange(len(of)) * 5 // 3 % 2 for of in (q, k)) if types else None
    where = torch.tensor([place for of in places for place in of]) if anywhere else None
    standing = Standing(q_segments, k_segments, LOW, where, *(given or (None, None)))
    r_RHK = score.project(score.encode(LOW, HIGH, clamp))
    got = attend(q, k, v, q_segments, k_segments, score=RelativeAt(score, r_RHK, standing))
    torch.testing.assert_close(got, loops(score, places, q, k, v, given, clamp), atol=1e-12, rtol=0)
    # It is the score itself where queries stand at the end of the keys.
    if not (types or anywhere or clamp):
        plain = attend(q, k, v, q_segments, k_segments, score=score)
        torch.testing.assert_close(got, plain, atol=1e-12, rtol=0)


def test_gradients_are_those_of_differences() -> None:
    score = score_of()
    segments = Segments.ragged([3, 1])
    q, k, v = (rows(4, seed).requires_grad_() for seed in (1, 2, 3))
    types = torch.tensor([0, 1, 1, 0])
    places = torch.tensor([2, 0, 1, 0])
    standing = Standing(segments, segments, -2, places, types, types)

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = score

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            r_RHK = self.score.project(self.score.encode(-2, 2))
            return attend(q, k, v, segments, score=RelativeAt(self.score, r_RHK, standing))

    called = Called()
    named = {name: parameter.detach().clone().requires_grad_() for name, parameter in called.named_parameters()}
    assert len(named) == 5

    def run(q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        return functional_call(called, dict(zip(named, parameters, strict=True)), (q, k, v))

    assert torch.autograd.gradcheck(run, (q, k, v, *named.values()))


def test_recorded_rows_are_those_of_the_call() -> None:
    """Chosen heads and queries, of queries that stand anywhere: as when all are recorded."""
    score, site = score_of(), MultiHeadAttention(6, 3)
    k_segments, q_segments = Segments.ragged(KEYS), Segments.ragged([len(of) for of in PLACES])
    q, k, v = rows(q_segments.num_rows, 1), rows(sum(KEYS), 2), rows(sum(KEYS), 3)
    where = torch.tensor([place for of in PLACES for place in of])
    types = torch.arange(len(q)) % 2, torch.arange(len(k)) % 2
    call = RelativeAt(
        score, score.project(score.encode(LOW, HIGH)), Standing(q_segments, k_segments, LOW, where, *types)
    )
    with record(site) as every, record(site, heads=[2, 0], queries=[-1], sequences=[2]) as some:
        context = attend(q, k, v, q_segments, k_segments, score=call, site=site)
    by_sequence = {one.sequence: one for one in every[""]}
    (one,) = some[""]
    assert torch.allclose(one.weights_HTS, by_sequence[2].weights_HTS[[2, 0]][:, [2]], atol=1e-14, rtol=0)
    seen = torch.einsum("hts,shk->thk", by_sequence[2].weights_HTS, v[10:21])
    assert torch.allclose(seen, context[2:5], atol=1e-14, rtol=0)


def test_ranks_that_do_not_cover_the_batch_are_refused() -> None:
    segments, x = Segments.ragged([2, 3]), torch.zeros(5, 1, 2)
    for given in (
        masks.ranks(torch.zeros(4, dtype=torch.int64), segments, torch.zeros(5, dtype=torch.int64), segments),
        masks.ranks(*[torch.zeros(5, dtype=torch.int64), Segments.ragged([5])] * 2),
    ):
        with pytest.raises(UsageError, match="ranks of"):
            attend(x, x, x, segments, mask=given)
