"""Cold start: whole processes, from nothing to the first token of a GPT-2 in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers

from benchmarks import ours
from benchmarks.measure import Spent
from benchmarks.results import Goal
from benchmarks.suite import Race, Round, Setting
from regard.files import json_bytes, read_config

PROMPT = "w5 w6 w7"
_SCRIPT = """
import sys, torch
from transformers import AutoTokenizer, GPT2LMHeadModel
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = GPT2LMHeadModel.from_pretrained(sys.argv[1]).eval()
ids = torch.tensor([tokenizer.encode(sys.argv[2])])
found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False, pad_token_id=0)
print(tokenizer.decode(found[0, -1]))
"""

# The one call that tells the memory of this child alone is wait4.
_LAUNCHER = """
import os, sys, time
nowhere = os.open(os.devnull, os.O_WRONLY)
began = time.perf_counter()
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, nowhere, 1)])
_, status, usage = os.wait4(child, 0)
print(time.perf_counter() - began, usage.ru_maxrss)
sys.exit(1 if status else 0)
"""


def rows(setting: Setting) -> Iterator[Race]:
    """From the shell to the first token."""
    goals = [Goal("regard generate", "transformers", 3.3)]
    race = Race("start", "GPT-2 124M, cold start", "starts", 1, "transformers", goals, "one token, whole processes")
    race.in_processes, race.rounds = True, 5
    command = Path(sysconfig.get_path("scripts")) / "regard"

    def mine() -> Round:
        return whole([str(command), "generate", str(text_folder(setting)), "--tokens", "1"])

    def theirs() -> Round:
        return whole([sys.executable, "-c", _SCRIPT, str(text_folder(setting)), PROMPT])

    race.ours("regard generate", mine)
    race.peer("transformers", theirs)
    race.peer("import torch, nothing else", lambda: whole([sys.executable, "-c", "import torch"]))
    yield race


def text_folder(setting: Setting) -> Path:
    """Give GPT-2's public folder with a tokenizer of as many words as it has tokens."""
    folder = ours.public(setting, "gpt", tag="-texts")
    if not (folder / "tokenizer.json").exists():
        size = ours.config(setting, "gpt").vocab_size
        inner = tokenizers.Tokenizer(models.WordLevel({f"w{n}": n for n in range(size)}, "w0"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        inner.save(str(folder / "tokenizer.json"))
        about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w0"}
        (folder / "tokenizer_config.json").write_bytes(json_bytes(about))
        values = read_config(folder / "config.json")
        (folder / "config.json").write_bytes(json_bytes({**values, "eos_token_id": 0, "bos_token_id": 0}))
    return folder


def whole(args: Sequence[str]) -> Round:
    """Give a round of running a command from its start to its end."""

    def run() -> Spent:
        # Started from here, the command would begin with this process's memory as its greatest: the system keeps that
        # figure when a process becomes another program. A small one in between has little to pass on.
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, *args],
            input=f"{PROMPT}\n",
            capture_output=True,
            text=True,
            errors="replace",
            env=environment(),
        )
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["it failed"])[-1])
        seconds, peak = done.stdout.split()
        return Spent(float(seconds), int(peak) * (1 if sys.platform == "darwin" else 1024))

    return run


def environment() -> dict[str, str]:
    """Give the processes what this one has, but no network; modules stay compiled from one start to the next."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
