"""Our own kernels for a CPU, compiled once on the machine that runs them.

The sources have a plain C interface and need a C++ compiler alone. What was compiled is kept in the cache
folder, under a name made of the sources, the compiler, its options and the processor's features, with its own SHA-256
behind it: half a file, another file or another machine's file is never loaded. Without a compiler, or where
``REGARD_KERNEL=torch``, products are PyTorch's.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from regard.errors import ResourceError, UsageError
from regard.files import write_aside
from regard.places import cache_folder
from regard.sharing import openmp_libraries

FOLDER = Path(__file__).parent
SOURCES = tuple(
    FOLDER / f"{name}.cpp"
    for name in ("products", "packing", "amx", "slots", "sequences", "recurrences", "blocks", "vocabulary", "exports")
)
_HEADERS = tuple(FOLDER / name for name in ("calls.h", "matrices.h", "products.h", "threads.h", "vectors.h"))
_HUGE_BYTES = 1 << 21  # of a huge page

_OPTIONS = (
    *("-std=c++17", "-O3", "-pthread", "-shared", "-fPIC"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),  # no number changes but by a fused rounding
    "-fno-strict-aliasing",  # numbers are laid out anew as bits
)
# Which of them a compiler takes depends on the processor. On x86 it takes the second too, and makes code for any.
_NATIVE = ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ("-march=native", "-mcpu=native")
_TIMEOUT_S = 300


class Kernel:
    """The compiled kernels. Each raises MemoryError where memory runs out; what it was to write is then of no use.

    Args:
        path: The shared library.
        made_by: What compiled it, for people.

    Attributes:
        linear: (matrix, x, rows, numbers from row to row, y, threads, team or None).
        pack: (matrix, weights, numbers from output to output, and from input to input, threads, team or None).
        multiply: (product, threads, team or None); where ``multiplies()``.
        slots: (slots, threads).
        sequences: (sequences, threads, team or None).
        sequences_back: (sequences, gradients, threads, team or None).
        weights: (one sequence, where they go, keys of a row, threads, team or None).
        recurrence: (recurrence, threads, team or None).
        recurrence_back: (recurrence, gradients, threads, team or None).
        blocks: (blocks, where the keys and values of each lie, how many, step, threads).
        read: (block, whole sequences, threads, team or None).
        log_norms: (x, rows, numbers of a row, numbers from row to row, y in float64, threads).
        best: (x, rows, numbers of a row, numbers from row to row, how many, values, places, threads).
        compare: (x, rows, numbers of a row, numbers from row to row, labels, smoothing, whether gradients take the
            numbers' place, losses in float64, threads, team or None).
        multiplies: (); says whether the processor multiplies matrices of bfloat16.
        bytes_of_panel: (kind, inputs); gives the bytes of a panel of packed weights.
        room: (block, whole sequences); gives the numbers that ``read`` needs room for.
        huge: (place, bytes): asks for huge pages.

    Raises:
        OSError: It cannot be loaded.
        AttributeError: It is another library.
    """

    linear: Callable[..., None]
    pack: Callable[..., None]
    multiply: Callable[..., None]
    slots: Callable[..., None]
    sequences: Callable[..., None]
    sequences_back: Callable[..., None]
    weights: Callable[..., None]
    recurrence: Callable[..., None]
    recurrence_back: Callable[..., None]
    blocks: Callable[..., None]
    read: Callable[..., None]
    log_norms: Callable[..., None]
    best: Callable[..., None]
    compare: Callable[..., None]
    multiplies: Callable[[], int]
    bytes_of_panel: Callable[[int, int], int]
    room: Callable[[Any, Any], int]
    huge: Callable[[int, int], None]

    def __init__(self, path: Path, made_by: str) -> None:
        library = ctypes.CDLL(str(path))
        self.made_by = made_by
        pointer, number, integer = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        for name, *given in (
            ("linear", pointer, pointer, number, number, pointer, integer, pointer),
            ("pack", pointer, pointer, number, number, integer, pointer),
            ("multiply", pointer, integer, pointer),
            ("slots", pointer, integer),
            ("sequences", pointer, integer, pointer),
            ("sequences_back", pointer, pointer, integer, pointer),
            ("weights", pointer, pointer, number, integer, pointer),
            ("recurrence", pointer, integer, pointer),
            ("recurrence_back", pointer, pointer, integer, pointer),
            ("blocks", pointer, pointer, number, pointer, integer),
            ("read", pointer, pointer, integer, pointer),
            ("log_norms", pointer, number, number, number, pointer, integer),
            ("best", pointer, number, number, number, number, pointer, pointer, integer),
            ("compare", pointer, number, number, number, pointer, ctypes.c_double, number, pointer, integer, pointer),
        ):
            function = getattr(library, f"regard_{name}")
            function.argtypes, function.restype, function.errcheck = given, integer, _complete
            setattr(self, name, function)
        for name, *given, result in (
            ("multiplies", number),
            ("bytes_of_panel", number, number, number),
            ("room", pointer, pointer, number),
            ("huge", pointer, number, None),
        ):
            function = getattr(library, f"regard_{name}")
            function.argtypes, function.restype = given, result
            setattr(self, name, function)


def _complete(failed: int, function: object, given: tuple[Any, ...]) -> None:
    """Say that memory ran out in a kernel, as Python says it."""
    if failed:
        raise MemoryError("no memory for what a kernel works with")


def choose(asked: str | None = None) -> Kernel | None:
    """Choose between our own kernels and PyTorch's products.

    Args:
        asked: ``native`` (raise where there is none), ``torch``, or ``auto``; None is what REGARD_KERNEL says, else
            ``auto``.

    Returns:
        The kernels; None for PyTorch's products.

    Raises:
        UsageError: Another word is given.
        ResourceError: ``native``, and they cannot be had; why is said.
    """
    asked = asked or os.environ.get("REGARD_KERNEL") or "auto"
    if asked not in ("auto", "native", "torch"):
        raise UsageError(f"the kernel {asked[:40]!r}", where="REGARD_KERNEL", mend="choose auto, native or torch")
    if asked == "torch":
        return None
    kernel, why = load()
    if kernel is None and asked == "native":
        raise ResourceError(f"no kernels of our own: {why}", mend="install a C++ compiler, or set REGARD_KERNEL=torch")
    return kernel


def describe() -> str:
    """Say in one line what multiplies packed weights here."""
    if choose() is None and os.environ.get("REGARD_KERNEL") == "torch":
        return "PyTorch's, as REGARD_KERNEL says"
    kernel, why = load()
    if kernel is None:
        return f"PyTorch's: {why}; int8 is slow without our own"
    return f"our own kernels, compiled by {why}{', with AMX' if kernel.multiplies() else ''}"


def loaded() -> Kernel | None:
    """Give the kernels where this process has them already: for what is not worth compiling them.

    Returns:
        The kernels of :func:`load`, once something asked for them; else None.
    """
    return load()[0] if load.cache_info().currsize and os.environ.get("REGARD_KERNEL") != "torch" else None


_is_batched = torch._C._functorch.is_legacy_batchedtensor  # as ``is_grads_batched`` makes gradients


def are_plain(*tensors: Tensor) -> bool:
    """Say whether a kernel may work on the memory of tensors: what PyTorch would see of it, nobody wants to see.

    Args:
        *tensors: What it reads.

    Returns:
        Whether all are float32 on a CPU, and stand for themselves: no tracing, batching, modes or forward derivatives.
    """
    if any(x.dtype != torch.float32 or not x.is_cpu or type(x) not in (Tensor, nn.Parameter) for x in tensors):
        return False
    if any(x.layout != torch.strided or x._is_zerotensor() or _is_batched(x) for x in tensors):
        return False
    is_watched = torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None
    is_traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return not (is_watched or is_traced or forward_ad._current_level >= 0 or any(x.is_neg() for x in tensors))


def room(size: int, kernel: Kernel) -> Tensor:
    """Make room for numbers that the kernels will write.

    Many lie in huge pages, if the system has them: those are there in a third of the time, and read a tenth faster.

    Args:
        size: Bytes.
        kernel: Asks for the pages.

    Returns:
        Bytes; zeros where they are few.
    """
    if size < 2 * _HUGE_BYTES:
        return torch.zeros(size, dtype=torch.uint8, device="cpu")
    memory = torch.empty(size + _HUGE_BYTES, dtype=torch.uint8, device="cpu")
    begin = -memory.data_ptr() % _HUGE_BYTES
    kernel.huge(memory.data_ptr() + begin, size)
    return memory[begin : begin + size]


class _Threads(threading.local):
    """How many the kernels work in inside of :func:`alone`; 0 elsewhere. Each caller's thread has its own number."""

    count = 0


_threads = _Threads()
_forks: list[None] = []  # one for each fork between the process that loaded this and ours
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forks.append(None))


