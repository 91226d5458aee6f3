"""Which examples make up which batch: a pure function of (seed, step), so that resuming replays nothing.

An epoch sorts all examples by length, equal lengths in an order drawn for the epoch, cuts the row into batches by a
budget of tokens, and shuffles the batches. The sorted lengths are the same in every epoch, so every epoch has the same
number of batches and a step's place follows by division.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from regard.errors import ConfigError

T = TypeVar("T")


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
        self.lengths, self.seed = [np.asarray(side, np.int64) for side in lengths], seed
        ranked = np.lexsort(self.lengths)
        totals = np.zeros(len(self.lengths), np.int64)
        cuts = [0]
        for place, row in enumerate(np.stack(self.lengths, 1)[ranked]):
            totals += row
            if totals.max() > budget_tokens and place > cuts[-1]:
                cuts.append(place)
                totals = row.copy()
        self.cuts = np.array(cuts[1:], np.int64)
        self.per_epoch = len(cuts)
        self._epoch = -1
        self._batches: list[np.ndarray] = []

    def at(self, index: int) -> np.ndarray:
        """Give the examples of a batch.

        Args:
            index: Number of the batch since the start of training.

        Returns:
            Indices of examples, longest first.
        """
        epoch, place = divmod(index, self.per_epoch)
        if epoch != self._epoch:
            draws = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            ranked = np.lexsort([draws.random(len(self.lengths[0])), *self.lengths])
            batches = np.split(ranked, self.cuts)
            self._batches = [batches[number][::-1] for number in draws.permutation(len(batches))]
            self._epoch = epoch
        return self._batches[place]


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
    order = Order([lengths], budget_tokens, 0)
    return [ranked[::-1] for ranked in np.split(np.lexsort([lengths]), order.cuts)][::-1]


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
