"""Whole sequences through packed blocks by our own kernel, beside the same modules one by one."""

import copy
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention import KVCache, Segments, masks, record, silence
from regard.attention.backends import dense, static
from regard.attention.masks import Mask
from regard.attention.positions import Bias, TensorBias, WindowBias
from regard.errors import ContextError, UsageError
from regard.layers.block import Block, extend_all
from regard.layers.packed import pack
from regard.layers.packed_block import MANY_ROWS, PackedBlock
from regard.layers.windows import windows_of
from regard.models.bert import Bert, BertConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.llama import Llama, LlamaConfig
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import Vit, VitConfig

LENGTHS = (17, 0, 1, 33, 16, 70)
SWIN: dict[str, Any] = {
    "image_size": (50, 50),
    "patch_size": 2,
    "embed_dim": 48,
    "num_layers": (2, 2),
    "num_heads": (3, 6),
}
# What is made, and what it is given.
MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "bert": (lambda: Bert(BertConfig(23, 64, 2, 4, 96, max_len=80)), "tokens"),
    "gpt": (lambda: GPT(GPTConfig(23, 64, 2, 4, max_len=80)), "tokens"),
    "gpt, odd sizes": (lambda: GPT(GPTConfig(23, 48, 2, 3, 51, max_len=80, activation="silu")), "tokens"),
    "llama": (lambda: Llama(LlamaConfig(23, 64, 2, 4, 2, 96, 80)), "tokens"),
    "llama, one group": (lambda: Llama(LlamaConfig(23, 64, 2, 4, 1, 33, 80, activation="gelu-tanh")), "tokens"),
    "transformer": (lambda: Transformer(TransformerConfig(23, 23, 64, 96, 4, 0, 2, 2)), "source"),
    "transformer, pre, rotary": (
        lambda: Transformer(TransformerConfig(23, 23, 64, 96, 4, 2, 2, 2, norm="pre", rotary_base=100.0)),
        "source",
    ),
    "vit": (
        lambda: Vit(VitConfig(image_size=(32, 32), patch_size=4, embed_dim=64, num_layers=2, num_heads=4, mlp_dim=96)),
        "pixels",
    ),
    "swin": (lambda: Swin(SwinConfig(**SWIN, window_size=(5,))), "pixels"),
    "swin, zeros": (lambda: Swin(SwinConfig(**SWIN, window_size=(4,), window_padding="zeros")), "pixels"),
    "swin, zeros later": (
        lambda: Swin(SwinConfig(**SWIN, window_size=(7,), window_padding="zeros-after-shift")),
        "pixels",
    ),
    "swin, one window": (lambda: Swin(SwinConfig(**SWIN, window_size=(32,))), "pixels"),
}


