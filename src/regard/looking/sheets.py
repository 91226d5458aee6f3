"""Many pictures on one sheet: views of an image, samples of a generator, input beside reconstruction.

What a row or column shows is written beside the sheet by the page, never in the picture.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from regard.errors import DataError
from regard.looking.png import png

Images = npt.NDArray[np.uint8]


def sheet(
    images: Images | Sequence[Sequence[Images]], *, columns: int | None = None, gap: int = 2, scale: int = 1
) -> bytes:
    """Put pictures of one size in rows and columns, between them nothing.

    Args:
        images: uint8 (N, Y, X, C), filled in row by row; or rows of (Y, X, C), each as long as it is. C is 1 or 3.
        columns: Pictures in a row of the first form; None makes the sheet about square.
        gap: Clear pixels between pictures; the sheet shows through.
        scale: Side, in pixels of the sheet, of a picture's pixel: small ones are seen as they are, not smoothed.

    Returns:
        PNG with an alpha channel.

    Raises:
        DataError: No picture, pictures of another type or of several shapes, columns or scale under 1, or gap under 0.
    """
    if (columns is not None and columns < 1) or scale < 1 or gap < 0:
        what = f"columns {columns}, scale {scale}, gap {gap}"
        raise DataError(what, where="sheet", mend="columns and scale are 1 at least, gap 0")
    rows: Sequence[Sequence[Images]]
    if isinstance(images, np.ndarray):
        wide = columns or max(1, round(len(images) ** 0.5))
        rows = [list(images[i : i + wide]) for i in range(0, len(images), wide)]
    elif columns is not None:
        raise DataError("columns of rows that are given", where="sheet", mend="leave columns out")
    else:
        rows = images
    every = [one for row in rows for one in row]
    if not every:
        raise DataError("no picture", where="sheet")
    height, width, channels = (*every[0].shape, 0, 0, 0)[:3]
    if channels not in (1, 3) or any(one.dtype != np.uint8 or one.shape != every[0].shape for one in every):
        shapes = ", ".join(sorted({f"{one.dtype} {one.shape}" for one in every}))
        raise DataError(f"pictures of {shapes}", where="sheet", mend="all are uint8 (height, width, 1 or 3)")
    down, across = height * scale + gap, width * scale + gap
    most = max(map(len, rows))
    ground = np.zeros((len(rows) * down - gap, most * across - gap, channels + 1), dtype=np.uint8)
    for i, row in enumerate(rows):
        for j, one in enumerate(row):
            large = one.repeat(scale, 0).repeat(scale, 1)
            place = ground[i * down : i * down + height * scale, j * across : j * across + width * scale]
            place[..., :channels], place[..., channels] = large, 255
    return png(ground)
