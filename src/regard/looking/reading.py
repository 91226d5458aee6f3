"""Attention maps of whatever attends: translators, language models, encoders of texts and of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.attention import Segments, record
from regard.errors import ContextError, UsageError
from regard.looking import seeing, seq2seq
from regard.looking.maps import AttentionMap, Maps
from regard.models.bert import Bert
from regard.models.interface import ImageEncoder
from regard.tasks.embedder import Embedder
from regard.tasks.filler import Filler
from regard.tasks.generator import Generator
from regard.tasks.labeller import Labeller
from regard.tasks.tagger import Tagger
from regard.tasks.translator import Translator


@dataclass(frozen=True)
class _Read:
    """A text as a model reads it.

    Attributes:
        tokens: Its tokens.
        pieces: The tokens as a reader would write them.
        output: What the model makes of it.
        run: Runs the model over tokens and segments.
        details: Anything worth a line.
    """

    tokens: list[int]
    pieces: tuple[str, ...]
    output: str
    run: Callable[[torch.Tensor, Segments], Any]
    details: dict[str, str]


def look(
    product: Any,
    text: str | Path,
    target: str | None = None,
    layers: str | Sequence[str] | None = None,
    language: str = "",
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

    Returns:
        The maps.

    Raises:
        UsageError: The text is empty, the model has no attention or reads no input, or an output is given to a model
            that writes none.
        ContextError: The text is longer than the model's context.
    """
    if isinstance(product, Translator):
        return seq2seq.look(product, str(text), target, layers)
    if target is not None and not isinstance(product, Generator):
        raise UsageError("an output for a model that writes none", where="look", mend="leave it out")
    if isinstance(product.model, ImageEncoder):
        return seeing.look(product, text, layers)
    if not isinstance(product, Generator | Labeller | Tagger | Embedder | Filler):
        verbs = " or ".join(f"regard {verb}" for verb in product.verbs)
        raise UsageError(f"a model for the task {product.task!r}", where="look", mend=f"use it with {verbs}")
    text = str(text)
    if not text.strip():
        raise UsageError("an empty text", where="look", mend="give some words")
    read = _written(product, text, target) if isinstance(product, Generator) else _encoded(product, text, language)
    if len(read.tokens) > product.max_tokens:
        what = f"the text has {len(read.tokens)} tokens; the model's context is {product.max_tokens}"
        raise ContextError(what, where="look", mend="split the text")
    tokens_N = torch.tensor(read.tokens, dtype=torch.int64, device=product.device)
    with torch.inference_mode(), record(product.model, layers) as rows:
        read.run(tokens_N, Segments.ragged([len(read.tokens)], product.device))
    maps = tuple(
        AttentionMap(name, "self", read.pieces, read.pieces, rows[name][0].weights_HTS.float().cpu().numpy())
        for name in rows
    )
    return Maps(title=text, source=text, output=read.output, maps=maps, details=read.details)


def _written(product: Generator, text: str, target: str | None) -> _Read:
    """A prompt and what a language model goes on with."""
    details: dict[str, str] = {}
    if target is None:
        one = product.generate([text])[0]
        target = one.text
        details = {"log-probability": f"{one.logprob:.3f}", "complete": "yes" if one.ended else "no, cut at the limit"}
    ids = product.tokenizer.encode(text + target)
    start: list[int] = [] if product.start_id is None else [product.start_id]
    pieces = (*("<s>" for _ in start), *(product.tokenizer.decode([one]) for one in ids))
    return _Read([*start, *ids], pieces, target, product.model, details)


def _encoded(product: Labeller | Tagger | Embedder | Filler, text: str, language: str) -> _Read:
    """A text as an encoder reads it."""
    if isinstance(product, Filler):
        tokens = product.tokenizer.encode(text)
        pieces = tuple(product.tokenizer.piece(token) for token in tokens)
        output = product.fill([text], language=language)[0].text if product.tokenizer.mask in text else ""
        return _Read(tokens, pieces, output, partial(product.read, language=language), {})
    if isinstance(product, Embedder):
        inner, output, run = product.tokenizer, "", product.model
        one = inner.encode(text)
    else:
        inner, run = product.tokenizer.inner, product.model.encoder
        if isinstance(product, Labeller):
            output, one = product.classify([text], languages=language)[0].label, inner.encode(text)
            run = _told(run, language)
        else:
            output, one = " ".join(product.tag([text])[0]), inner.encode(text.split(), is_pretokenized=True)
    return _Read(one.ids, tuple(one.tokens), output, run, {})


def _told(model: Bert, language: str) -> Callable[[torch.Tensor, Segments], Any]:
    """Run an encoder over a single text, its language told."""
    numbers = model.number_languages(language)
    if numbers is None:
        return model

    def run(tokens_N: torch.Tensor, segments: Segments) -> torch.Tensor:
        two = torch.tensor([numbers], device=tokens_N.device)
        return model(tokens_N, segments, **model.told(segments, torch.zeros_like(tokens_N), two))

    return run
