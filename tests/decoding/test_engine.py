"""Caches that never move, sources that come and go, and tokens that are proposed ahead: over real models."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regard.attention import KVCache, Segments
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions, Draft, decode
from regard.decoding.choosing import best, draw, log_norms
from regard.decoding.fixed import FixedSteps
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
        rotary = 100.0 if kind == "rotary" else 0.0
        model = Transformer(TransformerConfig(7, 9, 8, 12, 2, 0, 1, 2, share="none", rotary_base=rotary))
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
@pytest.mark.parametrize("kind", ["plain", "gpt"])
def test_caches_have_their_room_from_the_start(kind: str, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
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


def written(g: Generator, model: Any, lanes: int | None) -> list[list[int]]:
    rows = [[g.tokenizer.start_id, *g.tokenizer.encode(prompt)] for prompt in PROMPTS]
    found = decode(
        model,
        torch.tensor([token for row in rows for token in row[:-1]], dtype=torch.int64).to(g.device),
        Segments.ragged([len(row) - 1 for row in rows], g.device),
        start_id=torch.tensor([row[-1] for row in rows]),
        end_id=g.end_ids,
        options=DecodeOptions(max_extra_tokens=20),
        limits=[20, 3, 9, 14, 2, 17],
        prompts=rows,
        context=g.max_tokens,
        lanes=lanes,
    )
    return [some[0].tokens for some in found]


def test_one_graph_serves_every_step() -> None:
    g = generator("gpt")
    for kind in ("gpt", "llama"):
        g = generator(kind)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = FixedSteps(g.model)  # type: ignore[arg-type]
        assert written(g, model, 3) == written(g, g.model, 3)
        graphs = dict(torch._dynamo.utils.counters["stats"])
        assert graphs["unique_graphs"] == 1
        with torch.compiler.set_stance("fail_on_recompile"):
            assert written(g, model, 3) == written(g, g.model, None)
        assert not torch._dynamo.utils.counters["graph_break"]
    with pytest.raises(UsageError, match="fixed steps with beam 2"):
        model.start(torch.tensor([1]), Segments.ragged([1]), 2)
    with pytest.raises(UsageError, match="not on CUDA"):
        FixedSteps(g.model, "graph")  # type: ignore[arg-type]


@pytest.mark.cuda
def test_a_captured_step_is_the_step() -> None:
    g = generator("gpt")
    on_cuda = Generator(g.model, g.tokenizer, g.options, g.max_tokens, torch.device("cuda"))
    try:
        want = written(on_cuda, on_cuda.model, 3)
        assert written(on_cuda, FixedSteps(on_cuda.model, "graph"), 3) == want  # type: ignore[arg-type]
    finally:
        g.model.cpu()


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
