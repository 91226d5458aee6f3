import numpy as np
import pytest

from regard.errors import UsageError
from regard.looking import AttentionMap, rollout


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