@pytest.fixture(autouse=True)
def no_kernel_of_a_test_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(static, "own", None)
    monkeypatch.setattr(dense, "own", None)


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the kernel served, block by block."""
    served: list[bool] = []
    whole = PackedBlock.whole

    def watching(own: PackedBlock, *args: Any) -> Tensor | None:
        found = whole(own, *args)
        served.append(found is not None)
        return found

    monkeypatch.setattr(PackedBlock, "whole", watching)
    return served


def disturbed(model: nn.Module) -> nn.Module:
    """The model with biases and norms that do something."""
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def built(name: str, precision: str = "fp32") -> Any:
    torch.manual_seed(5)
    return pack(disturbed(MODELS[name][0]()), precision, "native")


def block(precision: str = "fp32", **how: Any) -> Block:
    torch.manual_seed(3)
    made = Block(64, 4, 96, **({"norm": "pre"} | how))
    return pack(nn.Sequential(disturbed(made)).eval(), precision, "native")[0]


def alone(model: Any) -> Any:
    """A copy that goes module by module."""
    other = copy.deepcopy(model)
    for module in other.modules():
        if isinstance(module, Block):
            module.own = None
    return other


def run(model: Any, given: str) -> Tensor:
    torch.manual_seed(7)
    if given == "pixels":
        return model(torch.randn(3, 3, 44, 38)).hidden_ND
    tokens_N, segments = torch.arange(sum(LENGTHS)) % 23, Segments.ragged(LENGTHS)
    return model.encode(tokens_N, segments) if given == "source" else model(tokens_N, segments)


def close(found: Tensor, wanted: Tensor, precision: str = "fp32") -> None:
    """Rounding to bfloat16 and to steps moves with the last bits of what is rounded."""
    slack = {"fp32": 1e-5, "bf16": 2e-2, "int8": 1e-3}[precision]
    torch.testing.assert_close(found, wanted, rtol=0, atol=slack * float(wanted.abs().max()))
    assert float((found - wanted).abs().mean()) <= slack / 2 * float(wanted.abs().mean())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_models_are_those_of_the_modules(name: str, precision: str, served: list[bool]):
    model, given = built(name, precision), MODELS[name][1]
    wanted = run(alone(model), given)
    assert served == []
    close(run(model, given), wanted, precision)
    assert served == [True] * sum(
        isinstance(module, Block)
        for module in model.modules()
        if isinstance(module, Block) and module.cross_attn is None
    )
    with torch.inference_mode():
        assert torch.equal(run(model, given), run(model, given))


@pytest.mark.parametrize(
    "how", [{}, {"norm": "post"}, {"gated": True, "rotary_base": 50.0}, {"num_kv_heads": 1}], ids=str
)
def test_many_rows_are_worked_on_some_at_a_time(how: dict[str, Any]):
    """What a sequence gives does not hang on those beside it, nor on where all are cut."""
    one = block(**how)
    lengths = [700, 3, 0, 20000, 1, 512, 9000, 0]
    x_ND = torch.randn(sum(lengths), 64)
    together = one(x_ND, Segments.ragged(lengths), mask=masks.window(20, 3))
    other = alone(one)
    for x_TD, found in zip(x_ND.split(lengths), together.split(lengths), strict=True):
        if len(x_TD):
            segments = Segments.uniform(1, len(x_TD), "cpu")
            close(found, other(x_TD, segments, mask=masks.window(20, 3)))


def test_windows_of_many_images_have_masks_of_their_own(served: list[bool]):
    """Of images that are cut into several pieces of work, each window has its own mask."""
    model = built("swin")
    torch.manual_seed(1)
    pixels = torch.randn(41, 3, 44, 38)  # the first piece ends within an image
    found = model(pixels).hidden_ND.unflatten(0, (41, -1))
    assert served == [True] * 4
    other = alone(model)
    for image, one in zip(pixels, found, strict=True):
        close(one, other(image[None]).hidden_ND)


@pytest.mark.parametrize("padding", ["masked", "zeros", "zeros-after-shift"])
@pytest.mark.parametrize("shift", [(0, 0), (2, 1)])
def test_places_are_those_that_rows_are_taken_from(shift: tuple[int, int], padding: Any):
    windows = windows_of(3, (7, 5), (4, 4), shift, padding, "cpu")
    rows_N1 = torch.arange(1.0, 106)[:, None]
    places_M = windows.places_M
    assert places_M is not None
    assert windows.num_rows == len(rows_N1)
    assert torch.equal(places_M + 1, windows.take(rows_N1)[:, 0].long())
    assert windows_of(2, (8, 5), (4, 5), device="cpu").places_M is None


# ------------------------------------------------------------------------------------------------- what it leaves alone


def test_recorded_and_silenced_blocks_go_module_by_module(served: list[bool]):
    model = built("bert")
    wanted, heard = run(alone(model), "tokens"), run(model, "tokens")
    served.clear()
    with record(model, layers=["blocks.1.self_attn"]) as rows:
        close(run(model, "tokens"), wanted)
    assert served == [True, False]
    assert rows["blocks.1.self_attn"]
    with silence(model, {"blocks.0.self_attn": [1]}):
        found = run(model, "tokens")
    assert served[2:] == [False, True]
    assert float((found - heard).abs().max()) > 1e-2


@pytest.mark.parametrize("where", ["", "mlp", "mlp.down_proj", "self_norm", "self_attn"])
def test_hooks_are_called(where: str, served: list[bool]):
    one, seen = block(), []
    handle = one.get_submodule(where).register_forward_hook(lambda module, args, y: seen.append(y))
    one(torch.randn(5, 64), Segments.uniform(1, 5, "cpu"))
    assert len(seen) == 1
    assert served == [False]
    handle.remove()
    one(torch.randn(5, 64), Segments.uniform(1, 5, "cpu"))
    assert served[1:] == [True]


def test_what_the_kernel_has_not_goes_module_by_module(served: list[bool]):
    one, x_ND, segments = block(), torch.randn(10, 64), Segments.uniform(2, 5, "cpu")
    other = alone(one)

    def same(x_ND: Tensor = x_ND, **how: Any) -> bool:
        close(one(x_ND, segments, **how), other(x_ND, segments, **how))
        return served[-1]

    odd: Mask = masks.where(lambda at: (at.query + at.key) % 2 == 0)
    bias: Bias = TensorBias(torch.randn(5, 5))
    assert same()
    assert same(x_ND.t().contiguous().t())
    assert same(mask=masks.causal())
    assert not same(mask=odd)
    assert not same(bias=bias)
    with torch.enable_grad(), pytest.raises(UsageError, match="a gradient through packed weights"):
        one(x_ND.clone().requires_grad_(), segments)
    assert not served[-1]
    one.self_attn.backend = "reference"
    assert not same()
    one.self_attn.backend = None
    one.dropout.train()
    one(x_ND, segments)
    assert not served[-1]
    one.dropout.eval()
    one.self_norm.weight = nn.Parameter(torch.full((64,), 3.0), requires_grad=False)
    other.self_norm.weight = one.self_norm.weight
    assert same()
    crossing = block(cross=True, norm="post")
    crossing(x_ND, segments, torch.randn(4, 64), Segments.uniform(2, 2, "cpu"))
    assert len(served) == 9  # of a context nobody is asked


def test_masks_and_biases_of_windows_that_differ_go_module_by_module(served: list[bool]):
    """What differs from image to image is no mask of one image's windows."""
    one, windows = block(), windows_of(2, (8, 8), (4, 4), (2, 2), device="cpu")
    x_ND, segments = torch.randn(128, 64), Segments.uniform(2, 64, "cpu")
    for how in ({"mask": masks.causal()}, {"bias": TensorBias(torch.randn(8, 1, 16, 16))}):
        close(one(x_ND, segments, windows=windows, **how), alone(one)(x_ND, segments, windows=windows, **how))
    close(one(x_ND, segments, windows=windows), alone(one)(x_ND, segments, windows=windows))
    assert served == [False, False, True]


