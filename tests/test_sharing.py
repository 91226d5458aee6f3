"""Good manners on a machine that others use: threads that wait let others run, where others want to."""

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regard import sharing
from regard.sharing import processor_share, threads_for

SHOW = "import regard, os; print(os.environ.get('GOMP_SPINCOUNT'))"
# Steps a second of a small Transformer in two threads. (A stack of plain layers would tell of MKL alone: the threads
# of its products of many rows and few columns spin within, whatever they are told.)
TRAIN = """
import sys, time
import regard
import torch
from regard import sharing
from regard.attention.segments import Segments
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.blocks import quicken
sharing.watch()
torch.set_num_threads(2)
torch.manual_seed(0)
sizes = {"embed_dim": 64, "mlp_dim": 256, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
model = Transformer(TransformerConfig(64, 64, **sizes))
quicken(model, "fp32")
words, segments = torch.randint(64, (256,)), Segments.uniform(32, 8, "cpu")
def step():
    model(words, segments, words, segments).square().mean().backward()
until = time.monotonic() + 1.5
while time.monotonic() < until:
    step()
print("ready", flush=True)
sys.stdin.readline()
began, steps = time.perf_counter(), 0
while time.perf_counter() - began < 4:
    step()
    steps += 1
print(steps / (time.perf_counter() - began))
"""
FREE = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}


