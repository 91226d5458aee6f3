"""What the page is given: every number of the maps, in the documented form."""

import base64
import json
import zlib

import numpy as np
import pytest
from looking_examples import a_png, some_maps, some_pictures, some_weights

from regard.errors import UsageError
from regard.looking import AttentionMap, Boxes, Maps, Picture, Places, attention_flow, form, over_picture, rollout
from regard.looking.form import Address, base_rows, coded, describe, read_address
from regard.looking.stacks import stacks_of


def numbers(one, shape):
    data = zlib.decompress(base64.b64decode(one["data"]))
    if one["coding"] == "f4":
        return np.frombuffer(data, "<f4").reshape(shape)
    assert one["coding"] == "root-u2"
    return (np.frombuffer(data, "<u2").reshape(shape) / 65535) ** 2


@pytest.mark.parametrize("maps", [some_maps(), some_pictures()], ids=["texts", "pictures"])
def test_a_whole_run_holds_every_number_and_name(maps):
    run = json.loads(json.dumps(describe(maps, whole=True, model="m", number=3)))
    assert (run["format"], run["id"], run["model"], run["title"]) == ("regard-look-1", 3, "m", maps.title)
    for told, one in zip(run["layers"], maps.maps, strict=True):
        assert (told["name"], told["kind"], tuple(told["shape"])) == (one.layer, one.kind, one.weights_HTS.shape)
        np.testing.assert_array_equal(numbers(told["weights"], told["shape"]), one.weights_HTS)
        for axis, side in (("queries", one.queries), ("keys", one.keys)):
            written = run["sides"][told[axis]]
            if isinstance(side, Places):
                assert (written["kind"], tuple(written["grid"]), tuple(written["before"])) == (
                    "places",
                    side.grid,
                    side.before,
                )
                windows = None if side.windows is None else [list(window) for window in side.windows]
                assert written["windows"] == windows
            else:
                assert written == {"kind": "tokens", "tokens": list(side)}
    assert len(run["sides"]) == len({json.dumps(side) for side in run["sides"]})
    assert sorted(index for stack in run["stacks"] for index in stack["layers"]) == list(range(len(maps.maps)))
    for one, picture in zip(run["pictures"], maps.pictures, strict=True):
        assert one["src"] == f"data:image/png;base64,{base64.b64encode(picture.png).decode()}"
    cross = [i for i, one in enumerate(maps.maps) if one.kind == "cross"]
    assert run["main"] == {"layer": cross[-1], "head": "mean"}


def test_what_flows_through_a_stack_is_in_a_whole_run():
    maps = some_maps()
    run = describe(maps, whole=True)
    found = {(one["stack"], one["how"]): one for one in run["through"]}
    for i, stack in enumerate(stacks_of(maps)):
        for how, compute in (("rollout", rollout), ("flow", attention_flow)):
            if not stack.rolls:
                assert (i, how) not in found
                continue
            one = found[i, how]
            np.testing.assert_allclose(numbers(one["weights"], one["shape"]), compute(stack.maps), rtol=0, atol=1e-7)
    assert sum(stack.rolls for stack in stacks_of(maps)) == 2


def test_stacks_are_layers_of_one_name_those_that_align_first():
    stacks = stacks_of(some_maps())
    assert [(one.title, one.about, one.indices) for one in stacks] == [
        ("Cross-attention, output to source", "decoder.*.cross.x", [2, 5]),
        ("Self-attention of the source", "encoder.*.x", [0, 3]),
        ("Self-attention of the output", "decoder.*.self.x", [1, 4]),
    ]
    windows = [one for one in stacks_of(some_pictures()) if one.about == "*.part.x"]
    assert not windows[0].rolls


