"""Models without some of their heads as folders: opened again they do what silenced ones do, or nothing is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import public_masked
import pytest
import torch
from looking_models import (
    RECURRENT,
    a_filler,
    a_generator,
    a_labeller,
    a_tagger,
    a_translator,
    an_image_classifier,
    spread,
)
from public_encoder import write_encoder
from public_translator import write_translator

import regard
from regard.attention import silence
from regard.data.pixels import Pixels
from regard.errors import DataError, UsageError
from regard.looking import png
from regard.looking.masked import save_masked
from regard.models.gpt import GPT, GPTConfig
from regard.models.public import write_folder
from regard.models.vit import Vit, VitConfig
from regard.models.weights import read_tensors
from regard.tasks import folder


def own(make: Callable[[], Any]) -> Callable[[Path], None]:
    """Write a run's folder, as far as using it needs one."""
    return lambda path: folder.save(path / "model", make())


def write_gpt(path: Path) -> None:
    generator = a_generator()
    path.mkdir(parents=True)
    names = {"eos_token_id": generator.end_ids[0], "bos_token_id": generator.end_ids[0], "kept": "as it was"}
    sizes = GPTConfig(generator.model.config.vocab_size, 16, 2, 2, max_len=40, activation="gelu-tanh")
    write_folder(path, "gpt", spread(GPT(sizes)).bfloat16(), names)
    (path / "tokenizer.json").write_text(generator.tokenizer.to_json())


def write_vit(path: Path) -> None:
    path.mkdir(parents=True)
    names = {"0": "disc", "1": "ring", "2": "bar"}
    write_folder(path, "vit", spread(Vit(VitConfig((20, 20), 1, 3, 4, 16, 2, 2, 24))), {"id2label": names})
    Pixels((20, 20), (0.5,), (0.25,)).save(path)


def made(write: Callable[..., Any], *more: Any) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        write(path, *more)

    return run


def write_plain(path: Path) -> None:
    """A public model in our own form."""
    write_gpt(path.with_name("hub"))
    regard.convert(path.with_name("hub"), path, to="regard")


FOLDERS: dict[str, tuple[Callable[[Path], None], dict[str, list[int]]]] = {
    "translator": (own(a_translator), {"encoder.0.self_attn": [1], "decoder.*.cross_attn": [0]}),
    "generator": (own(a_generator), {"blocks.1.self_attn": [1]}),
    "filler": (own(a_filler), {"blocks.*.self_attn": [0]}),
    "labeller": (own(a_labeller), {"encoder.blocks.1.self_attn": [0, 1]}),
    "tagger": (own(a_tagger), {"encoder.blocks.0.self_attn": [1]}),
    "image classifier": (own(an_image_classifier), {"blocks.0.self_attn": [1]}),
    "GPT-2": (write_gpt, {"blocks.0.self_attn": [0], "blocks.1.self_attn": [1]}),
    "GPT-2 in our form": (write_plain, {"blocks.0.self_attn": [0]}),
    "BERT": (made(public_masked.write, "bert"), {"blocks.*.self_attn": [1]}),
    "RoBERTa": (made(public_masked.write, "roberta"), {"blocks.0.self_attn": [1]}),
    "sentence encoder": (made(write_encoder), {"blocks.0.self_attn": [1]}),
    "Marian": (made(write_translator), {"decoder.0.self_attn": [1], "encoder.0.self_attn": [0, 1]}),
    "ViT": (write_vit, {"blocks.1.self_attn": [1]}),
}


def given(name: str, tmp_path: Path) -> Any:
    """An input of a kind that the model takes."""
    if name in ("image classifier", "ViT"):
        values = np.random.default_rng(0).integers(0, 256, (20, 20, 1), dtype=np.uint8)
        (tmp_path / "picture.png").write_bytes(png.png(values))
        return tmp_path / "picture.png"
    masks = {"filler": "the <mask> of day", "BERT": "the [MASK] of day", "RoBERTa": "the <mask> of day"}
    return {"Marian": "A nurse sang", "sentence encoder": "a b c", **masks}.get(name, "the light")


