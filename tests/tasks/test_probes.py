"""Neighbours and linear probes against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from regard.tasks.images.probes import LinearProbe, Neighbours, nearest_classes

CLASSES = 4


def clouds(count: int, seed: int, spread: float = 1.5) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around a centre a class, in units of very different size."""
    draws = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(CLASSES, 6))
    classes = draws.integers(0, CLASSES, count)
    points = (centres[classes] + spread * draws.normal(size=(count, 6))) * [1, 10, 0.1, 3, 1, 100] + 5
    return torch.from_numpy(points).float(), torch.from_numpy(classes)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_neighbours_are_scikit_learns(k: int) -> None:
    (known, classes), (queries, _) = clouds(300, 0), clouds(200, 1)
    found = nearest_classes(known, classes, queries, CLASSES, k)
    near = KNeighborsClassifier(k).fit(known.double(), classes)
    votes = near.predict_proba(queries.double())
    decided = (votes == votes.max(1, keepdims=True)).sum(1) == 1  # how ties go differs
    assert decided.mean() > 0.6
    assert (found.numpy() == near.predict(queries.double()))[decided].all()


def test_neighbours_are_the_same_under_autocast() -> None:
    (known, classes), (queries, _) = clouds(300, 0), clouds(200, 1)
    # Vectors of nearly one direction, as those of an encoder at the start of its training.
    known, queries = (torch.nn.functional.normalize(10_000 + part, dim=-1) for part in (known, queries))
    found = nearest_classes(known, classes, queries, CLASSES, 3)
    assert len(found.unique()) == CLASSES
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(nearest_classes(known, classes, queries, CLASSES, 3), found)


def test_of_equal_votes_the_nearest_wins() -> None:
    known, classes = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([1, 0, 0, 1])
    assert nearest_classes(known, classes, torch.tensor([[0.4], [0.6]]), 2, 2).tolist() == [1, 0]


def test_k_is_chosen_on_the_development_part() -> None:
    known, classes = torch.tensor([[0.0], [1.0], [1.1], [5.0], [5.1], [5.2]]), torch.tensor([1, 0, 0, 1, 1, 1])
    # One stray neighbour: with one vote the first is of class 1, with three of class 0.
    assert Neighbours(known, classes, torch.tensor([[0.4]]), torch.tensor([0]), 2).k == 3
    assert Neighbours(known, classes, torch.tensor([[0.4]]), torch.tensor([1]), 2).k == 1


def test_linear_probe_reaches_scikit_learns_minimum() -> None:
    (known, classes), (dev, dev_classes), (queries, wanted) = clouds(400, 0), clouds(200, 1), clouds(2000, 2)
    probe = LinearProbe(known, classes, dev, dev_classes, CLASSES)
    scaler = StandardScaler().fit(known)
    # Its objective is C · Σ loss + ‖W‖²/2; ours the mean of the loss and λ/2 · ‖W‖².
    theirs = LogisticRegression(C=1 / (probe.penalty * len(known)), max_iter=5000, tol=1e-9)
    theirs.fit(scaler.transform(known), classes)
    centred = probe.weight_VD - probe.weight_VD.mean(0)
    torch.testing.assert_close(centred.double(), torch.from_numpy(theirs.coef_).double(), rtol=0, atol=5e-3)
    agree = (probe(queries).numpy() == theirs.predict(scaler.transform(queries))).mean()
    assert agree > 0.995
    assert float((probe(queries) == wanted).double().mean()) > 0.5


def test_a_feature_that_never_varies_does_no_harm() -> None:
    (known, classes), (dev, dev_classes) = clouds(200, 0), clouds(100, 1)
    with_constant = [torch.cat([part, torch.full((len(part), 1), 7.0)], 1) for part in (known, dev)]
    probe = LinearProbe(with_constant[0], classes, with_constant[1], dev_classes, CLASSES)
    changed = torch.cat([dev, torch.full((len(dev), 1), 8.0)], 1)
    assert torch.equal(probe(changed), probe(with_constant[1]))
