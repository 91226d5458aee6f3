"""The data of a run over pairs: read, split, hashed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from regard.data import Pair, catalogue, read_pairs, split_pairs
from regard.errors import DataError


@dataclass(frozen=True)
class PairData:
    """Where the pairs come from.

    Attributes:
        train: A file of pairs (TSV, CSV, JSONL, Parquet, or two parallel files ``train.de,train.en``), or
            ``catalogue:NAME``.
        dev: Development file; None takes a part of ``train``, as does a missing ``test``.
        test: Test file.
        source: Column (or suffix of parallel files) of the source; None for the format's default.
        target: Column or suffix of the target.
        on_long: What happens to training pairs over ``max_tokens``: ``drop`` leaves them out and says how many.
        max_tokens: Tokens of either side at most; the model's context.
    """

    train: str
    dev: str | None = None
    test: str | None = None
    source: str | None = None
    target: str | None = None
    on_long: Literal["error", "drop"] = "drop"
    max_tokens: int = 256


@dataclass(frozen=True)
class Corpus:
    """The three parts of the data.

    Attributes:
        train: Training pairs.
        dev: Development pairs.
        test: Test pairs; empty where dev was given and test was not.
        notes: Where they come from and how they were split, for the report.
    """

    train: list[Pair]
    dev: list[Pair]
    test: list[Pair]
    notes: list[str]

    def digest(self) -> str:
        """Hash all pairs, so that a run can tell whether its data changed."""
        state = hashlib.sha256()
        for part in (self.train, self.dev, self.test):
            for pair in part:
                state.update(f"{pair.source}\t{pair.target}\n".encode())
            state.update(b"\0")
        return state.hexdigest()


def read_corpus(config: PairData, seed: int) -> Corpus:
    """Read the data, splitting off what is not given.

    Args:
        config: Where it is.
        seed: Of the split.

    Returns:
        The three parts.

    Raises:
        DataError: A file is bad, or a part is empty.
    """
    notes = []
    if config.train.startswith("catalogue:"):
        name = config.train.removeprefix("catalogue:")
        folder = catalogue.get(name)
        entry = catalogue.ENTRIES[name]
        notes.append(f"{entry.description}: {entry.notice}")
        parts = [read_pairs(str(folder / f"{part}.tsv")) for part in ("train", "dev", "test")]
        train, dev, test = parts
    else:
        columns = {"source": config.source, "target": config.target}
        train = read_pairs(config.train, **columns)
        dev, test = (read_pairs(path, **columns) if path else [] for path in (config.dev, config.test))
        if not dev:
            splits = split_pairs(train, seed=seed)
            train, dev = splits.train, splits.dev
            test = test or splits.test
            notes.append(f"Development and test parts were split off {config.train} by source, seed {seed}.")
    if not train or not dev:
        raise DataError(f"{len(train)} training and {len(dev)} development pairs", where=config.train)
    return Corpus(list(train), list(dev), list(test), notes)
