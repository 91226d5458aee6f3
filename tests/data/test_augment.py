"""Augmentation: the same whatever the batch, other for every epoch, view and sample; and each operation's pixels."""

import colorsys
import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from image_files import noisy, smooth
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage, stats

from regard.data import augment, image_ops
from regard.data.augment import OPERATIONS, Augment, AugmentConfig, moves, operate, random_boxes
from regard.data.draws import keys, noise, uniforms
from regard.data.mixing import cutmix, mixup
from regard.errors import ConfigError, UsageError

EVERYTHING = AugmentConfig(
    crop="resized",
    flip_prob=0.5,
    rand_augment=2,
    rand_magnitude=9,
    jitter_prob=0.8,
    brightness=0.8,
    contrast=0.8,
    saturation=0.8,
    hue=0.2,
    grey_prob=0.2,
    blur_prob=0.5,
    erase_prob=0.25,
)
CONFIGS = {
    "everything": EVERYTHING,
    "padded": AugmentConfig(crop="padded", flip_prob=0.5),
    "many": dataclasses.replace(EVERYTHING, crop="none", rand_augment=14, rand_magnitude=30),
}


def _images(count: int, channels: int, side: tuple[int, int] = (23, 19)) -> torch.Tensor:
    stacked = np.stack([smooth(*side, channels, seed) for seed in range(count)])
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous()


def _pillow(image_CYX: torch.Tensor) -> Image.Image:
    return Image.fromarray(image_CYX.permute(1, 2, 0).squeeze(2).numpy())


def _tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.atleast_3d(np.asarray(image)).copy()).permute(2, 0, 1)


# --- a function of seed, epoch, sample and view -----------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("channels", [1, 3])
def test_no_batch_changes_a_picture(name: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images, samples = _images(37, channels), np.arange(100, 137)
    change = Augment(CONFIGS[name], 5, (16, 24))
    whole = change(images, 3, samples, 1)
    assert whole.shape == (37, channels, 16, 24)
    assert whole.dtype == torch.uint8
    order = np.random.default_rng(0).permutation(37)
    assert torch.equal(change(images[order], 3, samples[order], 1), whole[order])
    alone = [change(images[n : n + 1], 3, samples[n : n + 1], 1) for n in range(37)]
    assert torch.equal(torch.cat(alone), whole)
    monkeypatch.setattr(augment, "_PORTION_PIXELS", 5 * 16 * 24)
    assert torch.equal(change(images, 3, samples, 1), whole)


def test_the_pictures_given_are_left_alone() -> None:
    for config in (*CONFIGS.values(), AugmentConfig(), AugmentConfig(erase_prob=1), AugmentConfig(flip_prob=0.5)):
        images = _images(16, 3)
        before = images.clone()
        found = Augment(config, 0, (23, 19))(images, 0, np.arange(16))
        assert torch.equal(images, before)
        found += 1
        assert torch.equal(images, before)


@pytest.mark.parametrize("name", CONFIGS)
def test_epochs_views_samples_and_seeds_differ(name: str) -> None:
    image = torch.from_numpy(noisy(23, 19)).permute(2, 0, 1)[None]
    found = [
        Augment(CONFIGS[name], seed, (23, 19))(image, epoch, np.array([sample]), view).numpy().tobytes()
        for seed in (0, 1)
        for epoch in (0, 1)
        for sample in (0, 1)
        for view in (0, 1)
    ]
    if name == "padded":  # 81 places and two directions: a few coincide by chance
        assert len(set(found)) >= 13
    else:
        assert len(set(found)) == 16


def test_replay_in_another_process() -> None:
    code = """
import hashlib, numpy as np, torch
from regard.data.augment import Augment, AugmentConfig
torch.rand(3); np.random.rand(3)
images = torch.arange(5 * 3 * 20 * 20, dtype=torch.int64).mul(2654435761).bitwise_right_shift(9).remainder(256)
images = images.to(torch.uint8).view(5, 3, 20, 20)
config = AugmentConfig("resized", flip_prob=0.5, rand_augment=3, jitter_prob=1, hue=0.2, blur_prob=0.5, erase_prob=0.5)
found = Augment(config, 9, (16, 16))(images, 4, np.arange(5), 2)
print(hashlib.sha256(found.numpy().tobytes()).hexdigest())
"""
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in "ab"
    }
    assert len(runs) == 1
    assert len(runs.pop()) == 65


