"""Labelling whole texts, or pairs of texts: classes and numbers, from a public encoder or from nothing.

Paper: Devlin et al. 2019, §4.1: the encoder goes on being trained with one new layer on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention import Segments
from regard.data import Pair
from regard.data.batching import Order
from regard.data.benchmarks import layout
from regard.errors import ConfigError
from regard.layers.pooling import Pooling
from regard.metrics.labels import positive_f1
from regard.metrics.measure import Measure
from regard.models.bert import Bert
from regard.models.labelled import Labelled
from regard.tasks.baselines import BagOfWords, SharedWords
from regard.tasks.corpus import Corpus
from regard.tasks.encoders import LabelTokenizerConfig, start
from regard.tasks.labeller import Classes, Labeller, Numbers, TextPairs, cut
from regard.tasks.masking import chance
from regard.tasks.published import LabelData, read_labelled
from regard.tasks.task import Batch, Evaluated, Loss, Task, check_counts, check_smoothing


@dataclass(frozen=True)
class LabelledConfig:
    """Settings of the task.

    Attributes:
        data: Where texts (source) and labels (target) come from.
        init: Where the encoder's weights come from: a public folder, or ``catalogue:NAME`` for weights inside a
            package; empty starts from nothing.
        tokenizer: How texts become tokens, where the model starts from nothing.
        model: ``family`` and its settings, likewise.
        languages: Of the texts, ``en``, or of both texts of each pair, ``en,de``; for an encoder that is told them.
        also_languages: Likewise of further test sets, by their names; those that are not named are as ``languages``.
        draw_languages: In training every text is told a language drawn at random, so that no class hangs on it: for
            tests in languages that training has not.
        pooling: How a text's vectors become one.
        dropout: Of the encoder; below 0 as its maker set it.
        batch_tokens: Tokens of a micro-batch at most.
        label_smoothing: ε of label smoothing; classes alone.
        positive: The class whose F1 is given besides; empty for none, or for the benchmark's.
        monitor: The metric that chooses checkpoints; empty for the benchmark's first official one, or accuracy, or
            the Pearson correlation.
    """

    data: LabelData
    init: str = ""
    tokenizer: LabelTokenizerConfig = field(default_factory=LabelTokenizerConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"family": "bert"})
    languages: str = ""
    also_languages: dict[str, str] = field(default_factory=dict)
    draw_languages: bool = False
    pooling: Pooling = "mean"
    dropout: float = -1.0
    batch_tokens: int = 1024
    label_smoothing: float = 0.0
    positive: str = ""
    monitor: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range.
        """
        check_counts(batch_tokens=self.batch_tokens, data__max_tokens=self.data.max_tokens)
        check_smoothing(self.label_smoothing)
        if self.dropout >= 1:
            raise ConfigError(f"dropout is {self.dropout}", mend="give a number below 1")


@dataclass(frozen=True)
class LabelBatch(Batch):
    """Texts and their targets.

    Attributes:
        tokens_N: int64, tokens of all texts.
        types_N: int64, of which of two texts each is.
        targets_B: A class or a number for each text.
        segments: Which belong together.
        languages_B2: int64, the languages of the two texts; None where none is told.
    """

    tokens_N: Tensor
    types_N: Tensor
    targets_B: Tensor
    segments: Segments
    languages_B2: Tensor | None = None


