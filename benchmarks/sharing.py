"""Two runs side by side on one machine, beside one alone: each should keep at least 0.4 of its speed.

Run as a program it does one kind of work for a while and prints its rate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Spent
from benchmarks.results import Goal
from benchmarks.suite import Race, Round, Setting

KEPT = 0.4
ROOT = Path(__file__).parents[1]
KINDS = {"train": "training a small model", "decode": "GPT-2 124M writing"}
# Regard first, where it is ours that runs: what it does about threads, it does before torch is loaded.
PROGRAM = ("import regard; from benchmarks.sharing import main; main()", "from benchmarks.sharing import main; main()")
BOTH = "{}, the slower of two at once"
PROMPT, TOKENS = "w5 w6 w7", 16
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def rows(setting: Setting) -> Iterator[Race]:
    """Training and writing; what is told is the rate of the slower of two."""
    seconds = setting.size(5, 2)
    for kind, shown in KINDS.items():
        goals = [Goal(BOTH.format("regard"), "regard alone", KEPT)]
        race = Race("sharing", f"Side by side: {shown}", "tokens", 1, "regard alone", goals, f"{seconds} s each")
        race.in_processes, race.rounds = True, 3
        race.ours("regard alone", partial(_round, setting, kind, seconds, 1))
        race.ours(BOTH.format("regard"), partial(_round, setting, kind, seconds, 2))
        if kind == "decode":
            race.peer("transformers alone", partial(_round, setting, "transformers", seconds, 1))
            race.peer(BOTH.format("transformers"), partial(_round, setting, "transformers", seconds, 2))
        yield race


def _round(setting: Setting, kind: str, seconds: int, count: int) -> Round:
    """Give a round of some runs at once; what it takes is the slower one's time for a token."""
    from benchmarks.starting import environment, text_folder

    model = "" if kind == "train" else str(text_folder(setting))

    def run() -> Spent:
        with tempfile.TemporaryDirectory(dir=setting.scratch) as folder:
            places = [model or str(Path(folder) / str(number)) for number in range(count)]
            processes = [
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM[kind == "transformers"], kind, place, str(seconds)],
                    **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True},
                    env=environment(),
                    cwd=ROOT,
                )
                for place in places
            ]
            told = [process.communicate() for process in processes]
        for process, (_, errors) in zip(processes, told, strict=True):
            if process.returncode:
                raise RuntimeError((errors.strip().splitlines() or ["it failed"])[-1])
        return Spent(1 / min(json.loads(out.splitlines()[-1])["rate"] for out, _ in told))

    return run


def train(folder: Path, seconds: float) -> float:
    """Train a small model for a while, as a user does, and give its tokens a second in the second half."""
    import regard

    folder.mkdir(parents=True)
    draws = np.random.default_rng(11)
    words = {"".join(draws.choice(list(LETTERS), draws.integers(5, 13))) for _ in range(1500)}
    pairs = [f"{word}\t{' '.join(word.upper())}" for word in sorted(words)]
    (folder / "pairs.tsv").write_text("\n".join(pairs) + "\n")
    settings: dict[str, Any] = {
        **{"tokenizer.source": "characters", "tokenizer.target": "whitespace", "tokenizer.shared": False},
        **{"model.share": "target", "model.embed_dim": 128, "model.mlp_dim": 512, "batch_tokens": 1024},
        **{"training.max_seconds": seconds, "training.schedule": "constant", "training.validate_every_steps": 100_000},
        **{"training.max_steps": 100_000, "training.average": 1, "decoding.beam": 1, "evaluation.max_dev": 8},
    }
    regard.train("translate", data=folder / "pairs.tsv", out=folder / "run", settings=settings, quiet=True)
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "tokens" in line]
    late = [line for line in steps if line["seconds"] >= steps[-1]["seconds"] / 2]
    return sum(line["tokens"] for line in late[1:]) / (late[-1]["seconds"] - late[0]["seconds"])


def decode(folder: Path, seconds: float) -> float:
    """Write with GPT-2 for a while."""
    import regard

    model: Any = regard.load(folder)
    options = regard.DecodeOptions(max_extra_tokens=TOKENS, length_penalty=0.0)
    return _rate(lambda: sum(one.tokens for one in model.generate([PROMPT], options)), seconds)


def transformers(folder: Path, seconds: float) -> float:
    """Write with transformers for a while."""
    import torch

    from benchmarks.peers import hf

    model = hf.load("GPT2LMHeadModel", folder, torch.device("cpu"))
    prompt = torch.tensor([[5, 6, 7]])
    return _rate(lambda: len(hf.greedy(model, prompt, TOKENS)[0]), seconds)


def _rate(work: Callable[[], int], seconds: float) -> float:
    """Do work again and again, and give its tokens a second."""
    work()
    began, tokens = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        tokens += work()
    return tokens / (time.perf_counter() - began)


def main() -> None:
    """Do one kind of work, and print its rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("train", "decode", "transformers"))
    parser.add_argument("folder", type=Path, help="of the model; a new one for a training run")
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    work = {"train": train, "decode": decode, "transformers": transformers}[given.kind]
    print(json.dumps({"rate": work(given.folder, given.seconds)}))


if __name__ == "__main__":
    main()
