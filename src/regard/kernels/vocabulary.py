"""Scores of a vocabulary beside the right tokens, by our own kernels: losses and gradients; see ``vocabulary.cpp``."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.kernels import native


def compare(
    logits_CV: Tensor, labels_C: Tensor, smoothing: float, differentiates: bool
) -> tuple[Tensor, Tensor] | None:
    """Compare the scores of some rows with their labels; no gradient goes through it.

    With p = softmax(logits), of V tokens,

        nll = Σ −log p(label),    smoothed = (1 − ε) · nll + ε/V · Σ Σ_v −log p(v),

    exponentials in float32, their sums in float64.

    Args:
        logits_CV: Scores. If ``differentiates``, ∂smoothed / ∂logits = p − (1 − ε) · onehot(label) − ε/V takes their
            place.
        labels_C: The right tokens.
        smoothing: Label smoothing ε, ≥ 0.
        differentiates: Compute the gradient too.

    Returns:
        smoothed and nll, float32 scalars; None, and nothing is changed, where the kernels do not serve: scores are not
        plain float32 on a CPU, the numbers of a row do not stand side by side, or labels are none of the V tokens.
    """
    if (kernel := native.loaded()) is None or not native.are_plain(logits_CV):
        return None
    is_by_rows = logits_CV.dim() == 2 and logits_CV.stride(1) == 1 and logits_CV.stride(0) >= logits_CV.shape[1]
    if not is_by_rows or labels_C.shape != logits_CV.shape[:1] or labels_C.dtype != torch.int64 or not labels_C.is_cpu:
        return None
    labels_C = labels_C.contiguous()
    if len(labels_C) and not 0 <= int(labels_C.min()) <= int(labels_C.max()) < logits_CV.shape[1]:
        return None
    losses_C2 = torch.empty(len(labels_C), 2, dtype=torch.float64, device="cpu")
    kernel.compare(
        *(logits_CV.data_ptr(), *logits_CV.shape, logits_CV.stride(0), labels_C.data_ptr(), smoothing, differentiates),
        *(losses_C2.data_ptr(), native.threads(), native.team()),
    )
    smoothed, nll = losses_C2.sum(0).float().unbind()
    return smoothed, nll
