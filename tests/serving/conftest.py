"""Models on disk, and servers that look into them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from public_translator import write_translator
from serving_tools import Live, write_vit


@pytest.fixture(scope="session")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "marian"
    write_translator(path)
    return path


@pytest.fixture(scope="session")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "vit"
    write_vit(path)
    return path


@pytest.fixture(scope="session")
def live(marian: Path, vit: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A translator and an image classifier, without an input to begin with."""
    saved = tmp_path_factory.mktemp("saved")
    server = Live([str(marian), "--against", str(vit), "--no-browser", "--save-to", str(saved)])
    yield server
    code, told = server.stop()
    assert (code, told) == (143, "regard: the page was closed\n")
