"""Products of bfloat16 by our own kernels against float64, where the processor multiplies matrices of it."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from regard.attention import MultiHeadAttention
from regard.errors import UsageError
from regard.kernels import native, rounded
from regard.layers.rounded_linear import RoundedLinear
from regard.training.blocks import quicken
from regard.training.hardware import threads_kept

KERNEL = native.choose()
pytestmark = pytest.mark.skipif(
    KERNEL is None or not KERNEL.multiplies(), reason="this processor does not multiply matrices of bfloat16"
)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def multiply(*given: Tensor | None, parts: int = 1, **more: object) -> Tensor:
    assert KERNEL is not None
    return rounded.Multiplier(KERNEL, parts)(*given, **more)


def exact(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, parts: int = 1) -> Tensor:
    """The formula, in float64: of what was rounded, or of all that is there."""
    if parts == 1:
        x_NI, weight_OI = x_NI.bfloat16(), weight_OI.bfloat16()
    y_NO = x_NI.double() @ weight_OI.double().T
    return y_NO if bias_O is None else y_NO + bias_O.double()


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("rows", [0, 1, 2, 15, 16, 17, 33, 100])
@pytest.mark.parametrize("inputs", [1, 2, 31, 32, 33, 257, 5000])
@pytest.mark.parametrize("parts", [1, 3])
def test_products_are_those_of_the_formula_however_numbers_lie(parts: int, rows: int, inputs: int) -> None:
    for outputs, x_turned, w_turned in itertools.product((1, 7, 16, 48, 50, 130), (False, True), (False, True)):
        x_NI = torch.randn(inputs, rows).T if x_turned else torch.randn(rows, inputs)
        weight_OI = torch.randn(inputs, outputs).T if w_turned else torch.randn(outputs, inputs)
        bias_O, wide_NP = torch.randn(outputs), torch.randn(rows, outputs + 5)
        tolerance = {"rtol": 0, "atol": 2e-6 + 8e-6 * inputs**0.5}
        y_NO = multiply(x_NI, weight_OI, bias_O, parts=parts)
        torch.testing.assert_close(y_NO.double(), exact(x_NI, weight_OI, bias_O, parts), **tolerance)
        before_NP = wide_NP.clone()
        for bias in (None, bias_O):
            wide_NP.copy_(before_NP)
            multiply(x_NI, weight_OI, bias, out=wide_NP[:, :outputs], adds=True, parts=parts)
            wanted = before_NP[:, :outputs] + exact(x_NI, weight_OI, bias, parts)
            torch.testing.assert_close(wide_NP[:, :outputs].double(), wanted, **tolerance)
            assert torch.equal(wide_NP[:, outputs:], before_NP[:, outputs:])


@pytest.mark.parametrize("parts", [1, 3])
def test_no_inputs_give_the_bias(parts: int) -> None:
    bias_O = torch.randn(20)
    found = multiply(torch.empty(3, 0), torch.empty(20, 0), bias_O, parts=parts)
    assert torch.equal(found, bias_O.expand(3, 20))


@pytest.mark.parametrize("parts", [1, 3])
def test_any_number_of_threads_gives_the_same_bits(parts: int) -> None:
    """And a row is the same whatever stands beside it."""
    x_NI, weight_OI = torch.randn(300, 700), torch.randn(900, 700)
    found = []
    with threads_kept():
        for threads, alone in itertools.product((1, 2, 3, 7), (False, True)):
            torch.set_num_threads(threads)
            with native.alone(alone):
                found.append(multiply(x_NI, weight_OI, parts=parts))
    assert all(torch.equal(found[0], one) for one in found[1:])
    assert torch.equal(multiply(x_NI[37:38], weight_OI, parts=parts), found[0][37:38])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_stays_in_its_row(value: float) -> None:
    x_NI, weight_OI = torch.randn(40, 50), torch.randn(60, 50).abs()
    wanted = multiply(x_NI, weight_OI)
    x_NI[7, 3] = value
    found = multiply(x_NI, weight_OI)
    assert torch.equal(found[7], torch.full((60,), value)) or (value != value and found[7].isnan().all())
    assert torch.equal(found[8:], wanted[8:])
    assert torch.equal(found[:7], wanted[:7])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3.4e38])
def test_what_cannot_be_split_shows_and_stays_in_its_row(value: float) -> None:
    x_NI, weight_OI = torch.randn(400, 50), torch.randn(60, 50)
    wanted = multiply(x_NI, weight_OI, parts=3)
    x_NI[7, 3] = value
    found = multiply(x_NI, weight_OI, parts=3)
    assert found[7].isnan().all()
    assert torch.equal(torch.cat([found[:7], found[8:]]), torch.cat([wanted[:7], wanted[8:]]))


def test_long_sums_do_not_round_more_than_short_ones() -> None:
    """As gradients of weights are, over all rows of a batch."""
    for inputs in (768, 32768):
        x_NI, weight_OI = torch.rand(100, inputs), torch.rand(100, inputs)
        error_NO = multiply(x_NI, weight_OI, parts=3) / exact(x_NI, weight_OI, parts=3) - 1
        assert error_NO.square().mean().sqrt() < 3e-7


@pytest.fixture(params=[1, 3])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    """What layers have their numbers made of: rounded under autocast, or split, as if it always paid."""
    monkeypatch.setattr(rounded, "_SPLIT_WORK", 0)
    monkeypatch.setattr(rounded, "_SPLIT_WIDTH", 0)
    with autocast() if request.param == 1 else nullcontext():
        yield request.param


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 70), (2, 3, 70), (1, 70), (0, 70), (70,)])
def test_gradients_are_such_products(shape: tuple[int, ...], bias: bool, parts: int) -> None:
    layer = nn.Linear(70, 33, bias=bias)
    layer.__class__ = RoundedLinear
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(*shape[:-1], 33)
    y = layer(x)
    assert y.grad_fn is not None
    assert any("_Linear" in name for name in names_of(y.grad_fn))
    assert y.dtype == torch.float32
    y.backward(grad)
    x_NI, grad_NO = x.detach().reshape(-1, 70), grad.reshape(-1, 33)
    wanted = {
        "y": (
            y.detach().reshape(-1, 33),
            exact(x_NI, layer.weight.detach(), layer.bias.detach() if bias else None, parts),
        ),
        "x": (x.grad.reshape(-1, 70), exact(grad_NO, layer.weight.detach().T, None, parts)),
        "weight": (layer.weight.grad, exact(grad_NO.T, x_NI.T, None, parts)),
    }
    for found, true in wanted.values():
        torch.testing.assert_close(found.double(), true, rtol=0, atol=2e-5)
    if bias:
        torch.testing.assert_close(layer.bias.grad, grad_NO.sum(0))


def test_a_frozen_weight_gets_no_gradient_and_an_expanded_one_is_taken() -> None:
    layer = nn.Linear(8, 4)
    layer.__class__ = RoundedLinear
    layer.weight.requires_grad_(False)
    x_NI = torch.randn(3, 8, requires_grad=True)
    with autocast():
        layer(x_NI).sum().backward()  # whose gradient is one number, expanded
    assert layer.weight.grad is None
    torch.testing.assert_close(x_NI.grad.double(), exact(torch.ones(3, 4), layer.weight.T), rtol=0, atol=1e-5)


def test_gradients_can_be_differentiated(parts: int) -> None:
    """As a penalty on them wants it; rounding apart they are those of float64."""
    x_NI, weight_OI = torch.randn(6, 9, requires_grad=True), torch.randn(5, 9, requires_grad=True)

    def penalty(product: Callable[[Tensor, Tensor], Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        (grad,) = torch.autograd.grad(product(*inputs).tanh().sum(), inputs[0], create_graph=True)
        return torch.autograd.grad(grad.square().sum(), inputs)

    found = penalty(lambda x, w: rounded.linear(x, w, None), x_NI, weight_OI)
    wanted = penalty(nn.functional.linear, *(one.detach().double().requires_grad_() for one in (x_NI, weight_OI)))
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() < (0.05 if parts == 1 else 1e-6) * other.abs().max()


def test_where_it_serves() -> None:
    x_NI, weight_OI = torch.randn(3, 8), torch.randn(4, 8)
    assert rounded.linear(x_NI, weight_OI, None) is None
    wide_NI, wide_OI = torch.randn(1024, 512), torch.randn(512, 512)
    assert rounded.linear(wide_NI, wide_OI, None) is not None
    assert rounded.linear(wide_NI[1:], wide_OI, None) is None, "too little to do"
    assert rounded.linear(wide_NI.repeat(8, 1)[:, :383], wide_OI[:, :383], None) is None, "too narrow"
    with torch.autocast("cpu", torch.float16):
        assert rounded.linear(wide_NI, wide_OI, None) is None
    with autocast():
        assert rounded.linear(x_NI, weight_OI, None) is not None
        assert rounded.linear(x_NI.double(), weight_OI, None) is None
        assert rounded.linear(x_NI, weight_OI.bfloat16(), None) is None
        assert rounded.linear(x_NI.to("meta"), weight_OI.to("meta"), None) is None
        batched = torch.func.vmap(lambda x_I: x_I if rounded.linear(x_I[None], weight_OI, None) is None else x_I[:0])
        assert torch.equal(batched(x_NI), x_NI)


def test_what_does_not_fit_is_refused_as_pytorch_refuses_it() -> None:
    layer = nn.Linear(10, 5)
    layer.__class__ = RoundedLinear
    for width in (4, 20):
        with autocast(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            layer(torch.randn(3, width))
    x_NI, weight_OI = torch.randn(3, 10), torch.randn(5, 10)
    with autocast():  # one number is a bias of all outputs
        assert rounded.linear(x_NI, weight_OI, torch.randn(1)) is None
    places = [torch.empty(3, 4), torch.empty(5, 3).T, torch.empty(1, 5).expand(3, 5)]
    for given in ({"out": place} for place in places):
        with pytest.raises(UsageError, match="a product of"):
            multiply(x_NI, weight_OI, **given)
    with pytest.raises(UsageError, match="a product of"):
        multiply(x_NI, torch.randn(5, 9))
    with pytest.raises(UsageError, match="a product of"):
        multiply(x_NI, weight_OI, torch.randn(1))


def test_gradients_that_are_no_plain_memory_are_pytorchs() -> None:
    layer = nn.Linear(8, 4)
    layer.__class__ = RoundedLinear
    x_NI = torch.randn(3, 8, requires_grad=True)

    def loss(x_NI: Tensor) -> Tensor:
        with autocast():
            return layer(x_NI).tanh().sum(1)

    wanted = torch.autograd.functional.jacobian(loss, x_NI)
    found = torch.autograd.functional.jacobian(loss, x_NI, vectorize=True)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.02)
    with autocast():
        y_NO = layer(x_NI)
    y_NO.backward(torch._efficientzerotensor((3, 4)))
    assert not x_NI.grad.any()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.double(), lambda x: x), autocast():
        y_NO = layer(x_NI)
    with pytest.raises(RuntimeError, match="same dtype"):  # float64 is not read as float32
        y_NO.sum().backward()


def test_training_has_them_multiply(parts: int) -> None:
    model = nn.ModuleList([MultiHeadAttention(8, 2), nn.Linear(8, 8)])
    plain = deepcopy(model)
    quicken(model, "bf16" if parts == 1 else "fp32")
    assert all(type(one) is RoundedLinear for one in model.modules() if isinstance(one, nn.Linear))
    x_ND = torch.randn(2, 5, 8)
    found = model[0](x_ND)
    assert sum("_Linear" in name for name in names_of(found.grad_fn)) == 4
    with torch.autocast("cpu", enabled=False):
        torch.testing.assert_close(found, plain[0](x_ND), rtol=0, atol=0.05 if parts == 1 else 1e-6)


def test_in_float32_narrow_layers_stay_as_they_are() -> None:
    """Their queries, keys and values then are one product."""
    model = nn.ModuleList([MultiHeadAttention(8, 2), nn.Linear(384, 400), nn.Linear(383, 400)])
    quicken(model, "fp32")
    assert model[0]._joined() is not None
    assert [type(one) for one in model[1:]] == [RoundedLinear, nn.Linear]


def names_of(node: torch.autograd.graph.Node) -> list[str]:
    """The names of all that a gradient goes through."""
    seen: dict[torch.autograd.graph.Node, None] = {}
    coming = [node]
    while coming:
        if (one := coming.pop()) not in seen:
            seen[one] = None
            coming += [before for before, _ in one.next_functions if before is not None]
    return [one.name() for one in seen]


REFUSED = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(8192)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, 8192)), None) == 0
from regard.kernels import native
print(*native._withheld())
"""


def test_where_the_system_refuses_nothing_is_compiled_for_it() -> None:
    """A stack for signals with no room for the processor's matrices is a reason for Linux to refuse."""
    said = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8"]
    assert native._withheld() == ()
