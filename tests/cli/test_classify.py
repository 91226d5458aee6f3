"""The verb ``regard classify``."""

import json
from pathlib import Path

import pytest
from cli_tools import Cli
from public_encoder import write_encoder

from regard.cli.main import main


@pytest.fixture(scope="module")
def mood(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a tiny public encoder, by the command itself."""
    folder = tmp_path_factory.mktemp("mood")
    (folder / "encoder").mkdir()
    write_encoder(folder / "encoder")
    letters = "abcdefg"
    rows = [(f"{a} {b} {c}", "early" if a < "d" else "late") for a in letters for b in letters for c in letters[:3]]
    (folder / "texts.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    sets = [
        f"init={folder / 'encoder'}",
        "data.max_tokens=10",
        "training.max_steps=20",
        "training.validate_every_steps=10",
    ]
    options = [word for one in sets for word in ("--set", one)]
    with pytest.raises(SystemExit) as done:
        main(["train", "classify", "--data", f"{folder}/texts.tsv", "--out", f"{folder}/run", "--quiet", *options])
    assert done.value.code == 0
    return folder / "run"


def test_a_line_gets_a_label(mood: Path, cli: Cli) -> None:
    lines = "a b c\ng f e\na b\tc d\n\n"
    done = cli(["classify", mood], stdin=lines)
    assert (done.returncode, done.stderr) == (0, "")
    labels = done.stdout.splitlines()
    assert len(labels) == 4
    assert {*labels[:3]} <= {"early", "late"}
    assert labels[3] == ""
    done = cli(["classify", mood, "--json", "--batch", "1"], stdin=lines)
    *filled, blank = done.stdout.splitlines()
    rows = [json.loads(line) for line in filled]
    assert blank == ""
    assert [row["label"] for row in rows] == labels[:3]
    assert all(set(row["probabilities"]) == {"early", "late"} for row in rows)
    assert all(max(row["probabilities"], key=row["probabilities"].get) == row["label"] for row in rows)


def test_labelled_texts_score_it(mood: Path, cli: Cli) -> None:
    texts = [line.split("\t")[0] for line in (mood.parent / "texts.tsv").read_text().splitlines()]
    labels = cli(["classify", mood], stdin="".join(f"{text}\n" for text in texts)).stdout.splitlines()
    own = "".join(f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True))
    done = cli(["evaluate", mood, "--data", "-", "--json"], stdin=own)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["accuracy"] == 1.0
    half = own.replace("\tearly", "\tnever").replace("\tlate", "\tnever", 40)
    scores = json.loads(cli(["evaluate", mood, "--data", "-", "--json"], stdin=half).stdout)
    rest = own.count("\tlate") - 40
    assert scores["accuracy"] == pytest.approx(max(rest, 0) / len(texts)), "what it does not know counts as missed"
    (mood.parent / "rows.csv").write_text("said,of\na b c,early\n")
    done = cli(["evaluate", mood, "--data", mood.parent / "rows.csv", "--source", "said", "--target", "of"])
    assert done.stdout.startswith("accuracy ")


def test_bad_input_is_one_line(mood: Path, trained, cli: Cli) -> None:
    for args, stdin, code, words in (
        (
            [mood],
            "a\n" * 300 + "a b c d e f g a b c d\n",
            2,
            ("standard input, line 301: 13 tokens; the model reads 10", "--truncate"),
        ),
        ([mood, "--batch", "0"], "a\n", 2, ("--batch is 0",)),
        ([trained.out], "a\n", 2, ("a model for the task 'translate'", "regard translate")),
        ([mood / "nothing"], "a\n", 3, ("no model here",)),
    ):
        done = cli(["classify", *args], stdin=stdin)
        assert done.returncode == code, done.stderr
        assert done.stderr.count("\n") == 1
        for word in words:
            assert word in done.stderr
    assert cli(["classify", mood, "--truncate"], stdin="a b c d e f g a b c d\n").returncode == 0


def test_the_number_of_a_text_is_a_number_in_json(mood: Path, cli: Cli, tmp_path: Path) -> None:
    rows = [(f"{a} {b}", "abcdef".index(a) + 0.5) for a in "abcdef" for b in "abcdef" * 2]
    (tmp_path / "rated.tsv").write_text("".join(f"{text}\t{number}\n" for text, number in rows))
    sets = [f"init={mood.parent / 'encoder'}", "data.max_tokens=10", "training.max_steps=2"]
    options = [word for one in sets for word in ("--set", one)]
    done = cli(["train", "regress", "--data", "rated.tsv", "--out", "run", "--quiet", *options])
    assert done.returncode == 0, done.stderr
    plain = cli(["classify", "run"], stdin="a b\n\nf a\n").stdout.splitlines()
    rows = [
        line and json.loads(line)
        for line in cli(["classify", "run", "--json"], stdin="a b\n\nf a\n").stdout.split("\n")
    ]
    assert rows == [{"label": float(plain[0])}, "", {"label": float(plain[2])}, ""]
    assert isinstance(rows[0]["label"], float)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"labels": {"names": [1, 2]}}, "labels are not as they are written"),
        ({"labels": {}}, "labels are not as they are written"),
        ({"task": "regress"}, "labels are not as they are written"),
        ({"task": "regress", "labels": {"mean": 0, "deviation": 0}}, "labels are not as they are written"),
        ({"pooling": "max"}, "'max' is not allowed"),
        ({"labels": {"names": ["a", "b", "c"]}}, "shape"),
    ],
)
def test_damaged_folders_are_one_line(damage: dict, words: str, mood: Path, cli: Cli, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((mood / "model" / name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | damage))
    done = cli(["classify", tmp_path], stdin="a\n")
    assert done.returncode in (3, 4), done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
