"""Making images: a generator and a discriminator that learn from each other, turn by turn.

Papers: Goodfellow et al. 2014, algorithm 1; Radford et al. 2016; Zhang et al. 2018; Heusel et al. 2017 for two rates
and for the distance that images are judged by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from regard.data.augment import AugmentConfig
from regard.data.images import Images
from regard.data.pixels import Pixels
from regard.data.sheets import sheet
from regard.errors import ConfigError
from regard.files import write_aside, writing
from regard.metrics.frechet import Moments, frechet_distance
from regard.metrics.measure import Measure
from regard.models.gan import Gan
from regard.tasks.building import build
from regard.tasks.images.adversarial import Game, discriminator_loss, generator_loss
from regard.tasks.images.corpus import ImageCorpus, ImageData, read_corpus
from regard.tasks.images.features import Extractor, extractor
from regard.tasks.images.generator import ImageGenerator
from regard.tasks.images.shared import ImageTask
from regard.tasks.masking import chance
from regard.tasks.task import Batch, Evaluated, Loss, check_counts, evaluating

NUM_FIGURES, COLUMNS = 64, 16
NUM_NEAREST = 16
NUM_STEPS = 5  # of training, whose samples a report shows
BATCH_IMAGES = 250  # of held-out images
_MOST_COMPARED = 20_000  # training images among which the nearest is looked for


@dataclass(frozen=True)
class GenerateImagesConfig:
    """Settings of the task. A step is one turn: with k steps of the discriminator, k + 1 steps are a round.

    Attributes:
        data: Where images come from. Classes are not read.
        model: ``family`` and its settings.
        loss: ``saturating``, ``non-saturating`` or ``hinge``; see :mod:`regard.tasks.images.adversarial`.
        discriminator_steps: Steps k of the discriminator for each of the generator.
        discriminator_rate: Factor of its learning rate: two time scales.
        generator_rate: Likewise.
        features: A run's folder of ours or a public folder whose image encoder images are compared by; empty compares
            averaged pixels.
        samples: Images made for each distance; as many held-out ones are taken, or all.
        augment: What is drawn for each real image in training; the generator learns to make it.
        batch_images: Images of a micro-batch, real and made ones each.
    """

    data: ImageData
    model: dict[str, Any] = field(default_factory=lambda: {"family": "gan"})
    loss: Game = "non-saturating"
    discriminator_steps: int = 1
    discriminator_rate: float = 1.0
    generator_rate: float = 1.0
    features: str = ""
    samples: int = 2000
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    batch_images: int = 64

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range, or the loss is unknown.
        """
        check_counts(batch_images=self.batch_images, discriminator_steps=self.discriminator_steps)
        if self.loss not in get_args(Game):
            raise ConfigError(f"unknown loss {self.loss!r}", mend=f"choose {', '.join(get_args(Game))}")
        if not 2 <= self.samples <= 100_000:
            raise ConfigError(f"samples is {self.samples}", mend="give 2 to 100,000")
        for name, rate in {"discriminator": self.discriminator_rate, "generator": self.generator_rate}.items():
            if not 0 < rate <= 1000:
                raise ConfigError(f"{name}_rate is {rate}", mend="give a factor above 0")


@dataclass(frozen=True)
class GameBatch(Batch):
    """Real images, and what as many are made from.

    Attributes:
        images_BCYX: uint8, augmented.
        latents_BZ: float32.
    """

    images_BCYX: Tensor
    latents_BZ: Tensor


