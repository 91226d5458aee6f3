"""Attention into slots, normalizers and the best scores by our own kernels, beside float64."""

import math

import pytest
import torch

from regard.attention import Segments, attend, masks
from regard.attention.backends import static
from regard.attention.masks import Mask
from regard.decoding.choosing import best, log_norms
from regard.kernels import native, slots

#         slots, queries, heads, groups, key, value, keys
SHAPES = [
    (1, 1, 12, 12, 64, 64, 48),
    (3, 1, 8, 2, 16, 16, 37),
    (5, 4, 8, 8, 64, 64, 100),
    (2, 3, 4, 1, 5, 7, 9),
    (2, 2, 6, 3, 33, 40, 1),
    (1, 1, 2, 2, 8, 8, 1500),
]


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    native.choose("native")
    monkeypatch.setattr(static, "own", slots.attend)


def drawn(shape: tuple[int, ...], lengths: list[int], spare: int = 3) -> tuple[tuple, Segments, Segments]:
    count, queries, heads, groups, key, value, keys = shape
    torch.manual_seed(sum(shape))
    capacity = keys + spare
    q_NHK = torch.randn(count * queries, heads, key)
    k_MGK, v_MGK = torch.randn(count * capacity, groups, key), torch.randn(count * capacity, groups, value)
    q_segments = Segments.uniform(count, queries, torch.device("cpu"))
    lengths_B = torch.tensor(lengths)
    k_segments = Segments.slots(lengths_B, capacity, keys, clean=True, known_lengths=tuple(lengths))
    return (q_NHK, k_MGK, v_MGK), q_segments, k_segments


