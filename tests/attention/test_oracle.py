"""Every backend, score, mask, position, bias, dtype and form against loops in float64, or the documented refusal."""

import inspect
import itertools
import warnings

import pytest
import torch
from attention import oracle
from attention.cases import (
    FORMS,
    HEAD_DIM,
    HEADS,
    MASKS,
    POSITIONS,
    SCORES,
    TOLERANCE,
    VALUE_DIM,
    MaskCase,
    Request,
    combinations,
    eighths,
    expected,
    key_positions,
    made_position,
    made_score,
    query_positions,
    rank_mask,
    request,
    rotated,
    tensor_mask,
)
from torch import Tensor

from regard.attention import Segments, attend, groups, masks, positions, scores
from regard.attention.backends import flex, varlen
from regard.errors import BackendError, UsageError


@pytest.fixture(autouse=True)
def _split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a form asks for it, a kernel call costs nothing, so that each group is as small as can be."""
    params = getattr(request.node, "callspec", None)
    if params is not None and FORMS.get(params.params.get("form"), FORMS["slots"]).split:
        monkeypatch.setattr(groups, "CALL_COST_SCORES", -1)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_backends_equal_the_loops(dtype: torch.dtype, form: str, score: str) -> None:
    step = 5 if dtype == torch.float64 else 7
    for mask, position in combinations(form, score, step):
        ask = request(form, score, mask, position, dtype)
        want = expected(form, score, mask, position)
        for backend in FORMS[form].backends:
            if backend != "reference" and not isinstance(ask.score, scores.DotScore):
                with pytest.raises(BackendError, match=f"backend {backend}: it takes dot-product scores only"):
                    ask(backend)
                continue
            got = ask(backend)
            assert got.dtype == dtype
            worst = (got.double() - want).abs().max().item()
            assert worst <= TOLERANCE[dtype], f"{backend}, {mask}, {position}: off by {worst}"


def test_groups_are_split_where_a_form_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    form = FORMS["ragged cross, groups"]
    assert len(groups.plan(*form.segments()).groups) == 1
    monkeypatch.setattr(groups, "CALL_COST_SCORES", -1)
    assert len(groups.plan(*form.segments()).groups) == 3


# ------------------------------------------------------------------------------------------------------------ gradients


def derivative(
    form: str, score: str, mask: str, position: str, ask: Request, along: dict[str, Tensor], out: Tensor
) -> float:
    """Change of ⟨out, context⟩ of the loops for a small step along directions of all leaves, by central differences."""
    f, values, step = FORMS[form], {name: x.detach() for name, x in ask.leaves.items()}, 1e-5
    allow, rotary, sides = MASKS[mask].loops(f), POSITIONS[position].rotary, []
    for sign in (1, -1):
        moved = {name: (x + sign * step * along[name]).numpy() for name, x in values.items()}
        q, k, v = (moved[name] for name in "qkv")
        if rotary is not None:
            q = oracle.rotated(q, query_positions(f), rotary == "pairs")
            k = oracle.rotated(k, key_positions(f), rotary == "pairs")
        own = {
            part: {n.split(".", 1)[1]: x for n, x in moved.items() if n.startswith(part)}
            for part in ("score.", "bias.")
        }
        bias = POSITIONS[position].loops(f, own["bias."])
        similarity = SCORES[score].loops(own["score."])
        context, _ = oracle.attention(q, k, v, f.queries, f.keys, similarity, bias, allow, f.capacity)
        sides.append((context * out.numpy()).sum())
    return (sides[0] - sides[1]) / (2 * step)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_equal_those_of_the_loops(form: str, score: str) -> None:
    for mask, position in combinations(form, score, step=29):
        ask = request(form, score, mask, position, torch.float64)
        leaves = {name: x.requires_grad_() for name, x in ask.leaves.items()}
        along = {name: torch.randn_like(x) for name, x in leaves.items()}
        out = torch.randn(sum(ask.form.queries), HEADS, VALUE_DIM, dtype=torch.float64)
        want = derivative(form, score, mask, position, ask, along, out)
        for backend in ask.form.backends if isinstance(ask.score, scores.DotScore) else ("reference",):
            grads = torch.autograd.grad((ask(backend) * out).sum(), list(leaves.values()), materialize_grads=True)
            got = sum((grad * along[name]).sum().item() for name, grad in zip(leaves, grads, strict=True))
            assert got == pytest.approx(want, rel=1e-6, abs=1e-6), (backend, mask, position)


# ----------------------------------------------------------------------------------------------------------------- flex


FLEX_SCORES, FLEX_STEP = ("scaled dot", "general"), 29


def run_flex(ask: Request) -> Tensor:
    q, k, v = ask.rows
    bias = positions.TensorBias(ask.bias) if isinstance(ask.bias, Tensor) else ask.bias
    q, k = rotated(ask.form, q, k, ask.rotary)
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile", UserWarning)
        return flex.run(q, k, v, *ask.segments, ask.mask, bias, ask.score, 0.0)


@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.capacity is None])
def test_flex_functions_equal_the_loops(form: str) -> None:
    """Uncompiled on the CPU: the mask and bias functions, segments, grouped heads and empty rows, not the kernel."""
    for score in FLEX_SCORES:
        for mask, position in combinations(form, score, FLEX_STEP):
            with torch.no_grad():  # there is no backward pass on the CPU
                got = run_flex(request(form, score, mask, position, torch.float32))
            worst = (got.double() - expected(form, score, mask, position)).abs().max().item()
            assert worst <= TOLERANCE[torch.float32], f"{score}, {mask}, {position}: off by {worst}"


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own, where it traces
@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.capacity is None])
def test_flex_on_cuda_equals_the_loops(form: str) -> None:
    on_cuda_equals("flex", form, torch.float32, "dense", step=53)


# --------------------------------------------------------------------------------------------------------------- varlen


def on_cuda_equals(backend: str, form: str, dtype: torch.dtype, exact: str, step: int) -> None:
    """Values against the dense backend in float64 on the CPU, which the loops have proved; gradients too."""
    f, head_dim = FORMS[form], 16  # the kernels take no smaller heads
    for mask, position in combinations(form, "scaled dot", step):
        made = MASKS[mask].make(f)
        if backend == "varlen" and (position != "none" or (made is not None and made.window() is None)):
            continue
        bias = made_position(position, f)
        rows = [eighths(n, h, head_dim, seed=n) for n, h in ((sum(f.queries), HEADS), *[(f.key_rows, f.key_heads)] * 2)]
        out = eighths(sum(f.queries), HEADS, head_dim, seed=3)
        results = []
        for device, kind, kernel in (("cpu", torch.float64, exact), ("cuda", dtype, backend)):
            q, k, v = (x.to(device, kind).requires_grad_() for x in rows)
            segments = [s.to(device) for s in dict.fromkeys(f.segments())]
            moved_mask = None if made is None else moved(made, device)
            moved_bias = bias.to(device, kind) if isinstance(bias, Tensor | torch.nn.Module) else bias
            got = attend(q, k, v, *segments, mask=moved_mask, bias=moved_bias, backend=kernel)
            results.append((got, *torch.autograd.grad((got * out.to(device, kind)).sum(), (q, k, v))))
        for want, got in zip(*results, strict=True):
            torch.testing.assert_close(got.double().cpu(), want, atol=5 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def moved(mask: masks.Mask, device: str) -> masks.Mask:
    if isinstance(mask, masks.All):
        return masks.All(tuple(moved(part, device) for part in mask.parts))
    fields = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in vars(mask).items()}
    return type(mask)(**fields)


@pytest.mark.cuda
@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.capacity is None])
def test_varlen_on_cuda_equals_the_loops(form: str) -> None:
    on_cuda_equals("varlen", form, torch.bfloat16, "dense", step=1)


@pytest.mark.cuda
@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.capacity is None])
def test_dense_on_cuda_equals_the_loops(form: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        on_cuda_equals("dense", form, dtype, "reference", step=7)


# -------------------------------------------------------------------------------------------------------- dense tensors


@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("backend", [None, "reference", "dense"])
def test_dense_tensors_equal_the_loops(leading: tuple[int, ...], backend: str | None) -> None:
    q, k, v = (
        eighths(*leading, *size, seed=size[0]) for size in ((5, HEADS, HEAD_DIM), (7, 1, HEAD_DIM), (7, 1, VALUE_DIM))
    )
    got = attend(q, k, v, mask=masks.causal(), backend=backend)
    assert got.shape == (*leading, 5, HEADS, VALUE_DIM)
    count = got.numel() // (5 * HEADS * VALUE_DIM)
    rows = [x.reshape(-1, *x.shape[-2:]).numpy() for x in (q, k, v)]
    want, _ = oracle.attention(*rows, [5] * count, [7] * count, oracle.dot(None), None, oracle.window(None, 0))
    torch.testing.assert_close(got.reshape(-1, HEADS, VALUE_DIM), torch.from_numpy(want), atol=1e-12, rtol=0)


def test_dense_tensors_of_other_batches_are_refused() -> None:
    with pytest.raises(UsageError, match="same leading dimensions"):
        attend(torch.zeros(2, 5, 1, 2), torch.zeros(3, 5, 1, 2), torch.zeros(3, 5, 1, 2))


# ------------------------------------------------------------------------------------------------------------ positions


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 8, 12, 16, 20])
def test_alibi_slopes_are_the_papers(heads: int) -> None:
    torch.testing.assert_close(positions.Alibi(heads).slopes_H, torch.tensor(oracle.alibi_slopes(heads)))


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("buckets", "greatest"), [(32, 128), (16, 64), (12, 100), (64, 256), (4, 3), (20, 11)])
def test_relative_buckets_are_exact(buckets: int, greatest: int, both: bool) -> None:
    distances = torch.arange(-2 * greatest, 2 * greatest + 1)
    got = positions.RelativeBias(1, buckets, greatest, both).bucket(distances)
    assert got.tolist() == [oracle.t5_bucket(d, buckets, greatest, both) for d in distances.tolist()]


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_sinusoids_equal_the_formula(layout: str) -> None:
    where = [0, 1, 2, 97, 4999, 100_003]
    want = torch.tensor([oracle.sinusoid(p, 14, layout == "halves") for p in where], dtype=torch.float64)
    torch.testing.assert_close(
        positions.sinusoidal(torch.tensor(where, dtype=torch.float64), 14, layout), want, atol=1e-9, rtol=0
    )
    torch.testing.assert_close(positions.sinusoidal(torch.tensor(where), 14, layout), want.float(), atol=1e-6, rtol=0)


def test_places_of_a_grid_encode_column_and_row() -> None:
    got = positions.sincos_2d(3, 5, 8)
    for row, column in itertools.product(range(3), range(5)):
        want = oracle.sinusoid(column, 4, halves=True) + oracle.sinusoid(row, 4, halves=True)
        assert got[row * 5 + column].tolist() == pytest.approx(want, abs=1e-6)


# ------------------------------------------------------------------------------------------------- nothing is forgotten


def subclasses(base: type) -> set[type]:
    """All classes below a base that its module defines."""
    found = vars(inspect.getmodule(base)).values()
    return {
        c
        for c in found
        if isinstance(c, type) and issubclass(c, base) and c is not base and c.__module__ == base.__module__
    }


def test_every_score_mask_and_bias_is_tested() -> None:
    made_masks = [case.make(form) for case in MASKS.values() for form in FORMS.values() if case.fits(form)]
    made_biases = [made_position(name, form) for name in POSITIONS for form in FORMS.values()]
    assert {type(made_score(name)) for name in SCORES} == subclasses(scores.Score)
    assert {type(mask) for mask in made_masks} - {type(None)} == subclasses(masks.Mask)
    wrapped = {positions.TensorBias if isinstance(bias, Tensor) else type(bias) for bias in made_biases}
    assert wrapped - {type(None)} == subclasses(positions.Bias)


def test_every_mask_constructor_is_tested() -> None:
    """A constructor is a public function that gives a mask; the source of the cases above calls each."""
    constructors = {
        name
        for name, function in vars(masks).items()
        if inspect.isfunction(function) and function.__module__ == masks.__name__ and not name.startswith("_")
        if function.__annotations__.get("return") in ("Mask", masks.Mask)
    }
    assert constructors >= {"causal", "window", "blocks", "prefix", "documents", "ranks", "tensor", "where"}
    source = inspect.getsource(inspect.getmodule(MaskCase))
    table = source[source.index("MASKS = {") : source.index("def some_bias")]
    table += inspect.getsource(tensor_mask) + inspect.getsource(rank_mask)
    assert {name for name in constructors if f"masks.{name}(" not in table} == set()


def test_every_combination_of_mask_position_and_form_is_tested() -> None:
    seen = {
        (form, mask, position)
        for form in FORMS
        for score in SCORES
        for mask, position in combinations(form, score, step=5)
    }
    assert len(seen) == sum(len(POSITIONS) for form in FORMS for case in MASKS.values() if case.fits(FORMS[form]))

    flex_forms = [name for name, form in FORMS.items() if form.capacity is None]
    cases = [case for form in flex_forms for score in FLEX_SCORES for case in combinations(form, score, FLEX_STEP)]
    assert {mask for mask, _ in cases} == set(MASKS)
    assert {position for _, position in cases} == set(POSITIONS)


def test_flex_and_varlen_are_asked_as_attend_asks() -> None:
    """All backends' run take the same arguments, and torch's kernel takes those that we give it."""
    module = inspect.getmodule(attend)
    names = [
        list(inspect.signature(getattr(module, name).run).parameters)
        for name in ("reference", "dense", "static", "varlen", "flex")
    ]
    assert all(own == names[0] for own in names)
    from torch.nn.attention.varlen import varlen_attn

    inspect.signature(varlen_attn).bind(*range(7), scale=1.0, window_size=(-1, 0))
    assert varlen.boundaries(Segments.ragged([3, 0, 5])).tolist() == [0, 3, 3, 8]
