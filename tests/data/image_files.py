"""Pictures for tests: made here, by formulas, and written with Pillow."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def smooth(rows: int, columns: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """A picture of slow waves, so that a JPEG of it is close to it."""
    draws = np.random.default_rng(seed)
    y, x = np.mgrid[0:rows, 0:columns]
    planes = [
        127 + 100 * np.sin(a * x / columns + b * y / rows + c) for a, b, c in draws.uniform(0.5, 3, (channels, 3))
    ]
    return np.stack(planes, -1).astype(np.uint8)


def noisy(rows: int, columns: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, channels), dtype=np.uint8)


def encoded(pixels: np.ndarray | Image.Image, kind: str = "PNG", **options: object) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else _image(pixels)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def write(path: Path, pixels: np.ndarray) -> Path:
    """Write a picture in the format that its name tells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _image(pixels).save(path)
    return path


def _image(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bomb(columns: int, rows: int) -> bytes:
    """A PNG that declares many pixels and holds next to nothing."""
    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(bytes(99))) + _chunk(b"IEND", b"")
    )


def webp_bomb() -> bytes:
    """A WebP whose first chunk declares the largest canvas there is."""
    body = b"VP8X" + struct.pack("<I", 10) + bytes(4) + b"\xff\xff\xff" * 2
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body
