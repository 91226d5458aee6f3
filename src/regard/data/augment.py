"""Pictures made other than they were, so that a model learns what stays the same.

What happens to a picture is a function of (seed, epoch, sample, view) alone: not of the batch that it is in, nor of
the process, nor of what was drawn before. Every operation draws at a place of its own, so that to turn one on or off
changes nothing of the others. In this order: crop, flip, RandAugment, colour jitter, grey, blur, erasing.

Papers: crop and jitter: Szegedy et al. 2015 §6, Chen et al. 2020 (SimCLR) appendix A; pad and crop: He et al. 2016
§4.2; RandAugment: Cubuk et al. 2020; random erasing: Zhong et al. 2020.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import image_ops as ops
from regard.data.draws import keys, noise, uniforms
from regard.errors import ConfigError, UsageError

MAX_MAGNITUDE = 30
_TRIES = 10  # of a box whose shape may not fit, before the largest that does is taken
_PORTION_PIXELS = 1 << 16  # that many are changed at a time, so that what lies between fits the processor's cache
_BLUR_SIGMAS = 4  # beyond which a Gaussian has no weight that a level would show
_BLUR_SHARE = 20  # the kernel reaches a twentieth of the side to each side (SimCLR: a tenth in all)
# The place of each operation among the draws; part of what a seed means.
_CROP, _FLIP, _RAND, _JITTER, _JITTER_ORDER, _GREY, _BLUR, _ERASE, _ERASE_NOISE = range(9)


@dataclass(frozen=True)
class AugmentConfig:
    """What is done to pictures; by default nothing.

    Attributes:
        crop: ``resized`` cuts a random box out and brings it to size; ``padded`` puts black around and cuts at random.
        crop_scale: Least and greatest share of the area that a resized box has.
        crop_ratio: Least and greatest ratio of its width to its height.
        crop_pad: Pixels of black on each side.
        flip_prob: How often left and right are swapped.
        rand_augment: How many operations of RandAugment's fourteen each picture gets.
        rand_magnitude: How strong they are, 0 to 30.
        jitter_prob: How often colours are changed by the four below, in random order.
        brightness: Factors of brightness are from 1 − this (at least 0) to 1 + this.
        contrast: The same for contrast.
        saturation: The same for saturation.
        hue: The hue turns by at most this part of the circle, 0 to 0.5.
        grey_prob: How often the colour is taken away.
        blur_prob: How often a picture is blurred.
        blur_sigma: Least and greatest width of the Gaussian, in pixels.
        erase_prob: How often a box is filled with noise.
        erase_scale: Least and greatest share of the area that it has.
        erase_ratio: Least and greatest ratio of its width to its height.
    """

    crop: Literal["none", "resized", "padded"] = "none"
    crop_scale: tuple[float, ...] = (0.08, 1.0)
    crop_ratio: tuple[float, ...] = (3 / 4, 4 / 3)
    crop_pad: int = 4
    flip_prob: float = 0.0
    rand_augment: int = 0
    rand_magnitude: float = 9.0
    jitter_prob: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    grey_prob: float = 0.0
    blur_prob: float = 0.0
    blur_sigma: tuple[float, ...] = (0.1, 2.0)
    erase_prob: float = 0.0
    erase_scale: tuple[float, ...] = (0.02, 0.33)
    erase_ratio: tuple[float, ...] = (0.3, 3.3)

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range, or a range is no pair of numbers in order.
        """
        for name in ("flip_prob", "jitter_prob", "grey_prob", "blur_prob", "erase_prob"):
            self._check(name, getattr(self, name), 0, 1)
        for name in ("brightness", "contrast", "saturation"):
            self._check(name, getattr(self, name), 0, math.inf)
        self._check("hue", self.hue, 0, 0.5)
        self._check("crop_pad", self.crop_pad, 0, math.inf)
        self._check("rand_augment", self.rand_augment, 0, math.inf)
        self._check("rand_magnitude", self.rand_magnitude, 0, MAX_MAGNITUDE)
        for name in ("crop_scale", "crop_ratio", "blur_sigma", "erase_scale", "erase_ratio"):
            value = getattr(self, name)
            most = 1 if name.endswith("_scale") else math.inf
            if len(value) != 2 or not 0 < value[0] <= value[1] <= most:
                mend = "give two numbers above 0, the smaller first" + (", at most 1" if most == 1 else "")
                raise ConfigError(f"augment.{name} is {list(value)}", mend=mend)

    def _check(self, name: str, value: float, least: float, most: float) -> None:
        if not least <= value <= most:
            mend = f"give a number from {least} to {most}" if most < math.inf else f"give at least {least}"
            raise ConfigError(f"augment.{name} is {value}", mend=mend)


