"""What packed blocks consist of, as our own kernel is told; and whether they are still what they were.

The kernel checks nothing. Whatever does not look exactly as it expects goes module by module, where it is served or
refused as ever: recorded or silenced attention, hooks, training; scores that are no scaled dot product, chosen
backends, activations, norms and modules of other kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from regard.attention import MultiHeadAttention
from regard.attention.recording import is_watched
from regard.attention.silencing import is_silenced
from regard.kernels.blocks import Norm, Weights
from regard.layers.block import Block
from regard.layers.drop_path import DropPath
from regard.layers.mlp import MLP
from regard.layers.packed_linear import PANEL, PackedLinear

_is_training, _eps, _chosen = attrgetter("training"), attrgetter("eps"), attrgetter("score", "backend")
_sizes = attrgetter("num_heads", "num_kv_heads", "head_dim", "rotary_base")


@dataclass(frozen=True)
class Bound:
    """Blocks that one call can run, as the kernel is told, and what that was made of.

    Attributes:
        blocks: Of which it can run the first.
        weights: What the kernel is told of these.
        most: How many it can run.
    """

    blocks: Sequence[Block]
    weights: list[Weights]
    most: int
    _parents: tuple[nn.Module, ...]
    _children: list[nn.Module | None]
    _norms: tuple[nn.Module, ...]
    _facts: list[object]
    _parameters: tuple[Tensor, ...]  # of norms
    _places: list[object]
    _looked_at: tuple[Any, ...]

    def stands(self, blocks: Sequence[Block]) -> bool:
        """Say whether these are the blocks, and they are still what they were."""
        return (
            self.blocks == blocks
            and self._children == _children(self._parents)
            and self._facts == _facts(self._parents, self._norms)
            and self._places == _places(self._parameters)
        )

    def unseen(self) -> Bound | None:
        """Leave out the blocks from the first one on that somebody looks into; None where none is left."""
        if not _is_seen(*self._looked_at):
            return self
        served = self.blocks[: self.most]
        most = next((at for at, block in enumerate(served) if _is_seen(*_looked_at([block]))), self.most)
        return replace(self, most=most) if most else None


class Binding:
    """What the kernel is told of blocks, made anew where they have changed.

    Args:
        block: The first of them.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._bound: Bound | None = None

    def of(self, blocks: Sequence[Block]) -> Bound | None:
        """Describe blocks.

        Args:
            blocks: The first one, and others behind it.

        Returns:
            As many of them as are alike and the kernel serves now; None where it does not serve even the first.
        """
        bound = self._bound
        # Where the first one was not served before, it is looked at alone: of a stack that is seen everywhere, each
        # block would describe all behind it.
        if bound is None and not (_is_plain(self._block) and not _is_seen(*_looked_at([self._block]))):
            return None
        if bound is None or not bound.stands(blocks):
            bound = _bind(blocks)
        self._bound = bound
        return None if bound is None else bound.unseen()


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


def _bind(blocks: Sequence[Block]) -> Bound | None:
    """Look at what blocks consist of now, as far as they are alike and the kernel has what they are."""
    weights: list[Weights] = []
    sizes: list[object] = []
    for block in blocks:
        is_ours = block.own is not None and type(block.own) is type(blocks[0].own)
        described = _described(block) if is_ours and _is_plain(block) else None
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
    return Bound(
        *(list(blocks), weights, len(weights), parents, _children(parents), norms, _facts(parents, norms)),
        *(parameters, _places(parameters), _looked_at(served)),
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
