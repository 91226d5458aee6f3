"""What must hold for all inputs: weights, leaks, batches, permutations, positions, caches, gradients, segments."""

import itertools
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
import torch.utils._pytree as pytree
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention import KVCache, MultiHeadAttention, Segments, attend, groups, masks, positions, scores
from regard.attention.past import Past
from regard.attention.segments import round_up
from regard.errors import ContextError, UsageError

few = settings(max_examples=25)
lengths = st.lists(st.integers(0, 11), min_size=1, max_size=6)
some_lengths = lengths.filter(any)
kernels = st.sampled_from(["reference", "dense"])
seeds = st.integers(0, 2**31)
# Negative: each sequence is a group of its own. Then groups as they are made, and one group for all.
call_costs = st.sampled_from([-1, groups.CALL_COST_SCORES, 10**9])


def rows(count: int, heads: int, size: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, heads, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def make_masks(count: int, longest: int) -> dict[str, masks.Mask | None]:
    """Masks over so many sequences; the causal ones first."""
    ids = torch.arange(longest)[None].expand(count, -1) // 3
    return {
        "causal": masks.causal(),
        "window behind": masks.window(2, 0),
        "causal documents": masks.causal() & masks.documents(ids),
        "causal blocks": masks.causal() & masks.blocks(4, 1),
        "none": None,
        "window": masks.window(1, 3),
        "where": masks.where(lambda at: (at.query * at.key) % 4 != 1),
    }


CAUSAL = ["causal", "window behind", "causal documents", "causal blocks"]
MASKS = list(make_masks(1, 1))

# -------------------------------------------------------------------------------------------------------------- weights


@few
@given(some_lengths, kernels, st.sampled_from(MASKS), seeds, call_costs)
def test_weights_sum_to_one_or_nothing_is_seen(
    queries: list[int], backend: str, mask: str, seed: int, call_cost: int
) -> None:
    """With values of one, a context is the sum of its weights."""
    keys = [(7 * length + seed) % 9 for length in queries]
    made = make_masks(len(keys), 12)[mask] if "documents" not in mask else masks.window(0, 4)
    q, k = rows(sum(queries), 3, 2, seed), rows(sum(keys), 1, 2, seed + 1)
    segments = Segments.ragged(queries), Segments.ragged(keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "CALL_COST_SCORES", call_cost)
        sums = attend(q, k, torch.ones(sum(keys), 1, 1).double(), *segments, mask=made, backend=backend)
    for index, total in enumerate(sums.split(queries)):
        at = masks.Grid(
            torch.tensor(index),
            torch.tensor(0),
            torch.arange(queries[index])[:, None],
            torch.arange(keys[index])[None],
            torch.tensor(keys[index] - queries[index]),
        )
        seen = torch.ones(queries[index], keys[index]).bool() if made is None else made.allow(at)
        want = seen.any(-1).double()[:, None, None].expand(-1, 3, 1)
        torch.testing.assert_close(total, want, atol=1e-12, rtol=0)


@few
@given(
    some_lengths,
    st.integers(1, 10),
    kernels,
    st.sampled_from(CAUSAL),
    seeds,
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_nothing_leaks_from_the_future(
    sizes: list[int], cut: int, backend: str, mask: str, seed: int, dtype: torch.dtype
) -> None:
    """Whatever comes at ``cut`` or later, no bit before it moves."""
    segments, total = Segments.ragged(sizes), sum(sizes)
    made = make_masks(len(sizes), 11)[mask]
    later = segments.positions_N() >= cut
    first = [rows(total, 3, 2, seed + i, dtype) for i in range(3)]
    other = [
        torch.where(later[:, None, None], rows(total, 3, 2, seed + 9 + i, dtype) * 10, x) for i, x in enumerate(first)
    ]
    before, after = (attend(*x, segments, mask=made, backend=backend) for x in (first, other))
    assert torch.equal(before[~later], after[~later])


@few
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from(["reference", "static"]),
    seeds,
)
def test_nothing_leaks_from_the_future_of_a_slot(filled: list[int], new: int, backend: str, seed: int) -> None:
    """New tokens in slots: the last one moves, the others before it do not."""
    count, capacity = len(filled), 12
    slots = Segments.slots(torch.tensor(filled) + new, capacity)
    q = rows(count * new, 2, 2, seed, torch.float32)
    k, v = (rows(count * capacity, 1, 2, seed + i, torch.float32) for i in (1, 2))
    before = attend(q, k, v, Segments.uniform(count, new), slots, mask=masks.causal(), backend=backend)
    last = torch.arange(count) * capacity + slots.lengths_B - 1
    k[last], v[last] = 9.0, -9.0
    after = attend(q, k, v, Segments.uniform(count, new), slots, mask=masks.causal(), backend=backend)
    same = (before == after).all(-1).all(-1).unflatten(0, (count, new))
    assert same[:, :-1].all()
    assert not same[:, -1].any()


# -------------------------------------------------------------------------------------------------------------- batches


@few
@given(
    st.lists(st.integers(0, 40), min_size=2, max_size=6),
    st.sampled_from(["causal", "none", "window"]),
    st.sampled_from(["plain", "rotary", "additive"]),
    st.sampled_from([None, positions.Alibi(3), positions.RelativeBias(3, 8, 20).double()]),
    st.sampled_from([(torch.float64, 1e-10), (torch.float32, 1e-5)]),
    call_costs,
    st.randoms(use_true_random=False),
)
def test_a_sequence_alone_equals_it_in_any_batch(
    sizes: list[int],
    mask: str,
    kind: str,
    bias: positions.Bias | None,
    precision: tuple[torch.dtype, float],
    call_cost: int,
    random: object,
) -> None:
    (dtype, tolerance), made = precision, make_masks(1, 1)[mask]
    layer = MultiHeadAttention(
        15, 3, num_kv_heads=1, head_dim=4, rotary_base=50.0 if kind == "rotary" else None,
        score=scores.Additive(3, 4) if kind == "additive" else None,
    ).to(dtype)  # fmt: skip
    parts = [torch.randn(n, 15, dtype=dtype) for n in sizes]
    alone = [layer(x, Segments.ragged([len(x)]), mask=made, bias=bias) for x in parts]
    order = list(range(len(parts)))
    random.shuffle(order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "CALL_COST_SCORES", call_cost)
        chosen = [parts[i] for i in order]
        together = layer(torch.cat(chosen), Segments.ragged([len(x) for x in chosen]), mask=made, bias=bias)
    for index, got in zip(order, together.split([len(x) for x in chosen]), strict=True):
        torch.testing.assert_close(got, alone[index], atol=tolerance, rtol=tolerance)


@few
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any), kernels, st.randoms(use_true_random=False))
def test_without_positions_attention_is_permutation_equivariant(sizes: list[int], backend: str, random: object) -> None:
    layer = MultiHeadAttention(6, 3, num_kv_heads=1, backend=backend).double()
    x, segments = torch.randn(sum(sizes), 6, dtype=torch.float64), Segments.ragged(sizes)
    order = []
    for start, size in zip(segments.starts_B.tolist(), sizes, strict=True):
        own = list(range(start, start + size))
        random.shuffle(own)
        order += own
    torch.testing.assert_close(layer(x[order], segments), layer(x, segments)[order], atol=1e-12, rtol=0)


