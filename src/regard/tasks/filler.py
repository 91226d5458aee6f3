"""A masked language model with its tokenizer: what fills in the masks of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken

from regard.attention import Segments
from regard.data.batching import like_lengths
from regard.data.tokenizer import MASK, Tokenizer
from regard.decoding import DecodeOptions
from regard.errors import ContextError, DataError, FormatError, UsageError
from regard.files import read_config, reading
from regard.models.interface import MaskFiller
from regard.models.public import describe, read_folder
from regard.tasks.embedder import read_tokenizer, tokenizer_notes
from regard.tasks.translator import evaluating
from regard.typed import check_texts

# Files beside the weights that may name the mask, and what it is called where none does.
_SETTINGS, _NAMES = ("tokenizer_config.json", "special_tokens_map.json"), ("[MASK]", "<mask>")
ROWS_AT_ONCE = 1024
# Of a text, where neither the model nor who trained it sets a limit: the memory of attention grows with the square.
MOST_TOKENS = 4096


@dataclass(frozen=True)
class Candidate:
    """What may stand in a mask's place.

    Attributes:
        text: The token as text, its space before it among it.
        token: The token.
        probability: By the model, over the whole vocabulary.
    """

    text: str
    token: int
    probability: float


@dataclass(frozen=True)
class Filled:
    """A text with its masks filled in.

    Attributes:
        text: With the best candidate of each mask.
        masks: Candidates of each mask, the best first; each mask is filled as if the others stayed.
    """

    text: str
    masks: list[list[Candidate]]


class MaskVocabulary(Protocol):
    """A tokenizer, as a masked model uses it.

    Attributes:
        mask: How a mask is written.
        mask_id: Its token.
        special_ids: Tokens that stand for no text.
    """

    @property
    def mask(self) -> str: ...
    @property
    def mask_id(self) -> int: ...
    @property
    def special_ids(self) -> Sequence[int]: ...

    def encode(self, text: str) -> list[int]:
        """Turn a text into tokens, masks and the tokens around it among them."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text; those around it vanish."""
        ...

    def piece(self, token: int) -> str:
        """Show one token, a special one by its name."""
        ...

    def to_json(self) -> str:
        """Write the tokenizer in the tokenizer.json format."""
        ...


class OwnMasks:
    """A tokenizer of ours: in a text nothing but the mask is special.

    Args:
        inner: The tokenizer.

    Raises:
        FormatError: It has no mask.
    """

    mask = MASK

    def __init__(self, inner: Tokenizer) -> None:
        if inner.mask_id is None:
            raise FormatError(f"the tokenizer has no {MASK}")
        self.inner, self.mask_id, self.special_ids = inner, inner.mask_id, inner.special_ids
        self._takes_space = inner.inner.get_added_tokens_decoder()[self.mask_id].lstrip

    def encode(self, text: str) -> list[int]:
        """Turn a text into tokens, piece by piece between the masks."""
        *parts, last = text.split(MASK)
        tokens = [self.inner.start_id]
        for part in parts:
            tokens += [*self.inner.encode(part.rstrip() if self._takes_space else part), self.mask_id]
        return [*tokens, *self.inner.encode(last), self.inner.end_id]

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text."""
        return self.inner.decode(tokens)

    def piece(self, token: int) -> str:
        """Show one token as a reader would write it, a special one by its name."""
        return self.inner.pieces([token])[0]

    def to_json(self) -> str:
        """Write the tokenizer in the tokenizer.json format."""
        return self.inner.to_json()


class PublicMasks:
    """A public tokenizer, which finds masks and puts tokens around a text itself.

    Args:
        inner: The library's tokenizer.
        mask: How its mask is written.
        mask_id: The token of that name.
    """

    def __init__(self, inner: tokenizers.Tokenizer, mask: str, mask_id: int) -> None:
        self.inner, self.mask, self.mask_id = inner, mask, mask_id
        inner.no_padding()
        inner.no_truncation()
        if self.mask_id not in inner.get_added_tokens_decoder():  # known, but not yet found inside a text
            inner.add_special_tokens([AddedToken(mask, special=True)])
        self.special_ids = [n for n, token in inner.get_added_tokens_decoder().items() if token.special]

    def encode(self, text: str) -> list[int]:
        """Turn a text into tokens."""
        return self.inner.encode(text).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text; special ones vanish."""
        return self.inner.decode(list(tokens), skip_special_tokens=True)

    def piece(self, token: int) -> str:
        """Show one token, a special one by its name."""
        return self.inner.decode([token], skip_special_tokens=False)

    def to_json(self) -> str:
        """Write the tokenizer in the tokenizer.json format."""
        return self.inner.to_str(pretty=True)


