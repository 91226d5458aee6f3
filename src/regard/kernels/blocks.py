"""A Transformer block over a few new tokens by our own kernel; see ``blocks.cpp``. The structures are ``calls.h``'s."""

from __future__ import annotations

import ctypes

from regard.kernels.native import Slots

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64


class Norm(ctypes.Structure):
    """A layer norm, or a root mean square norm; null pointers for what it has not."""

    _fields_ = (("is_rms", _NUMBER), ("weight", _POINTER), ("bias", _POINTER), ("eps", ctypes.c_float))


class Weights(ctypes.Structure):
    """What a block consists of; cross-attention and the gate are null where there is none.

    ``self_in`` gives the queries of all heads, then the keys of all groups, then the values; ``cross_in`` queries.
    """

    _fields_ = (
        *((name, _NUMBER) for name in ("is_pre", "width")),
        *((name, Norm) for name in ("self_norm", "cross_norm", "mlp_norm")),
        *((name, _POINTER) for name in ("self_in", "self_out", "cross_in", "cross_out", "gate", "up", "down")),
    )


class Step(ctypes.Structure):
    """What a block is given: rows x, the slot and the place of each row's key and value, and what is attended to.

    ``turns`` are sines, then cosines, of half a head for each row; null where nothing is rotated.
    """

    _fields_ = (
        *((name, _POINTER) for name in ("x", "y")),
        ("rows", _NUMBER),
        *((name, _POINTER) for name in ("slot", "place", "turns")),
        # Slots that hold the new keys too, and those of cross-attention; both without queries and results.
        *((name, Slots) for name in ("self_slots", "cross_slots")),
    )
