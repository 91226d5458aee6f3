"""Two tiny models, trained once by the command itself, and a fast way to run it again and again."""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cli_tools import RNN, TRANSFORMER, Cli, Trained

from regard.tasks import folder
from regard.tasks.translator import Translator


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words, each with its letters backwards: long enough for BLEU, and learnt in seconds."""
    draws = random.Random(7)
    words = dict.fromkeys("".join(draws.choices("abcdef", k=draws.randint(3, 5))) for _ in range(700))
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("".join(f"{word}\t{' '.join(word[::-1])}\n" for word in words))
    return path


@pytest.fixture(scope="session")
def trained(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("rnn") / "run", pairs, RNN)


@pytest.fixture(scope="session")
def trained_transformer(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("transformer") / "run", pairs, TRANSFORMER)


@pytest.fixture(scope="session")
def translator(trained: Trained) -> Translator:
    return folder.load_as(Translator, trained.out)


@pytest.fixture(scope="session")
def _server() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("cli_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as server:
        yield server
        assert server.stdin is not None
        server.stdin.close()


@pytest.fixture
def cli(_server: subprocess.Popen[str], tmp_path: Path) -> Cli:
    """The command in a process of its own, forked from one that has torch already."""

    def run(
        args: Sequence[str | os.PathLike[str]],
        *,
        stdin: str | bytes = b"",
        cwd: Path | None = None,
        user: int | None = None,
        file_bytes: int | None = None,
        seconds: int = 30,
    ) -> subprocess.CompletedProcess[str]:
        """Run `regard ARGS` and wait for it.

        Args:
            args: Arguments after the command's name.
            stdin: What is piped in.
            cwd: Working folder; None for the test's tmp_path.
            user: Whom the process runs as; None for the tests' own user.
            file_bytes: Most bytes of a file that it may write; None for any number.
            seconds: After which it is killed.

        Returns:
            Exit code (negative where a signal ended it), stdout and stderr.
        """
        with tempfile.TemporaryDirectory() as streams:
            names = {name: str(Path(streams) / name) for name in ("stdin", "stdout", "stderr")}
            for name, path in names.items():
                content = (stdin.encode() if isinstance(stdin, str) else stdin) if name == "stdin" else b""
                Path(path).write_bytes(content)
            job = {"args": [os.fspath(arg) for arg in args], "cwd": str(cwd or tmp_path), "seconds": seconds, **names}
            assert _server.stdin is not None
            assert _server.stdout is not None
            _server.stdin.write(json.dumps({**job, "user": user, "file_bytes": file_bytes}) + "\n")
            _server.stdin.flush()
            code = int(_server.stdout.readline())
            out, err = (Path(names[name]).read_bytes().decode() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(list(args), code, out, err)

    return run
