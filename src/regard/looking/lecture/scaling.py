"""The lecture on the factor 1/√K: what it does to the softmax and to its gradient."""

import math
from inspect import signature

from torch import Tensor

from regard.looking.lecture.layout import Picture, curves
from regard.looking.lecture.numbers.scaling import softmax_by_head_size
from regard.looking.svg import Series

_WIDE_PX = 500


def pictures() -> list[Picture]:
    """Draw them, from what is computed now."""
    measured = softmax_by_head_size()
    defaults = {name: one.default for name, one in signature(softmax_by_head_size).parameters.items()}
    draws, keys, sizes = defaults["draws"], defaults["keys"], defaults["sizes"]
    names = ("standard deviation of the scores", "largest weight", "entropy, nats", "norm of the Jacobian")
    charts = [_chart(measured, column, name, sizes) for column, name in enumerate(names)]
    first, last = measured["q · k"][0], measured["q · k"][-1]
    scaled = measured["q · k / √K"][-1]
    picture = Picture(
        "Why scores are divided by `√K`",
        (
            f"A sum of `K` products of numbers from N(0, 1) has the standard deviation `√K`: {first[0]:.1f} at `K` = "
            f"{sizes[0]}, {last[0]:.1f} at `K` = {sizes[-1]}. Divided by `√K` it is 1, whatever `K` is.",
            f"Without the factor, one key takes nearly all the weight at large `K` (on average {last[1]:.2f} of it, "
            f"among {keys} keys), and the entropy falls from {first[2]:.2f} to {last[2]:.2f}; that of equal weights "
            f"is ln {keys} = {math.log(keys):.2f}.",
            "Where a weight is near 1 and the others near 0, all entries of the Jacobian are near 0: at `K` = "
            f"{sizes[-1]} its norm is {last[3]:.3f}, with the factor {scaled[3]:.3f}. That is how the gradient "
            "vanishes.",
        ),
        ("Var(q · k) = K", "∂a_{i} / ∂e_{j} = a_{i} (δ_{i, j} − a_{j})"),
        f"Vaswani et al. 2017, §3.2.1 and its footnote 4; q, k from N(0, 1), n = {draws} queries with {keys} keys each",
        f'<div class="columns charts">{"".join(charts)}</div>',
        softmax_by_head_size,
        wide=True,
    )
    return [picture]


def _chart(measured: dict[str, Tensor], column: int, name: str, sizes: tuple[int, ...]) -> str:
    series = [Series(score, sizes, values[:, column].tolist()) for score, values in measured.items()]
    drawn = curves(series, x_label="head size K", y_label=name, log_x=True, log_y=column == 0, wide=_WIDE_PX)
    return f"<div>{drawn}</div>"
