"""Making images: losses by formula, turns of both parts, distances, a whole run, and the generator in use."""

import hashlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import regard
from regard.cli.main import main
from regard.data.pixels import Pixels
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.models.convnet import ConvNet, ConvNetConfig
from regard.models.gan import Gan, GanConfig
from regard.models.weights import gather
from regard.tasks import folder
from regard.tasks.images import generate as generate_images
from regard.tasks.images.adversarial import discriminator_loss, generator_loss
from regard.tasks.images.classifier import ImageClassifier
from regard.tasks.images.corpus import ImageData
from regard.tasks.images.features import AveragedPixels, EncoderFeatures
from regard.tasks.images.generate import GenerateImagesConfig, GenerateImagesTask
from regard.tasks.images.generator import ImageGenerator, latents
from regard.tasks.labeller import Classes
from regard.training import optimizers, recipe
from regard.training.config import TrainingConfig
from regard.training.loop import Trainer
from regard.training.progress import Progress
from regard.training.run import run as train

CPU = torch.device("cpu")
TINY: dict[str, Any] = {"family": "gan", "latent_dim": 6, "base_channels": 4}
SAGAN = {**TINY, "spectral_norm": True, "attention_size": 8}


def write_disks(path: Path, count: int = 120, channels: int = 1) -> None:
    """Bright disks of several sizes and places on dark ground."""
    draws = np.random.default_rng(3)
    rows, columns = np.mgrid[:16, :16]
    images = np.zeros((count, 16, 16, channels), np.uint8)
    for image in images:
        (y, x), radius = draws.uniform(5, 11, 2), draws.uniform(2, 5)
        image[(rows - y) ** 2 + (columns - x) ** 2 < radius**2] = draws.integers(150, 256, channels)
    np.savez(path, images=images)


def make_task(where: Path, *, channels: int = 1, seed: int = 5, **changes: Any) -> GenerateImagesTask:
    where.mkdir(exist_ok=True)
    path = where / f"disks{channels}.npz"
    if not path.exists():
        write_disks(path, channels=channels)
    values: dict[str, Any] = {"model": TINY, "batch_images": 8, "samples": 40, **changes}
    data = ImageData(str(path), dev=str(path), test=str(path))
    return GenerateImagesTask.prepare(GenerateImagesConfig(data=data, **values), seed, where, True)


def make_trainer(task: GenerateImagesTask, **changes: Any) -> Trainer:
    values = {"max_steps": 6, "learning_rate": 1e-3, "schedule": "constant", "warmup_steps": 0, "beta1": 0.5}
    config = TrainingConfig(**{**values, "validate_every_steps": 4, **changes})
    torch.manual_seed(3)
    progress = Progress(config.max_steps, 0.0, quiet=True)
    return Trainer(task, task.build(), config, task.folder, CPU, progress, {"settings": "same"})


def test_trying_numbers_of_threads_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    """Power iteration of spectral norm goes on with every pass; the trial's passes are none of training."""
    settings = {
        "task": "generate-images",
        "data": {"train": str(tmp_path / "disks.npz")},
        "model": SAGAN,
        "batch_images": 8,
        "samples": 40,
        "training": {"max_steps": 2, "validate_every_steps": 2, "warmup_steps": 0},
    }
    write_disks(tmp_path / "disks.npz")
    threads, states = torch.get_num_threads(), []
    try:
        torch.set_num_threads(2)  # of a single thread there is nothing to try
        for name in ("tried", "told"):
            out = tmp_path / name
            result = train(recipe.resolve(settings), out, device="cpu", quiet=True)
            states.append(result.model.model.state_dict())
            settings["training"] |= json.loads((out / "threads.json").read_text())
    finally:
        torch.set_num_threads(threads)
    assert any(name.endswith("u_O") for name in states[0])
    assert all(torch.equal(one, states[1][name]) for name, one in states[0].items())


# -------------------------------------------------------------------------------------------------------------- losses


