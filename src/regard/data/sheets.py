"""Many images on one sheet."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from torch import Tensor

GAP, GROUND = 2, 128  # pixels between images, and their grey
LEAST_SIDE = 56  # smaller images are enlarged to this, each pixel a square
MAX_SHEET = 1024  # images that a sheet should have


def sheet(images_NCYX: Tensor, columns: int, least_side: int = LEAST_SIDE) -> bytes:
    """Lay images out in rows.

    Args:
        images_NCYX: uint8, of 1 or 3 channels; at least one.
        columns: Images of a row.
        least_side: Pixels to which smaller images are enlarged, each pixel a square; 1 leaves them as they are.

    Returns:
        A PNG.
    """
    count, channels, height, width = images_NCYX.shape
    scale = max(1, -(-least_side // max(height, width)))
    rows = -(-count // columns)
    step_y, step_x = height * scale + GAP, width * scale + GAP
    ground = np.full((rows * step_y - GAP, min(columns, count) * step_x - GAP, channels), GROUND, np.uint8)
    for number, image in enumerate(images_NCYX.permute(0, 2, 3, 1).numpy()):
        top, left = (number // columns) * step_y, (number % columns) * step_x
        large = image.repeat(scale, 0).repeat(scale, 1)
        ground[top : top + height * scale, left : left + width * scale] = large
    out = io.BytesIO()
    Image.fromarray(ground[..., 0] if channels == 1 else ground).save(out, "PNG", optimize=True)
    return out.getvalue()
