"""Attention into cache slots: static shapes, for cached decoding.

Queries are uniform (T new tokens, or T beams, for each slot); keys are slots of one capacity of which the first
``lengths_B`` places count. Nothing beyond ``max_len`` is read, nothing beyond a slot's length reaches a result. The
slots are one dense block as they lie, so the kernel is that of :mod:`regard.attention.backends.dense`.
"""

from regard.attention.backends.dense import run

__all__ = ["run"]
