"""Sides of maps that stand on a picture: rules, names, JSON old and new."""

import json

import numpy as np
import pytest
from looking_examples import a_png, some_pictures, some_weights

from regard.errors import DataError, FormatError
from regard.looking import AttentionMap, Link, Maps, Picture, Places


def test_places_are_named_row_by_row_after_the_tokens_before():
    assert Places(0, (2, 2), ("class",)).names() == (
        "class", "row 1, column 1", "row 1, column 2", "row 2, column 1", "row 2, column 2",
    )  # fmt: skip
    windows = Places(0, (2, 2), windows=((3, -1), (0, 1)))
    assert windows.names() == ("row 2, column 2", "beside the picture", "row 1, column 1", "row 1, column 2")
    assert windows.rows_GW.tolist() == [[3, -1], [0, 1]]


def test_one_window_over_the_whole_grid_is_the_grid():
    assert Places(0, (2, 3), windows=((0, 1, 2, 3, 4, 5),)) == Places(0, (2, 3))
    assert Places(0, (2, 3), windows=((1, 0, 2, 3, 4, 5),)) != Places(0, (2, 3))
    assert Places(0, (1, 2), windows=(np.array([1, 0]),)) == Places(0, (1, 2), windows=((1, 0),))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"grid": (0, 3)}, "a grid of 0 × 3"),
        ({"grid": (300, 300)}, "a grid has 1 to 65536 places"),
        ({"picture": -1}, "picture -1"),
        ({"before": (3,)}, "not a string"),
        ({"windows": ()}, "unequal numbers of rows, or none"),
        ({"windows": ((),)}, "unequal numbers of rows, or none"),
        ({"windows": ((0, 1), (2,))}, "unequal numbers of rows"),
        ({"windows": ((0, 1), (2, 6))}, "not in the grid"),
        ({"windows": ((0, 1), (2, -2))}, "not in the grid"),
        ({"windows": ((-1,),)}, "not in the grid"),
        ({"windows": ((0, 1), (1, 2))}, "in two windows"),
        ({"windows": ((0, 1), (2, 3)), "before": ("class",)}, "tokens before several windows"),
    ],
)
def test_other_places_are_refused(given, what):
    with pytest.raises(DataError, match=what):
        Places(**{"picture": 0, "grid": (2, 3), **given})


def test_a_map_has_a_row_for_each_row_of_each_window():
    side = Places(0, (2, 3), windows=((0, 1), (2, 3), (4, 5)))
    one = AttentionMap("l", "self", side, side, some_weights(1, 6, 2))
    assert one.key_tokens == ("row 1, column 1", "row 1, column 2")
    assert [one.key_name(t, 1) for t in range(6)] == [side.name(place) for place in (1, 1, 3, 3, 5, 5)]
    with pytest.raises(DataError, match=r"shape \(1, 6, 6\); it is \(heads, 6, 2\)"):
        AttentionMap("l", "self", side, side, some_weights(1, 6, 6))
    with pytest.raises(DataError, match="1 windows attend to 3"):
        AttentionMap("l", "cross", ("a", "b"), side, some_weights(1, 2, 2))
    with pytest.raises(DataError, match="other keys than queries"):
        AttentionMap("l", "self", side, Places(0, (1, 2)), some_weights(1, 6, 2))


def test_top_names_the_places_of_a_query_s_own_window():
    side = Places(0, (1, 4), windows=((0, 1), (2, 3)))
    weights = np.array([[[1.0, 0.0], [0.25, 0.75], [0.5, 0.5], [0.0, 1.0]]])
    maps = Maps("t", "s", "", (AttentionMap("l", "self", side, side, weights),), pictures=(Picture("p", a_png()),))
    assert [links[0] for links in maps.top(1)] == [
        Link(0, "row 1, column 1", 0, "row 1, column 1", 1.0),
        Link(1, "row 1, column 2", 1, "row 1, column 2", 0.75),
        Link(2, "row 1, column 3", 0, "row 1, column 3", 0.5),
        Link(3, "row 1, column 4", 1, "row 1, column 4", 1.0),
    ]


def test_a_map_on_a_picture_that_is_not_there_is_refused():
    side = Places(1, (1, 2))
    one = AttentionMap("l", "self", side, side, some_weights(1, 2, 2))
    with pytest.raises(DataError, match="'l': picture 1 of 1"):
        Maps("t", "s", "", (one,), pictures=(Picture("p", a_png()),))
    with pytest.raises(FormatError, match="not PNG"):
        Picture("p", b"GIF89a" + bytes(40))
    with pytest.raises(FormatError, match="not PNG"):
        Picture("p", a_png()[:20])
    with pytest.raises(FormatError, match="1 × 70000 pixels"):  # IHDR: width, then height, after 16 bytes
        Picture("p", a_png()[:16] + (70_000).to_bytes(4) + (1).to_bytes(4) + a_png()[24:])


def test_json_gives_pictures_and_places_back():
    before = some_pictures("é")
    after = Maps.from_json(before.to_json())
    assert after.pictures == before.pictures
    assert [(m.layer, m.kind, m.queries, m.keys) for m in after.maps] == [
        (m.layer, m.kind, m.queries, m.keys) for m in before.maps
    ]
    assert [m.weights_HTS.tobytes() for m in after.maps] == [m.weights_HTS.tobytes() for m in before.maps]


def test_json_from_before_there_were_pictures_is_read():
    old = {
        "format": "regard-maps-1", "title": "t", "source": "s", "output": "o", "details": {"k": "v"},
        "maps": [
            {
                "layer": "l", "kind": "cross", "query_tokens": ["q"], "key_tokens": ["a", "b"],
                "weights": [[[0.25, 0.75]]],
            },
        ],
    }  # fmt: skip
    maps = Maps.from_json(json.dumps(old))
    assert (maps.maps[0].queries, maps.maps[0].keys, maps.pictures) == (("q",), ("a", "b"), ())
    assert maps.weights("l").tolist() == [[[0.25, 0.75]]]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda d: d.pop("pictures"), "'pictures' is missing"),
        (lambda d: d["pictures"].append(3), "a picture is no object"),
        (lambda d: d["pictures"][0].update(png="%%%"), "'png' is not base64"),
        (lambda d: d["pictures"][0].update(png="AAAA"), "not PNG"),
        (lambda d: d["maps"][0]["keys"].update(grid=[2]), "'grid' is no pair"),
        (lambda d: d["maps"][0]["keys"].update(grid=[2.0, 3]), "'grid' is no pair"),
        (lambda d: d["maps"][0]["keys"].update(picture=True), "'picture' is no whole number"),
        (lambda d: d["maps"][0]["keys"].update(before=[1]), "'before' is no list of text"),
        (lambda d: d["maps"][2]["keys"].update(windows=[0]), "'windows' is no list of lists"),
        (lambda d: d["maps"][2]["keys"].update(windows=[["0"]]), "'windows' is no list of lists"),
        (lambda d: d["maps"][3].pop("keys"), "'keys' is missing"),
    ],
)
def test_other_json_of_pictures_is_refused(change, what):
    data = json.loads(some_pictures().to_json())
    change(data)
    with pytest.raises(FormatError, match=what):
        Maps.from_json(json.dumps(data))


def test_json_with_windows_that_break_the_rules_is_refused():
    data = json.loads(some_pictures().to_json())
    data["maps"][2]["keys"]["windows"][0][0] = 10**30
    with pytest.raises(DataError, match="not in the grid"):
        Maps.from_json(json.dumps(data))
