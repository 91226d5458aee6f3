"""Multi-head attention: project, attend in H subspaces, concatenate, project."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.attend import Backend, attend
from regard.attention.cache import KVCache
from regard.attention.masks import Mask
from regard.attention.positions import Bias, rotate
from regard.attention.scores import Score
from regard.attention.segments import Segments
from regard.attention.sites import Site, columns
from regard.errors import UsageError


class MultiHeadAttention(Site):
    """Concat(head_1 … head_H) W_O with head_h = attend(x W_Q,h, c W_K,h, c W_V,h); c is x itself in self-attention.

    Args:
        embed_dim: Width D of the queries' side and of the result.
        num_heads: Query heads H.
        num_kv_heads: Key–value heads G, a divisor of H; None is H. 1 is multi-query, others grouped-query attention.
        head_dim: Head size K; None is D / H.
        kv_dim: Width of the attended side; None is D.
        use_bias: Projections have biases.
        dropout_p: Probability, in training, that an attention weight is dropped. Not 0 keeps fused CUDA kernels away.
        score: Similarity function; None is scaled dot product.
        rotary_base: Rotate queries and keys by their positions with this base; None does not. Self-attention only.
        backend: Attention kernel; None chooses by the table in :func:`regard.attention.attend`.

    Attributes:
        joint_proj: Queries, keys and values of self-attention in one product, where they were packed so; else None.

    Raises:
        UsageError: Heads do not divide the width, or key–value heads the heads.

    Source: Vaswani et al. 2017, §3.2.2; grouped heads: Shazeer 2019, Ainslie et al. 2023.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        kv_dim: int | None = None,
        use_bias: bool = True,
        dropout_p: float = 0.0,
        score: Score | None = None,
        rotary_base: float | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if head_dim is None and embed_dim % num_heads:
            raise UsageError(
                f"width {embed_dim} does not divide into {num_heads} heads", mend="change one of them, or give head_dim"
            )
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise UsageError(f"{num_heads} query heads cannot share {num_kv_heads} key-value heads")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.dropout_p, self.rotary_base, self.backend = dropout_p, rotary_base, backend
        kv_dim = embed_dim if kv_dim is None else kv_dim
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=use_bias)
        self.k_proj = nn.Linear(kv_dim, num_kv_heads * self.head_dim, bias=use_bias)
        self.v_proj = nn.Linear(kv_dim, num_kv_heads * self.head_dim, bias=use_bias)
        self.out_proj = nn.Linear(num_heads * self.head_dim, embed_dim, bias=use_bias)
        self.joint_proj: nn.Module | None = None
        # Their parameters, where these lay, and all of them in one.
        self._together: tuple[list[Tensor | None], list[object], Tensor, Tensor | None] | None = None
        self.score = score
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights from Glorot's uniform distribution, biases zero (tensor2tensor, fairseq)."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def forward(
        self,
        x: Tensor,
        segments: Segments | None = None,
        context: Tensor | None = None,
        context_segments: Segments | None = None,
        *,
        mask: Mask | None = None,
        bias: Bias | Tensor | None = None,
        positions_N: Tensor | None = None,
    ) -> Tensor:
        """Attend from x to itself, or to a context.

        Args:
            x: x_ND, all tokens of the batch in one row; or, without segments, dense (…, T, D).
            segments: Which tokens belong together; None for dense tensors.
            context: What is attended to, M rows (or dense); None is x itself.
            context_segments: Which of its rows belong together.
            mask: What a query may attend to in its sequence; None is everything.
            bias: Added to the scores; see :func:`regard.attention.attend`.
            positions_N: Position of each row, for rotation; None counts from 0 in each sequence.

        Returns:
            y_ND, or dense like x.

        Raises:
            UsageError: x or context does not fit its segments, only one of the two has them, or a context with rotary
                positions.
        """
        if segments is None:
            return self._dense(x, x if context is None else context, mask, bias)
        if context is not None and self.rotary_base is not None:
            raise UsageError(
                "rotary positions in cross-attention", where="MultiHeadAttention", mend="leave rotary_base out"
            )
        if (context is None) != (context_segments is None):
            raise UsageError("a context needs its segments, and segments their context", where="MultiHeadAttention")
        if context is not None and context_segments is not None:
            k_MGK, v_MGK = self.keys_values(context)
            return self._attend(self.queries(x), segments, k_MGK, v_MGK, context_segments, mask, bias)
        if positions_N is None and self.rotary_base is not None:
            positions_N = segments.positions_N()
        q_NHK, k_NGK, v_NGK = self._project(x, positions_N)
        return self._attend(q_NHK, segments, k_NGK, v_NGK, segments, mask, bias)

    def readers(self, heads: Sequence[int]) -> list[Tensor]:
        return columns(self.out_proj, heads, self.num_heads)

    def keys_values(self, context_MD: Tensor, positions_M: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Project what is attended to.

        Args:
            context_MD: The attended rows.
            positions_M: Position of each row; None leaves keys unrotated (cross-attention).

        Returns:
            k_MGK and v_MGK.
        """
        k_MGK = self.k_proj(context_MD).unflatten(-1, (self.num_kv_heads, self.head_dim))
        v_MGK = self.v_proj(context_MD).unflatten(-1, (self.num_kv_heads, self.head_dim))
        return self._rotate(k_MGK, positions_M), v_MGK

    def queries(self, x_ND: Tensor, positions_N: Tensor | None = None) -> Tensor:
        """Project what attends.

        Args:
            x_ND: The attending rows.
            positions_N: Position of each row; None leaves queries unrotated (cross-attention).

        Returns:
            q_NHK.
        """
        return self._rotate(self.q_proj(x_ND).unflatten(-1, (self.num_heads, self.head_dim)), positions_N)

    def _project(self, x_ND: Tensor, positions_N: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Project the rows of self-attention."""
        if self.joint_proj is not None:
            joint_NL = self.joint_proj(x_ND)
        elif (joint := self._joined()) is not None:
            joint_NL = nn.functional.linear(x_ND, *joint)
        else:
            return self.queries(x_ND, positions_N), *self.keys_values(x_ND, positions_N)
        heads = self.num_heads, self.num_kv_heads, self.num_kv_heads
        q_NHK, k_NGK, v_NGK = joint_NL.unflatten(-1, (sum(heads), self.head_dim)).split(heads, -2)
        return self._rotate(q_NHK, positions_N), self._rotate(k_NGK, positions_N), v_NGK

    def _joined(self) -> tuple[Tensor, Tensor | None] | None:
        """Lay the weights of queries, keys and values together, where gradients are taken.

        One product then takes the place of three, and two that of six in the backward pass. Without a backward pass,
        laying them together at each call would cost more than it gains: unless they lie so, see :meth:`lay_together`.
        """
        parts = (self.q_proj, self.k_proj, self.v_proj)
        if not torch.is_grad_enabled():
            return self._laid()
        if any(type(part) is not nn.Linear for part in parts):
            return None
        biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
        if len(biases) not in (0, 3) or not all(part.weight.requires_grad for part in parts):
            return None
        return torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None

    def lay_together(self) -> None:
        """Have the weights of queries, keys and values lie one behind the other, so that they are one product in use.

        They stay what they were, three parameters, and change in place as ever; whatever gives one of them other memory
        parts them again. Where widths differ, some have biases, or one is no plain layer, nothing is done; nor where
        they lie so.
        """
        parts = (self.q_proj, self.k_proj, self.v_proj)
        if any(type(part) is not nn.Linear for part in parts) or len({part.in_features for part in parts}) > 1:
            return
        if self._laid() is not None:
            return
        if len({part.bias is None for part in parts}) > 1:
            return
        sizes = [part.out_features for part in parts]
        with torch.no_grad():
            weight_LI = torch.cat([part.weight for part in parts])
            biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
            bias_L = torch.cat(biases) if biases else None
            for part, own_OI in zip(parts, weight_LI.split(sizes), strict=True):
                part.weight = nn.Parameter(own_OI, part.weight.requires_grad)
            if bias_L is not None:
                for part, own_O in zip(parts, bias_L.split(sizes), strict=True):
                    part.bias = nn.Parameter(own_O, part.bias.requires_grad)
        own = self._own()
        self._together = own, [_place(x) for x in own], weight_LI, bias_L

    def _own(self) -> list[Tensor | None]:
        """Give the parameters of queries, keys and values."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        return [part._parameters.get(name) for part in parts for name in ("weight", "bias")]

    def _laid(self) -> tuple[Tensor, Tensor | None] | None:
        """Give weights that lie together: while their parameters are the same, where they were, and nobody looks on."""
        if self._together is None:
            return None
        before, places, weight_LI, bias_L = self._together
        own = self._own()
        if any(mine is not one for mine, one in zip(own, before, strict=True)):
            return None
        if any(part._forward_hooks or part._forward_pre_hooks for part in (self.q_proj, self.k_proj, self.v_proj)):
            return None
        is_there = torch.compiler.is_compiling() or [_place(x) for x in own] == places
        return (weight_LI, bias_L) if is_there else None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MultiHeadAttention:
        self._together = None  # elsewhere, or in another precision, each has its own memory
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_together": None}  # a copy's, too

    def extend(
        self,
        x_ND: Tensor,
        segments: Segments,
        cache: KVCache,
        *,
        mask: Mask | None = None,
        bias: Bias | Tensor | None = None,
    ) -> tuple[Tensor, KVCache]:
        """Attend from new tokens to all tokens so far, the new ones among them.

        Args:
            x_ND: The new tokens.
            segments: How many of them go to each slot: any numbers where the cache is empty, the same for each later.
            cache: Keys and values so far.
            mask: What a query may attend to, as over the whole sequence.
            bias: Added to the scores.

        Returns:
            y_ND, and the cache with the new tokens; the old one is used up.
        """
        positions_N = None
        if self.rotary_base is not None:
            positions_N = cache.positions_N(segments)
        q_NHK, k_NGK, v_NGK = self._project(x_ND, positions_N)
        if not cache.max_len:  # a prompt: nothing is before it, so it attends to itself, as in the full forward pass
            y_ND = self._attend(q_NHK, segments, k_NGK, v_NGK, segments, mask, bias)
            return y_ND, cache.append(k_NGK, v_NGK, segments)
        cache = cache.append(k_NGK, v_NGK, segments)
        return self._read(q_NHK, segments, cache, mask, bias), cache

    def read(
        self,
        x_ND: Tensor,
        segments: Segments,
        cache: KVCache,
        *,
        mask: Mask | None = None,
        bias: Bias | Tensor | None = None,
        positions_N: Tensor | None = None,
    ) -> Tensor:
        """Attend to a cache without adding to it: cross-attention to an encoded source, step by step.

        Args:
            x_ND: Queries.
            segments: The same number of them for each slot: steps, or the beams of one source.
            cache: Keys and values.
            mask: What a query may attend to.
            bias: Added to the scores.
            positions_N: Position of each query, for rotation; None leaves queries unrotated (cross-attention).

        Returns:
            y_ND.
        """
        return self._read(self.queries(x_ND, positions_N), segments, cache, mask, bias)

    def _read(
        self, q_NHK: Tensor, segments: Segments, cache: KVCache, mask: Mask | None, bias: Bias | Tensor | None
    ) -> Tensor:
        k_MGK, v_MGK = cache.k_BCGK.flatten(0, 1), cache.v_BCGK.flatten(0, 1)
        return self._attend(q_NHK, segments, k_MGK, v_MGK, cache.segments, mask, bias)

    def _attend(
        self,
        q_NHK: Tensor,
        segments: Segments,
        k_MGK: Tensor,
        v_MGK: Tensor,
        k_segments: Segments,
        mask: Mask | None,
        bias: Bias | Tensor | None,
    ) -> Tensor:
        context_NHK = attend(
            q_NHK,
            k_MGK,
            v_MGK,
            segments,
            k_segments,
            mask=mask,
            bias=bias,
            score=self.score,
            dropout_p=self.dropout_p if self.training else 0.0,
            backend=self.backend,
            site=self,
        )
        return self.out_proj(context_NHK.flatten(-2))

    def _rotate(self, x_NHK: Tensor, positions_N: Tensor | None) -> Tensor:
        return (
            x_NHK if self.rotary_base is None or positions_N is None else rotate(x_NHK, positions_N, self.rotary_base)
        )

    def _dense(self, x: Tensor, context: Tensor, mask: Mask | None, bias: Bias | Tensor | None) -> Tensor:
        if x.dim() < 2 or context.shape[:-2] != x.shape[:-2]:
            shapes = f"dense x {tuple(x.shape)} and context {tuple(context.shape)}"
            raise UsageError(shapes, where="MultiHeadAttention", mend="give (…, tokens, width), or segments")
        leading = x.shape[:-2]
        segments = Segments.uniform(leading.numel(), x.shape[-2], x.device)
        rows = x.reshape(-1, x.shape[-1])
        if context is x:
            return self(rows, segments, mask=mask, bias=bias).reshape(*x.shape[:-1], self.out_proj.out_features)
        context_segments = Segments.uniform(leading.numel(), context.shape[-2], x.device)
        flat = context.reshape(-1, context.shape[-1])
        y_ND = self(rows, segments, flat, context_segments, mask=mask, bias=bias)
        return y_ND.reshape(*x.shape[:-1], self.out_proj.out_features)


def _place(x: Tensor | None) -> object:
    """Say where a tensor's numbers lie."""
    return None if x is None else (x.untyped_storage()._cdata, x.storage_offset(), x.dtype)
