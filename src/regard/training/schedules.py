"""Learning rates as pure functions of the step."""

from __future__ import annotations

import math

from regard.training.config import TrainingConfig


def factor(step: int, seconds: float, config: TrainingConfig) -> float:
    """Compute the share of the peak learning rate that a step has.

    All warm up linearly: step / warmup. Then

    - ``inverse-sqrt``: √(warmup / step). With the peak (D · warmup)^−0.5 this is the paper's
      D^−0.5 · min(step^−0.5, step · warmup^−1.5).
    - ``cosine``: from 1 to the final ratio r: r + (1 − r) · (1 + cos πt) / 2.
    - ``linear``: from 1 to r.
    - ``constant``: 1.

    t runs from 0 after the warm-up to 1 at max_steps. Where the time is limited too, it follows the clock wherever that
    is ahead, in the warm-up as well, so that a slow machine comes to the schedule's end; such a run cannot be repeated
    to the bit.

    Args:
        step: Number of the step, from 1.
        seconds: Seconds of training so far.
        config: Schedule, warm-up, final ratio and number of steps.

    Returns:
        The factor, from 0 to 1.

    Source: Vaswani et al. 2017, §5.3, equation 3; cosine: Loshchilov & Hutter 2017, equation 5.
    """
    warmup = config.warmup_steps
    rising = min(1.0, step / warmup) if warmup else 1.0
    if config.schedule == "inverse-sqrt":
        return rising if step < warmup else math.sqrt(max(warmup, 1) / step)
    if config.schedule == "constant":
        return rising
    clock = seconds / config.max_seconds if config.max_seconds else 0.0
    progress = min(1.0, max((step - warmup) / max(config.max_steps - warmup, 1), clock, 0.0))
    falling = (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress
    return min(rising, config.final_ratio + (1 - config.final_ratio) * falling)
