"""What a run runs on: choosing the device, and naming it in reports."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import torch

from regard.errors import ResourceError, UsageError
from regard.sharing import keep_freed, watch
from regard.starting import collect_from_now

# Trials of a number of threads: so many, and until they took so long.
_LEAST_TRIALS, _MOST_TRIALS, _TRIAL_S = 3, 20, 1.5


def choose(name: str) -> torch.device:
    """Choose the device, and have this process begin its work.

    From now on memory that is freed is kept, garbage is looked for again, and it is watched whether others want this
    machine's cores too.

    Args:
        name: ``auto`` (a GPU where there is one), ``cpu``, ``cuda``, ``cuda:1``, …

    Returns:
        The device.

    Raises:
        UsageError: There is no such device.
    """
    collect_from_now()
    keep_freed()
    watch()
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        mend = "give auto, cpu or cuda" if torch.cuda.is_available() else "give auto or cpu"
        raise UsageError(f"no device {name!r} here", mend=mend) from error
    return device


def check_compiler(device: torch.device) -> None:
    """Refuse to compile for a CPU where there is no C++ compiler.

    Args:
        device: What is compiled for.

    Raises:
        ResourceError: Torch would call a compiler that is not there: ``CXX``, or by default g++ (clang++ on macOS).
    """
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        what = f"compiling for a CPU needs a C++ compiler, and there is no {compiler}"
        mend = "install one, set CXX to yours, or leave training.compile out"
        raise ResourceError(what, where="training.compile", mend=mend)


@contextmanager
def threads_kept() -> Generator[None]:
    """Leave the process's number of threads as it was."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def quickest_threads(work: Callable[[], None]) -> int:
    """Find out whether all threads or a single one do some work sooner, on this machine as busy as it is now.

    Small models gain little from more threads; and where something else runs on the machine they lose a lot, since
    threads wait for each other at every operation.

    Args:
        work: A piece of the work, a second or so at most; done three times in each way, and more often where it is
            short.

    Returns:
        1, or the number that torch has now.
    """
    all_threads = torch.get_num_threads()
    if all_threads == 1:
        return 1
    seconds = {all_threads: 0.0, 1: 0.0}
    work()  # what is only done once is not counted
    try:
        for times in range(_MOST_TRIALS):
            if times >= _LEAST_TRIALS and sum(seconds.values()) > _TRIAL_S:
                break
            for threads in seconds:
                torch.set_num_threads(threads)
                began = time.perf_counter()
                work()
                seconds[threads] += time.perf_counter() - began
    finally:
        torch.set_num_threads(all_threads)
    # Sums, not medians: bad moments will come again.
    return all_threads if seconds[all_threads] < 0.9 * seconds[1] else 1


def describe(device: torch.device) -> str:
    """Name the hardware and the versions that a figure depends on."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {versions}"
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}, {versions}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
