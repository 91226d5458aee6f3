import numpy as np
import pytest

from regard.errors import UsageError
from regard.looking.tiles import TILE, Pyramid


def by_loops(weights_TS, level):
    side = 2**level
    rows, columns = (-(-size // side) for size in weights_TS.shape)
    cells = np.zeros((rows, columns))
    for y in range(rows):
        for x in range(columns):
            cells[y, x] = weights_TS[y * side : (y + 1) * side, x * side : (x + 1) * side].max()
    return np.rint(255 * np.float32(cells) ** np.float32(0.7)).astype(np.uint8)


@pytest.mark.parametrize("shape", [(1, 1), (257, 3), (3, 257), (521, 769)])
def test_every_tile_of_every_level_is_the_largest_of_its_cells(shape):
    weights_TS = np.random.default_rng(1).dirichlet(np.full(shape[1], 0.02), size=shape[0]).astype(np.float32)
    pyramid = Pyramid(weights_TS)
    for level in range(pyramid.num_levels + 2):
        wanted = by_loops(weights_TS, level)
        rows, columns = (-(-size // TILE) for size in wanted.shape)
        drawn = np.block([[pyramid.tile(level, y, x) for x in range(columns)] for y in range(rows)])
        np.testing.assert_array_equal(drawn, wanted)
    assert max(by_loops(weights_TS, pyramid.num_levels - 1).shape) <= TILE


def test_levels_can_be_asked_for_in_any_order():
    weights_TS = np.random.default_rng(2).random((600, 700), dtype=np.float32)
    pyramid = Pyramid(weights_TS)
    np.testing.assert_array_equal(pyramid.tile(2, 0, 0), by_loops(weights_TS, 2)[:TILE, :TILE])
    np.testing.assert_array_equal(pyramid.tile(1, 1, 1), by_loops(weights_TS, 1)[TILE:, TILE:])
    np.testing.assert_array_equal(pyramid.tile(0, 2, 2), by_loops(weights_TS, 0)[2 * TILE :, 2 * TILE :])


@pytest.mark.parametrize(("level", "y", "x"), [(-1, 0, 0), (0, 3, 0), (0, 0, 3), (1, 2, 0), (0, -1, 0)])
def test_a_tile_that_is_not_there_is_refused(level, y, x):
    with pytest.raises(UsageError, match="no tile"):
        Pyramid(np.ones((600, 700), dtype=np.float32)).tile(level, y, x)
