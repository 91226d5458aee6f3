"""A trained model that labels texts with its tokenizer: classes or numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers
import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from regard.attention import Segments
from regard.data.batching import like_lengths
from regard.data.tokenizer import END, START, Tokenizer, read_library
from regard.decoding import DecodeOptions
from regard.errors import ConfigError, ContextError, DataError
from regard.metrics import labels as metrics
from regard.metrics.measure import Measure
from regard.models.labelled import Labelled
from regard.tasks.task import Loss, cross_entropy, evaluating
from regard.typed import check_texts


class Objective(Protocol):
    """What labels are: how they become targets, and outputs become labels again.

    Attributes:
        task: A key of :data:`regard.tasks.registry.TASKS`.
        num_outputs: Numbers that the model gives for each text.
        metrics: What labels are scored by; the first decides where nothing else is asked for.
    """

    task: str

    @property
    def metrics(self) -> tuple[str, ...]: ...
    @property
    def num_outputs(self) -> int: ...

    def targets(self, labels: Sequence[str], where: Sequence[str]) -> Tensor:
        """Turn labels into targets; ``where`` names each label's place for messages."""
        ...

    def loss(self, outputs_BO: Tensor, targets_B: Tensor, smoothing: float) -> Loss:
        """Compare outputs with targets."""
        ...

    def predictions(self, outputs_BO: Tensor) -> list[str] | list[float]:
        """Turn outputs into what is scored: names of classes, or numbers with all their digits."""
        ...

    def labels(self, outputs_BO: Tensor) -> list[str]:
        """Turn outputs into labels as they are written."""
        ...

    def measure(self, predicted: Sequence[Any], wanted: Sequence[str]) -> dict[str, Measure]:
        """Score predictions, of whatever kind :meth:`predictions` gives."""
        ...

    def facts(self) -> dict[str, Any]:
        """Say all that :data:`OBJECTIVES` needs to make it again."""
        ...


