"""Products of many rows in float32, as sums of bfloat16 where the processor multiplies matrices, beside float64."""

import math

import pytest
import torch
from torch import Tensor, nn

from regard.kernels import native
from regard.layers.packed_linear import PackedLinear
from regard.training.hardware import threads_kept

ROWS = 400  # enough for it


def packed(weight_OI: Tensor, bias_O: Tensor | None = None) -> PackedLinear:
    return PackedLinear(weight_OI, bias_O, "fp32", native.choose("native"))


def drawn(outputs: int, inputs: int, rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, a bias and rows, of many magnitudes."""
    generator = torch.Generator().manual_seed(outputs + inputs)
    shapes = ((outputs, inputs), (outputs,), (rows, inputs))
    weight_OI, bias_O, x_NI = (
        torch.randn(shape, generator=generator) * torch.randn(shape, generator=generator).exp() for shape in shapes
    )
    return weight_OI, bias_O, x_NI


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(48, 8), (31, 32), (32, 33), (1, 65), (200, 90), (768, 768), (50, 769), (65, 2000)]
)
@pytest.mark.parametrize("rows", [ROWS, 193, 16 * 13])
def test_errors_are_float32s(outputs: int, inputs: int, rows: int):
    weight_OI, bias_O, x_NI = drawn(outputs, inputs, rows)
    wanted_NO = x_NI.double() @ weight_OI.T.double() + bias_O.double()
    sums_NO = x_NI.double().abs() @ weight_OI.T.double().abs() + bias_O.double().abs()  # what rounding is relative to
    error_NO = (packed(weight_OI, bias_O)(x_NI) - wanted_NO).abs() / sums_NO
    assert error_NO.max() < 1.2e-6
    assert error_NO.square().mean().sqrt() < 8e-8


def test_every_bit_of_a_number_counts():
    numbers = torch.randint(2**23, 2**24, (ROWS, 40)).float() * torch.tensor([2.0, -1.0])[torch.randint(2, (ROWS, 40))]
    numbers *= 2.0 ** torch.randint(-60, 60, (ROWS, 40))
    assert torch.equal(packed(torch.eye(40))(numbers), numbers)
    ones_of_inputs = torch.eye(40)[torch.arange(ROWS) % 40]
    assert torch.equal(packed(numbers)(ones_of_inputs), numbers.T[torch.arange(ROWS) % 40])


def test_the_products_of_the_middle_parts_count():
    middle = 1 + 2.0**-9 + torch.randint(2**6, (2,)) * 2.0**-16  # rounded to 1; its second part is the rest
    y_NO = packed(middle[:1, None].expand(20, 1))(middle[1:, None].expand(ROWS, 1))
    wanted = middle[0].double() * middle[1].double()
    assert (y_NO - wanted).abs().max() <= 2.0**-23


@pytest.mark.parametrize("where", ["rows", "weights", "both"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3.4e38, -3.4028234e38])
def test_what_cannot_be_split_is_computed_all_the_same(where: str, bad: float):
    weight_OI, bias_O, x_NI = drawn(40, 50)
    weight_OI[:, 3], x_NI[:, 3] = weight_OI[:, 3].clamp(-0.5, 0.5), x_NI[:, 3].clamp(-0.5, 0.5)
    weight_OI[7, 3] = bad if where != "rows" else 0.5
    x_NI[11, 3] = bad if where != "weights" else 0.25
    x_NI[12, 3] = 0.0
    wanted_NO = (x_NI.double() @ weight_OI.T.double() + bias_O.double()).float()
    wanted_NO[12, 7] = math.nan if where != "rows" and not math.isfinite(bad) else wanted_NO[12, 7]
    torch.testing.assert_close(packed(weight_OI, bias_O)(x_NI), wanted_NO, rtol=1e-5, atol=1e-4, equal_nan=True)


def test_sums_that_overflow_do_so_as_in_float32():
    """Parts of it may be infinite with the other sign."""
    weight_OI, x_NI = torch.full((40, 32), 1e25 * (1 - 2.0**-9.3)), torch.full((ROWS, 32), 1e25 * (1 + 2.0**-9.7))
    x_NI[1] *= -1
    x_NI[2] *= 1e-20
    y_NO = packed(weight_OI, torch.ones(40))(x_NI)
    assert (y_NO[0] == math.inf).all()
    assert (y_NO[1] == -math.inf).all()
    assert y_NO[2].isfinite().all()


def test_small_numbers_keep_their_digits_and_the_smallest_count_as_zero():
    weight_OI, _, x_NI = drawn(40, 50)
    y_NO = packed(weight_OI)(x_NI)
    torch.testing.assert_close(packed(weight_OI)(x_NI * 2.0**-80) * 2.0**80, y_NO, rtol=0, atol=0)
    lost_NO = packed(weight_OI)(x_NI * 2.0**-126).double() - x_NI.double() * 2.0**-126 @ weight_OI.T.double()
    # What is left out of a row is less than 2⁻¹²⁶ an input, and of each input's six products.
    assert (lost_NO.abs() <= 2.0**-126 * (weight_OI.abs().sum(1) + 6 * 50)).all()


def test_rows_that_lie_apart_and_threads_change_no_bit():
    weight_OI, bias_O, x_NI = drawn(100, 800)
    layer = packed(weight_OI, bias_O)
    y_NO = layer(x_NI)
    apart = torch.full((ROWS, 900), math.nan)
    apart[:, 50:850] = x_NI
    assert torch.equal(layer(apart[:, 50:850]), y_NO)
    for threads in (1, 3):
        with threads_kept():
            torch.set_num_threads(threads)
            assert torch.equal(layer(x_NI), y_NO)


def test_a_row_has_the_same_bits_whatever_stands_beside_it():
    weight_OI, bias_O, x_NI = drawn(70, 900, 2 * ROWS)
    layer = packed(weight_OI, bias_O)
    y_NO = layer(x_NI)
    assert torch.equal(layer(x_NI[ROWS - 5 :]), y_NO[ROWS - 5 :])
    x_NI[: ROWS // 2] *= 1e20
    assert torch.equal(layer(x_NI)[ROWS // 2 :], y_NO[ROWS // 2 :])


@pytest.mark.parametrize("activation", ["relu", "gelu-tanh"])
def test_the_activation_comes_once_at_the_end(activation: str):
    weight_OI, bias_O, x_NI = drawn(33, 1600)
    layer = packed(weight_OI / 40, bias_O)
    plain_NO = layer(x_NI)
    assert layer.activated(activation)
    wanted = nn.functional.relu(plain_NO) if activation == "relu" else nn.functional.gelu(plain_NO, approximate="tanh")
    torch.testing.assert_close(layer(x_NI), wanted, rtol=1e-5, atol=1e-5)
