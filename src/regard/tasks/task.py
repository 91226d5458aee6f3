"""What the training loop asks of a task, and the loss as a sum: the count is the task's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


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


class Task(Protocol):
    """An objective over a data set, as the training loop sees it.

    Attributes:
        criterion: Compares scores with labels, as :func:`cross_entropy` does; training may replace it by its compiled
            form.
        monitor: Name of the validation metric that decides which checkpoint is best.
        higher_is_better: How to read it.
    """

    criterion: Callable[..., Loss]

    @property
    def monitor(self) -> str: ...
    @property
    def higher_is_better(self) -> bool: ...

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
        """Count the real tokens that the model reads."""
        ...

    def loss(self, model: Any, batch: Any) -> Loss:
        """Compute the loss of a micro-batch that is where the model is."""
        ...

    def validate(self, model: Any, device: torch.device) -> Mapping[str, float]:
        """Score the model on the development part."""
        ...


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
