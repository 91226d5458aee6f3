"""What is done to pictures: each function takes unsigned bytes, shape (B, C, Y, X), and an amount for each picture.

Where Pillow has the operation, the result is Pillow's to the last bit, but for what moves pixels, which is bilinear
here. With one plane, what concerns colour alone does nothing.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.readers.picture import LUMA

LEVELS = 256
FILL = 128  # what comes in from outside when a picture is moved (Cubuk et al. 2020: grey)
_SMOOTH_CENTRE, _SMOOTH_WEIGHTS = 5, 13  # of Pillow's kernel SMOOTH: its other eight weights are 1
_HUE_SIXTHS = 6


def luma(images_BCYX: Tensor) -> Tensor:
    """Weigh colours by their brightness: ITU-R 601-2, as Pillow rounds it.

    Args:
        images_BCYX: Unsigned bytes of one plane or three.

    Returns:
        int32, shape (B, 1, Y, X).
    """
    planes = images_BCYX.int()
    if planes.shape[1] == 1:
        return planes
    red, green, blue = planes.unbind(1)
    return ((red * LUMA[0] + green * LUMA[1] + blue * LUMA[2] + (1 << 15)) >> 16)[:, None]


def grey(images_BCYX: Tensor) -> Tensor:
    """Take the colour away, and keep the planes.

    Args:
        images_BCYX: Pictures.

    Returns:
        Pictures whose planes are equal.
    """
    return luma(images_BCYX).to(torch.uint8).expand_as(images_BCYX).contiguous()


def brightness(images_BCYX: Tensor, factors_B: Tensor) -> Tensor:
    """Blend with black: factor · v.

    Args:
        images_BCYX: Pictures.
        factors_B: 0 gives black, 1 the picture, more makes it brighter.

    Returns:
        Pictures.
    """
    levels = torch.arange(LEVELS, dtype=torch.float32)
    return look_up(images_BCYX, _bytes(factors_B.float()[:, None, None] * levels))


def contrast(images_BCYX: Tensor, factors_B: Tensor) -> Tensor:
    """Blend with the mean brightness: mean + factor · (v − mean).

    Args:
        images_BCYX: Pictures.
        factors_B: 0 gives one grey, 1 the picture.

    Returns:
        Pictures.
    """
    means_B = (luma(images_BCYX).flatten(1).double().mean(1) + 0.5).floor().float()
    levels = torch.arange(LEVELS, dtype=torch.float32)
    table_BCV = means_B[:, None, None] + factors_B.float()[:, None, None] * (levels - means_B[:, None, None])
    return look_up(images_BCYX, _bytes(table_BCV))


def saturation(images_BCYX: Tensor, factors_B: Tensor) -> Tensor:
    """Blend with grey.

    Args:
        images_BCYX: Pictures.
        factors_B: 0 gives grey, 1 the picture.

    Returns:
        Pictures.
    """
    return images_BCYX if images_BCYX.shape[1] == 1 else _blend(luma(images_BCYX).float(), images_BCYX, factors_B)


def sharpness(images_BCYX: Tensor, factors_B: Tensor) -> Tensor:
    """Blend with the smoothed picture; its edge stays as it is.

    Args:
        images_BCYX: Pictures.
        factors_B: 0 gives the smoothed picture, 1 the picture.

    Returns:
        Pictures.
    """
    planes = images_BCYX.int()
    thrice = planes[..., :-2] + planes[..., 1:-1] + planes[..., 2:]
    sums = thrice[..., :-2, :] + thrice[..., 1:-1, :] + thrice[..., 2:, :]
    sums += (_SMOOTH_CENTRE - 1) * planes[..., 1:-1, 1:-1]
    smooth = images_BCYX.float()
    smooth[..., 1:-1, 1:-1] = (2 * sums + _SMOOTH_WEIGHTS) // (2 * _SMOOTH_WEIGHTS)  # to the nearest
    return _blend(smooth, images_BCYX, factors_B)


def hue(images_BCYX: Tensor, turns_B: Tensor) -> Tensor:
    """Turn the hue.

    Args:
        images_BCYX: Pictures.
        turns_B: By how much of the whole circle, −0.5 to 0.5.

    Returns:
        Pictures.

    Source:
        Smith 1978, the hexcone model (HSV), in floats.
    """
    if images_BCYX.shape[1] == 1:
        return images_BCYX
    red, green, blue = images_BCYX.float().unbind(1)
    top, bottom = images_BCYX.amax(1).float(), images_BCYX.amin(1).float()
    span = top - bottom
    divisor = span.clamp(min=1)
    sixths = torch.where(
        top == red,
        (green - blue) / divisor,
        torch.where(top == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sixths = sixths + _HUE_SIXTHS * turns_B.float()[:, None, None]
    turned = []
    for offset in (5, 3, 1):  # v − v·s·max(0, min(k, 4 − k, 1)), k = (offset + h) mod 6
        place = (offset + sixths) % _HUE_SIXTHS
        turned.append(top - span * torch.minimum(place, 4 - place).clamp(0, 1))
    return _bytes(torch.stack(turned, 1) + 0.5)


def solarize(images_BCYX: Tensor, thresholds_B: Tensor) -> Tensor:
    """Invert what is as bright as the threshold or brighter.

    Args:
        images_BCYX: Pictures.
        thresholds_B: 0 inverts all, 256 nothing.

    Returns:
        Pictures.
    """
    levels = torch.arange(LEVELS)
    table_BCV = torch.where(levels < thresholds_B[:, None, None], levels, LEVELS - 1 - levels)
    return look_up(images_BCYX, table_BCV.to(torch.uint8))


def posterize(images_BCYX: Tensor, bits_B: Tensor) -> Tensor:
    """Keep the upper bits.

    Args:
        images_BCYX: Pictures.
        bits_B: How many, 0 to 8.

    Returns:
        Pictures.
    """
    masks_B = LEVELS - 2 ** (8 - bits_B.long())
    return look_up(images_BCYX, (torch.arange(LEVELS) & masks_B[:, None, None]).to(torch.uint8))


def autocontrast(images_BCYX: Tensor) -> Tensor:
    """Stretch each plane over all levels.

    Args:
        images_BCYX: Pictures.

    Returns:
        Pictures.
    """
    planes = images_BCYX.flatten(2)
    low_BC1, high_BC1 = planes.amin(2)[..., None].double(), planes.amax(2)[..., None].double()
    # A number divided by a tensor would be multiplied by its inverse, which is another number now and then.
    scale_BC1 = torch.full_like(low_BC1, LEVELS - 1) / (high_BC1 - low_BC1).clamp(min=1)
    levels = torch.arange(LEVELS, dtype=torch.float64)
    table_BCV = torch.where(high_BC1 > low_BC1, levels * scale_BC1 - low_BC1 * scale_BC1, levels)
    return look_up(images_BCYX, _bytes(table_BCV))


def equalize(images_BCYX: Tensor) -> Tensor:
    """Spread each plane's levels evenly.

    Args:
        images_BCYX: Pictures.

    Returns:
        Pictures.
    """
    num_planes = images_BCYX.shape[0] * images_BCYX.shape[1]
    offsets = torch.arange(num_planes)[:, None] * LEVELS
    counts_PV = torch.bincount((images_BCYX.reshape(num_planes, -1) + offsets).flatten(), minlength=num_planes * LEVELS)
    counts_PV = counts_PV.view(num_planes, LEVELS)
    highest_P = images_BCYX.reshape(num_planes, -1).amax(1).long()
    last_P1 = counts_PV.gather(1, highest_P[:, None])
    step_P1 = (counts_PV.sum(1, keepdim=True) - last_P1) // (LEVELS - 1)
    before_PV = counts_PV.cumsum(1) - counts_PV + step_P1 // 2
    levels = torch.arange(LEVELS)
    table_PV = torch.where(step_P1 > 0, before_PV // step_P1.clamp(min=1), levels).clamp(max=LEVELS - 1)
    return look_up(images_BCYX, table_PV.view(*images_BCYX.shape[:2], LEVELS).to(torch.uint8))


def look_up(images_BCYX: Tensor, table_BCV: Tensor) -> Tensor:
    """Give each level another.

    Args:
        images_BCYX: Pictures.
        table_BCV: Unsigned bytes: the 256 levels for each picture, and for each plane or for all.

    Returns:
        Pictures.
    """
    table_BCV = table_BCV.expand(*images_BCYX.shape[:2], LEVELS)
    return table_BCV.gather(2, images_BCYX.flatten(2).long()).view_as(images_BCYX)


def affine(images_BCYX: Tensor, matrices_B23: Tensor) -> Tensor:
    """Move pixels: what stands at (x, y) comes from (a·x + b·y + c, d·x + e·y + f), bilinear; grey outside.

    Args:
        images_BCYX: Pictures.
        matrices_B23: ((a, b, c), (d, e, f)) for each, float64, in pixels from the upper left corner.

    Returns:
        Pictures.
    """
    rows, columns = images_BCYX.shape[2:]
    half = torch.tensor([columns / 2, rows / 2], dtype=torch.float64)
    # From corner and pixels to centre and halves of a side, as grid_sample counts.
    turn_B22 = matrices_B23[:, :, :2]
    shift_B2 = matrices_B23[:, :, 2] + turn_B22 @ half - half
    theta_B23 = torch.cat([turn_B22 * half / half[:, None], (shift_B2 / half)[:, :, None]], 2)
    grid = F.affine_grid(theta_B23.float(), list(images_BCYX.shape), align_corners=False)
    moved = F.grid_sample(images_BCYX.float() - FILL, grid, mode="bilinear", align_corners=False)
    return _bytes(moved + (FILL + 0.5))


def blur(images_BCYX: Tensor, sigmas_B: Tensor, radius: int) -> Tensor:
    """Blur with a Gaussian kernel; the edge is mirrored.

    Args:
        images_BCYX: Pictures.
        sigmas_B: Widths in pixels.
        radius: The kernel has 2 · radius + 1 weights, radius less than a side.

    Returns:
        Pictures.
    """
    places = torch.arange(-radius, radius + 1, dtype=torch.float32)
    weights_BK = torch.exp(-0.5 * (places / sigmas_B.float()[:, None]) ** 2)
    weights_BK = weights_BK / weights_BK.sum(1, keepdim=True)
    rows, columns = images_BCYX.shape[2:]
    planes = F.pad(images_BCYX.float(), (radius,) * 4, mode="reflect")
    wide = weights_BK[:, 0, None, None, None] * planes[..., :columns]
    for place in range(1, 2 * radius + 1):
        wide.addcmul_(weights_BK[:, place, None, None, None], planes[..., place : place + columns])
    blurred = weights_BK[:, 0, None, None, None] * wide[..., :rows, :]
    for place in range(1, 2 * radius + 1):
        blurred.addcmul_(weights_BK[:, place, None, None, None], wide[..., place : place + rows, :])
    return _bytes(blurred + 0.5)


def _blend(base_BCYX: Tensor, images_BCYX: Tensor, factors_B: Tensor) -> Tensor:
    """Base + factor · (image − base)."""
    factors_B111 = factors_B.float()[:, None, None, None]
    return _bytes(base_BCYX + factors_B111 * (images_BCYX.float() - base_BCYX))


def _bytes(values: Tensor) -> Tensor:
    """Cut to whole levels, as Pillow does; it does not round."""
    return values.clamp(0, LEVELS - 1).to(torch.uint8)
