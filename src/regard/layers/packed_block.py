"""Steps and prompts of cached decoding through packed blocks by our own kernel: one call in the place of hundreds.

The kernel checks nothing. Whatever does not look exactly as it expects goes module by module, where it is served or
refused as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from regard.attention import KVCache, MultiHeadAttention, Segments
from regard.attention.backends import static
from regard.attention.masks import Mask
from regard.attention.positions import sinusoidal
from regard.attention.recording import is_watched
from regard.attention.silencing import is_silenced
from regard.kernels import calls, native, slots
from regard.kernels.blocks import Norm, Step, Weights, pointers
from regard.layers.block import Block
from regard.layers.drop_path import DropPath
from regard.layers.mlp import MLP
from regard.layers.packed_linear import PANEL, PackedLinear

_is_training, _eps, _chosen = attrgetter("training"), attrgetter("eps"), attrgetter("score", "backend")
_sizes = attrgetter("num_heads", "num_kv_heads", "head_dim", "rotary_base")
MANY_ROWS = 256  # from here on what lies between the products is worth all of PyTorch's threads


@dataclass(frozen=True)
class _Bound:
    """Blocks that one call can run, as the kernel is told, and what that was made of."""

    blocks: Sequence[Block]  # of which it can run the first
    parents: tuple[nn.Module, ...]
    children: list[nn.Module | None]
    norms: tuple[nn.Module, ...]
    facts: list[object]
    parameters: tuple[Tensor, ...]  # of norms
    places: list[object]
    looked_at: tuple[Any, ...]
    weights: list[Weights]
    most: int  # blocks that it can run


class PackedBlock:
    """:func:`regard.layers.block.extend_all` of blocks whose linear layers are packed for our own kernels.

    It serves as many new tokens for each slot, behind others or first of all, fewer than :data:`MANY_ROWS` at once, in
    float32 without a gradient. It declines what would have to be seen between the products: recorded or silenced
    attention, hooks, training; and what the kernel does not have: scores that are no scaled dot product, chosen
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
        blocks: Sequence[Block],
        x_ND: Tensor,
        segments: Segments,
        caches: Sequence[KVCache],
        contexts: Sequence[KVCache | None],
        context_segments: Segments | None,
        mask: Mask | None,
    ) -> tuple[Tensor, list[KVCache]] | None:
        """Run blocks over new tokens: this one, and those behind it that are alike.

        Args:
            blocks: This one, and those behind it.
            x_ND: New tokens.
            segments: How many for each slot of the caches.
            caches: Self-attention's past of each.
            contexts: Cross-attention's keys and values of each; None for a block without.
            context_segments: Which of the new tokens read the same context; None is ``segments``.
            mask: For self-attention.

        Returns:
            y_ND of the last block that it ran, and the caches of those with the new tokens; None where it serves not
            even this one, and nothing has changed.

        Raises:
            UsageError: The new tokens are not of one sequence for each slot, or the mask does not cover them.
            ContextError: A slot would hold more than its capacity.
        """
        rows, kernel = x_ND.shape[0], native.load()[0]
        if not caches[0].past.on_host or not 0 < rows < MANY_ROWS or segments.form != "uniform":
            return None
        if kernel is None or torch.compiler.is_compiling() or (x_ND.requires_grad and torch.is_grad_enabled()):
            return None
        reading = segments if context_segments is None else context_segments
        bound = self._serving(blocks)
        if bound is None or (count := _count(bound, reading, rows, caches, contexts)) == 0:
            return None
        if x_ND.dtype != torch.float32 or not x_ND.is_cpu or x_ND.shape[1:] != (bound.weights[0].width,):
            return None
        grown = [cache.after(segments, rows) for cache in caches[:count]]
        made = self._step(x_ND, segments, caches[0], grown[0], reading, contexts[0], mask)
        if made is None:
            return None
        step, kept = made
        x_ND = x_ND.contiguous()
        y_ND = torch.empty_like(x_ND)
        step.x, step.y = x_ND.data_ptr(), y_ND.data_ptr()
        stores: list[int] = []
        for one in chain.from_iterable(zip(grown, contexts[:count], strict=True)):
            stores += (0, 0) if one is None else (one.k_store.data_ptr(), one.v_store.data_ptr())
        places = pointers([addressof(one) for one in bound.weights[:count]])
        kernel.blocks(places, pointers(stores), count, addressof(step), native.threads())
        del kept  # not before: the kernel was given places in it
        return y_ND, grown

    def _serving(self, blocks: Sequence[Block]) -> _Bound | None:
        """Describe blocks, anew where they have changed; None where the kernel does not serve even the first now."""
        bound = self._bound
        # Where the first one was not served before, it is looked at alone: of a stack that is seen everywhere, each
        # block would describe all behind it.
        if bound is None and not (_is_plain(self.block) and not _is_seen(*_looked_at([self.block]))):
            return None
        if (
            bound is None
            or bound.blocks != blocks
            or bound.children != _children(bound.parents)
            or bound.facts != _facts(bound.parents, bound.norms)
            or bound.places != _places(bound.parameters)
        ):
            bound = _bind(blocks)
        self._bound = bound
        if bound is None or not _is_seen(*bound.looked_at):
            return bound
        served = bound.blocks[: bound.most]
        most = next((at for at, block in enumerate(served) if _is_seen(*_looked_at([block]))), bound.most)
        return replace(bound, most=most) if most else None

    def _step(
        self,
        x_ND: Tensor,
        segments: Segments,
        cache: KVCache,
        grown: KVCache,
        reading: Segments,
        context: KVCache | None,
        mask: Mask | None,
    ) -> tuple[Step, tuple[Any, ...]] | None:
        """Say where new keys go and what is attended to, and which tensors have to live as long as that counts."""
        attn, cross = self.block.self_attn, self.block.cross_attn
        slot_N, place_N = cache.past.places(segments)
        if place_N.shape != x_ND.shape[:1]:  # a tree takes a token a beam
            return None
        if mask is not None:
            longest = max(grown.segments.known_lengths or (), default=0)
            mask.check(len(segments), attn.num_heads, segments.max_len, longest)
        read, kept = _read(attn, segments, grown, mask, x_ND)
        step = Step(0, 0, x_ND.shape[0], slot_N.data_ptr(), place_N.data_ptr(), 0, read)
        kept = (*kept, slot_N, place_N)
        if attn.rotary_base is not None:
            positions_N = cache.positions_N(segments)
            turns_NK = sinusoidal(positions_N, attn.head_dim, "halves", attn.rotary_base).float().contiguous()
            step.turns, kept = turns_NK.data_ptr(), (*kept, turns_NK)
        if cross is not None and context is not None:
            step.cross_slots, more = _read(cross, reading, context, None, x_ND)
            kept = (*kept, *more)
        return step, kept