def both(
    inputs: tuple, q_segments: Segments, k_segments: Segments, mask: Mask | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = (x.double() for x in inputs)
    wanted = attend(*wide, q_segments, k_segments, mask=mask, backend="reference")
    return attend(*inputs, q_segments, k_segments, mask=mask), wanted


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the kernel served, call by call."""
    served: list[bool] = []

    def watched(*args):
        found = slots.attend(*args)
        served.append(found is not None)
        return found

    monkeypatch.setattr(static, "own", watched)
    return served


@pytest.mark.parametrize("shape", SHAPES)
def test_slots_full_and_not(shape: tuple[int, ...], used: list[bool]):
    keys = shape[-1]
    for lengths in ([keys] * shape[0], [max(keys - 2 * slot, 1) for slot in range(shape[0])]):
        found, wanted = both(*drawn(shape, lengths))
        torch.testing.assert_close(found.double(), wanted, atol=2e-6, rtol=0)
    assert all(used)


@pytest.mark.parametrize("shape", SHAPES)
def test_masks_and_queries_without_keys(shape: tuple[int, ...], used: list[bool]):
    count, queries, _, _, _, _, keys = shape
    allowed = torch.rand(count, 1, queries, keys) > 0.5
    allowed[0, :, 0] = False
    lengths = [keys] * (count - 1) + [max(keys - 1, 1)]
    found, wanted = both(*drawn(shape, lengths), masks.tensor(allowed))
    torch.testing.assert_close(found.double(), wanted, atol=2e-6, rtol=0)
    assert not found[0].any()
    found, wanted = both(*drawn(shape, [keys] * count), masks.causal() if queries <= keys else None)
    torch.testing.assert_close(found.double(), wanted, atol=2e-6, rtol=0)
    assert used == [True, True]


def test_an_empty_slot_gives_zeros(used: list[bool]):
    found, _ = both(*drawn((3, 1, 4, 4, 8, 8, 5), [5, 0, 3]))
    assert not found[1].any()
    assert found[0].all()
    assert found[2].all()
    assert used == [True]


def test_queries_that_lie_among_keys(used: list[bool]):
    """As the joint product of queries, keys and values gives them."""
    (_, k_MGK, v_MGK), q_segments, k_segments = drawn((3, 1, 4, 4, 8, 8, 20), [20, 7, 13])
    q_NHK = torch.randn(3, 96)[:, :32].view(3, 4, 8)
    found, wanted = both((q_NHK, k_MGK, v_MGK), q_segments, k_segments)
    torch.testing.assert_close(found.double(), wanted, atol=2e-6, rtol=0)
    assert used == [True]


def test_great_scores_do_not_overflow(used: list[bool]):
    (q_NHK, k_MGK, v_MGK), q_segments, k_segments = drawn((2, 2, 4, 2, 16, 16, 30), [30, 30])
    found, wanted = both((q_NHK * 300, k_MGK, v_MGK), q_segments, k_segments)
    torch.testing.assert_close(found.double(), wanted, atol=1e-3, rtol=0)
    assert all(used)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_shows(bad: float):
    (q_NHK, k_MGK, v_MGK), q_segments, k_segments = drawn((2, 1, 2, 2, 8, 8, 10), [10, 10])
    q_NHK[0, 0, 0] = bad
    found, _ = both((q_NHK, k_MGK, v_MGK), q_segments, k_segments)
    assert found[0, 0].isnan().all()
    assert found[1].isfinite().all()


def test_beyond_a_slots_length_nothing_is_read():
    (q_NHK, k_MGK, v_MGK), q_segments, k_segments = drawn((2, 1, 2, 2, 8, 8, 10), [10, 4])
    wanted = attend(q_NHK, k_MGK, v_MGK, q_segments, k_segments)
    for x in (k_MGK, v_MGK):
        x.view(2, 13, 2, 8)[1, 4:] = math.nan
    assert torch.equal(attend(q_NHK, k_MGK, v_MGK, q_segments, k_segments), wanted)


def test_lengths_that_lie_apart(used: list[bool]):
    inputs, q_segments, _ = drawn((3, 1, 2, 2, 8, 8, 10), [10, 4, 7])
    spread = torch.tensor([10, 0, 4, 0, 7, 0])[::2]
    with torch.no_grad():
        found, wanted = both(inputs, q_segments, Segments.slots(spread, 13, 10, clean=True))
    torch.testing.assert_close(found.double(), wanted, atol=2e-6, rtol=0)
    assert used == [True]


def test_gradients_and_doubles_take_the_other_path(used: list[bool]):
    (q_NHK, k_MGK, v_MGK), q_segments, k_segments = drawn((2, 1, 2, 2, 8, 8, 10), [10, 10])
    attend(q_NHK.requires_grad_(), k_MGK, v_MGK, q_segments, k_segments).sum().backward()
    assert q_NHK.grad is not None
    attend(q_NHK.detach().double(), k_MGK.double(), v_MGK.double(), q_segments, k_segments)
    assert not any(used)


@pytest.mark.parametrize("size", [1, 7, 16, 5003, 50_257])
def test_normalizers(size: int, monkeypatch: pytest.MonkeyPatch):
    kernel, calls = native.choose("native"), list[tuple]()
    assert kernel is not None
    run = kernel.log_norms
    monkeypatch.setattr(kernel, "log_norms", lambda *args: (calls.append(args), run(*args)))
    logits_RV = 8 * torch.randn(33, size)
    wanted = logits_RV.double().logsumexp(-1)
    torch.testing.assert_close(log_norms(logits_RV), wanted, atol=1e-7, rtol=0)
    torch.testing.assert_close(
        log_norms(logits_RV[:, : size // 2 + 1]),
        logits_RV[:, : size // 2 + 1].double().logsumexp(-1),
        atol=1e-7,
        rtol=0,
    )
    assert len(calls) == 2


def test_no_rows_have_no_normalizers():
    assert log_norms(torch.randn(0, 5)).shape == (0,)


def test_normalizers_of_what_is_impossible_or_no_number():
    logits_RV = torch.randn(5, 19)
    logits_RV[0, :18] = -math.inf
    logits_RV[1, 3] = math.nan
    logits_RV[2, 18] = math.nan
    logits_RV[3] = -math.inf
    logits_RV[4] = 1e4
    found = log_norms(logits_RV)
    assert found[0] == logits_RV[0, 18].double()
    assert found[1].isnan()
    assert found[2].isnan()
    assert found[3] == -math.inf
    torch.testing.assert_close(found[4], torch.tensor(1e4 + math.log(19), dtype=torch.float64))


def test_normalizers_of_long_rows_come_in_parts():
    """Parts that are far apart, impossible or no numbers, and any number of threads."""
    logits_RV = torch.randn(5, 50_257)
    logits_RV[0, :20_000] -= 1000
    logits_RV[1, :40_000] = -math.inf
    logits_RV[1, 40_000:] -= 1000
    logits_RV[2, -1] = math.nan
    logits_RV[3] = -math.inf
    logits_RV[4, 30_000] = math.inf
    wanted = logits_RV.double().logsumexp(-1)
    before = torch.get_num_threads()
    found = log_norms(logits_RV)
    torch.testing.assert_close(found[:2], wanted[:2], atol=1e-7, rtol=0)
    assert found[2].isnan()
    assert found[3] == -math.inf
    assert not found[4].isfinite()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(log_norms(logits_RV[:2]), found[:2])
    finally:
        torch.set_num_threads(before)


# ------------------------------------------------------------------------------------------------------------- the best


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many the kernel was asked for, call by call."""
    kernel, asked = native.choose("native"), list[int]()
    assert kernel is not None
    run = kernel.best
    monkeypatch.setattr(kernel, "best", lambda *args: (asked.append(args[4]), run(*args)))
    return asked


@pytest.mark.parametrize("count", [1, 2, 5, 64])
@pytest.mark.parametrize("size", [64, 67, 1003, 50_257])
def test_the_best(size: int, count: int, asked: list[int]):
    logits_RV = torch.randn(9, size)
    logits_RV[0] = logits_RV[0].sort().values  # each is better than all before
    logits_RV[1] = logits_RV[1].sort(descending=True).values
    logits_RV[2, ::3] = -math.inf
    logits_RV[3, -1] = 100.0
    value_RM, token_RM = best(logits_RV, count)
    want = logits_RV.sort(stable=True, dim=-1, descending=True)
    assert torch.equal(value_RM, want.values[:, :count])
    assert torch.equal(token_RM, want.indices[:, :count])
    half_RV = torch.cat([logits_RV, logits_RV], 1)[:, :size]
    assert torch.equal(best(half_RV, count)[1], token_RM)  # rows that lie apart
    assert asked == [count] * 2


def test_of_equal_ones_the_first_are_best(asked: list[int]):
    logits_RV = torch.randint(0, 3, (4, 1000)).float()
    logits_RV[3] = -math.inf
    value_RM, token_RM = best(logits_RV, 7)
    want = logits_RV.sort(stable=True, dim=-1, descending=True)
    assert torch.equal(value_RM, want.values[:, :7])
    assert torch.equal(token_RM, want.indices[:, :7])
    assert asked == [7]


def test_what_is_no_number_is_found(asked: list[int]):
    logits_RV = torch.randn(2, 1000)
    logits_RV[0, 700] = math.nan
    logits_RV[1, 0] = math.nan
    value_RM, token_RM = best(logits_RV, 2)
    assert value_RM[:, 0].isnan().all()
    assert token_RM[:, 0].tolist() == [700, 0]
    assert torch.equal(value_RM[:, 1], logits_RV.nan_to_num(-math.inf).amax(-1))
    assert asked == [2]


def test_many_are_found_otherwise(asked: list[int]):
    logits_RV = torch.randn(2, 1000)
    assert torch.equal(best(logits_RV, 100)[0], logits_RV.topk(100).values)
    assert torch.equal(best(logits_RV.double(), 2)[0], logits_RV.double().topk(2).values)
    assert not asked
    assert best(torch.randn(0, 100), 3)[1].shape == (0, 3)
    with pytest.raises(RuntimeError, match="out of range"):
        best(torch.randn(2, 5), 6)
