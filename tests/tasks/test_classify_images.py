"""Images with classes: data, batches, mixing, rates, freezing, a whole run and what starts from it."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from bar_images import CLASSES, bars, write_bars

import regard
from regard.data.augment import AugmentConfig
from regard.data.images import read_images
from regard.data.pixels import Pixels
from regard.errors import ConfigError, DataError, UsageError
from regard.models.weights import gather
from regard.tasks.images.classifier import ImageClassifier
from regard.tasks.images.classify import ImageClassesConfig, ImageClassesTask, evaluate, soft_cross_entropy
from regard.tasks.images.corpus import ImageData, read_corpus
from regard.tasks.images.encoders import starting
from regard.tasks.task import cross_entropy

TINY: dict[str, Any] = {
    "family": "vit", "patch_size": 4, "embed_dim": 16, "num_layers": 2, "num_heads": 2, "mlp_dim": 32
}  # fmt: skip
QUICK = {
    "model": TINY,
    "training": {"max_steps": 60, "validate_every_steps": 30, "learning_rate": 0.003, "warmup_steps": 5, "threads": 1},
}


def make_task(folder: Path, seed: int = 5, **changes: Any) -> ImageClassesTask:
    path = folder / "bars.npz"
    if not path.exists():
        write_bars(path)
    values: dict[str, Any] = {"model": TINY, "batch_images": 16, **changes}
    data = ImageData(str(path), fraction=values.pop("fraction", 1.0))
    return ImageClassesTask.prepare(ImageClassesConfig(data=data, **values), seed, folder, True)


def test_a_batch_is_a_pure_function_of_seed_and_number(tmp_path: Path) -> None:
    augment = AugmentConfig(crop="padded", crop_pad=2, flip_prob=0.5)
    one, other = (make_task(tmp_path, augment=augment, mixup=0.4, cutmix=1.0) for _ in range(2))
    for index in (30, 3, 0):  # in any order: nothing is remembered
        a, b = one.batch(index), other.batch(index)
        assert torch.equal(a.images_BCYX, b.images_BCYX)
        assert torch.equal(a.targets_BV, b.targets_BV)
    assert not torch.equal(one.batch(0).images_BCYX, make_task(tmp_path, 6, augment=augment).batch(0).images_BCYX)
    torch.testing.assert_close(one.batch(1).targets_BV.sum(-1), torch.ones(16))


def test_every_image_comes_once_an_epoch_with_its_own_class(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    seen = np.concatenate([task.order.where(index)[1] for index in range(14)])
    assert sorted(seen.tolist()) == list(range(len(task.corpus.train)))
    assert len(seen) == 216
    assert [task.order.where(index)[0] for index in (0, 13, 14)] == [0, 0, 1]
    chosen, batch = task.order.at(2), task.batch(2)
    assert torch.equal(batch.images_BCYX, task.corpus.train.batch(chosen))
    labels = [task.goal.names[n] for n in batch.targets_BV.argmax(-1).tolist()]
    assert labels == [task.corpus.train.labels[n] for n in chosen]


def test_soft_targets_of_one_class_are_the_hard_loss() -> None:
    logits, labels = torch.randn(7, 5, dtype=torch.float64), torch.randint(0, 5, (7,))
    one_hot = torch.nn.functional.one_hot(labels, 5).double()
    for smoothing in (0.0, 0.1):
        soft, hard = soft_cross_entropy(logits, one_hot, smoothing), cross_entropy(logits, labels, smoothing)
        torch.testing.assert_close(soft.sum, hard.sum)
        torch.testing.assert_close(soft.report, hard.report)
    shares = torch.softmax(torch.randn(7, 5, dtype=torch.float64), -1)
    wanted = torch.nn.functional.cross_entropy(logits, shares, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(soft_cross_entropy(logits, shares, 0.2).sum, wanted)


def test_a_share_keeps_every_class_and_is_nested(tmp_path: Path) -> None:
    path = write_bars(tmp_path / "bars.npz", 600)
    parts = {
        share: read_corpus(ImageData(str(path), fraction=share), 5, labelled=True).train for share in (0.01, 0.1, 1.0)
    }
    counts = {share: [part.labels.count(name) for name in CLASSES] for share, part in parts.items()}
    assert counts[0.01] == [-(-n // 100) for n in counts[1.0]]
    assert counts[0.1] == [-(-n // 10) for n in counts[1.0]]
    names = {share: {part.where(n) for n in range(len(part))} for share, part in parts.items()}
    assert names[0.01] < names[0.1] < names[1.0]


@pytest.mark.parametrize("seed", range(4))
def test_a_class_of_one_image_is_trained_on(seed: int, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (300, 4, 4), np.uint8)
    np.savez(tmp_path / "bars.npz", images=images, labels=np.r_[np.arange(260) % 3, np.arange(3, 43)])
    task = make_task(tmp_path, seed)
    assert task.goal.num_outputs == 43
    assert [len(part) for part in (task.corpus.train, task.corpus.dev, task.corpus.test)] == [270, 15, 15]


def test_rates_fall_towards_the_input(tmp_path: Path) -> None:
    task = make_task(tmp_path, layer_decay=0.5)
    model = task.build()
    rates = task.rates(model)
    assert set(rates) == {name for name, _ in model.named_parameters()}
    assert rates["head.weight"] == 1.0
    depths = {name: model.depth(name) for name in rates if not name.startswith("head.")}
    assert min(depths.values()) == 0
    assert max(depths.values()) == model.num_depths - 1
    assert all(rates[name] == 0.5 ** (model.num_depths - depth) for name, depth in depths.items())
    assert make_task(tmp_path).rates(model) == {}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bars")
    write_bars(folder / "bars.npz", 600)
    regard.train("classify-images", data=folder / "bars.npz", out=folder / "run", settings=QUICK, quiet=True)
    return folder / "run"


def test_a_run_learns_and_reports(trained: Path) -> None:
    scores = json.loads((trained / "scores.json").read_text())
    assert scores["accuracy"] > 0.8
    assert scores["baselines"]["the commonest class"]["accuracy"] < 0.6
    near = [name for name in scores["baselines"] if "nearest neighbour" in name and name.endswith("on pixels")]
    assert len(near) == 1
    assert 0 <= scores["baselines"][near[0]]["accuracy"] <= 1
    assert "|size:12x12" in scores["signatures"]["accuracy"]
    page = (trained / "report.html").read_text()
    assert near[0] in page


def test_what_is_loaded_labels_as_it_did(trained: Path) -> None:
    model = regard.load(trained)
    assert isinstance(model, ImageClassifier)
    images = read_images(trained.parent / "bars.npz", size=None, channels=None)
    labels = model.classify(images)
    assert [max(one.probabilities, key=one.probabilities.__getitem__) for one in labels] == [
        one.label for one in labels
    ]
    assert sum(abs(sum(one.probabilities.values()) - 1) > 1e-5 for one in labels) == 0
    alone = model.outputs(images.subset([7]))
    torch.testing.assert_close(alone[0], model.outputs(images, batch_images=50)[7], rtol=0, atol=1e-5)
    assert evaluate(model, images).measures["accuracy"].value > 0.8
    assert model.embed(images.subset([0, 1])).shape == (2, TINY["embed_dim"])


def test_a_probe_leaves_the_encoder_as_it_was(trained: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "model": {}, "init": str(trained), "freeze": True}
    data = trained.parent / "bars.npz"
    regard.train("classify-images", data=data, out=tmp_path / "probe", settings=settings, quiet=True)
    before, after = (gather(regard.load(folder).model) for folder in (trained, tmp_path / "probe"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_fine_tuning_at_another_size_and_other_classes(trained: Path, tmp_path: Path) -> None:
    images, labels = bars(200, 20, seed=3)
    np.savez(tmp_path / "large.npz", images=images, labels=(labels == 2).astype(int))
    settings = {**QUICK, "model": {"drop_path": 0.1}, "init": str(trained), "layer_decay": 0.75}
    regard.train("classify-images", data=tmp_path / "large.npz", out=tmp_path / "run", settings=settings, quiet=True)
    model = regard.load(tmp_path / "run")
    assert model.pixels.size == (20, 20)
    assert len(model.goal.names) == 2
    assert tuple(model.model.config.image_size) == (20, 20)
    assert model.pixels.mean == regard.load(trained).pixels.mean  # normalized as the encoder was trained


CONVNET = {"family": "convnet", "widths": [8, 16], "blocks": [1, 1]}


@pytest.mark.parametrize("model", [TINY, CONVNET], ids=["vit", "convnet"])
def test_a_trained_encoder_decides_what_the_default_recipe_would(model: dict[str, Any], tmp_path: Path) -> None:
    write_bars(tmp_path / "bars.npz", 240)
    train = partial(regard.train, "classify-images", data=tmp_path / "bars.npz", quiet=True)
    short = {f"training.{name}": value for name, value in {**QUICK["training"], "max_steps": 2}.items()}
    train(out=tmp_path / "run", settings={**short, "model": model})
    started = {**short, "init": str(tmp_path / "run")}
    result = train(out=tmp_path / "tuned", settings=started)
    assert type(result.model.model) is type(regard.load(tmp_path / "run").model)
    name, wrong, has = ("num_heads", 4, "2") if model is TINY else ("stem", "large", "small")
    with pytest.raises(ConfigError, match=rf"model\.{name} is {wrong}, the encoder's is {has}; leave it out"):
        train(out=tmp_path / "wrong", settings={**started, f"model.{name}": wrong})
    with pytest.raises(ConfigError, match=r"model\.family is 'swin', the encoder is a (vit|convnet); leave it out"):
        train(out=tmp_path / "wrong", settings={**started, "model.family": "swin"})
    # A recipe of the user's own says what he wants, and is taken at its word.
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"task": "classify-images", "model": {"patch_size": 3}}))
    with pytest.raises(ConfigError, match=r"model\.patch_size is"):
        train(out=tmp_path / "wrong", recipe_name=str(tmp_path / "own.yaml"), settings=started)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"freeze": True}, "freeze without init"),
        ({"layer_decay": 0.0}, "layer_decay is 0"),
        ({"mixup": -1.0}, "mixup is -1"),
        ({"monitor": "bleu"}, "monitor is 'bleu'"),
        ({"batch_images": 0}, "batch_images is 0"),
    ],
)
def test_settings_out_of_range(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        make_task(tmp_path, **changes)


def test_bad_data_is_named(tmp_path: Path) -> None:
    write_bars(tmp_path / "bars.npz", 240, labelled=False)
    with pytest.raises(DataError, match="label"):
        make_task(tmp_path)
    with pytest.raises(ConfigError, match="fraction is 0"):
        ImageData("x", fraction=0.0)
    with pytest.raises(ConfigError, match="size is"):
        ImageData("x", size=(3,))


def test_an_encoder_of_other_channels_is_refused(trained: Path, tmp_path: Path) -> None:
    write_bars(tmp_path / "colour.npz", channels=3)
    data = ImageData(str(tmp_path / "colour.npz"))
    config = ImageClassesConfig(data, init=str(trained), model={})
    with pytest.raises(ConfigError, match=r"reads 1 channels, the images have 3.*data.channels: 1"):
        ImageClassesTask.prepare(config, 1, tmp_path, True)
    replaced = replace(data, channels=1)
    task = ImageClassesTask.prepare(ImageClassesConfig(replaced, init=str(trained), model={}), 1, tmp_path, True)
    assert task.build().config.num_channels == 1
    config = ImageClassesConfig(replaced, init=str(trained), model={"colour": 1})
    task = ImageClassesTask.prepare(config, 1, tmp_path, True)
    with pytest.raises(ConfigError, match=r"model\.colour is no setting"):
        task.build()


def test_images_are_brought_to_size_in_use_as_they_were_in_training(trained: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(trained / "model", tmp_path / "model"))
    replace(Pixels.read(model), fit="squash", resample="bilinear").save(model)
    images = read_images(trained.parent / "bars.npz", size=(8, 8), channels=1)
    encoder, pixels = starting(str(model), images)
    assert encoder is not None
    own = regard.load(trained).pixels
    assert pixels == Pixels((8, 8), own.mean, own.std, "crop", "bicubic")


@pytest.mark.parametrize(("form", "names"), [("huggingface", "id2label"), ("timm", "label_names")])
def test_a_run_becomes_a_public_folder_that_is_ready_for_use(
    trained: Path, tmp_path: Path, form: Any, names: str
) -> None:
    regard.convert(trained, tmp_path / "public", to=form)
    told = json.loads((tmp_path / "public" / "config.json").read_text())[names]
    assert [*(told.values() if isinstance(told, dict) else told)] == [*CLASSES]
    images = read_images(trained.parent / "bars.npz", size=None, channels=None)
    ours, public = regard.load(trained), regard.load(tmp_path / "public")
    assert isinstance(public, ImageClassifier)
    assert public.goal.names == CLASSES
    assert torch.equal(ours.outputs(images), public.outputs(images))
    with pytest.raises(UsageError, match="already"):
        regard.convert(tmp_path / "public", tmp_path / "again", to=form)


def test_transformers_labels_as_the_run_did(trained: Path, tmp_path: Path) -> None:
    from transformers import ViTForImageClassification, ViTImageProcessor

    regard.convert(trained, tmp_path / "public", to="huggingface")
    model = ViTForImageClassification.from_pretrained(tmp_path / "public").eval()
    processor = ViTImageProcessor.from_pretrained(tmp_path / "public")
    images = read_images(trained.parent / "bars.npz", size=None, channels=None).subset(range(20))
    ours = regard.load(trained)
    with torch.inference_mode():
        theirs = model(ours.pixels(images.batch(range(20)))).logits
    torch.testing.assert_close(ours.outputs(images), theirs, rtol=0, atol=1e-4)
    assert model.config.id2label == dict(enumerate(CLASSES))
    assert processor.image_mean == pytest.approx(ours.pixels.mean)
