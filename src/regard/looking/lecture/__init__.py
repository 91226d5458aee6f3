"""Pictures for lectures on attention, each drawn from numbers that are computed when the page is made.

=========== ===========================================================================
numbers     what the pictures show, computed; each function is printed on the page too
listing     a function's own lines, as a script
layout      caption, equation, drawing, source, lines
others      a lecture each: what is seen and why
=========== ===========================================================================
"""

from __future__ import annotations

import torch

from regard.looking.lecture import costs, heads, masking, permuting, positions, recurrent, scaling
from regard.looking.lecture.layout import laid_out
from regard.looking.page import document, section

__all__ = ["lecture_page"]

_TITLE = "Attention, drawn from the computation"
_LEAD = (
    "Pictures for lectures. None is a sketch: the numbers in each were computed by the lines beside it, when this "
    "page was made. Blue is above zero, orange below; the stronger a shade, the larger the number in its matrix."
)


def lecture_page(*, cost: bool = True) -> str:
    """Compute and draw the pictures of lectures on attention.

    Args:
        cost: Measure time and memory of layers too, some seconds of work; without it the page is always the same.

    Returns:
        A whole HTML document, which loads nothing.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # the printed lines set a seed, as a reader would
        lectures = (
            ("positions", "Position encodings", "How a model knows where a word stands.", positions.pictures()),
            (
                "order",
                "Attention does not see order",
                "Step by step, by permuting a sentence; the lines stand at the first step.",
                permuting.pictures(),
            ),
            ("masks", "Masks", "Which keys a query may attend to.", masking.pictures()),
            (
                "scale",
                "The scale of the scores",
                "Softmax and its gradient, with 1/√K and without.",
                scaling.pictures(),
            ),
            (
                "steps",
                "A head step by step",
                "From words to the layer’s result, every matrix; the lines stand at the first step.",
                heads.pictures(),
            ),
            (
                "recurrent",
                "Attention in a recurrent translator",
                "One step of the decoder; the lines stand at its beginning.",
                recurrent.pictures(),
            ),
            ("cost", "Cost against length", "Three kinds of layers.", costs.pictures(measure=cost)),
        )
    links = "".join(f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title, _, _ in lectures)
    contents = f'<nav aria-label="Contents"><ol class="contents">{links}</ol></nav>'
    head = f'<div class="head"><h1>{_TITLE}</h1><p class="lead">{_LEAD}</p>{contents}</div>'
    sections = (
        section(title, about, "".join(map(laid_out, pictures)), anchor) for anchor, title, about, pictures in lectures
    )
    return document(_TITLE, "Lecture", "\n".join([head, *sections]), kind="lecture")
