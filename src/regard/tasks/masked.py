"""Masked language modelling: predict hidden tokens of a text from those on both sides.

Loss = −Σ_m ln p(x_m | the text with its chosen tokens hidden), over the chosen places m alone. What is hidden is drawn
anew in each epoch. Texts stand beside one another in a batch and cannot see each other; what is longer than the context
is cut, at other places in each epoch, and every piece has the start token before it and the end token behind.

With a model that tells the next sentence, every piece is two: where it is cut is drawn, and half of the second parts
are another text's. Loss += w · (−ln p(follows or not)) for each piece, where w is the number of tokens that a whole
piece hides, so that both losses weigh alike, however a batch is split.

Papers: Devlin et al. 2019, §3.1; Liu et al. 2019, §4: masks drawn anew, and no next sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.data.batching import like_lengths
from regard.data.shards import Shard
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError
from regard.metrics.language import masked
from regard.metrics.measure import Measure
from regard.models.bert import Bert
from regard.tasks.filler import Filler, OwnMasks
from regard.tasks.labeller import TextPairs
from regard.tasks.masking import Masker, Masking, chance
from regard.tasks.task import Batch, Evaluated, Loss, check_counts, cross_entropy, evaluating
from regard.tasks.texts import Pieces, TextData, TextTask, TextTokenizerConfig, build_for, check_model, prepare

HELD_OUT_SEED = 0  # of what is hidden in held-out texts, whatever the run's seed: scores are of the same places
AROUND = 2  # start and end of each piece
FOLLOWS, OTHER = 0, 1  # what is told of the second of two parts, by the public implementation's numbers
NUM_SAMPLES = 10


@dataclass(frozen=True)
class MaskedConfig:
    """Settings of the task.

    Attributes:
        data: Where texts come from.
        tokenizer: How they become tokens.
        model: ``family`` and its settings; the vocabulary's size is filled in, and ``max_len`` where it is not said.
        masking: Which tokens are hidden, and how.
        context: Tokens that the model reads at once, start and end of a piece counted.
        batch_tokens: Tokens of a micro-batch at most.
    """

    data: TextData
    tokenizer: TextTokenizerConfig = field(default_factory=TextTokenizerConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"family": "bert"})
    masking: Masking = field(default_factory=Masking)
    context: int = 128
    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range.
        """
        least = self.around + 1 + self.is_paired
        if self.context < least:
            counted = "two parts, a start and two ends" if self.is_paired else "start and end"
            raise ConfigError(f"context is {self.context}", mend=f"give at least {least}: {counted} are counted")
        check_counts(batch_tokens=self.batch_tokens)

    @property
    def is_paired(self) -> bool:
        """Whether every piece is two, and whether the second follows the first is told."""
        return bool(self.model.get("next_sentence"))

    @property
    def around(self) -> int:
        """Tokens that are put around a piece, and between its parts."""
        return AROUND + self.is_paired

    def build_model(self, vocab_size: int) -> Bert:
        """Build the model for a vocabulary of so many tokens."""
        pooled = {"pooler": True} if self.is_paired else {}
        return check_head(build_for(vocab_size, self.context, {**pooled, **self.model}, "bert", Bert, "fill in masks"))


