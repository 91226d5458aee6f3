"""Recurrences by our own kernel, and their gradients, beside those that run time by time, in float64."""

import os
import subprocess
import sys

import pytest
import torch
from kernels.served import Served
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import Segments
from regard.kernels import native, recurrences
from regard.layers import cells
from regard.layers.cells import GRU, LSTM, Cell, Elman, unroll
from regard.layers.own_kernels import can_use_own_kernels, use_own_kernels
from regard.layers.recurrent import Recurrent
from regard.models.rnn import RNN, RNNConfig
from regard.training.blocks import quicken
from regard.training.hardware import threads_kept

CELLS = {"rnn": Elman, "gru": GRU, "lstm": LSTM}


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> Served:
    served = Served(recurrences.unroll)
    monkeypatch.setattr(cells, "own", served)
    return served


#            directions, hidden, how many sequences have a token at each time
SHAPES = {
    "one number": (1, 1, [1]),
    "odd sizes": (2, 13, [5, 5, 3, 1, 1]),
    "one sequence": (1, 32, [1] * 9),
    "more sequences than are taken at once": (2, 24, [130, 130, 101, 49, 48, 2]),
    "more inputs than are multiplied at once": (2, 270, [7, 7, 2]),
}


def drawn(cell: type[Cell], shape: str, scale: float = 1.0) -> tuple[list[Tensor], list[int]]:
    """Inputs, weights, biases and first states, and the sizes."""
    directions, hidden, sizes = SHAPES[shape]
    gates = cell.num_gates * hidden
    start = [torch.randn(directions, sizes[0], hidden) for _ in range(cell.num_parts)]
    x_DNG = scale * torch.randn(directions, sum(sizes), gates)
    return [x_DNG, torch.randn(directions, gates, hidden) / hidden**0.5, torch.randn(directions, gates), *start], sizes


def with_gradients(cell: type[Cell], leaves: list[Tensor], sizes: list[int], outs: list[Tensor]) -> list[Tensor]:
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    h_DNH, last = unroll(cell, *leaves[:3], tuple(leaves[3:]), sizes)
    results = [h_DNH, *last]
    return [*(one.detach() for one in results), *torch.autograd.grad(results, leaves, outs)]


def outs_of(cell: type[Cell], shape: str) -> list[Tensor]:
    directions, hidden, sizes = SHAPES[shape]
    return [torch.randn(directions, count, hidden) for count in (sum(sizes), *[sizes[0]] * cell.num_parts)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cell", CELLS.values())
def test_states_and_gradients(cell: type[Cell], shape: str, used: Served) -> None:
    leaves, sizes = drawn(cell, shape)
    outs = outs_of(cell, shape)
    found = with_gradients(cell, leaves, sizes, outs)
    assert used == [True]
    wanted = with_gradients(cell, [leaf.double() for leaf in leaves], sizes, [out.double() for out in outs])
    assert used == [True, False], "in float64 time by time"
    for one, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), want, atol=3e-5, rtol=3e-6)
    with torch.no_grad():
        h_DNH, last = unroll(cell, *leaves[:3], tuple(leaves[3:]), sizes)
    for one, same in zip(found, (h_DNH, *last), strict=False):
        assert torch.equal(one, same), "without gradients the same bits"


@pytest.mark.parametrize("cell", CELLS.values())
def test_any_number_of_threads_gives_the_same_bits(cell: type[Cell], used: Served) -> None:
    shape = "more sequences than are taken at once"
    leaves, sizes = drawn(cell, shape)
    outs, found = outs_of(cell, shape), []
    with threads_kept():
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            found.append(with_gradients(cell, leaves, sizes, outs))
    for other in found[1:]:
        # The weights' gradient is one product of PyTorch's, and biases' a sum of its.
        for place, (one, same) in enumerate(zip(found[0], other, strict=True)):
            is_pytorchs = place in (cell.num_parts + 2, cell.num_parts + 3)
            assert torch.allclose(one, same, atol=1e-4) if is_pytorchs else torch.equal(one, same)
    assert all(used)


