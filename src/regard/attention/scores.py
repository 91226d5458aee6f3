"""How well a query and a key match: the similarity functions.

========== ============================== =======================================
additive   vᵀ tanh(W_s s + W_h h)         Bahdanau et al. 2015, appendix A.1.2
dot        q · k                          Luong et al. 2015, §3.1
scaled dot q · k / √K                     Vaswani et al. 2017, §3.2.1
general    qᵀ W k                         Luong et al. 2015, §3.1
relative   (q + u) · k + (q + v) · r_d    Dai et al. 2019, §3.3; Yang et al. 2019
========== ============================== =======================================

Scores that are a dot product of something are :class:`DotScore`: fused kernels serve them. The others are computed by
the reference backend; on a CPU our own kernel may serve the additive one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from regard.attention.masks import Grid
from regard.attention.positions import sinusoidal


class Score(nn.Module, ABC):
    """Base of all similarity functions: scores_BHTS from q_BTHK and k_BSHK."""

    @abstractmethod
    def forward(self, q_BTHK: Tensor, k_BSHK: Tensor, at: Grid) -> Tensor:
        """Compare every query with every key.

        Args:
            q_BTHK: Queries.
            k_BSHK: Keys, one head for each query head.
            at: Where the scores stand; ``at.head`` says which heads these are.

        Returns:
            scores_BHTS.
        """


class DotScore(Score):
    """scale · (f(q) · k): what fused kernels can serve.

    Args:
        scale: Factor of the dot product; None is 1/√K.
    """

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def query(self, q_NHK: Tensor, heads_H: Tensor | None = None) -> Tensor:
        """Transform the queries before the dot product; the plain forms leave them as they are.

        Args:
            q_NHK: Queries, with any leading dimensions.
            heads_H: Which heads they are; None for all of them.

        Returns:
            The queries to take the dot product with.
        """
        return q_NHK

    def forward(self, q_BTHK: Tensor, k_BSHK: Tensor, at: Grid) -> Tensor:
        q_BTHK = self.query(q_BTHK, at.head.flatten())
        scale = 1 / math.sqrt(q_BTHK.shape[-1]) if self.scale is None else self.scale
        return torch.einsum("bthk,bshk->bhts", q_BTHK * scale, k_BSHK)


class ScaledDot(DotScore):
    """q · k / √K (Vaswani et al. 2017, §3.2.1): the variance of the score does not grow with the head size."""

    def __init__(self) -> None:
        super().__init__(None)


class Dot(DotScore):
    """q · k (Luong et al. 2015, §3.1)."""

    def __init__(self) -> None:
        super().__init__(1.0)


class General(DotScore):
    """qᵀ W k, bilinear (Luong et al. 2015, §3.1).

    Args:
        num_heads: Query heads.
        head_dim: Head size K.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__(1.0)
        self.weight_HKK = nn.Parameter(torch.empty(num_heads, head_dim, head_dim))
        nn.init.normal_(
            self.weight_HKK, std=1 / head_dim
        )  # scores of unit vectors' size start near those of scaled dot

    def query(self, q_NHK: Tensor, heads_H: Tensor | None = None) -> Tensor:
        weight_HKK = self.weight_HKK if heads_H is None else self.weight_HKK[heads_H]
        return torch.einsum("...hk,hkj->...hj", q_NHK, weight_HKK.to(q_NHK.dtype))


