"""The lecture on what a layer costs by the length of its input."""

import math
import platform
from inspect import signature

import torch
from torch import Tensor

from regard.looking.lecture.layout import Picture, curves, marked, scrolled
from regard.looking.lecture.numbers.costs import costs
from regard.looking.svg import Series

_WIDE_PX = 500
_COUNTS = (
    ("self-attention", "`O(n²·d)`", "`O(1)`", "`O(1)`"),
    ("recurrent", "`O(n·d²)`", "`O(n)`", "`O(n)`"),
    ("convolution", "`O(k·n·d²)`", "`O(1)`", "`O(log_{k} n)`"),
    ("self-attention, window of `r`", "`O(r·n·d)`", "`O(1)`", "`O(n/r)`"),
)


def pictures(*, measure: bool = True) -> list[Picture]:
    """Draw them.

    Args:
        measure: Run the layers now.

    Returns:
        The counts of operations and, where they are measured, time and memory.
    """
    head = "<tr><th>layer</th><th>operations</th><th>in sequence</th><th>longest path</th></tr>"
    rows = "".join(f"<tr>{''.join(f'<td>{marked(cell)}</td>' for cell in row)}</tr>" for row in _COUNTS)
    table = scrolled(f'<table class="figures"><thead>{head}</thead><tbody>{rows}</tbody></table>')
    not_measured = "" if measure else " Time and memory were not measured for this page."
    counts = Picture(
        "What is counted",
        (
            "`n` is the length, `d` the width, `k` the kernel of a convolution. Self-attention does less than a "
            "recurrence as long as a text is shorter than its vectors are wide, and more from there on.",
            "A recurrence takes its steps one after the other; attention and convolution take them all at once. And "
            f"through attention every two words are one step apart.{not_measured}",
        ),
        (),
        "Vaswani et al. 2017, §4 and table 1",
        table,
        None,
    )
    if not measure:
        return [counts]
    defaults = {name: one.default for name, one in signature(costs).parameters.items()}
    return [counts, measured(*costs(), defaults["width"], defaults["lengths"])]


def measured(
    seconds: dict[str, Tensor], peak_bytes: dict[str, Tensor], width: int, lengths: tuple[int, ...]
) -> Picture:
    """Draw what was measured.

    Args:
        seconds: Of each layer at each length; NaN where it was not measured.
        peak_bytes: Likewise.
        width: Width of the layers.
        lengths: The lengths, tokens.

    Returns:
        The picture.
    """
    missing = [n for n, s in zip(lengths, seconds["GRU"].tolist(), strict=True) if math.isnan(s)]
    left_out = f" Not measured, for time: {', '.join(map(str, missing))}." if missing else ""
    charts = [
        curves(
            [Series(name, lengths, [scale * value for value in values.tolist()]) for name, values in told.items()],
            x_label="length n, tokens",
            y_label=label,
            log_x=True,
            log_y=True,
            wide=_WIDE_PX,
        )
        for told, label, scale in ((seconds, "forward pass, ms", 1e3), (peak_bytes, "memory, bytes", 1.0))
    ]
    threads = torch.get_num_threads()
    machine = f"{platform.system()}, {platform.machine()} with {torch.backends.cpu.get_cpu_capability()}"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return Picture(
        "What is measured, here and now",
        (
            "One sequence through one layer, forward alone. On both axes equal distances are equal factors: a line "
            "that climbs twice as steeply grows with n².",
            "“attention” computes the formula as it stands and holds all n² weights of each head; “attention, "
            "fused” is the same result from a kernel that goes through the keys in blocks and never holds them. Its "
            "time still grows with n², its memory with n alone. The recurrence takes n steps in a row, each too "
            "small to fill a machine.",
            "Memory is the most bytes alive at once of what the layer’s operations gave; the fused kernel’s own "
            f"working space is not seen.{left_out}",
        ),
        (),
        f"d = {width}, 4 heads, k = 3, float32, on {machine}, {threads} thread{'s' if threads > 1 else ''}; {versions}",
        f'<div class="columns charts">{"".join(f"<div>{chart}</div>" for chart in charts)}</div>',
        costs,
        wide=True,
    )
