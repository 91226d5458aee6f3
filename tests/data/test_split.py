"""Splits: sizes, no leaks, and the same parts whatever the order."""

import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Pair, Splits, split_pairs
from regard.data.split import linked_keys, normalized
from regard.errors import DataError


def _pairs(num_groups: int, copies: int = 1) -> list[Pair]:
    return [Pair(f"Wort {n // copies}", f"word {n}", n + 1) for n in range(num_groups * copies)]


def _parts(splits: Splits) -> list[list[Pair]]:
    return [splits.train, splits.dev, splits.test]


@pytest.mark.parametrize(
    ("num_groups", "part"), [(20, 1), (39, 1), (40, 2), (1000, 50), (39_999, 1999), (40_000, 2000), (60_000, 2000)]
)
def test_parts_are_the_smaller_of_2000_and_a_twentieth(num_groups: int, part: int) -> None:
    splits = split_pairs(_pairs(num_groups), seed=0)
    assert [len(pairs) for pairs in _parts(splits)] == [num_groups - 2 * part, part, part]


@given(sizes=st.lists(st.integers(1, 4), min_size=100, max_size=150), seed=st.integers(-(2**70), 2**70))
def test_parts_hold_every_pair_once_and_share_no_group(sizes: list[int], seed: int) -> None:
    pairs = [
        Pair(f"{'QUELLE' if copy % 2 else 'quelle'} {n}", f"{copy}", 1)
        for n, size in enumerate(sizes)
        for copy in range(size)
    ]
    parts = _parts(split_pairs(pairs, seed=seed))
    assert Counter(pair for part in parts for pair in part) == Counter(pairs)
    train, dev, test = ({pair.source.casefold() for pair in part} for part in parts)
    assert not train & dev
    assert not train & test
    assert not dev & test
    assert len(dev) == len(test) == len(sizes) // 20


def test_order_of_the_input_changes_no_part() -> None:
    pairs = _pairs(500, copies=3)
    shuffled = random.Random(1).sample(pairs, len(pairs))
    for whole, mixed in zip(_parts(split_pairs(pairs, seed=4)), _parts(split_pairs(shuffled, seed=4)), strict=True):
        assert set(whole) == set(mixed)
        assert whole == sorted(whole, key=lambda pair: pair.line)
        assert mixed == [pair for pair in shuffled if pair in set(mixed)]


def test_another_seed_deals_otherwise() -> None:
    first, second = (set(split_pairs(_pairs(1000), seed=seed).test) for seed in (0, 1))
    # 50 of 1000 each: 2.5 in common are expected, 15 never.
    assert len(first & second) < 15


def test_every_process_deals_alike() -> None:
    code = (
        "from regard.data import Pair, split_pairs\n"
        "print([pair.line for pair in split_pairs([Pair(f'Wort {n}', 'x', n) for n in range(60)], seed=5).test])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
    # Written down once: published parts may never change.
    assert runs == {b"[37, 49, 58]\n"}


def test_a_growing_set_never_moves_a_group_between_dev_and_test() -> None:
    small, large = split_pairs(_pairs(2000), seed=0), split_pairs(_pairs(2500), seed=0)
    assert not set(small.dev) & set(large.test)
    assert not set(small.test) & set(large.dev)


def test_group_of_ones_own() -> None:
    pairs = [Pair(f"s{n}", f"t{n % 40}", n) for n in range(400)]
    splits = split_pairs(pairs, seed=0, group=lambda pair: pair.target)
    targets = [{pair.target for pair in part} for part in _parts(splits)]
    assert [len(part) for part in targets] == [36, 2, 2]
    assert [len(part) for part in _parts(splits)] == [360, 20, 20]


@pytest.mark.parametrize("seed", range(20))
def test_a_group_larger_than_a_part_stays_in_train(seed: int) -> None:
    pairs = [*_pairs(40), *(Pair("häufig", f"{n}", 100 + n) for n in range(30))]
    splits = split_pairs(pairs, seed=seed)
    assert {pair.source for pair in splits.dev + splits.test}.isdisjoint({"häufig"})
    assert [len(part) for part in _parts(splits)] == [66, 2, 2]


@pytest.mark.parametrize("seed", range(20))
def test_train_keeps_an_example_of_every_class(seed: int) -> None:
    rare = [Pair(f"rare {n}", f"class {n // 2}", n) for n in range(31)]  # two of each, and one alone
    pairs = [*(Pair(f"s{n}", f"common {n % 2}", n) for n in range(269)), *rare]
    splits = split_pairs(pairs, seed=seed, classes=True)
    assert {pair.target for pair in splits.train} == {pair.target for pair in pairs}
    assert [len(part) for part in _parts(splits)] == [270, 15, 15]
    assert sorted(pair.source for part in _parts(splits) for pair in part) == sorted(pair.source for pair in pairs)
    shuffled = random.Random(seed).sample(pairs, len(pairs))
    again = split_pairs(shuffled, seed=seed, classes=True)
    assert [set(part) for part in _parts(again)] == [set(part) for part in _parts(splits)]


def test_common_classes_change_no_part() -> None:
    pairs = [Pair(f"s{n}", f"{n % 3}", n) for n in range(400)]
    assert split_pairs(pairs, seed=3, classes=True) == split_pairs(pairs, seed=3)
    # Where every group is a class, some have to be dealt all the same.
    lonely = [Pair(f"s{n}", f"{n}", n) for n in range(400)]
    assert [len(part) for part in _parts(split_pairs(lonely, seed=3, classes=True))] == [360, 20, 20]


def test_too_few_groups() -> None:
    with pytest.raises(DataError, match=r"19 groups .* too few .* \(20 are needed\); .* dev and test files"):
        split_pairs(_pairs(19, copies=50), seed=0)
    with pytest.raises(DataError, match="0 groups"):
        split_pairs([], seed=0)
    large = [Pair(f"{n}", f"{copy}", 1) for n in range(19) for copy in range(100)]
    with pytest.raises(DataError, match="only 1 of 20 groups"):
        split_pairs([*large, Pair("klein", "small", 1)], seed=0)


def test_normalized_text() -> None:
    assert normalized("  Lass’ mich in RUHE!  ") == normalized("lass' mich — in ruhe")
    assert normalized("Straße") == normalized("STRASSE")
    assert normalized("\ufb01ne \uff14") == "fine 4"  # a ligature and a wide digit
    assert normalized("?!") == "?!"
    assert normalized("ja") != normalized("nein")


def _components(texts: list[tuple[str, str]]) -> list[set[int]]:
    """Connected items, by following shared texts until nothing is added."""
    groups = []
    left = set(range(len(texts)))
    while left:
        group = {left.pop()}
        while more := {n for n in left if any(texts[n][side] == texts[m][side] for m in group for side in (0, 1))}:
            group |= more
            left -= more
        groups.append(group)
    return groups


@given(
    texts=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh")), max_size=14), order=st.randoms()
)
def test_linked_keys_are_connected_components(texts: list[tuple[str, str]], order: random.Random) -> None:
    keys = linked_keys(texts)
    found = [{n for n, other in enumerate(keys) if other == key} for key in set(keys)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, _components(texts)))
    shuffled = order.sample(range(len(texts)), len(texts))
    assert linked_keys([texts[n] for n in shuffled]) == [keys[n] for n in shuffled]
