"""Losses of the game between a generator and a discriminator.

=============== ============================================ =================================
loss            the discriminator minimizes                  the generator minimizes
=============== ============================================ =================================
saturating      −log D(x) − log(1 − D(G(z)))                 log(1 − D(G(z)))
non-saturating  the same                                     −log D(G(z))
hinge           max(0, 1 − s(x)) + max(0, 1 + s(G(z)))       −s(G(z))
=============== ============================================ =================================

s is the discriminator's score and D = 1 / (1 + e^−s). The saturating loss is the minimax game itself; where the
discriminator is sure its gradient vanishes, which the non-saturating one mends (Goodfellow et al. 2014, §3).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import relu, softplus

from regard.tasks.task import Loss

Game = Literal["saturating", "non-saturating", "hinge"]


def discriminator_loss(real_B: Tensor, fake_B: Tensor, game: Game) -> Loss:
    """Compute what the discriminator minimizes.

    Args:
        real_B: Scores of real images.
        fake_B: Scores of as many made ones.
        game: A line of the table above.

    Returns:
        The loss, summed over pairs.

    Source: Goodfellow et al. 2014, equation 1; Zhang et al. 2018, equation 4, first line.
    """
    if game == "hinge":
        total = relu(1 - real_B).sum() + relu(1 + fake_B).sum()
    else:
        total = softplus(-real_B).sum() + softplus(fake_B).sum()  # −log σ(s) = softplus(−s)
    return Loss(total, total.detach())


def generator_loss(fake_B: Tensor, game: Game) -> Loss:
    """Compute what the generator minimizes.

    Args:
        fake_B: Scores of the images that it made.
        game: A line of the table above.

    Returns:
        The loss, summed over images; it may be below 0.

    Source: Goodfellow et al. 2014, equation 1 and §3; Zhang et al. 2018, equation 4, second line.
    """
    if game == "hinge":
        total = -fake_B.sum()
    elif game == "saturating":
        total = -softplus(fake_B).sum()
    else:
        total = softplus(-fake_B).sum()
    return Loss(total, total.detach())
