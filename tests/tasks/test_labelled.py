"""Labelled texts: goals, batches, loss, fine-tuning a public encoder, a whole run."""

import json
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from public_encoder import write_encoder

import regard
from regard.attention import Segments
from regard.data import read_pairs, split_pairs
from regard.data.examples import Pair
from regard.errors import ConfigError, ContextError, DataError
from regard.models.public import read_folder
from regard.tasks.baselines import BagOfWords
from regard.tasks.encoders import LabelTokenizerConfig
from regard.tasks.labelled import LabelledConfig, LabelledTask, evaluate
from regard.tasks.labeller import Classes, Labeller, Numbers
from regard.tasks.published import LabelData, read_labelled
from regard.training import recipe, run

TINY = {"family": "bert", "embed_dim": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 32}
GOOD, BAD = ["wonderful", "moving", "bright", "warm", "clever"], ["dull", "slow", "empty", "cold", "silly"]


def rows(count: int = 300, seed: int = 2) -> list[tuple[str, str]]:
    """Sentences with a class that two of their words decide, unless "not" stands before them."""
    draws = random.Random(seed)
    made = {}
    for _ in range(count):
        is_good, turned = draws.random() < 0.5, draws.random() < 0.5
        words = draws.choices(GOOD if is_good != turned else BAD, k=2)
        text = f"a {'not ' if turned else ''}{words[0]} and {words[1]} film {draws.randint(0, 99)}"
        made[text] = "good" if is_good else "bad"
    return list(made.items())


def make_task(folder: Path, goals: type = Classes, table: list[tuple[str, str]] | None = None, **changes: object):
    path = folder / "texts.tsv"
    path.write_text("".join(f"{text}\t{label}\n" for text, label in (rows() if table is None else table)))
    values = {"tokenizer": LabelTokenizerConfig("whitespace", 300), "model": TINY, "batch_tokens": 120}
    data = LabelData(str(path), max_tokens=changes.pop("max_tokens", 16), source=changes.pop("source", None))
    config = LabelledConfig(data=data, **{**values, **changes})
    return LabelledTask.prepare(goals, config, 5, folder, True)


