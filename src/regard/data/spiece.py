"""Unigram models of the sentencepiece format, as public models bring them, as the library's own tokenizers.

The file is read here, without the format's package: a few fields of its protocol buffer are all that is needed. What
stands around a text and which number a piece has is the convention of each ``model_type``.

Source: Kudo & Richardson 2018; sentencepiece_model.proto of the format's authors; https://protobuf.dev (encoding).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from regard.errors import DataError, FormatError
from regard.files import read_config

MODEL_CAP_BYTES = 1 << 26  # models of 250,000 pieces have 5 MB
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # types of pieces that stand for no text, or are always found whole


@dataclass(frozen=True)
class Convention:
    """How a kind of model numbers and frames the pieces.

    Attributes:
        file: Name of the sentencepiece model.
        first: Tokens that stand before the model's pieces, in the place of its first ``skip`` ones.
        skip: Pieces of the model that have no number of their own.
        last: Tokens behind the pieces.
        mask: The token that hides others; it takes the space before it along.
        single: What stands around a text, and the type of each.
        pair: What stands around two.
        quotes: Two back-ticks or apostrophes are a quotation mark; accents are left out, unless the settings keep them;
            letters are made small where the settings say so; a number takes no comma along.
    """

    file: str
    first: tuple[str, ...] = ()
    skip: int = 0
    last: tuple[str, ...] = ()
    mask: str = "<mask>"
    single: str = "$A"
    pair: str = "$A $B:1"
    quotes: bool = False


CONVENTIONS: dict[str, Convention] = {
    # Yang et al. 2019, §2.5 and appendix: [A, SEP, B, SEP, CLS]; what its code does to a text before.
    "xlnet": Convention("spiece.model", single="$A <sep> <cls>:2", pair="$A <sep> $B:1 <sep>:1 <cls>:2", quotes=True),
    # Numbered as the library of its authors does: the model's own first three are <unk>, <s>, </s>.
    "xlm-roberta": Convention(
        "sentencepiece.bpe.model",
        first=("<s>", "<pad>", "</s>", "<unk>"),
        skip=3,
        last=("<mask>",),
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
    ),
}


@dataclass(frozen=True)
class Model:
    """What a sentencepiece file holds.

    Attributes:
        pieces: Text, score and type of each, in the order of their numbers.
        unknown: Number of the piece for what has never been seen.
        charsmap: How characters are made alike, in the format's own form; empty for not at all.
    """

    pieces: tuple[tuple[str, float, int], ...]
    unknown: int
    charsmap: bytes


def has_spiece(folder: Path, model_type: str | None) -> bool:
    """Say whether a folder holds a sentencepiece model of a known convention.

    Args:
        folder: Where.
        model_type: Of its config.json.

    Returns:
        Whether it does.
    """
    return model_type in CONVENTIONS and (folder / CONVENTIONS[model_type].file).is_file()


def read_spiece(folder: Path, model_type: str) -> tokenizers.Tokenizer:
    """Read a folder's sentencepiece model as a tokenizer.

    Args:
        folder: With the model; tokenizer_config.json where letters are made small or accents kept.
        model_type: Of its config.json, in :data:`CONVENTIONS`.

    Returns:
        The library's tokenizer, with what stands around a text.

    Raises:
        DataError: The file is missing.
        FormatError: It is no sentencepiece model, or lacks a token of the convention.
    """
    how = CONVENTIONS[model_type]
    path, settings = folder / how.file, folder / "tokenizer_config.json"
    model = read_model(path)
    pieces = [(piece, score) for piece, score, _ in model.pieces]
    if how.quotes:  # as good as never chosen
        pieces = [(piece, score - 100 * (piece[-1:] == "," and piece[-2:-1].isdigit())) for piece, score in pieces]
    named = [(name, 0.0) for name in how.first]
    unknown = how.first.index("<unk>") if "<unk>" in how.first else model.unknown
    try:
        made = tokenizers.Tokenizer(
            models.Unigram([*named, *pieces[how.skip :], *((name, 0.0) for name in how.last)], unknown)
        )
        made.normalizer = _normalizer(how, model, read_config(settings) if settings.is_file() else {})
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", "always")]
        )
        made.decoder = decoders.Metaspace("▁", "always")
    except Exception as error:  # the library raises bare Exceptions
        raise FormatError(f"not a unigram model ({str(error)[:80]!a})", where=str(path)) from error
    own = [(piece, kind) for piece, _, kind in model.pieces[how.skip :] if kind in (UNKNOWN, CONTROL, USER_DEFINED)]
    special = {*how.first, *how.last, *(piece for piece, kind in own if kind != USER_DEFINED)}
    around = {part.split(":")[0] for part in how.pair.split() if not part.startswith("$")}
    lacking = sorted(name for name in {*around, how.mask} if made.token_to_id(name) is None)
    if lacking:
        raise FormatError(f"the pieces lack {', '.join(lacking)}", where=str(path), mend="give a folder that is whole")
    for name in sorted({*special, *(piece for piece, _ in own)}, key=lambda name: made.token_to_id(name) or 0):
        is_mask = name == how.mask
        made.add_tokens([AddedToken(name, lstrip=is_mask, normalized=False, special=name in special or is_mask)])
    numbers = [(name, made.token_to_id(name)) for name in sorted(around)]
    made.post_processor = TemplateProcessing(single=how.single, pair=how.pair, special_tokens=numbers)
    return made


def read_model(path: Path) -> Model:
    """Read a sentencepiece file.

    Args:
        path: The file.

    Returns:
        What it holds.

    Raises:
        DataError: There is no such file.
        FormatError: It is too large, no such file, or no unigram model.
    """
    where = str(path)
    if not path.is_file():
        raise DataError("the file is missing", where=where, mend="give a folder that is whole")
    if path.stat().st_size > MODEL_CAP_BYTES:
        raise FormatError(f"over {MODEL_CAP_BYTES:,} bytes", where=where)
    try:
        parts = list(_fields(path.read_bytes()))
        trainer, normalizer = (dict(_fields(_last(parts, number))) for number in (2, 3))
        pieces = tuple(_piece(dict(_fields(value))) for number, value in parts if number == 1)
        unknown, kind, charsmap = trainer.get(40, 0), trainer.get(3, 1), normalizer.get(2, b"")
        if not pieces or type(unknown) is not int:
            raise ValueError
        _check_charsmap(charsmap)
    except (ValueError, TypeError, KeyError, IndexError, struct.error) as error:
        raise FormatError("not a sentencepiece model", where=where) from error
    if kind != 1:
        mend = "give tokenizer.json, which holds the same"
        raise FormatError("a sentencepiece model of another kind than unigram", where=where, mend=mend)
    if unknown >= len(pieces) or not all(math.isfinite(score) for _, score, _ in pieces):
        raise FormatError("a sentencepiece model whose numbers do not go together", where=where)
    return Model(pieces, unknown, charsmap)


def _normalizer(how: Convention, model: Model, settings: Mapping[str, Any]) -> normalizers.Normalizer:
    """What is done to a text before it is cut."""
    parts: list[normalizers.Normalizer] = []
    if how.quotes:
        parts += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if settings.get("keep_accents") is not True:
            parts += [normalizers.NFKD(), normalizers.StripAccents()]
        if settings.get("do_lower_case") is True:
            parts.append(normalizers.Lowercase())
    return normalizers.Sequence([*parts, *([normalizers.Precompiled(model.charsmap)] if model.charsmap else [])])


def _check_charsmap(charsmap: bytes) -> None:
    """Follow every way through the table of characters: the library that walks it trusts it, and would abort.

    It is a double-array trie (32-bit units: bits 10 to 30 where the children are, bit 8 whether a value is, bits 0 to 7
    and 31 the label), its size in bytes before it, and what characters become behind it.

    Args:
        charsmap: The table; empty for none.

    Raises:
        ValueError: A way leads out of it.
    """
    if not charsmap:
        return
    size = int.from_bytes(charsmap[:4], "little")
    units, texts = np.frombuffer(charsmap[4 : 4 + size], "<u4").astype(np.int64), charsmap[4 + size :]
    texts.decode()
    if len(charsmap) < 4 + size or not len(units) or not texts.endswith(b"\0"):
        raise ValueError

    def children(of: np.ndarray) -> np.ndarray:
        return (of >> 10) << ((of & 512) >> 6)

    byte_C, found = np.arange(1, 256), children(units[:1])
    seen = np.zeros(len(units), bool)
    while len(found):
        if found.max() >= len(units):
            raise ValueError
        seen[found] = True
        place_XC = found[:, None] ^ byte_C
        if place_XC.max() >= len(units):
            raise ValueError
        unit_XC = units[place_XC]
        taken = unit_XC & 0x800000FF == byte_C
        at, has_value = place_XC[taken] ^ children(unit_XC[taken]), (unit_XC[taken] >> 8 & 1).astype(bool)
        if len(at) and at.max() >= len(units):
            raise ValueError
        for value in np.unique(units[at[has_value]] & 0x7FFFFFFF):
            if value >= len(texts) or texts[value] & 0xC0 == 0x80:
                raise ValueError
        found = np.unique(at)
        found = found[~seen[found]]


def _piece(values: Mapping[int, Any]) -> tuple[str, float, int]:
    """Text, score and type of a piece."""
    (score,) = struct.unpack("<f", values[2]) if 2 in values else (0.0,)
    return values[1].decode(), score, values.get(3, 1)


def _last(parts: list[tuple[int, Any]], number: int) -> bytes:
    """Take a field's content; what is not there is empty."""
    return next((value for found, value in reversed(parts) if found == number), b"")


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Read the fields of a message: numbers as they are, all else as bytes.

    Args:
        data: The message.

    Yields:
        Number and content of each field.

    Raises:
        ValueError: It is no message.
        IndexError: It is cut short.
    """
    place = 0

    def varint() -> int:
        nonlocal place
        value = 0
        for shift in range(0, 70, 7):
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError

    while place < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        if key & 7 not in (1, 2, 5):
            raise ValueError
        size = varint() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
        if size > len(data) - place:
            raise IndexError
        yield key >> 3, data[place : place + size]
        place += size
