"""The families of models.

A family's file registers it; that alone enrols it in the command line, the tests' battery and the table of sizes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from regard.errors import ConfigError


@dataclass(frozen=True)
class Size:
    """A published size of a family.

    Attributes:
        name: As users type it.
        config: What is built.
        paper: Parameters as printed in the paper; None where it prints none.
        note: The vocabulary counted, and why the count differs from the print.
    """

    name: str
    config: Any
    paper: str | None
    note: str


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        name: As recipes and config files name it.
        config: Its frozen dataclass of settings.
        build: Makes a model from its settings.
        tiny: Settings of a model small enough for tests, of every layer kind.
        sizes: Published sizes.
        public: How its public checkpoints are laid out; see :class:`regard.models.public.Layout`.
    """

    name: str
    config: type
    build: Callable[[Any], nn.Module]
    tiny: tuple[Any, ...]
    sizes: tuple[Size, ...] = ()
    public: tuple[Any, ...] = ()


_families: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Enrol a family.

    Args:
        family: The family; its name is new.

    Returns:
        The same.
    """
    _families[family.name] = family
    return family


def check_bounds(config: Any, where: str) -> None:
    """Refuse sizes that no model has, before anything is built: a config may come from a stranger.

    Args:
        config: A family's settings.
        where: For the message.

    Raises:
        ConfigError: A size is 0 where that means nothing, negative, or beyond all reason.
    """
    limits = (
        ("_layers", 1_000),
        ("_heads", 4_096),
        ("_dim", 262_144),
        ("vocab_size", 16_777_216),
        ("max_len", 16_777_216),
        ("_size", 65_536),
        ("_channels", 65_536),
        ("_classes", 16_777_216),
        ("_types", 1_000),
        ("_languages", 10_000),
        ("_position", 1_000),
        ("_base", 1e12),
        ("_eps", 1.0),
    )
    for item in fields(config):
        value = getattr(config, item.name)
        # Where none is a choice, none is the default; of segment types there may be none as well.
        least = 0 if item.default == 0 or isinstance(value, float) or item.name.endswith("_types") else 1
        limit = next((limit for ending, limit in limits if item.name.endswith(ending)), None)
        for one in value if isinstance(value, tuple) else (value,):
            if limit is not None and not least <= one <= limit:
                raise ConfigError(f"{item.name} is {value}", where=where, mend=f"give {least} to {limit:,}")
        if ("dropout" in item.name or item.name == "drop_path") and not 0 <= value < 1:
            raise ConfigError(f"{item.name} is {value}", where=where, mend="give a probability in [0, 1)")


def families() -> dict[str, Family]:
    """Give all families by name, in the order of their names."""
    package = importlib.import_module("regard.models")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"regard.models.{module.name}")
    return dict(sorted(_families.items()))


def family(name: str) -> Family:
    """Find a family.

    Args:
        name: Its name.

    Returns:
        The family.

    Raises:
        ConfigError: There is no such family.
    """
    known = families()
    if name not in known:
        raise ConfigError(f"unknown model family {name!r}", mend=f"choose from {', '.join(known)}")
    return known[name]
