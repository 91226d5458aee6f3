"""The order of batches is a pure function of (seed, index), and batches are made ahead in one thread that ends."""

import itertools
import threading
import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import Order, cuts, like_lengths, prefetch
from regard.errors import ConfigError

Sides = list[np.ndarray]


@st.composite
def sides(draw: st.DrawFn) -> Sides:
    """Lengths of up to 60 examples, for one or two sides, with many that are equal."""
    count, longest = draw(st.integers(1, 60)), draw(st.sampled_from([1, 3, 40]))
    lengths = st.lists(st.integers(0, longest), min_size=count, max_size=count)
    return [np.array(draw(lengths)) for _ in range(draw(st.integers(1, 2)))]


@given(sides(), st.integers(1, 100), st.integers(0, 2**63), st.lists(st.integers(0, 500), min_size=1, max_size=20))
def test_a_batch_is_a_pure_function_of_seed_and_index(
    lengths: Sides, budget: int, seed: int, indices: list[int]
) -> None:
    one = Order(lengths, budget, seed)
    asked = [one.at(index).tolist() for index in indices]
    for index, batch in reversed(list(zip(indices, asked, strict=True))):
        assert one.at(index).tolist() == batch
        assert Order(lengths, budget, seed).at(index).tolist() == batch


@given(sides(), st.integers(1, 100), st.integers(0, 9))
def test_every_epoch_holds_every_example_once(lengths: Sides, budget: int, seed: int) -> None:
    order = Order(lengths, budget, seed)
    first = 0
    for epoch in range(3):
        batches = Order(lengths, budget, seed).epoch(epoch)
        assert all(len(batch) for batch in batches)
        assert sorted(np.concatenate(batches)) == list(range(len(lengths[0])))
        # The run's numbers go through the epochs one after the other.
        for place, batch in enumerate(batches):
            assert order.at(first + place).tolist() == batch.tolist()
        first += len(batches)


@given(sides(), st.integers(1, 100), st.integers(0, 9))
def test_the_budget_holds_on_every_side(lengths: Sides, budget: int, seed: int) -> None:
    for batch in Order(lengths, budget, seed).epoch(1):
        for side in lengths:
            assert side[batch].sum() <= budget or len(batch) == 1
        # Longest first, by the last side and then by the one before.
        keys = [tuple(side[example] for side in reversed(lengths)) for example in batch]
        assert keys == sorted(keys, reverse=True)


@given(sides(), st.integers(1, 100))
def test_the_row_is_cut_as_late_as_the_budget_allows(lengths: Sides, budget: int) -> None:
    wanted: list[list[tuple[int, ...]]] = []
    for row in zip(*[side.tolist() for side in lengths], strict=True):
        if not wanted or any(sum(side) > budget for side in zip(*wanted[-1], row, strict=True)):
            wanted.append([])
        wanted[-1].append(row)
    got = np.split(np.arange(len(lengths[0])), cuts(np.stack(lengths), budget))
    assert [len(batch) for batch in got] == [len(batch) for batch in wanted]


def test_like_lengths_are_together_and_epochs_differ() -> None:
    draws = np.random.default_rng(0)
    lengths = [draws.integers(1, 60, 2000), draws.integers(1, 60, 2000)]
    order = Order(lengths, 400, 1)
    first, second = order.epoch(0), order.epoch(1)
    filled = sum(lengths[1][batch].max() * len(batch) for batch in first)
    assert filled / lengths[1].sum() < 1.2  # in batches drawn at random it is 1.8
    assert not {frozenset(b.tolist()) for b in first} & {frozenset(b.tolist()) for b in second}
    together = [{(min(p), max(p)) for b in e for p in itertools.combinations(b.tolist(), 2)} for e in (first, second)]
    assert len(together[0] & together[1]) < 0.5 * len(together[0])  # most neighbours are new ones
    longest = [lengths[1][batch].max() for batch in first]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))  # batches are shuffled
    assert [b.tolist() for b in Order(lengths, 400, 2).epoch(0)] != [b.tolist() for b in first]


@pytest.mark.parametrize(("lengths", "budget"), [([], 10), ([3], 0), ([3], -1)])
def test_nothing_to_batch_is_refused(lengths: list[int], budget: int) -> None:
    with pytest.raises(ConfigError, match="batches of"):
        Order([np.array(lengths, np.int64)], budget, 0)


@given(sides(), st.integers(1, 100))
def test_inputs_are_cut_longest_first(lengths: Sides, budget: int) -> None:
    batches = like_lengths(lengths[0], budget)
    order = np.concatenate(batches)
    assert sorted(order) == list(range(len(lengths[0])))
    assert (np.diff(lengths[0][order]) <= 0).all()
    assert all(lengths[0][batch].sum() <= budget or len(batch) == 1 for batch in batches)
    assert like_lengths(np.zeros(0, np.int64), budget) == []


# ------------------------------------------------------------------------------------------------------------- prefetch


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("regard-data")]


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_items_come_in_order(ahead: int) -> None:
    made = []

    def make(number: int) -> int:
        made.append(number)
        return number * number

    items = prefetch(make, 3, ahead)
    assert list(islice(items, 10)) == [number * number for number in range(3, 13)]
    items.close()
    assert made == list(range(3, 3 + len(made)))
    assert 10 <= len(made) <= 10 + ahead
    assert not workers()


def test_items_are_made_ahead_of_their_use() -> None:
    ready = threading.Event()
    items = prefetch(lambda number: ready.set() if number == 3 else None, 0, 3)
    next(items)
    assert ready.wait(10)  # number 3 is made while number 0 is in use
    assert len(workers()) == 1
    items.close()
    assert not workers()


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_an_exception_comes_at_its_place(ahead: int) -> None:
    def make(number: int) -> int:
        if number == 2:
            raise ValueError("line 2 of the data")
        return number

    items: Iterator[int] = prefetch(make, 0, ahead)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="line 2 of the data"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)
    assert not workers()


def test_the_thread_ends_with_a_slow_maker_too() -> None:
    items = prefetch(lambda number: time.sleep(0.05) or number, 0, 20)
    assert next(items) == 0
    began = time.monotonic()
    items.close()
    assert not workers()
    assert time.monotonic() - began < 0.5  # what was waiting is given up: 20 items would take a second
