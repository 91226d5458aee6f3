"""Steps through packed blocks by our own kernel, beside the same modules one by one."""

import copy
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn, no_grad
from torch.nn.modules.module import register_module_forward_hook

from regard.attention import KVCache, Segments, masks, record, silence
from regard.attention.backends import static
from regard.attention.masks import Mask
from regard.attention.past import Past
from regard.decoding import DecodeOptions, decode
from regard.errors import ContextError, UsageError
from regard.layers.block import Block, extend_all
from regard.layers.packed import pack
from regard.layers.packed_block import MANY_ROWS, PackedBlock
from regard.models.gpt import GPT, GPTConfig
from regard.models.llama import Llama, LlamaConfig
from regard.models.transformer import Transformer, TransformerConfig

MODELS: dict[str, Callable[[], Any]] = {
    "gpt": lambda: GPT(GPTConfig(23, 64, 2, 4, max_len=64)),
    "gpt, odd sizes": lambda: GPT(GPTConfig(23, 48, 2, 3, 51, max_len=64, activation="silu")),
    "llama": lambda: Llama(LlamaConfig(23, 64, 2, 4, 2, 96, 64)),
    "llama, one group": lambda: Llama(LlamaConfig(23, 64, 2, 4, 1, 33, 64, activation="gelu-tanh")),
    "transformer": lambda: Transformer(TransformerConfig(23, 23, 64, 96, 4, 0, 2, 2)),
    "transformer, pre": lambda: Transformer(TransformerConfig(23, 23, 64, 96, 4, 0, 2, 2, norm="pre")),
    "transformer, rotary, grouped": lambda: Transformer(
        TransformerConfig(23, 23, 64, 96, 4, 2, 2, 2, rotary_base=100.0)
    ),
}
CAUSAL = [name for name in MODELS if not name.startswith("transformer")]


@pytest.fixture(autouse=True)
def no_kernel_of_a_test_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(static, "own", None)


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def built(name: str = "gpt", precision: str = "fp32") -> Any:
    torch.manual_seed(5)
    model = MODELS[name]().eval()
    for parameter in model.parameters():  # biases and norms too
        parameter += 0.1 * torch.randn_like(parameter)
    return pack(model, precision, "native")


def blocks(model: nn.Module) -> list[Block]:
    """The blocks that take steps."""
    return [module for module in model.modules() if isinstance(module, Block)][-2:]


def alone(model: Any) -> Any:
    """A copy that goes module by module."""
    other = copy.deepcopy(model)
    for block in blocks(other):
        block.own = None
    return other


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blocks the kernel served, call by call."""
    served: list[int] = []
    call = PackedBlock.__call__

    def watching(own: PackedBlock, *args: Any) -> Any:
        found = call(own, *args)
        served.append(0 if found is None else len(found[1]))
        return found

    monkeypatch.setattr(PackedBlock, "__call__", watching)
    return served


def extended(block: Block, x_ND: torch.Tensor, segments: Segments, cache: KVCache) -> tuple[torch.Tensor, KVCache]:
    """One block's new tokens, by whoever serves them."""
    y_ND, (cache,) = extend_all([block], x_ND, segments, [cache])
    return y_ND, cache


def asked(
    block: Block, x_ND: torch.Tensor, segments: Segments, cache: KVCache, mask: Mask | None = None
) -> tuple[torch.Tensor, list[KVCache]] | None:
    """What the kernel gives of one block."""
    assert block.own is not None
    return block.own([block], x_ND, segments, [cache], [None], None, mask)


def steps(model: Any, lengths: tuple[int, ...] = (5, 7), beams: int = 1, count: int = 12) -> torch.Tensor:
    state = model.start(torch.arange(sum(lengths)) % 23, Segments.ragged(lengths), beams)
    rows = len(lengths) * beams
    found = []
    for token in range(count):
        logits_RV, state = model.step((torch.arange(rows) * 5 + token) % 23, state)
        found.append(logits_RV)
        if beams > 1:  # the last beam of each goes on from the first
            order_R = torch.arange(rows).view(-1, beams)
            order_R[:, -1] = order_R[:, 0]
            state = state.select(order_R.flatten(), None)
    return torch.stack(found)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("lengths", [(6,), (4, 4, 4), (5, 1, 9)])
