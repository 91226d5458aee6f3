"""Caches that never move, sources that come and go, and tokens that are proposed ahead: over real models."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.api import make_quick
from regard.attention import KVCache, MultiHeadAttention, Segments, record, silence
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions, Draft, decode, fixed, search
from regard.decoding.choosing import best, draw, log_norms
from regard.decoding.fixed import FixedSteps, steps_for
from regard.errors import UsageError
from regard.models.gpt import GPT, GPTConfig
from regard.models.llama import Llama, LlamaConfig
from regard.models.rnn import RNN, RNNConfig
from regard.models.states import Room
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.generator import Generation, Generator

WORDS = "the light of day and dark of night, water over earth. Let there be heaven"
PROMPTS = ["the light", "", "water over earth. Let there", "d", "night, night, night, night", "of day and dark"]


@cache
def generator(kind: str = "gpt", seed: int = 4, end: float = 0.0) -> Generator:
    tokenizer = Tokenizer.train([WORDS], "byte-bpe", 290)
    torch.manual_seed(seed)
    size = tokenizer.vocab_size
    model: Any = (
        GPT(GPTConfig(size, 16, 2, 2, max_len=128))
        if kind == "gpt"
        else Llama(LlamaConfig(size, 16, 2, 4, 2, mlp_dim=24, max_len=128))
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return Generator(model, tokenizer, DecodeOptions(max_extra_tokens=20, length_penalty=0.0), 128)


@cache
def translator(kind: str) -> nn.Module:
    torch.manual_seed(2)
    if kind == "rnn":
        model: nn.Module = RNN(RNNConfig(7, 9, "gru", "additive", "before", 8, 8, 8, share="none"))
    else:
        more: dict[str, Any] = {"rotary": {"rotary_base": 100.0}, "learned": {"positions": "learned", "max_len": 16}}
        model = Transformer(TransformerConfig(7, 9, 8, 12, 2, 0, 1, 2, share="none", **more.get(kind, {})))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    return model.double().eval()


def same(some: list[Generation], others: list[Generation]) -> bool:
    return [(a.text, a.tokens, a.ended, a.token_ids) for a in some] == [
        (b.text, b.tokens, b.ended, b.token_ids) for b in others
    ] and all(a.logprob == pytest.approx(b.logprob, rel=1e-12) for a, b in zip(some, others, strict=True))


# --------------------------------------------------------------------------------------------------------------- caches


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("kind", ["plain", "gpt", "gpt ahead"])
def test_caches_have_their_room_from_the_start(kind: str, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_RUNS_AHEAD", ("cpu",) if kind == "gpt ahead" else ())
    kind = kind.split()[0]
    model: Any = generator().model if kind == "gpt" else translator(kind)
    grown: list[int] = []
    reserve = KVCache.reserve

    def watching(cache: KVCache, *sizes: int) -> KVCache:
        found = reserve(cache, *sizes)
        grown.append(cache.max_len) if found is not cache else None
        return found

    monkeypatch.setattr(KVCache, "reserve", watching)
    options = DecodeOptions(beam=beam, max_extra_tokens=30)
    decode(model, torch.tensor([1, 2, 3, 4, 5]), Segments.ragged([3, 2]), start_id=1, end_id=(), options=options)
    assert grown
    assert not any(length for length in grown if kind == "gpt")  # a translation's contexts may be filled
    assert len(grown) <= 4


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["plain", "rotary", "gpt", "llama"])
def test_beams_go_on_from_any_beam_and_no_key_is_copied(kind: str) -> None:
    """Against the whole forward pass of every beam's own text; sources leave, and one that stays fills the gap."""
    is_text = kind in ("gpt", "llama")
    model: Any = generator(kind).model if is_text else translator(kind)
    draws = np.random.default_rng(3)
    size = model.config.vocab_size if is_text else 9
    sources = [draws.integers(0, min(size, 7), n).tolist() for n in (4, 1, 3)]
    flat, segments = (
        torch.tensor([token for source in sources for token in source]),
        Segments.ragged([len(source) for source in sources]),
    )
    state = model.start(flat, segments, 1, Room(3, 30, 20, 4))
    texts = [[list[int]()] for _ in sources]
    tokens = [[0]] * 3
    where = [cache.k_store.data_ptr() for cache in state.caches]
    for step in range(12):
        logits_RV, state = model.step(torch.tensor([token for row in tokens for token in row]), state)
        texts = [[[*t, n] for t, n in zip(some, new, strict=True)] for some, new in zip(texts, tokens, strict=True)]
        want = []
        for source, some in zip(sources, texts, strict=True):
            for text in some:
                if is_text:
                    read = [*source, *text]
                    want.append(model.head(model(torch.tensor(read), Segments.ragged([len(read)])))[-1])
                else:
                    own = torch.tensor(source), Segments.ragged([len(source)])
                    hidden = model(*own, torch.tensor(text), Segments.ragged([len(text)]))
                    want.append(model.head(hidden)[-1])
        torch.testing.assert_close(logits_RV, torch.stack(want), atol=1e-10, rtol=0)
        width = len(texts[0])
        order = [0, 2] if step == 6 else list(range(len(sources)))
        parents = [draws.integers(0, width, 3).tolist() for _ in order]
        rows = [place * width + parent for place, some in zip(order, parents, strict=True) for parent in some]
        before = [cache.k_store.clone() for cache in state.caches]
        state = state.select(torch.tensor(rows), torch.tensor(order) if step == 6 else None)
        if step != 6:
            assert all(torch.equal(c.k_store, b) for c, b in zip(state.caches, before, strict=True))
        texts = [[texts[place][parent] for parent in some] for place, some in zip(order, parents, strict=True)]
        sources = [sources[place] for place in order]
        tokens = [draws.integers(0, 7, 3).tolist() for _ in order]
    assert where == [cache.k_store.data_ptr() for cache in state.caches]


