"""Models in regard's own form that no task of ours has trained; and what every folder of ours says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from regard import settings
from regard.errors import FormatError
from regard.files import json_bytes, read_config, write_aside
from regard.models.registry import Family, check_bounds, family
from regard.models.values import layout_name
from regard.models.weights import build_like, gather, map_tensors, write_tensors

FORMAT = 1
MODEL_TYPE = "regard"
CONFIG_CAP_BYTES = 1 << 20
# The public config.json as it was, so that the way back loses none of its entries.
KEPT_CONFIG = "public_config.json"


@dataclass(frozen=True)
class PlainConfig:
    """What config.json holds where no task of ours trained the model.

    Attributes:
        model_type: ``regard`` says who wrote it.
        format: Of this file.
        task: None.
        family: Of the model.
        settings: Of the family.
        architectures: Name of the module, for readers; it selects nothing.
        dtype: Of the weights, likewise.
    """

    model_type: Literal["regard"]
    format: int
    task: Literal["none"]
    family: str
    settings: dict[str, Any]
    architectures: tuple[str, ...] = ()
    dtype: str = "float32"


def save_plain(folder: Path, family: str, model: nn.Module) -> None:
    """Write a model that no task of ours has trained; its tokenizer is the caller's.

    Args:
        folder: An existing folder.
        family: The model's family.
        model: The model.
    """
    config = PlainConfig(
        model_type="regard",
        format=FORMAT,
        task="none",
        family=family,
        settings=settings.plain(model.config),
        architectures=(type(model).__name__,),
        dtype=dtype_name(model),
    )
    write_aside(folder / "config.json", json_bytes(settings.plain(config)))
    write_tensors(folder / "model.safetensors", gather(model))


def load_plain(folder: Path) -> tuple[str, nn.Module]:
    """Read what :func:`save_plain` wrote.

    Args:
        folder: Where.

    Returns:
        The family and the model.

    Raises:
        DataError: A file is missing.
        FormatError: A file is not what it claims to be, or the model was trained for a task.
        CheckpointError: Weights and config do not fit.
    """
    where = str(folder / "config.json")
    values = read_config(folder / "config.json", CONFIG_CAP_BYTES)
    if values.get("task") != "none":
        raise FormatError(f"a model for the task {str(values.get('task'))[:40]!r}, which it alone serves", where=where)
    settings.build(PlainConfig, values, where)
    return load_model(folder)


def load_model(folder: Path) -> tuple[str, nn.Module]:
    """Read the model of a folder of ours, whatever it was trained for.

    Args:
        folder: Where.

    Returns:
        The family and the model.

    Raises:
        DataError: A file is missing.
        FormatError: A file is not what it claims to be.
        CheckpointError: Weights and config do not fit, as where a task put layers around the family's model.
    """
    where = str(folder / "config.json")
    values = read_config(folder / "config.json", CONFIG_CAP_BYTES)
    check_format(values.get("format", 0), folder)
    known = family(str(values.get("family"))[:40])
    own = values.get("settings")
    model_config = settings.build(known.config, own if isinstance(own, dict) else {}, f"{where}: settings")
    check_bounds(model_config, where)
    return known.name, build_like(known.build, model_config, map_tensors(folder / "model.safetensors"), folder)


def family_of_plain(folder: Path) -> Family:
    """Say which family a folder's model is of.

    Args:
        folder: Written by :func:`save_plain`.

    Returns:
        The family.

    Raises:
        ConfigError: There is no such family.
    """
    return family(str(read_config(folder / "config.json", CONFIG_CAP_BYTES).get("family"))[:40])


def check_format(number: int, folder: Path) -> None:
    """Refuse folders of another version.

    Args:
        number: The format that config.json names.
        folder: Where.

    Raises:
        FormatError: It is another than this version's.
    """
    if number != FORMAT:
        mend = "use the version of regard that wrote it"
        raise FormatError(f"format {number}; this version reads {FORMAT}", where=str(folder), mend=mend)


def dtype_name(model: nn.Module) -> str:
    """Name the precision of a model's weights."""
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def task(path: str | Path) -> str | None:
    """Say what a model folder of ours was trained for.

    Args:
        path: A folder.

    Returns:
        ``task`` of its config.json; None where there is none.
    """
    config = Path(path) / "config.json"
    return str(read_config(config, CONFIG_CAP_BYTES).get("task")) if config.is_file() else None


def public_type(folder: Path) -> str | None:
    """Say which public layout a folder is of, or was before it was converted to our form.

    Args:
        folder: With config.json, or without.

    Returns:
        Its ``model_type``; None where nothing says it.
    """
    kind, kept = model_type(folder), folder / KEPT_CONFIG
    return layout_name(read_config(kept)) if kind == MODEL_TYPE and kept.is_file() else kind


def is_trained(path: str | Path) -> bool:
    """Say whether a task of ours has trained a model.

    Args:
        path: A run's folder, the model folder in it, a public folder, or one file.

    Returns:
        Whether it has; of a folder without config.json too, which may be a run's.
    """
    source = Path(path)
    if source.suffix == ".gguf":
        return False
    kind = model_type(source)
    return kind is None or (kind == MODEL_TYPE and task(source) != "none")


def model_type(path: str | Path) -> str | None:
    """Say who wrote a model folder.

    Args:
        path: A folder.

    Returns:
        ``model_type`` of its config.json, or what stands for it in timm's; None where there is no such file, as in a
        run's folder.
    """
    config = Path(path) / "config.json"
    return layout_name(read_config(config, CONFIG_CAP_BYTES)) if config.is_file() else None
