"""Recording that streams: the same rows in small blocks, nothing kept, nothing large made."""

import weakref

import pytest
import torch
from largest import Largest
from torch import Tensor

from regard.attention import MultiHeadAttention, Rows, Segments, masks, record, recording
from regard.errors import UsageError

SIZES = (13, 0, 5, 2)


def watched(
    layer: MultiHeadAttention, x_ND: Tensor, monkeypatch: pytest.MonkeyPatch, **options: list[int]
) -> tuple[list[Rows], list[Rows], record]:
    """What one call gives as a whole, and in blocks of at most 500 bytes."""
    segments = Segments.ragged(SIZES)
    with record(layer, **options) as whole:
        layer(x_ND, segments, mask=masks.causal())
    monkeypatch.setattr(recording, "BLOCK_BYTES", 500)
    blocks: list[Rows] = []

    def sink(name: str, rows: Rows) -> None:
        assert name == ""
        blocks.append(rows)

    with record(layer, **options, sink=sink) as nothing:
        layer(x_ND, segments, mask=masks.causal())
    return whole[""], blocks, nothing


@pytest.mark.parametrize("options", [{}, {"heads": [2, 0], "queries": [-1, 3, 0, 1], "sequences": [0, 2]}])
def test_blocks_are_the_rows_in_their_order(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x_ND = MultiHeadAttention(6, 3).double(), torch.randn(20, 6, dtype=torch.float64)
    whole, blocks, nothing = watched(layer, x_ND, monkeypatch, **options)
    assert all(block.weights_HTS.numel() * 8 <= 500 for block in blocks)
    assert len(blocks) > len(whole)
    for rows in whole:
        own = [block for block in blocks if block.sequence == rows.sequence]
        assert sum((block.queries for block in own), ()) == rows.queries
        assert {(block.heads, block.within, block.num_queries) for block in own} == {
            (rows.heads, rows.within, len(rows.queries))
        }
        joined_HTS = torch.cat([block.weights_HTS for block in own], 1)
        torch.testing.assert_close(joined_HTS, rows.weights_HTS, atol=1e-15, rtol=0)
    assert len(nothing) == 0
    with pytest.raises(UsageError, match="layer '' was not recorded"):
        nothing[""]
    # Without a sink the same blocks are joined.
    with record(layer, **options) as again:
        layer(x_ND, Segments.ragged(SIZES), mask=masks.causal())
    for one, other in zip(whole, again[""], strict=True):
        assert (one.sequence, one.heads, one.queries, one.num_queries) == (
            other.sequence,
            other.heads,
            other.queries,
            other.num_queries,
        )
        torch.testing.assert_close(one.weights_HTS, other.weights_HTS, atol=1e-15, rtol=0)


def test_a_row_that_is_larger_than_a_block_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, blocks = MultiHeadAttention(6, 3), []
    monkeypatch.setattr(recording, "BLOCK_BYTES", 5)
    with record(layer, sink=lambda name, rows: blocks.append(rows)):
        layer(torch.randn(7, 6), Segments.ragged([7]))
    assert [block.queries for block in blocks] == [(n,) for n in range(7)]


def test_blocks_are_not_kept_beside_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, made, alive = MultiHeadAttention(6, 3), [], []

    def counted(*given) -> Rows:
        rows = Rows(*given)
        made.append(weakref.ref(rows))
        alive.append(sum(one() is not None for one in made))
        return rows

    monkeypatch.setattr(recording, "BLOCK_BYTES", 5)
    monkeypatch.setattr(recording, "Rows", counted)
    with record(layer) as rows:
        layer(torch.randn(40, 6), Segments.ragged([40]))
    assert len(made) == 40
    assert max(alive) <= 3  # the first, the one before, and the new one
    assert next(iter(rows.values()))[0].weights_HTS.shape == (3, 40, 40)


def test_nothing_recorded_is_refused_with_a_sink_too() -> None:
    layer = MultiHeadAttention(6, 3)
    with (
        pytest.raises(UsageError, match="nothing was recorded"),
        record(layer, queries=[99], sink=lambda name, rows: None),
    ):
        layer(torch.randn(7, 6), Segments.ragged([7]))


def test_a_long_sequence_is_recorded_without_anything_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """1021 tokens and 4 heads are 16 MiB of weights; no tensor that is made is larger than a block of 256 KiB."""
    layer, seen = MultiHeadAttention(8, 4), []
    monkeypatch.setattr(recording, "BLOCK_BYTES", 1 << 18)
    with torch.no_grad(), Largest() as largest, record(layer, sink=lambda name, rows: seen.append(rows.queries)):
        layer(torch.randn(1021, 8), Segments.uniform(1, 1021), mask=masks.causal())
    assert sum(map(len, seen)) == 1021
    assert largest.most <= 1 << 18
