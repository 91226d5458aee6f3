"""Causal language modelling: predict each token of a text from those before it.

Loss = −Σ_t ln p(x_t | x_<t), over every token of a text behind its start token, its end included. Texts stand beside
one another in a batch and cannot see each other; what is longer than the context is cut, at other places in each epoch.

Paper: Radford et al. 2019, §2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention import Segments
from regard.data import catalogue
from regard.data.batching import cuts
from regard.data.documents import Between, read_documents
from regard.data.shards import Shard
from regard.data.tokenizer import Kind, Tokenizer
from regard.decoding import DecodeOptions
from regard.errors import ConfigError, DataError
from regard.metrics.language import compressed_bits_per_byte, entropy, likelihood
from regard.metrics.measure import Measure
from regard.models.interface import LanguageModel
from regard.tasks.building import build
from regard.tasks.corpus import CATALOGUE
from regard.tasks.generator import Generator
from regard.tasks.task import Evaluated, Loss, cross_entropy

TOKENIZER_BYTES = 1 << 26  # of text that a tokenizer is fit on
NUM_SAMPLES = 10
PROMPT_TOKENS = 24


@dataclass(frozen=True)
class TextData:
    """Where the texts come from.

    Attributes:
        train: A .txt or .jsonl file, a folder of them, or ``catalogue:NAME``.
        dev: Development texts; None deals some of ``train`` to it.
        test: Test texts; None deals others of ``train`` to it.
        between: What stands between two texts of a plain text file: a ``blank`` line, the end of a ``line``, or of the
            ``file``.
        key: Of the text in JSONL.
    """

    train: str
    dev: str | None = None
    test: str | None = None
    between: Between = "blank"
    key: str = "text"


@dataclass(frozen=True)
class TextTokenizerConfig:
    """How texts become tokens.

    Attributes:
        kind: What a token is.
        vocab_size: Tokens at most.
    """

    kind: Kind = "byte-bpe"
    vocab_size: int = 8000


@dataclass(frozen=True)
class LanguageConfig:
    """Settings of the task.

    Attributes:
        data: Where texts come from.
        tokenizer: How they become tokens.
        model: ``family`` and its settings; the vocabulary's size is filled in, and ``max_len`` where it is not said.
        context: Tokens that the model reads at once.
        batch_tokens: Tokens of a micro-batch at most.
        label_smoothing: ε of label smoothing.
        decoding: How texts go on.
    """

    data: TextData
    tokenizer: TextTokenizerConfig = field(default_factory=TextTokenizerConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"family": "gpt"})
    context: int = 512
    batch_tokens: int = 4096
    label_smoothing: float = 0.0
    decoding: DecodeOptions = field(
        default_factory=lambda: DecodeOptions(max_extra_tokens=100, sample=True, top_p=0.95, length_penalty=0.0)
    )

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range.
        """
        for name, value in {"context": self.context, "batch_tokens": self.batch_tokens}.items():
            if value < 1:
                raise ConfigError(f"{name} is {value}", mend="give at least 1")
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing is {self.label_smoothing}", mend="give a number in [0, 1)")


@dataclass(frozen=True)
class TextBatch:
    """Texts, or pieces of them: flat rows and their segments.

    Attributes:
        tokens_N: int64, what the model reads.
        labels_N: int64, the same one place ahead: what it predicts.
        segments: Which belong together.
    """

    tokens_N: Tensor
    labels_N: Tensor
    segments: Segments

    def to(self, device: torch.device) -> TextBatch:
        """Copy to a device."""
        tokens_N, labels_N = (t.to(device, non_blocking=True) for t in (self.tokens_N, self.labels_N))
        return TextBatch(tokens_N, labels_N, self.segments.to(device))