def test_positions_break_the_equivariance() -> None:
    layer = MultiHeadAttention(6, 3, rotary_base=100.0).double()
    x, segments = torch.randn(5, 6, dtype=torch.float64), Segments.uniform(1, 5)
    assert (layer(x.flip(0), segments) - layer(x, segments).flip(0)).abs().max() > 1e-3


# ------------------------------------------------------------------------------------------------------------ positions


@few
@given(st.sampled_from(["interleaved", "halves"]), st.integers(0, 5000), st.integers(-500, 500), st.integers(1, 8))
def test_sinusoid_of_a_shifted_position_is_a_rotation(layout: str, position: int, shift: int, half: int) -> None:
    """PE(pos + k) = R_k PE(pos), R_k made of rotations by k times each frequency, whatever pos is."""
    dim = 2 * half
    matrix = torch.zeros(dim, dim, dtype=torch.float64)
    for i in range(half):
        angle = torch.tensor(shift * 10000.0 ** (-2 * i / dim), dtype=torch.float64)
        sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + half)
        matrix[sine, sine] = matrix[cosine, cosine] = angle.cos()
        matrix[sine, cosine], matrix[cosine, sine] = angle.sin(), -angle.sin()
    here, there = positions.sinusoidal(torch.tensor([position, position + shift], dtype=torch.float64), dim, layout)
    torch.testing.assert_close(matrix @ here, there, atol=1e-9, rtol=0)


