"""Two pictures in one, and their targets alike; what is drawn is a function of (seed, index) alone."""

import math

import numpy as np
import torch
from torch import Tensor

from regard.errors import UsageError


def mixup(pixels_BCYX: Tensor, targets_BV: Tensor, *, alpha: float, seed: int, index: int) -> tuple[Tensor, Tensor]:
    """Blend each picture of a batch with another of it.

    x̃ = λ·x + (1 − λ)·x₂, ỹ = λ·y + (1 − λ)·y₂, λ ~ Beta(α, α)

    Args:
        pixels_BCYX: Normalized pixels.
        targets_BV: One row of probabilities for each.
        alpha: α, above 0; 1 makes λ uniform.
        seed: Of the run.
        index: Number of the batch.

    Returns:
        Pixels and targets.

    Raises:
        UsageError: ``alpha`` is not above 0, or the batch has as many targets as pictures not.

    Source:
        Zhang et al. 2018 (mixup), section 2; one λ for a batch, as its published code has it.
    """
    share, partners_B, _ = _drawn(pixels_BCYX, targets_BV, alpha, seed, index)
    return torch.lerp(pixels_BCYX[partners_B], pixels_BCYX, share), torch.lerp(
        targets_BV[partners_B], targets_BV, share
    )


def cutmix(pixels_BCYX: Tensor, targets_BV: Tensor, *, alpha: float, seed: int, index: int) -> tuple[Tensor, Tensor]:
    """Put a box of another picture into each picture of a batch.

    The box has the sides Y·√(1 − λ) and X·√(1 − λ), λ ~ Beta(α, α), and its middle is anywhere; what lies outside the
    picture is cut off, and λ becomes the share of the area that stays.

    Args:
        pixels_BCYX: Normalized pixels.
        targets_BV: One row of probabilities for each.
        alpha: α, above 0.
        seed: Of the run.
        index: Number of the batch.

    Returns:
        Pixels and targets.

    Raises:
        UsageError: As for :func:`mixup`.

    Source:
        Yun et al. 2019 (CutMix), section 3.2 and appendix A.
    """
    share, partners_B, middle = _drawn(pixels_BCYX, targets_BV, alpha, seed, index)
    rows, columns = pixels_BCYX.shape[2:]
    half = math.sqrt(1 - share) / 2
    (top, bottom), (left, right) = (
        (max(0, round(side * (place - half))), min(side, round(side * (place + half))))
        for side, place in zip((rows, columns), middle, strict=True)
    )
    mixed_BCYX = pixels_BCYX.clone()
    mixed_BCYX[:, :, top:bottom, left:right] = pixels_BCYX[partners_B, :, top:bottom, left:right]
    share = 1 - (bottom - top) * (right - left) / (rows * columns)
    return mixed_BCYX, torch.lerp(targets_BV[partners_B], targets_BV, share)


def _drawn(
    pixels_BCYX: Tensor, targets_BV: Tensor, alpha: float, seed: int, index: int
) -> tuple[float, Tensor, list[float]]:
    """Draw λ, each picture's partner, and a place."""
    if not alpha > 0:
        raise UsageError(f"alpha is {alpha}", mend="give a number above 0")
    if len(pixels_BCYX) != len(targets_BV):
        raise UsageError(f"{len(targets_BV)} targets for {len(pixels_BCYX)} pictures")
    draws = np.random.Generator(np.random.Philox(key=[seed, index]))
    share, middle = float(draws.beta(alpha, alpha)), draws.random(2).tolist()
    return share, torch.from_numpy(draws.permutation(len(pixels_BCYX))).to(pixels_BCYX.device), middle