def test_classes_are_those_of_the_training_part(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    assert task.goal == Classes(("bad", "good"))
    batch = task.batch(0)
    assert len(batch.targets_B) == len(batch.segments) > 3
    assert {*batch.targets_B.tolist()} == {0, 1}
    with pytest.raises(DataError, match=r"line 3: .*the class 'ugly' is not in the training part|ugly"):
        task.goal.targets(["good", "ugly"], ["line 2", "line 3"])
    with pytest.raises(DataError, match="one class alone: 'x'"):
        Classes.fit(["x", "x"], ["line 1", "line 2"])
    with pytest.raises(DataError, match="for numbers train regress"):
        Classes.fit([str(n) for n in range(3000)], ["line"] * 3000)


@pytest.mark.parametrize("seed", range(8))
def test_a_class_of_one_example_is_trained_on(seed: int, tmp_path: Path) -> None:
    rare = [(f"a film of its own {n}", f"class {n}") for n in range(30)]
    path = tmp_path / "texts.tsv"
    path.write_text("".join(f"{text}\t{label}\n" for text, label in [*rows(), *rare]))
    config = LabelledConfig(LabelData(str(path), max_tokens=16), model=TINY)
    task = LabelledTask.prepare(Classes, config, seed, tmp_path, True)
    assert task.goal.num_outputs == 32
    # A development file of one's own has the classes of training.
    (tmp_path / "dev.tsv").write_text("a film\tgood\nno film\tmeh\n")
    config = LabelledConfig(LabelData(str(path), dev=str(tmp_path / "dev.tsv")), model=TINY)
    with pytest.raises(DataError, match="line 2: the class 'meh' is not in the training part"):
        LabelledTask.prepare(Classes, config, seed, tmp_path, True)


def test_numbers_are_dealt_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "texts.tsv"
    path.write_text("".join(f"{text}\t{n}\n" for n, (text, _) in enumerate(rows())))
    task = LabelledTask.prepare(Numbers, LabelledConfig(LabelData(str(path)), model=TINY), 5, tmp_path, True)
    splits = split_pairs(read_pairs(path), seed=5)
    assert (task.corpus.train, task.corpus.dev, task.corpus.test) == (splits.train, splits.dev, splits.test)


def test_numbers_are_centred(tmp_path: Path) -> None:
    table = [(text, "3.5" if label == "good" else "-1") for text, label in rows()]
    task = make_task(tmp_path, Numbers, table)
    assert float(task.targets.mean()) == pytest.approx(0, abs=1e-5)
    assert float(task.targets.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert task.goal.labels(task.targets[:, None]) == [str(float(pair.target)) for pair in task.corpus.train]
    for label, words in (("high", "'high' is no number"), ("nan", "'nan' is no number")):
        with pytest.raises(DataError, match=words):
            task.goal.targets([label], ["line 7"])
    with pytest.raises(DataError, match="all numbers are 2"):
        Numbers.fit(["2", "2"], ["line 1", "line 2"])
    with pytest.raises(DataError, match="numbers too large to have a deviation"):
        Numbers.fit(["1e300", "-1e300"], ["line 1", "line 2"])


@pytest.mark.parametrize("scale", [1e-20, 1e-5, 1.0, 1e7])
def test_numbers_of_any_size_are_scored_and_written_alike(scale: float) -> None:
    values = np.random.default_rng(3).normal(3, 1, 200) * scale
    labels, where = [repr(float(value)) for value in values], ["line"] * 200
    goal = Numbers.fit(labels, where)
    outputs_BO = goal.targets(labels, where)[:, None]
    found = goal.measure(goal.predictions(outputs_BO), labels)
    assert found["pearson"].value == pytest.approx(1, abs=1e-6)
    assert found["spearman"].value == pytest.approx(1, abs=1e-6)
    written = goal.labels(outputs_BO)
    assert np.abs(np.array(written, float) - values).max() < 1e-4 * goal.deviation
    assert max(map(len, written)) < 14
    assert Numbers(0.0, scale).labels(torch.tensor([[-1e-9]])) == ["0.0"]


def test_scores_are_of_numbers_with_all_their_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All but one are so near together that they are written alike.
    table = [(text, f"{1e-9 * n + (n == 0)!r}") for n, (text, _) in enumerate(rows())]
    task = make_task(tmp_path, Numbers, table)

    def right(product: Labeller, rows: list, **_: object) -> torch.Tensor:
        pairs = task.corpus.dev if rows is task.dev else task.corpus.test
        values = torch.tensor([float(pair.target) for pair in pairs], dtype=torch.float64)
        return ((values - task.goal.mean) / task.goal.deviation)[:, None]

    monkeypatch.setattr(Labeller, "outputs", right)
    model, device = task.build(), torch.device("cpu")
    assert task.validate(model, device)["spearman"] == pytest.approx(1)
    evaluated = task.test(task.product(model, device))
    assert evaluated.measures["spearman"].value == pytest.approx(1)
    assert len({*evaluated.outputs}) < 3


@pytest.mark.parametrize("goals", [Classes, Numbers])
def test_labelled_texts_are_scored_as_the_test_part_is(goals: type, tmp_path: Path) -> None:
    table = rows() if goals is Classes else [(text, str(len(text))) for text, _ in rows()]
    task = make_task(tmp_path, goals, table, max_tokens=7)
    torch.manual_seed(3)
    product = task.product(task.build(), torch.device("cpu"))
    assert max(len(ids) for ids, _ in task.test_rows) == 7, "some are cut"
    assert evaluate(product, task.corpus.test) == task.test(product).measures
    if goals is Numbers:
        with pytest.raises(DataError, match=r"line 4: 'many' is no number"):
            evaluate(product, [*task.corpus.test, Pair("a film", "many", 4)])


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("goals", [Classes, Numbers])
def test_the_loss_is_that_of_each_text_alone(goals: type, pooling: str, tmp_path: Path) -> None:
    table = rows() if goals is Classes else [(text, str(len(text))) for text, _ in rows()]
    task = make_task(tmp_path, goals, table, pooling=pooling)
    model = task.build().double().eval()
    batch = task.batch(0)
    want = 0.0
    ends = np.cumsum(batch.segments.lengths)
    for place, (end, length) in enumerate(zip(ends, batch.segments.lengths, strict=True)):
        tokens_T = batch.tokens_N[end - length : end]
        hidden_TD = model.encoder(tokens_T, Segments.ragged([int(length)]))
        pooled_D = {"mean": hidden_TD.mean(0), "cls": hidden_TD[0], "last": hidden_TD[-1]}[pooling]
        outputs_O = model.output(pooled_D).detach()
        if goals is Classes:
            want -= float(outputs_O.log_softmax(-1)[batch.targets_B[place]])
        else:
            want += float((outputs_O[0] - batch.targets_B[place]) ** 2)
    assert float(task.loss(model, batch).report) == pytest.approx(want, rel=1e-6)


def test_two_texts_are_told_apart_by_their_types(tmp_path: Path) -> None:
    table = [{"a": f"the {n} film\t", "b": f"it\twas {n}", "target": "yes" if n % 2 else "no"} for n in range(200)]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in table))
    config = LabelledConfig(LabelData(str(path), max_tokens=32, source="a,b"), model=TINY)
    task = LabelledTask.prepare(Classes, config, 5, tmp_path, True)
    ids, types = task.train[0]
    row = table[task.corpus.train[0].line - 1]
    ((used, _),) = task.tokenizer.encode_all([(row["a"], row["b"])])
    assert ids.tolist() == used.tolist()
    middle = int(np.flatnonzero(types)[0])
    end = task.tokenizer.inner.token_to_id("</s>")
    assert types.tolist() == [0] * middle + [1] * (len(types) - middle)
    assert ids[middle - 1] == ids[-1] == end
    assert ids[0] == task.tokenizer.inner.token_to_id("<s>")


