"""The parts of the data: given, split off, or the catalogue's own."""

from pathlib import Path

import pytest

from regard.data import Pair
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions
from regard.errors import ConfigError
from regard.models.rnn import RNN, RNNConfig
from regard.tasks.corpus import PairData, read_corpus
from regard.tasks.pairs import PairTokenizer
from regard.tasks.translator import Translator


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


def test_a_source_that_the_model_cannot_read_counts_as_an_empty_output() -> None:
    both = Tokenizer.train(["abcdefgh"], "characters", 300)
    model = RNN(RNNConfig(both.vocab_size, both.vocab_size, embed_dim=4, hidden_dim=4, attention_dim=4))
    translator = Translator(model, PairTokenizer(both, both), DecodeOptions(max_extra_tokens=1), max_tokens=5)
    evaluated = translator.evaluate([Pair("abcd", "x", 1), Pair("abcde", "y", 2), Pair("a", "z", 3)], on_long="empty")
    assert evaluated.outputs[1] == ""
    assert evaluated.sources == ["abcd", "abcde", "a"]
    assert evaluated.outputs[0] == translator.translate(["abcd"])[0]
