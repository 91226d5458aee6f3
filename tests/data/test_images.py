"""Pictures of every form: the right pixels, labels and order, and bad files named in one line."""

import gzip
import io
import json
import os
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from image_files import encoded, noisy, smooth, write
from PIL import Image

from regard.data.images import Images, read_images
from regard.data.split import split_keys
from regard.errors import DataError, FormatError, ResourceError, UsageError


def _read(path: Path, **options: Any) -> Images:
    return read_images(path, **{"size": None, "channels": None, **options})


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


GREY_NYX = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
COLOUR_NYXC = np.random.default_rng(1).integers(0, 256, (7, 5, 4, 3), dtype=np.uint8)
LABELS = np.array([3, 0, 1, 10, 2, 2, 0])


def _save(folder: Path, kind: str, images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Write the same pictures and labels in one form; what reads them."""
    if kind in ("npz", "npz packed"):
        save = np.savez if kind == "npz" else np.savez_compressed
        save(folder / "a.npz", images=images, labels=labels)
        return {"path": folder / "a.npz"}
    if kind in ("idx", "idx packed"):
        packed = gzip.compress if kind == "idx packed" else bytes
        end = ".gz" if kind == "idx packed" else ""
        (folder / f"t10k-images-idx3-ubyte{end}").write_bytes(packed(_idx(images)))
        (folder / "t10k-labels-idx1-ubyte").write_bytes(_idx(labels.astype(np.uint8)))
        return {"path": folder / f"t10k-images-idx3-ubyte{end}"}
    if kind == "parquet":
        rows = [{"bytes": encoded(image[..., None] if image.ndim == 2 else image), "path": None} for image in images]
        pyarrow.parquet.write_table(pyarrow.table({"img": rows, "label": labels}), folder / "a.parquet")
        return {"path": folder / "a.parquet"}
    if kind == "parquet bytes":
        rows = [encoded(image[..., None] if image.ndim == 2 else image) for image in images]
        table = pyarrow.table({"picture": rows, "kind": list(map(str, labels))})
        pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=3)
        return {"path": folder / "a.parquet", "image": "picture", "label": "kind"}
    names = [f"{number}.png" for number in range(len(images))]
    for name, image in zip(names, images, strict=True):
        write(folder / "deep" / name, image[..., None] if image.ndim == 2 else image)
    if kind == "parquet names":
        table = pyarrow.table({"file_name": [f"deep/{name}" for name in names], "label": labels})
        pyarrow.parquet.write_table(table, folder / "a.parquet")
        return {"path": folder / "a.parquet"}
    between = "," if kind == "csv" else "\t"
    rows = [
        ("class", "other", "path"),
        *((label, "x", f"deep/{name}") for label, name in zip(labels, names, strict=True)),
    ]
    (folder / f"a.{kind}").write_text("".join(between.join(map(str, row)) + "\n" for row in rows))
    return {"path": folder / f"a.{kind}"}


KINDS = ("npz", "npz packed", "idx", "idx packed", "parquet", "parquet bytes", "parquet names", "csv", "tsv")


FORMS = [
    pytest.param(kind, images, id=f"{kind}-{'grey' if images.ndim == 3 else 'colour'}")
    for images in (GREY_NYX, COLOUR_NYXC)
    for kind in KINDS
    if images.ndim == 3 or "idx" not in kind  # IDX images are grey here
]


@pytest.mark.parametrize(("kind", "images"), FORMS)
def test_every_form_gives_the_same(tmp_path: Path, kind: str, images: np.ndarray) -> None:
    found = _read(**_save(tmp_path, kind, images, LABELS))
    assert (len(found), found.count, found.size) == (7, 7, (5, images.shape[2]))
    assert found.channels == (1 if images.ndim == 3 else 3)
    assert found.labels == ("3", "0", "1", "10", "2", "2", "0")
    assert found.classes == ("0", "1", "2", "3", "10")
    wanted_NCYX = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    batch = found.batch([4, 0, 4])
    assert batch.dtype == torch.uint8
    assert np.array_equal(batch.numpy(), wanted_NCYX[[4, 0, 4]])
    assert found.batch([]).shape == (0, *wanted_NCYX.shape[1:])
    some = found.subset([6, 2]).subset(np.array([1]))
    assert some.labels == ("1",)
    assert np.array_equal(some.batch([0]).numpy(), wanted_NCYX[[2]])
    assert some.where(0) == found.where(2)
    unlabelled = _read(**{**_save(tmp_path, kind, images, LABELS), "label": None}, labelled=False)
    assert unlabelled.labels == unlabelled.classes == ()


def test_arrays_are_mapped_where_they_are_not_packed(tmp_path: Path) -> None:
    for kind in ("npz", "idx"):
        pictures = _read(**_save(tmp_path, kind, GREY_NYX, LABELS)).pictures
        assert isinstance(pictures.array_NYXC.base, np.memmap)
    np.save(tmp_path / "a.npy", COLOUR_NYXC)
    found = _read(tmp_path / "a.npy", labelled=False)
    assert isinstance(found.pictures.array_NYXC, np.memmap)
    assert np.array_equal(found.batch([3]).numpy()[0], COLOUR_NYXC[3].transpose(2, 0, 1))
    assert found.where(3) == f"{tmp_path}/a.npy, image 4"


def test_class_names_of_arrays_keep_their_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=GREY_NYX[:3], labels=np.array([2, 0, 2]), classes=np.array(["b", "c", "a"]))
    found = _read(tmp_path / "a.npz")
    assert found.labels == ("a", "b", "a")
    assert found.classes == ("b", "c", "a")
    np.savez(tmp_path / "a.npz", pixels=GREY_NYX[:3], kinds=np.array(["two", "one", "two"]))
    found = _read(tmp_path / "a.npz", image="pixels", label="kinds")
    assert found.labels == ("two", "one", "two")


def test_class_names_of_parquet(tmp_path: Path) -> None:
    table = pyarrow.table({"image": [encoded(image) for image in COLOUR_NYXC[:2]], "label": [1, 0]})
    features = {"label": {"names": ["ham", "eggs"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
    found = _read(tmp_path / "a.parquet")
    assert (found.labels, found.classes) == (("eggs", "ham"), ("ham", "eggs"))
    for metadata in ({"huggingface": "[" * 100_000}, {"huggingface": '{"info": 3}'}, {"huggingface": "\xff"}):
        pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
        assert _read(tmp_path / "a.parquet").labels == ("1", "0")


# --- folders ----------------------------------------------------------------------------------------------------


def _folder(root: Path) -> Path:
    for name in ("dog/2.png", "dog/10.JPG", "cat/deep/er/1.png", "cat/a b.webp", "Emu/1.gif"):
        write(root / name, smooth(6, 8))
    for name in (".hidden.png", "cat/.x/1.png", "cat/notes.txt", "dog/Thumbs.db"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"no picture")
    return root


def test_class_folders(tmp_path: Path) -> None:
    found = _read(_folder(tmp_path / "set"))
    names = [found.where(index) for index in range(len(found))]
    assert names == ["Emu/1.gif", "cat/a b.webp", "cat/deep/er/1.png", "dog/10.JPG", "dog/2.png"]
    assert found.labels == ("Emu", "cat", "cat", "dog", "dog")
    assert found.classes == ("Emu", "cat", "dog")
    assert found.batch(range(5)).shape == (5, 3, 6, 8)
    assert np.array_equal(found.batch([4])[0].permute(1, 2, 0).numpy(), smooth(6, 8))


def test_flat_folder_and_one_picture(tmp_path: Path) -> None:
    write(tmp_path / "b.png", noisy(4, 6, 1))
    write(tmp_path / "a" / "c.png", noisy(4, 6, 1, seed=1))
    found = _read(tmp_path, labelled=False)
    assert [found.where(index) for index in range(2)] == ["a/c.png", "b.png"]
    assert (found.labels, found.classes, found.channels) == ((), (), 1)
    one = _read(tmp_path / "b.png", labelled=False)
    assert torch.equal(one.batch([0]), found.batch([1]))
    with pytest.raises(DataError, match=r"b.png: a picture without a class; put each picture into a folder"):
        _read(tmp_path)
    with pytest.raises(DataError, match=r"b.png: one picture has no label"):
        _read(tmp_path / "b.png")
    for name in ("c.png", "catalogue:c"):
        with pytest.raises(DataError, match=rf"{name}: no such file or folder; check the name"):
            _read(tmp_path / name)


def test_links(tmp_path: Path) -> None:
    root = _folder(tmp_path / "set")
    (root / "cat" / "same.png").symlink_to(root / "dog" / "2.png")
    assert len(_read(root)) == 6
    (tmp_path / "by-link").symlink_to(root)
    assert len(_read(tmp_path / "by-link")) == 6
    secret = write(tmp_path / "secret.png", smooth(6, 8))
    (root / "cat" / "out.png").symlink_to(secret)
    with pytest.raises(DataError, match=r"cat/out.png: .* leads out of the folder"):
        _read(root)
    (root / "cat" / "out.png").unlink()
    (root / "cat" / "loop").symlink_to(root)
    with pytest.raises(DataError, match=r"cat/loop: a link to a folder is not followed"):
        _read(root)


def test_bad_folders(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(DataError, match=r"set: there is no picture in it"):
        _read(tmp_path / "set")
    root = _folder(tmp_path / "set")
    (root / "yak").mkdir()
    with pytest.raises(DataError, match=r"set/yak: this class has no picture; fill it or remove it"):
        _read(root)
    (root / "yak" / "a.svg").write_text("<svg/>")
    with pytest.raises(DataError, match=r"yak/a.svg: not a picture of a known format; convert it"):
        _read(root)
    (root / "yak" / "a.svg").rename(root / "yak" / "a.png")
    with pytest.raises(FormatError, match=r"yak/a.png: SVG is a drawing and has no pixels; render it to PNG first"):
        _read(root)
    (root / "yak" / "a.png").unlink()
    os.mkfifo(root / "yak" / "a.png")
    with pytest.raises(DataError, match=r"yak/a.png: .*is no regular file"):
        _read(root)


def test_damage_behind_the_header_is_named_when_decoded(tmp_path: Path) -> None:
    root = _folder(tmp_path / "set")
    data = encoded(noisy(6, 8), "PNG")
    (root / "cat" / "deep" / "er" / "1.png").write_bytes(data[:60])
    found = _read(root)
    for ask in (lambda: found.batch(range(5)), found.keys):
        with pytest.raises(FormatError, match=r"^/.*/set/cat/deep/er/1.png: the picture is damaged or cut short"):
            ask()


def test_the_same_with_many_threads(tmp_path: Path) -> None:
    for number in range(150):
        write(tmp_path / "a" / f"{number:03}.png", noisy(9, 7, seed=number))
    found = _read(tmp_path, size=(5, 6))
    alone = found.batch(range(150))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        again = _read(tmp_path, size=(5, 6))
        assert torch.equal(again.batch(range(150)), alone)
        assert again.digest() == found.digest()
        assert again.keys() == found.keys()
    finally:
        torch.set_num_threads(threads)


# --- tables of pixels -------------------------------------------------------------------------------------------

PIXELS = np.random.default_rng(2).integers(0, 256, (5, 9), dtype=np.uint8)


@pytest.mark.parametrize("place", ["first", "last"])
def test_pixels_without_a_header(tmp_path: Path, place: str) -> None:
    rows = [
        [*row, label] if place == "last" else [label, *row] for row, label in zip(PIXELS.tolist(), "40140", strict=True)
    ]
    (tmp_path / "a.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    found = _read(tmp_path / "a.csv", label=place)
    assert found.labels == ("4", "0", "1", "4", "0")
    assert np.array_equal(found.batch(range(5)).numpy(), PIXELS.reshape(5, 1, 3, 3))
    assert found.where(1) == f"{tmp_path}/a.csv, image 2"
    with pytest.raises(
        DataError, match="line 1: numbers without names; say whether the label is the first or the last"
    ):
        _read(tmp_path / "a.csv")


def test_pixels_with_a_header(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(9)]
    lines = [",".join([*names[:4], "label", *names[4:]])]
    lines += [",".join(map(str, [*row[:4], "ab"[row[0] % 2], *row[4:]])) for row in PIXELS.tolist()]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    found = _read(tmp_path / "a.csv")
    assert found.labels == tuple("ab"[row[0] % 2] for row in PIXELS.tolist())
    assert np.array_equal(found.batch(range(5)).numpy(), PIXELS.reshape(5, 1, 3, 3))
    assert torch.equal(_read(tmp_path / "a.csv", labelled=False).batch([1]), found.batch([1]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("image,label\n", "the file is empty"),
        ("image,label\na.png\n", "line 2: 1 columns instead of 2"),
        ("image,label\n\na.png,x\n", "line 2: the line is blank"),
        ("image,label\na.png,\n", "line 2: a row without a label"),
        ("image,label\n,x\n", "line 2: a row without a file"),
        ("image,kind\na.png,x\n", "line 1: no column is named 'label'; the names are 'image', 'kind'"),
        ("image,label\nb.png,x\n", "b.png: no such file; did you mean"),
        ("image,label\na.png,x\n../out.png,x\n", r"line 3: ../out.png leads out of the folder"),
        ("image,label\n/etc/passwd,x\n", "line 2: /etc/passwd leads out of the folder"),
        ("image,label\nlink.png,x\n", "line 2: link.png leads out of the folder"),
        ("image,label\nbad.png,x\n", "bad.png: not a picture of a known format"),
        ('image,label\n"a.png,x\n', "line 2: not CSV"),
        ("p1,p2,p3,p4,p5,label\n1,2,3,4,5,6\n", "5 columns of pixels make no square picture"),
        ("p1,p2,p3,p4,label\n1,2,3,256,5\n", "line 2: '256' is no pixel; write whole numbers from 0 to 255"),
        ("p1,p2,p3,p4,label\n1,2,-3,4,5\n", "line 2: '-3' is no pixel"),
        ("p1,p2,p3,p4,label\n1,2,0.5,4,5\n", "line 2: '0.5' is no pixel"),
        ("p1,p2,p3,p4,label\n1,2,,4,5\n", "line 2: '' is no pixel"),
        ("p1,p2,p3,p4,label\n", "the file is empty"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, message: str) -> None:
    folder = tmp_path / "set"
    write(folder / "a.png", smooth(6, 8))
    write(tmp_path / "out.png", smooth(6, 8))
    (folder / "link.png").symlink_to(tmp_path / "out.png")
    (folder / "bad.png").write_text("no picture")
    (folder / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        _read(folder / "t.csv")
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


# --- arrays that lie --------------------------------------------------------------------------------------------


def _npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": LABELS}, "no array is named 'images'; it has 'labels'"),
        ({"images": GREY_NYX}, "no array is named 'labels'; it has 'images'"),
        ({"images": GREY_NYX, "labels": LABELS[:3]}, "3 labels for 7 images"),
        ({"images": GREY_NYX.astype(float), "labels": LABELS}, "images are float64 instead of uint8"),
        ({"images": GREY_NYX[0], "labels": LABELS}, r"images have the shape \(5, 3\)"),
        ({"images": COLOUR_NYXC.transpose(0, 3, 1, 2), "labels": LABELS}, r"images have the shape \(7, 3, 5, 4\)"),
        ({"images": GREY_NYX[:, :1], "labels": LABELS}, "are no pictures; give pictures of 2 × 2"),
        ({"images": GREY_NYX[:0], "labels": LABELS[:0]}, "are no pictures"),
        ({"images": GREY_NYX, "labels": LABELS * 1.0}, "labels are float64 of the shape"),
        ({"images": GREY_NYX, "labels": LABELS[:, None]}, "labels are int64 of the shape"),
        (
            {"images": GREY_NYX, "labels": LABELS, "classes": np.array(["a", "b"])},
            "image 1 has the label 3, and there are 2",
        ),
        ({"images": GREY_NYX, "labels": -LABELS, "classes": np.array(["a"] * 11)}, "image 1 has the label -3"),
        ({"images": GREY_NYX, "labels": np.array([*"abc", "", *"def"])}, "image 4 has an empty label"),
        ({"images": np.asfortranarray(GREY_NYX), "labels": LABELS}, "an array in Fortran's order"),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        _read(_npz(tmp_path / "a.npz", **arrays))


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("trapped",)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trap = np.array([_Trap()], dtype=object)
    np.savez(tmp_path / "a.npz", images=trap, labels=LABELS)
    (tmp_path / "a.npy").write_bytes(_npy(trap))
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", _npy(trap))
        archive.writestr("labels.npy", _npy(LABELS))
    for name in ("a.npz", "b.npz", "a.npy"):
        with pytest.raises(FormatError, match="an array of Python objects"):
            _read(tmp_path / name, labelled=False)
    assert not (tmp_path / "trapped").exists()


def test_declared_sizes_are_not_believed(tmp_path: Path) -> None:
    whole = _npy(GREY_NYX)
    lying = whole.replace(b"'shape': (7, 5, 3), }", b"'shape':(9**9,5,3), }"[:21])
    for name, data in {"cut": whole[:-1], "head": whole[:20], "none": b"", "expression": lying}.items():
        (tmp_path / f"{name}.npy").write_bytes(data)
        with pytest.raises(FormatError, match=rf"{name}.npy: (the array ends early|not an array)"):
            _read(tmp_path / f"{name}.npy", labelled=False)
    for shape in (b"(7, 5, 9)", b"(7, 5, 4)"):  # over what the file has in all, and over what follows the header
        more = whole.replace(b"(7, 5, 3)", shape)
        (tmp_path / "more.npy").write_bytes(more)
        with zipfile.ZipFile(tmp_path / "more.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("images.npy", more)
        with zipfile.ZipFile(tmp_path / "stored.npz", "w") as archive:
            archive.writestr("images.npy", more)
            archive.writestr("other.npy", whole)
        for name in ("more.npy", "more.npz", "stored.npz"):
            with pytest.raises(FormatError, match=r"the array .*ends early"):
                _read(tmp_path / name, labelled=False)
    (tmp_path / "a.npz").write_bytes(b"PK\3\4 no archive")
    with pytest.raises(FormatError, match="not an archive of arrays"):
        _read(tmp_path / "a.npz")


def test_bad_idx(tmp_path: Path) -> None:
    images, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    images.write_bytes(_idx(GREY_NYX))
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz: no such file"):
        _read(images)
    labels.write_bytes(_idx(LABELS[:5].astype(np.uint8)))
    with pytest.raises(DataError, match="5 labels for 7 images"):
        _read(images)
    labels.write_bytes(_idx(GREY_NYX))
    with pytest.raises(FormatError, match="labels-idx1-ubyte: not IDX of unsigned bytes with 1 axes"):
        _read(images)
    for data in (_idx(GREY_NYX)[:-1], _idx(GREY_NYX) + b"x"):
        images.write_bytes(data)
        with pytest.raises(FormatError, match="the header declares 105 bytes and"):
            _read(images, labelled=False)
        packed = tmp_path / "train-images-idx3-ubyte.gz"
        packed.write_bytes(gzip.compress(data))
        with pytest.raises(FormatError, match="the header declares 105 bytes and"):
            _read(packed, labelled=False)
    packed.write_bytes(gzip.compress(_idx(GREY_NYX))[:-9])
    with pytest.raises(FormatError, match="not gzip"):
        _read(packed, labelled=False)
    packed.write_bytes(gzip.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, 1 << 20, 1 << 10, 1 << 10)))
    with pytest.raises(DataError, match="1,099,511,627,776 bytes are too many to unpack"):
        _read(packed, labelled=False)
    other = tmp_path / "digits-idx3-ubyte"
    other.write_bytes(_idx(GREY_NYX))
    with pytest.raises(DataError, match="the name does not tell that of its labels"):
        _read(other)


def test_bad_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    good = encoded(smooth(6, 8))
    for table, message in (
        ({"image": [good, None], "label": [1, 2]}, "row 2: 'image' is null"),
        ({"image": [good, good], "label": [1, None]}, "row 2: 'label' is null"),
        ({"image": [good, b"x"], "label": [1, 2]}, "row 2: not a picture of a known format"),
        ({"image": [1, 2], "label": [1, 2]}, "column 'image' holds int64; store each picture's file as bytes"),
        ({"image": [good], "label": [1.5]}, "labels are float64"),
        ({"image": [good], "kind": [1]}, "no column is named 'label'"),
        ({"image": ["../x.png"], "label": [1]}, "row 1: ../x.png leads out of the folder"),
        (
            {"image": pyarrow.array([], pyarrow.binary()), "label": pyarrow.array([], pyarrow.int64())},
            "the file is empty",
        ),
    ):
        pyarrow.parquet.write_table(pyarrow.table(table), path)
        with pytest.raises(DataError, match=message):
            _read(path)
    path.write_bytes(b"PAR1 no such thing PAR1")
    with pytest.raises(FormatError, match="not Parquet that can be read"):
        _read(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ResourceError, match=r"pip install 'regard\[parquet\]'"):
        _read(path)


def test_names_and_numbers_that_cannot_apply(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.png", smooth(6, 8))
    write(tmp_path / "a" / "2.png", smooth(6, 9))
    with pytest.raises(UsageError, match="2 channels"):
        _read(tmp_path, channels=2)
    with pytest.raises(UsageError, match="a size of 0 × 4"):
        _read(tmp_path, size=(0, 4))
    with pytest.raises(UsageError, match="a folder has no columns"):
        _read(tmp_path, label="x")
    with pytest.raises(DataError, match=r"a/2.png: 6 × 9 pixels .* and the first picture has 6 × 8; give a size"):
        _read(tmp_path)
    assert _read(tmp_path, size=(6, 8)).batch([0, 1]).shape == (2, 3, 6, 8)
    (tmp_path / "a.xyz").touch()
    with pytest.raises(DataError, match=r"a.xyz: .xyz is no known format of images"):
        _read(tmp_path / "a.xyz")
    with pytest.raises(DataError, match="no such file"):
        _read(tmp_path / "none.npz")
    with pytest.raises(DataError, match="not a file name"):
        read_images("a\0b", size=None, channels=None)


# --- size and planes --------------------------------------------------------------------------------------------


def test_resizing_is_pillows(tmp_path: Path) -> None:
    """Pillow's own of the middle of the picture is the oracle; on noise the two round otherwise between."""
    for pixels, most, mean in ((smooth(61, 47), 1, 0.1), (noisy(61, 47), 6, 0.5)):
        write(tmp_path / "a" / "1.png", pixels)
        middle, whole = Image.fromarray(pixels[7:54]), Image.fromarray(pixels)
        for picture, size, fit in ((middle, (19, 19), "crop"), (middle, (83, 83), "crop"), (whole, (17, 31), "squash")):
            for resample in ("bicubic", "bilinear"):
                wanted = np.asarray(picture.resize(size[::-1], Image.Resampling[resample.upper()])).astype(int)
                given = _read(tmp_path, size=size, fit=fit, resample=resample)
                found = given.batch([0])[0].permute(1, 2, 0).numpy()
                assert np.abs(found - wanted).max() <= most
                assert np.abs(found - wanted).mean() < mean


def test_arrays_and_files_are_resized_alike(tmp_path: Path) -> None:
    arrays = _read(**_save(tmp_path, "npz", COLOUR_NYXC, LABELS), size=(9, 2))
    files = _read(**_save(tmp_path, "csv", COLOUR_NYXC, LABELS), size=(9, 2))
    assert torch.equal(arrays.batch(range(7)), files.batch(range(7)))


def test_planes(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.png", noisy(6, 8, 1))
    write(tmp_path / "a" / "2.png", noisy(6, 8))
    write(tmp_path / "a" / "3.png", noisy(6, 8, 1))
    found = _read(tmp_path)
    assert found.channels == 3
    grey = np.asarray(Image.fromarray(noisy(6, 8)).convert("L"))
    batch = found.batch([0, 1]).numpy()
    assert np.array_equal(batch[0], noisy(6, 8, 1)[..., 0][None].repeat(3, 0))
    assert np.array_equal(_read(tmp_path, channels=1).batch([1]).numpy()[0, 0], grey)
    (tmp_path / "a" / "2.png").unlink()
    assert _read(tmp_path).channels == 1


def test_a_long_thin_picture_takes_no_memory(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.png", noisy(2, 60_000, 1))
    assert _read(tmp_path, size=(224, 224)).batch([0]).shape == (1, 1, 224, 224)


# --- digests and parts ------------------------------------------------------------------------------------------


def test_digest(tmp_path: Path) -> None:
    path = _npz(tmp_path / "a.npz", images=GREY_NYX, labels=LABELS)
    found = _read(path)
    other = _npz(tmp_path / "b.npz", images=GREY_NYX, labels=LABELS)
    assert _read(other).digest() == found.digest()
    changed = GREY_NYX.copy()
    changed[6, 4, 2] ^= 1
    seen = {found.digest(), found.subset([0, 1]).digest(), found.subset([1, 0]).digest()}
    seen |= {_read(path, size=(6, 6)).digest(), _read(path, channels=3).digest(), _read(path, labelled=False).digest()}
    seen |= {_read(path, size=(6, 6), fit="squash").digest()}
    seen |= {_read(path, size=(6, 6), resample="bilinear").digest()}
    seen |= {_read(_npz(tmp_path / "b.npz", images=changed, labels=LABELS)).digest()}
    seen |= {_read(_npz(tmp_path / "b.npz", images=GREY_NYX, labels=LABELS[::-1].copy())).digest()}
    assert len(seen) == 10


def test_copies_are_in_one_part(tmp_path: Path) -> None:
    for number in range(120):
        picture = noisy(5, 5, seed=number % 60)
        write(tmp_path / str(number % 3) / f"{number}.{'png' if number < 60 else 'bmp'}", picture)
    found = _read(tmp_path)
    numbers = split_keys(found.keys(), seed=0, what="images")
    parts = [found.subset(part) for part in numbers]
    assert [len(part) for part in parts] == [108, 6, 6]
    keys = [set(part.keys()) for part in parts]
    assert sum(map(len, keys)) == len(set().union(*keys)) == 60
    assert split_keys(found.keys(), seed=0, what="images") == numbers
    assert split_keys(found.keys(), seed=1, what="images")[2] != numbers[2]
    with pytest.raises(DataError, match=r"groups of like images are too few to split \(20 are needed\)"):
        split_keys(found.keys()[:10], seed=0, what="images")


def test_keys_tell_shapes_apart(tmp_path: Path) -> None:
    same = np.full((4, 6, 1), 7, np.uint8)
    write(tmp_path / "1.png", same)
    write(tmp_path / "2.png", same.reshape(6, 4, 1))
    assert len(set(_read(tmp_path, size=(4, 4), labelled=False).keys())) == 2
