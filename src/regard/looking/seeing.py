"""Attention maps of image encoders: run one on an image, record every layer, find the place of each row."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from regard.attention import Rows, Site, record
from regard.errors import UsageError
from regard.looking.doing import likeliest
from regard.looking.maps import AttentionMap, Maps
from regard.looking.places import BESIDE, Picture, Places
from regard.looking.png import png
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
        with record(encoder, layers) as rows:
            features = encoder(pixels_BCYX)
        size = (pixels_BCYX.shape[-2], pixels_BCYX.shape[-1])
        maps = tuple(_map(name, rows[name], encoder.places(name, size), features, grids) for name in rows)
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


def _map(
    name: str,
    rows: Sequence[Rows],
    told: tuple[tuple[int, int], Sequence[Sequence[int]]] | None,
    features: Features,
    grids: Mapping[str, tuple[int, int]],
) -> AttentionMap:
    """Join the rows of a layer, and say where they stand."""
    if told is not None:
        grid, windows = told
        if len(windows) != len(rows) or any(
            len(places) != one.weights_HTS.shape[2] for places, one in zip(windows, rows, strict=True)
        ):
            raise UsageError(f"{len(rows)} windows, places for {len(windows)}", where=visible(name))
        return _windowed(name, rows, grid, windows)
    if len(rows) != 1:
        raise UsageError(f"attends {len(rows)} times, and its places are not told", where=visible(name))
    num_queries, num_keys = rows[0].weights_HTS.shape[1:]
    keys = _side(name, num_keys, features, grids)
    if keys is None:
        raise UsageError(f"{num_keys} rows, and their places are not told", where=visible(name))
    weights_HTS = rows[0].weights_HTS.float().cpu().numpy()
    if rows[0].within:
        return AttentionMap(name, "self", keys, keys, weights_HTS)
    queries = _side(name, num_queries, features, grids) or tuple(f"query {i + 1}" for i in range(num_queries))
    return AttentionMap(name, "cross", queries, keys, weights_HTS)


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


def _windowed(name: str, rows: Sequence[Rows], grid: tuple[int, int], windows: Sequence[Sequence[int]]) -> AttentionMap:
    """Join windows; one at the edge may have fewer rows than others, and gets rows that stand nowhere and weigh 0."""
    wide = max(map(len, windows))
    weights_HTS = np.zeros((len(rows[0].heads), len(rows) * wide, wide), dtype=np.float32)
    for g, one in enumerate(rows):
        num_queries, num_keys = one.weights_HTS.shape[1:]
        place = weights_HTS[:, g * wide : g * wide + num_queries, :num_keys]
        place[...] = one.weights_HTS.float().cpu().numpy()
    filled = tuple((*map(int, places), *[BESIDE] * (wide - len(places))) for places in windows)
    side = Places(0, grid, windows=filled)
    return AttentionMap(name, "self", side, side, weights_HTS)
