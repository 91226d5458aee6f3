"""Recurrent layers over flat rows, and attention from a recurrent state."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from regard.attention import KVCache, Segments, Site, attend
from regard.attention.scores import Additive, Dot, General, ScaledDot, Score
from regard.errors import ConfigError, DataError

Cell = Literal["rnn", "lstm", "gru"]

# A recurrent state: (layers, B, hidden) of each part; LSTMs have two parts, the others one.
State = tuple[Tensor, ...]


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
        cell: Cell,
        input_dim: int,
        hidden_dim: int,
        num_layers: int = 1,
        *,
        bidirectional: bool = False,
        dropout_p: float = 0.0,
    ) -> None:
        super().__init__()
        kinds = {"rnn": (nn.RNN, rnn_cell), "lstm": (nn.LSTM, lstm_cell), "gru": (nn.GRU, gru_cell)}
        if cell not in kinds:
            raise ConfigError(f"unknown cell {cell!r}", mend=f"choose from {', '.join(kinds)}")
        kind, self.cell = kinds[cell]
        self.num_parts = 2 if cell == "lstm" else 1
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
        order_N, back_N, order_B, back_B, sizes_T = time_major(segments)
        if state is None:
            shape = (self.layers.num_layers * self.directions, len(segments), self.layers.hidden_size)
            state = tuple(x_ND.new_zeros(shape) for _ in range(self.num_parts))
        else:
            state = tuple(part[:, order_B] for part in state)
        run = self._run_packed if x_ND.is_cuda else self._run_loop
        h_ND, last = run(x_ND[order_N], sizes_T, state)
        return h_ND[back_N], tuple(part[:, back_B] for part in last)

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        """Run one step of each sequence.

        Args:
            x_BD: One token of each.
            state: Where each stands.

        Returns:
            h_BD of the top layer, and the new state.
        """
        if x_BD.is_cuda:
            hidden, last = self.layers(x_BD[None], state if self.num_parts == 2 else state[0])
            return hidden[0], last if self.num_parts == 2 else (last,)
        after = []
        for layer in range(self.layers.num_layers):
            w_x, w_h, b_x, b_h = self._weights(layer)
            before = tuple(part[layer] for part in state)
            gates = nn.functional.linear(x_BD, w_x, b_x), nn.functional.linear(before[0], w_h, b_h)
            after.append(self.cell(*gates, before))
            x_BD = after[-1][0]
            if layer < self.layers.num_layers - 1:
                x_BD = nn.functional.dropout(x_BD, self.layers.dropout, self.training)
        return x_BD, tuple(torch.stack(part) for part in zip(*after, strict=True))

    def _run_packed(self, rows_ND: Tensor, sizes_T: Tensor, state: State) -> tuple[Tensor, State]:
        """Run PyTorch's kernel: on a GPU, one launch for all times."""
        packed = PackedSequence(rows_ND, sizes_T)
        hidden, last = self.layers(packed, state if self.num_parts == 2 else state[0])
        return hidden.data, last if self.num_parts == 2 else (last,)

    def _run_loop(self, rows_ND: Tensor, sizes_T: Tensor, state: State) -> tuple[Tensor, State]:
        """Run time by time.

        On a CPU that is what PyTorch's kernel does too, but there the gradient of every time is written into zeros for
        all times: a good part of a small model's training step.
        """
        sizes = sizes_T.tolist()
        last: list[State] = []
        for layer in range(self.layers.num_layers):
            sides = []
            for direction in range(self.directions):
                number = layer * self.directions + direction
                start = tuple(part[number] for part in state)
                states, end = self._run_direction(
                    rows_ND, sizes, start, self._weights(layer, direction), direction == 1
                )
                sides.append(torch.cat(states))
                last.append(end)
            rows_ND = torch.cat(sides, -1) if self.directions == 2 else sides[0]
            if layer < self.layers.num_layers - 1:
                rows_ND = nn.functional.dropout(rows_ND, self.layers.dropout, self.training)
        return rows_ND, tuple(torch.stack(part) for part in zip(*last, strict=True))

    def _run_direction(
        self, rows_ND: Tensor, sizes: list[int], start: State, weights: tuple[Tensor, ...], backwards: bool
    ) -> tuple[list[Tensor], State]:
        """Run one layer in one direction; give h of each time, and the last state of each sequence."""
        w_x, w_h, b_x, b_h = weights
        gates = nn.functional.linear(rows_ND, w_x, b_x).split(sizes)
        states: list[Tensor] = []
        ended: list[State] = []
        now = start if not backwards else tuple(part[: sizes[-1]] for part in start)
        for time in range(len(sizes) - 1, -1, -1) if backwards else range(len(sizes)):
            going, before = sizes[time], len(now[0])
            if going < before:  # forwards, the shortest end first
                ended.append(tuple(part[going:] for part in now))
                now = tuple(part[:going] for part in now)
            elif going > before:  # backwards, they begin last
                now = tuple(torch.cat([part, new[before:going]]) for part, new in zip(now, start, strict=True))
            now = self.cell(gates[time], nn.functional.linear(now[0], w_h, b_h), now)
            states.append(now[0])
        end = tuple(torch.cat(parts) for parts in zip(now, *reversed(ended), strict=True))
        return (states[::-1] if backwards else states), end

    def _weights(self, layer: int, direction: int = 0) -> tuple[Tensor, ...]:
        """Give the weights and biases of a layer's gates, from its input and from its state."""
        suffix = f"l{layer}{'_reverse' if direction else ''}"
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return tuple(getattr(self.layers, f"{name}_{suffix}") for name in names)


