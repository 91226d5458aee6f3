"""The verb ``regard tag``."""

import json
from itertools import product
from pathlib import Path

import pytest
from cli_tools import Cli
from public_encoder import write_encoder

import regard
from regard.cli.main import main


@pytest.fixture(scope="module")
def entities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a tiny public encoder, by the command itself."""
    folder = tmp_path_factory.mktemp("entities")
    (folder / "encoder").mkdir()
    write_encoder(folder / "encoder")
    words = product("abcdefg", repeat=3)
    rows = [[f"{word}\t{'B-x' if word < 'c' else 'O'}\n" for word in three] for three in words]
    (folder / "tags.conll").write_text("\n".join("".join(one) for one in rows))
    sets = [f"init={folder / 'encoder'}", "data.max_tokens=10", "training.max_steps=20"]
    options = [word for one in sets for word in ("--set", one)]
    with pytest.raises(SystemExit) as done:
        main(["train", "tag", "--data", f"{folder}/tags.conll", "--out", f"{folder}/run", "--quiet", *options])
    assert done.value.code == 0
    return folder / "run"


def test_a_word_gets_a_tag(entities: Path, cli: Cli) -> None:
    lines = ["a b c d", "", "g"]
    want = regard.load(entities).tag(lines)
    done = cli(["tag", entities], stdin="\n".join(lines) + "\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [" ".join(tags) for tags in want]
    assert [len(tags) for tags in want] == [4, 0, 1]
    done = cli(["tag", entities, "--json", "--batch", "1"], stdin="\n".join(lines) + "\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["words"], row["tags"]) for row in rows] == [(a.split(), b) for a, b in zip(lines, want, strict=True)]


def test_tagged_sentences_score_it(entities: Path, cli: Cli) -> None:
    lines = ["a b c d", "g a", "e"]
    tags = [" ".join(of) for of in regard.load(entities).tag(lines)]
    own = "".join(f"{text}\t{of}\n" for text, of in zip(lines, tags, strict=True))
    done = cli(["evaluate", entities, "--data", "-", "--json"], stdin=own)
    assert (done.returncode, done.stderr) == (0, "")
    scores = json.loads(done.stdout)
    assert scores["accuracy"] == 1.0
    assert "span_f1" in scores, "the model knows tags of spans"
    (entities.parent / "one.conll").write_text(f"a\t{tags[0].split()[0]}\nb\tB-never\n")
    scores = json.loads(cli(["evaluate", entities, "--data", entities.parent / "one.conll", "--json"]).stdout)
    assert scores["accuracy"] == 0.5
    done = cli(["evaluate", entities, "--data", "-"], stdin="a b\tO\n")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "1 tags for 2 words" in done.stderr


def test_bad_choices_are_one_line(entities: Path, trained, cli: Cli) -> None:
    for args, code, word in (
        (["tag", entities, "--batch", "0"], 2, "--batch is 0"),
        (["tag", entities, "--device", "gpu"], 2, "no device"),
        (["tag", trained.out], 2, "a model for the task 'translate'"),
        (["classify", entities], 2, "a model for the task 'tag'; use it with regard tag"),
    ):
        done = cli(args, stdin="a\n")
        assert done.returncode == code
        assert word in done.stderr
        assert done.stderr.count("\n") == 1


def test_lines_before_a_bad_one_are_answered(entities: Path, cli: Cli) -> None:
    done = cli(["tag", entities], stdin=b"a b\ng\n\xff\n")
    assert done.returncode == 3
    assert [len(line.split()) for line in done.stdout.splitlines()] == [2, 1]
    assert "line 3" in done.stderr
