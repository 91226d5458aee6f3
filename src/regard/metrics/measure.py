"""What a score is, and how each metric is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Measure:
    """A metric's value.

    Attributes:
        name: A key of :data:`METRICS`; behind a slash may stand what part of the test data it is of: ``accuracy/de``.
        value: As the metric's entry there says.
        signature: What was computed, precisely enough to be repeated.
    """

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class Metric:
    """How a metric is read.

    Attributes:
        title: As readers know it.
        better: Which direction is good.
        is_fraction: Values from 0 to 1, shown in per cent.
    """

    title: str
    better: Literal["higher", "lower"] = "higher"
    is_fraction: bool = False


METRICS: dict[str, Metric] = {
    "bleu": Metric("BLEU"),
    "chrf": Metric("chrF"),
    "exact_match": Metric("exact match", is_fraction=True),
    "token_error_rate": Metric("token error rate", "lower", is_fraction=True),
    "loss": Metric("loss", "lower"),
    "bits_per_byte": Metric("bits per byte", "lower"),
    "perplexity": Metric("perplexity per token", "lower"),
    "masked_accuracy": Metric("accuracy at masked places", is_fraction=True),
    "next_sentence_accuracy": Metric("accuracy of whether the second part follows", is_fraction=True),
    "masked_perplexity": Metric("perplexity per masked token", "lower"),
    "target_accuracy": Metric("accuracy at predicted places", is_fraction=True),
    "target_perplexity": Metric("perplexity per predicted token", "lower"),
    "word_perplexity": Metric("perplexity per word", "lower"),
    "probe_accuracy": Metric("accuracy of a linear classifier on frozen vectors", is_fraction=True),
    "neighbour_accuracy": Metric("accuracy of the nearest neighbours' class", is_fraction=True),
    "view_accuracy": Metric("accuracy of finding a view's partner", is_fraction=True),
    "reconstruction_error": Metric("squared error of hidden patches, each of variance 1", "lower"),
    "accuracy": Metric("accuracy", is_fraction=True),
    "f1": Metric("F1", is_fraction=True),
    "positive_f1": Metric("F1 of the positive class", is_fraction=True),
    "matthews": Metric("Matthews correlation"),
    "pearson": Metric("Pearson correlation"),
    "spearman": Metric("Spearman correlation"),
    "span_f1": Metric("span F1", is_fraction=True),
    "frechet_distance": Metric("Fréchet distance", "lower"),
}


def metric(name: str) -> Metric:
    """Say how a measure is read.

    Args:
        name: Its name.

    Returns:
        The metric, with the part of the data in its title.
    """
    base, _, part = name.partition("/")
    return replace(METRICS[base], title=f"{METRICS[base].title}, {part}") if part else METRICS[base]
