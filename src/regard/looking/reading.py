"""Attention maps of whatever attends: translators, language models, encoders of texts and of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.attention import Segments, record
from regard.errors import UsageError
from regard.looking import seeing, seq2seq
from regard.looking.attention_map import AttentionMap
from regard.looking.doing import as_scores, check_ids, check_length, check_text, likeliest, log_probability, text_of
from regard.looking.maps import Maps
from regard.looking.spill import Sheets
from regard.models.bert import Bert
from regard.models.interface import ImageEncoder
from regard.tasks.embedder import Embedder
from regard.tasks.filler import Filled, Filler
from regard.tasks.generator import Generator, begun
from regard.tasks.labeller import Labeller
from regard.tasks.tagger import Tagger, encode_words
from regard.tasks.task import evaluating
from regard.tasks.translator import Translator


@dataclass(frozen=True)
class _Read:
    """A text as a model reads it.

    Attributes:
        tokens: Its tokens.
        pieces: The tokens as a reader would write them.
        output: What the model makes of it.
        run: Runs the model over tokens and segments.
        scores: What the model makes of its output, from what ``run`` gives.
        details: Anything worth a line.
    """

    tokens: list[int]
    pieces: tuple[str, ...]
    output: str
    run: Callable[[torch.Tensor, Segments], Any]
    scores: Callable[[Any], dict[str, float]]
    details: dict[str, str] = field(default_factory=dict)


def look(
    product: Any,
    text: str | Path,
    target: str | None = None,
    layers: str | Sequence[str] | None = None,
    language: str = "",
    target_ids: Sequence[int] | None = None,
) -> Maps:
    """Show what a model looks at while it reads a text, and writes where it does.

    Every layer's self-attention is recorded in one pass over the text; of a language model over the text and what it
    goes on with, each token attending to itself and those before it. Translators: see
    :func:`regard.looking.seq2seq.look`; image encoders: :func:`regard.looking.seeing.look`.

    Args:
        product: A loaded model.
        text: Input; for an image encoder an image file.
        target: Of a translator or a language model: an output to look at; None lets it write one.
        layers: Names or patterns of layers; None for all.
        language: Of the text, for an encoder that is told it.
        target_ids: Instead of ``target``, the output's tokens; a translator's without its start. An end may be the last
            of them.

    Returns:
        The maps.

    Raises:
        UsageError: The text is empty, the model has no attention or reads no input, an output is given to a model that
            writes none, or is given twice.
        ContextError: The text is longer than the model's context.
    """
    if target is not None and target_ids is not None:
        raise UsageError("an output as text and as tokens", where="look", mend="give one of them")
    if isinstance(product, Translator):
        return seq2seq.look(product, str(text), target, layers, target_ids)
    if not (target is None and target_ids is None) and not isinstance(product, Generator):
        raise UsageError("an output for a model that writes none", where="look", mend="leave it out")
    if isinstance(product.model, ImageEncoder):
        return seeing.look(product, text, layers)
    if not isinstance(product, Generator | Labeller | Tagger | Embedder | Filler):
        verbs = " or ".join(f"regard {verb}" for verb in product.verbs)
        raise UsageError(f"a model for the task {product.task!r}", where="look", mend=f"use it with {verbs}")
    text = str(text)
    check_text(text)
    if isinstance(product, Generator):
        read = _written(product, text, target, target_ids)
    else:
        read = _encoded(product, text, language)
    check_length("text", len(read.tokens), product.max_tokens)
    tokens_N = torch.tensor(read.tokens, dtype=torch.int64, device=product.device)
    with torch.inference_mode(), evaluating(product.model):
        sheets = Sheets(len(read.tokens))
        with record(product.model, layers, sink=sheets):
            result = read.run(tokens_N, Segments.ragged([len(read.tokens)], product.device))
        scores = read.scores(result)
    maps = tuple(AttentionMap(name, "self", read.pieces, read.pieces, sheets.weights(name)) for name in sheets.within)
    return Maps(text, text, read.output, maps, read.details, scores=scores)


def _written(product: Generator, text: str, target: str | None, target_ids: Sequence[int] | None) -> _Read:
    """A prompt and what a language model goes on with."""
    ids = begun(product.tokenizer, text)
    if target is None and target_ids is None:
        one = product.generate([text])[0]
        # Where a stop text ended it, which is cut off, no end token was chosen.
        at_end = one.ended and text_of(product, one.token_ids, text) == one.text
        scores, output, row = as_scores(one.logprob, one.tokens + at_end), one.text, [*ids, *one.token_ids]
        details = {"complete": "yes" if one.ended else "no, cut at the limit"}
        return _Read(row, _pieces(product, row), output, product.model, lambda _: scores, details)
    if target_ids is not None:
        written, ended = check_ids(product, target_ids)
        row, output = [*ids, *written], text_of(product, written, text)
        labels = [*row, *list(target_ids)[-1:]] if ended else row
        first = len(row) - len(written)
    else:
        # A token may reach over the seam: then it belongs to the output.
        both, output = begun(product.tokenizer, text + target), target
        same = next((n for n, pair in enumerate(zip(ids, both, strict=False)) if pair[0] != pair[1]), len(ids))
        row = labels = both
        first = min(same, len(both))
    first = max(first, 1)  # nothing predicts the first token of all

    def scores_of(hidden_ND: torch.Tensor) -> dict[str, float]:
        return log_probability(product.model, hidden_ND[first - 1 : len(labels) - 1], labels[first:])

    return _Read(row, _pieces(product, row), output, product.model, scores_of)


def _pieces(product: Generator, row: Sequence[int]) -> tuple[str, ...]:
    """Show the tokens of a text, its start as such."""
    start = () if product.start_id is None else ("<s>",)
    return (*start, *(product.tokenizer.decode([one]) for one in row[len(start) :]))


def _encoded(product: Labeller | Tagger | Embedder | Filler, text: str, language: str) -> _Read:
    """A text as an encoder reads it."""
    if isinstance(product, Filler):
        tokens = product.tokenizer.encode(text)
        pieces = tuple(product.tokenizer.piece(token) for token in tokens)
        filled = product.fill([text], 1, language=language)[0] if product.tokenizer.mask in text else Filled("", [])
        best = {f"mask {n}: {one.text.strip()}": one.probability for n, (one, *_) in enumerate(filled.masks, 1)}
        return _Read(tokens, pieces, filled.text, partial(product.read, language=language), lambda _: best)
    if isinstance(product, Tagger):
        ((ids, firsts),) = encode_words(product.tokenizer, [text.split()])
        tokens, output = ids.tolist(), " ".join(product.tag([text])[0])
        pieces = tuple(product.tokenizer.inner.id_to_token(token) or "" for token in tokens)
        return _Read(tokens, pieces, output, product.model, partial(_tags, firsts))
    if isinstance(product, Embedder):
        (one,) = product.encode([text])
        return _Read(one.ids, tuple(one.tokens), "", product.model, lambda _: {})
    one, label = product.tokenizer.inner.encode(text), product.classify([text], languages=language)[0]
    run, scores = _told(product.model.encoder, language), likeliest(label.probabilities)
    return _Read(one.ids, tuple(one.tokens), label.label, run, lambda _: scores)


def _tags(firsts: np.ndarray, logits_NV: torch.Tensor) -> dict[str, float]:
    """Average the probabilities of the words' tags."""
    best_M = logits_NV[torch.from_numpy(firsts[firsts >= 0]).to(logits_NV.device)].double().softmax(-1).amax(-1)
    return {"mean probability of the tags": float(best_M.mean())} if len(best_M) else {}


def _told(model: Bert, language: str) -> Callable[[torch.Tensor, Segments], Any]:
    """Run an encoder over a single text, its language told."""
    numbers = model.number_languages(language)
    if numbers is None:
        return model

    def run(tokens_N: torch.Tensor, segments: Segments) -> torch.Tensor:
        two = torch.tensor([numbers], device=tokens_N.device)
        return model(tokens_N, segments, **model.told(segments, torch.zeros_like(tokens_N), two))

    return run
