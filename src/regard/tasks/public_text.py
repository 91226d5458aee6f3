"""Public causal models with their tokenizers: Hugging Face folders and GGUF files as generators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch

from regard.decoding import DecodeOptions
from regard.errors import FormatError
from regard.files import read_config, reading
from regard.models.gguf import read_gguf
from regard.models.interface import LanguageModel
from regard.models.public import describe, read_folder
from regard.tasks.embedder import read_tokenizer
from regard.tasks.generator import Generator
from regard.tasks.plain import KEPT_CONFIG, MODEL_TYPE, family_of_plain, load_plain, model_type

# Files beside the weights that name the tokens before and behind a text; the first that does counts.
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
    start, end = _ids(settings, "bos_token_id", most), _ids(settings, "eos_token_id", most)
    # GPT-2 names one token for both: it separates texts, and is no beginning that a prompt needs.
    start_id = start[0] if start and start != end else None
    vocabulary = PublicVocabulary(inner, start_id, end)
    limit = built.max_tokens or max(options.max_extra_tokens, 1)
    return Generator(built.float(), vocabulary, options, limit, device), warnings


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


def _ids(settings: Sequence[dict[str, Any]], name: str, most: int) -> list[int]:
    """Find token ids under a name: one, a list, or none."""
    for values in settings:
        given = values.get(name)
        ids = given if isinstance(given, list) else [given]
        if given is not None and all(type(one) is int and 0 <= one < most for one in ids):
            return ids
    return []
