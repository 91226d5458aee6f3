"""Steps and prompts of cached decoding through a packed block by our own kernel: one call in the place of some thirty.

The kernel checks nothing. Whatever does not look exactly as it expects goes module by module, where it is served or
refused as ever.
"""

from __future__ import annotations

from ctypes import addressof
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from regard.attention import KVCache, MultiHeadAttention, Segments
from regard.attention.backends import static
from regard.attention.masks import Mask
from regard.attention.positions import Bias, sinusoidal
from regard.attention.recording import is_watched
from regard.attention.silencing import is_silenced
from regard.kernels import blocks, native, slots
from regard.layers.block import Block
from regard.layers.mlp import MLP
from regard.layers.packed_linear import PANEL, PackedLinear

MANY_ROWS = 256  # from here on what lies between the products is worth all of PyTorch's threads


@dataclass(frozen=True)
class _Bound:
    """What a block consists of, as the kernel is told, and of what that was made."""

    parents: tuple[nn.Module, ...]
    children: list[nn.Module | None]
    norms: tuple[nn.Module, ...]
    facts: list[object]
    modules: tuple[nn.Module, ...]
    hooks: tuple[Any, ...]  # where hooks would be; these stay the same objects
    sizes: tuple[Any, ...]
    weights: blocks.Weights | None  # None where the kernel does not serve them


@dataclass(frozen=True)
class _Shared:
    """What the blocks of one step have in common, and the tensors that have to live as long."""

    step: blocks.Step
    kept: tuple[Any, ...]


