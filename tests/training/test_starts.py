"""A run that comes to nothing before its settings are kept: the same command, or a mended one, may begin again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from regard.errors import ConfigError, UsageError
from regard.tasks import texts as read_texts
from regard.training import recipe, run

MODELS = {
    "lm": {"family": "gpt", "embed_dim": 16, "num_layers": 1, "num_heads": 2},
    "mlm": {"family": "bert", "embed_dim": 16, "num_layers": 1, "num_heads": 2},
    "plm": {"family": "xlnet", "embed_dim": 16, "num_layers": 1, "num_heads": 2},
}
KILLED = """
import os, signal, sys
from regard.data.shards import Shard
from regard.cli.main import main
Shard.read = lambda path: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("\n\n".join(f"text {n} of the book has {n * 7} words and {n * 13} letters" for n in range(60)))
    return path


def resolved(task: str, book: Path, **changes: object) -> recipe.Recipe:
    values = {
        "task": task,
        "data": {"train": str(book)},
        "tokenizer": {"kind": "byte-bpe", "vocab_size": 300},
        "context": 16,
        "model": {**MODELS[task], **changes},
        "training": {"max_steps": 2, "validate_every_steps": 2, "threads": 1},
    }
    return recipe.resolve(values)


@pytest.mark.parametrize("task", MODELS)
def test_wrong_settings_of_a_model_are_told_before_texts_are_read(
    task: str, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(read_texts, "read_parts", lambda *_: pytest.fail("texts were read"))
    with pytest.raises(ConfigError, match="30"):
        run.run(resolved(task, book, embed_dim=30, num_heads=4), out, quiet=True)
    assert not list(out.iterdir())
    monkeypatch.undo()
    run.run(resolved(task, book), out, quiet=True)
    assert (out / "scores.json").exists()
    assert not (out / run.STARTING).exists()


def test_a_start_that_is_interrupted_leaves_nothing(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        assert (tmp_path / "run" / "tokens" / "train.tokens").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_check_whole", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.run(resolved("lm", book), tmp_path / "run", quiet=True)
    assert not list((tmp_path / "run").iterdir())


def test_the_same_command_goes_on_where_a_start_was_killed(book: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    names = {"context": 16, "training.max_steps": 2, "training.threads": 1, "tokenizer.vocab_size": 300}
    sets = [part for name, value in names.items() for part in ("--set", f"{name}={value}")]
    model = ["--set", "model={family: gpt, embed_dim: 16, num_layers: 1, num_heads: 2}"]
    args = ["train", "lm", "--data", str(book), "--out", str(out), "--quiet", *sets, *model]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([sys.executable, "-c", KILLED, *args], env=env, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (out / "tokens").exists()
    (out / "tokens" / ".tmp-left").write_text("of a killed start")
    done = subprocess.run(
        [sys.executable, "-m", "regard", *args], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (out / "scores.json").exists()
    assert not (out / "tokens" / ".tmp-left").exists()


def test_a_folder_of_tokens_that_no_start_made_is_kept(book: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "tokens").mkdir(parents=True)
    (tmp_path / "run" / "tokens" / "mine.txt").write_text("years of work")
    with pytest.raises(UsageError, match="holds no run"):
        run.run(resolved("lm", book), tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "tokens" / "mine.txt").read_text() == "years of work"
