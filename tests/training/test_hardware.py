"""Choosing threads by trying, and devices by name."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.errors import ResourceError, UsageError
from regard.training import hardware


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("on_two", "on_one", "chosen"),
    [
        ([0.01, 0.01, 0.01], [0.03, 0.03, 0.03], 2),
        ([0.03, 0.03, 0.03], [0.01, 0.01, 0.01], 1),
        ([0.028, 0.028, 0.028], [0.03, 0.03, 0.03], 1),  # not worth it
        ([0.01, 0.01, 0.09], [0.03, 0.03, 0.03], 1),  # something else runs here
        ([0.01, 0.01, 0.01], [0.03, 0.09, 0.03], 2),
    ],
)
def test_many_threads_are_chosen_where_they_are_surely_quicker(
    on_two: list[float], on_one: list[float], chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_TRIAL_S", 0)  # three times each
    waits = {2: itertools.chain([0.0], itertools.cycle(on_two)), 1: itertools.cycle(on_one)}  # the first is not counted
    assert hardware.quickest_threads(lambda: time.sleep(next(waits[torch.get_num_threads()]))) == chosen
    assert torch.get_num_threads() == 2


def test_a_single_thread_is_no_choice() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    assert hardware.quickest_threads(lambda: pytest.fail("nothing to try")) == 1
    torch.set_num_threads(before)


def test_a_device_that_is_not_there_is_refused() -> None:
    for name in ("gpu", "cuda:99", "cpu:x"):
        with pytest.raises(UsageError, match="no device"):
            hardware.choose(name)
    assert hardware.choose("cpu") == torch.device("cpu")
    assert "torch" in hardware.describe(torch.device("cpu"))


@pytest.mark.parametrize(("variable", "name"), [(None, r"clang\+\+|g\+\+"), ("/no/such/c++", r"/no/such/c\+\+")])
def test_compiling_without_a_compiler_is_refused(
    variable: str | None, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if variable:
        monkeypatch.setenv("CXX", variable)
    with pytest.raises(ResourceError, match=f"there is no ({name})"):
        hardware.check_compiler(torch.device("cpu"))
    hardware.check_compiler(torch.device("cuda"))
    (tmp_path / "mine").write_text("#!/bin/sh\n")
    (tmp_path / "mine").chmod(0o755)
    monkeypatch.setenv("CXX", "mine")
    hardware.check_compiler(torch.device("cpu"))


def test_only_devices_that_are_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_there, mend in ((False, "give auto or cpu"), (True, "give auto, cpu or cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_there=is_there: is_there)
        with pytest.raises(UsageError, match=f"^no device 'toaster' here; {mend}$"):
            hardware.choose("toaster")
