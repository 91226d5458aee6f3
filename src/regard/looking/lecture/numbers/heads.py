"""Multi-head attention step by step, cross-attention, heads that share keys."""

import torch
from torch import Tensor

from regard.attention import MultiHeadAttention, Segments, masks, record
from regard.attention.backends.reference import repeat_heads


def head_steps() -> tuple[Tensor, ...]:
    """Compute causal self-attention of two heads step by step, and once more by the layer (Vaswani et al. 2017, §3.2).

    Returns:
        x_ND; w_q_DD, w_k_DD, w_v_DD, w_o_DD, to multiply from the right; q_NHK, k_NHK, v_NHK; scores_HTS, scaled_HTS,
        masked_HTS, weights_HTS; heads_NHK; joined_ND; y_ND; recorded_HTS, the weights that the layer itself had;
        difference, of the two results at most.
    """
    torch.manual_seed(4)
    attention = MultiHeadAttention(embed_dim=6, num_heads=2, use_bias=False).double()
    x_ND = torch.randn(4, 6, dtype=torch.float64)  # the cat sat down

    projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj)
    w_q_DD, w_k_DD, w_v_DD, w_o_DD = (projection.weight.T for projection in projections)
    q_NHK, k_NHK, v_NHK = ((x_ND @ w_DD).unflatten(-1, (2, 3)) for w_DD in (w_q_DD, w_k_DD, w_v_DD))
    scores_HTS = torch.einsum("thk,shk->hts", q_NHK, k_NHK)
    scaled_HTS = scores_HTS / 3**0.5
    ahead_TS = torch.ones(4, 4, dtype=torch.bool).triu(1)
    masked_HTS = scaled_HTS.masked_fill(ahead_TS, -torch.inf)
    weights_HTS = masked_HTS.softmax(-1)
    heads_NHK = torch.einsum("hts,shk->thk", weights_HTS, v_NHK)
    joined_ND = heads_NHK.flatten(-2)
    y_ND = joined_ND @ w_o_DD

    with record(attention) as rows:
        layer_ND = attention(x_ND, Segments.uniform(1, 4), mask=masks.causal())
    recorded_HTS = rows[""][0].weights_HTS
    difference = (y_ND - layer_ND).abs().max()
    return (
        x_ND,
        *(w_q_DD, w_k_DD, w_v_DD, w_o_DD),
        *(q_NHK, k_NHK, v_NHK),
        *(scores_HTS, scaled_HTS, masked_HTS, weights_HTS),
        *(heads_NHK, joined_ND, y_ND),
        *(recorded_HTS, difference),
    )


def cross_attention() -> Tensor:
    """Attend from three target tokens to five source tokens (Vaswani et al. 2017, §3.2.3).

    Returns:
        weights_HTS.
    """
    torch.manual_seed(1)
    attention = MultiHeadAttention(embed_dim=6, num_heads=2).double()
    target_ND = torch.randn(3, 6, dtype=torch.float64)  # the house is
    source_MD = torch.randn(5, 6, dtype=torch.float64)  # das Haus ist sehr alt
    with record(attention) as rows:
        attention(target_ND, Segments.uniform(1, 3), source_MD, Segments.uniform(1, 5))
    weights_HTS = rows[""][0].weights_HTS
    return weights_HTS


def shared_heads() -> tuple[dict[int, Tensor], dict[int, int]]:
    """Say which key head each of eight query heads reads (Shazeer 2019; Ainslie et al. 2023, §2.2).

    Returns:
        key_heads, for G key heads the one of each query head; kept, the numbers that a cache keeps of a token, K = 8.
    """
    layers = {groups: MultiHeadAttention(embed_dim=64, num_heads=8, num_kv_heads=groups) for groups in (8, 2, 1)}
    kept = {groups: layer.k_proj.out_features + layer.v_proj.out_features for groups, layer in layers.items()}
    heads = {groups: torch.arange(groups).view(1, 1, groups, 1) for groups in layers}
    key_heads = {groups: repeat_heads(heads_11G1, num_heads=8).flatten() for groups, heads_11G1 in heads.items()}
    return key_heads, kept
