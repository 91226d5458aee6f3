"""Going on from prompts, against loops over the whole forward pass."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from regard.attention import Segments
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions, decode
from regard.errors import ContextError, UsageError
from regard.models.gpt import GPT, GPTConfig
from regard.models.llama import Llama, LlamaConfig
from regard.tasks.generator import Generation, Generator, windows
from regard.tasks.written import Written

WORDS = "the light of day and dark of night, water over earth. Let there be heaven"
GREEDY = DecodeOptions(max_extra_tokens=12, length_penalty=0.0)
PROMPTS = ["the light", "", "water over earth. Let there", "d"]


@cache
def generator(kind: str = "gpt", max_tokens: int = 64) -> Generator:
    tokenizer = Tokenizer.train([WORDS], "byte-bpe", 290)
    torch.manual_seed(4)
    size = tokenizer.vocab_size
    model = (
        GPT(GPTConfig(size, 16, 2, 2, max_len=64))
        if kind == "gpt"
        else Llama(LlamaConfig(size, 16, 2, 4, 2, mlp_dim=24, max_len=64))
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return Generator(model, tokenizer, GREEDY, max_tokens)


def next_logits(g: Generator, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return g.model.head(g.model(torch.tensor(tokens), Segments.ragged([len(tokens)])))[-1].numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


def loop(g: Generator, tokens: list[int], count: int, penalty: float = 1.0) -> tuple[list[int], float]:
    """Greedy, token by token, each from the whole text."""
    written: list[int] = []
    total = 0.0
    for _ in range(count + 1):
        logits = next_logits(g, tokens + written)
        for token in set(tokens + written) if penalty != 1 else ():
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        logp = log_softmax(logits)
        best = int(logp.argmax())
        if best not in g.end_ids and len(written) == count:
            break
        total += logp[best]
        if best in g.end_ids:
            break
        written.append(best)
    return written, total


def same(some: list[Generation], others: list[Generation]) -> bool:
    """Equal, but for the last bits of a sum."""
    return [(a.text, a.tokens, a.ended) for a in some] == [(b.text, b.tokens, b.ended) for b in others] and all(
        a.logprob == pytest.approx(b.logprob, rel=1e-12) for a, b in zip(some, others, strict=True)
    )


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("penalty", [1.0, 1.7])
def test_greedy_is_the_loop_whatever_prompts_stand_beside(kind: str, penalty: float) -> None:
    g = generator(kind)
    options = DecodeOptions(max_extra_tokens=12, length_penalty=0.0, repetition_penalty=penalty)
    together = g.generate(PROMPTS, options)
    for prompt, one in zip(PROMPTS, together, strict=True):
        written, total = loop(g, [g.tokenizer.start_id, *g.tokenizer.encode(prompt)], 12, penalty)
        assert one.text == g.tokenizer.decode(written)
        assert one.logprob == pytest.approx(total, rel=1e-9)
        assert one.tokens == len(written)
        assert same(g.generate([prompt], options), [one])


def test_draws_depend_on_seed_and_place_alone() -> None:
    g = generator()
    options = DecodeOptions(max_extra_tokens=12, sample=True, temperature=1.5, length_penalty=0.0, seed=3)
    together = g.generate(["the"] * 6, options, batch_tokens=10_000)
    assert len({one.text for one in together}) > 3
    assert same(g.generate(["the"] * 6, options, batch_tokens=1), together)
    assert same(g.generate(["the"], options, first=4), together[4:5])
    assert g.generate(["the"] * 6, DecodeOptions(max_extra_tokens=12, sample=True, seed=4)) != together


def test_min_p_leaves_out_what_is_too_improbable() -> None:
    g = generator()
    logp = log_softmax(next_logits(g, [g.tokenizer.start_id, *g.tokenizer.encode("the")]))
    drawn = set()
    for seed in range(60):
        options = DecodeOptions(max_extra_tokens=1, sample=True, min_p=0.3, length_penalty=0.0, seed=seed)
        drawn.add(g.generate(["the"], options)[0].text)
    allowed = {g.tokenizer.decode([token]) for token in np.flatnonzero(np.exp(logp) >= 0.3 * np.exp(logp.max()))}
    assert drawn == allowed
    assert 1 < len(allowed) < 20


def test_a_stop_text_ends_the_output_and_is_cut_off() -> None:
    g = generator()
    whole = g.generate(["the light"])[0].text
    stop = whole[3:5]
    options = DecodeOptions(max_extra_tokens=12, length_penalty=0.0, stop=("never there", stop))
    one = g.generate(["the light"], options)[0]
    assert one.text == whole[: whole.index(stop)]
    assert one.ended
    assert one.tokens <= 12
    with pytest.raises(UsageError, match="empty text in stop"):
        DecodeOptions(stop=("",))


@pytest.mark.parametrize("stop", [(), ("e",), ("th", "ea")])
def test_pieces_as_they_come_are_the_text(stop: tuple[str, ...]) -> None:
    g = generator()
    for seed in range(8):
        options = DecodeOptions(max_extra_tokens=20, sample=True, temperature=1.3, seed=seed, stop=stop)
        heard: dict[int, list[str]] = {}

        def listen(number: int, piece: str, heard: dict[int, list[str]] = heard) -> None:
            heard.setdefault(number, []).append(piece)

        for number, one in enumerate(g.generate(PROMPTS, options, listen=listen)):
            assert "".join(heard.get(number, [])) == one.text
        assert any(len(pieces) > 2 for pieces in heard.values()) or stop


def test_a_stop_text_that_may_be_half_there_is_held_back() -> None:
    tokenizer = generator().tokenizer
    for end, kept in (("of day", "the "), ("on day", "the light on day")):
        text, stop = f"the light {end}", "light of"
        stream = Written(tokenizer.decode, [], (stop,))
        said = ""
        for token in tokenizer.encode(text):
            said += stream.push(token)
            assert kept.startswith(said)
        assert said + stream.rest(kept) == kept
    assert len(said) > 10  # what cannot be the stop text is said at once


def test_the_context_is_refused_with_both_numbers_cut_or_slid() -> None:
    g = generator(max_tokens=24)
    prompt = "the light of day and dark"
    tokens = [g.tokenizer.start_id, *g.tokenizer.encode(prompt)]
    assert 12 < len(tokens) < 24
    with pytest.raises(ContextError, match=f"prompt 3: {len(tokens)} tokens and 12 .* context is 24"):
        g.generate(["a", "b", prompt], GREEDY)
    cut = g.generate([prompt])[0]
    assert cut == g.generate([prompt], GREEDY, on_full="cut")[0]
    assert cut.tokens == 24 - len(tokens)
    slid = g.generate([prompt], GREEDY, on_full="slide")[0]
    assert slid.text == g.tokenizer.decode(loop(g, tokens[-12:], 12)[0])
    assert slid.text != g.tokenizer.decode(loop(g, tokens[:12], 12)[0])
    with pytest.raises(UsageError, match="24 tokens to write; the context is 24"):
        g.generate([prompt], DecodeOptions(max_extra_tokens=24), on_full="slide")
    with pytest.raises(UsageError, match="choose error, cut, slide or roll"):
        g.generate([prompt], on_full="wrap")


class Rolling:
    """A window filled token by token; when it is full, its last half stays, the new token among it."""

    def __init__(self, size: int) -> None:
        self.size, self.tokens = size, list[int]()

    def read(self, tokens: list[int]) -> list[int]:
        for token in tokens:
            is_full = len(self.tokens) == self.size
            self.tokens.append(token)
            if is_full:
                del self.tokens[: -max(self.size // 2, 1)]
        return self.tokens


def rolled(g: Generator, tokens: list[int], count: int, penalty: float) -> tuple[list[int], float]:
    """Greedy without a cache, each token from the window alone."""
    rolling, written, new, total = Rolling(g.max_tokens), list[int](), tokens, 0.0
    while True:
        logits = next_logits(g, rolling.read(new))
        for token in set(tokens + written) if penalty != 1 else ():
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        logp = log_softmax(logits)
        best = int(logp.argmax())
        if best not in g.end_ids and len(written) == count:
            return written, total
        total += logp[best]
        if best in g.end_ids:
            return written, total
        new = [best]
        written += new


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize(("context", "penalty"), [(1, 1.0), (2, 1.0), (7, 1.0), (7, 1.3), (16, 1.0)])
def test_a_window_rolls_on_as_without_a_cache_whatever_texts_stand_beside(
    kind: str, context: int, penalty: float
) -> None:
    g = Generator(generator(kind).model, generator(kind).tokenizer, GREEDY, context)
    options = DecodeOptions(max_extra_tokens=60, length_penalty=0.0, repetition_penalty=penalty)
    prompts = [*PROMPTS, "the light of day and dark of night " * 2]
    tokens = [[g.tokenizer.start_id, *g.tokenizer.encode(prompt)] for prompt in prompts]
    assert len(tokens[-1]) > 16
    wants = [rolled(g, row, 60, penalty) for row in tokens]
    assert max(len(written) for written, _ in wants) > 3 * context
    for batch_tokens in (1, 10_000):
        together = g.generate(prompts, options, on_full="roll", batch_tokens=batch_tokens)
        for (written, total), one in zip(wants, together, strict=True):
            assert one.text == g.tokenizer.decode(written)
            assert one.tokens == len(written)
            assert one.logprob == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("how", [{"beam": 3, "n_best": 3}, {"sample": True, "temperature": 1.5}])
def test_beams_and_draws_roll_on_each_from_its_own_window(how: dict[str, Any]) -> None:
    g = Generator(generator("gpt").model, generator("gpt").tokenizer, GREEDY, 7)
    options = DecodeOptions(max_extra_tokens=25, length_penalty=0.0, **how)
    prompts = [[g.tokenizer.start_id, *g.tokenizer.encode(prompt)] for prompt in PROMPTS]
    read = [Rolling(7).read(row)[:-1] for row in prompts]
    found = decode(
        g.model,
        torch.tensor([token for row in read for token in row], dtype=torch.int64),
        Segments.ragged([len(row) for row in read]),
        start_id=torch.tensor([row[-1] for row in prompts]),
        end_id=g.end_ids,
        options=options,
        prompts=prompts,
        context=7,
    )
    assert {len(one.tokens) for some in found for one in some} - set(range(15))
    for prompt, some in zip(prompts, found, strict=True):
        assert len({tuple(one.tokens) for one in some}) == len(some) == options.n_best
        for one in some:
            rolling, new, total = Rolling(7), prompt, 0.0
            for token in [*one.tokens, *g.end_ids[: one.ended]]:
                total += log_softmax(next_logits(g, rolling.read(new)))[token]
                new = [token]
            assert one.logprob == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("length", [1, 2, 5, 16, 17, 18, 33, 100])
@pytest.mark.parametrize(("context", "stride"), [(17, 8), (17, 16), (5, 1), (2, 1)])
def test_windows_score_each_token_once_with_context_before_it(length: int, context: int, stride: int) -> None:
    scored: list[int] = []
    for window in windows(length, context, stride):
        assert 0 < window.end - window.start <= context
        scored += range(window.start + 1 + window.skip, window.end)
    assert scored == list(range(1, length))


def test_texts_are_scored_as_by_the_loop_and_in_windows() -> None:
    g = generator(max_tokens=64)
    text = "the light of day and dark of night"
    tokens = [g.tokenizer.start_id, *g.tokenizer.encode(text), g.tokenizer.end_id]
    want = sum(log_softmax(next_logits(g, tokens[:n]))[tokens[n]] for n in range(1, len(tokens)))
    (total, count), *_ = g.score([text, "d", text + text])
    assert total == pytest.approx(want, rel=1e-9)
    assert count == len(tokens) - 1
    narrow = Generator(g.model, g.tokenizer, GREEDY, 6)
    want = 0.0
    for window in windows(len(tokens), 7, 3):
        for n in range(window.start + 1 + window.skip, window.end):
            want += log_softmax(next_logits(g, tokens[window.start : n]))[tokens[n]]
    assert narrow.score([text])[0] == (pytest.approx(want, rel=1e-9), len(tokens) - 1)