@few
@given(st.sampled_from(["halves", "pairs"]), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), seeds)
def test_rotary_dot_products_depend_on_the_distance_alone(
    layout: str, here: int, there: int, shift: int, seed: int
) -> None:
    q, k = rows(1, 3, 10, seed), rows(1, 3, 10, seed + 1)

    def product(query: int, key: int) -> Tensor:
        turned = (positions.rotate(x, torch.tensor([p]), layout=layout) for x, p in ((q, query), (k, key)))
        return torch.mul(*turned).sum(-1)

    torch.testing.assert_close(product(here, there), product(here + shift, there + shift), atol=1e-9, rtol=0)
    torch.testing.assert_close(product(here, here), (q * k).sum(-1), atol=1e-9, rtol=0)


def test_learned_positions_refuse_what_they_lack() -> None:
    table = positions.LearnedPositions(13, 3)
    assert torch.equal(
        table(torch.tensor([12, 0]), 16), table.weight[[12, 0]]
    )  # the bound is rounded up, the positions fit
    assert table(torch.zeros(0, dtype=torch.int64), 16).shape == (0, 3)
    with pytest.raises(ContextError, match="a sequence of 14 tokens; the model has positions for 13"):
        table(torch.tensor([0, 13]), 16)
    with pytest.raises(UsageError, match="odd width 5"):
        positions.sinusoidal(torch.tensor([0]), 5)
    with pytest.raises(UsageError, match="odd head size 5"):
        positions.rotate(torch.zeros(1, 1, 5), torch.tensor([0]))
    with pytest.raises(UsageError, match="multiple of 4"):
        positions.sincos_2d(2, 2, 6)


# --------------------------------------------------------------------------------------------------------------- caches

LAYERS: dict[str, tuple[Callable[[], MultiHeadAttention], positions.Bias | None]] = {
    "grouped heads": (lambda: MultiHeadAttention(12, 6, num_kv_heads=2), None),
    "rotary": (lambda: MultiHeadAttention(12, 3, num_kv_heads=1, rotary_base=100.0), None),
    "ALiBi": (lambda: MultiHeadAttention(12, 6), positions.Alibi(6)),
    "T5": (lambda: MultiHeadAttention(12, 6), positions.RelativeBias(6, 8, 20, bidirectional=False)),
    "relative": (lambda: MultiHeadAttention(12, 3, score=scores.Relative(3, 4, 6)), None),
    "reference": (lambda: MultiHeadAttention(12, 3, backend="reference"), None),
}
CACHE_MASKS = {"causal": masks.causal(), "window": masks.window(3, 0), "blocks": masks.causal() & masks.blocks(5, 2)}


def prefilled(layer: MultiHeadAttention, x: Tensor, segments: Segments, capacity: int) -> KVCache:
    k_MGK, v_MGK = layer.keys_values(x, segments.positions_N())
    return KVCache.empty(len(segments), capacity, layer.num_kv_heads, layer.head_dim, x).append(k_MGK, v_MGK, segments)


