"""Where a token stands: encodings that are added or concatenated, biases on the scores, rotations of queries and keys.

Attention itself is permutation equivariant; all knowledge of order comes from here. Positions come from the segments
(``segments.positions_N()``), so no encoding can be shifted by padding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from regard.attention.masks import Grid, check_tensor
from regard.errors import ContextError, UsageError


def sinusoidal(
    positions_N: Tensor, dim: int, layout: Literal["interleaved", "halves"] = "interleaved", base: float = 10000.0
) -> Tensor:
    """Encode positions by sines and cosines of geometrically spaced wavelengths.

    PE(pos, 2i) = sin(pos / base^(2i/D)), PE(pos, 2i + 1) = cos(pos / base^(2i/D)); ``halves`` puts all sines first,
    then all cosines. For a fixed k, PE(pos + k) is a linear function of PE(pos).

    Args:
        positions_N: Positions, any real numbers.
        dim: Width D, even.
        layout: ``interleaved`` as in the paper, or ``halves`` as in tensor2tensor.
        base: Base of the wavelengths, from 2π to base · 2π.

    Returns:
        encoding_ND in float32 (float64 where the positions are).

    Raises:
        UsageError: The width is odd.

    Source: Vaswani et al. 2017, §3.5.
    """
    if dim % 2:
        raise UsageError(f"sinusoidal positions of odd width {dim}", mend="give an even width")
    dtype = torch.float64 if positions_N.dtype == torch.float64 else torch.float32
    # Frequencies in float64: in float32 the angle of position 10⁴ would be off by a thousandth of a turn.
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=positions_N.device) / dim
    angles_NF = positions_N.to(torch.float64)[..., None] * base**-exponents
    sin_NF, cos_NF = angles_NF.sin(), angles_NF.cos()
    if layout == "halves":
        return torch.cat([sin_NF, cos_NF], -1).to(dtype)
    return torch.stack([sin_NF, cos_NF], -1).flatten(-2).to(dtype)


def sincos_2d(height: int, width: int, dim: int, device: torch.device | str | None = None) -> Tensor:
    """Encode the places of a grid: half of the width encodes the column, half the row (He et al. 2021, as released).

    Args:
        height: Rows Y of the grid.
        width: Columns X of the grid.
        dim: Width D, a multiple of 4.
        device: Device of the result; None is torch's default.

    Returns:
        encoding_ND of the Y · X places, row by row.

    Raises:
        UsageError: The width is no multiple of 4.
    """
    if dim % 4:
        raise UsageError(f"2-D positions of width {dim}", mend="give a multiple of 4")
    rows_N = torch.arange(height, device=device).repeat_interleave(width)
    columns_N = torch.arange(width, device=device).repeat(height)
    return torch.cat([sinusoidal(columns_N, dim // 2, "halves"), sinusoidal(rows_N, dim // 2, "halves")], -1)


class LearnedPositions(nn.Module):
    """A table with one learned vector a position (Gehring et al. 2017, §3.1).

    Args:
        max_len: Positions of the table.
        embed_dim: Width D.
    """

    def __init__(self, max_len: int, embed_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_len, embed_dim))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, positions_N: Tensor, bound: int) -> Tensor:
        """Look positions up.

        Args:
            positions_N: int64, positions.
            bound: A length known on the host that no position reaches beyond.

        Returns:
            encoding_ND.

        Raises:
            ContextError: The longest sequence is longer than the table.
        """
        if bound > len(self.weight):
            longest = int(positions_N.max()) + 1 if positions_N.numel() else 0  # the bound may be rounded up
            if longest > len(self.weight):
                raise ContextError(f"a sequence of {longest} tokens; the model has positions for {len(self.weight)}")
        return nn.functional.embedding(positions_N, self.weight)


def rotate(
    x_NHK: Tensor, positions_N: Tensor, base: float = 10000.0, layout: Literal["halves", "pairs"] = "halves"
) -> Tensor:
    """Rotate queries or keys by angles proportional to their positions, so that q · k depends on the distance alone.

    Each pair of coordinates (a, b) becomes (a cos φ − b sin φ, a sin φ + b cos φ) with φ = pos · base^(−2i/K).

    Args:
        x_NHK: Queries or keys.
        positions_N: Position of each row.
        base: Base of the wavelengths.
        layout: ``halves`` pairs coordinate i with i + K/2 (GPT-NeoX, Llama), ``pairs`` 2i with 2i + 1 (the paper).

    Returns:
        The rotated vectors, in the input's dtype.

    Raises:
        UsageError: The head size is odd.

    Source: Su et al. 2021, §3.2.2.
    """
    head_dim = x_NHK.shape[-1]
    if head_dim % 2:
        raise UsageError(f"rotary positions with odd head size {head_dim}", mend="give an even head size")
    encoding_NK = sinusoidal(positions_N, head_dim, "halves", base)
    if x_NHK.dtype == torch.float64:
        encoding_NK = sinusoidal(positions_N.double(), head_dim, "halves", base)
    sin_NF, cos_NF = (half[:, None] for half in encoding_NK.chunk(2, -1))
    x = x_NHK.to(encoding_NK.dtype)
    if layout == "halves":
        a, b = x.chunk(2, -1)
        rotated = torch.cat([a * cos_NF - b * sin_NF, a * sin_NF + b * cos_NF], -1)
    else:
        a, b = x[..., 0::2], x[..., 1::2]
        rotated = torch.stack([a * cos_NF - b * sin_NF, a * sin_NF + b * cos_NF], -1).flatten(-2)
    return rotated.to(x_NHK.dtype)


class Bias(nn.Module, ABC):
    """Base of floats added to scores: a function of where the score stands."""

    @abstractmethod
    def forward(self, at: Grid) -> Tensor:
        """Give the bias.

        Args:
            at: Where the scores stand.

        Returns:
            Floats, broadcastable to (B, H, T, S).
        """

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        """Refuse a batch that the bias does not cover, which would be read wrongly rather than fail.

        Args:
            sequences: Sequences B.
            heads: Query heads H.
            queries: The most queries of a sequence.
            keys: The most keys of a sequence, where the host knows them; otherwise 0.

        Raises:
            UsageError: It is too small, or made for another batch.
        """


class TensorBias(Bias):
    """A bias given as a tensor.

    Args:
        bias: Floats, (T, S), (H, T, S) or (B, H, T, S), where B divides the number of sequences and H may be 1.

    Raises:
        UsageError: Not floats, or not of two to four dimensions.
    """

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        if not bias.is_floating_point() or not 2 <= bias.dim() <= 4:
            raise UsageError(
                f"a bias of type {bias.dtype} and shape {tuple(bias.shape)}",
                mend="give floats of shape (T, S), (H, T, S) or (B, H, T, S); a bool tensor is a mask",
            )
        self.bias_BHTS = bias[(None,) * (4 - bias.dim())]  # not registered: it belongs to whoever made it

    def forward(self, at: Grid) -> Tensor:
        batch, heads, queries, keys = self.bias_BHTS.shape
        return self.bias_BHTS[
            at.sequence % batch,
            at.head.clamp(max=heads - 1),
            at.query.clamp(max=queries - 1),
            at.key.clamp(max=keys - 1),
        ]

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        check_tensor("bias", self.bias_BHTS, sequences, heads, queries, keys)


class Alibi(Bias):
    """−m_h · |distance|: a penalty that grows with the distance, at a rate of its own for each head.

    Slopes are 2^(−8i/H); where H is no power of two, the missing ones are taken from the next power's odd places.

    Args:
        num_heads: Query heads H.

    Source: Press et al. 2022, §3.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        power = 2 ** math.floor(math.log2(num_heads))
        slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
        slopes += [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * (num_heads - power) + 1, 2)]
        self.register_buffer("slopes_H", torch.tensor(slopes), persistent=False)

    def forward(self, at: Grid) -> Tensor:
        slopes_H: Tensor = self.slopes_H  # type: ignore[assignment]
        return -slopes_H[at.head] * at.distance.abs()

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        _check_heads("ALiBi", len(self.slopes_H), heads)  # type: ignore[arg-type]


