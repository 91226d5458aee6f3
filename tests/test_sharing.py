"""Good manners on a machine that others use: threads that wait let others run."""

import os
import subprocess
import sys

import pytest

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
