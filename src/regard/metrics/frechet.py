"""The Fréchet distance between two sets of vectors, each taken for a normal distribution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import DataError


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and covariance of vectors.

    Attributes:
        count: Vectors.
        mean_D: float64.
        covariance_DD: float64, over count − 1.
    """

    count: int
    mean_D: Tensor
    covariance_DD: Tensor

    @staticmethod
    def of(features_ND: Tensor) -> Moments:
        """Take them from vectors.

        Args:
            features_ND: At least two.

        Returns:
            The moments.

        Raises:
            DataError: There are fewer than two vectors, or one is not finite.
        """
        wide_ND = features_ND.double()
        if wide_ND.dim() != 2 or len(wide_ND) < 2 or not wide_ND.isfinite().all():
            what = f"features of shape {tuple(wide_ND.shape)}, too few or not all finite"
            raise DataError(what, where="Fréchet distance", mend="give two vectors or more")
        mean_D = wide_ND.mean(0)
        centred_ND = wide_ND - mean_D
        return Moments(len(wide_ND), mean_D, centred_ND.T @ centred_ND / (len(wide_ND) - 1))


def frechet_distance(one: Moments, other: Moments) -> float:
    """Compute the squared Fréchet distance, which is what is printed as FID.

    d² = |μ_1 − μ_2|² + tr(C_1 + C_2 − 2 (C_1^½ C_2 C_1^½)^½)

    That product is symmetric, so both roots come from eigenvalues, exactly, where a root of C_1 C_2 by iteration may
    fail or become complex. It grows as there are fewer vectors: only distances from as many are comparable.

    Args:
        one: Of a set of vectors.
        other: Of the other.

    Returns:
        The distance, ≥ 0, in squared units of the features.

    Raises:
        DataError: The vectors have different widths.

    Source: Dowson & Landau 1982, equation 4; Heusel et al. 2017, §3, equation 6.
    """
    if one.mean_D.shape != other.mean_D.shape:
        what = f"vectors of {len(one.mean_D)} and of {len(other.mean_D)} numbers"
        raise DataError(what, where="Fréchet distance", mend="take both from one extractor")
    root_DD = _root(one.covariance_DD)
    product_DD = root_DD @ other.covariance_DD @ root_DD
    crossed = torch.linalg.eigvalsh((product_DD + product_DD.T) / 2).clamp(min=0).sqrt().sum()
    apart = (one.mean_D - other.mean_D).square().sum()
    spread = one.covariance_DD.trace() + other.covariance_DD.trace() - 2 * crossed
    return max(0.0, float(apart + spread))


def _root(covariance_DD: Tensor) -> Tensor:
    """Take the root of a symmetric matrix without negative eigenvalues; what rounding made of zeros becomes zero."""
    values_D, vectors_DD = torch.linalg.eigh(covariance_DD)
    return (vectors_DD * values_D.clamp(min=0).sqrt()) @ vectors_DD.T
