"""The verb ``regard submit``."""

from pathlib import Path

import published_files
import pytest
import torch
from cli_tools import Cli, snapshot
from public_encoder import WORDS, tokenizer

import regard
from regard.models.bert import Bert, BertConfig
from regard.models.labelled import Labelled
from regard.tasks import folder
from regard.tasks.labeller import Classes, Labeller, TextPairs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes everything for neutral."""
    path = tmp_path_factory.mktemp("submit") / "model"
    goal = Classes(("contradiction", "entailment", "neutral"))
    net = Labelled(Bert(BertConfig(len(WORDS), 16, 2, 1, 24, 12, head="none")), 3, "mean")
    with torch.no_grad():
        net.output.weight.zero_()
        net.output.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
    folder.save(path, Labeller(net, TextPairs(tokenizer()), goal, 4))
    return path


def test_the_servers_files_are_written(model: Path, cli: Cli, tmp_path: Path) -> None:
    published_files.write(tmp_path / "MNLI", "glue-mnli", 4)
    published_files.write(tmp_path / "diagnostic", "glue-ax", 4)
    for layout, files in (("glue-mnli", ["MNLI-m.tsv", "MNLI-mm.tsv"]), ("glue-ax", ["AX.tsv"])):
        done = cli(["submit", model, "--layout", layout, "--data", tmp_path, "-o", tmp_path / "out"])
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"{tmp_path / 'out' / file}: 2 predictions" for file in files]
        assert done.stderr.splitlines() == [
            f"regard: note: {file}: of 2 texts over 4 tokens the beginning is read" for file in files
        ]
        for file in files:
            assert (tmp_path / "out" / file).read_bytes() == b"index\tprediction\n0\tneutral\n1\tneutral\n"
    done = regard.submit(model, "glue-ax", tmp_path, tmp_path / "python")
    assert [(one.path, one.rows, one.too_long) for one in done] == [(tmp_path / "python" / "AX.tsv", 2, 2)]


def test_bad_input_is_one_line_and_changes_nothing(model: Path, cli: Cli, tmp_path: Path) -> None:
    published_files.write(tmp_path, "glue-mnli", 4)
    out = tmp_path / "out"
    assert cli(["submit", model, "--layout", "glue-mnli", "--data", tmp_path, "-o", out]).returncode == 0
    (tmp_path / "test_mismatched.tsv").write_text("index\tsentence1\tsentence2\n0\tA\n")
    (tmp_path / "file").write_text("")
    before = snapshot(out)
    for layout, data, into, code, words in (
        ("glue-mnli", tmp_path, out, 3, "test_mismatched.tsv, line 2: a row that lacks cells"),
        ("glue-ax", tmp_path, out, 3, "diagnostic.tsv: no such file; give the folder with diagnostic.tsv"),
        ("glue-rte", tmp_path, out, 2, "the model's classes are contradiction, entailment, neutral"),
        ("xnli", tmp_path, out, 2, "no submission for 'xnli'; choose from glue-cola"),
        ("glue-mnli", tmp_path / "none", out, 3, "test_matched.tsv: no such file"),
    ):
        done = cli(["submit", model, "--layout", layout, "--data", data, "-o", into])
        assert done.returncode == code, done.stderr
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
    published_files.write(tmp_path, "glue-mnli", 4)
    done = cli(["submit", model, "--layout", "glue-mnli", "--data", tmp_path, "-o", tmp_path / "file"])
    assert done.returncode == 4, done.stderr
    assert done.stderr.count("\n") == 1
    assert snapshot(out) == before
