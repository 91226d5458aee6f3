"""Bugs that public implementations had without a sound; here each has its right value.

1 empty rows (pytorch 103749, 110213; transformers 38690). 2 what is masked moves nothing (pytorch 101967). 3 and 5
causal with fewer queries than keys (pytorch 108108, 144858). 4 dropout in evaluation (pytorch 124464). 6 training with
dropout 0 (pytorch 86120, 97111). 7 maps that are asked for (flash-attention 159; transformers 43618).
"""

import warnings
from collections.abc import Callable

import pytest
import torch
from attention import oracle
from largest import Largest
from torch import Tensor, nn

from regard.attention import KVCache, MultiHeadAttention, Segments, attend, groups, masks, positions, record, scores
from regard.attention.backends import flex
from regard.errors import UsageError

NAN, INF = float("nan"), float("inf")
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
BACKENDS = pytest.mark.parametrize("backend", ["reference", "dense"])


def three(queries: int, keys: int, dtype: torch.dtype = torch.float32, heads: int = 3, size: int = 2) -> list[Tensor]:
    return [torch.randn(n, h, size, dtype=dtype).requires_grad_() for n, h in ((queries, heads), (keys, 1), (keys, 1))]


def uncompiled_flex(q: Tensor, k: Tensor, v: Tensor, segments: Segments, **options: object) -> Tensor:
    """The functions of the flex backend, on the CPU, where it has no backward pass."""
    given = {"mask": None, "bias": None} | options
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile", UserWarning)
        rows = (x.detach() for x in (q, k, v))
        return flex.run(*rows, segments, segments, given["mask"], given["bias"], scores.ScaledDot(), 0.0)


# -------------------------------------------------------------------------------------------------------- 1. empty rows

EMPTY = torch.tensor([True, False, True, False, False])  # queries 1, 3 and 4 may attend to nothing


def emptying(keys: int) -> dict[str, dict]:
    """Ways in which queries 1, 3 and 4 of five are left without keys."""
    allowed = EMPTY[:, None].expand(5, keys)
    closed = torch.zeros(5, keys).masked_fill(~allowed, -INF)
    even = (torch.arange(keys) % 2 == 0).expand(5, keys)
    return {
        "mask": {"mask": masks.tensor(allowed)},
        "mask and bias": {"mask": masks.tensor(allowed), "bias": torch.randn(3, 5, keys)},
        "mask and window bias": {"mask": masks.tensor(allowed), "bias": positions.RelativeBias(3, 8, 9)},
        "bias of minus infinity": {"bias": closed},
        "mask and bias close the rest of each other": {
            "mask": masks.tensor(allowed | even),
            "bias": closed.masked_fill(~even, 0.0).masked_fill(allowed, 0.0),
        },
        "masks exclude each other": {"mask": masks.tensor(allowed | even) & masks.tensor(allowed | ~even)},
    }


