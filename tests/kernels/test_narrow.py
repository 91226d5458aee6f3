"""Attention within sequences whose products may be narrow, beside float64 of what is rounded."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from regard.kernels import calls, native, sequences
from regard.training.hardware import threads_kept


@dataclass(frozen=True)
class Shape:
    queries: list[int]
    keys: list[int]
    heads: int
    groups: int
    key: int
    value: int


SHAPES = {
    "words": Shape([8, 5, 12, 7], [8, 5, 12, 7], 4, 4, 32, 32),
    "lengths beside a matrix's": Shape([15, 16, 17, 31, 32, 33, 49, 1], [15, 16, 17, 31, 32, 33, 49, 1], 2, 1, 64, 64),
    "groups": Shape([5, 0, 17, 33, 1], [9, 4, 0, 31, 1], 6, 2, 24, 40),
    "odd sizes": Shape([3, 50, 7], [20, 49, 7], 3, 1, 5, 13),
    "wide heads": Shape([20, 40], [20, 40], 2, 2, 128, 80),
    "long": Shape([700, 3], [650, 300], 2, 1, 16, 24),
}
BANDS = {"all": (-1, -1), "causal": (-1, 0), "window": (7, 2), "far window": (300, -1)}


def starts(lengths: list[int]) -> tuple[Tensor, Tensor]:
    return torch.tensor([0, *itertools.accumulate(lengths)][:-1]), torch.tensor(lengths)


def attend(
    inputs: list[Tensor], shape: Shape, band: tuple[int, int], mask: Tensor | None = None, *, narrow: int = 1
) -> Tensor:
    kernel = native.choose("native")
    assert kernel is not None
    how = calls.Sequences(back=band[0], ahead=band[1], narrow=narrow, scale=shape.key**-0.5)
    places = (*starts(shape.queries), *starts(shape.keys))
    return sequences._forward(*inputs, None, mask, *places, how, kernel, keeps=False)[0]


def wanted(inputs: list[Tensor], shape: Shape, band: tuple[int, int], mask: Tensor | None = None) -> Tensor:
    """The same in float64, where queries times the scale, keys, values and weights are rounded."""
    q_NHK, k_MGK, v_MGV = inputs
    found = []
    rounded = [x.bfloat16().double() for x in (q_NHK * shape.key**-0.5, k_MGK, v_MGV)]
    repeated = [x.repeat_interleave(shape.heads // shape.groups, 1) for x in rounded[1:]]
    parts = [
        x.split(count)
        for x, count in zip((rounded[0], *repeated), (shape.queries, shape.keys, shape.keys), strict=True)
    ]
    for number, (q_THK, k_SHK, v_SHV) in enumerate(zip(*parts, strict=True)):
        T, S = len(q_THK), len(k_SHK)
        scores_HTS = torch.einsum("thk,shk->hts", q_THK, k_SHK)
        if mask is not None:
            scores_HTS = scores_HTS + mask[number % len(mask)].double()
        distance_TS = torch.arange(T)[:, None] + S - T - torch.arange(S)
        back, ahead = band
        closed = (distance_TS > back if back >= 0 else False) | (
            -distance_TS > ahead if ahead >= 0 else distance_TS < -T - S
        )
        scores_HTS = scores_HTS.masked_fill(closed, float("-inf"))
        most = scores_HTS.amax(-1, keepdim=True).clamp(min=-1e30) if S else 0.0
        weights_HTS = (scores_HTS - most).exp()
        sums_HT1 = weights_HTS.sum(-1, keepdim=True)
        context = torch.einsum("hts,shv->thv", weights_HTS.float().bfloat16().double(), v_SHV)
        found.append(torch.where(sums_HT1 > 0, context.transpose(0, 1) / sums_HT1, 0.0).transpose(0, 1))
    return torch.cat(found)


def drawn(shape: Shape) -> list[Tensor]:
    torch.manual_seed(2)
    counts, heads = (shape.queries, shape.keys, shape.keys), (shape.heads, shape.groups, shape.groups)
    sizes = (shape.key, shape.key, shape.value)
    return [2 * torch.randn(sum(n), h, k) for n, h, k in zip(counts, heads, sizes, strict=True)]


def close(found: Tensor, want: Tensor) -> None:
    """A weight may round to the other side, where its exponential differs in the last bit: few do."""
    if not native.choose("native").multiplies():  # type: ignore[union-attr]
        return
    error = (found.double() - want).abs()
    assert float(error.max()) <= 1e-2
    assert float(error.mean()) <= 1e-4


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("name", SHAPES)
def test_contexts(name: str, band: str):
    shape, inputs = SHAPES[name], drawn(SHAPES[name])
    found = attend(inputs, shape, BANDS[band])
    close(found, wanted(inputs, shape, BANDS[band]))
    plain = attend(inputs, shape, BANDS[band], narrow=0)
    if native.choose("native").multiplies():  # type: ignore[union-attr]
        assert not torch.equal(found, plain)
        torch.testing.assert_close(found, plain, rtol=0, atol=0.15)
    else:
        assert torch.equal(found, plain)


def test_masks_that_come_again():
    """Sequence i has the mask of i modulo as many as there are; a query that sees nothing gets zeros."""
    shape = Shape([20] * 6, [20] * 6, 2, 2, 32, 32)
    inputs, mask = drawn(shape), torch.randn(3, 2, 20, 20)
    mask[1, :, 4:9, 6:] = mask[2, 1, 7] = float("-inf")
    found = attend(inputs, shape, (-1, -1), mask)
    close(found, wanted(inputs, shape, (-1, -1), mask))
    assert torch.equal(found.view(6, 20, 2, 32)[[2, 5], 7, 1], torch.zeros(2, 32))


def test_any_number_of_threads_gives_the_same_bits():
    shape = SHAPES["long"]
    inputs = drawn(shape)
    with threads_kept():
        torch.set_num_threads(1)
        one = attend(inputs, shape, (-1, 0))
        torch.set_num_threads(3)
        assert torch.equal(attend(inputs, shape, (-1, 0)), one)


def test_rows_that_lie_apart():
    shape = SHAPES["words"]
    inputs = drawn(shape)
    apart = [torch.cat([x, 9 * torch.ones_like(x)], -1)[..., : x.shape[-1]] for x in inputs]
    assert torch.equal(attend(apart, shape, (-1, -1)), attend(inputs, shape, (-1, -1)))


def test_what_is_not_finite_stays_in_its_head_and_sequence():
    shape = Shape([20, 20], [20, 20], 2, 2, 32, 32)
    inputs = drawn(shape)
    inputs[0][3, 1, 5] = torch.nan
    inputs[1][33, 0, 2] = torch.nan
    finite = attend(inputs, shape, (-1, -1)).isfinite().all(-1)
    assert finite.sum() == 80 - 1 - 20
    assert not finite[3, 1]
    assert not finite[20:, 0].any()
