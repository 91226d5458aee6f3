"""A quick start: no garbage is looked for while a command's modules are loaded, and it is afterwards."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.starting import collect_from_now, collecting_later

# A command that loads torch, and fails where its work would begin; how often garbage was looked for before.
COMMAND = """
import gc, sys
from regard.cli.main import main
runs = []
gc.callbacks.append(lambda phase, about: runs.append(gc.get_freeze_count()))
usual = gc.get_threshold()
try:
    sys.argv = ["regard", "generate", sys.argv[1], "--device", "abacus"]
    main()
except SystemExit as end:
    print(end.code)
print("torch" in sys.modules, runs.count(0), gc.get_threshold() == usual, gc.get_freeze_count() > 100_000)
"""


def test_a_command_loads_its_modules_without_looking_for_garbage(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "True", "0", "True", "True"]
    assert "no device 'abacus' here" in done.stderr


def test_garbage_is_looked_for_again_once_the_work_begins() -> None:
    usual, runs = gc.get_threshold(), []
    with collecting_later():
        assert gc.get_threshold()[0] > 100 * usual[0] > 0
        collect_from_now()
        assert gc.get_threshold() == usual
        gc.callbacks.append(lambda phase, _: runs.append(phase))
        try:
            kept = [[] for _ in range(3 * usual[0])]
        finally:
            gc.callbacks.pop()
    assert len(kept) == 3 * usual[0]
    assert "stop" in runs
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count()
    gc.unfreeze()


def test_the_setting_comes_back_after_an_error() -> None:
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(ValueError, match="no"), collecting_later():
        raise ValueError("no")
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() == frozen


def test_a_command_that_another_program_calls_leaves_nothing_behind(tmp_path: Path) -> None:
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(SystemExit):
        main(["generate", str(tmp_path), "--device", "abacus"])
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() == frozen


def test_a_threshold_of_nothing_is_left_alone() -> None:
    usual = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with collecting_later():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*usual)


def test_who_looks_for_no_garbage_at_all_is_left_alone() -> None:
    usual = gc.get_threshold()
    gc.disable()
    try:
        with collecting_later():
            assert gc.get_threshold() == usual
            collect_from_now()
            assert not gc.isenabled()
    finally:
        gc.enable()
