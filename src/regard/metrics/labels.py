"""How good labels are: accuracy, F1, Matthews correlation; of numbers Pearson and Spearman correlation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from regard.errors import DataError
from regard.metrics.measure import Measure


def classes(predicted: Sequence[str], wanted: Sequence[str]) -> dict[str, Measure]:
    """Score labels.

    F1 is the mean over classes of 2 TP / (2 TP + FP + FN), zero for a class that is neither predicted nor there.
    Matthews correlation is that of Gorodkin 2004, equation 8, for any number of classes; zero where one side has one
    class alone.

    Args:
        predicted: Labels by the model.
        wanted: The right ones.

    Returns:
        ``accuracy``, ``f1`` and ``matthews``.

    Raises:
        DataError: The two differ in number, or are empty.
    """
    _check(predicted, wanted)
    names = sorted({*predicted, *wanted})
    index = {name: place for place, name in enumerate(names)}
    table = np.zeros((len(names), len(names)))
    for one, other in zip(wanted, predicted, strict=True):
        table[index[one], index[other]] += 1
    right, there, said, total = table.diagonal(), table.sum(1), table.sum(0), table.sum()
    f1 = np.divide(2 * right, there + said, out=np.zeros(len(names)), where=there + said > 0).mean()
    spread = math.sqrt((total**2 - (there**2).sum()) * (total**2 - (said**2).sum()))
    matthews = (right.sum() * total - there @ said) / spread if spread else 0.0
    how = f"n:{len(wanted)}|classes:{len(names)}|version:regard-1"
    return {
        "accuracy": Measure("accuracy", float(right.sum() / total), f"accuracy|{how}"),
        "f1": Measure("f1", float(f1), f"f1|mean over classes|{how}"),
        "matthews": Measure("matthews", float(matthews), f"matthews|{how}"),
    }


def positive_f1(predicted: Sequence[str], wanted: Sequence[str], positive: str) -> Measure:
    """Score one class against the rest: F1 = 2 TP / (2 TP + FP + FN), zero where it is neither predicted nor there.

    Args:
        predicted: Labels by the model.
        wanted: The right ones.
        positive: The class.

    Returns:
        ``positive_f1``.

    Raises:
        DataError: The two differ in number, or are empty.
    """
    _check(predicted, wanted)
    right = sum(one == other == positive for one, other in zip(predicted, wanted, strict=True))
    count = sum(one == positive for one in (*predicted, *wanted))
    how = f"positive_f1|of:{positive}|n:{len(wanted)}|version:regard-1"
    return Measure("positive_f1", 2 * right / count if count else 0.0, how)


def numbers(predicted: Sequence[float], wanted: Sequence[float]) -> dict[str, Measure]:
    """Score numbers.

    Args:
        predicted: By the model.
        wanted: The right ones.

    Returns:
        ``pearson`` and ``spearman``; zero where one side is constant.

    Raises:
        DataError: The two differ in number, or are empty.
    """
    _check(predicted, wanted)
    x, y = np.asarray(predicted, np.float64), np.asarray(wanted, np.float64)
    how = f"n:{len(y)}|version:regard-1"
    return {
        "pearson": Measure("pearson", _correlation(x, y), f"pearson|{how}"),
        "spearman": Measure(
            "spearman", _correlation(_ranks(x), _ranks(y)), f"spearman|ties share their mean rank|{how}"
        ),
    }


def marks_spans(names: Iterable[str]) -> bool:
    """Say whether tags mark spans, as those of entities do, or label words alone, as parts of speech do.

    Args:
        names: The tags that there are.

    Returns:
        Whether one is of the form B-type or I-type.
    """
    return any(name.startswith(("B-", "I-")) for name in names)


def spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Find the spans that tags mark: B-type, I-type and O, besides E- and S- (BIOES) or L- and U- (BILOU).

    A span begins at B-, S- or U-, or at any other behind another type or none (as in the evaluation script of
    CoNLL-2003); it ends with E-, L-, S- or U-, or where the next tag does not go on with its type.

    Args:
        tags: Of the words of one sentence.

    Returns:
        Type, first word, and the word behind the last.
    """
    found: set[tuple[str, int, int]] = set()
    start, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        form, _, type_ = tag.partition("-")
        goes_on = form in ("I", "E", "L") and type_ == kind and kind != ""
        if kind and not goes_on:
            found.add((kind, start, place))
        if not goes_on:
            start, kind = place, type_ if form in ("B", "I", "E", "L", "S", "U") else ""
        if kind and form in ("E", "L", "S", "U"):
            found.add((kind, start, place + 1))
            kind = ""
    return found


def tagging(
    predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]], has_spans: bool = True
) -> dict[str, Measure]:
    """Score tags of words: F1 of whole spans over all sentences, and the share of right tags.

    Args:
        predicted: Tags of each sentence by the model.
        wanted: The right ones.
        has_spans: Whether there are spans to score; see :func:`marks_spans`.

    Returns:
        ``span_f1`` of tags with spans, zero where there is none here, and ``accuracy``.

    Raises:
        DataError: The two differ in number, or are empty.
    """
    _check(predicted, wanted)
    right = said = there = hits = words = 0
    for one, other in zip(predicted, wanted, strict=True):
        _check(one, other)
        found, needed = spans(one), spans(other)
        right, said, there = right + len(found & needed), said + len(found), there + len(needed)
        hits, words = hits + sum(a == b for a, b in zip(one, other, strict=True)), words + len(other)
    accuracy = {"accuracy": Measure("accuracy", hits / words, f"accuracy|words:{words}|version:regard-1")}
    if not has_spans:
        return accuracy
    f1 = 2 * right / (said + there) if said + there else 0.0
    how = f"n:{len(wanted)}|spans:{there}|version:regard-1"
    return {"span_f1": Measure("span_f1", f1, f"span_f1|exact spans and types|{how}"), **accuracy}


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    if x.max() == x.min() or y.max() == y.min():
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    spread = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / spread if spread else 0.0


def _ranks(x: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return ((last - counts + 1 + last) / 2)[inverse]


def _check(predicted: Sequence[object], wanted: Sequence[object]) -> None:
    if len(predicted) != len(wanted) or not len(wanted):
        raise DataError(f"{len(predicted)} labels to score against {len(wanted)}")
