"""From a model to its outputs: greedy, beam search and sampling over one interface, for every model that decodes."""

from regard.decoding.options import DecodeOptions
from regard.decoding.search import Hypothesis, decode, window_start

__all__ = ["DecodeOptions", "Hypothesis", "decode", "window_start"]
