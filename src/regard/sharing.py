"""Good manners on a machine that others use too.

Threads that wait for each other can spin, which wastes a core that another program may want, or sleep, which wastes the
time to wake them. Alone on a machine small models need the first, up to three times as fast; two runs side by side
need the second, ten times as fast. So threads spin while nobody else wants the cores, and :func:`watch` finds out.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time
from pathlib import Path

# Some milliseconds of a core that nobody wants; as much is reached as with ten times that.
_SPINS = "30000"
_FEW_SPINS = "300"  # where nobody can see whether others want them
# Seconds between two looks, and the pressure (below): above the first, threads give way; below the second, so many
# times in a row, they spin again. Two runs side by side have a quarter and more, spinning or not.
_PERIOD, _CROWDED, _QUIET, _TIMES = 0.2, 0.06, 0.025, 3
_MOST_CORES = 32  # beyond it, as many threads for nothing are no longer cheap
# What binds threads to cores, or bounds their number: cores are counted wrongly then, or threads cannot be added.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "OMP_DYNAMIC", "OMP_THREAD_LIMIT")
_MEMORY = ("GLIBC_TUNABLES", *(f"MALLOC_{name}_" for name in ("MMAP_THRESHOLD", "MMAP_MAX", "TRIM_THRESHOLD")))
_all_cores: set[int] = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()  # before torch binds us


def give_way() -> None:
    """Tell the OpenMP library how to wait, where the environment says nothing else and torch is not loaded.

    It reads the environment once. Its own default, ten times as many spins, costs others more until :func:`watch`
    has seen them, and gains nothing.

    And where a container's share of the processor is less than its cores, there are no more threads than whole cores
    in it: a thread that the kernel has stopped until the next period keeps all others waiting.
    """
    if "torch" in sys.modules:
        return
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS if _can_watch() else _FEW_SPINS)
    if "OMP_NUM_THREADS" not in os.environ:
        threads = threads_for(processor_share(), _cores())
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(threads)


def keep_freed() -> None:
    """Have the C library keep memory that large tensors leave, for those that come next, where nothing else is set.

    By itself glibc gives it back to the system, and gets the next tensor's page by page: a step of GPT-2 of 124 M
    parameters met 150,000 pages, a fifth of its time. Now up to half a gigabyte that is free stays.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _MEMORY):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return  # another C library than glibc
    # M_MMAP_THRESHOLD: larger ones are mapped, each by itself (an older glibc takes 32 MB at most); M_TRIM_THRESHOLD.
    if mallopt(-3, 1 << 30) or mallopt(-3, 1 << 25):
        mallopt(-1, 1 << 29)


class _Watch(threading.Thread):
    """Looks now and then whether others use the cores that this process's threads wait for, and has them give way.

    The pressure is the lesser of two times, as a share of all cores' time between two looks: the one that this
    process's threads waited for a core, and the one that other processes used. Threads that wait for their own like, as
    when data is prepared, would only lose by sleeping.
    """

    def __init__(self) -> None:
        super().__init__(name="regard-watch", daemon=True)

    def run(self) -> None:
        """Look, for ever."""
        before, quiet, crowd, took = times(), 0, None, 0.0
        while True:
            time.sleep(max(_PERIOD, 100 * took))  # to look takes longer the more threads there are
            # The time it costs, not the one it waited for: on a crowded machine that can be a hundred times as long.
            began = time.thread_time()
            now = times()
            took = time.thread_time() - began
            passed, waiting, others = (new - old for new, old in zip(now, before, strict=True))
            pressure, before = min(waiting, others) / passed / len(_all_cores), now
            quiet = quiet + 1 if pressure < _QUIET else 0
            if crowd is None and pressure > _CROWDED and _has_room(2 * len(_all_cores) + 2):
                crowd = _Crowd()
                crowd.start()
            elif crowd is not None and quiet >= _TIMES:
                crowd.over.set()
                crowd.join()
                crowd = None


class _Crowd(threading.Thread):
    """While it lives, the GNU OpenMP library believes that it has more threads than cores, and hardly spins.

    It reads how long to spin from the environment, and cannot be told later; but with more threads than cores it spins
    a hundred times at most (``gomp_throttled_spin_count_var``). The threads added here sleep all the time, and end
    with this one. The number of threads that compute stays the same, and with it every sum's rounding.
    """

    def __init__(self) -> None:
        super().__init__(name="regard-crowd", daemon=True)
        self.over = threading.Event()

    def run(self) -> None:
        """Begin and end an empty parallel region in each of the process's OpenMP libraries, and wait."""
        for path in openmp_libraries():
            try:
                library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
                library.GOMP_parallel(library.omp_in_parallel, None, len(_all_cores) + 1, 0)
            except (OSError, AttributeError):  # it is gone, or another library
                continue
        self.over.wait()


