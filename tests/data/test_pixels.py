"""How images become numbers: fit, written, read as public image processors have it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.images import read_images
from regard.data.pixels import FILE, Pixels
from regard.errors import DataError, FormatError

PIXELS = Pixels((5, 7), (0.25, 0.5, 0.125), (0.5, 0.25, 0.2))


def test_normalization_is_the_formula() -> None:
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    found = PIXELS(images)
    for channel in range(3):
        wanted = (images[:, channel].double() / 255 - PIXELS.mean[channel]) / PIXELS.std[channel]
        torch.testing.assert_close(found[:, channel].double(), wanted, rtol=0, atol=1e-6)
    assert torch.equal(PIXELS.shown(found), images)


def test_what_is_beyond_black_and_white_is_cut() -> None:
    assert PIXELS.shown(torch.tensor([-9.0, 0.0, 9.0]).expand(3, 1, 3))[0].tolist() == [[0, 64, 255]]


def test_mean_and_deviation_are_those_of_the_images(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (1300, 5, 7, 3), dtype=np.uint8)
    images[..., 2] = 51
    np.savez(tmp_path / "x.npz", images=images)
    found = Pixels.of(read_images(tmp_path / "x.npz", size=None, channels=None, labelled=False))
    assert found.size == (5, 7)
    np.testing.assert_allclose(found.mean, (images / 255).mean((0, 1, 2)), atol=1e-6)
    np.testing.assert_allclose(found.std[:2], (images / 255).std((0, 1, 2))[:2], atol=1e-6)
    assert found.std[2] == 1  # what never varies is left as it is


@pytest.mark.parametrize("resample", ["bicubic", "bilinear"])
@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_written_and_read(fit: Any, resample: Any, tmp_path: Path) -> None:
    one = Pixels((8, 8), PIXELS.mean, PIXELS.std, fit, resample)
    one.save(tmp_path)
    assert Pixels.read(tmp_path) == one


SQUARE = {"height": 32, "width": 32}


def processed(folder: Path, image: np.ndarray) -> torch.Tensor:
    from transformers import ViTImageProcessor

    values = json.loads((folder / FILE).read_text())
    return ViTImageProcessor(**values)(image, return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize("resample", ["bicubic", "bilinear"])
def test_public_processor_computes_the_same(resample: Any, tmp_path: Path) -> None:
    Pixels((16, 16), PIXELS.mean, PIXELS.std, "squash", resample).save(tmp_path)
    image = np.random.default_rng(1).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    theirs = processed(tmp_path, image)
    read = Pixels.read(tmp_path)
    ours = read(torch.from_numpy(image).permute(2, 0, 1)[None])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    # Of another size, pixels differ by roundings of bytes alone, and the two ways by far more.
    larger = np.random.default_rng(2).integers(0, 256, (23, 41, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=larger[None])
    images = read_images(tmp_path / "x.npz", labelled=False, **read.framing)
    byte = 1 / (255 * min(PIXELS.std))
    torch.testing.assert_close(read(images.batch([0])), processed(tmp_path, larger), rtol=0, atol=4 * byte)


def test_a_cut_is_the_public_one(tmp_path: Path) -> None:
    """A part of the picture first and resized then, in the place of the other way about: half a pixel apart at most."""
    Pixels((32, 32), PIXELS.mean, PIXELS.std, "crop", share=0.8).save(tmp_path)
    rows_YX, columns_YX = np.mgrid[:96, :160]
    picture = np.stack([rows_YX * 2, columns_YX * 1.5, rows_YX + columns_YX * 0.9], -1).astype(np.uint8)
    np.savez(tmp_path / "x.npz", images=picture[None])
    read = Pixels.read(tmp_path)
    assert read.share == 0.8
    want = processed(tmp_path, picture)
    found, whole = (
        read(read_images(tmp_path / "x.npz", labelled=False, **{**read.framing, **more}).batch([0]))
        for more in ({}, {"share": 1.0})
    )
    half_a_pixel = 0.5 * 3 * 2 / (255 * min(PIXELS.std))
    assert float((found - want).abs().max()) < half_a_pixel
    assert float((whole - want).abs().max()) > 5 * half_a_pixel


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"size": 224, "resample": 2}, Pixels((224, 224), (0.5,), (0.5,), "squash", "bilinear")),
        ({"size": 224}, Pixels((224, 224), (0.5,), (0.5,), "squash", "bilinear")),
        ({"size": {"height": 3, "width": 9}, "resample": 3}, Pixels((3, 9), (0.5,), (0.5,), "squash")),
        ({"size": {"shortest_edge": 32}, "resample": 3}, Pixels((32, 32), (0.5,), (0.5,), "crop")),
        (
            {"size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": SQUARE, "resample": 3},
            Pixels((32, 32), (0.5,), (0.5,), "crop"),
        ),
        (
            {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": SQUARE, "resample": 3},
            Pixels((32, 32), (0.5,), (0.5,), "crop", share=0.8),
        ),
        ({"size": 32, "do_center_crop": True, "resample": 3}, Pixels((32, 32), (0.5,), (0.5,), "crop")),
        (
            {"size": SQUARE, "do_center_crop": True, "crop_size": SQUARE, "resample": 3},
            Pixels((32, 32), (0.5,), (0.5,), "squash"),
        ),
        ({"size": 8, "do_normalize": False, "resample": 3}, Pixels((8, 8), (0.0,) * 3, (1.0,) * 3, "squash")),
    ],
)
def test_forms_of_public_files(values: dict[str, Any], wanted: Pixels, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"image_mean": [0.5], "image_std": [0.5], **values}))
    assert Pixels.read(tmp_path) == wanted


def test_timm_says_it_in_config_json(tmp_path: Path) -> None:
    entry = {"input_size": [3, 5, 7], "mean": [0.25, 0.5, 0.125], "std": [0.5, 0.25, 0.2]}
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": entry}))
    assert Pixels.read(tmp_path) == Pixels((5, 7), PIXELS.mean, PIXELS.std, "crop")
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": {**entry, "interpolation": "bilinear"}}))
    assert Pixels.read(tmp_path) == Pixels((5, 7), PIXELS.mean, PIXELS.std, "crop", "bilinear")
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": {**entry, "crop_mode": "squash"}}))
    assert Pixels.read(tmp_path) == Pixels((5, 7), PIXELS.mean, PIXELS.std, "squash")
    usual = {**entry, "input_size": [3, 224, 224], "crop_pct": 0.9, "crop_mode": "center"}
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": usual}))
    assert Pixels.read(tmp_path) == Pixels((224, 224), PIXELS.mean, PIXELS.std, "crop", share=224 / 248)
    for odd in ({"crop_pct": 0}, {"crop_pct": 1.5}, {"crop_pct": "x"}, {"crop_mode": "border"}):
        (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": {**entry, **odd}}))
        with pytest.raises(FormatError, match="crop_mode is "):
            Pixels.read(tmp_path)
    for odd in ("random", 3.5, None):
        (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": {**entry, "interpolation": odd}}))
        with pytest.raises(FormatError, match="resample is "):
            Pixels.read(tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"size": {"height": 0, "width": 2}},
        {"size": {"height": 10**9, "width": 2}},
        {"size": True},
        {"size": 8, "image_mean": []},
        {"size": 8, "image_std": [0.0]},
        {"size": 8, "image_std": ["x"]},
        {"size": 8, "image_std": [0.5, 0.5]},
        {"size": 8, "rescale_factor": 1.0},
        {"size": 8, "do_rescale": False},
        {"size": 8, "do_resize": False},
        {"size": 8, "do_resize": None},
        {"size": 8, "do_grayscale": True},
        {"size": 8, "do_pad": True},
        *({"size": 8, "resample": number} for number in (0, 1, 4, 5, None, "nearest", True, [])),
        {"size": 8, "rescale_factor": "x"},
        {"size": {"shortest_edge": 30}, "do_center_crop": True, "crop_size": SQUARE},
        {"size": {"height": 40, "width": 40}, "do_center_crop": True, "crop_size": SQUARE},
    ],
)
def test_other_files_are_refused(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"image_mean": [0.5], "image_std": [0.5], **values}))
    with pytest.raises(FormatError) as caught:
        Pixels.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_without_a_file_nothing_is_guessed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="how images are normalized is not known"):
        Pixels.read(tmp_path)
