"""Maps to pictures: what a model looked at, and what a training reached.

=============== =======================================================================
maps            AttentionMap and Maps: the weights, with their tokens (attention_map: of one layer)
places          the same over a picture: a grid, windows, boxes
rollout, flow   attention followed through the layers; a row of weights laid over a picture
stacks          which layers belong together
form, tiles     what the page of maps is given: a run, parts of a large map
report          what a training report tells
look_page       the page of maps; report_page: that of a run; page: what both have
lecture         pictures for lectures, each with the lines that compute it
heat, overlay   the matrix of an alignment; shades over a picture
svg             learning curves, bars
matrix          matrices of signed numbers
scale, text     positions and ticks; strangers' text made safe
png             pictures written
seeing          maps of an image encoder; reading, seq2seq: of what reads texts
spill           weights that may be larger than memory
doing           what a model may write next, and how probable it finds what it wrote
=============== =======================================================================
"""

from regard.looking.attention_map import AttentionMap
from regard.looking.flow import attention_flow
from regard.looking.lecture import lecture_page
from regard.looking.look_page import look_page
from regard.looking.maps import Link, Maps
from regard.looking.places import Boxes, Picture, Places
from regard.looking.report import ByLength, Curve, Figure, Report, Sample, Score, Table
from regard.looking.report_page import report_page
from regard.looking.rollout import over_picture, rollout

__all__ = [
    "AttentionMap",
    "Boxes",
    "ByLength",
    "Curve",
    "Figure",
    "Link",
    "Maps",
    "Picture",
    "Places",
    "Report",
    "Sample",
    "Score",
    "Table",
    "attention_flow",
    "lecture_page",
    "look_page",
    "over_picture",
    "report_page",
    "rollout",
]
