"""Instruction tuning: a causal language model learns to answer; the loss is over answers alone.

Loss = −Σ_t ln p(a_t | prompt, a_<t), over the tokens of the answer and its end (Ouyang et al. 2022, §3.5, the
supervised part). Each prompt with its answer is a sequence of its own; none sees another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention import Segments
from regard.data import Pair
from regard.data.batching import Order, like_lengths
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions
from regard.errors import ConfigError, ContextError, DataError
from regard.metrics.measure import Measure
from regard.metrics.strings import measure
from regard.models.interface import LanguageModel
from regard.places import existing
from regard.tasks.baselines import copy_source
from regard.tasks.building import build
from regard.tasks.corpus import Corpus, PairData, read_corpus
from regard.tasks.folder import load
from regard.tasks.generator import Generator, Vocabulary, begun
from regard.tasks.language import TextTokenizerConfig
from regard.tasks.plain import is_trained
from regard.tasks.public_text import load_generator
from regard.tasks.task import Batch, Evaluated, Loss, check_counts, evaluating
from regard.tasks.vocabulary import VocabularyTask

PLACE = "{source}"


@dataclass(frozen=True)
class InstructConfig:
    """Settings of the task.

    Attributes:
        data: Where prompts (source) and answers (target) come from.
        init: What is gone on from: a public folder of a causal model, a .gguf file, or a run's folder of ours; empty
            starts from nothing, and then ``model`` says with what.
        template: What the model reads before the answer; ``{source}`` stands for the prompt.
        tokenizer: How texts become tokens, where the model starts from nothing.
        model: ``family`` and its settings, likewise.
        batch_tokens: Tokens of a micro-batch at most.
        max_answers: Test prompts that are answered, and whose answers are scored, at most.
        decoding: How the model answers.
    """

    data: PairData
    init: str = ""
    template: str = "{source}\n"
    tokenizer: TextTokenizerConfig = field(default_factory=TextTokenizerConfig)
    model: dict[str, Any] = field(default_factory=dict)
    batch_tokens: int = 2048
    max_answers: int = 500
    decoding: DecodeOptions = field(default_factory=lambda: DecodeOptions(max_extra_tokens=64, length_penalty=0.0))

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and a template without a place for the prompt.

        Raises:
            ConfigError: A number is out of its range, or the template has no place, or several.
        """
        most = self.data.max_tokens
        check_counts(batch_tokens=self.batch_tokens, max_answers=self.max_answers, data__max_tokens=most)
        if self.template.count(PLACE) != 1:
            raise ConfigError(f"the template has {self.template.count(PLACE)} places", mend=f"write {PLACE} once")


@dataclass(frozen=True)
class AnswerBatch(Batch):
    """Prompts with their answers.

    Attributes:
        tokens_N: int64, what the model reads.
        rows_A: int64, the rows that predict a token of an answer, or its end.
        labels_A: int64, those tokens.
        segments: Which tokens belong together.
    """

    tokens_N: Tensor
    rows_A: Tensor
    labels_A: Tensor
    segments: Segments


