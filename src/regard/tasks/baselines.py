"""Honest baselines for pairs: what can be had without a trained model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def copy_source(sources: Sequence[str]) -> list[str]:
    """Give each input back as its output."""
    return list(sources)


# Some 100 bytes each while they are counted.
MAX_CELLS = 20_000_000


class Lexicon:
    """The most probable target token of each source token, one by one: letter by letter, or word for word.

    Probabilities p(target token | source token) come from IBM Model 1 (Brown et al. 1993, §4.1): a few rounds of
    expectation–maximization over all pairs, which needs no alignment.

    Args:
        pairs: Training pairs, as token strings. Of many, every n-th is used, so that at most :data:`MAX_CELLS` pairs of
            tokens are looked at: more would change little and fill the memory.
        rounds: Rounds of expectation–maximization.
    """

    def __init__(self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]], rounds: int = 5) -> None:
        num_cells = sum((len(source) + 1) * len(target) for source, target in pairs)
        pairs = pairs[:: max(1, -(-num_cells // MAX_CELLS))]
        source_ids: dict[str, int] = {"": 0}  # the null word, to which targets without a partner go
        target_ids: dict[str, int] = {}
        rows: list[np.ndarray] = []
        cells: list[np.ndarray] = []
        for place, (source, target) in enumerate(pairs):
            s = np.array([0, *(source_ids.setdefault(token, len(source_ids)) for token in source)])
            t = np.array([target_ids.setdefault(token, len(target_ids)) for token in target], np.int64)
            cells.append(np.stack([np.repeat(s, len(t)), np.tile(t, len(s))]))
            rows.append(np.tile(np.arange(len(t)), len(s)) + (place << 20))
        s_X, t_X = np.concatenate(cells, 1)
        _, row_X = np.unique(np.concatenate(rows), return_inverse=True)
        pair_P, pair_X = np.unique(s_X * len(target_ids) + t_X, return_inverse=True)
        pair_source_P = pair_P // max(len(target_ids), 1)
        probability_P = np.ones(len(pair_P))
        for _ in range(rounds):
            weight_X = probability_P[pair_X]
            weight_X = weight_X / np.bincount(row_X, weight_X)[row_X]
            count_P = np.bincount(pair_X, weight_X)
            probability_P = count_P / np.bincount(pair_source_P, count_P)[pair_source_P]
        names, words = list(source_ids), list(target_ids)
        best: dict[str, tuple[float, str]] = {}
        for pair, probability in zip(pair_P, probability_P, strict=True):
            name, word = names[pair // len(words)], words[pair % len(words)]
            best[name] = max(best.get(name, (0.0, "")), (probability, word))
        self.best = {name: word for name, (_, word) in best.items() if name}

    def __call__(self, source: Sequence[str]) -> list[str]:
        """Translate token by token; a token that was never seen is left out.

        Args:
            source: Source tokens.

        Returns:
            Target tokens.
        """
        return [self.best[token] for token in source if token in self.best]
