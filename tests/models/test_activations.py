"""Three functions are called GELU."""

import math

import pytest
import torch

from regard.errors import ConfigError
from regard.layers.mlp import ACTIVATIONS, MLP

FORMULAS = {
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu-tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "gelu-quick": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
}


def test_each_is_its_formula_and_no_two_are_the_same() -> None:
    x = torch.linspace(-4, 4, 81, dtype=torch.float64)
    values = {name: activate(x) for name, activate in ACTIVATIONS.items()}
    assert values.keys() == FORMULAS.keys()
    for name, found in values.items():
        assert found.tolist() == pytest.approx([FORMULAS[name](one) for one in x.tolist()], abs=1e-12)
        assert all((found - other).abs().max() > 1e-4 for key, other in values.items() if key != name)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown activation 'gelu2'"):
        MLP(8, 16, "gelu2")