def test_a_text_with_a_tab_is_read_in_training_as_in_use(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    table = [(f"film {n}\tof {n % 7}", "yes" if n % 2 else "no") for n in range(200)]
    path.write_text("".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in table))
    config = LabelledConfig(LabelData(str(path), max_tokens=32), model=TINY)
    task = LabelledTask.prepare(Classes, config, 5, tmp_path, True)
    product = task.product(task.build(), torch.device("cpu"))
    assert not any(types.any() for _, types in task.train)
    evaluated = task.test(product)
    assert evaluated.sources == [pair.source for pair in task.corpus.test]
    wanted = [one.label for one in product.classify(evaluated.sources)]
    assert evaluated.outputs == wanted
    (ids, _), (used, _) = task.train[0], product.tokenizer.encode_all([(task.corpus.train[0].source,)])[0]
    assert ids.tolist() == used.tolist()
    assert set(task.baselines(evaluated)) == {"ridge on words", "the commonest class"}


def test_long_texts_are_cut_counted_and_keep_their_end(tmp_path: Path) -> None:
    task = make_task(tmp_path, max_tokens=5)
    assert max(len(ids) for ids, _ in task.train) == 5
    assert {int(ids[-1]) for ids, _ in task.train} == {task.tokenizer.inner.token_to_id("</s>")}
    assert any("training texts over 5 tokens the beginning is read" in note for note in task.notes)


def test_a_public_encoder_is_gone_on_from(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    write_encoder(tmp_path / "encoder")
    table = [
        (" ".join(random.Random(n).choices("abcdefg", k=5)) + f" {'a' if n % 2 else 'b'}", str(n % 2))
        for n in range(200)
    ]
    task = make_task(tmp_path, Classes, table, init=str(tmp_path / "encoder"), max_tokens=12)
    _, theirs, _ = read_folder(tmp_path / "encoder")
    model = task.build()
    for name, value in theirs.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], value.float()), name
    with pytest.raises(ConfigError, match=r"data\.max_tokens is 500, the encoder reads"):
        make_task(tmp_path, Classes, table, init=str(tmp_path / "encoder"), max_tokens=500)
    task = make_task(tmp_path, Classes, table, init=str(tmp_path / "encoder"), max_tokens=12, dropout=0.3)
    assert {m.p for m in task.build().encoder.modules() if isinstance(m, torch.nn.Dropout)} == {0.3}


