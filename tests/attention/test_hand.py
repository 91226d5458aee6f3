"""Numbers worked out by hand, with sizes that are distinct primes, so that an axis in the wrong place cannot pass."""

import math

import pytest
import torch
from torch import Tensor

from regard.attention import MultiHeadAttention, Segments, attend, masks, positions, scores

T, S, H, K, V = 2, 3, 5, 7, 11  # queries, keys, heads, head size, value size

BOTH = pytest.mark.parametrize("backend", ["reference", "dense"])


def log(counts: list) -> Tensor:
    """Scores whose softmax gives weights in the ratio of the counts."""
    return torch.tensor(counts, dtype=torch.float64).log()


@BOTH
def test_weighted_means_of_every_head_query_and_channel(backend: str) -> None:
    """Queries are zero, so the bias alone makes the weights; value of key s, head h, channel c is 1000 s + 20 h + c.

    Query 0 of head h weighs keys 1 : 1 : h, a mean key of (0 + 1 + 2h) / (2 + h):
    heads 1 to 5 (h counted from 1): 3/3 = 1, 5/4 = 1.25, 7/5 = 1.4, 9/6 = 1.5, 11/7.
    Query 1 weighs them h : 0 : 1 (the middle one is masked), a mean key of 2 / (h + 1): 1, 2/3, 1/2, 2/5, 1/3.
    """
    counts = [[[1, 1, h], [h, 99, 1]] for h in range(1, H + 1)]
    key, head, channel = torch.meshgrid(torch.arange(S), torch.arange(H), torch.arange(V), indexing="ij")
    v = (1000 * key + 20 * head + channel).double()
    q, k = torch.zeros(T, H, K, dtype=torch.float64), torch.randn(S, H, K, dtype=torch.float64)
    allowed = torch.tensor([[True, True, True], [True, False, True]])
    got = attend(q, k, v, bias=log(counts), mask=masks.tensor(allowed), backend=backend)
    means = [[1, 1.25, 1.4, 1.5, 11 / 7], [1, 2 / 3, 1 / 2, 2 / 5, 1 / 3]]
    want = [[[1000 * means[t][h] + 20 * h + c for c in range(V)] for h in range(H)] for t in range(T)]
    assert got.shape == (T, H, V)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64))


@BOTH
def test_dot_products_of_every_axis(backend: str) -> None:
    """One coordinate of each head carries the score: query t of head h has ln(t + 2) at coordinate h, key s has s
    there.

    The other coordinates of the keys are 5, of the queries 0. Weights are (t + 2)^s: 1 : 2 : 4 and 1 : 3 : 9.
    Values are 7 · (1, 2, 4) for t = 0 to sum easily: (1 · 7 + 2 · 14 + 4 · 28) / 7 = 1 + 4 + 16 = 21;
    for t = 1: (1 · 7 + 3 · 14 + 9 · 28) / 13 = 301 / 13.
    """
    q, k = torch.zeros(T, H, K, dtype=torch.float64), torch.full((S, H, K), 5.0, dtype=torch.float64)
    for h in range(H):
        q[:, h, h] = torch.tensor([math.log(2), math.log(3)])
        k[:, h, h] = torch.tensor([0.0, 1.0, 2.0])
    v = torch.tensor([7.0, 14.0, 28.0], dtype=torch.float64)[:, None, None].expand(S, H, V)
    want = torch.tensor([21, 301 / 13], dtype=torch.float64)[:, None, None].expand(T, H, V)
    torch.testing.assert_close(attend(q, k, v, score=scores.Dot(), backend=backend), want)
    torch.testing.assert_close(attend(q * math.sqrt(K), k, v, backend=backend), want)  # scaled by 1/√7


