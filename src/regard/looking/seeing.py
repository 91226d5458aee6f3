"""Attention maps of image encoders: run one on an image, record every layer, find the place of each row."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from regard.attention import Rows, Site, record
from regard.errors import UsageError
from regard.looking.attention_map import AttentionMap
from regard.looking.doing import likeliest
from regard.looking.maps import Maps
from regard.looking.places import BESIDE, Picture, Places
from regard.looking.png import png
from regard.looking.spill import Sheet
from regard.looking.text import visible
from regard.models.interface import Features, ImageEncoder
from regard.tasks.labeller import Label
from regard.tasks.task import evaluating

CLASS_TOKENS = ("class", "distillation")


class Drawn(Protocol):
    """Images that were read."""

    def batch(self, indices: Sequence[int]) -> Tensor:
        """Give some as uint8 images_BCYX."""
        ...


class Seeing(Protocol):
    """What looking asks of a product that takes images.

    Attributes:
        model: Its encoder.
        device: Where it runs.
        verbs: What it can do; one that can classify has ``classify(images)``, which gives labels.
    """

    model: Any
    device: torch.device
    verbs: tuple[str, ...]

    def pixels(self, images_BCYX: Tensor) -> Tensor:
        """Turn uint8 images_BCYX into the encoder's pixels_BCYX."""
        ...

    def images(self, paths: Sequence[str | Path]) -> Drawn:
        """Read image files, brought to the model's size."""
        ...


def look(product: Any, path: str | Path, layers: str | Sequence[str] | None = None) -> Maps:
    """Show what a loaded model looks at in an image file.

    The picture shown is the one that the model sees: brought to its size, and cut where it cuts.

    Args:
        product: A loaded model; see :class:`Seeing`.
        path: The file.
        layers: Names or patterns of layers; None for all.

    Returns:
        The maps.

    Raises:
        UsageError: The path is a URL.
        DataError: The file is missing or no image.
    """
    if "://" in str(path):
        raise UsageError("an image is a file, not a URL", where=str(path), mend="download it first")
    found = product.images([path])
    label = product.classify(found)[0] if "classify" in product.verbs else Label("", {})
    maps = look_at(product, found.batch([0])[0], Path(path).name, label.label, layers)
    return replace(maps, source=str(path), scores=likeliest(label.probabilities))


def look_at(
    product: Seeing, image_CYX: Tensor, title: str, output: str, layers: str | Sequence[str] | None = None
) -> Maps:
    """Show what a loaded model looks at in an image of its size.

    Args:
        product: A loaded model.
        image_CYX: uint8.
        title: A line that names it.
        output: What the model makes of it; empty for nothing.
        layers: Names or patterns of layers; None for all.

    Returns:
        The maps.
    """
    pixels_BCYX = product.pixels(image_CYX[None].to(product.device))
    return look_at_image(product.model, pixels_BCYX, image_CYX.permute(1, 2, 0).cpu().numpy(), title, output, layers)


def look_at_image(
    encoder: ImageEncoder,
    pixels_BCYX: Tensor,
    image_uint8_YXC: npt.NDArray[np.uint8],
    title: str,
    output: str,
    layers: str | Sequence[str] | None = None,
) -> Maps:
    """Show what an image encoder looks at.

    Args:
        encoder: The encoder.
        pixels_BCYX: One image as the encoder takes it.
        image_uint8_YXC: The same image as people see it, grey or colour; its size may be another.
        title: A line that names it.
        output: What the model makes of it; empty for nothing.
        layers: Names or patterns of layers; None for all.

    Returns:
        The maps, every layer over the picture.

    Raises:
        UsageError: More than one image, an encoder without attention, or a layer whose rows stand nobody knows where.
    """
    if len(pixels_BCYX) != 1:
        raise UsageError(f"{len(pixels_BCYX)} images", where="look", mend="give one at a time")
    if not any(isinstance(module, Site) for module in encoder.modules()):
        raise UsageError("this model has no attention to look at", where="look", mend="train one with attention")
    with torch.inference_mode(), evaluating(encoder), _given_images(encoder) as grids:
        seen = _Seen(encoder, (pixels_BCYX.shape[-2], pixels_BCYX.shape[-1]))
        with record(encoder, layers, sink=seen):
            features = encoder(pixels_BCYX)
        maps = seen.maps(features, grids)
    return Maps(title, title, output, maps, pictures=(Picture(title, png(image_uint8_YXC)),))


