"""The Transformer block: attention where vectors meet, an MLP where they do not, each behind a residual and a norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from torch import Tensor, nn

from regard.attention import KVCache, MultiHeadAttention, Segments
from regard.attention.masks import Mask
from regard.attention.positions import Bias
from regard.errors import ConfigError, UsageError
from regard.layers.drop_path import DropPath
from regard.layers.mlp import MLP
from regard.layers.windows import Windows


class Own(Protocol):
    """Another way to run a block, which may decline."""

    def __call__(
        self,
        blocks: Sequence[Block],
        x_ND: Tensor,
        segments: Segments,
        caches: Sequence[KVCache],
        contexts: Sequence[KVCache | None],
        context_segments: Segments | None,
        mask: Mask | None,
    ) -> tuple[Tensor, list[KVCache]] | None:
        """Run the first of some blocks, as many as it serves, as :meth:`Block.extend` does; None is not even one."""
        ...

    def whole(
        self,
        x_ND: Tensor,
        segments: Segments,
        mask: Mask | None,
        bias: Bias | None,
        positions_N: Tensor | None,
        windows: Windows | None,
    ) -> Tensor | None:
        """Run the block over whole sequences, as :meth:`Block.forward` does; None where it does not serve."""
        ...


class Block(nn.Module):
    """x ← x + sublayer(norm(x)) (pre) or norm(x + sublayer(x)) (post), for self-attention, cross-attention and MLP.

    Args:
        embed_dim: Width D.
        num_heads: Query heads H.
        mlp_dim: Inner width F of the MLP.
        cross: Attend to a context too (decoder block).
        norm: ``post`` as in the paper, ``pre`` as in later models: steadier without warm-up; its stack ends with a
            norm.
        num_kv_heads: Key–value heads G; None is H.
        activation: Of the MLP.
        dropout_p: Of each sublayer's result.
        attention_dropout_p: Of attention weights.
        mlp_dropout_p: Of the MLP's inner activations.
        drop_path_p: Probability that a sequence goes past a sublayer in training (stochastic depth).
        rotary_base: Rotary positions in self-attention with this base; None for none.
        norm_eps: Added to the variance in norms.
        make_norm: Makes a norm from a width and an epsilon: layer norm, or root mean square norm.
        gated: The MLP has a gate.
        use_bias: Projections have biases.

    Attributes:
        own: Asked before the block runs, and by :func:`extend_all` before those behind it do, where it was packed so;
            else None.

    Raises:
        ConfigError: The norm is neither pre nor post.

    Source: Vaswani et al. 2017, §3.1, §5.4; pre-norm: Xiong et al. 2020; RMS norm: Zhang & Sennrich 2019;
    stochastic depth: Huang et al. 2016, §3.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        *,
        cross: bool = False,
        norm: Literal["pre", "post"] = "post",
        num_kv_heads: int | None = None,
        activation: str = "relu",
        dropout_p: float = 0.0,
        attention_dropout_p: float = 0.0,
        mlp_dropout_p: float = 0.0,
        drop_path_p: float = 0.0,
        rotary_base: float | None = None,
        norm_eps: float = 1e-5,
        make_norm: Callable[[int, float], nn.Module] = nn.LayerNorm,
        gated: bool = False,
        use_bias: bool = True,
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise ConfigError(f"unknown norm {norm!r}", mend="choose pre or post")
        self.pre = norm == "pre"
        self.self_attn = MultiHeadAttention(
            embed_dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            dropout_p=attention_dropout_p,
            rotary_base=rotary_base,
            use_bias=use_bias,
        )
        self.self_norm = make_norm(embed_dim, norm_eps)
        self.cross_attn: MultiHeadAttention | None = None
        self.cross_norm: nn.Module | None = None
        if cross:
            self.cross_attn = MultiHeadAttention(
                embed_dim, num_heads, num_kv_heads=num_kv_heads, dropout_p=attention_dropout_p, use_bias=use_bias
            )
            self.cross_norm = make_norm(embed_dim, norm_eps)
        self.mlp = MLP(embed_dim, mlp_dim, activation, mlp_dropout_p, gated=gated, use_bias=use_bias)
        self.mlp_norm = make_norm(embed_dim, norm_eps)
        self.dropout, self.drop_path = nn.Dropout(dropout_p), DropPath(drop_path_p)
        self.own: Own | None = None

    def _before(self, x_ND: Tensor, norm: nn.Module) -> Tensor:
        return norm(x_ND) if self.pre else x_ND

    def _after(self, x_ND: Tensor, update_ND: Tensor, norm: nn.Module, segments: Segments) -> Tensor:
        x_ND = x_ND + self.drop_path(self.dropout(update_ND), segments)
        return x_ND if self.pre else norm(x_ND)

    def forward(
        self,
        x_ND: Tensor,
        segments: Segments,
        context_MD: Tensor | None = None,
        context_segments: Segments | None = None,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        positions_N: Tensor | None = None,
        windows: Windows | None = None,
    ) -> Tensor:
        """Run the block over whole sequences.

        Args:
            x_ND: Tokens.
            segments: Which belong together.
            context_MD: What a decoder block attends to; None for an encoder block.
            context_segments: Which rows of it belong together.
            mask: For self-attention.
            bias: For self-attention's scores.
            positions_N: Position of each token, for rotation; None counts from 0 in each sequence.
            windows: What self-attention sees in the place of whole sequences, of which each is a grid; mask, bias and
                positions are then those of the tokens of windows.

        Returns:
            y_ND.
        """
        if self.own is not None and context_MD is None:
            found_ND = self.own.whole(x_ND, segments, mask, bias, positions_N, windows)
            if found_ND is not None:
                return found_ND
        before_ND, attended = self._before(x_ND, self.self_norm), segments
        if windows is not None:
            before_ND, attended, mask = windows.take(before_ND), windows.segments, windows.within(mask)
        update_ND = self.self_attn(before_ND, attended, mask=mask, bias=bias, positions_N=positions_N)
        update_ND = update_ND if windows is None else windows.give(update_ND)
        x_ND = self._after(x_ND, update_ND, self.self_norm, segments)
        if self.cross_attn is not None and self.cross_norm is not None:
            before_ND = self._before(x_ND, self.cross_norm)
            update_ND = self.cross_attn(before_ND, segments, context_MD, context_segments)
            x_ND = self._after(x_ND, update_ND, self.cross_norm, segments)
        return self._after(x_ND, self.mlp(self._before(x_ND, self.mlp_norm)), self.mlp_norm, segments)

    def start(self, context_MD: Tensor, segments: Segments, rows: int) -> tuple[KVCache, KVCache]:
        """Get a decoder block ready for cached decoding.

        Args:
            context_MD: What cross-attention attends to.
            segments: Which rows of it belong together.
            rows: Sequences that will be decoded: one or several for each context.

        Returns:
            An empty cache for self-attention, and cross-attention's keys and values.

        Raises:
            UsageError: It is an encoder block.
        """
        if self.cross_attn is None:
            raise UsageError("an encoder block has no cross-attention", where="Block.start")
        context = KVCache.filled(*self.cross_attn.keys_values(context_MD), segments)
        attn = self.self_attn
        return KVCache.empty(rows, 16, attn.num_kv_heads, attn.head_dim, context.k_BCGK), context

    def extend(
        self,
        x_ND: Tensor,
        segments: Segments,
        cache: KVCache,
        context: KVCache | None = None,
        context_segments: Segments | None = None,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
    ) -> tuple[Tensor, KVCache]:
        """Run the block over new tokens, given the keys and values of those before.

        Args:
            x_ND: New tokens.
            segments: How many for each slot of the cache: any numbers where it is empty, the same for each later.
            cache: Self-attention's past.
            context: Cross-attention's keys and values; None for a block without.
            context_segments: Which of the new tokens read the same context: beams of one source.
            mask: For self-attention.
            bias: For self-attention's scores.

        Returns:
            y_ND and the cache with the new tokens.
        """
        update_ND, cache = self.self_attn.extend(
            self._before(x_ND, self.self_norm), segments, cache, mask=mask, bias=bias
        )
        x_ND = self._after(x_ND, update_ND, self.self_norm, segments)
        if self.cross_attn is not None and self.cross_norm is not None and context is not None:
            before_ND = self._before(x_ND, self.cross_norm)
            reading = segments if context_segments is None else context_segments
            update_ND = self.cross_attn.read(before_ND, reading, context)
            x_ND = self._after(x_ND, update_ND, self.cross_norm, segments)
        return self._after(x_ND, self.mlp(self._before(x_ND, self.mlp_norm)), self.mlp_norm, segments), cache


