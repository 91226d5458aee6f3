"""Pairs of texts: read one, write the other. Sentences and their translations, words and their sounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from regard.data.batching import Order, like_lengths
from regard.decoding import DecodeOptions
from regard.errors import ConfigError
from regard.metrics.measure import Measure
from regard.metrics.strings import measure
from regard.models.interface import EncoderDecoder
from regard.tasks.baselines import Lexicon, copy_source
from regard.tasks.corpus import Corpus, PairData, read_corpus
from regard.tasks.pairs import PairBatch, PairTokenizer, TokenizerConfig
from regard.tasks.task import Evaluated, Loss, evaluating
from regard.tasks.translator import Translator, build_model, grouped, hidden
from regard.tasks.vocabulary import VocabularyTask


@dataclass(frozen=True)
class EvaluationConfig:
    """How the model is scored.

    Attributes:
        monitor: The metric of the development part that decides which checkpoint is best; ``loss`` decodes nothing.
        references: ``line`` scores every line with its own target; ``source`` scores every different source once, and
            any of its targets counts.
        max_dev: Development inputs that are decoded at each validation at most.
        lengths: Source lengths, in words, at which scores are split; empty for none.
    """

    monitor: Literal["bleu", "chrf", "exact_match", "token_error_rate", "loss"] = "bleu"
    references: Literal["line", "source"] = "line"
    max_dev: int = 1000
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class TranslateConfig:
    """Settings of the task.

    Attributes:
        data: Where pairs come from.
        tokenizer: How they become tokens.
        model: ``family`` and its settings; vocabulary sizes are filled in.
        batch_tokens: Tokens of a micro-batch at most, on the longer side.
        label_smoothing: ε of label smoothing.
        decoding: How final outputs are chosen; validation is greedy.
        evaluation: How the model is scored.
    """

    data: PairData
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"family": "transformer"})
    batch_tokens: int = 4096
    label_smoothing: float = 0.1
    decoding: DecodeOptions = field(default_factory=lambda: DecodeOptions(beam=4))
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range.
        """
        counts = {
            "batch_tokens": self.batch_tokens,
            "data.max_tokens": self.data.max_tokens,
            "data.repeat": self.data.repeat,
            "evaluation.max_dev": self.evaluation.max_dev,
        }
        for name, value in counts.items():
            if value < 1:
                raise ConfigError(f"{name} is {value}", mend="give at least 1")
        lengths = self.evaluation.lengths
        if any(length < 1 for length in lengths) or list(lengths) != sorted(set(lengths)):
            raise ConfigError(f"evaluation.lengths is {list(lengths)}", mend="give counts of words, ascending")
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing is {self.label_smoothing}", mend="give a number in [0, 1)")


