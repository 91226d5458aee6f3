"""Causal language modelling: pieces, loss, parts, and a whole run."""

import json
import lzma
import math
import random
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import regard
from regard.attention import Segments
from regard.data.shards import Shard
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, UsageError
from regard.tasks import language
from regard.tasks.generator import Generator
from regard.tasks.language import LanguageConfig, LanguageTask
from regard.tasks.task import Evaluated
from regard.tasks.texts import Pieces, TextData, TextTokenizerConfig
from regard.training import recipe, run

TINY = {"family": "gpt", "embed_dim": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.0, "attention_dropout": 0.0}


def texts(count: int = 60, seed: int = 3) -> list[str]:
    draws = random.Random(seed)
    words = [
        "the",
        "of",
        "and",
        "light",
        "dark",
        "day",
        "night",
        "water",
        "earth",
        "heaven",
        "said",
        "let",
        "there",
        "be",
    ]
    return [" ".join(draws.choices(words, k=draws.randint(2, 40))) for _ in range(count)]


def make_task(folder: Path, **changes: object) -> LanguageTask:
    path = folder / "book.txt"
    path.write_text("\n\n".join(texts()))
    values = {"tokenizer": TextTokenizerConfig("byte-bpe", 300), "model": TINY, "context": 16, "batch_tokens": 64}
    config = LanguageConfig(**{"data": TextData(str(path)), **values, **changes})  # type: ignore[arg-type]
    return LanguageTask.prepare(config, 5, folder, True)


@pytest.mark.parametrize("context", [1, 2, 7, 16, 500])
def test_each_epoch_predicts_every_token_once_in_batches_within_the_budget(context: int) -> None:
    lengths = np.array([2, 3, 40, 17, 16, 18, 1000, 8])
    pieces = Pieces(lengths, context, 1003, 7)
    seen = set()
    for epoch in range(3):
        batches = pieces.epoch(epoch)
        counts = [np.zeros(length, int) for length in lengths]
        for batch in batches:
            sizes = batch[:, 2] - batch[:, 1] - 1
            assert sizes.min() >= 1
            assert sizes.max() <= context
            assert sizes.sum() <= 1003
            for text, start, end in batch:
                counts[text][start + 1 : end] += 1
        assert all(count[0] == 0 and (count[1:] == 1).all() for count in counts)
        whole = {(int(text), int(end)) for batch in batches for text, start, end in batch if start == 0}
        assert all((n, length) in whole for n, length in enumerate(lengths) if length - 1 <= context)
        seen.add(tuple(map(tuple, np.concatenate(batches).tolist())))
    assert len(seen) == (1 if context == 1 else 3) or context == 1
    again = Pieces(lengths, context, 1003, 7)
    first = len(again.epoch(0))
    assert np.array_equal(again.at(first + 1), pieces.epoch(1)[1])  # whatever was asked for before


