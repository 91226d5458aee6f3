"""Good manners on a machine that others use too: what the libraries of threads are told before they are loaded.

They read the environment once. Whoever imports torch before regard tells them himself.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

_SPINS = "300"


def give_way() -> None:
    """Tell the libraries of threads to give way, where the environment says nothing else and torch is not loaded.

    Threads that wait for each other soon sleep instead of spinning: the OpenMP library's own default spins for
    milliseconds at each barrier, while the thread waited for may have no core. Not to spin at all made a small model
    alone on a machine up to three times slower: waking a core takes its time.

    And where a container's share of the processor is less than its cores, there are no more threads than whole cores
    in it: a thread that the kernel has stopped until the next period keeps all others waiting.
    """
    if "torch" in sys.modules:
        return
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    if "OMP_NUM_THREADS" not in os.environ:
        threads = threads_for(processor_share(), _cores())
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(threads)


def threads_for(share: float, cores: int) -> int | None:
    """Choose a number of threads.

    Args:
        share: Processor time, in cores; infinite for all there is.
        cores: Cores that may be used.

    Returns:
        As many as whole cores fit into the share, one at least; None where it is no limit.
    """
    return None if share >= cores else max(int(share), 1)


def processor_share(proc: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")) -> float:
    """Find the processor time that this process's control groups leave it, in cores.

    Args:
        proc: Names the groups: a line ``0::/group`` (version 2), or ``4:cpu,cpuacct:/group`` (version 1).
        mounts: Where the groups' files are.

    Returns:
        The least quota of the group and those above it; infinite where none is set, or nothing of it can be read.
    """
    shares = [math.inf]
    for line in _read(proc).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        names = ("cpu.max",) if not controllers else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for mount in (mounts,) if not controllers else (mounts / controllers, mounts / "cpu"):
            place = mount / group.lstrip("/")
            # In a container the path may be the host's: then only the mount itself is there.
            for folder in {place, *place.parents, mount}:
                if folder.is_relative_to(mount) and ".." not in folder.parts:
                    shares.append(_share([word for name in names for word in _read(folder / name).split()]))
    return min(shares)


def _share(words: list[str]) -> float:
    """Make a share of a quota and a period, in microseconds; ``max`` and −1 are no quota."""
    try:
        quota, period = (int(word) for word in words)
    except ValueError:
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _cores() -> int:
    """Count the cores that this process may use, as torch does: threads that share a core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    numbers = os.sched_getaffinity(0)
    topology = Path("/sys/devices/system/cpu")
    return len({_read(topology / f"cpu{number}/topology/thread_siblings_list") or str(number) for number in numbers})
