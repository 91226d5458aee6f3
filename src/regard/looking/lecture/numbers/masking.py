"""Which keys a query may attend to: masks, windows, segments."""

import torch
from torch import Tensor

from regard.attention import MultiHeadAttention, Segments, attend, masks
from regard.attention.groups import plan
from regard.layers.windows import windows_of


def mask_matrices() -> dict[str, Tensor]:
    """Evaluate masks over a sentence of ten tokens.

    Returns:
        allowed, bool (T, S) by the expression that makes the mask.
    """
    sentence = Segments.uniform(1, 10)
    at = plan(sentence, sentence).groups[0].grid(num_heads=1)
    ids_BS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2, 2]])
    chosen = {
        "window(-1, -1)": masks.window(-1, -1),
        "causal()": masks.causal(),
        "window(2, 1)": masks.window(2, 1),
        "causal() & window(3, -1)": masks.causal() & masks.window(3, -1),
        "prefix(4)": masks.prefix(torch.tensor([4])),
        "documents(ids)": masks.documents(ids_BS),
        "documents(ids) & causal()": masks.documents(ids_BS) & masks.causal(),
        "blocks(4)": masks.blocks(4),
        "blocks(4, shift=2)": masks.blocks(4, shift=2),
    }
    allowed = {name: mask.allow(at).expand(1, 1, 10, 10)[0, 0] for name, mask in chosen.items()}
    return allowed


def shifted_windows() -> dict[int, Tensor]:
    """Say which tokens of a 4 × 4 grid see each other in windows of 2 × 2, as they are and shifted by one (Swin).

    Returns:
        sees, bool (16, 16) by the shift; tokens are counted row by row.
    """
    sees = {}
    for shift in (0, 1):
        windows = windows_of(1, grid=(4, 4), size=(2, 2), shift=(shift, shift))
        group = plan(windows.segments, windows.segments).groups[0]
        allowed = group.allowed(windows.mask, group.grid(num_heads=1))
        seen_NN = torch.zeros(16, 16, dtype=torch.bool)
        for window, places_W in enumerate(windows.places_BW):
            seen_NN[places_W[:, None], places_W] = True if allowed is None else allowed[window, 0]
        sees[shift] = seen_NN
    return sees


def sees_nothing() -> tuple[Tensor, Tensor, Tensor]:
    """Attend to earlier tokens alone, so that the first has none.

    Returns:
        allowed_TS; y_NK, the result; row_S, what softmax alone makes of a row without keys.
    """
    torch.manual_seed(0)
    q_N1K, k_N1K, v_N1K = torch.randn(3, 4, 1, 3, dtype=torch.float64)
    allowed_TS = torch.ones(4, 4, dtype=torch.bool).tril(-1)
    y_NK = attend(q_N1K, k_N1K, v_N1K, Segments.uniform(1, 4), mask=masks.tensor(allowed_TS))[:, 0]

    row_S = torch.full((4,), -torch.inf).softmax(-1)
    return allowed_TS, y_NK, row_S


def packed() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend within three sentences that stand in one row, and within each alone.

    Returns:
        sequence_N of each row; position_N of each row; sees_NN, bool; difference of the two results at most.
    """
    torch.manual_seed(0)
    attention = MultiHeadAttention(embed_dim=8, num_heads=2).double()
    lengths = [5, 2, 7]
    segments = Segments.ragged(lengths)
    x_ND = torch.randn(14, 8, dtype=torch.float64)
    together_ND = attention(x_ND, segments)
    alone_ND = torch.cat([attention(one, Segments.uniform(1, len(one))) for one in x_ND.split(lengths)])
    difference = (together_ND - alone_ND).abs().max()

    sequence_N, position_N = segments.sequence_N(), segments.positions_N()
    sees_NN = sequence_N[:, None] == sequence_N
    return sequence_N, position_N, sees_NN, difference
