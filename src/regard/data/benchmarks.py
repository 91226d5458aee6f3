"""Benchmarks of labelled texts in their published files: GLUE's nine tasks with its diagnostic set, and XNLI.

Columns as the public readers take them: GLUE-baselines (``src/tasks.py``, ``download_glue_data.py``) and the processors
of ``transformers`` (``data/processors/glue.py``, ``xnli.py``); submissions as jiant writes them (``jiant/evaluate.py``,
strict GLUE format). Quotes in these files are letters: a line is a row, a tab ends a cell.

Source: Wang et al. 2019 (GLUE), §2 and table 1; Conneau et al. 2018 (XNLI), §3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from regard.data.examples import Pair, check_text, find_column
from regard.data.readers import TEXT_CAP_BYTES
from regard.data.readers.text import empty_file, numbered_lines, shown
from regard.errors import ConfigError, DataError


@dataclass(frozen=True)
class Columns:
    """The columns of a published file that are read.

    Attributes:
        texts: One or two.
        label: Of files whose labels are public.
        index: Of files without labels: what the server knows a row by.
        language: Of files that have several; empty for others.
        header: Names of all columns, where the file has no line of them.
    """

    texts: tuple[str, ...]
    label: str = "label"
    index: str = "index"
    language: str = ""
    header: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """A benchmark's files.

    Attributes:
        task: What a model for it is trained for.
        metrics: Official ones; the first chooses checkpoints.
        columns: Of its test files.
        labels: The classes, as they are written; empty for numbers.
        positive: The class that F1 is of.
        tests: Files with public labels that are scored, by the names of the test sets; "" is the main one.
        hidden: Files without labels, by the names of those that the server wants.
        folders: Where in a folder its files may lie.
        train: The training file; empty for none.
        train_columns: Its columns; None where they are those of the others.
        test_columns: Of files with public labels, likewise.
        dev: The development file; empty where a part of the training file serves.
        spellings: Other spellings of labels.
        skips_short: Whether rows that lack cells are left out: so has everyone done.
        bounds: Least and greatest number.
    """

    task: Literal["classify", "regress"]
    metrics: tuple[str, ...]
    columns: Columns
    labels: tuple[str, ...] = ("0", "1")
    positive: str = ""
    tests: Mapping[str, str] = field(default_factory=lambda: {"": "dev.tsv"})
    hidden: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ("",)
    train: str = "train.tsv"
    train_columns: Columns | None = None
    test_columns: Columns | None = None
    dev: str = ""
    spellings: Mapping[str, str] = field(default_factory=dict)
    skips_short: bool = False
    bounds: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Published:
    """Rows of a published file.

    Attributes:
        pairs: Texts and labels; labels are empty where they are hidden.
        keys: Of files without labels each row's index; of files with languages each row's language.
        skipped: Rows that lack cells, left out.
    """

    pairs: list[Pair]
    keys: list[str]
    skipped: int


_ENTAILS = ("entailment", "not_entailment")
_INFERS = ("contradiction", "entailment", "neutral")
_PAIR = Columns(("sentence1", "sentence2"))
_COLA = Columns(("sentence",), header=("source", "label", "star", "sentence"))
_MNLI = Columns(("sentence1", "sentence2"), label="gold_label")

LAYOUTS: dict[str, Layout] = {
    "glue-cola": Layout(
        "classify",
        ("matthews",),
        Columns(("sentence",)),
        hidden={"CoLA.tsv": "test.tsv"},
        folders=("", "CoLA"),
        train_columns=_COLA,
        test_columns=_COLA,
    ),
    "glue-sst-2": Layout(
        "classify",
        ("accuracy",),
        Columns(("sentence",)),
        hidden={"SST-2.tsv": "test.tsv"},
        folders=("", "SST-2"),
    ),
    "glue-mrpc": Layout(
        "classify",
        ("positive_f1", "accuracy"),
        Columns(("#1 String", "#2 String"), label="Quality"),
        positive="1",
        hidden={"MRPC.tsv": "test.tsv"},
        folders=("", "MRPC"),
    ),
    "glue-sts-b": Layout(
        "regress",
        ("pearson", "spearman"),
        Columns(("sentence1", "sentence2"), label="score"),
        labels=(),
        hidden={"STS-B.tsv": "test.tsv"},
        folders=("", "STS-B"),
        bounds=(0.0, 5.0),
    ),
    "glue-qqp": Layout(
        "classify",
        ("positive_f1", "accuracy"),
        Columns(("question1", "question2"), label="is_duplicate", index="id"),
        positive="1",
        hidden={"QQP.tsv": "test.tsv"},
        folders=("", "QQP"),
        skips_short=True,
    ),
    "glue-mnli": Layout(
        "classify",
        ("accuracy",),
        _MNLI,
        labels=_INFERS,
        tests={"": "dev_matched.tsv", "mismatched": "dev_mismatched.tsv"},
        hidden={"MNLI-m.tsv": "test_matched.tsv", "MNLI-mm.tsv": "test_mismatched.tsv"},
        folders=("", "MNLI"),
    ),
    "glue-qnli": Layout(
        "classify",
        ("accuracy",),
        Columns(("question", "sentence")),
        labels=_ENTAILS,
        hidden={"QNLI.tsv": "test.tsv"},
        folders=("", "QNLI"),
    ),
    "glue-rte": Layout(
        "classify",
        ("accuracy",),
        _PAIR,
        labels=_ENTAILS,
        hidden={"RTE.tsv": "test.tsv"},
        folders=("", "RTE"),
    ),
    "glue-wnli": Layout(
        "classify",
        ("accuracy",),
        _PAIR,
        hidden={"WNLI.tsv": "test.tsv"},
        folders=("", "WNLI"),
    ),
    "glue-ax": Layout(
        "classify",
        ("matthews",),
        _PAIR,
        labels=_INFERS,
        tests={},
        hidden={"AX.tsv": "diagnostic.tsv"},
        folders=("", "diagnostic", "MNLI"),
        train="",
    ),
    "xnli": Layout(
        "classify",
        ("accuracy",),
        Columns(("sentence1", "sentence2"), label="gold_label", language="language"),
        labels=_INFERS,
        tests={"": "xnli.test.tsv"},
        folders=("", "XNLI-1.0", "XNLI-MT-1.0/multinli", "multinli"),
        train="multinli.train.{language}.tsv",
        train_columns=Columns(("premise", "hypo")),
        dev="xnli.dev.tsv",
        spellings={"contradictory": "contradiction"},
    ),
}


def layout(name: str) -> Layout:
    """Look a layout up.

    Args:
        name: A key of :data:`LAYOUTS`.

    Returns:
        The layout.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in LAYOUTS:
        raise ConfigError(f"unknown layout {name[:40]!r}", where="data", mend=f"choose from {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def locate(folder: str | Path, name: str, of: Layout) -> str:
    """Find a published file in a folder.

    Args:
        folder: The user's folder.
        name: The file's name.
        of: Whose it is.

    Returns:
        Its path.

    Raises:
        DataError: It is at none of the places.
    """
    places = [Path(folder) / inner / name for inner in of.folders]
    for place in places:
        if place.is_file():
            return str(place)
    also = ", ".join(f"{inner}/" for inner in of.folders if inner)
    raise DataError("no such file", where=shown(str(places[0])), mend=f"give the folder with {name}, or with {also}")


def read_published(path: str, columns: Columns, of: Layout, *, is_hidden: bool = False) -> Published:
    """Read a published file.

    Args:
        path: The file.
        columns: Its columns.
        of: The benchmark: what labels there are, and whether rows that lack cells are left out.
        is_hidden: Whether the file has no labels; then no row is left out, for the server wants each.

    Returns:
        Its rows, at least one. One of two texts may be empty, as a few of QQP are.

    Raises:
        DataError: The file is missing or empty, a column is missing, or a row lacks cells, has no text, or a label that
            the benchmark does not have.
        FormatError: Bytes are not UTF-8, or hold NUL.
        ResourceError: The file cannot be read.
    """
    needed = [*columns.texts, columns.index if is_hidden else columns.label, *filter(None, (columns.language,))]
    pairs: list[Pair] = []
    keys: list[str] = []
    skipped = 0
    for number, where, cells in _rows(path, columns, needed):
        if len(cells) < len(needed):
            if is_hidden or not of.skips_short:
                raise DataError("a row that lacks cells", where=where, mend="take the file as it is published")
            skipped += 1
            continue
        named = cells[len(columns.texts)]
        pair = Pair.of(cells[: len(columns.texts)], "" if is_hidden else check_label(named, of, where), number)
        check_text(pair.source, where=where, text_cap_bytes=TEXT_CAP_BYTES)
        if not pair.source.strip():
            raise DataError("the text is empty", where=where, mend="take the file as it is published")
        pairs.append(pair)
        keys.append(named if is_hidden else cells[-1])
    if not pairs:
        raise empty_file(path)
    return Published(pairs, keys, skipped)


def check_label(label: str, of: Layout, where: str) -> str:
    """Refuse a label that a benchmark does not have.

    Args:
        label: As it is written.
        of: The benchmark.
        where: For the message.

    Returns:
        The label as the server spells it.

    Raises:
        DataError: There is no such label.
    """
    label = of.spellings.get(label, label)
    if of.labels and label not in of.labels:
        mend = f"the labels are {', '.join(of.labels)}"
        raise DataError(f"the label {label[:40]!r} is none of the benchmark's", where=where, mend=mend)
    return label


def _rows(path: str, columns: Columns, needed: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Give each row's line, place and needed cells; those that lie beyond the row's end are missing."""
    places: list[int] = []
    if columns.header:
        places = [columns.header.index(name) for name in needed]
    for number, line in numbered_lines(path, text_cap_bytes=TEXT_CAP_BYTES):
        where, cells = f"{shown(path)}, line {number}", line.split("\t")
        if places:
            yield number, where, [cells[place] for place in places if place < len(cells)]
        else:
            places = [find_column(cells, name, where=where) for name in needed]
