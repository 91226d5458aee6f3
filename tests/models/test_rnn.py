"""The recurrent encoder–decoder against torch's recurrent layers, run on each sequence alone, and against loops."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.errors import ConfigError, DataError, UsageError
from regard.layers.cells import GRU, LSTM, Cell, Elman, unroll
from regard.layers.recurrent import Recurrent, StateAttention, Times
from regard.models.registry import family
from regard.models.rnn import RNN, RNNConfig

CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
LENGTHS = (3, 7, 1, 7, 2)


def seeded(model: nn.Module) -> nn.Module:
    """In float64, with weights large enough that states are far from linear."""
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return model


def parts(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


# --------------------------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_every_sequence_as_if_alone(cell: str, num_layers: int, bidirectional: bool) -> None:
    ours = seeded(Recurrent(cell, 5, 7, num_layers, bidirectional=bidirectional))
    theirs = CELLS[cell](5, 7, num_layers, bidirectional=bidirectional, batch_first=True).double()
    theirs.load_state_dict(ours.layers.state_dict())
    x_ND = torch.randn(sum(LENGTHS), 5, dtype=torch.float64)
    first = tuple(
        torch.randn(num_layers * (1 + bidirectional), len(LENGTHS), 7, dtype=torch.float64)
        for _ in range(ours.num_parts)
    )
    for start in (None, first):
        h_ND, last = ours(x_ND, Segments.ragged(LENGTHS), start)
        assert len(last) == (2 if cell == "lstm" else 1)
        for place, (x_TD, h_TD) in enumerate(zip(x_ND.split(LENGTHS), h_ND.split(LENGTHS), strict=True)):
            own = None if start is None else tuple(part[:, place : place + 1].contiguous() for part in start)
            wanted, wanted_last = theirs(x_TD[None], own if own is None or cell == "lstm" else own[0])
            assert torch.allclose(h_TD, wanted[0], atol=1e-10, rtol=0)
            for part, right in zip(last, parts(wanted_last), strict=True):
                assert torch.allclose(part[:, place], right[:, 0], atol=1e-10, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_steps_equal_the_whole(cell: str) -> None:
    ours = seeded(Recurrent(cell, 5, 7, 2))
    x_BTD = torch.randn(3, 4, 5, dtype=torch.float64)
    whole_ND, last = ours(x_BTD.flatten(0, 1), Segments.uniform(3, 4))
    state = tuple(torch.zeros(2, 3, 7, dtype=torch.float64) for _ in range(ours.num_parts))
    for time in range(4):
        h_BD, state = ours.step(x_BTD[:, time], state)
        assert torch.allclose(h_BD, whole_ND.unflatten(0, (3, 4))[:, time], atol=1e-12)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(state, last, strict=True))


@pytest.mark.parametrize("cell", CELLS)
def test_under_autocast_states_keep_the_weights_precision(cell: str) -> None:
    """What a recurrence rounds, it rounds at every time; so the step and the whole agree there as well."""
    ours = Recurrent(cell, 5, 7, 2)
    x_BTD = torch.randn(3, 4, 5)
    with torch.autocast("cpu", torch.bfloat16):
        whole_ND, last = ours(x_BTD.flatten(0, 1), Segments.uniform(3, 4))
        state = tuple(torch.zeros(2, 3, 7) for _ in range(ours.num_parts))
        for time in range(4):
            narrow_BD = x_BTD[:, time].bfloat16()  # as a linear layer gives it there
            h_BD, state = ours.step(narrow_BD, state)
            # The gates' input part of the whole is one bfloat16 product; of the step it is float32.
            assert torch.allclose(h_BD, whole_ND.unflatten(0, (3, 4))[:, time], atol=2e-2)
    assert {part.dtype for part in (whole_ND, h_BD, *last, *state)} == {torch.float32}
    gradient = torch.autograd.grad(whole_ND.sum(), ours.layers.weight_hh_l0)[0]
    exact, _ = ours(x_BTD.flatten(0, 1), Segments.uniform(3, 4))
    wanted = torch.autograd.grad(exact.sum(), ours.layers.weight_hh_l0)[0]
    assert torch.allclose(gradient, wanted, atol=0.02 * float(wanted.abs().max()))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("config", family("rnn").tiny)
def test_under_autocast_models_train_and_step(config: RNNConfig, device: str) -> None:
    """Linear layers give narrow states to start from there; a recurrence has its weights' precision all the same."""
    model = RNN(replace(config, dropout=0.0)).to(device)
    source_M, target_N = (torch.randint(5, 23, (7,), device=device) for _ in range(2))
    segments = Segments.ragged([4, 3], device), Segments.ragged([2, 5], device)
    found: dict[bool, tuple[Tensor, Tensor]] = {}
    for is_narrow in (False, True):
        with torch.autocast(device, torch.bfloat16, enabled=is_narrow):
            y_ND = model(source_M, segments[0], target_N, segments[1])
            state, steps = model.start(source_M, segments[0], 1), []
            for time in range(2):
                scores_BV, state = model.step(target_N[[time, 2 + time]], state)
                steps.append(scores_BV)
            whole_NV = model.head(y_ND)
        gradients = torch.autograd.grad(whole_NV.float().square().sum(), list(model.parameters()))
        gradient = torch.cat([one.flatten() for one in gradients])
        assert {part.dtype for part in state.state} == {torch.float32}
        torch.testing.assert_close(torch.cat(steps), whole_NV[[0, 2, 1, 3]], atol=3e-2 if is_narrow else 1e-5, rtol=0)
        found[is_narrow] = whole_NV.float(), gradient
    for narrow, exact in zip(found[True], found[False], strict=True):
        assert (narrow - exact).norm() <= 0.05 * exact.norm()