def rnn_cell(x_BG: Tensor, h_BG: Tensor, state: State) -> State:
    """Elman 1990: h = tanh(x + h), x and h being the projections of input and state."""
    return (torch.tanh(x_BG + h_BG),)


def gru_cell(x_BG: Tensor, h_BG: Tensor, state: State) -> State:
    """Cho et al. 2014, §2.3: r, z = σ(x + h);  n = tanh(x_n + r · h_n);  h = (1 − z) · n + z · h."""
    (x_r, x_z, x_n), (h_r, h_z, h_n) = x_BG.chunk(3, -1), h_BG.chunk(3, -1)
    new = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
    return (new + torch.sigmoid(x_z + h_z) * (state[0] - new),)


def lstm_cell(x_BG: Tensor, h_BG: Tensor, state: State) -> State:
    """Hochreiter & Schmidhuber 1997: i, f, o = σ(x + h);  g = tanh(x + h);  c = f · c + i · g;  h = o · tanh(c)."""
    i, f, g, o = (x_BG + h_BG).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def time_major(segments: Segments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Find the order in which recurrent kernels read a batch: all first tokens, then all second ones.

    Of the tokens at one time, those of the longest sequences stand first.

    Args:
        segments: The sequences, each of at least one token.

    Returns:
        Row of each place and place of each row; sequence of each rank and rank of each sequence, by length; and the
        number of sequences that have a token at each time (on the CPU).

    Raises:
        DataError: A sequence has no token.
    """
    if "time_major" not in segments._derived:
        lengths_B = torch.tensor(segments.lengths, dtype=torch.int64)
        if len(lengths_B) == 0 or int(lengths_B.min()) < 1:
            raise DataError("a recurrent layer met a sequence without tokens")
        order_B = torch.argsort(lengths_B, descending=True, stable=True)
        back_B = torch.argsort(order_B)
        times_T1 = torch.arange(int(lengths_B.max()))[:, None]
        there_TB = times_T1 < lengths_B[order_B]
        starts_B = (lengths_B.cumsum(0) - lengths_B)[order_B]
        order_N = (starts_B + times_T1)[there_TB]
        back_N = torch.empty_like(order_N)
        back_N[order_N] = torch.arange(len(order_N))
        device = segments.lengths_B.device
        moved = tuple(t.to(device) for t in (order_N, back_N, order_B, back_B))
        segments._derived["time_major"] = (*moved, there_TB.sum(1))
    return segments._derived["time_major"]


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
            What :meth:`forward` looks at: W_h h as keys, h as values.
        """
        k_M1K = self.k_proj(h_MD)[:, None].to(h_MD.dtype)  # under autocast only projections are narrow
        return KVCache.filled(k_M1K, h_MD[:, None], segments)

    def forward(self, state_BD: Tensor, q_segments: Segments, memory: KVCache) -> Tensor:
        """Look at the source from a decoder state.

        Args:
            state_BD: Decoder states, one or several (beams) for each source.
            q_segments: Which of them belong to one source.
            memory: From :meth:`remember`, a slot a source.

        Returns:
            c_BD, the contexts.
        """
        keys, values = memory.k_BCGK.flatten(0, 1), memory.v_BCGK.flatten(0, 1)
        queries = self.q_proj(state_BD)[:, None].to(values.dtype)
        # Keys and values differ in width here; the formula's own backend takes that for every score.
        context_B1D = attend(
            queries, keys, values, q_segments, memory.segments, score=self.score, backend="reference", site=self
        )
        return context_B1D[:, 0]