def test_the_loss_is_that_of_each_text_alone(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    model = task.build().double().eval()
    batch = task.batch(0)
    assert len(batch.segments) > 2
    assert torch.equal(
        batch.tokens_N[1:][batch.segments.positions_N()[1:] > 0],
        batch.labels_N[:-1][batch.segments.positions_N()[1:] > 0],
    )
    want = 0.0
    lengths = list(batch.segments.lengths)
    for tokens, labels in zip(batch.tokens_N.split(lengths), batch.labels_N.split(lengths), strict=True):
        for place, label in enumerate(labels.tolist()):
            read = tokens[: place + 1]
            logits = model.head(model(read, Segments.ragged([len(read)])))[-1]
            want -= float(logits.detach().log_softmax(-1)[label])
    assert float(task.loss(model, batch).report) == pytest.approx(want, rel=1e-6)
    assert task.count(batch) == task.tokens(batch) == len(batch.labels_N)
    assert "of the training part of" in task.name_batch(0)


def test_equal_texts_are_in_one_part_and_a_resumed_run_reads_no_text(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    found = {name: decoded(task.tokenizer, shard) for name, shard in task.shards.items()}
    assert all(found.values())
    assert not set(found["train"]) & set(found["test"])
    assert not set(found["train"]) & set(found["dev"])
    assert sorted(chain(*found.values())) == sorted(texts())
    tokens = tmp_path / "tokens" / "train.tokens"
    before = tokens.stat().st_mtime_ns
    again = LanguageTask.prepare(task.config, 5, tmp_path, True)
    assert again.digest == task.digest
    assert LanguageTask.prepare(task.config, 6, tmp_path, True).digest != task.digest  # another split
    task.tokenizer.inner.save(str(tmp_path / "tokenizer.json"))
    before = tokens.stat().st_mtime_ns
    LanguageTask.prepare(task.config, 6, tmp_path, False)
    assert tokens.stat().st_mtime_ns == before


def decoded(tokenizer: Tokenizer, shard: Shard) -> list[str]:
    ends = zip(shard.starts[:-1], shard.starts[1:], strict=True)
    return [tokenizer.decode(shard.tokens[a:b].tolist()) for a, b in ends]


@pytest.mark.parametrize(
    ("context", "letters", "samples"), [(1, "ab", 0), (2, "ab", 0), (3, "ab", 3), (6, "жд", 0), (7, "жд", 3)]
)
def test_samples_without_room_are_left_out(context: int, letters: str, samples: int, tmp_path: Path) -> None:
    """Of three bytes the middle of a second letter is read again as the three of a replacement: 1 + 2 + 3 tokens."""
    (tmp_path / "test.txt").write_text("\n\n".join([letters * 4] * 3))
    data = TextData(str(tmp_path / "book.txt"), test=str(tmp_path / "test.txt"))
    task = make_task(tmp_path, data=data, context=context)
    evaluated = task.test(task.product(task.build(), torch.device("cpu")))
    assert evaluated.measures["bits_per_byte"].value > 0
    assert len(evaluated.sources) == len(evaluated.references) == len(evaluated.outputs) == samples


def test_xz_reads_the_texts_themselves_and_so_many_of_the_last_ones_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(tmp_path)
    train, test = (decoded(task.tokenizer, task.shards[part]) for part in ("train", "test"))

    def packed(*some: list[str]) -> int:
        return len(lzma.compress("".join("\n\n".join(part) for part in some).encode(), preset=9))

    def found(name: str) -> float:
        return task.baselines(Evaluated({}, [], [], []))[name]["bits_per_byte"].value

    size = len("\n\n".join(test).encode()) / 8
    assert found("xz -9 of the test part") == packed(test) / size
    assert found("xz -9 after the training part") == (packed(train, test) - packed(train)) / size
    monkeypatch.setattr(language, "KNOWN_BYTES", sum(len(text.encode()) + 2 for text in train[-3:]) - 5)
    want = (packed(train[-3:], test) - packed(train[-3:])) / size
    assert found("xz -9 after the training part (last 0 MiB)") == want


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "whitespace"])
def test_what_tokens_lose_flatters_no_score(kind: str, tmp_path: Path) -> None:
    """A model that knows few words foresees <unk> well: of the text that is no compression."""
    (tmp_path / "test.txt").write_text("\n\n".join(["the light of день", "night", "и ночь"]))
    data = TextData(str(tmp_path / "book.txt"), test=str(tmp_path / "test.txt"))
    task = make_task(tmp_path, data=data, tokenizer=TextTokenizerConfig(kind, 80))  # type: ignore[arg-type]
    model, device = task.build(), torch.device("cpu")
    evaluated = task.test(task.product(model, device))
    assert list(evaluated.measures) == ["perplexity"]
    assert "lost texts:2|" in evaluated.measures["perplexity"].signature
    assert {name: [*of] for name, of in task.baselines(evaluated).items()} == {
        "tokens by their frequency": ["perplexity"]
    }
    (note,) = task.notes
    assert note.startswith("2 of 3 test texts are not what their tokens give back (")
    assert "0.0%" not in note
    assert "bits_per_byte" in task.validate(model, device)  # its words are all known
    product = task.product(model, device)
    assert list(product.evaluate(["the light of день"])) == ["perplexity"]
    assert list(product.evaluate(["the light of night"])) == ["bits_per_byte", "perplexity", "word_perplexity"]


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="context is 0"):
        LanguageConfig(TextData("a.txt"), context=0)
    with pytest.raises(ConfigError, match="context is 16, the model has positions for 8"):
        make_task(tmp_path, model={**TINY, "max_len": 8}).build()
    with pytest.raises(ConfigError, match="'rnn' does not go on from a text"):
        make_task(tmp_path, model={"family": "rnn"}).build()
    with pytest.raises(ConfigError, match="vocab_size follows from the data"):
        make_task(tmp_path, model={**TINY, "vocab_size": 7}).build()


