"""Models whose weights were laid out once, for use on a CPU.

    pack(model, "int8")

Linear layers become packed ones (see :mod:`regard.layers.packed_linear` for what is rounded); and where the kernels are
our own, attention and whole blocks go to them too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

import torch
from torch import nn

from regard.attention import MultiHeadAttention
from regard.errors import UsageError
from regard.kernels.native import Kernel, choose
from regard.layers.block import Block
from regard.layers.mlp import ACTIVATIONS, MLP
from regard.layers.own_kernels import use_own_kernels
from regard.layers.packed_block import PackedBlock
from regard.layers.packed_linear import PANEL, PackedLinear, Precision
from regard.layers.recurrent import Recurrent
from regard.sharing import keep_freed

_FEW_WEIGHTS = 1 << 22  # 16 MB in float32


def pack(model: nn.Module, precision: str = "fp32", kernel: str | None = None) -> nn.Module:
    """Replace every linear layer of a model by a packed one, in place; the old weights are let go.

    Queries, keys and values of an attention layer that have the same inputs become one product. A table of vectors that
    is a linear layer's weights too stays as it is for look-up. Where the kernels are our own, attention goes to them
    too, in the whole process, unless ``REGARD_KERNEL=torch``.

    Args:
        model: On the CPU, in evaluation mode. Other floats than float32 become float32.
        precision: Of the weights: ``fp32``, ``bf16`` or ``int8``.
        kernel: ``native``, ``torch`` or ``auto``; see :func:`regard.kernels.native.choose`.

    Returns:
        The model. It can be used, not trained or saved; none of its parameters takes a gradient.

    Raises:
        UsageError: The precision is unknown, or the model is in training mode or not on the CPU.
        ResourceError: ``native``, and there are no kernels of our own.
    """
    if precision not in get_args(Precision):
        mend = f"choose {', '.join(get_args(Precision))}"
        raise UsageError(f"unknown precision {precision[:40]!r}", where="pack", mend=mend)
    if model.training:
        raise UsageError("a model in training mode", where="pack", mend="call model.eval() first")
    if any(not tensor.is_cpu for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError("a model that is not on the CPU", where="pack", mend="move it there, or leave packing out")
    own = use_own_kernels(kernel)
    model.float().requires_grad_(False)
    made: dict[nn.Linear, PackedLinear] = {}
    places: Counter[nn.Module] = Counter()
    for attention in [module for module in model.modules() if isinstance(module, MultiHeadAttention)]:
        _join(attention, precision, own)  # type: ignore[bad-argument-type]
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.in_features and child.out_features:
                if child not in made:
                    made[child] = PackedLinear(child.weight, child.bias, precision, own)  # type: ignore[bad-argument-type]
                    if "weight" in child._parameters:  # not where it is computed from others
                        child.weight = child.bias = None  # type: ignore[assignment] # not kept until all are packed
                setattr(parent, name, made[child])
                places[made[child]] += 1
    for mlp in [module for module in model.modules() if isinstance(module, MLP)]:
        first = mlp.up_proj if mlp.gate_proj is None else mlp.gate_proj
        name = next((name for name, one in ACTIVATIONS.items() if one is mlp.activation), "")
        if isinstance(first, PackedLinear) and places[first] == 1 and first.activated(name):
            mlp.activation = nn.Identity().eval()
    if own is not None:
        for block in [module for module in model.modules() if isinstance(module, Block)]:
            block.own = PackedBlock(block)
    return model


def ready(model: nn.Module, precision: str) -> nn.Module:
    """Get a model ready for use where it is: on the CPU it is packed; elsewhere into bf16, where asked for.

    On the CPU a model in float32 stays as it is whose weights the processor's caches hold, and, without kernels of our
    own, one that writes nothing token by token: little would be gained. Beside a larger one there, memory that is freed
    from now on is kept for what comes next; see :func:`regard.sharing.keep_freed`.

    Args:
        model: Anywhere; it is brought into evaluation mode.
        precision: On the CPU, of the weights of linear layers; elsewhere of all that is floating.

    Returns:
        The model.

    Raises:
        UsageError: The model is not on the CPU, and int8 is asked for, or bf16 and it does not write token by token.
    """
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    writes = callable(getattr(model, "step", None))
    if any(not tensor.is_cpu for tensor in (*model.parameters(), *model.buffers())):
        if precision == "fp32" or (precision == "bf16" and writes):
            model = model.eval() if precision == "fp32" else model.eval().to(torch.bfloat16)
            for attention in [module for module in model.modules() if isinstance(module, MultiHeadAttention)]:
                attention.lay_together()
            return model
        mend = "give the device cpu, or leave the precision out"
        raise UsageError(f"{precision[:40]} weights are for the CPU", where="precision", mend=mend)
    if precision == "fp32" and weights < _FEW_WEIGHTS:
        return model
    if precision != "fp32" or writes or choose():
        model = pack(model.eval(), precision)
    keep_freed()  # not before: what packing let go is given back
    return model


def is_packed(model: nn.Module) -> bool:
    """Say whether kernels of our own do a model's products.

    Args:
        model: Packed or not.

    Returns:
        Whether they do all that are large: recurrences are not packed.
    """
    modules = list(model.modules())
    is_ours = any(isinstance(module, PackedLinear) and module.kernel is not None for module in modules)
    return is_ours and not any(isinstance(module, Recurrent | nn.RNNBase) for module in modules)


def packing_error(model: nn.Module) -> float:
    """Say how far packing rounded: the greatest error of a layer's product, relative to the greatest product.

    Args:
        model: A packed model.

    Returns:
        The greatest :attr:`PackedLinear.error` of its layers; 0 for fp32.
    """
    return max((module.error for module in model.modules() if isinstance(module, PackedLinear)), default=0.0)


def _join(attention: MultiHeadAttention, precision: Precision, kernel: Kernel | None) -> None:
    """Make one product of queries, keys and values, and views of it for each alone."""
    parts: Sequence[nn.Module] = (attention.q_proj, attention.k_proj, attention.v_proj)
    linears = [part for part in parts if isinstance(part, nn.Linear)]
    if len(linears) < 3 or len({part.in_features for part in linears}) > 1:
        return
    if len({part.bias is None for part in linears}) > 1:
        return
    if kernel is not None and any(part.out_features % PANEL for part in linears[:2]):
        return  # no part could stand alone on the same memory
    bias_O = None if linears[0].bias is None else torch.cat([part.bias for part in linears])
    joint = PackedLinear(torch.cat([part.weight for part in linears]), bias_O, precision, kernel)
    first = 0
    for name, part in zip(("q_proj", "k_proj", "v_proj"), linears, strict=True):
        setattr(attention, name, joint.part(first, part.out_features))
        first += part.out_features
    attention.joint_proj = joint
