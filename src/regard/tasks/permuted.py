"""Permutation language modelling: predict the last tokens of a random order from all that come before them in it.

Loss = −Σ_{t>c} ln p(x_{z_t} | x_{z_<t}), over the last one in K tokens of a factorization order z that is drawn anew
for each piece of a text in each epoch; the model reads the text in its own order of places. Targets lie in spans.
Tokens that are no targets see each other and are seen by all; a target sees them, and the targets before it in the
order. Texts stand beside one another in a batch and cannot see each other; what is longer than the context is cut, at
other places in each epoch, and of the text before a piece the model remembers what its blocks read there.

Paper: Yang et al. 2019, §2.2 (orders), §2.3 (partial prediction), §2.4 (memory), §3.1 (spans). Ours differs in: a batch
is a function of (seed, index) alone, so a piece's memory is computed anew in each step, by the weights of that step,
without gradient, from the ``memory`` tokens before it, which see each other and nothing else: it reaches one piece
back, where a memory kept from step to step holds traces of all before. Spans are counted in tokens, as in the paper,
where the published code counts words; they lie on a circle, so that every token of a piece is a target equally often.
No second text, no type, no reading backwards; a text's start and end are context for all, and never targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from regard.attention import Segments
from regard.data.batching import like_lengths
from regard.data.shards import Shard
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError
from regard.metrics.language import masked
from regard.metrics.measure import Measure
from regard.models.xlnet import XLNet
from regard.tasks.building import build
from regard.tasks.filler import ROWS_AT_ONCE, Filler, OwnMasks
from regard.tasks.labeller import TextPairs
from regard.tasks.masking import chance
from regard.tasks.task import Batch, Evaluated, Loss, check_counts, evaluating
from regard.tasks.texts import Pieces, TextData, TextTask, TextTokenizerConfig, check_model, prepare

HELD_OUT_SEED = 0  # of the orders of held-out pieces, whatever the run's seed: scores are of the same targets
NUM_SAMPLES = 10
CONTEXT_RANK = -1


@dataclass(frozen=True)
class Ordering:
    """What is predicted of a piece, and in which order.

    Attributes:
        one_in: One token in so many is a target (the paper's K).
        max_span: Tokens of a span of targets at most; 1 draws each target by itself.
    """

    one_in: int = 6
    max_span: int = 5

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is below 1.
        """
        check_counts(ordering__one_in=self.one_in, ordering__max_span=self.max_span)


@dataclass(frozen=True)
class PermutedConfig:
    """Settings of the task.

    Attributes:
        data: Where texts come from.
        tokenizer: How they become tokens.
        model: ``family`` and its settings; the vocabulary's size is filled in, and ``memory_tokens`` where it is not
            said.
        ordering: Which tokens are predicted, and in which order.
        context: Tokens that the model reads at once.
        memory: Tokens before a piece that the model remembers; 0 for none.
        batch_tokens: Tokens of a micro-batch at most; what is remembered comes on top.
    """

    data: TextData
    tokenizer: TextTokenizerConfig = field(default_factory=TextTokenizerConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"family": "xlnet"})
    ordering: Ordering = field(default_factory=Ordering)
    context: int = 128
    memory: int = 128
    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range.
        """
        check_counts(context=self.context, batch_tokens=self.batch_tokens)
        if self.memory < 0:
            raise ConfigError(f"memory is {self.memory}", mend="give tokens, or 0 for none")

    def build_model(self, vocab_size: int) -> XLNet:
        """Build the model for a vocabulary of so many tokens."""
        given, values = {"vocab_size": vocab_size}, {"memory_tokens": self.memory}
        model = build({**values, **self.model}, "xlnet", given, XLNet, "predict in any order", "model")
        if not model.config.fills:
            what = f"model.head is {model.config.head!r}, model.attention {model.config.attention!r}"
            raise ConfigError(what, mend="leave them out: tokens are predicted from both sides")
        return model


@dataclass(frozen=True)
class PermutedBatch(Batch):
    """Pieces of texts, the order of each, and what stood before: flat rows and their segments.

    Attributes:
        tokens_N: int64, tokens of the pieces.
        order_N: int64, rank of each in the order of its piece; those that are no targets share the lowest.
        targets_P: int64, rows of the tokens to predict, ascending.
        segments: Which rows belong together.
        before_M: int64, tokens before each piece.
        before: Which of those belong together, one sequence a piece; lengths may be 0.
    """

    tokens_N: Tensor
    order_N: Tensor
    targets_P: Tensor
    segments: Segments
    before_M: Tensor
    before: Segments

    @property
    def labels_P(self) -> Tensor:
        """The tokens to predict."""
        return self.tokens_N[self.targets_P]


class Orders:
    """Draws targets and their order; special tokens are never targets.

    Args:
        config: How.
        tokenizer: The tokens'.
    """

    def __init__(self, config: Ordering, tokenizer: Tokenizer) -> None:
        self.config = config
        self.is_text_V = np.ones(tokenizer.vocab_size, bool)
        self.is_text_V[tokenizer.special_ids] = False
        # The published code's share of spans of n: 1/n.
        shares = 1 / np.arange(1, config.max_span + 1)
        self.shares = shares / shares.sum()

    def draw(self, tokens_T: np.ndarray, draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw the targets of a piece, and their order.

        Of n tokens that stand for text ⌈n/K⌉ are targets. Laid on a circle they are cut, from a random place on, into
        stretches of K·L tokens, L drawn; somewhere in each stretch L tokens in a row are targets.

        Args:
            tokens_T: Tokens of the piece.
            draws: Where chance comes from.

        Returns:
            order_T, and the places of the targets, ascending.
        """
        order_T = np.full(len(tokens_T), CONTEXT_RANK, np.int64)
        text = np.flatnonzero(self.is_text_V[tokens_T])
        if not len(text):
            return order_T, text
        count = -(-len(text) // self.config.one_in)
        spans = draws.choice(len(self.shares), count, p=self.shares) + 1
        spans = spans[: int(np.searchsorted(spans.cumsum(), count)) + 1]
        spans[-1] -= spans.sum() - count
        stretches = self.config.one_in * spans
        stretches[-1] -= self.config.one_in * count - len(text)
        starts = stretches.cumsum() - stretches + draws.integers(0, stretches - spans + 1)
        within = np.arange(count) - np.repeat(spans.cumsum() - spans, spans)
        places = np.sort(text[(np.repeat(starts, spans) + within + draws.integers(len(text))) % len(text)])
        order_T[places] = draws.permutation(count)
        return order_T, places


class PermutedTask(TextTask):
    """Training on texts in random orders; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        shards: The texts of each part as tokens.
        tokenizer: Fit on the training part; it has a mask, for use.
        seed: Of the order of batches, and of the orders in them.
        data_notes: Where the texts come from.
    """

    unit = "target"

    def __init__(
        self, config: PermutedConfig, shards: dict[str, Shard], tokenizer: Tokenizer, seed: int, data_notes: list[str]
    ) -> None:
        pieces = Pieces(shards["train"].lengths, config.context, config.batch_tokens, seed, shared=0)
        super().__init__(config.data, shards, tokenizer, pieces, data_notes)
        self.config, self.seed, self.orders = config, seed, Orders(config.ordering, tokenizer)
        self._labels = np.zeros(0, np.int64)
        self._alone: dict[str, Measure] = {}

    @staticmethod
    def prepare(config: PermutedConfig, seed: int, folder: Path, is_new: bool) -> PermutedTask:
        """Read, deal and tokenize the texts; a resumed run finds them in its folder.

        Args:
            config: The settings.
            seed: Of the split, of the order of batches, and of the orders in them.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.
        """
        check_model(config.build_model)
        shards, tokenizer, notes = prepare(config.data, config.tokenizer, seed, folder, is_new, mask=True)
        TextPairs.around(tokenizer)  # the file says what stands around a text, for other readers of it
        return PermutedTask(config, shards, tokenizer, seed, notes)

    def build(self) -> XLNet:
        """Build the model."""
        return self.config.build_model(self.tokenizer.vocab_size)

    def batch(self, index: int) -> PermutedBatch:
        """Make a micro-batch, a pure function of (seed, index): the orders in it too."""
        pieces, draws = self.pieces.at(index), chance(self.seed, index)
        return self._collate(self.train, pieces, [draws] * len(pieces))

    def count(self, batch: PermutedBatch) -> int:
        """Count the targets."""
        return batch.targets_P.shape[0]

    def tokens(self, batch: PermutedBatch) -> int:
        """Count the tokens of the pieces; what stands before them is not counted again."""
        return batch.tokens_N.shape[0]

    def loss(self, model: XLNet, batch: PermutedBatch) -> Loss:
        """Compute the cross-entropy at the targets, summed; the head runs on those rows alone."""
        return self.criterion(model, _read(model, batch), batch.labels_P, 0.0)

    def product(self, model: XLNet, device: torch.device) -> Filler:
        """Put the model and its tokenizer together."""
        return Filler(model, OwnMasks(self.tokenizer), self.config.context, device)

    def validate(self, model: XLNet, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss per target, and how many are right."""
        nats, right, count = self._score(model, device, "dev")
        return {"loss": nats / max(count, 1), "target_accuracy": right / max(count, 1)}

    def test(self, product: Filler) -> Evaluated:
        """Score the test part, and show what the model fills in where all targets of some pieces are masked."""
        c = self.config
        spans = f"one in:{c.ordering.one_in}|spans:{c.ordering.max_span}"
        how = f"{spans}|context:{c.context}|memory:{c.memory}|orders:{HELD_OUT_SEED}"
        model = cast(XLNet, product.model)
        measures = masked(*self._score(model, product.device, "test"), how, "target")
        rows, places = self._rows("test")
        self._labels = np.concatenate([row[at] for row, at in zip(rows, places, strict=True)])
        self._alone = masked(*product.alone(self._labels), len(self._labels), "the mask alone", "target")
        shown = range(0, len(rows), max(1, -(-len(rows) // NUM_SAMPLES)))
        wanted = [rows[n] for n in shown if len(places[n])]
        at = [places[n] for n in shown if len(places[n])]
        read = [row.copy() for row in wanted]
        for row, masks in zip(read, at, strict=True):
            row[masks] = product.mask_id
        best = [row.copy() for row in read]
        for n, logp_MV in product.predict(read, at, c.batch_tokens):
            best[n][at[n]] = logp_MV.argmax(-1).numpy()
        sources, references, outputs = (self.show(some) for some in (read, wanted, best))
        return Evaluated(measures, sources, [[text] for text in references], outputs)

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score the most frequent token, and the model itself without the text around a target, at the same places."""
        frequent = self.by_frequency(self._labels, self.train)
        return {
            "tokens by their frequency": masked(*frequent, len(self._labels), "tokens by frequency", "target"),
            "this model without the text around": self._alone,
        }

    def held_out(self, part: str) -> Iterator[PermutedBatch]:
        """Cut a part's texts from their beginnings, and draw their orders; the same for every run and model.

        Args:
            part: ``dev`` or ``test``.

        Yields:
            Batches of pieces of like lengths.
        """
        pieces = self._cuts(part)
        for some in like_lengths(pieces[:, 2] - pieces[:, 1], self.config.batch_tokens):
            yield self._collate(self.shards[part], pieces[some], [chance(HELD_OUT_SEED, int(n)) for n in some])

    def _cuts(self, part: str) -> np.ndarray:
        """Text, first token and the token behind the last of each piece of a held-out part."""
        step, lengths = self.config.context, self.shards[part].lengths
        return np.array([(text, a, min(a + step, n)) for text, n in enumerate(lengths) for a in range(0, n, step)])

    def _rows(self, part: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Tokens of each piece of a held-out part, and the places of its targets."""
        rows = [self._tokens(self.shards[part], *cut) for cut in self._cuts(part)]
        return rows, [self.orders.draw(row, chance(HELD_OUT_SEED, n))[1] for n, row in enumerate(rows)]

    def _tokens(self, shard: Shard, text: int, start: int, end: int) -> np.ndarray:
        first = shard.starts[text]
        return shard.tokens[first + start : first + end].astype(np.int64)

    def _collate(self, shard: Shard, pieces: np.ndarray, draws: Sequence[np.random.Generator]) -> PermutedBatch:
        """Put pieces side by side, with the order of each and what stands before it."""
        rows = [self._tokens(shard, *piece) for piece in pieces]
        before = [self._tokens(shard, text, max(a - self.config.memory, 0), a) for text, a, _ in pieces]
        drawn = [self.orders.draw(row, of) for row, of in zip(rows, draws, strict=True)]
        segments = Segments.ragged([len(row) for row in rows])
        starts = segments.starts_B.tolist()
        return PermutedBatch(
            torch.from_numpy(np.concatenate(rows)),
            torch.from_numpy(np.concatenate([order for order, _ in drawn])),
            torch.from_numpy(np.concatenate([start + at for start, (_, at) in zip(starts, drawn, strict=True)])),
            segments,
            torch.from_numpy(np.concatenate(before)),
            Segments.ragged([len(row) for row in before]),
        )

    def _score(self, model: XLNet, device: torch.device, part: str) -> tuple[float, int, int]:
        """Give −Σ ln p of a held-out part's targets, how many are right, and how many there are."""
        nats, right, count = 0.0, 0, 0
        for batch in self.held_out(part):
            moved = batch.to(device)
            with evaluating(model), torch.inference_mode():
                hidden_PD = _read(model, moved)
                parts = zip(hidden_PD.split(ROWS_AT_ONCE), moved.labels_P.split(ROWS_AT_ONCE), strict=True)
                for some_PD, labels_P in parts:
                    logp_PV = model.head(some_PD).double().log_softmax(-1)
                    nats -= float(logp_PV.gather(-1, labels_P[:, None]).sum())
                    right += int((logp_PV.argmax(-1) == labels_P).sum())
                    count += len(labels_P)
        return nats, right, count


def _read(model: XLNet, batch: PermutedBatch) -> Tensor:
    """Compute the targets' stream, with what is remembered of the tokens before."""
    memory = None
    if len(batch.before_M):
        with torch.no_grad():
            memory = model.streams(batch.before_M, batch.before, remember=True).memory
    read = model.streams(
        batch.tokens_N, batch.segments, order_N=batch.order_N, targets_P=batch.targets_P, memory=memory
    )
    return cast(Tensor, read.targets_PD)