@DTYPES
@BACKENDS
@pytest.mark.parametrize("way", emptying(1))
@pytest.mark.parametrize("keys", [1, 7, 33])
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_1_empty_rows_are_zero_and_give_no_gradient(
    dtype: torch.dtype, backend: str, way: str, keys: int, dropout_p: float
) -> None:
    q, k, v = three(10, 2 * keys, dtype)
    options = emptying(keys)[way]
    segments = Segments.uniform(2, 5), Segments.uniform(2, keys)
    context = attend(q, k, v, *segments, **options, dropout_p=dropout_p, backend=backend)
    context.sum().backward()
    empty = ~EMPTY.repeat(2)
    assert (context[empty] == 0).all()
    assert (q.grad[empty] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert context.isfinite().all()
    if not dropout_p:
        assert (context[~empty] != 0).all()  # the others are not
    if isinstance(options.get("bias"), nn.Module):
        assert options["bias"].weight.grad.isfinite().all()


@DTYPES
@pytest.mark.parametrize("backend", ["reference", "static"])
@pytest.mark.parametrize("bias", [None, positions.Alibi(3)], ids=["plain", "bias"])
@pytest.mark.parametrize("mask", [None, masks.causal(), masks.blocks(2)], ids=["none", "causal", "blocks"])
def test_1_slots_with_nothing_in_them_give_zeros(
    dtype: torch.dtype, backend: str, bias: positions.Bias | None, mask: masks.Mask | None
) -> None:
    for filled, capacity, max_len in (((0, 3), 5, None), ((0, 0), 5, None), ((0, 0), 5, 0), ((0, 0), 0, None)):
        q, k, v = three(2, 2 * capacity, dtype)
        slots = Segments.slots(torch.tensor(filled), capacity, max_len)
        context = attend(q, k, v, Segments.uniform(2, 1), slots, mask=mask, bias=bias, backend=backend)
        context.sum().backward()
        assert (context[0] == 0).all()
        assert bool((context[1] != 0).all()) == bool(filled[1])
        assert (q.grad[0] == 0).all()
        assert all(x.grad.isfinite().all() for x in (q, k, v))


@DTYPES
@BACKENDS
@pytest.mark.parametrize(
    ("queries", "keys"),
    [((2, 3, 1), (4, 0, 2)), ((2, 3), (0, 0)), ((2, 0), (0, 5)), ((3, 3), (0, 0)), ((), ()), ((0,), (0,))],
)
def test_1_sequences_without_keys_give_zeros(
    dtype: torch.dtype, backend: str, queries: tuple[int, ...], keys: tuple[int, ...]
) -> None:
    """Gradients are there, and zero, even where no query of the batch has a key, and NaN does not pass."""
    q, k, v = three(sum(queries), sum(keys), dtype)
    context = attend(q, k, v, Segments.ragged(queries), Segments.ragged(keys), backend=backend)
    context.sum().backward()
    for part, grad, length in zip(context.split(queries), q.grad.split(queries), keys, strict=True):
        assert bool(length) or ((part == 0).all() and (grad == 0).all())
        assert not length or (part != 0).all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
    if not any(t and s for t, s in zip(queries, keys, strict=True)):
        bad = [x.detach().fill_(NAN).requires_grad_() for x in three(sum(queries), sum(keys), dtype)]
        silent = attend(*bad, Segments.ragged(queries), Segments.ragged(keys), backend=backend)
        (silent * NAN).sum().backward()
        assert (silent == 0).all()
        assert all((x.grad == 0).all() for x in bad)


def test_1_layers_learn_nothing_from_empty_sequences() -> None:
    """All parameters get a gradient, zero, so that ranks without tokens step like the others."""
    layer = MultiHeadAttention(6, 3)
    layer(torch.zeros(0, 6), Segments.ragged([0, 0])).sum().backward()
    assert all(p.grad is not None and (p.grad == 0).all() for p in layer.parameters())


def test_1_empty_rows_of_flex_are_zero() -> None:
    q, k, v = three(10, 10)
    options = emptying(5)
    for way in ("mask", "mask and bias", "bias of minus infinity", "masks exclude each other"):
        bias = options[way].get("bias")
        given = options[way] | {"bias": positions.TensorBias(bias) if bias is not None else None}
        context = uncompiled_flex(q, k, v, Segments.uniform(2, 5), **given)
        assert ((context == 0).all(-1).all(-1) == ~EMPTY.repeat(2)).all(), way


# -------------------------------------------------------------------------------------- 2. what is masked moves nothing

HIDING: dict[str, tuple[Callable[[], masks.Mask], int]] = {  # and the first of 9 queries that sees key 5
    "causal": (masks.causal, 5),
    "window": (lambda: masks.window(2, 0), 5),
    "blocks": (lambda: masks.blocks(5), 5),
    "where": (lambda: masks.where(lambda at: (at.key < 5) | (at.query >= 5)), 5),
    "tensor": (lambda: masks.tensor((torch.arange(9) < 5) | (torch.arange(9)[:, None] >= 5)), 5),
}


@DTYPES
@BACKENDS
@pytest.mark.parametrize("mask", HIDING)
@pytest.mark.parametrize("bias", [None, positions.Alibi(3)], ids=["plain", "bias"])
def test_2_huge_hidden_keys_and_values_change_no_bit(
    dtype: torch.dtype, backend: str, mask: str, bias: positions.Bias | None
) -> None:
    make, first = HIDING[mask]
    results = []
    for huge in (False, True):
        torch.manual_seed(0)
        q, k, v = three(18, 18, dtype)
        with torch.no_grad():
            if huge:
                k.unflatten(0, (2, 9))[:, 5], v.unflatten(0, (2, 9))[:, 5] = 1e30, -1e30
        context = attend(q, k, v, Segments.uniform(2, 9), mask=make(), bias=bias, backend=backend)
        seen = context.unflatten(0, (2, 9))[:, :first]
        seen.sum().backward()
        results.append((seen, q.grad, *(x.grad.unflatten(0, (2, 9))[:, :5] for x in (k, v))))
    assert all(torch.equal(plain, moved) for plain, moved in zip(*results, strict=True))


@DTYPES
@pytest.mark.parametrize("backend", ["reference", "static"])
@pytest.mark.parametrize("rubbish", [NAN, INF, 1e30])
@pytest.mark.parametrize("max_len", [None, 3])
@pytest.mark.parametrize("bias", [None, positions.Alibi(3)], ids=["plain", "bias"])
def test_2_rubbish_beyond_a_slots_length_reaches_nothing(
    dtype: torch.dtype, backend: str, rubbish: float, max_len: int | None, bias: positions.Bias | None
) -> None:
    slots, results = Segments.slots(torch.tensor([3, 0, 2]), 5, max_len), []
    beyond = torch.arange(5) >= slots.lengths_B[:, None]
    for there in (0.0, rubbish):
        torch.manual_seed(0)
        q, k, v = three(6, 15, dtype)
        with torch.no_grad():
            k[beyond.flatten()], v[beyond.flatten()] = there, there
        context = attend(q, k, v, Segments.uniform(3, 2), slots, bias=bias, backend=backend)
        context.sum().backward()
        results.append((context, q.grad, k.grad, v.grad))
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*results, strict=True))