@torch.inference_mode()
def test_nodes_that_no_beam_has_behind_it_are_taken_again() -> None:
    model: Any = generator().model
    state = model.start(torch.tensor([1, 2, 3]), Segments.ragged([3]), 4)
    for _ in range(40):  # all beams go on from the first: 3 nodes of each step are free again
        _, state = model.step(torch.arange(4), state)
        state = state.select(torch.tensor([0, 0, 0, 0]), None)
    assert state.past.max_len <= 3 + 40 + 8
    assert state.past.lengths_B.tolist() == [43] * 4


# -------------------------------------------------------------------------------------------------- sources come and go


@pytest.mark.parametrize("kind", ["plain", "rotary", "rnn"])
@pytest.mark.parametrize(
    "options",
    [
        DecodeOptions(max_extra_tokens=12),
        DecodeOptions(4, 4, max_extra_tokens=12),
        DecodeOptions(max_extra_tokens=12, sample=True, seed=5),
    ],
    ids=["greedy", "beam", "sample"],
)
@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_the_next_source_takes_the_place_of_one_that_is_done(kind: str, options: DecodeOptions, lanes: int) -> None:
    draws = np.random.default_rng(0)
    sources = [draws.integers(0, 7, draws.integers(1, 9)).tolist() for _ in range(11)]
    flat, segments = (
        torch.tensor([token for source in sources for token in source]),
        Segments.ragged([len(source) for source in sources]),
    )
    how = {"start_id": 0, "end_id": 1, "options": options}
    want = decode(translator(kind), flat, segments, **how)  # type: ignore[arg-type]
    got = decode(translator(kind), flat, segments, lanes=lanes, **how)  # type: ignore[arg-type]
    assert len({len(some[0].tokens) for some in want}) > 2
    for some, others in zip(got, want, strict=True):
        assert [one.tokens for one in some] == [one.tokens for one in others]
        assert [one.logprob for one in some] == pytest.approx([one.logprob for one in others], abs=1e-10)


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("how", [{}, {"sample": True, "temperature": 1.5}, {"beam": 3}, {"repetition_penalty": 1.5}])
def test_prompts_join_those_that_are_being_written(kind: str, how: dict[str, Any]) -> None:
    g, options = generator(kind), DecodeOptions(max_extra_tokens=20, length_penalty=0.0, **how)
    want = [g.generate([prompt], options, first=n)[0] for n, prompt in enumerate(PROMPTS)]
    for batch_tokens in (1, 100, 200, 10_000):
        assert same(g.generate(PROMPTS, options, batch_tokens=batch_tokens), want)


