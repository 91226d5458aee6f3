"""Steps of cached decoding through a packed block by our own kernel: one call in the place of some thirty."""

from __future__ import annotations

from ctypes import addressof
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import KVCache, MultiHeadAttention, Segments
from regard.attention.backends import static
from regard.attention.masks import Mask
from regard.attention.positions import Bias, sinusoidal
from regard.attention.recording import is_watched
from regard.attention.silencing import is_silenced
from regard.kernels import blocks, native, slots
from regard.layers.block import Block
from regard.layers.packed_linear import MANY_ROWS, PANEL, PackedLinear


@dataclass(frozen=True)
class _Bound:
    """What a block consists of, as the kernel is told, and of what that was made."""

    parents: tuple[nn.Module, ...]
    children: list[nn.Module | None]
    norms: tuple[nn.Module, ...]
    places: list[int]
    hooks: tuple[Any, ...]  # where hooks would be; these stay the same objects
    sizes: tuple[Any, ...]
    weights: blocks.Weights
    is_served: bool


@dataclass(frozen=True)
class _Shared:
    """What the blocks of one step have in common, and the tensors that have to live as long."""

    step: blocks.Step
    kept: tuple[Any, ...]


class PackedBlock:
    """:meth:`regard.layers.block.Block.extend` of a block whose linear layers are packed for our own kernels.

    It serves new tokens behind others, up to :data:`~regard.layers.packed_linear.MANY_ROWS` at once, in float32 without
    a gradient. It declines what would have to be seen between the products: recorded or silenced attention, hooks; and
    what the kernel does not have: scores that are no scaled dot product, biases, chosen backends, activations and norms
    of other kinds.

    Args:
        block: The block; it is asked at each call whether it is still what it was.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self._bound: _Bound | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what points into this process's memory; copies of models are made through here."""
        return {"block": self.block, "_bound": None}

    def __call__(
        self,
        x_ND: Tensor,
        segments: Segments,
        cache: KVCache,
        context: KVCache | None,
        context_segments: Segments | None,
        mask: Mask | None,
        bias: Bias | None,
    ) -> tuple[Tensor, KVCache] | None:
        """Run the block over new tokens; see :meth:`regard.layers.block.Block.extend` for the arguments.

        Returns:
            y_ND and the cache with the new tokens; None where it does not serve, and nothing has changed.
        """
        rows = x_ND.shape[0]
        if bias is not None or not cache.max_len or not cache.past.on_host or not 0 < rows < MANY_ROWS:
            return None
        if x_ND.dtype != torch.float32 or not x_ND.is_cpu or torch.compiler.is_compiling():
            return None
        if x_ND.requires_grad and torch.is_grad_enabled():
            return None
        bound, kernel = self._serving(), native.load()[0]
        if bound is None or kernel is None or (context is None) != (self.block.cross_attn is None):
            return None
        grown = cache.after(segments, rows)
        reading = segments if context_segments is None else context_segments
        step = self._step(x_ND, segments, cache, grown, reading, context, mask, bound.sizes).step
        x_ND = x_ND.contiguous()
        y_ND = x_ND.new_empty(x_ND.shape)
        step.x, step.y = x_ND.data_ptr(), y_ND.data_ptr()
        step.self_slots.k, step.self_slots.v = grown.k_store.data_ptr(), grown.v_store.data_ptr()
        if context is not None:
            step.cross_slots.k, step.cross_slots.v = context.k_store.data_ptr(), context.v_store.data_ptr()
        kernel.block(addressof(bound.weights), addressof(step), native.threads())
        return y_ND, grown

    def _serving(self) -> _Bound | None:
        """Describe the block, anew where it has changed; None where the kernel does not serve it as it is."""
        bound, block = self._bound, self.block
        if bound is None or bound.children != _children(bound.parents) or bound.places != _places(bound.norms):
            bound = self._bound = _bind(block)
        if not bound.is_served or block.training or any(bound.hooks):
            return None
        for site in (block.self_attn, block.cross_attn):
            if site is not None and (site.score or site.backend or is_watched(site) or is_silenced(site)):
                return None
        return bound

    def _step(
        self,
        x_ND: Tensor,
        segments: Segments,
        cache: KVCache,
        grown: KVCache,
        reading: Segments,
        context: KVCache | None,
        mask: Mask | None,
        sizes: tuple[Any, ...],
    ) -> _Shared:
        """Say where new keys go and what is attended to: worked out once for all blocks that are alike."""
        attn, cross = self.block.self_attn, self.block.cross_attn

        def make() -> _Shared:
            slot_N, place_N = cache.past.places(segments)
            read, read_kept = _read(attn, segments, grown, mask, x_ND)
            step = blocks.Step(0, 0, x_ND.shape[0], slot_N.data_ptr(), place_N.data_ptr(), 0, read)
            turns_NK = None
            if attn.rotary_base is not None:
                positions_N = cache.positions_N(segments)
                turns_NK = sinusoidal(positions_N, attn.head_dim, "halves", attn.rotary_base).float().contiguous()
                step.turns = turns_NK.data_ptr()
            kept: tuple[Any, ...] = (slot_N, place_N, turns_NK, segments, mask, reading, context and context.past)
            if cross is None or context is None:
                return _Shared(step, (*kept, read_kept))
            step.cross_slots, context_kept = _read(cross, reading, context, None, x_ND)
            return _Shared(step, (*kept, read_kept, context_kept))

        made: dict[Any, _Shared] = grown.segments.derived("packed blocks", dict)
        shapes = grown.k_store.shape, None if context is None else context.k_store.shape
        key = (id(segments), id(mask), id(reading), id(context and context.past), shapes, sizes)
        if key not in made:
            made[key] = make()
        return made[key]


