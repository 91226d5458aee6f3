"""From data to positions: round ticks, linear and logarithmic scales."""

import math
from dataclasses import dataclass

from regard.errors import DataError


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Choose round numbers in a range, their distance 1, 2, 2.5 or 5 times a power of ten.

    Args:
        low: Lower end.
        high: Upper end, above it.
        count: Gaps wished for; there are at most so many.

    Returns:
        Ascending numbers from low to high, both ends included where they are round.

    >>> ticks(0, 10)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    >>> ticks(0.13, 0.97)
    [0.2, 0.4, 0.6, 0.8]
    """
    step = _round_step((high - low) / count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [_tidy(i * step) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Choose ticks of a logarithmic axis: 1, 2 and 5 times powers of ten, the powers alone from three decades on.

    Args:
        low: Lower end, above 0.
        high: Upper end.

    Returns:
        Ascending numbers from low to high.

    >>> log_ticks(1, 30)
    [1.0, 2.0, 5.0, 10.0, 20.0]
    >>> log_ticks(0.5, 5000)
    [1.0, 10.0, 100.0, 1000.0]
    """
    factors = (1, 2, 5) if high / low < 1000 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [_tidy(factor * 10.0**power) for power in powers for factor in factors]
    return [tick for tick in every if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def _round_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))


def _tidy(value: float) -> float:
    return float(f"{value:.12g}")


@dataclass(frozen=True)
class Scale:
    """A straight or logarithmic way from data to positions.

    Args:
        low: The value at the start.
        high: The value at the end, above it.
        start: Position of the lower value.
        end: Position of the upper value; may be the smaller number, as on a vertical axis.
        log: Equal ratios, not equal differences, are equally long; values are above 0.

    Raises:
        DataError: A range without an extent.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __post_init__(self) -> None:
        """Refuse ranges that nothing can be placed in."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high) or (
            self.log and self.low <= 0
        ):
            raise DataError(f"from {self.low} to {self.high} is no range", where="scale")

    def __call__(self, value: float) -> float:
        """Place a value.

        >>> Scale(0, 10, 100, 0)(2.5)
        75.0
        """
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Choose round numbers of the range."""
        return log_ticks(self.low, self.high) if self.log else ticks(self.low, self.high, count)

    @classmethod
    def around(cls, low: float, high: float, start: float, end: float, log: bool = False, count: int = 5) -> "Scale":
        """Make a scale whose range is widened to round numbers.

        Args:
            low: Smallest value; finite.
            high: Largest value; may equal the smallest.
            start: Position of the lower end.
            end: Position of the upper end.
            log: Logarithmic; values are above 0.
            count: Gaps between ticks wished for.

        Returns:
            The scale.
        """
        if log:
            low, high = (low / 2, high * 2) if low == high else (low, high)
            margin = (high / low) ** 0.04
            return cls(low / margin, high * margin, start, end, log=True)
        if high - low <= 1e-9 * max(abs(low), abs(high)):
            low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
        step = _round_step((high - low) / count)
        return cls(_tidy(math.floor(low / step + 1e-9) * step), _tidy(math.ceil(high / step - 1e-9) * step), start, end)
