"""Vectors of texts from a bidirectional encoder: what ``regard embed`` and ``regard.load`` give for public encoders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer
from tokenizers.normalizers import BertNormalizer

from regard.attention import Segments
from regard.data.batching import like_lengths
from regard.data.spiece import has_spiece, read_spiece
from regard.data.tokenizer import read_library
from regard.errors import ContextError, FormatError
from regard.files import read_config, reading
from regard.layers.pooling import Pooling, check_pooling, pool
from regard.models.bert import Bert
from regard.models.public import read_folder
from regard.places import on_disk
from regard.tasks.plain import MODEL_TYPE, load_plain, model_type, public_type
from regard.tasks.sentences import read_sentences
from regard.typed import check_texts


class Embedder:
    """An encoder with its tokenizer.

    Args:
        model: The encoder.
        tokenizer: Its tokenizer, which adds the tokens around a text.
        pooling: How a text's vectors become one where the caller does not say: their ``mean``, the first one (``cls``)
            or the ``last``.
        normalize: Scale the vector to length 1.
        max_tokens: Tokens of a text at most, those around it included.
        device: Where it runs.
        lower: Make letters small before a text is cut into tokens.

    Raises:
        UsageError: The pooling is unknown.
    """

    verbs = ("embed",)
    task = "embed"

    def __init__(
        self,
        model: Bert,
        tokenizer: Tokenizer,
        pooling: Pooling = "mean",
        normalize: bool = False,
        max_tokens: int | None = None,
        device: torch.device | None = None,
        lower: bool = False,
    ) -> None:
        check_pooling(pooling)
        self.device = torch.device("cpu") if device is None else device
        self.model, self.tokenizer = model.to(self.device).eval(), tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.pooling, self.normalize, self.lower = pooling, normalize, lower
        self.max_tokens = model.max_tokens if max_tokens is None else min(max_tokens, model.max_tokens)

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        """Turn texts into tokens, those around each included."""
        return self.tokenizer.encode_batch([text.lower() if self.lower else text for text in texts])

    def embed(
        self,
        texts: Sequence[str],
        pooling: Pooling | None = None,
        *,
        truncate: bool = False,
        batch_tokens: int = 8192,
        first: int = 0,
    ) -> np.ndarray:
        """Give each text a vector; it does not depend on the texts beside it.

        Args:
            texts: Texts.
            pooling: ``mean``, ``cls`` or ``last``; None as the model was made for.
            truncate: Read the beginning of a text that is too long.
            batch_tokens: Tokens of a batch at most.
            first: Number of the first text in the user's input, for messages.

        Returns:
            float32, (texts, D); zeros for a text without a token.

        Raises:
            ContextError: A text has more tokens than the model reads, and ``truncate`` is not set.
            UsageError: The pooling is unknown.
        """
        texts = check_texts(texts, "embed")
        pooling = self.pooling if pooling is None else pooling
        check_pooling(pooling)
        rows = [encoding.ids for encoding in self.encode(texts)]
        for number, row in enumerate(rows, first + 1):
            if len(row) > self.max_tokens:
                if not truncate:
                    mend = "split it, or read its beginning with truncate"
                    what = f"{len(row)} tokens; the model reads {self.max_tokens}"
                    raise ContextError(what, where=f"embed, text {number}", mend=mend)
                self._cut(row)
        vectors = np.zeros((len(rows), self.model.config.embed_dim), np.float32)
        lengths = np.array([len(row) for row in rows], np.int64)
        with torch.inference_mode():
            filled = np.flatnonzero(lengths)
            for batch in like_lengths(lengths[filled], batch_tokens):
                indices = filled[np.array(batch)]
                segments = Segments.ragged([len(rows[index]) for index in indices], self.device)
                tokens_N = torch.tensor([token for index in indices for token in rows[index]], device=self.device)
                pooled_BD = pool(self.model(tokens_N, segments).float(), segments, pooling)
                if self.normalize:
                    pooled_BD = torch.nn.functional.normalize(pooled_BD, dim=-1)
                vectors[indices] = pooled_BD.cpu().numpy()
        return vectors

    def _cut(self, row: list[int]) -> None:
        """Cut a text's end off, but keep the token behind it."""
        last = row[-1]
        del row[self.max_tokens :]
        row[-1] = last


