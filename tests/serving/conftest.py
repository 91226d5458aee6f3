"""Models on disk, and servers that look into them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from public_translator import write_translator
from serving_tools import Live

from regard.data.pixels import Pixels
from regard.models.vit import Vit, VitConfig
from regard.tasks import folder
from regard.tasks.images.classifier import ImageClassifier
from regard.tasks.labeller import Classes


@pytest.fixture(scope="session")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "marian"
    write_translator(path)
    return path


@pytest.fixture(scope="session")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    classes = Classes(("disc", "square", "<b>ring</b>"))
    config = VitConfig(
        image_size=(12, 12), patch_size=4, embed_dim=16, num_layers=2, num_heads=2, mlp_dim=24, num_classes=3
    )
    product = ImageClassifier(Vit(config), Pixels((12, 12), (0.5,) * 3, (0.25,) * 3), classes)
    path = tmp_path_factory.mktemp("models") / "vit"
    folder.save(path, product)
    return path


@pytest.fixture(scope="session")
def live(marian: Path, vit: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A translator and an image classifier, without an input to begin with."""
    saved = tmp_path_factory.mktemp("saved")
    server = Live([str(marian), "--against", str(vit), "--no-browser", "--save-to", str(saved)])
    yield server
    code, told = server.stop()
    assert (code, told) == (143, "regard: the page was closed\n")