def test_one_operation_more_leaves_the_others_alone() -> None:
    """Each draws at its own place: where nothing is grey or erased, nothing differs."""
    images, samples = _images(64, 3), np.arange(64)
    config = dataclasses.replace(EVERYTHING, erase_prob=0, grey_prob=0)
    bare = Augment(config, 0, (23, 19))(images, 0, samples)
    more = Augment(dataclasses.replace(config, erase_prob=0.1), 0, (23, 19))(images, 0, samples)
    same = (bare == more).flatten(1).all(1)
    assert 40 < same.sum() < 64


def test_nothing_is_the_default() -> None:
    images = _images(5, 3)
    assert torch.equal(Augment(AugmentConfig(), 0, (23, 19))(images, 0, np.arange(5)), images)
    assert Augment(AugmentConfig(), 0, (8, 9))(images, 0, np.arange(5)).shape == (5, 3, 8, 9)
    assert Augment(EVERYTHING, 0, (8, 9))(images[:0], 0, np.arange(0)).shape == (0, 3, 8, 9)
    with pytest.raises(UsageError, match="4 numbers of samples for 5 pictures"):
        Augment(AugmentConfig(), 0, (23, 19))(images, 0, np.arange(4))


# --- draws ------------------------------------------------------------------------------------------------------


