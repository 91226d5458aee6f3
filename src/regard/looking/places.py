"""What attends or is attended to in a picture: tokens that stand nowhere, then places of a grid, or boxes.

    Places(picture=0, grid=(14, 14), before=("class",))                    a ViT
    Places(picture=0, grid=(4, 4), windows=((0, 1, 4, 5), (2, 3, 6, 7)))   two windows of a Swin
    Boxes(picture=0, boxes=((0.1, 0.2, 0.5, 0.9),), labels=("dog",))       regions that a detector found

Places are numbered row by row from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from regard.errors import DataError, FormatError
from regard.looking.png import png_size
from regard.looking.text import visible

MAX_PLACES = 1 << 16
BESIDE = -1  # a row that stands at no place: a window that reaches over the edge


@dataclass(frozen=True)
class Picture:
    """A picture that maps refer to.

    Args:
        name: What a reader knows it by: a file's name.
        png: The picture.

    Raises:
        FormatError: Not PNG.
    """

    name: str
    png: bytes

    def __post_init__(self) -> None:
        """Refuse what is no picture."""
        png_size(self.png)


@dataclass(frozen=True)
class Places:
    """One side of a map that stands on a picture.

    A layer that attends in windows has one row of weights for each row of each window, window after window, over the
    rows of that window alone.

    Args:
        picture: Which of the maps' pictures, from 0.
        grid: Height and width of the grid, which covers the picture.
        before: Names of the tokens before those of the grid: a class token. With several windows there are none.
        windows: For each window the place that each of its rows stands at, BESIDE where it stands at none; all windows
            have equally many rows, no place occurs twice, some need not occur. None is one window, the whole grid.

    Raises:
        DataError: A grid without places or with more than MAX_PLACES, or windows that break these rules.
    """

    picture: int
    grid: tuple[int, int]
    before: tuple[str, ...] = ()
    windows: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        """Check every number once."""
        object.__setattr__(self, "before", tuple(self.before))
        height, width = self.grid
        if self.picture < 0 or height < 1 or width < 1 or height * width > MAX_PLACES:
            what = f"picture {self.picture}, a grid of {height} × {width}"
            raise DataError(what, where="places", mend=f"numbers start at 0, a grid has 1 to {MAX_PLACES} places")
        if not all(isinstance(token, str) for token in self.before):
            raise DataError("a token is not a string", where="places")
        if self.windows is None:
            return
        windows = tuple(tuple(map(int, window)) for window in self.windows)
        if windows == (tuple(range(height * width)),):  # the whole grid is written one way, so that equal is equal
            object.__setattr__(self, "windows", None)
            return
        object.__setattr__(self, "windows", windows)
        if len({len(window) for window in windows}) != 1 or not windows[0]:
            raise DataError("windows with unequal numbers of rows, or none", where="places")
        if len(windows) > 1 and self.before:
            raise DataError("tokens before several windows", where="places", mend="leave them out")
        standing = [place for window in windows for place in window if place != BESIDE]
        if not standing or min(standing) < 0 or max(standing) >= height * width:
            raise DataError("a window's place is not in the grid", where="places", mend="places are numbered from 0")
        if len(set(standing)) < len(standing):
            raise DataError("a place is in two windows", where="places")

    @property
    def rows_GW(self) -> npt.NDArray[np.int64]:
        """The place of each row of each window."""
        if self.windows is None:
            return np.arange(self.grid[0] * self.grid[1])[None]
        return np.array(self.windows, dtype=np.int64)

    @property
    def num_windows(self) -> int:
        """Windows: 1 where all attend to all."""
        return 1 if self.windows is None else len(self.windows)

    def names(self) -> tuple[str, ...]:
        """Name every row, window after window: the tokens before, then rows and columns counted from 1."""
        return (*self.before, *(self.name(int(place)) for place in self.rows_GW.reshape(-1)))

    def name(self, place: int) -> str:
        """Name a place.

        >>> Places(0, (2, 3)).name(5)
        'row 2, column 3'
        """
        if place == BESIDE:
            return "beside the picture"
        return f"row {place // self.grid[1] + 1}, column {place % self.grid[1] + 1}"

    def to_json(self) -> dict[str, object]:
        """Write it as JSON data; `read_places` reads it."""
        return {"picture": self.picture, "grid": self.grid, "before": self.before, "windows": self.windows}


@dataclass(frozen=True)
class Boxes:
    """One side of a map whose rows are regions of a picture.

    Args:
        picture: Which of the maps' pictures, from 0.
        boxes: Left, top, right and bottom edge of each region, as shares of the picture's width and height.
        labels: What each region shows, in the same order.
        before: Names of the tokens before the regions: one for the picture as a whole.

    Raises:
        DataError: No region, more than MAX_PLACES, one that is empty or reaches out of the picture, or a label too few.

    Source: regions as tokens: Lu et al. (2019), "ViLBERT", section 3.
    """

    picture: int
    boxes: tuple[tuple[float, float, float, float], ...]
    labels: tuple[str, ...]
    before: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every number once."""
        for name in ("boxes", "labels", "before"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "boxes", tuple(tuple(map(float, box)) for box in self.boxes))
        if self.picture < 0 or not 1 <= len(self.boxes) <= MAX_PLACES:
            what = f"picture {self.picture}, {len(self.boxes)} regions"
            raise DataError(what, where="boxes", mend=f"numbers start at 0, there are 1 to {MAX_PLACES} regions")
        if len(self.labels) != len(self.boxes):
            raise DataError(f"{len(self.labels)} labels for {len(self.boxes)} regions", where="boxes")
        if not all(isinstance(token, str) for token in (*self.labels, *self.before)):
            raise DataError("a label is not a string", where="boxes")
        for box in self.boxes:
            if len(box) != 4 or not (0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1):
                raise DataError(f"a region {box}", where="boxes", mend="left < right and top < bottom, all in 0 to 1")

    def names(self) -> tuple[str, ...]:
        """Name every row: the tokens before, then the regions."""
        return (*self.before, *self.labels)

    def to_json(self) -> dict[str, object]:
        """Write it as JSON data; `read_places` reads it."""
        return {"picture": self.picture, "boxes": self.boxes, "labels": self.labels, "before": self.before}