def test_dropout_between_layers_in_training_alone() -> None:
    ours = Recurrent("gru", 5, 7, 2, dropout_p=0.5)
    x_BD, segments = torch.randn(3, 5), Segments.uniform(3, 1)
    state = (torch.zeros(2, 3, 7),)
    for run in (lambda: ours(x_BD, segments)[0], lambda: ours.step(x_BD, state)[0]):
        ours.train()
        assert not torch.equal(run(), run())
        ours.eval()
        assert torch.equal(run(), run())
    model = seeded(RNN(replace(CONFIG, attends="after", decoder_layers=2)))
    source_M, target_N = tokens()
    batch = source_M, Segments.ragged(SOURCES), target_N, Segments.ragged(TARGETS)
    model.dropout.p = 0.5
    model.source_embed = model.target_embed = torch.nn.Embedding.from_pretrained(torch.zeros(13, 3).double())
    plain = model.eval()._deep  # dropout of embeddings has nothing to drop here, and that before the output is left out
    model._deep = lambda y_ND, s_ND, context_ND: s_ND
    assert not torch.equal(model.train()(*batch), model(*batch))
    assert torch.equal(model.eval()(*batch), model(*batch))
    model._deep = plain


def test_a_bidirectional_layer_does_not_step() -> None:
    with pytest.raises(UsageError, match="bidirectional"):
        Recurrent("gru", 5, 7, bidirectional=True).step(torch.zeros(3, 5), (torch.zeros(2, 3, 7),))


def test_segments_that_were_looked_at_can_be_trained_on() -> None:
    layer, segments = Recurrent("gru", 5, 7, bidirectional=True), Segments.ragged((1, 4, 2))
    x_ND = torch.randn(7, 5)
    with torch.inference_mode():
        layer(x_ND, segments)
    layer(x_ND, segments)[0].sum().backward()
    assert layer.layers.weight_hh_l0_reverse.grad is not None


@pytest.mark.cuda
@pytest.mark.parametrize("attends", ["before", "after"])
@pytest.mark.parametrize("cell", CELLS)
def test_on_cuda_as_on_the_cpu(cell: str, attends: str) -> None:
    model = seeded(RNN(replace(CONFIG, cell=cell, attends=attends, decoder_layers=2)))
    source_M, target_N = tokens()
    results = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        segments = [Segments.ragged(lengths, device) for lengths in (SOURCES, TARGETS)]
        logits_NV = model.head(model(source_M.to(device), segments[0], target_N.to(device), segments[1]))
        logits_NV.square().sum().backward()
        results.append([logits_NV.cpu(), *(p.grad.cpu().clone() for p in model.parameters() if p.grad is not None)])
        state = model.start(source_M.to(device), segments[0], 2)
        results[-1].append(model.step(torch.arange(6, device=device), state)[0].cpu())
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)


def test_a_sequence_without_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="without tokens"):
        Recurrent("gru", 5, 7)(torch.zeros(3, 5), Segments.ragged([3, 0]))


# -------------------------------------------------------------------------------------------------- attention, in loops


def matvec(weight: Tensor, vector: list[float], bias: Tensor | None = None) -> list[float]:
    rows = [sum(w * x for w, x in zip(row, vector, strict=True)) for row in weight.tolist()]
    return rows if bias is None else [value + b for value, b in zip(rows, bias.tolist(), strict=True)]


