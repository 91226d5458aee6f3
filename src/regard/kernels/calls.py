"""What the kernels are given; ``calls.h`` has the same structures. Strides are in numbers."""

from __future__ import annotations

import ctypes


class Matrix(ctypes.Structure):
    """A packed matrix, as the kernels see it."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "outputs", "inputs", "act", "levels")),
        *((name, ctypes.c_void_p) for name in ("weights", "scales", "bias")),
    )


class Product(ctypes.Structure):
    """A product of float32 that become one bfloat16 each, or sums of three, as the kernels see it.

    Strides are in numbers.
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "outputs", "inputs")),
        *((name, ctypes.c_void_p) for name in ("x", "w", "bias", "y")),
        *((name, ctypes.c_int64) for name in ("x_row", "x_input", "w_output", "w_input", "y_row", "adds", "parts")),
    )


class Slots(ctypes.Structure):
    """Queries, keys and values of attention into slots, as the kernels see them; strides are in numbers.

    The mask is added to the scores; its strides are 0 along what it does not depend on. Without one the first
    ``lengths`` keys of each slot count, and without lengths all.
    """

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "y", "mask", "lengths")),
        *((name, ctypes.c_int64) for name in ("slots", "queries", "heads", "groups", "key", "value", "keys")),
        *((name, ctypes.c_int64) for name in ("q_row", "q_head", "k_slot", "k_row", "v_slot", "v_row")),
        *((name, ctypes.c_int64) for name in ("mask_slot", "mask_head", "mask_row")),
        ("scale", ctypes.c_float),
    )


class Sequences(ctypes.Structure):
    """Queries, keys and values of attention within sequences, as the kernels see them; strides are in numbers.

    The mask is added to the scores; its strides are 0 along what it does not depend on, and sequence i has that of
    ``first_mask`` + i modulo ``masks``, at least 1. ``back`` and ``ahead`` say how
    far a query sees, -1 for all the way. ``norms`` is what the gradients need of the scores. Of 2³² weights as many as
    ``dropped`` says are dropped; which ones follows from the seed. With a vector, scores are vectorᵀ tanh(q + k).
    """

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "y", "norms", "mask", "vector")),
        *((name, ctypes.c_void_p) for name in ("q_starts", "q_lengths", "k_starts", "k_lengths")),
        *((name, ctypes.c_int64) for name in ("sequences", "heads", "groups", "key", "value")),
        *((name, ctypes.c_int64) for name in ("q_row", "q_head", "k_row", "k_head", "v_row", "v_head")),
        *((name, ctypes.c_int64) for name in ("masks", "first_mask", "mask_sequence", "mask_head", "mask_row")),
        *((name, ctypes.c_int64) for name in ("back", "ahead", "narrow")),
        *((name, ctypes.c_int64) for name in ("seed", "dropped")),
        ("scale", ctypes.c_float),
    )


class Gradients(ctypes.Structure):
    """The gradient of the contexts, and where those of queries, keys, values and each sequence's vector go."""

    _fields_ = (
        ("y", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("y_row", "y_head")),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "vector")),
    )


class Recurrence(ctypes.Structure):
    """Recurrences side by side, as the kernels see them: tokens time by time, the longest sequence first.

    ``cell`` is 0 for Elman's, 1 for a GRU, 2 for an LSTM; the last alone has the places that end in ``c``. ``kept`` is
    what gradients need.
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("cell", "directions", "sequences", "hidden", "times")),
        *((name, ctypes.c_void_p) for name in ("sizes", "x", "weights", "bias", "start_h", "start_c")),
        *((name, ctypes.c_void_p) for name in ("h", "c", "last_h", "last_c", "kept")),
    )


class RecurrenceGradients(ctypes.Structure):
    """The gradient of the states, and where those of the gates' parts go, and of the first states over the last's."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("h", "x", "gates", "start_h", "start_c"))
