"""Classes of images: an image encoder with a head, from nothing, fine-tuned, or with the encoder frozen.

Papers: Dosovitskiy et al. 2021, §3.2; Touvron et al. 2021, §6 (mixup, cutmix, smoothing, stochastic depth); Bao et al.
2022, §3.2 (rates that fall towards the input).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.augment import AugmentConfig
from regard.data.images import Images
from regard.data.mixing import cutmix, mixup
from regard.data.sheets import sheet
from regard.errors import ConfigError
from regard.metrics.measure import Measure
from regard.models.interface import ImageEncoder
from regard.tasks.images.classifier import ImageClassifier
from regard.tasks.images.corpus import ImageCorpus, ImageData, read_corpus
from regard.tasks.images.encoders import fresh, refit, starting
from regard.tasks.images.probes import Neighbours, pixel_vectors
from regard.tasks.images.probing import NUM_SHOWN
from regard.tasks.images.shared import ImageTask
from regard.tasks.labeller import Classes
from regard.tasks.masking import chance
from regard.tasks.task import Batch, Evaluated, Loss, check_counts, check_smoothing

NUM_FIGURES = 32


@dataclass(frozen=True)
class ImageClassesConfig:
    """Settings of the task.

    Attributes:
        data: Where images and classes come from.
        init: A run's folder of ours or a public folder whose encoder is fine-tuned; empty starts from nothing.
        model: ``family`` and its settings; of a trained encoder those that are not learnt, as ``drop_path``.
        freeze: Train the head alone: a linear probe.
        augment: What is drawn for each image in training.
        mixup: α of the Beta distribution that two images are mixed by; 0 for none.
        cutmix: Likewise of the share of an image that another one's cut-out covers; of both, one is drawn a batch.
        label_smoothing: ε of label smoothing.
        layer_decay: Factor of the learning rate from each depth to the one before it; 1 for one rate.
        batch_images: Images of a micro-batch.
        monitor: The metric that chooses checkpoints.
    """

    data: ImageData
    init: str = ""
    model: dict[str, Any] = field(default_factory=dict)
    freeze: bool = False
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    mixup: float = 0.0
    cutmix: float = 0.0
    label_smoothing: float = 0.0
    layer_decay: float = 1.0
    batch_images: int = 128
    monitor: str = "accuracy"

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range.
        """
        check_counts(batch_images=self.batch_images)
        check_smoothing(self.label_smoothing)
        for name, value in {"mixup": self.mixup, "cutmix": self.cutmix}.items():
            if not 0 <= value <= 100:
                raise ConfigError(f"{name} is {value}", mend="give 0 for none, or up to 100")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay is {self.layer_decay}", mend="give a factor up to 1")
        if self.monitor not in Classes.metrics:
            raise ConfigError(f"monitor is {self.monitor[:40]!r}", mend=f"choose from {', '.join(Classes.metrics)}")


@dataclass(frozen=True)
class ImageBatch(Batch):
    """Images and their classes.

    Attributes:
        images_BCYX: From 0 to 255, augmented: uint8, or floats where images are mixed.
        targets_BV: Share of each class in each image; of those that are not mixed 1 of their own.
    """

    images_BCYX: Tensor
    targets_BV: Tensor


def soft_cross_entropy(logits_BV: Tensor, targets_BV: Tensor, smoothing: float) -> Loss:
    """Compare scores of classes with shares of them.

    Loss = Σ_b Σ_v −((1 − ε) · t_bv + ε/V) · log p_bv

    Args:
        logits_BV: Scores.
        targets_BV: Shares, each row of sum 1.
        smoothing: Label smoothing ε.

    Returns:
        The loss, and that without smoothing for the log.

    Source: Szegedy et al. 2016, §7; Zhang et al. 2018, §2.
    """
    logp_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)).log_softmax(-1)
    nll = -(targets_BV * logp_BV).sum()
    smoothed = (1 - smoothing) * nll - smoothing * logp_BV.mean(-1).sum() if smoothing else nll
    return Loss(smoothed, nll.detach())