@BOTH
def test_general_is_not_symmetric(backend: str) -> None:
    """W has 1 in row 0, column 1 alone, so the score is q₀ k₁: ln 3 · (0, 1) gives weights 1 : 3 of values 4 and 8: 7.

    With W transposed it would be q₁ k₀ = 1 · (9, 9): equal weights and 6.
    """
    score = scores.General(1, 2).double()
    with torch.no_grad():
        score.weight_HKK.copy_(torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]))
    q = torch.tensor([[[math.log(3), 1.0]]], dtype=torch.float64)
    k = torch.tensor([[[9.0, 0.0]], [[9.0, 1.0]]], dtype=torch.float64)
    v = torch.tensor([[[4.0]], [[8.0]]], dtype=torch.float64)
    assert attend(q, k, v, score=score, backend=backend).item() == pytest.approx(7)


def test_additive() -> None:
    """tanh(ln 3 / 2) = (3 − 1) / (3 + 1) = 1/2, so v = 2 ln 5 gives scores ln 5 and 0: weights 5 : 1 of 6 and 12: 7."""
    score = scores.Additive(1, 1).double()
    with torch.no_grad():
        score.v_HK.fill_(2 * math.log(5))
    half = math.log(3) / 2
    q = torch.tensor([[[1.0]]], dtype=torch.float64)
    k = torch.tensor([[[half - 1]], [[-1.0]]], dtype=torch.float64)
    v = torch.tensor([[[6.0]], [[12.0]]], dtype=torch.float64)
    assert attend(q, k, v, score=score).item() == pytest.approx(7)


def test_relative() -> None:
    """D = 2: PE(d) = (sin d, cos d); W_r takes its sine alone, K = 1, so r_d = sin d.

    Two queries at places 0 and 1 of two keys, q = 2 and 3, keys 0, u = 7 (times keys 0: nothing), v-bias 1.
    Query 0 (q + 1 = 3): distances 0 and −1: scores 0 and −3 sin 1. Query 1 (4): distances 1 and 0: 4 sin 1 and 0.
    With values 0 and 1: 1 / (1 + e^(3 sin 1)) and 1 / (1 + e^(4 sin 1)).
    """
    score = scores.Relative(1, 1, 2).double()
    with torch.no_grad():
        score.content_bias_HK.fill_(7.0)
        score.position_bias_HK.fill_(1.0)
        score.r_proj.weight.copy_(torch.tensor([[1.0, 0.0]]))
    q = torch.tensor([2.0, 3.0], dtype=torch.float64)[:, None, None]
    k, v = torch.zeros(2, 1, 1, dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)[:, None, None]
    want = [1 / (1 + math.exp(3 * math.sin(1))), 1 / (1 + math.exp(4 * math.sin(1)))]
    assert attend(q, k, v, score=score).flatten().tolist() == pytest.approx(want, abs=1e-14)


@BOTH
def test_query_heads_share_key_heads_in_order(backend: str) -> None:
    """6 query heads, 2 key heads: heads 0 to 2 read head 0, heads 3 to 5 head 1. One key, so the value comes out."""
    q, k = torch.randn(1, 6, 5), torch.randn(1, 2, 5)
    v = torch.tensor([[[3.0], [4.0]]])
    assert attend(q, k, v, backend=backend).flatten().tolist() == [3, 3, 3, 4, 4, 4]


@BOTH
def test_ragged_means(backend: str) -> None:
    """Lengths 2, 0, 3; equal scores; causal means of 1, 3 | | 10, 20, 60: 1, 2 | | 10, 15, 30."""
    q = torch.zeros(5, 1, 1)
    v = torch.tensor([1.0, 3, 10, 20, 60])[:, None, None]
    got = attend(q, q, v, Segments.ragged([2, 0, 3]), mask=masks.causal(), backend=backend)
    assert got.flatten().tolist() == pytest.approx([1, 2, 10, 15, 30])


