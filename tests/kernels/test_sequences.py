"""Attention within sequences by our own kernel, and its gradients, beside float64."""

import itertools
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attention.cases import FORMS, TOLERANCE, combinations, expected, request
from kernels.served import Served
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention import MultiHeadAttention, Segments, attend, masks, positions, record, recording, scores
from regard.attention.backends import dense
from regard.attention.masks import Mask
from regard.kernels import native, sequences
from regard.layers.own_kernels import can_use_own_kernels, use_own_kernels
from regard.layers.packed import pack, ready
from regard.layers.packed_linear import PackedLinear
from regard.models.gpt import GPT, GPTConfig
from regard.training.blocks import quicken
from regard.training.hardware import threads_kept

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere PyTorch brings another library")


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> Served:
    served = Served(sequences.attend)
    monkeypatch.setattr(dense, "own", served)
    return served


#            queries, keys, heads, groups, key, value
SHAPES = {
    "words": ([8, 5, 12, 7], [8, 5, 12, 7], 4, 4, 32, 32),
    "groups": ([5, 0, 17, 33, 1], [9, 4, 0, 31, 1], 6, 2, 24, 40),
    "one group, odd sizes": ([3, 50, 7], [20, 49, 7], 3, 1, 5, 13),
    "sizes of one": ([1, 2], [1, 3], 1, 1, 1, 1),
    "more keys and queries than are taken at once": ([700, 3], [650, 300], 2, 1, 16, 24),
    "uniform": ([49, 49, 49], [49, 49, 49], 2, 2, 32, 32),
}
BANDS: dict[str, Callable[[], Mask | None]] = {
    "all": lambda: None,
    "causal": masks.causal,
    "window": lambda: masks.window(7, 2),
    "far window": lambda: masks.window(300, -1),
    "behind": lambda: masks.window(-1, 0) & masks.window(40, 5),
}


def drawn(shape: str, scale: float = 1.0) -> tuple[list[Tensor], Segments, Segments, Tensor]:
    queries, keys, heads, groups, key, value = SHAPES[shape]
    inputs = [
        torch.randn(n, h, k) * scale
        for n, h, k in zip(
            (sum(queries), sum(keys), sum(keys)), (heads, groups, groups), (key, key, value), strict=True
        )
    ]
    return inputs, Segments.ragged(queries), Segments.ragged(keys), torch.randn(sum(queries), heads, value)


def with_gradients(inputs: list[Tensor], out: Tensor, *segments: Segments, **how) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    context = attend(*leaves, *segments, **how)
    return [context.detach(), *torch.autograd.grad(context, leaves, out)]


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_contexts_and_gradients(shape: str, band: str, used: Served) -> None:
    inputs, q_segments, k_segments, out = drawn(shape)
    found = with_gradients(inputs, out, q_segments, k_segments, mask=BANDS[band]())
    assert used == [True]
    wide = [x.double() for x in inputs]
    wanted = with_gradients(wide, out.double(), q_segments, k_segments, mask=BANDS[band](), backend="reference")
    for one, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), want, atol=2e-5, rtol=2e-6)
    with torch.no_grad():
        assert torch.equal(attend(*inputs, q_segments, k_segments, mask=BANDS[band]()), found[0])


@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.capacity is None])
def test_the_oracles_cases(form: str, used: Served) -> None:
    """Every mask, position and dot product; what is not a band, or not uniform, is declined or never asked for."""
    for score in ("scaled dot", "dot with a scale", "general", "additive"):
        for mask, position in combinations(form, score, step=3):
            ask, before = request(form, score, mask, position, torch.float32), len(used)
            found = ask(None).double()
            if ask.bias is None and (ask.mask is None or ask.mask.window() is not None):
                assert used[before:] == [True], (score, mask, position)
            worst = (found - expected(form, score, mask, position)).abs().max()
            assert worst <= TOLERANCE[torch.float32], (score, mask, position)


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_additive_scores(shape: str, band: str, used: Served) -> None:
    """vᵀ tanh(q + k): contexts, and gradients of queries, keys, values and v."""
    inputs, q_segments, k_segments, out = drawn(shape)
    score = scores.Additive(inputs[0].shape[1], inputs[0].shape[2])
    nn.init.normal_(score.v_HK)

    def run(dtype: torch.dtype, backend: str | None) -> list[Tensor]:
        score.to(dtype)
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        how = {"mask": BANDS[band](), "score": score, "backend": backend}
        context = attend(*leaves, q_segments, k_segments, **how)
        return [context.detach(), *torch.autograd.grad(context, [*leaves, score.v_HK], out.to(dtype))]

    found, wanted = run(torch.float32, None), run(torch.float64, "reference")
    assert used == [True]
    for one, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), want, atol=5e-5, rtol=5e-6)