@pytest.mark.parametrize("mask", CACHE_MASKS)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("prompt", [(4, 4, 4), (0, 0, 0), (5, 0, 2)], ids=["even", "empty", "uneven"])
def test_cached_equals_full(name: str, mask: str, prompt: tuple[int, ...]) -> None:
    """A prompt, then steps of 1, 1, 3 and 2 tokens for each slot, against one call on whole sequences."""
    make, bias = LAYERS[name]
    layer, made = make().double(), CACHE_MASKS[mask]
    bias = None if bias is None else bias.double()
    steps = (1, 1, 3, 2)
    wholes = [torch.randn(length + sum(steps), 12, dtype=torch.float64) for length in prompt]
    full = layer(torch.cat(wholes), Segments.ragged([len(x) for x in wholes]), mask=made, bias=bias)
    want = [y[length:] for length, y in zip(prompt, full.split([len(x) for x in wholes]), strict=True)]

    starts = torch.cat([x[:length] for length, x in zip(prompt, wholes, strict=True)])
    cache = prefilled(layer, starts, Segments.ragged(prompt), capacity=13)
    assert cache.even == (len(set(prompt)) == 1)
    done = 0
    for step in steps:
        new = torch.cat([x[length + done : length + done + step] for length, x in zip(prompt, wholes, strict=True)])
        y, cache = layer.extend(new, Segments.uniform(3, step), cache, mask=made, bias=bias)
        for got, whole in zip(y.split(step), want, strict=True):
            torch.testing.assert_close(got, whole[done : done + step], atol=1e-10, rtol=0)
        done += step
    assert cache.lengths_B.tolist() == [length + done for length in prompt]