class GenerateImagesTask(ImageTask):
    """Training a generator of images; see :class:`regard.tasks.task.Task`.

    The norms of both parts are of one image alone, so steps may be accumulated. With spectral norm each micro-batch
    takes a step of power iteration, so what weights are divided by moves a little oftener than with one batch.

    Args:
        config: The settings.
        corpus: The data.
        seed: Of the order of batches, of augmentation and of latents.
        folder: The run's folder, where samples go.
    """

    monitor = "frechet_distance"
    higher_is_better = False

    def __init__(self, config: GenerateImagesConfig, corpus: ImageCorpus, seed: int, folder: Path) -> None:
        grey = tuple(0.5 for _ in range(corpus.train.channels))  # pixels from −1 to 1, as tanh gives them
        pixels = Pixels(corpus.train.size, grey, grey, corpus.train.fit)
        super().__init__(corpus, pixels, config.augment, config.batch_images, seed)
        self.config, self.folder, self.criterion = config, folder, discriminator_loss
        self.turns = ("discriminator",) * config.discriminator_steps + ("generator",)
        self._latent_dim = 0  # until the model is built
        # Now, so that a folder which is none is told before training.
        self._features: Extractor = extractor(config.features, pixels.size, len(grey), torch.device("cpu"))

    @staticmethod
    def prepare(config: GenerateImagesConfig, seed: int, folder: Path, is_new: bool) -> GenerateImagesTask:
        """Read and split the images.

        Args:
            config: The settings.
            seed: Of the split and of all draws.
            folder: The run's folder.
            is_new: Whether nothing of it is there yet.

        Returns:
            The task.
        """
        return GenerateImagesTask(config, read_corpus(config.data, seed, labelled=False), seed, folder)

    def build(self) -> Gan:
        """Build both parts, with fresh weights."""
        given = {"image_size": self.pixels.size, "num_channels": len(self.pixels.mean)}
        model = build(self.config.model, "gan", given, Gan, "make images", "model")
        self._latent_dim = model.config.latent_dim
        return model

    def rates(self, model: Gan) -> dict[str, float]:
        """Give each part its factor of the learning rate."""
        of = {"discriminator": self.config.discriminator_rate, "generator": self.config.generator_rate}
        return {name: of[name.partition(".")[0]] for name, _ in model.named_parameters()}

    def batch(self, index: int) -> GameBatch:
        """Make a micro-batch, a pure function of (seed, index)."""
        images_BCYX, _ = self.drawn(index)
        latents_BZ = chance(self.seed, index).standard_normal((len(images_BCYX), self._latent_dim), np.float32)
        return GameBatch(images_BCYX, torch.from_numpy(latents_BZ))

    def count(self, batch: GameBatch) -> int:
        """Count the images."""
        return len(batch.images_BCYX)

    def loss(self, model: Gan, batch: GameBatch) -> Loss:
        """Compute the loss of the first turn."""
        return self.turn_loss(model, batch, self.turns[0])

    def turn_loss(self, model: Gan, batch: GameBatch, turn: str) -> Loss:
        """Compute what a part minimizes, summed over images."""
        if turn == "generator":
            return generator_loss(model.discriminator(model.generator(batch.latents_BZ)), self.config.loss)
        with torch.no_grad():
            fake_BCYX = model.generator(batch.latents_BZ)
        real_BCYX = self.pixels(batch.images_BCYX)
        # Both in one pass: an image's score does not depend on those beside it.
        scores_B = model.discriminator(torch.cat([real_BCYX, fake_BCYX.to(real_BCYX.dtype)]))
        return self.criterion(*scores_B.split(len(real_BCYX)), self.config.loss)

    def product(self, model: Gan, device: torch.device) -> ImageGenerator:
        """Put the model together with what its use needs."""
        return ImageGenerator(model, self.pixels, device)

    def validate(self, model: Gan, device: torch.device) -> dict[str, float]:
        """Compute the discriminator's loss on development images, and the distance of images from fixed latents."""
        product = self.product(model, device)
        made = product.generate(self.config.samples, self.seed)
        dev = self._some(self.corpus.dev, self.seed)
        pairs = min(len(dev), len(made))
        total = 0.0
        with evaluating(model), torch.inference_mode():
            for start in range(0, pairs, BATCH_IMAGES):
                chosen = range(start, min(start + BATCH_IMAGES, pairs))
                real, fake = (
                    model.discriminator(self.pixels(images_BCYX.to(device))).cpu()
                    for images_BCYX in (dev.batch(chosen), made[list(chosen)])
                )
                total += float(discriminator_loss(real, fake, self.config.loss).sum)
        loss = total / pairs
        if not np.isfinite(loss):
            return {"loss": loss}
        return {"loss": loss, "frechet_distance": frechet_distance(self._moments(made), self._dev_moments)}

    def illustrate(self, model: Gan, device: torch.device, step: int) -> None:
        """Write samples from fixed latents into the run's folder."""
        made = self.product(model, device).generate(NUM_FIGURES, self.seed)
        path = self.folder / "samples" / f"step-{step}.png"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
        write_aside(path, sheet(made, COLUMNS))

    def test(self, product: ImageGenerator) -> Evaluated:
        """Compare images from other latents than validation's with the test part."""
        made = product.generate(self.config.samples, self.seed + 1)
        return Evaluated({"frechet_distance": self._measure(made)}, [], [], [])

    def baselines(self, evaluated: Evaluated) -> dict[str, dict[str, Measure]]:
        """Compare pixels drawn one by one, and real images, which no model can be expected to beat by much."""
        made = {
            "pixels drawn independently": self._independent_pixels(),
            "real training images (the floor)": self._all(self._some(self.corpus.train, self.seed)),
        }
        return {name: {"frechet_distance": self._measure(images_NCYX)} for name, images_NCYX in made.items()}

    def figures(self, product: ImageGenerator) -> list[tuple[str, str, bytes]]:
        """Show what the model makes, real images beside it, and the real ones that are nearest."""
        made = product.generate(NUM_FIGURES, self.seed + 1)
        real = self.corpus.train.batch(range(min(NUM_FIGURES, len(self.corpus.train))))
        near = torch.stack([made[:NUM_NEAREST], self._nearest(made[:NUM_NEAREST])]).flatten(0, 1)
        about = "Above what the model made, below the nearest training image by pixels: where they agree, it copies."
        return [
            *self._through_training(),
            ("Images made", f"The first {len(made)} images of seed {self.seed + 1}, not chosen.", sheet(made, COLUMNS)),
            ("Training images", f"The first {len(real)} of the training part.", sheet(real, COLUMNS)),
            ("Nearest training images", about, sheet(near, NUM_NEAREST)),
        ]

    def _through_training(self) -> list[tuple[str, str, bytes]]:
        """Show what validations wrote, from the first to the last."""
        steps = {int(path.stem.removeprefix("step-")): path for path in (self.folder / "samples").glob("step-*.png")}
        shown = sorted(steps)
        if len(shown) > NUM_STEPS:
            shown = [shown[round(place * (len(shown) - 1) / (NUM_STEPS - 1))] for place in range(NUM_STEPS)]
        about = f"From the same latents each time, of seed {self.seed}."
        return [(f"After step {step:,}", about, steps[step].read_bytes()) for step in shown]

    def signature(self) -> str:
        """Say what the scores depend on besides the model."""
        return f"{super().signature()}|features:{self._features.name}"

    def _measure(self, made_NCYX: Tensor) -> Measure:
        value = frechet_distance(self._moments(made_NCYX), self._test_moments)
        how = f"frechet_distance|n:{len(made_NCYX)}|reference:{self._test_moments.count}|version:regard-1"
        return Measure("frechet_distance", value, how)

    @cached_property
    def _dev_moments(self) -> Moments:
        return self._moments(self._all(self._some(self.corpus.dev, self.seed)))

    @cached_property
    def _test_moments(self) -> Moments:
        return self._moments(self._all(self._some(self.corpus.test, self.seed)))

    def _moments(self, images_NCYX: Tensor) -> Moments:
        return Moments.of(torch.cat([self._features(some_BCYX) for some_BCYX in images_NCYX.split(BATCH_IMAGES)]))

    def _some(self, part: Images, seed: int) -> Images:
        """As many images as samples are made, or all, drawn by the seed."""
        chosen = np.random.Generator(np.random.Philox(key=[seed, 2])).permutation(len(part))[: self.config.samples]
        return part.subset(np.sort(chosen))

    @staticmethod
    def _all(part: Images) -> Tensor:
        return part.batch(range(len(part)))

    def _independent_pixels(self) -> Tensor:
        """Draw each pixel from a normal distribution with its own mean and deviation over training images."""
        known_NCYX = self._all(self._some(self.corpus.train, self.seed)).double()
        draws = torch.Generator().manual_seed(self.seed)
        noise_NCYX = torch.randn(self.config.samples, *known_NCYX.shape[1:], generator=draws, dtype=torch.float64)
        drawn_NCYX = known_NCYX.mean(0) + known_NCYX.std(0, correction=0) * noise_NCYX
        return drawn_NCYX.round().clamp(0, 255).to(torch.uint8)

    def _nearest(self, images_NCYX: Tensor) -> Tensor:
        """Find the training image that is nearest to each image, by pixels."""
        train = self.corpus.train
        wanted_NF = images_NCYX.flatten(1).float()
        best_N, found_N = torch.full((len(wanted_NF),), torch.inf), torch.zeros(len(wanted_NF), dtype=torch.int64)
        for start in range(0, min(len(train), _MOST_COMPARED), BATCH_IMAGES):
            known_MF = train.batch(range(start, min(start + BATCH_IMAGES, len(train)))).flatten(1).float()
            nearest_N, place_N = torch.cdist(wanted_NF, known_MF).min(1)
            found_N = torch.where(nearest_N < best_N, start + place_N, found_N)
            best_N = torch.minimum(best_N, nearest_N)
        return train.batch(found_N.numpy())
