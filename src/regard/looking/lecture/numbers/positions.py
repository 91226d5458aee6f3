"""Position encodings: sinusoids, rotations, biases."""

import torch
from torch import Tensor

from regard.attention import Segments
from regard.attention.groups import plan
from regard.attention.positions import Alibi, RelativeBias, rotate, sinusoidal


def sinusoids() -> Tensor:
    """Encode 50 positions in 64 dimensions (Vaswani et al. 2017, §3.5).

    Returns:
        encoding_ND.
    """
    encoding_ND = sinusoidal(torch.arange(50), dim=64)
    return encoding_ND


def sinusoid_products() -> tuple[Tensor, Tensor, Tensor]:
    """Compare every position with every other: PE(p) · PE(q) = Σ_i cos((p − q) ω_i).

    Returns:
        products_NN; by_distance_M of the distances 0 to 200; spread, how far products of equal distance differ at most.
    """
    encoding_ND = sinusoidal(torch.arange(50).double(), dim=64)
    products_NN = encoding_ND @ encoding_ND.T

    far_MD = sinusoidal(torch.arange(201).double(), dim=64)
    by_distance_M = far_MD @ far_MD[0]

    diagonals = [products_NN.diagonal(distance) for distance in range(50)]
    spread = torch.stack([equal.max() - equal.min() for equal in diagonals]).max()
    return products_NN, by_distance_M, spread


def sinusoid_shift() -> tuple[Tensor, Tensor]:
    """Move every position by 3 places with one matrix: PE(p + 3) = M PE(p).

    Returns:
        shift_DD, the matrix M; error, its largest over 100 positions.
    """
    angles_F = 3 * 10000 ** (-torch.arange(0, 8, 2).double() / 8)
    cos_F, sin_F = angles_F.cos(), angles_F.sin()
    turns_F22 = torch.stack([cos_F, sin_F, -sin_F, cos_F], -1).view(-1, 2, 2)
    shift_DD = torch.block_diag(*turns_F22)

    encoding_ND = sinusoidal(torch.arange(103).double(), dim=8)
    error = (encoding_ND[:-3] @ shift_DD.T - encoding_ND[3:]).abs().max()
    return shift_DD, error


def rotary_products() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rotate 100 random queries and keys, K = 64, and compare them at the distances 0 to 128 (Su et al. 2021, §3.2.2).

    Returns:
        products_NM of each distance and pair; alike_NM, the same where each query equals its key; encoded_N, which is
        PE(0) · PE(d); moved, by how much q · k changes at most where both go on by 1000 places.
    """
    torch.manual_seed(0)
    q_MK, k_MK = torch.randn(2, 100, 64, dtype=torch.float64)
    distances_N = torch.arange(129).double()
    products_NM = (rotate(q_MK.expand(129, 100, 64), distances_N) * k_MK).sum(-1)
    alike_NM = (rotate(k_MK.expand(129, 100, 64), distances_N) * k_MK).sum(-1)

    encoding_ND = sinusoidal(distances_N, dim=64)
    encoded_N = encoding_ND @ encoding_ND[0]

    further_NMK = rotate(q_MK.expand(129, 100, 64), distances_N + 1000)
    key_NMK = rotate(k_MK[None], torch.tensor([1000.0]).double())
    moved = ((further_NMK * key_NMK).sum(-1) - products_NM).abs().max()
    return products_NM, alike_NM, encoded_N, moved


def alibi() -> Tensor:
    """Compute the biases of four heads over a sentence of eight tokens (Press et al. 2022, §3).

    Returns:
        bias_HTS.
    """
    sentence = Segments.uniform(1, 8)
    at = plan(sentence, sentence).groups[0].grid(num_heads=4)
    bias_HTS = Alibi(num_heads=4)(at)[0]
    return bias_HTS


def relative_buckets() -> tuple[Tensor, Tensor]:
    """Sort distances into the buckets of a learned bias (Raffel et al. 2020, §2.1).

    Returns:
        distances_N from key forward to query; buckets_N.
    """
    bias = RelativeBias(num_heads=1, num_buckets=32, max_distance=128)
    distances_N = torch.arange(-160, 161)
    buckets_N = bias.bucket(distances_N)
    return distances_N, buckets_N
