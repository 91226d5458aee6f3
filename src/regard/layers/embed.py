"""Tokens and their places become vectors."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.attention.positions import LearnedPositions, sinusoidal
from regard.errors import ConfigError
from regard.layers.dropout import Dropout

Positions = Literal["sinusoidal", "sinusoidal-halves", "learned", "none"]


class Embedding(nn.Module):
    """dropout(√D · E[token] + PE(position)), or the two concatenated.

    Args:
        vocab_size: Tokens V of the table.
        embed_dim: Width D of the result.
        positions: ``sinusoidal`` (sines and cosines interleaved), ``sinusoidal-halves``, ``learned`` or ``none``.
        max_len: Positions of a learned table.
        position_dim: Width of the position's part where it is concatenated; 0 adds it over the whole width.
        scale: Multiply the token's vector by √D.
        dropout_p: Probability, in training, that a number of the sum is dropped.
        weight: A table to share; None makes one.

    Raises:
        ConfigError: The kind of positions is unknown, they leave no width to tokens, or the shared table has another
            shape.

    Source: Vaswani et al. 2017, §3.4 and §3.5.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        *,
        positions: Positions = "sinusoidal",
        max_len: int = 1024,
        position_dim: int = 0,
        scale: bool = True,
        dropout_p: float = 0.0,
        weight: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        if positions not in ("sinusoidal", "sinusoidal-halves", "learned", "none"):
            raise ConfigError(f"unknown positions {positions!r}", mend="sinusoidal, sinusoidal-halves, learned or none")
        if not 0 <= position_dim < embed_dim:
            raise ConfigError(f"positions of width {position_dim} leave nothing of {embed_dim} to tokens")
        token_dim = embed_dim - position_dim
        self.weight = nn.Parameter(torch.empty(vocab_size, token_dim)) if weight is None else weight
        if self.weight.shape != (vocab_size, token_dim):
            raise ConfigError(
                f"a shared table of shape {tuple(self.weight.shape)} where {(vocab_size, token_dim)} is needed"
            )
        if weight is None:
            nn.init.normal_(self.weight, std=token_dim**-0.5)
        self.kind, self.position_dim = positions, position_dim
        self.encoded_dim = position_dim or embed_dim
        self.positions = LearnedPositions(max_len, self.encoded_dim) if positions == "learned" else None
        self.scale = math.sqrt(token_dim) if scale else 1.0
        self.dropout = Dropout(dropout_p)

    def forward(self, tokens_N: Tensor, segments: Segments, start: int = 0, start_B: Tensor | None = None) -> Tensor:
        """Embed all tokens of a batch.

        Args:
            tokens_N: int64, tokens.
            segments: Which belong together: positions come from here.
            start: Position of the first token of each sequence; with ``start_B``, none is beyond it.
            start_B: int64, position of the first token of each sequence, where they differ.

        Returns:
            x_ND.

        Raises:
            ContextError: A sequence is longer than a learned table.
        """
        x_ND = nn.functional.embedding(tokens_N, self.weight)
        x_ND = x_ND if self.scale == 1.0 else x_ND * self.scale
        if self.kind != "none":
            encoding_ND = self._encode(segments, start, start_B).to(x_ND.dtype)
            x_ND = torch.cat([x_ND, encoding_ND], -1) if self.position_dim else x_ND + encoding_ND
        return self.dropout(x_ND)

    def _encode(self, segments: Segments, start: int, start_B: Tensor | None) -> Tensor:
        positions_N = segments.positions_N() + (start if start_B is None else start_B[segments.sequence_N()])
        if self.positions is not None:
            return self.positions(positions_N, segments.max_len + start)
        layout = "halves" if self.kind == "sinusoidal-halves" else "interleaved"
        # One row a place, then a look-up: sines of a few dozen places instead of thousands of tokens.
        first = start if start_B is None else 0
        places_T = torch.arange(first, start + max(segments.max_len, 1), device=self.weight.device)
        return sinusoidal(places_T, self.encoded_dim, layout)[positions_N - first]
