"""A trained model that tags the words of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from regard.attention import Segments
from regard.data.batching import like_lengths
from regard.decoding import DecodeOptions
from regard.errors import DataError
from regard.models.labelled import Tagged
from regard.tasks.labeller import TextPairs
from regard.tasks.task import evaluating
from regard.typed import check_texts

OUTSIDE = "O"


def encode_words(tokenizer: TextPairs, sentences: Sequence[Sequence[str]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Turn sentences of words into tokens.

    Words are read as a text with spaces between, so that a tokenizer sees where they end, as in the texts that it and
    an encoder were trained on. The space before a word is part of it: many tokenizers make one token of the two.

    Args:
        tokenizer: The tokenizer.
        sentences: Words of each.

    Returns:
        For each sentence its tokens, and for each word the place of its first token; -1 where it has none.
    """
    rows = []
    for words, one in zip(
        sentences, tokenizer.inner.encode_batch([" ".join(words) for words in sentences]), strict=True
    ):
        sizes = np.array([len(word) + (place > 0) for place, word in enumerate(words)], np.int64)
        word_of = np.repeat(np.arange(len(words)), sizes)
        firsts = np.full(len(words), -1)
        # From the end, so that a word's first token is written last. What stands around the text comes of no character.
        for place, (begin, end) in reversed([*enumerate(one.offsets)]):
            firsts[word_of[begin:end]] = place
        rows.append((np.array(one.ids, np.int64), firsts))
    return rows


def cut_words(row: tuple[np.ndarray, np.ndarray], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a sentence's end off, but keep the token behind it; words behind the cut have no token.

    Args:
        row: As :func:`encode_words` gives it.
        most: Tokens at most.

    Returns:
        The row, cut where it was longer.
    """
    ids, firsts = row
    if len(ids) <= most:
        return row
    return np.append(ids[: most - 1], ids[-1]), np.where(firsts < most - 1, firsts, -1)


class Tagger:
    """A model that tags words: what ``regard.load`` gives for tags.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        names: The tags.
        max_tokens: Tokens of a text at most, those around it included.
        device: Where it runs.
    """

    task = "tag"
    verbs = ("tag",)
    options: DecodeOptions | None = None

    def __init__(
        self,
        model: Tagged,
        tokenizer: TextPairs,
        names: Sequence[str],
        max_tokens: int,
        device: torch.device | None = None,
    ) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.model, self.tokenizer = model.to(self.device).eval(), tokenizer
        self.names, self.max_tokens = tuple(names), max_tokens

    def tokenizers(self) -> dict[str, Any]:
        """Give the tokenizer by the name of its file."""
        return {"tokenizer.json": self.tokenizer}

    def tag(self, texts: Sequence[str | Sequence[str]], batch_tokens: int = 8192) -> list[list[str]]:
        """Tag the words of texts; tags do not depend on the texts beside them.

        Args:
            texts: Texts, cut into words at spaces; or words.
            batch_tokens: Tokens of a batch at most.

        Returns:
            A tag for each word; ``O`` for words beyond the model's context.

        Raises:
            DataError: A word is empty.
        """
        texts = check_texts(texts, "tag", in_parts=True)
        sentences = [text.split() if isinstance(text, str) else list(text) for text in texts]
        if not all(word for words in sentences for word in words):
            raise DataError("an empty word", where="tag", mend="remove it")
        rows = [cut_words(row, self.max_tokens) for row in encode_words(self.tokenizer, sentences)]
        return [self._named(places) for places in self.places(rows, batch_tokens)]

    def places(self, rows: Sequence[tuple[np.ndarray, np.ndarray]], batch_tokens: int = 8192) -> list[np.ndarray]:
        """Find the best tag of each word.

        Args:
            rows: As :func:`encode_words` gives them.
            batch_tokens: Tokens of a batch at most.

        Returns:
            For each sentence the number of each word's tag; -1 for words without a token.
        """
        found = [np.full(len(firsts), -1) for _, firsts in rows]
        lengths = np.array([len(ids) for ids, _ in rows], np.int64)
        filled = np.flatnonzero(lengths)
        with evaluating(self.model), torch.inference_mode():
            for batch in like_lengths(lengths[filled], batch_tokens):
                some = [rows[n] for n in filled[np.asarray(batch)]]
                tokens_N = torch.from_numpy(np.concatenate([ids for ids, _ in some])).to(self.device)
                segments = Segments.ragged([len(ids) for ids, _ in some], self.device)
                best = self.model(tokens_N, segments).argmax(-1).cpu().numpy()
                begin = 0
                for n, (ids, firsts) in zip(filled[np.asarray(batch)], some, strict=True):
                    here = best[begin : begin + len(ids)]
                    found[n] = np.where(firsts >= 0, here[np.maximum(firsts, 0)], -1)
                    begin += len(ids)
        return found

    def _named(self, places: np.ndarray) -> list[str]:
        return [self.names[place] if place >= 0 else OUTSIDE for place in places]
