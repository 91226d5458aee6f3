"""Softmax of dot products, as they are and divided by √K."""

import torch
from torch import Tensor

from regard.attention import Segments
from regard.attention.groups import plan
from regard.attention.scores import Dot, ScaledDot


def softmax_by_head_size(
    draws: int = 100, keys: int = 32, sizes: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
) -> dict[str, Tensor]:
    """Draw q and k from N(0, 1) and measure scores, weights and the Jacobian ∂a_i / ∂e_j = a_i (δ_ij − a_j).

    Args:
        draws: Queries drawn for each size, each with keys of its own.
        keys: Keys S of each.
        sizes: Head sizes K.

    Returns:
        measured, by score, (sizes, 4): standard deviation of the scores, and means over the draws of the largest
        weight, of the entropy in nats, and of the Jacobian's Frobenius norm.
    """
    torch.manual_seed(0)
    at = plan(Segments.uniform(draws, 1), Segments.uniform(draws, keys)).groups[0].grid(num_heads=1)
    rows: dict[str, list[Tensor]] = {"q · k": [], "q · k / √K": []}
    for head_dim in sizes:
        q_BTHK = torch.randn(draws, 1, 1, head_dim)
        k_BSHK = torch.randn(draws, keys, 1, head_dim)
        for name, score in zip(rows, (Dot(), ScaledDot()), strict=True):
            scores_BS = score(q_BTHK, k_BSHK, at)[:, 0, 0].double()
            a_BS = scores_BS.softmax(-1)
            jacobian_BSS = torch.diag_embed(a_BS) - a_BS[:, :, None] * a_BS[:, None, :]
            each_B = (a_BS.amax(-1), torch.special.entr(a_BS).sum(-1), torch.linalg.matrix_norm(jacobian_BSS))
            rows[name].append(torch.stack([scores_BS.std(), *(one.mean() for one in each_B)]))
    measured = {name: torch.stack(row) for name, row in rows.items()}
    return measured