@pytest.mark.parametrize(
    ("mask", "want"),
    [  # which of five keys each of three queries sees; the last query stands at the last key
        (masks.causal(), ["11100", "11110", "11111"]),
        (masks.window(1, 0), ["01100", "00110", "00011"]),
        (masks.window(0, 1), ["00110", "00011", "00001"]),
        (masks.window(-1, 1), ["11110", "11111", "11111"]),
        (masks.window(1, -1), ["01111", "00111", "00011"]),
        (masks.blocks(2), ["00110", "00110", "00001"]),
        (masks.blocks(2, 1), ["01100", "00011", "00011"]),
        (masks.prefix(torch.tensor([4])), ["11110", "11110", "11111"]),
        (masks.documents(torch.tensor([[1, 1, 2, 2, 1]])), ["00110", "00110", "11001"]),
        (masks.causal() & masks.documents(torch.tensor([[1, 1, 2, 2, 1]])), ["00100", "00110", "11001"]),
        (masks.where(lambda at: at.key > at.query), ["01111", "00111", "00011"]),
    ],
)
def test_masks_key_by_key(mask: masks.Mask, want: list[str]) -> None:
    """Keys with values 1, 10, 100, …, times the number seen: the sum tells which they are."""
    values = torch.tensor([10000.0, 1000, 100, 10, 1], dtype=torch.float64)
    q, k = torch.zeros(3, 1, 1, dtype=torch.float64), torch.zeros(5, 1, 1, dtype=torch.float64)
    for backend in ("reference", "dense"):
        got = attend(q, k, values[:, None, None], mask=mask, backend=backend).flatten()
        seen = [f"{round(mean * row.count('1')):05d}" for mean, row in zip(got.tolist(), want, strict=True)]
        assert seen == want


@pytest.mark.parametrize(
    ("mask", "band"),
    [
        (masks.causal(), (-1, 0)),
        (masks.window(3, -1), (3, -1)),
        (masks.causal() & masks.window(-1, 2), (-1, 0)),  # the narrower side of each
        (masks.window(3, -1) & masks.causal() & masks.window(4, 2), (3, 0)),
        (masks.blocks(2), None),
        (masks.causal() & masks.prefix(torch.tensor([1])), None),
    ],
)
def test_bands_that_kernels_are_told(mask: masks.Mask, band: tuple[int, int] | None) -> None:
    assert mask.window() == band


# ------------------------------------------------------------------------------------------------------------ positions


def grid(queries: int, keys: int, heads: int) -> masks.Grid:
    return masks.Grid(
        torch.zeros(1, 1, 1, 1, dtype=torch.int64),
        torch.arange(heads)[None, :, None, None],
        torch.arange(queries)[None, None, :, None],
        torch.arange(keys)[None, None, None],
        torch.tensor(keys - queries),
    )


def test_alibi() -> None:
    """Three heads: 2^−4 and 2^−8 of the two-head recipe, then 2^−2, the first of the four-head one.

    Two queries stand at places 1 and 2 of three keys: distances 1, 0, 1 (ahead) and 2, 1, 0.
    """
    got = positions.Alibi(3)(grid(2, 3, 3))[0]
    distances = torch.tensor([[1.0, 0, 1], [2, 1, 0]])
    assert torch.equal(got, -torch.stack([distances / 16, distances / 256, distances / 4]))


def test_relative_buckets() -> None:
    """32 buckets, both directions, up to 128: 16 a direction, 8 of them exact, then 8 + floor(2 log₂(d / 8)).

    2 log₂(11/8) = 0.92, of 12: 1.17, 16: 2, 22: 2.92, 23: 3.05, 32: 4, 64: 6, 90: 6.98, 91: 7.02; from 128 on the last.
    Keys ahead (negative distances) have the buckets from 16 on.
    """
    behind = {
        0: 0,
        1: 1,
        7: 7,
        8: 8,
        11: 8,
        12: 9,
        16: 10,
        22: 10,
        23: 11,
        32: 12,
        64: 14,
        90: 14,
        91: 15,
        128: 15,
        999: 15,
    }
    bias = positions.RelativeBias(1)
    assert bias.bucket(torch.tensor(list(behind))).tolist() == list(behind.values())
    ahead = torch.tensor([-d for d in behind if d])
    assert bias.bucket(ahead).tolist() == [16 + bucket for d, bucket in behind.items() if d]


