"""Random numbers that are a function of what they are for: no generator, no state, no order.

Seed, epoch, view, place and sample are mixed into one 64-bit key, and the draws of a key are the outputs of SplitMix64
started from it (Steele, Lea & Flood 2014, figure 16). All is vectorized over samples.
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_MANTISSA_BITS = 53


def keys(samples: np.ndarray, *parts: int) -> np.ndarray:
    """Make the key of each sample.

    Args:
        samples: Whole numbers, shape (B).
        *parts: What else the draws depend on (seed, epoch, view, place); order counts.

    Returns:
        uint64, shape (B).
    """
    keys_B = np.zeros(1, dtype=np.uint64)
    for part in parts:
        keys_B = _mix(keys_B + _GOLDEN ^ np.array([part % 2**64], dtype=np.uint64))
    return _mix(keys_B + _GOLDEN ^ np.asarray(samples).astype(np.uint64))


def uniforms(keys_B: np.ndarray, count: int) -> np.ndarray:
    """Draw numbers of [0, 1).

    Args:
        keys_B: Keys, shape (B).
        count: How many for each.

    Returns:
        float64, shape (B, count), multiples of 2⁻⁵³.
    """
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    bits = _mix(keys_B[:, None] + steps)
    return (bits >> np.uint64(64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS


def noise(key: np.uint64, count: int) -> np.ndarray:
    """Draw bytes.

    Args:
        key: One key.
        count: How many.

    Returns:
        uint8, shape (count).
    """
    steps = np.arange(1, -(-count // 8) + 1, dtype=np.uint64) * _GOLDEN
    return _mix(np.array([key]) + steps).astype("<u8").view(np.uint8)[:count]


def _mix(bits: np.ndarray) -> np.ndarray:
    """Spread every bit over all others; one to one."""
    bits = (bits ^ (bits >> _SHIFTS[0])) * _FACTORS[0]
    bits = (bits ^ (bits >> _SHIFTS[1])) * _FACTORS[1]
    return bits ^ (bits >> _SHIFTS[2])
