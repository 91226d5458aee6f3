"""Decoding against enumeration and against loops, over real models with random weights in float64."""

import dataclasses
import itertools
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.decoding import DecodeOptions, Hypothesis, decode
from regard.errors import NumericError, UsageError
from regard.models.rnn import RNN, RNNConfig
from regard.models.transformer import Transformer, TransformerConfig

START, END, SOURCE_VOCAB = 0, 1, 7
KINDS = ("transformer", "rnn")


@cache
def model_of(kind: str, vocab_size: int, seed: int, end_bias: float = 0.0) -> nn.Module:
    """A random model whose distributions are far from flat, and that likes or dislikes to end."""
    torch.manual_seed(seed)
    if kind == "transformer":
        config = TransformerConfig(SOURCE_VOCAB, vocab_size, 8, 12, 2, 0, 1, 2, share="none")
        model: nn.Module = Transformer(config).double()
    else:
        model = RNN(RNNConfig(SOURCE_VOCAB, vocab_size, "lstm", "additive", "before", 8, 8, 8, share="none")).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        model.output.weight.copy_(1.5 * torch.randn_like(model.output.weight))
        model.output.bias[END] += end_bias
    return model.eval()


def run(
    model: nn.Module, sources: list[list[int]], options: DecodeOptions, places: list[int] | None = None
) -> list[list[Hypothesis]]:
    source_M = torch.tensor([token for source in sources for token in source])
    segments = Segments.ragged([len(source) for source in sources])
    return decode(model, source_M, segments, start_id=START, end_id=END, options=options, places=places)


def logp(model: nn.Module, source: list[int], target: list[int]) -> np.ndarray:
    """Log-probabilities (T + 1, V) of what follows each prefix of the target, by the whole forward pass."""
    with torch.inference_mode():
        hidden_ND = model(
            torch.tensor(source),
            Segments.ragged([len(source)]),
            torch.tensor([START, *target]),
            Segments.ragged([len(target) + 1]),
        )
        return model.head(hidden_ND).log_softmax(-1).numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ends", "calls"), [((), 4), ((END,), 5)])
