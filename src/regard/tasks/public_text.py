"""Public causal models with their tokenizers: Hugging Face folders and GGUF files as generators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing

from regard.decoding import DecodeOptions
from regard.errors import FormatError
from regard.files import read_config, reading
from regard.models.gguf import read_gguf
from regard.models.interface import LanguageModel
from regard.models.public import describe, read_folder
from regard.tasks.embedder import read_tokenizer
from regard.tasks.generator import Generator
from regard.tasks.plain import KEPT_CONFIG, MODEL_TYPE, family_of_plain, load_plain, model_type
from regard.tasks.public_search import read_search

# Files beside the weights that name the tokens that end a text; the first that does counts.
_SETTINGS = ("generation_config.json", "config.json", KEPT_CONFIG)


class PublicVocabulary:
    """A public tokenizer, as a language model uses it.

    Args:
        inner: The library's tokenizer.
        start_id: Token before a text; None where the model knows none.
        end_ids: Tokens that end a text.
    """

    def __init__(self, inner: tokenizers.Tokenizer, start_id: int | None, end_ids: Sequence[int]) -> None:
        self.inner, self.start_id, self.end_ids = inner, start_id, tuple(end_ids)
        inner.no_padding()
        inner.no_truncation()

    def encode(self, text: str) -> list[int]:
        """Turn a text into tokens; what spells a special token is one, as chat templates need it."""
        return self.inner.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text; special ones vanish."""
        return self.inner.decode(list(tokens), skip_special_tokens=True)

    def to_json(self) -> str:
        """Write the tokenizer in the tokenizer.json format."""
        return self.inner.to_str(pretty=True)


def load_generator(path: str | Path, device: torch.device | None = None) -> tuple[Generator, list[str]]:
    """Load a causal model from a public folder, or a GGUF file.

    Args:
        path: A folder with config.json, model.safetensors and tokenizer.json; or a .gguf file.
        device: Where it is to run; None is the CPU.

    Returns:
        The model, and warnings.

    Raises:
        DataError: A file is missing.
        FormatError: A file is not what it claims to be, or the model does not go on from texts.
        CheckpointError: Tensors are missing or left over.
        ResourceError: A GGUF file is given and the ``gguf`` package is missing.
    """
    source = Path(path)
    options = DecodeOptions(max_extra_tokens=100, length_penalty=0.0)
    if source.suffix == ".gguf":
        model, inner, start_id, end_ids, _ = read_gguf(source)
        vocabulary = PublicVocabulary(inner, start_id, end_ids)
        return Generator(model, vocabulary, options, model.config.max_len, device), []
    with reading(source):
        warnings: list[str] = []
        if model_type(source) == MODEL_TYPE:
            family, built = load_plain(source)
        else:
            family, built, warnings = read_folder(source)
        if not isinstance(built, LanguageModel):
            raise FormatError(f"a {family} does not go on from texts", where=str(source), mend="give a causal model")
        inner = read_tokenizer(source, built.config.vocab_size)
        most = built.config.vocab_size
        settings = [read_config(source / name) for name in _SETTINGS if (source / name).is_file()]
        start_id, notes = _start(source, inner)
        search = read_search(source, most)
        # Sampling, beams and lengths are their user's to choose, by options.
        how = {"banned": search.banned, "repetition_penalty": search.penalty, "stop": search.stop}
        options = replace(options, **how, early_stopping=search.early_stopping)
    vocabulary = PublicVocabulary(inner, start_id, _ids(settings, "eos_token_id", most))
    limit = built.max_tokens or max(options.max_extra_tokens, 1)
    return Generator(built.float(), vocabulary, options, limit, device), [*warnings, *notes, *search.notes()]


def around(inner: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Say which tokens a tokenizer puts before a text by itself, and which behind it."""
    if inner.post_processor is None:
        return [], []
    framed = inner.post_processor.process(tokenizers.Tokenizer(WordLevel({"a": 0}, "a")).encode("a"))
    place = framed.special_tokens_mask.index(0)
    return framed.ids[:place], framed.ids[place + 1 :]


def framed(tokenizer_json: str, before: Sequence[int], behind: Sequence[int] = ()) -> str:
    """Have a tokenizer put tokens around a text by itself, as others expect it.

    Args:
        tokenizer_json: The tokenizer in the tokenizer.json format.
        before: Tokens before a text.
        behind: Tokens behind it.

    Returns:
        The tokenizer in the same format.
    """
    inner = tokenizers.Tokenizer.from_str(tokenizer_json)
    if around(inner) != ([*before], [*behind]):
        names = {number: inner.id_to_token(number) for number in (*before, *behind)}
        single = [*(names[number] for number in before), "$A", *(names[number] for number in behind)]
        numbers = [(name, number) for number, name in names.items()]
        inner.post_processor = TemplateProcessing(single=single, special_tokens=numbers)
    return inner.to_str(pretty=True)


def is_causal(folder: str | Path) -> bool:
    """Say whether a folder that no task of ours has trained holds a model that goes on from texts.

    Args:
        folder: With config.json.

    Returns:
        Whether it does.

    Raises:
        FormatError: The family is none that we have.
    """
    is_plain = model_type(folder) == MODEL_TYPE
    found = family_of_plain(Path(folder)) if is_plain else describe(Path(folder))[0]
    return issubclass(found.build, LanguageModel)  # type: ignore[arg-type]


def _start(folder: Path, inner: tokenizers.Tokenizer) -> tuple[int | None, list[str]]:
    """Find the token before a text: what the tokenizer puts there, unless its config says whether one is; and notes.

    config.json's bos_token_id is no sign of it: models without such a token name one too.
    """
    (before, behind), file = around(inner), folder / "tokenizer_config.json"
    values = read_config(file) if file.is_file() else {}
    notes = [f"{folder}: tokenizer.json puts tokens behind a text; prompts go on without them"] if behind else []
    asked = values.get("add_bos_token")
    if len(before) > 1:
        what, mend = f"the tokenizer puts {len(before)} tokens before a text", "give one that puts one or none"
        raise FormatError(what, where=str(folder / "tokenizer.json"), mend=mend)
    if type(asked) is not bool or asked == bool(before):
        return before[0] if before else None, notes
    name = _name(values, "bos_token")
    start_id = inner.token_to_id(name) if asked and name is not None else None
    if asked and start_id is None:
        raise FormatError("add_bos_token is true, and bos_token is no token of the tokenizer", where=str(file))
    does = "puts none there" if asked else "puts one there"
    note = f"{file}: add_bos_token is {str(asked).lower()} and counts: tokenizer.json {does}"
    return start_id, [*notes, note]


def _name(values: Mapping[str, Any], key: str) -> str | None:
    """Read the name of a special token."""
    given = values.get(key)
    name = given.get("content") if isinstance(given, dict) else given
    return name if isinstance(name, str) else None


def _ids(settings: Sequence[dict[str, Any]], name: str, most: int) -> list[int]:
    """Find token ids under a name: one, a list, or none."""
    for values in settings:
        given = values.get(name)
        ids = given if isinstance(given, list) else [given]
        if given is not None and all(type(one) is int and 0 <= one < most for one in ids):
            return ids
    return []