def test_ridge_on_words_is_that_of_the_library() -> None:
    pytest.importorskip("sklearn")
    from sklearn.linear_model import Ridge

    texts = [text for text, _ in rows()]
    targets_BO = torch.tensor([[float(len(text)), float(text.count("a"))] for text in texts], dtype=torch.float64)
    bag = BagOfWords.fit(texts[:200], targets_BO[:200], texts[200:], targets_BO[200:])
    x = bag._rows(texts).to_dense().numpy()
    assert np.allclose((x**2).sum(1), 1)
    mean = targets_BO[:200].mean(0).numpy()
    tried = {}
    for penalty in (0.1, 0.3, 1.0, 3.0, 10.0):
        ridge = Ridge(penalty, fit_intercept=False).fit(x[:200], targets_BO[:200].numpy() - mean)
        tried[penalty] = ridge.predict(x) + mean
    errors = {p: ((y[200:] - targets_BO[200:].numpy()) ** 2).mean() for p, y in tried.items()}
    assert np.allclose(bag(texts).numpy(), tried[min(errors, key=errors.get)], atol=1e-6)


@pytest.mark.parametrize("order", ["sorted", "in turn"])
def test_ridge_on_words_is_fit_on_texts_of_all_classes(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = random.Random(5)
    words = [GOOD, BAD, ["green", "red", "blue", "grey"], ["one", "two", "three", "four"]]
    texts = [(" ".join(draws.choices(words[n], k=3)), n) for n in [*range(4)] * 100]
    if order == "sorted":
        texts.sort(key=lambda one: one[1])
    targets_BO = torch.nn.functional.one_hot(torch.tensor([n for _, n in texts]), 4).double()
    monkeypatch.setattr(BagOfWords, "MOST_TEXTS", 100)
    bag = BagOfWords.fit([text for text, _ in texts], targets_BO, [text for text, _ in texts], targets_BO)
    right = bag([text for text, _ in texts]).argmax(-1) == targets_BO.argmax(-1)
    assert right.all()
    again = BagOfWords.fit([text for text, _ in texts], targets_BO, [text for text, _ in texts], targets_BO)
    assert torch.equal(again.weight_VO, bag.weight_VO)


@pytest.mark.slow
@pytest.mark.parametrize("goals", ["classify", "regress"])
def test_a_run_learns_what_words_alone_do_not_tell_and_can_be_used(goals: str, tmp_path: Path) -> None:
    path = tmp_path / "texts.tsv"
    names = {"good": "good", "bad": "bad"} if goals == "classify" else {"good": "1.5", "bad": "-2"}
    path.write_text("".join(f"{text}\t{names[label]}\n" for text, label in rows(900)))
    values = recipe.with_data(recipe.read(goals), str(path))
    values |= {"init": "", "model": {**TINY, "dropout": 0.0, "attention_dropout": 0.0}, "batch_tokens": 256}
    values |= {"tokenizer": {"kind": "whitespace", "vocab_size": 300}}
    values["training"] = {
        "max_steps": 250,
        "learning_rate": 0.01,
        "validate_every_steps": 50,
        "warmup_steps": 5,
        "schedule": "linear",
    }
    result = run.run(recipe.resolve(values), tmp_path / "run", device="cpu", quiet=True)
    metric = {"classify": "accuracy", "regress": "pearson"}[goals]
    assert result.metric == metric
    assert result.scores[metric] > 0.95
    simple = {"classify": "the commonest class", "regress": "the mean"}[goals]
    assert set(result.scores["baselines"]) == {"ridge on words", simple}
    loaded = regard.load(tmp_path / "run")
    assert isinstance(loaded, Labeller)
    texts = ["a wonderful and warm film 3", "a not wonderful and warm film 3", "a not dull and slow film 3"]
    found = [one.label for one in loaded.classify(texts)]
    if goals == "classify":
        assert found == ["good", "bad", "good"]
        assert loaded.classify(texts)[0].probabilities["good"] > 0.5
        assert sum(loaded.classify(texts)[0].probabilities.values()) == pytest.approx(1)
    else:
        assert [float(one) > 0 for one in found] == [True, False, True]
    assert [one.label for text in texts for one in loaded.classify([text])] == found
    with pytest.raises(ContextError, match=r"classify, text 8: \d+ tokens; the model reads 128"):
        loaded.classify(["a film " * 100], first=7)
    assert loaded.classify(["a film " * 100], truncate=True)
    again = partial(run.run, recipe.resolve(values), tmp_path / "run", device="cpu", quiet=True)
    assert again().scores[metric] == result.scores[metric]


def test_further_test_files_are_scored_beside_the_test_part(tmp_path: Path) -> None:
    table, names = rows(200), {"good": "gut", "bad": "schlecht"}
    (tmp_path / "texts.csv").write_text("text,mood\n" + "".join(f"{text},{names[label]}\n" for text, label in table))
    german = [("ein warmer Film", "gut"), ("ein kalter Film", "schlecht"), ("kein Film", "gut")]
    files = {"de": tmp_path / "de.tsv", "</td><b>": tmp_path / "odd.jsonl"}
    files["de"].write_text("mood\tid\ttext\n" + "".join(f"{label}\t7\t{text}\n" for text, label in german))
    files["</td><b>"].write_text(json.dumps({"text": "eh", "mood": "gut"}) + "\n")
    values = recipe.with_data(recipe.read("classify"), str(tmp_path / "texts.csv"), source="text", target="mood")
    values["data"]["also_test"] = {name: str(path) for name, path in files.items()}
    values |= {"init": "", "model": TINY, "tokenizer": {"kind": "whitespace", "vocab_size": 300}}
    values["training"] = {"max_steps": 4, "validate_every_steps": 2, "threads": 1}
    result = run.run(recipe.resolve(values), tmp_path / "run", device="cpu", quiet=True)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert list(scores["also_test"]) == list(files)
    of = scores["also_test"]["de"]
    found = [one.label for one in result.model.classify([text for text, _ in german])]
    assert of["accuracy"] == pytest.approx(sum(a == b for a, (_, b) in zip(found, german, strict=True)) / 3)
    assert of["inputs"] == 3
    assert of["signatures"]["accuracy"] == "accuracy|n:3|classes:2|version:regard-1|max_tokens:128|avg:1|seed:1"
    commonest = max(names, key=[label for _, label in table].count)
    assert of["baselines"]["the commonest class"]["accuracy"] in (1 / 3, 2 / 3)
    assert (of["baselines"]["the commonest class"]["accuracy"] == 2 / 3) == (commonest == "good")
    assert set(of["baselines"]) == set(scores["baselines"])
    lines = [json.loads(line) for line in (tmp_path / "run" / "outputs.jsonl").read_text().splitlines()]
    assert [(one["source"], one["output"]) for one in lines if one.get("test") == "de"] == [
        (text, label) for (text, _), label in zip(german, found, strict=True)
    ]
    assert sum("test" not in one for one in lines) == 10
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<h2>Further test sets</h2>" in page
    assert f"<td>de</td><td>3</td><td>{100 * of['accuracy']:.2f} %</td>" in page
    assert "<td>&lt;/td&gt;&lt;b&gt;</td><td>1</td>" in page


def test_further_test_files_have_the_labels_of_training(tmp_path: Path) -> None:
    path = tmp_path / "de.tsv"
    path.write_text("ein Film\tgood\nkein Film\tmeh\n")
    make_task(tmp_path)
    plain = read_labelled(LabelData(str(tmp_path / "texts.tsv")), 5)
    config = LabelledConfig(LabelData(str(tmp_path / "texts.tsv"), also_test={"de": str(path)}), model=TINY)
    with pytest.raises(DataError, match=r"test set de, line 2: the class 'meh' is not in the training part"):
        LabelledTask.prepare(Classes, config, 5, tmp_path, True)
    path.write_text("ein Film\tgood\n")
    assert read_labelled(config.data, 5).digest() != plain.digest()
    for wrong in ({"": "x.tsv"}, {"de": ""}, {"de": 3}):
        with pytest.raises(ConfigError, match=r"data: also_test has .*; write NAME: FILE"):
            LabelData("x.tsv", also_test=wrong)  # type: ignore[arg-type]


def test_what_is_no_number_in_a_test_file_is_named_before_training(tmp_path: Path) -> None:
    table = [(text, "3.5" if label == "good" else "-1") for text, label in rows()]
    (tmp_path / "train.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in table))
    (tmp_path / "test.tsv").write_text("a film\t1\nno film\thigh\n")
    data = LabelData(str(tmp_path / "train.tsv"), test=str(tmp_path / "test.tsv"))
    with pytest.raises(DataError, match="line 2: 'high' is no number"):
        LabelledTask.prepare(Numbers, LabelledConfig(data, model=TINY), 5, tmp_path, True)
