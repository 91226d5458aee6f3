"""A small residual convolutional network, with self-attention after chosen stages where it is asked for.

Papers: He et al. 2016, "Deep Residual Learning for Image Recognition", §3.4 for large pictures, §4.2 for small ones;
Zhang et al. 2018, "Self-Attention Generative Adversarial Networks", for the attention. Ours differs in: group norm in
place of batch norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from regard.attention import Segments
from regard.errors import ConfigError, UsageError
from regard.layers.convolution import ResidualBlock, SelfAttention2d, draw_he, group_norm
from regard.models.interface import Features, ImageEncoder, check_image_size
from regard.models.registry import Family, register

MAX_WIDTH, MAX_BLOCKS, MAX_STAGES = 65_536, 1_000, 16


@dataclass(frozen=True)
class ConvNetConfig:
    """Settings of a residual network.

    Attributes:
        image_size: Height and width in pixels of the images that it is made for; others can be read.
        num_channels: Channels of the images.
        num_classes: Classes; 0 for no head.
        widths: Channels of each stage; from the second on, each halves the grid.
        blocks: Residual blocks of each stage.
        stem: What reads pixels: ``small`` keeps the grid of small pictures (3 × 3), ``large`` quarters it (7 × 7 with
            stride 2, then the greatest of 3 × 3 with stride 2).
        attention_after: Stages, counted from 1, that self-attention between all places follows.
    """

    image_size: tuple[int, ...] = (224, 224)
    num_channels: int = 3
    num_classes: int = 0
    widths: tuple[int, ...] = (64, 128, 256)
    blocks: tuple[int, ...] = (2, 2, 2)
    stem: Literal["small", "large"] = "small"
    attention_after: tuple[int, ...] = ()


class ConvNet(ImageEncoder):
    """x = stem(pixels); x ← block(x), stage after stage; the features are the last grid.

    Args:
        config: The settings.

    Raises:
        ConfigError: The size of images is no height and width; stages are none, too many or disagree; a width or a
            number of blocks is out of range; or attention is to follow a stage that there is not.

    Source: He et al. 2016, §3.3, table 1 and §4.2.
    """

    def __init__(self, config: ConvNetConfig) -> None:
        super().__init__()
        c = self.config = config
        check_image_size(c.image_size)
        _check(c)
        self.width = c.widths[-1]
        large = c.stem == "large"
        stem: list[nn.Module] = [
            nn.Conv2d(c.num_channels, c.widths[0], 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False),
            group_norm(c.widths[0]),
            nn.ReLU(),
        ]
        draw_he(stem[0])  # type: ignore[arg-type]
        self.stem = nn.Sequential(*stem, *([nn.MaxPool2d(3, 2, 1)] if large else []))
        layers: list[nn.Module] = []
        before = c.widths[0]
        for stage, (width, count) in enumerate(zip(c.widths, c.blocks, strict=True), 1):
            for number in range(count):
                layers.append(ResidualBlock(before, width, 2 if stage > 1 and not number else 1))
                before = width
            if stage in c.attention_after:
                layers.append(SelfAttention2d(width))
        self.layers = nn.ModuleList(layers)
        self.num_depths = len(layers) + 2
        self._least = (4 if large else 1) * 2 ** (len(c.widths) - 1)
        self.head = nn.Linear(self.width, c.num_classes) if c.num_classes else None
        if self.head is not None:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, pixels_BCYX: Tensor) -> Features:
        """Encode images.

        Args:
            pixels_BCYX: Floats, normalized as the model was trained; height and width may be others than
                ``config.image_size``.

        Returns:
            The features: the last grid, row by row.

        Raises:
            UsageError: Another number of channels, or an image smaller than one place of the last grid.
        """
        c = self.config
        if pixels_BCYX.dim() != 4 or pixels_BCYX.shape[1] != c.num_channels:
            what = f"pixels of shape {tuple(pixels_BCYX.shape)}"
            raise UsageError(what, mend=f"give (images, {c.num_channels} channels, height, width)")
        height, width = pixels_BCYX.shape[2:]
        if min(height, width) < self._least:
            mend = f"a place of the last grid has {self._least} × {self._least}"
            raise UsageError(f"an image of {height} × {width} pixels", mend=mend)
        x_BCYX = self.stem(pixels_BCYX)
        for layer in self.layers:
            x_BCYX = layer(x_BCYX)
        count, _, rows, columns = x_BCYX.shape
        segments = Segments.uniform(count, rows * columns, x_BCYX.device)
        return Features(x_BCYX.permute(0, 2, 3, 1).flatten(0, 2), segments, (rows, columns))

    def pool(self, features: Features) -> Tensor:
        """Make one vector of each image: the mean over the grid."""
        return features.hidden_ND.unflatten(0, (len(features.segments), -1)).mean(1)

    def depth(self, name: str) -> int:
        """Say how deep a parameter stands: 0 for the stem, then a layer each, then the head."""
        part, _, rest = name.partition(".")
        if part == "layers":
            return int(rest.partition(".")[0]) + 1
        return 0 if part == "stem" else self.num_depths - 1


def _check(c: ConvNetConfig) -> None:
    """Refuse stages that no model has."""
    if not 1 <= len(c.widths) <= MAX_STAGES or len(c.blocks) != len(c.widths):
        what = f"{len(c.widths)} widths and {len(c.blocks)} numbers of blocks"
        raise ConfigError(what, mend=f"give one of each for each of 1 to {MAX_STAGES} stages")
    for name, values, most in (("widths", c.widths, MAX_WIDTH), ("blocks", c.blocks, MAX_BLOCKS)):
        if not all(1 <= value <= most for value in values):
            raise ConfigError(f"{name} is {list(values)}", mend=f"give 1 to {most:,} for each stage")
    if c.stem not in ("small", "large"):
        raise ConfigError(f"unknown stem {c.stem!r}", mend="choose small or large")
    if not all(1 <= stage <= len(c.widths) for stage in c.attention_after):
        mend = f"stages are 1 to {len(c.widths)}"
        raise ConfigError(f"attention_after is {list(c.attention_after)}", mend=mend)


register(
    Family(
        name="convnet",
        config=ConvNetConfig,
        build=ConvNet,
        tiny=(
            ConvNetConfig((12, 20), 3, 5, (6, 10), (1, 2), "small", (2,)),
            ConvNetConfig((16, 16), 1, 0, (8, 12), (2, 1), "large", (1, 2)),
        ),
    )
)