class Additive(Score):
    """vᵀ tanh(q + k), the MLP score (Bahdanau et al. 2015, appendix A.1.2).

    The paper's W_s and W_h are the projections that make q and k, so that the keys are projected once and not at every
    step.

    Args:
        num_heads: Query heads.
        head_dim: Head size K, the width of the MLP.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.v_HK = nn.Parameter(torch.empty(num_heads, head_dim))
        nn.init.uniform_(self.v_HK, -1 / math.sqrt(head_dim), 1 / math.sqrt(head_dim))

    def forward(self, q_BTHK: Tensor, k_BSHK: Tensor, at: Grid) -> Tensor:
        hidden_BTSHK = (q_BTHK[:, :, None] + k_BSHK[:, None]).tanh_()  # in place: the largest there is here
        return torch.einsum("btshk,hk->bhts", hidden_BTSHK, self.v_HK[at.head.flatten()].to(hidden_BTSHK.dtype))


class Relative(Score):
    """(q + u) · k / √K + (q + v) · r_d / √K with r_d = W_r PE(d), d the distance from key to query.

    With types, + (q + w) · s / √K, where s says whether query and key are of one type or of two. The score of
    Transformer-XL and XLNet. XLNet's two streams are two calls with queries of their own.

    Given to :func:`regard.attention.attend` as it is, it encodes the distances at each call, and leaves types out; see
    :class:`regard.attention.relative.Standing` for encoding them once for all layers, and for types.

    Args:
        num_heads: Query heads H.
        head_dim: Head size K.
        embed_dim: Width of the sinusoidal encoding that W_r projects; even.
        types: There are types.

    Source:
        Dai et al. 2019, §3.3 (terms a to d); Yang et al. 2019, §2.2 and §2.5 (relative segment encodings).
    """

    def __init__(self, num_heads: int, head_dim: int, embed_dim: int, types: bool = False) -> None:
        super().__init__()
        self.content_bias_HK = nn.Parameter(torch.zeros(num_heads, head_dim))
        self.position_bias_HK = nn.Parameter(torch.zeros(num_heads, head_dim))
        self.type_bias_HK = nn.Parameter(torch.zeros(num_heads, head_dim)) if types else None
        self.type_embed_2HK = nn.Parameter(torch.zeros(2, num_heads, head_dim)) if types else None
        self.r_proj = nn.Linear(embed_dim, num_heads * head_dim, bias=False)

    def encode(self, low: int, high: int, clamp: int = 0) -> Tensor:
        """Encode distances.

        Args:
            low: The first; negative ones are of keys ahead.
            high: The last.
            clamp: Distances from here on, in both directions, are encoded alike; 0 tells all apart.

        Returns:
            encoding_RD of low … high, in the module's dtype.
        """
        # Positions in float64, so that the encoding is as exact as the weights that take it.
        distances_R = torch.arange(low, high + 1, dtype=torch.float64, device=self.content_bias_HK.device)
        distances_R = distances_R.clamp(-clamp, clamp) if clamp else distances_R
        return sinusoidal(distances_R, self.r_proj.in_features, "halves").to(self.content_bias_HK.dtype)

    def project(self, encoding_RD: Tensor) -> Tensor:
        """Apply W_r.

        Args:
            encoding_RD: From :meth:`encode`.

        Returns:
            r_RHK.
        """
        return self.r_proj(encoding_RD).unflatten(-1, self.content_bias_HK.shape)

    def forward(self, q_BTHK: Tensor, k_BSHK: Tensor, at: Grid) -> Tensor:
        distance = at.distance
        low, high = int(distance.min()), int(distance.max())
        r_RHK = self.project(self.encode(low, high)).to(q_BTHK.dtype)
        return self.compare(q_BTHK, k_BSHK, at.head.flatten(), distance - low, r_RHK)

    def compare(
        self,
        q_BTHK: Tensor,
        k_BSHK: Tensor,
        heads_H: Tensor,
        index: Tensor,
        r_RHK: Tensor,
        same_type: Tensor | None = None,
    ) -> Tensor:
        """Score queries and keys at given distances.

        Args:
            q_BTHK: Queries.
            k_BSHK: Keys.
            heads_H: Which heads these are.
            index: int64, row of r of each distance, broadcastable to (B, H, T, S).
            r_RHK: Projected encodings, of all heads.
            same_type: bool, likewise; None leaves types out.

        Returns:
            scores_BHTS.
        """
        scale = 1 / math.sqrt(q_BTHK.shape[-1])
        content_BTHK, position_BTHK = (
            (q_BTHK + bias_HK[heads_H].to(q_BTHK.dtype)) * scale
            for bias_HK in (self.content_bias_HK, self.position_bias_HK)
        )
        # One product for each query and distance, of which there are T + S − 1, and each score takes its own: no
        # vectors of each pair are ever made.
        by_distance_BHTR = torch.einsum("bthk,rhk->bhtr", position_BTHK, r_RHK[:, heads_H])
        shape = (q_BTHK.shape[0], q_BTHK.shape[2], q_BTHK.shape[1], k_BSHK.shape[1])
        scores_BHTS = torch.einsum("bthk,bshk->bhts", content_BTHK, k_BSHK)
        scores_BHTS.add_(by_distance_BHTR.gather(-1, index.expand(shape)))  # in place: sums of scores are large
        if same_type is None or self.type_bias_HK is None or self.type_embed_2HK is None:
            return scores_BHTS
        type_BTHK = (q_BTHK + self.type_bias_HK[heads_H].to(q_BTHK.dtype)) * scale
        embed_EHK = self.type_embed_2HK[:, heads_H].to(q_BTHK.dtype)
        same_BHT1, other_BHT1 = torch.einsum("bthk,ehk->bhte", type_BTHK, embed_EHK).split(1, -1)
        return scores_BHTS.add_(torch.where(same_type, same_BHT1, other_BHT1))
