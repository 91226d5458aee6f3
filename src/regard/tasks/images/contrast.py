"""Contrast: two views of one image are to be nearer to each other than to any other image's (SimCLR).

Paper: Chen et al. 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from regard.data.augment import AugmentConfig
from regard.data.images import Images
from regard.data.sheets import sheet
from regard.errors import ConfigError, DataError
from regard.metrics.measure import Measure
from regard.models.contrastive import Contrastive
from regard.tasks.images.classifier import ImageEmbedder
from regard.tasks.images.corpus import ImageCorpus, ImageData, read_corpus
from regard.tasks.images.encoders import fresh, refit, starting
from regard.tasks.images.probing import PIXELS, UNTRAINED, Probing
from regard.tasks.images.shared import ImageTask
from regard.tasks.task import Batch, Evaluated, Loss, check_counts, evaluating

# Views of development images are drawn as in an epoch that no run comes to.
DEV_EPOCH = 2**31 - 1
NUM_FIGURES = 8


@dataclass(frozen=True)
class ContrastConfig:
    """Settings of the task.

    Attributes:
        data: Where images come from. Classes are not trained on; where there are any they tell how good vectors are.
        init: A run's folder of ours or a public folder whose encoder is trained on; empty starts from nothing.
        model: ``family`` and its settings.
        augment: What is drawn for each view.
        projection_dim: Width of the space in which views are compared.
        temperature: τ.
        batch_images: Images of a batch, two views each; the whole batch is compared.
        parts: Parts of the batch that are encoded one after the other, so that one part's activations alone are held;
            the loss and its gradient are the same.
    """

    data: ImageData
    init: str = ""
    model: dict[str, Any] = field(default_factory=dict)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    projection_dim: int = 128
    temperature: float = 0.5
    batch_images: int = 256
    parts: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range.
        """
        check_counts(batch_images=self.batch_images, parts=self.parts, projection_dim=self.projection_dim)
        if not self.temperature > 0:
            raise ConfigError(f"temperature is {self.temperature}", mend="give a number above 0, as 0.5")
        if self.batch_images < 2:
            raise ConfigError("batch_images is 1: nothing to tell an image from", mend="give 2 or more")


@dataclass(frozen=True)
class ViewBatch(Batch):
    """Two views of each image.

    Attributes:
        first_BCYX: uint8.
        second_BCYX: uint8, of the same images.
    """

    first_BCYX: Tensor
    second_BCYX: Tensor


def nt_xent(first_BD: Tensor, second_BD: Tensor, temperature: float) -> Loss:
    """Compare each view with the other one of its image, against all views of other images.

    loss(i, j) = −log( exp(sim(z_i, z_j)/τ) / Σ_{k ≠ i} exp(sim(z_i, z_k)/τ) ), summed over both orders of every image's
    two views, with sim the cosine. Where several processes train together, the views of all of them are compared, and
    each gives its own images' part of the sum: gradients added over processes are those of one process with all.

    Args:
        first_BD: A view of each image, projected.
        second_BD: The other view.
        temperature: τ.

    Returns:
        The loss over 2B views.

    Source: Chen et al. 2020, §2.1, equation 1.
    """
    wide = torch.promote_types(first_BD.dtype, torch.float32)
    own_ND = torch.nn.functional.normalize(torch.cat([first_BD, second_BD]).to(wide), dim=-1)
    all_MD, first = _of_all(own_ND)
    with torch.autocast(own_ND.device.type, enabled=False):  # which would make even this product narrow
        scores_NM = own_ND @ all_MD.T / temperature
    places = torch.arange(len(own_ND), device=own_ND.device)
    scores_NM = scores_NM.masked_fill(
        places[:, None] + first == torch.arange(len(all_MD), device=places.device), -torch.inf
    )
    partners = (places + len(first_BD)) % len(own_ND) + first
    total = torch.nn.functional.cross_entropy(scores_NM, partners, reduction="sum")
    return Loss(total, total.detach())


