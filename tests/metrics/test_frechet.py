"""The Fréchet distance against scipy's matrix root and against the closed form of normal distributions."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch

from regard.errors import DataError
from regard.metrics.frechet import Moments, frechet_distance


def rows(count: int, width: int, seed: int, shift: float = 0.0, scale: float = 1.0) -> torch.Tensor:
    draws = np.random.default_rng(seed)
    return torch.from_numpy(
        shift + scale * draws.standard_normal((count, width)) @ draws.standard_normal((width, width))
    )


def by_scipy(a: torch.Tensor, b: torch.Tensor) -> float:
    """As public implementations have it: the root of the product, by iteration, its real part."""
    means = a.numpy().mean(0), b.numpy().mean(0)
    covariances = np.cov(a.numpy(), rowvar=False), np.cov(b.numpy(), rowvar=False)
    root = np.real(scipy.linalg.sqrtm(covariances[0] @ covariances[1]))
    return float(((means[0] - means[1]) ** 2).sum() + np.trace(covariances[0] + covariances[1] - 2 * root))


@pytest.mark.parametrize(("width", "counts"), [(2, (50, 70)), (13, (200, 101)), (64, (300, 500))])
def test_it_is_scipys(width: int, counts: tuple[int, int]) -> None:
    a, b = rows(counts[0], width, 1), rows(counts[1], width, 2, 0.3, 1.5)
    wanted = by_scipy(a, b)
    assert wanted > 0.5
    assert frechet_distance(Moments.of(a), Moments.of(b)) == pytest.approx(wanted, rel=1e-7)
    assert frechet_distance(Moments.of(b), Moments.of(a)) == pytest.approx(wanted, rel=1e-7)


def test_of_normal_distributions_with_common_axes_it_is_the_closed_form() -> None:
    """Along each common axis the squared difference of means and of deviations."""
    turn = torch.from_numpy(scipy.linalg.qr(np.random.default_rng(3).standard_normal((5, 5)))[0])
    means = torch.tensor([[1.0, 2, 3, 4, 5], [0, 2, 5, 4, 1]], dtype=torch.float64)
    deviations = torch.tensor([[1.0, 2, 0, 3, 1], [2, 2, 1, 0, 1]], dtype=torch.float64)
    one, other = (
        Moments(9, turn @ mean, turn @ torch.diag(deviation**2) @ turn.T)
        for mean, deviation in zip(means, deviations, strict=True)
    )
    wanted = float((means[0] - means[1]).square().sum() + (deviations[0] - deviations[1]).square().sum())
    assert wanted == 21 + 11
    assert frechet_distance(one, other) == pytest.approx(wanted, abs=1e-6)


def test_a_set_has_no_distance_from_itself_even_with_fewer_vectors_than_numbers() -> None:
    for count in (5, 40):
        moments = Moments.of(rows(count, 20, 4))
        assert 0 <= frechet_distance(moments, moments) < 1e-6
    # A constant feature has no spread and no root to fail on.
    still = torch.cat([rows(30, 3, 5), torch.ones(30, 2)], 1)
    assert frechet_distance(Moments.of(still), Moments.of(still + 2)) == pytest.approx(5 * 4)


def test_moments_are_numpys_and_in_float64() -> None:
    features = rows(31, 4, 6).float() + 1000
    moments = Moments.of(features)
    assert moments.count == 31
    assert moments.mean_D.dtype == moments.covariance_DD.dtype == torch.float64
    np.testing.assert_allclose(moments.mean_D.numpy(), features.double().numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(
        moments.covariance_DD.numpy(), np.cov(features.double().numpy(), rowvar=False), rtol=1e-9
    )


def test_what_has_no_moments_is_refused() -> None:
    for bad in (
        torch.zeros(1, 3),
        torch.zeros(3),
        torch.tensor([[0.0], [math.nan]]),
        torch.tensor([[0.0], [math.inf]]),
    ):
        with pytest.raises(DataError):
            Moments.of(bad)
    with pytest.raises(DataError, match="3 and of 4"):
        frechet_distance(Moments.of(torch.randn(5, 3)), Moments.of(torch.randn(5, 4)))
