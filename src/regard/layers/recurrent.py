"""Recurrent layers over flat rows, and attention from a recurrent state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from regard.attention import KVCache, Segments, Site, attend
from regard.attention.compiling import eagerly
from regard.attention.scores import Additive, Dot, General, ScaledDot, Score
from regard.errors import ConfigError, DataError, UsageError
from regard.layers.cells import GRU, LSTM, Elman, State, unroll

CellName = Literal["rnn", "lstm", "gru"]


class Recurrent(nn.Module):
    """h_t = f_W(x_t, h_{t−1}) over every sequence of a batch.

    Args:
        cell: ``rnn`` (Elman, tanh), ``lstm`` or ``gru``.
        input_dim: Width of x.
        hidden_dim: Width of h, for each direction.
        num_layers: Layers, one on top of the other.
        bidirectional: Read each sequence from both ends; the result has both directions' states.
        dropout_p: Between layers, in training.

    Raises:
        ConfigError: The cell has no such name.

    Source: Elman 1990; Hochreiter & Schmidhuber 1997; Cho et al. 2014, §2.3; Schuster & Paliwal 1997.
    """

    def __init__(
        self,
        cell: CellName,
        input_dim: int,
        hidden_dim: int,
        num_layers: int = 1,
        *,
        bidirectional: bool = False,
        dropout_p: float = 0.0,
    ) -> None:
        super().__init__()
        kinds = {"rnn": (nn.RNN, Elman), "lstm": (nn.LSTM, LSTM), "gru": (nn.GRU, GRU)}
        if cell not in kinds:
            raise ConfigError(f"unknown cell {cell!r}", mend=f"choose from {', '.join(kinds)}")
        kind, self.cell = kinds[cell]
        self.num_parts = self.cell.num_parts
        self.directions = 2 if bidirectional else 1
        self.layers = kind(
            input_dim,
            hidden_dim,
            num_layers,
            bidirectional=bidirectional,
            dropout=dropout_p if num_layers > 1 else 0.0,
        )

    def forward(self, x_ND: Tensor, segments: Segments, state: State | None = None) -> tuple[Tensor, State]:
        """Run over whole sequences.

        Args:
            x_ND: Tokens.
            segments: Which belong together; each has at least one token.
            state: Where to start from; None is zeros.

        Returns:
            h_ND of the top layer (both directions side by side), and the last state of each layer and direction.

        Raises:
            DataError: A sequence has no token.
        """
        return eagerly(self._run)(x_ND, segments, state)

    def _run(self, x_ND: Tensor, segments: Segments, state: State | None) -> tuple[Tensor, State]:
        times, w_h = Times.of(segments), self._weights(0)[1]
        if state is None:
            shape = (self.layers.num_layers * self.directions, len(segments), self.layers.hidden_size)
            state = tuple(w_h.new_zeros(shape) for _ in range(self.num_parts))
        else:
            state = tuple(part[:, times.order_B].to(w_h.dtype) for part in state)
        run = self._run_packed if x_ND.is_cuda else self._run_unrolled
        h_ND, last = run(times.by_time(x_ND), times, state)
        return times.by_sequence(h_ND), tuple(part[:, times.back_B] for part in last)

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        """Run one step of each sequence.

        Args:
            x_BD: One token of each.
            state: Where each stands.

        Returns:
            h_BD of the top layer, and the new state.

        Raises:
            UsageError: The layer reads from both ends, and so cannot go step by step.
        """
        if self.directions == 2:
            raise UsageError("a step of a bidirectional layer", where="Recurrent.step", mend="run whole sequences")
        dtype = self._weights(0)[1].dtype  # under autocast, what linear layers make of a state is narrower
        with self._exact(x_BD):
            return self._step(x_BD.to(dtype), tuple(part.to(dtype) for part in state))

    def _exact(self, x: Tensor) -> torch.autocast:
        """Leave autocast: what a recurrence rounds, it rounds at every time (and cuDNN's would be float16)."""
        return torch.autocast(x.device.type, enabled=False)

    def _step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        if x_BD.is_cuda:
            hidden, last = self.layers(x_BD[None], state if self.num_parts == 2 else state[0])
            return hidden[0], last if self.num_parts == 2 else (last,)
        after = []
        for layer in range(self.layers.num_layers):
            w_x, w_h, b_x, b_h = self._weights(layer)
            before = tuple(part[layer] for part in state)
            gates = nn.functional.linear(x_BD, w_x, b_x), nn.functional.linear(before[0], w_h, b_h)
            after.append(self.cell.forward(*gates, before)[0])
            x_BD = after[-1][0]
            if layer < self.layers.num_layers - 1:
                x_BD = nn.functional.dropout(x_BD, self.layers.dropout, self.training)
        return x_BD, tuple(torch.stack(part) for part in zip(*after, strict=True))

    def _run_packed(self, rows_ND: Tensor, times: Times, state: State) -> tuple[Tensor, State]:
        """Run PyTorch's kernel: on a GPU, one launch for all times."""
        with self._exact(rows_ND):
            packed = PackedSequence(rows_ND.to(state[0].dtype), torch.tensor(times.sizes))
            hidden, last = self.layers(packed, state if self.num_parts == 2 else state[0])
        return hidden.data, last if self.num_parts == 2 else (last,)

    def _run_unrolled(self, rows_ND: Tensor, times: Times, state: State) -> tuple[Tensor, State]:
        """Run time by time, both directions at once: the second one reads every sequence from its end."""
        last: list[State] = []
        for layer in range(self.layers.num_layers):
            numbers = range(layer * self.directions, (layer + 1) * self.directions)
            parameters = [self._weights(layer, direction) for direction in range(self.directions)]
            w_x, w_h, b_x, b_h = (torch.stack(kind) for kind in zip(*parameters, strict=True))
            x_DNE = rows_ND[None] if self.directions == 1 else torch.stack([rows_ND, times.mirrored(rows_ND)])
            gates_DNG = torch.baddbmm(b_x[:, None], x_DNE, w_x.transpose(1, 2))
            start = tuple(part[numbers.start : numbers.stop] for part in state)
            h_DNH, end = unroll(self.cell, gates_DNG, w_h, b_h, start, times.sizes)
            last.append(end)
            rows_ND = h_DNH[0] if self.directions == 1 else torch.cat([h_DNH[0], times.mirrored(h_DNH[1])], -1)
            if layer < self.layers.num_layers - 1:
                rows_ND = nn.functional.dropout(rows_ND, self.layers.dropout, self.training)
        return rows_ND, tuple(torch.cat(part) for part in zip(*last, strict=True))

    def _weights(self, layer: int, direction: int = 0) -> tuple[Tensor, ...]:
        """Give the weights and biases of a layer's gates, from its input and from its state."""
        suffix = f"l{layer}{'_reverse' if direction else ''}"
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return tuple(getattr(self.layers, f"{name}_{suffix}") for name in names)


@dataclass(frozen=True)
class Times:
    """The order in which a recurrence reads a batch: all first tokens, then all second ones, and so on.

    Of the tokens at one time, those of the longest sequences stand first, so that those still going are always first.

    Attributes:
        order_N: Row of the token at each place.
        back_N: Place of each row.
        order_B: Sequence of each rank, the longest first.
        back_B: Rank of each sequence.
        sizes: How many sequences have a token at each time.
        mirror_N: For each place that of the token as far from its sequence's end; its own inverse.
    """

    order_N: Tensor
    back_N: Tensor
    order_B: Tensor
    back_B: Tensor
    sizes: list[int]
    mirror_N: Tensor

    def by_time(self, x_ND: Tensor) -> Tensor:
        """Bring the rows of a batch into this order.

        Args:
            x_ND: Sequence after sequence.

        Returns:
            Time after time.
        """
        return _Permute.apply(x_ND, self.order_N, self.back_N)

    def by_sequence(self, x_ND: Tensor) -> Tensor:
        """Bring rows in this order back into that of the batch.

        Args:
            x_ND: Time after time.

        Returns:
            Sequence after sequence.
        """
        return _Permute.apply(x_ND, self.back_N, self.order_N)

    def mirrored(self, x_ND: Tensor) -> Tensor:
        """Turn each sequence round.

        Args:
            x_ND: Time after time.

        Returns:
            Likewise, the last token of each sequence first.
        """
        return _Permute.apply(x_ND, self.mirror_N, self.mirror_N)

    @staticmethod
    def of(segments: Segments) -> Times:
        """Find the order for a batch, once.

        Args:
            segments: The sequences, each of at least one token.

        Returns:
            The order, on their device.

        Raises:
            DataError: A sequence has no token.
        """
        return segments.derived("times", lambda: Times._make(segments.lengths, segments.lengths_B.device))

    @staticmethod
    def _make(lengths: Sequence[int], device: torch.device) -> Times:
        lengths_B = torch.tensor(lengths, dtype=torch.int64)
        if len(lengths_B) == 0 or int(lengths_B.min()) < 1:
            raise DataError("a recurrent layer met a sequence without tokens")
        order_B = torch.argsort(lengths_B, descending=True, stable=True)
        times_T1 = torch.arange(int(lengths_B.max()))[:, None]
        there_TB = times_T1 < lengths_B[order_B]
        starts_B = (lengths_B.cumsum(0) - lengths_B)[order_B]
        order_N = (starts_B + times_T1)[there_TB]
        mirrored_N = (starts_B + lengths_B[order_B] - 1 - times_T1)[there_TB]
        back_N = torch.argsort(order_N)
        return Times(
            order_N.to(device),
            back_N.to(device),
            order_B.to(device),
            torch.argsort(order_B).to(device),
            there_TB.sum(1).tolist(),
            back_N[mirrored_N].to(device),
        )


class _Permute(torch.autograd.Function):
    """x[order]. The gradient is a gather too: left to autograd, it would be added up row by row."""

    @staticmethod
    def forward(x_ND: Tensor, order_N: Tensor, back_N: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        return x_ND.index_select(0, order_N)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyrefly: ignore[bad-override]
        order_N, back_N = ctx.saved_tensors
        return _Permute.apply(grad, back_N, order_N), None, None


class StateAttention(Site):
    """A new context from each decoder state.

    e_{t,i} = score(W_s s, W_h h_i);  a_t = softmax(e_t);  c_t = Σ_i a_{t,i} h_i

    Args:
        state_dim: Width of the decoder state s.
        context_dim: Width of the encoder states h.
        attention_dim: Width in which the two are compared.
        score: ``additive``, ``dot``, ``scaled-dot`` or ``general``.

    Raises:
        ConfigError: The score has no such name.

    Source: Bahdanau et al. 2015, §3.1 and appendix A.1.2; Luong et al. 2015, §3.1.
    """

    def __init__(self, state_dim: int, context_dim: int, attention_dim: int, score: str = "additive") -> None:
        super().__init__()
        scores: dict[str, type[Score]] = {"additive": Additive, "dot": Dot, "scaled-dot": ScaledDot, "general": General}
        if score not in scores:
            raise ConfigError(f"unknown attention score {score!r}", mend=f"choose from {', '.join(scores)}")
        has_parameters = score in ("additive", "general")
        self.score = scores[score](1, attention_dim) if has_parameters else scores[score]()
        self.q_proj = nn.Linear(state_dim, attention_dim)
        self.k_proj = nn.Linear(context_dim, attention_dim, bias=False)  # one bias in the sum is enough

    def remember(self, h_MD: Tensor, segments: Segments) -> KVCache:
        """Project the encoder states and lay both out as slots, once for all steps.

        Args:
            h_MD: Encoder states of all sources.
            segments: Which belong together.

        Returns:
            What :meth:`step` looks at: W_h h as keys, h as values.
        """
        return KVCache.filled(self._keys(h_MD), h_MD[:, None], segments)

    def step(self, state_BD: Tensor, q_segments: Segments, memory: KVCache) -> Tensor:
        """Look at the source from one decoder state, or from one of each beam.

        Args:
            state_BD: Decoder states, one or several (beams) for each source.
            q_segments: Which of them belong to one source.
            memory: From :meth:`remember`, a slot a source.

        Returns:
            c_BD, the contexts.
        """
        keys, values = memory.k_BCGK.flatten(0, 1), memory.v_BCGK.flatten(0, 1)
        return self._attend(state_BD, q_segments, keys, values, memory.segments)

    def forward(self, state_ND: Tensor, q_segments: Segments, h_MD: Tensor, segments: Segments) -> Tensor:
        """Look at the source from all decoder states at once.

        Args:
            state_ND: Decoder states.
            q_segments: Which of them belong to one source.
            h_MD: Encoder states of all sources.
            segments: Which belong together.

        Returns:
            c_ND, the contexts.
        """
        return self._attend(state_ND, q_segments, self._keys(h_MD), h_MD[:, None], segments)

    def _keys(self, h_MD: Tensor) -> Tensor:
        return self.k_proj(h_MD)[:, None].to(h_MD.dtype)  # under autocast only projections are narrow

    def _attend(
        self, state_ND: Tensor, q_segments: Segments, keys: Tensor, values: Tensor, segments: Segments
    ) -> Tensor:
        queries = self.q_proj(state_ND)[:, None].to(values.dtype)
        # Keys and values differ in width here; on a GPU the formula's own backend alone takes that for every score.
        backend = None if values.is_cpu else "reference"
        return attend(queries, keys, values, q_segments, segments, score=self.score, backend=backend, site=self)[:, 0]
