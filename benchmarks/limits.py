"""What the machine itself can do, measured in the same run: matrix products and memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.measure import wait


@dataclass(frozen=True)
class Limits:
    """The machine's best rates.

    Attributes:
        flops: Floating-point operations a second of matrix products, by precision: ``fp32``, ``bf16``.
        read: Bytes a second that can be read from memory.
    """

    flops: dict[str, float]
    read: float

    def seconds(self, flops: float, read_bytes: float, precision: str = "fp32") -> float:
        """Say what a piece of work takes at least, whichever it has more of.

        Args:
            flops: Floating-point operations.
            read_bytes: Bytes that have to come from memory.
            precision: Of the products; where no rate of it was measured, reading alone counts.

        Returns:
            Seconds.
        """
        rate = self.flops.get(precision)
        return max(0.0 if rate is None else flops / rate, read_bytes / self.read)

    def named(self) -> dict[str, float]:
        """Give the rates as a reader knows them."""
        products = {f"{name} products (GFLOP/s)": rate / 1e9 for name, rate in self.flops.items()}
        return {**products, "memory read (GB/s)": self.read / 1e9}


def measure(device: torch.device, is_tiny: bool) -> Limits:
    """Measure a machine's limits.

    Args:
        device: The CPU or a GPU.
        is_tiny: Small sizes, for tests.

    Returns:
        The best of several ways.
    """
    return _of_gpu(device) if device.type == "cuda" else _of_cpu(is_tiny)


def has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 itself."""
    return torch.backends.mkldnn.is_available() and bool(torch.cpu._is_avx512_bf16_supported())


def _best(work: Callable[[], object], device: torch.device, rounds: int = 5) -> float:
    """Time the middle of some rounds after two that warm up."""
    seconds = []
    for number in range(rounds + 2):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        if number >= 2:
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _of_cpu(is_tiny: bool) -> Limits:
    device = torch.device("cpu")
    side = 128 if is_tiny else 2048
    flops = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        if name == "bf16" and not has_bf16():
            continue
        a, b = torch.randn(side, side, dtype=dtype), torch.randn(side, side, dtype=dtype)
        ways: list[Callable[[], object]] = [lambda a=a, b=b: a @ b]
        if torch.backends.mkldnn.is_available():
            ways.append(_prepacked(side, dtype))
        with torch.inference_mode():
            flops[name] = 2 * side**3 / min(_best(way, device) for way in ways)
    count = (1 << 20) if is_tiny else (1 << 27)  # 512 MiB, more than any cache
    x = torch.ones(count)
    matrix, vector = x.view(1 << 10, -1), torch.ones(count >> 10)
    fastest = min(_best(work, device) for work in (x.sum, x.max, lambda: matrix @ vector))
    return Limits(flops, x.nbytes / fastest)


def _prepacked(side: int, dtype: torch.dtype) -> Callable[[], object]:
    """A product whose weights oneDNN has packed before."""
    from torch.utils import mkldnn

    packed = mkldnn.to_mkldnn(nn.Linear(side, side).to(dtype).eval(), dtype)
    x = torch.randn(side, side, dtype=dtype)
    return lambda: packed(x)


def _of_gpu(device: torch.device) -> Limits:
    side = 8192
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    flops = {"bf16": 2 * side**3 / _best(lambda: a @ b, device, 10)}
    x = torch.ones(1 << 29, device=device, dtype=torch.bfloat16)
    y = torch.empty_like(x)
    copied = 2 * x.nbytes / _best(lambda: y.copy_(x), device, 10)
    return Limits(flops, max(copied, x.nbytes / _best(x.sum, device, 10)))
