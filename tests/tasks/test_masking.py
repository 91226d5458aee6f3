"""Which tokens are hidden: shares, special tokens, whole words, draws that depend on nothing but their number."""

import math
import random

import numpy as np
import pytest

from regard.data.tokenizer import MASK, Kind, Tokenizer
from regard.errors import ConfigError
from regard.tasks.masking import Masker, Masking, chance

KINDS: list[Kind] = ["byte-bpe", "bpe", "wordpiece", "unigram", "characters", "whitespace"]


def sentences(count: int = 200, seed: int = 3) -> list[str]:
    draws = random.Random(seed)
    words = ["".join(draws.choices("abcdefgh", k=draws.randint(1, 9))) for _ in range(150)]
    return [" ".join(draws.choices(words, k=12)) for _ in range(count)]


def tokenizer(kind: Kind = "byte-bpe") -> Tokenizer:
    return Tokenizer.train(sentences(), kind, 330, mask=True)


def test_the_shares_are_those_of_the_paper() -> None:
    made = tokenizer()
    masker = Masker(Masking(), made)
    draws = np.random.default_rng(5)
    tokens = draws.choice(masker.text_ids, 100_003)
    places = masker.choose(tokens, draws)
    assert len(places) == math.ceil(0.15 * 100_003)
    assert (np.diff(places) > 0).all()
    hidden = masker.hide(tokens, places, draws)
    assert np.array_equal(np.delete(hidden, places), np.delete(tokens, places))
    is_mask, is_same = hidden[places] == made.mask_id, hidden[places] == tokens[places]
    count, num_text = len(places), len(masker.text_ids)
    # A random token is the old one once in as many times as there are tokens.
    for share, want in ((is_mask.mean(), 0.8), (is_same.mean(), 0.1 + 0.1 / num_text)):
        assert abs(share - want) < 4 * math.sqrt(want * (1 - want) / count)
    others = hidden[places][~is_mask & ~is_same]
    assert len({*others.tolist()}) > 0.9 * num_text
    assert not {*others.tolist()} & {*made.special_ids}
    assert np.array_equal(masker.hide_all(tokens, places)[places], np.full(count, made.mask_id))


@pytest.mark.parametrize("whole_words", [False, True])
def test_special_tokens_are_never_hidden(whole_words: bool) -> None:
    made = tokenizer("wordpiece")
    assert len(made.special_ids) == 4
    masker = Masker(Masking(prob=1.0, whole_words=whole_words), made)
    text = made.encode("abc")
    tokens = np.array([made.start_id, *text, *made.special_ids, *text, made.end_id, made.start_id, made.end_id])
    places = masker.choose(tokens, chance(1, 2))
    first, second = 1, 1 + len(text) + 4
    assert places.tolist() == [*range(first, first + len(text)), *range(second, second + len(text))]


@pytest.mark.parametrize("whole_words", [False, True])
def test_at_least_one_token_is_hidden_where_there_is_text(whole_words: bool) -> None:
    made = tokenizer()
    masker = Masker(Masking(prob=1e-9, whole_words=whole_words), made)
    tokens = np.array([made.start_id, *made.encode("a b c"), made.end_id])
    assert {len(masker.choose(tokens, chance(1, n))) for n in range(20)} == {1}
    bare = np.array([made.start_id, made.end_id])
    places = masker.choose(bare, chance(1, 2))
    assert len(places) == 0
    assert np.array_equal(masker.hide(bare, places, chance(1, 2)), bare)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_a_word_are_hidden_together(kind: Kind) -> None:
    made = tokenizer(kind)
    text = " ".join(sentences(40))
    ids, offsets = made.encode(text), made.offsets(text)
    # The word of a token is that of its last character: a space goes with what follows.
    word = [text[:end].rstrip().count(" ") + (text[end - 1] == " ") for _, end in offsets]
    assert len({*word}) == len(text.split())
    tokens = np.array([made.start_id, *ids, made.end_id])
    chosen = Masker(Masking(whole_words=True), made).choose(tokens, chance(1, 2))
    words = {word[place - 1] for place in chosen}
    assert chosen.tolist() == [1 + n for n, one in enumerate(word) if one in words]
    longest = max(word.count(one) for one in {*word})
    assert math.ceil(0.15 * len(ids)) <= len(chosen) < 0.15 * len(ids) + longest
    if kind != "whitespace":
        assert longest > 1
        alone = Masker(Masking(), made).choose(tokens, chance(1, 2))
        words = {word[place - 1] for place in alone}
        assert alone.tolist() != [1 + n for n, one in enumerate(word) if one in words]


def test_draws_depend_on_seed_and_number_alone() -> None:
    def drawn(seed: int, number: int) -> tuple[float, ...]:
        return tuple(chance(seed, number).random(4).tolist())

    assert drawn(3, 7) == drawn(3, 7)
    assert len({drawn(3, 7), drawn(3, 8), drawn(4, 7), drawn(7, 3)}) == 4
    assert drawn(3, 7) != tuple(np.random.Generator(np.random.Philox(key=[3, 7])).random(4).tolist())  # of the order


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prob": 0.0}, r"masking.prob is 0.0; give a share in \(0, 1\]"),
        ({"prob": 1.5}, "masking.prob is 1.5"),
        ({"mask_prob": -0.1}, "masking.mask_prob is -0.1"),
        ({"random_prob": 2.0}, "masking.random_prob is 2.0"),
        ({"mask_prob": 0.9, "random_prob": 0.2}, "0.9 and masking.random_prob 0.2 are more than 1 together"),
    ],
)
def test_shares_that_cannot_be_are_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Masking(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_the_mask_is_a_token_that_no_text_reaches(kind: Kind) -> None:
    texts = [*sentences(), *[f"{MASK}{MASK} b{MASK}"] * 200]
    made = Tokenizer.train(texts, kind, 330, mask=True)
    assert made.mask_id == made.vocab_size - 1
    assert made.vocab_size <= 330
    assert made.mask_id not in made.encode(f"a {MASK} b{MASK}")
    assert made.decode([made.mask_id]) == MASK
    plain = Tokenizer.train(texts, kind, 330)
    assert plain.mask_id is None
    with pytest.raises(ConfigError, match="the tokenizer has no mask"):
        Masker(Masking(), plain)
