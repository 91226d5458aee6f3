"""Small image encoders of every kind of geometry, and a picture, drawn here."""

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention import MultiHeadAttention, Segments, Site, attend
from regard.layers.block import Block
from regard.looking import Maps
from regard.looking.seeing import look_at_image
from regard.models.interface import Features, ImageEncoder
from regard.tasks.labeller import Label


class MiniViT(ImageEncoder):
    """A class token and patches of 4 pixels, two blocks."""

    def __init__(self, num_extra: int = 1, num_layers: int = 2, num_heads: int = 2) -> None:
        super().__init__()
        self.head, self.width, self.num_depths, self.num_extra = None, 12, 3, num_extra
        self.patches = nn.Conv2d(3, 12, 4, 4)
        self.extra_ED = nn.Parameter(torch.randn(num_extra, 12))
        self.blocks = nn.ModuleList(Block(12, num_heads, 24, norm="pre") for _ in range(num_layers))

    def forward(self, pixels_BCYX: Tensor) -> Features:
        x_BDYX = self.patches(pixels_BCYX)
        grid = (x_BDYX.shape[2], x_BDYX.shape[3])
        x_BND = x_BDYX.flatten(2).mT
        x_BND = torch.cat([self.extra_ED.expand(len(x_BND), -1, -1), x_BND], 1)
        segments = Segments.uniform(len(x_BND), x_BND.shape[1])
        x_ND = x_BND.flatten(0, 1)
        for block in self.blocks:
            x_ND = block(x_ND, segments)
        return Features(x_ND, segments, grid, self.num_extra)

    def pool(self, features: Features) -> Tensor:
        return features.grid_BYXD().mean((1, 2))

    def depth(self, name: str) -> int:
        return 0


def window_rows(grid: tuple[int, int], side: int) -> list[list[int]]:
    """Places of windows, row by row, smaller at the lower and right edge."""
    height, width = grid
    return [
        [y * width + x for y in range(top, min(top + side, height)) for x in range(left, min(left + side, width))]
        for top in range(0, height, side)
        for left in range(0, width, side)
    ]


class MiniWindows(MiniViT):
    """Windows of 2 × 2 patches, then, over patches merged two by two, windows of 3 × 3."""

    def __init__(self) -> None:
        super().__init__(num_extra=0)
        self.merge = nn.AvgPool2d(2, ceil_mode=True)

    def grids(self, size: tuple[int, int]) -> list[tuple[tuple[int, int], list[list[int]]]]:
        first = (size[0] // 4, size[1] // 4)
        second = (-(-first[0] // 2), -(-first[1] // 2))
        return [(first, window_rows(first, 2)), (second, window_rows(second, 3))]

    def places(self, layer, size):
        return self.grids(size)[int(layer.split(".")[1])]

    def forward(self, pixels_BCYX: Tensor) -> Features:
        x_BDYX = self.patches(pixels_BCYX)
        for i, (grid, windows) in enumerate(self.grids(tuple(pixels_BCYX.shape[-2:]))):
            x_BDYX = self.merge(x_BDYX) if i else x_BDYX
            order = torch.tensor([place for window in windows for place in window])
            x_ND = x_BDYX.flatten(2)[0].mT[order]
            x_ND = self.blocks[i](x_ND, Segments.ragged([len(window) for window in windows]))
            x_BDYX = x_ND[order.argsort()].mT.reshape(1, -1, *grid)
        return Features(x_BDYX.flatten(2)[0].mT, Segments.uniform(1, grid[0] * grid[1]), grid)


class Attention2d(Site):
    """Attention from every place of a grid to every place, as in a convolutional network."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        q, k, v = (part.flatten(2).mT.flatten(0, 1)[:, None] for part in self.qkv(x_BCYX).chunk(3, 1))
        segments = Segments.uniform(len(x_BCYX), x_BCYX.shape[2] * x_BCYX.shape[3])
        y_N1K = attend(q, k, v, segments, segments, site=self)
        return x_BCYX + y_N1K[:, 0].unflatten(0, (len(x_BCYX), -1)).mT.reshape(x_BCYX.shape)


class MiniConv(MiniViT):
    """A convolutional network with attention on a grid that its features no longer have."""

    def __init__(self) -> None:
        super().__init__(num_extra=0)
        self.attention, self.down = Attention2d(12), nn.Conv2d(12, 12, 2, 2)

    def forward(self, pixels_BCYX: Tensor) -> Features:
        x_BDYX = self.down(self.attention(self.patches(pixels_BCYX)))
        grid = (x_BDYX.shape[2], x_BDYX.shape[3])
        return Features(x_BDYX.flatten(2).mT.flatten(0, 1), Segments.uniform(len(x_BDYX), grid[0] * grid[1]), grid)


class MiniPool(MiniViT):
    """Two learned queries that attend to all patches."""

    def __init__(self) -> None:
        super().__init__(num_extra=0, num_layers=0)
        self.attn, self.query_2D = MultiHeadAttention(12, 3), nn.Parameter(torch.randn(2, 12))

    def forward(self, pixels_BCYX: Tensor) -> Features:
        features = super().forward(pixels_BCYX)
        self.attn(self.query_2D, Segments.uniform(1, 2), features.hidden_ND, features.segments)
        return features


def a_picture(height: int = 20, width: int = 28) -> np.ndarray:
    """A disc on a slope of colours."""
    y, x = np.mgrid[:height, :width]
    disc = (y - height * 0.4) ** 2 + (x - width * 0.6) ** 2 < (height * 0.25) ** 2
    slope = np.stack([255 * y / height, 255 * x / width, np.full(y.shape, 90.0)], -1)
    return np.where(disc[..., None], [250, 240, 80], slope).astype(np.uint8)


def to_pixels(image_YXC: np.ndarray) -> Tensor:
    return torch.tensor(image_YXC).permute(2, 0, 1)[None].float() / 255 - 0.5


def spread(encoder: nn.Module, seed: int = 3) -> nn.Module:
    """Move weights so far that attention is not even."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return encoder


def some_seen(kind: type[MiniViT] = MiniViT, word: str = "w", size: tuple[int, int] = (20, 28)) -> Maps:
    image = a_picture(*size)
    return look_at_image(spread(kind()), to_pixels(image), image, word, word)


class Product:
    """A model in use, as `regard.load` gives one; it reads every file as the same picture."""

    verbs, task = ("classify", "embed"), "classify-images"

    def __init__(self, verbs=("classify", "embed")):
        self.model, self.device, self.verbs = spread(MiniViT()), torch.device("cpu"), verbs

    def images(self, paths):
        self.read = [str(path) for path in paths]
        return self

    def batch(self, indices):
        return torch.from_numpy(a_picture()).permute(2, 0, 1)[None].repeat(len(indices), 1, 1, 1)

    def pixels(self, images_BCYX):
        assert images_BCYX.dtype == torch.uint8
        return images_BCYX.float() / 255 - 0.5

    def classify(self, images):
        assert images is self
        return [Label("disc", {"disc": 0.75, "ring": 0.25})]