def _shown(code: str, **more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=FREE | more, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_the_policy_is_set_where_the_user_says_nothing():
    assert _shown(SHOW) == ("30000" if sharing._can_watch() else "300")
    assert _shown(SHOW, GOMP_SPINCOUNT="77") == "77"
    assert _shown(SHOW, OMP_WAIT_POLICY="ACTIVE") == "None"


def test_the_policy_is_not_set_behind_torch():
    assert _shown(f"import torch; {SHOW}") == "None"


def groups(folder: Path, lines: str, **files: str) -> float:
    """The share that control groups leave, from files as the kernel writes them."""
    proc, mounts = folder / "cgroup", folder / "mounts"
    proc.write_text(lines)
    mounts.mkdir()
    for name, content in files.items():
        path = mounts / name.replace("__", "/").replace("_max", ".max").replace("cfs_", "cpu.cfs_")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return processor_share(proc, mounts)


def test_the_least_quota_above_a_group_counts(tmp_path: Path):
    files = {"cpu_max": "max 100000\n", "a__cpu_max": "150000 100000\n", "a__b__cpu_max": "300000 100000\n"}
    assert groups(tmp_path, "0::/a/b\n", **files) == 1.5


def test_no_quota_is_no_limit(tmp_path: Path):
    assert groups(tmp_path, "0::/a\n", a__cpu_max="max 100000\n") == math.inf
    assert processor_share(tmp_path / "none", tmp_path) == math.inf


def test_a_container_sees_its_own_group_as_the_mount(tmp_path: Path):
    assert groups(tmp_path, "0::/docker/1234\n", cpu_max="50000 100000\n") == 0.5


def test_groups_of_the_first_version(tmp_path: Path):
    files = {"cpu,cpuacct__a__cfs_quota_us": "250000\n", "cpu,cpuacct__a__cfs_period_us": "100000\n"}
    lines = "5:memory:/a\n4:cpu,cpuacct:/a\n0::/\n"
    assert groups(tmp_path, lines, **files, memory__a__cfs_quota_us="1\n", memory__a__cfs_period_us="100\n") == 2.5
    (tmp_path / "mounts/cpu,cpuacct/a/cpu.cfs_quota_us").write_text("-1\n")
    assert processor_share(tmp_path / "cgroup", tmp_path / "mounts") == math.inf


@pytest.mark.parametrize("content", ["", "many 100000", "100000", "0 100000", "100000 0", "1 2 3", "\0\xff"])
def test_what_cannot_be_read_is_no_limit(tmp_path: Path, content: str):
    assert groups(tmp_path, "0::/../../a\n0\n::\n0::/a\n", a__cpu_max=content) == math.inf


def test_threads_follow_a_quota():
    assert threads_for(0.4, 4) == 1
    assert threads_for(1.5, 4) == 1
    assert threads_for(3.0, 4) == 3
    assert threads_for(4.0, 4) is None
    assert threads_for(math.inf, 1) is None
    show = "import os; print(os.environ.get('OMP_NUM_THREADS'))"
    told = "import regard.sharing as s, os; os.environ.pop('OMP_NUM_THREADS', 0); {}; s.threads_for = lambda *_: 3;"
    assert _shown(f"{told.format('0')} s.give_way(); {show}") == "3"
    assert _shown(f"{told.format('os.environ.update(OMP_NUM_THREADS=chr(55))')} s.give_way(); {show}") == "7"


can_watch = pytest.mark.skipif(not sharing._can_watch(), reason="nothing can be watched here: see sharing.watch")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems tell nothing of it")


@contextmanager
def _on_one_core(others: int) -> Generator[None]:
    """Let this process and some others, which never rest, have one core among them."""
    cores = os.sched_getaffinity(0)
    one = min(cores)
    code = f"import os; os.sched_setaffinity(0, {{{one}}}); print(flush=True)\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(others)]
    try:
        for process in busy:
            assert process.stdout is not None
            process.stdout.readline()
        os.sched_setaffinity(0, {one})
        yield
    finally:
        os.sched_setaffinity(0, cores)
        for process in busy:
            process.kill()
            process.communicate()


def _work(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@linux
def test_waiting_for_a_core_is_seen_and_who_has_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sharing, "_all_cores", {min(os.sched_getaffinity(0))})
    with _on_one_core(others=3):
        before, mine = sharing.times(), time.process_time()
        _work(1.5)
        passed, waited, others = (now - then for now, then in zip(sharing.times(), before, strict=True))
        mine = time.process_time() - mine
    assert 1.5 <= passed < 5
    assert 0.5 < waited / passed < 1.05
    assert 0.5 < others / passed < 1.1 - mine / passed


@can_watch
def test_threads_sleep_soon_while_others_want_the_cores(monkeypatch: pytest.MonkeyPatch):
    def crowd() -> int:
        return sum(thread.name == "regard-crowd" for thread in threading.enumerate())

    def tasks() -> int:
        return len(os.listdir("/proc/self/task"))

    def wait(count: int, busy: float) -> bool:
        until = time.monotonic() + 20
        while crowd() != count and time.monotonic() < until:
            _work(busy)
            time.sleep(0.01)
        return crowd() == count

    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    cores = len(os.sched_getaffinity(0))
    sharing.watch()
    sharing.watch()
    assert sum(thread.name == "regard-watch" for thread in threading.enumerate()) == 1
    assert wait(0, 0.0)  # whatever came before
    before = tasks()
    with _on_one_core(others=2):
        assert wait(1, 0.1)
        # The library believes in more threads than cores because there are: they sleep.
        assert eventually(lambda: tasks() - before > cores)
    assert wait(0, 0.0)
    assert eventually(lambda: tasks() <= before)


def eventually(is_so: Callable[[], bool]) -> bool:
    """Whether something becomes so within some seconds."""
    until = time.monotonic() + 10
    while not is_so() and time.monotonic() < until:
        time.sleep(0.02)
    return is_so()


SLOW = """
import time
from regard import sharing

looks, times = [], sharing.times
def slow():
    looks.append(times())
    time.sleep(0.3)
    return looks[-1]
sharing.times = slow
sharing.watch()
time.sleep(4)
print(len(looks))
"""


@can_watch
def test_a_look_that_had_to_wait_does_not_put_off_the_next():
    assert int(_shown(SLOW)) > 3


@can_watch
def test_a_forked_child_watches_too():
    fork = "import os, threading, time, regard.sharing as s; s.watch(); child = os.fork()"
    show = "print([t.name for t in threading.enumerate()], flush=True)"
    wait = "os._exit(0) if child == 0 else os.waitpid(child, 0)"
    assert (
        _shown(f"import warnings; warnings.simplefilter('ignore'); {fork}; {show}; {wait}").splitlines()
        == ["['MainThread', 'regard-watch']"] * 2
    )


@linux
def test_no_thread_is_added_where_none_can_be():
    limits = "import resource, regard.sharing as s; resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))"
    assert _shown(f"{limits}; print(s._has_room(1000), s._has_room(1))") == "False True"


@linux
@pytest.mark.parametrize("name", sharing._BINDING)
def test_who_binds_threads_is_not_watched(name: str):
    show = "import regard, threading; regard.sharing.watch(); print(threading.active_count())"
    assert _shown(show, **{name: "true"}) == "1"
    assert _shown(SHOW, **{name: "true"}) == "300"


def test_many_cores_and_small_quotas_are_not_watched(monkeypatch: pytest.MonkeyPatch):
    for name in sharing._BINDING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sharing, "_tells_waits", lambda: True)
    for cores, share, can in ((32, math.inf, True), (33, math.inf, False), (8, 8.0, True), (8, 7.5, False)):
        monkeypatch.setattr(sharing, "_all_cores", set(range(cores)))
        monkeypatch.setattr(sharing, "processor_share", lambda share=share: share)
        assert sharing._can_watch() == can