class Pieces:
    """Which pieces of which texts make up which batch: a pure function of (seed, index).

    In each epoch every text is cut into pieces of ``context`` tokens and one more, the last of a piece being the first
    of the next, from an offset of its own; pieces of like lengths make a batch, batches are shuffled.

    Args:
        lengths: Tokens of each text.
        context: Tokens that are read at once.
        budget_tokens: Tokens of a batch at most.
        seed: Of the run.
    """

    def __init__(self, lengths: np.ndarray, context: int, budget_tokens: int, seed: int) -> None:
        self.lengths, self.context, self.budget_tokens, self.seed = lengths, context, budget_tokens, seed
        self._starts = [0]
        self._lock = Lock()
        self._epoch = -1
        self._batches: list[np.ndarray] = []

    def at(self, index: int) -> np.ndarray:
        """Give the pieces of a batch.

        Args:
            index: Number of the batch since the start of training.

        Returns:
            (pieces, 3): text, first token, and the token behind the last.
        """
        with self._lock:
            while self._starts[-1] <= index:
                self._starts.append(self._starts[-1] + len(self.epoch(len(self._starts) - 1)))
            epoch = int(np.searchsorted(self._starts, index, "right")) - 1
            return self.epoch(epoch)[index - self._starts[epoch]]

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Draw the batches of an epoch.

        Args:
            epoch: Number of the pass over the texts, from 0.

        Returns:
            The pieces of each batch, in the order in which they are trained on.
        """
        if epoch != self._epoch:
            draws = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            offsets = draws.integers(0, self.context, len(self.lengths))
            steps = self.lengths - 1  # tokens to predict
            # A text that fits is left whole.
            offsets = np.where(steps <= self.context, 0, offsets)
            counts = -(-(steps - offsets) // self.context) + (offsets > 0)
            text = np.repeat(np.arange(len(steps)), counts)
            number = np.arange(len(text)) - np.repeat(counts.cumsum() - counts, counts)
            shift = np.where(offsets > 0, offsets - self.context, 0)[text]
            starts = np.maximum(number * self.context + shift, 0)
            ends = np.minimum((number + 1) * self.context + shift, steps[text]) + 1
            pieces = np.stack([text, starts, ends], 1)
            sizes = ends - starts - 1
            ranked = np.argsort(-sizes + 0.9 * draws.random(len(sizes)), kind="stable")
            batches = np.split(ranked, cuts(sizes[None, ranked], self.budget_tokens))
            self._batches = [pieces[batches[n]] for n in draws.permutation(len(batches))]
            self._epoch = epoch
        return self._batches


class LanguageTask:
    """Training on texts; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        shards: The texts of each part as tokens.
        tokenizer: Fit on the training part.
        seed: Of the order of batches.
        data_notes: Where the texts come from.
    """

    monitor = "loss"
    higher_is_better = False
    unit = "token"
    lengths: tuple[int, ...] = ()

    def __init__(
        self, config: LanguageConfig, shards: dict[str, Shard], tokenizer: Tokenizer, seed: int, data_notes: list[str]
    ) -> None:
        self.config, self.shards, self.tokenizer, self.data_notes = config, shards, tokenizer, data_notes
        self.train = shards["train"]
        self.pieces = Pieces(self.train.lengths, config.context, config.batch_tokens, seed)
        self.criterion: Callable[..., Loss] = cross_entropy
        self.notes: list[str] = []

    @staticmethod
    def prepare(config: LanguageConfig, seed: int, folder: Path, is_new: bool) -> LanguageTask:
        """Read, deal and tokenize the texts; a resumed run finds them in its folder.

        Args:
            config: The settings.
            seed: Of the split and of the order of batches.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.
        """
        parts, notes = _parts(config.data, seed)
        kept = folder / "tokenizer.json"
        tokenizer = Tokenizer.read(kept) if not is_new and kept.exists() else None
        if tokenizer is None:
            sample = _first(parts["train"](), TOKENIZER_BYTES)
            tokenizer = Tokenizer.train(sample, config.tokenizer.kind, config.tokenizer.vocab_size)
        shards = {}
        for name, texts in parts.items():
            path = folder / "tokens" / name
            is_there = not is_new and Shard.there(path)
            shards[name] = Shard.read(path) if is_there else Shard.write(path, texts(), tokenizer)
            if not len(shards[name]):
                raise DataError(f"no text in the {name} part", where=config.data.train, mend="give more texts")
        return LanguageTask(config, shards, tokenizer, seed, notes)

    @property
    def counts(self) -> str:
        """What is trained on, in numbers."""
        sizes = {name: f"{len(s):,} {name} texts of {s.num_bytes:,} bytes" for name, s in self.shards.items()}
        return f"{', '.join(sizes.values())}; {self.tokenizer.vocab_size:,} tokens in the vocabulary"

    @property
    def digest(self) -> str:
        """Hash of all texts."""
        return hashlib.sha256("".join(shard.digest for shard in self.shards.values()).encode()).hexdigest()

    def build(self) -> LanguageModel:
        """Build the model."""
        given: dict[str, Any] = {"vocab_size": self.tokenizer.vocab_size}
        values = {"max_len": self.config.context, **self.config.model}
        model = build(values, "gpt", given, LanguageModel, "go on from a text", "model")
        if model.max_tokens is not None and model.max_tokens < self.config.context:
            what = f"context is {self.config.context}, the model has positions for {model.max_tokens}"
            raise ConfigError(what, mend="lower the one or raise model.max_len")
        return model

    def tokenizers(self) -> dict[str, Any]:
        """Give the tokenizers by the names of their files."""
        return {"tokenizer.json": self.tokenizer}

    def batch(self, index: int) -> TextBatch:
        """Make a micro-batch, a pure function of (seed, index)."""
        tokens, starts = self.train.tokens, self.train.starts
        rows = [tokens[starts[t] + a : starts[t] + b].astype(np.int64) for t, a, b in self.pieces.at(index)]
        return TextBatch(
            torch.from_numpy(np.concatenate([row[:-1] for row in rows])),
            torch.from_numpy(np.concatenate([row[1:] for row in rows])),
            Segments.ragged([len(row) - 1 for row in rows]),
        )

    def name_batch(self, index: int) -> str:
        """Say which texts a micro-batch holds pieces of."""
        texts = sorted({int(text) + 1 for text in self.pieces.at(index)[:, 0]})
        shown = ", ".join(map(str, texts[:8])) + (", …" if len(texts) > 8 else "")
        return f"text{'s' if len(texts) > 1 else ''} {shown} of the training part of {self.config.data.train}"

    def count(self, batch: TextBatch) -> int:
        """Count the labels."""
        return batch.labels_N.shape[0]

    def tokens(self, batch: TextBatch) -> int:
        """Count the tokens that are read."""
        return batch.tokens_N.shape[0]

    def loss(self, model: LanguageModel, batch: TextBatch) -> Loss:
        """Compute the cross-entropy, summed."""
        hidden_ND = model(batch.tokens_N, batch.segments)
        return self.criterion(model.head(hidden_ND), batch.labels_N, self.config.label_smoothing)

    def product(self, model: LanguageModel, device: torch.device) -> Generator:
        """Put the model and its tokenizer together."""
        return Generator(model, self.tokenizer, self.config.decoding, self.config.context, device)

    def validate(self, model: LanguageModel, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss per token and bits per byte."""
        measures, nats, tokens = self._likelihood(self.product(model, device), "dev")
        return {"loss": nats / tokens, "bits_per_byte": measures["bits_per_byte"].value}

    def test(self, product: Generator) -> Evaluated:
        """Score the test part, and let the model go on from the beginnings of some of its texts."""
        measures, _, _ = self._likelihood(product, "test")
        shard = self.shards["test"]
        prompts: list[str] = []
        ends: list[list[str]] = []
        for number in range(min(NUM_SAMPLES, len(shard))):
            ids = shard.tokens[shard.starts[number] + 1 : shard.starts[number + 1] - 1]
            read = min(PROMPT_TOKENS, self.config.context // 2, len(ids) // 2)
            prompts.append(self.tokenizer.decode(ids[:read].tolist()))
            ends.append([self.tokenizer.decode(ids[read : read + 60].tolist())])
        outputs = [one.text for one in product.generate(prompts, on_full="cut")]
        return Evaluated(measures, prompts, ends, outputs)

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score xz -9 and how often each token occurs, on the same texts."""
        train, test = self.shards["train"], self.shards["test"]
        text, known = (_bytes(self.tokenizer, shard) for shard in (test, train))
        counts = np.bincount(train.tokens, minlength=self.tokenizer.vocab_size)
        inside = np.ones(len(test.tokens), bool)
        inside[test.starts[:-1]] = False  # starts are given
        predicted = test.tokens[inside]
        nats = entropy(predicted.tolist(), counts.tolist())
        unigram = likelihood(nats, len(predicted), test.num_words, test.num_bytes, "tokens by frequency")

        def packed(value: float, how: str) -> dict[str, Measure]:
            return {"bits_per_byte": Measure("bits_per_byte", value, f"bits_per_byte|{how}|version:regard-1")}

        return {
            "xz -9 of the test part": packed(compressed_bits_per_byte(text), "xz -9"),
            "xz -9 after the training part": packed(compressed_bits_per_byte(text, known), "xz -9, primed"),
            "tokens by their frequency": unigram,
        }

    def signature(self) -> str:
        """Say what the scores depend on besides the model: their own signatures have it."""
        return ""

    def _likelihood(self, product: Generator, part: str) -> tuple[dict[str, Measure], float, int]:
        shard = self.shards[part]
        rows = [shard.tokens[a:b] for a, b in zip(shard.starts[:-1], shard.starts[1:], strict=True)]
        scored = product.score_tokens(rows, batch_tokens=self.config.batch_tokens)
        nats, tokens = -sum(total for total, _ in scored), sum(count for _, count in scored)
        measures = likelihood(nats, tokens, shard.num_words, shard.num_bytes, product.signature())
        return measures, nats, tokens


def _bytes(tokenizer: Tokenizer, shard: Shard) -> bytes:
    """Give the texts of a part back, a blank line between two."""
    pairs = zip(shard.starts[:-1] + 1, shard.starts[1:] - 1, strict=True)
    return "\n\n".join(tokenizer.decode(shard.tokens[a:b].tolist()) for a, b in pairs).encode()


def _parts(data: TextData, seed: int) -> tuple[dict[str, Callable[[], Iterator[str]]], list[str]]:
    """Say how to read each part, as often as needed, and where the texts come from."""
    if data.train.startswith(CATALOGUE):
        if data.dev or data.test:
            mend = "leave dev and test out, or give files"
            raise ConfigError("data of the catalogue come with their own parts", where=data.train, mend=mend)
        entry = catalogue.ENTRIES.get(data.train.removeprefix(CATALOGUE))
        folder = catalogue.get(data.train.removeprefix(CATALOGUE))
        if entry is None or entry.suffix != ".txt":
            raise ConfigError("these are pairs, not texts", where=data.train, mend="see regard data list")
        files = {part: folder / f"{part}.txt" for part in catalogue.PARTS}
        notes = [f"{entry.description}: {entry.notice}"]
        return {part: lambda file=file: read_documents(file) for part, file in files.items()}, notes  # type: ignore[misc]

    def whole(path: str) -> Callable[[], Iterator[str]]:
        return lambda: read_documents(path, data.between, data.key)

    def dealt(part: str) -> Callable[[], Iterator[str]]:
        return lambda: (text for text in read_documents(data.train, data.between, data.key) if deal(text) == part)

    missing = [part for part, path in (("dev", data.dev), ("test", data.test)) if path is None]
    if not missing:
        return {"train": whole(data.train), "dev": whole(str(data.dev)), "test": whole(str(data.test))}, []

    def deal(text: str) -> str:
        """Equal texts go to one part, wherever they stand: a hash decides, a twentieth for each missing part."""
        digest = hashlib.blake2b(f"{seed}\n{text}".encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") * 20 >> 64
        return missing[place] if place < len(missing) else "train"

    parts = {"train": dealt("train"), "dev": dealt("dev"), "test": dealt("test")}
    for part, path in (("dev", data.dev), ("test", data.test)):
        if path is not None:
            parts[part] = whole(path)
    names = " and ".join({"dev": "development", "test": "test"}[part] for part in missing)
    return parts, [f"Dealt from {data.train} by a hash of each text, seed {seed}: {names} part."]


def _first(texts: Iterable[str], num_bytes: int) -> list[str]:
    """Take texts from the beginning, so many bytes of them."""
    taken: list[str] = []
    size = 0
    for text in texts:
        taken.append(text)
        size += len(text.encode())
        if size >= num_bytes:
            break
    return taken