def test_nothing_is_scored_behind_the_limit_but_an_end(
    kind: str, ends: tuple[int, ...], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(kind, 6, 0, -50.0)
    steps, step = [], model.step
    monkeypatch.setattr(model, "step", lambda *given: (steps.append(1), step(*given))[1])
    source_M, segments = torch.tensor([3, 4, 5]), Segments.ragged([2, 1])
    options = DecodeOptions(length_penalty=0.0)
    found = decode(model, source_M, segments, start_id=START, end_id=ends, options=options, limits=[4, 4])
    assert len(steps) == calls
    for [hypothesis], source in zip(found, ([3, 4], [5]), strict=True):
        assert len(hypothesis.tokens) == 4
        assert not hypothesis.ended
        scores = logp(model, source, hypothesis.tokens)[range(4), hypothesis.tokens]
        assert hypothesis.logprob == pytest.approx(scores.sum())


def random_sources(count: int, seed: int, longest: int = 6) -> list[list[int]]:
    draws = np.random.default_rng(seed)
    return [draws.integers(0, SOURCE_VOCAB, draws.integers(1, longest + 1)).tolist() for _ in range(count)]


def greedy(model: nn.Module, source: list[int], limit: int) -> tuple[list[int], float, bool]:
    tokens: list[int] = []
    total = 0.0
    while True:
        row = logp(model, source, tokens)[-1]
        best = int(row.argmax())
        if best == END:
            return tokens, total + row[END], True
        if len(tokens) == limit:
            return tokens, total, False
        tokens.append(best)
        total += row[best]


def same(one: list[Hypothesis], other: list[Hypothesis]) -> bool:
    return [(h.tokens, h.ended) for h in one] == [(h.tokens, h.ended) for h in other] and all(
        abs(a.logprob - b.logprob) < 1e-10 and abs(a.score - b.score) < 1e-10 for a, b in zip(one, other, strict=True)
    )


# --------------------------------------------------------------------------------------------------- greedy, exhaustive


@pytest.mark.parametrize("kind", KINDS)
def test_a_beam_of_one_is_greedy(kind: str) -> None:
    ended = set()
    for seed in range(3):
        model, sources = model_of(kind, 9, seed), random_sources(8, seed)
        for source, (got,) in zip(sources, run(model, sources, DecodeOptions(max_extra_tokens=6)), strict=True):
            tokens, total, end = greedy(model, source, len(source) + 6)
            assert (got.tokens, got.ended) == (tokens, end)
            assert got.logprob == pytest.approx(total, abs=1e-10)
            assert got.score == pytest.approx(total / ((5 + len(tokens) + 1) / 6) ** 0.6, abs=1e-10)
            ended.add(end)
    assert ended == {True, False}


def exhaustive(
    model: nn.Module, source: list[int], limit: int, alpha: float
) -> list[tuple[float, float, tuple[int, ...]]]:
    """Score, log-probability and tokens of everything that ends within the limit, best first."""
    others = [token for token in range(4) if token != END]
    found = []
    for length in range(limit + 1):
        for tokens in itertools.product(others, repeat=length):
            rows = logp(model, source, list(tokens))
            total = sum(rows[place, token] for place, token in enumerate((*tokens, END)))
            found.append((total / ((5 + length + 1) / 6) ** alpha, total, tokens))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 3.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_a_beam_that_holds_everything_is_exhaustive_search(kind: str, seed: int, alpha: float) -> None:
    model = model_of(kind, 4, seed)
    source = random_sources(1, seed, 1)[0]
    wanted = exhaustive(model, source, 3, alpha)
    assert len(wanted) == 1 + 3 + 9 + 27
    for n_best in (1, 5, 40):
        (got,) = run(model, [source], DecodeOptions(200, n_best, alpha, len("xx")))
        assert [tuple(h.tokens) for h in got] == [tokens for _, _, tokens in wanted[:n_best]]
        assert [h.score for h in got] == pytest.approx([score for score, _, _ in wanted[:n_best]], abs=1e-10)
        assert [h.logprob for h in got] == pytest.approx([total for _, total, _ in wanted[:n_best]], abs=1e-10)
        assert all(h.ended for h in got)


def test_the_length_penalty_changes_what_wins() -> None:
    found = set()
    for alpha in (0.0, 10.0):
        model = model_of("transformer", 4, 1, 2.0)
        (best, *_), *_ = run(model, [[3]], DecodeOptions(200, 1, alpha, 2))
        assert tuple(best.tokens) == exhaustive(model, [3], 3, alpha)[0][2]
        found.add(len(best.tokens))
    assert len(found) == 2


def test_the_offset_of_the_length_penalty_is_a_setting() -> None:
    model = model_of("transformer", 4, 1, 2.0)
    wanted = exhaustive(model, [3], 3, 0.0)
    by_length = sorted(((total / (len(tokens) + 1) ** 2.0, tokens) for _, total, tokens in wanted), reverse=True)
    (got,) = run(model, [[3]], DecodeOptions(200, 40, 2.0, 2, length_offset=0.0))
    assert [tuple(h.tokens) for h in got] == [tokens for _, tokens in by_length]
    assert [h.score for h in got] == pytest.approx([score for score, _ in by_length], abs=1e-10)
    assert [tokens for _, tokens in by_length] != [tokens for _, _, tokens in exhaustive(model, [3], 3, 2.0)]


@pytest.mark.parametrize("kind", KINDS)
def test_banned_tokens_never_come_and_the_others_keep_their_probability(kind: str) -> None:
    model = model_of(kind, 4, 0)
    wanted = [one for one in exhaustive(model, [3], 3, 0.6) if not {2, 3} & {*one[2]}]
    (got,) = run(model, [[3]], DecodeOptions(200, 200, 0.6, 2, banned=(3, 2)))
    assert [tuple(h.tokens) for h in got] == [tokens for _, _, tokens in wanted]
    assert [h.logprob for h in got] == pytest.approx([total for _, total, _ in wanted], abs=1e-10)
    drawn = [run(model, [[3]], DecodeOptions(sample=True, seed=seed, banned=(3,)))[0][0] for seed in range(20)]
    assert {token for hypothesis in drawn for token in hypothesis.tokens} == {0, 2}
    for banned in ((4,), (0, 1, 2, 3)):
        with pytest.raises(UsageError, match=r"banned is .*, of 4 tokens; give some of the model's tokens, not all"):
            run(model, [[3]], DecodeOptions(banned=banned))
    for banned in ((-1,), (1.0,), (True,)):
        with pytest.raises(UsageError, match="banned is"):
            DecodeOptions(banned=banned)  # type: ignore[arg-type]


def reference_beam(
    model: nn.Module, source: list[int], beam: int, n_best: int, alpha: float, limit: int
) -> list[tuple[int, ...]]:
    """Beam search of one source as the docstring tells it, prefix by prefix, without a cache."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[tuple[float, tuple[int, ...]]] = []

    def score(total: float, length: int) -> float:
        return total / ((5 + length + 1) / 6) ** alpha

    while True:
        options = sorted(
            (
                (total + row[token], (*prefix, token))
                for total, prefix in live
                for row in [logp(model, source, list(prefix))[-1]]
                for token in range(len(row))
            ),
            reverse=True,
        )
        best = options[:beam]
        ending = [(score(total, len(tokens) - 1), tokens[:-1]) for total, tokens in best if tokens[-1] == END]
        done += ending[: beam - len(done)]
        prefixes = live
        live = [(total, tokens) for total, tokens in options if tokens[-1] != END][:beam]
        ranked = sorted(done, reverse=True)
        if len(done) >= beam or (len(done) >= n_best and ranked[n_best - 1][0] >= score(live[0][0], limit)):
            return [tokens for _, tokens in ranked[:n_best]]
        if len(live[0][1]) > limit:
            done += [
                (score(total, len(tokens)), tokens)
                for total, tokens in sorted(prefixes, reverse=True)[: max(n_best - len(done), 0)]
            ]
            return [tokens for _, tokens in sorted(done, reverse=True)[:n_best]]


@pytest.mark.parametrize("beam", [2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_narrow_beam_prunes_as_the_docstring_says(kind: str, beam: int) -> None:
    model = model_of(kind, 6, 4)
    sources = random_sources(6, 4, 3)
    got = run(model, sources, DecodeOptions(beam, 2, 0.6, 3))
    for source, hypotheses in zip(sources, got, strict=True):
        assert [tuple(h.tokens) for h in hypotheses] == reference_beam(model, source, beam, 2, 0.6, len(source) + 3)


# ---------------------------------------------------------------------------------------------------------------- batch


@pytest.mark.parametrize(
    "options",
    [
        DecodeOptions(4, 4, max_extra_tokens=8),
        DecodeOptions(3, 1, 0.0, 8),
        DecodeOptions(max_extra_tokens=8, sample=True, seed=5),
        DecodeOptions(max_extra_tokens=8, sample=True, top_k=3, top_p=0.9, temperature=1.5),
    ],
    ids=["beam 4", "beam 3", "sampling", "narrowed sampling"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_an_output_does_not_depend_on_its_batch(kind: str, options: DecodeOptions) -> None:
    model = model_of(kind, 9, 0)
    sources = random_sources(10, 0, 9)
    together = run(model, sources, options)
    assert len({len(hypotheses[0].tokens) for hypotheses in together}) > 2  # sources leave the batch at different times
    for place, source in enumerate(sources):
        (alone,) = run(model, [source], options, [place])
        assert same(alone, together[place])
    for order in (list(range(9, -1, -1)), [3, 7, 1, 8]):
        shuffled = run(model, [sources[place] for place in order], options, order)
        assert all(same(got, together[place]) for place, got in zip(order, shuffled, strict=True))


def test_no_source_no_output() -> None:
    assert run(model_of("rnn", 9, 0), [], DecodeOptions()) == []


# ---------------------------------------------------------------------------------------------------------------- limit


@pytest.mark.parametrize(
    "options",
    [
        DecodeOptions(max_extra_tokens=3),
        DecodeOptions(3, 2, max_extra_tokens=3),
        DecodeOptions(sample=True, max_extra_tokens=3),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_without_an_end_it_stops_at_the_limit_and_says_so(kind: str, options: DecodeOptions) -> None:
    model = model_of(kind, 9, 0, -1e4)
    sources = random_sources(5, 3)
    for source, hypotheses in zip(sources, run(model, sources, options), strict=True):
        assert len(hypotheses) == options.n_best
        for hypothesis in hypotheses:
            assert not hypothesis.ended
            assert len(hypothesis.tokens) == len(source) + 3
            rows = logp(model, source, hypothesis.tokens)
            total = sum(rows[place, token] for place, token in enumerate(hypothesis.tokens))
            assert hypothesis.logprob == pytest.approx(total, abs=1e-9)


@dataclass(frozen=True, eq=False)
class ChainState:
    rows: int

    def select(self, rows_R: Tensor, sources_B: Tensor | None) -> "ChainState":
        return ChainState(len(rows_R))


class Chain:
    """A decoder of one line: what comes next depends on the last token alone."""

    max_target_tokens = None

    def __init__(self, probabilities: list[list[float]]) -> None:
        self.logits_VV = torch.tensor(probabilities, dtype=torch.float64).log()

    def start(self, source_M: Tensor, segments: Segments, beams: int, room: object = None) -> ChainState:
        return ChainState(len(segments) * beams)

    def step(self, tokens_R: Tensor, state: ChainState) -> tuple[Tensor, ChainState]:
        assert len(tokens_R) == state.rows
        return self.logits_VV[tokens_R] + 3.0, state  # logits are defined up to a constant


@pytest.mark.parametrize("beam", [1, 2])
def test_an_end_at_the_limit_is_an_end(beam: int) -> None:
    chain = Chain([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]])  # 0 → 2 → 3 → end
    for extra, tokens, ended in ((0, [2], False), (1, [2, 3], True), (2, [2, 3], True)):
        ((best, *_),) = run(chain, [[5]], DecodeOptions(beam, max_extra_tokens=extra))
        assert (best.tokens, best.ended, best.logprob) == (tokens, ended, 0.0)


# ------------------------------------------------------------------------------------------------------------- sampling

P = [0.07, 0.1, 0.4, 0.23, 0.17, 0.03]
CHAIN = Chain([P] * 6)


def draws_of(count: int, **options: object) -> np.ndarray:
    """First tokens (or ends) of so many draws from P."""
    outputs = run(CHAIN, [[1]] * count, DecodeOptions(sample=True, max_extra_tokens=0, **options))
    return np.array([best.tokens[0] if best.tokens else END for (best,) in outputs])


def chi_square(draws: np.ndarray, probabilities: list[float]) -> float:
    counts = np.bincount(draws, minlength=6)
    expected = np.array(probabilities) * len(draws)
    assert (counts[expected == 0] == 0).all()
    kept = expected > 0
    return float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum())


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, P),
        ({"seed": 9}, P),
        ({"temperature": 0.5}, [p**2 for p in P]),
        ({"temperature": 2.0}, [math.sqrt(p) for p in P]),
        ({"top_k": 2}, [0, 0, 0.4, 0.23, 0, 0]),
        ({"top_k": 10**9}, P),
        ({"top_p": 0.41}, [0, 0, 0.4, 0.23, 0, 0]),
        ({"top_p": 0.39}, [0, 0, 1, 0, 0, 0]),
        ({"top_p": 0.62}, [0, 0, 0.4, 0.23, 0, 0]),
        ({"top_p": 0.64}, [0, 0, 0.4, 0.23, 0.17, 0]),
        ({"top_p": 0.95}, [0.07, 0.1, 0.4, 0.23, 0.17, 0]),
        # The most probable that reach top_p are found after the temperature, and among what top_k leaves.
        ({"top_k": 2, "top_p": 0.62}, [0, 0, 1, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.7}, [0, 0, 0.4, 0.23, 0, 0]),
        ({"top_p": 0.6, "temperature": 0.5}, [0, 0, 1, 0, 0, 0]),
    ],
    ids=str,
)
def test_frequencies_are_probabilities(options: dict[str, object], weights: list[float]) -> None:
    probabilities = [weight / sum(weights) for weight in weights]
    # 25.7 is passed once in 10,000 by 5 degrees of freedom, more rarely by fewer; the seed is fixed.
    assert chi_square(draws_of(2000, **options), probabilities) < 25.7


def test_a_seed_repeats_and_another_differs() -> None:
    assert (draws_of(200, seed=3) == draws_of(200, seed=3)).all()
    assert (draws_of(200, seed=3) != draws_of(200, seed=4)).mean() > 0.5
    # Steps of one output are draws of their own too.
    (one,), (other,) = run(CHAIN, [[1] * 40] * 2, DecodeOptions(sample=True, max_extra_tokens=0, seed=1))
    assert one.tokens[:5] != other.tokens[:5]
    assert len(set(one.tokens)) > 1


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"temperature": 1e-6}, {"temperature": 5e-324}, {"top_p": 1e-9}], ids=str
)
@pytest.mark.parametrize("kind", KINDS)
def test_sampling_at_its_limits_is_greedy(kind: str, options: dict[str, float]) -> None:
    model = model_of(kind, 9, 2)
    sources = random_sources(8, 2)
    wanted = run(model, sources, DecodeOptions(max_extra_tokens=6))
    got = run(model, sources, DecodeOptions(sample=True, max_extra_tokens=6, **options))
    assert all(same(one, other) for one, other in zip(wanted, got, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_probability_of_a_draw_is_the_models(kind: str) -> None:
    model = model_of(kind, 9, 2)
    sources = random_sources(4, 2)
    options = DecodeOptions(sample=True, max_extra_tokens=6, temperature=3.0, top_k=5)
    for source, (got,) in zip(sources, run(model, sources, options), strict=True):
        rows = logp(model, source, got.tokens)
        total = sum(rows[place, token] for place, token in enumerate([*got.tokens, END][: len(got.tokens) + got.ended]))
        assert got.logprob == pytest.approx(total, abs=1e-10)


# -------------------------------------------------------------------------------------------------------------- options

BAD = (0, -1, 10**9, math.nan, math.inf, -math.inf, 1.5, True, "4", None)
ALLOWED = {
    "beam": (),
    "n_best": (),
    "max_extra_tokens": (0,),
    "top_k": (0, 10**9),
    "seed": (0, 10**9),
}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, good in ALLOWED.items() for v in BAD if v is True or v not in good]
)
def test_counts_out_of_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        DecodeOptions(**{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in ("length_penalty", "length_offset", "temperature", "top_p")
        for value in (-1, -1e-9, math.nan, math.inf, -math.inf)
    ]
    + [
        ("length_penalty", 10.5),
        ("length_penalty", 1e9),
        ("temperature", 0),
        ("top_p", 0),
        ("top_p", 1.001),
        ("top_p", 1e9),
    ]
    + [("seed", 2**63), ("beam", 1025), ("max_extra_tokens", 100_001)],
)
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        DecodeOptions(**{name: value})


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="n_best is 3 with beam 2"):
        DecodeOptions(beam=2, n_best=3)
    with pytest.raises(UsageError, match="sampling with beam 2"):
        DecodeOptions(beam=2, sample=True)
    assert dataclasses.replace(DecodeOptions(beam=1024, n_best=1024), beam=1024).beam == 1024


@pytest.mark.parametrize("options", [DecodeOptions(), DecodeOptions(beam=3), DecodeOptions(sample=True)])
def test_scores_that_are_no_numbers_are_told(options: DecodeOptions) -> None:
    model = model_of("rnn", 5, 0)
    damaged = RNN(model.config).double().eval()
    damaged.load_state_dict(model.state_dict())
    with torch.no_grad():
        damaged.output.bias[2] = math.nan
    with pytest.raises(NumericError, match="not numbers"):
        run(damaged, random_sources(2, 0), options)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_table_of_positions_limits_outputs(beam: int) -> None:
    config = TransformerConfig(SOURCE_VOCAB, 5, 8, 12, 2, 0, 1, 1, share="none", positions="learned", max_len=9)
    torch.manual_seed(0)
    model = Transformer(config).double().eval()
    with torch.no_grad():
        model.output.bias[END] = -1e3
    ((best, *_),) = run(model, [[2] * 8], DecodeOptions(beam=beam, max_extra_tokens=50))
    assert len(best.tokens) == 8  # the start token takes the ninth place
    assert not best.ended