def threads() -> int:
    """Say how many threads the kernels work in: PyTorch's number, also where :func:`alone` has set that to one."""
    return _threads.count or torch.get_num_threads()


@contextmanager
def alone(is_worth: bool = True) -> Generator[None, None, None]:
    """Let PyTorch work in one thread as long as the block runs, while the kernels keep theirs.

    Where all large products are the kernels', what PyTorch has left is too little to share: its threads would only be
    woken, and take the processor from those of the kernels.

    Args:
        is_worth: Whether to do so; where there are no kernels, nothing changes either.

    Yields:
        Nothing.
    """
    if _threads.count or not is_worth or loaded() is None:
        yield
        return
    mine = _threads.count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(mine)
        _threads.count = 0


@contextmanager
def together() -> Generator[None, None, None]:
    """Let PyTorch have its threads back, inside of :func:`alone`, for a piece of work that is large after all.

    Yields:
        Nothing.
    """
    mine = _threads.count
    if not mine:
        yield
        return
    _threads.count = 0
    torch.set_num_threads(mine)
    try:
        yield
    finally:
        torch.set_num_threads(1)
        _threads.count = mine


def team() -> int | None:
    """Say who shares the kernels' work: PyTorch's own threads, between whose operations they run.

    Threads of ours beside them would wait for cores on which PyTorch's spin.

    Returns:
        What starts PyTorch's threads, for the kernels; None for threads of ours: inside of :func:`alone`, where
        PyTorch's cannot be had, and in a process that was forked from one that had this module: there PyTorch's threads
        may not be. (Forked before, its own parallel operations hang too.)
    """
    return None if _threads.count or _forks else _gomp_parallel()