@contextmanager
def _given_images(encoder: nn.Module) -> Generator[Mapping[str, tuple[int, int]]]:
    """Note which modules are given an image, and the size of its grid."""
    grids: dict[str, tuple[int, int]] = {}

    def note(name: str) -> Any:
        def hook(_: nn.Module, given: tuple[Any, ...]) -> None:
            if given and isinstance(given[0], Tensor) and given[0].ndim == 4:
                grids[name] = (given[0].shape[-2], given[0].shape[-1])

        return hook

    hooks = [module.register_forward_pre_hook(note(name)) for name, module in encoder.named_modules() if name]
    try:
        yield grids
    finally:
        for hook in hooks:
            hook.remove()


class _Seen:
    """A sink of :class:`regard.attention.record`: each layer's rows, window behind window where it attends in windows.

    Args:
        encoder: The encoder, which says where windows stand.
        size: Height and width of the image in pixels.
    """

    def __init__(self, encoder: ImageEncoder, size: tuple[int, int]) -> None:
        self._encoder, self._size = encoder, size
        self._layers: dict[str, _Layer] = {}

    def __call__(self, name: str, rows: Rows) -> None:
        """Take a block."""
        if name not in self._layers:
            told = self._encoder.places(name, self._size)
            heads, _, keys = rows.weights_HTS.shape
            wide = rows.num_queries if told is None else max(map(len, told[1]))
            shape = (heads, wide, keys) if told is None else (heads, len(told[1]) * wide, wide)
            self._layers[name] = _Layer(Sheet(shape), rows.within, told, wide)
        self._layers[name].take(rows)

    def maps(self, features: Features, grids: Mapping[str, tuple[int, int]]) -> tuple[AttentionMap, ...]:
        """Say where the rows of every layer stand."""
        return tuple(one.map(name, features, grids) for name, one in self._layers.items())


@dataclass
class _Layer:
    """The rows of a layer; of windows, each as wide as the widest.

    Attributes:
        sheet: Their weights.
        within: Queries and keys are the same tokens.
        told: The grid and its windows; None where the encoder tells of none.
        wide: Queries of a window.
        sizes: Queries and keys of each window, or call, that has come.
    """

    sheet: Sheet
    within: bool
    told: tuple[tuple[int, int], Sequence[Sequence[int]]] | None
    wide: int
    sizes: list[tuple[int, int]] = field(default_factory=list)

    def take(self, rows: Rows) -> None:
        if rows.queries[0] == 0:
            self.sizes.append((rows.num_queries, rows.weights_HTS.shape[2]))
        number = len(self.sizes) - 1
        if self._is_foreseen(number):  # anything else is refused when all have come
            self.sheet.put(number * self.wide + rows.queries[0], rows.weights_HTS)

    def _is_foreseen(self, number: int) -> bool:
        if self.told is None:
            return number == 0
        return number < len(self.told[1]) and self.sizes[number] == (len(self.told[1][number]),) * 2

    def map(self, name: str, features: Features, grids: Mapping[str, tuple[int, int]]) -> AttentionMap:
        if self.told is not None:
            grid, windows = self.told
            if len(windows) != len(self.sizes) or not all(map(self._is_foreseen, range(len(self.sizes)))):
                raise UsageError(f"{len(self.sizes)} windows, places for {len(windows)}", where=visible(name))
            # A window at the edge may have fewer rows than others, and gets rows that stand nowhere and weigh 0.
            filled = tuple((*map(int, places), *[BESIDE] * (self.wide - len(places))) for places in windows)
            side = Places(0, grid, windows=filled)
            return AttentionMap(name, "self", side, side, self.sheet.array())
        if len(self.sizes) != 1:
            raise UsageError(f"attends {len(self.sizes)} times, and its places are not told", where=visible(name))
        num_queries, num_keys = self.sizes[0]
        keys = _side(name, num_keys, features, grids)
        if keys is None:
            raise UsageError(f"{num_keys} rows, and their places are not told", where=visible(name))
        if self.within:
            return AttentionMap(name, "self", keys, keys, self.sheet.array())
        queries = _side(name, num_queries, features, grids) or tuple(f"query {i + 1}" for i in range(num_queries))
        return AttentionMap(name, "cross", queries, keys, self.sheet.array())


def _side(name: str, num_rows: int, features: Features, grids: Mapping[str, tuple[int, int]]) -> Places | None:
    """Find the grid that rows are of: the features', or that of the innermost module around that was given an image."""
    before = features.num_extra
    if num_rows == before + features.grid[0] * features.grid[1]:
        names = CLASS_TOKENS[:before] if before <= len(CLASS_TOKENS) else tuple(f"token {i + 1}" for i in range(before))
        return Places(0, features.grid, names)
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        grid = grids.get(".".join(parts[:depth]))
        if grid is not None and grid[0] * grid[1] == num_rows:
            return Places(0, grid)
    return None