def test_the_room_for_prompts_is_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    g, most = generator(), list[int]()
    step = g.model.step
    monkeypatch.setattr(g.model, "step", lambda tokens_R, state: (most.append(len(tokens_R)), step(tokens_R, state))[1])
    g.generate(PROMPTS * 3, DecodeOptions(max_extra_tokens=20, length_penalty=0.0), batch_tokens=4 * 48)
    assert max(most) == 6  # slots of 32 places; four of 48 for those that need them


# --------------------------------------------------------------------------------------------------------- fixed steps


def written(
    g: Generator, lanes: int | None, steps: FixedSteps | None = None, over: int = 99, **options: Any
) -> list[list[int]]:
    rows = [[g.tokenizer.start_id, *g.tokenizer.encode(prompt)] for prompt in PROMPTS]
    found = decode(
        g.model,
        torch.tensor([token for row in rows for token in row[:-1]], dtype=torch.int64).to(g.device),
        Segments.ragged([len(row) - 1 for row in rows], g.device),
        start_id=torch.tensor([row[-1] for row in rows]),
        end_id=g.end_ids,
        options=DecodeOptions(max_extra_tokens=20, **options),
        limits=[20, 3, 9, 14, 2, 17],
        prompts=rows,
        context=g.max_tokens,
        is_over=lambda number, tokens: len(tokens) == over,
        lanes=lanes,
        steps=steps,
    )
    return [some[0].tokens for some in found]


def laid_together(model: Any) -> Any:
    """The same model, its projections side by side."""
    laid = deepcopy(model)
    for module in laid.modules():
        if isinstance(module, MultiHeadAttention):
            module.lay_together()
    return laid


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_one_graph_serves_every_step(kind: str, beam: int) -> None:
    g = generator(kind)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    steps = FixedSteps(laid_together(g.model))
    options = {"beam": beam, "length_penalty": 0.0}
    assert written(g, 3, steps, **options) == written(g, 3, **options)
    graphs = dict(torch._dynamo.utils.counters["stats"])
    assert graphs["unique_graphs"] == (1 if beam == 1 else 2), "and one for the step from which beams part"
    with torch.compiler.set_stance("fail_on_recompile"):
        assert written(g, 3, steps, **options) == written(g, 3, **options)
    assert not torch._dynamo.utils.counters["graph_break"]


def test_steps_that_cannot_be_taken_are_refused() -> None:
    with pytest.raises(UsageError, match="not on CUDA"):
        FixedSteps(generator().model, "graph")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="choose compile, graph, compiled graph"):
        FixedSteps(generator().model, "quick")  # type: ignore[arg-type]
    assert steps_for(generator().model, None, {}) is None
    assert steps_for(translator("rnn"), "graph", {}) is None
    made: dict[Any, FixedSteps] = {}
    one = steps_for(generator().model, "compile", made)
    assert one is steps_for(generator().model, "compile", made)
    assert list(made) == ["compile"]
    other = steps_for(generator("llama").model, "compile", made)
    assert other is not None
    assert other.model is generator("llama").model, "another model has its own"


