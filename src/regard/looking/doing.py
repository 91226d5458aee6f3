"""What a model may write next, step by step; and how probable it finds what it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention import Segments
from regard.errors import ContextError, NumericError, UsageError
from regard.models.interface import TokenPredictor
from regard.tasks.generator import Generator, begun
from regard.tasks.pairs import EncodedPairs
from regard.tasks.task import evaluating
from regard.tasks.translator import Translator, hidden
from regard.tasks.written import Written

MOST_CANDIDATES = 50
MOST_CLASSES = 10
ROWS_AT_ONCE = 64  # of scores of the whole vocabulary
END = "</s>"


@dataclass(frozen=True)
class Candidate:
    """A token that may come next.

    Attributes:
        token: The token.
        text: The token as a reader would write it.
        probability: By the model, over its whole vocabulary.
        is_end: It ends the output.
    """

    token: int
    text: str
    probability: float
    is_end: bool


@dataclass(frozen=True)
class Step:
    """What can come next.

    Attributes:
        candidates: The most probable tokens, the most probable first; none where the output has ended.
        ended: The last token so far was an end.
    """

    candidates: tuple[Candidate, ...]
    ended: bool


def next_tokens(product: Any, text: str, so_far: Sequence[int] = (), k: int = 10) -> Step:
    """Say what can come next in an output.

    p(token) = softmax over the vocabulary of the model's scores behind the tokens so far.

    Args:
        product: A loaded translator or language model.
        text: The input, or the prompt.
        so_far: Tokens of the output so far; a translator's without its start.
        k: Candidates at most, 1 to 50; fewer where the vocabulary is smaller.

    Returns:
        The candidates.

    Raises:
        UsageError: The model writes nothing, the text is empty, ``k`` is out of range, or a token is none of the
            model's or stands behind an end.
        ContextError: The text, or the output so far, is longer than the model's context.
        NumericError: The model's scores are not numbers.
    """
    if not 1 <= k <= MOST_CANDIDATES:
        raise UsageError(f"{k} candidates", where="next_tokens", mend=f"ask for 1 to {MOST_CANDIDATES}")
    ids, ended = check_ids(product, so_far)
    check_text(text)
    if ended:
        return Step((), True)
    with torch.inference_mode(), evaluating(product.model):
        hidden_ND = _of_pair(product, text, ids) if isinstance(product, Translator) else _of_text(product, text, ids)
        p_V = product.model.head(hidden_ND[-1:])[0].double().softmax(-1)
    if not bool(p_V.isfinite().all()):
        raise NumericError("the model's scores are not numbers", where="next_tokens", mend="its weights are damaged")
    best = p_V.topk(min(k, len(p_V)))
    ends = _ends(product)
    found = [
        Candidate(token, piece(product, token), probability, token in ends)
        for token, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return Step(tuple(found), False)


def text_of(product: Any, ids: Sequence[int], prompt: str = "") -> str:
    """Write the tokens of an output as text; an end behind them vanishes.

    Args:
        product: A loaded translator or language model.
        ids: Tokens; a translator's without its start.
        prompt: What a language model went on from.

    Returns:
        The text.

    Raises:
        UsageError: The model writes nothing, or a token is none of the model's or stands behind an end.
    """
    tokens, _ = check_ids(product, ids)
    if isinstance(product, Translator):
        return " ".join(product.tokenizer.target.decode(tokens).splitlines())  # as it writes its outputs: one line
    return Written(product.tokenizer.decode, begun(product.tokenizer, prompt)).text(tokens)


def piece(product: Translator | Generator, token: int) -> str:
    """Show one token of an output as a reader would write it.

    Args:
        product: The model.
        token: The token.

    Returns:
        Its text; of a language model's end its usual name, whatever the tokenizer calls it.
    """
    if isinstance(product, Translator):
        return product.tokenizer.target.pieces([token])[0]
    return END if token in product.end_ids else product.tokenizer.decode([token])


def check_ids(product: Any, ids: Sequence[int]) -> tuple[list[int], bool]:
    """Refuse tokens that cannot be an output.

    Args:
        product: A loaded model.
        ids: Tokens of an output, its end perhaps among them.

    Returns:
        The tokens without the end, and whether it was there.

    Raises:
        UsageError: The model writes nothing; or a token is none of the model's, or stands behind an end.
    """
    if not isinstance(product, Translator | Generator):
        raise UsageError("an output for a model that writes none", where="look", mend="leave it out")
    config, ends = product.model.config, _ends(product)
    size = config.target_vocab_size if isinstance(product, Translator) else config.vocab_size
    tokens = list(ids)
    wrong = [token for token in tokens if not 0 <= token < size]
    if wrong:
        raise UsageError(f"token {wrong[0]} of {size}", where="look", mend=f"tokens are 0 to {size - 1}")
    ended = bool(tokens) and tokens[-1] in ends
    tokens = tokens[:-1] if ended else tokens
    if any(token in ends for token in tokens):
        raise UsageError("tokens behind an end", where="look", mend="leave them out")
    return tokens, ended


def check_text(text: str) -> None:
    """Refuse a text without words.

    Args:
        text: The input.

    Raises:
        UsageError: There are none.
    """
    if not text.strip():
        raise UsageError("an empty text", where="look", mend="give some words")


def check_length(what: str, count: int, limit: int) -> None:
    """Refuse what is longer than a model's context.

    Args:
        what: It: ``text``, ``input``, ``output``.
        count: Its tokens.
        limit: Tokens that the model reads at once.

    Raises:
        ContextError: It is longer.
    """
    if count > limit:
        line = f"the {what} has {count} tokens; the model's context is {limit}"
        raise ContextError(line, where="look", mend="split the text")


def log_probability(model: TokenPredictor, hidden_MD: Tensor, labels: Sequence[int]) -> dict[str, float]:
    """Score tokens.

    Args:
        model: The model.
        hidden_MD: What predicts each of them.
        labels: The tokens.

    Returns:
        Σ ln p, and the same for each token; empty where there is none.
    """
    labels_M = torch.tensor(labels, dtype=torch.int64, device=hidden_MD.device)
    total = 0.0
    for some_MD, of_M in zip(hidden_MD.split(ROWS_AT_ONCE), labels_M.split(ROWS_AT_ONCE), strict=True):
        logp_MV = model.head(some_MD).double().log_softmax(-1)
        total += float(logp_MV.gather(-1, of_M[:, None]).sum())
    return as_scores(total, len(labels))


def as_scores(logprob: float, count: int) -> dict[str, float]:
    """Name a log-probability as :class:`regard.looking.Maps` keeps it.

    Args:
        logprob: Of all tokens.
        count: The tokens, the end among them where it came.

    Returns:
        It, and the same for each token; empty where there is none.
    """
    return {"log-probability": logprob, "log-probability per token": logprob / count} if count else {}


def likeliest(probabilities: Mapping[str, float]) -> dict[str, float]:
    """Give the most probable classes, at most 10, the most probable first."""
    return dict(sorted(probabilities.items(), key=lambda one: -one[1])[:MOST_CLASSES])


def _ends(product: Translator | Generator) -> tuple[int, ...]:
    return (product.tokenizer.target.end_id,) if isinstance(product, Translator) else product.end_ids


def _of_pair(translator: Translator, text: str, ids: Sequence[int]) -> Tensor:
    """Read an input, and an output so far from its start on."""
    tokenizer = translator.tokenizer
    encoded = EncodedPairs(tokenizer.source.encode_all([text]), [np.array(ids, np.int32)], tokenizer)
    check_length("input", int(encoded.source_lengths[0]), translator.max_tokens)
    check_length("output", int(encoded.target_lengths[0]), translator.max_tokens)
    return hidden(translator.model, encoded.batch([0]).to(translator.device))


def _of_text(generator: Generator, text: str, ids: Sequence[int]) -> Tensor:
    """Read a prompt, and what comes behind it so far."""
    row = [*begun(generator.tokenizer, text), *ids]
    check_length("text", len(row), generator.max_tokens)
    tokens_N = torch.tensor(row, dtype=torch.int64, device=generator.device)
    return generator.model(tokens_N, Segments.ragged([len(row)], generator.device))
