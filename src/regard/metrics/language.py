"""How well a language model foresees a text: bits per byte, perplexity."""

from __future__ import annotations

import lzma
import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal

from regard.metrics.measure import Measure

# Why some measures are not there, for those who read the others.
LOST = "what tokens lose costs nothing, so bits per byte and perplexity per word are left out"


def likelihood(nats: float, tokens: int, words: int, num_bytes: int, how: str, lost: int = 0) -> dict[str, Measure]:
    """Turn a text's negative log-likelihood into what can be compared.

    bits per byte = nats / (ln 2 · bytes) does not depend on the tokenizer; perplexities are exp(nats / tokens) and
    exp(nats / words). All but the perplexity per token are of the text itself: where tokens do not give it back they
    would be the lower the more is lost, and are left out.

    Args:
        nats: −Σ ln p over all tokens, ends of texts among them.
        tokens: How many they are.
        words: Words of the text: what stands between spaces.
        num_bytes: Bytes of the text in UTF-8.
        how: What the nats depend on, for the signature.
        lost: Texts that their tokens do not give back byte by byte.

    Returns:
        The three measures by name; the perplexity per token alone where text is lost.
    """
    values = {
        "bits_per_byte": nats / (math.log(2) * max(num_bytes, 1)),
        "perplexity": _exp(nats / max(tokens, 1)),
        "word_perplexity": _exp(nats / max(words, 1)),
    }
    counts = f"bytes:{num_bytes}|words:{words}|tokens:{tokens}|{how}|version:regard-1"
    if lost:
        values, counts = {"perplexity": values["perplexity"]}, f"lost texts:{lost}|{counts}"
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


def compressed_bits_per_byte(text: Iterable[str], known: Sequence[str] = ()) -> float:
    """Compute what xz -9 needs: 8 · (|xz(known + text)| − |xz(known)|) / |text|, in two passes over ``known``.

    Args:
        text: What is compressed, in pieces that are held one at a time.
        known: What the compressor has seen before.

    Returns:
        Bits per byte of the text.
    """
    read, before = _xz(known) if known else (0, 0)
    whole, after = _xz(chain(known, text))
    return 8 * (after - before) / max(whole - read, 1)


def entropy(found: Sequence[int], counts: Sequence[int]) -> float:
    """Compute −Σ ln p of tokens by how often each occurred elsewhere, one added to each count (Laplace).

    Args:
        found: For each token of the vocabulary how often it is among the tokens.
        counts: For each token of the vocabulary how often it occurred.

    Returns:
        The sum in nats.
    """
    total = math.log(sum(counts) + len(counts))
    return sum(times * (total - math.log(count + 1)) for times, count in zip(found, counts, strict=True))


def _xz(pieces: Iterable[str]) -> tuple[int, int]:
    """Compress pieces as one text; give its bytes in UTF-8, and those of what comes of it."""
    packer, read, written = lzma.LZMACompressor(preset=9), 0, 0
    for piece in pieces:
        data = piece.encode()
        read, written = read + len(data), written + len(packer.compress(data))
    return read, written + len(packer.flush())


def _exp(value: float) -> float:
    """Exponentiate; what no float holds is infinite, and a report says so."""
    return math.exp(value) if value < 700 else math.inf
