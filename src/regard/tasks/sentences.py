"""What sentence-transformers writes beside an encoder: how a text's vectors become one, and how texts are read.

Its modules.json lists what a text goes through. An encoder, pooling and scaling to length 1 are done here; a folder
with anything else is refused, since its vectors would be others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from regard.errors import FormatError
from regard.files import read_config
from regard.layers.pooling import Pooling

TEXT_CAP_BYTES = 1 << 20
PACKAGE = "sentence_transformers."  # of modules whose names say what they do; what a folder brings may do anything
POOLING_FOLDER = "1_Pooling"
ORDERS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_KINDS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_NAMES: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}  # as newer versions name them


@dataclass(frozen=True)
class SentenceSettings:
    """How texts become vectors.

    Attributes:
        pooling: How a text's vectors become one.
        normalize: Scale the vector to length 1.
        max_tokens: Tokens of a text at most; None where the folder does not say.
        lower: Letters are made small before a text is cut into tokens.
        notes: What is not done here, for the user.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_tokens: int | None = None
    lower: bool = False
    notes: tuple[str, ...] = ()


def read_sentences(folder: Path) -> SentenceSettings:
    """Read how texts become vectors.

    Args:
        folder: A public encoder's; where it has none of the files, vectors are their tokens' means.

    Returns:
        The settings.

    Raises:
        DataError: A file is missing.
        FormatError: A file is not what it claims to be, or asks for something that is not done here.
    """
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if modules and kinds not in ORDERS:
        known = " or ".join(", ".join(order) for order in ORDERS)
        raise FormatError(f"modules {', '.join(kinds)}", where=str(folder / "modules.json"), mend=f"known: {known}")
    if modules and modules[0][1] != ".":
        where = str(folder / "modules.json")
        raise FormatError(f"the encoder is in {modules[0][1]}", where=where, mend="give the folder it is in")
    pooling = folder / (modules[1][1] if modules else POOLING_FOLDER) / "config.json"
    limit, asked = folder / "sentence_bert_config.json", folder / "config_sentence_transformers.json"
    told = read_config(limit) if limit.is_file() else {}
    most, lower = told.get("max_seq_length"), told.get("do_lower_case")
    name = read_config(asked).get("default_prompt_name") if asked.is_file() else None
    return SentenceSettings(
        _pooling(pooling) if modules or pooling.is_file() else "mean",
        "Normalize" in kinds,
        most if type(most) is int and most > 2 else None,
        lower is True,
        (f"{asked}: the prompt {str(name)[:40]!r} is not put before texts; write it before them",) if name else (),
    )


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """Read what a text goes through.

    Args:
        folder: With modules.json.

    Returns:
        Of each module what it does, and where its files are in the folder; none where there is no such file.

    Raises:
        FormatError: The file is no list of modules, or one is not the package's own or lies elsewhere.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return []
    where, found = str(file), list[tuple[str, str]]()
    for one in _list(file):
        kind, path = (one.get("type"), one.get("path")) if isinstance(one, dict) else (None, None)
        if not (isinstance(kind, str) and isinstance(path, str)):
            raise FormatError("a module without a type or a path", where=where)
        if not kind.startswith(PACKAGE):
            raise FormatError(f"a module {kind[:60]!r}", where=where, mend=f"known are those of {PACKAGE[:-1]}")
        place = PurePosixPath(path)
        if place.is_absolute() or ".." in place.parts:
            raise FormatError(f"a module in {path[:60]!r}", where=where, mend="give a folder that is whole")
        found.append((kind.rsplit(".", 1)[-1][:40], str(place)))
    return found


def _pooling(file: Path) -> Pooling:
    values = read_config(file)
    chosen = [name for name, value in values.items() if name.startswith("pooling_mode") and value is True]
    named = values.get("pooling_mode")
    if isinstance(named, str) and named in _NAMES and not chosen:
        return _NAMES[named]
    if named is not None or len(chosen) != 1 or chosen[0] not in _KINDS:
        what = f"pooling by {', '.join(chosen) or str(named)[:40]}"
        raise FormatError(what, where=str(file), mend=f"known: {', '.join(_KINDS)}")
    return _KINDS[chosen[0]]


def _list(file: Path) -> list[Any]:
    if file.stat().st_size > TEXT_CAP_BYTES:
        raise FormatError(f"over {TEXT_CAP_BYTES:,} bytes", where=str(file))
    try:
        values = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError("not JSON", where=str(file)) from error
    if not isinstance(values, list) or not values:
        raise FormatError("no list of modules", where=str(file))
    return values
