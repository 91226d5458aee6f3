"""From a model to its outputs: greedy, beam search and sampling over one interface, for every model that decodes."""

from regard.decoding.lanes import Hypothesis, window_start
from regard.decoding.options import DecodeOptions
from regard.decoding.search import decode
from regard.decoding.speculating import Draft, Lookup, Proposer

__all__ = ["DecodeOptions", "Draft", "Hypothesis", "Lookup", "Proposer", "decode", "window_start"]
