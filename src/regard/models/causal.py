"""A causal stack of blocks between one embedding and one output: what decoder-only families have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.attention import KVCache, Segments
from regard.attention.cache import shared
from regard.attention.masks import causal
from regard.attention.past import Past
from regard.attention.tree import reordered
from regard.layers.block import Block, extend_all
from regard.layers.embed import Embedding
from regard.models.interface import LanguageModel
from regard.models.states import Room


@dataclass(frozen=True, eq=False)
class StackState:
    """Where decoding stands: R rows, one a beam, the beams of a prompt side by side.

    Attributes:
        caches: Self-attention's past of each layer, a slot a prompt.
        beams: Rows of a prompt.
    """

    caches: tuple[KVCache, ...]
    beams: int = 1

    @property
    def past(self) -> Past:
        """How far the slots are filled."""
        return self.caches[0].past

    def select(self, rows_R: Tensor, sources_B: Tensor | None) -> StackState:
        """Go on from other rows; keys and values stay where they are, but for those of prompts that fill gaps.

        Args:
            rows_R: int64, for each new row the old one that it continues.
            sources_B: For each new prompt the old one; None where the prompts stay.

        Returns:
            The state; this one is used up.
        """
        count = self.past.slots if sources_B is None else len(sources_B)
        slots, past = reordered(self.past, rows_R, count)
        return StackState(tuple(cache.take(slots, past) for cache in self.caches), len(rows_R) // max(count, 1))

    def put(self, rows_R: Tensor, other: StackState) -> StackState:
        """Let some rows go on from elsewhere.

        Args:
            rows_R: int64, the rows, each once; those behind the last are new.
            other: Where they go on, a row for each.

        Returns:
            The state; this one is used up.
        """
        pairs = zip(self.caches, other.caches, strict=True)
        return replace(self, caches=shared(tuple(mine.put(rows_R, theirs) for mine, theirs in pairs)))

    def rewind(self, lengths: Sequence[int]) -> StackState:
        """Forget the last tokens of rows.

        Args:
            lengths: Tokens that are to be left of each row.

        Returns:
            The state; this one is used up.
        """
        past = self.past.rewind(lengths)
        return replace(self, caches=tuple(replace(cache, past=past) for cache in self.caches))


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

    def start(self, prompt_N: Tensor, segments: Segments, beams: int, room: Room | None = None) -> StackState:
        longest = max(segments.lengths, default=0)
        room = Room(len(segments), longest + 16, 16, beams=beams) if room is None else room
        x_ND = self.embed(prompt_N, segments)
        made = (
            KVCache.empty(len(segments), 0, block.self_attn.num_kv_heads, block.self_attn.head_dim, x_ND)
            for block in self._blocks()
        )
        caches = shared(tuple(cache.reserve(room.places, room.sources) for cache in made))
        _, state = self._extend(x_ND, segments, StackState(caches))
        if beams == 1:
            return state
        return state.select(torch.arange(len(segments)).repeat_interleave(beams), None)

    def step(self, tokens_R: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        return self.extend(tokens_R, state)

    def extend(self, tokens_N: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        past = state.past
        each = len(tokens_N) // max(past.slots, 1)
        segments = past.new(each)
        if past.even and state.beams == 1:
            x_ND = self.embed(tokens_N, segments, past.deepest)
        else:
            one = segments if state.beams == 1 else Segments.uniform(past.rows, 1, tokens_N.device)
            # Where the host does not know the lengths, the context bounds them.
            room = self.max_tokens or past.deepest
            deepest = past.deepest if past.known is not None or state.beams > 1 else min(past.deepest, room) - each
            x_ND = self.embed(tokens_N, one, deepest, past.lengths_B)
        x_ND, state = self._extend(x_ND, segments, state)
        return self.head(self.norm(x_ND)), state

    def _extend(self, x_ND: Tensor, segments: Segments, state: StackState) -> tuple[Tensor, StackState]:
        """Run new tokens through the blocks, and keep their keys and values."""
        x_ND, caches = extend_all(self._blocks(), x_ND, segments, state.caches)
        return x_ND, replace(state, caches=caches)

    def _blocks(self) -> list[Block]:
        return cast(list[Block], list(self.blocks))
