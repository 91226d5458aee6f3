"""Good manners on a machine that others use: threads that wait let others run."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard.sharing import processor_share, threads_for

SHOW = "import regard, os; print(os.environ.get('GOMP_SPINCOUNT'))"
# Steps a second of a small model in two threads.
TRAIN = """
import sys, time
import {first}
import torch
torch.set_num_threads(2)
torch.manual_seed(0)
model = torch.nn.Sequential(*[layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())])
x_ND = torch.randn(512, 64)
def step():
    model(x_ND).square().mean().backward()
for _ in range(5):
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
    assert _shown(SHOW) == "300"
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


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems' torch has another OpenMP library")
def test_two_runs_side_by_side_keep_their_speed():
    def rates(first: str, count: int) -> list[float]:
        runs = [
            subprocess.Popen(
                [sys.executable, "-c", TRAIN.format(first=first)],
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

    alone = rates("regard", 1)[0]
    assert min(rates("regard", 2)) >= 0.4 * alone