def test_draws_are_splitmix64() -> None:
    """The published first outputs of SplitMix64 from the state 1234567 (Vigna's reference implementation)."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    found = uniforms(np.array([1234567], dtype=np.uint64), 5)[0]
    assert found.tolist() == [(number >> 11) / 2**53 for number in published]
    bytes_ = noise(np.uint64(1234567), 20)
    assert bytes_[:8].view("<u8")[0] == published[0]
    assert len(bytes_) == 20


def test_draws_are_uniform_and_apart() -> None:
    found = uniforms(keys(np.arange(4000), 3, 1, 0, 2), 5)
    assert stats.kstest(found.ravel(), "uniform").pvalue > 1e-3
    for other in (
        keys(np.arange(4000), 3, 1, 0, 3),
        keys(np.arange(4000), 3, 1, 1, 2),
        keys(np.arange(1, 4001), 3, 1, 0, 2),
    ):
        assert abs(np.corrcoef(found[:, 0], uniforms(other, 1)[:, 0])[0, 1]) < 0.06
    assert abs(np.corrcoef(found[:-1, 0], found[1:, 0])[0, 1]) < 0.06
    # Parts that are swapped, or whose sum or exclusive or is the same, are other keys.
    parts = [(a, b, c) for a in range(12) for b in range(12) for c in range(12)]
    assert len({keys(np.array([7]), *part)[0] for part in parts}) == len(parts)


# --- boxes and flips --------------------------------------------------------------------------------------------


def test_half_is_flipped() -> None:
    images = _images(1, 1).expand(4000, 1, 23, 19)
    found = Augment(AugmentConfig(flip_prob=0.5), 0, (23, 19))(images, 0, np.arange(4000))
    flipped = (found == images.flip(3)).flatten(1).all(1)
    assert ((found == images).flatten(1).all(1) ^ flipped).all()
    assert abs(flipped.double().mean() - 0.5) < 4 * math.sqrt(0.25 / 4000)


def test_padded_crops_are_everywhere() -> None:
    image = torch.arange(1, 31, dtype=torch.uint8).view(1, 1, 5, 6)
    found = Augment(AugmentConfig(crop="padded", crop_pad=2), 0, (5, 6))(
        image.expand(3000, 1, 5, 6), 0, np.arange(3000)
    )
    padded = np.pad(image[0, 0].numpy(), 2)
    wanted = {padded[top : top + 5, left : left + 6].tobytes(): (top, left) for top in range(5) for left in range(5)}
    seen = [wanted[picture.tobytes()] for picture in found[:, 0].numpy()]
    counts = np.bincount([5 * top + left for top, left in seen], minlength=25)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_boxes_have_the_area_and_ratio_that_they_should() -> None:
    draws = uniforms(keys(np.arange(4000), 0), 22)
    boxes = random_boxes(draws, (300, 400), (0.08, 1.0), (3 / 4, 4 / 3))
    top, left, height, width = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 300).all()
    assert (left + width <= 400).all()
    share, ratio = height * width / 120_000, width / height
    assert share.min() < 0.085
    assert 0.9 < share.max() <= 1
    assert ratio.min() > 0.74
    assert ratio.max() < 1.35
    # Boxes up to half of the area nearly always fit at the first try, so that their share and ratio are as drawn.
    small = share < 0.45
    assert stats.kstest(share[small], stats.uniform(0.08, 0.37).cdf).pvalue > 1e-3
    ends = math.log(3 / 4), math.log(4 / 3)
    assert stats.kstest(np.log(ratio[small]), stats.uniform(ends[0], ends[1] - ends[0]).cdf).pvalue > 1e-3
    spare = small & (300 - height > 30)
    assert abs((top[spare] / (300 - height[spare])).mean() - 0.5) < 0.03


def test_where_no_box_fits_the_middle() -> None:
    draws = uniforms(keys(np.arange(50), 0), 22)
    boxes = random_boxes(draws, (10, 100), (0.9, 1.0), (3 / 4, 4 / 3))
    assert (boxes == [0, 43, 10, 13]).all()
    boxes = random_boxes(draws, (100, 10), (0.9, 1.0), (3 / 4, 4 / 3))
    assert (boxes == [43, 0, 13, 10]).all()


def test_resized_crops_are_pillows() -> None:
    images = _images(20, 3, (60, 50))
    config = AugmentConfig(crop="resized", crop_scale=(0.2, 1.0))
    found = Augment(config, 1, (24, 32))(images, 2, np.arange(20))
    boxes = random_boxes(uniforms(keys(np.arange(20), 1, 2, 0, 0), 22), (60, 50), (0.2, 1.0), config.crop_ratio)
    for image, made, (top, left, height, width) in zip(images, found, boxes.tolist(), strict=True):
        part = _pillow(image).crop((left, top, left + width, top + height))
        wanted = _tensor(part.resize((32, 24), Image.Resampling.BICUBIC))
        assert (made.int() - wanted.int()).abs().max() <= 2
        assert (made.int() - wanted.int()).abs().double().mean() < 0.1


def test_erased_boxes() -> None:
    images = torch.zeros(2000, 1, 40, 30, dtype=torch.uint8)
    config = AugmentConfig(erase_prob=0.25, erase_scale=(0.1, 0.3), erase_ratio=(0.5, 2.0))
    found = Augment(config, 0, (40, 30))(images, 0, np.arange(2000))
    changed = [np.argwhere(picture[0].numpy()) for picture in found if picture.any()]
    assert abs(len(changed) / 2000 - 0.25) < 4 * math.sqrt(0.1875 / 2000)
    filled = []
    for picture, places in zip((p for p in found if p.any()), changed, strict=True):
        (top, left), (bottom, right) = places.min(0), places.max(0)
        box = picture[0, top : bottom + 1, left : right + 1]
        assert 0.08 < box.numel() / 1200 < 0.32
        filled.append(box.flatten().numpy())
    counts = np.bincount(np.concatenate(filled), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-3


# --- operations -------------------------------------------------------------------------------------------------

FACTORS = [0.0, 0.1, 0.73, 1.0, 1.4, 1.9]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("ours", "pillows"),
    [
        (image_ops.brightness, ImageEnhance.Brightness),
        (image_ops.contrast, ImageEnhance.Contrast),
        (image_ops.saturation, ImageEnhance.Color),
        (image_ops.sharpness, ImageEnhance.Sharpness),
    ],
)
def test_enhancements_are_pillows(ours: object, pillows: type, channels: int) -> None:
    images = torch.from_numpy(np.stack([noisy(13, 17, channels, seed) for seed in range(6)])).permute(0, 3, 1, 2)
    found = ours(images, torch.tensor(FACTORS, dtype=torch.float64))
    for image, made, factor in zip(images, found, FACTORS, strict=True):
        assert torch.equal(made, _tensor(pillows(_pillow(image)).enhance(factor)))


@pytest.mark.parametrize("channels", [1, 3])
def test_levels_are_pillows(channels: int) -> None:
    pictures = [noisy(43, 37, channels, 1), noisy(43, 37, channels, 2) // 3 + 40, smooth(43, 37, channels)]
    pictures += [np.full((43, 37, channels), 9, np.uint8), smooth(43, 37, channels) // 64 * 64]
    images = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    for ours, pillows in ((image_ops.autocontrast, ImageOps.autocontrast), (image_ops.equalize, ImageOps.equalize)):
        for image, made in zip(images, ours(images), strict=True):
            assert torch.equal(made, _tensor(pillows(_pillow(image))))
    bits = [1, 4, 5, 7, 8]
    for image, made, kept in zip(images, image_ops.posterize(images, torch.tensor(bits)), bits, strict=True):
        assert torch.equal(made, _tensor(ImageOps.posterize(_pillow(image), kept)))
    thresholds = [0, 1, 100, 255, 256]
    for image, made, least in zip(
        images, image_ops.solarize(images, torch.tensor(thresholds)), thresholds, strict=True
    ):
        assert torch.equal(made, _tensor(ImageOps.solarize(_pillow(image), least)))


def test_grey_is_pillows() -> None:
    images = torch.from_numpy(noisy(13, 17)).permute(2, 0, 1)[None]
    wanted = _tensor(_pillow(images[0]).convert("L").convert("RGB"))
    assert torch.equal(image_ops.grey(images)[0], wanted)
    found = Augment(AugmentConfig(grey_prob=0.2), 0, (13, 17))(images.expand(2000, 3, 13, 17), 0, np.arange(2000))
    share = (found == wanted).flatten(1).all(1).double().mean()
    assert abs(share - 0.2) < 4 * math.sqrt(0.16 / 2000)


@given(st.tuples(*[st.integers(0, 255)] * 3), st.floats(-0.5, 0.5))
def test_hue_is_the_hexcones(colour: tuple[int, int, int], turn: float) -> None:
    image = torch.tensor(colour, dtype=torch.uint8).view(1, 3, 1, 1)
    hue, saturation, value = colorsys.rgb_to_hsv(*(level / 255 for level in colour))
    wanted = np.array(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)) * 255
    found = image_ops.hue(image, torch.tensor([turn], dtype=torch.float64)).flatten().numpy()
    assert np.abs(found - wanted).max() <= 0.51


@pytest.mark.parametrize("name", OPERATIONS[:5])
@pytest.mark.parametrize("amount", [-0.9, 0.4])
def test_moves_are_pillows(name: str, amount: float) -> None:
    """Away from the edge, where Pillow has its own way of blending with what is outside."""
    images = _images(1, 3, (40, 30))
    matrices = moves(np.array([OPERATIONS.index(name)]), np.array([amount]), (40, 30))
    found = image_ops.affine(images, matrices)[0]
    picture, bilinear = _pillow(images[0]), Image.Resampling.BILINEAR
    if name == "rotate":
        made = picture.rotate(-30 * amount, bilinear, fillcolor=(128, 128, 128))
    else:
        shear, reach = 0.3 * amount, 150 / 331 * amount
        numbers = {
            "shear-x": (1, shear, 0, 0, 1, 0),
            "shear-y": (1, 0, 0, shear, 1, 0),
            "translate-x": (1, 0, reach * 30, 0, 1, 0),
            "translate-y": (1, 0, 0, 0, 1, reach * 40),
        }[name]
        made = picture.transform(picture.size, Image.Transform.AFFINE, numbers, bilinear, fillcolor=(128, 128, 128))
    inside = ndimage.binary_erosion(_covered(picture.size, matrices[0].numpy()), iterations=2)
    assert inside.sum() > 300
    assert (found.int() - _tensor(made).int()).abs().numpy()[:, inside].max() <= 1
    outside = ndimage.binary_erosion(~_covered(picture.size, matrices[0].numpy()), iterations=2, border_value=1)
    assert (found[:, torch.from_numpy(outside)] == 128).all()


def _covered(size: tuple[int, int], matrix: np.ndarray) -> np.ndarray:
    """Where a moved picture's pixels come from inside it."""
    x, y = np.meshgrid(np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5)
    from_x, from_y = (row[0] * x + row[1] * y + row[2] for row in matrix)
    return (from_x > 0) & (from_x < size[0]) & (from_y > 0) & (from_y < size[1])


