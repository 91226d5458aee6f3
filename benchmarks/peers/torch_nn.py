"""torch.nn's own Transformer layers, on padded rectangles."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def encoder(
    texts: Sequence[Tensor], vocab: int, width: int, heads: int, layers: int, inner: int
) -> Callable[[], object]:
    """Give a round of nn.TransformerEncoder's fast path, which leaves padding out where a mask tells it.

    Args:
        texts: Tokens.
        vocab: Of the vocabulary.
        width: D.
        heads: H.
        layers: Blocks.
        inner: Width of the MLPs.

    Returns:
        The round.
    """
    layer = nn.TransformerEncoderLayer(width, heads, inner, activation="gelu", batch_first=True)
    embed = nn.Embedding(vocab, width).eval()
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=True).eval()
    ids_BT = torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
    lengths = torch.tensor([[len(text)] for text in texts])
    padding_BT = torch.arange(ids_BT.shape[1]) >= lengths
    mask = padding_BT if padding_BT.any() else None

    def run() -> object:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nested tensors are a prototype
            return model(embed(ids_BT), src_key_padding_mask=mask)

    return run


class Seq2seq(nn.Module):
    """nn.Transformer with tables for tokens and places: padded sources and targets to the mean loss.

    Args:
        vocab: Of both vocabularies, the padding 0.
        width: D.
        heads: H.
        layers: Of encoder and of decoder.
        inner: Width of the MLPs.
        dropout: On each sublayer's result.
    """

    def __init__(self, vocab: int, width: int, heads: int, layers: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(vocab, width, 0), nn.Embedding(128, width)
        self.inner = nn.Transformer(width, heads, layers, layers, inner, dropout, batch_first=True)

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        read_BT = F.pad(target_BT[:, :-1], (1, 0), value=1)
        causal = nn.Transformer.generate_square_subsequent_mask(read_BT.shape[1])
        hidden = self.inner(
            self._embedded(source_BS),
            self._embedded(read_BT),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=_as_float(source_BS == 0),
            tgt_key_padding_mask=_as_float(read_BT == 0),
            memory_key_padding_mask=_as_float(source_BS == 0),
        )
        logits = F.linear(hidden, self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1), target_BT.flatten(), ignore_index=0)

    def _embedded(self, ids: Tensor) -> Tensor:
        return self.embed(ids) + self.places.weight[: ids.shape[1]]


def _as_float(padding: Tensor) -> Tensor:
    """The mask in the form of the causal one: torch wants both alike."""
    return torch.zeros(padding.shape).masked_fill(padding, float("-inf"))