def test_pytorchs_threads_share_the_work(used: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = native.load()[0]
    assert kernel is not None
    given: list[tuple] = []
    run, back = kernel.recurrence, kernel.recurrence_back
    monkeypatch.setattr(kernel, "recurrence", lambda *args: (given.append(args[1:]), run(*args)))
    monkeypatch.setattr(kernel, "recurrence_back", lambda *args: (given.append(args[2:]), back(*args)))
    leaves, sizes = drawn(GRU, "odd sizes")
    with threads_kept():
        torch.set_num_threads(2)
        with_gradients(GRU, leaves, sizes, outs_of(GRU, "odd sizes"))
    assert given == [(2, native.team())] * 2


@pytest.mark.parametrize("scale", [30.0, 1e4])
@pytest.mark.parametrize("cell", CELLS.values())
def test_great_inputs_saturate(cell: type[Cell], scale: float, used: Served) -> None:
    leaves, sizes = drawn(cell, "odd sizes", scale)
    outs = outs_of(cell, "odd sizes")
    found = with_gradients(cell, leaves, sizes, outs)
    wanted = with_gradients(cell, [leaf.double() for leaf in leaves], sizes, [out.double() for out in outs])
    assert used[0]
    for one, want in zip(found, wanted, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one.double(), want, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("cell", CELLS.values())
def test_inputs_without_end_saturate(cell: type[Cell], used: Served) -> None:
    leaves, sizes = drawn(cell, "odd sizes")
    leaves[0][0, 3:7], leaves[0][1, 1:6] = float("inf"), -float("inf")
    found = unroll(cell, *leaves[:3], tuple(leaves[3:]), sizes)[0]
    wide = [leaf.double() for leaf in leaves]
    torch.testing.assert_close(found.double(), unroll(cell, *wide[:3], tuple(wide[3:]), sizes)[0], atol=3e-5, rtol=0)
    assert used == [True, False]


@pytest.mark.parametrize("cell", CELLS.values())
def test_what_is_no_number_shows_from_there_on_in_its_own_sequence(cell: type[Cell], used: Served) -> None:
    leaves, sizes = drawn(cell, "odd sizes")
    clean_DNH = unroll(cell, *leaves[:3], tuple(leaves[3:]), sizes)[0]
    leaves[0][:, 5 + 2] = float("nan")  # of the second time, the third sequence
    h_DNH, last = unroll(cell, *leaves[:3], tuple(leaves[3:]), sizes)
    behind = [5 + 2, 10 + 2]
    others = [place for place in range(sum(sizes)) if place not in behind]
    assert h_DNH[:, behind].isnan().all()
    assert torch.equal(h_DNH[:, others], clean_DNH[:, others])
    assert last[0][:, 2].isnan().all()
    assert last[0][:, [0, 1, 3, 4]].isfinite().all()
    assert used == [True, True]


def test_gradients_are_of_those_who_ask(used: Served) -> None:
    leaves, sizes = drawn(LSTM, "odd sizes")
    outs = outs_of(LSTM, "odd sizes")
    wanted = with_gradients(LSTM, leaves, sizes, outs)[3:]
    for place, leaf in enumerate(leaves):
        leaf.requires_grad_()
        h_DNH, last = unroll(LSTM, *leaves[:3], tuple(leaves[3:]), sizes)
        torch.autograd.backward([h_DNH, *last], outs)
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, wanted[place])
        leaf.requires_grad_(False)
    assert all(used)


@pytest.mark.parametrize("result", ["states", "last h", "last c"])
def test_gradients_of_one_result_alone(result: str, used: Served) -> None:
    """Of the others there is none, and autograd gives none."""
    place = ("states", "last h", "last c").index(result)
    leaves, sizes = drawn(LSTM, "odd sizes")
    found = []
    for dtype in (torch.float32, torch.float64):
        own = [leaf.to(dtype).requires_grad_() for leaf in leaves]
        h_DNH, last = unroll(LSTM, *own[:3], tuple(own[3:]), sizes)
        found.append(torch.autograd.grad([h_DNH, *last][place].square().sum(), own))
    for one, want in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), want, atol=3e-5, rtol=3e-6)
    assert used == [True, False]


