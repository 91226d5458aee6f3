"""The images of a run: read, split, hashed."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np

from regard.data import catalogue
from regard.data.images import Fit, Images, read_images
from regard.data.split import split_keys
from regard.errors import ConfigError, DataError
from regard.tasks.corpus import CATALOGUE


@dataclass(frozen=True)
class ImageData:
    """Where the images come from.

    Attributes:
        train: A folder of images, one folder a class; a .csv, .tsv or .parquet of files and labels; IDX files; a .npz
            or .npy of arrays; or ``catalogue:NAME``.
        dev: Development images; None splits a part off ``train``.
        test: Test images; None splits another part off ``train``.
        source: Column of the image; None for the format's default.
        target: Column of the label, likewise.
        size: Height and width that images are brought to; empty where all have the same already.
        fit: How an image of another shape is brought to the size: ``crop`` takes its middle, ``squash`` bends it.
        channels: 1 for grey, 3 for colour; 0 as the images are.
        fraction: Share of the training part that is kept, of every class alike and at least one image of each.
    """

    train: str
    dev: str | None = None
    test: str | None = None
    source: str | None = None
    target: str | None = None
    size: tuple[int, ...] = ()
    fit: Fit = "crop"
    channels: int = 0
    fraction: float = 1.0

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range.
        """
        if len(self.size) not in (0, 2) or not all(1 <= one <= 4096 for one in self.size):
            raise ConfigError(f"size is {list(self.size)}", where="data", mend="give height and width: [224, 224]")
        if self.channels not in (0, 1, 3):
            raise ConfigError(f"channels is {self.channels}", where="data", mend="give 1, 3, or 0 for as they are")
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"fraction is {self.fraction}", where="data", mend="give a share above 0, 1 for all")


@dataclass(frozen=True)
class ImageCorpus:
    """The three parts of the data.

    Attributes:
        train: Training images.
        dev: Development images.
        test: Test images.
        notes: Where they come from and how they were split, for the report.
    """

    train: Images
    dev: Images
    test: Images
    notes: list[str]

    @property
    def counts(self) -> str:
        """Say how many there are, and of what size."""
        height, width = self.train.size
        kind = "grey" if self.train.channels == 1 else "colour"
        parts = f"{len(self.train):,} training, {len(self.dev):,} development, {len(self.test):,} test images"
        return f"{parts}; {height} × {width} pixels, {kind}"

    def digest(self) -> str:
        """Hash all images and labels, so that a run can tell whether its data changed."""
        digests = "".join(part.digest() for part in (self.train, self.dev, self.test))
        return hashlib.sha256(digests.encode()).hexdigest()


def read_corpus(config: ImageData, seed: int, *, labelled: bool) -> ImageCorpus:
    """Read the images, splitting off what is not given.

    Args:
        config: Where they are.
        seed: Of the split, and of which images a fraction keeps.
        labelled: Each image has to have a label; False takes images without where there are none.

    Returns:
        The three parts, all of one size and number of channels.

    Raises:
        ConfigError: Parts are given for data that have their own.
        DataError: A file is bad, or too few images to be split.
    """
    if not labelled:
        try:
            return read_corpus(config, seed, labelled=True)
        except DataError as error:  # what is wrong with the images themselves comes again
            found = _read_corpus(config, seed, labelled=False)
            return replace(found, notes=[*found.notes, f"Read without classes: {error.what}."])
    return _read_corpus(config, seed, labelled=True)


def _read_corpus(config: ImageData, seed: int, *, labelled: bool) -> ImageCorpus:
    size = (config.size[0], config.size[1]) if config.size else None
    channels = config.channels or None
    if config.train.startswith(CATALOGUE):
        if config.dev or config.test or config.source or config.target:
            mend = "leave dev, test, source and target out, or give files"
            raise ConfigError("data of the catalogue come with their own parts", where=config.train, mend=mend)
        name = config.train.removeprefix(CATALOGUE)
        folder, entry = catalogue.get(name), catalogue.ENTRIES[name]
        paths = [str(folder / f"{part}{entry.suffix}") for part in catalogue.PARTS]
        train, dev, test = (
            read_images(path, size=size, channels=channels, labelled=labelled, fit=config.fit) for path in paths
        )
        notes = [f"{entry.description}: {entry.notice}"]
    else:
        train, dev, test, notes = _read_files(config, size, channels, seed, labelled)
    for name, part in (("development", dev), ("test", test)):
        if (part.size, part.channels) != (train.size, train.channels):
            what = f"{name} images are {_shape(part)}, training images {_shape(train)}"
            raise DataError(what, where=config.train, mend="set data.size: [height, width] and data.channels")
    if config.fraction < 1:
        kept = _share(train.labels, len(train), config.fraction, seed)
        notes.append(f"Of {len(train):,} training images {len(kept):,} are kept ({config.fraction:g}), seed {seed}.")
        train = train.subset(kept)
    return ImageCorpus(train, dev, test, notes)


def _read_files(
    config: ImageData, size: tuple[int, int] | None, channels: int | None, seed: int, labelled: bool
) -> tuple[Images, Images, Images, list[str]]:
    def read(path: str) -> Images:
        return read_images(
            path,
            size=size,
            channels=channels,
            image=config.source,
            label=config.target,
            labelled=labelled,
            fit=config.fit,
        )

    train = read(config.train)
    dev, test = (read(path) if path else None for path in (config.dev, config.test))
    if dev is not None and test is not None:
        return train, dev, test, []
    parts = split_keys(train.keys(), seed=seed, what="images", classes=train.labels)
    missing = [name for name, part in (("development", dev), ("test", test)) if part is None]
    note = f"Split off {config.train} by image, copies together, seed {seed}: {' and '.join(missing)} part."
    # What a file was given for stays in the training part.
    kept = [*parts[0], *(parts[1] if dev is not None else []), *(parts[2] if test is not None else [])]
    return (
        train.subset(sorted(kept)),
        train.subset(parts[1]) if dev is None else dev,
        train.subset(parts[2]) if test is None else test,
        [note],
    )


def _share(labels: tuple[str, ...], count: int, fraction: float, seed: int) -> list[int]:
    """Choose a share of every class alike; of two shares with one seed, the smaller is in the larger."""
    groups: dict[str, list[int]] = {}
    for index in np.random.Generator(np.random.Philox(key=[seed, 1])).permutation(count).tolist():
        groups.setdefault(labels[index] if labels else "", []).append(index)
    return sorted(index for group in groups.values() for index in group[: math.ceil(fraction * len(group))])


def _shape(images: Images) -> str:
    return f"{images.size[0]} × {images.size[1]} of {images.channels} channels"
