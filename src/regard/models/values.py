"""What config.json of a public folder says: settings by name, each checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from regard.errors import FormatError

T = TypeVar("T")

# Our names of activations by those of the Hugging Face layouts, and the other way; of several the last is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_new": "gelu-tanh",
    "quick_gelu": "gelu-quick",
    "swish": "silu",
    "silu": "silu",
}
ACTIVATION_NAMES = {ours: theirs for theirs, ours in ACTIVATIONS.items()}


def layout_name(values: Mapping[str, Any]) -> str:
    """Name the layout that a config.json is of: its ``model_type``, or what stands for it in timm's, which has none.

    Args:
        values: config.json.

    Returns:
        ``vit``; of timm's architecture ``vit_base_patch16_224`` it is ``timm/vit``.
    """
    named, architecture = values.get("model_type"), values.get("architecture")
    if named is None and isinstance(architecture, str):
        return f"timm/{architecture.partition('_')[0]}"
    return str(named)


def architecture(values: Mapping[str, Any], where: str, known: Mapping[str, T]) -> str:
    """Take the class of the model: the first that config.json names.

    Args:
        values: config.json.
        where: Its path.
        known: By the classes' names; the first is that of a config.json that names none.

    Returns:
        The class.

    Raises:
        FormatError: It is none of those known.
    """
    named = values.get("architectures") or [next(iter(known))]
    name = str(named[0] if isinstance(named, list) else named)
    if name not in known:
        raise FormatError(f"architecture {name[:40]!r}", where=where, mend=f"known: {', '.join(known)}")
    return name


def class_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Take the names of classes.

    Args:
        values: config.json: ``id2label`` of Hugging Face's, or ``label_names`` of timm's.

    Returns:
        The names by number; empty where not every number has one.
    """
    named = values.get("id2label")
    names = [named.get(str(i)) for i in range(len(named))] if isinstance(named, dict) else values.get("label_names")
    strings = tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()
    return strings if isinstance(names, list) and len(strings) == len(names) else ()


def pair(values: Mapping[str, Any], name: str, where: str, default: Any = None) -> tuple[int, int]:
    """Take a setting that is a height and a width, or one number for both.

    Args:
        values: config.json.
        name: The setting.
        where: Path of config.json.
        default: What a missing one is; None refuses that.

    Returns:
        Height and width.

    Raises:
        FormatError: It is missing or something else.
    """
    value = values.get(name, default)
    both = value if isinstance(value, (list, tuple)) else (value, value)
    if len(both) != 2 or not all(type(one) is int for one in both):
        raise FormatError(f"{name} is {str(value)[:40]}, neither a number nor a height and a width", where=where)
    return both[0], both[1]


def expect(values: Mapping[str, Any], where: str, **wanted: Any) -> None:
    """Refuse settings that would make another function of the model.

    Args:
        values: config.json.
        where: Its path.
        **wanted: What each has to be where it is there.

    Raises:
        FormatError: One is something else.
    """
    for name, value in wanted.items():
        if name in values and values[name] != value:
            raise FormatError(f"{name} is {values[name]!r}; only {value!r} is known here", where=where)


def choose(values: Mapping[str, Any], name: str, known: Mapping[str, str], where: str) -> str:
    """Translate a setting that is a name.

    Args:
        values: config.json.
        name: The setting.
        known: Our names by theirs.
        where: Path of config.json.

    Returns:
        Our name.

    Raises:
        FormatError: It is missing or unknown.
    """
    value = values.get(name)
    if not isinstance(value, str) or value not in known:
        raise FormatError(f"{name} is {str(value)[:40]!r}", where=where, mend=f"known: {', '.join(known)}")
    return known[value]


def number(values: Mapping[str, Any], name: str, where: str, default: float | None = None) -> Any:
    """Take a setting that is a number.

    Args:
        values: config.json.
        name: The setting.
        where: Path of config.json.
        default: What a missing one is; None refuses that.

    Returns:
        The number.

    Raises:
        FormatError: It is missing or no number.
    """
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FormatError(f"{name} is {value!r}, not a number", where=where)
    return value


def count(values: Mapping[str, Any], name: str, where: str, default: int | None = None) -> int:
    """Take a setting that is a whole number.

    Args:
        values: config.json.
        name: The setting.
        where: Path of config.json.
        default: What a missing one is; None refuses that.

    Returns:
        The number.

    Raises:
        FormatError: It is missing or no whole number.
    """
    value = number(values, name, where, default)
    if not isinstance(value, int):
        raise FormatError(f"{name} is {value!r}, not a whole number", where=where)
    return value


def flag(values: Mapping[str, Any], name: str, where: str, default: bool) -> bool:
    """Take a setting that is on or off.

    Args:
        values: config.json.
        name: The setting.
        where: Path of config.json.
        default: What a missing one is.

    Returns:
        Whether it is on.

    Raises:
        FormatError: It is neither.
    """
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise FormatError(f"{name} is {str(value)[:40]!r}, neither true nor false", where=where)
    return value


# timm's names of the rates in ``model_args``, and ours.
TIMM_RATES = {"proj_drop_rate": "dropout", "attn_drop_rate": "attention_dropout", "drop_path_rate": "drop_path"}


def timm_settings(
    values: Mapping[str, Any],
    known: Mapping[str, Mapping[str, Any]],
    usual: Mapping[str, Any],
    more: Iterable[str],
    where: str,
) -> dict[str, Any]:
    """Put together what timm's config.json says of a model: its architecture's own, its data's, and what was changed.

    Args:
        values: config.json.
        known: Settings of each architecture, by name.
        usual: Settings that architectures leave out; ``global_pool`` may stand in config.json itself.
        more: Further settings that ``model_args`` may have, besides :data:`TIMM_RATES`.
        where: Path of config.json.

    Returns:
        Settings by timm's names.

    Raises:
        FormatError: The architecture or a setting is unknown, or an entry is not of its form.
    """
    name = architecture({"architectures": values.get("architecture")}, where, known)
    pretrained, given = values.get("pretrained_cfg", {}), values.get("model_args", {})
    if not isinstance(pretrained, dict) or not isinstance(given, dict):
        raise FormatError("pretrained_cfg or model_args is no mapping", where=where)
    shape = pretrained.get("input_size", (3, *pair(known[name], "img_size", where)))
    if not isinstance(shape, (list, tuple)) or len(shape) != 3:
        raise FormatError(f"input_size is {str(shape)[:40]}, not channels, height and width", where=where)
    said = {
        **usual,
        "in_chans": shape[0],
        "num_classes": values.get("num_classes", pretrained.get("num_classes", 1000)),
        "global_pool": values.get("global_pool", usual["global_pool"]),
        **known[name],
        "img_size": shape[1:],
    }
    unknown = sorted(given.keys() - {*said, *more, *TIMM_RATES})
    if unknown:
        raise FormatError(f"model_args has {unknown[0][:40]!r}, which is not known here", where=where)
    return {**said, **given}
