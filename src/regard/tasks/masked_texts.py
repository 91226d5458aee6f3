"""How well a model that fills in masks foresees hidden tokens of texts: what ``regard evaluate`` says of it.

The places are those at which training scores its own held-out texts: a share of each piece's tokens, drawn by the
piece's number alone, all hidden at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import DataError
from regard.metrics.language import masked
from regard.metrics.measure import Measure
from regard.tasks.filler import Filler
from regard.tasks.masked import HELD_OUT_SEED, score
from regard.tasks.masking import Masker, Masking, chance


@dataclass(frozen=True)
class _Tokens:
    """What is known of a vocabulary; see :class:`regard.tasks.masking.Maskable`."""

    mask_id: int
    vocab_size: int
    special_ids: Sequence[int]

    def word_starts(self) -> np.ndarray:
        return np.ones(self.vocab_size, bool)


def evaluate(
    filler: Filler, texts: Sequence[str], *, language: str = "", batch_tokens: int = 4096
) -> dict[str, Measure]:
    """Hide tokens of texts, and score how the model fills them in.

    Args:
        filler: The model.
        texts: Texts; those over what the model reads at once are cut into pieces.
        language: Of the texts; of models that are told.
        batch_tokens: Tokens of a batch at most.

    Returns:
        ``masked_accuracy`` and ``masked_perplexity``.

    Raises:
        DataError: There is no token to hide.
        UsageError: The language is none of the model's, or it has to be told.
    """
    two = filler.model.number_languages(language)
    masking = Masking()
    tokenizer = _Tokens(filler.mask_id, filler.model.config.vocab_size, filler.tokenizer.special_ids)
    masker = Masker(masking, tokenizer)
    rows = [piece for text in texts for piece in _pieces(filler, text)]
    places = [masker.choose(row, chance(HELD_OUT_SEED, n)) for n, row in enumerate(rows)]
    told = None if two is None else [(np.zeros_like(row), two) for row in rows]
    found = score(filler, masker, rows, places, batch_tokens, told)
    if not found[-1]:
        raise DataError("no token to hide", where="texts", mend="give some words")
    return masked(*found, f"share:{masking.prob}|all hidden|context:{filler.max_tokens}|masks:{HELD_OUT_SEED}")


def _pieces(filler: Filler, text: str) -> list[np.ndarray]:
    """Turn a text into pieces that the model can read, each with the tokens around it that a text has."""
    ids, around = filler.tokenizer.encode(text), filler.tokenizer.encode("")
    before = next((n for n, (a, b) in enumerate(zip(around, ids, strict=False)) if a != b), len(around))
    head, tail = around[:before], around[before:]
    inside, step = ids[len(head) : len(ids) - len(tail)], filler.max_tokens - len(around)
    return [np.array([*head, *inside[n : n + step], *tail], np.int64) for n in range(0, len(inside), step)]