def test_a_decoders_block_without_a_context_is_the_modules_affair(served: list[bool]):
    one, x_ND, segments = block(cross=True), torch.randn(10, 64), Segments.uniform(2, 5, "cpu")
    assert torch.equal(one(x_ND, segments), alone(one)(x_ND, segments))
    assert served == [False]


def test_what_does_not_fit_is_refused_as_ever(served: list[bool]):
    one = block()
    with pytest.raises(UsageError, match="9 rows"):
        one(torch.randn(9, 64), Segments.uniform(2, 5, "cpu"))
    with pytest.raises(RuntimeError):
        one(torch.randn(10, 48), Segments.uniform(2, 5, "cpu"))
    assert served == [False, False]


@pytest.mark.parametrize(
    "positions_N", [torch.arange(4), torch.tensor([3]), torch.tensor(3), torch.arange(20)], ids=str
)
def test_other_positions_than_rows_are_the_modules_affair(positions_N: Tensor):
    one, x_ND, segments = block(rotary_base=100.0), torch.randn(10, 64), Segments.uniform(2, 5, "cpu")
    shifted = torch.arange(10) * 3
    close(one(x_ND, segments, positions_N=shifted), alone(one)(x_ND, segments, positions_N=shifted))
    try:
        wanted = alone(one)(x_ND, segments, positions_N=positions_N)
    except (RuntimeError, UsageError, IndexError) as error:
        with pytest.raises(type(error)):
            one(x_ND, segments, positions_N=positions_N)
    else:
        assert torch.equal(one(x_ND, segments, positions_N=positions_N), wanted)


def test_segments_elsewhere_and_of_other_integers():
    one, x_ND = block(), torch.randn(30, 64)
    with pytest.raises(UsageError, match="different devices"):
        one(x_ND, Segments.ragged([10, 20], device="meta"))
    given = Segments.ragged([10, 20])
    short = Segments("ragged", given.lengths_B.int(), given.starts_B.int(), 30, 32)
    assert torch.equal(one(x_ND, short), one(x_ND, given))


def test_windows_under_another_default_dtype(served: list[bool]):
    windows = windows_of(2, (8, 8), (4, 4), (2, 2), device="cpu")
    x_ND, segments = torch.randn(128, 64), Segments.uniform(2, 64, "cpu")
    one, bias = block(), WindowBias(4, 4)
    wanted = one(x_ND, segments, windows=windows, bias=bias)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(one(x_ND, segments, windows=windows, bias=bias), wanted)
    finally:
        torch.set_default_dtype(torch.float32)
    assert served == [True] * 2
    with torch.enable_grad(), pytest.raises(UsageError, match="a gradient through packed weights"):
        one(x_ND, segments, windows=windows, bias=bias)