def test_additive_scores_at_their_edges(used: Served) -> None:
    """Where tanh is 1, where there is no number, and v alone asks for a gradient."""
    (q, k, v), q_segments, k_segments, out = drawn("words", scale=20)
    score = scores.Additive(4, 32)
    wanted = attend(
        q.double(), k.double(), v.double(), q_segments, k_segments, score=score.double(), backend="reference"
    )
    found = attend(q, k, v, q_segments, k_segments, score=score.float())
    torch.testing.assert_close(found.double(), wanted, atol=2e-5, rtol=0)
    (found * out).sum().backward()
    assert score.v_HK.grad is not None
    assert score.v_HK.grad.any()
    q[9, 1, 3], k[20, 2, 0] = math.nan, -math.inf
    found = attend(q, k, v, q_segments, k_segments, score=score)
    assert found[9, 1].isnan().all()
    assert found[:9].isfinite().all()
    assert found[13:].isfinite().all()
    attend(q, k, v, q_segments, k_segments, score=score, bias=torch.zeros(4, 12, 12))
    attend(q, k, v, q_segments, k_segments, score=score, backend="reference")
    assert used == [True, True]


def test_additive_scores_of_keys_in_slots(used: Served) -> None:
    """As decoding has them; a gradient of keys in slots is left to PyTorch."""
    q, k, v = torch.randn(3 * 2, 1, 9), torch.randn(3 * 8, 1, 9), torch.randn(3 * 8, 1, 12)
    q_segments, k_segments = Segments.uniform(3, 2), Segments.slots(torch.tensor([5, 8, 1]), 8)
    score = scores.Additive(1, 9)
    wanted = attend(q, k, v, q_segments, k_segments, score=score)
    assert not any(used)
    for x in (k, v):
        x.view(3, 8, 1, -1)[0, 5:] = math.nan
    with torch.no_grad():
        found = attend(q, k, v, q_segments, k_segments, score=score)
    assert used[-1]
    torch.testing.assert_close(found, wanted.detach(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("queries", "keys"), [(49, 49), (5, 70), (1, 3)])
def test_masks_and_biases_of_uniform_sequences(queries: int, keys: int, batch: int, heads: int, used: Served) -> None:
    q, k, v, out = (torch.randn(3 * n, 4, size) for n, size in ((queries, 8), (keys, 8), (keys, 12), (queries, 12)))
    segments = Segments.uniform(3, queries), Segments.uniform(3, keys)
    bias, allowed = torch.randn(batch, heads, queries, keys), torch.rand(batch, heads, queries, keys) < 0.7
    allowed[:, :, 0] = False  # a query without a key
    for how in ({"mask": masks.tensor(allowed)}, {"bias": bias}, {"bias": bias, "mask": masks.tensor(allowed)}):
        found = with_gradients([q, k, v], out, *segments, **how)
        wide = {"mask": how.get("mask"), "bias": bias.double() if "bias" in how else None}
        wanted = with_gradients([x.double() for x in (q, k, v)], out.double(), *segments, **wide, backend="reference")
        for one, want in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.double(), want, atol=5e-6, rtol=0)
        if "mask" in how:
            assert not found[0].view(3, queries, 4, 12)[:, 0].any()
    assert used == [True] * 3


def test_masks_that_are_the_same_for_all_queries(used: Served) -> None:
    """A mask of one row, as a function of keys alone gives it, is read for every query."""
    q, k, v = (torch.randn(2 * 6, 2, 8) for _ in range(3))
    segments = Segments.uniform(2, 6)
    mask = masks.where(lambda at: at.key % 2 == 0)
    wanted = attend(q.double(), k.double(), v.double(), segments, mask=mask, backend="reference")
    torch.testing.assert_close(attend(q, k, v, segments, mask=mask).double(), wanted, atol=2e-6, rtol=0)
    assert used == [True]