class Recorded(TorchDispatchMode):
    """What a CUDA graph is, on any device: operations that run again on the same memory, without Python's part."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        waits = func.overloadpacket.__name__ in ("_local_scalar_dense", "item", "is_nonzero", "nonzero")
        assert not waits, "the host would have to know a number"
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def again(self) -> None:
        """Run it all again; what was made then is written anew."""
        for func, args, kwargs, result in self.calls:
            for mine, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(mine, Tensor) and mine.data_ptr() != new.data_ptr():
                    mine.copy_(new)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """Graphs are recorded, and run again, here."""
    made: list[Recorded] = []

    def capture(work: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
        assert device.type == "cpu"
        work()
        with Recorded() as recorded:
            result = work()
        made.append(recorded)
        return recorded.again, result

    monkeypatch.setattr(fixed, "_capture", capture)
    return made


def in_graphs(model: Any) -> FixedSteps:
    steps = FixedSteps(model)
    steps._bare = steps._run

    def step(kind: Any, laid: list[Tensor], stores: list[Tensor]) -> tuple[Tensor, ...]:
        if isinstance(model, Transformer):
            assert laid[-1].all(), "kernels differ in what they make of queries without keys"
        if kind.beams:
            assert laid[4].any(-1).all()
        found = steps._captured(kind, laid, stores)
        assert all(one.isfinite().all() for one in (*found, *stores)), "of slots not in use too, which others will use"
        return found

    steps._step = step
    return steps


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_captured_step_needs_its_memory_alone(
    kind: str, beam: int, runs_ahead: bool, captured: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that join, leave and share what they have in common, in any order."""
    g, options = generator(kind), {"beam": beam, "length_penalty": 0.0}
    steps, want = in_graphs(laid_together(g.model)), written(g, 3, **options)
    monkeypatch.setattr(search, "_RUNS_AHEAD", ("cpu",) if runs_ahead else ())
    assert written(g, 3, steps, **options) == want
    graphs = len(captured)
    assert 1 <= graphs <= 4, "a graph for the steps of a batch, wherever texts stand and whoever joins"
    assert {kind.chooses for kind, *_ in steps._graphs} == {beam == 1}, "what is best is part of the graph"
    assert written(g, None, steps, **options) == written(g, None, **options)
    assert len(captured) > graphs, "more rows"


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize(
    "options", [{"sample": True}, {"banned": (7, 8, 9)}, {"repetition_penalty": 1.5}, {"sample": True, "top_k": 4}]
)
def test_where_more_than_scores_decides_a_graph_does_not_choose(
    options: dict[str, Any], runs_ahead: bool, captured: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    g = generator()
    steps, want = in_graphs(laid_together(g.model)), written(g, 3, **options)
    monkeypatch.setattr(search, "_RUNS_AHEAD", ("cpu",) if runs_ahead else ())
    assert written(g, 3, steps, **options) == want
    assert captured
    assert not any(kind.chooses for kind, *_ in steps._graphs)


def test_a_model_that_changes_between_texts_is_seen(captured: list[Recorded]) -> None:
    """While one decoding goes on nobody looks; behind it somebody does."""
    model = deepcopy(generator().model)
    g: Any = Generator(model, generator().tokenizer, generator().options, 128)
    steps = in_graphs(model)
    first = written(g, None, steps)
    model.output.weight = nn.Parameter(model.output.weight.flip(0))
    want = written(g, None)
    assert written(g, None, steps) == want != first


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "rotary", "learned"])
def test_a_captured_step_of_a_translation(kind: str, beam: int, captured: list[Recorded]) -> None:
    model: Any = translator(kind)
    sources, options = [[1, 2, 3, 4], [5], [2, 2, 6], [3, 1]], DecodeOptions(beam=beam, max_extra_tokens=9)
    given = torch.tensor([token for source in sources for token in source]), Segments.ragged(list(map(len, sources)))
    ask = {"start_id": 1, "end_id": 0, "options": options, "limits": [12, 3, 9, 5]}
    for lanes in (None, 2):
        want = decode(model, *given, **ask, lanes=lanes)
        found = decode(model, *given, **ask, lanes=lanes, steps=in_graphs(laid_together(model)))
        assert [[one.tokens for one in some] for some in found] == [[one.tokens for one in some] for some in want]
        for one, other in zip((h for some in found for h in some), (h for some in want for h in some), strict=True):
            assert one.logprob == pytest.approx(other.logprob, rel=1e-12)
    assert captured


