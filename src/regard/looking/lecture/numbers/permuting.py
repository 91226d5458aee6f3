"""Self-attention without positions does not see order."""

import torch
from torch import Tensor

from regard.attention import MultiHeadAttention, Segments, record
from regard.attention.positions import sinusoidal


def permutation() -> tuple[Tensor, ...]:
    """Attend over a sentence, and over its words in another order: Attn(P X) = P Attn(X), unless positions are added.

    Returns:
        x_ND; p_NN; y_ND = Attn(X); moved_ND = Attn(P X); weights_NN and moved_weights_NN of the two; difference, of
        Attn(P X) and P Attn(X) at most; encoding_ND; placed_ND = Attn(X + E); placed_moved_ND = Attn(P X + E); broken,
        the largest difference of that and P Attn(X + E).
    """
    torch.manual_seed(0)
    attention = MultiHeadAttention(embed_dim=4, num_heads=1).double()
    x_ND = torch.randn(5, 4, dtype=torch.float64)  # the dog bites a man
    p_NN = torch.eye(5, dtype=torch.float64)[[3, 4, 2, 0, 1]]  # a man bites the dog

    sentence = Segments.uniform(1, 5)
    with record(attention) as rows:
        y_ND = attention(x_ND, sentence)
        moved_ND = attention(p_NN @ x_ND, sentence)
    weights_NN, moved_weights_NN = (call.weights_HTS[0] for call in rows[""])
    difference = (moved_ND - p_NN @ y_ND).abs().max()

    encoding_ND = sinusoidal(sentence.positions_N().double(), dim=4)
    placed_ND = attention(x_ND + encoding_ND, sentence)
    placed_moved_ND = attention(p_NN @ x_ND + encoding_ND, sentence)
    broken = (placed_moved_ND - p_NN @ placed_ND).abs().max()
    return (
        x_ND,
        p_NN,
        y_ND,
        moved_ND,
        weights_NN,
        moved_weights_NN,
        difference,
        encoding_ND,
        placed_ND,
        placed_moved_ND,
        broken,
    )