def test_rows_that_lie_among_others(used: Served) -> None:
    """Queries, keys and values as views of one product, and a gradient that is the same for all heads."""
    joint = torch.randn(30, 3 * 32, requires_grad=True)
    segments = Segments.ragged([11, 2, 17])

    def run(rows: Tensor, **how) -> Tensor:
        parts = (part.unflatten(1, (4, 8)) for part in rows.split(32, 1))
        return attend(*parts, segments, mask=masks.causal(), **how).sum(1)

    found = torch.autograd.grad(run(joint).square().sum(), joint)[0]
    wide = joint.detach().double().requires_grad_()
    wanted = torch.autograd.grad(run(wide, backend="reference").square().sum(), wide)[0]
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=0)
    expanded = torch.autograd.grad(run(joint), joint, torch.ones(()).expand(30, 8))[0]
    wanted = torch.autograd.grad(run(wide, backend="reference"), wide, torch.ones(30, 8).double())[0]
    torch.testing.assert_close(expanded.double(), wanted, atol=1e-5, rtol=0)
    assert used == [True, True]


@pytest.mark.parametrize("alone", [False, True], ids=["PyTorch's threads", "our own"])
def test_any_number_of_threads_gives_the_same_bits(alone: bool) -> None:
    found = []
    for shape, mask in itertools.product(
        ("words", "more keys and queries than are taken at once"), (None, masks.causal())
    ):
        inputs, q_segments, k_segments, out = drawn(shape)
        with threads_kept():
            for threads in (1, 2, 3, 7):
                torch.set_num_threads(threads)
                with native.alone(alone):
                    found.append(with_gradients(inputs, out, q_segments, k_segments, mask=mask))
        assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(found[0], one, strict=True))
        found.clear()


@linux
def test_pytorchs_threads_share_the_work() -> None:
    """The library that PyTorch brought is found by its place; the pool of our own would wait for spinning threads."""
    assert native.team()
    inputs, q_segments, k_segments, _ = drawn("more keys and queries than are taken at once")
    given: list[tuple] = []
    kernel = native.load()[0]
    assert kernel is not None
    run, threads = kernel.sequences, torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, threads_kept():
        patch.setattr(kernel, "sequences", lambda *args: (given.append(args[1:]), run(*args)))
        torch.set_num_threads(2)
        attend(*inputs, q_segments, k_segments)
        with native.alone():
            attend(*inputs, q_segments, k_segments)
    assert given == [(2, native.team()), (2, None)]
    assert torch.get_num_threads() == threads


@linux
def test_a_library_of_others_is_no_team(tmp_path: Path) -> None:
    """In a process of its own: two OpenMP libraries are more than others expect."""
    home = Path(torch.__file__).resolve().parent
    mine = next(path for path in native.openmp_libraries() if Path(path).is_relative_to(home))
    theirs = str(shutil.copy(mine, tmp_path / "libgomp.so.1"))
    code = f"import ctypes, regard.kernels.native as n; ctypes.CDLL({theirs!r})"
    code += f"; n.openmp_libraries = lambda: {{{theirs!r}}}"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(n.team())"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"


