"""How well a language model foresees a text: bits per byte, perplexity."""

from __future__ import annotations

import lzma
import math
from collections.abc import Sequence
from typing import Literal

from regard.metrics.measure import Measure


def likelihood(nats: float, tokens: int, words: int, num_bytes: int, how: str) -> dict[str, Measure]:
    """Turn a text's negative log-likelihood into what can be compared.

    bits per byte = nats / (ln 2 · bytes) does not depend on the tokenizer; perplexities are exp(nats / tokens) and
    exp(nats / words).

    Args:
        nats: −Σ ln p over all tokens, ends of texts among them.
        tokens: How many they are.
        words: Words of the text: what stands between spaces.
        num_bytes: Bytes of the text in UTF-8.
        how: What the nats depend on, for the signature.

    Returns:
        The three measures by name.
    """
    values = {
        "bits_per_byte": nats / (math.log(2) * max(num_bytes, 1)),
        "perplexity": _exp(nats / max(tokens, 1)),
        "word_perplexity": _exp(nats / max(words, 1)),
    }
    counts = f"bytes:{num_bytes}|words:{words}|tokens:{tokens}|{how}|version:regard-1"
    return {name: Measure(name, value, f"{name}|{counts}") for name, value in values.items()}


def masked(
    nats: float, right: int, count: int, how: str, kind: Literal["masked", "target"] = "masked"
) -> dict[str, Measure]:
    """Score predictions of tokens at some places: the share that is right, and exp(nats / count).

    Args:
        nats: −Σ ln p of the right tokens.
        right: How many were the most probable.
        count: How many there are.
        how: How the places were chosen, for the signature.
        kind: What stands there: masks, or targets of an order.

    Returns:
        The two measures by name.
    """
    values = {f"{kind}_accuracy": right / max(count, 1), f"{kind}_perplexity": _exp(nats / max(count, 1))}
    return {name: Measure(name, one, f"{name}|{kind}:{count}|{how}|version:regard-1") for name, one in values.items()}


def compressed_bits_per_byte(text: bytes, known: bytes = b"") -> float:
    """Compute what xz -9 needs: 8 · (|xz(known + text)| − |xz(known)|) / |text|.

    Args:
        text: What is compressed.
        known: What the compressor has seen before.

    Returns:
        Bits per byte of the text.
    """
    before = len(lzma.compress(known, preset=9)) if known else 0
    return 8 * (len(lzma.compress(known + text, preset=9)) - before) / max(len(text), 1)


def entropy(tokens: Sequence[int], counts: Sequence[int]) -> float:
    """Compute −Σ ln p of tokens by how often each occurred elsewhere, one added to each count (Laplace).

    Args:
        tokens: The tokens.
        counts: For each token of the vocabulary how often it occurred.

    Returns:
        The sum in nats.
    """
    total = math.log(sum(counts) + len(counts))
    return sum(total - math.log(counts[token] + 1) for token in tokens)


def _exp(value: float) -> float:
    """Exponentiate; what no float holds is infinite, and a report says so."""
    return math.exp(value) if value < 700 else math.inf
