"""What the training loop asks of a task, and the loss as a sum: the count is the task's own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from regard.attention.compiling import compiled
from regard.decoding import DecodeOptions
from regard.errors import ConfigError
from regard.metrics.measure import Measure

PREPARED = "tokens"  # the folder in that of a run which a task may fill while it is prepared


@dataclass(frozen=True)
class Loss:
    """A loss before its mean is taken.

    Means are taken once, over the whole step's count, so that micro-batches, ranks and ragged batches cannot change a
    gradient.

    Attributes:
        sum: Scalar tensor, summed over real tokens; what is minimized.
        report: Scalar tensor, what is logged: the same without label smoothing.
    """

    sum: Tensor
    report: Tensor


@dataclass(frozen=True)
class Batch:
    """Base of micro-batches: tensors and segments."""

    def to(self, device: torch.device) -> Self:
        """Copy to a device."""
        moved = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None:  # what this batch has not
                value = value.to(device, non_blocking=True) if isinstance(value, Tensor) else value.to(device)
            moved[one.name] = value
        return replace(self, **moved)


def check_counts(**counts: int) -> None:
    """Refuse settings that have to be 1 at least.

    Args:
        **counts: The settings by name, two underscores for a dot.

    Raises:
        ConfigError: One is less.
    """
    for name, value in counts.items():
        if value < 1:
            raise ConfigError(f"{name.replace('__', '.')} is {value}", mend="give at least 1")


def check_smoothing(smoothing: float) -> None:
    """Refuse a label smoothing outside [0, 1).

    Args:
        smoothing: The setting.

    Raises:
        ConfigError: It is outside.
    """
    if not 0 <= smoothing < 1:
        raise ConfigError(f"label_smoothing is {smoothing}", mend="give a number in [0, 1)")


@dataclass(frozen=True)
class Evaluated:
    """Scores and what they were computed from.

    Attributes:
        measures: By name.
        sources: Inputs.
        references: Acceptable outputs of each.
        outputs: The outputs.
        others: The same of further test sets, by their names.
        images: The first inputs where they are images, as many as a report may show: uint8 images_CYX.
    """

    measures: dict[str, Measure]
    sources: list[str]
    references: list[list[str]]
    outputs: list[str]
    others: Mapping[str, Evaluated] = field(default_factory=dict)
    images: Sequence[Tensor] = ()


class Product(Protocol):
    """A trained model with all that its use needs.

    Attributes:
        task: A key of :data:`regard.tasks.registry.TASKS`.
        model: The model.
        options: How outputs are chosen; None where nothing is written.
        max_tokens: Tokens that are read at once at most.
    """

    task: str
    model: Any
    options: DecodeOptions | None
    max_tokens: int


class Task(Protocol):
    """An objective over a data set, as a run sees it; the training loop needs the second half alone.

    Tasks inherit from it: what few of them need has its default here.

    Attributes:
        criterion: Compares scores with labels, as :func:`cross_entropy` does.
        monitor: Name of the validation metric that decides which checkpoint is best.
        higher_is_better: How to read it.
        counts: What is trained on, in numbers.
        notes: What is too long for the model, say, and what becomes of it.
        data_notes: Source, licence and split of the data.
        digest: Hash of the data, so that a run can tell whether they changed.
        unit: What the loss is a mean over: ``token``, ``text``, ``word``.
        reads: What :meth:`tokens` counts, for readers.
        lengths: Lengths of inputs, in words, at which scores are split; empty for none.
        turns: Parts of the model that are trained in turns, of an adversarial task: at step n, from 0, only parameters
            whose names begin with ``turns[n % len(turns)]`` and a dot. Empty: all of them at every step.
    """

    needs_whole_batch: bool = False  # micro-batches cannot be summed, as where all images of a batch are compared
    unit: str
    reads: str = "token"
    notes: list[str]
    data_notes: list[str]
    lengths: tuple[int, ...] = ()
    turns: tuple[str, ...] = ()

    @property
    def counts(self) -> str: ...
    @property
    def digest(self) -> str: ...

    def build(self) -> Any:
        """Build the model, with fresh weights."""
        ...

    def tokenizers(self) -> dict[str, Any]:
        """Give the tokenizers by the names of their files."""
        ...

    def product(self, model: Any, device: torch.device) -> Any:
        """Put a model together with what its use needs."""
        ...

    def test(self, product: Any) -> Evaluated:
        """Score the test part."""
        ...

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score what can be had without a trained model, on the same inputs."""
        ...

    def figures(self, product: Any) -> list[tuple[str, str, bytes]]:
        """Draw what the report is to show: title, sentence and PNG of each."""
        return []

    def signature(self) -> str:
        """Say what the scores depend on besides the model."""
        ...

    criterion: Callable[..., Loss]
    monitor: str
    higher_is_better: bool

    def compile_criterion(self) -> None:
        """Replace what compares scores with labels by its compiled form; batches differ in every size."""
        self.criterion = compiled(self.criterion, dynamic=True)

    def rates(self, model: Any) -> Mapping[str, float]:
        """Give factors of the learning rate by parameter name; 1 for those that are not named."""
        return {}

    def batch(self, index: int) -> Any:
        """Make micro-batch number ``index`` of the run, a pure function of (seed, index), on the CPU.

        ``batch.to(device)`` copies it to where the model is.
        """
        ...

    def name_batch(self, index: int) -> str:
        """Say where the examples of a micro-batch stand in the user's data, for messages."""
        ...

    def count(self, batch: Any) -> int:
        """Count what the loss is a mean over."""
        ...

    def tokens(self, batch: Any) -> int:
        """Count what the model reads: real tokens, or images."""
        ...

    def loss(self, model: Any, batch: Any) -> Loss:
        """Compute the loss of a micro-batch that is where the model is."""
        ...

    def turn_loss(self, model: Any, batch: Any, turn: str) -> Loss:
        """Compute what a part of the model is trained on at its turn; ``turn`` is empty where there are no turns."""
        return self.loss(model, batch)

    def validate(self, model: Any, device: torch.device) -> Mapping[str, float]:
        """Score the model on the development part."""
        ...

    def illustrate(self, model: Any, device: torch.device, step: int) -> None:
        """Write pictures of what the model does, after a validation, into the run's folder; most tasks have none."""
        return


def cross_entropy(logits_NV: Tensor, labels_N: Tensor, smoothing: float) -> Loss:
    """Compare scores of tokens with the right ones.

    Loss = Σ_n (1 − ε) · (−log p(label_n)) + ε/V · Σ_v (−log p(v)). There is no padding, so every row counts.

    Args:
        logits_NV: Scores of every token of the vocabulary.
        labels_N: int64, the right tokens.
        smoothing: Label smoothing ε, ≥ 0.

    Returns:
        The loss, and the plain negative log-likelihood for the log.

    Source: Szegedy et al. 2016, §7; Vaswani et al. 2017, §5.4.
    """
    # At least float32: a sum over a vocabulary in half precision would lose most of its digits.
    logp_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)).log_softmax(-1)
    nll = -logp_NV.gather(-1, labels_N[:, None]).sum()
    if not smoothing:
        return Loss(nll, nll.detach())
    smoothed = (1 - smoothing) * nll - smoothing * logp_NV.mean(-1).sum()
    return Loss(smoothed, nll.detach())


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Put a model into evaluation mode for a while."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)
