"""The data of a run over pairs: read, split, hashed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from regard.data import Pair, catalogue, read_pairs, split_pairs
from regard.errors import ConfigError


@dataclass(frozen=True)
class PairData:
    """Where the pairs come from.

    Attributes:
        train: A file of pairs (TSV, CSV, JSONL, Parquet, or two parallel files ``train.de,train.en``), or
            ``catalogue:NAME``.
        dev: Development file; None splits a part off ``train``.
        test: Test file; None splits another part off ``train``.
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
        test: Test pairs.
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
        ConfigError: Parts are given for data that have their own.
        DataError: A file is bad, or too small to be split.
    """
    notes: list[str] = []
    if config.train.startswith("catalogue:"):
        if config.dev or config.test or config.source or config.target:
            mend = "leave dev, test, source and target out, or give files"
            raise ConfigError("data of the catalogue come with their own parts", where=config.train, mend=mend)
        name = config.train.removeprefix("catalogue:")
        folder = catalogue.get(name)
        entry = catalogue.ENTRIES[name]
        notes.append(f"{entry.description}: {entry.notice}")
        train, dev, test = (read_pairs(str(folder / f"{part}.tsv")) for part in ("train", "dev", "test"))
        return Corpus(train, dev, test, notes)
    columns = {"source": config.source, "target": config.target}
    train = read_pairs(config.train, **columns)
    dev, test = (read_pairs(path, **columns) if path else [] for path in (config.dev, config.test))
    missing = [name for name, part in (("development", dev), ("test", test)) if not part]
    if missing:
        splits = split_pairs(train, seed=seed)
        # What a file was given for stays in the training part.
        train = [*splits.train, *(splits.dev if dev else []), *(splits.test if test else [])]
        dev, test = dev or splits.dev, test or splits.test
        notes.append(f"Split off {config.train} by source, seed {seed}: {' and '.join(missing)} part.")
    return Corpus(train, dev, test, notes)
