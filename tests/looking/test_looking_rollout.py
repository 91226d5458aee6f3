import numpy as np
import pytest

from regard.errors import UsageError
from regard.looking import AttentionMap, Places, over_picture, rollout


def layer(name, *heads, tokens=("a", "b")):
    return AttentionMap(name, "self", tokens, tokens, np.array(heads))


def test_two_layers_by_hand():
    # Layer 1: two heads, mean [[1, 0], [.5, .5]]; with the residual (A + I) / 2 = [[1, 0], [.25, .75]].
    first = layer("0", [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]])
    # Layer 2: [[0, 1], [.5, .5]], with the residual [[.5, .5], [.25, .75]].
    second = layer("1", [[0.0, 1.0], [0.5, 0.5]])
    # [[.5, .5], [.25, .75]] @ [[1, 0], [.25, .75]]; the other order would begin with .5, .5.
    assert rollout([first, second]).tolist() == [[0.625, 0.375], [0.4375, 0.5625]]
    assert rollout([first]).tolist() == [[1.0, 0.0], [0.25, 0.75]]


def test_a_query_that_attends_to_nothing_keeps_itself():
    # Row 0 is all zeros: (0 + 1) / 2, divided by its sum, is 1.
    assert rollout([layer("0", [[0.0, 0.0], [0.5, 0.5]])]).tolist() == [[1.0, 0.0], [0.25, 0.75]]


def test_rows_sum_to_one_through_many_layers():
    rng = np.random.default_rng(2)
    tokens = tuple("abcdefg")
    layers = [layer(str(i), *rng.dirichlet(np.ones(7), size=(3, 7)), tokens=tokens) for i in range(11)]
    np.testing.assert_allclose(rollout(layers).sum(1), 1, rtol=0, atol=1e-12)


def test_only_one_stack_can_be_rolled_out():
    one = layer("0", [[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(UsageError, match="no layer"):
        rollout([])
    with pytest.raises(UsageError, match=r"decoder.*not self-attention over the tokens of the first layer"):
        rollout([one, AttentionMap("decoder", "cross", ("a", "b"), ("a", "b"), one.weights_HTS)])
    with pytest.raises(UsageError, match="tokens of the first layer"):
        rollout([one, layer("1", [[1.0, 0.0], [0.0, 1.0]], tokens=("a", "c"))])


def by_loops(weights_LHTT, heads, discard):
    """Rollout number by number: fuse, discard, add the residual, divide, multiply."""
    size = len(weights_LHTT[0][0])
    through = [[float(i == j) for j in range(size)] for i in range(size)]
    for weights_HTT in weights_LHTT:
        fused = [
            [
                (max if heads == "max" else lambda w: sum(w) / len(w))([head[i][j] for head in weights_HTT])
                for j in range(size)
            ]
            for i in range(size)
        ]
        order = sorted((fused[i][j], i, j) for i in range(size) for j in range(size))
        for _, i, j in order[: int(discard * size * size)]:
            fused[i][j] = 0.0
        step = [[(fused[i][j] + float(i == j)) / 2 for j in range(size)] for i in range(size)]
        step = [[w / sum(row) for w in row] for row in step]
        through = [[sum(step[i][k] * through[k][j] for k in range(size)) for j in range(size)] for i in range(size)]
    return through


@pytest.mark.parametrize("heads", ["mean", "max"])
@pytest.mark.parametrize("discard", [0.0, 0.31, 0.9])
def test_rollout_equals_loops(heads, discard):
    rng = np.random.default_rng(4)
    side = Places(0, (2, 3), ("class",))
    weights_LHTT = rng.dirichlet(np.full(7, 0.4), size=(5, 3, 7)).astype(np.float32).astype(np.float64)
    maps = [AttentionMap(str(i), "self", side, side, one) for i, one in enumerate(weights_LHTT)]
    found = rollout(maps, heads=heads, discard=discard)
    np.testing.assert_allclose(found, by_loops(weights_LHTT.tolist(), heads, discard), rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.sum(1), 1, rtol=0, atol=1e-12)


def test_of_equal_weights_the_earlier_is_discarded():
    # One of four equal weights is discarded, that at (0, 0): row 0 is then (0 + 1, .5) / 2, divided by its sum .75.
    one = layer("0", [[0.5, 0.5], [0.5, 0.5]])
    assert rollout([one], discard=0.25).tolist() == [[2 / 3, 1 / 3], [0.25, 0.75]]


def test_rollout_refuses_what_it_cannot_follow():
    side = Places(0, (1, 4), windows=((0, 1), (2, 3)))
    with pytest.raises(UsageError, match="attends in windows"):
        rollout([AttentionMap("w", "self", side, side, np.full((1, 4, 2), 0.5))])
    one = layer("0", [[1.0, 0.0], [0.0, 1.0]])
    for discard in (1.0, -0.1, float("nan")):
        with pytest.raises(UsageError, match=r"it is a share in \[0, 1\)"):
            rollout([one], discard=discard)
    with pytest.raises(UsageError, match="'mean' or 'max'"):
        rollout([one], heads="min")


def test_the_class_token_is_laid_over_the_grid():
    side = Places(0, (2, 3), ("class",))
    weights = np.arange(49.0).reshape(7, 7)
    assert over_picture(weights, side, side).tolist() == [[1, 2, 3], [4, 5, 6]]  # row 0 without its first
    assert over_picture(weights, side, side, query=2).tolist() == [[15, 16, 17], [18, 19, 20]]
    assert over_picture(weights[:2, :6], ("a", "b"), Places(0, (2, 3)), query=1).tolist() == [[7, 8, 9], [10, 11, 12]]


def test_without_a_class_token_places_get_the_mean_over_those_that_see_them():
    side = Places(0, (2, 3))
    weights = np.arange(36.0).reshape(6, 6)
    assert over_picture(weights, side, side).tolist() == [[15, 16, 17], [18, 19, 20]]  # 6 · (0 + … + 5) / 6 + column
    # Two windows of three rows, the second with one beside the picture: it asks nothing and is seen nowhere.
    side = Places(0, (2, 3), windows=((4, 0, 2), (-1, 5, 1)))
    weights = np.arange(18.0).reshape(6, 3)
    # Window 0: means of rows 0 to 2 are 3, 4, 5 at the places 4, 0, 2; window 1: rows 4 and 5: 13.5, 14.5, 15.5.
    expected = [[4, 15.5, 5], [np.nan, 3, 14.5]]
    np.testing.assert_array_equal(over_picture(weights, side, side), expected)
    # A query of window 1 sees its window alone.
    nan = np.nan
    np.testing.assert_array_equal(over_picture(weights, side, side, query=4), [[nan, 14, nan], [nan, nan, 13]])