def seen(product: Any, read: Any) -> list[Any]:
    """All that a model makes of an input."""
    maps = regard.look(product, read)
    vectors = [product.embed([read])] if "embed" in getattr(product, "verbs", ()) else []
    return [maps.output, maps.layers, np.array([*maps.scores.values()]), *vectors, *(m.weights_HTS for m in maps.maps)]


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_opened_again_does_what_a_silenced_model_does(name: str, tmp_path: Path) -> None:
    write, off = FOLDERS[name]
    write(tmp_path / "from")
    read, product = given(name, tmp_path), regard.load(tmp_path / "from")
    plain = seen(product, read)
    with silence(product.model, off):
        wanted = seen(product, read)
    assert any(not np.array_equal(a, b) for a, b in zip(plain[2:], wanted[2:], strict=True))
    before = {path: path.read_bytes() for path in (tmp_path / "from").rglob("*") if path.is_file()}
    assert save_masked(tmp_path / "from", off, tmp_path / "to") == tmp_path / "to"
    again = regard.load(tmp_path / "to")
    assert (type(again), again.task) == (type(product), product.task)
    found = seen(again, read)
    assert found[:2] == wanted[:2]
    for mine, theirs in zip(found[2:], wanted[2:], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5, rtol=1e-5)
    assert {path: path.read_bytes() for path in before} == before


def test_a_public_folder_keeps_all_that_is_not_masked(tmp_path: Path) -> None:
    write_gpt(tmp_path / "from")
    save_masked(tmp_path / "from", {"blocks.1.self_attn": [1]}, tmp_path / "to")
    assert (tmp_path / "to" / "tokenizer.json").read_bytes() == (tmp_path / "from" / "tokenizer.json").read_bytes()
    configs = [json.loads((tmp_path / path / "config.json").read_text()) for path in ("from", "to")]
    assert configs[0] == configs[1]
    assert configs[1]["kept"] == "as it was"
    old, new = (read_tensors(tmp_path / path / "model.safetensors") for path in ("from", "to"))
    assert old.keys() == new.keys()
    changed = {name for name, tensor in old.items() if not torch.equal(tensor, new[name])}
    assert len(changed) == 1
    (name,) = changed
    assert new[name].dtype == torch.bfloat16
    assert not new[name][8:].any()  # GPT-2 stores it with rows and columns the other way round
    assert torch.equal(new[name][:8], old[name][:8])


@pytest.mark.parametrize("name", ["translator", "generator", "filler", "labeller", "tagger", "image classifier"])
def test_a_loaded_model_is_written_and_stays_as_it_is(name: str, tmp_path: Path) -> None:
    write, off = FOLDERS[name]
    write(tmp_path / "from")
    read, product = given(name, tmp_path), regard.load(tmp_path / "from")
    plain = seen(product, read)
    save_masked(product, off, tmp_path / "one")
    save_masked(tmp_path / "from", off, tmp_path / "other")
    for kept, now in zip(plain, seen(product, read), strict=True):
        assert np.array_equal(kept, now)
    one, other = ({path.name: path.read_bytes() for path in (tmp_path / side).iterdir()} for side in ("one", "other"))
    assert one == other


REFUSED: dict[str, tuple[Callable[[Path], None], dict[str, list[int]], str]] = {
    "a recurrent decoder": (own(lambda: a_translator(**RECURRENT)), {"attention": [0]}, "has no weights of its own"),
    "an unknown layer": (own(a_generator), {"blocks.7.self_attn": [0]}, "no layer 'blocks.7.self_attn' attends"),
    "no head": (own(a_generator), {}, "heads is empty"),
    "a head too many": (write_gpt, {"blocks.0.self_attn": [2]}, "heads \\[2\\] of 2; heads are 0 to 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    write, off, message = REFUSED[name]
    write(tmp_path / "from")
    for model in (tmp_path / "from", regard.load(tmp_path / "from")):
        with pytest.raises(UsageError, match=message) as caught:
            save_masked(model, off, tmp_path / "to")
        assert "\n" not in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == ["from"]


def test_loaded_models_that_only_their_folder_describes_are_refused(tmp_path: Path) -> None:
    public_masked.write(made_folder(tmp_path / "roberta"), "roberta")
    write_encoder(made_folder(tmp_path / "encoder"))
    off = {"blocks.0.self_attn": [1]}
    for name in ("roberta", "encoder"):
        with pytest.raises(UsageError, match="cannot be written by itself; give the folder that it was loaded from"):
            save_masked(regard.load(tmp_path / name), off, tmp_path / "to")
    assert not (tmp_path / "to").exists()
    with pytest.raises(UsageError, match="something is there already"):
        save_masked(tmp_path / "roberta", off, tmp_path / "encoder")
    with pytest.raises(DataError, match="no model here"):
        save_masked(made_folder(tmp_path / "empty"), off, tmp_path / "to")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "encoder", "roberta"]


def made_folder(path: Path) -> Path:
    path.mkdir()
    return path
