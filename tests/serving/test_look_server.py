"""What the page is told equals what Python is told."""

import base64
from pathlib import Path

import numpy as np
import pytest
from looking_examples import a_png

import regard
from regard.attention import silence
from regard.looking import AttentionMap, Maps, Places, attention_flow, form, over_picture, rollout
from regard.looking.doing import next_tokens
from regard.looking.reading import look
from regard.serving.bodies import RunBody
from regard.serving.look import opened
from regard.serving.runs import Runs

TEXT = "Nobody sang yesterday."
OFF = {"decoder.0.cross_attn": [1], "encoder.0.self_attn": [0]}


@pytest.fixture(scope="module")
def model(marian):
    return regard.load(marian)


def floats(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<f4")


def held(run, layer):
    import zlib

    one = run["layers"][layer]
    assert one["weights"]["coding"] == "f4"
    return floats(zlib.decompress(base64.b64decode(one["weights"]["data"]))).reshape(one["shape"])


def test_models_are_described(live, model):
    first, second = live.ask("/api/models").json
    assert (first["name"], first["task"], first["takes"], first["writes"], first["mask"]) == (
        "marian",
        "translate",
        "text",
        True,
        None,
    )
    assert (second["name"], second["takes"], second["writes"], second["max_tokens"]) == ("vit", "image", False, None)
    assert [(one["name"], one["heads"]) for one in first["sites"]] == [
        ("encoder.0.self_attn", 2),
        ("decoder.0.self_attn", 2),
        ("decoder.0.cross_attn", 2),
    ]
    assert first["parameters"] == sum(one.numel() for one in model.model.parameters())


def test_a_run_has_the_weights_that_python_gives(live, model):
    maps = regard.look(model, TEXT)
    run = live.ask("/api/runs", {"model": 0, "text": TEXT}).json
    assert (run["title"], run["output"], run["source"]) == (TEXT, maps.output, TEXT)
    assert run["scores"] == pytest.approx(maps.scores)
    for i, one in enumerate(maps.maps):
        assert run["layers"][i]["name"] == one.layer
        assert tuple(run["sides"][run["layers"][i]["queries"]]["tokens"]) == one.query_tokens
        np.testing.assert_allclose(held(run, i), one.weights_HTS, rtol=0, atol=1e-6)
    again = live.ask(f"/api/runs/{run['id']}").json
    assert again == run
    stored = Maps.from_json(live.ask(f"/api/runs/{run['id']}/json").body.decode())
    for i, one in enumerate(stored.maps):
        np.testing.assert_array_equal(held(run, i), one.weights_HTS)


def test_rows_of_every_map_are_exact(live):
    run = live.ask("/api/runs", {"model": 0, "text": TEXT}).json
    maps = Maps.from_json(live.ask(f"/api/runs/{run['id']}/json").body.decode())
    at = f"/api/runs/{run['id']}/row"
    for i, one in enumerate(maps.maps):
        for head in range(2):
            row = floats(live.ask(f"{at}?map={i}.{head}&query=1").body)
            np.testing.assert_array_equal(row, one.weights_HTS[head, 1])
        np.testing.assert_array_equal(floats(live.ask(f"{at}?map={i}.mean&query=0").body), one.mean().weights_HTS[0, 0])


def test_heads_switched_off_change_what_is_written_and_how_probable_it_is(live, model):
    with silence(model.model, OFF):
        maps = regard.look(model, TEXT, target="sold")
    whole = regard.look(model, TEXT, target="sold")
    run = live.ask("/api/runs", {"model": 0, "text": TEXT, "target": "sold", "off": OFF}).json
    assert run["asked"]["off"] == OFF
    assert run["scores"] == pytest.approx(maps.scores)
    assert run["scores"] != pytest.approx(whole.scores)
    again = live.ask("/api/runs", {"model": 0, "text": TEXT, "target": "sold"}).json  # nothing stays switched off
    assert again["scores"] == pytest.approx(whole.scores)


def test_steps_follow_the_candidates_that_are_chosen(live, model):
    ids: list[int] = []
    for _ in range(3):
        step = live.ask("/api/next", {"model": 0, "text": TEXT, "so_far": ids, "count": 3}).json
        wanted = next_tokens(model, TEXT, ids, 3).candidates
        assert [one["token"] for one in step["candidates"]] == [one.token for one in wanted]
        assert [one["probability"] for one in step["candidates"]] == pytest.approx([one.probability for one in wanted])
        ids.append(step["candidates"][-1]["token"])
    run = live.ask("/api/runs", {"model": 0, "text": TEXT, "target_ids": ids}).json
    assert run["output"] == live.ask("/api/next", {"model": 0, "text": TEXT, "so_far": ids}).json["text"]
    refused = live.ask("/api/next", {"model": 1, "text": TEXT})
    assert (refused.status, refused.json["field"]) == (422, "model")


def test_a_picture_comes_as_bytes_and_its_name_is_only_a_name(live, vit):
    data = a_png(24, 24)
    name = "../../etc/<script>alert(1)</script>.png"
    run = live.ask("/api/runs", {"model": 1, "image": base64.b64encode(data).decode(), "name": name}).json
    assert run["title"] == run["pictures"][0]["name"] == "script>.png"
    assert run["sides"] == [{"kind": "places", "picture": 0, "grid": [3, 3], "before": ["class"], "windows": None}]
    assert run["output"] in ("disc", "square", "<b>ring</b>")
    assert sum(run["scores"].values()) == pytest.approx(1, abs=1e-5)


def test_a_masked_model_is_saved_once_and_where_it_may(live, model, tmp_path):
    answer = live.ask("/api/save", {"model": 0, "off": OFF, "name": "without-two"})
    assert answer.status == 201, answer.body
    masked = regard.load(answer.json["path"])
    with silence(model.model, OFF):
        wanted = model.translate([TEXT, "The committee voted against it."])
    assert masked.translate([TEXT, "The committee voted against it."]) == wanted
    assert live.ask("/api/save", {"model": 0, "off": OFF, "name": "without-two"}).status == 422
    for name in ("../x", "/tmp/x", ".x", "a/b", "", "x\n", "ü"):
        assert live.ask("/api/save", {"model": 0, "off": OFF, "name": name}).json["field"] == "name"
    assert live.ask("/api/save", {"model": 0, "off": {}, "name": "none"}).json["field"] == "off"


def test_a_large_run_is_fetched_piece_by_piece(marian, model, monkeypatch):
    monkeypatch.setattr(form, "MAX_SENT", 10)
    runs = Runs([opened(marian, model)], Path())
    run = runs.add(RunBody(text=TEXT))
    number, maps = run["id"], look(model, TEXT)
    assert not [one for one in run["layers"] if "weights" in one]
    assert run["through"] == []
    for i, one in enumerate(maps.maps):
        shades = np.rint(255 * one.weights_HTS[1] ** np.float32(0.7)).astype(np.uint8)
        tile = np.frombuffer(runs.tile(number, f"{i}.1", 0, 0, 0), np.uint8).reshape(shades.shape)
        assert np.abs(tile.astype(int) - shades).max() <= 1  # computed anew, so the last bit may differ
        np.testing.assert_allclose(floats(runs.row(number, f"{i}.1", 0)), one.weights_HTS[1, 0], rtol=0, atol=1e-6)


def stack_of(num_layers: int, num_tokens: int) -> Maps:
    rng = np.random.default_rng(4)
    tokens = tuple(f"t{i}" for i in range(num_tokens))
    layers = [
        AttentionMap(f"{i}.attn", "self", tokens, tokens, rng.dirichlet(np.ones(num_tokens), (2, num_tokens)))
        for i in range(num_layers)
    ]
    return Maps("t", "s", "", tuple(layers))


def test_rollout_and_flow_of_a_large_run_are_computed_when_asked_for(marian, model, monkeypatch):
    monkeypatch.setattr(form, "MAX_SENT", 10)
    runs, maps = Runs([opened(marian, model)], Path()), stack_of(3, 7)
    number = runs.keep(maps, "", None)
    described = runs.get(number)
    assert [(one["rolls"], one["flows"]) for one in described["stacks"]] == [(True, True)]
    for query in (0, 6):
        rolled = floats(runs.row(number, "s0.rollout", query))
        np.testing.assert_allclose(rolled, rollout(maps.maps)[query], rtol=0, atol=1e-6)
        flow = floats(runs.row(number, "s0.flow", query))
        np.testing.assert_allclose(flow, attention_flow(maps.maps)[query], rtol=0, atol=1e-6)
    for address in ("s1.rollout", "9.0", "0.2", "0.best", "x", "s0.mean", "0.-1"):
        with pytest.raises(regard.errors.UsageError):
            runs.row(number, address, 0)
    with pytest.raises(regard.errors.UsageError, match="query 7 of 7"):
        runs.row(number, "0.0", 7)


def test_thumbnails_over_a_picture_show_the_class_token(vit):
    product = regard.load(vit)
    runs = Runs([opened(vit, product)], Path())
    run = runs.add(RunBody(image=base64.b64encode(a_png(24, 24)).decode()))
    maps = runs._run(run["id"]).maps
    one = maps.maps[1]
    base = floats(runs.base(run["id"], 1)).reshape(3, 9)
    heads = [one.mean().weights_HTS[0], *one.weights_HTS]
    assert isinstance(one.keys, Places)
    for row, head in zip(base, heads, strict=True):
        np.testing.assert_allclose(row, over_picture(head, one.queries, one.keys).reshape(-1), rtol=0, atol=1e-7)


def test_old_runs_are_let_go(marian, model, monkeypatch):
    monkeypatch.setattr("regard.serving.runs.KEPT_RUNS", 2)
    runs = Runs([opened(marian, model)], Path())
    first, second = (runs.keep(stack_of(1, 3), "", None) for _ in range(2))
    runs.get(first)  # asked for again, so the second is the older one
    third = runs.keep(stack_of(1, 3), "", None)
    assert {runs.get(number)["id"] for number in (first, third)} == {first, third}
    with pytest.raises(regard.errors.UsageError, match="no longer") as caught:
        runs.get(second)
    assert caught.value.http_status == 404
