"""Real weights beside the runtime of their file format; ``python -m benchmarks.gguf_peer`` prints all figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.network]


def test_smollm2_goes_on_as_in_llama_cpp() -> None:
    """With float32 on both sides every token is the same; with its 8-bit roundings nearly every one."""
    how = (
        "llama.cpp compiles for minutes, too long for CI: CMAKE_ARGS=-DGGML_NATIVE=OFF pip install 'regard[llama-cpp]'"
    )
    pytest.importorskip("llama_cpp", reason=how)
    command = [sys.executable, "-m", "benchmarks.gguf_peer", "--prompts", "2"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["file"] for row in rows] == ["float32"] * 2 + ["as the package has it"] * 2
    for row in rows[:2]:
        assert row["greedy_first_difference"] is None
        assert row["its_own_at_once_and_step_by_step"] == row["same_on_its_text"] == 64
        assert row["max"] < 1e-3 < 1 < row["std_of_scores"]
    for row in rows[2:]:
        assert row["same_on_its_text"] >= 58
        assert row["rms"] < 0.1 * row["std_of_scores"]
