"""A trained model as a folder: config.json, model.safetensors, tokenizers, generation_config.json, README.md.

No config selects code: the family is looked up among those that regard has, every key is checked, and sizes are bounded
before anything is built.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard import settings
from regard.data.pieces import FILES, Pieces, has_pieces, load_pieces, save_pieces
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions
from regard.errors import CheckpointError, ConfigError, DataError, FormatError
from regard.files import json_bytes, on_disk, read_config, reading, write_aside
from regard.models.interface import EncoderDecoder
from regard.models.registry import check_bounds, families, family
from regard.models.weights import build_like, gather, read_tensors, write_tensors
from regard.tasks.pairs import PairTokenizer
from regard.tasks.public_pairs import load_public, translates
from regard.tasks.translator import Translator

FORMAT = 1
MODEL_TYPE = "regard"
CONFIG_CAP_BYTES = 1 << 20


@dataclass(frozen=True)
class FolderConfig:
    """What config.json holds.

    Attributes:
        model_type: ``regard`` says who wrote it.
        format: Of this file.
        task: What the model was trained for.
        family: Of the model.
        settings: Of the family.
        max_tokens: The model's context.
        references: How evaluation groups lines.
        architectures: Name of the module, for readers; it selects nothing.
        dtype: Of the weights, likewise.
    """

    model_type: Literal["regard"]
    format: int
    task: Literal["translate"]
    family: str
    settings: dict[str, Any]
    max_tokens: int
    references: Literal["line", "source"]
    architectures: tuple[str, ...] = ()
    dtype: str = "float32"


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


def save_tokenizers(folder: Path, tokenizer: PairTokenizer) -> None:
    """Write tokenizer.json, or one for each side where they differ; or the files of sentencepiece models.

    Args:
        folder: An existing folder.
        tokenizer: The tokenizers.
    """
    one, two = "tokenizer.json", ["source_tokenizer.json", "target_tokenizer.json"]
    source, target = tokenizer.source, tokenizer.target
    own = isinstance(source, Tokenizer)
    # What an earlier model left in this folder must not be read as this one's.
    kept = {one} if tokenizer.shared else {*two} if own else {*FILES}
    for stale in sorted({one, *two, *FILES} - kept):
        (folder / stale).unlink(missing_ok=True)
    if isinstance(source, Pieces) and isinstance(target, Pieces):
        save_pieces(folder, source, target)
    elif isinstance(source, Tokenizer) and isinstance(target, Tokenizer):
        for name, side in [(one, source)] if tokenizer.shared else zip(two, (source, target), strict=True):
            write_aside(folder / name, side.to_json())


def load_tokenizers(folder: Path) -> PairTokenizer | None:
    """Read what :func:`save_tokenizers` wrote.

    Args:
        folder: Where.

    Returns:
        The tokenizers; None where there is none.
    """
    if has_pieces(folder):
        return PairTokenizer(*load_pieces(folder))
    if (folder / "tokenizer.json").exists():
        both = Tokenizer.read(folder / "tokenizer.json")
        return PairTokenizer(both, both)
    names = [folder / "source_tokenizer.json", folder / "target_tokenizer.json"]
    return PairTokenizer(*map(Tokenizer.read, names)) if all(name.exists() for name in names) else None


def save(folder: Path, translator: Translator, weights: Mapping[str, Tensor] | None = None, card: str = "") -> None:
    """Write a model's folder; each file whole or not at all, the weights last.

    Args:
        folder: Made where it is missing.
        translator: The model with its tokenizers.
        weights: Other weights than the model's own; None for its own.
        card: README.md; empty for none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = translator.model
    name = next(name for name, known in families().items() if isinstance(model.config, known.config))
    config = FolderConfig(
        model_type="regard",
        format=FORMAT,
        task="translate",
        family=name,
        settings=settings.plain(model.config),
        max_tokens=translator.max_tokens,
        references=translator.references,
        architectures=(type(model).__name__,),
        dtype=_dtype(model),
    )
    save_tokenizers(folder, translator.tokenizer)
    write_aside(folder / "generation_config.json", json_bytes(settings.plain(translator.options)))
    if card:
        write_aside(folder / "README.md", card)
    write_aside(folder / "config.json", json_bytes(settings.plain(config)))
    write_tensors(folder / "model.safetensors", gather(model) if weights is None else weights)