def load_embedder(path: str | Path, device: torch.device | None = None) -> tuple[Embedder, list[str]]:
    """Load an encoder from a public folder, with the pooling that its maker wrote down beside it.

    Args:
        path: A folder with config.json, model.safetensors and tokenizer.json.
        device: Where it is to run; None is the CPU.

    Returns:
        The encoder, and warnings.

    Raises:
        DataError: A file is missing.
        FormatError: A file is not what it claims to be, the model is no bidirectional encoder, or its vectors go
            through something that is not done here.
        CheckpointError: Tensors are missing or left over.
    """
    folder = on_disk(path)
    warnings: list[str] = []
    with reading(folder):
        if model_type(folder) == MODEL_TYPE:
            family, model = load_plain(folder)
        else:
            family, model, warnings = read_folder(folder)
        if not isinstance(model, Bert):
            raise FormatError(f"a {family} gives no vectors of texts", where=str(folder), mend="give an encoder")
        tokenizer = read_tokenizer(folder, model.config.vocab_size)
        told = read_sentences(folder)
    how = told.pooling, told.normalize, told.max_tokens
    notes = [*warnings, *tokenizer_notes(folder, tokenizer), *told.notes]
    return Embedder(model.float(), tokenizer, *how, device, told.lower), notes


def read_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """Read the tokenizer of a public folder.

    Args:
        folder: With tokenizer.json; or the sentencepiece model that its kind brings, see
            :data:`regard.data.spiece.CONVENTIONS`.
        vocab_size: Tokens that the model knows.

    Returns:
        The library's tokenizer.

    Raises:
        DataError: There is none.
        FormatError: It is no tokenizer, or has tokens that the model does not know.
    """
    shared, kind = folder / "tokenizer.json", public_type(folder)
    is_there = shared.is_file() or kind is None or not has_spiece(folder, kind)
    tokenizer = read_library(shared) if is_there or kind is None else read_spiece(folder, kind)
    most = max(tokenizer.get_vocab().values(), default=-1) + 1
    if most > vocab_size:
        sizes = f"{most} tokens of the tokenizer, {vocab_size} of the model"
        raise FormatError(sizes, where=str(folder), mend="give a folder whose files belong together")
    return tokenizer


def tokenizer_notes(folder: Path, tokenizer: Tokenizer) -> list[str]:
    """Say where tokenizer_config.json wants letters to be made otherwise than tokenizer.json, which counts here.

    Args:
        folder: A public folder.
        tokenizer: What its tokenizer.json holds.

    Returns:
        A line, or none.
    """
    file, does = folder / "tokenizer_config.json", tokenizer.normalizer
    if not file.is_file() or not isinstance(does, BertNormalizer):
        return []
    values = read_config(file)
    lower, accents = values.get("do_lower_case", does.lowercase), values.get("strip_accents", does.strip_accents)
    # Where nothing is said of accents, they go where letters are made small.
    has = {"do_lower_case": does.lowercase, "strip_accents": _or(does.strip_accents, does.lowercase)}
    wants = {"do_lower_case": lower, "strip_accents": _or(accents, lower)}
    if not (others := [name for name, value in wants.items() if value != has[name]]):
        return []
    said = ", ".join(f"{name} {str(has[name]).lower()}" for name in others)
    return [f"{file}: says otherwise, but tokenizer.json counts: {said}; transformers' BERT goes by the former"]


def _or(given: object, otherwise: object) -> object:
    return otherwise if given is None else given
