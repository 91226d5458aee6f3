"""A causal stack of blocks between one embedding and one output: what decoder-only families have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.attention import KVCache, Segments
from regard.attention.masks import causal
from regard.layers.block import Block
from regard.layers.embed import Embedding
from regard.models.interface import LanguageModel


@dataclass(frozen=True, eq=False)
class StackState:
    """Where decoding stands: R rows, one a beam, the beams of a prompt side by side.

    Attributes:
        caches: Self-attention's past of each layer, a slot a row.
    """

    caches: tuple[KVCache, ...]

    @property
    def max_len(self) -> int:
        """A bound of the tokens of each row so far, known on the host."""
        return self.caches[0].max_len

    @property
    def lengths_B(self) -> Tensor:
        """int64, tokens of each row so far."""
        return self.caches[0].lengths_B

    def select(self, rows_R: Tensor, sources_B: Tensor | None) -> StackState:
        """Go on from other rows.

        Args:
            rows_R: int64, for each new row the old one that it continues.
            sources_B: For each new prompt the old one; the rows say all.

        Returns:
            The state.
        """
        return replace(self, caches=tuple(cache.select(rows_R) for cache in self.caches))

    def put(self, rows_R: Tensor, other: StackState) -> StackState:
        """Let some rows go on from elsewhere.

        Args:
            rows_R: int64, the rows, each once.
            other: Where they go on, a row for each.

        Returns:
            The state; this one is used up.
        """
        pairs = zip(self.caches, other.caches, strict=True)
        return replace(self, caches=tuple(mine.put(rows_R, theirs) for mine, theirs in pairs))


class CausalStack(LanguageModel):
    """x = embed(tokens); x ← block(x), causal, for each block; logits = output(norm(x)).

    Args:
        config: The family's settings, with ``max_len`` and ``tie``: the output table is the input's.
        embed: Tokens to vectors.
        blocks: Pre-norm blocks.
        norm: Behind the last block.
        output: Vectors to scores, without a bias.
    """

    def __init__(self, config: Any, embed: Embedding, blocks: list[Block], norm: nn.Module, output: nn.Linear) -> None:
        super().__init__()
        self.config, self.embed, self.norm, self.output = config, embed, norm, output
        self.blocks = nn.ModuleList(blocks)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        if config.tie:
            self.output.weight = self.embed.weight

    @property
    def max_tokens(self) -> int:
        """Tokens of a text at most: the learned table's positions, or as the model was trained."""
        return self.config.max_len

    def forward(self, tokens_N: Tensor, segments: Segments) -> Tensor:
        x_ND = self.embed(tokens_N, segments)
        for block in self.blocks:
            x_ND = block(x_ND, segments, mask=causal())
        return self.norm(x_ND)

    def start(self, prompt_N: Tensor, segments: Segments, beams: int) -> StackState:
        room = max(segments.lengths, default=0) + 16
        x_ND = self.embed(prompt_N, segments)
        empty = [
            KVCache.empty(len(segments), room, block.self_attn.num_kv_heads, block.self_attn.head_dim, x_ND)
            for block in cast(list[Block], list(self.blocks))
        ]
        _, state = self._extend(x_ND, segments, StackState(tuple(empty)))
        if beams == 1:
            return state
        return state.select(torch.arange(len(segments), device=x_ND.device).repeat_interleave(beams), None)

    def step(self, tokens_R: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        segments = Segments.uniform(len(tokens_R), 1, tokens_R.device)
        x_RD = self.embed(tokens_R, segments, state.max_len, state.lengths_B)
        x_RD, state = self._extend(x_RD, segments, state)
        return self.head(self.norm(x_RD)), state

    def _extend(self, x_ND: Tensor, segments: Segments, state: StackState) -> tuple[Tensor, StackState]:
        """Run new tokens through the blocks, and keep their keys and values."""
        caches: list[KVCache] = []
        for block, cache in zip(cast(list[Block], list(self.blocks)), state.caches, strict=True):
            cache = cache.reserve(cache.max_len + segments.max_len)
            x_ND, cache = block.extend(x_ND, segments, cache, mask=causal())
            caches.append(cache)
        return x_ND, StackState(tuple(caches))
