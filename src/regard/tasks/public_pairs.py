"""Public encoder–decoders with their tokenizers, as translators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.data.pieces import SPIECE, has_pieces, read_numbered, read_pieces
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions
from regard.errors import CheckpointError, DataError, FormatError, UsageError
from regard.files import read_config, reading
from regard.models.interface import EncoderDecoder
from regard.models.public import known_layouts, read_folder
from regard.tasks.pairs import SHARED, SIDES, PairTokenizer
from regard.tasks.public_search import PublicSearch, read_search
from regard.tasks.translator import Translator

PEGASUS_OFFSET = 103  # of pieces' numbers, where tokenizer_config.json does not say


def translates(model_type: str | None) -> bool:
    """Say whether public models of this ``model_type`` read one text and write another."""
    family = known_layouts()[model_type][0] if model_type in known_layouts() else None
    return family is not None and issubclass(family.build, EncoderDecoder)  # type: ignore[arg-type]


def load_public(
    folder: Path, device: torch.device | None = None, *, keep_precision: bool = False
) -> tuple[Translator, list[str]]:
    """Load a public encoder–decoder: Marian, or what :func:`regard.convert` wrote.

    What a text starts from and ends with, the tokens that are never chosen and the width of the search are read from
    generation_config.json and config.json; what they say of choosing and is not done here is told.

    Args:
        folder: With config.json, model.safetensors and the tokenizers: source.spm, target.spm and vocab.json;
            spiece.model, one for both sides (Pegasus); or tokenizer.json, one or one for each side.
        device: Where it is to run; None is the CPU.
        keep_precision: Leave weights as the file has them, instead of making them float32.

    Returns:
        The translator, and warnings.

    Raises:
        DataError: A file is missing.
        FormatError: A file is not what it claims to be, or the model is no encoder–decoder.
        CheckpointError: Tensors are missing or left over, or the tokenizers are another model's.
        ResourceError: The package that reads the tokenizer is missing.
    """
    with reading(folder):
        family, model, warnings = read_folder(folder)
        if not isinstance(model, EncoderDecoder):
            raise FormatError(f"a {family} does not translate", where=str(folder), mend="give an encoder–decoder")
        where = str(folder / "config.json")
        values = read_config(folder / "config.json")
        if (folder / "generation_config.json").is_file():
            where = str(folder / "generation_config.json")
            values |= {k: v for k, v in read_config(folder / "generation_config.json").items() if v is not None}
        start_id, end_id = (_token(values, name, where) for name in ("decoder_start_token_id", "eos_token_id"))
        sizes = (model.config.source_vocab_size, model.config.target_vocab_size)
        tokenizer = _tokenizers(folder, start_id, end_id, sizes)
        search, limit = read_search(folder, sizes[1]), model.config.max_len
        options = _options(search)
        if (folder / "tokenizer_config.json").is_file():
            most = read_config(folder / "tokenizer_config.json").get("model_max_length")
            limit = min(limit, most) if type(most) is int and most > 0 else limit
        notes = _notes(search, options, limit)
    model = model if keep_precision else model.float()
    return Translator(model, tokenizer, options, limit, device=device), warnings + notes


def _token(values: Mapping[str, Any], name: str, where: str) -> int:
    value = values.get(name)
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if type(value) is not int:
        raise FormatError(f"{name} is {str(value)[:40]}, not one token", where=where)
    return value


def _options(search: PublicSearch) -> DecodeOptions:
    values, where = search.values, search.where
    if values.get("forced_bos_token_id") is not None:
        what = f"forced_bos_token_id is {str(values['forced_bos_token_id'])[:40]}: outputs begin with it"
        raise FormatError(what, where=where, mend="this is not done here; give a model of one language")
    power = values.get("length_penalty", 1.0)
    try:
        return DecodeOptions(
            beam=values.get("num_beams", 1),
            length_penalty=float(power) if type(power) in (int, float) else -1.0,
            length_offset=0.0,
            banned=search.banned,
            repetition_penalty=search.penalty,
            early_stopping=search.early_stopping,
        )
    except UsageError as error:  # what an option would be wrong with, a file is
        raise FormatError(error.what, where=where, mend=error.mend) from error


def _notes(search: PublicSearch, options: DecodeOptions, longest: int) -> list[str]:
    """Name what a translator does not do; how long an output may be follows from its source, at most ``longest``."""
    most = search.values.get("max_length")
    others: dict[str, tuple[Any, ...]] = {"max_length": (most,) if type(most) is int and most >= longest else ()}
    others |= {"max_new_tokens": (), "do_sample": (False,), "stop_strings": ([],)}
    if options.beam > 1:  # theirs then changes log-probabilities, ours scores
        others["repetition_penalty"] = (1, 1.0)
    return search.notes(others)


def _tokenizers(folder: Path, start_id: int, end_id: int, sizes: tuple[int, int]) -> PairTokenizer:
    if has_pieces(folder):
        return PairTokenizer(*read_pieces(folder, start_id, end_id, sizes))
    if (folder / SPIECE).is_file() and sizes[0] == sizes[1]:
        file = folder / "tokenizer_config.json"
        offset = read_config(file).get("offset", PEGASUS_OFFSET) if file.is_file() else PEGASUS_OFFSET
        if type(offset) is not int or not 0 <= offset < sizes[0]:
            raise FormatError(f"offset is {str(offset)[:40]}; there are {sizes[0]} tokens", where=str(file))
        one = read_numbered(folder, start_id, end_id, sizes[0], offset)
        return PairTokenizer(one, one)
    if (folder / SHARED).exists():
        one = Tokenizer.read(folder / SHARED)
        found = PairTokenizer(one, one)
    elif all((folder / name).exists() for name in SIDES):
        found = PairTokenizer(*(Tokenizer.read(folder / name) for name in SIDES))
    else:
        mend = "give a folder with source.spm, target.spm and vocab.json, spiece.model, or tokenizer.json"
        raise DataError("no tokenizer is here", where=str(folder), mend=mend)
    has = (found.source.vocab_size, found.target.vocab_size, found.target.start_id, found.target.end_id)
    if has != (*sizes, start_id, end_id):
        what = f"sizes, start and end of the tokenizers are {has}, of the model {(*sizes, start_id, end_id)}"
        raise CheckpointError(what, where=str(folder), mend="give a folder whose files belong together")
    return found
