"""NT-Xent against loops in float64, over processes, and in parts."""

import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from regard.tasks.images.contrast import nt_xent

TAU = 0.37


def loops(first: list[list[float]], second: list[list[float]], tau: float) -> float:
    """Chen et al. 2020, equation 1, written out."""
    views = [*first, *second]
    count = len(first)

    def sim(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))

    total = 0.0
    for i in range(2 * count):
        j = (i + count) % (2 * count)
        below = sum(math.exp(sim(views[i], views[k]) / tau) for k in range(2 * count) if k != i)
        total -= math.log(math.exp(sim(views[i], views[j]) / tau) / below)
    return total


def views(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(count, 5, dtype=torch.float64, generator=draws) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("count", [2, 3, 7])
def test_equals_loops(count: int) -> None:
    first, second = views(count)
    assert float(nt_xent(first, second, TAU).sum) == pytest.approx(
        loops(first.tolist(), second.tolist(), TAU), abs=1e-12
    )


def test_gradient() -> None:
    first, second = (one.requires_grad_() for one in views(4))
    torch.autograd.gradcheck(lambda a, b: nt_xent(a, b, TAU).sum, (first, second))


def test_is_the_same_under_autocast() -> None:
    def computed(is_narrow: bool) -> tuple[Tensor, ...]:
        first, second = (one.float().requires_grad_() for one in views(7))
        with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
            total = nt_xent(first, second, 0.05).sum
        return total, *torch.autograd.grad(total, (first, second))

    for one, other in zip(computed(True), computed(False), strict=True):
        assert torch.equal(one, other)


def test_scale_of_a_vector_does_not_matter() -> None:
    first, second = views(5)
    grown = nt_xent(first * torch.arange(1.0, 6.0)[:, None], second, TAU).sum
    torch.testing.assert_close(grown, nt_xent(first, second, TAU).sum)


def test_half_precision_is_summed_in_single() -> None:
    first, second = views(6)
    loss = nt_xent(first.bfloat16(), second.bfloat16(), TAU).sum
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), nt_xent(first, second, TAU).sum, rtol=2e-2, atol=0.0)


PROCESS = """
import sys
import torch
from torch import nn
from regard.tasks.images.contrast import nt_xent

rank, port = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Linear(5, 3).double()
draws = torch.Generator().manual_seed(1)
x = [torch.randn(7, 5, dtype=torch.float64, generator=draws) for _ in range(2)]
part = slice(0, 4) if rank == 0 else slice(4, 7)
loss = nt_xent(model(x[0][part]), model(x[1][part]), 0.37).sum
loss.backward()
total, grad = loss.detach().clone(), model.weight.grad.clone()
torch.distributed.all_reduce(total)
torch.distributed.all_reduce(grad)
if rank == 0:
    print(repr(float(total)), *map(repr, grad.flatten().tolist()))
torch.distributed.destroy_process_group()
"""


def whole() -> tuple[float, Tensor]:
    """One process with all seven images of the script above."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3).double()
    draws = torch.Generator().manual_seed(1)
    x = [torch.randn(7, 5, dtype=torch.float64, generator=draws) for _ in range(2)]
    loss = nt_xent(model(x[0]), model(x[1]), 0.37).sum
    loss.backward()
    assert model.weight.grad is not None
    return float(loss.detach()), model.weight.grad.flatten()


def test_two_processes_give_loss_and_gradient_of_one(tmp_path: Path) -> None:
    script = tmp_path / "process.py"
    script.write_text(PROCESS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    total, *grad = map(float, outputs[0][0].split())
    loss, wanted = whole()
    assert total == pytest.approx(loss, abs=1e-12)
    torch.testing.assert_close(torch.tensor(grad, dtype=torch.float64), wanted, rtol=1e-10, atol=1e-12)