class Augment:
    """Changes batches of pictures as a config says.

    Args:
        config: What is done.
        seed: Of the run.
        size: Rows and columns of what comes out. Without a resized crop, pictures of another size are brought to it.
    """

    def __init__(self, config: AugmentConfig, seed: int, size: tuple[int, int]) -> None:
        self.config, self.seed, self.size = config, seed, size

    def __call__(self, images_BCYX: Tensor, epoch: int, samples: np.ndarray, view: int = 0) -> Tensor:
        """Change pictures.

        Args:
            images_BCYX: Unsigned bytes, 1 or 3 planes; they are not changed themselves.
            epoch: Number of the pass over the data.
            samples: Number of each picture in the data, shape (B).
            view: Number of the view, where one picture is shown several times.

        Returns:
            Unsigned bytes, shape (B, C) and ``size``.

        Raises:
            UsageError: There are not as many numbers as pictures, or a picture is smaller than an operation needs.
        """
        if len(samples) != len(images_BCYX):
            raise UsageError(f"{len(samples)} numbers of samples for {len(images_BCYX)} pictures")
        if not len(images_BCYX):
            return images_BCYX.new_empty((0, images_BCYX.shape[1], *self.size))
        portion = max(1, _PORTION_PIXELS // (self.size[0] * self.size[1]))
        numbers = np.asarray(samples)
        return torch.cat(
            [
                self._portion(part, epoch, numbers[start : start + portion], view)
                for start, part in zip(range(0, len(numbers), portion), images_BCYX.split(portion), strict=True)
            ]
        )

    def _portion(self, images_BCYX: Tensor, epoch: int, samples: np.ndarray, view: int) -> Tensor:
        """Change some of a batch."""

        def draw(place: int, count: int) -> np.ndarray:
            return uniforms(keys(samples, self.seed, epoch, view, place), count)

        config = self.config
        images_BCYX = self._crop(images_BCYX, draw)
        if config.flip_prob:
            images_BCYX = _where(images_BCYX, draw(_FLIP, 1)[:, 0] < config.flip_prob, lambda some, _: some.flip(3))
        for round_ in range(config.rand_augment):
            images_BCYX = _rand_augment(images_BCYX, draw(_RAND, 2 * config.rand_augment)[:, 2 * round_ :], config)
        if config.jitter_prob:
            images_BCYX = _jitter(images_BCYX, draw(_JITTER, 5), draw(_JITTER_ORDER, 4), config)
        if config.grey_prob:
            images_BCYX = _where(images_BCYX, draw(_GREY, 1)[:, 0] < config.grey_prob, lambda some, _: ops.grey(some))
        if config.blur_prob:
            chance_B, place_B = draw(_BLUR, 2).T
            sigmas_B = torch.from_numpy(_between(place_B, config.blur_sigma))
            reach = min(max(1, min(self.size) // _BLUR_SHARE), math.ceil(_BLUR_SIGMAS * config.blur_sigma[1]))
            radius = min(reach, min(self.size) - 1)
            images_BCYX = _where(
                images_BCYX, chance_B < config.blur_prob, lambda some, at: ops.blur(some, sigmas_B[at], radius)
            )
        if config.erase_prob:
            noise_keys = keys(samples, self.seed, epoch, view, _ERASE_NOISE)
            images_BCYX = _erase(images_BCYX, draw(_ERASE, 3 + 2 * _TRIES), noise_keys, config)
        return images_BCYX

    def _crop(self, images_BCYX: Tensor, draw: Callable[[int, int], np.ndarray]) -> Tensor:
        """Cut, and bring to size; what comes back is never the tensor that came in."""
        config, (rows, columns) = self.config, self.size
        if config.crop == "resized":
            shape = (images_BCYX.shape[2], images_BCYX.shape[3])
            boxes = random_boxes(draw(_CROP, 2 + 2 * _TRIES), shape, config.crop_scale, config.crop_ratio)
            return torch.cat(
                [
                    _resized(image[:, :, top : top + height, left : left + width], self.size)
                    for image, (top, left, height, width) in zip(images_BCYX.split(1), boxes.tolist(), strict=True)
                ]
            )
        images_BCYX = _resized(images_BCYX, self.size)
        if config.crop == "none" or not config.crop_pad:
            return images_BCYX.clone()
        padded = F.pad(images_BCYX, (config.crop_pad,) * 4)
        places_B2 = (draw(_CROP, 2) * (2 * config.crop_pad + 1)).astype(np.int64)
        return torch.stack(
            [
                image[:, top : top + rows, left : left + columns]
                for image, (top, left) in zip(padded, places_B2.tolist(), strict=True)
            ]
        )


def random_boxes(
    draws: np.ndarray, size: tuple[int, int], scale: tuple[float, ...], ratio: tuple[float, ...]
) -> np.ndarray:
    """Draw boxes whose share of the area is uniform, and whose ratio of sides is uniform in its logarithm.

    Args:
        draws: Uniform numbers, shape (B, 2 + 2 · tries): the place, then area and ratio of each try.
        size: Rows and columns of the pictures.
        scale: Least and greatest share of the area.
        ratio: Least and greatest ratio of width to height.

    Returns:
        int64, shape (B, 4): top, left, height, width. The first try that fits counts; where none does, it is the
        largest box in the middle whose ratio is in range.

    Source:
        Szegedy et al. 2015, section 6.
    """
    rows, columns = size
    areas_BT = rows * columns * _between(draws[:, 2::2], scale)
    ratios_BT = np.exp(_between(draws[:, 3::2], tuple(map(math.log, ratio))))
    widths_BT = np.round(np.sqrt(areas_BT * ratios_BT)).astype(np.int64)
    heights_BT = np.round(np.sqrt(areas_BT / ratios_BT)).astype(np.int64)
    fits_BT = (widths_BT > 0) & (widths_BT <= columns) & (heights_BT > 0) & (heights_BT <= rows)
    first_B = fits_BT.argmax(1)
    every = np.arange(len(draws))
    whole_ratio = min(max(columns / rows, ratio[0]), ratio[1])
    widest = (min(rows, max(1, round(columns / whole_ratio))), min(columns, max(1, round(rows * whole_ratio))))
    is_found_B = fits_BT.any(1)
    heights_B = np.where(is_found_B, heights_BT[every, first_B], widest[0])
    widths_B = np.where(is_found_B, widths_BT[every, first_B], widest[1])
    tops_B = np.where(is_found_B, (draws[:, 0] * (rows - heights_B + 1)).astype(np.int64), (rows - heights_B) // 2)
    lefts_B = np.where(is_found_B, (draws[:, 1] * (columns - widths_B + 1)).astype(np.int64), (columns - widths_B) // 2)
    return np.stack([tops_B, lefts_B, heights_B, widths_B], 1)


# --- RandAugment ------------------------------------------------------------------------------------------------

_SHEAR, _TRANSLATE, _ROTATE_DEGREES, _ENHANCE, _POSTERIZE_BITS = 0.3, 150 / 331, 30.0, 0.9, 4
_MOVES = ("shear-x", "shear-y", "translate-x", "translate-y", "rotate")
_ENHANCEMENTS = {
    "brightness": ops.brightness,
    "contrast": ops.contrast,
    "color": ops.saturation,
    "sharpness": ops.sharpness,
}
OPERATIONS = (*_MOVES, *_ENHANCEMENTS, "posterize", "solarize", "autocontrast", "equalize", "identity")


def _rand_augment(images_BCYX: Tensor, draws_B2: np.ndarray, config: AugmentConfig) -> Tensor:
    """Give each picture one operation of the fourteen, in a random direction where there are two."""
    chosen_B = (draws_B2[:, 0] * len(OPERATIONS)).astype(np.int64)
    share = config.rand_magnitude / MAX_MAGNITUDE
    amounts_B = np.where(draws_B2[:, 1] < 0.5, share, -share)
    images_BCYX = _where(
        images_BCYX,
        chosen_B < len(_MOVES),
        lambda some, at: ops.affine(some, moves(chosen_B[at], amounts_B[at], (some.shape[2], some.shape[3]))),
    )
    for number, name in enumerate(OPERATIONS):
        if number >= len(_MOVES) and name != "identity":
            images_BCYX = _where(
                images_BCYX, chosen_B == number, lambda some, at, name=name: operate(some, name, amounts_B[at])
            )
    return images_BCYX


def operate(images_BCYX: Tensor, name: str, amounts_B: np.ndarray) -> Tensor:
    """Do one of RandAugment's operations that leave pixels in their place.

    Args:
        images_BCYX: Pictures.
        name: One of :data:`OPERATIONS`.
        amounts_B: How strong, −1 to 1; the sign counts where there are two directions.

    Returns:
        Pictures.

    Source:
        Cubuk et al. 2020, section 3 and table 6; ranges as in AutoAugment (Cubuk et al. 2019, table 6).
    """
    signed_B = torch.from_numpy(amounts_B)
    if enhance := _ENHANCEMENTS.get(name):
        return enhance(images_BCYX, 1 + _ENHANCE * signed_B)
    if name == "posterize":
        return ops.posterize(images_BCYX, 8 - (signed_B.abs() * _POSTERIZE_BITS).round())
    if name == "solarize":
        return ops.solarize(images_BCYX, ops.LEVELS * (1 - signed_B.abs()))
    return {"autocontrast": ops.autocontrast, "equalize": ops.equalize}[name](images_BCYX)


def moves(chosen_B: np.ndarray, amounts_B: np.ndarray, size: tuple[int, int]) -> Tensor:
    """Make the matrices of shears and translations from the upper left corner, and of rotations about the middle.

    Args:
        chosen_B: Numbers of operations, the first five of :data:`OPERATIONS`.
        amounts_B: How strong, −1 to 1.
        size: Rows and columns.

    Returns:
        float64, shape (B, 2, 3), as :func:`regard.data.image_ops.affine` takes them.
    """
    rows, columns = size
    is_move = {name: chosen_B == number for number, name in enumerate(_MOVES)}
    angles_B = np.where(is_move["rotate"], np.radians(_ROTATE_DEGREES * amounts_B), 0.0)
    cosines_B, sines_B = np.cos(angles_B), np.sin(angles_B)
    matrices_B23 = np.zeros((len(chosen_B), 2, 3))
    matrices_B23[:, 0, 0] = matrices_B23[:, 1, 1] = cosines_B
    matrices_B23[:, 0, 1] = sines_B + np.where(is_move["shear-x"], _SHEAR * amounts_B, 0.0)
    matrices_B23[:, 1, 0] = -sines_B + np.where(is_move["shear-y"], _SHEAR * amounts_B, 0.0)
    x, y = columns / 2, rows / 2
    matrices_B23[:, 0, 2] = x - cosines_B * x - sines_B * y
    matrices_B23[:, 1, 2] = y + sines_B * x - cosines_B * y
    matrices_B23[:, 0, 2] += np.where(is_move["translate-x"], _TRANSLATE * columns * amounts_B, 0.0)
    matrices_B23[:, 1, 2] += np.where(is_move["translate-y"], _TRANSLATE * rows * amounts_B, 0.0)
    return torch.from_numpy(matrices_B23)


# --- colours and boxes ------------------------------------------------------------------------------------------


def _jitter(images_BCYX: Tensor, draws_B5: np.ndarray, order_B4: np.ndarray, config: AugmentConfig) -> Tensor:
    """Change brightness, contrast, saturation and hue, in an order of each picture's own."""
    is_on_B = draws_B5[:, 4] < config.jitter_prob
    strengths = (config.brightness, config.contrast, config.saturation, config.hue)
    amounts = [
        *(_between(draws_B5[:, place], (max(0.0, 1 - strengths[place]), 1 + strengths[place])) for place in range(3)),
        _between(draws_B5[:, 3], (-config.hue, config.hue)),
    ]
    changes = (ops.brightness, ops.contrast, ops.saturation, ops.hue)
    turn_B4 = order_B4.argsort(1)
    for turn in range(4):
        for place, (change, strength) in enumerate(zip(changes, strengths, strict=True)):
            if strength:
                amount_B = torch.from_numpy(amounts[place])
                images_BCYX = _where(
                    images_BCYX,
                    is_on_B & (turn_B4[:, turn] == place),
                    lambda some, at, change=change, amount_B=amount_B: change(some, amount_B[at]),
                )
    return images_BCYX


def _erase(images_BCYX: Tensor, draws: np.ndarray, noise_keys: np.ndarray, config: AugmentConfig) -> Tensor:
    """Fill a box with noise; a picture in which no try fits is left alone."""
    num_planes, rows, columns = images_BCYX.shape[1:]
    boxes = random_boxes(draws[:, 1:], (rows, columns), config.erase_scale, config.erase_ratio)
    for index in np.flatnonzero(draws[:, 0] < config.erase_prob).tolist():
        top, left, height, width = boxes[index].tolist()
        filling = torch.from_numpy(noise(noise_keys[index], num_planes * height * width))
        images_BCYX[index, :, top : top + height, left : left + width] = filling.view(num_planes, height, width)
    return images_BCYX


def _where(images_BCYX: Tensor, chosen_B: np.ndarray, change: Callable[[Tensor, np.ndarray], Tensor]) -> Tensor:
    """Change the chosen pictures; the function gets them and their places in the batch."""
    at = np.flatnonzero(chosen_B)
    if len(at) == len(chosen_B):
        return change(images_BCYX, at)
    if len(at):
        images_BCYX[at] = change(images_BCYX[at], at)
    return images_BCYX


def _resized(images_BCYX: Tensor, size: tuple[int, int]) -> Tensor:
    if images_BCYX.shape[2:] == size:
        return images_BCYX
    return F.interpolate(images_BCYX, size=size, mode="bicubic", antialias=True)


def _between(draws: np.ndarray, ends: tuple[float, ...]) -> np.ndarray:
    return ends[0] + draws * (ends[1] - ends[0])