def test_a_gradient_that_lies_otherwise(used: Served) -> None:
    """That of a sum is one number, seen everywhere."""
    leaves, sizes = drawn(GRU, "odd sizes")
    wanted = with_gradients(GRU, leaves, sizes, [torch.ones_like(out) for out in outs_of(GRU, "odd sizes")])
    own = [leaf.requires_grad_() for leaf in leaves]
    h_DNH, last = unroll(GRU, *own[:3], tuple(own[3:]), sizes)
    found = torch.autograd.grad(h_DNH.sum() + last[0].sum(), own)
    assert all(map(torch.equal, found, wanted[2:]))
    assert all(used)


def test_a_gradient_that_is_seen_negated(used: Served) -> None:
    leaves, sizes = drawn(GRU, "odd sizes")
    outs = outs_of(GRU, "odd sizes")
    wanted = with_gradients(GRU, leaves, sizes, [-out for out in outs])
    found = with_gradients(GRU, leaves, sizes, [torch._neg_view(out) for out in outs])
    assert all(map(torch.equal, found, wanted))
    assert all(used)


def test_frozen_weights_have_no_gradient(used: Served) -> None:
    leaves, sizes = drawn(LSTM, "odd sizes")
    outs = outs_of(LSTM, "odd sizes")
    wanted = with_gradients(LSTM, leaves, sizes, outs)
    leaves[0].requires_grad_()
    h_DNH, last = unroll(LSTM, *leaves[:3], tuple(leaves[3:]), sizes)
    torch.autograd.backward([h_DNH, *last], outs)
    assert leaves[0].grad is not None
    assert torch.equal(leaves[0].grad, wanted[3])
    assert [leaf.grad for leaf in leaves[1:]] == [None] * 4
    assert all(used)


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_forgotten_and_gone_through_twice(is_reentrant: bool, used: Served) -> None:
    leaves, sizes = drawn(GRU, "odd sizes")
    outs = outs_of(GRU, "odd sizes")[:1]
    own = [leaf.requires_grad_() for leaf in leaves]

    def run(*given: Tensor) -> Tensor:
        return unroll(GRU, *given[:3], given[3:], sizes)[0]

    wanted = torch.autograd.grad(run(*own), own, outs)
    kept = run(*own)
    assert all(map(torch.equal, torch.autograd.grad(kept, own, outs, retain_graph=True), wanted))
    assert all(map(torch.equal, torch.autograd.grad(kept, own, outs), wanted))
    checkpoint(run, *own, use_reentrant=is_reentrant).backward(outs[0])
    assert all(torch.equal(leaf.grad, want) for leaf, want in zip(own, wanted, strict=True) if leaf.grad is not None)
    assert all(leaf.grad is not None for leaf in own)
    assert used == [True] * (3 + is_reentrant), "a last time, which the other kind breaks off once it has what it needs"


def test_little_is_kept(used: Served) -> None:
    """States, what the cell keeps of them, weights, first states; not what the inputs gave to the gates."""
    leaves, sizes = drawn(GRU, "more inputs than are multiplied at once")
    held: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (held.append(x), x)[1], lambda x: x):
        unroll(GRU, *(leaf.requires_grad_() for leaf in leaves[:3]), (leaves[3],), sizes)
    assert sum(x.numel() for x in held) == 2 * 270 * (16 * 5 + 7 + 3 * 270)
    assert used == [True]