class RelativeBias(Bias):
    """A learned number for each head and bucket of distances; far distances share buckets (Raffel et al. 2020, §2.1).

    Args:
        num_heads: Query heads H.
        num_buckets: Buckets, an even number where both directions are told apart.
        max_distance: Distances from here on share the last bucket.
        bidirectional: Tell keys ahead from keys behind; False lets all keys ahead share bucket 0.

    Raises:
        UsageError: Too few buckets for an exact one in each direction, or all distances up to the greatest are exact.
    """

    def __init__(
        self, num_heads: int, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        exact = num_buckets // (4 if bidirectional else 2)
        if exact < 1 or max_distance <= exact:
            raise UsageError(
                f"{num_buckets} relative buckets for distances up to {max_distance}",
                mend="give at least 2 buckets (4 in both directions) and a greater distance than half of a direction's",
            )
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        nn.init.normal_(self.weight, std=0.02)

    def bucket(self, distance: Tensor) -> Tensor:
        """Sort distances into buckets: half of them exact, half growing logarithmically.

        Args:
            distance: int64, places from key forward to query.

        Returns:
            int64 indices of buckets.
        """
        buckets = len(self.weight)
        ahead = torch.zeros_like(distance)
        if self.bidirectional:
            buckets //= 2
            ahead = (distance < 0) * buckets
            distance = distance.abs()
        else:
            distance = distance.clamp(min=0)
        exact = buckets // 2
        growth = torch.log(distance.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (buckets - exact)).to(torch.int64)).clamp(max=buckets - 1)
        return ahead + torch.where(distance < exact, distance, far)

    def forward(self, at: Grid) -> Tensor:
        return self.weight[self.bucket(at.distance), at.head]

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        _check_heads("relative biases", self.weight.shape[1], heads)


