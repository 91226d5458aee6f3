"""What is loaded, and the threads that the kernels share work among."""

import ctypes
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from regard.kernels import native
from regard.layers.packed_linear import PackedLinear
from regard.training.hardware import threads_kept


@pytest.fixture
def layer() -> PackedLinear:
    torch.manual_seed(0)
    return PackedLinear(torch.randn(4096, 512), None, "fp32", native.choose("native"))


@pytest.fixture
def three_threads() -> Iterator[None]:
    with threads_kept():
        torch.set_num_threads(3)
        yield


def test_any_number_of_threads_gives_the_same_bits(layer: PackedLinear, three_threads: None):
    """PyTorch's threads, and ours; some hundred rows are shared out in chunks, to whoever comes first."""
    for rows in (1, 7, 30, 60, 500):
        x_ND = torch.randn(rows, 512)
        found = []
        for threads, alone in itertools.product((1, 2, 3, 7), (False, True)):
            torch.set_num_threads(threads)
            with native.alone(alone):
                found.append(layer(x_ND))
        assert all(torch.equal(found[0], one) for one in found[1:])
        torch.testing.assert_close(found[0].double(), x_ND.double() @ layer(torch.eye(512)).double(), atol=1e-3, rtol=0)


def test_all_threads_of_a_team_are_asked_for_and_fewer_may_come(layer: PackedLinear):
    """Asked for fewer than PyTorch's operations use, its library ends the others and starts them again for the next."""
    asked: list[int] = []
    work_of = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    @ctypes.CFUNCTYPE(None, work_of, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    def team(work: Callable[[int], None], data: int, threads: int, _: int) -> None:
        asked.append(threads)
        work(data)  # one has come

    small = PackedLinear(torch.randn(100, 512), None, "int8", layer.kernel)  # of some rows in fewer blocks than threads
    for one, rows in itertools.product((layer, small), (1, 20, 200)):
        x_ND = torch.randn(rows, 512)
        y_NO = torch.empty(rows, one.out_features)
        one._call(one._at, x_ND.data_ptr(), rows, 512, y_NO.data_ptr(), 5, ctypes.cast(team, ctypes.c_void_p))
        assert torch.equal(y_NO, one(x_ND))
    assert asked
    assert set(asked) == {5}


def test_several_callers_at_once_get_their_own(layer: PackedLinear, three_threads: None):
    weight_OI = layer(torch.eye(512)).T
    layers = [layer, *(PackedLinear(weight_OI, None, precision, layer.kernel) for precision in ("bf16", "int8")), layer]
    inputs = [torch.randn(rows, 512) for rows in (1, 2, 3, 40)]
    wanted = [one(x_ND) for one, x_ND in zip(layers, inputs, strict=True)]
    wrong: list[int] = []

    def call(number: int) -> None:
        torch.set_num_threads(3)
        for _ in range(200):
            if not torch.equal(layers[number](inputs[number]), wanted[number]):
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_makes_threads_of_its_own(layer: PackedLinear, three_threads: None):
    x_ND = torch.randn(2, 512)
    wanted = layer(x_ND)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:  # no torch here: its own threads are not made for a fork
        signal.alarm(20)
        y_NO = torch.empty_like(wanted)
        layer._call(layer._at, x_ND.data_ptr(), 2, 512, y_NO.data_ptr(), 3, native.team())
        os.write(writer, y_NO.numpy().tobytes()[:1024])
        os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + 30
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the forked process waits for threads that it does not have")
        time.sleep(0.01)
    assert os.read(reader, 1024) == wanted.numpy().tobytes()[:1024]
    os.close(reader)


def test_threads_without_work_sleep(layer: PackedLinear, three_threads: None):
    layer(torch.randn(1, 512))
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_pytorch_works_in_one_thread_alone(three_threads: None):
    native.choose("native")
    assert native.threads() == 3
    with native.alone():
        assert (torch.get_num_threads(), native.threads()) == (1, 3)
        with native.together():
            assert (torch.get_num_threads(), native.threads()) == (3, 3)
        with native.alone():
            assert (torch.get_num_threads(), native.threads()) == (1, 3)
        assert (torch.get_num_threads(), native.threads()) == (1, 3)
    with native.alone(False), native.together():
        assert (torch.get_num_threads(), native.threads()) == (3, 3)
    assert (torch.get_num_threads(), native.threads()) == (3, 3)


def test_each_caller_has_its_own_number(three_threads: None):
    """One leaves while another is inside, in every order."""
    native.choose("native")
    begun, left, seen = threading.Event(), threading.Event(), list[tuple[int, int]]()

    def other() -> None:
        torch.set_num_threads(2)
        with native.alone():
            begun.set()
            assert left.wait(30)
            with native.together():
                seen.append((torch.get_num_threads(), native.threads()))
        seen.append((torch.get_num_threads(), native.threads()))

    caller = threading.Thread(target=other)
    with native.alone():
        caller.start()
        assert begun.wait(30)
        assert native.threads() == 3
    left.set()
    caller.join()
    assert seen == [(2, 2), (2, 2)]
    torch.set_num_threads(3)
    with native.alone():
        assert native.threads() == 3


def test_threads_come_back_from_an_error(three_threads: None):
    native.choose("native")
    with pytest.raises(KeyError), native.alone():
        raise KeyError
    assert (torch.get_num_threads(), native.threads()) == (3, 3)


def test_what_is_loaded_is_told(monkeypatch: pytest.MonkeyPatch):
    kernel = native.choose("native")
    assert native.loaded() is kernel
    monkeypatch.setenv("REGARD_KERNEL", "torch")
    assert native.loaded() is None
    with native.alone():
        assert native.threads() == torch.get_num_threads()


def test_nothing_is_compiled_for_what_is_not_worth_it():
    native.load.cache_clear()
    assert native.loaded() is None
    assert native.load.cache_info().currsize == 0
    native.choose("native")