def test_gradients_in_batches_are_refused(used: Served) -> None:
    leaves, sizes = drawn(GRU, "odd sizes")
    h_DNH, _ = unroll(GRU, leaves[0].requires_grad_(), *leaves[1:3], (leaves[3],), sizes)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(h_DNH, leaves[0], torch.ones(3, *h_DNH.shape), is_grads_batched=True)
    assert used == [True]


@pytest.mark.parametrize(
    "fault", ["narrow", "wide", "one part", "one direction", "fewer rows", "rising", "none", "more"]
)
def test_shapes_that_do_not_fit_are_pytorchs_to_refuse(fault: str, used: Served) -> None:
    """Nothing is read or written where nothing is."""
    leaves, sizes = drawn(LSTM, "odd sizes")
    start = list(leaves[3:])
    changed = {
        "narrow": ([part[..., :2] for part in start], sizes),
        "wide": ([torch.cat([part] * 4, -1) for part in start], sizes),
        "one part": (start[:1], sizes),
        "one direction": ([part[:1] for part in start], sizes),
        "fewer rows": ([part[:, :2] for part in start], sizes),
        "rising": (start, [5, 3, 5, 1, 1]),
        "none": (start, []),
        "more": (start, [*sizes, 1]),
    }
    start, sizes = changed[fault]
    assert recurrences.unroll(LSTM.number, *leaves[:3], tuple(start), sizes) is None
    assert not used
    if fault in ("narrow", "one part", "fewer rows"):
        layer = Recurrent("lstm", 9, 13, bidirectional=True)
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            layer(torch.randn(15, 9), Segments.ragged([5, 4, 3, 2, 1]), tuple(start))
        assert used == ([] if fault == "fewer rows" else [False])


def test_a_second_derivative_is_refused(used: Served) -> None:
    leaves, sizes = drawn(GRU, "odd sizes")
    leaves[0].requires_grad_()
    h_DNH, _ = unroll(GRU, *leaves[:3], tuple(leaves[3:]), sizes)
    grad = torch.autograd.grad(h_DNH.square().sum(), leaves[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
    assert used == [True]


def test_saved_tensors_may_come_back_in_another_layout(used: Served) -> None:
    leaves, sizes = drawn(LSTM, "odd sizes")
    outs = outs_of(LSTM, "odd sizes")
    wanted = with_gradients(LSTM, leaves, sizes, outs)

    def turned(x: Tensor) -> Tensor:
        return x.transpose(0, -1).contiguous().transpose(0, -1)

    with torch.autograd.graph.saved_tensors_hooks(turned, lambda x: x):
        found = with_gradients(LSTM, leaves, sizes, outs)
    assert all(map(torch.equal, found, wanted))
    assert all(used)


def test_inputs_that_lie_among_others(used: Served) -> None:
    leaves, sizes = drawn(GRU, "odd sizes")
    wanted = unroll(GRU, *leaves[:3], tuple(leaves[3:]), sizes)[0]
    apart = [torch.stack([leaf, leaf], -1)[..., 0] for leaf in leaves]
    assert not any(leaf.is_contiguous() for leaf in apart)
    assert torch.equal(unroll(GRU, *apart[:3], tuple(apart[3:]), sizes)[0], wanted)
    assert used == [True, True]


def test_what_the_kernel_cannot_see_runs_time_by_time(used: Served) -> None:
    leaves, sizes = drawn(GRU, "odd sizes")
    wanted = unroll(GRU, *leaves[:3], tuple(leaves[3:]), sizes)[0]
    for place in range(4):
        wide = [leaf.double() if place == number else leaf for number, leaf in enumerate(leaves)]
        assert recurrences.unroll(GRU.number, *wide[:3], (wide[3],), sizes) is None
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(leaves[0], torch.ones_like(leaves[0]))
        assert recurrences.unroll(GRU.number, dual, *leaves[1:3], (leaves[3],), sizes) is None
    with FlopCounterMode(display=False) as counted:
        found = unroll(GRU, *leaves[:3], tuple(leaves[3:]), sizes)[0]
    assert counted.get_total_flops() == 2 * sum(sizes) * 2 * 39 * 13  # two directions; what a mode is to see, it sees
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    assert used == [True, False]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_layers_as_pytorchs(cell: str, bidirectional: bool, used: Served) -> None:
    ours = Recurrent(cell, 9, 17, 2, bidirectional=bidirectional)
    kind = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}[cell]
    theirs = kind(9, 17, 2, bidirectional=bidirectional, batch_first=True)
    theirs.load_state_dict(ours.layers.state_dict())
    lengths = (3, 7, 1, 7, 2)
    x_ND = torch.randn(sum(lengths), 9)
    h_ND, _ = ours(x_ND, Segments.ragged(lengths))
    for x_TD, h_TD in zip(x_ND.split(lengths), h_ND.split(lengths), strict=True):
        torch.testing.assert_close(h_TD, theirs(x_TD[None])[0][0], atol=1e-5, rtol=1e-5)
    assert used == [True, True]


def test_training_on_a_cpu_has_the_kernels_run_recurrences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "own", None)
    model = RNN(RNNConfig(23, 29, "gru", "none", "before", 8, 16, 12))
    assert can_use_own_kernels(model)
    assert not can_use_own_kernels(nn.GRU(2, 2))
    monkeypatch.setenv("REGARD_KERNEL", "torch")
    quicken(model, "fp32")
    assert cells.own is None
    assert use_own_kernels() is None
    monkeypatch.setenv("REGARD_KERNEL", "native")
    quicken(model, "fp32")
    assert cells.own is recurrences.unroll


