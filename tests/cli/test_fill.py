"""The verb ``regard fill``, on a model that the command itself trained."""

import json
import random
from pathlib import Path

import pytest
from cli_tools import Cli
from public_masked import write

import regard
from regard.cli.main import main


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tiny masked model."""
    folder = tmp_path_factory.mktemp("mlm")
    draws = random.Random(5)
    words = ["the", "of", "and", "light", "dark", "day", "night"]
    (folder / "book.txt").write_text("\n\n".join(" ".join(draws.choices(words, k=12)) for _ in range(120)))
    model = ["embed_dim=16", "num_layers=1", "num_heads=2", "mlp_dim=24"]
    sets = [*(f"model.{one}" for one in model), "tokenizer.vocab_size=300", "context=20", "training.max_steps=10"]
    options = [word for one in sets for word in ("--set", one)]
    with pytest.raises(SystemExit) as done:
        main(["train", "mlm", "--data", f"{folder}/book.txt", "--out", f"{folder}/run", "--quiet", *options])
    assert done.value.code == 0
    return folder / "run"


def test_masks_are_filled_in_line_by_line(book: Path, cli: Cli) -> None:
    texts = ["the <mask> of", "<mask> and <mask>", "day <mask>"]
    lines = "".join(f"{text}\n" for text in texts)
    want = regard.load(book).fill(texts, 3)
    done = cli(["fill", book], stdin=lines)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [" ".join(one.text.splitlines()) for one in want]
    done = cli(["fill", book, "--json", "--top-k", "3", "--batch", "2"], stdin=lines)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["text"] for row in rows] == [one.text for one in want]
    assert [len(row["masks"]) for row in rows] == [1, 2, 1]
    for row, one in zip(rows, want, strict=True):
        for mask, candidates in zip(row["masks"], one.masks, strict=True):
            assert [choice["text"] for choice in mask] == [c.text for c in candidates]
            assert [choice["probability"] for choice in mask] == pytest.approx(
                [c.probability for c in candidates], rel=1e-4
            )


def test_a_line_without_a_mask_is_named_behind_the_answers_before_it(book: Path, cli: Cli) -> None:
    done = cli(["fill", book], stdin="the <mask>\n<mask> of\nthe day\n<mask>\n")
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == 2
    want = "regard: standard input, line 3: no <mask> in it; write <mask> where a word is to be filled in\n"
    assert done.stderr == want


def test_blank_lines_stay_blank_and_a_line_that_is_too_long_is_named_behind_the_answers(book: Path, cli: Cli) -> None:
    lines = ["the <mask>", "", "  ", "<mask> of"]
    for args in ([], ["--json"], ["--batch", "1"]):
        done = cli(["fill", book, *args], stdin="\n".join(lines) + "\n" + "<mask>" * 30 + "\n<mask>\n")
        assert done.returncode == 2
        assert [bool(line) for line in done.stdout.splitlines()] == [True, False, False, True]
        assert done.stderr == "regard: standard input, line 5: 32 tokens; the model reads 20; shorten it\n"


@pytest.mark.parametrize(
    ("args", "stdin", "words"),
    [
        (["--top-k", "0"], "a\n", "--top-k is 0"),
        (["--batch", "0"], "a\n", "--batch is 0"),
        (["--batch", "1"], "<mask>\n" + "<mask>" * 30 + "\n", "standard input, line 2: 32 tokens; the model reads 20"),
        ([], "<mask>" * 30 + "\n", "standard input, line 1: 32 tokens; the model reads 20"),
    ],
)
def test_bad_choices_are_one_line(args: list[str], stdin: str, words: str, book: Path, cli: Cli) -> None:
    done = cli(["fill", book, *args], stdin=stdin)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_public_models_fill_in_their_own_mask(tmp_path: Path, cli: Cli) -> None:
    write(tmp_path, "bert")
    done = cli(["fill", tmp_path], stdin="The [MASK] of\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [regard.load(tmp_path).fill(["The [MASK] of"])[0].text]
    done = cli(["fill", tmp_path], stdin="the <mask> of\n")
    assert "line 1: no [MASK] in it" in done.stderr
    assert cli(["embed", tmp_path], stdin="the light\n").returncode == 0


def test_a_model_of_another_kind_is_refused(book: Path, trained, cli: Cli) -> None:
    done = cli(["generate", book], stdin="a\n")
    assert done.returncode == 2
    assert "does not go on from texts" in done.stderr
    done = cli(["score", book, "--data", book.parent / "book.txt"])
    assert done.returncode == 2
    assert done.stderr.endswith("; use regard fill\n")
    done = cli(["fill", trained.out], stdin="a\n")
    assert done.returncode == 2
    assert "this model fills in no masks" in done.stderr