def test_without_a_team_our_own_threads_work(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, q_segments, k_segments, _ = drawn("more keys and queries than are taken at once")
    with threads_kept():
        torch.set_num_threads(2)
        wanted = attend(*inputs, q_segments, k_segments)
        monkeypatch.setattr(native, "team", lambda: None)
        assert torch.equal(attend(*inputs, q_segments, k_segments), wanted)


def test_great_scores_do_not_overflow(used: Served) -> None:
    inputs, q_segments, k_segments, out = drawn("words", scale=30)
    found = with_gradients(inputs, out, q_segments, k_segments)
    wanted = with_gradients([x.double() for x in inputs], out.double(), q_segments, k_segments, backend="reference")
    for one, want in zip(found, wanted, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one.double(), want, atol=0.1, rtol=1e-3)
    assert used == [True]


def _dropped(seed: int, keys: int = 64, queries: int = 64) -> tuple[Tensor, Tensor]:
    """Weights after dropout, and before: the values are unit vectors."""
    torch.manual_seed(1)
    q, k, segments = torch.randn(2 * queries, 4, 8), torch.randn(2 * keys, 4, 8), Segments.uniform(2, queries)
    v = torch.eye(keys).repeat(2, 1)[:, None].expand(-1, 4, -1)
    torch.manual_seed(seed)
    k_segments = Segments.uniform(2, keys)
    return (
        attend(q, k, v, segments, k_segments, mask=masks.causal(), dropout_p=0.3),
        attend(q, k, v, segments, k_segments, mask=masks.causal()),
    )


def test_dropped_weights(used: Served) -> None:
    """Each is zero with the probability, or divided by that of the others; alike for one seed, unlike for two."""
    found, weights = _dropped(5)
    seen = weights > 0
    lost = (found == 0) & seen
    torch.testing.assert_close(found, weights / 0.7 * ~lost, atol=1e-6, rtol=1e-5)
    assert lost.sum() / seen.sum() == pytest.approx(0.3, abs=0.015)  # three standard deviations of 16,640
    assert torch.equal(_dropped(5)[0], found)
    other = (_dropped(6)[0] == 0) & seen
    # Dropped in both, in neighbouring keys, queries, heads: as often as chance has it.
    pairs = [(lost, other, seen), (lost[..., 1:], lost[..., :-1], seen[..., 1:] & seen[..., :-1])]
    pairs += [(lost[1:], lost[:-1], seen[1:] & seen[:-1]), (lost[:, 1:], lost[:, :-1], seen[:, 1:])]
    for one, two, both in pairs:
        assert (one & two & both).sum() / both.sum() == pytest.approx(0.09, abs=0.01)
    assert used == [True] * 6


@pytest.mark.parametrize("band", [(-1, 0), (100, 3)])
@pytest.mark.parametrize("shape", ["groups", "more keys and queries than are taken at once"])
def test_gradients_through_dropped_weights(shape: str, band: tuple[int, int]) -> None:
    """Those of the same weights, times the factors that unit vectors as values show."""
    (q, k, v), q_segments, k_segments, out = drawn(shape)
    torch.manual_seed(9)
    mask = masks.window(*band)
    found = with_gradients([q, k, v], out, q_segments, k_segments, mask=mask, dropout_p=0.4)
    most = max(k_segments.lengths)
    units = torch.cat([torch.eye(most)[:length] for length in k_segments.lengths])[:, None].expand(-1, k.shape[1], -1)
    torch.manual_seed(9)
    dropped = attend(q, k, units, q_segments, k_segments, mask=mask, dropout_p=0.4)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    each, context = q.shape[1] // k.shape[1], torch.zeros_like(out, dtype=torch.float64)
    for q_start, q_length, k_start, k_length in zip(
        q_segments.starts_B.tolist(), q_segments.lengths, k_segments.starts_B.tolist(), k_segments.lengths, strict=True
    ):
        if not (q_length and k_length):
            continue
        q_THK, k_SHK, v_SHV = (
            leaves[0][q_start : q_start + q_length],
            *(x[k_start : k_start + k_length].repeat_interleave(each, 1) for x in leaves[1:]),
        )
        scores_HTS = torch.einsum("thk,shk->hts", q_THK, k_SHK) * q.shape[2] ** -0.5
        distance = torch.arange(q_length)[:, None] + k_length - q_length - torch.arange(k_length)[None]
        hidden = (distance < -band[1]) | ((distance > band[0]) & (band[0] >= 0))
        weights_HTS = scores_HTS.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num()
        kept_HTS = dropped[q_start : q_start + q_length, :, :k_length].transpose(0, 1) != 0
        context = context.index_put(
            (torch.arange(q_start, q_start + q_length),),
            torch.einsum("hts,shv->thv", weights_HTS * kept_HTS / 0.6, v_SHV),
        )
    wanted = [context.detach(), *torch.autograd.grad(context, leaves, out.double())]
    for one, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), want, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_shows_in_its_own_sequence_alone(bad: float) -> None:
    (q, k, v), q_segments, k_segments, out = drawn("words")
    q[9, 1, 3] = bad  # of the second sequence
    context, *grads = with_gradients([q, k, v], out, q_segments, k_segments)
    assert context[9, 1].isnan().all()
    for one in (context, *grads):
        assert one[:8].isfinite().all()
        assert one[13:].isfinite().all()
    assert grads[1][8:13, 1].isnan().all()


