"""Bits per byte, perplexities, and what they are compared with."""

import lzma
import math
import random
import weakref
from collections.abc import Iterator

import pytest

from regard.metrics.language import compressed_bits_per_byte, entropy, likelihood, masked


def test_a_coin_a_byte_is_one_bit() -> None:
    measures = likelihood(100 * math.log(2), 50, 20, 100, "context:7")
    assert measures["bits_per_byte"].value == pytest.approx(1)
    assert measures["perplexity"].value == pytest.approx(4)
    assert measures["word_perplexity"].value == pytest.approx(32)
    assert measures["perplexity"].signature == "perplexity|bytes:100|words:20|tokens:50|context:7|version:regard-1"


def test_where_text_is_lost_only_the_perplexity_of_tokens_is_left() -> None:
    measures = likelihood(100 * math.log(2), 50, 20, 100, "context:7", 3)
    assert list(measures) == ["perplexity"]
    assert measures["perplexity"].value == pytest.approx(4)
    signature = "perplexity|lost texts:3|bytes:100|words:20|tokens:50|context:7|version:regard-1"
    assert measures["perplexity"].signature == signature


def test_masked_scores_by_hand() -> None:
    measures = masked(50 * math.log(3), 20, 50, "share:0.15")
    assert measures["masked_accuracy"].value == 0.4
    assert measures["masked_perplexity"].value == pytest.approx(3)
    assert measures["masked_accuracy"].signature == "masked_accuracy|masked:50|share:0.15|version:regard-1"
    assert masked(0.0, 0, 0, "")["masked_accuracy"].value == 0.0


def test_perplexity_of_the_impossible_is_infinite() -> None:
    assert likelihood(1e6, 10, 1, 10, "")["perplexity"].value == math.inf


def test_xz_is_xz() -> None:
    text = "".join(random.Random(3).choices("abcdü", k=4000))
    size = len(text.encode())
    alone = len(lzma.compress(text.encode(), preset=9))
    assert compressed_bits_per_byte([text]) == 8 * alone / size
    assert compressed_bits_per_byte(iter([text[:7], "", text[7:]])) == 8 * alone / size  # pieces are one text
    twice = len(lzma.compress(text.encode() * 2, preset=9))
    assert compressed_bits_per_byte(iter([text]), [text[:99], text[99:]]) == 8 * (twice - alone) / size
    assert 2 < compressed_bits_per_byte([text]) < 3
    assert compressed_bits_per_byte([text], [text]) < 0.3  # what was seen before costs next to nothing


def test_xz_holds_no_piece_longer_than_it_reads_it() -> None:
    class Piece(str):
        pass

    held: list[weakref.ref[Piece]] = []

    def pieces() -> Iterator[Piece]:
        for n in range(50):
            piece = Piece(f"piece {n}")
            held.append(weakref.ref(piece))
            yield piece
            del piece
            assert sum(one() is not None for one in held) <= 1

    assert compressed_bits_per_byte(pieces()) > 0
    assert len(held) == 50


def test_frequencies_with_one_added() -> None:
    assert entropy([2, 0, 1], [3, 5, 0]) == pytest.approx(-(2 * math.log(4 / 11) + math.log(1 / 11)))
