"""The loss over a vocabulary in lots of rows: the same numbers as over all at once, and never all scores."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from kernels.served import Served
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.kernels import native, rounded
from regard.kernels import vocabulary as own
from regard.models.bert import Bert, BertConfig
from regard.models.scoring import TokenScorer
from regard.tasks import vocabulary
from regard.tasks.task import Loss, cross_entropy
from regard.tasks.vocabulary import VocabularyLoss

N, V, D = 23, 41, 7


class Scorer(TokenScorer):
    """A last layer and nothing before it."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.output = nn.Linear(D, V, bias=bias)


@pytest.fixture(autouse=True)
def lots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rows a lot: four whole lots and three rows."""
    monkeypatch.setattr(vocabulary, "FEW_SCORES", 5 * V)
    monkeypatch.setattr(vocabulary, "MIN_ROWS", 1)


def at_once(model: TokenScorer, hidden_ND: Tensor, labels_N: Tensor, smoothing: float) -> Loss:
    return cross_entropy(model.head(hidden_ND), labels_N, smoothing)


def found(
    criterion: Callable[..., Loss], model: TokenScorer, hidden_ND: Tensor, labels_N: Tensor, smoothing: float
) -> list[Tensor]:
    """Loss, report, and the gradients of a loss that is divided by a count, as the training loop does."""
    model.zero_grad()
    hidden_ND = hidden_ND.detach().requires_grad_()
    loss = criterion(model, hidden_ND, labels_N, smoothing)
    (loss.sum / 3).backward()
    assert not loss.report.requires_grad
    return [loss.sum.detach(), loss.report, hidden_ND.grad, *(p.grad for p in model.parameters() if p.requires_grad)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_lots_give_what_all_rows_give(smoothing: float, bias: bool) -> None:
    model, hidden_ND, labels_N = Scorer(bias).double(), torch.randn(N, D).double(), torch.randint(0, V, (N,))
    got, want = (found(one, model, hidden_ND, labels_N, smoothing) for one in (VocabularyLoss(), at_once))
    assert len(got) == 4 + bias
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_second_backward_pass_gives_the_same() -> None:
    model, hidden_ND, labels_N = Scorer(), torch.randn(N, D, requires_grad=True), torch.randint(0, V, (N,))
    loss = VocabularyLoss()(model, hidden_ND, labels_N, 0.1).sum
    inputs = [hidden_ND, *model.parameters()]
    first = torch.autograd.grad(loss, inputs, torch.tensor(0.5), retain_graph=True)
    for one in first:
        one.fill_(torch.nan)  # what was given away is the taker's
    second = torch.autograd.grad(loss, inputs, torch.tensor(0.25), retain_graph=True)
    third = torch.autograd.grad(loss, inputs, torch.tensor(0.5))
    for one, other in zip(second, third, strict=True):
        torch.testing.assert_close(2 * one, other, rtol=1e-6, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, inputs)


def test_a_second_backward_pass_inside_autocast_is_as_exact() -> None:
    model, hidden_ND, labels_N = Scorer(), torch.randn(N, D, requires_grad=True), torch.randint(0, V, (N,))
    loss = VocabularyLoss()(model, hidden_ND, labels_N, 0.1).sum
    inputs = [hidden_ND, *model.parameters()]
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        second = torch.autograd.grad(loss, inputs)
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def test_the_weights_gradient_is_given_away() -> None:
    model, hidden_ND, labels_N = Scorer(), torch.randn(N, D, requires_grad=True), torch.randint(0, V, (N,))
    loss = VocabularyLoss()(model, hidden_ND, labels_N, 0.0).sum
    before = [grad.data_ptr() for grad in loss.grad_fn.grads]  # type: ignore[union-attr]
    loss.backward()
    grads = [hidden_ND.grad, *(parameter.grad for parameter in model.parameters())]
    assert [grad.data_ptr() for grad in grads if grad is not None] == before


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_are_those_of_differences(smoothing: float) -> None:
    labels_N = torch.randint(0, V, (N,))

    def loss(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor) -> Tensor:
        model = Scorer().double()
        del model.output.weight, model.output.bias  # what is checked are the tensors themselves
        model.output.weight, model.output.bias = weight_VD, bias_V
        return VocabularyLoss()(model, hidden_ND, labels_N, smoothing).sum

    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((N, D), (V, D), (V,))]
    assert torch.autograd.gradcheck(loss, inputs)


def test_in_autocast_the_products_are_in_half_precision_and_sums_are_not() -> None:
    model, hidden_ND, labels_N = Scorer(), torch.randn(N, D), torch.randint(0, V, (N,))
    with torch.autocast("cpu", torch.bfloat16):
        got, want = (found(one, model, hidden_ND, labels_N, 0.1) for one in (VocabularyLoss(), at_once))
    exact = found(at_once, deepcopy(model).double(), hidden_ND.double(), labels_N, 0.1)
    for one, other, true in zip(got, want, exact, strict=True):
        assert one.dtype == other.dtype == torch.float32
        error, scale = (one - true).abs().max(), true.abs().max()
        assert error <= 2 * (other - true).abs().max() + 1e-3 * scale
        assert error > 1e-6 * scale  # float32 products would be nearer


multiplies = pytest.mark.skipif(
    (kernel := native.choose()) is None or not kernel.multiplies(), reason="no products of bfloat16 by our own kernels"
)


@multiplies
def test_in_float32_our_own_kernels_are_as_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounded, "_SPLIT_WORK", 0)
    monkeypatch.setattr(rounded, "_SPLIT_WIDTH", 0)
    multiply, asked = rounded.Multiplier.__call__, []
    monkeypatch.setattr(rounded.Multiplier, "__call__", lambda *a, **k: asked.append(1) or multiply(*a, **k))
    model, hidden_ND, labels_N = Scorer(), torch.randn(N, D), torch.randint(0, V, (N,))
    got = found(VocabularyLoss(), model, hidden_ND, labels_N, 0.1)
    assert len(asked) == 3 * 5
    want = found(at_once, deepcopy(model).double(), hidden_ND.double(), labels_N, 0.1)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-6, atol=1e-6)


@multiplies
@pytest.mark.parametrize("bias", [True, False])
def test_in_autocast_our_own_kernels_round_what_is_multiplied_and_nothing_else(bias: bool) -> None:
    model, hidden_ND, labels_N = Scorer(bias), torch.randn(N, D), torch.randint(0, V, (N,))
    with torch.autocast("cpu", torch.bfloat16):
        got = found(VocabularyLoss(), model, hidden_ND, labels_N, 0.1)
    narrow, narrow_ND = deepcopy(model), hidden_ND.bfloat16().float()
    with torch.no_grad():
        narrow.output.weight.copy_(narrow.output.weight.bfloat16())
    want = found(at_once, narrow, narrow_ND, labels_N, 0.1)
    for one, other in zip(got[:2], want[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)
    for one, other in zip(got[2:], want[2:], strict=True):  # the scores' gradients are rounded too, by 2⁻⁹ at most
        torch.testing.assert_close(one, other, rtol=0, atol=float(2.0**-8 * other.abs().max()))
    with torch.autocast("cpu", torch.bfloat16):
        turned = found(VocabularyLoss(), model, hidden_ND.T.contiguous().T, labels_N, 0.1)
        none = found(VocabularyLoss(), model, hidden_ND[:0], labels_N[:0], 0.1)
    assert all(map(torch.equal, turned, got)), "however rows lie"
    assert not any(one.any() for one in none)


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(one.numel() for one in tree_leaves(result) if isinstance(one, Tensor))])
        return result


def test_never_all_scores_at_once() -> None:
    model, hidden_ND, labels_N = Scorer(), torch.randn(N, D), torch.randint(0, V, (N,))
    sizes = []
    for criterion in (VocabularyLoss(), at_once):
        with Largest() as largest:
            found(criterion, model, hidden_ND, labels_N, 0.1)
        sizes.append(largest.numel)
    assert sizes == [max(V * D, 5 * V), N * V]


def test_what_is_frozen_gets_no_gradient_and_without_any_none_is_computed() -> None:
    model, hidden_ND, labels_N = Scorer(), torch.randn(N, D), torch.randint(0, V, (N,))
    model.output.weight.requires_grad_(False)
    got, want = (found(one, model, hidden_ND, labels_N, 0.1) for one in (VocabularyLoss(), at_once))
    assert model.output.weight.grad is None
    torch.testing.assert_close(got, want)
    asked: list[bool] = []

    def noted(*arguments) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]
        asked.append(arguments[3])
        return vocabulary.compare(*arguments)

    with torch.no_grad():
        loss = VocabularyLoss(noted)(deepcopy(model).double(), hidden_ND.double(), labels_N, 0.1)
    assert asked == [False] * 5
    torch.testing.assert_close([loss.sum.float(), loss.report.float()], want[:2])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_our_own_kernels_compare_in_place(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    used = Served(own.compare)
    monkeypatch.setattr(own, "compare", used)
    model, hidden_ND, labels_N = Scorer(), torch.randn(N, D), torch.randint(0, V, (N,))
    got = found(VocabularyLoss(), model, hidden_ND, labels_N, smoothing)
    with torch.no_grad():
        loss = VocabularyLoss()(model, hidden_ND, labels_N, smoothing)
    assert used == [True] * 10
    want = found(at_once, deepcopy(model).double(), hidden_ND.double(), labels_N, smoothing)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)
    assert torch.equal(loss.sum, got[0])
    assert torch.equal(loss.report, got[1])


@pytest.mark.parametrize("label", [-1, V, V + 3])
def test_labels_outside_the_vocabulary_are_refused(label: int) -> None:
    labels_N = torch.randint(0, V, (N,))
    labels_N[N // 2] = label
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        VocabularyLoss()(Scorer(), torch.randn(N, D), labels_N, 0.0)


def test_what_stands_before_the_last_layer_is_trained_too() -> None:
    model = Bert(BertConfig(V, embed_dim=8, num_heads=2, num_layers=1, mlp_dim=16, head="masked")).double()
    hidden_ND, labels_N = torch.randn(N, 8).double(), torch.randint(0, V, (N,))
    trained = [*model.transform.parameters(), *model.transform_norm.parameters(), *model.output.parameters()]
    for parameter in model.parameters():
        parameter.requires_grad_(any(parameter is one for one in trained))
    got, want = (found(one, model, hidden_ND, labels_N, 0.1) for one in (VocabularyLoss(), at_once))
    assert len(got) == 3 + 6
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_compiled_it_gives_the_same_from_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = Scorer(), []

    def counting(graph, inputs):  # type: ignore[no-untyped-def]
        calls.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    monkeypatch.setattr(own, "compare", lambda *given: None)  # asked first, where there is a compiler
    criterion = VocabularyLoss().compiled()
    for rows in (N, 19, 32, 41):
        hidden_ND, labels_N = torch.randn(rows, D), torch.randint(0, V, (rows,))
        got, want = (found(one, model, hidden_ND, labels_N, 0.1) for one in (criterion, at_once))
        torch.testing.assert_close(got, want)
    assert 1 <= len(calls) <= 2  # a lot of one row is a graph of its own


@pytest.mark.parametrize(
    ("num_rows", "few", "vocab_size", "memory", "want"),
    [
        (1000, 256, 50_257, None, 256),  # four lots: 250 rows, in steps of 64
        (700, 300, 50_257, None, 256),  # three lots, none a small rest
        (32_768, 256, 50_257, 140 * 2**30, 10_944),  # three lots on a large GPU
        (32_768, 256, 50_257, 2**30, 256),  # and never fewer rows than on a CPU
        (5_000, 256, 32_000, 140 * 2**30, 5056),  # one lot
    ],
)
def test_lots_are_of_nearly_one_size(
    num_rows: int, few: int, vocab_size: int, memory: int | None, want: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=memory))
    device = torch.device("cpu" if memory is None else "cuda")
    assert vocabulary._lot_size(num_rows, few, vocab_size, device) == want
