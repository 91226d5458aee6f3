"""Memory that runs out inside of a kernel, in a process whose memory is limited: an error, and not its end."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regard.kernels import native

RUN = """
import resource, sys
import torch
from regard.attention import Segments, attend
from regard.kernels import native
from regard.layers.cells import GRU, unroll
from regard.layers.own_kernels import use_own_kernels
from regard.layers.packed_linear import PackedLinear

kernel = use_own_kernels("native")
torch.set_num_threads(int(sys.argv[2]))
torch.manual_seed(0)
with torch.no_grad():
    if sys.argv[1] == "linear":
        layer, x = PackedLinear(torch.randn(64, 4096), None, "fp32", kernel), torch.randn(900, 4096)
        out = torch.empty(900, 64)
        run = lambda: out.copy_(layer(x))
    elif sys.argv[1] == "attention":
        q, segments = torch.randn(20000, 4, 64), Segments.ragged([20000])  # a piece a head: threads throw
        run = lambda: attend(q[:8], q, q, Segments.ragged([8]), segments)
    else:
        sizes = [48, 48]
        x, w, b = torch.randn(1, 96, 3072), torch.randn(1, 3072, 1024) / 32, torch.zeros(1, 3072)
        start = (torch.zeros(1, 48, 1024),)
        run = lambda: unroll(GRU, x, w, b, start, sizes)[0]
    torch.ones(1 << 20).exp()  # PyTorch's threads are there
    with native.alone(sys.argv[3] == "alone"):
        def held():  # what is in reserve is used up, so that what a kernel asks for is asked of the system
            return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (held() + (1 << 20), before[1]))
        try:
            run()
            print("served")
        except MemoryError as error:
            print("MemoryError:", error)
        resource.setrlimit(resource.RLIMIT_AS, before)
        found = run()
        print(torch.equal(found, run()), bool(found.isfinite().all()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere memory is not limited so")
@pytest.mark.parametrize("threads", ["alone", "together"])
@pytest.mark.parametrize("count", ["1", "2"])
@pytest.mark.parametrize("work", ["linear", "attention", "recurrence"])
def test_memory_that_runs_out_is_an_error(work: str, count: str, threads: str) -> None:
    native.choose("native")  # compiled here, not where memory is counted
    done = subprocess.run(
        [sys.executable, "-c", RUN, work, count, threads], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = done.stdout.splitlines()
    assert first == "MemoryError: no memory for what a kernel works with"
    assert second == "True True", "afterwards it goes on as ever"


PARTS = """
#include <chrono>
#include "threads.h"

// How many parts were done; 100 more if it was thrown that one failed.
extern "C" int parts(int count, int fails, Team team) {
    std::atomic<int> done{0};
    auto part = [&](int number) {
        if (number == fails) throw std::bad_alloc();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ++done;
    };
    try {
        Threads::run(count, part, team, count);
    } catch (const std::bad_alloc&) {
        return 100 + done;
    }
    return done;
}
"""
CALL = """
import ctypes, sys
import torch
from regard.kernels import native

torch.set_num_threads(3)
torch.ones(1 << 20).exp()
library = ctypes.CDLL(sys.argv[1])
library.parts.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
team = native.team() if sys.argv[2] == "team" else None
print(*(library.parts(3, fails, team) for fails in (0, 1, 2, -1, 2, -1)))
"""


@pytest.mark.parametrize("whose", ["team", "own"])
def test_whatever_thread_it_runs_out_in(whose: str, tmp_path: Path) -> None:
    """All others do their parts, and it is said when they have: out of a thread it would end the process."""
    compiler = shutil.which("g++") or shutil.which("c++") or "clang++"
    (tmp_path / "parts.cpp").write_text(PARTS)
    command = [compiler, *native._OPTIONS, f"-I{native.FOLDER}", "-o", "parts.so", "parts.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    done = subprocess.run(
        [sys.executable, "-c", CALL, str(tmp_path / "parts.so"), whose], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["102", "102", "102", "3", "102", "3"]
