"""What the tests of the command line share."""

import hashlib
import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sysconfig.get_path("scripts")) / "regard")
SETTINGS = (
    "evaluation.monitor=exact_match",
    "evaluation.max_dev=20",
    "label_smoothing=0.0",
    "data.max_tokens=64",
    "training.average=1",
    "training.learning_rate=0.01",
    "training.warmup_steps=20",
)
RNN = (
    "model={family: rnn, embed_dim: 32, hidden_dim: 48, attention_dim: 32, dropout: 0.0}",
    "tokenizer={source: characters, target: whitespace, shared: false, vocab_size: 300}",
    "batch_tokens=256",
    "training.max_steps=240",
    "training.validate_every_steps=120",
)
TRANSFORMER = (
    "model={family: transformer, embed_dim: 32, mlp_dim: 64, num_heads: 2, encoder_layers: 1, decoder_layers: 1}",
    "tokenizer={source: characters, vocab_size: 300}",
    "batch_tokens=512",
    "training.max_steps=20",
    "training.validate_every_steps=20",
)


def settings(*values: str) -> list[str]:
    """Write settings as options."""
    return [part for value in values for part in ("--set", value)]


def snapshot(folder: Path) -> dict[str, str]:
    """Hash every file of a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Trained:
    """A run, and how it was made."""

    def __init__(self, out: Path, pairs: Path, values: Sequence[str]) -> None:
        self.out, self.pairs = out, pairs
        self.args = ["train", "translate", "--data", str(pairs), "--out", str(out), *settings(*SETTINGS, *values)]
        self.done = subprocess.run([COMMAND, *self.args], capture_output=True, text=True, timeout=120, check=False)
        assert self.done.returncode == 0, self.done.stderr