def test_a_query_without_a_key_passes_nothing() -> None:
    """Zeros, and no gradient, whatever it and its own gradient are."""
    (q, k, v), _, _, out = drawn("words")
    q_segments, k_segments = Segments.ragged([8, 24]), Segments.ragged([0, 32])
    q[:8], out[:8] = math.nan, math.nan
    context, dq, dk, dv = with_gradients([q, k, v], out, q_segments, k_segments)
    assert not context[:8].any()
    assert not dq[:8].any()
    assert all(x.isfinite().all() for x in (context, dq, dk, dv))
    # The first query of more than there are keys sees none, beside others that see some.
    segments = Segments.ragged([12, 20]), Segments.ragged([9, 23])
    q, out = torch.randn(32, 4, 32), torch.randn(32, 4, 32)
    q[:3], out[:3] = math.nan, math.nan
    found = with_gradients([q, k, v], out, *segments, mask=masks.causal())
    assert not found[0][:3].any()
    assert not found[1][:3].any()
    assert all(x.isfinite().all() for x in found)


def test_keys_that_nobody_sees_have_no_gradient() -> None:
    (q, k, v), _, _, out = drawn("words")
    _, _, dk, dv = with_gradients([q, k, v], out, Segments.ragged([0, 32]), Segments.ragged([5, 27]))
    assert not dk[:5].any()
    assert not dv[:5].any()
    assert dk[5:].any()


def test_nothing_as_large_as_the_scores_is_kept() -> None:
    (q, k, v), q_segments, k_segments, _ = drawn("more keys and queries than are taken at once")
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        attend(q.requires_grad_(), k, v, q_segments, k_segments)
    assert len(kept) >= 5
    assert max(kept) < 650 * 700 / 10


class _Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Own(Tensor):
    """A tensor of somebody's own, which computes for itself."""


def test_what_the_kernel_cannot_see_goes_to_pytorch(used: Served) -> None:
    (q, k, v), q_segments, k_segments, _ = drawn("words")

    def plain(*inputs: Tensor) -> Tensor:
        return attend(*inputs, q_segments, k_segments)

    wanted = plain(q, k, v)
    assert used == [True]
    torch.testing.assert_close(plain(q.double(), k.double(), v.double()).float(), wanted)
    torch.testing.assert_close(plain(q.bfloat16(), k.bfloat16(), v.bfloat16()).float(), wanted, atol=0.05, rtol=0)
    attend(q, k, v, q_segments, k_segments, bias=positions.Alibi(4))
    attend(q.to("meta"), k.to("meta"), v.to("meta"), Segments.uniform(4, 8, "meta"))
    with _Seen():
        plain(q, k, v)
    plain(q.as_subclass(_Own), k, v)
    plain(q, k, v.transpose(1, 2).contiguous().transpose(1, 2).transpose(0, 2).contiguous().transpose(0, 2))
    assert not any(used[1:])
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward"):
        plain(forward_ad.make_dual(q, torch.ones_like(q)), k, v)
    assert not any(used[1:])


def test_a_learned_bias_gets_its_gradient_from_pytorch(used: Served) -> None:
    q, k, v = (torch.randn(14, 3, 8) for _ in range(3))
    bias = torch.randn(3, 7, 7, requires_grad=True)
    attend(q, k, v, Segments.uniform(2, 7), bias=bias).square().sum().backward()
    assert bias.grad is not None
    assert bias.grad.any()
    with torch.no_grad():
        attend(q, k, v, Segments.uniform(2, 7), bias=bias)
    assert used == [False, True]


@pytest.mark.parametrize("of", [(4, 16), (2, 32), (1, 32)])
def test_a_vector_of_other_sizes_is_refused_as_ever(of: tuple[int, int], used: Served) -> None:
    (q, k, v), q_segments, k_segments, _ = drawn("words")
    with pytest.raises((RuntimeError, IndexError)):
        attend(q, k, v, q_segments, k_segments, score=scores.Additive(*of))
    assert used == [False]


class _Nothing(scores.Additive):
    def forward(self, q_BTHK: Tensor, k_BSHK: Tensor, at: masks.Grid) -> Tensor:
        return super().forward(q_BTHK, k_BSHK, at) * 0