def _levels(images_BCYX: Tensor) -> Tensor:
    return images_BCYX.flatten(1).float()


def _of_all(own_ND: Tensor) -> tuple[Tensor, int]:
    """Gather the rows of all processes, with gradients, and say where this one's begin."""
    spread = torch.distributed
    if not (spread.is_available() and spread.is_initialized() and spread.get_world_size() > 1):
        return own_ND, 0
    counts = [torch.zeros(1, dtype=torch.int64, device=own_ND.device) for _ in range(spread.get_world_size())]
    spread.all_gather(counts, torch.tensor([len(own_ND)], device=own_ND.device))
    sizes = [int(count) for count in counts]
    # Every process sends as many rows; those that fill up are cut off again.
    filled = torch.cat([own_ND, own_ND.new_zeros(max(sizes) - len(own_ND), own_ND.shape[1])])
    gathered = [part[:size] for part, size in zip(_AllGather.apply(filled), sizes, strict=True)]
    return torch.cat(gathered), sum(sizes[: spread.get_rank()])


class _AllGather(torch.autograd.Function):
    """Rows of every process, as many from each; the gradient of a row is the sum of what all processes have for it.

    PyTorch's own is deprecated, and its graph holds the process group: one whose loss outlives its group ends with the
    group's threads alive, and now and then one of them ends the process with it.
    """

    @staticmethod
    def forward(ctx: Any, own_ND: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        all_PND = own_ND.new_empty(torch.distributed.get_world_size(), *own_ND.shape)
        torch.distributed.all_gather(list(all_PND), own_ND.contiguous())
        return all_PND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PND: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        grad_PND = grad_PND.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(grad_PND)
        return grad_PND[torch.distributed.get_rank()]


class ContrastTask(ImageTask):
    """Training on views of images; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        corpus: The data.
        seed: Of the order of batches and of the views.
    """

    unit, reads = "view", "view"
    needs_whole_batch = True

    def __init__(self, config: ContrastConfig, corpus: ImageCorpus, seed: int) -> None:
        self._start, pixels = starting(config.init, corpus.train)
        super().__init__(corpus, pixels, config.augment, config.batch_images, seed)
        self.config, self.criterion, self.probing = config, nt_xent, Probing(corpus)
        self.higher_is_better = self.probing.has_classes
        self.monitor = "neighbour_accuracy" if self.higher_is_better else "loss"

    @staticmethod
    def prepare(config: ContrastConfig, seed: int, folder: Path, is_new: bool) -> ContrastTask:
        """Read and split the images.

        Args:
            config: The settings.
            seed: Of the split and of the order of batches.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.
        """
        return ContrastTask(config, read_corpus(config.data, seed, labelled=False), seed)

    def build(self) -> Contrastive:
        """Build the encoder, or take the trained one, and a fresh projection."""
        return Contrastive(self._encoder(), self.config.projection_dim)

    def batch(self, index: int) -> ViewBatch:
        """Make a batch, a pure function of (seed, index)."""
        return ViewBatch(*(self.drawn(index, view)[0] for view in (0, 1)))

    def count(self, batch: ViewBatch) -> int:
        """Count the views."""
        return 2 * len(batch.first_BCYX)

    def loss(self, model: Contrastive, batch: ViewBatch) -> Loss:
        """Compute the loss, summed over views; part by part where memory is short."""
        pixels_BCYX = self.pixels(torch.cat([batch.first_BCYX, batch.second_BCYX]))
        if self.config.parts == 1 or not torch.is_grad_enabled():
            z_BD = model(pixels_BCYX)
        else:  # activations are computed again in the backward pass, with the same draws
            parts = pixels_BCYX.tensor_split(self.config.parts)
            z_BD = torch.cat([checkpoint(model, part, use_reentrant=False) for part in parts if len(part)])
        return self.criterion(*z_BD.chunk(2), self.config.temperature)

    def product(self, model: Contrastive, device: torch.device) -> ImageEmbedder:
        """Give the encoder without its projection."""
        return ImageEmbedder(model.encoder, self.pixels, "contrast", device)

    def validate(self, model: Contrastive, device: torch.device) -> dict[str, float]:
        """Compute the loss on views of development images, and where there are classes how near they lie together."""
        total = count = 0.0
        with evaluating(model), torch.inference_mode():
            for chosen in self._batches(self.corpus.dev):
                batch = self._views(self.corpus.dev, chosen, DEV_EPOCH).to(device)
                total += float(self.loss(model, batch).sum)
                count += self.count(batch)
        return {"loss": total / count, **self.probing.validate(self.product(model, device))}

    def test(self, product: ImageEmbedder) -> Evaluated:
        """Find each test view's partner, and classify by what the encoder's vectors give away."""
        found = self.probing.test(product)
        return replace(found, measures={**found.measures, "view_accuracy": self._view_accuracy(product.vectors)})

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Do the same by pixels, and by vectors of the encoder before it was trained."""
        torch.manual_seed(self.seed)
        untrained = ImageEmbedder(self._encoder(), self.pixels, "contrast")
        found = self.probing.baselines(untrained)
        ways = {UNTRAINED: untrained.vectors, PIXELS: _levels}
        return {name: {**found.get(name, {}), "view_accuracy": self._view_accuracy(way)} for name, way in ways.items()}

    def _view_accuracy(self, embed: Callable[[Tensor], Tensor]) -> Measure:
        """Say how many views are nearest, by cosine, to the other view of their image."""
        right = count = 0
        for chosen in self._batches(self.corpus.test):
            batch = self._views(self.corpus.test, chosen, DEV_EPOCH)
            images_BCYX = torch.cat([batch.first_BCYX, batch.second_BCYX])
            vectors_BD = torch.nn.functional.normalize(embed(images_BCYX), dim=-1)
            nearest = (vectors_BD @ vectors_BD.T).fill_diagonal_(-torch.inf).argmax(-1)
            partners = (torch.arange(len(nearest)) + len(chosen)) % len(nearest)
            right, count = right + int((nearest == partners).sum()), count + len(nearest)
        how = f"view_accuracy|n:{count}|among:{self.config.batch_images} images|version:regard-1"
        return Measure("view_accuracy", right / count, how)

    def figures(self, product: ImageEmbedder) -> list[tuple[str, str, bytes]]:
        """Show views as the model was trained on them."""
        chosen = np.arange(min(NUM_FIGURES, len(self.corpus.train)))
        views = [
            self.augment(self.corpus.train.batch(chosen), epoch, chosen, view) for epoch in range(3) for view in (0, 1)
        ]
        rows = torch.stack([self.corpus.train.batch(chosen), *views], 1)
        about = "Each row is an image and six views of it, two in each of the first three epochs."
        return [("Views", about, sheet(rows.flatten(0, 1), columns=rows.shape[1]))]

    def _encoder(self) -> Any:
        if self._start is None:
            return fresh(self.config.model, self.pixels, 0, "encode images")
        return refit(self._start, self.pixels, 0, self.config.model, self.config.init)

    def _batches(self, images: Images) -> list[np.ndarray]:
        """Cut a held-out part into batches of like size, each of two images at least."""
        count = len(images)
        if count < 2:
            raise DataError("one held-out image alone: nothing to tell it from", mend="give more images")
        return np.array_split(np.arange(count), min(-(-count // self.config.batch_images), count // 2))

    def _views(self, images: Images, chosen: np.ndarray, epoch: int) -> ViewBatch:
        images_BCYX = images.batch(chosen)
        return ViewBatch(*(self.augment(images_BCYX, epoch, chosen, view) for view in (0, 1)))
