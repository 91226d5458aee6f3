"""Texts without labels: readers, and tokens mapped into memory."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from regard.data.documents import read_documents
from regard.data.shards import Shard
from regard.data.tokenizer import Tokenizer
from regard.errors import CheckpointError, ConfigError, DataError, FormatError

TEXTS = ["In the beginning\nwas the word.", "One line.", "Ünïcode – “quotes”."]


def test_texts_stand_between_blank_lines_on_lines_or_in_files(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("\n\n" + "\n \n\n".join(TEXTS) + "\n\n", "utf-8")
    assert list(read_documents(path)) == TEXTS
    assert list(read_documents(path, "line")) == [line for text in TEXTS for line in text.split("\n")]
    assert list(read_documents(path, "file")) == ["\n \n\n".join(TEXTS)]


def test_folders_are_read_in_the_order_of_their_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.txt").write_text(TEXTS[1])
    (tmp_path / "b" / "1.jsonl").write_text('{"text": "first"}\n\n{"text": "second", "other": 1}\n')
    (tmp_path / "a.txt").write_text(TEXTS[0])
    (tmp_path / "c.md").write_text("not read")
    assert list(read_documents(tmp_path)) == [TEXTS[0], "first", "second", TEXTS[1]]


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("a.txt", b" \n\n", DataError, ("no text", "a.txt")),
        ("a.txt", b"ab\n\xff", FormatError, ("line 2", "not UTF-8")),
        ("a.txt", b"a\0b", FormatError, ("line 1", "NUL")),
        ("a.csv", b"text\nabc", DataError, (".txt or .jsonl", "a.csv")),
        ("a.jsonl", b'{"text": "a"}\n{"text"', FormatError, ("line 2", "not JSON")),
        ("a.jsonl", b'{"txt": "a"}', FormatError, ("line 1", "no text under 'text'")),
        ("a.jsonl", b'{"text": "a"}\n{"text": "cut \\ud83d"}', FormatError, ("a.jsonl, line 2", "lone surrogate")),
        ("a.jsonl", b'{"text": "a\\u0000b"}', FormatError, ("a.jsonl, line 1", "NUL at character 2")),
        ("a.jsonl", b"[" * 100_000, FormatError, ("line 1", "not JSON")),
    ],
)
def test_bad_files_are_one_line(
    name: str, content: bytes, error: type[Exception], words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error) as caught:
        list(read_documents(tmp_path / name))
    for word in words:
        assert word in str(caught.value)


def test_no_file_no_folder_no_such_separation(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        list(read_documents(tmp_path / "none.txt"))
    with pytest.raises(DataError, match=r"no \.txt or \.jsonl file in it"):
        list(read_documents(tmp_path))
    with pytest.raises(ConfigError, match="choose from blank, line, file"):
        list(read_documents(tmp_path, "page"))  # type: ignore[arg-type]


def test_tokens_come_back_from_the_file(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TEXTS, "byte-bpe", 300)
    shard = Shard.write(tmp_path / "tokens" / "train", iter(TEXTS), tokenizer)
    assert isinstance(shard.tokens, np.memmap)
    assert shard.tokens.dtype == np.uint16
    assert len(shard) == 3
    for text, start, end in zip(TEXTS, shard.starts[:-1], shard.starts[1:], strict=True):
        tokens = shard.tokens[start:end].tolist()
        assert tokens == [tokenizer.start_id, *tokenizer.encode(text), tokenizer.end_id]
    assert shard.num_bytes == sum(len(text.encode()) for text in TEXTS)
    assert shard.num_words == sum(len(text.split()) for text in TEXTS)
    again = Shard.read(tmp_path / "tokens" / "train")
    assert np.array_equal(again.tokens, shard.tokens)
    assert again.digest == shard.digest
    other = Shard.write(tmp_path / "other", ["".join(TEXTS)], tokenizer)
    assert other.digest != shard.digest


def test_a_shard_knows_which_texts_its_tokens_give_back(tmp_path: Path) -> None:
    whole = Tokenizer.train(TEXTS, "byte-bpe", 300)
    words = Tokenizer.train(["One line. was"], "whitespace", 10)
    found = [Shard.write(tmp_path / str(n), TEXTS, one) for n, one in enumerate((whole, words))]
    assert [(one.num_lost, one.num_unknown) for one in found] == [(0, 0), (2, 8)]
    facts = tmp_path / "1.json"
    assert Shard.there(tmp_path / "1")
    facts.write_text(facts.read_text().replace("lost", "other"))  # of a version that did not ask
    assert not Shard.there(tmp_path / "1")


def test_tokens_are_counted_without_a_copy_of_all(tmp_path: Path) -> None:
    tokens = np.random.default_rng(3).integers(0, 900, (1 << 22) + 7, dtype=np.uint16)
    tokens.tofile(tmp_path / "t")
    shard = Shard(np.memmap(tmp_path / "t", np.uint16, "r"), np.array([0, len(tokens)]), 0, 0, "")
    tracemalloc.start()
    try:
        found = shard.counts(1000)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(tokens) * tokens.itemsize  # as int64 they are four times
    finally:
        tracemalloc.stop()
    assert found.tolist() == [*np.bincount(tokens).tolist(), *[0] * 100]


def test_shards_whose_names_differ_behind_a_dot_are_two(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TEXTS, "byte-bpe", 300)
    for name, texts in (("train-zh.Hans", TEXTS[:1]), ("train-zh.Hant", TEXTS[1:])):
        assert not Shard.there(tmp_path / name)
        Shard.write(tmp_path / name, texts, tokenizer)
    assert [len(Shard.read(tmp_path / name)) for name in ("train-zh.Hans", "train-zh.Hant")] == [1, 2]


def test_tokens_that_were_cut_short_are_told(tmp_path: Path) -> None:
    shard = Shard.write(tmp_path / "t", TEXTS, Tokenizer.train(TEXTS, "byte-bpe", 300))
    data = (tmp_path / "t.tokens").read_bytes()
    del shard
    (tmp_path / "t.tokens").write_bytes(data[:-2])
    with pytest.raises(CheckpointError, match="cut short"):
        Shard.read(tmp_path / "t")