class ImageClassesTask(ImageTask):
    """Training on images with classes; see :class:`regard.tasks.task.Task`.

    Args:
        config: The settings.
        corpus: The data.
        seed: Of the order of batches and of augmentation.
    """

    higher_is_better = True

    def __init__(self, config: ImageClassesConfig, corpus: ImageCorpus, seed: int) -> None:
        if config.freeze and not config.init:
            raise ConfigError("freeze without init: random features would be kept", mend="name a trained encoder")
        self._start, pixels = starting(config.init, corpus.train)
        super().__init__(corpus, pixels, config.augment, config.batch_images, seed)
        self.config, self.criterion, self.monitor = config, soft_cross_entropy, config.monitor
        self.goal = Classes.fit(corpus.train.labels, _where(corpus.train))
        self.targets_B, self.dev_targets_B = (self._targets(part) for part in (corpus.train, corpus.dev))

    @staticmethod
    def prepare(config: ImageClassesConfig, seed: int, folder: Path, is_new: bool) -> ImageClassesTask:
        """Read and split the images.

        Args:
            config: The settings.
            seed: Of the split and of the order of batches.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.
        """
        return ImageClassesTask(config, read_corpus(config.data, seed, labelled=True), seed)

    @property
    def counts(self) -> str:
        """What is trained on, in numbers."""
        return f"{self.corpus.counts}; {self.goal.num_outputs} classes"

    def build(self) -> ImageEncoder:
        """Build the model, or put a fresh head on the trained one."""
        config, classes = self.config, self.goal.num_outputs
        if self._start is None:
            return fresh(config.model, self.pixels, classes, "classify images")
        model = refit(self._start, self.pixels, classes, config.model, config.init)
        if config.freeze:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name.startswith("head."))
        return model

    def rates(self, model: ImageEncoder) -> dict[str, float]:
        """Lower the learning rate from each depth to the one before it."""
        decay, last = self.config.layer_decay, model.num_depths
        if decay == 1:
            return {}
        heads = {name for name, _ in model.named_parameters() if name.startswith("head.")}
        return {
            name: 1.0 if name in heads else decay ** (last - model.depth(name)) for name, _ in model.named_parameters()
        }

    def batch(self, index: int) -> ImageBatch:
        """Make a micro-batch, a pure function of (seed, index)."""
        images_BCYX, chosen = self.drawn(index)
        targets_BV = torch.nn.functional.one_hot(self.targets_B[chosen], self.goal.num_outputs).float()
        if self.config.mixup or self.config.cutmix:
            images_BCYX, targets_BV = self._mixed(images_BCYX.float(), targets_BV, index)
        return ImageBatch(images_BCYX, targets_BV)

    def _mixed(self, images_BCYX: Tensor, targets_BV: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Mix the images of a batch, by one of the two ways where there are two; levels mix as pixels do."""
        mixup_too = self.config.mixup and self.config.cutmix
        by_cutmix = chance(self.seed, index).random() < 0.5 if mixup_too else bool(self.config.cutmix)
        way, alpha = (cutmix, self.config.cutmix) if by_cutmix else (mixup, self.config.mixup)
        return way(images_BCYX, targets_BV, alpha=alpha, seed=self.seed, index=index)

    def count(self, batch: ImageBatch) -> int:
        """Count the images."""
        return len(batch.images_BCYX)

    def loss(self, model: ImageEncoder, batch: ImageBatch) -> Loss:
        """Compute the loss, summed over images."""
        if self.config.freeze:
            model.eval()  # what is frozen is to be read as it is in use
        logits_BV = model.classify(self.pixels(batch.images_BCYX))
        return self.criterion(logits_BV, batch.targets_BV, self.config.label_smoothing)

    def product(self, model: ImageEncoder, device: torch.device) -> ImageClassifier:
        """Put the model together with what its use needs."""
        return ImageClassifier(model, self.pixels, self.goal, device)

    def validate(self, model: ImageEncoder, device: torch.device) -> dict[str, float]:
        """Compute the development part's loss and metrics."""
        outputs_BV = self.product(model, device).outputs(self.corpus.dev, self.config.batch_images)
        loss = float(torch.nn.functional.cross_entropy(outputs_BV, self.dev_targets_B))
        if not np.isfinite(loss):
            return {"loss": loss}
        measures = self.goal.measure(self.goal.labels(outputs_BV), self.corpus.dev.labels)
        return {"loss": loss, **{name: one.value for name, one in measures.items()}}

    def test(self, product: ImageClassifier) -> Evaluated:
        """Label the test part."""
        return evaluate(product, self.corpus.test)

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Score the commonest class and the nearest neighbours' on the same images."""
        wanted = [one for (one,) in evaluated.references]
        commonest = Counter(self.corpus.train.labels).most_common(1)[0][0]
        near = self._neighbours
        predicted = [self.goal.names[n] for n in near(pixel_vectors(self.corpus.test)).tolist()]
        voters = f"{near.k} nearest neighbours" if near.k > 1 else "nearest neighbour"
        found = {f"{voters} on pixels": predicted, "the commonest class": [commonest] * len(wanted)}
        return {name: self.goal.measure(labels, wanted) for name, labels in found.items()}

    @cached_property
    def _neighbours(self) -> Neighbours:
        known, dev = pixel_vectors(self.corpus.train), pixel_vectors(self.corpus.dev)
        return Neighbours(known, self.targets_B, dev, self.dev_targets_B, self.goal.num_outputs)

    def figures(self, product: ImageClassifier) -> list[tuple[str, str, bytes]]:
        """Show test images that the model takes for another class, the surest first."""
        return mistakes(product, self.corpus.test)

    def _targets(self, part: Images) -> Tensor:
        return self.goal.targets(part.labels, _where(part))


def evaluate(product: ImageClassifier, images: Images) -> Evaluated:
    """Score a model on labelled images; a class that it does not know counts as missed.

    Args:
        product: The model.
        images: The images.

    Returns:
        Scores, names of the images, their classes and the predicted ones.
    """
    predicted = product.goal.labels(product.outputs(images))
    names = [images.where(index) for index in range(len(images))]
    measures, shown = product.goal.measure(predicted, images.labels), range(min(NUM_SHOWN, len(images)))
    return Evaluated(measures, names, [[one] for one in images.labels], predicted, images=list(images.batch(shown)))


def mistakes(product: ImageClassifier, images: Images) -> list[tuple[str, str, bytes]]:
    """Show images that a model takes for another class.

    Args:
        product: The model.
        images: Labelled images.

    Returns:
        Title, sentence and PNG of one sheet, the surest mistakes first; empty where there are none.
    """
    outputs_BV = product.outputs(images)
    sure, predicted = outputs_BV.softmax(-1).max(-1)
    wrong = [n for n, label in enumerate(product.goal.labels(outputs_BV)) if label != images.labels[n]]
    shown = sorted(wrong, key=lambda n: -float(sure[n]))[:NUM_FIGURES]
    if not shown:
        return []
    said = "; ".join(f"{images.labels[n]} as {product.goal.names[int(predicted[n])]}" for n in shown)
    about = (
        f"{len(wrong):,} of {len(images):,} test images are taken for another class; these with most certainty: {said}."
    )
    return [("Surest mistakes", about, sheet(images.batch(shown), columns=8))]


def _where(images: Images) -> list[str]:
    return [images.where(index) for index in range(len(images))]