def read_places(data: Mapping[str, object]) -> Places | Boxes:
    """Read what `Places.to_json` or `Boxes.to_json` wrote.

    Args:
        data: A JSON object.

    Returns:
        Equal places, or boxes.

    Raises:
        FormatError: Something of another type.
        DataError: Windows or boxes that break the rules.
    """
    picture, before = data.get("picture"), data.get("before")
    if not _is_whole(picture):
        raise FormatError("'picture' is no whole number", where="places")
    if not _are_texts(before):
        raise FormatError("'before' is no list of text", where="places")
    if "boxes" in data:
        return _read_boxes(picture, data["boxes"], data.get("labels"), before)
    grid, windows = data.get("grid"), data.get("windows")
    if not isinstance(grid, list) or len(grid) != 2 or not all(map(_is_whole, grid)):
        raise FormatError("'grid' is no pair of whole numbers", where="places")
    if windows is None:
        return Places(picture, (grid[0], grid[1]), tuple(before))
    if not isinstance(windows, list) or not all(isinstance(one, list) and all(map(_is_whole, one)) for one in windows):
        raise FormatError("'windows' is no list of lists of whole numbers", where="places")
    return Places(picture, (grid[0], grid[1]), tuple(before), tuple(map(tuple, windows)))


def _read_boxes(picture: int, boxes: object, labels: object, before: list[str]) -> Boxes:
    if not isinstance(boxes, list) or not all(isinstance(box, list) and all(map(_is_number, box)) for box in boxes):
        raise FormatError("'boxes' is no list of lists of numbers", where="boxes")
    if not _are_texts(labels):
        raise FormatError("'labels' is no list of text", where="boxes")
    return Boxes(picture, tuple(map(tuple, boxes)), tuple(labels), tuple(before))


def _are_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def check_pictures(pictures: tuple[Picture, ...], places: Places | Boxes, where: str) -> None:
    """Refuse places or boxes on a picture that is not there.

    Args:
        pictures: The pictures that there are.
        places: One side of a map.
        where: The map's name.

    Raises:
        DataError: There are too few.
    """
    if places.picture >= len(pictures):
        what = f"picture {places.picture} of {len(pictures)}"
        raise DataError(what, where=f"attention map {visible(where)!r}", mend="give the picture, and count from 0")
