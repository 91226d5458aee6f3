"""Training, development and test parts that share no group.

Near-copies (one source with several targets, one verse twice) make a test part easy and a score a lie, so whole
groups are dealt out, never single pairs.
"""

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regard.data.examples import Pair
from regard.errors import DataError

MAX_PART_GROUPS = 2000
PARTS_IN_WHOLE = 20  # a part is one twentieth, 5 %
MIN_GROUPS = PARTS_IN_WHOLE
_NO_WORD = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class Splits:
    """Pairs in three parts; no group is in two of them.

    Args:
        train: Pairs to learn from.
        dev: Pairs to choose settings and checkpoints by.
        test: Pairs for the one final score.
    """

    train: list[Pair]
    dev: list[Pair]
    test: list[Pair]


def by_source(pair: Pair) -> str:
    """Group pairs by their source, of two texts by the first, letter case aside.

    Args:
        pair: A pair.

    Returns:
        The group's key.
    """
    return pair.texts[0].casefold()


def split_pairs(
    pairs: Sequence[Pair], *, seed: int, group: Callable[[Pair], str] = by_source, classes: bool = False
) -> Splits:
    """Deal groups of pairs into train, dev and test by a seeded hash of the group's key.

    Of G groups, test takes those with the n smallest hashes and dev those with the n largest,
    n = min(2000, floor(G / 20)). Which part a group goes to depends on the seed and on the set of keys (and on their
    classes), not on the order of pairs; its hash depends on seed and key alone, so as a set grows a group may move
    between train and dev or train and test at the margin, but never between dev and test. A group that holds more than
    5 % of the pairs stays in train: it would be a part by itself. So does one group of every class where targets are
    classes, as long as there are others to deal: what train lacks nobody can learn.

    Args:
        pairs: All pairs; each part keeps their order.
        seed: Any integer; another seed deals otherwise.
        group: Gives the key of a pair's group.
        classes: Whether targets are classes.

    Returns:
        The three parts.

    Raises:
        DataError: There are fewer than 20 groups, or too few that are not larger than a part.
    """
    named = [pair.target for pair in pairs] if classes else ()
    train, dev, test = split_keys([group(pair) for pair in pairs], seed=seed, what="pairs", classes=named)
    return Splits([pairs[index] for index in train], [pairs[index] for index in dev], [pairs[index] for index in test])


def split_keys(
    keys: Sequence[str], *, seed: int, what: str, classes: Sequence[str] = ()
) -> tuple[list[int], list[int], list[int]]:
    """Deal items into train, dev and test as :func:`split_pairs` does.

    Args:
        keys: The key of each item's group.
        seed: As for :func:`split_pairs`.
        what: Name of the items in errors.
        classes: The class of each item; empty where there are none.

    Returns:
        Numbers of the items in each part, in their order.

    Raises:
        DataError: As for :func:`split_pairs`.
    """
    sizes = Counter(keys)
    part_groups = min(MAX_PART_GROUPS, len(sizes) // PARTS_IN_WHOLE)
    eligible = [key for key, size in sizes.items() if size * PARTS_IN_WHOLE <= len(keys)]
    if len(sizes) < MIN_GROUPS or len(eligible) < 2 * part_groups:
        cause = f"{len(sizes)} groups of like {what} are too few to split ({MIN_GROUPS} are needed)"
        if len(sizes) >= MIN_GROUPS:
            cause = f"only {len(eligible)} of {len(sizes)} groups of like {what} are small enough for a part of 5 %"
        raise DataError(cause, mend="give more data, or dev and test files of your own")
    ranked = sorted(eligible, key=lambda key: (_hash(seed, key), key))
    kept = _one_of_each(ranked, keys, classes) if classes else set()
    dealt = [key for key in ranked if key not in kept]
    # What is to be kept stands in the middle, where train is.
    half = len(dealt) // 2
    ranked = [*dealt[:half], *(key for key in ranked if key in kept), *dealt[half:]]
    test, dev = set(ranked[:part_groups]), set(ranked[-part_groups:])
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for index, key in enumerate(keys):
        parts[2 if key in test else 1 if key in dev else 0].append(index)
    return parts


def _one_of_each(ranked: Sequence[str], keys: Sequence[str], classes: Sequence[str]) -> set[str]:
    """Choose a group of every class: its middle one, which is in train anyway unless the class is rare."""
    places = {key: place for place, key in enumerate(ranked)}
    found: dict[str, set[int]] = defaultdict(set)
    for key, name in zip(keys, classes, strict=True):
        if key in places:
            found[name].add(places[key])
    return {ranked[sorted(of)[len(of) // 2]] for of in found.values()}


def _hash(seed: int, key: str) -> bytes:
    """Hash a group's key under a seed; the same on every machine and in every process."""
    return hashlib.blake2b(f"{seed}\n{key}".encode(errors="surrogatepass"), digest_size=16).digest()


def normalized(text: str) -> str:
    """Reduce text to what makes two near-copies equal: letters and digits, case and width aside.

    Args:
        text: Any text.

    Returns:
        Lower-case words with single spaces between; the text itself where it has no word.
    """
    return _NO_WORD.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip() or text


def linked_keys(texts: Sequence[Sequence[str]]) -> list[str]:
    """Give items that share any text, directly or through others, one key (union-find).

    Args:
        texts: For each item its texts; position i of one item is compared with position i of the others.

    Returns:
        For each item the key of its group, which does not depend on the order of the items.
    """
    parents: dict[tuple[int, str], tuple[int, str]] = {}

    def root(node: tuple[int, str]) -> tuple[int, str]:
        while (parent := parents.setdefault(node, node)) != node:
            parents[node] = node = parents[parent]
        return node

    for item in texts:
        first, *others = (root(node) for node in enumerate(item))
        for other in others:
            # The smaller root wins, so that the key is the smallest node of the group in any order.
            first, other = min(first, root(other)), max(first, root(other))
            parents[other] = first
    return [root((0, item[0]))[1] for item in texts]
