"""What a run runs on: choosing the device, and naming it in reports."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from regard.errors import UsageError


def choose(name: str) -> torch.device:
    """Choose the device.

    Args:
        name: ``auto`` (a GPU where there is one), ``cpu``, ``cuda``, ``cuda:1``, …

    Returns:
        The device.

    Raises:
        UsageError: There is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"no device {name!r} here", mend="give auto, cpu or cuda") from error
    return device


def describe(device: torch.device) -> str:
    """Name the hardware and the versions that a figure depends on."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {versions}"
    return f"{_processor()}, {torch.get_num_threads()} threads, {versions}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
