"""The verbs on images, as a person uses them: a folder a class, file names through a pipe."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from bar_images import CLASSES, bars
from cli_tools import Cli
from PIL import Image

from regard.cli.main import main

SETS = (
    *("data.channels=1", "model.patch_size=4", "model.embed_dim=16", "model.num_layers=2", "model.num_heads=2"),
    *("model.mlp_dim=32", "training.max_steps=40", "training.validate_every_steps=20", "training.warmup_steps=4"),
    *("training.learning_rate=0.003", "training.threads=1", "mixup=0", "cutmix=0", "augment.crop_pad=1"),
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number, (image, label) in enumerate(zip(*bars(240), strict=True)):
        place = folder / "all" / CLASSES[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def seen(pictures: Path) -> Path:
    """A run, by the command itself."""
    options = [word for one in SETS for word in ("--set", one)]
    out = pictures / "run"
    with pytest.raises(SystemExit) as done:
        main(["train", "classify-images", "--data", f"{pictures}/all", "--out", f"{out}", "--quiet", *options])
    assert done.value.code == 0
    return out


def test_names_of_files_get_labels(seen: Path, pictures: Path, cli: Cli) -> None:
    files = [str(next((pictures / "all" / name).iterdir())) for name in CLASSES]
    lines = f"{files[0]}\n\n{files[1]}\n{files[2]}\n"
    done = cli(["classify", seen], stdin=lines)
    assert (done.returncode, done.stderr) == (0, "")
    labels = done.stdout.split("\n")[:-1]
    assert len(labels) == 4
    assert labels[1] == ""
    assert {labels[0], *labels[2:]} <= set(CLASSES)
    done = cli(["classify", seen, "--json", "--batch", "1"], stdin=lines)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line]
    assert [row["label"] for row in rows] == [labels[0], *labels[2:]]
    assert all(set(row["probabilities"]) == set(CLASSES) for row in rows)
    done = cli(["embed", seen], stdin=lines)
    vectors = [json.loads(line)["embedding"] for line in done.stdout.splitlines() if line]
    assert np.array(vectors).shape == (3, 16)


def test_a_folder_is_scored(seen: Path, pictures: Path, cli: Cli) -> None:
    done = cli(["evaluate", seen, "--data", pictures / "all", "--json"])
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert 0 <= scores["accuracy"] <= 1
    assert "n:240|classes:3" in scores["signatures"]["accuracy"]


def test_a_folder_is_scored_as_its_images_get_labels(seen: Path, cli: Cli, tmp_path: Path) -> None:
    """Pictures of another shape are brought to size in one way, the model's own."""
    model = Path(shutil.copytree(seen / "model", tmp_path / "model"))
    path = model / "preprocessor_config.json"
    values = json.loads(path.read_text()) | {"do_center_crop": False, "size": {"height": 12, "width": 12}}
    path.write_text(json.dumps(values))
    files, names = [], []
    for number, (image, label) in enumerate(zip(*bars(60, seed=7), strict=True)):
        place = tmp_path / "wide" / CLASSES[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.repeat(3, 1)).save(place / f"{number}.png")
        files, names = [*files, f"{place}/{number}.png"], [*names, CLASSES[label]]
    labels = cli(["classify", model], stdin="\n".join(files)).stdout.split("\n")[:-1]
    scores = json.loads(cli(["evaluate", model, "--data", tmp_path / "wide", "--json"]).stdout)
    right = sum(label == name for label, name in zip(labels, names, strict=True))
    assert scores["accuracy"] == pytest.approx(right / 60)


def test_bad_files_are_one_line(seen: Path, pictures: Path, cli: Cli, tmp_path: Path) -> None:
    good = next((pictures / "all" / "cross").iterdir())
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:-40])
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "drawn.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    Image.new("L", (1, 1)).save(tmp_path / "dot.png")
    for line, code, words in (
        (f"{tmp_path}/none.png", 3, "none.png"),
        (f"{tmp_path}/cut.png", 3, "cut.png"),
        (f"{tmp_path}/text.png", 3, "text.png"),
        (f"{tmp_path}/drawn.svg", 3, "drawn.svg"),
        (f"{tmp_path}/dot.png", 3, "dot.png"),
        ("https://example.org/a.png", 2, "not a URL"),
    ):
        done = cli(["classify", seen], stdin=f"{line}\n")
        assert (done.returncode, done.stdout) == (code, ""), (line, done.stderr)
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_what_stands_before_a_bad_file_is_answered(seen: Path, pictures: Path, cli: Cli, tmp_path: Path) -> None:
    good = next((pictures / "all" / "lying").iterdir())
    (tmp_path / "text.png").write_text("no picture")
    done = cli(["classify", seen], stdin=f"{good}\n\n{good}\n{tmp_path}/text.png\n{good}\n")
    assert done.returncode == 3
    labels = done.stdout.split("\n")
    assert labels[0] == labels[2] != ""
    assert labels[1] == ""
    assert len(labels) == 4
    assert "text.png" in done.stderr


def test_other_verbs_say_what_it_is_for(seen: Path, cli: Cli) -> None:
    done = cli(["fill", seen], stdin="a <mask>\n")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