def extend_all(
    blocks: Sequence[Block],
    x_ND: Tensor,
    segments: Segments,
    caches: Sequence[KVCache],
    contexts: Sequence[KVCache] | None = None,
    context_segments: Segments | None = None,
) -> tuple[Tensor, tuple[KVCache, ...]]:
    """Run one block after the other over new tokens, each of which sees those before it in its sequence.

    Args:
        blocks: The blocks.
        x_ND: New tokens.
        segments: How many for each slot of the caches: any numbers where these are empty, the same for each later.
        caches: Self-attention's past of each block, with one past in common; they grow where there is no room.
        contexts: Cross-attention's keys and values of each block; None for blocks without.
        context_segments: Which of the new tokens read the same context: beams of one source.

    Returns:
        y_ND, and the caches with the new tokens.
    """
    grown = caches[0].past.after(segments)
    caches = [cache.reserve(grown.max_len) for _, cache in zip(blocks, caches, strict=True)]
    read: list[KVCache | None] = [None] * len(blocks)
    if contexts is not None:
        read = [context for _, context in zip(blocks, contexts, strict=True)]
    done: list[KVCache] = []
    while (at := len(done)) < len(blocks):
        block, found = blocks[at], None
        if block.own is not None:
            found = block.own(blocks[at:], x_ND, segments, caches[at:], read[at:], context_segments, grown.mask)
        if found is None:
            x_ND, cache = block.extend(x_ND, segments, caches[at], read[at], context_segments, mask=grown.mask)
            done.append(cache)
        else:
            x_ND, some = found
            done += some
    return x_ND, tuple(done)