@DTYPES
@BACKENDS
@pytest.mark.parametrize("mask", [None, masks.causal(), masks.window(1, 1)], ids=["none", "causal", "window"])
@pytest.mark.parametrize("bias", [None, positions.Alibi(3)], ids=["plain", "bias"])
@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_2_nan_of_one_sequence_never_reaches_another(
    dtype: torch.dtype, backend: str, mask: masks.Mask | None, bias: positions.Bias | None, bad: int
) -> None:
    """One group holds them all, filled up with copies of the sequences' own last rows."""
    sizes, results = (5, 3, 1, 4), []
    segments = Segments.ragged(sizes)
    assert len(groups.plan(segments, segments).groups) == 1
    others = segments.sequence_N() != bad
    for there in (0.5, NAN):
        torch.manual_seed(0)
        rows = three(13, 13, dtype)
        with torch.no_grad():
            for x in rows:
                x[~others] = there
        context = attend(*rows, segments, mask=mask, bias=bias, backend=backend)
        context.sum().backward()
        results.append((context[others], *(x.grad[others] for x in rows)))
    assert all(torch.equal(plain, moved) for plain, moved in zip(*results, strict=True))
    assert context[~others].isnan().all()


def test_2_huge_numbers_of_one_sequence_never_reach_another_in_flex() -> None:
    """All sequences are one row for this kernel; it multiplies what it hides with zero: NaN would pass (documented)."""
    q, k, v = three(9, 9)
    plain = uncompiled_flex(q, k, v, Segments.ragged([5, 4]))
    with torch.no_grad():
        k[5:], v[5:] = 1e30, -1e30
    assert torch.equal(uncompiled_flex(q, k, v, Segments.ragged([5, 4]))[:5], plain[:5])


def test_2_nan_of_one_slot_never_reaches_another() -> None:
    """Through an uneven cache: appended, reordered, grown; places that are not filled hold zeros all the while."""
    layer = MultiHeadAttention(6, 3, num_kv_heads=1)
    x, new, segments, one = torch.randn(5, 6), torch.randn(3, 6), Segments.ragged([4, 1]), Segments.uniform(3, 1)
    outs = []
    for there in (0.0, NAN):
        x[:4] = there
        cache = KVCache.empty(2, 6, 1, 2, x).append(*layer.keys_values(x, segments.positions_N()), segments)
        y, cache = layer.extend(new[:2], Segments.uniform(2, 1), cache, mask=masks.causal())
        z, cache = layer.extend(new, one, cache.select(torch.tensor([1, 0, 1])).reserve(9), mask=masks.causal())
        outs.append(torch.cat([y[1:], z[:1], z[2:]]))
        beyond = torch.arange(cache.k_BCGK.shape[1]) >= cache.lengths_B[:, None]
        assert (cache.k_BCGK[beyond] == 0).all()
        assert (cache.v_BCGK[beyond] == 0).all()
    assert torch.equal(*outs)
    assert z[1].isnan().all()


# --------------------------------------------------------------------------------- 3. and 5. causal counts from the end


