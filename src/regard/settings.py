"""Settings: YAML into frozen dataclasses and back. A closed schema: an unknown key is an error that names the nearest.

A recipe is a mapping of mappings; ``section.key=value`` on the command line overrides one entry. Imports errors only.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml

from regard.errors import ConfigError, UsageError

T = TypeVar("T")


def build(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a dataclass from a mapping, checking every key and type.

    Args:
        kind: A dataclass; its fields may be dataclasses, literals, tuples, optionals, numbers, strings and booleans.
        values: What the user wrote.
        where: File, section or option that the values come from.

    Returns:
        The dataclass.

    Raises:
        ConfigError: A key is unknown or missing, or a value has the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"expected settings, got {type(values).__name__}", where=where, mend="write key: value lines")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise ConfigError(f"unknown key {_short(key)}", where=where, mend=nearest(f"{key}", list(fields)))
    given = {key: convert(hints[key], value, f"{where}.{key}") for key, value in values.items()}
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in given:
            raise ConfigError(f"the key {name!r} is missing", where=where)
    try:
        return kind(**given)
    except UsageError as error:  # what an option would be wrong with, a file is
        raise ConfigError(error.what, where=where, mend=error.mend) from error


def nearest(key: str, known: Sequence[str]) -> str:
    """Say which known key was probably meant, or which there are."""
    close = difflib.get_close_matches(key, known, 1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def convert(hint: Any, value: Any, where: str) -> Any:
    """Check a value against a type; whole numbers pass as floats, lists become tuples.

    Args:
        hint: The field's type.
        value: What the user wrote.
        where: For the message.

    Returns:
        The value, in that type.

    Raises:
        ConfigError: It has another type, or is not finite.
    """
    origin, args = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where)
    if origin is Literal:
        if value not in args:
            raise ConfigError(
                f"{_short(value)} is not allowed", where=where, mend=f"choose from {', '.join(map(str, args))}"
            )
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return convert(next(arg for arg in args if arg is not type(None)), value, where)
    if origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(convert(args[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if dict in (hint, origin) and isinstance(value, Mapping):
        return dict(value)
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        # YAML 1.1 reads 1e-9 as a string
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    elif hint in (int, bool, str) and type(value) is hint:
        return value
    named = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"expected {named}, got {_short(value)}", where=where)


def _short(value: Any) -> str:
    """What the user wrote, on one short line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; lists in lists
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 80 else f"{text[:79]}…"


def plain(value: Any) -> Any:
    """Turn a dataclass back into mappings and lists, for YAML and JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def read_yaml(text: str, where: str) -> dict[str, Any]:
    """Read settings.

    Args:
        text: YAML.
        where: The file, for messages.

    Returns:
        The mapping.

    Raises:
        ConfigError: It is not YAML, or not a mapping.
    """
    values = _load(text, where)
    if not isinstance(values, dict):
        raise ConfigError("not a mapping of settings", where=where, mend="write key: value lines")
    return values


def _load(text: str, where: str) -> Any:
    try:
        _check_nodes(yaml.compose(text, yaml.SafeLoader), set())
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "not readable"
        raise ConfigError(f"{line}not YAML: {problem}", where=where) from error


def _check_nodes(node: yaml.Node | None, above: set[int]) -> None:
    """Refuse a key that is given twice, and aliases, by which a small file can grow without bound."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return
    if id(node) in above:
        raise yaml.MarkedYAMLError(problem="an alias; write the value out", problem_mark=node.start_mark)
    above.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                mark = node.value[place][0].start_mark
                raise yaml.MarkedYAMLError(problem=f"the key {_short(key)} is given twice", problem_mark=mark)
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            _check_nodes(part, above)


def write_yaml(value: Any) -> str:
    """Write a dataclass, or a mapping, as YAML."""
    values = plain(value)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    # The library writes Unicode's own line breaks as they are and folds them on reading; escaped they come back.
    return yaml.safe_dump(values, sort_keys=False) if {*text} & {*"\x85\u2028\u2029"} else text


def override(values: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Apply ``section.key=value`` assignments.

    Args:
        values: The recipe's mapping; left as it is.
        assignments: As typed; values are read as YAML.

    Returns:
        The changed copy.

    Raises:
        ConfigError: An assignment has no ``=``, goes through something that is no section, or its value is not YAML.
    """
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ConfigError(f"cannot read {_short(assignment)}", where="--set", mend="write section.key=value")
        values = set_value(values, path, _load(text, f"--set {path}"), f"--set {path}")
    return values


def set_value(values: Mapping[str, Any], path: str, value: Any, where: str) -> dict[str, Any]:
    """Change one entry.

    Args:
        values: The recipe's mapping; left as it is.
        path: ``section.key``.
        value: The new value.
        where: For messages.

    Returns:
        The changed copy.

    Raises:
        ConfigError: The path goes through something that is no section.
    """
    changed: dict[str, Any] = plain(dict(values))
    *sections, key = path.split(".")
    target = changed
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{section!r} is no section", where=where)
    target[key] = plain(value)
    return changed