def test_what_is_not_plain_memory_goes_module_by_module(served: list[bool]):
    one, x_ND, segments = block(), torch.randn(10, 64), Segments.uniform(2, 5, "cpu")
    assert torch.equal(one(torch._neg_view(x_ND), segments), alone(one)(torch._neg_view(x_ND), segments))
    assert served == [False]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_not_finite_reaches_few_that_do_not_see_it(precision: str):
    """Those that are taken together with one that sees it: 48 at most."""
    one, x_ND = block(precision), torch.randn(200, 64)
    x_ND[150] = torch.nan
    finite = one(x_ND, Segments.uniform(1, 200, "cpu"), mask=masks.causal()).isfinite().all(-1)
    assert finite[:102].all()
    assert not finite[150:].any()


def test_nothing_gives_nothing():
    one = block()
    assert one(torch.empty(0, 64), Segments.ragged([0, 0, 0])).shape == (0, 64)


def test_what_is_not_finite_stays_in_its_sequence():
    one = block()
    x_ND = torch.randn(30, 64)
    x_ND[12, 3] = torch.nan
    found = one(x_ND, Segments.uniform(3, 10, "cpu")).isfinite().all(-1)
    assert found.tolist() == [True] * 10 + [False] * 10 + [True] * 10


def test_copies_and_other_threads_have_calls_of_their_own(served: list[bool]):
    one, segments = block(), Segments.uniform(4, 50, "cpu")
    many = [torch.randn(200, 64) for _ in range(8)]
    wanted = [one(x_ND, segments) for x_ND in many]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(torch.no_grad()(lambda x_ND: one(x_ND, segments)), many))
    assert all(map(torch.equal, found, wanted))
    file = io.BytesIO()
    torch.save(one, file)
    file.seek(0)
    kept = torch.load(file, weights_only=False)
    assert torch.equal(kept(many[0], segments), wanted[0])
    assert served == [True] * 17


# -------------------------------------------------------------------------------------------------------------- prompts


def cache(capacity: int, slots: int, groups: int = 4) -> KVCache:
    """An empty one, in which whatever is not written is seen."""
    empty = KVCache.empty(slots, capacity, groups, 16, torch.empty(0))
    empty.k_store.fill_(5.0), empty.v_store.fill_(5.0)
    return empty


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("how", [{}, {"rotary_base": 100.0, "num_kv_heads": 2, "gated": True}], ids=["plain", "rotary"])
@pytest.mark.parametrize("lengths", [(MANY_ROWS,), (100, 1, 0, 200)])
def test_prompts_are_those_of_the_modules(lengths: tuple[int, ...], how: dict[str, Any], precision: str):
    one, groups = block(precision, **how), how.get("num_kv_heads", 4)
    x_ND, segments = torch.randn(sum(lengths), 64), Segments.ragged(lengths)
    y_ND, (found,) = extend_all([one], x_ND, segments, [cache(208 if len(lengths) > 1 else 272, len(lengths), groups)])
    want_ND, (wanted,) = extend_all(
        [alone(one)], x_ND, segments, [cache(208 if len(lengths) > 1 else 272, len(lengths), groups)]
    )
    close(y_ND, want_ND, precision)
    assert found.past.known == wanted.past.known == lengths
    for mine, theirs in ((found.k_store, wanted.k_store), (found.v_store, wanted.v_store)):
        close(mine, theirs, precision)
        assert torch.equal(mine == 5.0, theirs == 5.0)  # nothing is written anywhere else


def test_a_prompt_that_has_no_room_is_refused_and_nothing_is_written():
    one, small, x_ND = block(), cache(16, 1), torch.randn(300, 64)
    assert one.own is not None
    with pytest.raises(ContextError):
        one.own([one], x_ND, Segments.uniform(1, 300, "cpu"), [small], [None], None, masks.causal())
    assert small.max_len == 0
    assert bool((small.k_store == 5.0).all())
    assert bool((small.v_store == 5.0).all())


def test_what_follows_a_prompt_sees_it():
    model = built("gpt")
    other = alone(model)
    lengths, tokens_N = (70,) * 5, torch.arange(350) % 23
    found, wanted = (one.start(tokens_N, Segments.ragged(lengths), 1) for one in (model, other))
    for token in range(3):
        (logits_RV, found), (want_RV, wanted) = (
            one.step((torch.arange(5) + token) % 23, state) for one, state in ((model, found), (other, wanted))
        )
        close(logits_RV, want_RV)