@DTYPES
@BACKENDS
def test_3_one_causal_query_sees_all_keys(dtype: torch.dtype, backend: str) -> None:
    """Equal keys, values 1 to 5: the mean is 3, where an alignment at the start would give 1."""
    q, k = torch.ones(1, 1, 2, dtype=dtype), torch.ones(5, 1, 2, dtype=dtype)
    v = torch.arange(1, 6, dtype=dtype)[:, None, None]
    for segments in (
        (Segments.uniform(1, 1), Segments.uniform(1, 5)),
        (Segments.ragged([1, 0]), Segments.ragged([5, 0])),
    ):
        assert attend(q, k, v, *segments, mask=masks.causal(), backend=backend).item() == pytest.approx(3.0, abs=1e-2)


def test_3_one_causal_query_sees_all_of_a_slot() -> None:
    q, k, v = torch.ones(1, 1, 2), torch.ones(7, 1, 2), torch.arange(1.0, 8)[:, None, None]
    for backend in ("static", "reference"):
        slots = Segments.slots(torch.tensor([5]), 7)
        assert attend(
            q, k, v, Segments.uniform(1, 1), slots, mask=masks.causal(), backend=backend
        ).item() == pytest.approx(3.0)


@BACKENDS
def test_5_the_last_queries_stand_at_the_last_keys(backend: str) -> None:
    """Two queries, five equal keys: the first sees four (mean 2.5), the second five (mean 3)."""
    q, k, v = torch.ones(2, 1, 2), torch.ones(5, 1, 2), torch.arange(1.0, 6)[:, None, None]
    got = attend(q, k, v, Segments.uniform(1, 2), Segments.uniform(1, 5), mask=masks.causal(), backend=backend)
    assert got.flatten().tolist() == pytest.approx([2.5, 3.0])


@BACKENDS
def test_5_queries_before_the_first_key_see_nothing(backend: str) -> None:
    q, k, v = torch.ones(3, 1, 2), torch.ones(2, 1, 2), torch.tensor([1.0, 2.0])[:, None, None]
    got = attend(q, k, v, Segments.uniform(1, 3), Segments.uniform(1, 2), mask=masks.causal(), backend=backend)
    assert got.flatten().tolist() == pytest.approx([0.0, 1.0, 1.5])


# ---------------------------------------------------------------------------------------------------- 4. and 6. dropout

LAYER_BACKENDS = pytest.mark.parametrize("backend", [None, "reference", "dense"])


@LAYER_BACKENDS
def test_4_evaluation_drops_nothing(backend: str | None) -> None:
    layer = MultiHeadAttention(6, 3, dropout_p=0.9, backend=backend).eval()
    x, context = torch.randn(1, 6).expand(4, -1), torch.randn(7, 6)
    segments = Segments.ragged([4, 0]), Segments.ragged([7, 0])
    first, second = (layer(x, segments[0], context, segments[1]) for _ in range(2))
    assert torch.equal(first, second)
    # Some processors' products round equal rows of a matrix in unequal ways; a dropped weight would move them far more.
    torch.testing.assert_close(first, first[:1].expand(4, -1), rtol=0, atol=1e-6)


@LAYER_BACKENDS
def test_4_training_drops_and_keeps_the_expectation(backend: str | None) -> None:
    layer = MultiHeadAttention(6, 3, dropout_p=0.5, backend=backend).double().train()
    x = torch.randn(7, 6, dtype=torch.float64)
    many, segments = x.repeat(3000, 1), Segments.uniform(3000, 7)
    outs = layer(many, segments).unflatten(0, (3000, 7))
    assert not torch.equal(outs[0], outs[1])
    plain = layer.eval()(x, Segments.uniform(1, 7))
    error = (outs.mean(0) - plain) / (outs.std(0) / 3000**0.5)
    assert error.abs().max() < 5  # standard errors, of 42 numbers


@BACKENDS
def test_4_dropped_weights_are_zero_and_the_others_grow(backend: str) -> None:
    """One key a sequence: its weight is 1, so that what comes out is 0 or 1/(1 − p)."""
    q, k = torch.randn(4000, 1, 2), torch.randn(4000, 1, 2)
    out = attend(q, k, torch.ones(4000, 1, 1), Segments.uniform(4000, 1), dropout_p=0.75, backend=backend)
    assert sorted(set(out.flatten().tolist())) == pytest.approx([0.0, 4.0])
    assert (out == 0).float().mean().item() == pytest.approx(0.75, abs=0.04)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [(kind, backend) for kind in ("plain", "rotary") for backend in (None, "reference", "dense")]
    + [("additive", None)],
)
def test_6_training_without_dropout_equals_evaluation(kind: str, backend: str | None) -> None:
    score = scores.Additive(3, 2) if kind == "additive" else None
    layer = MultiHeadAttention(
        6, 3, dropout_p=0.0, score=score, rotary_base=9.0 if kind == "rotary" else None, backend=backend
    )
    x, segments = torch.randn(11, 6), Segments.ragged([4, 0, 7])
    training, evaluation = (layer.train(mode)(x, segments, mask=masks.causal()) for mode in (True, False))
    assert training.shape == x.shape
    assert torch.equal(training, evaluation)