@pytest.mark.slow
def test_a_run_trains_scores_and_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("\n\n".join(texts(300)))
    values = recipe.with_data(recipe.read("lm"), str(path))
    values |= {"model": TINY, "tokenizer": {"vocab_size": 300}, "context": 24, "batch_tokens": 512}
    values["training"] = {"max_steps": 60, "learning_rate": 0.01, "validate_every_steps": 30, "warmup_steps": 5}
    resolved = recipe.resolve(values)
    result = run.run(resolved, tmp_path / "run", device="cpu", quiet=True)
    assert result.metric == "bits_per_byte"
    scores = result.scores
    assert scores["bits_per_byte"] < scores["baselines"]["tokens by their frequency"]["bits_per_byte"]
    shards = {part: Shard.read(tmp_path / "run" / "tokens" / part) for part in ("train", "dev", "test")}
    assert 4 < len(shards["test"]) < 40
    assert 4 < len(shards["dev"]) < 40
    counts = np.bincount(shards["train"].tokens, minlength=300) + 1
    start = Tokenizer.read(tmp_path / "run" / "tokenizer.json").start_id
    nats = sum(-math.log(counts[t] / counts.sum()) for t in shards["test"].tokens.tolist() if t != start)
    frequency = scores["baselines"]["tokens by their frequency"]["bits_per_byte"]
    assert frequency == pytest.approx(nats / math.log(2) / shards["test"].num_bytes)
    assert set(scores["baselines"]) == {
        "xz -9 of the test part",
        "xz -9 after the training part",
        "tokens by their frequency",
    }
    assert scores["signatures"]["bits_per_byte"].endswith("|context:24|stride:12|version:regard-1|avg:1|seed:1")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "bits per byte" in page
    assert "xz -9 of the test part" in page
    loaded = regard.load(tmp_path / "run")
    assert isinstance(loaded, Generator)
    held_out = decoded_test(tmp_path / "run")
    nats = -sum(total for total, _ in loaded.score(held_out))
    size = sum(len(text.encode()) for text in held_out)
    assert nats / math.log(2) / size == pytest.approx(scores["bits_per_byte"], rel=1e-5)
    assert loaded.evaluate(held_out)["bits_per_byte"].value == pytest.approx(scores["bits_per_byte"], rel=1e-5)
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["task"] == "lm"
    with pytest.raises(UsageError, match="a model for the task 'lm'; use it with regard generate or regard score"):
        regard.evaluate(tmp_path / "run", "pairs.tsv")
    rows = [json.loads(line) for line in (tmp_path / "run" / "outputs.jsonl").read_text().splitlines()]
    assert rows[0]["output"]


def decoded_test(folder: Path) -> list[str]:
    return decoded(Tokenizer.read(folder / "tokenizer.json"), Shard.read(folder / "tokens" / "test"))
