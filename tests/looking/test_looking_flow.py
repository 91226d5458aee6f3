import itertools

import numpy as np
import pytest

from regard.errors import UsageError
from regard.looking import AttentionMap, attention_flow, rollout
from regard.looking.flow import MAX_PIPES


def layer(name, *heads, tokens=None):
    heads = np.array(heads)
    tokens = tuple(f"t{i}" for i in range(heads.shape[1])) if tokens is None else tokens
    return AttentionMap(name, "self", tokens, tokens, heads)


def some_layers(num_layers, num_tokens, seed=3):
    rng = np.random.default_rng(seed)
    return [layer(str(i), *rng.dirichlet(np.ones(num_tokens), size=(2, num_tokens))) for i in range(num_layers)]


def smallest_cut(steps, t, s):
    """The largest flow is the smallest cut: try every way to part the nodes between output t and input s."""
    num_layers, size = len(steps), len(steps[0])
    nodes = [(layer, i) for layer in range(num_layers + 1) for i in range(size)]
    source, sink = (num_layers, t), (0, s)
    free = [node for node in nodes if node not in (source, sink)]
    best = float("inf")
    for chosen in itertools.product((False, True), repeat=len(free)):
        near = {source, *(node for node, here in zip(free, chosen, strict=True) if here)}
        cut = 0.0
        for upper, query in near:
            if upper:
                cut += sum(steps[upper - 1][query][key] for key in range(size) if (upper - 1, key) not in near)
        best = min(best, cut)
    return best


@pytest.mark.parametrize(("num_layers", "num_tokens"), [(1, 3), (2, 3), (3, 2)])
def test_flow_equals_the_smallest_cut(num_layers, num_tokens):
    layers = some_layers(num_layers, num_tokens)
    steps = [(one.weights_HTS.astype(np.float64).mean(0) + np.eye(num_tokens)) / 2 for one in layers]
    wanted = np.array([[smallest_cut(steps, t, s) for s in range(num_tokens)] for t in range(num_tokens)])
    wanted /= wanted.sum(1, keepdims=True)
    np.testing.assert_allclose(attention_flow(layers), wanted, rtol=0, atol=1e-6)


def test_the_narrowest_pipe_counts_where_rollout_multiplies():
    # The last layer's row 0 with the residual is [.5, .5, 0], the first one's row 1 is [0, .5, .5]: to each input leads
    # one way whose narrowest pipe is .5; rollout halves the two longer ways twice.
    first = layer("0", [[1.0, 0, 0], [0, 0, 1.0], [0, 0, 1.0]])
    last = layer("1", [[0, 1.0, 0], [0, 1.0, 0], [0, 0, 1.0]])
    assert rollout([first, last])[0].tolist() == [0.5, 0.25, 0.25]
    np.testing.assert_allclose(attention_flow([first, last])[0], [1 / 3, 1 / 3, 1 / 3], rtol=0, atol=1e-6)


def test_single_rows_are_those_of_the_whole():
    layers = some_layers(3, 5)
    whole = attention_flow(layers)
    np.testing.assert_array_equal(attention_flow(layers, [4, 1]), whole[[4, 1]])


def test_what_cannot_flow_is_refused():
    one = layer("0", [[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(UsageError, match="attention flow: no layer"):
        attention_flow([])
    with pytest.raises(UsageError, match="not self-attention over the tokens of the first layer"):
        attention_flow([one, AttentionMap("x", "cross", ("a", "b"), ("a", "b"), one.weights_HTS)])
    with pytest.raises(UsageError, match=r"queries \[2\] of 2"):
        attention_flow([one], [2])
    many = layer("0", np.eye(int(MAX_PIPES**0.5) + 1))
    with pytest.raises(UsageError, match="use rollout"):
        attention_flow([many])
