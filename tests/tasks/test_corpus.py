"""The parts of the data: given, split off, or the catalogue's own."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from regard.data import Pair, catalogue, read_pairs
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions
from regard.errors import ConfigError, ContextError
from regard.models.rnn import RNN, RNNConfig
from regard.tasks.corpus import PairData, read_corpus
from regard.tasks.pairs import PairTokenizer, TokenizerConfig
from regard.tasks.registry import TASKS
from regard.tasks.translate import TranslateConfig, TranslateTask
from regard.tasks.translator import Translator
from regard.training import recipe


def write(path: Path, first: int, count: int) -> str:
    path.write_text("".join(f"s{n}\tt{n}\n" for n in range(first, first + count)))
    return str(path)


@pytest.mark.parametrize(("dev", "test"), [(False, False), (True, False), (False, True), (True, True)])
def test_what_is_not_given_is_split_off(tmp_path: Path, dev: bool, test: bool) -> None:
    files = {
        "train": write(tmp_path / "train.tsv", 0, 100),
        "dev": write(tmp_path / "dev.tsv", 1000, 7) if dev else None,
        "test": write(tmp_path / "test.tsv", 2000, 9) if test else None,
    }
    corpus = read_corpus(PairData(**files), seed=3)  # type: ignore[arg-type]
    assert len(corpus.dev) == (7 if dev else 5)
    assert len(corpus.test) == (9 if test else 5)
    # No pair is lost: what was not split off is trained on, and nothing is in two parts.
    assert len(corpus.train) == 100 - (0 if dev else 5) - (0 if test else 5)
    parts = [{pair.source for pair in part} for part in (corpus.train, corpus.dev, corpus.test)]
    assert len(set.union(*parts)) == sum(map(len, parts))
    note = " ".join(corpus.notes).rpartition(":")[2]
    assert ("development" in note, "test" in note) == (not dev, not test)


def test_the_catalogues_parts_are_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="own parts"):
        read_corpus(PairData("catalogue:cmudict", dev=write(tmp_path / "dev.tsv", 0, 5)), seed=1)


def test_extra_pairs_join_the_training_part_but_for_what_is_held_out(tmp_path: Path) -> None:
    extra = tmp_path / "extra.tsv"
    extra.write_text("new\tneu\nS1003!\tother\nother\t(t2004)\ns1\tt1\n")
    files = {"train": write(tmp_path / "train.tsv", 0, 4), "dev": write(tmp_path / "dev.tsv", 1000, 7)}
    data = PairData(**files, test=write(tmp_path / "test.tsv", 2000, 9), extra=(str(extra),), repeat=2)
    corpus = read_corpus(data, seed=1)
    own = [f"s{n}" for n in range(4)]
    assert [pair.source for pair in corpus.train] == [*own, *own, "new", "s1"]
    assert corpus.origins == ((files["train"], 4), (files["train"], 4), (str(extra), 2))
    assert any("2 more training pairs" in note and "2 left out" in note for note in corpus.notes)
    assert corpus.name_lines([9, 0, 4, 3]) == f"line 4 of {extra} and lines 1, 4 of {files['train']}"


def test_pairs_that_are_too_long_are_named_or_counted(tmp_path: Path) -> None:
    long = tmp_path / "long.tsv"
    long.write_text("short\tfine\n" + "x" * 12 + "\ty\n")
    files = {name: write(tmp_path / f"{name}.tsv", 1000 * n, 4) for n, name in enumerate(("train", "test"))}
    files["dev"] = str(tmp_path / "dev.tsv")
    Path(files["dev"]).write_text("a\tb\n" + "a" * 20 + "\tb\n" + "b" * 30 + "\tb\n")
    data = PairData(**files, extra=(str(long),), max_tokens=8)
    tokens = TokenizerConfig("characters", "characters", False, 300)
    corpus = read_corpus(data, 1)
    tokenizer = PairTokenizer.train(corpus.train, tokens)
    task = TranslateTask(TranslateConfig(data, tokens), corpus, tokenizer, 1)
    assert task.notes == [
        "1 training pairs over 8 tokens left out.",
        "2 development pairs over 8 tokens left out.",
    ]
    with pytest.raises(ContextError, match=f"line 2 of {re.escape(str(long))}: a pair has 13 and 2 tokens; at most 8"):
        TranslateTask(TranslateConfig(replace(data, on_long="error"), tokens), corpus, tokenizer, 1)


@pytest.mark.network
def test_extra_labelled_texts_may_have_the_labels_of_what_is_held_out(tmp_path: Path) -> None:
    for name, rows in (("train", 30), ("dev", 3), ("test", 3)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{name} {n}\t{'ab'[n % 2]}\n" for n in range(rows)))
    (tmp_path / "extra.tsv").write_text("new\ta\nDEV 1!\ta\nalso new\tb\n")
    files = {name: str(tmp_path / f"{name}.tsv") for name in ("train", "dev", "test")}
    corpus = read_corpus(PairData(**files, extra=(str(tmp_path / "extra.tsv"),)), 1, labelled=True)
    assert [pair.source for pair in corpus.train[30:]] == ["new", "also new"]


def test_extra_pairs_of_the_catalogue_are_its_training_part() -> None:
    data = PairData("catalogue:trans-de-en", extra=("catalogue:trans-de-en-phrases",))
    alone, corpus = read_corpus(PairData("catalogue:trans-de-en"), 1), read_corpus(data, 1)
    phrases = read_pairs(str(catalogue.get("trans-de-en-phrases") / "train.tsv"))
    assert (corpus.dev, corpus.test) == (alone.dev, alone.test)
    assert corpus.train[: len(alone.train)] == alone.train
    added = corpus.train[len(alone.train) :]
    assert 0.99 * len(phrases) < len(added) < len(phrases)
    assert set(added) < set(phrases)
    assert len(corpus.notes) == 3


def test_a_source_that_the_model_cannot_read_counts_as_an_empty_output() -> None:
    both = Tokenizer.train(["abcdefgh"], "characters", 300)
    model = RNN(RNNConfig(both.vocab_size, both.vocab_size, embed_dim=4, hidden_dim=4, attention_dim=4))
    translator = Translator(model, PairTokenizer(both, both), DecodeOptions(max_extra_tokens=1), max_tokens=5)
    evaluated = translator.evaluate([Pair("abcd", "x", 1), Pair("abcde", "y", 2), Pair("a", "z", 3)], on_long="empty")
    assert evaluated.outputs[1] == ""
    assert evaluated.sources == ["abcd", "abcde", "a"]
    assert evaluated.outputs[0] == translator.translate(["abcd"])[0]


SMALL = {"family": "gpt", "embed_dim": 16, "num_layers": 1, "num_heads": 2}


@pytest.mark.parametrize("name", ["translate", "instruct", "classify"])
def test_held_out_texts_that_training_has_are_counted_in_one_line(name: str, tmp_path: Path) -> None:
    labels = {n: f"t{n % 2}" for n in range(120)}
    for part, numbers in {"train": range(100), "dev": range(95, 105), "test": range(100, 104)}.items():
        (tmp_path / f"{part}.tsv").write_text("".join(f"s{n}\t{labels[n]}\n" for n in numbers))
    data = {part: str(tmp_path / f"{part}.tsv") for part in ("train", "dev", "test")}
    model = {"model": SMALL} if name == "instruct" else {}
    for changes, want in (
        ({}, ["5 of 10 development texts (50.0%) stand in the training part: scores say less of new texts."]),
        (
            {"test": data["train"]},
            [
                "5 of 10 development texts (50.0%) and 100 of 100 test texts (100.0%) stand in the training part: "
                "scores say less of new texts."
            ],
        ),
        ({"dev": data["test"]}, []),
    ):
        resolved = recipe.resolve({"task": name, "data": {**data, **changes}, **model})
        task = TASKS[name].prepare(resolved.settings, 1, tmp_path, True)
        assert [note for note in task.notes if "stand in the training part" in note] == want
