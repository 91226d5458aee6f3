import json

import numpy as np
import pytest

from regard.errors import DataError, FormatError, ResourceError, UsageError
from regard.looking import AttentionMap, Link, Maps

# Two heads, two queries, three keys; every weight exact in binary.
WEIGHTS = [[[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]], [[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]]


def cross(layer="decoder.0", weights=WEIGHTS):
    return AttentionMap(layer, "cross", ("le", "chat"), ("the", "cat", "."), np.array(weights))


def self_map(layer, weights):
    return AttentionMap(layer, "self", ("a", "b"), ("a", "b"), np.array(weights))


def maps(*more):
    eye = [[[1.0, 0.0], [0.0, 1.0]]]
    return Maps("t", "the cat .", "le chat", (self_map("decoder.0.self", eye), cross(), *more), {"model": "m"})


def test_weights_are_kept_as_read_only_float32():
    one = cross()
    assert one.weights_HTS.dtype == np.float32
    assert one.weights_HTS.tolist() == WEIGHTS
    with pytest.raises(ValueError, match="read-only"):
        one.weights_HTS[0, 0, 0] = 1


@pytest.mark.parametrize(
    ("weights", "what"),
    [
        (np.zeros((2, 3)), "shape (2, 3); it is (heads, 2, 3)"),
        (np.zeros((1, 3, 2)), "shape (1, 3, 2)"),
        (np.zeros((0, 2, 3)), "shape (0, 2, 3)"),
        ([[[1.0, 0.0, 0.0], [0.0]]], "not an array of numbers"),
        ([[["a", "b", "c"], ["a", "b", "c"]]], "not an array of numbers"),
        ([[[1.0, 0.0, 0.0], [float("nan"), 0.0, 0.0]]], "not finite"),
        ([[[1.0, 0.0, 0.0], [float("inf"), 0.0, 0.0]]], "not finite"),
        ([[[1.0, 0.0, 0.0], [1.5, -0.5, 0.0]]], "weights from -0.5 to 1.5"),
        ([[[1.0, 0.0, 0.0], [0.5, 0.4, 0.0]]], "head 0, query 1 sums to 0.9"),
        ([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.002]]], "query 1 sums to 1.002"),
    ],
)
def test_what_is_no_attention_is_refused_and_named(weights, what):
    with pytest.raises(DataError) as error:
        AttentionMap("decoder.0", "cross", ("le", "chat"), ("the", "cat", "."), weights)
    assert what in str(error.value)
    assert "'decoder.0'" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sum_within_a_thousandth_is_accepted():
    assert cross(weights=[[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0009]]]).weights_HTS[0, 1, 2] == np.float32(0.0009)


def test_kinds_and_tokens_are_checked():
    with pytest.raises(DataError, match="other keys than queries"):
        AttentionMap("l", "self", ("a",), ("b",), np.ones((1, 1, 1)))
    with pytest.raises(DataError, match="it is 'self' or 'cross'"):
        AttentionMap("l", "other", ("a",), ("a",), np.ones((1, 1, 1)))
    with pytest.raises(DataError, match="not a string"):
        AttentionMap("l", "cross", (3,), ("a",), np.ones((1, 1, 1)))
    with pytest.raises(DataError, match=r"'decoder.0' is there twice"):
        maps(cross())
    with pytest.raises(DataError, match="no attention map"):
        Maps("t", "s", "o", ())


def test_weights_of_a_layer_and_of_a_head():
    assert maps().weights("decoder.0").tolist() == WEIGHTS
    assert maps().weights("decoder.0", head=1).tolist() == WEIGHTS[1]
    with pytest.raises(UsageError, match="head 2 of 2; heads are 0 to 1"):
        maps().weights("decoder.0", head=2)
    with pytest.raises(UsageError, match="head -1 of 2"):
        maps().weights("decoder.0", head=-1)
    with pytest.raises(UsageError, match=r"no layer 'x'; layers are decoder.0.self, decoder.0"):
        maps().weights("x")


