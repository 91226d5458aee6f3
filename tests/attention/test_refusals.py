"""What attention refuses, and why; and the backend that it chooses where none is asked for."""

import inspect
from collections.abc import Sequence

import pytest
import torch
from attention.cases import HEADS
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.attention import Segments, attend, masks, positions, scores
from regard.errors import BackendError, UsageError

# ------------------------------------------------------------------------------------------------------------- refusals


def rows_and_segments(dtype: torch.dtype = torch.float32, head_dim: int = 8, device: str = "cpu") -> tuple:
    q = torch.empty(7, HEADS, head_dim, dtype=dtype, device=device).fill_(0.5)
    lengths, starts = (torch.empty(2, dtype=torch.int64, device=device) for _ in range(2))
    segments = Segments("ragged", lengths, starts, 7, 16)
    segments._derived["lengths"] = (2, 5)  # what Segments.ragged leaves there; the tensors may be fake
    return q, q, q, segments


@pytest.mark.parametrize("backend", ["varlen", "flex"])
def test_cuda_backends_refuse_the_cpu(backend: str) -> None:
    with pytest.raises(BackendError, match=f"backend {backend}: it runs on CUDA.* the tensors are on cpu"):
        attend(*rows_and_segments(), backend=backend)


@pytest.mark.parametrize(
    ("reason", "dtype", "head_dim", "options"),
    [
        ("bfloat16 and float16, not float32", torch.float32, 8, {}),
        ("causal and window masks only", torch.bfloat16, 8, {"mask": masks.blocks(2)}),
        ("no bias", torch.bfloat16, 8, {"bias": positions.Alibi(HEADS)}),
        ("dot-product scores only", torch.bfloat16, 8, {"score": scores.Additive(HEADS, 8)}),
        ("no dropout on the weights", torch.bfloat16, 8, {"dropout_p": 0.1}),
        ("head sizes that are multiples of 8 up to 256, not 12", torch.bfloat16, 12, {}),
        ("head sizes that are multiples of 8 up to 256, not 264", torch.bfloat16, 264, {}),
    ],
)
def test_varlen_says_why_it_refuses(reason: str, dtype: torch.dtype, head_dim: int, options: dict) -> None:
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(BackendError, match=f"backend varlen: it takes {reason}"),
    ):
        attend(*rows_and_segments(dtype, head_dim, "cuda"), **options, backend="varlen")


def test_varlen_refuses_values_of_another_head_size() -> None:
    with FakeTensorMode():
        q, k, _, segments = rows_and_segments(torch.bfloat16, 16, "cuda")
        v = torch.empty(*k.shape[:2], 8, dtype=k.dtype, device="cuda")
        with pytest.raises(BackendError, match="values of the queries' head size only"):
            attend(q, k, v, segments, backend="varlen")


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("dot-product scores only", {"score": scores.Additive(HEADS, 8)}),
        ("no dropout on the weights", {"dropout_p": 0.1}),
    ],
)
def test_flex_says_why_it_refuses(reason: str, options: dict) -> None:
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(BackendError, match=f"backend flex: it takes {reason}"),
    ):
        attend(*rows_and_segments(device="cuda"), **options, backend="flex")


def test_slots_and_their_backends_belong_together() -> None:
    q, k, v = (torch.zeros(4, 1, 2) for _ in range(3))
    uniform, slots = Segments.uniform(2, 2), Segments.slots(torch.tensor([1, 2]), 2)
    for backend, keys in (("static", uniform), ("dense", slots)):
        with pytest.raises(BackendError, match=f"backend {backend}: .*slots"):
            attend(q, k, v, uniform, keys, backend=backend)


UNIFORM = Segments.uniform(2, 3)


