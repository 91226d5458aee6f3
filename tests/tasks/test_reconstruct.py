"""Rebuilding hidden patches: the loss, what is shown, a whole run and fine-tuning from it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bar_images import write_bars

import regard
from regard.data.images import read_images
from regard.tasks.images.corpus import ImageData
from regard.tasks.images.reconstruct import FLAT, ReconstructConfig, ReconstructTask
from regard.tasks.images.reconstructor import Reconstructor

TINY: dict[str, Any] = {
    **{"family": "mae", "patch_size": 4, "embed_dim": 16, "num_layers": 2, "num_heads": 2, "mlp_dim": 32},
    **{"decoder_dim": 16, "decoder_layers": 1, "decoder_heads": 2, "decoder_mlp_dim": 32},
}
QUICK = {
    "model": TINY,
    "batch_images": 32,
    "training": {"max_steps": 60, "validate_every_steps": 30, "learning_rate": 0.005, "warmup_steps": 5, "threads": 1},
}


def make_task(folder: Path, **changes: Any) -> ReconstructTask:
    path = write_bars(folder / "bars.npz", side=16)
    config = ReconstructConfig(ImageData(str(path)), **{"model": TINY, "batch_images": 10, **changes})
    return ReconstructTask.prepare(config, 5, folder, True)


def test_the_loss_is_the_mean_over_hidden_patches_summed_over_images(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    model, batch = task.build(), task.batch(0)
    torch.manual_seed(3)
    loss = task.loss(model, batch)
    torch.manual_seed(3)
    pixels = task.pixels(batch.images_BCYX)
    rebuilt = model(pixels)
    total, hidden = model.loss(pixels, rebuilt)
    assert int(hidden) == 10 * 12  # of 16 patches three quarters
    assert float(loss.report) == pytest.approx(float(total.detach()) / 12, rel=1e-6)
    assert task.count(batch) == 10


def test_validation_hides_the_same_patches_each_time(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    model = task.build()
    first = task.validate(model, torch.device("cpu"))
    torch.manual_seed(99)
    assert task.validate(model, torch.device("cpu")) == first


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rebuilt")
    write_bars(folder / "bars.npz", 400, side=16)
    regard.train("reconstruct", data=folder / "bars.npz", out=folder / "run", settings=QUICK, quiet=True)
    return folder / "run"


def test_a_run_learns_is_probed_and_shows_threes(trained: Path) -> None:
    scores = json.loads((trained / "scores.json").read_text())
    flat, before = (scores["baselines"][name]["reconstruction_error"] for name in (FLAT, "the model before training"))
    assert scores["reconstruction_error"] < before
    assert 0.5 < flat <= 15 / 16  # the mean of (n - 1) / n over patches, less where one is of one colour
    assert {"probe_accuracy", "neighbour_accuracy"} <= scores.keys()
    assert "Rebuilt images" in (trained / "report.html").read_text()


def test_what_is_shown_is_hidden_and_rebuilt_in_the_images_own_units(trained: Path) -> None:
    model = regard.load(trained)
    assert isinstance(model, Reconstructor)
    images = read_images(trained.parent / "bars.npz", size=None, channels=None).batch(range(6))
    seen, whole = model.shown(images, torch.Generator().manual_seed(0))
    hidden = seen != images
    # A hidden patch is grey; what is not hidden stays as it is in both.
    patches = (seen == 128).unfold(2, 4, 4).unfold(3, 4, 4).flatten(4).all(-1)
    assert patches.sum((1, 2, 3)).tolist() == [12] * 6
    outside = ~patches.repeat_interleave(4, 2).repeat_interleave(4, 3)
    assert torch.equal(seen[outside], images[outside])
    assert torch.equal(whole[outside], images[outside])
    # Mean and spread of a rebuilt patch are the true one's, so it cannot be far off in brightness.
    assert float((whole.float() - images.float()).abs()[hidden].mean()) < 60


def test_the_encoder_is_fine_tuned_and_embeds_as_it_was_left(trained: Path, tmp_path: Path) -> None:
    images = read_images(trained.parent / "bars.npz", size=None, channels=None).subset(range(5))
    model = regard.load(trained)
    alone = model.embed(images.subset([3]))
    assert model.embed(images).shape == (5, 16)
    assert abs(model.embed(images)[3] - alone[0]).max() < 1e-5
    settings = {**QUICK, "model": {"drop_path": 0.1}, "init": str(trained)}
    data = trained.parent / "bars.npz"
    regard.train("classify-images", data=data, out=tmp_path / "run", settings=settings, quiet=True)
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["accuracy"] > 0.6