# ------------------------------------------------------------------------------------------- 7. maps that are asked for


class Pair(nn.Module):
    """Two layers that attend, of which only the first must run."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.first = MultiHeadAttention(12, 6, num_kv_heads=2, **options)
        self.second = MultiHeadAttention(12, 6, num_kv_heads=2, **options)
        self.double()

    def forward(self, x: Tensor, segments: Segments, both: bool = True, **options: object) -> Tensor:
        x = self.first(x, segments, **options)
        return self.second(x, segments, **options) if both else x


def loops(layer: MultiHeadAttention, x: Tensor, sizes: tuple[int, ...], bias: bool) -> list[Tensor]:
    """Causal weights of a layer by the oracle, for each sequence."""
    q, k = (
        projection(x).unflatten(-1, (-1, layer.head_dim)).detach().numpy()
        for projection in (layer.q_proj, layer.k_proj)
    )
    alibi = oracle.alibi(6) if bias else None
    _, weights = oracle.attention(q, k, k, sizes, sizes, oracle.dot(None), alibi, oracle.window(None, 0))
    return [torch.from_numpy(w) for w in weights]


SIZES = (5, 0, 3, 1)


@pytest.mark.parametrize("backend", [None, "reference", "dense"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bias", [None, positions.Alibi(6)], ids=["plain", "bias"])
def test_7_recorded_rows_are_the_weights(backend: str | None, training: bool, bias: positions.Bias | None) -> None:
    model = Pair(backend=backend, dropout_p=0.3).train(training)
    x, segments = torch.randn(9, 12, dtype=torch.float64), Segments.ragged(SIZES)
    torch.manual_seed(5)
    plain = model(x, segments, mask=masks.causal(), bias=bias)
    torch.manual_seed(5)
    with record(model) as rows:
        watched = model(x, segments, mask=masks.causal(), bias=bias)
    assert torch.equal(plain, watched)  # nothing that is computed changes, the random numbers neither
    assert list(rows) == ["first", "second"]
    for got, sequence in zip(rows["first"], (0, 2, 3), strict=True):  # a sequence without queries has no row
        want = loops(model.first, x, SIZES, bias is not None)[sequence]
        assert (got.sequence, got.heads, got.queries) == (sequence, tuple(range(6)), tuple(range(SIZES[sequence])))
        assert not got.weights_HTS.requires_grad
        torch.testing.assert_close(got.weights_HTS, want, atol=1e-12, rtol=0)


def test_7_only_what_is_asked_for_is_recorded() -> None:
    model = Pair().eval()
    x, segments = torch.randn(9, 12, dtype=torch.float64), Segments.ragged(SIZES)
    with record(model, layers="first", heads=[4, 1], queries=[-1, 2], sequences=[0, 2, 3]) as rows:
        model(x, segments, mask=masks.causal())
    assert list(rows) == ["first"]
    assert len(rows) == 1
    want = loops(model.first, x, SIZES, bias=False)
    places = {0: (4, 2), 2: (2, 2), 3: (0,)}  # the third sequence has no query 2
    assert [(r.sequence, r.heads, r.queries) for r in rows["first"]] == [(s, (4, 1), at) for s, at in places.items()]
    for got in rows["first"]:
        expected = want[got.sequence][[4, 1]][:, list(got.queries)]
        torch.testing.assert_close(got.weights_HTS, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("prompt", [(4, 4), (5, 2)], ids=["even", "uneven"])
@pytest.mark.parametrize("backend", [None, "reference"])
def test_7_cached_rows_are_those_of_the_whole(prompt: tuple[int, ...], backend: str | None) -> None:
    layer = MultiHeadAttention(12, 6, num_kv_heads=2, backend=backend).double()
    sizes = tuple(n + 2 for n in prompt)
    wholes = [torch.randn(n, 12, dtype=torch.float64) for n in sizes]
    want = loops(layer, torch.cat(wholes), sizes, bias=False)
    starts, ends = (torch.cat([x[:-2] for x in wholes]), torch.cat([x[-2:] for x in wholes]))
    segments, new = Segments.ragged(prompt), Segments.uniform(2, 2)
    outs = []
    for watched in (False, True):
        cache = KVCache.empty(2, 9, 2, 2, starts).append(*layer.keys_values(starts, segments.positions_N()), segments)
        if not watched:
            outs.append(layer.extend(ends, new, cache, mask=masks.causal())[0])
            continue
        with record(layer) as rows:
            outs.append(layer.extend(ends, new, cache, mask=masks.causal())[0])
    assert torch.equal(*outs)
    for got, weights in zip(rows[""], want, strict=True):
        torch.testing.assert_close(got.weights_HTS, weights[:, -2:], atol=1e-12, rtol=0)


def test_7_looking_at_full_slots_changes_no_bit() -> None:
    """The host learns the lengths while it looks; the kernel must not be chosen by that."""
    q, k, v = three(2, 18, size=16)
    site = MultiHeadAttention(6, 3)
    slots = [Segments.slots(torch.tensor([9, 9]), 9) for _ in range(2)]
    plain = attend(q, k, v, Segments.uniform(2, 1), slots[0], site=site)
    with record(site):
        watched = attend(q, k, v, Segments.uniform(2, 1), slots[1], site=site)
    assert torch.equal(plain, watched)
    assert slots[1].known_lengths is None


def test_7_a_relative_score_is_recorded_for_an_empty_context() -> None:
    layer = MultiHeadAttention(6, 3, score=scores.Relative(3, 2, 4))
    with record(layer) as rows:
        layer(torch.randn(2, 6), Segments.ragged([2]), torch.zeros(0, 6), Segments.ragged([0]))
    assert rows[""][0].weights_HTS.shape == (3, 2, 0)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("no layer 'third' attends", {"layers": ["first", "third"]}),
        ("no layer 'third.\\*' attends", {"layers": "third.*"}),
        ("heads \\[6\\] of 6", {"heads": [6]}),
        ("heads \\[-1\\] of 6", {"heads": [-1]}),
        ("layers is empty", {"layers": []}),
        ("heads is empty", {"heads": []}),
        ("queries is empty", {"queries": []}),
        ("sequences is empty", {"sequences": []}),
        ("nothing was recorded", {"queries": [99]}),
        ("nothing was recorded", {"sequences": [4]}),
    ],
)
def test_7_maps_that_cannot_be_given_are_refused(message: str, options: dict) -> None:
    model = Pair()
    with pytest.raises(UsageError, match=message), record(model, **options):
        model(torch.randn(9, 12, dtype=torch.float64), Segments.ragged(SIZES))


def test_7_maps_of_what_did_not_run_are_refused() -> None:
    model = Pair()
    with pytest.raises(UsageError, match="nothing was recorded"), record(model):
        pass
    with pytest.raises(UsageError, match="layers that do: none"):
        record(nn.Linear(2, 2))
    with record(model) as rows:
        model(torch.randn(9, 12, dtype=torch.float64), Segments.ragged(SIZES), both=False)
    assert list(rows) == ["first"]
    with pytest.raises(UsageError, match=r"layer 'second' was not recorded.*recorded: first"):
        rows["second"]
    with pytest.raises(RuntimeError, match="its own"), record(model):
        raise RuntimeError("an error inside the block comes out as its own")


def test_7_recorders_do_not_see_what_runs_after_them() -> None:
    model, x = Pair(), torch.randn(9, 12, dtype=torch.float64)
    with record(model, "first") as outer, record(model, "second") as inner:
        model(x, Segments.ragged(SIZES))
    model(x, Segments.ragged(SIZES))
    assert (len(outer["first"]), len(inner["second"])) == (3, 3)


def test_7_one_row_of_a_long_sequence_costs_one_row() -> None:
    """4096 tokens: a full map of one head would be 64 MiB; all tensors made stay below 1 MiB."""
    layer = MultiHeadAttention(8, 2)
    x, segments = torch.randn(4096, 8), Segments.uniform(1, 4096)
    with torch.no_grad(), Largest() as seen, record(layer, heads=[1], queries=[-1]) as rows:
        layer(x, segments, mask=masks.causal())
    (row,) = rows[""]
    assert row.weights_HTS.shape == (1, 1, 4096)
    assert row.weights_HTS.untyped_storage().nbytes() == 4096 * 4
    assert seen.most < 2**20
    # The measure sees a full map where there is one.
    with torch.no_grad(), Largest() as whole, record(layer, heads=[1]) as rows:
        layer(x[:512], Segments.uniform(1, 512), mask=masks.causal())
    assert whole.most >= 512 * 512 * 4
