"""Contrast of views: batches, parts, refusals, a whole run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bar_images import write_bars

import regard
from regard.data.augment import AugmentConfig
from regard.errors import ConfigError
from regard.tasks.images.classifier import ImageEmbedder
from regard.tasks.images.contrast import ContrastConfig, ContrastTask
from regard.tasks.images.corpus import ImageData

TINY: dict[str, Any] = {
    "family": "vit", "patch_size": 4, "embed_dim": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 32
}  # fmt: skip
VIEWS = AugmentConfig(crop="padded", crop_pad=2, flip_prob=0.5)


def make_task(folder: Path, labelled: bool = True, **changes: Any) -> ContrastTask:
    path = write_bars(folder / "bars.npz", labelled=labelled)
    values: dict[str, Any] = {"model": TINY, "augment": VIEWS, "batch_images": 12, **changes}
    return ContrastTask.prepare(ContrastConfig(data=ImageData(str(path)), **values), 5, folder, True)


def test_two_views_of_the_same_images(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    batch = task.batch(3)
    assert not torch.equal(batch.first_BCYX, batch.second_BCYX)
    again = make_task(tmp_path).batch(3)
    assert torch.equal(batch.first_BCYX, again.first_BCYX)
    assert torch.equal(batch.second_BCYX, again.second_BCYX)
    plain = make_task(tmp_path, augment=AugmentConfig()).batch(3)
    assert torch.equal(plain.first_BCYX, plain.second_BCYX)
    assert task.count(batch) == 24


def test_parts_change_neither_loss_nor_gradient(tmp_path: Path) -> None:
    losses, gradients = [], []
    for parts in (1, 4, 5):
        task = make_task(tmp_path, parts=parts, model={**TINY, "drop_path": 0.0})
        torch.manual_seed(0)
        model = task.build().double()
        task.pixels, made = (lambda images, of=task.pixels: of(images).double()), task.batch(0)
        loss = task.loss(model, made)
        loss.sum.backward()
        losses.append(float(loss.report))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    for loss, gradient in zip(losses[1:], gradients[1:], strict=True):
        assert loss == pytest.approx(losses[0], abs=1e-10)
        torch.testing.assert_close(gradient, gradients[0], rtol=0, atol=1e-10)


def test_accumulation_is_refused(tmp_path: Path) -> None:
    write_bars(tmp_path / "bars.npz")
    with pytest.raises(ConfigError, match="accumulate is 4, and this task compares the whole batch"):
        regard.train(
            "contrast",
            data=tmp_path / "bars.npz",
            out=tmp_path / "run",
            settings={"model": TINY, "training.accumulate": 4},
            quiet=True,
        )


QUICK = {
    "model": TINY,
    "batch_images": 32,
    "training": {"max_steps": 40, "validate_every_steps": 20, "learning_rate": 0.003, "warmup_steps": 5, "threads": 1},
}


def test_a_run_with_classes_is_probed(tmp_path: Path) -> None:
    write_bars(tmp_path / "bars.npz", 400)
    regard.train("contrast", data=tmp_path / "bars.npz", out=tmp_path / "run", settings=QUICK, quiet=True)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert {"view_accuracy", "probe_accuracy", "neighbour_accuracy"} <= scores.keys()
    assert set(scores["baselines"]) == {"pixels", "the encoder before it was trained"}
    model = regard.load(tmp_path / "run")
    assert isinstance(model, ImageEmbedder)
    assert model.verbs == ("embed",)
    assert model.model.head is None


def test_a_run_without_classes_is_scored_by_its_views(tmp_path: Path) -> None:
    write_bars(tmp_path / "bars.npz", 240, labelled=False)
    regard.train("contrast", data=tmp_path / "bars.npz", out=tmp_path / "run", settings=QUICK, quiet=True)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert 0 <= scores["view_accuracy"] <= 1
    assert "probe_accuracy" not in scores
