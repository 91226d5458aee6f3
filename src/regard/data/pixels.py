"""How images become the numbers that a model reads: size, and the mean and deviation of each channel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.images import Fit, Images
from regard.errors import DataError, FormatError
from regard.files import json_bytes, read_config, write_aside

FILE = "preprocessor_config.json"
FIT_IMAGES = 10_000  # more would move no digit that matters
_BICUBIC = 3  # Pillow's number, which public files have


@dataclass(frozen=True)
class Pixels:
    """pixels = (image / 255 − mean) / std.

    Attributes:
        size: Height and width that images are brought to.
        mean: Of each channel, from 0 to 1.
        std: Of each channel, above 0.
        fit: How an image of another shape is brought to the size; see :class:`regard.data.images.Images`.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit = "crop"

    @staticmethod
    def of(images: Images) -> Pixels:
        """Take mean and deviation from images.

        Args:
            images: The training part; of many the first ten thousand of a fixed shuffle are read.

        Returns:
            The preprocessing; a channel that never changes has deviation 1.
        """
        chosen = np.random.Generator(np.random.Philox(key=0)).permutation(len(images))[:FIT_IMAGES]
        count, total, squares = 0, np.zeros(images.channels), np.zeros(images.channels)
        for part in np.array_split(np.sort(chosen), -(-len(chosen) // 500)):
            values = images.batch(part).double() / 255
            count += values[:, 0].numel()
            total += values.sum((0, 2, 3)).numpy()
            squares += values.square().sum((0, 2, 3)).numpy()
        mean = total / count
        std = np.sqrt(np.maximum(squares / count - mean**2, 0))
        # Rounded, so that what is written is what was trained with.
        return Pixels(
            (images.size[0], images.size[1]),
            tuple(round(float(one), 6) for one in mean),
            tuple(round(float(one), 6) or 1.0 for one in std),
            images.fit,
        )

    def __call__(self, images_BCYX: Tensor) -> Tensor:
        """Normalize images.

        Args:
            images_BCYX: uint8, of as many channels.

        Returns:
            pixels_BCYX, float32.
        """
        # One multiplication and one addition a pixel.
        scale = torch.tensor([1 / (255 * one) for one in self.std], device=images_BCYX.device)[:, None, None]
        shift = torch.tensor(
            [-mean / std for mean, std in zip(self.mean, self.std, strict=True)], device=images_BCYX.device
        )[:, None, None]
        return images_BCYX.to(torch.float32) * scale + shift

    def shown(self, pixels_BCYX: Tensor) -> Tensor:
        """Turn a model's numbers back into images.

        Args:
            pixels_BCYX: Floats; what is darker than black or brighter than white becomes that.

        Returns:
            uint8, of the same shape.
        """
        std, mean = (torch.tensor(of, device=pixels_BCYX.device)[:, None, None] for of in (self.std, self.mean))
        return ((pixels_BCYX.float() * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def save(self, folder: Path) -> None:
        """Write preprocessor_config.json, as public image processors read it.

        Args:
            folder: An existing folder.
        """
        size = {"height": self.size[0], "width": self.size[1]}
        # Public processors that crop bring the shorter side to a length, so that their two agree for squares.
        crop = {"do_center_crop": True, "crop_size": size} if self.fit == "crop" else {}
        values = {
            **crop,
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"shortest_edge": min(self.size)} if crop else size,
            "resample": _BICUBIC,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        write_aside(folder / FILE, json_bytes(values))

    @staticmethod
    def read(folder: Path) -> Pixels:
        """Read what is beside a model: preprocessor_config.json, or the entry of timm's config.json.

        Args:
            folder: The model's folder.

        Returns:
            The preprocessing.

        Raises:
            DataError: There is neither.
            FormatError: The file says something else than size, mean and deviation.
        """
        path = folder / FILE
        if path.is_file():
            return _public(read_config(path), str(path))
        path = folder / "config.json"
        timm = read_config(path).get("pretrained_cfg") if path.is_file() else None
        if isinstance(timm, dict):
            size = timm.get("input_size")
            given = {"height": size[1], "width": size[2]} if isinstance(size, list) and len(size) == 3 else None
            values = {"size": given, "image_mean": timm.get("mean"), "image_std": timm.get("std")}
            return _public(values, str(path))
        mend = "write its size, image_mean and image_std there"
        raise DataError(f"no {FILE}: how images are normalized is not known", where=str(folder), mend=mend)


def _public(values: dict[str, Any], where: str) -> Pixels:
    size = values.get("size")
    crops = values.get("do_center_crop") is True or (isinstance(size, dict) and "shortest_edge" in size)
    if values.get("do_center_crop") is True and values.get("crop_size") is not None:
        size = values["crop_size"]
    edge = size.get("shortest_edge") if isinstance(size, dict) else size
    if isinstance(edge, int):
        size = {"height": edge, "width": edge}
    if not isinstance(size, dict) or not all(
        type(size.get(side)) is int and 1 <= size[side] <= 16_384 for side in ("height", "width")
    ):
        raise FormatError("size is no height and width", where=where, mend='write {"height": 224, "width": 224}')
    plain = values.get("do_normalize", True) is False
    mean = [0.0] * 3 if plain else _numbers(values, "image_mean", where)
    std = [1.0] * 3 if plain else _numbers(values, "image_std", where)
    if len(mean) != len(std) or min(std) <= 0:
        raise FormatError("image_mean and image_std do not go together", where=where)
    factor = values.get("rescale_factor", 1 / 255)
    if values.get("do_rescale", True) is not True or abs(float(factor) * 255 - 1) > 1e-6:
        raise FormatError("pixels are not scaled from 0 to 1", where=where)
    how: Fit = "crop" if crops else "squash"
    return Pixels((size["height"], size["width"]), tuple(map(float, mean)), tuple(map(float, std)), how)


def _numbers(values: dict[str, Any], name: str, where: str) -> list[float]:
    of = values.get(name)
    if not isinstance(of, list) or not of or not all(isinstance(one, int | float) for one in of):
        raise FormatError(f"{name} is no list of numbers", where=where)
    return [float(one) for one in of]
