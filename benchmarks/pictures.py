"""Pictures from files to tensors: decoding, and what training does to them before a model sees them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.suite import Race, Round, Setting

SIDE = 224
MEAN_SIZE = (500, 375)


def rows(setting: Setting) -> Iterator[Race]:
    """Decoding JPEGs to 224 × 224; and cropping, flipping and colouring them at random."""
    count, side = setting.size(64, 4), setting.size(SIDE, 32)
    columns, height = MEAN_SIZE if not setting.is_tiny else (60, 45)

    def draw(folder: Path) -> None:
        draws = np.random.default_rng(9)
        for number in range(count):
            small = draws.integers(0, 256, (height // 8, columns // 8, 3), dtype=np.uint8)
            Image.fromarray(small).resize((columns, height), Image.Resampling.BICUBIC).save(
                folder / f"{number:03}.jpg", quality=90
            )

    what = f"{count} JPEGs of {columns} × {height} to {side} × {side}"
    race = Race("pictures", "Decoding pictures", "images", count, "Pillow alone, one thread", (), what)

    def mine() -> Round:
        from regard.data.images import read_images

        images = read_images(setting.folder("pictures", draw), size=(side, side), channels=3, labelled=False)
        return lambda: images.batch(range(count))

    def pillow() -> Round:
        files = sorted(setting.folder("pictures", draw).glob("*.jpg"))

        def one(path: Path) -> torch.Tensor:
            with Image.open(io.BytesIO(path.read_bytes())) as image:
                cut = min(image.size)
                left, top = (image.width - cut) // 2, (image.height - cut) // 2
                shown = image.convert("RGB").resize(
                    (side, side), Image.Resampling.BICUBIC, (left, top, left + cut, top + cut)
                )
            return torch.from_numpy(np.array(shown)).permute(2, 0, 1)

        return lambda: torch.stack([one(path) for path in files])

    race.ours("regard", mine)
    race.peer("Pillow alone, one thread", pillow)
    yield race
    yield _augment(setting, count, side)


def _augment(setting: Setting, count: int, side: int) -> Race:
    what = f"crop, flip, colour jitter, grey, blur at {side} × {side}, as SimCLR"
    race = Race("pictures", "Changing pictures at random", "images", count, "Pillow alone, one thread", (), what)
    draws = np.random.default_rng(10)
    pictures = draws.integers(0, 256, (count, 3, side, side), dtype=np.uint8)

    def mine() -> Round:
        from regard.data.augment import Augment, AugmentConfig

        config = AugmentConfig(
            crop="resized",
            flip_prob=0.5,
            jitter_prob=0.8,
            **{"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2},
            grey_prob=0.2,
            blur_prob=0.5,
        )
        augment, images_BCYX = Augment(config, 1, (side, side)), torch.from_numpy(pictures)
        return lambda: augment(images_BCYX, 0, np.arange(count))

    def pillow() -> Round:
        from benchmarks.peers.pillow import simclr

        images = [Image.fromarray(one.transpose(1, 2, 0)) for one in pictures]
        return lambda: torch.stack([simclr(image, side, np.random.default_rng(n)) for n, image in enumerate(images)])

    race.ours("regard", mine)
    race.peer("Pillow alone, one thread", pillow)
    return race
