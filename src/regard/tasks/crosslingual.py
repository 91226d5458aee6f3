"""Masked language modelling over several languages, and over pairs of translations read side by side.

Loss = −Σ_m ln p(x_m | the row with its chosen tokens hidden). A row is one text, or (translation language modelling) a
text, an end token, and its translation: what is hidden on one side may be read off the other. Every token is told its
language, and the second text's positions begin anew.

Paper: Conneau & Lample 2019, "Cross-lingual Language Model Pretraining", §3.2 and §3.3. Ours differs in: rows of unlike
languages share a batch; texts are read as often as they stand in the data, without smoothing between languages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data import Pair
from regard.data.batching import Order
from regard.data.documents import Between
from regard.data.shards import Shard
from regard.data.split import normalized
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, DataError
from regard.metrics.language import masked
from regard.metrics.measure import Measure
from regard.models.bert import Bert
from regard.tasks.corpus import PairData, read_corpus
from regard.tasks.filler import Filler, OwnMasks
from regard.tasks.labeller import TextPairs
from regard.tasks.masked import AROUND, HELD_OUT_SEED, NUM_SAMPLES, MaskedBatch, check_head, score
from regard.tasks.masking import Masker, Masking, chance
from regard.tasks.task import PREPARED, Evaluated, Loss, check_counts
from regard.tasks.texts import (
    TOKENIZER_BYTES,
    Pieces,
    TextData,
    TextTask,
    TextTokenizerConfig,
    build_for,
    check_model,
    read_parts,
    up_to,
)

PARTS = ("train", "dev", "test")
DEV_TEXTS = 300  # of each language, and pairs of each two, so that a validation takes seconds


@dataclass(frozen=True)
class CrosslingualData:
    """Where texts come from.

    Attributes:
        train: For a language, as ``en``, its texts: a .txt or .jsonl file, a folder of them, or ``catalogue:NAME``. For
            two, as ``en-de``, a file of pairs or ``catalogue:NAME``; each side is a text of its language too.
        between: What stands between two texts of a plain text file.
        key: Of the text in JSONL.
    """

    train: dict[str, str]
    between: Between = "blank"
    key: str = "text"

    def __post_init__(self) -> None:
        """Refuse names that are no languages.

        Raises:
            ConfigError: A name is neither of a language nor of two, or there are no data at all.
        """
        for name, path in self.train.items():
            if not isinstance(name, str):  # YAML reads a bare no, for Norwegian, as false
                raise ConfigError(f"data.train.{name} is no name", mend="put it in quotation marks")
            sides = name.split("-")
            if len(sides) > 2 or not all(sides) or len({*sides}) < len(sides):
                raise ConfigError(f"data.train.{name} names neither a language nor two", mend="write en, or en-de")
            if not isinstance(path, str):
                raise ConfigError(f"data.train.{name} is {path!r}", mend="give the name of a file")
        if not self.train:
            raise ConfigError("no data", mend="give data.train: {en-de: FILE}")

    @property
    def pairs(self) -> dict[str, str]:
        """The data of pairs, by their two languages."""
        return {name: path for name, path in self.train.items() if "-" in name}

    @property
    def texts(self) -> dict[str, str]:
        """The data of single texts, by their language."""
        return {name: path for name, path in self.train.items() if "-" not in name}

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages, in the order of their names: their numbers."""
        return tuple(sorted({side for name in self.train for side in name.split("-")}))


