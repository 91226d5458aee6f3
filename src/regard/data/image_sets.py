"""From packages' files to pictures with labels, each with the key of its group."""

import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.readers.idx import read_idx
from regard.data.readers.picture import decode
from regard.data.split import linked_keys
from regard.errors import FormatError, ResourceError


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """Pictures of one size with labels.

    Args:
        images: Unsigned bytes, shape (N, Y, X) or (N, Y, X, 3).
        labels: Numbers of classes, shape (N).
        classes: Names of the classes.
        keys: For each picture the key of the group that must stay together.
        notes: What was kept and left out, with counts, a sentence an item.
        num_test: How many pictures at the end are a published test part; 0: there is none.
        beside: More texts of each picture, by name.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    keys: list[str]
    notes: list[str]
    num_test: int = 0
    beside: dict[str, list[str]] = field(default_factory=dict)

    def npz(self, numbers: list[int]) -> bytes:
        """Write some of the pictures.

        Args:
            numbers: Which.

        Returns:
            A ``.npz`` file with ``images``, ``labels``, ``classes`` and what stands beside; equal for equal pictures.
        """
        file = io.BytesIO()
        arrays = {"images": self.images[numbers], "labels": self.labels[numbers], "classes": np.array(self.classes)}
        for name, texts in self.beside.items():
            arrays[name] = np.array([texts[number] for number in numbers])
        np.savez(file, allow_pickle=False, **arrays)
        return file.getvalue()


def _pixel_keys(images: Iterable[np.ndarray]) -> list[str]:
    return [sha256(image.tobytes()).hexdigest() for image in images]


# --- digits -----------------------------------------------------------------------------------------------------

_DIGIT_SIDE = 28
_DIGITS_CAP_BYTES = 1 << 26


def read_digits(files: list[Path]) -> ImageSet:
    """Read handwritten digits: 784 pixels and the digit a line, commas between, gzip. The group is the pixels.

    Args:
        files: The one file.

    Returns:
        The digits.

    Raises:
        FormatError: The file is not of that form.
    """
    (path,) = files
    try:
        with gzip.open(path) as file:
            lines = file.read(_DIGITS_CAP_BYTES).decode("ascii").splitlines()
        cells = b"".join(bytes(map(int, line.split(","))) for line in lines)
        rows = np.frombuffer(cells, np.uint8).reshape(len(lines), -1)
        images = rows[:, :-1].reshape(-1, _DIGIT_SIDE, _DIGIT_SIDE)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise FormatError(f"not the table of digits ({error})", where=str(path)) from None
    keys = _pixel_keys(images)
    notes = [f"{len(images):,} digits of 28 × 28 pixels, {len(set(keys)):,} different ones; copies are in one part."]
    return ImageSet(images, rows[:, -1].astype(np.int64), tuple("0123456789"), keys, notes)


# --- clothes ----------------------------------------------------------------------------------------------------

_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def read_clothes(files: list[Path]) -> ImageSet:
    """Read Fashion-MNIST; the published test part stays the test part. The group is the pixels.

    Args:
        files: Images of the training part and of the test part; the labels lie beside them.

    Returns:
        Both parts, the test part last.

    Raises:
        DataError: A file is missing, or counts differ.
        FormatError: A file is not IDX.
    """
    parts = [read_idx(str(path), image=None, label=None, labelled=True) for path in files]
    images = np.concatenate([part.array_NYXC[..., 0] for part in parts])
    labels = np.array([int(label) for part in parts for label in part.labels])
    keys = _pixel_keys(images)
    num_test = len(parts[1])
    both = len(set(keys[:-num_test]) & set(keys[-num_test:]))
    notes = [
        f"{len(parts[0]):,} pictures of 28 × 28 pixels to learn from, {num_test:,} in the published test part; "
        f"{both:,} are in both.",
    ]
    return ImageSet(images, labels, _CLOTHES, keys, notes, num_test=num_test)


# --- emoji ------------------------------------------------------------------------------------------------------

EMOJI_SIDE = 64
_EMOJI_CLASSES = {  # by the number of the group in emojibase
    0: "Smileys & Emotion",
    1: "People & Body",
    3: "Animals & Nature",
    4: "Food & Drink",
    5: "Travel & Places",
    6: "Activities",
    7: "Objects",
    8: "Symbols",
    9: "Flags",
}
# What makes two signs pictures of one concept: the variation selector, the signs of man and woman, and the man or the
# woman in a person's place.
_VARIANT_SELECTOR = re.compile(r"-FE0F")
_MAN_OR_WOMAN_SIGN = re.compile(r"-200D-264[02]")
_MAN_OR_WOMAN = re.compile(r"\b1F46[89]\b")
_PERSON = "1F9D1"


def read_emoji(files: list[Path]) -> ImageSet:
    """Render emoji of several styles, 64 × 64 pixels over white; variants of skin tone are left out.

    Their group is the concept (one sign in all styles, and man, woman and person of one kind), and what has its pixels.

    Args:
        files: The names (emojibase's ``data.json``), then of each style ``chars.json`` and ``icons.json``.

    Returns:
        The pictures, beside them ``names``, ``styles`` and ``concepts``; the class is the group of Unicode.

    Raises:
        FormatError: A file is not of that form.
        ResourceError: resvg-py is missing.
    """
    try:
        import resvg_py
    except ImportError:
        mend = "install the extra: pip install 'regard[emoji]'"
        raise ResourceError("emoji are drawings, and to render them needs the package resvg-py", mend=mend) from None
    signs = {_VARIANT_SELECTOR.sub("", sign["hexcode"]): sign for sign in _json(files[0])}
    kept = {code: sign for code, sign in signs.items() if sign.get("group") in _EMOJI_CLASSES}
    classes = tuple(_EMOJI_CLASSES.values())
    images: list[np.ndarray] = []
    labels: list[int] = []
    beside: dict[str, list[str]] = {"names": [], "styles": [], "concepts": []}
    for chars, icons in zip(files[1::2], files[2::2], strict=True):
        drawn = _json(icons)
        style = str(drawn["prefix"])
        names = {_VARIANT_SELECTOR.sub("", code.upper()): name for code, name in _json(chars).items()}
        for code, sign in kept.items():
            if (icon := drawn["icons"].get(names.get(code))) is None:
                continue
            columns, rows = (icon.get(side, drawn[side]) for side in ("width", "height"))
            svg = (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{EMOJI_SIDE}" height="{EMOJI_SIDE}" '
                f'viewBox="0 0 {columns} {rows}">{icon["body"]}</svg>'
            )
            png = resvg_py.svg_to_bytes(svg_string=svg, background="white", skip_system_fonts=True)
            images.append(decode(png, f"{style}, {sign['label']}"))
            labels.append(classes.index(_EMOJI_CLASSES[sign["group"]]))
            beside["names"].append(sign["label"])
            beside["styles"].append(style)
            beside["concepts"].append(_concept(code))
    by_style = ", ".join(f"{count:,} of {style}" for style, count in Counter(beside["styles"]).items())
    concepts = beside["concepts"]
    keys = linked_keys(list(zip(concepts, _pixel_keys(images), strict=True)))
    notes = [
        f"{len(images):,} pictures: {by_style}; skin tones, regional indicators and signs without a group left out.",
        f"{len(set(concepts)):,} concepts in {len(set(keys)):,} groups: all styles of one, its man, woman and person, "
        "and concepts that share a picture (some flags) are in one part.",
        f"Rendered by resvg-py {resvg_py.__version__}.",
    ]
    return ImageSet(np.stack(images), np.array(labels), classes, keys, notes, beside=beside)


def _concept(code: str) -> str:
    """Give signs that differ in man, woman or person alone one key."""
    return _MAN_OR_WOMAN.sub(_PERSON, _MAN_OR_WOMAN_SIGN.sub("", code))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON ({error})", where=str(path)) from None