@linux
@pytest.mark.parametrize(
    ("content", "can"), [("900 0 1", True), ("9 5 3\n", True), ("0 0 0", False), ("", False), ("7 8", False)]
)
def test_who_never_waited_can_watch_where_waits_are_counted(content: str, can: bool, monkeypatch: pytest.MonkeyPatch):
    for name in sharing._BINDING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sharing, "_all_cores", {0})
    monkeypatch.setattr(sharing, "processor_share", lambda: math.inf)
    monkeypatch.setattr(sharing, "_read", lambda path: content if path.name == "schedstat" else "")
    assert sharing._can_watch() == can


@linux
def test_libraries_are_found_by_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a place").mkdir()
    names = ["a place/libgomp.so.1", "libgomp-1a2b.so.1.0.0", "libgomp-gone.so.1", "libgompx.so", "libother.so"]
    for name in names:
        if "gone" not in name:
            (tmp_path / name).write_bytes(b"")
    lines = [f"7f00-7f01 r-xp 00000000 08:01 1234    {tmp_path / name}" for name in names]
    maps = "\n".join(["7f00-7f01 rw-p 00000000 00:00 0", *lines, f"{lines[0]} (deleted)"])
    monkeypatch.setattr(sharing, "_read", lambda path: maps)
    assert sharing.openmp_libraries() == {str(tmp_path / name) for name in names[:2]}


@pytest.mark.parametrize("chosen", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_a_users_choice_of_waiting_is_not_watched(chosen: dict[str, str]):
    show = "import threading, regard.sharing as s; s.watch(); print([t.name for t in threading.enumerate()])"
    assert _shown(show, **chosen) == "['MainThread']"


@linux
@pytest.mark.slow
def test_two_runs_side_by_side_keep_their_speed():
    def rates(count: int) -> list[float]:
        runs = [
            subprocess.Popen(
                [sys.executable, "-c", TRAIN],
                env=FREE,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        for run in runs:
            assert run.stdout is not None
            assert run.stdout.readline() == "ready\n"
        for run in runs:
            assert run.stdin is not None
            run.stdin.write("\n")
            run.stdin.flush()
        return [float(run.communicate(timeout=120)[0]) for run in runs]

    assert min(rates(2)) >= 0.4 * rates(1)[0]


FAULTS = """
import resource
import torch
from regard.sharing import keep_freed

torch.set_num_threads(1)
keep_freed()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(6):
    before = faults()
    for _ in range(4):
        torch.ones(1 << 24)
print(faults() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="where memory goes is the C library's business")
@pytest.mark.parametrize("chosen", [{}, {"MALLOC_MMAP_THRESHOLD_": "131072"}])
def test_memory_that_is_freed_is_kept_where_the_user_says_nothing(chosen: dict[str, str]):
    run = subprocess.run([sys.executable, "-c", FAULTS], env={**os.environ, **chosen}, capture_output=True, text=True)
    pages = (4 << 26) // os.sysconf("SC_PAGE_SIZE")
    assert int(run.stdout) < pages / 50 if not chosen else int(run.stdout) > pages / 2, run.stdout + run.stderr
