"""Pictures as PNG: arrays written, strangers' headers read, addresses that need no network."""

import base64
import struct
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from regard.errors import DataError, FormatError

MAX_SIDE = 8192  # pixels; a browser holds four bytes for each
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Write a picture.

    Args:
        pixels: uint8, Y × X for grey, or Y × X × C with 1 channel for grey, 2 for grey and alpha, 3 for red, green and
            blue, 4 with alpha too.

    Returns:
        PNG, every pixel as it was.

    Raises:
        DataError: Another type or shape, or a side of 0 or over MAX_SIDE.
    """
    pixels_YXC = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels_YXC.dtype != np.uint8 or pixels_YXC.ndim != 3 or pixels_YXC.shape[2] not in _MODES:
        what = f"{pixels.dtype} of the shape {pixels.shape}"
        raise DataError(what, where="picture", mend="it is uint8, (height, width, 1 to 4 channels)")
    height, width, channels = pixels_YXC.shape
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise DataError(f"{height} × {width} pixels", where="picture", mend=f"a side has 1 to {MAX_SIDE}")
    image = Image.frombytes(_MODES[channels], (width, height), np.ascontiguousarray(pixels_YXC).tobytes())
    file = BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def png_size(data: bytes) -> tuple[int, int]:
    """Read a picture's height and width off its header; nothing is decoded.

    Args:
        data: PNG.

    Returns:
        Height and width in pixels.

    Raises:
        FormatError: Not PNG, or a side of 0 or over MAX_SIDE.
    """
    if data[:8] != _SIGNATURE or data[12:16] != b"IHDR" or len(data) < 33:
        raise FormatError("not PNG", where="picture", mend="give a PNG file's bytes")
    width, height = struct.unpack(">II", data[16:24])
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise FormatError(f"{height} × {width} pixels", where="picture", mend=f"a side has 1 to {MAX_SIDE}")
    return height, width


def address(data: bytes) -> str:
    """Give PNG as an address that holds the picture itself."""
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"
