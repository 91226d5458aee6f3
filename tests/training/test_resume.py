"""A run that is killed at any moment and resumed is bit-equal to one that was not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open

from regard.training.checkpoints import Store

KILLS = 20
SETTINGS = (
    "model={family: rnn, embed_dim: 32, hidden_dim: 48, attention_dim: 32, dropout: 0.3}",
    "tokenizer={source: characters, target: characters, vocab_size: 300}",
    "batch_tokens=120",
    "training.max_steps=90",
    "training.accumulate=2",
    "training.validate_every_steps=30",
    "training.checkpoint_every_steps=5",
    "training.average=2",
    "evaluation.monitor=exact_match",
    "evaluation.max_dev=20",
    "decoding.beam=1",
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words and themselves backwards: several epochs of batches in ninety steps."""
    draws = random.Random(3)
    words = ["".join(draws.choices("abcdefgh", k=draws.randint(2, 9))) for _ in range(400)]
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in dict.fromkeys(words)))
    return path


def start(pairs: Path, out: Path) -> subprocess.Popen[str]:
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [sys.executable, "-m", "regard", "train", "translate", "--data", str(pairs), "--out", str(out), "--quiet"]
    return subprocess.Popen(
        [*command, *sets],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> str:
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return errors


def result(out: Path) -> tuple[dict, dict, list, dict]:
    """Give the last checkpoint, the final model and the loss log, without what a clock wrote."""
    last = Store(out / "checkpoints").newest()
    assert last is not None
    log = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for line in log:
        del line["seconds"]
        line.pop("waited_s", None)  # a validation waits for no batch
    standing = last.state["standing"] | {"seconds": 0.0}
    standing["validations"] = [v | {"seconds": 0.0} for v in standing["validations"]]
    with safe_open(out / "model" / "model.safetensors", "pt") as file:
        final = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    tensors = {"model": last.model, "optimizer": last.optimizer, "final": final}
    flat = {
        f"{part} {name}": t.contiguous().view(-1).view(dtype=t.dtype).numpy().tobytes()
        for part, of in tensors.items()
        for name, t in of.items()
    }
    return flat, standing, log, {"step": last.step}


@pytest.fixture(scope="module")
def undisturbed(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[float, tuple]:
    out = tmp_path_factory.mktemp("runs") / "undisturbed"
    began = time.monotonic()
    finish(start(pairs, out))
    return time.monotonic() - began, result(out)


@pytest.mark.slow
def test_killed_runs_end_bit_equal(pairs: Path, tmp_path: Path, undisturbed: tuple[float, tuple]) -> None:
    seconds, wanted = undisturbed
    assert len(wanted[2]) == 90 + 3  # every step, and every validation
    draws = random.Random(int(time.time()))
    inside = 0
    for kill in range(KILLS):
        out = tmp_path / f"run-{kill}"
        process = start(pairs, out)
        deadline = time.monotonic() + draws.uniform(0.3, 1.0) * seconds
        in_save = kill % 2 == 1
        seen = draws.randint(0, 15)  # which save to be killed in
        saves: set[str] = set()
        while process.poll() is None and (in_save or time.monotonic() < deadline):
            if in_save:
                saves |= {p.name for p in (out / "checkpoints").glob(".tmp-*")}
                if len(saves) > seen:
                    break
            time.sleep(0 if in_save else 0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        inside += bool(list((out / "checkpoints").glob(".tmp-*")))
        finish(start(pairs, out))
        assert result(out) == wanted, f"kill {kill} of {KILLS} left a trace"
    print(f"{KILLS} of {KILLS} bit-equal; {inside} were killed inside a save")
    assert inside >= 3


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_save_and_resume_bit_equal(
    pairs: Path, tmp_path: Path, undisturbed: tuple[float, tuple], number: signal.Signals, code: int
) -> None:
    _, wanted = undisturbed
    out = tmp_path / "run"
    process = start(pairs, out)
    while process.poll() is None and len(list((out / "checkpoints").glob("step-*"))) == 0:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    lines = errors.strip().splitlines()
    assert "state saved" in lines[-1], errors
    assert "Traceback" not in errors
    finish(start(pairs, out))
    assert result(out) == wanted


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_is_left_aside(
    pairs: Path, tmp_path: Path, undisturbed: tuple[float, tuple]
) -> None:
    _, wanted = undisturbed
    out = tmp_path / "run"
    process = start(pairs, out)
    while process.poll() is None and len(list((out / "checkpoints").glob("step-*"))) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    newest = max((out / "checkpoints").glob("step-*"))
    weights = newest / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    errors = finish(start(pairs, out))
    assert newest.name in errors
    assert "damaged" in errors
    assert result(out) == wanted