def softmax(scores: list[float]) -> list[float]:
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def loop_context(attention: StateAttention, score: str, state: list[float], h: list[list[float]]) -> list[float]:
    """c = Σ_i a_i h_i; e_i = vᵀ tanh(W_s s + W_h h_i) (Bahdanau et al.), or q·k, q·k/√K, qᵀ W k (Luong et al.)."""
    query = matvec(attention.q_proj.weight, state, attention.q_proj.bias)
    scores = []
    for vector in h:
        key = matvec(attention.k_proj.weight, vector)
        if score == "additive":
            inner = [math.tanh(q + k) for q, k in zip(query, key, strict=True)]
            scores.append(sum(v * x for v, x in zip(attention.score.v_HK[0].tolist(), inner, strict=True)))
            continue
        if score == "general":
            key = matvec(attention.score.weight_HKK[0], key)
        product = sum(q * k for q, k in zip(query, key, strict=True))
        scores.append(product / math.sqrt(len(query)) if score == "scaled-dot" else product)
    weights = softmax(scores)
    return [sum(a * vector[d] for a, vector in zip(weights, h, strict=True)) for d in range(len(h[0]))]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def loop_gru(cell: nn.GRU, layer: int, x: list[float], h: list[float]) -> list[float]:
    """r = σ(W_r x + U_r h), z = σ(W_z x + U_z h), n = tanh(W_n x + r (U_n h)), h' = (1 − z) n + z h."""
    from_x = matvec(getattr(cell, f"weight_ih_l{layer}"), x, getattr(cell, f"bias_ih_l{layer}"))
    from_h = matvec(getattr(cell, f"weight_hh_l{layer}"), h, getattr(cell, f"bias_hh_l{layer}"))
    size, new = len(h), []
    for d in range(size):
        r, z = sigmoid(from_x[d] + from_h[d]), sigmoid(from_x[size + d] + from_h[size + d])
        n = math.tanh(from_x[2 * size + d] + r * from_h[2 * size + d])
        new.append((1 - z) * n + z * h[d])
    return new


CONFIG = RNNConfig(11, 13, "gru", "additive", "before", 3, 5, 4, dropout=0.0)
SOURCES, TARGETS = (4, 1, 6), (3, 5, 2)


def tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 11, (sum(SOURCES),)), torch.randint(0, 13, (sum(TARGETS),))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("attends", ["before", "after"])
@pytest.mark.parametrize("attention", ["additive", "dot", "scaled-dot", "general", "none"])
def test_the_decoder_in_loops(attention: str, attends: str, layers: int) -> None:
    model = seeded(RNN(replace(CONFIG, attention=attention, attends=attends, decoder_layers=layers)))
    source_M, target_N = tokens()
    logits_NV = model.head(model(source_M, Segments.ragged(SOURCES), target_N, Segments.ragged(TARGETS)))
    encoder = nn.GRU(3, 5, bidirectional=True, batch_first=True).double()
    encoder.load_state_dict(model.encoder.layers.state_dict())
    assert logits_NV.std() > 0.2
    with torch.no_grad():
        for source, target, got_TV in zip(
            source_M.split(SOURCES), target_N.split(TARGETS), logits_NV.split(TARGETS), strict=True
        ):
            h_BSD, last = encoder(model.source_embed(source)[None])
            h, summary = h_BSD[0].tolist(), last[:, 0].flatten().tolist()
            start = [math.tanh(x) for x in matvec(model.start_proj.weight, summary, model.start_proj.bias)]
            states = [start[5 * layer : 5 * layer + 5] for layer in range(layers)]
            for token, got_V in zip(target, got_TV, strict=True):
                y = model.target_embed.weight[token].tolist()
                if attention == "none" or attends == "before":
                    # The context comes from the state before this token (Bahdanau et al. 2015, §3.1).
                    context = summary
                    if attention != "none":
                        context = loop_context(model.attention, attention, states[-1], h)
                    below = [*y, *context]
                    for layer in range(layers):
                        states[layer] = below = loop_gru(model.decoder.layers, layer, below, states[layer])
                else:
                    # From the state after it (Luong et al. 2015, §3).
                    states[0] = loop_gru(model.decoder.layers, 0, y, states[0])
                    context = loop_context(model.attention, attention, states[0], h)
                    for layer in range(1, layers):
                        below = [*states[layer - 1], *(context if layer == 1 else [])]
                        states[layer] = loop_gru(model.above.layers, layer - 1, below, states[layer])
                deep = matvec(model.output_proj.weight, [*states[-1], *context, *y], model.output_proj.bias)
                wanted_V = matvec(model.output.weight, [math.tanh(x) for x in deep], model.output.bias)
                assert got_V.tolist() == pytest.approx(wanted_V, abs=1e-10)


