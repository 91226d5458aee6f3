"""Learning rates against the papers' formulas, and Adam against its own in float64."""

import math

import pytest
import torch
from torch import nn

from regard.training import optimizers
from regard.training.config import TrainingConfig
from regard.training.schedules import factor


def test_inverse_sqrt_with_the_papers_peak_is_the_papers_formula() -> None:
    width, warmup = 512, 4000
    config = TrainingConfig(learning_rate=(width * warmup) ** -0.5, schedule="inverse-sqrt", warmup_steps=warmup)
    for step in (1, 2, 1999, 3999, 4000, 4001, 100_000):
        paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert config.learning_rate * factor(step, 0.0, config) == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "half"), [("cosine", 0.1 + 0.9 / 2), ("linear", 0.1 + 0.9 / 2), ("constant", 1.0)]
)
def test_falling_schedules_go_from_the_peak_to_the_final_ratio(schedule: str, half: float) -> None:
    config = TrainingConfig(schedule=schedule, warmup_steps=10, max_steps=110, final_ratio=0.1)  # type: ignore[arg-type]
    assert [factor(step, 0.0, config) for step in (1, 5, 10)] == [0.1, 0.5, 1.0]
    assert factor(60, 0.0, config) == pytest.approx(half)
    assert factor(110, 0.0, config) == pytest.approx(1.0 if schedule == "constant" else 0.1)
    assert factor(35, 0.0, TrainingConfig(schedule="cosine", warmup_steps=10, max_steps=110)) == pytest.approx(
        (1 + math.cos(math.pi / 4)) / 2
    )


def test_with_a_time_limit_the_clock_counts_where_it_is_ahead() -> None:
    config = TrainingConfig(schedule="linear", warmup_steps=10, max_steps=110, max_seconds=100.0)
    assert factor(60, 20.0, config) == pytest.approx(0.5)  # the steps are ahead
    assert factor(60, 80.0, config) == pytest.approx(0.2)  # the clock is
    assert factor(5, 20.0, config) == 0.5
    assert factor(5, 80.0, config) == pytest.approx(0.2)  # in the warm-up too, or a slow run would end at its peak
    assert factor(60, 500.0, config) == 0.0


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_hundred_steps_of_adam_are_the_formula_in_float64(kind: str) -> None:
    model = nn.Linear(5, 3).double()
    config = TrainingConfig(
        optimizer=kind,  # type: ignore[arg-type]
        learning_rate=0.01,
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-3,
        weight_decay=0.1,
    )
    optimizer = optimizers.make(model, config)
    w = model.weight.detach().clone()
    b = model.bias.detach().clone()
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in (("w", w), ("b", b))}
    for step in range(1, 101):
        x = torch.randn(7, 5, dtype=torch.float64)
        (model(x).square().mean() * (1e-3 if step < 50 else 1.0)).backward()
        for name, p, grad, decay in (("w", w, model.weight.grad, 0.1), ("b", b, model.bias.grad, 0.0)):
            assert grad is not None
            if kind == "adamw":
                p -= 0.01 * decay * p
            else:
                grad = grad + decay * p
            m, v = moments[name]
            m += (1 - 0.9) * (grad - m)
            v += (1 - 0.98) * (grad.square() - v)
            p -= 0.01 * (m / (1 - 0.9**step)) / ((v / (1 - 0.98**step)).sqrt() + 1e-3)
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(model.weight.detach(), w, rtol=0, atol=1e-10)
        torch.testing.assert_close(model.bias.detach(), b, rtol=0, atol=1e-10)


def test_optimizer_state_comes_back_to_the_bit() -> None:
    model = nn.Linear(5, 3)
    config = TrainingConfig()
    optimizer = optimizers.make(model, config)
    model(torch.randn(2, 5)).sum().backward()
    optimizer.step()
    saved = optimizers.state_tensors(optimizer, model)
    assert {name.rpartition(".")[2] for name in saved} == {"step", "exp_avg", "exp_avg_sq"}
    again = optimizers.make(model, config)
    optimizers.restore(again, model, saved)
    back = optimizers.state_tensors(again, model)
    assert all(torch.equal(back[name], saved[name]) and back[name].dtype == saved[name].dtype for name in saved)
