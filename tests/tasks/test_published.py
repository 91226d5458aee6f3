"""Benchmarks as published: which file is trained on, which chooses, which is scored; and what the server gets."""

import json
from pathlib import Path

import published_files
import pytest
import torch
from public_encoder import WORDS, tokenizer

import regard
from regard.data.benchmarks import LAYOUTS
from regard.errors import ConfigError, DataError, UsageError
from regard.models.bert import Bert, BertConfig
from regard.models.labelled import Labelled
from regard.tasks.labelled import LabelledConfig, LabelledTask
from regard.tasks.labeller import Classes, Labeller, Numbers, TextPairs
from regard.tasks.published import LabelData, read_labelled
from regard.tasks.submission import submit
from regard.training import recipe, run

TINY = {"family": "bert", "embed_dim": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 32}


def told(pairs: list) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in pairs]


def wanted(rows: list[published_files.Row], language: str = "en") -> list[tuple[str, str]]:
    return [(f"{row.a}\t{row.b}", row.label) for row in rows if row.language == language]


def test_glue_is_chosen_on_a_part_of_its_training_file(tmp_path: Path) -> None:
    files = published_files.write(tmp_path, "glue-mnli", 200)
    corpus = read_labelled(LabelData(str(tmp_path), layout="glue-mnli"), 3)
    assert told(corpus.test) == wanted(files["dev_matched.tsv"])
    assert {name: told(pairs) for name, pairs in corpus.others.items()} == {
        "mismatched": wanted(files["dev_mismatched.tsv"])
    }
    assert len(corpus.dev) == 10
    assert sorted(told(corpus.train) + told(corpus.dev)) == sorted(wanted(files["train.tsv"]))
    assert not {pair.source.split("\t")[0] for pair in corpus.dev} & {p.source.split("\t")[0] for p in corpus.train}
    assert corpus.origins == ((str(tmp_path / "train.tsv"), 190),)
    assert corpus.notes == [
        "glue-mnli, as published: dev_matched.tsv, dev_mismatched.tsv (mismatched) is scored and chooses nothing; "
        "checkpoints are chosen on a part split off train.tsv by the first text, seed 3. Official metrics, the first "
        "of which chooses: accuracy."
    ]


def test_xnli_is_trained_in_one_language_and_scored_in_each(tmp_path: Path) -> None:
    files = {Path(name).name: rows for name, rows in published_files.write(tmp_path, "xnli").items()}
    corpus = read_labelled(LabelData(str(tmp_path), layout="xnli"), 3)
    assert told(corpus.train) == wanted(files["multinli.train.en.tsv"])
    assert "contradiction" in {pair.target for pair in corpus.train}
    assert told(corpus.dev) == wanted(files["xnli.dev.tsv"])
    assert told(corpus.test) == wanted(files["xnli.test.tsv"])
    assert {name: told(pairs) for name, pairs in corpus.others.items()} == {
        name: wanted(files["xnli.test.tsv"], name) for name in ("de", "fr")
    }
    with pytest.raises(DataError, match=r"multinli\.train\.sw\.tsv: no such file"):
        read_labelled(LabelData(str(tmp_path), layout="xnli", language="sw"), 3)
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"x": "Eins", "y": "Zwei", "z": "contradictory"}) + "\n")
    config = LabelData(
        str(own),
        test=str(tmp_path),
        layout="xnli",
        language="de",
        source="x,y",
        target="z",
        also_test={"own": str(own)},
    )
    corpus = read_labelled(config, 3)
    assert told(corpus.train) == [("Eins\tZwei", "contradiction")]
    assert told(corpus.dev) == wanted(files["xnli.dev.tsv"], "de")
    assert told(corpus.test) == wanted(files["xnli.test.tsv"], "de")
    assert {*corpus.others} == {"en", "fr", "own"}
    assert told(corpus.others["own"]) == told(corpus.train)
    with pytest.raises(DataError, match=r"xnli\.test\.tsv: no row is in the language 'sw'; it has de, en, fr"):
        read_labelled(
            LabelData(config.train, test=config.test, layout="xnli", language="sw", source="x,y", target="z"), 3
        )
    own.write_text(json.dumps({"x": "Eins", "y": "Zwei", "z": "yes"}) + "\n")
    with pytest.raises(DataError, match=r"own\.jsonl, line 1: the label 'yes' is none of the benchmark's"):
        read_labelled(config, 3)