@dataclass(frozen=True)
class CrosslingualConfig:
    """Settings of the task.

    Attributes:
        data: Where texts come from.
        tokenizer: How they become tokens, one vocabulary for all languages.
        model: ``family`` and its settings; the vocabulary's size and the languages are filled in.
        masking: Which tokens are hidden, and how.
        translation: Share of the batches that hold translations side by side; 0 for single texts alone.
        context: Tokens that the model reads at once.
        batch_tokens: Tokens of a micro-batch at most.
    """

    data: CrosslingualData
    tokenizer: TextTokenizerConfig = field(default_factory=TextTokenizerConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"family": "bert"})
    masking: Masking = field(default_factory=Masking)
    translation: float = 0.5
    context: int = 128
    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range, or translations are asked for without pairs.
        """
        check_counts(batch_tokens=self.batch_tokens, context=self.context - AROUND)
        if not 0 <= self.translation <= 1:
            raise ConfigError(f"translation is {self.translation}", mend="give a share in [0, 1]")
        if self.translation and not self.data.pairs:
            raise ConfigError("translation is set, and there are no pairs", mend="give some, or translation: 0")

    def build_model(self, vocab_size: int) -> Bert:
        """Build the model for a vocabulary of so many tokens."""
        languages = self.data.languages
        told = {"num_languages": len(languages), "languages": languages, "reset_positions": True}
        values = {"num_types": 1, **self.model, **told}
        return check_head(build_for(vocab_size, self.context, values, "bert", Bert, "fill in"))


@dataclass(frozen=True)
class _Rows:
    """Held-out rows, what is hidden in them, and what is told of them."""

    rows: list[np.ndarray]
    places: list[np.ndarray]
    told: list[tuple[np.ndarray, tuple[int, int]]]


class CrosslingualTask(TextTask):
    """Training on texts of several languages with hidden tokens; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        texts: For each language its texts as tokens, by part.
        pairs: For each two languages both sides as tokens, by part.
        tokenizer: Fit on the training part; it has a mask.
        seed: Of the order of batches, and of what is hidden.
        data_notes: Where the texts come from.
    """

    unit = "masked token"

    def __init__(
        self,
        config: CrosslingualConfig,
        texts: dict[str, dict[str, Shard]],
        pairs: dict[str, dict[str, tuple[Shard, Shard]]],
        tokenizer: Tokenizer,
        seed: int,
        data_notes: list[str],
    ) -> None:
        self.languages = config.data.languages
        self.texts, self.paired = texts, pairs
        # Number of the first text of each language, and that of the first pair of each two, among all.
        shards = {f"{part} {one}": texts[part][one] for part in PARTS for one in self.languages}
        train = [texts["train"][one] for one in self.languages]
        self.first_text = np.cumsum([0, *map(len, train)])
        inside = np.concatenate([shard.lengths for shard in train]) - 2
        pieces = Pieces(inside, config.context, config.batch_tokens, seed, shared=0, around=AROUND)
        data = TextData(", ".join([*config.data.pairs.values(), *config.data.texts.values()]))
        super().__init__(data, {"train": train[0], **shards}, tokenizer, pieces, data_notes)
        self.shards = shards
        self.config, self.seed, self.masker = config, seed, Masker(config.masking, tokenizer)
        sides = list(pairs["train"].values())
        self.first_pair = np.cumsum([0, *(len(source) for source, _ in sides)])
        self.order: Order | None = None
        self.fits = np.zeros(0, np.int64)
        if config.translation:
            lengths = np.concatenate([source.lengths + target.lengths - 1 for source, target in sides])
            self.fits = np.flatnonzero(lengths <= config.context)
            if not len(self.fits):
                mend = "raise context, or give shorter ones"
                raise DataError(f"no pair has at most {config.context} tokens", where=self.data.train, mend=mend)
            if long := len(lengths) - len(self.fits):
                self.notes.append(f"{long:,} training pairs over {config.context} tokens are not read side by side.")
            self.order = Order([lengths[self.fits]], config.batch_tokens, seed)

    @staticmethod
    def prepare(config: CrosslingualConfig, seed: int, folder: Path, is_new: bool) -> CrosslingualTask:
        """Read, deal and tokenize texts and pairs; a resumed run finds them in its folder.

        Args:
            config: The settings.
            seed: Of the split, of the order of batches, and of what is hidden.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.
        """
        check_model(config.build_model)
        data, notes = config.data, list[str]()
        corpora: dict[str, dict[str, list[Pair]]] = {}
        for name, path in data.pairs.items():
            corpus = read_corpus(PairData(path), seed)
            corpora[name] = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}
            notes += corpus.notes
        more = {}
        for language, path in data.texts.items():
            more[language], told = read_parts(TextData(path, between=data.between, key=data.key), seed)
            notes += told

        def texts(language: str, part: str) -> Iterator[str]:
            sides = [(name.split("-").index(language), name) for name in data.pairs if language in name.split("-")]
            # A verse that stands beside three languages is one text.
            own = dict.fromkeys(
                (pair.source, pair.target)[side] for side, name in sides for pair in corpora[name][part]
            )
            return chain(own, more[language][part]() if language in more else ())

        def kept(language: str, part: str) -> Iterator[str]:
            """Leave out of the training part what is held out beside another language."""
            if part != "train":
                return texts(language, part)
            held_out = {normalized(text) for other in PARTS[1:] for text in texts(language, other)}
            return (text for text in texts(language, part) if normalized(text) not in held_out)

        path = folder / "tokenizer.json"
        tokenizer = Tokenizer.read(path) if not is_new and path.exists() else None
        if tokenizer is None:
            share = TOKENIZER_BYTES // len(data.languages)  # a language's own, however much there is of another
            some = chain.from_iterable(up_to(kept(language, "train"), share) for language in data.languages)
            tokenizer = Tokenizer.train(some, config.tokenizer.kind, config.tokenizer.vocab_size, mask=True)
        TextPairs.around(tokenizer)  # the file says what stands around a text, for other readers of it

        def shard(name: str, of: Iterable[str]) -> Shard:
            at = folder / PREPARED / name
            found = Shard.read(at) if not is_new and Shard.there(at) else Shard.write(at, of, tokenizer)
            if not len(found):
                raise DataError(f"no text in the part {name}", where=", ".join(data.pairs), mend="give more texts")
            return found

        single = {part: {one: shard(f"{part}-{one}", kept(one, part)) for one in data.languages} for part in PARTS}
        pairs = {
            part: {
                name: (
                    shard(f"{part}-{name}-source", (pair.source for pair in corpora[name][part])),
                    shard(f"{part}-{name}-target", (pair.target for pair in corpora[name][part])),
                )
                for name in data.pairs
            }
            for part in PARTS
        }
        return CrosslingualTask(config, single, pairs, tokenizer, seed, notes)

    def build(self) -> Bert:
        """Build the model."""
        return self.config.build_model(self.tokenizer.vocab_size)

    def batch(self, index: int) -> MaskedBatch:
        """Make a micro-batch, a pure function of (seed, index): single texts, or translations side by side."""
        draws, share = chance(self.seed, index), self.config.translation
        # So many of the batches before this one held translations.
        before, until = int(index * share), int((index + 1) * share)
        if self.order is not None and until > before:
            chosen = [self._pair("train", *self._find(self.first_pair, n)) for n in self.fits[self.order.at(before)]]
            rows = [self._side_by_side(*one, bool(draws.integers(2))) for one in chosen]
        else:
            cuts = ((self._find(self.first_text, n), a, b) for n, a, b in self.pieces.at(index - before))
            rows = [self._single("train", language, text, a, b) for (language, text), a, b in cuts]
        return MaskedBatch.of([row for row, _ in rows], self.masker, draws, languages=[told for _, told in rows])

    def name_batch(self, index: int) -> str:
        """Say which data a micro-batch is of."""
        return f"micro-batch {index} of {self.data.train}"

    def count(self, batch: MaskedBatch) -> int:
        """Count the tokens that are predicted."""
        return batch.labels_M.shape[0]

    def tokens(self, batch: MaskedBatch) -> int:
        """Count the tokens that are read."""
        return batch.tokens_N.shape[0]

    def loss(self, model: Bert, batch: MaskedBatch) -> Loss:
        """Compute the cross-entropy at the chosen places, summed; the head runs on those rows alone."""
        return self.criterion(model, batch.hidden(model)[batch.places_M], batch.labels_M, 0.0)

    def product(self, model: Bert, device: torch.device) -> Filler:
        """Put the model and its tokenizer together."""
        return Filler(model, OwnMasks(self.tokenizer), self.config.context, device)

    def validate(self, model: Bert, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss per hidden token, single texts and, where trained on, translations."""
        product = self.product(model, device)
        single = self._score(product, self.alone("dev", DEV_TEXTS).values())
        scores = {"masked_accuracy": single[1] / max(single[2], 1)}
        if self.order is not None:
            beside = self._score(product, self.beside("dev", DEV_TEXTS).values())
            scores["masked_accuracy/beside"] = beside[1] / max(beside[2], 1)
            single = (single[0] + beside[0], single[1] + beside[1], single[2] + beside[2])
        return {"loss": single[0] / max(single[2], 1), **scores}

    def test(self, product: Filler) -> Evaluated:
        """Score the test part: each language alone, and each beside its translation, the same tokens hidden."""
        alone, beside = self.alone("test"), self.beside("test")
        found = {name: self._score(product, [rows]) for name, rows in {**alone, **beside}.items()}
        nats, right, count = (sum(column) for column in zip(*(found[name] for name in alone), strict=True))
        measures = masked(nats, int(right), int(count), self._how("alone"))
        for name, one in found.items():
            of = masked(*one, self._how(name))["masked_accuracy"]
            measures[f"masked_accuracy/{name}"] = Measure(f"masked_accuracy/{name}", of.value, of.signature)
        shown = _Rows([], [], [])
        for rows in (beside or alone).values():
            few = -(-NUM_SAMPLES // len(beside or alone))
            for mine, theirs in zip(
                (shown.rows, shown.places, shown.told), (rows.rows, rows.places, rows.told), strict=True
            ):
                mine += theirs[:few]
        read = [self.masker.hide_all(row, at) for row, at in zip(shown.rows, shown.places, strict=True)]
        best = [row.copy() for row in read]
        for n, logp in product.predict(read, shown.places, self.config.batch_tokens, shown.told):
            best[n][shown.places[n]] = logp.argmax(-1).numpy()
        sources, wanted, outputs = (
            [self.tokenizer.decode(row.tolist()) for row in some] for some in (read, shown.rows, best)
        )
        return Evaluated(measures, sources, [[text] for text in wanted], outputs)

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score each language's most frequent token, at the places that are hidden in single texts."""
        nats, right, count = 0.0, 0, 0
        found = {}
        for language, rows in self.alone("test").items():
            labels = np.concatenate([row[at] for row, at in zip(rows.rows, rows.places, strict=True)])
            cost, own = self.by_frequency(labels, self.texts["train"][language])
            name = f"masked_accuracy/{language}"
            one = masked(0.0, own, len(labels), "tokens by frequency")["masked_accuracy"]
            found[name] = Measure(name, one.value, one.signature)
            nats, right, count = nats + cost, right + own, count + len(labels)
        return {"tokens by their frequency": {**masked(nats, right, count, "tokens by frequency"), **found}}

    def alone(self, part: str, most: int | None = None) -> dict[str, _Rows]:
        """Cut a part's single texts from their beginnings, and choose what is hidden; the same for every run and model.

        Args:
            part: ``dev`` or ``test``.
            most: Texts of each language; None for all.

        Returns:
            The rows of each language.
        """
        step = self.config.context - AROUND
        found: dict[str, _Rows] = {}
        for number, language in enumerate(self.languages):
            lengths = (self.texts[part][language].lengths - 2)[:most]
            cuts = [(text, a, min(a + step, n)) for text, n in enumerate(lengths) for a in range(0, n, step)]
            rows = [self._single(part, number, *cut) for cut in cuts]
            places = [self.masker.choose(row, chance(HELD_OUT_SEED, n)) for n, ((row, _), _) in enumerate(rows)]
            found[language] = _Rows([row for (row, _), _ in rows], places, [(types, two) for (_, types), two in rows])
        return found

    def beside(self, part: str, most: int | None = None) -> dict[str, _Rows]:
        """Put translations side by side, and choose what is hidden in the second, the first whole in sight.

        Args:
            part: ``dev`` or ``test``.
            most: Pairs of each two languages; None for all.

        Returns:
            The rows, by ``de beside en``: the hidden language first.
        """
        found = {}
        for two, name in enumerate(self.paired[part]):
            for turned, (first, second) in enumerate((name.split("-"), name.split("-")[::-1])):
                number = range(len(self.paired[part][name][0]))[:most]
                rows = [self._side_by_side(*self._pair(part, two, n), bool(turned)) for n in number]
                rows = [one for one in rows if len(one[0][0]) <= self.config.context]
                places = []
                for n, ((row, types), _) in enumerate(rows):
                    start = int((types == 0).sum())
                    places.append(start + self.masker.choose(row[start:], chance(HELD_OUT_SEED, n)))
                told = [(types, languages) for (_, types), languages in rows]
                found[f"{second} beside {first}"] = _Rows([row for (row, _), _ in rows], places, told)
        return found

    def _score(self, product: Filler, parts: Iterable[_Rows]) -> tuple[float, int, int]:
        """Hide all chosen tokens; give −Σ ln p of them, how many are right, and how many there are."""
        of = [score(product, self.masker, one.rows, one.places, self.config.batch_tokens, one.told) for one in parts]
        nats, right, count = (sum(column) for column in zip(*of, strict=True))
        return nats, int(right), int(count)

    def _how(self, name: str) -> str:
        """Say how held-out texts are masked, for signatures."""
        words = "|whole words" if self.config.masking.whole_words else ""
        return f"{name}|share:{self.config.masking.prob}|all hidden{words}|context:{self.config.context}"

    @staticmethod
    def _find(firsts: np.ndarray, number: int) -> tuple[int, int]:
        """Say of which group a number is, and which it is there."""
        group = int(np.searchsorted(firsts, number, "right")) - 1
        return group, int(number - firsts[group])

    def _inside(self, shard: Shard, text: int, start: int = 0, end: int | None = None) -> np.ndarray:
        first, last = shard.starts[text] + 1, shard.starts[text + 1] - 1
        return shard.tokens[first + start : last if end is None else first + end].astype(np.int64)

    def _single(
        self, part: str, language: int, text: int, start: int, end: int
    ) -> tuple[tuple[np.ndarray, np.ndarray], tuple[int, int]]:
        """Read a piece of a text, start and end put around it."""
        inside = self._inside(self.texts[part][self.languages[language]], text, start, end)
        row = np.concatenate([[self.tokenizer.start_id], inside, [self.tokenizer.end_id]])
        return (row, np.zeros_like(row)), (language, language)

    def _pair(self, part: str, two: int, number: int) -> tuple[tuple[np.ndarray, int], tuple[np.ndarray, int]]:
        """Read a pair: tokens and language of each side."""
        name = list(self.paired[part])[two]
        sides = zip(self.paired[part][name], name.split("-"), strict=True)
        first, second = ((self._inside(shard, number), self.languages.index(one)) for shard, one in sides)
        return first, second

    def _side_by_side(
        self, first: tuple[np.ndarray, int], second: tuple[np.ndarray, int], is_turned: bool
    ) -> tuple[tuple[np.ndarray, np.ndarray], tuple[int, int]]:
        """Put start, a text, end, its translation and end in a row; of which of the two each token is."""
        (a, one), (b, other) = (second, first) if is_turned else (first, second)
        end = [self.tokenizer.end_id]
        row = np.concatenate([[self.tokenizer.start_id], a, end, b, end])
        return (row, (np.arange(len(row)) > len(a) + 1).astype(np.int64)), (one, other)
