"""Honest baselines: what can be had without a network."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor


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


DENSE_TEXTS = 256


class BagOfWords:
    """Ridge regression from the words and pairs of words of a text to numbers.

    w = argmin ‖X w − Y‖² + λ‖w‖², in its dual form: w = Xᵀ (X Xᵀ + λ)⁻¹ Y. X holds term frequency × inverse document
    frequency, rows of length 1; λ is the best of a few on the development part.

    Source: Hoerl & Kennard 1970.
    """

    # Of more training texts so many are drawn: the dual form solves a system of that size.
    MOST_TEXTS = 12_000

    def __init__(self, index: dict[str, int], idf_V: Tensor, weight_VO: Tensor, mean_O: Tensor) -> None:
        self.index, self.idf_V, self.weight_VO, self.mean_O = index, idf_V, weight_VO, mean_O

    @staticmethod
    def fit(texts: Sequence[str], targets_BO: Tensor, dev: Sequence[str], dev_targets_BO: Tensor) -> BagOfWords:
        """Fit weights.

        Args:
            texts: Training texts.
            targets_BO: float64, their numbers.
            dev: Texts that λ is chosen on.
            dev_targets_BO: float64, their numbers.

        Returns:
            The regression.
        """
        # Drawn, since files may be sorted by class, or have classes in turn; always alike.
        shuffled = np.random.Generator(np.random.Philox(key=1)).permutation(len(texts))
        drawn = np.sort(shuffled[: BagOfWords.MOST_TEXTS])
        texts, targets_BO = [texts[place] for place in drawn], targets_BO[torch.from_numpy(drawn)]
        counts = Counter(term for text in texts for term in set(_terms(text)))
        index = {term: place for place, (term, count) in enumerate(counts.items()) if count > 1}
        index = {term: place for place, term in enumerate(index)}
        documents = torch.tensor([counts[term] for term in index], dtype=torch.float64)
        idf_V = ((1 + len(texts)) / (1 + documents)).log() + 1
        mean_O = targets_BO.mean(0)
        bag = BagOfWords(index, idf_V, torch.zeros(len(index), targets_BO.shape[1], dtype=torch.float64), mean_O)
        x_BV, dev_BV = bag._rows(texts), bag._rows(dev)
        # Some texts at a time: as one dense matrix, the terms of ten thousand would not fit in memory.
        parts = torch.arange(len(texts)).split(DENSE_TEXTS) if len(index) else ()
        columns = [torch.sparse.mm(x_BV, x_BV.index_select(0, part).to_dense().t()) for part in parts]
        gram_BB = torch.cat(columns, 1) if columns else torch.zeros(len(texts), len(texts))
        best = None
        for penalty in (0.1, 0.3, 1.0, 3.0, 10.0):
            factor = torch.linalg.cholesky(gram_BB.double() + penalty * torch.eye(len(texts), dtype=torch.float64))
            weight_VO = torch.sparse.mm(x_BV.t(), torch.cholesky_solve(targets_BO - mean_O, factor))
            error = float((torch.sparse.mm(dev_BV, weight_VO) + mean_O - dev_targets_BO).square().mean())
            if best is None or error < best[0]:
                best = error, weight_VO
        assert best is not None
        return BagOfWords(index, idf_V, best[1], mean_O)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Give each text its numbers.

        Args:
            texts: Texts.

        Returns:
            float64, (texts, numbers).
        """
        return torch.sparse.mm(self._rows(texts), self.weight_VO) + self.mean_O

    def _rows(self, texts: Sequence[str]) -> Tensor:
        places: list[tuple[int, int]] = []
        values: list[float] = []
        for row, text in enumerate(texts):
            found = Counter(self.index[term] for term in _terms(text) if term in self.index)
            weights = {place: count * float(self.idf_V[place]) for place, count in found.items()}
            length = math.sqrt(sum(weight**2 for weight in weights.values())) or 1.0
            places += [(row, place) for place in weights]
            values += [weight / length for weight in weights.values()]
        at = torch.tensor(places, dtype=torch.int64).reshape(-1, 2).t()
        size = (len(texts), len(self.index))
        entries = torch.tensor(values, dtype=torch.float64)
        return torch.sparse_coo_tensor(at, entries, size, check_invariants=False).coalesce()


class SharedWords:
    """Least squares from the words that two texts share to numbers: |A ∩ B| / |A|, |A ∩ B| / |B| and 1 · w ≈ Y.

    Args:
        pairs: Training pairs.
        targets_BO: float64, their numbers.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], targets_BO: Tensor) -> None:
        self.weight_3O = torch.linalg.lstsq(self._rows(pairs), targets_BO).solution

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        """Give each pair its numbers.

        Args:
            pairs: Pairs of texts.

        Returns:
            float64, (pairs, numbers).
        """
        return self._rows(pairs) @ self.weight_3O

    @staticmethod
    def _rows(pairs: Sequence[tuple[str, str]]) -> Tensor:
        words = [tuple(frozenset(_WORD.findall(text.casefold())) for text in pair) for pair in pairs]
        shares = [(len(a & b) / max(len(a), 1), len(a & b) / max(len(b), 1), 1.0) for a, b in words]
        return torch.tensor(shares, dtype=torch.float64)


def _terms(text: str) -> list[str]:
    words = _WORD.findall(text.casefold())
    return [*words, *(f"{one} {other}" for one, other in pairwise(words))]


_WORD = re.compile(r"\w+|[^\w\s]")