def test_beams_are_queries_of_a_slot() -> None:
    """Cross-attention of three beams of each source, from one cache, against each beam alone beside its source."""
    layer = MultiHeadAttention(12, 6, num_kv_heads=2, kv_dim=5).double()
    sources, beams = (7, 0, 2), torch.randn(9, 12, dtype=torch.float64)
    context, segments = torch.randn(9, 5, dtype=torch.float64), Segments.ragged((7, 0, 2))
    cache = KVCache.filled(*layer.keys_values(context), segments)
    got = layer.read(beams, Segments.uniform(3, 3), cache)
    parts = context.split(sources)
    want = [
        layer(beams[i : i + 1], Segments.uniform(1, 1), parts[i // 3], Segments.ragged([len(parts[i // 3])]))
        for i in range(9)
    ]
    torch.testing.assert_close(got, torch.cat(want), atol=1e-12, rtol=0)


@pytest.mark.parametrize("prompt", [(4, 4, 4), (5, 0, 2)], ids=["even", "uneven"])
def test_selected_slots_go_on_as_their_own_copies(prompt: tuple[int, ...]) -> None:
    layer = MultiHeadAttention(12, 3, rotary_base=100.0).double()
    x = torch.randn(sum(prompt), 12, dtype=torch.float64)
    index, new = torch.tensor([2, 0, 0, 2]), torch.randn(4, 12, dtype=torch.float64)
    one = Segments.uniform(4, 1)
    parts = [x.split(prompt)[i] for i in index.tolist()]
    repeated = prefilled(layer, torch.cat(parts), Segments.ragged([len(part) for part in parts]), 7)
    want, _ = layer.extend(new, one, repeated, mask=masks.causal())
    cache = prefilled(layer, x, Segments.ragged(prompt), 7)
    before = cache.k_BCGK.clone()
    got, _ = layer.extend(new, one, cache.select(index), mask=masks.causal())
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)
    assert torch.equal(cache.k_BCGK, before)


@pytest.mark.parametrize(("past", "capacity"), [((3, 1), 3), ((2, 2), 9), ((9, 1), 9), ((2, 9), 11)])
def test_slots_with_another_past_go_on_as_if_it_had_been_theirs(past: tuple[int, ...], capacity: int) -> None:
    layer = MultiHeadAttention(12, 3, rotary_base=100.0).double()
    mine, theirs = (torch.randn(n, 12, dtype=torch.float64) for n in (12, sum(past)))
    other = prefilled(layer, theirs, Segments.ragged(past), capacity)
    cache = prefilled(layer, mine, Segments.ragged((5, 2, 5)), 7).put(torch.tensor([2, 0]), other)
    (at_2, at_0), at_1 = theirs.split(past), mine[5:7]
    lengths = [len(at_0), 2, len(at_2)]
    assert (cache.lengths_B.tolist(), cache.max_len, cache.even) == (lengths, max(lengths), len(set(lengths)) == 1)
    for slot, length in enumerate(lengths):
        assert not cache.k_BCGK[slot, length:].any()
        assert not cache.v_BCGK[slot, length:].any()
    want = prefilled(layer, torch.cat([at_0, at_1, at_2]), Segments.ragged(lengths), 10)
    new, one = torch.randn(3, 12, dtype=torch.float64), Segments.uniform(3, 1)
    got, _ = layer.extend(new, one, cache.reserve(10), mask=masks.causal())
    torch.testing.assert_close(got, layer.extend(new, one, want, mask=masks.causal())[0], atol=1e-12, rtol=0)


def test_a_cache_grows_and_is_cut_without_losing_anything() -> None:
    k = torch.randn(6, 1, 2)
    cache = KVCache.empty(3, 2, 1, 2, k).append(k, -k, Segments.uniform(3, 2))
    grown = cache.reserve(5)
    assert grown.k_BCGK.shape[1] >= 5
    assert torch.equal(grown.k_BCGK[:, :2].flatten(0, 1), k)
    assert torch.equal(grown.v_BCGK[:, :2].flatten(0, 1), -k)
    assert cache.reserve(2) is cache
    assert torch.equal(cache.first(2).k_BCGK.flatten(0, 1), k[:4])
    assert len(cache.first(2).segments) == 2


def test_a_full_cache_takes_no_more() -> None:
    k = torch.zeros(4, 1, 2)
    uneven = KVCache.empty(2, 3, 1, 2, k).append(k[:3], k[:3], Segments.ragged([1, 2]))
    full = uneven.append(k[:3], k[:3], Segments.ragged([2, 1]))  # 3 and 3: the bound 2 + 2 alone would have said no
    assert full.lengths_B.tolist() == [3, 3]
    for cache, more in ((full, Segments.ragged([0, 1])), (uneven, Segments.uniform(2, 2))):
        with pytest.raises(ContextError, match="tokens in a cache for 3"):
            cache.append(k[: more.num_rows], k[: more.num_rows], more)
    for wrong in (Segments.uniform(1, 1), Segments.uniform(3, 1)):
        with pytest.raises(UsageError, match=f"{len(wrong)} sequences for 2 slots"):
            uneven.append(k[: len(wrong)], k[: len(wrong)], wrong)


def test_appending_nothing_changes_nothing() -> None:
    k = torch.ones(2, 1, 2)
    cache = KVCache.empty(2, 3, 1, 2, k).append(k, k, Segments.uniform(2, 1))
    again = cache.append(k[:0], k[:0], Segments.uniform(2, 0))
    assert again.lengths_B.tolist() == [1, 1]
    assert torch.equal(again.k_BCGK, cache.k_BCGK)
    assert len(KVCache.empty(0, 3, 1, 2, k).append(k[:0], k[:0], Segments.uniform(0, 1)).segments) == 0


# ------------------------------------------------------------------------------------------------------------ multihead


def test_dense_and_flat_agree() -> None:
    layer = MultiHeadAttention(6, 3, kv_dim=4).double()
    x, context = torch.randn(2, 5, 7, 6, dtype=torch.float64), torch.randn(2, 5, 3, 4, dtype=torch.float64)
    flat = layer(x.reshape(-1, 6), Segments.uniform(10, 7), context.reshape(-1, 4), Segments.uniform(10, 3))
    torch.testing.assert_close(layer(x, context=context), flat.reshape(2, 5, 7, 6), atol=0, rtol=0)
    plain = MultiHeadAttention(6, 3)
    for shape in ((0, 6), (0, 7, 6), (3, 0, 6)):
        assert plain(torch.zeros(shape)).shape == shape
    assert layer(torch.zeros(3, 0, 6).double(), context=torch.zeros(3, 2, 4).double()).shape == (3, 0, 6)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("does not divide", lambda: MultiHeadAttention(7, 3)),
        ("3 query heads cannot share 2", lambda: MultiHeadAttention(6, 3, num_kv_heads=2)),
        (
            "needs its segments",
            lambda: MultiHeadAttention(6, 3)(torch.zeros(2, 6), Segments.uniform(1, 2), torch.zeros(2, 6)),
        ),
        ("give .*tokens, width", lambda: MultiHeadAttention(6, 3)(torch.zeros(2, 2, 6), context=torch.zeros(3, 2, 6))),
        ("rotary", lambda: MultiHeadAttention(6, 3, rotary_base=9.0)(torch.zeros(2, 6), context=torch.zeros(3, 6))),
    ],
)
def test_misuse_of_the_layer_is_told(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=message):
        call()