class InstructTask(VocabularyTask):
    """Training on prompts and answers; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        corpus: The data.
        vocabulary: Of the model.
        model: Makes the model.
        seed: Of the order of batches.

    Raises:
        ContextError: No prompt fits the context with its answer.
        DataError: The model knows no token that ends a text.
    """

    monitor = "loss"
    higher_is_better = False
    unit = "token of an answer"

    def __init__(
        self,
        config: InstructConfig,
        corpus: Corpus,
        vocabulary: Vocabulary,
        model: Callable[[], LanguageModel],
        seed: int,
    ) -> None:
        if not vocabulary.end_ids:
            raise DataError("the model knows no token that ends a text", where=config.init or "tokenizer")
        self.config, self.corpus, self.vocabulary, self._model = config, corpus, vocabulary, model
        self.data_notes = corpus.notes
        self.notes = corpus.warnings()
        self.train, self.kept = self._fitting(corpus.train, "training")
        self.dev, _ = self._fitting(corpus.dev, "development")
        self.order = Order([np.array([len(ids) - 1 for ids, _ in self.train])], config.batch_tokens, seed)

    @staticmethod
    def prepare(config: InstructConfig, seed: int, folder: Path, is_new: bool) -> InstructTask:
        """Read and split the data, and load what is gone on from.

        Args:
            config: The settings.
            seed: Of the split and of the order of batches.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.

        Raises:
            ConfigError: No model is named, or it reads fewer tokens than asked for.
        """
        if not config.init and not config.model:
            mend = "give --set init=FOLDER; or, to start from nothing, say with what: --set model.family=gpt"
            raise ConfigError("no model to go on from", mend=mend)
        corpus = read_corpus(config.data, seed, labelled=True)
        most = config.data.max_tokens
        if config.init:
            begin = _begin(config.init)
            if begin.max_tokens < most:
                what = f"data.max_tokens is {most}, the model reads {begin.max_tokens}"
                raise ConfigError(what, where=config.init, mend=f"set data.max_tokens: {begin.max_tokens}")
            return InstructTask(config, corpus, begin.tokenizer, lambda: begin.model, seed)
        kept = folder / "tokenizer.json"
        if not is_new and kept.exists():
            tokenizer = Tokenizer.read(kept)
        else:
            texts = [config.template.replace(PLACE, pair.source) + pair.target for pair in corpus.train]
            tokenizer = Tokenizer.train(texts, config.tokenizer.kind, config.tokenizer.vocab_size)
        values = {"max_len": most, **config.model}
        given = {"vocab_size": tokenizer.vocab_size}

        def fresh() -> LanguageModel:
            return build(values, "gpt", given, LanguageModel, "go on from a text", "model")

        return InstructTask(config, corpus, tokenizer, fresh, seed)

    @property
    def counts(self) -> str:
        """What is trained on, in numbers."""
        c = self.corpus
        return f"{len(c.train):,} training, {len(c.dev):,} development, {len(c.test):,} test prompts with answers"

    @property
    def digest(self) -> str:
        """Hash of all prompts and answers."""
        return self.corpus.digest()

    def build(self) -> LanguageModel:
        """Build the model."""
        return self._model()

    def tokenizers(self) -> dict[str, Any]:
        """Give the tokenizer by the name of its file."""
        return {"tokenizer.json": self.vocabulary}

    def batch(self, index: int) -> AnswerBatch:
        """Make a micro-batch, a pure function of (seed, index)."""
        return _batch([self.train[n] for n in self.order.at(index)])

    def name_batch(self, index: int) -> str:
        """Say which lines of the training data a micro-batch holds."""
        return self.corpus.name_lines([self.kept[n] for n in self.order.at(index)])

    def count(self, batch: AnswerBatch) -> int:
        """Count the tokens of answers."""
        return batch.labels_A.shape[0]

    def tokens(self, batch: AnswerBatch) -> int:
        """Count the tokens that are read."""
        return batch.tokens_N.shape[0]

    def loss(self, model: LanguageModel, batch: AnswerBatch) -> Loss:
        """Compute the cross-entropy of the answers, summed; prompts are read and cost nothing."""
        hidden_AD = model(batch.tokens_N, batch.segments)[batch.rows_A]
        return self.criterion(model, hidden_AD, batch.labels_A, 0.0)

    def product(self, model: LanguageModel, device: torch.device) -> Generator:
        """Put the model and its tokenizer together."""
        return Generator(model, self.vocabulary, self.config.decoding, self.config.data.max_tokens, device)

    def validate(self, model: LanguageModel, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss per token of an answer."""
        total, count = 0.0, 0
        with evaluating(model), torch.inference_mode():
            lengths = np.array([len(ids) - 1 for ids, _ in self.dev])
            for indices in like_lengths(lengths, self.config.batch_tokens):
                batch = _batch([self.dev[n] for n in indices])
                total += float(self.loss(model, batch.to(device)).report)
                count += self.count(batch)
        return {"loss": total / max(count, 1)}

    def test(self, product: Generator) -> Evaluated:
        """Answer test prompts greedily, and score the answers as strings; a prompt that leaves no room has none."""
        pairs = self.corpus.test[: self.config.max_answers]
        prompts = [self.config.template.replace(PLACE, pair.source) for pair in pairs]
        options = replace(self.config.decoding, sample=False, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        fits = [product.has_room(prompt) for prompt in prompts]
        if not all(fits):
            most = self.config.data.max_tokens
            self.notes.append(f"{fits.count(False):,} test prompts of {most} tokens or more are not answered.")
        found = product.generate([p for p, ok in zip(prompts, fits, strict=True) if ok], options, on_full="cut")
        answers = iter(found)
        # A tokenizer that takes a word's space along puts one before the first: an answer is a text of its own.
        outputs = [next(answers).text.removeprefix(" ") if ok else "" for ok in fits]
        references = [[pair.target] for pair in pairs]
        return Evaluated(measure(outputs, references), [pair.source for pair in pairs], references, outputs)

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score the prompt itself, and the commonest answer."""
        common = Counter(pair.target for pair in self.corpus.train).most_common(1)[0][0]
        outputs = {
            "copy of the prompt": copy_source(evaluated.sources),
            "the commonest answer": [common] * len(evaluated.sources),
        }
        return {name: measure(texts, evaluated.references) for name, texts in outputs.items()}

    def signature(self) -> str:
        """Say what the scores depend on besides the model."""
        return f"|greedy|max_tokens:{self.config.data.max_tokens}"

    def _encoded(self, pair: Pair) -> tuple[np.ndarray, int]:
        """Turn a pair into tokens, and say where the answer begins."""
        v = self.vocabulary
        prompt = begun(v, self.config.template.replace(PLACE, pair.source))
        return np.array([*prompt, *v.encode(pair.target), v.end_ids[0]], np.int64), len(prompt)

    def _fitting(self, pairs: Sequence[Pair], part: str) -> tuple[list[tuple[np.ndarray, int]], list[int]]:
        """Tokenize pairs, and leave out and count those over the context."""
        most = self.config.data.max_tokens
        rows = [self._encoded(pair) for pair in pairs]
        kept = [n for n, (ids, begin) in enumerate(rows) if len(ids) - 1 <= most and begin > 0]
        if len(kept) < len(rows):
            self.notes.append(f"{len(rows) - len(kept):,} {part} pairs over {most} tokens left out.")
        if not kept:
            what = f"none of {len(rows)} {part} pairs has at most {most} tokens"
            raise ContextError(what, where=self.config.data.train)
        return [rows[n] for n in kept], kept


def _begin(init: str) -> Generator:
    """Load what is gone on from: a model that a task of ours has trained, or a public one."""
    source = existing(init)
    begin = load(source) if is_trained(source) else load_generator(source)[0]
    if not isinstance(begin, Generator):
        what = f"a model for the task {begin.task!r} does not go on from texts"
        raise ConfigError(what, where=init, mend="give a causal language model, as of regard train lm")
    begin.model.float()
    return begin


def _batch(some: Sequence[tuple[np.ndarray, int]]) -> AnswerBatch:
    begins = np.cumsum([0, *(len(ids) - 1 for ids, _ in some)])[:-1]
    # The token before the answer's first predicts it.
    rows = [np.arange(place - 1, len(ids) - 1) + begin for (ids, place), begin in zip(some, begins, strict=True)]
    tokens_N, rows_A, labels_A = (
        torch.from_numpy(np.concatenate(side))
        for side in ([ids[:-1] for ids, _ in some], rows, [ids[place:] for ids, place in some])
    )
    return AnswerBatch(tokens_N, rows_A, labels_A, Segments.ragged([len(ids) - 1 for ids, _ in some]))
