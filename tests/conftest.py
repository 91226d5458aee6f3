"""What every test shares: threads, seeds, the count of GPU tests left out, and the command line as a person runs it."""

import os

# Before torch is imported, and inherited by the subprocesses that tests start: the tests' tensors are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import random
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import numpy as np
import pytest
import torch

from regard.attention import recording
from regard.attention.backends import dense, static
from regard.layers import cells

if TYPE_CHECKING:
    from playwright.sync_api import Browser

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))


class _TorchRandom:
    """Torch's generator in the form hypothesis wants, so that a failing example fails again."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


_TORCH_RANDOM = _TorchRandom()  # hypothesis keeps a weak reference
hypothesis.register_random(_TORCH_RANDOM)
# A machine under load is no defect, so no deadline; and CI sees the same examples in every run.
hypothesis.settings.register_profile("regard", deadline=None, derandomize="CI" in os.environ, print_blob=True)
hypothesis.settings.load_profile("regard")

_LEFT_OUT = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [] if torch.cuda.is_available() else [item for item in items if item.get_closest_marker("cuda")]
    config.stash[_LEFT_OUT] = len(left_out)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("cuda")]


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    if torch.cuda.is_available():
        return f"cuda: {torch.cuda.get_device_name()}"
    return f"cuda: none here, {config.stash.get(_LEFT_OUT, 0)} tests left out"


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    from browsing import started  # playwright is loaded where a page is opened

    with started() as one:
        yield one


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test from the same random state, and without kernels of our own, whatever ran before it."""
    dense.own = static.own = recording.own = cells.own = None
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


RunCli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_cli(tmp_path: Path) -> RunCli:
    """The `regard` command of this environment in a process of its own, in an empty folder unless told otherwise."""
    command = Path(sysconfig.get_path("scripts")) / "regard"

    def run(
        args: Sequence[str | os.PathLike[str]],
        *,
        stdin: str | bytes = b"",
        cwd: Path | None = None,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run `regard ARGS` and wait for it.

        Args:
            args: Arguments after the command's name.
            stdin: What is piped in; bytes where it is not to be UTF-8.
            cwd: Working folder; None for the test's tmp_path.
            timeout: Seconds before the process is killed and the test fails.
            env: Variables added to the test's own.

        Returns:
            Exit code, stdout and stderr as text; output that is not UTF-8 fails the test.
        """
        done = subprocess.run(
            [command, *args],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            cwd=cwd or tmp_path,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