@pytest.mark.parametrize(
    ("message", "q", "k", "v", "options"),
    [
        ("not all \\(rows, heads, head size\\)", (6, 2), (6, 1, 2), (6, 1, 2), {}),
        ("differ in rows or heads", (6, 1, 2), (6, 1, 2), (6, 2, 2), {}),
        ("head size 2 and keys of 4", (6, 1, 2), (6, 1, 4), (6, 1, 2), {}),
        ("3 query heads cannot share 2", (6, 3, 2), (6, 2, 2), (6, 2, 2), {}),
        ("q has 5 rows, its segments 6", (5, 1, 2), (6, 1, 2), (6, 1, 2), {}),
        ("k has 7 rows, its segments 6", (6, 1, 2), (7, 1, 2), (7, 1, 2), {}),
        ("dropout_p is 1.0", (6, 1, 2), (6, 1, 2), (6, 1, 2), {"dropout_p": 1.0}),
        (
            "2 sequences of queries and 3 of keys",
            (6, 1, 2),
            (6, 1, 2),
            (6, 1, 2),
            {"k_segments": Segments.uniform(3, 2)},
        ),
        ("queries in slots", (6, 1, 2), (6, 1, 2), (6, 1, 2), {"q_segments": Segments.slots(torch.tensor([1, 2]), 3)}),
        ("unknown backend 'fast'", (6, 1, 2), (6, 1, 2), (6, 1, 2), {"backend": "fast"}),
        ("the mask is a tensor", (6, 1, 2), (6, 1, 2), (6, 1, 2), {"mask": torch.ones(3, 3, dtype=torch.bool)}),
        (
            "a mask of .* = \\(1, 1, 2, 3\\)",
            (6, 1, 2),
            (6, 1, 2),
            (6, 1, 2),
            {"mask": masks.tensor(torch.ones(2, 3) > 0)},
        ),
        (
            "a mask of .* = \\(1, 1, 3, 2\\)",
            (6, 1, 2),
            (6, 1, 2),
            (6, 1, 2),
            {"mask": masks.tensor(torch.ones(3, 2) > 0)},
        ),
        (
            "a mask of .* = \\(1, 2, 3, 3\\)",
            (6, 3, 2),
            (6, 1, 2),
            (6, 1, 2),
            {"mask": masks.tensor(torch.ones(2, 3, 3) > 0)},
        ),
        ("a bias of .* = \\(3, 1, 3, 3\\)", (6, 1, 2), (6, 1, 2), (6, 1, 2), {"bias": torch.ones(3, 1, 3, 3)}),
        ("2 prefix lengths", (9, 1, 2), (9, 1, 2), (9, 1, 2), {"mask": masks.prefix(torch.tensor([1, 2])), "count": 3}),
        (
            "document ids",
            (6, 1, 2),
            (6, 1, 2),
            (6, 1, 2),
            {"mask": masks.causal() & masks.documents(torch.zeros(2, 2))},
        ),
        ("ALiBi of 2 heads for 1", (6, 1, 2), (6, 1, 2), (6, 1, 2), {"bias": positions.Alibi(2)}),
        ("relative biases of 2 heads for 1", (6, 1, 2), (6, 1, 2), (6, 1, 2), {"bias": positions.RelativeBias(2)}),
        ("window biases of 2 heads for 1", (6, 1, 2), (6, 1, 2), (6, 1, 2), {"bias": positions.WindowBias(2, 3)}),
        ("3 tokens in a window of 1 × 1", (6, 1, 2), (6, 1, 2), (6, 1, 2), {"bias": positions.WindowBias(1, 1)}),
    ],
)
def test_misuse_is_told(message: str, q: Sequence[int], k: Sequence[int], v: Sequence[int], options: dict) -> None:
    options = {"q_segments": Segments.uniform(options.pop("count", 2), 3)} | options
    with pytest.raises(UsageError, match=message):
        attend(torch.zeros(q), torch.zeros(k), torch.zeros(v), **options)


def test_misuse_of_types_is_told() -> None:
    x, half = torch.zeros(6, 1, 2), torch.zeros(6, 1, 2, dtype=torch.float16)
    with pytest.raises(UsageError, match="dtypes differ"):
        attend(x, x, x.double(), UNIFORM)
    with pytest.raises(UsageError, match="float16 on CPU"):
        attend(half, half, half, UNIFORM)
    with pytest.raises(UsageError, match="ragged queries into slots"):
        attend(x, x, x, Segments.ragged([2, 4]), Segments.slots(torch.tensor([1, 2]), 3))
    with pytest.raises(UsageError, match="a bool tensor is a mask"):
        attend(x, x, x, UNIFORM, bias=torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(UsageError, match="True = may attend"):
        masks.tensor(torch.zeros(3, 3))
    with pytest.raises(UsageError, match="-1 for all"):
        masks.window(-2, 0)
    with pytest.raises(UsageError, match="size ≥ 1"):
        masks.blocks(0)
    for buckets, greatest, both in ((2, 128, True), (1, 128, False), (32, 8, True)):
        with pytest.raises(UsageError, match=f"{buckets} relative buckets"):
            positions.RelativeBias(1, buckets, greatest, both)


# ------------------------------------------------------------------------------------------------------ default backend

CUDA_CHOICES = [
    ("flex", {"dtype": torch.float32}, {}),
    ("varlen", {"dtype": torch.bfloat16}, {}),
    ("varlen", {"dtype": torch.float16}, {"mask": masks.causal()}),
    ("varlen", {"dtype": torch.bfloat16}, {"mask": masks.window(3, 0) & masks.causal()}),
    ("flex", {"dtype": torch.bfloat16}, {"mask": masks.blocks(2)}),
    ("flex", {"dtype": torch.bfloat16}, {"bias": positions.Alibi(HEADS)}),
    ("flex", {"dtype": torch.bfloat16, "head_dim": 20}, {}),
    ("dense", {"dtype": torch.bfloat16}, {"dropout_p": 0.1}),
    ("reference", {"dtype": torch.bfloat16}, {"score": scores.Additive(HEADS, 16)}),
]


@pytest.mark.parametrize(("backend", "rows", "options"), CUDA_CHOICES)
def test_ragged_rows_on_cuda_go_where_the_table_says(
    backend: str, rows: dict, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert chosen(monkeypatch, *rows_and_segments(**{"head_dim": 16} | rows, device="cuda"), **options) == backend


def chosen(monkeypatch: pytest.MonkeyPatch, *args: object, **options: object) -> str:
    """Which backend a call is handed to; it is recorded instead of run."""
    module = inspect.getmodule(attend)
    calls: list[str] = []
    for name in ("reference", "dense", "static", "varlen", "flex"):
        monkeypatch.setattr(getattr(module, name), "run", lambda *args, name=name: calls.append(name))
    attend(*args, **options)
    (name,) = calls
    return name


def test_rows_on_the_cpu_go_where_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(6, HEADS, 2)
    slots = Segments.slots(torch.tensor([1, 2]), 3)
    assert chosen(monkeypatch, x, x, x, UNIFORM) == "dense"
    assert chosen(monkeypatch, x, x, x, Segments.ragged([1, 5]), dropout_p=0.1) == "dense"
    assert chosen(monkeypatch, x, x, x, UNIFORM, slots) == "static"
    assert chosen(monkeypatch, x, x, x, UNIFORM, slots, score=scores.Additive(HEADS, 2)) == "reference"
    assert chosen(monkeypatch, x, x, x, UNIFORM, score=scores.Relative(HEADS, 2, 4)) == "reference"
