"""Label metrics against the libraries that everyone uses."""

import random

import numpy as np
import pytest

from regard.errors import DataError
from regard.metrics.labels import classes, numbers, positive_f1


@pytest.mark.parametrize("seed", range(8))
def test_classes_are_scored_as_by_scikit_learn(seed: int) -> None:
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    draws = random.Random(seed)
    names = ["a", "b", "c", "d"][: 2 + seed % 3]
    wanted = draws.choices(names, k=50)
    predicted = [label if draws.random() < 0.6 else draws.choice([*names, "never there"]) for label in wanted]
    found = classes(predicted, wanted)
    assert found["accuracy"].value == pytest.approx(accuracy_score(wanted, predicted))
    assert found["f1"].value == pytest.approx(f1_score(wanted, predicted, average="macro", zero_division=0))
    assert found["matthews"].value == pytest.approx(matthews_corrcoef(wanted, predicted))
    for name in names:
        theirs = f1_score(wanted, predicted, labels=[name], average=None, zero_division=0)[0]
        assert positive_f1(predicted, wanted, name).value == pytest.approx(theirs)


@pytest.mark.parametrize("seed", range(6))
def test_numbers_are_scored_as_by_scipy(seed: int) -> None:
    from scipy.stats import pearsonr, spearmanr

    draws = np.random.default_rng(seed)
    wanted = draws.normal(size=40).round(seed % 3)  # with ties, too
    predicted = (wanted + draws.normal(size=40)).round(1)
    found = numbers(predicted.tolist(), wanted.tolist())
    assert found["pearson"].value == pytest.approx(pearsonr(predicted, wanted)[0])
    assert found["spearman"].value == pytest.approx(spearmanr(predicted, wanted)[0])


def test_what_is_constant_correlates_with_nothing() -> None:
    assert numbers([1, 1, 1], [1, 2, 3])["pearson"].value == 0
    assert classes(["a", "a"], ["a", "a"])["matthews"].value == 0
    assert positive_f1(["a", "a"], ["a", "a"], "b").value == 0
    for score in (classes, numbers):
        with pytest.raises(DataError, match="0 labels to score against 1"):
            score([], ["a"])
