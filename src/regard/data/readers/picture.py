"""One picture, from bytes to pixels; nothing is decoded before its header has been judged."""

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

import numpy as np
from PIL import Image, ImageOps
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from regard.errors import DataError, FormatError, RegardError

MIN_SIDE = 2
LUMA = (19595, 38470, 7471)  # brightness of red, green and blue in 65536ths: ITU-R 601-2, as Pillow rounds it
EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
)
_FORMATS = "JPEG, PNG, WebP, GIF, BMP, TIFF and PNM"
# Pillow's classes are called by name: of the forty formats that Image.open would try, most have no place here, and
# its own guard against large pictures is a warning.
_OPENERS: tuple[tuple[bytes, Callable[[IO[bytes]], ImageFile]], ...] = (
    (b"\xff\xd8\xff", JpegImageFile),  # of a camera's several pictures in one JPEG (MPO) the first
    (b"\x89PNG\r\n\x1a\n", PngImageFile),
    (b"GIF8", GifImageFile),
    (b"BM", BmpImageFile),
    (b"II*\0", TiffImageFile),
    (b"MM\0*", TiffImageFile),
    *((b"P%d" % kind, PpmImageFile) for kind in range(1, 7)),
)
_SNIFFED_BYTES = 1024
_ORIENTATION = 0x0112
_SIDEWAYS = 5  # orientations from here on swap rows and columns
_DEEP_MODES = frozenset(("I", "I;16", "I;16B", "I;16L", "I;16N"))
_GREY_MODES = _DEEP_MODES | {"1", "L", "LA", "La"}
_COLOUR_MODES = frozenset(("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"))


@dataclass(frozen=True, slots=True)
class Caps:
    """What a picture may cost; checked before anything is decoded.

    Args:
        num_bytes: Most bytes that its file may have.
        num_pixels: Most pixels, rows times columns.
    """

    num_bytes: int = 1 << 26
    num_pixels: int = 1 << 26


CAPS = Caps()


def decode(data: bytes, where: str, *, caps: Caps = CAPS, least: tuple[int, int] | None = None) -> np.ndarray:
    """Decode a picture as it is to be seen: turned as its EXIF data say, palettes resolved, what is transparent white.

    Pictures of 16 bits a pixel keep the upper eight. CMYK, YCbCr and HSV become RGB by Pillow's formulas, colour
    profiles aside.

    Args:
        data: The file's bytes.
        where: The file, as an error should show it.
        caps: What the picture may cost.
        least: Fewest rows and columns that are needed; a JPEG may come at a half, a quarter or an eighth of its size,
            as long as it has as many. None means full size.

    Returns:
        Unsigned bytes, shape (Y, X, 1) where the file is grey, else (Y, X, 3).

    Raises:
        DataError: The picture is over a cap, animated, or a side has only one pixel.
        FormatError: The bytes are not a picture of a known format, are damaged or cut short, or hold pixels of 32 bits.
    """
    if len(data) > caps.num_bytes:
        raise _over_bytes(len(data), where, caps)
    with _guarded(where):
        image = _open(io.BytesIO(data), where, caps)
        orientation = _orientation(image)
        if least is not None and isinstance(image, JpegImageFile):
            rows, columns = reversed(least) if orientation >= _SIDEWAYS else least
            image.draft(None, (columns, rows))
        image.load()
        return _pixels(ImageOps.exif_transpose(image) if orientation > 1 else image)


def header(file: IO[bytes], num_bytes: int, where: str, *, caps: Caps = CAPS) -> tuple[int, int, int]:
    """Read a picture's size without decoding it.

    Args:
        file: The file, at its start.
        num_bytes: Its size.
        where: The file, as an error should show it.
        caps: What the picture may cost.

    Returns:
        Rows, columns and planes (1 for grey, else 3) that :func:`decode` will give.

    Raises:
        DataError: As :func:`decode`, as far as the header tells.
        FormatError: As :func:`decode`, as far as the header tells.
    """
    if num_bytes > caps.num_bytes:
        raise _over_bytes(num_bytes, where, caps)
    with _guarded(where):
        image = _open(file, where, caps)
        columns, rows = image.size
        if _orientation(image) >= _SIDEWAYS:
            rows, columns = columns, rows
        return rows, columns, 1 if image.mode in _GREY_MODES else 3


