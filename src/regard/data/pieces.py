"""Pieces of a sentencepiece model, numbered by a vocabulary beside it, as public translation models have them.

The model is read and run by the ``sentencepiece`` package of the format's own authors (``pip install
'regard[sentencepiece]'``); what is ours is the numbering, and that no text can spell a special token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from regard.data.spiece import MODEL_CAP_BYTES, read_model
from regard.errors import DataError, FormatError, ResourceError
from regard.files import json_bytes, read_config, write_aside

UNKNOWN = "<unk>"
# What no text can spell.
SPECIAL = re.compile(r"</?s>|<pad>|<unk(_\d+)?>|<mask(_\d+)?>")
SPACE = "▁"  # how the format shows a space

MODELS = ("source.spm", "target.spm")
VOCABULARIES = ("vocab.json", "target_vocab.json")
NUMBERS = "pieces.json"
FILES = (*MODELS, *VOCABULARIES, NUMBERS)
SPIECE = "spiece.model"  # one model for both sides, numbered by itself


class Pieces:
    """One side's tokenizer. Text that spells a special token is text.

    A text may begin with a code, ``>>fra<<``, which is one token where the vocabulary has it: it tells a model of many
    languages which one to write.

    Args:
        model: Content of an .spm file.
        vocabulary: Numbers of the pieces; ``<unk>`` is among them.
        start_id: What an output starts from.
        end_id: What ends a text.
        vocab_size: Tokens of the model, which may have more than the vocabulary names.
        where: The file, for messages.

    Raises:
        ResourceError: The ``sentencepiece`` package is missing.
        FormatError: It is no such model, or the numbers do not go together.
    """

    def __init__(
        self, model: bytes, vocabulary: Mapping[str, int], start_id: int, end_id: int, vocab_size: int, where: str
    ) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            mend = "pip install 'regard[sentencepiece]'"
            raise ResourceError("reading .spm files needs the sentencepiece package", where=where, mend=mend) from error
        try:
            self._processor = SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise FormatError("not a sentencepiece model", where=where) from error
        numbers = list(vocabulary.values())
        if not all(type(number) is int and 0 <= number < vocab_size for number in numbers):
            raise FormatError(f"the vocabulary numbers pieces beyond the model's {vocab_size}", where=where)
        if len(set(numbers)) < len(numbers) or UNKNOWN not in vocabulary:
            raise FormatError(f"the vocabulary numbers two pieces alike, or has no {UNKNOWN}", where=where)
        for name, number in (("start", start_id), ("end", end_id)):
            if not 0 <= number < vocab_size:
                raise FormatError(f"the {name} token is {number}; there are {vocab_size}", where=where)
        self.model, self.vocabulary = model, dict(vocabulary)
        self.start_id, self.end_id, self.vocab_size = start_id, end_id, vocab_size
        self.unknown_id = vocabulary[UNKNOWN]
        self._names = {number: piece for piece, number in vocabulary.items()}

    def encode(self, text: str) -> list[int]:
        """Turn a text into tokens, without start and end."""
        tokens: list[int] = []
        if text.startswith(">>") and (end := text.find("<<")) > 0:
            code, text = text[: end + 2], text[end + 2 :]
            tokens.append(self.vocabulary.get(code, self.unknown_id))
        try:
            text.encode()  # the package says it otherwise from version to version
            pieces = self._processor.encode(text, out_type=str)
        except UnicodeEncodeError as error:
            raise FormatError("a text with a lone surrogate", mend="remove it") from error
        # Characters that the model has never seen come out as they are: together they may spell a special token.
        tokens += [self.unknown_id if SPECIAL.fullmatch(p) else self.vocabulary.get(p, self.unknown_id) for p in pieces]
        return tokens

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Turn texts into arrays of tokens."""
        return [np.array(self.encode(text), np.int32) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text; start and end vanish, <unk> shows."""
        parts: list[str] = []
        waiting: list[str] = []
        for token in tokens:
            piece = self._names.get(token, UNKNOWN)
            if token in (self.start_id, self.end_id):
                continue
            if piece == UNKNOWN:
                parts += [self._processor.decode_pieces(waiting), UNKNOWN]
                waiting = []
            else:
                waiting.append(piece)
        parts.append(self._processor.decode_pieces(waiting))
        return " ".join(part for part in parts if part).replace(SPACE, " ").strip()

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Show tokens one by one, as a reader would write them."""
        names = (self._names.get(token, UNKNOWN) for token in tokens)
        return [name.replace(SPACE, " ").strip() or name for name in names]


def has_pieces(folder: Path) -> bool:
    """Say whether a folder holds two such models and their vocabulary."""
    return all((folder / name).exists() for name in (*MODELS, VOCABULARIES[0]))


def read_pieces(folder: Path, start_id: int, end_id: int, sizes: tuple[int, int]) -> tuple[Pieces, Pieces]:
    """Read the tokenizers of both sides.

    Args:
        folder: With source.spm, target.spm and vocab.json; target_vocab.json where the two sides are numbered apart.
        start_id: What an output starts from.
        end_id: What ends a text, of either side.
        sizes: Tokens of the model on both sides.

    Returns:
        The tokenizers of sources and targets.

    Raises:
        DataError: A file is missing.
        FormatError: A file is not what it claims to be.
        ResourceError: The ``sentencepiece`` package is missing.
    """
    sides: list[Pieces] = []
    for place, (name, size) in enumerate(zip(MODELS, sizes, strict=True)):
        path = folder / name
        if not path.is_file():
            raise DataError("the file is missing", where=str(path), mend="give a folder that is whole")
        if path.stat().st_size > MODEL_CAP_BYTES:
            raise FormatError(f"over {MODEL_CAP_BYTES:,} bytes", where=str(path))
        apart = place == 1 and (folder / VOCABULARIES[1]).exists()
        vocabulary = read_config(folder / VOCABULARIES[apart])
        sides.append(Pieces(path.read_bytes(), vocabulary, start_id, end_id, size, str(path)))
    return sides[0], sides[1]


def read_numbered(folder: Path, start_id: int, end_id: int, vocab_size: int, offset: int) -> Pieces:
    """Read one model for both sides, whose pieces are numbered as in the model, from the third on ``offset`` higher.

    Pegasus (Zhang et al. 2020) has 103 tokens of its pretraining there: two masks, and 101 without a use.

    Args:
        folder: With spiece.model.
        start_id: What an output starts from.
        end_id: What ends a text.
        vocab_size: Tokens of the model.
        offset: Tokens between the second and the third piece.

    Returns:
        The tokenizer.

    Raises:
        DataError: The file is missing.
        FormatError: It is not what it claims to be, or the numbers are beyond the model's.
    """
    path = folder / SPIECE
    pieces = [piece for piece, _, _ in read_model(path).pieces]
    between = ["<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, offset))][:offset]
    names = [*pieces[:2], *between, *pieces[2:]]
    numbers = {name: number for number, name in enumerate(names)}
    if len(numbers) < len(names):
        raise FormatError("a piece has the name of a special token", where=str(path))
    return Pieces(path.read_bytes(), numbers, start_id, end_id, vocab_size, str(path))


def load_pieces(folder: Path) -> tuple[Pieces, Pieces]:
    """Read what :func:`save_pieces` wrote.

    Args:
        folder: Where.

    Returns:
        The tokenizers of sources and targets.

    Raises:
        DataError: A file is missing.
        FormatError: A file is not what it claims to be.
        ResourceError: The ``sentencepiece`` package is missing.
    """
    values = read_config(folder / NUMBERS)
    keys = ("start_id", "end_id", "source_vocab_size", "target_vocab_size")
    numbers: list[int] = [values[key] for key in keys if type(values.get(key)) is int]
    if len(numbers) < len(keys):
        raise FormatError(f"needs the whole numbers {', '.join(keys)}", where=str(folder / NUMBERS))
    start_id, end_id, *sizes = numbers
    return read_pieces(folder, start_id, end_id, (sizes[0], sizes[1]))


def save_pieces(folder: Path, source: Pieces, target: Pieces) -> None:
    """Write the tokenizers of both sides.

    Args:
        folder: An existing folder.
        source: For sources.
        target: For targets.
    """
    for name, side in zip(MODELS, (source, target), strict=True):
        write_aside(folder / name, side.model)
    write_aside(folder / VOCABULARIES[0], json_bytes(source.vocabulary))
    if target.vocabulary != source.vocabulary:
        write_aside(folder / VOCABULARIES[1], json_bytes(target.vocabulary))
    else:  # what an earlier model left here
        (folder / VOCABULARIES[1]).unlink(missing_ok=True)
    sizes = {"source_vocab_size": source.vocab_size, "target_vocab_size": target.vocab_size}
    write_aside(folder / NUMBERS, json_bytes({"start_id": target.start_id, "end_id": target.end_id, **sizes}))