def test_scores_of_ones_own_are_computed_by_themselves(used: Served) -> None:
    (q, k, v), q_segments, k_segments, _ = drawn("words")
    found = attend(q, k, v, q_segments, k_segments, score=_Nothing(4, 32))
    torch.testing.assert_close(found[:8], v[:8].mean(0).expand(8, 4, 32))
    hooked, seen = scores.Additive(4, 32), list[int]()
    hooked.register_forward_hook(lambda *_: seen.append(1))
    attend(q, k, v, q_segments, k_segments, score=hooked)
    attend(q, k, v, q_segments, k_segments, score=scores.DotScore(torch.tensor(0.25)))  # type: ignore[arg-type]
    assert seen
    assert used == [False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_defaults_change_nothing(dtype: torch.dtype) -> None:
    (q, k, v), q_segments, k_segments, out = drawn("uniform")
    score, allowed = scores.Additive(2, 32), torch.rand(49, 49) < 0.8

    def run() -> list[Tensor]:
        torch.manual_seed(4)
        score.zero_grad()
        found = with_gradients([q, k, v], out, q_segments, k_segments, score=score)
        attend(q, k, v, q_segments, k_segments, score=score).sum().backward()
        assert score.v_HK.grad is not None
        dropped = with_gradients([q, k, v], out, q_segments, k_segments, mask=masks.tensor(allowed), dropout_p=0.2)
        return [*found, score.v_HK.grad, *dropped]

    wanted = run()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            found = run()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@torch.no_grad()
def test_lengths_that_lie_apart() -> None:
    q, k, v = torch.randn(3, 1, 9), torch.randn(3 * 8, 1, 9), torch.randn(3 * 8, 1, 12)
    q_segments, score = Segments.uniform(3, 1), scores.Additive(1, 9)
    for lengths_B in (
        torch.tensor([5, 0, 8, 0, 1, 0])[::2],
        torch.tensor([5]).expand(3),
        torch.tensor([5, 8, 1]).int(),
    ):
        k_segments = Segments.slots(lengths_B, 8, clean=True)
        wanted = attend(q, k, v, q_segments, k_segments, score=score, backend="reference")
        torch.testing.assert_close(attend(q, k, v, q_segments, k_segments, score=score), wanted, atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore")
def test_a_trace_has_no_kernel_in_it(used: Served) -> None:
    """It would be of memory that nothing fills; what is traced is PyTorch's own attention, whatever it is given."""
    (q, k, v), q_segments, k_segments, _ = drawn("uniform")
    with torch.no_grad():
        traced = torch.jit.trace(lambda *rows: attend(*rows, q_segments, k_segments), (q, k, v), check_trace=False)
        assert used == [False]
        q, k, v = (torch.randn_like(x) for x in (q, k, v))
        torch.testing.assert_close(traced(q, k, v), attend(q, k, v, q_segments, k_segments), atol=1e-6, rtol=0)


@pytest.mark.parametrize("band", [(2, sys.maxsize), (-1, sys.maxsize), (sys.maxsize, 3)])
def test_windows_without_end(band: tuple[int, int], used: Served) -> None:
    (q, k, v), q_segments, k_segments, _ = drawn("groups")
    found = attend(q, k, v, q_segments, k_segments, mask=masks.window(*band))
    wanted = attend(
        q, k, v, q_segments, k_segments, mask=masks.window(band[0], min(band[1], 10_000)), backend="reference"
    )
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=0)
    assert used == [True]


def test_segments_made_in_inference_can_be_trained_on(used: Served) -> None:
    (q, k, v), *_, out = drawn("words")
    with torch.inference_mode():
        segments = Segments.ragged(SHAPES["words"][0])
    assert with_gradients([q, k, v], out, segments)[1].isfinite().all()
    assert used == [True]


def test_what_is_closed_is_closed_to_what_is_no_number() -> None:
    """Queries whose row of a mask is closed, and those before all keys, beside values that are not numbers."""
    (q, k, v), q_segments, k_segments, out = drawn("uniform")
    allowed = torch.ones(49, 49, dtype=torch.bool)
    allowed[3] = False
    q[3] = math.nan
    found = with_gradients([q, k, v], out, q_segments, k_segments, mask=masks.tensor(allowed))
    assert not found[0][3].any()
    assert not found[1][3].any()
    assert all(x.isfinite().all() for x in found)
    segments = Segments.ragged([5, 3]), Segments.ragged([2, 3])
    q, k, v, out = torch.randn(8, 2, 8), torch.randn(5, 2, 8), torch.randn(5, 2, 8), torch.randn(8, 2, 8)
    v[1] = math.nan
    context, dq, _, _ = with_gradients([q, k, v], out, *segments, mask=masks.causal())
    assert not context[:3].any()
    assert not dq[:3].any()


def test_what_is_no_number_spreads_alike_in_any_number_of_threads() -> None:
    q, k, v = (torch.randn(4 * 700, 1, 8) for _ in range(3))
    v[515] = math.nan
    lost = []
    with threads_kept():
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            lost.append(attend(q, k, v, Segments.uniform(4, 700), mask=masks.causal()).isnan())
    assert torch.equal(lost[0], lost[1])
    assert torch.equal(lost[0], lost[2])


def test_saved_tensors_may_come_back_in_another_layout() -> None:
    inputs, q_segments, k_segments, out = drawn("words")
    wanted = with_gradients(inputs, out, q_segments, k_segments)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.mT.contiguous().mT if x.dim() > 1 else x):
        found = with_gradients(inputs, out, q_segments, k_segments)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_a_gradient_that_is_seen_negated(used: Served) -> None:
    inputs, q_segments, k_segments, out = drawn("groups")
    wanted = with_gradients(inputs, -out, q_segments, k_segments)
    assert all(map(torch.equal, with_gradients(inputs, torch._neg_view(out), q_segments, k_segments), wanted))
    assert used == [True, True]