@dataclass(frozen=True)
class MaskedBatch(Batch):
    """Pieces of texts with hidden tokens: flat rows and their segments.

    Attributes:
        tokens_N: int64, what the model reads.
        places_M: int64, rows whose tokens it predicts, ascending.
        labels_M: int64, the tokens that stood there.
        segments: Which rows belong together.
        types_N: int64, of which of two parts each token is.
        languages_B2: int64, the languages of the two parts; None where none is told.
        follows_B: int64, whether the second part follows the first; None where that is not asked.
    """

    tokens_N: Tensor
    places_M: Tensor
    labels_M: Tensor
    segments: Segments
    types_N: Tensor
    languages_B2: Tensor | None = None
    follows_B: Tensor | None = None

    @staticmethod
    def of(
        rows: Sequence[tuple[np.ndarray, np.ndarray]],
        masker: Masker,
        draws: np.random.Generator,
        languages: Sequence[tuple[int, int]] | None = None,
        follows: Sequence[int] | None = None,
    ) -> MaskedBatch:
        """Choose tokens of some rows, and hide them.

        Args:
            rows: Tokens of each, and of which of two parts each token is.
            masker: Hides.
            draws: Where chance comes from.
            languages: The two languages of each row.
            follows: What is to be told of each row's second part.

        Returns:
            The batch, on the CPU.
        """
        tokens_N, types_N = (np.concatenate(side) for side in zip(*rows, strict=True))
        places_M = masker.choose(tokens_N, draws)
        return MaskedBatch(
            torch.from_numpy(masker.hide(tokens_N, places_M, draws)),
            torch.from_numpy(places_M),
            torch.from_numpy(tokens_N[places_M]),
            Segments.ragged([len(row) for row, _ in rows]),
            torch.from_numpy(types_N),
            None if languages is None else torch.tensor(languages),
            None if follows is None else torch.tensor(follows),
        )

    def hidden(self, model: Bert) -> Tensor:
        """Run the encoder."""
        return model(self.tokens_N, self.segments, **model.told(self.segments, self.types_N, self.languages_B2))