def _has_room(count: int) -> bool:
    """Try whether so many threads can be added: where the OpenMP library fails to, it ends the process."""
    over = threading.Event()
    made: list[threading.Thread] = []
    try:
        for _ in range(count):
            made.append(threading.Thread(target=over.wait, daemon=True))
            made[-1].start()
    except RuntimeError:
        made.pop()
        return False
    finally:
        over.set()
        for thread in made:
            thread.join()
    return True


_watching: threading.Thread | None = None
_lock = threading.Lock()


def watch() -> None:
    """See from now on whether other programs want the cores, and have waiting threads sleep soon while they do.

    Where the user chose how threads wait, by OMP_WAIT_POLICY or GOMP_SPINCOUNT, or binds them to cores, or the system
    does not tell how long threads wait, nothing is done. A second call changes nothing. A forked child watches too.
    """
    global _watching  # one for all of the process
    is_chosen = "OMP_WAIT_POLICY" in os.environ or os.environ.get("GOMP_SPINCOUNT", _SPINS) != _SPINS
    if is_chosen or not _can_watch():
        return
    with _lock:
        if _watching is None:
            _watching = _Watch()
            _watching.start()


def _watch_again() -> None:
    """Watch in a forked child, which has its parent's memory and none of its threads."""
    global _watching, _lock
    is_watched, _watching, _lock = _watching is not None, None, threading.Lock()
    if is_watched:
        watch()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch_again)


def _can_watch() -> bool:
    """Say whether pressure can be seen here, and met."""
    is_bound = any(name in os.environ for name in _BINDING)
    return not is_bound and len(_all_cores) <= _MOST_CORES and processor_share() >= len(_all_cores) and _tells_waits()


def times() -> tuple[float, float, float]:
    """Read three clocks, of which only differences mean anything.

    Returns:
        The time, the time that this process waited for cores, and the one that others used of its cores; seconds.
    """
    return time.monotonic(), waited(), _used() - time.process_time()


def waited() -> float:
    """Sum the time that this process's threads were ready to run and had no core.

    Returns:
        Seconds, of all threads that live; 0 where the system does not tell.
    """
    return sum(waits for _, waits, _ in map(_schedule, _entries(Path("/proc/self/task")))) / 1e9


def _tells_waits() -> bool:
    """Say whether the system counts: this thread has run, though it may never have waited."""
    return _schedule(Path("/proc/self"))[2] > 0


def _schedule(task: Path) -> tuple[int, int, int]:
    """Read for how many nanoseconds a task ran, for how many it waited, and how often it ran; zeros if untold."""
    try:
        ran, waits, times_run = map(int, _read(task / "schedstat").split())
    except ValueError:
        return 0, 0, 0
    return ran, waits, times_run


def _used() -> float:
    """Sum the time that all processes have used of the cores that this one may use, in seconds."""
    mine = {f"cpu{number}" for number in _all_cores}
    lines = [line.split() for line in _read(Path("/proc/stat")).splitlines()]
    # user, nice, system, idle, waiting for disks, interrupts twice, taken by the machine below
    ticks = sum(int(words[place]) for words in lines if words and words[0] in mine for place in (1, 2, 3, 6, 7))
    return ticks / os.sysconf("SC_CLK_TCK")


def openmp_libraries() -> set[str]:
    """Find the GNU OpenMP libraries that this process has loaded; packages bring their own.

    Returns:
        Their files.
    """
    mapped = {line.split(maxsplit=5)[-1] for line in _read(Path("/proc/self/maps")).splitlines()}
    return {path for path in mapped if Path(path).name.startswith(("libgomp.", "libgomp-")) and Path(path).is_file()}


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


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _cores() -> int:
    """Count the cores that this process may use, as torch does: threads that share a core count once."""
    if not _all_cores:
        return os.cpu_count() or 1
    topology = Path("/sys/devices/system/cpu")
    return len({_read(topology / f"cpu{number}/topology/thread_siblings_list") or str(number) for number in _all_cores})