class WindowBias(Bias):
    """A learned number for each head and offset in a two-dimensional window of M × M tokens.

    Args:
        num_heads: Query heads H.
        window: Tokens M on a side.

    Source: Liu et al. 2021, §3.2, equation 4.
    """

    def __init__(self, num_heads: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.weight = nn.Parameter(torch.empty((2 * window - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, at: Grid) -> Tensor:
        return self.at_offsets(at, self.window)

    def at_offsets(self, at: Grid, width: int) -> Tensor:
        """Give the bias between the tokens of a window that may be smaller.

        Args:
            at: Where the scores stand.
            width: Tokens of a row of the window, at most M.

        Returns:
            Floats, broadcastable to (B, H, T, S).
        """
        middle, side = self.window - 1, 2 * self.window - 1
        rows = at.query // width - at.key // width + middle
        columns = at.query % width - at.key % width + middle
        return self.weight[rows * side + columns, at.head]

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        self.check_size((self.window, self.window), heads, max(queries, keys))

    def check_size(self, size: tuple[int, int], heads: int, tokens: int) -> None:
        """Refuse a batch that does not fit windows of a size.

        Args:
            size: Height and width of a window.
            heads: Query heads H.
            tokens: The most tokens of a sequence.

        Raises:
            UsageError: There are other heads, or more tokens.
        """
        _check_heads("window biases", self.weight.shape[1], heads)
        if tokens > size[0] * size[1]:
            raise UsageError(f"{tokens} tokens in a window of {size[0]} × {size[1]}", where="attend")

    def within(self, size: tuple[int, int]) -> Bias:
        """See the same numbers in smaller windows: an offset keeps its number.

        Args:
            size: Height and width of a window, each at most M.

        Returns:
            The bias.
        """
        return self if size == (self.window, self.window) else SmallerWindow(self, size)


class SmallerWindow(Bias):
    """The numbers of a table for windows of M × M tokens, in windows that are smaller; see :meth:`WindowBias.within`.

    Args:
        whole: The table's.
        size: Height and width of a window, each at most M.
    """

    def __init__(self, whole: WindowBias, size: tuple[int, int]) -> None:
        super().__init__()
        self.whole, self.size = whole, size

    def forward(self, at: Grid) -> Tensor:
        return self.whole.at_offsets(at, self.size[1])

    def check(self, sequences: int, heads: int, queries: int, keys: int) -> None:
        self.whole.check_size(self.size, heads, max(queries, keys))


def _check_heads(what: str, own: int, heads: int) -> None:
    if own != heads:
        raise UsageError(f"{what} of {own} heads for {heads} query heads", where="attend")
