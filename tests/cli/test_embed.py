"""The verb ``regard embed``."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli_tools import Cli
from public_encoder import write_encoder

import regard


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    folder = tmp_path / "encoder"
    folder.mkdir()
    write_encoder(folder)
    return folder


@pytest.mark.parametrize("options", [[], ["--batch", "1"], ["--pooling", "cls"]], ids=" ".join)
def test_a_line_gives_a_vector(options: list[str], encoder: Path, cli: Cli) -> None:
    texts = ["a b c", "", "d e f g", "c"]
    done = cli(["embed", encoder, *options], stdin="\n".join(texts) + "\n")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(row) for row in rows] == [["embedding"]] * 4
    vectors = np.array([row["embedding"] for row in rows])
    wanted = regard.load(encoder).embed(texts, "cls" if "cls" in options else None)
    assert np.allclose(vectors, wanted, atol=1e-6)


def test_a_line_that_is_too_long_is_named_or_cut(encoder: Path, cli: Cli) -> None:
    lines = "a\n" * 300 + "a b c d e f g h i j k\n"
    done = cli(["embed", encoder], stdin=lines)
    assert done.returncode == 2
    assert "standard input, line 301: 13 tokens; the model reads 12" in done.stderr
    assert "--truncate" in done.stderr
    assert len(done.stdout.splitlines()) == 300  # what came before it is answered
    done = cli(["embed", encoder, "--truncate"], stdin=lines)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 301


def test_a_run_that_gives_no_vectors_says_what_it_is_for(trained, encoder: Path, cli: Cli) -> None:
    for path in (trained.out, trained.out / "model"):
        done = cli(["embed", path], stdin="a\n")
        assert done.returncode == 2
        want = (
            "a model for the task 'translate' gives no vectors of texts; give a public encoder, or use regard translate"
        )
        assert done.stderr == f"regard: {path}: {want}\n"


def test_bad_choices_are_one_line(encoder: Path, cli: Cli, tmp_path: Path) -> None:
    for args, code, word in (
        ([encoder, "--pooling", "max"], 2, "choose from mean, cls, last"),
        ([encoder, "--batch", "0"], 2, "--batch is 0"),
        ([tmp_path / "nothing"], 3, "config.json"),
        (["https://example.org/model"], 2, "a folder, not a URL"),
    ):
        done = cli(["embed", *args], stdin="a\n")
        assert (done.returncode, done.stdout) == (code, ""), args
        assert word in done.stderr
        assert len(done.stderr.splitlines()) == 1