def test_boxes_stand_on_a_picture_and_come_back():
    boxes = Boxes(0, ((0.0, 0.25, 0.5, 1.0), (0.5, 0.0, 1.0, 0.75)), ("dog", "tree"), ("all",))
    words = ("a", "dog", "sits", "there", ".")
    maps = Maps(
        "t",
        "s",
        "o",
        (
            AttentionMap("0.see", "cross", words, boxes, some_weights(2, 5, 3)),
            AttentionMap("0.self", "self", boxes, boxes, some_weights(2, 3, 3)),
            AttentionMap("0.say", "cross", boxes, words, some_weights(1, 3, 5)),
        ),
        pictures=(Picture("p", a_png()),),
    )
    assert maps.maps[0].key_tokens == ("all", "dog", "tree")
    assert maps.maps[0].key_name(0, 1) == "dog"
    again = Maps.from_json(maps.to_json())
    assert [(one.queries, one.keys) for one in again.maps] == [(one.queries, one.keys) for one in maps.maps]
    run = describe(maps, whole=True)
    assert run["sides"][1] == {
        "kind": "boxes",
        "picture": 0,
        "before": ("all",),
        "boxes": [[0.0, 0.25, 0.5, 1.0], [0.5, 0.0, 1.0, 0.75]],
        "names": ("dog", "tree"),
    }
    assert [one.title for one in stacks_of(maps)] == [
        "Cross-attention, tokens to the picture",
        "Cross-attention, the picture to tokens",
        "Self-attention over the picture",
    ]
    assert stacks_of(maps)[0].picture == maps.pictures[0]
    rows = base_rows(maps.maps[0])
    np.testing.assert_array_equal(rows[1:], maps.maps[0].weights_HTS[:, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": ()}, "0 regions"),
        ({"boxes": ((0.0, 0.0, 1.0, 1.1),)}, "left < right"),
        ({"boxes": ((0.5, 0.0, 0.5, 1.0),)}, "left < right"),
        ({"boxes": ((0.0, float("nan"), 0.5, 1.0),)}, "left < right"),
        ({"labels": ()}, "0 labels for 1 regions"),
        ({"labels": (3,)}, "not a string"),
        ({"picture": -1}, "picture -1"),
    ],
)
def test_bad_boxes_are_refused(change, message):
    with pytest.raises(Exception, match=message) as caught:
        Boxes(**{"picture": 0, "boxes": ((0.0, 0.0, 0.5, 1.0),), "labels": ("x",), **change})
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "change", [{"boxes": 3}, {"boxes": [["a"]]}, {"labels": [1]}, {"labels": None}, {"picture": "0"}, {"before": None}]
)
def test_bad_boxes_in_a_file_are_refused(change):
    boxes = Boxes(0, ((0.0, 0.0, 0.5, 1.0),), ("x",))
    one = AttentionMap("l", "cross", ("a",), boxes, np.ones((1, 1, 1)))
    data = json.loads(Maps("t", "s", "", (one,), pictures=(Picture("p", a_png()),)).to_json())
    data["maps"][0]["keys"] |= change
    with pytest.raises(Exception, match=r"places|boxes") as caught:
        Maps.from_json(json.dumps(data))
    assert caught.value.http_status == 400


def test_a_large_run_leaves_its_weights_to_be_fetched(monkeypatch):
    monkeypatch.setattr(form, "MAX_SENT", 100)
    run = describe(some_maps(), whole=False)
    assert not [one for one in run["layers"] if "weights" in one]
    assert run["through"] == []
    assert [(one["rolls"], one["flows"]) for one in run["stacks"]] == [(False, False), (True, True), (True, True)]
    monkeypatch.setattr(form, "MAX_WHOLE", 100)
    with pytest.raises(UsageError, match=r"196 weights; a page holds 100"):
        describe(some_maps(), whole=True)


def test_large_files_keep_four_decimals_and_two_digits_of_small_ones():
    weights = np.concatenate([np.linspace(0, 1, 1000), np.logspace(-6, 0, 1000)])
    near = numbers(coded(weights, exact=False), weights.shape)
    assert np.abs(near - weights).max() < 5e-5
    some = weights > 1e-5
    assert (np.abs(near - weights)[some] / weights[some]).max() < 0.01
    np.testing.assert_array_equal(numbers(coded(weights, exact=True), weights.shape), weights.astype(np.float32))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("3.2", Address(3, 2)),
        ("0.mean", Address(0, "mean")),
        ("s1.rollout", Address(1, "rollout")),
        ("s0.flow", Address(0, "flow")),
    ],
)
def test_addresses_are_read(text, address):
    assert read_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "3", "3.", ".2", "s1.mean", "1.rollout", "-1.0", "1.-1", "1.0\n", "٣.0", "9999999.0", "1e3.0"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UsageError, match="no map's address"):
        read_address(text)


def test_thumbnails_begin_with_the_mean():
    one = some_pictures().maps[0]
    rows = base_rows(one)
    assert rows.shape == (3, 6)
    heads = [one.mean().weights_HTS[0], *one.weights_HTS]
    for row, head in zip(rows, heads, strict=True):
        np.testing.assert_allclose(row, over_picture(head, one.queries, one.keys).reshape(-1), rtol=0, atol=1e-7)


def test_maps_are_rolled_out_by_themselves():
    maps = some_maps()
    np.testing.assert_array_equal(maps.rollout("encoder.*"), rollout([maps.maps[0], maps.maps[3]]))
    np.testing.assert_array_equal(maps.flow("encoder.*"), attention_flow([maps.maps[0], maps.maps[3]]))
    with pytest.raises(UsageError, match="several stacks"):
        maps.rollout()
    with pytest.raises(UsageError, match="no self-attention named 'x'"):
        maps.flow("x")


def test_showing_opens_the_page_in_the_browser(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    some_maps().show()
    files = list(tmp_path.rglob("look.html"))
    assert [path.as_uri() for path in files] == opened
    assert 'id="look"' in files[0].read_text()
