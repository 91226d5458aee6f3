"""The lecture on attention in a recurrent encoder–decoder."""

from regard.looking.lecture.layout import Picture, beside, scientific, signed
from regard.looking.lecture.numbers.recurrent import decoder_step

_SOURCE = ("das", "Haus", "ist", "sehr", "alt")
_BAHDANAU = "Bahdanau et al. 2015"


def pictures() -> list[Picture]:
    """Draw them, from what is computed now."""
    h_SD, s_TD, query_TK, keys_SK, hidden_SK, v_K, e_S, a_S, c_TD, recorded_S = decoder_step()
    states = Picture(
        "1 · Two readers meet",
        (
            "A recurrent network has read the source from both ends: `h_{i}`, a row a word, three numbers from the "
            "left and three from the right. The decoder stands at the state `s` and is about to write a word.",
            "Both are projected to one width, so that they can be added.",
        ),
        ("h_{i} = [h→_{i}; h←_{i}]", "W_{s} s  and  W_{h} h_{i}"),
        f"{_BAHDANAU}, §3.2 and appendix A.1.2; widths 6, 4 and 7",
        beside(signed("`h`", h_SD, rows=_SOURCE), "→", signed("`W_{h} h`", keys_SK, rows=_SOURCE))
        + beside(signed("`s`", s_TD), "→", signed("`W_{s} s`", query_TK)),
        decoder_step,
        wide=True,
    )
    score = Picture(
        "2 · An energy for each source word",
        (
            "A small network with one hidden layer says how well the state and each source word go together. There "
            "is no dot product: `s` is added to every row, squashed, and weighed with `v`.",
        ),
        ("e_{i} = v^{T} tanh(W_{s} s + W_{h} h_{i})",),
        f"{_BAHDANAU}, appendix A.1.2, where the matrices are called W_a and U_a",
        beside(
            signed("`tanh(W_{s} s + W_{h} h)`", hidden_SK, rows=_SOURCE, largest=1.0),
            "·",
            signed("`v`", v_K[:, None]),
            "=",
            signed("`e`", e_S[:, None], rows=_SOURCE),
        ),
        None,
        wide=True,
    )
    context = Picture(
        "3 · Weights and the context",
        (
            "Softmax makes weights of energies; the context is the mean of the encoder’s states under these "
            "weights. It is computed anew at each step, so a long sentence need not fit into one vector.",
            "This translator has learned nothing yet, so its weights are still nearly equal. Those that the layer "
            "itself had, recorded while it runs, are these; largest difference: "
            f"{scientific((recorded_S - a_S).abs().max())}.",
        ),
        ("a = softmax(e)", "c = Σ_{i} a_{i} h_{i}"),
        f"{_BAHDANAU}, §3.1, equations 5 and 6",
        beside(
            signed("`a`", a_S[:, None], rows=_SOURCE, largest=1.0),
            "·",
            signed("`h`", h_SD, rows=_SOURCE),
            "=",
            signed("`c`", c_TD, largest=float(h_SD.abs().max())),
        ),
        None,
        wide=True,
    )
    return [states, score, context]