class PackedBlock:
    """:meth:`regard.layers.block.Block.extend` of a block whose linear layers are packed for our own kernels.

    It serves as many new tokens for each slot, behind others or first of all, fewer than :data:`MANY_ROWS` at once, in
    float32 without a gradient. It declines what would have to be seen between the products: recorded or silenced
    attention, hooks, training; and what the kernel does not have: scores that are no scaled dot product, biases, chosen
    backends, activations, norms and modules of other kinds.

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
        """Run the block over new tokens, as :meth:`regard.layers.block.Block.extend` does.

        Args:
            x_ND: New tokens.
            segments: How many for each slot of the cache.
            cache: Self-attention's past.
            context: Cross-attention's keys and values; None for a block without.
            context_segments: Which of the new tokens read the same context; None is ``segments``.
            mask: For self-attention.
            bias: For self-attention's scores.

        Returns:
            y_ND and the cache with the new tokens; None where it does not serve, and nothing has changed.

        Raises:
            UsageError: The new tokens are not of one sequence for each slot, or the mask does not cover them.
            ContextError: A slot would hold more than its capacity.
        """
        rows, kernel = x_ND.shape[0], native.load()[0]
        if bias is not None or not cache.past.on_host or not 0 < rows < MANY_ROWS:
            return None
        if kernel is None or torch.compiler.is_compiling() or (x_ND.requires_grad and torch.is_grad_enabled()):
            return None
        bound = self._serving()
        if bound is None or bound.weights is None:
            return None
        if x_ND.dtype != torch.float32 or not x_ND.is_cpu or x_ND.shape[1:] != (bound.weights.width,):
            return None
        if segments.form != "uniform" or not _fits(cache, self.block.self_attn):
            return None
        reading = segments if context_segments is None else context_segments
        if not self._reads(reading, rows, context):
            return None
        grown = cache.after(segments, rows)
        shared = self._step(x_ND, segments, cache, grown, reading, context, mask, bound.sizes)
        if shared is None:
            return None
        step, x_ND = shared.step, x_ND.contiguous()
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
        if bound is None or bound.children != _children(bound.parents) or bound.facts != _facts(block, bound.norms):
            bound = self._bound = _bind(block)
        if bound.weights is None or any(bound.hooks) or any(module.training for module in bound.modules):
            return None
        for site in (block.self_attn, block.cross_attn):
            if site is not None and (site.score or site.backend or is_watched(site) or is_silenced(site)):
                return None
        return bound

    def _reads(self, reading: Segments, rows: int, context: KVCache | None) -> bool:
        """Whether there is a context where the block reads one, and each of its slots has as many of the rows."""
        cross = self.block.cross_attn
        if context is None or cross is None:
            return context is None and cross is None
        is_even = reading.form == "uniform" and reading.num_rows == rows and len(reading) == context.past.slots
        return is_even and _fits(context, cross)

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
    ) -> _Shared | None:
        """Say where new keys go and what is attended to: worked out once for all blocks that are alike."""
        attn, cross = self.block.self_attn, self.block.cross_attn

        def make() -> _Shared | None:
            slot_N, place_N = cache.past.places(segments)
            if place_N.shape != x_ND.shape[:1]:  # a tree takes a token a beam
                return None
            if mask is not None:
                longest = max(grown.segments.known_lengths or (), default=0)
                mask.check(len(segments), attn.num_heads, segments.max_len, longest)
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

        made: dict[Any, _Shared | None] = grown.segments.derived("packed blocks", dict)
        shapes = grown.k_store.shape, None if context is None else context.k_store.shape
        key = (id(segments), id(mask), id(reading), id(context and context.past), shapes, sizes)
        if key not in made:
            made[key] = make()
        return made[key]


def _fits(cache: KVCache, attn: MultiHeadAttention) -> bool:
    """Whether keys and values lie as the kernel reads and writes them."""
    k_store, v_store, sizes = cache.k_store, cache.v_store, (attn.num_kv_heads, attn.head_dim)
    if k_store.shape[2:] != sizes or v_store.shape != k_store.shape:
        return False
    return all(x.dtype == torch.float32 and x.is_cpu and x.is_contiguous() for x in (k_store, v_store))


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


def _facts(block: Block, norms: tuple[nn.Module, ...]) -> list[object]:
    """What else the description is made of: it is compared at each call."""
    facts: list[object] = [block.pre]
    for norm in norms:
        facts.append(norm.eps)
        for x in norm._parameters.values():
            facts += () if x is None else (x.data_ptr(), x.requires_grad)
    return facts


def _bind(block: Block) -> _Bound:
    """Look at what a block consists of now."""
    attn, cross, mlp = block.self_attn, block.cross_attn, block.mlp
    parents = (block, attn, mlp, *(() if cross is None else (cross,)))
    children = _children(parents)
    modules = (*parents, *(child for child in children if child is not None))
    hooks = [one for module in modules for one in (module._forward_hooks, module._forward_pre_hooks)]
    hooks += [hooks_of_all._global_forward_hooks, hooks_of_all._global_forward_pre_hooks]
    kinds = {
        Block: {type(block)},
        MultiHeadAttention: {type(attn), *([type(cross)] if cross else [])},
        MLP: {type(mlp)},
    }
    norms = tuple(norm for norm in (block.self_norm, block.cross_norm, block.mlp_norm) if norm is not None)
    # A class of their own may compute something else, and a parametrized norm has no weights to point at.
    is_plain = all(found == {kind} for kind, found in kinds.items())
    is_plain = is_plain and all(type(norm) in (nn.LayerNorm, nn.RMSNorm) for norm in norms)
    norms = norms if is_plain else ()
    sites = () if not is_plain else (attn,) if cross is None else (attn, cross)
    sizes = tuple((one.num_heads, one.num_kv_heads, one.head_dim, one.rotary_base) for one in sites)
    weights = _described(block) if is_plain else None
    return _Bound(parents, children, norms, _facts(block, norms), modules, tuple(hooks), sizes, weights)


def _described(block: Block) -> blocks.Weights | None:
    """Tell the kernel of a block's weights; None where it does not serve them."""
    attn, cross, mlp = block.self_attn, block.cross_attn, block.mlp
    linears = (attn.joint_proj, attn.out_proj, cross and cross.q_proj, cross and cross.out_proj)
    linears += (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    addresses: list[int] = []
    for linear in linears:
        if linear is not None and not (type(linear) is PackedLinear and linear.kernel is not None):
            return None
        addresses.append(0 if linear is None else linear.address)
    width = attn.out_proj.out_features
    if attn.joint_proj is None or not isinstance(mlp.activation, nn.Identity) or width % PANEL:
        return None
    norms: list[blocks.Norm] = []
    for norm in (block.self_norm, block.cross_norm, block.mlp_norm):
        described = blocks.Norm() if norm is None else _norm(norm, width)
        if described is None:
            return None
        norms.append(described)
    return blocks.Weights(block.pre, width, *norms, *addresses)


def _norm(norm: nn.Module, width: int) -> blocks.Norm | None:
    """Tell the kernel of a norm; None where it does not serve it."""
    weight, bias = norm._parameters["weight"], norm._parameters.get("bias")
    for x in (weight, bias):
        if x is None:
            continue
        if x.dtype != torch.float32 or not x.is_cpu or x.shape != (width,) or x.stride() != (1,) or x.requires_grad:
            return None
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    pointers = (0 if x is None else x.data_ptr() for x in (weight, bias))
    return blocks.Norm(type(norm) is nn.RMSNorm, *pointers, eps)
