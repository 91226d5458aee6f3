"""The Transformer encoder–decoder.

Paper: Vaswani et al. 2017, "Attention is all you need". Ours differs in: no padding (flat rows and segments);
attention's projections have biases, as in the public ports; dropout on attention weights is a setting of its own and is
off in the recipes; pre-norm, learned positions, rotary positions and grouped heads are settings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from regard.attention import KVCache, Segments
from regard.attention.cache import shared
from regard.attention.masks import causal
from regard.attention.past import Past
from regard.attention.tree import reordered
from regard.errors import ConfigError
from regard.layers.block import Block, extend_all
from regard.layers.embed import Embedding, Positions
from regard.models.interface import EncoderDecoder, Share, check_share
from regard.models.states import Room


@dataclass(frozen=True)
class TransformerConfig:
    """Settings of a Transformer encoder–decoder.

    Attributes:
        source_vocab_size: Tokens of the source vocabulary.
        target_vocab_size: Tokens of the target vocabulary.
        embed_dim: Width D.
        mlp_dim: Inner width F of the MLPs.
        num_heads: Query heads H.
        num_kv_heads: Key–value heads G; 0 is H.
        encoder_layers: Blocks of the encoder.
        decoder_layers: Blocks of the decoder.
        norm: ``post`` (the paper) or ``pre``.
        activation: Of the MLPs.
        share: Which tables are one: ``all`` (source, target, output), ``target`` (target and output) or ``none``.
        positions: ``sinusoidal``, ``sinusoidal-halves``, ``learned`` or ``none``.
        position_dim: Width of concatenated positions; 0 adds them.
        rotary_base: Rotary positions in self-attention; 0 for none.
        max_len: Positions of learned tables; of others, the tokens that a public model is said to have seen.
        dropout: On embeddings and each sublayer's result.
        attention_dropout: On attention weights.
        mlp_dropout: On the MLPs' inner activations.
        norm_eps: Of layer norms.
        scale_embed: Multiply tokens' vectors by √D, as the paper does.
        output_bias: The output has a bias where its table is shared; where it is not, it always has.
    """

    source_vocab_size: int
    target_vocab_size: int
    embed_dim: int = 512
    mlp_dim: int = 2048
    num_heads: int = 8
    num_kv_heads: int = 0
    encoder_layers: int = 6
    decoder_layers: int = 6
    norm: Literal["pre", "post"] = "post"
    activation: str = "relu"
    share: Share = "all"
    positions: Positions = "sinusoidal"
    position_dim: int = 0
    rotary_base: float = 0.0
    max_len: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    mlp_dropout: float = 0.0
    norm_eps: float = 1e-5
    scale_embed: bool = True
    output_bias: bool = False

    @property
    def tie(self) -> bool:
        """Whether the output table is the target's."""
        return self.share != "none"


