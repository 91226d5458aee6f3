"""The recurrent encoder–decoder, without and with attention.

Without: the encoder's last state is the one context c of all steps, s_t = g_U(y_{t−1}, s_{t−1}, c) (Sutskever et al.
2014; Cho et al. 2014, §2.2). With: a new context at every step, c_t = Σ_i a_{t,i} h_i, which nothing supervises. Its
weights come from the state before the step, s_{t−1}, and it enters the recurrence (Bahdanau et al. 2015, §3); or from
the state after it, s_t, and it enters the output (Luong et al. 2015, §3): then all steps of a known target attend at
once.

Ours differs in: one affine layer with tanh before the output instead of maxout; a start state made from both
directions' last states; dropout. With several decoder layers, ``after`` attends from the first one's state and hands
the context to the second (Luong et al. attend from the last, Wu et al. 2016, §3, from the first one's state before).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from regard.attention import KVCache, Segments
from regard.attention.compiling import eagerly
from regard.errors import ConfigError
from regard.layers.cells import State
from regard.layers.recurrent import CellName, Recurrent, StateAttention, Times
from regard.models.interface import EncoderDecoder, Share, check_share
from regard.models.registry import Family, register
from regard.models.states import Room


@dataclass(frozen=True)
class RNNConfig:
    """Settings of a recurrent encoder–decoder.

    Attributes:
        source_vocab_size: Tokens of the source vocabulary.
        target_vocab_size: Tokens of the target vocabulary.
        cell: ``rnn``, ``lstm`` or ``gru``.
        attention: ``none``, ``additive``, ``dot``, ``scaled-dot`` or ``general``.
        attends: ``before`` the step, from the top layer's last state, or ``after`` the first layer's step.
        embed_dim: Width of token vectors.
        hidden_dim: Width of states; each direction of the encoder has it.
        attention_dim: Width in which states are compared.
        encoder_layers: Layers of the encoder.
        decoder_layers: Layers of the decoder.
        bidirectional: The encoder reads from both ends.
        share: ``all`` (source, target and output tables are one), ``target`` (target and output) or ``none``.
        dropout: On embeddings, between layers, and before the output.
    """

    source_vocab_size: int
    target_vocab_size: int
    cell: CellName = "gru"
    attention: Literal["none", "additive", "dot", "scaled-dot", "general"] = "additive"
    attends: Literal["before", "after"] = "before"
    embed_dim: int = 256
    hidden_dim: int = 512
    attention_dim: int = 512
    encoder_layers: int = 1
    decoder_layers: int = 1
    bidirectional: bool = True
    share: Share = "target"
    dropout: float = 0.2


@dataclass(frozen=True, eq=False)
class RNNState:
    """Where decoding stands: R rows, one a beam, the beams of a source side by side.

    Attributes:
        state: Decoder states of each layer and row.
        memory: With attention, what it looks at, a slot a source; None without.
        context_RD: Without attention, the one context of each row; None with.
        beams: Rows of one source.
    """

    state: State
    memory: KVCache | None
    context_RD: Tensor | None
    beams: int

    def select(self, rows_R: Tensor, sources_B: Tensor | None) -> RNNState:
        """Go on from other rows.

        Args:
            rows_R: For each new row the old one that it continues.
            sources_B: For each new source the old one; None where the sources stay.

        Returns:
            The state; this one is used up.
        """
        memory = self.memory
        if memory is not None and sources_B is not None:
            slots = sources_B.tolist()
            memory = memory.take(slots, memory.past.select(slots))
        count = self.state[0].shape[1] // self.beams if sources_B is None else len(sources_B)
        rows_R = rows_R.to(self.state[0].device)
        context_RD = None if self.context_RD is None else self.context_RD[rows_R]
        state = tuple(part[:, rows_R] for part in self.state)
        return RNNState(state, memory, context_RD, len(rows_R) // max(count, 1))

    def put(self, rows_R: Tensor, other: RNNState) -> RNNState:
        """Let all rows of some sources go on from elsewhere.

        Args:
            rows_R: int64, the rows, each once; those behind the last are new.
            other: Where they go on, a row for each.

        Returns:
            The state; this one is used up.
        """
        memory, context_RD = self.memory, self.context_RD
        if memory is not None and other.memory is not None:
            memory = memory.put(rows_R[:: self.beams] // self.beams, other.memory)
        if context_RD is not None and other.context_RD is not None:
            context_RD = _put(context_RD, rows_R, other.context_RD, 0)
        state = tuple(_put(mine, rows_R, theirs, 1) for mine, theirs in zip(self.state, other.state, strict=True))
        return replace(self, state=state, memory=memory, context_RD=context_RD)


def _put(mine: Tensor, rows_R: Tensor, theirs: Tensor, dim: int) -> Tensor:
    """Put rows into a tensor, which grows where they are behind its last."""
    more = max(int(rows_R.max()) + 1 - mine.shape[dim], 0)
    shape = [more if place == dim else size for place, size in enumerate(mine.shape)]
    return torch.cat([mine, mine.new_zeros(shape)], dim).index_copy(dim, rows_R.to(mine.device), theirs)


class RNN(EncoderDecoder):
    """Recurrent encoder–decoder over flat rows of tokens.

    Args:
        config: The settings.

    Raises:
        ConfigError: ``share`` asks for one table of two vocabularies of different size; a cell, score, ``share`` or
            ``attends`` is unknown.
    """

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        c = self.config = config
        check_share(c.share, c.source_vocab_size, c.target_vocab_size)
        self.source_embed = nn.Embedding(c.source_vocab_size, c.embed_dim)
        self.target_embed = nn.Embedding(c.target_vocab_size, c.embed_dim)
        for table in (self.source_embed, self.target_embed):
            nn.init.normal_(table.weight, std=c.embed_dim**-0.5)
        if c.share == "all":
            self.target_embed.weight = self.source_embed.weight
        self.dropout = nn.Dropout(c.dropout)
        self.encoder = Recurrent(
            c.cell, c.embed_dim, c.hidden_dim, c.encoder_layers, bidirectional=c.bidirectional, dropout_p=c.dropout
        )
        context_dim = c.hidden_dim * self.encoder.directions
        self.start_proj = nn.Linear(context_dim, c.decoder_layers * c.hidden_dim * self.encoder.num_parts)
        self.attention: StateAttention | None = None
        if c.attention != "none":
            self.attention = StateAttention(c.hidden_dim, context_dim, c.attention_dim, c.attention)
        if c.attends not in ("before", "after"):
            raise ConfigError(f"unknown attends {c.attends!r}", mend="choose from before, after")
        # The layer whose input has the context is the lowest, or the second.
        self.above: Recurrent | None = None
        if self.attention is not None and c.attends == "after":
            self.decoder = Recurrent(c.cell, c.embed_dim, c.hidden_dim)
            if c.decoder_layers > 1:
                self.above = Recurrent(
                    c.cell, c.hidden_dim + context_dim, c.hidden_dim, c.decoder_layers - 1, dropout_p=c.dropout
                )
        else:
            self.decoder = Recurrent(
                c.cell, c.embed_dim + context_dim, c.hidden_dim, c.decoder_layers, dropout_p=c.dropout
            )
        self.output_proj = nn.Linear(c.hidden_dim + context_dim + c.embed_dim, c.embed_dim)
        self.output = nn.Linear(c.embed_dim, c.target_vocab_size)
        nn.init.zeros_(self.output.bias)
        if c.share != "none":
            self.output.weight = self.target_embed.weight

    def _encode(self, source_M: Tensor, segments: Segments) -> tuple[Tensor, Tensor, State]:
        """Encode sources: states h_MD, last state of the top layer c_BD, first decoder state."""
        c = self.config
        h_MD, last = self.encoder(self.dropout(self.source_embed(source_M)), segments)
        top = last[0].unflatten(0, (c.encoder_layers, self.encoder.directions))[-1]
        context_BD = top.transpose(0, 1).flatten(1)
        parts = torch.tanh(self.start_proj(context_BD)).chunk(self.encoder.num_parts, -1)
        start = tuple(
            part.unflatten(-1, (c.decoder_layers, c.hidden_dim)).transpose(0, 1).contiguous() for part in parts
        )
        return h_MD, context_BD, start

    def forward(
        self, source_M: Tensor, source_segments: Segments, target_N: Tensor, target_segments: Segments
    ) -> Tensor:
        h_MD, context_BD, state = self._encode(source_M, source_segments)
        y_ND = self.dropout(self.target_embed(target_N))
        if self.attention is None:
            context_ND = context_BD[target_segments.sequence_N()]
            s_ND, _ = self.decoder(torch.cat([y_ND, context_ND], -1), target_segments, state)
        elif self.config.attends == "before":
            step_by_step = eagerly(self._step_by_step)
            s_ND, context_ND = step_by_step(self.attention, h_MD, source_segments, y_ND, target_segments, state)
        else:
            s_ND, _ = self.decoder(y_ND, target_segments, tuple(part[:1] for part in state))
            context_ND = self.attention(s_ND, target_segments, h_MD, source_segments)
            if self.above is not None:
                above_ND = torch.cat([self.dropout(s_ND), context_ND], -1)
                s_ND, _ = self.above(above_ND, target_segments, tuple(part[1:] for part in state))
        return self._deep(y_ND, s_ND, context_ND)

    def _step_by_step(
        self,
        attention: StateAttention,
        h_MD: Tensor,
        source_segments: Segments,
        y_ND: Tensor,
        target_segments: Segments,
        state: State,
    ) -> tuple[Tensor, Tensor]:
        """Decode known targets step by step, longest first, so that those still going stand first at each time."""
        times = Times.of(target_segments)
        memory = attention.remember(h_MD, source_segments).select(times.order_B)
        state = tuple(part[:, times.order_B] for part in state)
        names = tuple(times.order_B.tolist())
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        q_segments = Segments.uniform(0, 1, y_ND.device)
        for y_BD in times.by_time(y_ND).split(times.sizes):
            if len(y_BD) != len(q_segments):
                going = len(y_BD)
                state = tuple(part[:, :going].contiguous() for part in state)
                memory = memory.first(going)
                q_segments = replace(Segments.uniform(going, 1, y_ND.device), origin=names[:going])
            context_BD = attention.step(state[0][-1], q_segments, memory)
            s_BD, state = self.decoder.step(torch.cat([y_BD, context_BD], -1), state)
            states.append(s_BD)
            contexts.append(context_BD)
        return times.by_sequence(torch.cat(states)), times.by_sequence(torch.cat(contexts))

    def _deep(self, y_ND: Tensor, s_ND: Tensor, context_ND: Tensor) -> Tensor:
        """Combine the last token, the state and the context for the output (Bahdanau et al. 2015, appendix A.2.2)."""
        return self.dropout(torch.tanh(self.output_proj(torch.cat([s_ND, context_ND, y_ND], -1))))

    def start(self, source_M: Tensor, segments: Segments, beams: int, room: Room | None = None) -> RNNState:
        h_MD, context_BD, state = self._encode(source_M, segments)
        state = tuple(part.repeat_interleave(beams, 1) for part in state)
        if self.attention is None:
            return RNNState(state, None, context_BD.repeat_interleave(beams, 0), beams)
        memory = self.attention.remember(h_MD, segments)
        memory = memory if room is None else memory.reserve(room.source_tokens, room.sources)
        return RNNState(state, memory, None, beams)

    def step(self, tokens_R: Tensor, state: RNNState) -> tuple[Tensor, RNNState]:
        y_RD, hidden = self.dropout(self.target_embed(tokens_R)), state.state
        if self.attention is None or state.memory is None:
            context_RD = cast(Tensor, state.context_RD)
            s_RD, hidden = self.decoder.step(torch.cat([y_RD, context_RD], -1), hidden)
            return self.head(self._deep(y_RD, s_RD, context_RD)), replace(state, state=hidden)
        q_segments = Segments.uniform(len(tokens_R) // state.beams, state.beams, tokens_R.device)
        if self.config.attends == "before":
            context_RD = self.attention.step(hidden[0][-1], q_segments, state.memory)
            s_RD, hidden = self.decoder.step(torch.cat([y_RD, context_RD], -1), hidden)
        else:
            s_RD, first = self.decoder.step(y_RD, tuple(part[:1] for part in hidden))
            context_RD = self.attention.step(s_RD, q_segments, state.memory)
            above: State = tuple(part[1:] for part in hidden)
            if self.above is not None:
                s_RD, above = self.above.step(torch.cat([self.dropout(s_RD), context_RD], -1), above)
            hidden = tuple(torch.cat(both) for both in zip(first, above, strict=True))
        return self.head(self._deep(y_RD, s_RD, context_RD)), replace(state, state=hidden)


register(
    Family(
        name="rnn",
        config=RNNConfig,
        build=RNN,
        tiny=(
            RNNConfig(23, 29, "gru", "additive", "before", 8, 16, 12),
            RNNConfig(23, 29, "lstm", "general", "before", 8, 16, 16, 2, 2),
            RNNConfig(23, 23, "rnn", "scaled-dot", "before", 8, 16, 16, bidirectional=False, share="all"),
            RNNConfig(23, 29, "gru", "none", "before", 8, 16, 16, 2, 1, share="none"),
            RNNConfig(23, 29, "gru", "additive", "after", 8, 16, 12),
            RNNConfig(23, 29, "lstm", "dot", "after", 8, 16, 16, 1, 3),
        ),
    )
)
