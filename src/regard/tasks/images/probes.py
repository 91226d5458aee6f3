"""What can be read off vectors without training a network: the nearest neighbours' class, and a linear classifier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.data.images import Images

NEIGHBOURS = (1, 3, 5, 10)
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_ROWS = 1000  # queries compared at once: 1,000 × 60,000 distances are 240 MB
SIDE = 32  # images are compared at no more pixels than this on a side


def nearest_classes(known_BD: Tensor, classes_B: Tensor, queries_BD: Tensor, num_classes: int, k: int) -> Tensor:
    """Give each vector the commonest class among the k nearest that are known; of equal ones that with the nearest.

    Args:
        known_BD: Vectors whose classes are known.
        classes_B: int64, their classes.
        queries_BD: Vectors to be classified; Euclidean distance.
        num_classes: Classes that there are.
        k: Neighbours that vote.

    Returns:
        int64, a class each.
    """
    known_BD, found = known_BD.float(), list[Tensor]()
    lengths_B, k = known_BD.square().sum(-1), min(k, len(known_BD))
    for rows_BD in queries_BD.float().split(_ROWS):
        # Autocast would make the product narrow, and vectors that are near together as good as equal.
        with torch.autocast(known_BD.device.type, enabled=False):
            # The query's own length is the same for all neighbours, so it decides nothing.
            nearest = (lengths_B - 2 * rows_BD @ known_BD.T).topk(k, largest=False).indices
        # An earlier neighbour counts a little more: ties go to the nearest.
        votes = 1 + torch.arange(k, 0, -1, device=known_BD.device) / (k * (k + 1))
        counts_BV = torch.zeros(len(rows_BD), num_classes, device=known_BD.device)
        counts_BV.scatter_add_(1, classes_B[nearest], votes.expand(len(rows_BD), k).contiguous())
        found.append(counts_BV.argmax(-1))
    return torch.cat(found)


class Neighbours:
    """k nearest neighbours, k chosen on a development part.

    Args:
        known_BD: Training vectors.
        classes_B: int64, their classes.
        dev_BD: Development vectors.
        dev_classes_B: int64, their classes.
        num_classes: Classes that there are.
    """

    def __init__(
        self, known_BD: Tensor, classes_B: Tensor, dev_BD: Tensor, dev_classes_B: Tensor, num_classes: int
    ) -> None:
        self.known_BD, self.classes_B, self.num_classes = known_BD, classes_B, num_classes
        right = {
            k: int((nearest_classes(known_BD, classes_B, dev_BD, num_classes, k) == dev_classes_B).sum())
            for k in NEIGHBOURS
        }
        self.k = max(NEIGHBOURS, key=lambda k: right[k])

    def __call__(self, queries_BD: Tensor) -> Tensor:
        """Classify vectors.

        Args:
            queries_BD: Vectors.

        Returns:
            int64, a class each.
        """
        return nearest_classes(self.known_BD, self.classes_B, queries_BD, self.num_classes, self.k)


class LinearProbe:
    """Logistic regression on standardized vectors, fit to its minimum; the penalty is chosen on a development part.

    min over W, b of mean_n(−log softmax(W x_n + b)[class_n]) + λ/2 · ‖W‖²

    Args:
        known_BD: Training vectors.
        classes_B: int64, their classes.
        dev_BD: Development vectors.
        dev_classes_B: int64, their classes.
        num_classes: Classes that there are.

    Source: He et al. 2021, appendix A.1: a linear classifier on frozen features, standardized feature by feature.
    """

    def __init__(
        self, known_BD: Tensor, classes_B: Tensor, dev_BD: Tensor, dev_classes_B: Tensor, num_classes: int
    ) -> None:
        known_BD = known_BD.float()
        self.mean_D = known_BD.mean(0)
        std_D = known_BD.std(0, correction=0)
        # What hardly varies says nothing, and scaled up it would drown the rest.
        self.scale_D = torch.where(std_D > 1e-6 * std_D.max().clamp(min=1e-30), 1 / std_D.clamp(min=1e-30), 0.0)
        best, self.penalty = -1, max(PENALTIES)
        self.weight_VD = known_BD.new_zeros(num_classes, known_BD.shape[1])
        self.bias_V = known_BD.new_zeros(num_classes)
        start = (self.weight_VD, self.bias_V)
        for penalty in sorted(PENALTIES, reverse=True):  # each begins where the stronger one ended
            start = self._fit(self._scaled(known_BD), classes_B, penalty, start)
            right = int(((self._scaled(dev_BD) @ start[0].T + start[1]).argmax(-1) == dev_classes_B).sum())
            if right > best:
                best, self.penalty, (self.weight_VD, self.bias_V) = right, penalty, start

    def __call__(self, queries_BD: Tensor) -> Tensor:
        """Classify vectors.

        Args:
            queries_BD: Vectors.

        Returns:
            int64, a class each.
        """
        return (self._scaled(queries_BD) @ self.weight_VD.T + self.bias_V).argmax(-1)

    def _scaled(self, x_BD: Tensor) -> Tensor:
        return (x_BD.float() - self.mean_D) * self.scale_D

    @staticmethod
    def _fit(x_BD: Tensor, classes_B: Tensor, penalty: float, start: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        weight_VD, bias_V = (one.clone().requires_grad_() for one in start)
        solver = torch.optim.LBFGS(
            [weight_VD, bias_V], max_iter=100, history_size=10, tolerance_grad=1e-5, line_search_fn="strong_wolfe"
        )

        def objective() -> Tensor:
            solver.zero_grad()
            loss = torch.nn.functional.cross_entropy(x_BD @ weight_VD.T + bias_V, classes_B)
            loss = loss + penalty / 2 * weight_VD.square().sum()
            loss.backward()
            return loss

        with torch.enable_grad():
            solver.step(objective)
        return weight_VD.detach(), bias_V.detach()


def pixel_vectors(images: Images, indices: Sequence[int] | np.ndarray | None = None) -> Tensor:
    """Take images as vectors of pixels, larger ones reduced to 32 × 32.

    Args:
        images: The images.
        indices: Which of them; None for all.

    Returns:
        float32, (images, channels · height · width), from 0 to 1.
    """
    chosen = np.arange(len(images)) if indices is None else np.asarray(indices)
    rows = []
    for part in np.array_split(chosen, max(1, -(-len(chosen) // 500))):
        values = images.batch(part).float() / 255
        side = (min(images.size[0], SIDE), min(images.size[1], SIDE))
        if side != tuple(images.size):
            values = torch.nn.functional.interpolate(values, side, mode="area")
        rows.append(values.flatten(1))
    return torch.cat(rows)
