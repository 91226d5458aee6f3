"""Convolutions over a grid: residual blocks, self-attention between all places, and weights of spectral norm 1.

Norms here are group norms: their statistics are those of one image alone. So an image has the same output in any batch,
and cutting a batch into micro-batches cannot change a gradient, as it would with batch norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from regard.attention import Segments, Site, attend
from regard.attention.scores import Dot
from regard.attention.sites import check_heads

# Channels of a group at most (Wu & He 2018, table 3: 16 do as well as 32 groups, and suit narrow layers).
GROUP_CHANNELS = 16
_START_ROUNDS = 15


def group_norm(num_channels: int) -> nn.GroupNorm:
    """Make a norm over groups of channels of one image.

    y = γ · (x − mean) / √(variance + ε) + β, with mean and variance over a group's channels and all places.

    Args:
        num_channels: Channels C.

    Returns:
        The norm; its groups have the greatest common divisor of C and 16 channels.

    Source: Wu & He 2018, §3.
    """
    return nn.GroupNorm(num_channels // math.gcd(num_channels, GROUP_CHANNELS), num_channels)


class SpectralNorm(nn.Module):
    """W / σ, with σ = uᵀ W v / (|u| · |v|) an estimate of the greatest singular value: a parametrization of a weight.

    In training every forward pass takes one step of power iteration, v ← Wᵀu, u ← Wv, both of length 1, from where the
    last one stopped: u and v belong to the model's state. σ is divided by the lengths so that it is right for vectors
    that were averaged together with the weights.

    Args:
        weight: The weight.
        out_axis: Its axis of output channels.

    Source: Miyato et al. 2018, §2.1 and appendix A, algorithm 1.
    """

    def __init__(self, weight: Tensor, out_axis: int = 0) -> None:
        super().__init__()
        self.out_axis = out_axis
        matrix_OF = self._matrix(weight.detach())
        self.register_buffer("u_O", nn.functional.normalize(torch.empty_like(matrix_OF[:, 0]).normal_(), dim=0))
        self.register_buffer("v_F", nn.functional.normalize(torch.empty_like(matrix_OF[0]).normal_(), dim=0))
        self.u_O: Tensor
        self.v_F: Tensor
        for _ in range(_START_ROUNDS):
            self._iterate(matrix_OF)

    def forward(self, weight: Tensor) -> Tensor:
        """Divide a weight by the estimate.

        Args:
            weight: The weight as it is trained.

        Returns:
            The weight as it is used; gradients go through σ, with u and v as constants.
        """
        with torch.autocast(weight.device.type, enabled=False):  # a product in half precision would blur σ
            matrix_OF = self._matrix(weight)
            if self.training:
                self._iterate(matrix_OF.detach())
            # Copies: a second forward pass before the backward one moves the buffers, and autograd needs these.
            u_O, v_F = self.u_O.clone(), self.v_F.clone()
            return weight * (u_O.norm() * v_F.norm() / (u_O @ matrix_OF @ v_F))

    def _matrix(self, weight: Tensor) -> Tensor:
        return weight.movedim(self.out_axis, 0).flatten(1)

    @torch.no_grad()
    def _iterate(self, matrix_OF: Tensor) -> None:
        self.v_F.copy_(nn.functional.normalize(self.u_O @ matrix_OF, dim=0))
        self.u_O.copy_(nn.functional.normalize(matrix_OF @ self.v_F, dim=0))


def spectral(layer: nn.Module) -> nn.Module:
    """Give a layer's weight spectral norm 1.

    Args:
        layer: A linear layer, a convolution or a transposed one.

    Returns:
        The same layer.
    """
    weight = layer.get_parameter("weight")
    out_axis = 1 if isinstance(layer, nn.ConvTranspose2d) else 0
    # The estimate starts from the weight as it is: it need not be run once before it is registered.
    parametrize.register_parametrization(layer, "weight", SpectralNorm(weight, out_axis), unsafe=True)
    return layer


class ResidualBlock(nn.Module):
    """y = relu(s + norm(W_2 ∗ relu(norm(W_1 ∗ x)))), both convolutions 3 × 3; s is x, or norm(W_s ∗ x) of a new shape.

    Args:
        in_channels: Channels of x.
        out_channels: Channels of y.
        stride: Of the first convolution and of the 1 × 1 shortcut.

    Source: He et al. 2016, §3.3 and figure 2, shortcuts of kind B; group norm in place of batch norm.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.norm1 = group_norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.norm2 = group_norm(out_channels)
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            project = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(project, group_norm(out_channels))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                draw_he(module)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Transform images of vectors.

        Args:
            x_BCYX: Images.

        Returns:
            y_BCYX, of ⌈Y / stride⌉ × ⌈X / stride⌉ places.
        """
        y_BCYX = torch.relu(self.norm1(self.conv1(x_BCYX)))
        y_BCYX = self.norm2(self.conv2(y_BCYX))
        return torch.relu(y_BCYX + (x_BCYX if self.shortcut is None else self.shortcut(x_BCYX)))


def draw_he(layer: nn.Conv2d) -> None:
    """Draw a convolution's weights as rectified layers need them.

    Args:
        layer: The convolution.

    Source: He et al. 2015, equation 14: a normal distribution of variance 2 / fan-out.
    """
    fan_out = layer.out_channels * math.prod(layer.kernel_size)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / fan_out))


class SelfAttention2d(Site):
    """y = γ · o + x, where o attends from each place of a grid to all places: softmax(f(x)ᵀ g(x)) h(x).

    f, g and h are 1 × 1 convolutions; the dot product is not scaled; γ is learned and starts at 0, so that the network
    starts from what is near and learns what is far.

    Args:
        num_channels: Channels C of x and of the values; queries and keys have C / 8, at least 1.
        spectral_norm: Give the three projections spectral norm 1.

    Source: Zhang et al. 2018, §3, equations 1 to 3. Values have C channels, as in the paper's first version; later ones
        narrow them and widen the result again with one more convolution.
    """

    def __init__(self, num_channels: int, *, spectral_norm: bool = False) -> None:
        super().__init__()
        key_dim = max(1, num_channels // 8)
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Conv2d(num_channels, width, 1) for width in (key_dim, key_dim, num_channels)
        )
        self.gamma = nn.Parameter(torch.zeros(()))
        self.score = Dot()
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            # Glorot's normal distribution.
            std = math.sqrt(2 / (projection.in_channels + projection.out_channels))
            nn.init.normal_(projection.weight, std=std)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
            if spectral_norm:
                spectral(projection)

    def readers(self, heads: Sequence[int]) -> list[Tensor]:
        check_heads(heads, 1, "switch_off")
        return [self.gamma]

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Attend from each place to all places of its image.

        Args:
            x_BCYX: Images of any size.

        Returns:
            y_BCYX.
        """
        count, channels, height, width = x_BCYX.shape
        segments = Segments.uniform(count, height * width, x_BCYX.device)
        q_N1K, k_N1K, v_N1C = (
            # One head; rows in the order image, row, column.
            projection(x_BCYX).permute(0, 2, 3, 1).flatten(0, 2)[:, None]
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        o_N1C = attend(q_N1K, k_N1K, v_N1C, segments, score=self.score, site=self)
        o_BCYX = o_N1C.reshape(count, height, width, channels).permute(0, 3, 1, 2)
        return self.gamma * o_BCYX + x_BCYX