@functools.cache
def _gomp_parallel() -> int | None:
    """Find the place of ``GOMP_parallel`` in the OpenMP library that PyTorch brought; None where it has another."""
    home = Path(torch.__file__).resolve().parent
    homes = (home, home.with_name("torch.libs"))
    for path in sorted(openmp_libraries()):
        if not any(Path(path).resolve().is_relative_to(one) for one in homes):
            continue
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
            return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


@functools.cache
def load() -> tuple[Kernel | None, str]:
    """Load the kernels, compiling them where that was not done before.

    Returns:
        The kernels and what made them; or None, and why there are none.
    """
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX") or "g++", "g++", "c++", "clang++"))), None)
    if compiler is None:
        return None, "no C++ compiler is installed"
    runs, said = _run(compiler, "--version")
    if not runs:
        return None, f"{compiler} does not run"
    made_by = said.splitlines()[0].strip() if said.strip() else compiler
    source = b"\0".join(path.read_bytes() for path in (*SOURCES, *_HEADERS))
    options = (*_OPTIONS, *_withheld())
    key = hashlib.sha256("\0".join((said, *options, *_NATIVE, _processor())).encode() + source).hexdigest()[:32]
    try:
        cached = cache_folder() / "kernels" / f"regard-{key}.so"
    except ResourceError:
        cached = None
    if cached is not None and _is_whole(cached):
        try:
            return Kernel(cached, made_by), made_by
        except (OSError, AttributeError):
            pass  # whole, and yet it cannot be loaded: it is compiled anew
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        made, until = Path(folder) / "regard.so", time.monotonic() + _TIMEOUT_S
        complaint: str | None = ""
        for native in _NATIVE:
            if complaint is not None:
                complaint = _compile((compiler, native, *options), made, until)
        if complaint is not None:
            return None, f"{made_by} cannot compile our kernels: {complaint}"
        if cached is not None:
            _keep(made.read_bytes(), cached)
        try:
            return Kernel(made, made_by), made_by
        except (OSError, AttributeError) as error:
            return None, f"what {made_by} made does not load: {error}"


def _compile(command: Sequence[str], made: Path, until: float) -> str | None:
    """Compile the sources side by side, and link them: whoever uses the kernels for the first time waits for it.

    Args:
        command: The compiler and its options.
        made: Where the library goes, and what it is made of beside it.
        until: When to stop, on the monotonic clock.

    Returns:
        What the compiler complains of; None where it has made them.
    """
    objects = [str(made.with_name(f"{source.stem}.o")) for source in SOURCES]

    def run(*more: str) -> str | None:
        is_done, said = _run(*command, *more, timeout_s=until - time.monotonic())
        if is_done:
            return None
        lines = said.splitlines()
        return next((line for line in lines if "error" in line), lines[0] if lines else "it takes too long")[:200]

    def compiled(source: Path, to: str) -> str | None:
        return run("-c", "-o", to, str(source))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints = [one for one in pool.map(compiled, SOURCES, objects) if one is not None]
    return complaints[0] if complaints else run("-o", str(made), *objects)


def _run(*command: str, timeout_s: float = _TIMEOUT_S) -> tuple[bool, str]:
    """Run a compiler: say whether it has done its work, and what it prints, or complains of."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=max(timeout_s, 0))
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    return done.returncode == 0, done.stderr if done.returncode else done.stdout


def _processor() -> str:
    """Describe the processor's features: a library for one that has more would end the process."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    facts = dict(re.findall(r"^(model name|flags|Features|CPU part)\s*:\s*(.*)$", text, re.MULTILINE))
    return repr((platform.machine(), platform.processor(), sorted(facts.items())))


def _withheld() -> tuple[str, ...]:
    """Say with which options nothing is compiled that the system keeps from this process.

    What AMX multiplies stands in registers of eight kilobytes, for which Linux wants to be asked: by the number 0x1023
    of arch_prctl, system call 158, on behalf of the process and those that it forks.
    """
    if "amx_tile" not in _processor():
        return ()
    is_given = ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0
    return () if is_given else ("-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8")


def _is_whole(path: Path) -> bool:
    """Check a library in the cache against the digest behind it."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return len(content) > 32 and hashlib.sha256(content[:-32]).digest() == content[-32:]


def _keep(library: bytes, cached: Path) -> None:
    """Put a library into the cache; where that cannot be done, it is compiled again the next time."""
    try:
        cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_aside(cached, library + hashlib.sha256(library).digest())
    except (OSError, ResourceError):
        pass