def test_heads_without_numbers_are_pytorchs(used: Served) -> None:
    rows = torch.randn(6, 2, 0)
    assert attend(rows, rows, torch.randn(6, 2, 4), Segments.uniform(2, 3), score=scores.Dot()).shape == (6, 2, 4)
    assert used == [False]


def test_a_second_derivative_is_refused() -> None:
    (q, k, v), q_segments, k_segments, _ = drawn("words")
    once = torch.autograd.grad(
        attend(q.requires_grad_(), k, v, q_segments, k_segments).square().sum(), q, create_graph=True
    )
    with pytest.raises(RuntimeError, match="twice"):
        once[0].sum().backward()


def test_gradients_are_of_those_who_ask() -> None:
    inputs, q_segments, k_segments, out = drawn("groups")
    wanted = with_gradients(inputs, out, q_segments, k_segments)
    for number in range(3):
        leaves = [x.detach().requires_grad_(n == number) for n, x in enumerate(inputs)]
        attend(*leaves, q_segments, k_segments).backward(out)
        assert torch.equal(leaves[number].grad, wanted[1 + number])
        assert all(leaf.grad is None for n, leaf in enumerate(leaves) if n != number)


def test_training_on_a_cpu_has_the_kernels_attend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "own", None)
    quicken(nn.Sequential(nn.Linear(2, 2)), "fp32")
    with torch.device("meta"):
        quicken(MultiHeadAttention(8, 2), "fp32")
    assert dense.own is None
    assert not can_use_own_kernels(nn.Linear(2, 2))
    quicken(MultiHeadAttention(8, 2), "fp32")
    assert dense.own is sequences.attend
    monkeypatch.setattr(dense, "own", None)
    monkeypatch.setenv("REGARD_KERNEL", "torch")
    assert use_own_kernels() is None
    assert dense.own is None


