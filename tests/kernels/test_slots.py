"""Attention into slots by our own kernels, beside float64."""

import math

import pytest
import torch

from regard.attention import Segments, attend, masks
from regard.attention.backends import static
from regard.attention.masks import Mask
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