def test_losses_are_the_papers_formulas() -> None:
    real, fake = torch.tensor([0.3, -1.2, 2.5, 0.0]).double(), torch.tensor([-0.7, 1.9, 0.1, -3.0]).double()
    d_real, d_fake = 1 / (1 + (-real).exp()), 1 / (1 + (-fake).exp())
    minimax = float((d_real.log() + (1 - d_fake).log()).sum())  # Goodfellow et al. 2014, equation 1
    for game in ("saturating", "non-saturating"):
        assert float(discriminator_loss(real, fake, game).sum) == pytest.approx(-minimax, rel=1e-12)
    assert float(generator_loss(fake, "saturating").sum) == pytest.approx(float((1 - d_fake).log().sum()), rel=1e-12)
    assert float(generator_loss(fake, "non-saturating").sum) == pytest.approx(float(-d_fake.log().sum()), rel=1e-12)
    # Zhang et al. 2018, equation 4, term by term.
    first = sum(-min(0.0, -1 + s) for s in real.tolist()) + sum(-min(0.0, -1 - s) for s in fake.tolist())
    assert float(discriminator_loss(real, fake, "hinge").sum) == pytest.approx(first, rel=1e-12)
    assert float(generator_loss(fake, "hinge").sum) == pytest.approx(-sum(fake.tolist()), rel=1e-12)


def test_a_sure_discriminator_stops_the_saturating_loss_alone_and_all_stay_finite() -> None:
    gradients = {}
    for game in ("saturating", "non-saturating", "hinge"):
        fake = torch.tensor([-200.0], requires_grad=True)
        loss = generator_loss(fake, game)
        loss.sum.backward()
        gradients[game] = float(fake.grad)  # type: ignore[arg-type]
        assert math.isfinite(float(loss.sum.detach()))
        assert math.isfinite(float(discriminator_loss(-fake, fake, game).sum.detach()))
    assert gradients == {"saturating": 0.0, "non-saturating": -1.0, "hinge": -1.0}


@pytest.mark.parametrize("model", [TINY, SAGAN], ids=["plain", "attending"])
@pytest.mark.parametrize("loss", ["saturating", "non-saturating", "hinge"])
def test_each_turn_has_its_own_loss_of_real_and_made_images(tmp_path: Path, model: dict, loss: str) -> None:
    task = make_task(tmp_path, model=model, loss=loss)
    gan, batch = task.build().eval(), task.batch(0)
    made = gan.generator(batch.latents_BZ)
    real, fake = gan.discriminator(batch.images_BCYX.float() / 127.5 - 1), gan.discriminator(made)
    wanted = {"discriminator": discriminator_loss(real, fake, loss), "generator": generator_loss(fake, loss)}
    for turn, one in wanted.items():
        gan.zero_grad()
        found = task.turn_loss(gan, batch, turn)
        torch.testing.assert_close(found.sum, one.sum, rtol=1e-5, atol=1e-5)
        found.sum.backward()
        moved = {name.split(".")[0] for name, p in gan.named_parameters() if p.grad is not None}
        assert moved == ({"discriminator"} if turn == "discriminator" else {"discriminator", "generator"})
    assert float(task.loss(gan, batch).sum.detach()) == pytest.approx(float(wanted["discriminator"].sum.detach()))


# ---------------------------------------------------------------------------------------------------------------- turns


def test_the_discriminator_has_k_steps_for_each_of_the_generator_at_two_rates(tmp_path: Path) -> None:
    task = make_task(tmp_path, discriminator_steps=2, discriminator_rate=4.0, generator_rate=0.5)
    trainer = make_trainer(task, weight_decay=0.0)
    rates = {}
    for group in trainer.optimizer.param_groups:
        names = {name for name, p in trainer.model.named_parameters() if any(p is q for q in group["params"])}
        rates |= dict.fromkeys((name.split(".")[0] for name in names), group["factor"])
    assert rates == {"discriminator": 4.0, "generator": 0.5}
    trainer.run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    turns = [line["turn"] for line in lines if "turn" in line]
    assert turns == ["discriminator", "discriminator", "generator"] * 2


@pytest.mark.parametrize("model", [TINY, SAGAN], ids=["plain", "attending"])
@pytest.mark.parametrize("stop", [1, 4, 5])
def test_a_run_resumed_within_a_round_is_bit_equal(tmp_path: Path, model: dict, stop: int) -> None:
    trainers = {}
    for name, stops in (("whole", [7]), ("parts", [stop, 7])):
        for steps in stops:
            task = make_task(tmp_path / name, model=model, discriminator_steps=2)
            trainers[name] = make_trainer(task, max_steps=steps)
            trainers[name].run()
    states = [{**gather(one.model), **optimizers.state_tensors(one.optimizer, one.model)} for one in trainers.values()]
    assert states[0].keys() == states[1].keys()
    assert any("u_O" in name for name in states[0]) is ("spectral_norm" in model)
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    names = [sorted(p.name for p in (tmp_path / name / "samples").iterdir()) for name in trainers]
    assert names[0] == ["step-4.png", "step-7.png"]
    last = [(tmp_path / name / "samples" / "step-7.png").read_bytes() for name in trainers]
    assert last[0] == last[1]


