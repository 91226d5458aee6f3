"""Heads switched off: exact zeros where they were, nothing else moved, and what cannot be is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from regard.attention import KVCache, MultiHeadAttention, Segments, Site, attend, masks, record, silence, switch_off
from regard.errors import UsageError

SIZES = (5, 0, 3, 1)


class Pair(nn.Module):
    """Two layers that attend, of 6 and of 3 heads; the second one may stay away."""

    def __init__(self) -> None:
        super().__init__()
        self.first = MultiHeadAttention(12, 6, num_kv_heads=2).double()
        self.second = MultiHeadAttention(12, 3, use_bias=False).double()

    def forward(self, x_ND: Tensor, segments: Segments, both: bool = True) -> Tensor:
        x_ND = self.first(x_ND, segments, mask=masks.causal())
        return self.second(x_ND, segments) if both else x_ND


class Bare(Site):
    """Attends, and has no weights of its own that read what comes out."""

    def forward(self, x_NHK: Tensor, segments: Segments) -> Tensor:
        return attend(x_NHK, x_NHK, x_NHK, segments, site=self)


def head_by_head(layer: MultiHeadAttention, context_NHK: Tensor, silent: list[int]) -> Tensor:
    """The output as a sum over the heads that are heard, W_O cut into their columns."""
    y_ND = torch.zeros(len(context_NHK), layer.out_proj.out_features, dtype=torch.float64)
    for head in range(layer.num_heads):
        if head not in silent:
            y_ND += context_NHK[:, head] @ layer.out_proj.weight[:, 2 * head : 2 * head + 2].T
    return y_ND + layer.out_proj.bias


@torch.no_grad()
def test_the_output_is_the_sum_over_the_heads_that_are_heard() -> None:
    layer, segments = MultiHeadAttention(12, 6, num_kv_heads=2).double(), Segments.ragged(SIZES)
    x_ND = torch.randn(9, 12, dtype=torch.float64)
    k_NGK, v_NGK = layer.keys_values(x_ND)
    context_NHK = attend(layer.q_proj(x_ND).unflatten(-1, (6, 2)), k_NGK, v_NGK, segments)
    with silence(layer, {"": [4, 1]}):
        found = layer(x_ND, segments)
    torch.testing.assert_close(found, head_by_head(layer, context_NHK, [1, 4]), atol=1e-13, rtol=0)
    # Dense tensors are the same call.
    with silence(layer, {"": [4, 1]}):
        dense_BTD = layer(x_ND[:5].expand(2, -1, -1))
    torch.testing.assert_close(dense_BTD, found[:5].expand(2, -1, -1), atol=1e-13, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("backend", [None, "reference", "dense"])
def test_a_silent_head_gives_zeros_whatever_its_values_are(backend: str | None) -> None:
    q, k, v = (torch.randn(9, 3, 2) for _ in range(3))
    v[:, 1] = float("nan")
    site = Bare()
    with silence(site, {"": [1]}):
        context_NHK = attend(q, k, v, Segments.ragged(SIZES), site=site, backend=backend)
        unnamed = attend(q, k, v, Segments.ragged(SIZES), backend=backend)
    assert not context_NHK[:, 1].any()
    assert torch.equal(context_NHK[:, [0, 2]], unnamed[:, [0, 2]])
    assert unnamed[:, 1].isnan().all()


@torch.no_grad()
def test_new_tokens_behind_a_cache_are_silenced_too() -> None:
    layer, segments, new = MultiHeadAttention(12, 6, num_kv_heads=2), Segments.uniform(2, 5), Segments.uniform(2, 1)
    x_ND = torch.randn(12, 12)
    before = torch.arange(12).unflatten(0, (2, 6))
    with silence(layer, {"": [0, 3]}):
        whole = layer(x_ND, Segments.uniform(2, 6), mask=masks.causal())
        cache = KVCache.empty(2, 9, 2, 2, x_ND)
        parts = []
        for rows, some in ((before[:, :5].flatten(), segments), (before[:, 5], new)):
            y_ND, cache = layer.extend(x_ND[rows], some, cache, mask=masks.causal())
            parts.append((rows, y_ND))
    for rows, y_ND in parts:
        torch.testing.assert_close(y_ND, whole[rows], atol=1e-6, rtol=0)


@torch.no_grad()
def test_blocks_stand_in_one_another_and_patterns_add_up() -> None:
    model, x_ND, segments = Pair(), torch.randn(9, 12, dtype=torch.float64), Segments.ragged(SIZES)
    plain = model(x_ND, segments)
    with silence(model, {"*": [0], "first": [5, 2], "sec*": [1]}):
        at_once = model(x_ND, segments)
    with silence(model, {"first": [0, 2]}):
        with silence(model, {"first": [5], "second": [0, 1]}):
            nested = model(x_ND, segments)
        outer = model(x_ND, segments)
    assert torch.equal(at_once, nested)
    assert not torch.equal(outer, nested)
    assert torch.equal(model(x_ND, segments), plain)
    with pytest.raises(RuntimeError, match="its own"), silence(model, {"first": [0]}):
        raise RuntimeError("an error inside the block comes out as its own")
    assert torch.equal(model(x_ND, segments), plain)


def test_a_silenced_head_still_has_its_weights() -> None:
    model, x_ND, segments = Pair(), torch.randn(9, 12, dtype=torch.float64), Segments.ragged(SIZES)
    with record(model, "first") as plain:
        model(x_ND, segments)
    with silence(model, {"first": [1]}), record(model, "first") as silent:
        model(x_ND, segments)
    for one, other in zip(plain["first"], silent["first"], strict=True):
        assert torch.equal(one.weights_HTS, other.weights_HTS)


def test_gradients_go_through_the_heads_that_are_heard_alone() -> None:
    layer, segments = MultiHeadAttention(6, 3).double().train(), Segments.ragged(SIZES)
    with silence(layer, {"": [1]}):
        layer(torch.randn(9, 6, dtype=torch.float64), segments).square().sum().backward()
    for projection in (layer.q_proj, layer.v_proj):
        by_head_HKD = projection.weight.grad.unflatten(0, (3, 2))
        assert by_head_HKD.flatten(1).any(1).tolist() == [True, False, True]
    assert layer.out_proj.weight.grad.unflatten(1, (3, 2)).any(-1).any(0).tolist() == [True, False, True]


def silenced(model: nn.Module, heads: dict[str, list[int]]) -> None:
    with silence(model, heads):
        model(torch.randn(9, 12, dtype=torch.float64), Segments.ragged(SIZES))


@pytest.mark.parametrize("give", [silenced, switch_off])
@pytest.mark.parametrize(
    ("message", "heads"),
    [
        ("no layer 'third' attends; layers that do: first, second", {"first": [0], "third": [0]}),
        ("no layer 'third.\\*' attends", {"third.*": [0]}),
        ("heads is empty", {}),
        ("no head of 'first'", {"second": [0], "first": []}),
        ("heads \\[1, 6\\] of 6", {"first": [6, 1]}),
        ("heads \\[-1\\] of 3", {"second": [-1]}),
    ],
)
def test_what_the_model_does_not_have_is_refused(give: Callable[..., None], message: str, heads: dict) -> None:
    model = Pair()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with pytest.raises(UsageError, match=message):
        give(model, heads)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_a_layer_that_was_not_silenced_is_told() -> None:
    model, x_ND, segments = Pair(), torch.randn(9, 12, dtype=torch.float64), Segments.ragged(SIZES)
    with pytest.raises(UsageError, match="silence: second never attended"), silence(model, {"*": [0]}):
        model(x_ND, segments, both=False)
    block = silence(model, {"first": [0]})
    with block:
        model(x_ND, segments)
    with pytest.raises(UsageError, match="first never attended"), block:  # the last time does not count
        pass


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_model_does_not_ignore_it_silently() -> None:
    layer = MultiHeadAttention(6, 3)
    compiled, x_ND, segments = torch.compile(layer, backend="eager"), torch.randn(8, 6), Segments.uniform(2, 4)
    with pytest.raises(UsageError, match="run the model, uncompiled"), silence(layer, {"": [1]}):
        compiled(x_ND, segments)


@torch.no_grad()
def test_switched_off_for_good() -> None:
    model, x_ND, segments = Pair(), torch.randn(9, 12, dtype=torch.float64), Segments.ragged(SIZES)
    with silence(model, {"first": [1, 3], "second": [2]}):
        wanted = model(x_ND, segments)
    bias = model.first.out_proj.bias.clone()
    switch_off(model, {"first": [3, 1], "second": [2]})
    torch.testing.assert_close(model(x_ND, segments), wanted, atol=1e-13, rtol=0)
    assert torch.equal(model.first.out_proj.bias, bias)
    columns_HK = model.first.out_proj.weight.abs().sum(0).unflatten(0, (6, 2))
    assert (columns_HK == 0).tolist() == [[head in (1, 3)] * 2 for head in range(6)]
    # Of several layers none is changed where one cannot be.
    both = nn.ModuleDict({"able": MultiHeadAttention(6, 3), "unable": Bare()})
    with pytest.raises(UsageError, match="a Bare has no weights of its own that read a head"):
        switch_off(both, {"*": [0]})
    assert both["able"].out_proj.weight.all()