def _read(
    attn: MultiHeadAttention, segments: Segments, cache: KVCache, mask: Mask | None, like: Tensor
) -> tuple[native.Slots, Any]:
    """Describe what some queries attend to."""
    like_BTHK = like.new_empty(0, 0, attn.num_heads, 0)
    attn_mask, lengths_B = static.limits(like_BTHK, segments, cache.segments, mask)
    seen = cache.segments.max_len
    k_BSGK, v_BSGK = cache.k_BCGK[:, :seen], cache.v_BCGK[:, :seen]
    # The keys and values are those of the block at hand: they are told at each call, and not kept alive here.
    found, (_, _, *kept) = slots.describe(segments.max_len, attn.num_heads, k_BSGK, v_BSGK, attn_mask, lengths_B, None)
    return found, kept


def _children(parents: tuple[nn.Module, ...]) -> list[nn.Module | None]:
    return [child for parent in parents for child in parent._modules.values()]


def _places(norms: tuple[nn.Module, ...]) -> list[int]:
    return [x.data_ptr() for norm in norms for x in norm._parameters.values() if x is not None]


def _bind(block: Block) -> _Bound:
    """Look at what a block consists of now."""
    attn, cross, mlp = block.self_attn, block.cross_attn, block.mlp
    parents = (block, attn, mlp, *(() if cross is None else (cross,)))
    modules = (*parents, *(child for child in _children(parents) if child is not None))
    hooks = tuple(one for module in modules for one in (module._forward_hooks, module._forward_pre_hooks))
    norms = tuple(norm for norm in (block.self_norm, block.cross_norm, block.mlp_norm) if norm is not None)
    weights = _described(block)
    sizes = tuple((one.num_heads, one.num_kv_heads, one.head_dim, one.rotary_base) for one in (attn, cross) if one)
    return _Bound(
        parents,
        _children(parents),
        norms,
        _places(norms),
        hooks,
        sizes,
        weights or blocks.Weights(),
        weights is not None,
    )


def _described(block: Block) -> blocks.Weights | None:
    """Tell the kernel of a block's weights; None where it does not serve them."""
    attn, cross, mlp = block.self_attn, block.cross_attn, block.mlp
    linears = (attn.joint_proj, attn.out_proj, cross and cross.q_proj, cross and cross.out_proj)
    linears += (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    addresses: list[int] = []
    for linear in linears:
        if linear is not None and not (isinstance(linear, PackedLinear) and linear.kernel is not None):
            return None
        addresses.append(0 if linear is None else linear.address)
    width = attn.out_proj.out_features
    if attn.joint_proj is None or not isinstance(mlp.activation, nn.Identity) or width % PANEL:
        return None
    norms: list[blocks.Norm] = []
    for norm in (block.self_norm, block.cross_norm, block.mlp_norm):
        described = blocks.Norm() if norm is None else _norm(norm)
        if described is None:
            return None
        norms.append(described)
    return blocks.Weights(block.pre, width, *norms, *addresses)


def _norm(norm: nn.Module) -> blocks.Norm | None:
    """Tell the kernel of a norm; None where it does not serve it."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm) or any(x.dtype != torch.float32 for x in norm.parameters()):
        return None
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    pointers = (0 if x is None else x.data_ptr() for x in (norm.weight, getattr(norm, "bias", None)))
    return blocks.Norm(isinstance(norm, nn.RMSNorm), *pointers, eps)
