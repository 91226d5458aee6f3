"""Labelled texts: files of one's own with further test files, or a benchmark as it is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from regard.data import Pair, split_pairs
from regard.data.benchmarks import Columns, Layout, check_label, layout, locate, read_published
from regard.errors import ConfigError, DataError
from regard.tasks.corpus import Corpus, PairData, read_corpus, read_part


@dataclass(frozen=True)
class LabelData(PairData):
    """Where labelled texts come from.

    Attributes:
        also_test: Further test files by names of your choice, ``{de: test.de.tsv}``, with the same columns, or the
            test parts of catalogue entries: each is scored beside the test part. None of their texts is trained on or
            chosen by.
        layout: A benchmark in its published files (see :data:`regard.data.benchmarks.LAYOUTS`): ``train`` is their
            folder; or ``train`` is a file of one's own, and ``test`` their folder. Empty for none.
        language: Of XNLI: which language's files are trained on and chosen by.
    """

    also_test: dict[str, str] = field(default_factory=dict)
    layout: str = ""
    language: str = "en"

    def __post_init__(self) -> None:
        """Refuse further tests without a name or a file, and a layout that is unknown or given other parts.

        Raises:
            ConfigError: A name or a file is empty, or no text; or the layout does not allow a setting.
        """
        for name, path in self.also_test.items():
            if not (isinstance(name, str) and isinstance(path, str) and name.strip() and path):
                raise ConfigError(f"also_test has {name!r}: {path!r}", where="data", mend="write NAME: FILE")
        if not self.layout:
            return
        if not layout(self.layout).train:
            mend = "train on glue-mnli, then use regard submit"
            raise ConfigError(f"{self.layout} has a test file alone", where="data.layout", mend=mend)
        if self.dev or self.extra or self.repeat != 1:
            mend = "leave dev, extra and repeat out"
            raise ConfigError(f"{self.layout} comes with its own parts", where="data", mend=mend)
        if not self.language.isalnum():
            raise ConfigError(f"language is {self.language[:40]!r}", where="data", mend="write en, de, zh, …")


def read_labelled(config: LabelData, seed: int, classes: bool = False) -> Corpus:
    """Read labelled texts and the further test files.

    Args:
        config: Where they are.
        seed: Of the split.
        classes: Whether labels are classes; see :func:`regard.tasks.corpus.read_corpus`.

    Returns:
        All parts.

    Raises:
        ConfigError: A further test has the name of one of the benchmark's.
        DataError: A file is bad.
    """
    of = layout(config.layout) if config.layout else None
    corpus = _benchmark(config, of, seed, classes) if of else read_corpus(config, seed, True, classes)
    for name in corpus.others:
        if name in config.also_test:
            raise ConfigError(f"also_test has {name!r}, which is one of {config.layout}", where="data")
    own = {name: _own(config, path, of, "test") for name, path in config.also_test.items()}
    notes = [*corpus.notes, *(f"{name}: {note}" for name, (_, told) in own.items() for note in told)]
    return replace(corpus, others={**corpus.others, **{name: pairs for name, (pairs, _) in own.items()}}, notes=notes)


def _own(config: LabelData, path: str, of: Layout | None, part: str) -> tuple[list[Pair], list[str]]:
    """Read a file of the user's, and say where it is from; its labels have to be the benchmark's where there is one."""
    pairs, notes = read_part(path, config, part)
    if of is None:
        return pairs, notes
    checked = [replace(pair, target=check_label(pair.target, of, f"{path}, line {pair.line}")) for pair in pairs]
    return checked, notes


def _benchmark(config: LabelData, of: Layout, seed: int, classes: bool) -> Corpus:
    """Read a benchmark: what has public labels is scored, and chooses nothing."""
    folder = config.test or config.train
    if config.test:
        path, skipped, (train, _) = config.train, 0, _own(config, config.train, of, "train")
    else:
        if (config.source or config.target) and not config.also_test:
            mend = "leave source and target out, or give a file of your own and the folder as test"
            raise ConfigError(f"{config.layout} has its own columns", where="data", mend=mend)
        path = locate(folder, of.train.format(language=config.language), of)
        found = read_published(path, of.train_columns or of.columns, of)
        train, skipped = found.pairs, found.skipped
    notes = [f"{skipped:,} rows of {path} that lack cells are left out."] if skipped else []
    tests: dict[str, list[Pair]] = {}
    for name, file in of.tests.items():
        tests |= _by_language(name, locate(folder, file, of), of, config.language, notes)
    if of.dev:
        dev = _by_language("", locate(folder, of.dev, of), of, config.language, notes)[""]
        chosen = f"{of.dev} ({config.language})"
    else:
        splits = split_pairs(train, seed=seed, classes=classes)
        train, dev = [*splits.train, *splits.test], splits.dev
        chosen = f"a part split off {Path(path).name} by the first text, seed {seed}"
    scored = ", ".join(f"{file}{f' ({name})' if name else ''}" for name, file in of.tests.items())
    notes.insert(
        0,
        f"{config.layout}, as published: {scored} is scored and chooses nothing; checkpoints are chosen on {chosen}. "
        f"Official metrics, the first of which chooses: {', '.join(of.metrics)}.",
    )
    main = tests.pop("")
    return Corpus(train, dev, main, notes, ((path, len(train)),), tests)


def _by_language(name: str, path: str, of: Layout, language: str, notes: list[str]) -> Mapping[str, list[Pair]]:
    """Read a file with public labels; where it has languages, each is a set, and the trained one the main."""
    columns: Columns = of.test_columns or of.columns
    found = read_published(path, columns, of)
    if found.skipped:
        notes.append(f"{found.skipped:,} rows of {path} that lack cells are left out.")
    if not columns.language:
        return {name: found.pairs}
    sets: dict[str, list[Pair]] = {}
    for key, pair in zip(found.keys, found.pairs, strict=True):
        sets.setdefault("" if key == language else key, []).append(pair)
    if "" not in sets:
        has = ", ".join(sorted(sets))
        raise DataError(f"no row is in the language {language!r}", where=path, mend=f"it has {has}")
    return sets