def test_large_encoders_in_use_are_packed_and_have_the_kernels_attend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one is not worth compiling anything, unless it is packed; without kernels nothing is gained."""
    monkeypatch.setattr(dense, "own", None)
    ready(MultiHeadAttention(8, 2), "fp32")
    assert dense.own is None
    assert isinstance(ready(MultiHeadAttention(1024, 4), "fp32").q_proj, PackedLinear)
    assert dense.own is sequences.attend
    monkeypatch.setattr(dense, "own", None)
    monkeypatch.setenv("REGARD_KERNEL", "torch")
    assert isinstance(ready(MultiHeadAttention(1024, 4), "fp32").q_proj, nn.Linear)
    assert dense.own is None
    monkeypatch.delenv("REGARD_KERNEL")
    monkeypatch.setattr(dense, "own", None)
    pack(MultiHeadAttention(16, 2).eval(), "fp32", "native")
    assert dense.own is sequences.attend


# Of a model's call: heads, queries and sequences; and whether the kernel computes all, for each band of BANDS.
RECORDED: dict[str, tuple[dict, dict[str, bool]]] = {
    "everything": ({}, {}),
    "some heads, in another order": ({"heads": [3, 0]}, {}),
    "one sequence": ({"sequences": [2]}, {}),
    "the last query": ({"queries": [-1]}, {}),
    "the first queries": ({"queries": [0, 1, 2]}, {"window": False, "far window": False}),
    "apart": ({"queries": [0, 2]}, dict.fromkeys(BANDS, False)),
    "backwards": ({"queries": [2, 1]}, dict.fromkeys(BANDS, False)),
}


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("asked", RECORDED)
@pytest.mark.parametrize("block", [recording.BLOCK_BYTES, 10_000])
def test_recorded_weights_are_those_of_the_reference(
    asked: str, band: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and handed over in blocks; of queries before the first key too."""
    options, serves = RECORDED[asked]
    model = MultiHeadAttention(32, 4, num_kv_heads=2, score=scores.General(4, 8)).eval()
    site = nn.ModuleDict({"attn": model})
    queries, keys = Segments.ragged([40, 9, 70]), Segments.ragged([40, 5, 90])
    x_ND, c_MD = torch.randn(119, 32), torch.randn(135, 32)
    monkeypatch.setattr(recording, "BLOCK_BYTES", block)

    def found(sink: bool) -> list[Tensor]:
        blocks: list[Tensor] = []
        sinks = {"sink": lambda _, rows: blocks.append(rows.weights_HTS)} if sink else {}
        with record(site, **options, **sinks) as rows:
            model(x_ND, queries, c_MD, keys, mask=BANDS[band]())
        return blocks if sink else [one.weights_HTS for one in rows["attn"]]

    wanted = [found(sink) for sink in (False, True)]
    answers: list[bool] = []

    def own(*args: Any) -> Tensor | None:
        answers.append((given := sequences.weigh(*args)) is not None)
        return given

    monkeypatch.setattr(recording, "own", own)
    for sink, blocks in zip((False, True), wanted, strict=True):
        answers.clear()
        for one, other in zip(found(sink), blocks, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
            assert torch.equal(one == 0, other == 0)
        assert all(answers)
        if serves.get(band, True):
            assert answers
    assert bool(answers) == serves.get(band, True)


@pytest.mark.parametrize("band", BANDS)
def test_recorded_weights_of_what_is_not_seen_are_zeros_beside_what_is_no_number(
    band: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x_ND = nn.ModuleDict({"attn": MultiHeadAttention(16, 2)}), torch.randn(60, 16)
    x_ND[3] = math.nan

    def found() -> Tensor:
        with record(model) as rows:
            model["attn"](x_ND, Segments.uniform(1, 60), mask=BANDS[band]())
        return rows["attn"][0].weights_HTS

    wanted = found()
    monkeypatch.setattr(recording, "own", sequences.weigh)
    assert torch.equal(found().isnan(), wanted.isnan())
    assert torch.equal(found() == 0, wanted == 0)


def test_weights_that_the_kernel_does_not_have_are_recorded_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Biases, other scores and masks, and what is not float32."""
    monkeypatch.setattr(recording, "own", lambda *_: pytest.fail("asked"))
    queries, x_ND = Segments.ragged([4, 6]), torch.randn(10, 16)
    additive = MultiHeadAttention(16, 2, score=scores.Additive(2, 8))
    plain, half = MultiHeadAttention(16, 2), MultiHeadAttention(16, 2).bfloat16()
    rows = []
    for model, options in (
        (additive, {}),
        (plain, {"mask": masks.tensor(torch.rand(2, 2, 6, 6) > 0.3)}),
        (plain, {"bias": positions.Alibi(2)}),
    ):
        with record(nn.ModuleDict({"attn": model})) as one:
            model(x_ND, queries, **options)
        rows += one["attn"]
    monkeypatch.setattr(recording, "own", sequences.weigh)
    with record(nn.ModuleDict({"attn": half})) as one:
        half(x_ND.bfloat16(), queries)
    rows += one["attn"]
    assert [one.weights_HTS.shape for one in rows] == [(2, 4, 4), (2, 6, 6)] * 4
    for one in rows:
        sums = one.weights_HTS.float().sum(-1)
        assert ((sums - 1).abs().min(sums.abs()) < 0.01).all()


def test_a_model_learns_alike(used: Served) -> None:
    """Ten steps by the kernel and by PyTorch end at the same weights, but for rounding."""

    def trained() -> list[Tensor]:
        torch.manual_seed(3)
        model = GPT(GPTConfig(31, 32, 2, 4, max_len=64, dropout=0.0, attention_dropout=0.0))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        segments, tokens = Segments.ragged([9, 1, 20]), torch.randint(31, (30,))
        for _ in range(10):
            nn.functional.cross_entropy(model.head(model(tokens, segments)), tokens).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    ours = trained()
    assert used == [True] * 20
    dense.own = None
    for one, other in zip(ours, trained(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0)
