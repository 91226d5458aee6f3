"""Tagging words: named entities, parts of speech. A word's tag is read from its first token.

Paper: Devlin et al. 2019, §5.3.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention import Segments
from regard.data import Pair
from regard.data.batching import Order, like_lengths
from regard.errors import DataError
from regard.metrics.labels import marks_spans, tagging
from regard.metrics.measure import Measure
from regard.models.bert import Bert
from regard.models.labelled import Tagged
from regard.tasks.corpus import Corpus, PairData, read_corpus
from regard.tasks.encoders import LabelTokenizerConfig, start
from regard.tasks.labeller import TextPairs
from regard.tasks.tagger import OUTSIDE, Tagger, cut_words, encode_words
from regard.tasks.task import Batch, Evaluated, Loss, Task, check_counts, check_smoothing, cross_entropy, evaluating


@dataclass(frozen=True)
class TaggedConfig:
    """Settings of the task.

    Attributes:
        data: Where sentences come from: .conll files, or pairs of words (source) and as many tags (target).
        init: Where the encoder's weights come from: a public folder, or ``catalogue:NAME`` for weights inside a
            package; empty starts from nothing.
        tokenizer: How texts become tokens, where the model starts from nothing.
        model: ``family`` and its settings, likewise.
        dropout: Of the encoder; below 0 as its maker set it.
        batch_tokens: Tokens of a micro-batch at most.
        label_smoothing: ε of label smoothing.
    """

    data: PairData
    init: str = ""
    tokenizer: LabelTokenizerConfig = field(default_factory=LabelTokenizerConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"family": "bert"})
    dropout: float = -1.0
    batch_tokens: int = 1024
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range.
        """
        check_counts(batch_tokens=self.batch_tokens, data__max_tokens=self.data.max_tokens)
        check_smoothing(self.label_smoothing)


@dataclass(frozen=True)
class TagBatch(Batch):
    """Sentences and the tags of their words.

    Attributes:
        tokens_N: int64, tokens of all sentences.
        rows_W: int64, the row of each word's first token.
        labels_W: int64, its tag.
        segments: Which tokens belong together.
    """

    tokens_N: Tensor
    rows_W: Tensor
    labels_W: Tensor
    segments: Segments


