"""Masked language modelling: predict hidden tokens of a text from those on both sides.

Loss = −Σ_m ln p(x_m | the text with its chosen tokens hidden), over the chosen places m alone. What is hidden is drawn
anew in each epoch. Texts stand beside one another in a batch and cannot see each other; what is longer than the context
is cut, at other places in each epoch, and every piece has the start token before it and the end token behind.

Papers: Devlin et al. 2019, §3.1; Liu et al. 2019, §4: masks drawn anew, and no next sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention import Segments
from regard.data.shards import Shard
from regard.data.tokenizer import MASK, Tokenizer
from regard.errors import ConfigError
from regard.metrics.language import entropy, masked
from regard.metrics.measure import Measure
from regard.models.bert import Bert
from regard.tasks.filler import Filler, OwnMasks
from regard.tasks.labeller import TextPairs
from regard.tasks.masking import Masker, Masking, chance
from regard.tasks.task import Batch, Evaluated, Loss, check_counts
from regard.tasks.texts import Pieces, TextData, TextTask, TextTokenizerConfig, prepare

HELD_OUT_SEED = 0  # of what is hidden in held-out texts, whatever the run's seed: scores are of the same places
AROUND = 2  # start and end of each piece
NUM_SAMPLES = 10
SAMPLE_TOKENS = 48


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
        if self.context <= AROUND:
            mend = f"give at least {AROUND + 1}: start and end are counted"
            raise ConfigError(f"context is {self.context}", mend=mend)
        check_counts(batch_tokens=self.batch_tokens)


@dataclass(frozen=True)
class MaskedBatch(Batch):
    """Pieces of texts with hidden tokens: flat rows and their segments.

    Attributes:
        tokens_N: int64, what the model reads.
        places_M: int64, rows whose tokens it predicts, ascending.
        labels_M: int64, the tokens that stood there.
        segments: Which rows belong together.
    """

    tokens_N: Tensor
    places_M: Tensor
    labels_M: Tensor
    segments: Segments


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
        # A text's own start and end are not counted: every piece is given both.
        inside = shards["train"].lengths - 2
        pieces = Pieces(inside, config.context, config.batch_tokens, seed, shared=0, around=AROUND)
        super().__init__(config.data, shards, tokenizer, pieces, data_notes)
        self.config, self.seed = config, seed
        self.masker = Masker(config.masking, tokenizer)
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
        shards, tokenizer, notes = prepare(config.data, config.tokenizer, seed, folder, is_new, mask=True)
        TextPairs.around(tokenizer)  # the file says what stands around a text, for other readers of it
        return MaskedTask(config, shards, tokenizer, seed, notes)

    def build(self) -> Bert:
        """Build the model."""
        model = self.build_for(self.config.context, self.config.model, "bert", Bert, "fill in masks")
        if model.config.head != "masked":
            what = f"model.head is {model.config.head!r}"
            raise ConfigError(what, mend="leave it out: masked tokens are to be predicted")
        return model

    def batch(self, index: int) -> MaskedBatch:
        """Make a micro-batch, a pure function of (seed, index): what is hidden in it too."""
        rows = [self._piece(self.train, text, a, b) for text, a, b in self.pieces.at(index)]
        tokens_N, draws = np.concatenate(rows), chance(self.seed, index)
        places_M = self.masker.choose(tokens_N, draws)
        return MaskedBatch(
            torch.from_numpy(self.masker.hide(tokens_N, places_M, draws)),
            torch.from_numpy(places_M),
            torch.from_numpy(tokens_N[places_M]),
            Segments.ragged([len(row) for row in rows]),
        )

    def count(self, batch: MaskedBatch) -> int:
        """Count the tokens that are predicted."""
        return batch.labels_M.shape[0]

    def tokens(self, batch: MaskedBatch) -> int:
        """Count the tokens that are read."""
        return batch.tokens_N.shape[0]

    def loss(self, model: Bert, batch: MaskedBatch) -> Loss:
        """Compute the cross-entropy at the chosen places, summed; the head runs on those rows alone."""
        hidden_MD = model(batch.tokens_N, batch.segments)[batch.places_M]
        return self.criterion(model.head(hidden_MD), batch.labels_M, 0.0)

    def product(self, model: Bert, device: torch.device) -> Filler:
        """Put the model and its tokenizer together."""
        return Filler(model, OwnMasks(self.tokenizer), self.config.context, device)

    def validate(self, model: Bert, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss per hidden token, and how many are right."""
        nats, right, count = self._score(self.product(model, device), *self.held_out("dev"))
        return {"loss": nats / max(count, 1), "masked_accuracy": right / max(count, 1)}

    def test(self, product: Filler) -> Evaluated:
        """Score the test part, and show what the model fills in at the beginnings of some pieces."""
        rows, places = self.held_out("test")
        measures = masked(*self._score(product, rows, places), self._how())
        # What it says of a mask with nothing but start and end around it is the same wherever that mask is from.
        alone = np.array([self.tokenizer.start_id, self.masker.mask_id, self.tokenizer.end_id])
        _, logp_MV = next(iter(product.predict([alone], [np.array([1])])))
        labels = np.concatenate([row[at] for row, at in zip(rows, places, strict=True)])
        nats, right = -float(logp_MV[0, labels].sum()), int((labels == int(logp_MV[0].argmax())).sum())
        self._alone = masked(nats, right, len(labels), "the mask alone")
        shown = range(0, len(rows), max(1, -(-len(rows) // NUM_SAMPLES)))
        read = [self.masker.hide_all(rows[n], places[n]) for n in shown]
        best = [row.copy() for row in read]
        for n, logp in product.predict(read, [places[n] for n in shown], self.config.batch_tokens):
            best[n][places[shown[n]]] = logp.argmax(-1).numpy()
        sources, wanted, outputs = (self._show(some) for some in (read, [rows[n] for n in shown], best))
        return Evaluated(measures, sources, [[text] for text in wanted], outputs)

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score the most frequent token, and the model itself without the text around a mask, at the same places."""
        counts = np.bincount(self.train.tokens, minlength=self.tokenizer.vocab_size)
        counts[self.tokenizer.special_ids] = 0
        rows, places = self.held_out("test")
        labels = np.concatenate([row[at] for row, at in zip(rows, places, strict=True)])
        nats, right = entropy(labels.tolist(), counts.tolist()), int((labels == counts.argmax()).sum())
        return {
            "tokens by their frequency": masked(nats, right, len(labels), "tokens by frequency"),
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

    def _show(self, rows: Sequence[np.ndarray]) -> list[str]:
        """Write rows as a reader would: a mask takes the space before it along, which is put back."""
        texts = [self.tokenizer.decode(row[:SAMPLE_TOKENS].tolist()) for row in rows]
        return [text.replace(MASK, f" {MASK}").strip() for text in texts]


def score(
    product: Filler, masker: Masker, rows: Sequence[np.ndarray], places: Sequence[np.ndarray], batch_tokens: int
) -> tuple[float, int, int]:
    """Hide all chosen tokens, and have them predicted.

    Args:
        product: The model.
        masker: Hides.
        rows: Tokens of each row, nothing hidden.
        places: The chosen places of each.
        batch_tokens: Tokens of a batch at most.

    Returns:
        −Σ ln p of the chosen tokens, how many are right, and how many there are.
    """
    nats, right, count = 0.0, 0, 0
    read = [masker.hide_all(row, at) for row, at in zip(rows, places, strict=True)]
    for n, logp_MV in product.predict(read, places, batch_tokens):
        labels_M = torch.from_numpy(rows[n][places[n]])
        nats -= float(logp_MV.gather(-1, labels_M[:, None]).sum())
        right += int((logp_MV.argmax(-1) == labels_M).sum())
        count += len(labels_M)
    return nats, right, count