# ------------------------------------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("mask", ["none", "causal", "where"])
@pytest.mark.parametrize(
    ("backend", "q_segments", "k_segments"),
    [
        ("reference", Segments.ragged([2, 0, 3]), Segments.ragged([3, 1, 2])),
        ("dense", Segments.ragged([2, 0, 3]), Segments.ragged([3, 1, 2])),
        ("dense", Segments.ragged([3, 2]), None),
        ("static", Segments.uniform(2, 2), Segments.slots(torch.tensor([0, 2]), 3)),
    ],
)
def test_gradients_are_those_of_finite_differences(
    backend: str, q_segments: Segments, k_segments: Segments | None, mask: str
) -> None:
    made = make_masks(3, 1)[mask]
    keys = (k_segments or q_segments).num_rows
    leaves = [rows(n, h, 2, n).requires_grad_() for n, h in ((q_segments.num_rows, 2), (keys, 1), (keys, 1))]

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, q_segments, k_segments, mask=made, backend=backend)

    assert torch.autograd.gradcheck(run, leaves)


# ------------------------------------------------------------------------------------------------------------- segments


@few
@given(lengths)
def test_segments_say_where_tokens_stand(sizes: list[int]) -> None:
    segments = Segments.ragged(sizes)
    assert segments.form == ("uniform" if len(set(sizes)) == 1 else "ragged")
    assert segments.lengths == tuple(segments.lengths_B.tolist()) == tuple(sizes)
    assert segments.starts_B.tolist() == [sum(sizes[:i]) for i in range(len(sizes))]
    assert segments.num_rows == sum(sizes)
    assert segments.positions_N().tolist() == [place for size in sizes for place in range(size)]
    assert segments.sequence_N().tolist() == [index for index, size in enumerate(sizes) for _ in range(size)]
    assert segments.max_len >= max(sizes)


@few
@given(lengths, st.booleans())
def test_segments_are_a_pytree(sizes: list[int], clean: bool) -> None:
    slots = Segments.slots(torch.tensor(sizes), 13, 11, clean, least_len=2)
    made = (Segments.ragged(sizes), Segments.uniform(3, 5), slots)
    for segments in made:
        leaves, spec = pytree.tree_flatten(segments)
        assert all(isinstance(leaf, Tensor) for leaf in leaves)
        back = pytree.tree_unflatten(leaves, spec)
        for name in ("form", "max_len", "capacity", "clean", "least_len", "origin", "lengths", "num_rows"):
            assert getattr(back, name) == getattr(segments, name), name
        assert torch.equal(back.starts_B, segments.starts_B)
        assert torch.equal(back.positions_N(), segments.positions_N())