@pytest.mark.parametrize("name", MODELS)
def test_steps_are_those_of_the_modules(
    name: str, lengths: tuple[int, ...], beams: int, precision: str, served: list[int]
):
    model = built(name, precision)
    wanted = steps(alone(model), lengths, beams)
    served.clear()
    found = steps(model, lengths, beams)
    # Another rounding of a norm moves some inputs by one step of bf16 or int8 each.
    tolerance = {"fp32": 1e-5, "bf16": 8e-3, "int8": 2e-3}[precision]
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance * float(wanted.abs().max()))
    # Prompts of different lengths go module by module.
    is_ragged = name in CAUSAL and len(set(lengths)) > 1
    assert served == ([0, 0] if is_ragged else [2] if name in CAUSAL else []) + [2] * 12


@pytest.mark.parametrize("name", CAUSAL)
def test_several_tokens_at_once(name: str, served: list[int]):
    model = built(name)

    def run(one: Any) -> torch.Tensor:
        state = one.start(torch.arange(12), Segments.ragged([5, 7]), 1)
        first, state = one.extend(torch.arange(6), state)
        state = state.rewind([6, 9])
        return torch.cat([first, one.extend(torch.arange(4), state)[0]])

    wanted = run(alone(model))
    served.clear()
    torch.testing.assert_close(run(model), wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
    assert served == [0, 0, 2, 2]


def test_many_rows_share_their_work(served: list[int]):
    torch.manual_seed(0)
    model = pack(GPT(GPTConfig(23, 256, 2, 4, max_len=64)).eval(), "fp32", "native")
    lengths = (3,) * 80
    wanted = steps(alone(model), lengths, count=2)
    served.clear()
    torch.testing.assert_close(steps(model, lengths, count=2), wanted, rtol=0, atol=1e-5)
    assert served == [2] * 3
    steps(model, (1,) * MANY_ROWS, count=1)
    assert served[3:] == [1, 1, 0, 0]  # as many first tokens block by block, behind others not at all


def test_many_rows_in_int8(served: list[int]):
    torch.manual_seed(0)
    model = pack(GPT(GPTConfig(23, 64, 2, 4, max_len=64)).eval(), "int8", "native")
    wanted = steps(alone(model), (50,) * 3, count=2)  # more rows than a thread prepares alone
    served.clear()
    torch.testing.assert_close(steps(model, (50,) * 3, count=2), wanted, rtol=0, atol=2e-3 * float(wanted.abs().max()))
    assert served == [2] * 3


def test_blocks_that_are_not_alike_take_calls_of_their_own(served: list[int]):
    model = built()
    some, x_ND = blocks(model), torch.randn(2, 64)
    one, empty = Segments.uniform(2, 1, x_ND.device), KVCache.empty(2, 16, 4, 16, x_ND)
    past = extended(some[0], x_ND, one, empty)[1].past
    roomy = KVCache(torch.zeros(2, 32, 4, 16), torch.zeros(2, 32, 4, 16), past)
    narrow = KVCache(torch.zeros(2, 16, 4, 16), torch.zeros(2, 16, 4, 16), past)
    wanted = some[1].extend(some[0].extend(x_ND, one, narrow)[0], one, roomy)[0]
    served.clear()
    found, caches = extend_all(some, x_ND, one, [narrow, roomy])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert [cache.k_store.shape[1] for cache in caches] == [16, 32]
    apart = KVCache(narrow.k_store.clone(), narrow.v_store.clone(), Past(past.lengths_B, past.known))
    extend_all(some, x_ND, one, [narrow, apart])
    assert served == [1, 1, 1, 1]


def test_blocks_that_turn_otherwise_take_calls_of_their_own(served: list[int]):
    torch.manual_seed(2)
    turned = (Block(64, 4, 96, norm="pre", rotary_base=base) for base in (100.0, 100.0, None))
    some = list(pack(nn.Sequential(*turned).eval(), "fp32", "native"))
    x_ND, four = torch.randn(4, 64), Segments.uniform(1, 4, torch.device("cpu"))
    past = Past.nothing(1, x_ND.device)
    caches = [KVCache(torch.zeros(1, 16, 4, 16), torch.zeros(1, 16, 4, 16), past) for _ in some]
    found, _ = extend_all(some, x_ND, four, caches)
    assert served == [2, 1]
    for block in some:
        x_ND, _ = block.extend(x_ND, four, KVCache.empty(1, 16, 4, 16, x_ND), mask=masks.causal())
    torch.testing.assert_close(found, x_ND, rtol=0, atol=1e-5)


def test_contexts_that_are_not_alike_take_calls_of_their_own(served: list[int]):
    some = blocks(built("transformer"))
    torch.manual_seed(3)
    x_ND, memory_MD, lengths = torch.randn(2, 64), torch.randn(5, 64), Segments.ragged([2, 3])
    one = Segments.uniform(2, 1, x_ND.device)
    (first, context), (second, other) = (block.start(memory_MD, lengths, 2) for block in some)
    other = replace(other.reserve(32), past=context.past)
    second = replace(second, past=first.past)
    found, _ = extend_all(some, x_ND, one, [first, second], [context, other], one)
    assert served == [1, 1]
    for block, read in zip(some, (context, other), strict=True):
        x_ND, _ = block.extend(x_ND, one, KVCache.empty(2, 16, 4, 16, x_ND), read, one, mask=masks.causal())
    torch.testing.assert_close(found, x_ND, rtol=0, atol=1e-5)


def test_each_block_has_its_cache():
    model = built()
    cache = KVCache.empty(1, 16, 4, 16, torch.empty(0))
    for caches in ([cache], [cache] * 3):
        with pytest.raises(ValueError, match="zip"):
            extend_all(blocks(model), torch.randn(1, 64), Segments.uniform(1, 1, torch.device("cpu")), caches)


# ------------------------------------------------------------------------------------------------- what it leaves alone


def test_recorded_steps_are_recorded(served: list[int]):
    model = built()
    wanted = alone(model)
    with record(wanted) as rows:
        steps(wanted, count=2)
    served.clear()
    with record(model, layers=["blocks.1.self_attn"]) as found:
        steps(model, count=2)
    assert served == [0, 0, 1, 0, 1, 0]
    for mine, theirs in zip(found["blocks.1.self_attn"], rows["blocks.1.self_attn"], strict=True):
        torch.testing.assert_close(mine.weights_HTS, theirs.weights_HTS, rtol=0, atol=1e-6)


def test_silenced_heads_are_silent():
    model, name = built(), "blocks.0.self_attn"
    heard = steps(model)
    other = alone(model)
    with silence(other, {name: [1]}):
        wanted = steps(other)
    with silence(model, {name: [1]}):
        found = steps(model)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
    assert float((found - heard).abs().max()) > 1e-2


@pytest.mark.parametrize("where", ["blocks.1", "blocks.1.mlp", "blocks.1.mlp.down_proj", "blocks.1.self_norm"])
def test_hooks_are_called(where: str, served: list[int]):
    model = built()
    seen: list[torch.Tensor] = []
    handle = model.get_submodule(where).register_forward_hook(lambda module, args, y: seen.append(y))
    served.clear()
    wanted = steps(model, count=1)
    assert served == [0, 0, 1, 0]
    assert where == "blocks.1" or len(seen) == 2
    handle.remove()
    torch.testing.assert_close(steps(model, count=1), wanted, rtol=0, atol=1e-4)
    assert served[-1] == 2


def test_other_dtypes_and_chosen_backends_go_module_by_module():
    model = built()
    (block, _), x_ND = blocks(model), torch.randn(2, 64)
    cache = KVCache.empty(2, 16, 4, 16, x_ND)
    first = Segments.uniform(2, 1, x_ND.device)
    _, cache = block.extend(x_ND, first, cache)
    assert asked(block, x_ND.double(), first, cache) is None
    block.self_attn.backend = "static"
    assert asked(block, x_ND, first, cache) is None
    block.self_attn.backend = None
    unknown = KVCache(cache.k_store, cache.v_store, Past(cache.lengths_B, None, 16))
    assert asked(block, x_ND, first, unknown) is None
    assert asked(block, x_ND, first, cache) is not None


def test_masks_of_one_step_are_told_apart():
    model = built()
    (block, _), x_ND = blocks(model), torch.randn(6, 64)
    _, cache = block.extend(x_ND, Segments.ragged([2, 4]), KVCache.empty(2, 16, 4, 16, x_ND))
    two, x_ND = Segments.uniform(2, 2, x_ND.device), torch.randn(4, 64)
    for mask in (masks.causal(), masks.window(1, 0), masks.causal()):
        found = asked(block, x_ND, two, cache, mask)
        assert found is not None
        wanted, _ = block.extend(x_ND, two, cache, mask=mask)
        torch.testing.assert_close(found[0], wanted, rtol=0, atol=1e-5)


def test_a_gradient_is_not_lost():
    model = built()
    block = blocks(model)[0]
    with torch.enable_grad():
        x_ND = torch.randn(1, 64, requires_grad=True)
        cache = KVCache.empty(1, 16, 4, 16, x_ND)
        with torch.no_grad():
            _, cache = block.extend(x_ND, Segments.uniform(1, 1, x_ND.device), cache)
        one = Segments.uniform(1, 1, x_ND.device)
        assert asked(block, x_ND, one, cache) is None
        assert asked(block, x_ND.detach(), one, cache) is not None
        block.mlp_norm.requires_grad_(True)
        assert asked(block, x_ND.detach(), one, cache) is None


def test_a_full_cache_is_refused_and_nothing_is_written():
    model = built()
    (block, _), x_ND = blocks(model), torch.randn(1, 64)
    one = Segments.uniform(1, 1, x_ND.device)
    cache = KVCache.empty(1, 2, 4, 16, x_ND)
    for _ in range(2):
        _, cache = extended(block, x_ND, one, cache)
    before = cache.k_store.clone()
    with pytest.raises(ContextError, match="2 \\+ 1 tokens in a cache for 2"):
        asked(block, x_ND, one, cache)
    assert torch.equal(cache.k_store, before)


def test_what_is_not_finite_stays_in_its_row():
    model = built()
    (block, _), x_ND = blocks(model), torch.randn(3, 64)
    one = Segments.uniform(3, 1, x_ND.device)
    _, cache = extended(block, x_ND, one, KVCache.empty(3, 16, 4, 16, x_ND))
    x_ND[1, 3] = torch.nan
    y_ND, _ = extended(block, x_ND, one, cache)
    assert y_ND[1].isnan().all()
    assert y_ND[[0, 2]].isfinite().all()


def filled(block: Block, lengths: tuple[int, ...], width: int = 64) -> KVCache:
    x_ND = torch.randn(sum(lengths), width)
    attn = block.self_attn
    cache = KVCache.empty(len(lengths), 16, attn.num_kv_heads, attn.head_dim, x_ND)
    return block.extend(x_ND, Segments.ragged(lengths), cache)[1]


def test_what_does_not_fit_is_refused_as_ever():
    block = blocks(built())[0]
    cache, two = filled(block, (2, 3)), Segments.uniform(2, 1, torch.device("cpu"))
    with pytest.raises(UsageError, match="ragged queries into slots"):
        extended(block, torch.randn(3, 64), Segments.ragged([1, 2]), cache)
    cache = filled(block, (2, 3))
    with pytest.raises(RuntimeError, match="64"):
        extended(block, torch.randn(2, 32), two, cache)
    store = torch.zeros(2, 16, 4, 16, dtype=torch.bfloat16)
    half = replace(filled(block, (2, 3)), k_store=store, v_store=store)
    with pytest.raises(RuntimeError, match="dtypes match"):
        extended(block, torch.randn(2, 64), two, half)
    store = torch.zeros(2, 16, 2, 32)
    other = replace(filled(block, (2, 3)), k_store=store, v_store=store)
    with pytest.raises((UsageError, RuntimeError)):
        extended(block, torch.randn(2, 64), two, other)
    short, cache = masks.tensor(torch.ones(1, 1, 1, 2, dtype=torch.bool)), filled(block, (2, 3))
    with pytest.raises(UsageError, match="mask"):
        asked(block, torch.randn(2, 64), two, cache, short)


def test_a_context_is_read_by_as_many_rows_a_slot(served: list[int]):
    model = built("transformer")
    block = blocks(model)[0]
    context, _ = block.start(torch.randn(5, 64), Segments.ragged([2, 3]), 2)[::-1]
    cache = KVCache.empty(6, 16, 4, 16, torch.empty(0))
    six = Segments.uniform(6, 1, torch.device("cpu"))
    three = Segments.uniform(2, 3, torch.device("cpu"))
    _, (cache,) = extend_all([block], torch.randn(6, 64), six, [cache], [context], three)
    assert served == [1]
    x_ND = torch.randn(6, 64)
    with pytest.raises(UsageError):
        extend_all([block], x_ND, six, [cache], [context])
    with pytest.raises(UsageError):
        extend_all([block], x_ND, six, [cache], [context], Segments.uniform(1, 6, torch.device("cpu")))


@pytest.mark.parametrize("where", ["self_attn", "dropout", "mlp.dropout", "drop_path"])
def test_what_drops_goes_module_by_module(where: str, served: list[int]):
    model = built()
    block = blocks(model)[0]
    block.get_submodule(where).training = True
    served.clear()
    steps(model, count=1)
    assert served == [0, 0, 0, 1]


def test_hooks_on_all_modules_are_called(served: list[int]):
    model = built()
    seen: list[nn.Module] = []
    handle = register_module_forward_hook(lambda module, args, y: seen.append(module))
    try:
        served.clear()
        steps(model, count=1)
    finally:
        handle.remove()
    assert served == [0] * 4
    assert seen.count(blocks(model)[0].mlp.down_proj) == 2


def test_two_threads_have_steps_of_their_own():
    model = built("llama")
    wanted = [steps(model, lengths) for lengths in ((3,), (4, 6))]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(no_grad()(steps), model, lengths) for _ in range(20) for lengths in ((3,), (4, 6))]
        for place, job in enumerate(jobs):
            assert torch.equal(job.result(), wanted[place % 2])


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_texts_that_leave_and_join(name: str, beam: int, served: list[int]):
    """Fewer lanes than texts, ends that come early: slots are filled by others, contexts with them."""
    model = built(name)
    torch.manual_seed(1)
    sources = [torch.randint(3, 23, (length,)) for length in (5, 2, 7, 3, 4, 6, 2)]
    segments = Segments.ragged([len(source) for source in sources])

    def run(one: Any) -> list[list[list[int]]]:
        found = decode(
            one,
            torch.cat(sources),
            segments,
            start_id=1,
            end_id=2,
            options=DecodeOptions(beam=beam, n_best=beam),
            limits=[9, 3, 12, 5, 2, 7, 4],
            lanes=3,
        )
        return [[hypothesis.tokens for hypothesis in some] for some in found]

    wanted = run(alone(model))
    served.clear()
    assert run(model) == wanted
    assert served.count(2) > 10


