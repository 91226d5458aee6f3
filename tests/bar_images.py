"""Small pictures that tests make: noisy bars, lying or standing or crossed."""

from pathlib import Path

import numpy as np

CLASSES = ("cross", "lying", "standing")


def bars(count: int, side: int = 12, channels: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (count, side, side[, channels]) and their classes' numbers; a bar stands anywhere."""
    draws = np.random.default_rng(seed)
    images = draws.integers(0, 60, (count, side, side, channels), dtype=np.uint8)
    labels = draws.integers(0, len(CLASSES), count)
    for image, label in zip(images, labels, strict=True):
        row, column = draws.integers(1, side - 2, 2)
        if label != 2:
            image[row : row + 2] = draws.integers(150, 255)
        if label != 1:
            image[:, column : column + 2] = draws.integers(150, 255)
    return (images[..., 0] if channels == 1 else images), labels


def write_bars(path: Path, count: int = 240, *, labelled: bool = True, channels: int = 1, side: int = 12) -> Path:
    """A .npz of them."""
    images, labels = bars(count, side, channels)
    told = {"labels": labels, "classes": np.array(CLASSES)} if labelled else {}
    np.savez(path, images=images, **told)
    return path