class LabelledTask(Task):
    """Training on labelled texts; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        corpus: The data.
        tokenizer: Of the encoder.
        goal: What labels are.
        encoder: Makes the encoder.
        seed: Of the order of batches.
    """

    higher_is_better = True
    unit = "text"

    def __init__(
        self,
        config: LabelledConfig,
        corpus: Corpus,
        tokenizer: TextPairs,
        goal: Classes | Numbers,
        encoder: Callable[[], Bert],
        seed: int,
    ) -> None:
        self.config, self.corpus, self.tokenizer, self.goal = config, corpus, tokenizer, goal
        self._encoder, self.data_notes = encoder, corpus.notes
        self.positive, self.monitor = _metrics(config, goal)
        self.languages: tuple[int, int] | None = None
        self.num_languages, self.seed = 0, seed
        self.criterion: Callable[..., Loss] = goal.loss
        self.notes = corpus.warnings()
        self.train = self._rows(corpus.train, "training")
        self.dev, self.test_rows = self._rows(corpus.dev, "development"), self._rows(corpus.test, "test")
        self.other_rows = {name: self._rows(pairs, f"{name} test") for name, pairs in corpus.others.items()}
        if isinstance(
            goal, Numbers
        ):  # a class that training lacks counts as missed, but what is no number has no score
            goal.targets(*self._labels(corpus.test))
        for name, pairs in corpus.others.items():  # a label that training lacks is another file's mistake, found now
            goal.targets([pair.target for pair in pairs], [f"test set {name}, line {pair.line}" for pair in pairs])
        self.targets = goal.targets(*self._labels(corpus.train))
        self.dev_targets = goal.targets(*self._labels(corpus.dev))
        self.order = Order([np.array([len(ids) for ids, _ in self.train])], config.batch_tokens, seed)

    @staticmethod
    def prepare(
        goals: type[Classes] | type[Numbers], config: LabelledConfig, seed: int, folder: Path, is_new: bool
    ) -> LabelledTask:
        """Read and split the texts, and find out what labels are.

        Args:
            goals: Classes or numbers.
            config: The settings.
            seed: Of the split and of the order of batches.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.
        """
        if config.data.layout and (task := layout(config.data.layout).task) != goals.task:
            raise ConfigError(f"{config.data.layout} is no task of {goals.task}", mend=f"regard train {task}")
        corpus = read_labelled(config.data, seed, goals is Classes)
        where = [f"{corpus.origins[0][0]}, line {pair.line}" for pair in corpus.train]
        goal = goals.fit([pair.target for pair in corpus.train], where)
        texts = (text for pair in corpus.train for text in pair.texts)
        kept = None if is_new else folder / "tokenizer.json"
        most = config.data.max_tokens
        begin = start(config.init, most, config.dropout, config.model, config.tokenizer, texts, kept)
        return LabelledTask(config, corpus, begin.tokenizer, goal, begin.encoder, seed)

    @property
    def counts(self) -> str:
        """What is trained on, in numbers."""
        c = self.corpus
        texts = f"{len(c.train):,} training, {len(c.dev):,} development, {len(c.test):,} test texts"
        kinds = f"; {self.goal.num_outputs} classes" if isinstance(self.goal, Classes) else ""
        return f"{texts}{kinds}; {self.tokenizer.vocab_size:,} tokens in the vocabulary"

    @property
    def digest(self) -> str:
        """Hash of all texts and labels."""
        return self.corpus.digest()

    def build(self) -> Labelled:
        """Build the model."""
        encoder = self._encoder()
        self.languages = encoder.number_languages(self.config.languages)
        self.num_languages = encoder.config.num_languages
        if self.config.init and encoder.language_embed is not None:
            # What is learnt in one language has to hold in others: a vector that it alone has must not learn it.
            encoder.language_embed.requires_grad_(False)
        for name, languages in self.config.also_languages.items():  # a mistake is told before training, not after it
            if name not in self.corpus.others:
                raise ConfigError(f"also_languages names {name!r}, no test set", mend="name one of data.also_test")
            encoder.number_languages(languages)
        return Labelled(encoder, self.goal.num_outputs, self.config.pooling)

    def tokenizers(self) -> dict[str, Any]:
        """Give the tokenizer by the name of its file."""
        return {"tokenizer.json": self.tokenizer}

    def batch(self, index: int) -> LabelBatch:
        """Make a micro-batch, a pure function of (seed, index)."""
        chosen = self.order.at(index)
        some = [self.train[n] for n in chosen]
        tokens_N, types_N = (torch.from_numpy(np.concatenate(side)) for side in zip(*some, strict=True))
        segments = Segments.ragged([len(ids) for ids, _ in some])
        two = None if self.languages is None else torch.tensor([self.languages] * len(some))
        if two is not None and self.config.draw_languages:
            two = torch.from_numpy(chance(self.seed, index).integers(0, self.num_languages, two.shape))
        return LabelBatch(tokens_N, types_N, self.targets[chosen], segments, two)

    def name_batch(self, index: int) -> str:
        """Say which lines of the training data a micro-batch holds."""
        return self.corpus.name_lines(self.order.at(index).tolist())

    def count(self, batch: LabelBatch) -> int:
        """Count the texts."""
        return len(batch.segments)

    def tokens(self, batch: LabelBatch) -> int:
        """Count the tokens."""
        return batch.tokens_N.shape[0]

    def loss(self, model: Labelled, batch: LabelBatch) -> Loss:
        """Compute the loss, summed over texts."""
        outputs_BO = model(batch.tokens_N, batch.segments, batch.types_N, batch.languages_B2)
        return self.criterion(outputs_BO, batch.targets_B, self.config.label_smoothing)

    def product(self, model: Labelled, device: torch.device) -> Labeller:
        """Put the model and its tokenizer together."""
        return Labeller(model, self.tokenizer, self.goal, self.config.data.max_tokens, device)

    def validate(self, model: Labelled, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss and metrics."""
        outputs = self.product(model, device).outputs(self.dev, languages=self.languages)
        loss = float(self.goal.loss(outputs, self.dev_targets, 0.0).report) / len(self.dev)
        if not np.isfinite(loss):
            return {"loss": loss}
        measures = self._measure(self.goal.predictions(outputs), self._labels(self.corpus.dev)[0])
        return {"loss": loss, **{name: one.value for name, one in measures.items()}}

    def test(self, product: Labeller) -> Evaluated:
        """Label the test part and the further test sets."""
        named = self.config.also_languages
        others = {
            name: self._scored(product, pairs, self.other_rows[name], named.get(name, self.config.languages))
            for name, pairs in self.corpus.others.items()
        }
        main = self._scored(product, self.corpus.test, self.test_rows, self.config.languages)
        return replace(main, others=others)

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score ridge regression on words, and the commonest label or the mean, on the same texts."""
        wanted = [one for (one,) in evaluated.references]
        labels, _ = self._labels(self.corpus.train)
        found = {"ridge on words": self.goal.predictions(self._bag(evaluated.sources))}
        if isinstance(self.goal, Classes):
            found["the commonest class"] = [Counter(labels).most_common(1)[0][0]] * len(wanted)
        else:
            found["the mean"] = [self.goal.mean] * len(wanted)
        if any(pair.second_at for pair in self.corpus.train):
            shared = self._shared([_two(source) for source in evaluated.sources])
            found["the words that both texts share"] = self.goal.predictions(shared)
        return {name: self._measure(predicted, wanted) for name, predicted in found.items()}

    @cached_property
    def _shared(self) -> SharedWords:
        return SharedWords([_two(_shown(pair)) for pair in self.corpus.train], self._one_hot(self.targets))

    @cached_property
    def _bag(self) -> BagOfWords:
        texts = [[_shown(pair) for pair in part] for part in (self.corpus.train, self.corpus.dev)]
        return BagOfWords.fit(texts[0], self._one_hot(self.targets), texts[1], self._one_hot(self.dev_targets))

    def _scored(
        self, product: Labeller, pairs: Sequence[Pair], rows: Sequence[tuple[Any, Any]], languages: str
    ) -> Evaluated:
        wanted, _ = self._labels(pairs)
        two = product.model.encoder.number_languages(languages)
        outputs = product.outputs(rows, languages=two)
        measures = self._measure(self.goal.predictions(outputs), wanted)
        shown = [_shown(pair) for pair in pairs]
        return Evaluated(measures, shown, [[one] for one in wanted], self.goal.labels(outputs))

    def signature(self) -> str:
        """Say what the scores depend on besides the model."""
        return f"|max_tokens:{self.config.data.max_tokens}"

    def _measure(self, predicted: Sequence[Any], wanted: Sequence[str]) -> dict[str, Measure]:
        measures = self.goal.measure(predicted, wanted)
        if self.positive:
            measures["positive_f1"] = positive_f1(predicted, wanted, self.positive)
        return measures

    def _one_hot(self, targets_B: Tensor) -> Tensor:
        if isinstance(self.goal, Numbers):
            return targets_B[:, None].double()
        return torch.nn.functional.one_hot(targets_B, self.goal.num_outputs).double()

    def _rows(self, pairs: Sequence[Pair], part: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """Tokenize texts; of long ones the beginning is read, and they are counted."""
        most = self.config.data.max_tokens
        rows = self.tokenizer.encode_all([pair.texts for pair in pairs])
        long = sum(len(ids) > most for ids, _ in rows)
        if long:
            self.notes.append(f"Of {long:,} {part} texts over {most} tokens the beginning is read.")
        return [cut(row, most) for row in rows]

    def _labels(self, pairs: Sequence[Pair]) -> tuple[list[str], list[str]]:
        return [pair.target for pair in pairs], [f"line {pair.line}" for pair in pairs]


def evaluate(product: Labeller, pairs: Sequence[Pair], languages: str = "") -> dict[str, Measure]:
    """Score a model on labelled texts; of long ones the beginning is read, and a class that it does not know is missed.

    Args:
        product: The model.
        pairs: Texts and labels.
        languages: Of the texts, of models that are told.

    Returns:
        The measures of what it was trained for.

    Raises:
        DataError: A label is no number where numbers are wanted.
        UsageError: The languages are not the model's, or the model has to be told them.
    """
    two, labels = product.model.encoder.number_languages(languages), [pair.target for pair in pairs]
    if isinstance(product.goal, Numbers):
        product.goal.targets(labels, [f"line {pair.line}" for pair in pairs])
    rows = [cut(row, product.max_tokens) for row in product.tokenizer.encode_all([pair.texts for pair in pairs])]
    return product.goal.measure(product.goal.predictions(product.outputs(rows, languages=two)), labels)


def _shown(pair: Pair) -> str:
    return " | ".join(pair.texts)


def _metrics(config: LabelledConfig, goal: Classes | Numbers) -> tuple[str, str]:
    """Find out which class F1 is of, and which metric chooses."""
    of = layout(config.data.layout) if config.data.layout else None
    positive = config.positive or (of.positive if of else "")
    if positive and not (isinstance(goal, Classes) and positive in goal.names):
        raise ConfigError(f"positive is {positive[:40]!r}, which is no class", mend="name one, or leave it out")
    known = (*goal.metrics, *(("positive_f1",) if positive else ()))
    monitor = config.monitor or (of.metrics[0] if of else known[0])
    if monitor not in known:
        raise ConfigError(f"monitor is {monitor[:40]!r}", mend=f"choose from {', '.join(known)}")
    return positive, monitor


def _two(shown: str) -> tuple[str, str]:
    """Take the two texts of a row as it is shown."""
    first, _, second = shown.partition(" | ")
    return first, second