# --------------------------------------------------------------------------------------------------- changes and copies


def _new_norm(block: Block) -> None:
    block.self_norm = nn.LayerNorm(64).eval().requires_grad_(False)


def _new_weight(block: Block) -> None:
    block.mlp_norm.weight = nn.Parameter(torch.full((64,), 3.0), requires_grad=False)


def _moved_weight(block: Block) -> None:
    block.mlp_norm.weight.data = torch.full((64,), 3.0)


def _written_weight(block: Block) -> None:
    block.mlp_norm.weight.fill_(3.0)


def _other_eps(block: Block) -> None:
    block.mlp_norm.eps = 10.0


def _other_mlp(block: Block) -> None:
    block.mlp.down_proj = built("gpt", "int8").blocks[1].mlp.down_proj


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("base", [7.0, None])
def test_another_rotation_counts(base: float | None, place: int):
    model = built("llama")
    before = steps(model)
    blocks(model)[place].self_attn.rotary_base = base
    wanted = steps(alone(model))
    torch.testing.assert_close(steps(model), wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
    assert float((wanted - before).abs().max()) > 1e-3


def test_who_is_asked_may_change(served: list[int]):
    model = built()
    wanted = steps(model, count=1)
    served.clear()
    own, blocks(model)[1].own = blocks(model)[1].own, None
    torch.testing.assert_close(steps(model, count=1), wanted, rtol=0, atol=1e-4)
    assert served == [0, 1]
    blocks(model)[1].own = own
    torch.testing.assert_close(steps(model, count=1), wanted, rtol=0, atol=1e-4)
    assert sum(served[2:]) == 2


def test_another_block_counts():
    model, other = built(), built("gpt", "int8")
    other.blocks[1].mlp_norm.weight.fill_(3.0)
    before = steps(model)
    model.blocks[1] = other.blocks[1]
    wanted = steps(alone(model))
    torch.testing.assert_close(steps(model), wanted, rtol=0, atol=2e-3 * float(wanted.abs().max()))
    assert float((wanted - before).abs().max()) > 1e-2


def test_what_was_seen_is_let_go():
    model = pack(GPT(GPTConfig(23, 64, 3, 4, max_len=64)).eval(), "fp32", "native")
    steps(model, count=1)
    with record(model):
        steps(model, count=1)
    gone = weakref.ref(model.blocks[2])
    model.blocks[2] = copy.deepcopy(model.blocks[2])
    steps(model, count=1)
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("change", [_new_norm, _new_weight, _moved_weight, _written_weight, _other_eps, _other_mlp])
def test_changed_parts_count(change: Callable[[Block], None], place: int, served: list[int]):
    model = built()
    before = steps(model)
    change(blocks(model)[place])
    wanted = steps(alone(model))
    served.clear()
    found = steps(model)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
    assert float((found - before).abs().max()) > 1e-3
    assert served[2:] == [2] * 12


def test_parts_that_are_not_packed_go_module_by_module(served: list[int]):
    model = built()
    for change in (
        lambda block: setattr(block.mlp, "down_proj", nn.Linear(256, 64)),
        lambda block: setattr(block, "mlp_norm", nn.Identity()),
        lambda block: setattr(block.mlp, "activation", nn.ReLU()),
        lambda block: setattr(block.self_attn, "joint_proj", None),
        lambda block: setattr(block, "mlp", nn.Sequential(block.mlp)),
        lambda block: setattr(block, "mlp_norm", type("Other", (nn.LayerNorm,), {})(64)),
        lambda block: setattr(block, "dropout", type("Other", (nn.Dropout,), {})(0.0).eval()),
        lambda block: setattr(block.mlp_norm, "weight", nn.Parameter(torch.ones(64, 2)[:, 0], requires_grad=False)),
    ):
        other = copy.deepcopy(model)
        change(blocks(other)[0])
        served.clear()
        steps(other, count=1)
        assert served == [0, 0, 0, 1]


def test_a_copy_lives_without_what_it_was_copied_from(served: list[int]):
    model = built("llama", "int8")
    wanted = steps(model)
    other = copy.deepcopy(model)
    del model
    gc.collect()
    churn = [torch.randn(1 << 16) for _ in range(50)]  # takes the memory that was let go
    served.clear()
    assert torch.equal(steps(other), wanted)
    assert served[2:] == [2] * 12
    del churn