def test_one_directional_buckets() -> None:
    """32 buckets, one direction: 16 exact, then 16 + floor(16 log₈(d / 16)): of 17: 0.47, of 32: 5.33, of 64: 10.67."""
    bias = positions.RelativeBias(1, bidirectional=False)
    assert bias.bucket(torch.tensor([-5, 0, 15, 16, 17, 32, 64, 128])).tolist() == [0, 0, 15, 16, 16, 21, 26, 31]


def test_relative_bias_reads_bucket_and_head() -> None:
    """Entry (bucket, head) is 10 · bucket + head. Two queries at places 0 and 1 of two keys: distances 0, −1 | 1, 0."""
    bias = positions.RelativeBias(3)
    with torch.no_grad():
        bias.weight.copy_(10 * torch.arange(32)[:, None] + torch.arange(3))
    want = [[[0 + h, 170 + h], [10 + h, 0 + h]] for h in range(3)]
    assert bias(grid(2, 2, 3))[0].tolist() == want


def test_window_bias() -> None:
    """The four tokens of a 2 × 2 window, row by row; offsets (down, right) from −1 to 1 number the 9 entries row by
    row.

    Query 0 to key 3 is (−1, −1): entry 0; query 3 to key 0 is (1, 1): entry 8; query 0 to key 1 is (0, −1): entry 3.
    """
    bias = positions.WindowBias(1, 2)
    with torch.no_grad():
        bias.weight.copy_(torch.arange(9.0)[:, None])
    assert bias(grid(4, 4, 1))[0, 0].tolist() == [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]


def test_sinusoids() -> None:
    """D = 4: frequencies 1 and 1/100."""
    sines, cosines = [math.sin(3), math.sin(0.03)], [math.cos(3), math.cos(0.03)]
    three = torch.tensor([3])
    assert positions.sinusoidal(three, 4)[0].tolist() == pytest.approx([sines[0], cosines[0], sines[1], cosines[1]])
    assert positions.sinusoidal(three, 4, "halves")[0].tolist() == pytest.approx(sines + cosines)


@pytest.mark.parametrize(("layout", "want"), [("halves", [-3, 2, 1, 4]), ("pairs", [-2, 1, 3, 4])])
def test_rotary_quarter_turn(layout: str, want: list[float]) -> None:
    """Base 10²⁴: the second pair hardly turns. At position π/2 the first pair (a, b) becomes (−b, a).

    Halves pair 1 with 3: (−3, 1) at places 0 and 2. Pairs pair 1 with 2: (−2, 1) at places 0 and 1.
    """
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]], dtype=torch.float64)
    got = positions.rotate(x, torch.tensor([math.pi / 2], dtype=torch.float64), base=1e24, layout=layout)
    assert got.flatten().tolist() == pytest.approx(want, abs=1e-9)


# ------------------------------------------------------------------------------------------------------------ multihead


def test_multihead_projects_splits_and_joins() -> None:
    """D = 6, three heads of 2; queries and keys are zero, so each head averages its own two channels over the tokens.

    Tokens 0 and 1 are c and 3c + 2 at channel c: mean 2c + 1 → 1, 3, 5, 7, 9, 11. v_proj adds 100 · h to head h:
    1, 3, 105, 107, 209, 211; out_proj turns the order round.
    """
    layer = MultiHeadAttention(6, 3).double()
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj):
            projection.weight.zero_()
        layer.v_proj.weight.copy_(torch.eye(6))
        layer.v_proj.bias.copy_(torch.tensor([0.0, 0, 100, 100, 200, 200]))
        layer.out_proj.weight.copy_(torch.eye(6).flip(0))
    c = torch.arange(6, dtype=torch.float64)
    got = layer(torch.stack([c, 3 * c + 2]), Segments.uniform(1, 2))
    assert got.tolist() == [pytest.approx([211, 209, 107, 105, 3, 1])] * 2
