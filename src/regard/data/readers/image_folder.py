"""Folders of pictures: a folder a class, or pictures alone."""

import os
from collections.abc import Iterator, Sequence

from regard.data.readers.picture import EXTENSIONS, header
from regard.data.readers.pictures import EncodedPictures, in_threads
from regard.data.readers.text import opened, shown
from regard.errors import DataError, ResourceError, UsageError

_BESIDE = frozenset((".txt", ".md", ".json", ".jsonl", ".csv", ".tsv", ".xml", ".yaml", ".yml", ".html", ".db", ".ini"))


def read_folder(path: str, *, image: str | None, label: str | None, labelled: bool) -> EncodedPictures:
    """Find pictures at any depth; hidden files and folders, and files of text, are passed over.

    Args:
        path: A folder.
        image: Must be None: there are no columns.
        label: Must be None.
        labelled: Whether each picture lies in a folder of the root that is named as its class.

    Returns:
        The pictures, sorted by path; classes are the folders, sorted.

    Raises:
        UsageError: A name is given.
        DataError: There is no picture, a class has none, a picture lies beside the classes, a file is neither picture
            nor text, a link leads out of the folder or to a folder, or a header is refused.
        FormatError: A file is no picture.
        ResourceError: A file or folder cannot be read.
    """
    if image is not None or label is not None:
        raise UsageError("a folder has no columns", where=shown(path), mend="leave the names out")
    root = os.path.realpath(path)
    names = list(_walk(root, ""))
    if not names:
        raise DataError("there is no picture in it", where=shown(path), mend="give a folder that has pictures")
    if not labelled:
        return read_files(root, names)
    alone = next((name for name in names if os.sep not in name), None)
    if alone is not None:
        mend = "put each picture into a folder that is named as its class"
        raise DataError("a picture without a class", where=shown(os.path.join(path, alone)), mend=mend)
    labels = [name.split(os.sep, 1)[0] for name in names]
    classes = sorted(entry.name for entry in _scan(root) if entry.is_dir())
    empty = next((name for name in classes if name not in set(labels)), None)
    if empty is not None:
        mend = "fill it or remove it"
        raise DataError("this class has no picture", where=shown(os.path.join(path, empty)), mend=mend)
    return read_files(root, names, labels, classes)


def read_files(
    root: str,
    names: Sequence[str],
    labels: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    wheres: Sequence[str] | None = None,
) -> EncodedPictures:
    """Read the headers of named files.

    Args:
        root: The folder that they must lie in, resolved.
        names: Their paths from there.
        labels: As for :class:`regard.data.readers.pictures.Pictures`.
        classes: As for :class:`regard.data.readers.pictures.Pictures`.
        wheres: Where each name stands, as an error about it should show it; None means the file itself.

    Returns:
        The pictures, to be decoded when asked for.

    Raises:
        DataError: A file is missing, lies outside, or its header is refused.
        FormatError: A file is no picture.
        ResourceError: A file cannot be read.
    """
    for index, name in enumerate(names):
        _check_inside(root, name, shown(name) if wheres is None else wheres[index])

    def measure(name: str) -> tuple[int, int, int]:
        with opened(os.path.join(root, name)) as file:
            return header(file, os.fstat(file.fileno()).st_size, shown(os.path.join(root, name)))

    def read(index: int) -> bytes:
        with opened(os.path.join(root, names[index])) as file:
            return file.read()

    shapes = list(in_threads(measure, names))
    return EncodedPictures(read, [shown(name) for name in names], shapes, labels, classes, shown(root))


def _walk(root: str, inside: str) -> Iterator[str]:
    """Find the pictures of a folder, sorted by path."""
    for entry in _scan(os.path.join(root, inside)):
        name = os.path.join(inside, entry.name)
        if entry.is_dir():
            if entry.is_symlink():
                raise DataError("a link to a folder is not followed", where=shown(os.path.join(root, name)))
            yield from _walk(root, name)
            continue
        extension = os.path.splitext(name)[1].lower()
        if extension in EXTENSIONS:
            yield name
        elif extension not in _BESIDE:
            mend = "convert it (to PNG, say), or move it away"
            raise DataError("not a picture of a known format", where=shown(os.path.join(root, name)), mend=mend)


def _scan(folder: str) -> list[os.DirEntry[str]]:
    """List what is not hidden in a folder, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)
    except OSError as error:
        raise ResourceError(f"cannot be read ({error.strerror or error})", where=shown(folder)) from None


def _check_inside(root: str, name: str, where: str) -> None:
    """Refuse a name that leads out of the folder, by itself or by a link, and what is no regular file."""
    full = os.path.join(root, name)
    real = os.path.realpath(full)
    if os.path.isabs(name) or os.pardir in name.split(os.sep) or os.path.commonpath((root, real)) != root:
        what = f"{shown(name)} leads out of the folder {shown(root)}"
        raise DataError(what, where=where, mend="copy the file into the folder")
    if os.path.lexists(full) and not os.path.isfile(real):
        raise DataError(f"{shown(name)} is no regular file", where=where, mend="remove it")