def test_slots_number_their_places() -> None:
    slots = Segments.slots(torch.tensor([2, 0]), 3)
    assert slots.positions_N().tolist() == [0, 1, 2, 0, 1, 2]
    assert slots.sequence_N().tolist() == [0, 0, 0, 1, 1, 1]
    assert (slots.num_rows, slots.max_len, slots.lengths) == (6, 3, (2, 0))


def test_segments_on_another_device_are_equal() -> None:
    for segments in (Segments.ragged([2, 0, 3]), Segments.slots(torch.tensor([2, 1]), 3, 2, True, (2, 1), 1)):
        assert segments.to("cpu") is segments
        moved = segments.to("meta")
        assert moved.lengths_B.device.type == moved.starts_B.device.type == "meta"
        for name in ("form", "max_len", "capacity", "clean", "least_len", "origin"):
            assert getattr(moved, name) == getattr(segments, name)
    assert Segments.ragged([2, 0, 3]).to("meta").lengths == (2, 0, 3)


def test_the_host_knows_how_few_keys_a_slot_has() -> None:
    """So that nothing is made of queries without keys where there are none."""
    lengths_B = torch.tensor([3, 0, 5])
    past = Past(lengths_B, (3, 0, 5))
    assert past.segments(9).least_len == 0
    assert past.after(past.new(2)).segments(9).least_len == 2
    assert past.after(Segments.ragged([1, 0, 2])).least == 0
    assert past.first(1).least == 3
    blind = Past(lengths_B, None, 9)
    assert blind.segments(9).least_len == 0
    assert blind.after(blind.new(1)).after(blind.new(1)).segments(9).least_len == 2
    assert blind.after(Segments.ragged([1, 1, 2])).least == 0, "fewer than there are, at most"
    assert Past(lengths_B[:0], ()).least == 0


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(UsageError, match="-2 tokens"):
        Segments.ragged([3, -2])