@dataclass(frozen=True)
class Classes:
    """Each text is of one class; cross-entropy.

    Attributes:
        names: The classes.
    """

    names: tuple[str, ...]
    task = "classify"
    metrics = ("accuracy", "f1", "matthews")

    @staticmethod
    def fit(labels: Sequence[str], where: Sequence[str]) -> Classes:
        """Find the classes of the training part."""
        names = tuple(sorted(set(labels)))
        if len(names) < 2:
            raise DataError(f"one class alone: {names[0][:40]!r}", where=where[0], mend="give texts of two or more")
        if len(names) > max(1000, len(labels) // 2):
            raise DataError(f"{len(names):,} classes in {len(labels):,} texts", mend="for numbers train regress")
        return Classes(names)

    @property
    def num_outputs(self) -> int:
        return len(self.names)

    def targets(self, labels: Sequence[str], where: Sequence[str]) -> Tensor:
        index = {name: place for place, name in enumerate(self.names)}
        for label, place in zip(labels, where, strict=True):
            if label not in index:
                raise DataError(f"the class {label[:40]!r} is not in the training part", where=place)
        return torch.tensor([index[label] for label in labels])

    def loss(self, outputs_BO: Tensor, targets_B: Tensor, smoothing: float) -> Loss:
        return cross_entropy(outputs_BO, targets_B, smoothing)

    def predictions(self, outputs_BO: Tensor) -> list[str]:
        return [self.names[place] for place in outputs_BO.argmax(-1).tolist()]

    def labels(self, outputs_BO: Tensor) -> list[str]:
        return self.predictions(outputs_BO)

    def measure(self, predicted: Sequence[Any], wanted: Sequence[str]) -> dict[str, Measure]:
        return metrics.classes(predicted, wanted)

    def facts(self) -> dict[str, Any]:
        return {"names": list(self.names)}


@dataclass(frozen=True)
class Numbers:
    """Each text has a number; squared error of (number − mean) / deviation.

    Attributes:
        mean: Of the training part.
        deviation: Of the training part.
    """

    mean: float
    deviation: float
    task = "regress"
    metrics = ("pearson", "spearman")

    @staticmethod
    def fit(labels: Sequence[str], where: Sequence[str]) -> Numbers:
        """Find mean and deviation of the training part."""
        values = _numbers(labels, where)
        with np.errstate(over="ignore"):
            deviation = float(np.std(values))
        if not np.isfinite(deviation):
            raise DataError("numbers too large to have a deviation", where=where[0], mend="scale them down")
        if not deviation:
            raise DataError(f"all numbers are {labels[0]}", where=where[0], mend="give texts with different ones")
        return Numbers(float(np.mean(values)), deviation)

    @property
    def num_outputs(self) -> int:
        return 1

    def targets(self, labels: Sequence[str], where: Sequence[str]) -> Tensor:
        return torch.tensor((_numbers(labels, where) - self.mean) / self.deviation, dtype=torch.float32)

    def loss(self, outputs_BO: Tensor, targets_B: Tensor, smoothing: float) -> Loss:
        squares = (outputs_BO[:, 0] - targets_B).square().sum()
        return Loss(squares, squares.detach())

    def predictions(self, outputs_BO: Tensor) -> list[float]:
        return [self.mean + self.deviation * value for value in outputs_BO[:, 0].tolist()]

    def labels(self, outputs_BO: Tensor) -> list[str]:
        # Down to a ten-thousandth of the deviation, whatever the size of the numbers is.
        decimals = 4 - math.floor(math.log10(self.deviation))
        return [repr(round(value, decimals) + 0.0) for value in self.predictions(outputs_BO)]  # + 0.0: no minus zero

    def measure(self, predicted: Sequence[Any], wanted: Sequence[str]) -> dict[str, Measure]:
        return metrics.numbers([float(one) for one in predicted], [float(one) for one in wanted])

    def facts(self) -> dict[str, Any]:
        return {"mean": self.mean, "deviation": self.deviation}


def _numbers(labels: Sequence[str], where: Sequence[str]) -> np.ndarray:
    values = []
    for label, place in zip(labels, where, strict=True):
        try:
            values.append(float(label))
        except ValueError:
            values.append(float("nan"))
        if not np.isfinite(values[-1]):
            raise DataError(f"{label[:40]!r} is no number", where=place, mend="for classes train classify")
    return np.array(values)


OBJECTIVES: dict[str, type[Classes] | type[Numbers]] = {Classes.task: Classes, Numbers.task: Numbers}


def objective(task: str, facts: Mapping[str, Any], where: str) -> Classes | Numbers:
    """Make an objective from what a model's folder says.

    Args:
        task: Its task.
        facts: As :meth:`Objective.facts` gave them.
        where: The file, for messages.

    Returns:
        The objective.

    Raises:
        ConfigError: They are not what they have to be.
    """
    try:
        if task == Classes.task:
            names = facts["names"]
            if set(facts) != {"names"} or not isinstance(names, list) or not all(type(n) is str for n in names):
                raise TypeError
            return Classes(tuple(names))
        mean, deviation = facts["mean"], facts["deviation"]
        is_number = all(type(value) in (int, float) and math.isfinite(value) for value in (mean, deviation))
        if not is_number or deviation <= 0:
            raise TypeError
        return Numbers(float(mean), float(deviation))
    except (KeyError, OverflowError, TypeError) as error:
        raise ConfigError("labels are not as they are written", where=where) from error


class TextPairs:
    """A tokenizer for one text, or two, with the tokens around them.

    Args:
        inner: The library's tokenizer.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self.inner = inner
        inner.no_padding()
        inner.no_truncation()

    @staticmethod
    def around(tokenizer: Tokenizer) -> TextPairs:
        """Put start and end around texts: ``<s> a </s>``, ``<s> a </s> b </s>``."""
        around = [(START, tokenizer.start_id), (END, tokenizer.end_id)]
        single, pair = f"{START} $A {END}", f"{START} $A {END} $B:1 {END}:1"
        tokenizer.inner.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=around)
        return TextPairs(tokenizer.inner)

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        return max(self.inner.get_vocab().values(), default=-1) + 1

    def encode_all(self, texts: Sequence[tuple[str, ...]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Turn texts into tokens, and say of which text each is."""
        given = [text if len(text) == 2 else text[0] for text in texts]
        found = self.inner.encode_batch(given)  # type: ignore[arg-type]
        return [(np.array(one.ids, np.int64), np.array(one.type_ids, np.int64)) for one in found]

    def to_json(self) -> str:
        """Write the tokenizer in the tokenizer.json format."""
        return self.inner.to_str(pretty=True)


def read_text_pairs(path: Path) -> TextPairs:
    """Read a tokenizer.json that says what stands around texts.

    Args:
        path: The file.

    Returns:
        The tokenizer.

    Raises:
        DataError: There is no such file.
        FormatError: It is no tokenizer.
    """
    return TextPairs(read_library(path))


@dataclass(frozen=True)
class Label:
    """What a model says of a text.

    Attributes:
        label: The class, or the number as text.
        probabilities: Of each class; empty for numbers.
    """

    label: str
    probabilities: dict[str, float]


class Labeller:
    """A model that labels texts: what ``regard.load`` gives for classes and numbers.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        goal: What its labels are.
        max_tokens: Tokens of a text at most, those around it included.
        device: Where it runs.
    """

    verbs = ("classify",)
    options: DecodeOptions | None = None

    def __init__(
        self,
        model: Labelled,
        tokenizer: TextPairs,
        goal: Objective,
        max_tokens: int,
        device: torch.device | None = None,
    ) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.model, self.tokenizer = model.to(self.device).eval(), tokenizer
        self.goal, self.max_tokens, self.task = goal, max_tokens, goal.task

    def tokenizers(self) -> dict[str, Any]:
        """Give the tokenizer by the name of its file."""
        return {"tokenizer.json": self.tokenizer}

    def classify(
        self,
        texts: Sequence[str | tuple[str, ...]],
        *,
        truncate: bool = False,
        languages: str = "",
        batch_tokens: int = 8192,
        first: int = 0,
    ) -> list[Label]:
        """Label texts, or pairs of texts; a label does not depend on the texts beside it.

        Args:
            texts: Texts, or pairs.
            truncate: Read the beginning of a text that is too long.
            languages: Of the texts, ``de``, or of both texts of each pair, ``en,de``; of models that are told.
            batch_tokens: Tokens of a batch at most.
            first: Number of the first text in the user's input, for messages.

        Returns:
            The label of each.

        Raises:
            ContextError: A text has more tokens than the model reads, and ``truncate`` is not set.
            UsageError: The languages are not the model's, or the model has to be told them.
        """
        texts = check_texts(texts, "classify", in_parts=True)
        two = self.model.encoder.number_languages(languages)
        rows = self.tokenizer.encode_all([(text,) if isinstance(text, str) else tuple(text) for text in texts])
        for number, (ids, _) in enumerate(rows, first + 1):
            if len(ids) > self.max_tokens and not truncate:
                mend = "split it, or read its beginning with truncate"
                what = f"{len(ids)} tokens; the model reads {self.max_tokens}"
                raise ContextError(what, where=f"classify, text {number}", mend=mend)
        outputs = self.outputs([cut(row, self.max_tokens) for row in rows], batch_tokens, two)
        names = self.goal.names if isinstance(self.goal, Classes) else ()
        probabilities = outputs.softmax(-1).tolist() if names else [[]] * len(rows)
        return [
            Label(label, dict(zip(names, of, strict=True)))
            for label, of in zip(self.goal.labels(outputs), probabilities, strict=True)
        ]

    def outputs(
        self,
        rows: Sequence[tuple[np.ndarray, np.ndarray]],
        batch_tokens: int = 8192,
        languages: tuple[int, int] | None = None,
    ) -> Tensor:
        """Compute the model's numbers for texts as tokens.

        Args:
            rows: Tokens of each text, and of which of two texts each is.
            batch_tokens: Tokens of a batch at most.
            languages: Numbers of the two texts' languages; None tells none.

        Returns:
            outputs_BO, on the CPU.
        """
        found = torch.zeros(len(rows), self.goal.num_outputs)
        lengths = np.array([len(ids) for ids, _ in rows], np.int64)
        with evaluating(self.model), torch.inference_mode():
            for batch in like_lengths(lengths, batch_tokens):
                some = [rows[n] for n in batch]
                tokens_N, types_N = (
                    torch.from_numpy(np.concatenate(side)).to(self.device) for side in zip(*some, strict=True)
                )
                segments = Segments.ragged([len(ids) for ids, _ in some], self.device)
                two = None if languages is None else torch.tensor([languages] * len(some), device=self.device)
                outputs_BO = self.model(tokens_N, segments, types_N, two)
                found[torch.from_numpy(np.asarray(batch))] = outputs_BO.cpu().float()
        return found


def cut(row: tuple[np.ndarray, np.ndarray], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a text's end off, but keep the token behind it.

    Args:
        row: Tokens, and of which of two texts each is.
        most: Tokens at most.

    Returns:
        The row, cut where it was longer.
    """
    ids, types = row
    if len(ids) <= most:
        return row
    return np.append(ids[: most - 1], ids[-1]), np.append(types[: most - 1], types[most - 2])