@pytest.mark.parametrize("cell", CELLS)
def test_the_start_state_comes_from_the_last_states_of_both_directions(cell: str) -> None:
    model = seeded(RNN(replace(CONFIG, cell=cell, encoder_layers=2, decoder_layers=2)))
    encoder = CELLS[cell](3, 5, 2, bidirectional=True, batch_first=True).double()
    encoder.load_state_dict(model.encoder.layers.state_dict())
    source_M, _ = tokens()
    state = model.start(source_M, Segments.ragged(SOURCES), 2).state
    assert [part.shape for part in state] == [(2, 2 * len(SOURCES), 5)] * (2 if cell == "lstm" else 1)
    for place, source in enumerate(source_M.split(SOURCES)):
        h_BSD, last = encoder(model.source_embed(source)[None])
        top = torch.cat(
            [h_BSD[0, -1, :5], h_BSD[0, 0, 5:]]
        )  # the forward direction ends at the end, the other at the start
        assert torch.allclose(top, parts(last)[0][-2:, 0].flatten())
        wanted = torch.tanh(model.start_proj(top)).unflatten(-1, (len(state), 2, 5))
        for part, wanted_LD in zip(state, wanted, strict=True):
            for beam in range(2):
                assert torch.allclose(part[:, 2 * place + beam], wanted_LD, atol=1e-12)


@pytest.mark.parametrize(
    "change",
    [{"share": "all"}, {"share": "some"}, {"cell": "elman"}, {"attention": "multiplicative"}, {"attends": "sideways"}],
)
def test_settings_that_cannot_be_built_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        RNN(replace(CONFIG, **change))


@pytest.mark.parametrize("cell", CELLS)
def test_our_run_and_pytorchs_kernel_agree(cell: str) -> None:
    layer = seeded(Recurrent(cell, 5, 7, 2, bidirectional=True))
    segments = Segments.ragged((1, 5, 3, 3, 1))
    rows_ND = torch.randn(13, 5, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(4, 5, 7, dtype=torch.float64, requires_grad=True) for _ in range(layer.num_parts))
    runs = [run(rows_ND, Times.of(segments), state) for run in (layer._run_unrolled, layer._run_packed)]
    # Different weights for every number, so that a gradient in the wrong place shows.
    # Different weights for every number, so that a gradient in the wrong place shows.
    weights = [torch.randn_like(part) for part in (runs[0][0], *runs[0][1])]
    results = []
    for h_ND, last in runs:
        loss = sum((part * weight).sum() for part, weight in zip((h_ND, *last), weights, strict=True))
        results.append((h_ND, *last, *torch.autograd.grad(loss, [rows_ND, *state, *layer.parameters()])))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("cell", [Elman, GRU, LSTM])
def test_the_derivatives_of_cells(cell: type[Cell]) -> None:
    """Against finite differences."""
    sizes = [3, 2, 2, 1]
    shapes = [(2, 8, 4 * cell.num_gates), (2, 4 * cell.num_gates, 4), (2, 4 * cell.num_gates)]
    shapes += [(2, 3, 4)] * cell.num_parts
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def run(x_DNG: Tensor, w_DGH: Tensor, b_DG: Tensor, *start: Tensor) -> tuple[Tensor, ...]:
        h_DNH, last = unroll(cell, x_DNG, w_DGH, b_DG, start, sizes)
        return h_DNH, *last

    assert torch.autograd.gradcheck(run, inputs)


def test_rows_go_into_the_order_of_times_and_back():
    """So do their gradients, and those of these."""
    segments = Segments.ragged([3, 1, 4])
    times = Times.of(segments)
    x_ND = torch.arange(8.0).double()[:, None]
    assert times.by_time(x_ND)[:, 0].tolist() == [4, 0, 3, 5, 1, 6, 2, 7]
    assert torch.equal(times.by_sequence(times.by_time(x_ND)), x_ND)
    assert times.by_sequence(times.mirrored(times.by_time(x_ND)))[:, 0].tolist() == [2, 1, 0, 3, 7, 6, 5, 4]
    x_ND = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    for way in (times.by_time, times.by_sequence, times.mirrored):
        assert torch.autograd.gradcheck(way, x_ND)
        assert torch.autograd.gradgradcheck(way, x_ND)
