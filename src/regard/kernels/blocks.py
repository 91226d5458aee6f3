"""Transformer blocks by our own kernel; see ``blocks.cpp``. The structures are ``calls.h``'s.

The kernel checks nothing: all floats are float32, rows and stores lie without gaps, and there are as many rows as slots
have queries, or sequences tokens. :mod:`regard.layers.packed_block` sees to that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from regard.kernels.calls import Sequences, Slots

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64


class Norm(ctypes.Structure):
    """A layer norm, or a root mean square norm; null pointers for what it has not.

    Attributes:
        is_rms: Whether it is the latter.
        weight: float32, D numbers.
        bias: Likewise.
        eps: Added to the variance.
    """

    _fields_ = (("is_rms", _NUMBER), ("weight", _POINTER), ("bias", _POINTER), ("eps", ctypes.c_float))


class Weights(ctypes.Structure):
    """What a block consists of; cross-attention and the gate are null where there is none.

    Attributes:
        is_pre: Whether norms stand before sublayers, not behind residuals.
        width: D, a multiple of 16.
        self_norm: Of self-attention.
        cross_norm: Of cross-attention.
        mlp_norm: Of the MLP.
        self_in: A :class:`~regard.kernels.calls.Matrix`, D to the queries of all heads, the keys of all groups and
            their values.
        self_out: Contexts of all heads to D.
        cross_in: D to queries.
        cross_out: Contexts to D.
        gate: D to F, activated.
        up: D to F; activated where there is no gate.
        down: F to D.
    """

    _fields_ = (
        *((name, _NUMBER) for name in ("is_pre", "width")),
        *((name, Norm) for name in ("self_norm", "cross_norm", "mlp_norm")),
        *((name, _POINTER) for name in ("self_in", "self_out", "cross_in", "cross_out", "gate", "up", "down")),
    )


class Step(ctypes.Structure):
    """What blocks are given in one step.

    Attributes:
        x: float32, (N, D).
        y: Where the result goes, likewise.
        rows: N.
        slot: int64, N numbers: the slot of each row's key and value.
        place: int64, N numbers: their place in it.
        turns: float32, (N, K): sines, then cosines, of half a head; null where nothing is rotated.
        self_slots: What is attended to, the new keys among it; queries and results are the kernel's own, keys and
            values are each block's.
        cross_slots: Likewise.
    """

    _fields_ = (
        *((name, _POINTER) for name in ("x", "y")),
        ("rows", _NUMBER),
        *((name, _POINTER) for name in ("slot", "place", "turns")),
        *((name, Slots) for name in ("self_slots", "cross_slots")),
    )


class Whole(ctypes.Structure):
    """What a block is given of whole sequences.

    Attributes:
        x: float32, (N, D).
        y: Where the result goes, likewise; other memory.
        room: float32, as many numbers as :attr:`~regard.kernels.native.Kernel.room` says.
        rows: N.
        laid: Rows M of the sequences that self-attention sees.
        places: int64, M numbers: the row of x that each of them is, −1 for zeros; every row of x has one. Null where
            they are the rows of x.
        turns: float32, (M, K): sines, then cosines, of half a head; null where nothing is rotated.
        k: float32, where the keys are kept: of a slot all places, without gaps; null for nowhere.
        v: The values, likewise.
        slot: int64, M numbers: the slot of each row's key and value.
        place: int64, M numbers: their place in it.
        k_slot: Numbers from slot to slot.
        v_slot: Likewise.
        sequences: What is attended to; queries, keys, values and results are the kernel's own.
    """

    _fields_ = (
        *((name, _POINTER) for name in ("x", "y", "room")),
        *((name, _NUMBER) for name in ("rows", "laid")),
        *((name, _POINTER) for name in ("places", "turns", "k", "v", "slot", "place")),
        *((name, _NUMBER) for name in ("k_slot", "v_slot")),
        ("sequences", Sequences),
    )


def pointers(places: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """Lay places in memory out one after the other: those of blocks; or of their keys and values, four for each block.

    Args:
        places: The places; 0 is none.

    Returns:
        What the kernel is given.
    """
    return (_POINTER * len(places))(*places)