def test_a_step_may_be_cut_into_micro_batches(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    gan = task.build()
    batch = task.batch(0)
    for turn in ("discriminator", "generator"):
        grads = []
        for size in (8, 3):
            gan.zero_grad()
            for images, rows in zip(batch.images_BCYX.split(size), batch.latents_BZ.split(size), strict=True):
                task.turn_loss(gan, type(batch)(images, rows), turn).sum.backward()
            grads.append([p.grad.clone() for p in getattr(gan, turn).parameters()])
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_batch_is_a_pure_function_of_seed_and_number(tmp_path: Path) -> None:
    one, other = make_task(tmp_path), make_task(tmp_path)
    for task in (one, other):
        task.build()
    for index in (9, 2, 0):
        a, b = one.batch(index), other.batch(index)
        assert torch.equal(a.images_BCYX, b.images_BCYX)
        assert torch.equal(a.latents_BZ, b.latents_BZ)
        assert a.latents_BZ.shape == (8, 6)
    assert not torch.equal(one.batch(0).latents_BZ, one.batch(1).latents_BZ)


# ------------------------------------------------------------------------------------------------------------ distances


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The trace of a root is the sum of the roots of the eigenvalues: of the plain product, which is not symmetric."""
    covariances = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    roots = np.sqrt(np.clip(np.linalg.eigvals(covariances[0] @ covariances[1]).real, 0, None))
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(covariances[0] + covariances[1]) - 2 * roots.sum())


def blocks(images_NCYX: Tensor) -> np.ndarray:
    """Means of 2 × 2 pixels of images of 16 × 16."""
    pixels = images_NCYX.numpy() / 255
    return pixels.reshape(len(pixels), -1, 8, 2, 8, 2).mean((3, 5)).reshape(len(pixels), -1)


def test_validation_is_the_distance_of_samples_from_fixed_latents(tmp_path: Path) -> None:
    task = make_task(tmp_path, samples=150)  # more than there are images: all of those are taken
    gan = task.build()
    found = task.validate(gan, CPU)
    assert found == task.validate(gan, CPU)
    made = ImageGenerator(gan, task.pixels).generate(150, 5)
    dev = task.corpus.dev.batch(range(120))
    assert found["frechet_distance"] == pytest.approx(distance(blocks(made), blocks(dev)), rel=1e-3)
    real, fake = (gan.eval().discriminator(task.pixels(some)) for some in (dev, made[:120]))
    wanted = float(discriminator_loss(real, fake, "non-saturating").sum.detach()) / 120
    assert found["loss"] == pytest.approx(wanted, rel=1e-5)
    with torch.no_grad():
        gan.discriminator.score.bias.fill_(torch.nan)
    assert set(task.validate(gan, CPU)) == {"loss"}


def test_baselines_have_real_images_as_their_floor(tmp_path: Path) -> None:
    task = make_task(tmp_path, samples=100)
    product = task.product(task.build(), CPU)
    with torch.no_grad():  # so that other latents make other images
        for parameter in product.model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    evaluated = task.test(product)
    other = task.product(product.model, CPU).generate(100, 6)  # not validation's latents
    test = task.corpus.test.batch(task._some(task.corpus.test, 5).numbers)
    value = evaluated.measures["frechet_distance"].value
    assert value == pytest.approx(distance(blocks(other), blocks(test)), rel=1e-3)
    baselines = {name: one["frechet_distance"] for name, one in task.baselines(evaluated).items()}
    noise, floor = baselines.values()
    assert 0 <= floor.value < 0.5 * noise.value
    assert floor.signature == noise.signature == "frechet_distance|n:100|reference:100|version:regard-1"
    assert task.signature() == "|size:16x16|features:pixels averaged to 8x8"
    pixels = task._independent_pixels().double()
    known = task._all(task._some(task.corpus.train, 5)).double()
    assert (pixels.mean(0) - known.mean(0)).abs().mean() < 12
    beside = [abs(float(np.corrcoef(some[:, 0, 7, 7:9].T.numpy())[0, 1])) for some in (pixels, known)]
    below = abs(float(np.corrcoef(pixels[:, 0, 7:9, 7].T.numpy())[0, 1]))
    assert max(beside[0], below) < 0.35
    assert beside[1] > 0.6


def test_averaged_pixels_are_means_of_blocks() -> None:
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    np.testing.assert_allclose(AveragedPixels()(images).numpy(), blocks(images), atol=1e-12)
    assert AveragedPixels()(torch.zeros(2, 1, 28, 20, dtype=torch.uint8)).shape == (2, 64)


def test_features_of_a_trained_encoder_name_family_and_weights(tmp_path: Path) -> None:
    torch.manual_seed(2)
    encoder = ConvNet(ConvNetConfig((16, 16), 1, 2, (4, 6), (1, 1)))
    pixels = Pixels((16, 16), (0.3,), (0.2,))
    folder.save(tmp_path / "run" / "model", ImageClassifier(encoder, pixels, Classes(("a", "b"))))
    task = make_task(tmp_path, features=str(tmp_path / "run"))
    digest = hashlib.sha256((tmp_path / "run" / "model" / "model.safetensors").read_bytes()).hexdigest()
    assert task.signature() == f"|size:16x16|features:convnet, sha256 {digest}"
    images = task.corpus.dev.batch(range(5))
    wanted = encoder.pool(encoder((images.float() / 255 - 0.3) / 0.2))
    torch.testing.assert_close(task._features(images), wanted.detach(), rtol=1e-4, atol=1e-5)
    assert task.validate(task.build(), CPU)["frechet_distance"] > 0
    with pytest.raises(ConfigError, match="reads 1 channels, the images have 3"):
        EncoderFeatures(str(tmp_path / "run"), (16, 16), 3, CPU)
    task = make_task(tmp_path)
    folder.save(tmp_path / "gan", task.product(task.build(), CPU))
    with pytest.raises(ConfigError, match="no image encoder"):
        make_task(tmp_path, features=str(tmp_path / "gan"))


def test_the_nearest_training_images_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_images, "BATCH_IMAGES", 50)
    task = make_task(tmp_path)
    wanted = task.corpus.train.batch([7, 100, 0])
    noisy = (wanted.int() + torch.randint(-9, 10, wanted.shape)).clamp(0, 255).to(torch.uint8)
    assert torch.equal(task._nearest(noisy), wanted)


# --------------------------------------------------------------------------------------------------------------- in use


def test_an_image_depends_on_seed_and_number_alone() -> None:
    torch.manual_seed(1)
    model = Gan(GanConfig((16, 16), 3, 5, 4, 512, True, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    product = ImageGenerator(model, Pixels((16, 16), (0.5,) * 3, (0.5,) * 3))
    images = product.generate(9, 4)
    assert (images.dtype, images.shape) == (torch.uint8, (9, 3, 16, 16))
    assert torch.equal(product.generate(9, 4, batch_images=2), images)
    assert torch.equal(product.generate(3, 4, first=5), images[5:8])
    assert not torch.equal(product.generate(9, 5), images)
    assert len({image.numpy().tobytes() for image in images}) == 9
    shown = model.generator(latents(9, 5, 4)).detach()
    assert (images.double() - (shown.double() + 1) * 127.5).abs().max() <= 0.5 + 1e-4
    rows = latents(4000, 5, 4)
    assert float(rows.mean()) == pytest.approx(0, abs=0.03)
    assert float(rows.std()) == pytest.approx(1, abs=0.03)
    for count, seed in ((0, 1), (-1, 1), (100_001, 1), (1, -1), (1, 1 << 63)):
        with pytest.raises(UsageError):
            product.generate(count, seed)


def test_what_a_game_cannot_be_is_refused() -> None:
    data = ImageData("x")
    for wrong in (
        {"loss": "wasserstein"},
        {"discriminator_steps": 0},
        {"batch_images": 0},
        {"samples": 1},
        {"generator_rate": 0.0},
        {"discriminator_rate": math.nan},
    ):
        with pytest.raises(ConfigError):
            GenerateImagesConfig(data=data, **wrong)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of the pair with attention, through the whole of it."""
    where = tmp_path_factory.mktemp("gan")
    write_disks(where / "disks.npz", 200)
    values = {
        "model": SAGAN,
        "loss": "hinge",
        "samples": 30,
        "training.max_steps": 8,
        "training.validate_every_steps": 4,
        "training.average": 2,
        "training.threads": 1,
    }
    regard.train("generate-images", out=where / "run", data=where / "disks.npz", settings=values, quiet=True)
    return where / "run"


def test_a_whole_run_writes_scores_samples_and_report(run: Path) -> None:
    scores = json.loads((run / "scores.json").read_text())
    assert set(scores["baselines"]) == {"pixels drawn independently", "real training images (the floor)"}
    assert scores["signatures"]["frechet_distance"].startswith("frechet_distance|n:30|reference:10|version:regard-1|")
    assert "features:pixels averaged to 8x8" in scores["signatures"]["frechet_distance"]
    assert sorted(path.name for path in (run / "samples").iterdir()) == ["step-4.png", "step-8.png"]
    with Image.open(run / "samples" / "step-8.png") as picture:
        assert (picture.mode, picture.size) == ("L", (16 * 66 - 2, 4 * 66 - 2))
    page = (run / "report.html").read_text()
    for title in (
        "After step 4",
        "After step 8",
        "Images made",
        "Training images",
        "Nearest training images",
        "Fréchet distance",
    ):
        assert title in page


def test_a_generator_comes_back_from_its_folder(run: Path, tmp_path: Path) -> None:
    product = regard.load(run)
    assert isinstance(product, ImageGenerator)
    again = folder.load(run / "model")
    assert torch.equal(again.generate(5, 2), product.generate(5, 2))
    folder.save(tmp_path / "copy", product)
    assert torch.equal(folder.load(tmp_path / "copy").generate(5, 2), product.generate(5, 2))
    path = tmp_path / "copy" / "preprocessor_config.json"
    path.write_text(path.read_text().replace("16", "32"))
    with pytest.raises(CheckpointError, match="makes others"):
        folder.load(tmp_path / "copy")


def test_a_generator_is_not_looked_at(run: Path) -> None:
    with pytest.raises(UsageError, match="use it with regard generate"):
        regard.look(run, "a text")


def command(*args: Any) -> int:
    with pytest.raises(SystemExit) as done:
        main([str(arg) for arg in args])
    return int(done.value.code or 0)


def test_images_from_the_command_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = regard.load(run).generate(5, 3)
    assert command("generate", run, "--count", 5, "--seed", 3, "-o", tmp_path / "sheet.png") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'sheet.png'}\n"
    with Image.open(tmp_path / "sheet.png") as picture:
        assert picture.size == (3 * 66 - 2, 2 * 66 - 2)
        sheet = np.asarray(picture)
    for number in range(5):
        top, left = number // 3 * 66, number % 3 * 66
        assert np.array_equal(sheet[top : top + 64 : 4, left : left + 64 : 4], images[number, 0].numpy())
    out = tmp_path / "files"
    assert command("generate", run, "--count", 11, "--seed", 3, "-o", out, "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[10] == {"file": str(out / "10.png"), "seed": 3, "number": 10}
    assert sorted(path.name for path in out.iterdir()) == [f"{n:02}.png" for n in range(11)]
    for number in range(5):
        one = Image.open(io.BytesIO((out / f"{number:02}.png").read_bytes()))
        assert np.array_equal(np.asarray(one), images[number, 0].numpy())


def test_what_does_not_go_with_images_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for words, told in (
        (["--count", 4], "-o sheet.png"),
        (["-o", tmp_path / "x.png", "--tokens", 5, "--sample"], "--tokens and --sample for a model of images"),
        (["-o", tmp_path / "x.png", "--stream"], "--stream for a model of images"),
        (["-o", tmp_path / "x.png", "--count", 0], "0 images"),
        (["-o", tmp_path / "x.png", "--count", 1025], "1,025 images on one sheet"),
        (["-o", tmp_path / "x", "--seed", -1], "the seed is -1"),
        (["-o", tmp_path / "sheet.jpg"], "a sheet is a .png, not a .jpg; give -o sheet.png, or a folder"),
        (["-o", tmp_path / "full"], "there is something already"),
    ):
        assert command("generate", run, *words) == 2
        error = capsys.readouterr().err
        assert told in error
        assert len(error.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


def test_the_report_shows_samples_from_the_first_step_to_the_last(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    product = task.product(task.build(), torch.device("cpu"))
    (task.folder / "samples").mkdir(exist_ok=True)
    for step in (1000, 200, 30, 4, 50, 600, 70, 80, 900):
        (task.folder / "samples" / f"step-{step}.png").write_bytes(str(step).encode())
    shown = [(title, data) for title, _, data in task.figures(product) if title.startswith("After step")]
    assert shown == [(f"After step {n:,}", str(n).encode()) for n in (4, 50, 80, 600, 1000)]
