"""The data of a run over pairs: read, split, hashed."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from regard.data import Pair, catalogue, read_pairs, split_pairs
from regard.data.split import normalized
from regard.errors import ConfigError

CATALOGUE = "catalogue:"


@dataclass(frozen=True)
class PairData:
    """Where the pairs come from.

    Attributes:
        train: A file of pairs (TSV, CSV, JSONL, Parquet, or two parallel files ``train.de,train.en``), or
            ``catalogue:NAME``.
        dev: Development file; None splits a part off ``train``.
        test: Test file; None splits another part off ``train``.
        source: Column (or suffix of parallel files) of the source, or two columns with a comma between; None for the
            format's default.
        target: Column or suffix of the target.
        extra: More training pairs: files with the same columns, or the training parts of catalogue entries. A pair is
            left out if one of its sides is, but for case and punctuation, a side of a development or test pair.
        repeat: Times that the pairs of ``train`` stand in the training part, so that many extra ones do not drown them.
        on_long: What happens to training pairs over ``max_tokens``: ``drop`` leaves them out and says how many.
        max_tokens: Tokens of either side at most; the model's context.
    """

    train: str
    dev: str | None = None
    test: str | None = None
    source: str | None = None
    target: str | None = None
    extra: tuple[str, ...] = ()
    repeat: int = 1
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
        origins: Where the training pairs come from, in their order: names, and how many each gave.
        others: Further test pairs by name.
    """

    train: list[Pair]
    dev: list[Pair]
    test: list[Pair]
    notes: list[str]
    origins: tuple[tuple[str, int], ...]
    others: Mapping[str, list[Pair]] = field(default_factory=dict)

    def name_lines(self, indices: Iterable[int]) -> str:
        """Say which lines of which files training pairs are.

        Args:
            indices: Their places in the training part.

        Returns:
            The first lines of each file.
        """
        bounds = list(accumulate(count for _, count in self.origins))
        lines: dict[str, set[int]] = {}
        for index in indices:
            name = self.origins[bisect_right(bounds, index)][0]
            lines.setdefault(name, set()).add(self.train[index].line)
        named = []
        for name, numbers in lines.items():
            shown = ", ".join(map(str, sorted(numbers)[:8])) + (", …" if len(numbers) > 8 else "")
            named.append(f"line{'s' if len(numbers) > 1 else ''} {shown} of {name}")
        return " and ".join(named)

    def warnings(self) -> list[str]:
        """Say how much of the held-out parts is known from training, as where a file was given twice."""
        known = {pair.source for pair in self.train}
        seen = []
        for name, part in (("development", self.dev), ("test", self.test)):
            if count := sum(pair.source in known for pair in part):
                seen.append(f"{count:,} of {len(part):,} {name} texts ({count / len(part):.1%})")
        return [f"{' and '.join(seen)} stand in the training part: scores say less of new texts."] if seen else []

    def digest(self) -> str:
        """Hash all pairs, so that a run can tell whether its data changed."""
        state = hashlib.sha256()
        for part in (self.train, self.dev, self.test, *self.others.values()):
            for pair in part:
                state.update(f"{pair.source}\t{pair.target}\n".encode())
            state.update(b"\0")
        return state.hexdigest()


def read_corpus(config: PairData, seed: int, labelled: bool = False, classes: bool = False) -> Corpus:
    """Read the data, splitting off what is not given.

    Args:
        config: Where it is.
        seed: Of the split.
        labelled: Targets are labels, which the parts share: of extra pairs the sources alone may give an answer away.
        classes: Labels are classes: of each the training part keeps an example where parts are split off it.

    Returns:
        The three parts.

    Raises:
        ConfigError: Parts are given for data that have their own.
        DataError: A file is bad, or too small to be split.
    """
    corpus = _catalogued(config) if config.train.startswith(CATALOGUE) else _split(config, seed, classes)
    if not config.extra and config.repeat == 1:
        return corpus
    held_out = {
        normalized(text) for part in (corpus.dev, corpus.test) for pair in part for text in _sides(pair, labelled)
    }
    train, notes, origins = corpus.train * config.repeat, list(corpus.notes), list(corpus.origins) * config.repeat
    for name in config.extra:
        pairs, notice = read_part(name, config, "train")
        kept = [pair for pair in pairs if held_out.isdisjoint(map(normalized, _sides(pair, labelled)))]
        train += kept
        origins.append((name, len(kept)))
        notes += notice
        notes.append(
            f"{len(kept):,} more training pairs of {name}; {len(pairs) - len(kept):,} left out that have a side of a "
            "development or test pair."
        )
    return Corpus(train, corpus.dev, corpus.test, notes, tuple(origins))


def _sides(pair: Pair, labelled: bool) -> tuple[str, ...]:
    return (pair.source,) if labelled else (pair.source, pair.target)


def _catalogued(config: PairData) -> Corpus:
    """Take an entry of the catalogue in its own parts."""
    if config.dev or config.test or config.source or config.target:
        mend = "leave dev, test, source and target out, or give files"
        raise ConfigError("data of the catalogue come with their own parts", where=config.train, mend=mend)
    name = config.train.removeprefix(CATALOGUE)
    folder = catalogue.get(name)
    suffix = catalogue.ENTRIES[name].suffix
    train, dev, test = (read_pairs(str(folder / f"{part}{suffix}")) for part in ("train", "dev", "test"))
    return Corpus(train, dev, test, [_notice(name)], ((config.train, len(train)),))


def _split(config: PairData, seed: int, classes: bool) -> Corpus:
    """Read files, splitting off what is not given."""
    columns = {"source": config.source, "target": config.target}
    train = read_pairs(config.train, **columns)
    dev, test = (read_pairs(path, **columns) if path else [] for path in (config.dev, config.test))
    missing = [name for name, part in (("development", dev), ("test", test)) if not part]
    notes = []
    if missing:
        splits = split_pairs(train, seed=seed, classes=classes)
        # What a file was given for stays in the training part.
        train = [*splits.train, *(splits.dev if dev else []), *(splits.test if test else [])]
        dev, test = dev or splits.dev, test or splits.test
        notes.append(f"Split off {config.train} by source, seed {seed}: {' and '.join(missing)} part.")
    return Corpus(train, dev, test, notes, ((config.train, len(train)),))


def read_part(name: str, config: PairData, part: str) -> tuple[list[Pair], list[str]]:
    """Read a file of pairs, or a part of a catalogue entry.

    Args:
        name: The file, or ``catalogue:NAME``.
        config: Names the file's columns.
        part: Of the entry: ``train``, ``dev`` or ``test``.

    Returns:
        The pairs, and where they come from.
    """
    if name.startswith(CATALOGUE):
        name = name.removeprefix(CATALOGUE)
        folder = catalogue.get(name)
        return read_pairs(str(folder / f"{part}{catalogue.ENTRIES[name].suffix}")), [_notice(name)]
    return read_pairs(name, source=config.source, target=config.target), []


def _notice(name: str) -> str:
    entry = catalogue.ENTRIES[name]
    return f"{entry.description}: {entry.notice}"