class _guarded:  # noqa: N801
    """Turn whatever Pillow raises on bad bytes (OSError, SyntaxError, ValueError, struct.error, …) into one error."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        """Nothing is to be done beforehand."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, RegardError) or not isinstance(error, Exception):
            return
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        what = f"the picture is damaged or cut short ({reason})"
        raise FormatError(what, where=self._where, mend="replace or remove it") from None


def _open(file: IO[bytes], where: str, caps: Caps) -> ImageFile:
    """Open a picture and judge its header."""
    start = file.read(_SNIFFED_BYTES)
    file.seek(0)
    opener = next((opener for magic, opener in _OPENERS if start.startswith(magic)), None)
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        _check_size(*_webp_size(start), where, caps)  # before Pillow opens it, which makes room for the whole canvas
        opener = WebPImageFile
    if opener is None:
        raise _not_a_picture(start, where)
    image = opener(file)
    _check_size(*image.size, where, caps)
    if getattr(image, "is_animated", False):
        raise DataError(
            "the picture is animated", where=where, mend="save the frame that you mean as a file of its own"
        )
    is_32_bits = image.mode == "I" and not isinstance(image, PpmImageFile)  # which has 16 bits at most
    if is_32_bits or image.mode not in _GREY_MODES | _COLOUR_MODES:
        raise FormatError(f"pixels of the kind {image.mode}", where=where, mend="save it with 8 bits a channel")
    return image


def _check_size(columns: int, rows: int, where: str, caps: Caps) -> None:
    """Refuse what is too small to be a picture, or too large to be decoded."""
    if rows * columns > caps.num_pixels:
        what = f"{columns:,} × {rows:,} pixels are over the cap of {caps.num_pixels:,}"
        raise DataError(what, where=where, mend="make it smaller")
    if min(rows, columns) < MIN_SIDE:
        what = f"{columns} × {rows} pixels are no picture"
        raise DataError(what, where=where, mend=f"give pictures of {MIN_SIDE} × {MIN_SIDE} or more")


def _webp_size(start: bytes) -> tuple[int, int]:
    """Read columns and rows from the first chunk of a WebP file (RFC 9649)."""
    kind, body = start[12:16], start[20:30]
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    columns, rows = struct.unpack("<HH", body[6:10])
    return columns & 0x3FFF, rows & 0x3FFF


def _orientation(image: ImageFile) -> int:
    """Read how the picture is to be turned, 1 (not at all) to 8."""
    if isinstance(image, TiffImageFile):
        return 1  # Pillow turns these while it loads them
    if isinstance(image, PngImageFile) and "exif" not in image.info:
        return 1  # to look behind a PNG's pixels is to decode them
    value = image.getexif().get(_ORIENTATION, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _pixels(image: Image.Image) -> np.ndarray:
    """Bring loaded pixels to one plane or three."""
    if image.mode in _DEEP_MODES:
        return (np.asarray(image) >> 8).astype(np.uint8)[:, :, None]
    mode = "L" if image.mode in _GREY_MODES else "RGB"
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    pixels = np.asarray(image.convert(mode))
    return pixels[:, :, None] if mode == "L" else pixels


def _over_bytes(num_bytes: int, where: str, caps: Caps) -> DataError:
    what = f"{num_bytes:,} bytes are over the cap of {caps.num_bytes:,} for a picture"
    return DataError(what, where=where, mend="make it smaller")


def _not_a_picture(start: bytes, where: str) -> FormatError:
    """Say what the bytes are instead, as far as that helps."""
    if not start:
        return FormatError("the file is empty", where=where, mend="replace or remove it")
    if b"<svg" in start.lower():
        return FormatError("SVG is a drawing and has no pixels", where=where, mend="render it to PNG first")
    return FormatError("not a picture of a known format", where=where, mend=f"there are {_FORMATS}")