def _count(
    bound: _Bound,
    reading: Segments,
    rows: int,
    caches: Sequence[KVCache],
    contexts: Sequence[KVCache | None],
) -> int:
    """Say how many of the blocks one call can run with these caches."""
    first: tuple[object, ...] | None = None
    for at in range(bound.most):
        block, cache, context = bound.blocks[at], caches[at], contexts[at]
        alike = (cache.past, cache.k_store.shape)
        alike += () if context is None else (context.past, context.k_store.shape)
        if not _fits(cache, block.self_attn) or not _reads(block, reading, rows, context):
            return at
        if alike != (first := first or alike):
            return at
    return bound.most


def _fits(cache: KVCache, attn: MultiHeadAttention) -> bool:
    """Whether keys and values lie as the kernel reads and writes them."""
    k_store, v_store, sizes = cache.k_store, cache.v_store, (attn.num_kv_heads, attn.head_dim)
    if k_store.shape[2:] != sizes or v_store.shape != k_store.shape:
        return False
    return all(x.dtype == torch.float32 and x.is_cpu and x.is_contiguous() for x in (k_store, v_store))


def _read(
    attn: MultiHeadAttention, segments: Segments, cache: KVCache, mask: Mask | None, like: Tensor
) -> tuple[calls.Slots, tuple[Tensor | None, ...]]:
    """Describe what some queries attend to."""
    like_BTHK = like.new_empty(0, 0, attn.num_heads, 0)
    attn_mask, lengths_B = static.limits(like_BTHK, segments, cache.segments, mask)
    seen = cache.segments.max_len
    k_BSGK, v_BSGK = cache.k_BCGK[:, :seen], cache.v_BCGK[:, :seen]
    # Keys and values are those of each block: where they lie is told at the call.
    found, (_, _, *kept) = slots.describe(segments.max_len, attn.num_heads, k_BSGK, v_BSGK, attn_mask, lengths_B, None)
    return found, tuple(kept)


def _reads(block: Block, reading: Segments, rows: int, context: KVCache | None) -> bool:
    """Whether there is a context where a block reads one, and each of its slots has as many of the rows."""
    if context is None or block.cross_attn is None:
        return context is None and block.cross_attn is None
    is_even = reading.form == "uniform" and reading.num_rows == rows and len(reading) == context.past.slots
    return is_even and _fits(context, block.cross_attn)


# What is asked of every block at every call is asked of all at once: the weights that were read since the last call
# have driven all else from the processor's caches, and a look at each module would cost as much as a product.


def _children(parents: Sequence[nn.Module]) -> list[nn.Module | None]:
    return list(chain.from_iterable(parent._modules.values() for parent in parents))


def _facts(parents: Sequence[nn.Module], norms: Sequence[nn.Module]) -> list[object]:
    """What else the description is made of, but for where numbers lie."""
    facts: list[object] = []
    for parent in parents:
        if type(parent) is Block:
            facts += (parent.pre, parent.own)
        elif type(parent) is MultiHeadAttention:
            facts.append(_sizes(parent))
    facts += map(_eps, norms)
    return facts + [id(x) for norm in norms for x in norm._parameters.values()]


