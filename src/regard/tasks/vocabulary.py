"""The loss over a vocabulary, without all of its scores at once.

N tokens of a vocabulary of V have N · V scores: of 4,096 tokens and 256,000 words that is 4 GB, and as much again for
their gradient. Here a few hundred rows are scored, compared with their labels and turned into gradients of what was
scored and of the last layer; then their scores make room for the next rows'. Each score is computed once, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention.compiling import compiled
from regard.kernels import vocabulary
from regard.kernels.rounded import Multiplier, serving
from regard.models.scoring import TokenScorer
from regard.tasks.task import Loss, Task, cross_entropy

# Up to so many scores, or rows, are not worth more than one pass over all of them: a CPU's caches hold little more.
FEW_SCORES = 2**22
MIN_ROWS = 256  # the last layer's weights, and their gradient, are read once for each lot of rows
ROWS_STEP = 64  # kernels of products take rows by so many
_ALIGNED_BYTES = 64  # rows of scores begin at multiples of these: products to and from an odd vocabulary are slow


def compare(
    logits_CW: Tensor, labels_C: Tensor, smoothing: float, differentiates: bool, size: int
) -> tuple[Tensor, ...]:
    """Compare the scores of some rows with their labels.

    Args:
        logits_CW: Scores of every token of the vocabulary, and −∞ behind them.
        labels_C: int64, the right tokens.
        smoothing: Label smoothing ε, ≥ 0.
        differentiates: Compute the gradient too.
        size: Tokens V of the vocabulary.

    Returns:
        The smoothed loss and the plain one, summed, in float32 at least; and with a gradient, that of the scores in
        their dtype: softmax(logits) − (1 − ε) · onehot(labels) − ε/V, and 0 behind them.
    """
    # At least float32: a sum over a vocabulary in half precision would lose most of its digits.
    logp_CW = logits_CW.to(torch.promote_types(logits_CW.dtype, torch.float32)).log_softmax(-1)
    nll = -logp_CW[:, :size].gather(-1, labels_C[:, None]).sum()  # a label behind the vocabulary is refused
    smoothed = (1 - smoothing) * nll - smoothing * logp_CW[:, :size].mean(-1).sum() if smoothing else nll
    if not differentiates:
        return smoothed, nll
    grad_CW = logp_CW.exp_()
    if smoothing:
        grad_CW[:, :size] -= smoothing / size
    if torch.compiler.is_compiling():  # part of the same pass; what is scattered wants all of it in memory, in float32
        is_label_CW = torch.arange(grad_CW.shape[1], device=grad_CW.device) == labels_C[:, None]
        grad_CW = torch.where(is_label_CW, grad_CW + (smoothing - 1), grad_CW)
    else:
        grad_CW.scatter_add_(-1, labels_C[:, None], grad_CW.new_full((), smoothing - 1).expand(len(labels_C), 1))
    return smoothed, nll, grad_CW.to(logits_CW.dtype)


Compare = Callable[[Tensor, Tensor, float, bool, int], tuple[Tensor, ...]]


def _lot_size(num_rows: int, few: int, vocab_size: int, device: torch.device) -> int:
    """Say how many rows are scored at once, in lots of nearly one size: none is a small rest.

    On a CPU they are few. On a GPU the fewer lots the better, for each reads and writes all of the weights' gradient:
    as many scores as a 256th of its bytes, which take a twentieth of its memory with all that is made of them.
    """
    most = few
    if device.type == "cuda":
        most = max(torch.cuda.get_device_properties(device).total_memory // 256 // vocab_size, few)
    lots = -(-num_rows // most)
    return min(-(-num_rows // lots // ROWS_STEP) * ROWS_STEP, most)


@dataclass(frozen=True)
class _Lots:
    """How rows are scored and compared, lot after lot."""

    smoothing: float
    dtype: torch.dtype
    compare: Compare
    size: int  # of a lot, in rows
    multiply: Multiplier | None = None  # where ``dtype`` is float32

    def run(
        self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, labels_N: Tensor, wants: Sequence[bool]
    ) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """Give the loss, the plain one, and the gradients that are wanted of what is scored, weights and bias."""
        wants_hidden, wants_weight, wants_bias = wants
        differentiates = any(wants)
        dtype, size = self.dtype, self.size
        rows_ND, table_VD = hidden_ND.to(dtype), weight_VD.to(dtype)
        added_V = None if bias_V is None else bias_V.to(dtype)
        grad_ND = rows_ND.new_empty(rows_ND.shape) if wants_hidden else None
        grad_VD: Tensor | None = None
        grad_V: Tensor | None = None
        sums: list[tuple[Tensor, Tensor]] = []
        vocab_size, step = len(table_VD), _ALIGNED_BYTES // dtype.itemsize
        # One place for all lots' scores: memory that is new costs as much as a product that fills it.
        scores_CW = rows_ND.new_empty(size, -(-vocab_size // step) * step)
        scores_CW[:, vocab_size:] = -torch.inf
        for start in range(0, len(labels_N), size):
            rows_CD, labels_C = rows_ND[start : start + size], labels_N[start : start + size]
            # No view of it: a compiled comparison would be compiled once more for views.
            sizes = (len(labels_C), scores_CW.shape[1])
            logits_CW = scores_CW.new_empty(0).set_(scores_CW.untyped_storage(), 0, sizes, (sizes[1], 1))
            logits_CV = logits_CW[:, :vocab_size]
            self._score(rows_CD, table_VD, added_V, logits_CV)
            # Our own kernel leaves the gradient where the scores were.
            found = vocabulary.compare(logits_CV, labels_C, self.smoothing, differentiates)
            smoothed, nll, *grads = found or self.compare(
                logits_CW, labels_C, self.smoothing, differentiates, vocab_size
            )
            sums.append((smoothed, nll))
            if not differentiates:
                continue
            grad_CV = (grads.pop() if grads else logits_CW)[:, :vocab_size]
            if grad_ND is not None:
                self._product(grad_CV, table_VD, grad_ND[start : start + size])
            if wants_weight:
                grad_VD = self._plus_product(grad_VD, grad_CV, rows_CD, weight_VD.dtype)
            if wants_bias:
                grad_C = grad_CV.sum(0, dtype=weight_VD.dtype)
                grad_V = grad_C if grad_V is None else grad_V.add_(grad_C)
            del grad_CV
        loss, report = (torch.stack(one).sum() for one in zip(*sums, strict=True))
        return loss, report, [None if grad_ND is None else grad_ND.to(hidden_ND.dtype), grad_VD, grad_V]

    def _score(self, rows_CD: Tensor, table_VD: Tensor, added_V: Tensor | None, to_CV: Tensor) -> None:
        """Score rows in a place that is there."""
        if self.multiply is not None:
            self.multiply(rows_CD, table_VD, added_V, out=to_CV)
        elif added_V is None:
            torch.mm(rows_CD, table_VD.T, out=to_CV)
        else:
            torch.addmm(added_V, rows_CD, table_VD.T, out=to_CV)

    def _product(self, grad_CV: Tensor, table_VD: Tensor, to_CD: Tensor) -> None:
        """Give the rows' gradient, in a place that is there."""
        if self.multiply is not None:
            self.multiply(grad_CV, table_VD.T, out=to_CD)
        else:
            torch.mm(grad_CV, table_VD, out=to_CD)

    def _plus_product(self, total_VD: Tensor | None, grad_CV: Tensor, rows_CD: Tensor, dtype: torch.dtype) -> Tensor:
        """Add gradᵀ · rows, in place, in the parameter's own precision."""
        if self.multiply is not None:
            return self.multiply(grad_CV.T, rows_CD.T, out=total_VD, adds=total_VD is not None)
        if total_VD is None:
            return (grad_CV.T @ rows_CD).to(dtype)
        if total_VD.dtype == grad_CV.dtype:
            return total_VD.addmm_(grad_CV.T, rows_CD)
        return total_VD.add_(grad_CV.T @ rows_CD)