def test_alignment_is_the_last_cross_layer_averaged_over_heads():
    last = cross("decoder.1", [[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]])
    tail = self_map("z", [[[1.0, 0.0], [1.0, 0.0]]])
    both = maps(last, tail)
    assert both.alignment().layer == "decoder.1"
    assert both.alignment().weights_HTS.tolist() == [[[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]]
    # The second head attends to nothing in row 1, so that row is the first head's.
    assert both.alignment("decoder.0").weights_HTS.tolist() == [[[0.375, 0.5, 0.125], [0.125, 0.125, 0.75]]]
    with pytest.raises(UsageError, match="self-attention"):
        both.alignment("z")
    alone = Maps("t", "a b", "", (tail,))
    with pytest.raises(UsageError, match="no cross-attention to align with"):
        alone.alignment()
    assert alone.main().layer == "z"


def test_top_lists_the_strongest_first_and_earlier_keys_before_later_ones():
    both = maps(cross("decoder.1", [[[0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]]))
    assert both.top(2) == [
        [Link(0, "le", 1, "cat", 0.5), Link(0, "le", 0, "the", 0.25)],
        [Link(1, "chat", 2, ".", 1.0), Link(1, "chat", 0, "the", 0.0)],
    ]
    assert [len(row) for row in both.top(9)] == [3, 3]
    assert both.top(1, layer="decoder.0.self")[1] == [Link(1, "b", 1, "b", 1.0)]
    with pytest.raises(UsageError, match="k is 0"):
        both.top(0)


def test_json_gives_every_bit_back():
    weights = np.random.default_rng(3).dirichlet(np.ones(3), size=(5, 2)).astype(np.float32)
    before = Maps(
        "t\ud800", "s\n", "o\0", (AttentionMap("l", "cross", ("é", ""), ("a", "b", "c"), weights),), {"k": "v"}
    )
    text = before.to_json()
    assert text.isascii()
    after = Maps.from_json(text)
    assert (after.title, after.source, after.output, after.details) == ("t\ud800", "s\n", "o\0", {"k": "v"})
    one = after.maps[0]
    assert (one.layer, one.kind, one.query_tokens, one.key_tokens) == ("l", "cross", ("é", ""), ("a", "b", "c"))
    assert one.weights_HTS.tobytes() == weights.tobytes()


def test_json_says_its_numbers_shortly():
    data = json.loads(maps(cross("x", [[[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]]])).to_json())
    assert data["maps"][2]["weights"][0][0] == [0.1, 0.2, 0.7]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ("[]", "not regard-maps-2"),
        ('{"format": "regard-maps-1"}', "'details' is missing"),
        ('{"format": "regard-maps-1", "details": {"a": 1}}', "other than text"),
        ('{"format": "regard-maps-1", "details": {}, "maps": [3]}', "a map is no object"),
        ('{"format": "regard-maps-1", "details": {}, "maps": [{"kind": "both"}]}', "kind is 'both'"),
        (
            '{"format": "regard-maps-1", "details": {}, "maps": [{"kind": "self", "query_tokens": [], "key_tokens": [],'
            ' "weights": [[], [1]]}]}',
            "'weights' is no array",
        ),
    ],
)
def test_other_json_is_refused(text, what):
    with pytest.raises(FormatError, match=what):
        Maps.from_json(text)


def test_json_with_bad_weights_is_refused():
    with pytest.raises(DataError, match="not finite"):
        Maps.from_json(maps().to_json().replace("0.75", "NaN", 1))


def test_save_chooses_by_suffix(tmp_path):
    maps().save(tmp_path / "a.json")
    assert Maps.from_json((tmp_path / "a.json").read_text("utf-8")).weights("decoder.0").tolist() == WEIGHTS
    maps().save(str(tmp_path / "a.HTML"))
    assert (tmp_path / "a.HTML").read_text("utf-8").startswith("<!doctype html>")
    with pytest.raises(UsageError, match=r"suffix '.png'; it is .html or .json"):
        maps().save(tmp_path / "a.png")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.HTML", "a.json"]


def test_what_cannot_be_written_leaves_everything_as_it_was(tmp_path):
    with pytest.raises(ResourceError, match="cannot be written"):
        maps().save(tmp_path / "none" / "a.html")
    (tmp_path / "a.json").mkdir()
    with pytest.raises(ResourceError, match="cannot be written"):
        maps().save(tmp_path / "a.json")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_notebook_gets_a_frame_of_its_own():
    shown = maps()._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts allow-downloads" ')
    assert shown.count("<") == 2  # the frame and its end: the page itself is an attribute
    assert "&lt;!doctype html&gt;" in shown