class TaggedTask(Task):
    """Training on tagged sentences; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        corpus: The data.
        tokenizer: Of the encoder.
        encoder: Makes the encoder.
        seed: Of the order of batches.

    Raises:
        DataError: A sentence has more or fewer tags than words.
    """

    higher_is_better = True
    unit = "word"

    def __init__(
        self, config: TaggedConfig, corpus: Corpus, tokenizer: TextPairs, encoder: Callable[[], Bert], seed: int
    ) -> None:
        self.config, self.corpus, self.tokenizer, self._encoder = config, corpus, tokenizer, encoder
        self.data_notes, self.notes = corpus.notes, corpus.warnings()
        self.criterion: Callable[..., Loss] = cross_entropy
        self.words = {part: _words(pairs) for part, pairs in self._parts().items()}
        self.tags = {part: _tags(pairs, self.words[part]) for part, pairs in self._parts().items()}
        self.names = tuple(sorted({tag for tags in self.tags["training"] for tag in tags}))
        if not any(name != OUTSIDE for name in self.names):
            raise DataError(
                "no word has a tag", where=config.data.train, mend="tags are B-type, I-type and O, or parts of speech"
            )
        self.has_spans = marks_spans(self.names)
        self.monitor = "span_f1" if self.has_spans else "accuracy"
        self.rows = {part: self._encoded(part) for part in self.words}
        index = {name: place for place, name in enumerate(self.names)}
        # A tag that the training part lacks has no number: no loss is computed of it, and it counts as missed.
        self.labels = {
            part: [np.array([index.get(tag, -1) for tag in tags]) for tags in of] for part, of in self.tags.items()
        }
        self.order = Order([np.array([len(ids) for ids, _ in self.rows["training"]])], config.batch_tokens, seed)

    @staticmethod
    def prepare(config: TaggedConfig, seed: int, folder: Path, is_new: bool) -> TaggedTask:
        """Read and split the sentences.

        Args:
            config: The settings.
            seed: Of the split and of the order of batches.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.
        """
        corpus = read_corpus(config.data, seed, labelled=True)
        texts = (pair.source for pair in corpus.train)
        kept = None if is_new else folder / "tokenizer.json"
        most = config.data.max_tokens
        begin = start(config.init, most, config.dropout, config.model, config.tokenizer, texts, kept)
        return TaggedTask(config, corpus, begin.tokenizer, begin.encoder, seed)

    @property
    def counts(self) -> str:
        """What is trained on, in numbers."""
        c = self.corpus
        sentences = f"{len(c.train):,} training, {len(c.dev):,} development, {len(c.test):,} test sentences"
        return f"{sentences}; {len(self.names)} tags; {self.tokenizer.vocab_size:,} tokens in the vocabulary"

    @property
    def digest(self) -> str:
        """Hash of all words and tags."""
        return self.corpus.digest()

    def build(self) -> Tagged:
        """Build the model."""
        return Tagged(self._encoder(), len(self.names))

    def tokenizers(self) -> dict[str, Any]:
        """Give the tokenizer by the name of its file."""
        return {"tokenizer.json": self.tokenizer}

    def batch(self, index: int) -> TagBatch:
        """Make a micro-batch, a pure function of (seed, index)."""
        return self._batch("training", self.order.at(index))

    def name_batch(self, index: int) -> str:
        """Say which lines of the training data a micro-batch holds."""
        return self.corpus.name_lines(self.order.at(index).tolist())

    def count(self, batch: TagBatch) -> int:
        """Count the words."""
        return batch.labels_W.shape[0]

    def tokens(self, batch: TagBatch) -> int:
        """Count the tokens."""
        return batch.tokens_N.shape[0]

    def loss(self, model: Tagged, batch: TagBatch) -> Loss:
        """Compute the cross-entropy of the words' tags, summed."""
        outputs_NO = model(batch.tokens_N, batch.segments)
        return self.criterion(outputs_NO[batch.rows_W], batch.labels_W, self.config.label_smoothing)

    def product(self, model: Tagged, device: torch.device) -> Tagger:
        """Put the model and its tokenizer together."""
        return Tagger(model, self.tokenizer, self.names, self.config.data.max_tokens, device)

    def validate(self, model: Tagged, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss per word, and tag it."""
        product, part = self.product(model, device), "development"
        total, count = 0.0, 0
        with evaluating(model), torch.inference_mode():
            lengths = np.array([len(ids) for ids, _ in self.rows[part]])
            for indices in like_lengths(lengths, self.config.batch_tokens):
                batch = self._batch(part, indices)
                total += float(self.loss(model, batch.to(device)).report)
                count += self.count(batch)
        measures = tagging(self._predicted(product, part), self.tags[part], self.has_spans)
        return {"loss": total / max(count, 1), **{name: one.value for name, one in measures.items()}}

    def test(self, product: Tagger) -> Evaluated:
        """Tag the test part."""
        predicted = self._predicted(product, "test")
        wanted = [[" ".join(tags)] for tags in self.tags["test"]]
        sources = [" ".join(words) for words in self.words["test"]]
        measures = tagging(predicted, self.tags["test"], self.has_spans)
        return Evaluated(measures, sources, wanted, [" ".join(tags) for tags in predicted])

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score a dictionary, each word's commonest tag in the training part, on the same sentences."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for words, tags in zip(self.words["training"], self.tags["training"], strict=True):
            for word, tag in zip(words, tags, strict=True):
                counts[word.casefold()][tag] += 1
        known = {word: of.most_common(1)[0][0] for word, of in counts.items()}
        looked_up = [[known.get(word.casefold(), OUTSIDE) for word in words] for words in self.words["test"]]
        return {"each word's commonest tag": tagging(looked_up, self.tags["test"], self.has_spans)}

    def signature(self) -> str:
        """Say what the scores depend on besides the model."""
        return f"|max_tokens:{self.config.data.max_tokens}"

    def _parts(self) -> dict[str, list[Pair]]:
        return {"training": self.corpus.train, "development": self.corpus.dev, "test": self.corpus.test}

    def _encoded(self, part: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """Tokenize sentences; of long ones the beginning is read, and they are counted."""
        most = self.config.data.max_tokens
        rows = encode_words(self.tokenizer, self.words[part])
        long = sum(len(ids) > most for ids, _ in rows)
        if long:
            self.notes.append(f"Of {long:,} {part} sentences over {most} tokens the beginning is read.")
        return [cut_words(row, most) for row in rows]

    def _batch(self, part: str, chosen: np.ndarray) -> TagBatch:
        some = [self.rows[part][n] for n in chosen]
        begins = np.cumsum([0, *(len(ids) for ids, _ in some)])
        there = [(self.rows[part][n][1] >= 0) & (self.labels[part][n] >= 0) for n in chosen]
        rows = [firsts[at] + begin for (_, firsts), at, begin in zip(some, there, begins[:-1], strict=True)]
        labels = [self.labels[part][n][at] for n, at in zip(chosen, there, strict=True)]
        tokens_N, rows_W, labels_W = (
            torch.from_numpy(np.concatenate(side).astype(np.int64)) for side in ([ids for ids, _ in some], rows, labels)
        )
        return TagBatch(tokens_N, rows_W, labels_W, Segments.ragged([len(ids) for ids, _ in some]))

    def _predicted(self, product: Tagger, part: str) -> list[list[str]]:
        places = product.places(self.rows[part])
        return [[self.names[place] if place >= 0 else OUTSIDE for place in of] for of in places]


def evaluate(product: Tagger, pairs: Sequence[Pair]) -> dict[str, Measure]:
    """Score a model on tagged sentences.

    Args:
        product: The model.
        pairs: Words, and as many tags.

    Returns:
        The measures of tags.

    Raises:
        DataError: A sentence has more tags than words, or fewer.
    """
    words = _words(pairs)
    return tagging(product.tag(words), _tags(pairs, words), marks_spans(product.names))


def _words(pairs: Sequence[Pair]) -> list[list[str]]:
    return [pair.source.split() for pair in pairs]


def _tags(pairs: Sequence[Pair], words: Sequence[Sequence[str]]) -> list[list[str]]:
    found = []
    for pair, of in zip(pairs, words, strict=True):
        tags = pair.target.split()
        if len(tags) != len(of):
            what = f"{len(tags)} tags for {len(of)} words"
            raise DataError(what, where=f"line {pair.line}", mend="write a tag a word, with spaces between")
        found.append(tags)
    return found
