"""Scores against sacreBLEU called directly, and edits against their definition."""

from functools import cache

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import DataError
from regard.metrics.strings import edit_distance, measure

OUTPUTS = ["The dog bit the man.", "It was not unexpected.", "The man bit him first.", "a"]
FIRST = ["The dog bit the man.", "It was not surprising at all.", "The man had just bitten him.", "b"]
SECOND = ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog.", "a"]


def test_one_reference_as_sacrebleu() -> None:
    got = measure(OUTPUTS, [[reference] for reference in FIRST])
    assert got["bleu"].value == sacrebleu.corpus_bleu(OUTPUTS, [FIRST]).score
    assert got["chrf"].value == sacrebleu.corpus_chrf(OUTPUTS, [FIRST]).score
    assert 5 < got["bleu"].value < 95


def test_several_references_as_sacrebleu() -> None:
    got = measure(OUTPUTS, [list(pair) for pair in zip(FIRST, SECOND, strict=True)])
    assert got["bleu"].value == sacrebleu.corpus_bleu(OUTPUTS, [FIRST, SECOND]).score
    assert got["chrf"].value == sacrebleu.corpus_chrf(OUTPUTS, [FIRST, SECOND]).score
    assert got["bleu"].value > measure(OUTPUTS, [[reference] for reference in FIRST])["bleu"].value


def test_references_may_differ_in_number() -> None:
    got = measure(OUTPUTS, [[FIRST[0]], [FIRST[1], SECOND[1]], [FIRST[2]], [FIRST[3], SECOND[3]]])
    streams = [FIRST, [None, SECOND[1], None, SECOND[3]]]
    assert got["bleu"].value == sacrebleu.corpus_bleu(OUTPUTS, streams).score
    assert got["chrf"].value == sacrebleu.corpus_chrf(OUTPUTS, streams).score
    # A repeated reference says nothing new; leaving the second one out says less.
    filled = measure(OUTPUTS, [[FIRST[0]] * 2, [FIRST[1], SECOND[1]], [FIRST[2]] * 2, [FIRST[3], SECOND[3]]])
    assert {name: one.value for name, one in filled.items()} == pytest.approx(
        {name: one.value for name, one in got.items()}
    )


def test_every_value_has_its_signature() -> None:
    one = measure(OUTPUTS, [[reference] for reference in FIRST])
    two = measure(OUTPUTS, [list(pair) for pair in zip(FIRST, SECOND, strict=True)])
    bleu = sacrebleu.BLEU(tokenize="13a")
    bleu.corpus_score(OUTPUTS, [FIRST])
    assert one["bleu"].signature == str(bleu.get_signature())
    for part in ("nrefs:1", "case:mixed", "tok:13a", "smooth:exp", "version:"):
        assert part in one["bleu"].signature
    for part in ("nrefs:1", "nc:6", "nw:0", "version:"):
        assert part in one["chrf"].signature
    assert "nrefs:2" in two["bleu"].signature
    assert "nrefs:2" in two["chrf"].signature
    assert one["exact_match"].signature == "exact_match|n:4|refs:1|case:mixed|version:regard-1"
    assert (
        two["token_error_rate"].signature
        == "token_error_rate|n:4|refs:any of up to 2|tok:space|case:mixed|version:regard-1"
    )
    assert all(name == value.name for name, value in one.items())


@cache
def edits(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    if not one or not other:
        return len(one) + len(other)
    same = edits(one[1:], other[1:]) + (one[0] != other[0])
    return min(same, edits(one[1:], other) + 1, edits(one, other[1:]) + 1)


@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=7))
def test_edits_as_defined(one: list[str], other: list[str]) -> None:
    assert edit_distance(one, other) == edits(tuple(one), tuple(other)) == edit_distance(other, one)


def test_any_reference_counts() -> None:
    got = measure(["a b c", "x y", "q", ""], [["a b", "a b d", "a b c"], ["x z", "y"], ["Q"], ["s t u"]])
    assert got["exact_match"].value == 1 / 4
    # 0 of 3; 1 of 1 ("y" is as near as "x z", and shorter); 1 of 1; 3 of 3.
    assert got["token_error_rate"].value == (0 + 1 + 1 + 3) / (3 + 1 + 1 + 3)


def test_perfect_and_hopeless() -> None:
    perfect = measure(OUTPUTS, [[output] for output in OUTPUTS])
    assert {name: round(one.value, 9) for name, one in perfect.items()} == {
        "bleu": 100.0, "chrf": 100.0, "exact_match": 1.0, "token_error_rate": 0.0,
    }  # fmt: skip
    hopeless = measure(["", ""], [["a b"], ["c"]])
    assert [hopeless[name].value for name in ("bleu", "chrf", "exact_match", "token_error_rate")] == [0, 0, 0, 1]


@pytest.mark.parametrize(("outputs", "references"), [([], []), (["a"], []), (["a"], [[]]), (["a", "b"], [["a"]])])
def test_what_cannot_be_scored_is_refused(outputs: list[str], references: list[list[str]]) -> None:
    with pytest.raises(DataError, match="outputs to score"):
        measure(outputs, references)
