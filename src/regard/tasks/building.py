"""From a recipe's model section to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from regard import settings
from regard.errors import ConfigError, UsageError
from regard.models.registry import check_bounds, family

M = TypeVar("M", bound=nn.Module)


def build(model: Mapping[str, Any], default: str, given: Mapping[str, Any], kind: type[M], does: str, where: str) -> M:
    """Build a model for the data at hand.

    Args:
        model: ``family`` and its settings.
        default: The family where none is named.
        given: Settings that follow from the data: vocabulary sizes, for one.
        kind: What the family has to be.
        does: What that means, for messages.
        where: For messages.

    Returns:
        The model, with fresh weights.

    Raises:
        ConfigError: The family is unknown or of another kind, or a setting is wrong.
    """
    known = family(str(model.get("family", default)))
    if not issubclass(known.build, kind):  # type: ignore[arg-type]
        raise ConfigError(f"the family {known.name!r} does not {does}", where=where)
    values = {key: value for key, value in model.items() if key != "family"}
    for key in given:
        if key in values:
            raise ConfigError(f"{key} follows from the data", where=where, mend="leave it out")
    config = settings.build(known.config, {**given, **values}, where)
    check_bounds(config, where)
    try:
        return known.build(config)  # type: ignore[return-value]
    except (UsageError, ConfigError) as error:  # settings that do not go together
        raise ConfigError(error.what, where=error.where or where, mend=error.mend) from error