class Filler:
    """A model that fills in masks: what ``regard.load`` gives for masked language models.

    Args:
        model: The model, with the head that predicts masked tokens.
        tokenizer: Its tokenizer.
        max_tokens: Tokens of a text at most, those around it included; None as many as the model reads.
        device: Where it runs.

    Raises:
        FormatError: The model has no such head, or does not see both sides.
    """

    task = "mlm"
    verbs = ("fill",)
    options: DecodeOptions | None = None

    def __init__(
        self,
        model: MaskFiller,
        tokenizer: MaskVocabulary,
        max_tokens: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        if not model.config.fills:
            raise FormatError("a model without a head that fills in masks", mend="use it with regard embed")
        self.device = torch.device("cpu") if device is None else device
        self.model, self.tokenizer = model.to(self.device).eval(), tokenizer
        self.mask, self.mask_id = tokenizer.mask, tokenizer.mask_id
        limits = [limit for limit in (max_tokens, model.max_tokens) if limit is not None]
        self.max_tokens: int = min(limits, default=MOST_TOKENS)

    def tokenizers(self) -> dict[str, Any]:
        """Give the tokenizer by the name of its file."""
        return {"tokenizer.json": self.tokenizer}

    def fill(
        self,
        texts: Sequence[str],
        top_k: int = 5,
        *,
        language: str = "",
        batch_tokens: int = 4096,
        first: int = 0,
        where: str = "fill",
    ) -> list[Filled]:
        """Fill in masks; what a text gets does not depend on the texts beside it.

        p(token) = softmax over the vocabulary of the head's scores at the mask's place.

        Args:
            texts: Texts, each with at least one mask, written as :attr:`mask`.
            top_k: Candidates of each mask; at most the whole vocabulary.
            language: Of the texts; of models that are told.
            batch_tokens: Tokens of a batch at most.
            first: Number of the first text in the user's input, for messages.
            where: What the user gave, for messages.

        Returns:
            For each text the filled one and the candidates.

        Raises:
            DataError: A text has no mask.
            ContextError: A text has more tokens than the model reads.
            UsageError: ``top_k`` is below 1, the language is none of the model's, or it has to be told.
        """
        texts = check_texts(texts, where)
        two = self.model.number_languages(language)
        if top_k < 1:
            raise UsageError(f"top_k is {top_k}", mend="give at least 1")
        rows = [np.array(self.tokenizer.encode(text), np.int64) for text in texts]
        places = [np.flatnonzero(row == self.mask_id) for row in rows]
        for number, (row, at) in enumerate(zip(rows, places, strict=True), first + 1):
            if not len(at):
                mend = f"write {self.mask} where a word is to be filled in"
                raise DataError(f"no {self.mask} in it", where=f"{where}, text {number}", mend=mend)
            if len(row) > self.max_tokens:
                what = f"{len(row)} tokens; the model reads {self.max_tokens}"
                raise ContextError(what, where=f"{where}, text {number}", mend="shorten it")
        found: list[Filled | None] = [None] * len(rows)
        told = None if two is None else [(np.zeros_like(row), two) for row in rows]
        for n, logp_MV in self.predict(rows, places, batch_tokens, told):
            best = logp_MV.topk(min(top_k, logp_MV.shape[-1]))
            rows[n][places[n]] = best.indices[:, 0].numpy()
            choices = [
                [Candidate(self.tokenizer.piece(token), token, p) for token, p in zip(tokens, of, strict=True)]
                for tokens, of in zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
            ]
            found[n] = Filled(self.tokenizer.decode(rows[n].tolist()), choices)
        return [one for one in found if one is not None]

    def read(self, tokens_N: torch.Tensor, segments: Segments, language: str = "") -> torch.Tensor:
        """Run the model over texts as it runs to fill in their masks.

        Args:
            tokens_N: int64, tokens of the texts.
            segments: Which belong together.
            language: Of the texts; of models that are told.

        Returns:
            hidden_MD of the masks.
        """
        places_M, two = (tokens_N == self.mask_id).nonzero()[:, 0], self.model.number_languages(language)
        if two is None:
            return self.model.at(tokens_N, segments, places_M)
        languages_B2 = torch.tensor([two] * len(segments), device=tokens_N.device)
        return self.model.at(tokens_N, segments, places_M, torch.zeros_like(tokens_N), languages_B2)

    def alone(self, labels: np.ndarray) -> tuple[float, int]:
        """Predict tokens from a mask with no text around it, which says the same wherever that mask is from.

        Args:
            labels: int64, the tokens that stood there.

        Returns:
            −Σ ln p of them, and how many are the most probable.
        """
        row = np.array(self.tokenizer.encode(self.mask), np.int64)
        _, logp_MV = next(self.predict([row], [np.flatnonzero(row == self.mask_id)]))
        return -float(logp_MV[0, labels].sum()), int((labels == int(logp_MV[0].argmax())).sum())

    def predict(
        self,
        rows: Sequence[np.ndarray],
        places: Sequence[np.ndarray],
        batch_tokens: int = 4096,
        told: Sequence[tuple[np.ndarray, tuple[int, int]]] | None = None,
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Compute ln p of every token at some places of texts, those of like lengths together.

        Args:
            rows: int64, tokens of each text, those around it included.
            places: int64, places of each.
            batch_tokens: Tokens of a batch at most.
            told: Of which of two texts each token of a row is, and the languages of the two; None tells neither.

        Yields:
            Number of a text, and its logp_MV in float64 on the CPU.
        """
        for batch in like_lengths(np.array([len(row) for row in rows], np.int64), batch_tokens):
            some, at = [rows[n] for n in batch], [places[n] for n in batch]
            before = np.cumsum([0, *(len(row) for row in some[:-1])])
            flat_M = np.concatenate([start + one for start, one in zip(before, at, strict=True)])
            with evaluating(self.model), torch.inference_mode():
                tokens_N = torch.from_numpy(np.concatenate(some)).to(self.device)
                segments = Segments.ragged([len(row) for row in some], self.device)
                types_N = languages_B2 = None
                if told is not None:
                    types_N = torch.from_numpy(np.concatenate([told[n][0] for n in batch])).to(self.device)
                    languages_B2 = torch.tensor([told[n][1] for n in batch], device=self.device)
                places_M = torch.from_numpy(flat_M).to(self.device)
                hidden_MD = self.model.at(tokens_N, segments, places_M, types_N, languages_B2)
                parts = [self.model.head(part).double().log_softmax(-1).cpu() for part in hidden_MD.split(ROWS_AT_ONCE)]
            logp_MV = torch.cat(parts)
            for n, part in zip(batch, logp_MV.split([len(one) for one in at]), strict=True):
                yield int(n), part


def is_masked(folder: str | Path) -> bool:
    """Say whether a public folder holds a model with a head that fills in masks.

    Args:
        folder: With config.json.

    Returns:
        Whether it does.

    Raises:
        FormatError: The family, or a setting, is none that we have.
    """
    family, config = describe(Path(folder))
    return issubclass(family.build, MaskFiller) and config.fills  # type: ignore[arg-type]


def load_filler(path: str | Path, device: torch.device | None = None) -> tuple[Filler, list[str]]:
    """Load a masked language model from a public folder.

    Args:
        path: A folder with config.json, model.safetensors and tokenizer.json.
        device: Where it is to run; None is the CPU.

    Returns:
        The model, and warnings.

    Raises:
        DataError: A file is missing.
        FormatError: A file is not what it claims to be, or model or tokenizer know no masks.
        CheckpointError: Tensors are missing or left over.
    """
    folder = Path(path)
    with reading(folder):
        family, model, warnings = read_folder(folder)
        if not isinstance(model, MaskFiller) or not model.config.fills:
            mend = "give a model with its head for masked tokens"
            raise FormatError(f"this {family} fills in no masks", where=str(folder), mend=mend)
        inner = read_tokenizer(folder, model.config.vocab_size)
        warnings = [*warnings, *tokenizer_notes(folder, inner)]
        settings = [read_config(folder / name) for name in _SETTINGS if (folder / name).is_file()]
    given = [values.get("mask_token") for values in settings]
    named = [one.get("content") if isinstance(one, dict) else one for one in given]
    for mask in (*(name for name in named if isinstance(name, str)), *_NAMES):
        mask_id = inner.token_to_id(mask)
        if mask_id is not None:
            return Filler(model.float(), PublicMasks(inner, mask, mask_id), device=device), warnings
    what = "the tokenizer has no token for masks"
    raise FormatError(what, where=str(folder), mend="give a folder that is whole, or use regard embed")
