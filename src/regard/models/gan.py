"""A generator of images and a discriminator, trained against one another.

Papers: Goodfellow et al. 2014, "Generative Adversarial Nets"; Radford et al. 2016, "DCGAN", for the convolutions; Zhang
et al. 2018, "Self-Attention Generative Adversarial Networks", for spectral norm in both parts and self-attention on a
grid between. Ours differs in: group norm in place of batch norm, so that an image does not depend on those made beside
it; no classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, UsageError
from regard.layers.convolution import SelfAttention2d, group_norm, spectral
from regard.models.interface import check_image_size
from regard.models.registry import Family, register

# The smallest grid has at least the first and at most the second number of places a side.
LEAST_BASE, MOST_BASE = 4, 16
_SLOPE = 0.2  # of leaky rectifiers (Radford et al. 2016, §3)
_STD = 0.02  # of all weights at the start (ibid., §4)


@dataclass(frozen=True)
class GanConfig:
    """Settings of a generator and its discriminator.

    Attributes:
        image_size: Height and width in pixels: a base of 4 to 16, doubled some times: 28 is 7 · 2², 64 is 4 · 2⁴.
        num_channels: Channels of the images.
        latent_dim: Numbers that an image is made from, normally distributed.
        base_channels: Channels of the largest inner grid; each smaller one has twice as many.
        max_channels: Most channels of a grid.
        spectral_norm: Weights of both parts have spectral norm 1; the discriminator then has no other norm.
        attention_size: Height of the grid on which both parts attend from each place to all; 0 for none.
    """

    image_size: tuple[int, ...] = (32, 32)
    num_channels: int = 3
    latent_dim: int = 128
    base_channels: int = 64
    max_channels: int = 512
    spectral_norm: bool = False
    attention_size: int = 0


def inner_grids(image_size: tuple[int, ...]) -> list[tuple[int, int]]:
    """Say which grids lie between the latents and an image.

    Args:
        image_size: Height and width in pixels.

    Returns:
        Rows and columns of each, from the smallest on; each is half of the next, the last half of the image.

    Raises:
        ConfigError: The size is no height and width, or no base that was doubled.

    >>> inner_grids((28, 28))
    [(7, 7), (14, 14)]
    """
    height, width = check_image_size(image_size)
    grids: list[tuple[int, int]] = []
    rows, columns = height, width
    while rows % 2 == columns % 2 == 0 and min(rows, columns) >= 2 * LEAST_BASE:
        rows, columns = rows // 2, columns // 2
        grids.insert(0, (rows, columns))
    if not grids or max(grids[0]) > MOST_BASE:
        mend = f"give sides of {LEAST_BASE} to {MOST_BASE}, doubled as many times: 28, 32, 48, 64, 96 or 128"
        raise ConfigError(f"image_size is {height} × {width}, no small grid that was doubled", mend=mend)
    return grids


def _widths(c: GanConfig, grids: list[tuple[int, int]]) -> list[int]:
    """Channels of each inner grid, from the smallest on."""
    return [min(c.base_channels * 2**place, c.max_channels) for place in reversed(range(len(grids)))]


class Generator(nn.Module):
    """From latents to images: a linear layer, then convolutions that double the grid, and tanh.

    Args:
        config: The settings.

    Source: Radford et al. 2016, §3 and figure 1; Zhang et al. 2018, §3 and §4.
    """

    def __init__(self, config: GanConfig) -> None:
        super().__init__()
        c, self.grids = config, inner_grids(config.image_size)
        widths = _widths(c, self.grids)
        rows, columns = self.grids[0]
        self.start = nn.Linear(c.latent_dim, widths[0] * rows * columns)
        layers: list[nn.Module] = []
        for grid, width, narrower in zip(self.grids, widths, [*widths[1:], c.num_channels], strict=True):
            layers += [group_norm(width), nn.ReLU()]
            if grid[0] == c.attention_size:
                layers.append(SelfAttention2d(width, spectral_norm=c.spectral_norm))
            # Kernels that the stride divides reach all places equally often: no chequered pattern.
            layers.append(nn.ConvTranspose2d(width, narrower, 4, 2, 1))
        self.layers = nn.Sequential(*layers)
        _draw(self, c.spectral_norm)

    def forward(self, latents_BZ: Tensor) -> Tensor:
        """Make images.

        Args:
            latents_BZ: Numbers from a normal distribution.

        Returns:
            pixels_BCYX, from −1 to 1.

        Raises:
            UsageError: The latents are no rows of ``latent_dim`` numbers.
        """
        if latents_BZ.dim() != 2 or latents_BZ.shape[1] != self.start.in_features:
            what = f"latents of shape {tuple(latents_BZ.shape)}"
            raise UsageError(what, mend=f"give (images, {self.start.in_features} numbers)")
        return torch.tanh(self.layers(self.start(latents_BZ).unflatten(1, (-1, *self.grids[0]))))


class Discriminator(nn.Module):
    """From images to a score each: convolutions that halve the grid, then a linear layer.

    Args:
        config: The settings.

    Source: Radford et al. 2016, §3; Zhang et al. 2018, §3 and §4.
    """

    def __init__(self, config: GanConfig) -> None:
        super().__init__()
        c, grids = config, inner_grids(config.image_size)
        widths = _widths(c, grids)
        layers: list[nn.Module] = []
        before = c.num_channels
        for grid, width in zip(reversed(grids), reversed(widths), strict=True):
            layers.append(nn.Conv2d(before, width, 4, 2, 1))
            if not c.spectral_norm and before != c.num_channels:  # none right behind the pixels (Radford et al., §3)
                layers.append(group_norm(width))
            layers.append(nn.LeakyReLU(_SLOPE))
            if grid[0] == c.attention_size:
                layers.append(SelfAttention2d(width, spectral_norm=c.spectral_norm))
            before = width
        self.layers = nn.Sequential(*layers)
        self.num_channels, self.size = c.num_channels, (c.image_size[0], c.image_size[1])
        self.score = nn.Linear(before * grids[0][0] * grids[0][1], 1)
        _draw(self, c.spectral_norm)

    def forward(self, pixels_BCYX: Tensor) -> Tensor:
        """Score images.

        Args:
            pixels_BCYX: From −1 to 1.

        Returns:
            scores_B, at least float32; greater for what looks real: its logit, by the losses of Goodfellow et al.

        Raises:
            UsageError: The images are of another size or number of channels.
        """
        if pixels_BCYX.dim() != 4 or pixels_BCYX.shape[1:] != (self.num_channels, *self.size):
            what = f"pixels of shape {tuple(pixels_BCYX.shape)}"
            raise UsageError(what, mend=f"give (images, {self.num_channels}, {self.size[0]}, {self.size[1]})")
        scores_B = self.score(self.layers(pixels_BCYX).flatten(1))[:, 0]
        return scores_B.to(torch.promote_types(scores_B.dtype, torch.float32))


def _draw(part: nn.Module, spectral_norm: bool) -> None:
    """Draw the weights of linear layers and convolutions, those of attention apart."""
    attends = {id(inner) for one in part.modules() if isinstance(one, SelfAttention2d) for inner in one.modules()}
    for module in list(part.modules()):
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d) and id(module) not in attends:
            nn.init.normal_(module.weight, std=_STD)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            if spectral_norm:
                spectral(module)


class Gan(nn.Module):
    """A generator and its discriminator.

    Args:
        config: The settings.

    Raises:
        ConfigError: The size of images is no small grid that was doubled, or attention is asked for on a grid that is
            none of those between.
    """

    def __init__(self, config: GanConfig) -> None:
        super().__init__()
        self.config = config
        heights = [rows for rows, _ in inner_grids(config.image_size)]
        if config.attention_size and config.attention_size not in heights:
            mend = f"choose {', '.join(map(str, heights))}, or 0 for none"
            raise ConfigError(f"attention_size is {config.attention_size}", mend=mend)
        self.generator, self.discriminator = Generator(config), Discriminator(config)

    def forward(self, latents_BZ: Tensor) -> Tensor:
        """Make images; see :class:`Generator`."""
        return self.generator(latents_BZ)


register(
    Family(
        name="gan",
        config=GanConfig,
        build=Gan,
        tiny=(
            GanConfig((28, 20), 1, 7, 8, 512, spectral_norm=False, attention_size=0),
            GanConfig((16, 24), 3, 5, 8, 8, spectral_norm=True, attention_size=8),
        ),
    )
)
