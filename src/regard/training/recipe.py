"""A recipe: data, tokenizer, model, decoding, evaluation and training of one run, as YAML."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from regard import settings
from regard.errors import ConfigError, UsageError
from regard.metrics.measure import METRICS
from regard.tasks.registry import TASKS
from regard.training.config import TrainingConfig


@dataclass(frozen=True)
class Comparison:
    """A score measured elsewhere that the report shows beside the run's own.

    Attributes:
        data: The training data that it belongs to; a run on others does not show it.
        system: What was scored.
        metric: By which metric.
        value: The score.
        note: The command, hardware and date that gave it.
    """

    data: str
    system: str
    metric: str
    value: float
    note: str

    def __post_init__(self) -> None:
        """Refuse a metric that there is not.

        Raises:
            ConfigError: It is unknown.
        """
        if self.metric not in METRICS:
            raise ConfigError(f"unknown metric {self.metric!r}", mend=settings.nearest(self.metric, sorted(METRICS)))


@dataclass(frozen=True)
class Recipe:
    """Settings of a run.

    Attributes:
        task: A name in :data:`regard.tasks.registry.TASKS`.
        settings: The task's own settings.
        training: How the model is trained.
        comparisons: Scores to show beside the run's own.
    """

    task: str
    settings: Any
    training: TrainingConfig
    comparisons: tuple[Comparison, ...] = field(default=())

    def as_mapping(self) -> dict[str, Any]:
        """Give the resolved recipe as it is written to config.yaml."""
        rest = {"training": settings.plain(self.training), "comparisons": settings.plain(self.comparisons)}
        return {"task": self.task, **settings.plain(self.settings), **rest}


def names() -> list[str]:
    """Name the recipes that come with regard."""
    folder = resources.files("regard.recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read(name: str) -> dict[str, Any]:
    """Read a recipe.

    Args:
        name: Of one that comes with regard, or a YAML file's path.

    Returns:
        Its mapping.

    Raises:
        UsageError: There is no such recipe.
        ConfigError: It is not YAML, or not a mapping.
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise UsageError("no such recipe file", where=name)
        try:
            return settings.read_yaml(path.read_text("utf-8"), name)
        except UnicodeDecodeError as error:
            raise ConfigError("not UTF-8", where=name, mend="save the file as UTF-8") from error
    if name not in names():
        close = difflib.get_close_matches(name, names(), 1)
        mend = f"did you mean {close[0]}?" if close else f"choose from {', '.join(names())}, or give a .yaml file"
        raise UsageError(f"unknown recipe {name!r}", mend=mend)
    text = (resources.files("regard.recipes") / f"{name}.yaml").read_text("utf-8")
    return settings.read_yaml(text, f"recipe {name}")


def read_for(task: str, name: str | None) -> dict[str, Any]:
    """Read the recipe of a task.

    Args:
        task: What is to be trained for.
        name: As :func:`read` takes it; None for the task's default.

    Returns:
        Its mapping.

    Raises:
        UsageError: It is for another task, or says of none.
    """
    values = read(name or task)
    if "task" not in values:
        raise UsageError("the recipe names no task", where=name, mend=f"write task: {task}")
    if values["task"] != task:
        raise UsageError(f"the recipe is for the task {values['task']!r}", where=name)
    return values


def with_data(
    values: Mapping[str, Any],
    train: str | None,
    dev: str | None = None,
    test: str | None = None,
    source: str | None = None,
    target: str | None = None,
) -> dict[str, Any]:
    """Put the user's data into a recipe.

    Args:
        values: The recipe's mapping.
        train: Training file; None keeps the recipe's data. With it go the recipe's own other parts, columns and extra
            pairs.
        dev: Development file.
        test: Test file.
        source: Column or suffix of the source.
        target: Column or suffix of the target.

    Returns:
        The changed copy.

    Raises:
        ConfigError: The recipe's data section is none.
        UsageError: Neither names training data.
    """
    section = values.get("data") or {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"data is {section!r}, not a section", mend="write data: and below it train: FILE")
    typed = {"train": train, "dev": dev, "test": test, "source": source, "target": target}
    own = () if train is None else ("dev", "test", "also_test", "source", "target", "extra", "repeat")
    section = {
        **{key: value for key, value in section.items() if key not in own},
        **{key: value for key, value in typed.items() if value is not None},
    }
    if not section.get("train"):
        raise UsageError("no training data", mend="give --data FILE")
    return {**values, "data": section}


def changed(
    values: Mapping[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]], name: str
) -> dict[str, Any]:
    """Make the user's changes to a recipe.

    A trained model that he names (``init``) has its own sizes. Those of a recipe that comes with regard are for a model
    from nothing, so they go with it; what he says of the model himself stays, and is checked against what he names.

    Args:
        values: The recipe's mapping.
        change: Makes the changes.
        name: The recipe's.

    Returns:
        The changed copy.
    """
    wanted = change(values)
    if wanted.get("init") and "init" not in values and name in names():
        return change({key: value for key, value in values.items() if key != "model"})
    return wanted


def resolve(values: Mapping[str, Any], assignments: Sequence[str] = (), name: str = "") -> Recipe:
    """Check a recipe and fill in what it leaves out.

    Args:
        values: The recipe's mapping.
        assignments: ``section.key=value`` from the command line.
        name: The recipe's; empty where it has none.

    Returns:
        The recipe.

    Raises:
        ConfigError: The task is unknown, or a key or value is wrong.
    """
    where = f"recipe {name}".rstrip()
    values = changed(values, lambda own: settings.override(dict(own), assignments), name)
    task = values.pop("task", None)
    if not isinstance(task, str) or task not in TASKS:
        raise ConfigError(f"unknown task {task!r}", where=where, mend=f"choose from {', '.join(TASKS)}")
    known = {item.name for item in fields(TASKS[task].config)} | {"training", "comparisons"}
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown key {key!r}", where=where, mend=settings.nearest(f"{key}", sorted(known)))
    training = settings.build(TrainingConfig, values.pop("training", {}), f"{where}: training")
    comparisons = settings.convert(tuple[Comparison, ...], values.pop("comparisons", ()), f"{where}: comparisons")
    own = settings.build(TASKS[task].config, values, where)
    return Recipe(task, own, training, tuple(one for one in comparisons if one.data == own.data.train))
