"""One picture: every format and mode to the right pixels, and bad ones refused by one line that names the file."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from image_files import encoded, noisy, png_bomb, smooth, webp_bomb
from PIL import Image

from regard.data.images import Caps, decode
from regard.data.readers.picture import header
from regard.errors import DataError, FormatError

RGB, GREY = noisy(7, 11), noisy(7, 11, 1)


def _both(data: bytes, **options: object) -> np.ndarray:
    """The pixels, once the header has told the same shape."""
    pixels = decode(data, "x.img", **options)
    assert pixels.dtype == np.uint8
    assert header(io.BytesIO(data), len(data), "x.img") == pixels.shape
    return pixels


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_formats_without_loss_give_the_pixels_back(kind: str) -> None:
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    assert np.array_equal(_both(encoded(RGB, kind, **options)), RGB)
    if kind != "WEBP":  # which has no grey
        assert np.array_equal(_both(encoded(GREY, kind)), GREY)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_formats_with_loss_come_close(kind: str) -> None:
    wanted = smooth(64, 48)
    found = _both(encoded(wanted, kind, quality=95))
    assert np.abs(found.astype(int) - wanted).mean() < 3
    assert _both(encoded(smooth(64, 48, 1), "JPEG")).shape == (64, 48, 1)


def test_gif_and_palettes_become_colours() -> None:
    picture = Image.fromarray(RGB).quantize(256)
    wanted = np.asarray(picture.convert("RGB"))
    for kind in ("GIF", "PNG"):
        assert np.array_equal(_both(encoded(picture, kind)), wanted)


def test_two_levels() -> None:
    bits = GREY[:, :, 0] > 127
    assert np.array_equal(_both(encoded(Image.fromarray(bits), "PNG")), bits[:, :, None] * np.uint8(255))


def test_what_is_transparent_is_white() -> None:
    alpha = noisy(7, 11, 1, seed=1)
    share = alpha / 255
    for pixels in (RGB, GREY):
        wanted = pixels * share + 255 * (1 - share)
        found = _both(encoded(np.concatenate([pixels, alpha], 2)))
        assert found.shape == pixels.shape
        assert np.abs(found - wanted).max() <= 1
    # A colour that a PNG declares transparent, without a plane of its own.
    picture = Image.fromarray(RGB)
    found = _both(encoded(picture, transparency=tuple(RGB[2, 3].tolist())))
    assert found[2, 3].tolist() == [255, 255, 255]
    assert np.array_equal(np.delete(found.reshape(-1, 3), 2 * 11 + 3, 0), np.delete(RGB.reshape(-1, 3), 2 * 11 + 3, 0))


def test_a_palette_with_transparency() -> None:
    picture = Image.fromarray(RGB).quantize(16)
    wanted = np.asarray(picture.convert("RGB")).copy()
    wanted[np.asarray(picture) == 3] = 255
    for kind in ("GIF", "PNG"):
        assert np.array_equal(_both(encoded(picture, kind, transparency=3)), wanted)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_keep_the_upper_eight(kind: str) -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (7, 11), dtype=np.uint16)
    assert np.array_equal(_both(encoded(Image.fromarray(deep), kind)), (deep >> 8).astype(np.uint8)[:, :, None])


def test_cmyk() -> None:
    inks = noisy(7, 11, 4)
    data = encoded(Image.fromarray(inks, "CMYK"), "TIFF")
    white = (255 - inks[:, :, :3].astype(int)) * (255 - inks[:, :, 3:].astype(int)) / 255
    assert np.abs(_both(data) - white).max() <= 1
    assert _both(encoded(Image.fromarray(inks, "CMYK"), "JPEG")).shape == (7, 11, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_their_exif_data_say(kind: str, orientation: int) -> None:
    seen = np.zeros((16, 32, 3), np.uint8)
    seen[:8, :16], seen[:8, 16:], seen[8:, :16] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    # What a camera that was held so stores (Exif 2.32, section 4.6.4): the inverse of how it is to be turned.
    stored = {
        1: seen,
        2: seen[:, ::-1],
        3: seen[::-1, ::-1],
        4: seen[::-1],
        5: seen.transpose(1, 0, 2),
        6: seen.transpose(1, 0, 2)[::-1],
        7: seen.transpose(1, 0, 2)[::-1, ::-1],
        8: seen.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    if kind == "TIFF":
        data = encoded(np.ascontiguousarray(stored), kind, tiffinfo={0x0112: orientation})
    else:
        data = encoded(np.ascontiguousarray(stored), kind, exif=exif, **options)
    found = _both(data)
    assert found.shape == seen.shape
    assert np.abs(found.astype(int) - seen).mean() < 8


def test_a_nonsense_orientation_is_none() -> None:
    exif = Image.Exif()
    exif[0x0112] = 77
    assert _both(encoded(RGB, "JPEG", exif=exif)).shape == RGB.shape


def test_large_jpegs_are_decoded_smaller_but_never_smaller_than_wanted() -> None:
    data = encoded(smooth(400, 640), "JPEG")
    assert decode(data, "x", least=(100, 160)).shape == (100, 160, 3)
    assert decode(data, "x", least=(101, 160)).shape == (200, 320, 3)
    assert decode(data, "x", least=(10, 10)).shape == (50, 80, 3)
    assert decode(data, "x", least=(999, 999)).shape == (400, 640, 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encoded(smooth(400, 640), "JPEG", exif=exif), "x", least=(160, 100)).shape == (160, 100, 3)


def test_of_several_pictures_in_one_jpeg_the_first() -> None:
    first, second = Image.fromarray(smooth(32, 48)), Image.fromarray(smooth(32, 48, seed=1))
    data = encoded(first, "MPO", save_all=True, append_images=[second])
    assert np.abs(_both(data).astype(int) - np.asarray(first)).mean() < 4


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"no picture at all, only text", "not a picture of a known format; there are JPEG"),
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG is a drawing and has no pixels"),
        (b"<html><body>404</body></html>", "not a picture of a known format"),
        (b"%PDF-1.7", "not a picture of a known format"),
        (encoded(noisy(1, 1)), "1 × 1 pixels are no picture"),
        (encoded(noisy(1, 9)), "9 × 1 pixels are no picture"),
        (encoded(noisy(1, 1), "WEBP"), "1 × 1 pixels are no picture"),
        (png_bomb(100_000, 100_000), "100,000 × 100,000 pixels are over the cap"),
        (png_bomb(8193, 8192), "8,193 × 8,192 pixels are over the cap of 67,108,864"),
        (webp_bomb(), "16,777,216 × 16,777,216 pixels are over the cap"),
        (encoded(Image.new("F", (4, 4)), "TIFF"), "pixels of the kind F; save it with 8 bits"),
        (encoded(Image.new("I", (4, 4)), "TIFF"), "pixels of the kind I; save it with 8 bits"),
        (b"\x89PNG\r\n\x1a\n", "damaged or cut short"),
        (b"\xff\xd8\xff\xe0\x00", "damaged or cut short"),
        (b"GIF89a", "damaged or cut short"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "damaged or cut short"),
        (b"II*\0\xff\xff\xff\xff", "damaged or cut short"),
        (b"P6 9", "damaged or cut short"),
        (b"BM" + bytes(12), "damaged or cut short"),
    ],
)
def test_bad_headers(data: bytes, message: str) -> None:
    for read in (lambda: decode(data, "cat/3.png"), lambda: header(io.BytesIO(data), len(data), "cat/3.png")):
        with pytest.raises(DataError, match=f"^cat/3.png: .*{message}") as caught:
            read()
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 3


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_animated_pictures(kind: str) -> None:
    frames = [Image.fromarray(noisy(9, 9, seed=seed)) for seed in range(3)]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    for read in (lambda: decode(data, "a.gif"), lambda: header(io.BytesIO(data), len(data), "a.gif")):
        with pytest.raises(DataError, match=r"^a.gif: the picture is animated; save the frame"):
            read()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_truncated_pictures(kind: str) -> None:
    data = encoded(noisy(40, 40), kind)
    for keep in (len(data) // 3, len(data) // 2, len(data) - 24):
        with pytest.raises(FormatError, match=r"^t.img: the picture is damaged or cut short"):
            decode(data[:keep], "t.img")


def test_caps_are_the_callers() -> None:
    data = encoded(noisy(8, 8))
    assert decode(data, "x", caps=Caps(num_pixels=64)).shape == (8, 8, 3)
    with pytest.raises(DataError, match="8 × 8 pixels are over the cap of 63"):
        decode(data, "x", caps=Caps(num_pixels=63))
    with pytest.raises(DataError, match=f"{len(data)} bytes are over the cap of {len(data) - 1}"):
        decode(data, "x", caps=Caps(num_bytes=len(data) - 1))


def test_random_damage_gives_pixels_or_one_error() -> None:
    """Whatever Pillow's decoders make of bad bytes, nothing but our errors comes out."""
    draws = np.random.default_rng(0)
    refused = 0
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        whole = np.frombuffer(encoded(noisy(12, 12), kind), np.uint8)
        for _ in range(60):
            data = whole.copy()
            data[draws.integers(0, min(len(data), 200), 3)] = draws.integers(0, 256, 3)
            try:
                assert decode(data.tobytes(), "x", caps=Caps(num_pixels=1 << 16)).shape[2] in (1, 3)
            except DataError:
                refused += 1
    assert refused > 50


def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    """In a process that may have 512 MiB more than it has, a picture of 30 GB is refused by its header."""
    (tmp_path / "bomb.png").write_bytes(png_bomb(100_000, 100_000))
    code = """
import resource, sys
from regard.data.images import read_images
from regard.errors import DataError
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (512 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
try:
    read_images(sys.argv[1], size=None, channels=None, labelled=False)
except DataError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True, timeout=60
    )
    assert "bomb.png: 100,000 × 100,000 pixels are over the cap" in done.stdout
    assert done.stderr == ""
