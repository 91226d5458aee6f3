"""The attention core: imports torch and errors, and knows no model.

=============== =======================================================================
attend          the one function through which every model attends; backend table
segments        which tokens belong together: uniform, ragged, slots
masks           which keys a query may attend to; combine with ``&``
scores          how well a query and a key match
relative        relative scores of queries that stand anywhere among the keys
positions       encodings, rotations, biases
multihead       MultiHeadAttention: self, cross, grouped heads, cached
cache           keys and values kept for decoding
compiling       what runs as it is where a caller is compiled
sites           the modules that attend, found by name
recording       see the weights, while the forward pass stays fast
silencing       switch heads off, for a while or for good
=============== =======================================================================
"""

from regard.attention import masks, positions, scores
from regard.attention.attend import attend
from regard.attention.cache import KVCache
from regard.attention.multihead import MultiHeadAttention
from regard.attention.recording import Rows, record
from regard.attention.segments import Segments
from regard.attention.silencing import silence, switch_off
from regard.attention.sites import Site

__all__ = [
    "KVCache",
    "MultiHeadAttention",
    "Rows",
    "Segments",
    "Site",
    "attend",
    "masks",
    "positions",
    "record",
    "scores",
    "silence",
    "switch_off",
]