def test_round_up_has_few_values_and_wastes_little() -> None:
    bounds = [round_up(n) for n in range(5000)]
    assert bounds[:2] == [0, 16]
    assert sorted(set(bounds))[:11] == [0, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert all(n <= bound for n, bound in enumerate(bounds))
    assert all(a <= b for a, b in itertools.pairwise(bounds))
    assert all(bound <= 1.5 * n for n, bound in enumerate(bounds) if n > 32)
    assert all(round_up(bound) == bound for bound in bounds)


@few
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=12))
def test_groups_hold_each_sequence_once_and_their_cut_pays(sizes: list[tuple[int, int]]) -> None:
    """No more scores than one call for all, and no more scores and calls than one call for each sequence."""
    q_segments, k_segments = (Segments.ragged(side) for side in zip(*sizes, strict=True))
    made = groups.plan(q_segments, k_segments)
    held = [index for group in made.groups for index in group.sequences_B.tolist()]
    assert sorted(held) == [i for i, (t, s) in enumerate(sizes) if t and s]
    cost = groups.CALL_COST_SCORES
    spent = sum(len(g) * g.queries * g.keys + cost for g in made.groups)
    assert spent <= sum(t * s + cost for t, s in sizes if t and s)
    assert groups.plan(q_segments, k_segments) is made


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("groups", [6, 2])
def test_one_product_in_training_is_the_three(use_bias: bool, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = MultiHeadAttention(12, 6, num_kv_heads=groups, use_bias=use_bias, rotary_base=100.0).double()
    x_ND, segments = torch.randn(9, 12, dtype=torch.float64, requires_grad=True), Segments.ragged([4, 5])
    inputs, found = (x_ND, *layer.parameters()), []
    for joined in (True, False):
        if not joined:
            monkeypatch.setattr(layer, "_joined", lambda: None)
        assert (layer._joined() is not None) == joined
        y_ND = layer(x_ND, segments, mask=masks.causal())
        found.append((y_ND, *torch.autograd.grad(y_ND.sin().sum(), inputs)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
        assert one.abs().sum() > 0


class Products(TorchDispatchMode):
    """Counts products."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return func(*args, **(kwargs or {}))


@torch.no_grad()
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("groups", [6, 2])
def test_projections_that_lie_together_are_one_product_in_use(use_bias: bool, groups: int) -> None:
    layer = MultiHeadAttention(12, 6, num_kv_heads=groups, use_bias=use_bias).double()
    names, x_ND, segments = list(layer.state_dict()), torch.randn(9, 12).double(), Segments.ragged([4, 5])

    def products(layer: MultiHeadAttention) -> int:
        """As many as there are, and none of them wrong: beside a layer that has the same weights apart."""
        apart = MultiHeadAttention(12, 6, num_kv_heads=groups, use_bias=use_bias).to(layer.q_proj.weight.dtype)
        apart.load_state_dict(layer.state_dict())
        x = x_ND.to(layer.q_proj.weight.dtype)
        with Products() as made:
            found = layer(x, segments, mask=masks.causal())
        torch.testing.assert_close(found, apart(x, segments, mask=masks.causal()))
        return made.count

    assert products(layer) == 4
    layer.lay_together()
    assert products(layer) == 2
    assert list(layer.state_dict()) == names
    layer.k_proj.weight.mul_(3.0)
    layer.load_state_dict({name: 2 * x for name, x in layer.state_dict().items()})
    assert products(layer) == 2, "what changes in its place is seen"
    copied = deepcopy(layer)
    copied.q_proj.weight.mul_(5.0)
    assert products(copied) == 4, "a copy has its own memory"
    assert products(layer) == 2
    layer.v_proj.weight = torch.nn.Parameter(torch.randn_like(layer.v_proj.weight))
    assert products(layer) == 4, "another parameter"
    layer.lay_together()
    assert products(layer) == 2
    torch.nn.utils.vector_to_parameters(
        torch.randn(sum(x.numel() for x in layer.parameters())).double(), layer.parameters()
    )
    assert products(layer) == 4, "other memory under the same parameters"
    layer.lay_together()
    layer.q_proj.float().double()
    layer.q_proj.weight.mul_(2.0)
    assert products(layer) == 4, "one of them went elsewhere and came back"
    layer.lay_together()
    joint = layer._together
    layer.lay_together()
    assert layer._together is joint, "nothing to do"
    seen: list[int] = []
    hook = layer.k_proj.register_forward_hook(lambda *given: seen.append(1))
    layer(x_ND, segments)
    assert seen, "who looks on at one of them sees it"
    hook.remove()
    assert products(layer) == 2
    assert products(layer.float()) == 4, "another precision"


def test_projections_that_cannot_lie_together_are_left_apart() -> None:
    layer = MultiHeadAttention(12, 6, kv_dim=8)
    layer.lay_together()
    assert layer._together is None
    layer = MultiHeadAttention(12, 6)
    layer.k_proj.bias = None
    layer.lay_together()
    assert layer._together is None
    layer = MultiHeadAttention(12, 6)
    layer.lay_together()
    layer.v_proj = torch.nn.Sequential(layer.v_proj)  # type: ignore[assignment]
    with torch.no_grad():
        assert layer._joined() is None
    layer.lay_together()
    assert all(parameter.requires_grad for parameter in layer.parameters())


def test_projections_stay_apart_where_they_must() -> None:
    layer = MultiHeadAttention(12, 6)
    with torch.no_grad():
        assert layer._joined() is None
    layer.k_proj.weight.requires_grad_(False)
    assert layer._joined() is None
    layer = MultiHeadAttention(12, 6)
    layer.v_proj = torch.nn.Sequential(layer.v_proj)  # type: ignore[assignment]
    assert layer._joined() is None