def load(path: str | Path, device: torch.device | None = None) -> Translator:
    """Load a model that translates.

    Args:
        path: A run's folder, or the model folder in it; or a public folder of an encoder–decoder.
        device: Where it is to run; None is the CPU.

    Returns:
        The model with its tokenizers.

    Raises:
        DataError: There is no model.
        UsageError: The path looks like a model's name on a hub, and nothing is there.
        FormatError: A file is not what it claims to be.
        CheckpointError: Weights and config do not fit.
    """
    folder = on_disk(path)
    with reading(folder):
        if (folder / "model" / "config.json").exists():
            folder = folder / "model"
        elif (folder / "config.yaml").exists() and (folder / "checkpoints").exists():
            mend = "train it to its end with the same command"
            raise DataError("this run has not finished", where=str(path), mend=mend)
        if not (folder / "config.json").is_file():
            mend = "give a folder that regard train made"
            raise DataError("no model here (no config.json)", where=str(path), mend=mend)
    values = read_config(folder / "config.json", CONFIG_CAP_BYTES)
    kind = values.get("model_type")
    if isinstance(kind, str) and translates(kind):
        translator, notes = load_public(folder, device)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return translator
    if kind != MODEL_TYPE:
        mend = "give a folder that regard train made, or a public encoder–decoder's"
        what = f"model_type is {str(kind)[:40]!r}, not 'regard'"
        raise FormatError(what, where=str(folder / "config.json"), mend=mend)
    if values.get("task") == "none":
        what = f"a {str(values.get('family'))[:40]} that no task of regard has trained does not translate"
        raise FormatError(what, where=str(folder / "config.json"))
    config = settings.build(FolderConfig, values, str(folder / "config.json"))
    _check_format(config.format, folder)
    if config.max_tokens < 1:
        raise ConfigError(f"max_tokens is {config.max_tokens}", where=str(folder / "config.json"))
    tokenizer = load_tokenizers(folder)
    if tokenizer is None:
        raise DataError("the tokenizer is missing", where=str(folder), mend="give a folder that is whole")
    known = family(config.family)
    if not issubclass(known.build, EncoderDecoder):  # type: ignore[arg-type]
        raise ConfigError(f"a {config.family} does not translate", where=str(folder / "config.json"))
    model_config = settings.build(known.config, config.settings, f"{folder / 'config.json'}: settings")
    check_bounds(model_config, str(folder / "config.json"))
    sizes = tokenizer.source.vocab_size, tokenizer.target.vocab_size
    if (model_config.source_vocab_size, model_config.target_vocab_size) != sizes:
        raise CheckpointError(f"the tokenizers have {sizes} tokens, the model other vocabularies", where=str(folder))
    options = settings.build(
        DecodeOptions,
        read_config(folder / "generation_config.json", CONFIG_CAP_BYTES),
        str(folder / "generation_config.json"),
    )
    tensors = read_tensors(folder / "model.safetensors")
    model: EncoderDecoder = build_like(known.build, model_config, tensors, folder)  # type: ignore[assignment]
    return Translator(model, tokenizer, options, config.max_tokens, config.references, device)


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
        dtype=_dtype(model),
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
    config = settings.build(PlainConfig, values, where)
    _check_format(config.format, folder)
    known = family(config.family)
    model_config = settings.build(known.config, config.settings, f"{where}: settings")
    check_bounds(model_config, where)
    return known.name, build_like(known.build, model_config, read_tensors(folder / "model.safetensors"), folder)


def _check_format(number: int, folder: Path) -> None:
    if number != FORMAT:
        mend = "use the version of regard that wrote it"
        raise FormatError(f"format {number}; this version reads {FORMAT}", where=str(folder), mend=mend)


def _dtype(model: nn.Module) -> str:
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


def model_type(path: str | Path) -> str | None:
    """Say who wrote a model folder.

    Args:
        path: A folder.

    Returns:
        ``model_type`` of its config.json; None where there is none, as in a run's folder.
    """
    config = Path(path) / "config.json"
    return str(read_config(config, CONFIG_CAP_BYTES).get("model_type")) if config.is_file() else None
