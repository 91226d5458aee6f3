"""Attention in a recurrent encoder–decoder: one step."""

import torch
from torch import Tensor

from regard.attention import Segments, record
from regard.attention.groups import plan
from regard.layers.recurrent import Recurrent, StateAttention


def decoder_step() -> tuple[Tensor, ...]:
    """Look at an encoded source from one decoder state (Bahdanau et al. 2015, §3.1 and appendix A.1.2).

    Returns:
        h_SD, encoder states; s_TD, the decoder's state; query_TK = W_s s + b; keys_SK = W_h h; hidden_SK, the tanh of
        their sums; v_K; e_S; a_S; c_TD; recorded_S, the weights that the layer itself had.
    """
    torch.manual_seed(0)
    encoder = Recurrent("gru", input_dim=5, hidden_dim=3, bidirectional=True).double()
    attention = StateAttention(state_dim=4, context_dim=6, attention_dim=7, score="additive").double()
    source, step = Segments.uniform(1, 5), Segments.uniform(1, 1)
    h_SD, _ = encoder(2 * torch.randn(5, 5, dtype=torch.float64), source)  # das Haus ist sehr alt
    s_TD = 2 * torch.randn(1, 4, dtype=torch.float64)

    query_TK, keys_SK = attention.q_proj(s_TD), attention.k_proj(h_SD)
    hidden_SK, v_K = torch.tanh(query_TK + keys_SK), attention.get_parameter("score.v_HK")[0]
    at = plan(step, source).groups[0].grid(num_heads=1)
    e_S = attention.score(query_TK[None, :, None], keys_SK[None, :, None], at)[0, 0, 0]
    a_S = e_S.softmax(-1)

    with record(attention) as rows:
        c_TD = attention(s_TD, step, h_SD, source)
    recorded_S = rows[""][0].weights_HTS[0, 0]
    return h_SD, s_TD, query_TK, keys_SK, hidden_SK, v_K, e_S, a_S, c_TD, recorded_S
