"""Maps to pictures: what a model looked at, and what a training reached.

=============== =======================================================================
maps            AttentionMap and Maps: the weights, with their tokens
rollout         attention followed through the layers
report          what a training report tells
page            look_page and report_page: one file each, which loads nothing
heat            the matrix of an alignment, the thumbnail of a head
svg             learning curves, bars
scale, text     positions and ticks; strangers' text made safe
=============== =======================================================================
"""

from regard.looking.maps import AttentionMap, Link, Maps
from regard.looking.page import look_page, report_page
from regard.looking.report import ByLength, Curve, Report, Sample, Score, Table
from regard.looking.rollout import rollout

__all__ = [
    "AttentionMap",
    "ByLength",
    "Curve",
    "Link",
    "Maps",
    "Report",
    "Sample",
    "Score",
    "Table",
    "look_page",
    "report_page",
    "rollout",
]
