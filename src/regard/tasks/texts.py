"""Texts without labels: how they are dealt to parts, become tokens, and are cut into the pieces that a model reads.

What language models share, whether they read from left to right or fill in what is masked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from torch import nn

from regard.data import catalogue
from regard.data.batching import cuts
from regard.data.documents import Between, read_documents
from regard.data.shards import Shard
from regard.data.tokenizer import MASK, Kind, Tokenizer
from regard.errors import ConfigError, DataError
from regard.metrics.language import entropy
from regard.models.bert import Bert
from regard.models.empty import without_memory
from regard.models.interface import LanguageModel
from regard.tasks.building import build
from regard.tasks.corpus import CATALOGUE
from regard.tasks.task import PREPARED
from regard.tasks.vocabulary import VocabularyTask

TOKENIZER_BYTES = 1 << 26  # of text that a tokenizer is fit on
SAMPLE_TOKENS = 48
SOME_TOKENS = 1000  # of a vocabulary that is not known yet

M = TypeVar("M", LanguageModel, Bert)


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


class Pieces:
    """Which pieces of which texts make up which batch: a pure function of (seed, index).

    In each epoch every text is cut into pieces from an offset of its own; pieces of like lengths make a batch, batches
    are shuffled. A model that predicts the next token is given ``context`` tokens and one more, the last of a piece
    being the first of the next; others are given pieces that share none, with tokens ``around`` each.

    Args:
        lengths: Tokens of each text.
        context: Tokens that are read at once.
        budget_tokens: Tokens of a batch at most.
        seed: Of the run.
        shared: Tokens that a piece shares with the next: 1, or 0.
        around: Tokens that are put around a piece; they count among those that are read.
    """

    def __init__(
        self, lengths: np.ndarray, context: int, budget_tokens: int, seed: int, shared: int = 1, around: int = 0
    ) -> None:
        self.lengths, self.budget_tokens, self.seed = lengths, budget_tokens, seed
        self.length, self.shared, self.around = context - around, shared, around
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
            offsets = draws.integers(0, self.length, len(self.lengths))
            steps = self.lengths - self.shared
            # A text that fits is left whole.
            offsets = np.where(steps <= self.length, 0, offsets)
            counts = -(-(steps - offsets) // self.length) + (offsets > 0)
            text = np.repeat(np.arange(len(steps)), counts)
            number = np.arange(len(text)) - np.repeat(counts.cumsum() - counts, counts)
            shift = np.where(offsets > 0, offsets - self.length, 0)[text]
            starts = np.maximum(number * self.length + shift, 0)
            ends = np.minimum((number + 1) * self.length + shift, steps[text]) + self.shared
            pieces = np.stack([text, starts, ends], 1)
            sizes = ends - starts - self.shared + self.around
            ranked = np.argsort(-sizes + 0.9 * draws.random(len(sizes)), kind="stable")
            batches = np.split(ranked, cuts(sizes[None, ranked], self.budget_tokens))
            self._batches = [pieces[batches[n]] for n in draws.permutation(len(batches))]
            self._epoch = epoch
        return self._batches


class TextTask(VocabularyTask):
    """What the tasks on texts share; see :class:`regard.tasks.task.Task`.

    Args:
        data: Where the texts come from.
        shards: The texts of each part as tokens.
        tokenizer: Fit on the training part.
        pieces: Which of the training part make up which batch.
        data_notes: Where the texts come from, in words.
    """

    monitor = "loss"
    unit = "token"
    higher_is_better = False

    def __init__(
        self, data: TextData, shards: dict[str, Shard], tokenizer: Tokenizer, pieces: Pieces, data_notes: list[str]
    ) -> None:
        self.data, self.shards, self.tokenizer, self.data_notes = data, shards, tokenizer, data_notes
        self.train, self.pieces = shards["train"], pieces
        self.notes: list[str] = []

    @property
    def counts(self) -> str:
        """What is trained on, in numbers."""
        sizes = {name: f"{len(s):,} {name} texts of {s.num_bytes:,} bytes" for name, s in self.shards.items()}
        return f"{', '.join(sizes.values())}; {self.tokenizer.vocab_size:,} tokens in the vocabulary"

    @property
    def digest(self) -> str:
        """Hash of all texts."""
        return hashlib.sha256("".join(shard.digest for shard in self.shards.values()).encode()).hexdigest()

    def tokenizers(self) -> dict[str, Tokenizer]:
        """Give the tokenizers by the names of their files."""
        return {"tokenizer.json": self.tokenizer}

    def name_batch(self, index: int) -> str:
        """Say which texts a micro-batch holds pieces of."""
        texts = sorted({int(text) + 1 for text in self.pieces.at(index)[:, 0]})
        shown = ", ".join(map(str, texts[:8])) + (", …" if len(texts) > 8 else "")
        return f"text{'s' if len(texts) > 1 else ''} {shown} of the training part of {self.data.train}"

    def signature(self) -> str:
        """Say what the scores depend on besides the model: their own signatures have it."""
        return ""

    def by_frequency(self, labels: np.ndarray, train: Shard) -> tuple[float, int]:
        """Predict tokens by how often each occurs in texts of the training part, special ones never.

        Args:
            labels: int64, the tokens.
            train: The texts.

        Returns:
            −Σ ln p of the tokens, and how many are the most frequent one.
        """
        counts = train.counts(self.tokenizer.vocab_size)
        counts[self.tokenizer.special_ids] = 0
        found = np.bincount(labels, minlength=len(counts))
        return entropy(found.tolist(), counts.tolist()), int(found[counts.argmax()])

    def show(self, rows: Sequence[np.ndarray]) -> list[str]:
        """Write beginnings of rows as a reader would: a mask takes the space before it along, which is put back."""
        texts = [self.tokenizer.decode(row[:SAMPLE_TOKENS].tolist()) for row in rows]
        return [text.replace(MASK, f" {MASK}").strip() for text in texts]


def build_for(vocab_size: int, context: int, model: dict[str, Any], default: str, kind: type[M], does: str) -> M:
    """Build a model that reads pieces of this length.

    Args:
        vocab_size: Tokens of the vocabulary.
        context: Tokens that are read at once.
        model: ``family`` and its settings.
        default: The family where none is named.
        kind: What the family has to be.
        does: What that means, for messages.

    Returns:
        The model, with fresh weights.

    Raises:
        ConfigError: A setting is wrong, or the model reads less.
    """
    built = build({"max_len": context, **model}, default, {"vocab_size": vocab_size}, kind, does, "model")
    if built.max_tokens is not None and built.max_tokens < context:
        what = f"context is {context}, the model has positions for {built.max_tokens}"
        raise ConfigError(what, mend="lower the one or raise model.max_len")
    return built


def check_model(build_model: Callable[[int], nn.Module]) -> None:
    """Refuse settings that make no model before texts are read, which may take long.

    Args:
        build_model: Makes the model for a number of tokens, which is known later only and which no mistake hangs on.

    Raises:
        ConfigError: A setting is wrong.
    """
    without_memory(build_model, SOME_TOKENS)


def prepare(
    data: TextData, how: TextTokenizerConfig, seed: int, folder: Path, is_new: bool, mask: bool = False
) -> tuple[dict[str, Shard], Tokenizer, list[str]]:
    """Read, deal and tokenize the texts; a resumed run finds them in its folder.

    Args:
        data: Where texts come from.
        how: How they become tokens.
        seed: Of the split.
        folder: The run's folder.
        is_new: Whether nothing of it is there yet.
        mask: The tokenizer has a token that hides others.

    Returns:
        The texts of each part as tokens, the tokenizer, and where they come from in words.

    Raises:
        DataError: A part has no text.
    """
    parts, notes = read_parts(data, seed)
    kept = folder / "tokenizer.json"
    tokenizer = Tokenizer.read(kept) if not is_new and kept.exists() else None
    if tokenizer is None:
        sample = up_to(parts["train"](), TOKENIZER_BYTES)
        tokenizer = Tokenizer.train(sample, how.kind, how.vocab_size, mask=mask)
    shards = {}
    for name, texts in parts.items():
        path = folder / PREPARED / name
        is_there = not is_new and Shard.there(path)
        shards[name] = Shard.read(path) if is_there else Shard.write(path, texts(), tokenizer)
        if not len(shards[name]):
            raise DataError(f"no text in the {name} part", where=data.train, mend="give more texts")
    return shards, tokenizer, notes


def read_parts(data: TextData, seed: int) -> tuple[dict[str, Callable[[], Iterator[str]]], list[str]]:
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


def up_to(texts: Iterable[str], num_bytes: int) -> list[str]:
    """Take texts from the beginning, so many bytes of them.

    Args:
        texts: The texts; no more are read than are taken.
        num_bytes: Bytes in UTF-8 at which it is enough.

    Returns:
        The texts, the last one whole.
    """
    taken: list[str] = []
    size = 0
    for text in texts:
        taken.append(text)
        size += len(text.encode())
        if size >= num_bytes:
            break
    return taken
