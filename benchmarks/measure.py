"""Timing side by side: a round of each contender in turn, so that a machine's moods meet all alike; and peak memory."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Spent:
    """What a round took, where it knows better than a clock around it: one of processes of its own.

    Attributes:
        seconds: Of the work.
        peak_bytes: Most memory of the process; None where it is not known.
    """

    seconds: float
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Spread:
    """What several rounds say.

    Attributes:
        median: Of the rounds.
        least: Of the rounds.
        greatest: Of the rounds.
    """

    median: float
    least: float
    greatest: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Summarize."""
        return Spread(statistics.median(values), min(values), max(values))


def ratio(ours_s: Sequence[float], theirs_s: Sequence[float]) -> Spread:
    """Say how many times as fast as theirs ours is: round by round, the two having run one after the other.

    Args:
        ours_s: Seconds of our rounds.
        theirs_s: Seconds of their rounds; where one side has fewer, those that both have count.

    Returns:
        Median, least and greatest of the rounds' ratios.

    Example:
        >>> ratio([1.0, 2.0, 1.0], [2.0, 2.0, 3.0])
        Spread(median=2.0, least=1.0, greatest=3.0)
    """
    return Spread.of([theirs / ours for ours, theirs in zip(ours_s, theirs_s, strict=False)])


def wait(device: torch.device) -> None:
    """Wait until a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    budget_s: float = float("inf"),
    device: torch.device | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, list[Spent]], dict[str, Exception]]:
    """Time one round of each contender in turn, again and again.

    Args:
        contenders: A round of each, warmed up; what it gives counts where it is :class:`Spent`.
        rounds: Rounds of each at most.
        budget_s: No round begins after this many seconds, but for the first few.
        device: What is waited for; None for the CPU.
        clock: Seconds.

    Returns:
        What each contender's rounds took; and what went wrong, of those that failed in one: they are left out.
    """
    device = device or torch.device("cpu")
    spent: dict[str, list[Spent]] = {name: [] for name in contenders}
    failed: dict[str, Exception] = {}
    began = clock()
    for number in range(rounds):
        if number >= LEAST_ROUNDS and clock() - began > budget_s:
            break
        for name, run in contenders.items():
            if name in failed:
                continue
            wait(device)
            start = clock()
            try:
                told = run()
                wait(device)
            except Exception as error:
                failed[name] = error
                del spent[name]
                continue
            spent[name].append(told if isinstance(told, Spent) else Spent(clock() - start))
    return spent, failed


class Memory:
    """Memory that something takes from when this was made: with what it loads, and at the peak of its work.

    On a GPU as its allocator counts it; on Linux resident memory of the process; elsewhere nothing is known.

    Args:
        device: Where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rest()  # or what is free now would be taken without being seen
        self.before = self._now("VmRSS")

    def rest(self) -> None:
        """Give back what is free, and forget the highest so far."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif FORGET.exists():
            libc = ctypes.CDLL(None)
            if hasattr(libc, "malloc_trim"):  # glibc's
                libc.malloc_trim(0)
            FORGET.write_text("5")

    def peak(self) -> int | None:
        """Bytes at the highest since :meth:`rest`, above those at the start."""
        highest = self._now("VmHWM")
        return None if highest is None or self.before is None else max(highest - self.before, 0)

    def _now(self, what: str) -> int | None:
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated if what == "VmHWM" else torch.cuda.memory_allocated
            return peak(self.device)
        if not FORGET.exists():
            return None
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
        return int(lines[what].split()[0]) * 1024
