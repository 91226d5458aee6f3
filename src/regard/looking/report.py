"""What a training report tells: the data of `page.report_page`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from regard.errors import DataError
from regard.files import write_aside
from regard.looking.maps import Maps
from regard.looking.png import png_size
from regard.looking.text import visible

Setting = None | bool | int | float | str | Sequence["Setting"] | Mapping[str, "Setting"]


@dataclass(frozen=True)
class Curve:
    """One quantity over the steps of training.

    Args:
        name: What it is, such as "training".
        steps: Optimizer steps, ascending.
        values: Values, as many; one that is not finite leaves a gap.
        chart: The quantity; curves of one chart are drawn together, in the order of their first appearance.

    Raises:
        DataError: Another number of steps than of values.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    chart: str = "loss"

    def __post_init__(self) -> None:
        """Check that every value has its step."""
        if len(self.steps) != len(self.values):
            where = f"curve {visible(self.name)!r}"
            raise DataError(f"{len(self.steps)} steps, {len(self.values)} values", where=where)


@dataclass(frozen=True)
class Score:
    """What a system reached.

    Args:
        metric: The metric's name.
        value: The score; finite.
        unit: Written after the value; empty for none.
        signature: How it was computed, to the letter; empty where the metric's name says it.
        system: Who reached it.
        better: Which way is better.

    Raises:
        DataError: A value that is not finite.
    """

    metric: str
    value: float
    unit: str
    signature: str
    system: str
    better: Literal["higher", "lower"] = "higher"

    def __post_init__(self) -> None:
        """Refuse a score that is none."""
        if not math.isfinite(self.value):
            raise DataError(f"score {self.value}", where=f"{visible(self.metric)} of {visible(self.system)}")


@dataclass(frozen=True)
class ByLength:
    """Scores by the length of the source.

    Args:
        metric: The metric's name.
        bins: Names of the lengths, such as "1 to 10".
        counts: Examples in each.
        scores: Each system's scores, one a bin; None where there is none.
    """

    metric: str
    bins: Sequence[str]
    counts: Sequence[int]
    scores: Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Table:
    """Figures in rows.

    Args:
        title: What it shows.
        about: A sentence on it; empty for none.
        head: Names of the columns.
        rows: As they are written, as many in each as there are columns.
    """

    title: str
    about: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A picture that a task has made: samples, views, reconstructions.

    Args:
        title: What it shows.
        about: A sentence on it, and what its rows and columns are; empty for none.
        png: The picture.
        alt: The same in words for those who do not see it; empty for the title.

    Raises:
        FormatError: Not PNG.
    """

    title: str
    about: str
    png: bytes
    alt: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no picture."""
        png_size(self.png)


@dataclass(frozen=True)
class Sample:
    """One example of the test set.

    Args:
        source: The input.
        reference: What it should be.
        output: What the model wrote.
        mark: Right, wrong, or empty where there is no such thing.
        picture: The input as PNG where it is an image; None for a text.

    Raises:
        FormatError: The picture is not PNG.
    """

    source: str
    reference: str
    output: str
    mark: Literal["right", "wrong", ""] = ""
    picture: bytes | None = None

    def __post_init__(self) -> None:
        """Refuse what is no picture."""
        if self.picture is not None:
            png_size(self.picture)


@dataclass(frozen=True, eq=False)
class Report:
    """All that a reader needs to trust a run, and to repeat it.

    Args:
        title: What was trained.
        command: What repeats it.
        started: When it started.
        seconds: How long it took.
        hardware: What it ran on.
        settings: The resolved settings; nested ones are shown with dots.
        curves: Learning curves.
        scores: What the trained model reached, the most important first.
        baselines: What others reached.
        tables: Further figures.
        by_length: Scores by source length.
        figures: Pictures that the task has made.
        samples: Examples of the test set, chosen by their position.
        maps: Attention pictures of samples.
        notes: Anything else, a sentence each.
        lead: A sentence or two that sum up; empty for none.
        data: What it was trained on: counts, licence, hash.
    """

    title: str
    command: str
    started: str
    seconds: float
    hardware: str
    settings: Mapping[str, Setting]
    curves: Sequence[Curve]
    scores: Sequence[Score]
    baselines: Sequence[Score]
    tables: Sequence[Table] = ()
    by_length: Sequence[ByLength] = ()
    figures: Sequence[Figure] = ()
    samples: Sequence[Sample] = ()
    maps: Sequence[Maps] = ()
    notes: Sequence[str] = ()
    lead: str = ""
    data: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as a page, whole or not at all.

        Args:
            path: The file, usually report.html.

        Raises:
            ResourceError: The file cannot be written.
        """
        write_aside(Path(path), self._page())

    def _page(self) -> str:
        from regard.looking.report_page import (
            report_page,
        )  # the page shows reports: importing it above would be a circle

        return report_page(self)


def flatten(settings: Mapping[str, Setting], prefix: str = "") -> list[tuple[str, str]]:
    """Write nested settings as names with dots and values.

    Args:
        settings: Settings.
        prefix: What stands before each name.

    Returns:
        Names and values, in the order given.

    >>> flatten({"model": {"num_layers": 6, "tied": True}, "seed": None})
    [('model.num_layers', '6'), ('model.tied', 'yes'), ('seed', 'none')]
    >>> flatten({"comparisons": [{"system": "ours"}, {"system": "theirs"}], "betas": [0.9, 0.98]})
    [('comparisons.1.system', 'ours'), ('comparisons.2.system', 'theirs'), ('betas', '0.9, 0.98')]
    """
    pairs: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Sequence) and value and all(isinstance(one, Mapping) for one in value):
            value = {str(number): one for number, one in enumerate(value, 1)}
        if isinstance(value, Mapping) and value:
            pairs += flatten(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", _value_text(value)))
    return pairs


def _value_text(value: Setting) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_value_text(one) for one in value) or "none"
    return str(value) or "empty"
