"""Causal language modelling: predict each token of a text from those before it.

Loss = −Σ_t ln p(x_t | x_<t), over every token of a text behind its start token, its end included. Texts stand beside
one another in a batch and cannot see each other; what is longer than the context is cut, at other places in each epoch.

Paper: Radford et al. 2019, §2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention import Segments
from regard.data.shards import Shard
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions
from regard.metrics.language import LOST, compressed_bits_per_byte, entropy, likelihood
from regard.metrics.measure import Measure
from regard.models.interface import LanguageModel
from regard.tasks.generator import Generator
from regard.tasks.task import Batch, Evaluated, Loss, check_counts, check_smoothing
from regard.tasks.texts import Pieces, TextData, TextTask, TextTokenizerConfig, build_for, check_model, prepare, up_to

NUM_SAMPLES = 10
PROMPT_TOKENS = 24
KNOWN_BYTES = 1 << 24  # of the training part, which xz reads before, twice: a MiB takes it two to three seconds


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
        check_counts(context=self.context, batch_tokens=self.batch_tokens)
        check_smoothing(self.label_smoothing)

    def build_model(self, vocab_size: int) -> LanguageModel:
        """Build the model for a vocabulary of so many tokens."""
        return build_for(vocab_size, self.context, self.model, "gpt", LanguageModel, "go on from a text")


@dataclass(frozen=True)
class TextBatch(Batch):
    """Texts, or pieces of them: flat rows and their segments.

    Attributes:
        tokens_N: int64, what the model reads.
        labels_N: int64, the same one place ahead: what it predicts.
        segments: Which belong together.
    """

    tokens_N: Tensor
    labels_N: Tensor
    segments: Segments


class LanguageTask(TextTask):
    """Training on texts; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        shards: The texts of each part as tokens.
        tokenizer: Fit on the training part.
        seed: Of the order of batches.
        data_notes: Where the texts come from.
    """

    def __init__(
        self, config: LanguageConfig, shards: dict[str, Shard], tokenizer: Tokenizer, seed: int, data_notes: list[str]
    ) -> None:
        pieces = Pieces(shards["train"].lengths, config.context, config.batch_tokens, seed)
        super().__init__(config.data, shards, tokenizer, pieces, data_notes)
        self.config = config
        test = shards["test"]
        if test.num_lost:
            share = test.num_unknown / max(len(test.tokens) - 2 * len(test), 1)  # starts and ends are no text's
            texts = f"{test.num_lost:,} of {len(test):,} test texts are not what their tokens give back"
            self.notes.append(f"{texts} ({share:.1%} of the tokens are unknown): {LOST}.")

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
        check_model(config.build_model)
        shards, tokenizer, notes = prepare(config.data, config.tokenizer, seed, folder, is_new)
        return LanguageTask(config, shards, tokenizer, seed, notes)

    def build(self) -> LanguageModel:
        """Build the model."""
        return self.config.build_model(self.tokenizer.vocab_size)

    def batch(self, index: int) -> TextBatch:
        """Make a micro-batch, a pure function of (seed, index)."""
        tokens, starts = self.train.tokens, self.train.starts
        rows = [tokens[starts[t] + a : starts[t] + b].astype(np.int64) for t, a, b in self.pieces.at(index)]
        return TextBatch(
            torch.from_numpy(np.concatenate([row[:-1] for row in rows])),
            torch.from_numpy(np.concatenate([row[1:] for row in rows])),
            Segments.ragged([len(row) - 1 for row in rows]),
        )

    def count(self, batch: TextBatch) -> int:
        """Count the labels."""
        return batch.labels_N.shape[0]

    def tokens(self, batch: TextBatch) -> int:
        """Count the tokens that are read."""
        return batch.tokens_N.shape[0]

    def loss(self, model: LanguageModel, batch: TextBatch) -> Loss:
        """Compute the cross-entropy, summed."""
        hidden_ND = model(batch.tokens_N, batch.segments)
        return self.criterion(model, hidden_ND, batch.labels_N, self.config.label_smoothing)

    def product(self, model: LanguageModel, device: torch.device) -> Generator:
        """Put the model and its tokenizer together."""
        return Generator(model, self.tokenizer, self.config.decoding, self.config.context, device)

    def validate(self, model: LanguageModel, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss per token, and bits per byte where its tokens give it back."""
        measures, nats, tokens = self._likelihood(self.product(model, device), "dev")
        shown = {name: one.value for name, one in measures.items() if name == "bits_per_byte"}
        return {"loss": nats / tokens, **shown}

    def test(self, product: Generator) -> Evaluated:
        """Score the test part, and let the model go on from the beginnings of some of its texts.

        A beginning may be more tokens when it is read again, as where a character was cut: what has no room is left
        out.
        """
        measures, _, _ = self._likelihood(product, "test")
        shard = self.shards["test"]
        prompts: list[str] = []
        ends: list[list[str]] = []
        for number in range(min(NUM_SAMPLES, len(shard))):
            ids = shard.tokens[shard.starts[number] + 1 : shard.starts[number + 1] - 1]
            read = min(PROMPT_TOKENS, self.config.context // 2, len(ids) // 2)
            prompt = self.tokenizer.decode(ids[:read].tolist())
            if product.has_room(prompt):
                prompts.append(prompt)
                ends.append([self.tokenizer.decode(ids[read : read + 60].tolist())])
        outputs = [one.text for one in product.generate(prompts, on_full="cut")]
        return Evaluated(measures, prompts, ends, outputs)

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score xz -9, where tokens give the texts back, and how often each token occurs, on the same texts."""
        train, test = self.shards["train"], self.shards["test"]
        found = test.counts(self.tokenizer.vocab_size)
        found[self.tokenizer.start_id] -= len(test)  # starts are given
        nats = entropy(found.tolist(), train.counts(self.tokenizer.vocab_size).tolist())
        sizes = int(found.sum()), test.num_words, test.num_bytes
        unigram = likelihood(nats, *sizes, "tokens by frequency", test.num_lost)
        return {**self._packed(), "tokens by their frequency": unigram}

    def _packed(self) -> dict[str, dict[str, Measure]]:
        """Score xz -9 of the test part, alone and after the training part."""
        train, test = self.shards["train"], self.shards["test"]
        packed: dict[str, dict[str, Measure]] = {}

        def add(name: str, how: str, known: Sequence[str] = ()) -> None:
            value = compressed_bits_per_byte(self._texts("test", range(len(test))), known)
            packed[name] = {"bits_per_byte": Measure("bits_per_byte", value, f"bits_per_byte|{how}|version:regard-1")}

        if not test.num_lost:
            add("xz -9 of the test part", "xz -9")
        if not test.num_lost and not train.num_lost:
            # From the end on, and back in order.
            known = up_to(self._texts("train", reversed(range(len(train)))), KNOWN_BYTES)[::-1]
            is_whole = len(known) == 2 * len(train) - 1  # blank lines stand between
            part = "" if is_whole else f" (last {KNOWN_BYTES >> 20} MiB)"
            add(f"xz -9 after the training part{part}", f"xz -9, primed{part}", known)
        return packed

    def _likelihood(self, product: Generator, part: str) -> tuple[dict[str, Measure], float, int]:
        shard = self.shards[part]
        rows = [shard.tokens[a:b] for a, b in zip(shard.starts[:-1], shard.starts[1:], strict=True)]
        scored = product.score_tokens(rows, batch_tokens=self.config.batch_tokens)
        nats, tokens = -sum(total for total, _ in scored), sum(count for _, count in scored)
        measures = likelihood(nats, tokens, shard.num_words, shard.num_bytes, product.signature(), shard.num_lost)
        return measures, nats, tokens

    def _texts(self, part: str, numbers: Iterable[int]) -> Iterator[str]:
        """Give texts of a part back, a blank line between two."""
        shard = self.shards[part]
        for place, number in enumerate(numbers):
            if place:
                yield "\n\n"
            yield self.tokenizer.decode(shard.tokens[shard.starts[number] + 1 : shard.starts[number + 1] - 1].tolist())