@pytest.mark.parametrize("cell", CELLS)
def test_under_autocast_as_time_by_time(cell: str, used: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    model = RNN(RNNConfig(23, 29, cell, "additive", "after", 8, 16, 12, dropout=0.0))
    source_M, target_N = torch.randint(0, 23, (12,)), torch.randint(0, 29, (9,))
    segments = Segments.ragged([4, 1, 7]), Segments.ragged([2, 2, 5])
    found = []
    for own in (used, None):
        monkeypatch.setattr(cells, "own", own)
        with torch.autocast("cpu", torch.bfloat16):
            y_ND = model(source_M, segments[0], target_N, segments[1])
            loss = y_ND.float().square().sum()
            found.append((y_ND, *torch.autograd.grad(loss, list(model.encoder.parameters()))))
    assert used == [True, True]
    for one, want in zip(*found, strict=True):
        torch.testing.assert_close(one, want, atol=2e-3, rtol=2e-2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_in_a_forked_child() -> None:
    """Where PyTorch's threads are not."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "True\n"


FORK = """
import os, sys
import torch
from regard.kernels import native, recurrences

torch.set_num_threads(2)
native.choose("native")
given = torch.randn(1, 400, 192), torch.randn(1, 192, 64) / 8, torch.zeros(1, 192), (torch.zeros(1, 100, 64),)
wanted = recurrences.unroll(1, *given, [100] * 4)[0]
child = os.fork()
if not child:
    print(torch.equal(recurrences.unroll(1, *given, [100] * 4)[0], wanted), flush=True)
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("attends", ["before", "after"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_model_learns_alike(cell: str, attends: str, used: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    for own in (used, None):
        monkeypatch.setattr(cells, "own", own)
        torch.manual_seed(3)
        model = RNN(RNNConfig(23, 29, cell, "additive", attends, 8, 16, 12, dropout=0.0))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        source_M, target_N = torch.randint(0, 23, (12,)), torch.randint(0, 29, (9,))
        segments = Segments.ragged([4, 1, 7]), Segments.ragged([2, 2, 5])
        losses.append([])
        for _ in range(12):
            y_ND = model(source_M, segments[0], target_N, segments[1])
            loss = nn.functional.cross_entropy(model.head(y_ND), target_N.roll(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][-1] < 0.9 * losses[0][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert all(used)
