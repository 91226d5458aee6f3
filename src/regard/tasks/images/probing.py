"""How much an encoder's vectors tell of classes that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from regard.data.images import Images
from regard.metrics.labels import classes
from regard.metrics.measure import Measure
from regard.tasks.images.classifier import ImageEmbedder
from regard.tasks.images.corpus import ImageCorpus
from regard.tasks.images.probes import LinearProbe, Neighbours, nearest_classes, pixel_vectors
from regard.tasks.labeller import Classes
from regard.tasks.task import Evaluated

# Training images that probes are fit on, and neighbours of a validation are looked for among.
PROBE_IMAGES, VALIDATION_IMAGES = 20_000, 5_000
_NEIGHBOURS = 5
NUM_SHOWN = 20  # test images that a report shows
UNTRAINED, PIXELS = "the encoder before it was trained", "pixels"


class Probing:
    """Classes of images, read off vectors.

    Args:
        corpus: The images.
    """

    def __init__(self, corpus: ImageCorpus) -> None:
        parts = (corpus.train, corpus.dev, corpus.test)
        self.has_classes = all(part.labels for part in parts) and len(set(corpus.train.labels)) > 1
        self.corpus = corpus
        # A fixed shuffle, so that no class is left out where files are in their order.
        shuffled = np.random.Generator(np.random.Philox(key=1)).permutation(len(corpus.train))
        self.known, self.near = np.sort(shuffled[:PROBE_IMAGES]), np.sort(shuffled[:VALIDATION_IMAGES])

    @cached_property
    def goal(self) -> Classes:
        """The classes of the training part."""
        return Classes.fit(self.corpus.train.labels, ["the training part"])

    def validate(self, product: ImageEmbedder) -> dict[str, float]:
        """Say how many development images are of the class that their neighbours have.

        Args:
            product: The encoder.

        Returns:
            ``neighbour_accuracy``; empty where there are no classes.
        """
        if not self.has_classes:
            return {}
        known_BD, dev_BD = (
            torch.nn.functional.normalize(torch.from_numpy(product.embed(part)), dim=-1)
            for part in (self.corpus.train.subset(self.near), self.corpus.dev)
        )
        found = nearest_classes(known_BD, self._targets("train")[self.near], dev_BD, self.goal.num_outputs, _NEIGHBOURS)
        return {"neighbour_accuracy": float((found == self._targets("dev")).double().mean())}

    def test(self, product: ImageEmbedder) -> Evaluated:
        """Classify the test part.

        Args:
            product: The encoder.

        Returns:
            ``probe_accuracy`` of a linear classifier on its vectors, ``neighbour_accuracy`` of their neighbours;
            nothing where there are no classes.
        """
        if not self.has_classes:
            return Evaluated({}, [], [], [])
        measures, predicted = self._probed(lambda part: torch.from_numpy(product.embed(part)))
        test = self.corpus.test
        names = [test.where(index) for index in range(len(test))]
        shown = list(test.batch(range(min(NUM_SHOWN, len(test)))))
        return Evaluated(measures, names, [[one] for one in test.labels], predicted, images=shown)

    def baselines(self, untrained: ImageEmbedder) -> dict[str, dict[str, Measure]]:
        """Classify the test part by less.

        Args:
            untrained: The encoder before it was trained.

        Returns:
            The same measures on pixels, and on the untrained encoder's vectors.
        """
        if not self.has_classes:
            return {}
        return {
            UNTRAINED: self._probed(lambda part: torch.from_numpy(untrained.embed(part)))[0],
            PIXELS: self._probed(pixel_vectors)[0],
        }

    def _probed(self, embed: Callable[[Images], Tensor]) -> tuple[dict[str, Measure], list[str]]:
        known_BD = embed(self.corpus.train.subset(self.known))
        dev_BD, test_BD = embed(self.corpus.dev), embed(self.corpus.test)
        told = (known_BD, self._targets("train")[self.known], dev_BD, self._targets("dev"), self.goal.num_outputs)
        probe, near = LinearProbe(*told), Neighbours(*told)
        measures: dict[str, Measure] = {}
        hows = {
            "probe_accuracy": f"logistic regression on {len(known_BD)} vectors|penalty:{probe.penalty:g}",
            "neighbour_accuracy": f"{near.k} nearest of {len(known_BD)} vectors",
        }
        predicted = {"probe_accuracy": probe(test_BD), "neighbour_accuracy": near(test_BD)}
        for name, places_B in predicted.items():
            labels = [self.goal.names[place] for place in places_B.tolist()]
            accuracy = classes(labels, self.corpus.test.labels)["accuracy"]
            measures[name] = Measure(name, accuracy.value, f"{accuracy.signature}|{hows[name]}")
        return measures, [self.goal.names[place] for place in predicted["probe_accuracy"].tolist()]

    @cached_property
    def _numbers(self) -> dict[str, Tensor]:
        parts = {"train": self.corpus.train, "dev": self.corpus.dev}
        return {
            name: self.goal.targets(part.labels, [f"{name} image {n}" for n in range(len(part))])
            for name, part in parts.items()
        }

    def _targets(self, part: str) -> Tensor:
        return self._numbers[part]