class MaskedTask(TextTask):
    """Training on texts with hidden tokens; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        shards: The texts of each part as tokens.
        tokenizer: Fit on the training part; it has a mask.
        seed: Of the order of batches, and of what is hidden.
        data_notes: Where the texts come from.
    """

    unit = "masked token"

    def __init__(
        self, config: MaskedConfig, shards: dict[str, Shard], tokenizer: Tokenizer, seed: int, data_notes: list[str]
    ) -> None:
        self.is_paired = config.is_paired
        # A text's own start and end are not counted: every piece is given both.
        inside = shards["train"].lengths - 2
        if self.is_paired and len(inside) < 2:
            raise ConfigError("model.next_sentence is set, and there is one text alone", mend="give two or more")
        pieces = Pieces(inside, config.context, config.batch_tokens, seed, shared=0, around=config.around)
        super().__init__(config.data, shards, tokenizer, pieces, data_notes)
        self.config, self.seed = config, seed
        self.masker = Masker(config.masking, tokenizer)
        self.pair_weight = config.masking.prob * (config.context - config.around)
        self._alone: dict[str, Measure] = {}

    @staticmethod
    def prepare(config: MaskedConfig, seed: int, folder: Path, is_new: bool) -> MaskedTask:
        """Read, deal and tokenize the texts; a resumed run finds them in its folder.

        Args:
            config: The settings.
            seed: Of the split, of the order of batches, and of what is hidden.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.
        """
        check_model(config.build_model)
        shards, tokenizer, notes = prepare(config.data, config.tokenizer, seed, folder, is_new, mask=True)
        TextPairs.around(tokenizer)  # the file says what stands around a text, for other readers of it
        return MaskedTask(config, shards, tokenizer, seed, notes)

    def build(self) -> Bert:
        """Build the model."""
        return self.config.build_model(self.tokenizer.vocab_size)

    def batch(self, index: int) -> MaskedBatch:
        """Make a micro-batch, a pure function of (seed, index): what is hidden in it too."""
        draws, cuts = chance(self.seed, index), self.pieces.at(index)
        if self.is_paired:
            pairs = [self._pair(self.train, cut, draws) for cut in cuts]
            return MaskedBatch.of([row for row, _ in pairs], self.masker, draws, follows=[told for _, told in pairs])
        rows = [self._piece(self.train, *cut) for cut in cuts]
        return MaskedBatch.of([(row, np.zeros_like(row)) for row in rows], self.masker, draws)

    def count(self, batch: MaskedBatch) -> int:
        """Count the tokens that are predicted."""
        return batch.labels_M.shape[0]

    def tokens(self, batch: MaskedBatch) -> int:
        """Count the tokens that are read."""
        return batch.tokens_N.shape[0]

    def loss(self, model: Bert, batch: MaskedBatch) -> Loss:
        """Compute the cross-entropy at the chosen places, summed; the head runs on those rows alone."""
        hidden_ND = batch.hidden(model)
        loss = self.criterion(model, hidden_ND[batch.places_M], batch.labels_M, 0.0)
        if batch.follows_B is None or model.next_sentence is None:
            return loss
        told = cross_entropy(model.next_sentence(model.pool(hidden_ND, batch.segments)), batch.follows_B, 0.0)
        return Loss(loss.sum + self.pair_weight * told.sum, loss.report + self.pair_weight * told.report)

    def product(self, model: Bert, device: torch.device) -> Filler:
        """Put the model and its tokenizer together."""
        return Filler(model, OwnMasks(self.tokenizer), self.config.context, device)

    def validate(self, model: Bert, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss per hidden token, and how many are right."""
        nats, right, count = self._score(self.product(model, device), *self.held_out("dev"))
        scores = {"loss": nats / max(count, 1), "masked_accuracy": right / max(count, 1)}
        return {**scores, "next_sentence_accuracy": self._follows(model, "dev")[0]} if self.is_paired else scores

    def test(self, product: Filler) -> Evaluated:
        """Score the test part, and show what the model fills in at the beginnings of some pieces."""
        rows, places = self.held_out("test")
        measures = masked(*self._score(product, rows, places), self._how())
        if self.is_paired:
            name, (share, count) = "next_sentence_accuracy", self._follows(cast(Bert, product.model), "test")
            how = f"pairs:{count}|half of other texts|context:{self.config.context}|version:regard-1"
            measures[name] = Measure(name, share, f"{name}|{how}")
        labels = np.concatenate([row[at] for row, at in zip(rows, places, strict=True)])
        self._alone = masked(*product.alone(labels), len(labels), "the mask alone")
        shown = range(0, len(rows), max(1, -(-len(rows) // NUM_SAMPLES)))
        read = [self.masker.hide_all(rows[n], places[n]) for n in shown]
        best = [row.copy() for row in read]
        for n, logp in product.predict(read, [places[n] for n in shown], self.config.batch_tokens):
            best[n][places[shown[n]]] = logp.argmax(-1).numpy()
        sources, wanted, outputs = (self.show(some) for some in (read, [rows[n] for n in shown], best))
        return Evaluated(measures, sources, [[text] for text in wanted], outputs)

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score the most frequent token, and the model itself without the text around a mask, at the same places."""
        rows, places = self.held_out("test")
        labels = np.concatenate([row[at] for row, at in zip(rows, places, strict=True)])
        return {
            "tokens by their frequency": masked(
                *self.by_frequency(labels, self.train), len(labels), "tokens by frequency"
            ),
            "this model without the text around": self._alone,
        }

    def held_out(self, part: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Cut a part's texts from their beginnings, and choose what is hidden; the same for every run and model.

        Args:
            part: ``dev`` or ``test``.

        Returns:
            Tokens of each piece, nothing hidden, and the chosen places of each.
        """
        shard, step = self.shards[part], self.config.context - AROUND
        cuts = [(text, a, min(a + step, n)) for text, n in enumerate(shard.lengths - 2) for a in range(0, n, step)]
        rows = [self._piece(shard, *cut) for cut in cuts]
        return rows, [self.masker.choose(row, chance(HELD_OUT_SEED, n)) for n, row in enumerate(rows)]

    @torch.inference_mode()
    def _follows(self, model: Bert, part: str) -> tuple[float, int]:
        """Give the share of a part's pairs of which it is rightly told whether the second follows, and their number."""
        shard, step = self.shards[part], self.config.context - self.config.around
        draws = chance(HELD_OUT_SEED, len(shard))
        cuts = [(text, a, min(a + step, n)) for text, n in enumerate(shard.lengths - 2) for a in range(0, n, step)]
        pairs = [self._pair(shard, cut, draws) for cut in cuts]
        right, device = 0, next(model.parameters()).device
        with evaluating(model):
            for some in like_lengths(np.array([len(row) for (row, _), _ in pairs]), self.config.batch_tokens):
                tokens_N, types_N = (
                    torch.from_numpy(np.concatenate(side)).to(device)
                    for side in zip(*(pairs[n][0] for n in some), strict=True)
                )
                segments = Segments.ragged([len(pairs[n][0][0]) for n in some], device)
                pooled_BD = model.pool(model(tokens_N, segments, **model.told(segments, types_N)), segments)
                told_B = cast(nn.Linear, model.next_sentence)(pooled_BD).argmax(-1).cpu()
                right += int((told_B == torch.tensor([pairs[n][1] for n in some])).sum())
        return right / max(len(pairs), 1), len(pairs)

    def _pair(
        self, shard: Shard, cut: Sequence[int] | np.ndarray, draws: np.random.Generator
    ) -> tuple[tuple[np.ndarray, np.ndarray], int]:
        """Cut a piece in two, or put another text's part behind its first part: tokens, types, and which it is."""
        text, start, end = cut
        inside = self._piece(shard, text, start, end)[1:-1]
        size = int(draws.integers(1, max(len(inside), 2)))
        first, second = inside[:size], inside[size:]
        is_other = (bool(draws.integers(2)) or not len(second)) and len(shard) > 1
        if is_other:
            other = (text + int(draws.integers(1, len(shard)))) % len(shard)
            length, wanted = int(shard.lengths[other]) - 2, max(len(second), 1)
            begin = int(draws.integers(max(length - wanted, 0) + 1))
            second = self._piece(shard, other, begin, min(begin + wanted, length))[1:-1]
        ends = [self.tokenizer.end_id]
        row = np.concatenate([[self.tokenizer.start_id], first, ends, second, ends])
        types = (np.arange(len(row)) > len(first) + 1).astype(np.int64)
        return (row, types), OTHER if is_other else FOLLOWS

    def _score(
        self, product: Filler, rows: Sequence[np.ndarray], places: Sequence[np.ndarray]
    ) -> tuple[float, int, int]:
        return score(product, self.masker, rows, places, self.config.batch_tokens)

    def _how(self) -> str:
        """Say how held-out texts are masked, for signatures."""
        c = self.config
        words = "|whole words" if c.masking.whole_words else ""
        return f"share:{c.masking.prob}|all hidden{words}|context:{c.context}|masks:{HELD_OUT_SEED}"

    def _piece(self, shard: Shard, text: int, start: int, end: int) -> np.ndarray:
        """Read tokens of a text, start and end put around them."""
        first = shard.starts[text] + 1
        inside = shard.tokens[first + start : first + end].astype(np.int64)
        return np.concatenate([[self.tokenizer.start_id], inside, [self.tokenizer.end_id]])


def check_head(model: Bert) -> Bert:
    """Refuse a model that predicts no masked tokens.

    Args:
        model: The model.

    Returns:
        The same.

    Raises:
        ConfigError: Its head is another.
    """
    if model.config.head != "masked":
        what = f"model.head is {model.config.head!r}"
        raise ConfigError(what, mend="leave it out: masked tokens are to be predicted")
    return model


def score(
    product: Filler,
    masker: Masker,
    rows: Sequence[np.ndarray],
    places: Sequence[np.ndarray],
    batch_tokens: int,
    told: Sequence[tuple[np.ndarray, tuple[int, int]]] | None = None,
) -> tuple[float, int, int]:
    """Hide all chosen tokens, and have them predicted.

    Args:
        product: The model.
        masker: Hides.
        rows: Tokens of each row, nothing hidden.
        places: The chosen places of each.
        batch_tokens: Tokens of a batch at most.
        told: As :meth:`regard.tasks.filler.Filler.predict` wants it.

    Returns:
        −Σ ln p of the chosen tokens, how many are right, and how many there are.
    """
    nats, right, count = 0.0, 0, 0
    read = [masker.hide_all(row, at) for row, at in zip(rows, places, strict=True)]
    for n, logp_MV in product.predict(read, places, batch_tokens, told):
        labels_M = torch.from_numpy(rows[n][places[n]])
        nats -= float(logp_MV.gather(-1, labels_M[:, None]).sum())
        right += int((logp_MV.argmax(-1) == labels_M).sum())
        count += len(labels_M)
    return nats, right, count
