"""Pairs of texts: read one, write the other. Sentences and their translations, words and their sounds."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from regard import settings
from regard.attention import Segments
from regard.data import Pair, catalogue, read_pairs, split_pairs
from regard.data.batching import Order, like_lengths
from regard.decoding import DecodeOptions, Hypothesis, decode
from regard.errors import ConfigError, ContextError, DataError
from regard.metrics.strings import Measure, measure
from regard.models.interface import EncoderDecoder
from regard.models.registry import check_bounds, family
from regard.tasks.baselines import Lexicon, copy_source
from regard.tasks.pairs import PairBatch, PairTokenizer, TokenizerConfig
from regard.tasks.task import Loss, cross_entropy


@dataclass(frozen=True)
class PairData:
    """Where the pairs come from.

    Attributes:
        train: A file of pairs (TSV, CSV, JSONL, Parquet, or two parallel files ``train.de,train.en``), or ``catalogue:NAME``.
        dev: Development file; None takes a part of ``train``, as does a missing ``test``.
        test: Test file.
        source: Column (or suffix of parallel files) of the source; None for the format's default.
        target: Column or suffix of the target.
        on_long: What happens to training pairs over ``max_tokens``: ``drop`` leaves them out and says how many.
        max_tokens: Tokens of either side at most; the model's context.
    """

    train: str
    dev: str | None = None
    test: str | None = None
    source: str | None = None
    target: str | None = None
    on_long: Literal["error", "drop"] = "drop"
    max_tokens: int = 256


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


@dataclass(frozen=True)
class Translation:
    """An output.

    Attributes:
        text: The output as text.
        logprob: Natural-log probability of its tokens and end.
        score: Log-probability over the length penalty.
        tokens: Tokens, the end not counted.
        ended: False where the length limit cut it.
    """

    text: str
    logprob: float
    score: float
    tokens: int
    ended: bool


@dataclass(frozen=True)
class Evaluated:
    """Scores and what they were computed from.

    Attributes:
        measures: By name.
        sources: Inputs.
        references: Acceptable outputs of each.
        outputs: The outputs.
    """

    measures: dict[str, Measure]
    sources: list[str]
    references: list[list[str]]
    outputs: list[str]


class Translator:
    """A trained model with its tokenizers: what ``regard.load`` gives for pairs.

    Args:
        model: The model.
        tokenizer: Its tokenizers.
        options: How outputs are chosen where the caller does not say.
        max_tokens: Tokens of an input at most, its end included.
        references: How :meth:`evaluate` groups lines.
        device: Where it runs.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: PairTokenizer,
        options: DecodeOptions,
        max_tokens: int,
        references: Literal["line", "source"] = "line",
        device: torch.device | None = None,
    ) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.model, self.tokenizer = model.to(self.device).eval(), tokenizer
        self.options, self.max_tokens, self.references = options, max_tokens, references

    def translate(
        self, texts: Sequence[str], options: DecodeOptions | None = None, *, batch_tokens: int = 4096, first: int = 0
    ) -> list[list[Translation]]:
        """Write the other side of each text.

        Args:
            texts: Inputs; a blank one gives a blank output.
            options: How outputs are chosen; None as the model was made for.
            batch_tokens: Source tokens of a batch at most, for each beam.
            first: Place of the first text in the user's input, for draws.

        Returns:
            For each text its outputs, best first, at most ``n_best``.

        Raises:
            ContextError: A text has more tokens than the model's context.
        """
        options = self.options if options is None else options
        results = [[Translation("", 0.0, 0.0, 0, True)] for _ in texts]
        places = [place for place, text in enumerate(texts) if text.strip()]
        sources = self._sources([texts[place] for place in places])
        lengths = np.array([len(tokens) for tokens in sources], np.int64)
        with _evaluating(self.model):
            for batch in like_lengths(lengths, max(batch_tokens // options.beam, 1)):
                where = [places[index] for index in batch]
                outputs = self._decode([sources[index] for index in batch], where, options, first)
                for place, hypotheses in zip(where, outputs, strict=True):
                    results[place] = [self._translation(h) for h in hypotheses]
        return results

    def score(self, pairs: Sequence[Pair], batch_tokens: int = 4096) -> list[tuple[float, int]]:
        """Compute log p(target | source).

        Args:
            pairs: Pairs of texts.
            batch_tokens: Tokens of a batch at most.

        Returns:
            For each pair the natural-log probability of the target and its end, and the number of tokens that is over.

        Raises:
            ContextError: A side has more tokens than the model's context.
        """
        encoded = self.tokenizer.encode(pairs)
        encoded.check(self.max_tokens, self.max_tokens, "score", "error") if pairs else None
        totals = [(0.0, 0)] * len(pairs)
        lengths = np.maximum(encoded.source_lengths, encoded.target_lengths)
        with _evaluating(self.model), torch.inference_mode():
            for indices in like_lengths(lengths, batch_tokens):
                batch = encoded.batch(indices).to(self.device)
                logp_NV = self.model.head(hidden(self.model, batch)).double().log_softmax(-1)
                logp_N = logp_NV.gather(-1, batch.labels_N[:, None])[:, 0].cpu()
                for index, part in zip(indices, logp_N.split(list(batch.target_segments.lengths)), strict=True):
                    totals[index] = (float(part.sum()), len(part))
        return totals

    def evaluate(
        self,
        pairs: Sequence[Pair],
        options: DecodeOptions | None = None,
        references: Literal["line", "source"] | None = None,
    ) -> Evaluated:
        """Translate the sources and score the outputs.

        Args:
            pairs: Sources with right answers.
            options: How outputs are chosen; None as the model was made for.
            references: ``line`` or ``source``; None as the model was made for.

        Returns:
            Scores, inputs and outputs.
        """
        sources, targets = grouped(pairs, self.references if references is None else references)
        outputs = [best[0].text for best in self.translate(sources, options)]
        return Evaluated(measure(outputs, targets), sources, targets, outputs)

    def _sources(self, texts: Sequence[str]) -> list[np.ndarray]:
        sources = []
        for text, tokens in zip(texts, self.tokenizer.source.encode_all(texts), strict=True):
            if len(tokens) + 1 > self.max_tokens:
                shown = text if len(text) <= 40 else f"{text[:40]}…"
                lengths = f"the input {shown!r} has {len(tokens) + 1} tokens; the model's context is {self.max_tokens}"
                raise ContextError(lengths, mend="split the text")
            sources.append(np.append(tokens, self.tokenizer.source.end_id))
        return sources

    def _decode(
        self, sources: Sequence[np.ndarray], places: Sequence[int], options: DecodeOptions, first: int
    ) -> list[list[Hypothesis]]:
        source_M = torch.from_numpy(np.concatenate(sources).astype(np.int64)).to(self.device)
        return decode(
            self.model,
            source_M,
            Segments.ragged([len(tokens) for tokens in sources], self.device),
            start_id=self.tokenizer.target.start_id,
            end_id=self.tokenizer.target.end_id,
            options=options,
            places=[first + place for place in places],
        )

    def _translation(self, hypothesis: Hypothesis) -> Translation:
        text = self.tokenizer.target.decode(hypothesis.tokens)
        # One output is one line; a line break can only come from a byte that the model made up.
        text = " ".join(text.splitlines())
        return Translation(text, hypothesis.logprob, hypothesis.score, len(hypothesis.tokens), hypothesis.ended)


class _evaluating:  # noqa: N801 - used like a function
    """Put a model into evaluation mode for a while."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.was = self.model.training
        self.model.eval()

    def __exit__(self, *_: object) -> None:
        self.model.train(self.was)


def hidden(model: EncoderDecoder, batch: PairBatch) -> torch.Tensor:
    """Run a model over a batch of pairs."""
    return model(batch.source_M, batch.source_segments, batch.target_N, batch.target_segments)


def grouped(pairs: Sequence[Pair], references: Literal["line", "source"]) -> tuple[list[str], list[list[str]]]:
    """Give inputs and the acceptable outputs of each.

    Args:
        pairs: Pairs, some of which may share their source.
        references: ``line`` keeps every line; ``source`` brings lines with one source together.

    Returns:
        Inputs, in the order of their first line, and outputs.
    """
    if references == "line":
        return [pair.source for pair in pairs], [[pair.target] for pair in pairs]
    targets: dict[str, list[str]] = defaultdict(list)
    for pair in pairs:
        targets[pair.source].append(pair.target)
    return list(targets), list(targets.values())


@dataclass(frozen=True)
class Corpus:
    """The three parts of the data.

    Attributes:
        train: Training pairs.
        dev: Development pairs.
        test: Test pairs; empty where dev was given and test was not.
        notes: Where they come from and how they were split, for the report.
    """

    train: list[Pair]
    dev: list[Pair]
    test: list[Pair]
    notes: list[str]

    def digest(self) -> str:
        """Hash all pairs, so that a run can tell whether its data changed."""
        state = hashlib.sha256()
        for part in (self.train, self.dev, self.test):
            for pair in part:
                state.update(f"{pair.source}\t{pair.target}\n".encode())
            state.update(b"\0")
        return state.hexdigest()


def read_corpus(config: PairData, seed: int) -> Corpus:
    """Read the data, splitting off what is not given.

    Args:
        config: Where it is.
        seed: Of the split.

    Returns:
        The three parts.
    """
    notes = []
    if config.train.startswith("catalogue:"):
        name = config.train.removeprefix("catalogue:")
        folder = catalogue.get(name)
        entry = catalogue.ENTRIES[name]
        notes.append(f"{entry.description}: {entry.notice}")
        parts = [read_pairs(str(folder / f"{part}.tsv")) for part in ("train", "dev", "test")]
        train, dev, test = parts
    else:
        columns = {"source": config.source, "target": config.target}
        train = read_pairs(config.train, **columns)
        dev, test = (read_pairs(path, **columns) if path else [] for path in (config.dev, config.test))
        if not dev:
            splits = split_pairs(train, seed=seed)
            train, dev = splits.train, splits.dev
            test = test or splits.test
            notes.append(f"Development and test parts were split off {config.train} by source, seed {seed}.")
    if not train or not dev:
        raise DataError(f"{len(train)} training and {len(dev)} development pairs", where=config.train)
    return Corpus(list(train), list(dev), list(test), notes)


def build_model(model: Mapping[str, Any], tokenizer: PairTokenizer, where: str) -> EncoderDecoder:
    """Build a model for these vocabularies.

    Args:
        model: ``family`` and its settings.
        tokenizer: What the vocabularies are.
        where: For messages.

    Returns:
        The model, with fresh weights.
    """
    known = family(str(model.get("family", "transformer")))
    values = {key: value for key, value in model.items() if key != "family"}
    sizes = {"source_vocab_size": tokenizer.source.vocab_size, "target_vocab_size": tokenizer.target.vocab_size}
    for key in sizes:
        if key in values:
            raise ConfigError(f"{key} follows from the tokenizer", where=where, mend="leave it out")
    config = settings.build(known.config, {**sizes, **values}, where)
    check_bounds(config, where)
    model = known.build(config)
    if not isinstance(model, EncoderDecoder):
        raise ConfigError(f"the family {known.name!r} does not read one text and write another", where=where)
    return model


class TranslateTask:
    """Training on pairs; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        corpus: The data.
        tokenizer: Fit on its training part.
        seed: Of the order of batches.
    """

    def __init__(self, config: TranslateConfig, corpus: Corpus, tokenizer: PairTokenizer, seed: int) -> None:
        self.config, self.corpus, self.tokenizer = config, corpus, tokenizer
        limit = config.data.max_tokens
        encoded = tokenizer.encode(corpus.train)
        kept = encoded.check(limit, limit, config.data.train, config.data.on_long)
        self.dropped = len(encoded) - len(kept)
        self.kept = np.array(kept)
        self.train = encoded
        lengths = [encoded.source_lengths[self.kept], encoded.target_lengths[self.kept]]
        self.order = Order(lengths, config.batch_tokens, seed)
        self.num_batches = self.order.per_epoch
        self.dev = tokenizer.encode(corpus.dev)
        dev_kept = self.dev.check(limit, limit, config.data.dev or config.data.train, "drop")
        self.dev_pairs = [corpus.dev[i] for i in dev_kept]
        self.dev_kept = np.array(dev_kept)
        self.monitor = config.evaluation.monitor
        self.higher_is_better = self.monitor not in ("loss", "token_error_rate")

    def batch(self, index: int) -> PairBatch:
        """Make a micro-batch, a pure function of (seed, index)."""
        return self.train.batch(self.kept[self.order.at(index)])

    def name_batch(self, index: int) -> str:
        """Say which lines of the training data a micro-batch holds."""
        lines = sorted(self.corpus.train[i].line for i in self.kept[self.order.at(index)])
        shown = ", ".join(map(str, lines[:8])) + (", …" if len(lines) > 8 else "")
        return f"lines {shown} of {self.config.data.train}"

    def count(self, batch: PairBatch) -> int:
        """Count the labels."""
        return batch.labels_N.shape[0]

    def tokens(self, batch: PairBatch) -> int:
        """Count source and target tokens."""
        return batch.source_M.shape[0] + batch.target_N.shape[0]

    def loss(self, model: EncoderDecoder, batch: PairBatch, device: torch.device) -> Loss:
        """Compute the label-smoothed cross-entropy, summed."""
        batch = batch.to(device)
        return cross_entropy(model.head(hidden(model, batch)), batch.labels_N, self.config.label_smoothing)

    def translator(self, model: EncoderDecoder, device: torch.device) -> Translator:
        """Put the model and its tokenizers together."""
        c = self.config
        return Translator(model, self.tokenizer, c.decoding, c.data.max_tokens, c.evaluation.references, device)

    def validate(self, model: EncoderDecoder, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss per token, and decode it greedily for the metrics."""
        total, count = 0.0, 0
        lengths = np.maximum(self.dev.source_lengths, self.dev.target_lengths)[self.dev_kept]
        with _evaluating(model), torch.inference_mode():
            for indices in like_lengths(lengths, self.config.batch_tokens):
                batch = self.dev.batch(self.dev_kept[indices])
                total += float(self.loss(model, batch, device).report)
                count += self.count(batch)
        scores = {"loss": total / count}
        if self.monitor != "loss":
            with _evaluating(model):
                evaluated = self._evaluate_dev(model, device)
            scores |= {name: one.value for name, one in evaluated.measures.items()}
        return scores

    def _evaluate_dev(self, model: EncoderDecoder, device: torch.device) -> Evaluated:
        sources, targets = grouped(self.dev_pairs, self.config.evaluation.references)
        # Every k-th input, so that a sorted file is not judged by its beginning.
        stride = max(1, -(-len(sources) // self.config.evaluation.max_dev))
        sources, targets = sources[::stride], targets[::stride]
        translator = self.translator(model, device)
        options = DecodeOptions(max_extra_tokens=self.config.decoding.max_extra_tokens)
        outputs = [best[0].text for best in translator.translate(sources, options)]
        return Evaluated(measure(outputs, targets), sources, targets, outputs)

    def test(self, model: EncoderDecoder, device: torch.device) -> Evaluated:
        """Score the test part (the development part where there is none) with the recipe's decoding."""
        return self.translator(model, device).evaluate(self.corpus.test or self.corpus.dev)

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score what can be had without a trained model, on the same inputs.

        Args:
            evaluated: The model's own evaluation.

        Returns:
            Measures by baseline.
        """
        tokenize = self._lexical_tokens()
        pairs = [(tokenize[0](pair.source), tokenize[1](pair.target)) for pair in self.corpus.train]
        lexicon = Lexicon(pairs)
        joined = [tokenize[2](lexicon(tokenize[0](source))) for source in evaluated.sources]
        name = "most frequent target token per source token"
        outputs = {name: joined, "copy of the source": copy_source(evaluated.sources)}
        return {name: measure(texts, evaluated.references) for name, texts in outputs.items()}

    def _lexical_tokens(self) -> tuple[Any, Any, Any]:
        """Choose the tokens that the lexical baseline looks up: the model's where they are characters, else words."""
        source = list if self.config.tokenizer.source == "characters" else str.split
        by_character = not self.config.tokenizer.shared and self.config.tokenizer.target == "characters"
        return source, (list if by_character else str.split), ("".join if by_character else " ".join)