def _places(parameters: Sequence[Tensor]) -> list[object]:
    return [one for x in parameters for one in (x.data_ptr(), x.dtype)]


def _sites(block: Block) -> tuple[MultiHeadAttention, ...]:
    return (block.self_attn,) if block.cross_attn is None else (block.self_attn, block.cross_attn)


def _norms(block: Block) -> list[nn.Module]:
    return [norm for norm in (block.self_norm, block.cross_norm, block.mlp_norm) if norm is not None]


def _parents(blocks: Sequence[Block]) -> tuple[nn.Module, ...]:
    """The modules that others are in."""
    return tuple(module for block in blocks for module in (block, block.mlp, *_sites(block)))


def _parameters(norms: Sequence[nn.Module]) -> tuple[Tensor, ...]:
    return tuple(x for norm in norms for x in norm._parameters.values() if x is not None)


def _looked_at(blocks: Sequence[Block]) -> tuple[Any, ...]:
    """Give what tells whether blocks are seen: where hooks are, what is another in training, sites and parameters."""
    parents = _parents(blocks)
    modules = (*parents, *(child for child in _children(parents) if child is not None))
    # Each of these stays the same object, whether something is in it or not.
    hooks: list[Any] = [hooks_of_all._global_forward_hooks, hooks_of_all._global_forward_pre_hooks]
    hooks += [one for module in modules for one in (module._forward_hooks, module._forward_pre_hooks)]
    sites = tuple(chain.from_iterable(map(_sites, blocks)))
    drops = [module for block in blocks for module in (block.dropout, block.drop_path, block.mlp.dropout)]
    return tuple(hooks), (*drops, *sites), sites, _parameters([norm for block in blocks for norm in _norms(block)])


def _is_seen(
    hooks: Sequence[Any],
    drops: Sequence[nn.Module],
    sites: Sequence[MultiHeadAttention],
    parameters: Sequence[Tensor],
) -> bool:
    """Whether somebody looks at what is between the products of blocks, or has it otherwise than ever."""
    if any(hooks) or any(map(_is_training, drops)) or any(map(any, map(_chosen, sites))):
        return True
    takes_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in parameters)
    return takes_gradient or is_watched(*sites) or is_silenced(*sites)


def _bind(blocks: Sequence[Block]) -> _Bound | None:
    """Look at what blocks consist of now, as far as they are alike and the kernel has what they are."""
    weights: list[Weights] = []
    sizes: list[object] = []
    for block in blocks:
        described = _described(block) if isinstance(block.own, PackedBlock) and _is_plain(block) else None
        if described is None:
            break
        own: list[object] = [described.width, *map(_sizes, _sites(block))]
        if own != (sizes := sizes or own):
            break
        weights.append(described)
    if not weights:
        return None
    served = blocks[: len(weights)]
    parents, norms = _parents(served), tuple(norm for block in served for norm in _norms(block))
    parameters = _parameters(norms)
    return _Bound(
        *(list(blocks), parents, _children(parents), norms, _facts(parents, norms)),
        *(parameters, _places(parameters), _looked_at(served), weights, len(weights)),
    )


def _is_plain(block: Block) -> bool:
    """Whether all parts are of the kinds that the kernel has: a class of their own may compute something else."""
    attn, cross = block.self_attn, block.cross_attn
    kinds = [(block, Block), (attn, MultiHeadAttention), (block.mlp, MLP)]
    kinds += [] if cross is None else [(cross, MultiHeadAttention)]
    if not all(type(part) is kind for part, kind in kinds):
        return False
    are_drops = type(block.drop_path) is DropPath and type(block.dropout) is type(block.mlp.dropout) is nn.Dropout
    # A parametrized norm has no weights to point at, and another class.
    return are_drops and all(type(norm) in (nn.LayerNorm, nn.RMSNorm) for norm in _norms(block))


def _described(block: Block) -> Weights | None:
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
    norms: list[Norm] = []
    for norm in (block.self_norm, block.cross_norm, block.mlp_norm):
        described = Norm() if norm is None else _norm(norm, width)
        if described is None:
            return None
        norms.append(described)
    return Weights(block.pre, width, *norms, *addresses)


def _norm(norm: nn.Module, width: int) -> Norm | None:
    """Tell the kernel of a norm; None where it does not serve it."""
    weight, bias = norm._parameters["weight"], norm._parameters.get("bias")
    for x in (weight, bias):
        if x is None:
            continue
        if x.dtype != torch.float32 or not x.is_cpu or x.shape != (width,) or x.stride() != (1,):
            return None
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    pointers = (0 if x is None else x.data_ptr() for x in (weight, bias))
    return Norm(type(norm) is nn.RMSNorm, *pointers, eps)
