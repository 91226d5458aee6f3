"""What our own kernels do with a vocabulary's scores: normalizers, the best, and comparing with the right tokens."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from regard.decoding.choosing import best, log_norms
from regard.kernels import native, vocabulary
from regard.tasks.vocabulary import compare


@pytest.fixture(autouse=True)
def kernel() -> None:
    native.choose("native")


# --------------------------------------------------------------------------------------------------------- normalizers


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


# ------------------------------------------------------------------------------------------------------------ comparing


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (1, 2), (3, 7), (5, 16), (2, 333), (7, 5003), (33, 50_257)])
def test_losses_and_gradients(rows: int, size: int, smoothing: float):
    scores_CV, labels_C = 4 * torch.randn(rows, size) + 20, torch.randint(size, (rows,))
    smoothed, nll, grad_CV = compare(scores_CV.double(), labels_C, smoothing, True, size)
    wide_CW = torch.full((rows, size + 9), math.nan)
    for place_CV in (scores_CV.clone(), wide_CW[:, :size].copy_(scores_CV)):
        kept_CV = place_CV.clone()
        asked = vocabulary.compare(place_CV, labels_C, smoothing, False)
        assert asked is not None
        assert torch.equal(place_CV, kept_CV), "no gradient was asked for"
        found = vocabulary.compare(place_CV, labels_C, smoothing, True)
        assert found is not None
        assert asked == found
        torch.testing.assert_close([one.double() for one in found], [smoothed, nll], rtol=2e-7, atol=1e-6)
        torch.testing.assert_close(place_CV.double(), grad_CV, rtol=1e-6, atol=1e-7)
    assert wide_CW[:, size:].isnan().all(), "what stands behind a row is left alone"


def test_every_thread_gives_the_same():
    scores_CV, labels_C = torch.randn(11, 20_011), torch.randint(20_011, (11,))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            place_CV = scores_CV.clone()
            found.append((*(vocabulary.compare(place_CV, labels_C, 0.1, True) or ()), place_CV))
    finally:
        torch.set_num_threads(before)
    assert len(found[0]) == 3
    assert all(map(torch.equal, found[0], found[1]))
    assert all(map(torch.equal, found[0], found[2]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_what_is_impossible_or_no_number(smoothing: float):
    """As PyTorch has it: losses that are infinite or no numbers, and gradients beside them."""
    scores_CV, labels_C = torch.randn(6, 37), torch.tensor([1, 0, 3, 4, 5, 36])
    scores_CV[0, 5] = -math.inf
    scores_CV[1, 0] = -math.inf  # the right token
    scores_CV[2] = -math.inf
    scores_CV[3, 36] = math.nan
    scores_CV[4, 1] = math.inf
    scores_CV[5] = -3e38
    scores_CV[5, 36] = 3e38
    for place_CV, label_C in zip(scores_CV.split(1), labels_C.split(1), strict=True):
        *losses, grad_CV = compare(place_CV, label_C, smoothing, True, 37)
        found = vocabulary.compare(place_CV, label_C, smoothing, True)
        assert found is not None
        torch.testing.assert_close([*found, place_CV], [*losses, grad_CV], equal_nan=True, rtol=1e-5, atol=1e-6)


def test_no_rows_have_no_losses():
    found = vocabulary.compare(torch.randn(0, 9), torch.zeros(0, dtype=torch.int64), 0.1, True)
    assert found is not None
    assert [float(one) for one in found] == [0.0, 0.0]


@pytest.mark.parametrize(
    "changed",
    [
        lambda scores, labels: (scores.double(), labels),
        lambda scores, labels: (scores.bfloat16(), labels),
        lambda scores, labels: (scores.T.contiguous().T, labels),
        lambda scores, labels: (scores[:1].expand(4, 9), labels),
        lambda scores, labels: (scores[None], labels[None]),
        lambda scores, labels: (scores.to("meta"), labels),
        lambda scores, labels: (scores, labels[:3]),
        lambda scores, labels: (scores, labels.int()),
        lambda scores, labels: (scores, labels.to("meta")),
        lambda scores, labels: (scores, labels - 1),
        lambda scores, labels: (scores, labels + 8),
    ],
)
def test_what_does_not_fit_is_declined_and_left_as_it_is(changed: Callable[..., tuple[Tensor, Tensor]]):
    scores_CV, labels_C = changed(torch.randn(4, 9), torch.tensor([0, 1, 1, 0]))
    kept_CV = scores_CV.clone()
    assert vocabulary.compare(scores_CV, labels_C, 0.0, True) is None
    assert scores_CV.is_meta or torch.equal(scores_CV, kept_CV)


def test_labels_that_lie_apart_count_too():
    scores_CV, labels_C2 = torch.randn(4, 9), torch.randint(9, (4, 2))
    found = vocabulary.compare(scores_CV.clone(), labels_C2[:, 1], 0.0, True)
    assert found is not None
    torch.testing.assert_close(found[1], nn.functional.cross_entropy(scores_CV, labels_C2[:, 1], reduction="sum"))