@dataclass(frozen=True, eq=False)
class TransformerState:
    """Where decoding stands: R rows, one a beam, the beams of a source side by side.

    Attributes:
        caches: Self-attention's past of each layer, a slot a source.
        contexts: Keys and values of the encoded sources for each layer, a slot a source.
        beams: Rows of one source.
    """

    caches: tuple[KVCache, ...]
    contexts: tuple[KVCache, ...]
    beams: int = 1

    @property
    def past(self) -> Past:
        """How far the slots are filled."""
        return self.caches[0].past

    def select(self, rows_R: Tensor, sources_B: Tensor | None) -> TransformerState:
        """Go on from other rows; keys and values stay where they are, but for those of sources that fill gaps.

        Args:
            rows_R: For each new row the old one that it continues.
            sources_B: For each new source the old one; None where the sources stay.

        Returns:
            The state; this one is used up.
        """
        count = self.past.slots if sources_B is None else len(sources_B)
        slots, past = reordered(self.past, rows_R, count)
        contexts = self.contexts
        if sources_B is not None:
            read = contexts[0].past.select(slots)
            contexts = tuple(context.take(slots, read) for context in contexts)
        caches = tuple(cache.take(slots, past) for cache in self.caches)
        return TransformerState(caches, contexts, len(rows_R) // max(count, 1))

    def put(self, rows_R: Tensor, other: TransformerState) -> TransformerState:
        """Let some rows go on from elsewhere: all those of some sources.

        Args:
            rows_R: int64, the rows, each once; those behind the last are new.
            other: Where they go on, a row for each.

        Returns:
            The state; this one is used up.
        """
        sources_B = rows_R[:: self.beams] // self.beams
        caches = tuple(a.put(rows_R, b) for a, b in zip(self.caches, other.caches, strict=True))
        contexts = tuple(a.put(sources_B, b) for a, b in zip(self.contexts, other.contexts, strict=True))
        return replace(self, caches=shared(caches), contexts=shared(contexts))


class Transformer(EncoderDecoder):
    """Encoder and decoder stacks over flat rows of tokens.

    Args:
        config: The settings.

    Raises:
        ConfigError: ``share`` asks for one table of two vocabularies of different size, or is unknown.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        c = self.config = config
        check_share(c.share, c.source_vocab_size, c.target_vocab_size)
        if c.share != "none" and c.position_dim:
            raise ConfigError("concatenated positions leave no room for a shared output table", mend="set share: none")

        def embedding(vocab_size: int, weight: nn.Parameter | None) -> Embedding:
            return Embedding(
                vocab_size,
                c.embed_dim,
                positions=c.positions,
                max_len=c.max_len,
                position_dim=c.position_dim,
                scale=c.scale_embed,
                dropout_p=c.dropout,
                weight=weight,
            )

        def stack(num_layers: int, cross: bool) -> nn.ModuleList:
            return nn.ModuleList(
                Block(
                    c.embed_dim,
                    c.num_heads,
                    c.mlp_dim,
                    cross=cross,
                    norm=c.norm,
                    num_kv_heads=c.num_kv_heads or None,
                    activation=c.activation,
                    dropout_p=c.dropout,
                    attention_dropout_p=c.attention_dropout,
                    mlp_dropout_p=c.mlp_dropout,
                    rotary_base=c.rotary_base or None,
                    norm_eps=c.norm_eps,
                )
                for _ in range(num_layers)
            )

        def last_norm() -> nn.Module:
            return nn.LayerNorm(c.embed_dim, c.norm_eps) if c.norm == "pre" else nn.Identity()

        self.source_embed = embedding(c.source_vocab_size, None)
        self.target_embed = embedding(c.target_vocab_size, self.source_embed.weight if c.share == "all" else None)
        self.encoder, self.decoder = stack(c.encoder_layers, False), stack(c.decoder_layers, True)
        self.encoder_norm, self.decoder_norm = last_norm(), last_norm()
        self.output = nn.Linear(c.embed_dim, c.target_vocab_size, bias=c.output_bias or not c.tie)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)
        if c.tie:
            self.output.weight = self.target_embed.weight
        else:
            nn.init.normal_(self.output.weight, std=c.embed_dim**-0.5)

    @property
    def max_target_tokens(self) -> int | None:
        """Most tokens of an output: a learned table holds the start token and this many more."""
        return self.config.max_len - 1 if self.config.positions == "learned" else None

    @property
    def blocks(self) -> list[Block]:
        """The decoder's blocks."""
        return cast(list[Block], list(self.decoder))

    def encode(self, source_M: Tensor, segments: Segments) -> Tensor:
        """Encode sources.

        Args:
            source_M: int64, source tokens of the batch.
            segments: Which belong together.

        Returns:
            memory_MD.
        """
        x_MD = self.source_embed(source_M, segments)
        for block in self.encoder:
            x_MD = block(x_MD, segments)
        return self.encoder_norm(x_MD)

    def forward(
        self, source_M: Tensor, source_segments: Segments, target_N: Tensor, target_segments: Segments
    ) -> Tensor:
        memory_MD = self.encode(source_M, source_segments)
        x_ND = self.target_embed(target_N, target_segments)
        for block in self.decoder:
            x_ND = block(x_ND, target_segments, memory_MD, source_segments, mask=causal())
        return self.decoder_norm(x_ND)

    def start(self, source_M: Tensor, segments: Segments, beams: int, room: Room | None = None) -> TransformerState:
        memory_MD = self.encode(source_M, segments)
        room = Room(len(segments), 16, 16, beams=beams) if room is None else room
        made = [block.start(memory_MD, segments, len(segments)) for block in self.blocks]
        caches = [cache.reserve(room.places, room.sources) for cache, _ in made]
        contexts = [context.reserve(room.source_tokens, room.sources) for _, context in made]
        state = TransformerState(shared(caches), shared(contexts))
        return state if beams == 1 else state.select(torch.arange(len(segments)).repeat_interleave(beams), None)

    def step(self, tokens_R: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        past, context_past = state.past, state.contexts[0].past
        one = Segments.uniform(past.rows, 1, tokens_R.device)
        x_RD = self.target_embed(tokens_R, one, past.deepest, None if past.even else past.lengths_B)
        segments, reading = past.new(state.beams), context_past.new(state.beams)
        x_RD, caches = extend_all(self.blocks, x_RD, segments, state.caches, state.contexts, reading)
        return self.head(self.decoder_norm(x_RD)), replace(state, caches=caches)
