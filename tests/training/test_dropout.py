"""Dropout with quick draws: the right share, the right mean, from torch's seed alone."""

import pytest
import torch
from torch import nn

from regard.layers.dropout import Dropout
from regard.training.blocks import quicken


def factors(p: float, *shape: int, seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    return Dropout(p)(torch.ones(shape))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_a_share_is_dropped_and_the_mean_stays(p: float) -> None:
    m = factors(p, 1000, 401)
    count = m.numel()
    dropped = int((m == 0).sum())
    assert abs(dropped - p * count) < 5 * (count * p * (1 - p)) ** 0.5
    kept = m[m != 0]
    assert torch.equal(kept, kept[:1].expand_as(kept))
    assert float(kept[0]) == pytest.approx(1 / (1 - p), rel=2e-4)
    # All four numbers of a draw, each by bits of its own, and none like its neighbour.
    for lane in range(4):
        some = (m.flatten()[lane::4] == 0).double()
        assert abs(float(some.mean()) - p) < 5 * (p * (1 - p) / len(some)) ** 0.5
    zero = (m.flatten() == 0).double()
    for apart in (1, 2, 4):
        both = float((zero[apart:] * zero[:-apart]).mean())
        assert abs(both - p * p) < 5 * (p * p * (1 - p * p) / count) ** 0.5 + 1e-3


def test_what_is_dropped_follows_from_the_seed_and_from_nothing_else() -> None:
    assert torch.equal(factors(0.4, 7, 3), factors(0.4, 7, 3))
    assert not torch.equal(factors(0.4, 7, 3), factors(0.4, 7, 3, seed=2))
    torch.manual_seed(1)
    first, second = (Dropout(0.4)(torch.ones(30)) for _ in range(2))
    assert not torch.equal(first, second)


def test_the_gradient_goes_where_numbers_were_kept() -> None:
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.3)(x)
    y.sum().backward()
    assert torch.equal(x.grad * x.detach(), y.detach())
    assert 0 < int((x.grad == 0).sum()) < 35
    # 19,661 of 65,536 are dropped: the mean is kept to the last digit, not only to p's.
    assert float(x.grad.max()) == 65536 / (65536 - 19661)


def test_its_edges_are_torchs() -> None:
    x = torch.randn(6)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert not Dropout(1.0)(x).any()
    assert Dropout(0.5)(torch.ones(0, 4)).shape == (0, 4)
    assert Dropout(0.5)(torch.ones(9, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert Dropout(0.5)(torch.ones(3, 8)[:, ::2]).shape == (3, 4)


def test_training_quickens_every_dropout_of_a_model() -> None:
    model = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.2)))
    quicken(model, "fp32")
    assert [(type(one), one.p) for one in (model[0], model[1][1])] == [(Dropout, 0.1), (Dropout, 0.2)]
