"""Which examples make up which batch: a pure function of (seed, index), so that resuming reads no data again.

An epoch ranks all examples by their length with some noise, cuts the row into batches by a budget of tokens, and
shuffles the batches. Noise and shuffle are drawn from (seed, epoch): like lengths stand together, and no two epochs
have the same batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

import numpy as np

from regard.errors import ConfigError

T = TypeVar("T")

# Share of a length by which it may pass for a longer one when examples are ranked.
NOISE = 0.05


class Order:
    """The batches of a training run.

    Args:
        lengths: Tokens of each example, one array for each side (source, target).
        budget_tokens: Tokens of a batch at most, on the longest side; an example longer than that is a batch of its
            own.
        seed: Of the run.

    Raises:
        ConfigError: There is no example, or the budget is below 1.
    """

    def __init__(self, lengths: Sequence[np.ndarray], budget_tokens: int, seed: int) -> None:
        if budget_tokens < 1 or not len(lengths[0]):
            raise ConfigError(f"batches of {budget_tokens} tokens from {len(lengths[0])} examples")
        self.lengths, self.budget_tokens, self.seed = np.stack(lengths).astype(np.int64), budget_tokens, seed
        # Number of the first batch of each epoch that is known so far; epochs differ by a batch or two.
        self._starts = [0]
        # The newest epoch's batches are kept: they are asked for one after the other.
        self._lock = Lock()
        self._epoch = -1
        self._batches: list[np.ndarray] = []

    def at(self, index: int) -> np.ndarray:
        """Give the examples of a batch.

        Args:
            index: Number of the batch since the start of training.

        Returns:
            Indices of examples, longest first.
        """
        return self.where(index)[1]

    def where(self, index: int) -> tuple[int, np.ndarray]:
        """Give the examples of a batch, and say in which pass over the data it is.

        Args:
            index: Number of the batch since the start of training.

        Returns:
            The epoch, from 0, and indices of examples, longest first.
        """
        with self._lock:  # a worker makes batches ahead while the loop names the one that it stopped at
            while self._starts[-1] <= index:
                epoch = len(self._starts) - 1
                self._starts.append(self._starts[-1] + len(self.epoch(epoch)))
            epoch = bisect_right(self._starts, index) - 1
            return epoch, self.epoch(epoch)[index - self._starts[epoch]]

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Draw the batches of an epoch.

        Args:
            epoch: Number of the pass over the data, from 0.

        Returns:
            Indices of the examples of each batch, in the order in which they are trained on.
        """
        if epoch != self._epoch:
            draws = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            target, source = self.lengths[-1], self.lengths[0]
            noise = draws.random((2, len(target)))
            # Like targets first, since they decide a decoder's steps; then like sources.
            ranked = np.argsort(target * (1 + NOISE * noise[0]) + 0.1 * source * (1 + NOISE * noise[1]))
            batches = np.split(ranked, cuts(self.lengths[:, ranked], self.budget_tokens))
            longest_first = [
                batch[np.lexsort([-self.lengths[0, batch], -self.lengths[-1, batch]])] for batch in batches
            ]
            self._batches = [longest_first[number] for number in draws.permutation(len(batches))]
            self._epoch = epoch
        return self._batches


def cuts(lengths_XN: np.ndarray, budget_tokens: int) -> np.ndarray:
    """Cut a row of examples as late as a budget allows.

    Args:
        lengths_XN: Tokens of each example, a row for each side.
        budget_tokens: Tokens of a batch at most, on each side; a longer example is a batch of its own.

    Returns:
        Where the second, third, … batch begins.
    """
    totals_XN = lengths_XN.cumsum(1)
    found = [0]
    while True:
        before_X = totals_XN[:, found[-1] - 1] if found[-1] else np.zeros(len(lengths_XN), np.int64)
        ends = [np.searchsorted(t, b + budget_tokens, "right") for t, b in zip(totals_XN, before_X, strict=True)]
        end = max(int(min(ends)), found[-1] + 1)
        if end >= lengths_XN.shape[1]:
            return np.array(found[1:], np.int64)
        found.append(end)


def like_lengths(lengths: np.ndarray, budget_tokens: int) -> list[np.ndarray]:
    """Cut inputs into batches of like lengths, for evaluation and use.

    Args:
        lengths: Tokens of each input.
        budget_tokens: Tokens of a batch at most; a longer input is a batch of its own.

    Returns:
        Indices of the inputs of each batch, longest first.
    """
    if not len(lengths):
        return []
    ranked = np.argsort(-lengths, kind="stable")
    return np.split(ranked, cuts(lengths[None, ranked].astype(np.int64), budget_tokens))


def prefetch(make: Callable[[int], T], start: int, ahead: int) -> Iterator[T]:
    """Make items in a worker thread, some ahead of their use, in order and without end.

    Args:
        make: From the item's number to the item.
        start: First number.
        ahead: Items to have ready; 0 makes each when it is asked for.

    Yields:
        ``make(start)``, ``make(start + 1)``, …
    """
    if not ahead:
        number = start
        while True:
            yield make(number)
            number += 1
    # One worker: the maker keeps the current epoch's plan, and collating is far quicker than a training step.
    with ThreadPoolExecutor(1, "regard-data") as worker:
        waiting: list[Future[T]] = [worker.submit(make, start + offset) for offset in range(ahead)]
        try:
            number = start + ahead
            while True:
                item = waiting.pop(0).result()
                waiting.append(worker.submit(make, number))
                number += 1
                yield item
        finally:
            for future in waiting:
                future.cancel()