class _Fused(torch.autograd.Function):
    """Last layer and loss in one, lot after lot; gradients are computed beside the loss and scaled in the backward."""

    @staticmethod
    def forward(  # pyrefly: ignore[bad-override]
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        labels_N: Tensor,
        lots: _Lots,
        differentiates: bool,
    ) -> tuple[Tensor, Tensor]:
        wants = [differentiates and needs for needs in ctx.needs_input_grad[:3]]
        loss, report, ctx.grads = lots.run(hidden_ND, weight_VD, bias_V, labels_N, wants)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, labels_N)
        ctx.lots = lots
        ctx.mark_non_differentiable(report)
        return loss, report

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_report: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        # What was computed is scaled in place and given away: the weights' gradient is as large as they are. A second
        # backward pass through a graph that was kept computes it anew.
        tensors, grads, ctx.grads = ctx.saved_tensors, ctx.grads, None
        if grads is None:
            with torch.autocast(grad.device.type, enabled=False):
                _, _, grads = ctx.lots.run(*tensors, ctx.needs_input_grad[:3])
        scaled = (None if one is None else one.mul_(grad.to(one.dtype)) for one in grads)
        return *scaled, None, None, None


@dataclass(frozen=True)
class VocabularyLoss:
    """Loss = Σ_n (1 − ε) · (−log p(label_n)) + ε/V · Σ_v (−log p(v)), with p from a model's last layer.

    It equals :func:`regard.tasks.task.cross_entropy` of ``model.head(hidden_ND)``, and so do its gradients; what is
    held at once are the scores of a few hundred rows. Second derivatives are not to be had.

    Attributes:
        compare: What is done to each lot of scores.
        whole: What is done where one lot holds all.

    Source: Vaswani et al. 2017, §5.4; gradients beside the loss, lot by lot: Hsu et al. 2024, FusedLinearCrossEntropy.
    """

    compare: Compare = compare
    whole: Callable[[Tensor, Tensor, float], Loss] = cross_entropy

    def __call__(self, model: TokenScorer, hidden_ND: Tensor, labels_N: Tensor, smoothing: float) -> Loss:
        """Compare what a model scores with the right tokens.

        Args:
            model: Whose last layer scores.
            hidden_ND: What its ``head`` takes, a row for each label.
            labels_N: int64, the right tokens.
            smoothing: Label smoothing ε, ≥ 0.

        Returns:
            The loss, and the plain negative log-likelihood for the log.
        """
        last, device, differentiates = model.last(), hidden_ND.device.type, torch.is_grad_enabled()
        vocab_size, num_rows = last.weight.shape[0], len(labels_N)
        few = max(FEW_SCORES // vocab_size, MIN_ROWS)
        if num_rows <= few:
            return self.whole(model.head(hidden_ND), labels_N, smoothing)
        size = _lot_size(num_rows, few, vocab_size, hidden_ND.device)
        read_ND = model.before_output(hidden_ND)
        multiply = serving(read_ND, last.weight, last.bias)
        is_narrow = multiply is None and torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_narrow else last.weight.dtype
        with torch.autocast(device, enabled=False):
            lots = _Lots(smoothing, dtype, self.compare, size, multiply)
            loss, report = _Fused.apply(read_ND, last.weight, last.bias, labels_N, lots, differentiates)
        return Loss(loss, report)

    def compiled(self) -> VocabularyLoss:
        """Give the same with what is done to scores compiled: a graph for all numbers of rows."""
        return VocabularyLoss(compiled(self.compare, dynamic=True), compiled(self.whole, dynamic=True))


class VocabularyTask(Task):
    """Base of the tasks that train on scores of a vocabulary's tokens.

    Attributes:
        criterion: Compares what stands before a model's head with labels, as :class:`VocabularyLoss` does.
    """

    criterion: Callable[..., Loss] = VocabularyLoss()

    def compile_criterion(self) -> None:
        self.criterion = VocabularyLoss().compiled()