@torch.inference_mode()
def test_a_graph_is_for_caches_of_one_shape_and_for_the_weights_that_it_read(captured: list[Recorded]) -> None:
    """Memory is used again: where caches lie does not say what they are."""
    steps, model = in_graphs(deepcopy(generator().model)), deepcopy(generator().model)
    prompt_N = torch.tensor([3, 4, 5, 6])
    memory = [torch.zeros(4 * 64 * 2 * 8, dtype=torch.float64) for _ in range(4)]
    for count, graphs in ((2, 1), (4, 2), (2, 2)):  # a step that comes once is not captured
        segments = Segments.uniform(count, 4 // count)
        want, _ = model.step(torch.arange(count), model.start(prompt_N, segments, 1, Room(count, 64, 9)))
        state: Any = model.start(prompt_N, segments, 1, Room(count, 64, 9))
        caches = []
        for number, one_layer in enumerate(state.caches):
            k, v = (
                memory[2 * number + one][: store.numel()].view(store.shape).copy_(store)
                for one, store in enumerate((one_layer.k_store, one_layer.v_store))
            )
            caches.append(replace(one_layer, k_store=k, v_store=v))
        state = replace(state, caches=tuple(caches))
        steps.step(torch.arange(count) + 3, state)
        found, _ = steps.step(torch.arange(count), state)
        kept = found.clone()
        steps.step(torch.arange(count) + 5, state)
        assert torch.equal(found, kept), "what was given is the caller's"
        torch.testing.assert_close(found, want, atol=1e-12, rtol=0)
        assert len(captured) == graphs
    steps.model.blocks[1].self_attn.q_proj.weight = nn.Parameter(steps.model.blocks[1].self_attn.q_proj.weight * 2)
    model.blocks[1].self_attn.q_proj.weight.mul_(2)
    copied = (replace(one, k_store=one.k_store.clone(), v_store=one.v_store.clone()) for one in state.caches)
    want, _ = model.step(torch.arange(2), replace(state, caches=tuple(copied)))
    for _ in range(3):
        torch.testing.assert_close(steps.step(torch.arange(2), state)[0], want, atol=1e-12, rtol=0)
    assert len(captured) == 3, "other weights"
    kept = list(steps._graphs)[-1]
    for length in range(16, 1040, 16):
        once = model.start(prompt_N, segments, 1, Room(2, length, 9))
        steps.step(torch.arange(2), once)
        steps.step(torch.arange(2), state)
        if length % 64 == 0:
            steps.step(torch.arange(2), once)
    assert list(steps._graphs)[-1 - (length % 64 == 0)] == kept, "what is in use stays"
    assert len(steps._graphs) == 8, "old ones are let go"


@pytest.mark.parametrize("graphs", [True, False])
def test_who_looks_on_sees_every_step_and_silent_heads_are_silent(graphs: bool, captured: list[Recorded]) -> None:
    """A graph captured before knows nothing of them; and one captured beside them would go on without."""
    torch._dynamo.reset()
    g: Any = Generator(deepcopy(generator().model), generator().tokenizer, generator().options, 128)
    steps = in_graphs(g.model) if graphs else FixedSteps(g.model)
    layer = "blocks.0.self_attn"
    usual = written(g, 3)
    with silence(g.model, {layer: [0, 1]}):
        quiet = written(g, 3)
        assert written(g, 3, steps) == quiet != usual
    assert written(g, 3, steps) == usual
    with record(g.model, layers=[layer]) as want:
        written(g, None)
    with record(g.model, layers=[layer]) as found:
        assert written(g, None, steps) == usual
    assert len(found[layer]) == len(want[layer]) > 2
    hooked: list[int] = []
    hook = g.model.blocks[0].mlp.register_forward_hook(lambda *given: hooked.append(1))
    written(g, None, steps)
    assert len(hooked) > 10
    hook.remove()
    assert written(g, 3, steps) == usual
    assert not graphs or captured


@pytest.mark.cuda
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_steps_are_captured(compiled: bool, beam: int) -> None:
    g, options = generator("gpt"), DecodeOptions(beam=beam, max_extra_tokens=20, length_penalty=0.0)
    want = g.generate(PROMPTS[2:], options, on_full="cut")
    on_cuda: Any = Generator(deepcopy(g.model), g.tokenizer, g.options, g.max_tokens, torch.device("cuda"))
    make_quick(on_cuda, "fp32", compiled)
    for _ in range(2):
        assert same(on_cuda.generate(PROMPTS[2:], options, on_full="cut"), want)
        [steps] = on_cuda._fixed.values()
        assert any(steps._graphs.values())


# ------------------------------------------------------------------------------------------------------- narrow weights


NARROW = [{}, {"sample": True, "top_k": 5, "seed": 7}, {"beam": 3}, {"speculate": 2}]


@pytest.mark.parametrize("run", NARROW)
def test_what_is_written_in_bfloat16_is_scored_in_float32(run: dict[str, Any]) -> None:
    """As on a GPU: weights, and scores as they come, are bfloat16."""
    g = generator()
    narrow = Generator(deepcopy(g.model).bfloat16(), g.tokenizer, g.options, g.max_tokens)
    options = DecodeOptions(max_extra_tokens=6, length_penalty=0.0, **run)
    for one, prompt in zip(narrow.generate(PROMPTS[2:], options, on_full="cut"), PROMPTS[2:], strict=True):
        ids = [g.tokenizer.start_id, *g.tokenizer.encode(prompt), *one.token_ids]
        if one.ended:
            ids.append(g.end_ids[0])
        [(want, _)] = narrow.foresee([np.array(ids)], [len(one.token_ids) + one.ended])
        assert one.logprob == pytest.approx(want, rel=0.02), "what the same weights say of it, read at once"


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("kind", ["rnn", "plain", "rotary"])
def test_translations_in_bfloat16(kind: str, beam: int) -> None:
    model: Any = deepcopy(translator(kind)).bfloat16()
    options = DecodeOptions(beam=beam, max_extra_tokens=5)
    found = decode(model, torch.tensor([1, 2, 3]), Segments.ragged([3]), start_id=1, end_id=0, options=options)
    assert np.isfinite(found[0][0].logprob)


# -------------------------------------------------------------------------------------------------------- running ahead


RUNS = [{}, {"over": 5}, {"sample": True, "seed": 7}, {"repetition_penalty": 1.3, "banned": (5,)}]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("lanes", [1, 3, None])
def test_steps_begin_before_the_host_knows_the_last_ones_tokens(
    run: dict[str, Any], lanes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that end at different places, foreseen or not, and others that take their place."""
    g = generator()
    want = written(g, lanes, **run)
    steps: list[int] = []
    step = g.model.step

    def counted(tokens_R: Tensor, state: Any) -> tuple[Tensor, Any]:
        steps.append(len(tokens_R))
        return step(tokens_R, state)

    monkeypatch.setattr(g.model, "step", counted)
    written(g, lanes, **run)
    usual = len(steps)
    monkeypatch.setattr(search, "_RUNS_AHEAD", ("cpu",))
    assert written(g, lanes, **run) == want
    # Where a text takes another's place, the next step had begun already.
    assert usual <= len(steps) - usual <= usual + len(PROMPTS)


def test_no_step_goes_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a text is as long as it may be, there is no place for one token more, nor a position."""
    g, grown = generator(), []
    reserve = KVCache.reserve

    def watching(cache: KVCache, *sizes: int) -> KVCache:
        found = reserve(cache, *sizes)
        grown.append(cache.max_len) if found is not cache and cache.max_len else None
        return found

    monkeypatch.setattr(KVCache, "reserve", watching)
    given = torch.arange(9, 121), Segments.ragged([110, 2])
    ask = {"start_id": 1, "end_id": 0, "options": DecodeOptions(), "limits": [17, 40], "context": None}
    want = decode(g.model, *given, **ask)
    monkeypatch.setattr(search, "_RUNS_AHEAD", ("cpu",))
    for steps in (None, FixedSteps(g.model)):  # type: ignore[arg-type]
        if steps is not None:
            steps._step = steps._run
        found = decode(g.model, *given, **ask, steps=steps)
        assert [some[0].tokens for some in found] == [some[0].tokens for some in want]
    assert len(want[0][0].tokens) == 17, "128 with all that is before it: the table's positions"
    assert not grown


def test_where_texts_are_read_anew_no_step_begins_early(monkeypatch: pytest.MonkeyPatch) -> None:
    g = generator()
    options = DecodeOptions(max_extra_tokens=150, length_penalty=0.0, stop=("e",))
    prompts = [WORDS, "the light"]
    want = g.generate(prompts, replace(options, stop=()), on_full="roll"), g.generate(prompts, options, on_full="roll")
    monkeypatch.setattr(search, "_RUNS_AHEAD", ("cpu",))
    assert same(g.generate(prompts, replace(options, stop=()), on_full="roll"), want[0])
    assert same(g.generate(prompts, options, on_full="roll"), want[1])
    assert max(one.tokens for one in want[0]) == 150, "longer than the context"


def test_the_next_step_begins_first(monkeypatch: pytest.MonkeyPatch) -> None:
    g = generator()
    order: list[str] = []
    step, take = g.model.step, search._Search._take
    monkeypatch.setattr(g.model, "step", lambda *given: (order.append("step"), step(*given))[1])
    monkeypatch.setattr(search._Search, "_take", lambda *given: (order.append("take"), take(*given))[1])
    monkeypatch.setattr(search, "_RUNS_AHEAD", ("cpu",))
    g.generate(["the light"], DecodeOptions(max_extra_tokens=4, length_penalty=0.0))
    assert order == ["step", *["step", "take"] * 4, "take"], "the last says whether the text ends there"


# ------------------------------------------------------------------------------------------------------- proposed ahead

PLANS = [{}, {"sample": True, "seed": 7}, {"sample": True, "top_k": 3, "temperature": 0.7}, {"repetition_penalty": 1.3}]


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("how", PLANS, ids=str)
@pytest.mark.parametrize("drafted", [None, "itself", "another"])
@pytest.mark.parametrize("ahead", [1, 4])
def test_what_is_proposed_changes_nothing(kind: str, how: dict[str, Any], drafted: str | None, ahead: int) -> None:
    g = generator(kind)
    draft = {None: None, "itself": g, "another": generator("llama" if kind == "gpt" else "gpt", 9)}[drafted]
    plain = DecodeOptions(max_extra_tokens=40, length_penalty=0.0, **how)
    options = DecodeOptions(max_extra_tokens=40, length_penalty=0.0, speculate=ahead, **how)
    want = g.generate(PROMPTS, plain)
    for batch_tokens in (1, 200, 10_000):
        got = g.generate(PROMPTS, options, batch_tokens=batch_tokens, draft=draft)
        assert same(got, want)
        proposed, accepted = sum(one.proposed for one in got), sum(one.accepted for one in got)
        assert 0 <= accepted <= proposed
        if drafted == "itself":
            assert proposed
            assert accepted > 0.8 * proposed
        if drafted == "another":
            assert proposed


def test_texts_that_fill_the_context_roll_on_with_proposals() -> None:
    g = Generator(generator().model, generator().tokenizer, DecodeOptions(), 16)
    plain = DecodeOptions(max_extra_tokens=60, length_penalty=0.0)
    want = g.generate(PROMPTS, plain, on_full="roll")
    options = DecodeOptions(max_extra_tokens=60, length_penalty=0.0, speculate=3)
    for draft in (None, g):
        assert same(g.generate(PROMPTS, options, on_full="roll", draft=draft), want)


def test_proposals_that_cannot_be_are_refused() -> None:
    g = generator()
    with pytest.raises(UsageError, match="speculating with beam 2"):
        DecodeOptions(beam=2, speculate=2)
    for wrong in (-1, 65, 1.5, True):
        with pytest.raises(UsageError, match="speculate is"):
            DecodeOptions(speculate=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a draft, and nothing to propose"):
        g.generate(["a"], DecodeOptions(), draft=g)
    other = Generator(GPT(GPTConfig(23, 16, 2, 2, max_len=128)), g.tokenizer, DecodeOptions(), 128)
    with pytest.raises(UsageError, match="the draft knows 23 tokens"):
        g.generate(["a"], DecodeOptions(speculate=2), draft=other)


@torch.inference_mode()
def test_a_draft_reads_nothing_twice_but_what_did_not_come() -> None:
    g, read = generator(), list[int]()
    extend = g.model.extend
    model = Draft(g.model, 128)
    texts = [[1, 2, 3, 4]]
    model.admit(0, torch.tensor([1, 2, 3]), Segments.ragged([3]), Room(1, 64, 40))
    for _ in range(5):
        g.model.extend = lambda tokens_N, state: (read.append(len(tokens_N)), extend(tokens_N, state))[1]  # type: ignore[method-assign]
        (found,) = model.propose(texts, 3, DecodeOptions(), [[]])
        del g.model.extend
        texts = [[*texts[0], *found, 5]]
    assert read == [1, 1, 1] + [2, 1, 1] * 4


# ------------------------------------------------------------------------------------------------------------- choosing


@pytest.mark.parametrize("size", [5, 128, 700, 1003])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_best_are_found_by_chunks(size: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_KERNEL", "torch")
    logits_RV = torch.randn(40, size)
    value_RM, token_RM = best(logits_RV, count)
    want = logits_RV.topk(count)
    assert torch.equal(value_RM, want.values)
    assert torch.equal(token_RM, want.indices)
    logits_RV[:, :] = 1.0
    assert not best(logits_RV, 1)[1].any()  # of equal ones the first


def test_normalizers_are_those_of_float64_whatever_rows_stand_beside() -> None:
    logits_RV = 8 * torch.randn(33, 5003)
    norms_R = log_norms(logits_RV)
    torch.testing.assert_close(norms_R, logits_RV.double().logsumexp(-1), atol=1e-7, rtol=0)
    assert torch.equal(torch.cat([log_norms(row_V[None]) for row_V in logits_RV]), norms_R)


@pytest.mark.parametrize(
    "how", [{}, {"top_p": 0.9}, {"top_p": 0.99}, {"min_p": 1e-4}, {"top_k": 90}, {"temperature": 3.0}]
)
def test_draws_look_as_far_as_they_must(how: dict[str, Any]) -> None:
    """Against the whole sorted vocabulary; some draws fall beyond the first that are looked at."""
    options = DecodeOptions(sample=True, **how)
    torch.manual_seed(0)
    logits_RV, points_R = torch.randn(300, 2000, dtype=torch.float64), np.linspace(0, 1, 300, endpoint=False)
    got = draw(logits_RV, log_norms(logits_RV), options, points_R)[:, 0]
    sorted_RV = (logits_RV / options.temperature).softmax(-1).sort(-1, descending=True)
    p_RV = sorted_RV.values
    keep_RV = (p_RV.cumsum(-1) - p_RV < options.top_p) & (p_RV >= options.min_p * p_RV[:, :1])
    keep_RV[:, options.top_k or 2000 :] = False
    cumulative_RV = (p_RV * keep_RV).cumsum(-1).numpy()
    rank_R = [
        int(np.searchsorted(row, x * row[-1], side="right")) for row, x in zip(cumulative_RV, points_R, strict=True)
    ]
    assert max(rank_R) > 64
    assert torch.equal(got, sorted_RV.indices[torch.arange(300), torch.tensor(rank_R)])


@pytest.mark.peer
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "how", [{"top_k": 3, "top_p": 0.6}, {"top_k": 90, "top_p": 0.9, "min_p": 0.05}, {"top_p": 0.8}]
)
def test_draws_are_those_of_their_warpers(how: dict[str, float], temperature: float) -> None:
    logits = pytest.importorskip("transformers").generation.logits_process
    options = DecodeOptions(sample=True, temperature=temperature, **how)  # type: ignore[arg-type]
    torch.manual_seed(1)
    logits_RV, points_R = 2 * torch.randn(200, 500, dtype=torch.float64), np.linspace(0, 1, 200, endpoint=False)
    left_RV = logits.TemperatureLogitsWarper(temperature)(None, logits_RV.clone())
    warpers = {"top_k": logits.TopKLogitsWarper, "top_p": logits.TopPLogitsWarper, "min_p": logits.MinPLogitsWarper}
    for name, value in how.items():
        left_RV = warpers[name](value)(None, left_RV)
    p_RV, token_RV = left_RV.softmax(-1).sort(descending=True)
    sums_RV = p_RV.cumsum(-1).numpy()
    rank_R = [int(np.searchsorted(row, x, side="right")) for row, x in zip(sums_RV, points_R, strict=True)]
    got = draw(logits_RV, log_norms(logits_RV), options, points_R)[:, 0]
    assert torch.equal(got, token_RV[torch.arange(200), torch.tensor(rank_R)])


@pytest.mark.parametrize("ahead", [1, 3, 8])
def test_what_a_model_proposes_to_itself_all_comes_without_an_end_too(ahead: int) -> None:
    model = generator("gpt").model
    rows, limits = [[1, 2, 3], [4, 5, 6]], [8, 8]
    tokens, segments = torch.tensor([1, 2, 4, 5]), Segments.uniform(2, 2)
    more: dict[str, Any] = {"start_id": torch.tensor([3, 6]), "end_id": (), "limits": limits, "prompts": rows}
    plain = decode(model, tokens, segments, options=DecodeOptions(length_penalty=0.0), **more)
    options = DecodeOptions(length_penalty=0.0, speculate=ahead)
    found = decode(model, tokens, segments, options=options, proposer=Draft(model, 48), **more)
    for [one], [other] in zip(found, plain, strict=True):
        assert one.tokens == other.tokens
        assert one.accepted == one.proposed
        assert one.proposed >= 4
