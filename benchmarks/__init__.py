"""Measurements against peers, as ratios interleaved in one run: machines differ and are noisy, ratios carry over."""
