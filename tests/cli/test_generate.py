"""The verb ``regard generate``, on a model that the command itself trained."""

import json
import math
import random
from pathlib import Path

import pytest
from cli_tools import Cli

import regard
from regard.cli.main import main


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tiny language model."""
    return train(tmp_path_factory.mktemp("lm"))


def train(folder: Path, *more: str) -> Path:
    draws = random.Random(5)
    words = ["the", "of", "and", "light", "dark", "day", "night"]
    (folder / "book.txt").write_text("\n\n".join(" ".join(draws.choices(words, k=12)) for _ in range(120)))
    model = ["embed_dim=16", "num_layers=1", "num_heads=2"]
    sets = [
        *(f"model.{one}" for one in model),
        "tokenizer.vocab_size=300",
        "context=32",
        "training.max_steps=20",
        *more,
    ]
    options = [word for one in sets for word in ("--set", one)]
    with pytest.raises(SystemExit) as done:
        main(["train", "lm", "--data", f"{folder}/book.txt", "--out", f"{folder}/run", "--quiet", *options])
    assert done.value.code == 0
    return folder / "run"


def test_a_line_is_gone_on_from(book: Path, cli: Cli) -> None:
    done = cli(["generate", book, "--tokens", "8", "--no-sample"], stdin="the light\n\nof\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 3
    done = cli(["generate", book, "--tokens", "8", "--sample", "--seed", "3", "--json"], stdin="the light\n\nof\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [set(row) for row in rows] == [{"text", "logprob", "tokens", "ended"}] * 3
    ask = ["generate", book, "--tokens", "8", "--sample", "--json"]
    again = cli([*ask, "--seed", "3", "--batch", "1"], stdin="the light\n\nof\n")
    texts = [row["text"] for row in rows]
    assert [json.loads(line)["text"] for line in again.stdout.splitlines()] == texts
    other = cli([*ask, "--seed", "4"], stdin="the light\n\nof\n")
    assert [json.loads(line)["text"] for line in other.stdout.splitlines()] != texts


def test_tokens_proposed_ahead_are_counted_and_change_nothing(book: Path, cli: Cli) -> None:
    ask = ["generate", book, "--tokens", "20", "--no-sample", "--json"]
    plain = [json.loads(line) for line in cli(ask, stdin="the light of the light\nof\n").stdout.splitlines()]
    for more in (["--speculate", "3"], ["--speculate", "3", "--draft", book]):
        done = cli([*ask, *more], stdin="the light of the light\nof\n")
        assert (done.returncode, done.stderr) == (0, "")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["text"] for row in rows] == [row["text"] for row in plain]
        assert all(0 <= row["accepted"] <= row["proposed"] for row in rows)
    assert all(row["accepted"] > 0 for row in rows)  # a model expects what it writes itself


def test_pieces_as_they_come_are_the_same_text(book: Path, cli: Cli) -> None:
    ask = ["generate", book, "--tokens", "8", "--no-sample"]
    lines = "the light\nof\n"
    whole, pieces = cli(ask, stdin=lines), cli([*ask, "--stream"], stdin=lines)
    assert " ".join(pieces.stdout.split()) == " ".join(whole.stdout.split())


def test_texts_are_scored(book: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("the light of day\n\nnight and day and night\n")
    done = cli(["score", book, "--data", "t.txt", "--json"])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    want = regard.load(book).score(["the light of day", "night and day and night"])
    assert [(row["logprob"], row["tokens"]) for row in rows] == [(pytest.approx(p, rel=1e-5), n) for p, n in want]
    done = cli(["evaluate", book, "--data", "t.txt", "--json"])
    assert done.stderr == ""
    values = json.loads(done.stdout)
    nats, tokens = -sum(p for p, _ in want), sum(n for _, n in want)
    assert values["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert values["signatures"]["bits_per_byte"].startswith("bits_per_byte|bytes:39|words:9|")


def test_bits_of_text_that_tokens_lose_are_left_out(cli: Cli, tmp_path: Path) -> None:
    run = train(tmp_path, "tokenizer.kind=whitespace", "tokenizer.vocab_size=7")  # four words of seven
    scores = json.loads((run / "scores.json").read_text())
    assert "bits_per_byte" not in scores
    assert scores["baselines"].keys() == {"tokens by their frequency"}
    assert "test texts are not what their tokens give back" in (run / "report.html").read_text()
    (tmp_path / "t.txt").write_text("rain\n\nsnow\n")
    done = cli(["evaluate", run, "--data", "t.txt", "--json"])
    assert json.loads(done.stdout).keys() == {"perplexity", "signatures"}
    assert done.stderr.startswith("regard: note: what tokens lose costs nothing, so bits per byte")
    assert done.stderr.count("\n") == 1


def test_writing_goes_on_beyond_the_context(book: Path, cli: Cli) -> None:
    ask = ["generate", book, "--tokens", "90", "--beam", "1", "--repetition-penalty", "1.1", "--json", "--full"]
    cut, rolled = (json.loads(cli([*ask, full], stdin="the light\n").stdout) for full in ("cut", "roll"))
    assert (cut["tokens"], cut["ended"]) == (29, False)
    assert rolled["tokens"] > 45  # the context is 32
    assert rolled["text"].startswith(cut["text"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--draft", "other"], ("--draft without --speculate", "leave it out")),
        (["--speculate", "2", "--beam", "2"], ("speculating with beam 2", "speculate with beam 1")),
        (["--tokens", "80"], ("80 tokens to write", "the context is 32", "ask for fewer")),
        (["--no-sample", "--top-k", "3"], ("--top-k without --sample",)),
        (["--tokens", "-1"], ("--tokens is -1; give 0 to 100,000",)),
        (["--stream", "--json"], ("--stream with --json",)),
        (["--batch", "0"], ("--batch is 0",)),
        (["--compile", "--speculate", "2"], ("--compile with --speculate", "leave one out")),
        (["--device", "cpu", "--compile"], ("steps of this model cannot be compiled here; leave it out",)),
        (["--full", "wrap"], ("choose error, cut, slide or roll",)),
        (["--sample", "--beam", "2"], ("sampling with beam 2",)),
        (["--min-p", "2", "--sample"], ("min_p is 2",)),
        (["--repetition-penalty", "0"], ("repetition_penalty is 0",)),
    ],
)
def test_bad_choices_are_one_line(args: list[str], words: tuple[str, ...], book: Path, cli: Cli) -> None:
    done = cli(["generate", book, *args], stdin="a\n")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize("args", [[], ["--batch", "1"], ["--stream"], ["--full", "cut"]], ids=" ".join)
def test_a_line_that_is_too_long_is_named_behind_the_answers_before_it(args: list[str], book: Path, cli: Cli) -> None:
    done = cli(["generate", book, "--tokens", "4", *args], stdin="light\n\nday\n" + "water of " * 40 + "\nnight\n")
    assert done.returncode == 2
    assert done.stdout.count("\n") >= 3 if args == ["--stream"] else done.stdout.count("\n") == 3
    assert done.stderr.startswith("regard: standard input, line 4: ")
    assert "to be written; the model's context is 32; shorten it" in done.stderr


def test_a_model_of_another_kind_is_refused(book: Path, trained, cli: Cli) -> None:
    done = cli(["translate", book], stdin="a\n")
    assert done.returncode == 2
    assert "a model for the task 'lm'" in done.stderr
    assert "regard generate" in done.stderr
    done = cli(["generate", trained.out], stdin="a\n")
    assert done.returncode == 2
    assert "does not go on from texts" in done.stderr
    done = cli(["generate", book, "--count", "4", "-o", "sheet.png"], stdin="a\n")
    assert done.returncode == 2
    assert "--count and --out for a model of texts" in done.stderr


def test_weights_of_fewer_bytes_are_used_and_their_error_is_told(book: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("the light of day\n\nnight and day and night\n")
    found = {}
    for precision in ("fp32", "bf16", "int8"):
        done = cli(["score", book, "--data", "t.txt", "--json", "--precision", precision])
        assert done.returncode == 0, done.stderr
        found[precision] = [json.loads(line)["logprob"] for line in done.stdout.splitlines()]
        told = "" if precision == "fp32" else f"regard: {precision} weights: products differ by up to "
        assert done.stderr.startswith(told)
        assert (done.stderr == "") == (precision == "fp32")
    assert found["fp32"] != found["bf16"] != found["int8"]
    assert found["int8"] == pytest.approx(found["fp32"], rel=0.01)
    packed = regard.load(book, precision="int8").score(["the light of day", "night and day and night"])
    assert found["int8"] == [pytest.approx(logprob, rel=1e-5) for logprob, _ in packed]
    done = cli(["score", book, "--data", "t.txt", "--precision", "fp8"])
    assert done.returncode == 2