def test_rows_left_out_are_told(tmp_path: Path) -> None:
    published_files.write(tmp_path, "glue-qqp")
    for name in ("train.tsv", "dev.tsv"):
        with (tmp_path / name).open("a") as file:
            file.write("77\t1\t2\tA question that its line lost\n")
    notes = read_labelled(LabelData(str(tmp_path), layout="glue-qqp"), 3).notes
    assert notes[1:] == [
        f"1 rows of {tmp_path / name} that lack cells are left out." for name in ("train.tsv", "dev.tsv")
    ]


def test_settings_that_a_benchmark_has_no_use_for_are_refused(tmp_path: Path) -> None:
    published_files.write(tmp_path, "glue-mnli")
    for changes, words in (
        ({"layout": "glue-ax"}, "glue-ax has a test file alone; train on glue-mnli"),
        ({"layout": "glue"}, "unknown layout 'glue'"),
        ({"dev": "x.tsv"}, "comes with its own parts; leave dev, extra and repeat out"),
        ({"extra": ("x.tsv",)}, "comes with its own parts"),
        ({"repeat": 2}, "comes with its own parts"),
        ({"language": "../x"}, r"language is '\.\./x'"),
        ({"source": "sentence1"}, "has its own columns"),
        (
            {"also_test": {"mismatched": str(tmp_path / "x.tsv")}},
            "also_test has 'mismatched', which is one of glue-mnli",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            read_labelled(LabelData(str(tmp_path), **{"layout": "glue-mnli", **changes}), 3)  # type: ignore[arg-type]
    config = LabelledConfig(LabelData(str(tmp_path), layout="glue-mnli"), model=TINY)
    with pytest.raises(ConfigError, match="glue-mnli is no task of regress; regard train classify"):
        LabelledTask.prepare(Numbers, config, 3, tmp_path, True)


def task_of(folder: Path, layout: str, **changes: str) -> LabelledTask:
    config = LabelledConfig(LabelData(str(folder), layout=layout, max_tokens=16), model=TINY, **changes)
    goals = Numbers if layout == "glue-sts-b" else Classes
    return LabelledTask.prepare(goals, config, 3, folder, True)


@pytest.mark.parametrize("name", [name for name, one in LAYOUTS.items() if one.train])
def test_the_official_metric_chooses(name: str, tmp_path: Path) -> None:
    published_files.write(tmp_path, name, 100)
    task = task_of(tmp_path, name)
    official = {"glue-cola": "matthews", "glue-sts-b": "pearson", "glue-mrpc": "positive_f1", "glue-qqp": "positive_f1"}
    assert task.monitor == official.get(name, "accuracy")
    found = task.validate(task.build(), torch.device("cpu"))
    assert set(LAYOUTS[name].metrics) <= {*found}
    assert ("positive_f1" in found) == (name in ("glue-mrpc", "glue-qqp"))


def test_the_metric_and_the_positive_class_can_be_chosen(tmp_path: Path) -> None:
    published_files.write(tmp_path, "glue-mrpc", 100)
    task = task_of(tmp_path, "glue-mrpc", positive="0", monitor="matthews")
    assert (task.positive, task.monitor) == ("0", "matthews")
    with pytest.raises(ConfigError, match="monitor is 'bleu'; choose from accuracy, f1, matthews, positive_f1"):
        task_of(tmp_path, "glue-mrpc", monitor="bleu")
    with pytest.raises(ConfigError, match="positive is '2', which is no class"):
        task_of(tmp_path, "glue-mrpc", positive="2")


# ---------------------------------------------------------------------------------------------------------- submissions


def constant(goal: Classes | Numbers, *outputs: float) -> Labeller:
    """A model that says the same of every text."""
    model = Labelled(Bert(BertConfig(len(WORDS), 16, 2, 1, 24, 12, head="none")), goal.num_outputs, "mean")
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.copy_(torch.tensor(outputs))
    return Labeller(model, TextPairs(tokenizer()), goal, 12)


@pytest.mark.parametrize(
    ("name", "labeller", "files"),
    [
        ("glue-cola", constant(Classes(("0", "1")), 0, 1), {"CoLA.tsv": "1"}),
        ("glue-sst-2", constant(Classes(("0", "1")), 1, 0), {"SST-2.tsv": "0"}),
        ("glue-mrpc", constant(Classes(("0", "1")), 0, 1), {"MRPC.tsv": "1"}),
        ("glue-sts-b", constant(Numbers(2.5, 2.0), 0.123456), {"STS-B.tsv": "2.747"}),
        ("glue-sts-b", constant(Numbers(2.5, 2.0), 9), {"STS-B.tsv": "5.000"}),
        ("glue-sts-b", constant(Numbers(2.5, 2.0), -9), {"STS-B.tsv": "0.000"}),
        ("glue-qqp", constant(Classes(("0", "1")), 1, 0), {"QQP.tsv": "0"}),
        ("glue-mnli", constant(Classes(("contradiction", "entailment", "neutral")), 0, 0, 1),
         {"MNLI-m.tsv": "neutral", "MNLI-mm.tsv": "neutral"}),
        ("glue-ax", constant(Classes(("contradiction", "entailment", "neutral")), 0, 1, 0), {"AX.tsv": "entailment"}),
        ("glue-qnli", constant(Classes(("entailment", "not_entailment")), 0, 1), {"QNLI.tsv": "not_entailment"}),
        ("glue-rte", constant(Classes(("entailment", "not_entailment")), 1, 0), {"RTE.tsv": "entailment"}),
        ("glue-wnli", constant(Classes(("0", "1")), 0, 1), {"WNLI.tsv": "1"}),
    ],
)  # fmt: skip
def test_submissions_byte_for_byte(name: str, labeller: Labeller, files: dict[str, str], tmp_path: Path) -> None:
    published_files.write(tmp_path, name, 6)
    done = submit(labeller, name, tmp_path, tmp_path / "new" / "out")
    assert {path.name for path in (tmp_path / "new" / "out").iterdir()} == set(files)
    for file, label in files.items():
        lines = f"index\tprediction\n0\t{label}\n1\t{label}\n2\t{label}\n"
        assert (tmp_path / "new" / "out" / file).read_bytes() == lines.encode()
    assert [(one.path.name, one.rows) for one in done] == [(file, 3) for file in files]


def test_long_texts_of_a_submission_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("index\tsentence\n7\ta\n3\t" + "a " * 50 + "\n")
    (done,) = submit(constant(Classes(("0", "1")), 0, 1), "glue-cola", tmp_path, tmp_path / "out")
    assert (done.rows, done.too_long) == (2, 1)
    assert done.path.read_text() == "index\tprediction\n7\t1\n3\t1\n"


def test_what_cannot_be_submitted_leaves_nothing(tmp_path: Path) -> None:
    published_files.write(tmp_path, "glue-mnli")
    sides = constant(Classes(("0", "1")), 0, 1)
    infers = constant(Classes(("contradiction", "entailment", "neutral")), 0, 0, 1)
    for name, labeller, error, words in (
        ("xnli", infers, UsageError, "no submission for 'xnli'; choose from glue-cola, .*glue-ax$"),
        ("cola", sides, UsageError, "no submission for 'cola'"),
        (
            "glue-mnli",
            sides,
            UsageError,
            "the model's classes are 0, 1; use a model trained on the labels contradiction",
        ),
        ("glue-sts-b", sides, UsageError, "a model for the task 'classify'; use one of regard train regress"),
        ("glue-ax", infers, DataError, r"diagnostic\.tsv: no such file"),
    ):
        with pytest.raises(error, match=words):
            submit(labeller, name, tmp_path, tmp_path / "out")
    for line, words in (("0\tA\tB", "the index '0' comes twice"), ("x\tA\tB", "'x' is no index")):
        (tmp_path / "test_mismatched.tsv").write_text(f"index\tsentence1\tsentence2\n0\tA\tB\n{line}\n")
        with pytest.raises(DataError, match=rf"test_mismatched\.tsv, line 3: {words}"):
            submit(infers, "glue-mnli", tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ----------------------------------------------------------------------------------------------------------- whole runs


def train(folder: Path, layout: str) -> tuple[run.Result, dict]:
    """Train a tiny model on a benchmark's folder."""
    values = recipe.with_data(recipe.read(LAYOUTS[layout].task), str(folder))
    values["data"]["layout"] = layout
    values |= {"init": "", "model": {**TINY, "dropout": 0.0, "attention_dropout": 0.0}, "batch_tokens": 256}
    values |= {"tokenizer": {"kind": "whitespace", "vocab_size": 300}}
    values["training"] = {
        **{"max_steps": 60, "learning_rate": 0.01, "validate_every_steps": 30, "warmup_steps": 5},
        **{"schedule": "linear", "threads": 1},
    }
    result = run.run(recipe.resolve(values), folder / "run", device="cpu", quiet=True)
    return result, json.loads((folder / "run" / "scores.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glue-cola", "glue-mrpc", "glue-sts-b"])
def test_a_run_on_published_files_learns_and_can_be_submitted(name: str, tmp_path: Path) -> None:
    files = published_files.write(tmp_path, name, 400)
    result, scores = train(tmp_path, name)
    metric = LAYOUTS[name].metrics[0]
    assert result.metric == metric
    assert scores[metric] > 0.95
    outputs = [json.loads(line) for line in (tmp_path / "run" / "outputs.jsonl").read_text().splitlines()]
    assert len(outputs) == len(files["dev.tsv"]) == 200
    assert "Official metrics, the first of which chooses" in (tmp_path / "run" / "report.html").read_text()
    loaded = regard.load(tmp_path / "run")
    (done,) = submit(loaded, name, tmp_path, tmp_path / "out")
    single = name in published_files.SINGLE
    texts = [(row.a,) if single else (row.a, row.b) for row in files["test.tsv"]]
    labels = [one.label for one in loaded.classify(texts)]
    if name == "glue-sts-b":
        labels = [f"{min(max(float(one), 0), 5):.3f}" for one in labels]
        right = sum(abs(float(one) - float(row.label)) < 1 for one, row in zip(labels, files["test.tsv"], strict=True))
    else:
        right = sum(one == row.label for one, row in zip(labels, files["test.tsv"], strict=True))
    assert right > 190
    lines = "".join(f"{n}\t{label}\n" for n, label in enumerate(labels))
    assert done.path.read_bytes() == f"index\tprediction\n{lines}".encode()


@pytest.mark.slow
def test_a_run_on_xnli_scores_every_language(tmp_path: Path) -> None:
    files = published_files.write(tmp_path, "xnli", 400)
    _, scores = train(tmp_path, "xnli")
    test = files["XNLI-1.0/xnli.test.tsv"]
    assert {name: one["inputs"] for name, one in scores["also_test"].items()} == {
        name: sum(row.language == name for row in test) for name in ("de", "fr")
    }
    assert min(scores["accuracy"], *(one["accuracy"] for one in scores["also_test"].values())) > 0.95
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<td>the test part</td>" in page
    assert f"<td>fr</td><td>{scores['also_test']['fr']['inputs']}</td>" in page
