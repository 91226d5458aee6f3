"""How images become the numbers that a model reads: size, and the mean and deviation of each channel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.images import Fit, Images, Resample
from regard.errors import DataError, FormatError
from regard.files import json_bytes, read_config, write_aside

FILE = "preprocessor_config.json"
FIT_IMAGES = 10_000  # more would move no digit that matters
# By Pillow's numbers, which Hugging Face's files have, and by name, as timm's.
_RESAMPLES: dict[int | str, Resample] = {2: "bilinear", 3: "bicubic", "bilinear": "bilinear", "bicubic": "bicubic"}
# What an image goes through, or does not.
_STEPS = {"do_resize": True, "do_rescale": True, "do_pad": False, "do_grayscale": False}


@dataclass(frozen=True)
class Pixels:
    """pixels = (image / 255 − mean) / std.

    Attributes:
        size: Height and width that images are brought to.
        mean: Of each channel, from 0 to 1.
        std: Of each channel, above 0.
        fit: How an image of another shape is brought to the size; see :class:`regard.data.images.Images`.
        resample: How it is resized; see there.
        share: How much of it is kept; see there.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit = "crop"
    resample: Resample = "bicubic"
    share: float = 1.0

    @property
    def framing(self) -> dict[str, Any]:
        """How images are brought to what the model reads, as those who read them are told."""
        return {
            "size": self.size,
            "channels": len(self.mean),
            "fit": self.fit,
            "resample": self.resample,
            "share": self.share,
        }

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
            images.resample,
            images.share,
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
            "size": {"shortest_edge": round(min(self.size) / self.share)} if crop else size,
            "resample": next(number for number, name in _RESAMPLES.items() if name == self.resample),
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
            FormatError: The file says something else than size, mean and deviation, or images go through other steps.
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
            values["resample"] = timm.get("interpolation", "bicubic")
            return _public({**values, **_timm_crop(timm, given, str(path))}, str(path))
        mend = "write its size, image_mean and image_std there"
        raise DataError(f"no {FILE}: how images are normalized is not known", where=str(folder), mend=mend)


def _public(values: dict[str, Any], where: str) -> Pixels:
    for name, wanted in _STEPS.items():
        if (values.get(name, wanted) or False) is not wanted:
            raise FormatError(f"{name} is {str(values[name])[:40]}; only {wanted} is known here", where=where)
    resample = values.get("resample", "bilinear")  # which ViT's own processor takes where nothing is said
    if not isinstance(resample, int | str) or resample not in _RESAMPLES:
        mend = "known: 2 or bilinear, 3 or bicubic"
        raise FormatError(f"resample is {str(resample)[:40]!r}", where=where, mend=mend)
    size, crops, share = _size(values, where)
    plain = values.get("do_normalize", True) is False
    mean = [0.0] * 3 if plain else _numbers(values, "image_mean", where)
    std = [1.0] * 3 if plain else _numbers(values, "image_std", where)
    if len(mean) != len(std) or min(std) <= 0:
        raise FormatError("image_mean and image_std do not go together", where=where)
    factor = values.get("rescale_factor", 1 / 255)
    if not isinstance(factor, int | float) or not abs(factor * 255 - 1) <= 1e-6:
        raise FormatError("pixels are not scaled from 0 to 1", where=where)
    how: Fit = "crop" if crops else "squash"
    return Pixels(size, tuple(map(float, mean)), tuple(map(float, std)), how, _RESAMPLES[resample], share)


def _size(values: dict[str, Any], where: str) -> tuple[tuple[int, int], bool, float]:
    """Find the size of images, whether they are cut to its shape, and how much of such a cut is kept."""
    size = values.get("size")
    centred = values.get("do_center_crop") is True
    by_edge = (isinstance(size, dict) and size.get("shortest_edge") is not None) or (centred and type(size) is int)
    resized = _sides(size, where)
    cut = _sides(values["crop_size"], where) if centred and values.get("crop_size") is not None else resized
    # A shorter side of some length and a cut of a size are what a share of the largest cut of that shape is, resized.
    if not (min(cut) <= min(resized) if by_edge else cut == resized):
        what = f"images are cut from others: size is {size}, crop_size {values.get('crop_size')}"
        raise FormatError(what, where=where, mend="give a shortest_edge that is not smaller than crop_size")
    return cut, by_edge, min(cut) / min(resized)


def _timm_crop(timm: dict[str, Any], size: dict[str, int] | None, where: str) -> dict[str, Any]:
    """Say as Hugging Face's files do how timm cuts images: a shorter side of size / crop_pct, and its middle."""
    mode, share = timm.get("crop_mode", "center"), timm.get("crop_pct", 1.0)
    if mode == "squash" and share == 1.0:
        return {}
    is_share = isinstance(share, int | float) and 0 < share <= 1
    if mode != "center" or not is_share:
        what = f"crop_mode is {str(mode)[:40]!r}, crop_pct {str(share)[:40]}"
        raise FormatError(what, where=where, mend='known: "center" and a share up to 1, "squash" and 1')
    edge = None if size is None else int(min(size.values()) / share)
    return {"size": {"shortest_edge": edge}, "do_center_crop": True, "crop_size": size}


def _sides(size: Any, where: str) -> tuple[int, int]:
    """Take a height and a width, which may be one number, under the name of the shorter side too."""
    edge = size.get("shortest_edge") if isinstance(size, dict) else size
    sides: Any = (size.get("height"), size.get("width")) if isinstance(size, dict) and edge is None else (edge, edge)
    if not all(type(side) is int and 1 <= side <= 16_384 for side in sides):
        raise FormatError("size is no height and width", where=where, mend='write {"height": 224, "width": 224}')
    return sides


def _numbers(values: dict[str, Any], name: str, where: str) -> list[float]:
    of = values.get(name)
    if not isinstance(of, list) or not of or not all(isinstance(one, int | float) for one in of):
        raise FormatError(f"{name} is no list of numbers", where=where)
    return [float(one) for one in of]