class TranslateTask(VocabularyTask):
    """Training on pairs; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        corpus: The data.
        tokenizer: Fit on its training part.
        seed: Of the order of batches.

    Attributes:
        notes: What is too long for the model, and what becomes of it.
    """

    def __init__(self, config: TranslateConfig, corpus: Corpus, tokenizer: PairTokenizer, seed: int) -> None:
        self.config, self.corpus, self.tokenizer = config, corpus, tokenizer
        limit = config.data.max_tokens
        encoded = tokenizer.encode(corpus.train)
        kept = encoded.check(
            limit, limit, config.data.train, config.data.on_long, lambda pair: corpus.name_lines([pair])
        )
        self.kept = np.array(kept)
        self.train = encoded
        lengths = [encoded.source_lengths[self.kept], encoded.target_lengths[self.kept]]
        self.order = Order(lengths, config.batch_tokens, seed)
        self.dev = tokenizer.encode(corpus.dev)
        dev_kept = self.dev.check(limit, limit, config.data.dev or config.data.train, "drop")
        self.dev_pairs = [corpus.dev[i] for i in dev_kept]
        self.dev_kept = np.array(dev_kept)
        # A long test source is scored as an empty output: the model cannot read it. Its target may be of any length.
        test = tokenizer.encode(corpus.test)
        counts = {
            "training pairs over {} tokens left out": len(encoded) - len(kept),
            "development pairs over {} tokens left out": len(corpus.dev) - len(dev_kept),
            "test sources over {} tokens: they count as empty outputs": int((test.source_lengths > limit).sum()),
        }
        self.notes = corpus.warnings()
        self.notes += [f"{count:,} {what.format(limit)}." for what, count in counts.items() if count]
        self.unit = "token"
        self.monitor: str = config.evaluation.monitor
        self.data_notes, self.lengths = corpus.notes, config.evaluation.lengths
        self.higher_is_better = self.monitor not in ("loss", "token_error_rate")

    @staticmethod
    def prepare(config: TranslateConfig, seed: int, folder: Path, is_new: bool) -> TranslateTask:
        """Read and split the pairs, and fit the tokenizers; a resumed run finds those in its folder.

        Args:
            config: The settings.
            seed: Of the split and of the order of batches.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.
        """
        corpus = read_corpus(config.data, seed)
        kept = None if is_new else PairTokenizer.read(folder)
        tokenizer = kept or PairTokenizer.train(corpus.train, config.tokenizer)
        return TranslateTask(config, corpus, tokenizer, seed)

    @property
    def counts(self) -> str:
        """What is trained on, in numbers."""
        c, t = self.corpus, self.tokenizer
        pairs = f"{len(c.train):,} training, {len(c.dev):,} development, {len(c.test):,} test pairs"
        return f"{pairs}; {t.source.vocab_size:,} source and {t.target.vocab_size:,} target tokens"

    @property
    def digest(self) -> str:
        """Hash of all pairs."""
        return self.corpus.digest()

    def build(self) -> EncoderDecoder:
        """Build the model."""
        model = build_model(self.config.model, self.tokenizer, "model")
        room, most = model.max_target_tokens, self.config.data.max_tokens
        if room is not None and most > room + 1:
            what = f"data.max_tokens is {most}, the model has positions for {room + 1}"
            raise ConfigError(what, mend="lower the one or raise model.max_len")
        return model

    def tokenizers(self) -> dict[str, Any]:
        """Give the tokenizers by the names of their files."""
        return self.tokenizer.files()

    def signature(self) -> str:
        """Say what the scores depend on besides the model."""
        decoding = self.config.decoding
        return f"|beam:{decoding.beam}|lp:{decoding.length_penalty}"

    def batch(self, index: int) -> PairBatch:
        """Make a micro-batch, a pure function of (seed, index)."""
        return self.train.batch(self.kept[self.order.at(index)])

    def name_batch(self, index: int) -> str:
        """Say which lines of the training data a micro-batch holds."""
        return self.corpus.name_lines(self.kept[self.order.at(index)].tolist())

    def count(self, batch: PairBatch) -> int:
        """Count the labels."""
        return batch.labels_N.shape[0]

    def tokens(self, batch: PairBatch) -> int:
        """Count source and target tokens."""
        return batch.source_M.shape[0] + batch.target_N.shape[0]

    def loss(self, model: EncoderDecoder, batch: PairBatch) -> Loss:
        """Compute the label-smoothed cross-entropy, summed."""
        return self.criterion(model, hidden(model, batch), batch.labels_N, self.config.label_smoothing)

    def product(self, model: EncoderDecoder, device: torch.device) -> Translator:
        """Put the model and its tokenizers together."""
        c = self.config
        return Translator(model, self.tokenizer, c.decoding, c.data.max_tokens, c.evaluation.references, device)

    def validate(self, model: EncoderDecoder, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss per token, and decode it greedily for the metrics."""
        total, count = 0.0, 0
        lengths = np.maximum(self.dev.source_lengths, self.dev.target_lengths)[self.dev_kept]
        with evaluating(model), torch.inference_mode():
            for indices in like_lengths(lengths, self.config.batch_tokens):
                batch = self.dev.batch(self.dev_kept[indices])
                total += float(self.loss(model, batch.to(device)).report)
                count += self.count(batch)
        scores = {"loss": total / count}
        # From a loss that is not finite nothing can be decoded; the trainer refuses it.
        if self.monitor != "loss" and np.isfinite(scores["loss"]):
            with evaluating(model):
                evaluated = self._evaluate_dev(model, device)
            scores |= {name: one.value for name, one in evaluated.measures.items()}
        return scores

    def _evaluate_dev(self, model: EncoderDecoder, device: torch.device) -> Evaluated:
        sources, targets = grouped(self.dev_pairs, self.config.evaluation.references)
        # Every k-th input, so that a sorted file is not judged by its beginning.
        stride = max(1, -(-len(sources) // self.config.evaluation.max_dev))
        sources, targets = sources[::stride], targets[::stride]
        translator = self.product(model, device)
        options = DecodeOptions(max_extra_tokens=self.config.decoding.max_extra_tokens)
        outputs = translator.translate(sources, options)
        return Evaluated(measure(outputs, targets), sources, targets, outputs)

    def test(self, product: Translator) -> Evaluated:
        """Score the test part with the recipe's decoding; what the model cannot read counts as an empty output."""
        return product.evaluate(self.corpus.test, on_long="empty")

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score what can be had without a trained model, on the same inputs.

        Args:
            evaluated: The model's own evaluation.

        Returns:
            Measures by baseline.
        """
        # Looked up are the model's tokens where they are characters, words elsewhere.
        config = self.config.tokenizer
        target = config.source if config.shared else config.target
        characters = config.source == "characters", target == "characters"
        cut_source, cut_target = (list if is_one else str.split for is_one in characters)
        lexicon = Lexicon([(cut_source(pair.source), cut_target(pair.target)) for pair in self.corpus.train])
        glue = "" if characters[1] else " "
        joined = [glue.join(lexicon(cut_source(source))) for source in evaluated.sources]
        name = f"likeliest output per {'letter' if characters[0] else 'word'}"
        outputs = {name: joined, "copy of the source": copy_source(evaluated.sources)}
        return {name: measure(texts, evaluated.references) for name, texts in outputs.items()}
