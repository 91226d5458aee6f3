"""SimCLR's changes with Pillow, picture by picture: what a plain data loader does in each of its processes."""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import Tensor


def simclr(image: Image.Image, side: int, draws: np.random.Generator) -> Tensor:
    """Crop, flip, change colours, take them away, blur.

    Args:
        image: Of three planes.
        side: Of what comes out.
        draws: Random numbers.

    Returns:
        Unsigned bytes, shape (3, side, side).
    """
    width, height = image.size
    area, aspect = width * height * draws.uniform(0.08, 1), math.exp(draws.uniform(math.log(3 / 4), math.log(4 / 3)))
    wide, high = (min(round(math.sqrt(area * share)), most) for share, most in ((aspect, width), (1 / aspect, height)))
    left, top = draws.integers(0, width - wide + 1), draws.integers(0, height - high + 1)
    box = (int(left), int(top), int(left) + wide, int(top) + high)
    image = image.resize((side, side), Image.Resampling.BICUBIC, box)
    if draws.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if draws.random() < 0.8:
        enhancers = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, None]
        for place in draws.permutation(4):
            enhancer = enhancers[place]
            image = _turned(image, draws) if enhancer is None else enhancer(image).enhance(draws.uniform(0.2, 1.8))
    if draws.random() < 0.2:
        image = image.convert("L").convert("RGB")
    if draws.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(draws.uniform(0.1, 2.0)))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _turned(image: Image.Image, draws: np.random.Generator) -> Image.Image:
    """Turn the hue."""
    planes = np.array(image.convert("HSV"))
    planes[..., 0] += np.uint8(int(draws.uniform(-0.2, 0.2) * 255) % 256)
    return Image.fromarray(planes, "HSV").convert("RGB")
