"""From a package's data file to clean pairs, each with the key of its group.

Cleaning removes markup, never words: what cannot be cleaned is left out and counted.
"""

import html
import re
import sqlite3
import tarfile
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from regard.data.examples import Pair
from regard.data.readers.conll import read_conll
from regard.data.readers.text import numbered_lines
from regard.data.split import linked_keys, normalized
from regard.errors import FormatError

_LINE_CAP_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Clean pairs.

    Args:
        pairs: The pairs; ``line`` counts them from 1.
        keys: For each pair the key of the group that must stay together.
        notes: What was kept and left out, with counts, a sentence an item.
    """

    pairs: list[Pair]
    keys: list[str]
    notes: list[str]

    def group(self, pair: Pair) -> str:
        """Give the key of a pair's group.

        Args:
            pair: One of ``pairs``.

        Returns:
            The key.
        """
        return self.keys[pair.line - 1]


def _corpus(texts: list[tuple[str, str]], keys: list[str], notes: list[str]) -> Cleaned:
    """Number the pairs."""
    return Cleaned([Pair(source, target, line) for line, (source, target) in enumerate(texts, 1)], keys, notes)


# --- letters to sounds ------------------------------------------------------------------------------------------

_ALTERNATE = re.compile(r"\(\d+\)$")
_WORD = re.compile(r"[a-z']*[a-z][a-z']*")
_STRESS = str.maketrans("", "", "012")


def read_cmudict(path: Path) -> Cleaned:
    """Read the CMU Pronouncing Dictionary: a word and its phonemes a line, further pronunciations as ``word(2)``.

    Words of letters and apostrophes are kept, stress digits dropped, and a word's pronunciations kept apart unless
    equal without stress. The group is the word.

    Args:
        path: The file ``cmudict.dict``.

    Returns:
        Pairs of word and phonemes.

    Raises:
        FormatError: A line holds no pronunciation.
    """
    words: dict[str, dict[str, None]] = defaultdict(dict)
    lines = other = 0
    for number, line in numbered_lines(str(path), text_cap_bytes=_LINE_CAP_BYTES):
        name, _, sounds = line.partition("#")[0].partition(" ")
        phonemes = " ".join(sounds.translate(_STRESS).split())
        if not phonemes:
            raise FormatError("no pronunciation", where=f"{path}, line {number}")
        lines += 1
        word = _ALTERNATE.sub("", name)
        if _WORD.fullmatch(word):
            words[word][phonemes] = None
        else:
            other += 1
    texts = [(word, phonemes) for word, listed in words.items() for phonemes in listed]
    notes = [
        f"{lines:,} lines in the dictionary; {other:,} left out whose word holds more than letters and apostrophes "
        f"(periods, hyphens).",
        f"{lines - other - len(texts):,} left out that equal another pronunciation once stress is dropped.",
        f"{len(texts):,} pairs of {len(words):,} words; a word's pronunciations are in one part.",
    ]
    return _corpus(texts, [word for word, _ in texts], notes)


# --- German and English -----------------------------------------------------------------------------------------

# Grammar {m}, domain or register [coll.], cross reference <…>, remark or optional word (…), abbreviation /NATO/.
_MARKUP = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|<[^<>]*>|\([^()]*\)|(?<!\S)/[^/]*/(?!\S)")
_SPACE_BEFORE_POINT = re.compile(r"\s+(?=[.,!?:](?:\s|$))")
# What is left of alternatives within a text, open places, and notation that no reader would say.
_NOTATION = re.compile(r"[/…{}\[\]<>()~=\\_@|+*#^]|\.\.\.|::")
_PLACEHOLDER = re.compile(r"\b(?:jd[mns]?|etw|sb|sth)\b")
_SENTENCE_END = re.compile(r"[.!?][\"”“’']?$")
_SENTENCE_WORDS = 3
# Windows-1252 bytes and an escape that went through as characters, and the apostrophes of English.
_REPAIRS = {"\x92": "'", "\x96": "–", "\\u2019": "'", "’": "'", "\u00b4": "'"}


def read_sentences(path: Path) -> Cleaned:
    """Read the everyday sentences of the German–English dictionary.

    An entry counts as a sentence when, after cleaning, both sides start with an upper-case letter, end with a full
    stop, exclamation or question mark and have at least three words. Of those that count, sentences with slashes
    (alternative wordings of unclear extent), open places (…) or placeholders (jdm., sth.) are left out.
    Pairs that share a German or an English text, case and punctuation aside, are one group.

    Args:
        path: The dictionary.

    Returns:
        Pairs of German and English.

    Raises:
        FormatError: A line is not of the dictionary's form.
    """
    texts = [text for text in _dictionary(path) if _is_sentence(text)]
    kept = [text for text in texts if not any(_NOTATION.search(side) or _PLACEHOLDER.search(side) for side in text)]
    notes = [
        f"{len(texts):,} entries are sentences (both sides start upper-case, end with . ! or ?, have {_SENTENCE_WORDS} "
        "words or more).",
        f"{len(texts) - len(kept):,} left out that hold alternatives (/), open places (…) or placeholders (sth.).",
    ]
    return _linked(kept, notes)


def read_phrases(path: Path) -> Cleaned:
    """Read the words and phrases of the German–English dictionary: all that is no sentence.

    Placeholders (jdm., etw., sb., sth.) stay: they are how a dictionary writes a verb's objects. Entries with
    other notation, or without a letter on a side, are left out. Groups are as for sentences.

    Args:
        path: The dictionary.

    Returns:
        Pairs of German and English.

    Raises:
        FormatError: A line is not of the dictionary's form.
    """
    texts = [text for text in _dictionary(path) if not _is_sentence(text)]
    kept = [
        text
        for text in texts
        if not any(_NOTATION.search(side) for side in text) and all(any(map(str.isalpha, side)) for side in text)
    ]
    notes = [
        f"{len(texts):,} entries are words or phrases.",
        f"{len(texts) - len(kept):,} left out that hold alternatives (/), open places (…) or other notation.",
    ]
    return _linked(kept, notes)


def _dictionary(path: Path) -> list[tuple[str, str]]:
    """Read ``de | de … :: en | en …``; of alternatives set apart by semicolons the first of each side."""
    found: dict[tuple[str, str], None] = {}
    for number, line in numbered_lines(str(path), text_cap_bytes=_LINE_CAP_BYTES):
        if line.startswith("#") or not line:
            continue
        sides = [side.split(" | ") for side in line.split(" :: ")]
        if len(sides) != 2 or len(sides[0]) != len(sides[1]):
            raise FormatError("not an entry of German, ::, English", where=f"{path}, line {number}")
        for german, english in zip(*sides, strict=True):
            text = _first_alternative(german), _first_alternative(english)
            if all(text):
                found[text] = None
    return list(found)


def _first_alternative(entry: str) -> str:
    """Clean one side of an entry."""
    for wrong, right in _REPAIRS.items():
        entry = entry.replace(wrong, right)
    while (cleaned := _MARKUP.sub(" ", entry)) != entry:
        entry = cleaned  # brackets within brackets
    first = " ".join(entry.split(";")[0].split())
    return _SPACE_BEFORE_POINT.sub("", first)


def _is_sentence(text: tuple[str, str]) -> bool:
    """Apply the criterion of ``read_sentences``."""
    return all(
        side[0].isupper() and _SENTENCE_END.search(side) is not None and len(side.split()) >= _SENTENCE_WORDS
        for side in text
    )


def _linked(texts: list[tuple[str, str]], notes: list[str]) -> Cleaned:
    """Group pairs that share either side."""
    keys = linked_keys([(normalized(german), normalized(english)) for german, english in texts])
    notes = [
        *notes,
        f"{len(texts):,} pairs in {len(set(keys)):,} groups; pairs that share either side are in one group.",
    ]
    return _corpus(texts, keys, notes)


# --- verses -----------------------------------------------------------------------------------------------------

VERSIONS = {"en": "4", "de": "e", "fr": "l", "es": "v"}
OTHER_VERSE = 20  # places between a verse and the one that it is not
_PSALMS = 19
_BEFORE_PSALMS = 18
_ACROSTIC_PSALM = 119
_NUMBERING = re.compile(r"\(\d+:\d+[a-z]?\)?")
_NEXT_HEADING = re.compile(r"\s+(?:BOOK [IV]+\s+)?Psalm \d+\b.*$")
_HEBREW_LETTER = {"en": re.compile(r"(?: [A-Z]{2,})+$"), "es": re.compile(r"^[A-Z]+\. ")}
_DASH = re.compile(r"\s*--\s*|(?<!\S)-+\s*|\s-+(?=[:;,.]?$)")
_EDGE = re.compile(r"^(?:–\s*)+|(?:\s*–)+$")


def read_verses(path: Path, language: str) -> Cleaned:
    """Read verses of the World English Bible with those of a German, French or Spanish version.

    A verse is kept where all four versions have it in clean form, so that the three language pairs hold the same
    verses in the same parts. First verses of psalms are left out: some versions put the psalm's heading there.
    Verses that share their text in any version (case and punctuation aside) are one group.

    Args:
        path: The SQLite file.
        language: ``de``, ``fr`` or ``es``.

    Returns:
        Pairs of English and the other language.

    Raises:
        FormatError: The file is no such database.
    """
    kept, keys, notes = _clean_verses(path)
    return _corpus([(texts["en"], texts[language]) for texts in kept.values()], keys, notes)


def read_versions(path: Path, first: tuple[str, str], second: tuple[str, str]) -> Cleaned:
    """Read the verses of :func:`read_verses` in any two versions; their groups are the same.

    Args:
        path: The SQLite file.
        first: Language and version.
        second: Language and version.

    Returns:
        Pairs of the two versions; a side is empty where its version has no clean text.

    Raises:
        FormatError: The file is no such database.
    """
    kept, keys, notes = _clean_verses(path)
    sides = []
    for code, version in (first, second):
        found: dict[tuple[int, int, int], str] = {}
        for book, chapter, verse, text in _rows(path, version):
            found[book, chapter, verse] = _clean_verse(text, code, book, chapter)
        sides.append([found.get(place, "") for place in kept])
    clean = [
        [text if any(map(str.isalpha, text)) and not any(map(str.isdigit, text)) else "" for text in side]
        for side in sides
    ]
    return _corpus(list(zip(*clean, strict=True)), keys, notes)


def same_or_not(pairs: list[Pair]) -> list[Pair]:
    """Turn verses in two versions into pairs of texts that are the same verse, and as many that are not.

    The other verse stands :data:`OTHER_VERSE` places further on: of the same book, mostly, and often of the same story.

    Args:
        pairs: Verses of one part, in their order, in two versions.

    Returns:
        For each verse both of its pairs, a tab between the texts; the target is ``same`` or ``other``.
    """
    whole = [pair for pair in pairs if pair.source and pair.target]
    found: list[Pair] = []
    for place, pair in enumerate(whole):
        other = whole[(place + OTHER_VERSE) % len(whole)]
        found += [
            replace(pair, source=f"{pair.source}\t{pair.target}", target="same"),
            replace(pair, source=f"{pair.source}\t{other.target}", target="other"),
        ]
    return found


def _clean_verses(path: Path) -> tuple[dict[tuple[int, int, int], dict[str, str]], list[str], list[str]]:
    """Read the verses that all four versions have in clean form, the keys of their groups, and notes."""
    verses: dict[tuple[int, int, int], dict[str, str]] = defaultdict(dict)
    for code, version in VERSIONS.items():
        for book, chapter, verse, text in _rows(path, version):
            verses[book, chapter, verse][code] = _clean_verse(text, code, book, chapter)
    kept = {
        place: texts
        for place, texts in verses.items()
        if place[0] != _PSALMS or place[2] != 1
        if len(texts) == len(VERSIONS) and all(any(map(str.isalpha, text)) for text in texts.values())
        if not any(any(map(str.isdigit, text)) for text in texts.values())
    }
    keys = linked_keys([[normalized(texts[code]) for code in VERSIONS] for texts in kept.values()])
    notes = [
        f"{len(verses):,} verses; {len(verses) - len(kept):,} left out: first verses of psalms, and verses that are "
        "missing or damaged in one of the four versions (English, German, French, Spanish).",
        f"{len(kept):,} pairs in {len(set(keys)):,} groups; verses that share their text in any of the four versions "
        "are in one group, and a verse is in the same part for all three languages.",
    ]
    return kept, keys, notes


def read_chapters(path: Path) -> Cleaned:
    """Read the chapters of the World English Bible, a verse a line.

    Args:
        path: The SQLite file.

    Returns:
        For each chapter its place (book and chapter) and its text; the place is the group.

    Raises:
        FormatError: The file is no such database.
    """
    chapters: dict[tuple[int, int], list[str]] = defaultdict(list)
    for book, chapter, _, text in _rows(path, VERSIONS["en"]):
        if verse := _clean_verse(text, "en", book, chapter):
            chapters[book, chapter].append(verse)
    texts = [(f"{book} {chapter}", "\n".join(verses)) for (book, chapter), verses in chapters.items()]
    note = f"{len(texts):,} chapters of {sum(map(len, chapters.values())):,} verses, a verse a line."
    return _corpus(texts, [place for place, _ in texts], [note])


def _rows(path: Path, version: str) -> list[tuple[int, int, int, str]]:
    """Read one version: book, chapter, verse, text."""
    query = "SELECT bNumber, cNumber, vNumber, vText FROM bible WHERE bbName = ? ORDER BY bNumber, cNumber, vNumber"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            return database.execute(query, (version,)).fetchall()
    except sqlite3.Error as error:
        raise FormatError(f"not the database of verses ({error})", where=str(path)) from None


def _clean_verse(text: str, code: str, book: int, chapter: int) -> str:
    """Remove what is not the verse: numbers, headings, letters of the alphabet, brackets around supplied words."""
    if code == "en":
        text = text.replace("`", "'")
        if book in (_PSALMS, _BEFORE_PSALMS):
            text = _NEXT_HEADING.sub("", text)
    elif code == "fr":
        text = _NUMBERING.sub(" ", text)
    elif code == "es":
        text = text.replace("\xad", "¡")  # byte 0xAD is ¡ in code page 850, where this text once was
    if code in _HEBREW_LETTER and (book, chapter) == (_PSALMS, _ACROSTIC_PSALM):
        text = _HEBREW_LETTER[code].sub("", text)
    text = text.translate({ord("["): None, ord("]"): None, ord("*"): None})
    return _EDGE.sub("", " ".join(_DASH.sub(" – ", text.strip()).split()))


# --- rated texts ------------------------------------------------------------------------------------------------

_RATINGS_CAP_BYTES = 1 << 24


def read_ratings(path: Path, member: str) -> Cleaned:
    """Read texts with the mean of people's ratings, from -4 (most negative) to 4 (Hutto & Gilbert 2014).

    Equal texts, case and punctuation aside, are one group.

    Args:
        path: The archive of the study's data.
        member: The file in it: number, mean rating, text a line.

    Returns:
        For each text its rating, rounded to three decimals.

    Raises:
        FormatError: The archive, or a line of the file, is not of that form.
    """
    try:
        with tarfile.open(path, "r:gz") as archive:
            info = archive.getmember(member)
            file = archive.extractfile(info) if info.isreg() and info.size <= _RATINGS_CAP_BYTES else None
            if file is None:
                raise FormatError(f"{member} is no regular file, or too large", where=str(path))
            data = file.read().decode("utf-8-sig")
    except (tarfile.TarError, KeyError, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"not the archive of ratings ({error})", where=str(path)) from None
    texts: list[tuple[str, str]] = []
    for number, line in enumerate(data.splitlines(), 1):
        cells = line.split("\t")
        try:
            texts.append((" ".join(html.unescape(cells[2]).split()), f"{float(cells[1]):.3f}"))
        except (IndexError, ValueError):
            raise FormatError("not number, rating and text", where=f"{path}, {member}, line {number}") from None
    kept = [text for text in texts if text[0]]
    keys = linked_keys([[normalized(text)] for text, _ in kept])
    notes = [f"{len(texts):,} rated texts; {len(texts) - len(kept):,} empty ones left out."]
    return _corpus(kept, keys, notes)


def _plain_word(word: str) -> str:
    plain = html.unescape(word)
    return plain if plain.split() == [plain] else word


def read_tags(path: Path) -> Cleaned:
    """Read sentences with tags, a word a line; sentences of equal words are one group.

    Args:
        path: The file.

    Returns:
        For each sentence its words and its tags, joined by spaces.

    Raises:
        DataError: A word has no tag.
        FormatError: Bytes are not UTF-8.
    """
    read = read_conll(str(path), source=None, target=None, text_cap_bytes=_LINE_CAP_BYTES)
    # A word stays one word: what an entity stands for may be a space.
    pairs = [replace(pair, source=" ".join(_plain_word(word) for word in pair.source.split())) for pair in read]
    keys = linked_keys([[normalized(pair.source)] for pair in pairs])
    words = sum(len(pair.source.split()) for pair in pairs)
    tagged = sum(tag.startswith("B-") for pair in pairs for tag in pair.target.split())
    notes = [f"{len(pairs):,} sentences of {words:,} words; {tagged:,} spans."]
    return _corpus([(pair.source, pair.target) for pair in pairs], keys, notes)