def test_blur_is_a_gaussian() -> None:
    images = torch.from_numpy(np.stack([noisy(21, 25, 3, seed) for seed in range(3)])).permute(0, 3, 1, 2)
    sigmas = [0.4, 1.3, 2.0]
    found = image_ops.blur(images, torch.tensor(sigmas), 4)
    places = np.arange(-4, 5)
    for image, made, sigma in zip(images, found, sigmas, strict=True):
        weights = np.exp(-(places**2) / (2 * sigma**2))
        weights /= weights.sum()
        wanted = image.numpy().astype(float)
        for axis in (1, 2):
            wanted = ndimage.correlate1d(wanted, weights, axis, mode="mirror")
        assert np.abs(made.numpy() - wanted).max() <= 0.51


def test_jitter_is_its_parts_in_every_order(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    config = AugmentConfig(jitter_prob=1, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    for name in ("brightness", "contrast", "saturation", "hue"):

        def spy(images: torch.Tensor, amounts: torch.Tensor, name: str = name) -> torch.Tensor:
            called.append(f"{name[0]}{float(amounts[0]):.3f}")
            return images

        monkeypatch.setattr(image_ops, name, spy)
    orders = set()
    amounts: dict[str, list[float]] = {"b": [], "c": [], "s": [], "h": []}
    change = Augment(config, 0, (4, 4))
    for sample in range(600):
        called.clear()
        change(_images(1, 3, (4, 4)), 0, np.array([sample]))
        orders.add("".join(call[0] for call in called))
        for call in called:
            amounts[call[0]].append(float(call[1:]))
    assert len(orders) == 24
    for name, (low, high) in {"b": (0.6, 1.4), "c": (0.6, 1.4), "s": (0.6, 1.4), "h": (-0.1, 0.1)}.items():
        assert len(amounts[name]) == 600
        assert stats.kstest(amounts[name], stats.uniform(low, high - low).cdf).pvalue > 1e-3


def test_all_fourteen_are_drawn_alike() -> None:
    assert len(OPERATIONS) == 14
    images = torch.from_numpy(noisy(16, 16)).permute(2, 0, 1)[None]
    config = AugmentConfig(rand_augment=1, rand_magnitude=15)
    made: dict[bytes, list[str]] = {}
    for number, name in enumerate(OPERATIONS):
        for amount in (0.5, -0.5):
            if number < 5:
                picture = image_ops.affine(images, moves(np.array([number]), np.array([amount]), (16, 16)))
            else:
                picture = images if name == "identity" else operate(images, name, np.array([amount]))
            made.setdefault(picture.numpy().tobytes(), []).append(name)
    found = Augment(config, 0, (16, 16))(images.expand(7000, 3, 16, 16), 0, np.arange(7000))
    counts = dict.fromkeys(OPERATIONS, 0.0)
    for picture in found:
        names = made[picture.numpy().tobytes()]
        for name in set(names):
            counts[name] += 1 / len(set(names))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_magnitude_sets_the_strength() -> None:
    images = _images(14, 3, (32, 32))
    samples = np.arange(200)
    apart = []
    for magnitude in (0, 10, 20, 30):
        config = AugmentConfig(rand_augment=1, rand_magnitude=magnitude)
        found = Augment(config, 0, (32, 32))(images[samples % 14], 0, samples)
        apart.append((found.double() - images[samples % 14]).abs().mean().item())
    assert apart == sorted(apart)
    assert apart[3] > 2 * apart[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flip_prob": 1.5}, r"augment.flip_prob is 1.5; give a number from 0 to 1"),
        ({"hue": 0.6}, r"augment.hue is 0.6"),
        ({"rand_magnitude": 31}, r"augment.rand_magnitude is 31; give a number from 0 to 30"),
        ({"rand_augment": -1}, r"augment.rand_augment is -1; give at least 0"),
        ({"brightness": -0.1}, r"augment.brightness is -0.1"),
        ({"crop_scale": (0.5,)}, r"augment.crop_scale is \[0.5\]; give two numbers above 0"),
        ({"crop_scale": (0.5, 1.1)}, r"augment.crop_scale is .* at most 1"),
        ({"crop_ratio": (2.0, 1.0)}, r"augment.crop_ratio"),
        ({"blur_sigma": (0.0, 1.0)}, r"augment.blur_sigma"),
        ({"jitter_prob": math.nan}, r"augment.jitter_prob is nan"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AugmentConfig(**settings)


# --- two pictures in one ----------------------------------------------------------------------------------------


def _mixed(mix: object, index: int, alpha: float = 0.8) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 3, 24, 16)
    return mix(pixels, torch.eye(5), alpha=alpha, seed=7, index=index)


def test_mixup_blends_pixels_and_targets_alike() -> None:
    shares = []
    for index in range(400):
        pixels, targets = _mixed(mixup, index)
        assert torch.allclose(targets.sum(1), torch.ones(5))
        # Picture n holds the number n everywhere, so that its blend is the mean of the numbers under its targets.
        assert torch.allclose(pixels[:, 0, 0, 0], targets @ torch.arange(5.0), atol=1e-6)
        assert (pixels == pixels[:, :1, :1, :1]).all()
        other = [row for row in targets if (row > 0).sum() == 2]
        shares += [float(other[0].max())] if other else []
    # λ and 1 − λ cannot be told apart in the targets; for Beta(α, α) the larger of both has this distribution.
    folded = stats.kstest(shares, lambda x: 2 * stats.beta(0.8, 0.8).cdf(x) - 1)
    assert folded.pvalue > 1e-3
    first, second = _mixed(mixup, 3), _mixed(mixup, 3)
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[0], _mixed(mixup, 4)[0])


def test_cutmix_puts_a_box_in_and_counts_its_area() -> None:
    shares = []
    for index in range(400):
        pixels, targets = _mixed(cutmix, index)
        for number, (picture, target) in enumerate(zip(pixels, targets, strict=True)):
            pasted = picture[0] != number
            assert abs(float(target[number]) - (1 - pasted.double().mean())) < 1e-6
            assert (picture == picture[:1]).all()
            if pasted.any():
                rows, columns = pasted.any(1).nonzero(), pasted.any(0).nonzero()
                assert pasted[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
                assert len(picture[0][pasted].unique()) == 1
                shares.append(1 - float(target[number]))
    assert 0.1 < np.mean(shares) < 0.6


def test_bad_mixing() -> None:
    for mix in (mixup, cutmix):
        with pytest.raises(UsageError, match="alpha is 0"):
            _mixed(mix, 0, alpha=0)
        with pytest.raises(UsageError, match="4 targets for 5 pictures"):
            mix(torch.zeros(5, 3, 4, 4), torch.eye(4), alpha=1, seed=0, index=0)
