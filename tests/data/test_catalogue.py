"""The catalogue: cleaning on files of the published forms, fetching from the real packages, and folders that last."""

import functools
import hashlib
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from regard import places
from regard.data import Pair, catalogue, packages, read_pairs
from regard.data.corpora import (
    VERSIONS,
    Cleaned,
    read_cmudict,
    read_phrases,
    read_sentences,
    read_verses,
    read_versions,
    same_or_not,
)
from regard.data.documents import read_documents
from regard.data.packages import PackageFile
from regard.data.split import normalized
from regard.errors import DataError, FormatError, ResourceError, UsageError

_CMUDICT = """'s EH1 S
a.m. EY2 EH1 M
zsa-zsa ZH AA1 ZH AA2
record R EH1 K ER0 D
record(2) R IH0 K AO1 R D # noun, verb
record(3) R EH1 K ER2 D
zebra Z IY1 B R AH0
"""

_DING = """# Version :: of our own
Katze {f} [zool.] | Katzen {pl} :: cat <kitty>; pussy | cats
Hund {m} (Haustier; Jagdhund) :: dog /D./
jdm. etw. geben {vt} {gab; gegeben} :: to give sb. sth. {gave; given}
der und/oder die :: this and/or that
Wie … ist es? :: How … is it?
Das ist (aber) schön! [ugs.] | Es regnet heute.; Es nieselt. :: That is nice! | It’s raining today.; It's drizzling.
Er sagte / meinte nichts Neues. :: He said nothing new.
Bei etw. war ich dabei. :: I was there for sth. (remark).
Das ist schön! :: That is lovely!
Sie sagte: „Das geht nicht.“ :: She said: 'That won't do.'
Kurz gesagt. :: In short.
Das ist schön! :: That is lovely!
"""


def _corpus(tmp_path: Path, read: Callable[[Path], Cleaned], text: str) -> Cleaned:
    path = tmp_path / "data"
    path.write_text(text, encoding="utf-8")
    return read(path)


def _texts(corpus: Cleaned) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in corpus.pairs]


# --- cleaning ---------------------------------------------------------------------------------------------------


def test_cmudict_keeps_words_and_their_pronunciations(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path, read_cmudict, _CMUDICT)
    assert _texts(corpus) == [
        ("'s", "EH S"),
        ("record", "R EH K ER D"),
        ("record", "R IH K AO R D"),
        ("zebra", "Z IY B R AH"),
    ]
    assert corpus.keys == ["'s", "record", "record", "zebra"]
    assert [note.split(" ")[0] for note in corpus.notes] == ["7", "1", "4"]
    assert "; 2 left out whose word" in corpus.notes[0]
    with pytest.raises(FormatError, match="line 1: no pronunciation"):
        _corpus(tmp_path, read_cmudict, "zebra  # none\n")


def test_sentences_are_told_from_phrases(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path, read_sentences, _DING)
    assert _texts(corpus) == [
        ("Das ist schön!", "That is nice!"),
        ("Es regnet heute.", "It's raining today."),
        ("Das ist schön!", "That is lovely!"),
        ("Sie sagte: „Das geht nicht.“", "She said: 'That won't do.'"),
    ]
    # Those four, and three with a slash, with an open place, and with sth.
    assert corpus.notes[0].startswith("7 entries are sentences")
    assert corpus.notes[1].startswith("3 left out")
    assert corpus.keys[0] == corpus.keys[2]
    assert len(set(corpus.keys)) == 3


def test_phrases_are_the_rest(tmp_path: Path) -> None:
    assert _texts(_corpus(tmp_path, read_phrases, _DING)) == [
        ("Katze", "cat"),
        ("Katzen", "cats"),
        ("Hund", "dog"),
        ("jdm. etw. geben", "to give sb. sth."),
        ("Kurz gesagt.", "In short."),
    ]


@pytest.mark.parametrize("line", ["Katze", "Katze :: cat :: kitty", "Katze | Katzen :: cat"])
def test_dictionary_of_another_form(tmp_path: Path, line: str) -> None:
    with pytest.raises(FormatError, match="line 2: not an entry"):
        _corpus(tmp_path, read_phrases, f"Hund :: dog\n{line}\n")


_VERSES = {
    # place: English, German, French, Spanish
    (1, 1, 1): ("One [and] two`s.", "Eins [und] zwei. -", "(1:2) Un -et deux.", "\t Uno \xady dos!"),
    (1, 1, 2): ("Three -- four.", "- Drei - vier- und fünffach. *", "Trois.", "Tres."),
    (1, 1, 3): ("three, four!", "Sechs.", "Six.", "Seis."),
    (1, 1, 4): ("Seven.", "(*)", "Sept.", "Siete."),
    (1, 1, 5): ("Eight.", "Acht.", "Huit.", "Och0o."),
    (18, 42, 17): ("So it ended. BOOK I Psalm 1", "Ende.", "Fin.", "Fin."),
    (19, 2, 1): ("First.", "(Ein Lied.) Erstens.", "(2:1) Psaume. (2:2) D'abord.", "Salmo. Primero."),
    (19, 2, 12): ("Nine. Psalm 3 A Psalm by David, of old.", "Neun.", "Neuf.", "Nueve."),
    (19, 119, 8): ("Ten. BET", "Zehn.", "Dix.", "ALEPH. Diez."),
}


def _database(path: Path) -> Path:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE bible (id, bbName, bNumber, cNumber, vNumber, vText)")
    for place, texts in _VERSES.items():
        for version, text in zip(VERSIONS.values(), texts, strict=True):
            database.execute("INSERT INTO bible VALUES (0, ?, ?, ?, ?, ?)", (version, *place, text))
    database.execute("INSERT INTO bible VALUES (0, '4', 66, 1, 1, 'In English alone.')")
    database.commit()
    database.close()
    return path


def test_verses_are_cleaned_and_aligned(tmp_path: Path) -> None:
    path = _database(tmp_path / "odd ? name.db")
    german, french, spanish = (read_verses(path, language) for language in ("de", "fr", "es"))
    assert _texts(german) == [
        ("One and two's.", "Eins und zwei."),
        ("Three – four.", "Drei – vier- und fünffach."),
        ("three, four!", "Sechs."),
        ("So it ended.", "Ende."),
        ("Nine.", "Neun."),
        ("Ten.", "Zehn."),
    ]
    assert [target for _, target in _texts(french)] == ["Un – et deux.", "Trois.", "Six.", "Fin.", "Neuf.", "Dix."]
    assert [target for _, target in _texts(spanish)] == ["Uno ¡y dos!", "Tres.", "Seis.", "Fin.", "Nueve.", "Diez."]
    assert german.keys == french.keys == spanish.keys
    assert german.keys[1] == german.keys[2]
    assert len(set(german.keys)) == 5
    assert german.notes[0].startswith("10 verses; 4 left out")


def test_the_same_verse_or_another_of_the_same_part(tmp_path: Path) -> None:
    path = _database(tmp_path / "bible.db")
    corpus = read_versions(path, ("en", "4"), ("de", "e"))
    assert (_texts(corpus), corpus.keys) == (_texts(read_verses(path, "de")), read_verses(path, "de").keys)
    missing = read_versions(path, ("en", "4"), ("de", "no such version"))
    assert {pair.target for pair in missing.pairs} == {""}
    assert same_or_not(missing.pairs) == []
    verses = [Pair(f"a{n}", f"b{n}" if n != 3 else "", n) for n in range(30)]
    made = same_or_not(verses)
    assert len(made) == 58
    assert [(pair.source, pair.target) for pair in made[:2]] == [("a0\tb0", "same"), ("a0\tb21", "other")]
    assert [(pair.source, pair.target) for pair in made[-2:]] == [("a29\tb29", "same"), ("a29\tb20", "other")]


def test_verses_of_no_database(tmp_path: Path) -> None:
    (tmp_path / "bible.db").write_bytes(b"text" * 1000)
    with pytest.raises(FormatError, match="not the database of verses"):
        read_verses(tmp_path / "bible.db", "de")
    with pytest.raises(FormatError, match="not the database of verses"):
        read_verses(tmp_path / "missing.db", "de")
    assert not (tmp_path / "missing.db").exists()


# --- cache and archives, without a network ----------------------------------------------------------------------


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REGARD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places.cache_folder() == tmp_path / ".cache" / "regard"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert places.cache_folder() == tmp_path / ".cache" / "regard"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert places.cache_folder() == tmp_path / "xdg" / "regard"
    monkeypatch.setenv("REGARD_CACHE", "own")
    assert places.cache_folder() == Path.cwd() / "own"


def _file(registry: str, data: bytes, member: str = "pkg/data.txt") -> PackageFile:
    return PackageFile(registry, "pkg", "1.0", member, 1, len(data), hashlib.sha256(data).hexdigest())


def _wheel(folder: Path, name: str, data: bytes, mode: int = stat.S_IFREG) -> Path:
    path = folder / "pkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = (mode | 0o644) << 16
        archive.writestr(info, data)
        info = zipfile.ZipInfo("pkg-1.0.dist-info/METADATA")
        archive.writestr(info, "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n")
        archive.writestr("pkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("pkg-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return folder


def _leftovers(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() or path.name.startswith(".")]


def test_fetch_from_a_wheel(local_index: Path, tmp_path: Path) -> None:
    data = b"text\n" * 1000
    wheel = _wheel(local_index, "pkg/data.txt", data)
    file = _file("PyPI", data)
    kept = packages.fetch(file)
    assert kept == tmp_path / "cache" / "packages" / "pkg-1.0" / "data.txt"
    assert kept.read_bytes() == data
    assert _leftovers(tmp_path / "cache") == [kept]
    # A damaged file in the cache is fetched anew; a whole one needs no package.
    kept.write_bytes(b"tEXt\n" * 1000)
    assert packages.fetch(file).read_bytes() == data
    wheel.unlink()
    assert packages.fetch(file) == kept


@pytest.mark.parametrize(
    ("name", "data", "mode", "message"),
    [
        ("pkg/data.txt", b"other", stat.S_IFREG, "not the file recorded for version 1.0"),
        ("pkg/data.txt", b"text and a bomb" * 10_000, stat.S_IFREG, "not the file recorded for version 1.0"),
        ("pkg/data.txt", b"/etc", stat.S_IFLNK, "no regular file"),
        ("../data.txt", b"text.", stat.S_IFREG, "there is no pkg/data.txt"),
    ],
)
def test_bad_wheel_leaves_nothing(
    local_index: Path, tmp_path: Path, name: str, data: bytes, mode: int, message: str
) -> None:
    _wheel(local_index, name, data, mode)
    with pytest.raises(DataError, match=message):
        packages.fetch(_file("PyPI", b"text."))
    assert _leftovers(tmp_path / "cache") == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_fetch_leaves_nothing_half_made(local_index: Path, tmp_path: Path, number: int) -> None:
    data = bytes(100 << 20)
    _wheel(local_index, "pkg/data.txt", data)
    file = _file("PyPI", data)
    # A shell starts what it puts into the background with Ctrl-C ignored; the fetch is to be one that hears it.
    hearing = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{hearing}; from regard.data.packages import PackageFile, fetch; fetch({file!r})"
    kept = tmp_path / "cache" / "packages" / "pkg-1.0" / "data.txt"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (started := list(kept.parent.glob(".*/data"))) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(number)
    assert process.wait(60) in (-number, 130)
    assert started
    assert not kept.exists()
    if number == signal.SIGINT:
        assert _leftovers(tmp_path / "cache") == []
    assert packages.fetch(file).stat().st_size == len(data)
    shutil.rmtree(tmp_path / "cache")  # pytest would keep it for three runs


def test_source_archives_are_never_built(local_index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pkg-1.0"
    folder.mkdir()
    build = '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(build + '[project]\nname = "pkg"\nversion = "1.0"\n')
    (folder / "build.py").write_text(f"open({str(tmp_path / 'built')!r}, 'w')\n")
    with tarfile.open(local_index / "pkg-1.0.tar.gz", "w:gz") as archive:
        archive.add(folder, "pkg-1.0")
    with pytest.raises(ResourceError, match=r"could not download pkg==1.0 \(ERROR: .*\); check the network") as caught:
        packages.fetch(_file("PyPI", b"text."))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "built").exists()


def _deb(folder: Path, name: str, data: bytes | None) -> Path:
    """Build a Debian package; None as data makes a link."""
    root = folder / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN" / "control").write_text(
        "Package: pkg\nVersion: 1.0\nArchitecture: all\nMaintainer: us\nDescription: x\n"
    )
    (root / name).parent.mkdir(parents=True)
    if data is None:
        (root / name).symlink_to("/etc/passwd")
    else:
        (root / name).write_bytes(data)
    (root / "zzz").write_bytes(os.urandom(1 << 20))
    path = folder / "pkg.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", root, path], capture_output=True, check=True)
    return path


needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb here")


@needs_dpkg
def test_file_of_a_deb(tmp_path: Path) -> None:
    data = b"text\n" * 100_000
    packages._copy_from_deb(
        _deb(tmp_path, "usr/share/data.txt", data), _file("Debian", data, "usr/share/data.txt"), tmp_path / "out"
    )
    assert (tmp_path / "out").read_bytes() == data


@needs_dpkg
@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("usr/share/data.txt", None, "no regular file"),
        ("usr/share/data.txt", b"too long", "not the file recorded"),
        ("usr/share/other.txt", b"text.", "there is no usr/share/data.txt"),
    ],
)
def test_bad_deb(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    file = _file("Debian", b"text.", "usr/share/data.txt")
    with pytest.raises(DataError, match=message):
        packages._copy_from_deb(_deb(tmp_path, name, data), file, tmp_path / "out")
    (tmp_path / "pkg.deb").write_bytes(b"no archive")
    with pytest.raises(DataError, match="damaged archive"):
        packages._copy_from_deb(tmp_path / "pkg.deb", file, tmp_path / "out")


def test_without_apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ResourceError, match=r"dpkg-deb is not installed; use a Debian system .* or put the data file at"
    ):
        packages.fetch(_file("Debian", b"text."))
    (tmp_path / "dpkg-deb").write_text("#!/bin/false\n")
    (tmp_path / "dpkg-deb").chmod(0o755)
    with pytest.raises(ResourceError, match="apt-get is not installed"):
        packages.fetch(_file("Debian", b"text."))
    assert _leftovers(tmp_path / "cache") == []


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get here")
@needs_dpkg
def test_apt_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    file = PackageFile("Debian", "regard-has-no-such-package", "1.0", "data.txt", 1, 1, "00")
    with pytest.raises(ResourceError, match=r"\(E: .*\); run apt-get update as root first, or put the data file at"):
        packages.fetch(file)


def test_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match=r"cannot be written .*set REGARD_CACHE"):
        packages.fetch(_file("PyPI", b"text."))


# --- folders ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small(local_index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> catalogue.Entry:
    """An entry of 60 words whose file lies in the cache already; no index is asked for it."""
    spoken = {letter: f"{letter.upper()}H1" for letter in "abcdef"}
    words = sorted({a + b + c for a in spoken for b in spoken for c in spoken})[:60]
    data = "".join(f"{word} {' '.join(spoken[letter] for letter in word)}\n" for word in words).encode()
    file = PackageFile("PyPI", "small", "1.0", "small/words.txt", 1, len(data), hashlib.sha256(data).hexdigest())
    entry = catalogue.Entry("small", "sixty words", file, "CC0-1.0", "us", 60, read_cmudict)
    monkeypatch.setitem(catalogue.ENTRIES, "small", entry)
    kept = tmp_path / "cache" / "packages" / "small-1.0" / "words.txt"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(data)
    return entry


def _read(folder: Path) -> dict[str, list[Pair]]:
    """The pairs of each part; a text is a pair of its place and itself."""
    if (folder / "train.txt").exists():
        texts = {part: read_documents(folder / f"{part}.txt") for part in catalogue.PARTS}
        return {part: [Pair(f"{part} {n}", text, n) for n, text in enumerate(of)] for part, of in texts.items()}
    suffix = ".tsv" if (folder / "train.tsv").exists() else ".jsonl"
    return {part: read_pairs(folder / f"{part}{suffix}") for part in catalogue.PARTS}


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_folder_and_its_source(small: catalogue.Entry, tmp_path: Path) -> None:
    folder = catalogue.get("small")
    assert folder == tmp_path / "cache" / "data" / "small"
    assert {part: len(pairs) for part, pairs in _read(folder).items()} == {"train": 54, "dev": 3, "test": 3}
    assert sorted(path.name for path in folder.iterdir()) == ["SOURCE.md", "dev.tsv", "test.tsv", "train.tsv"]
    source = (folder / "SOURCE.md").read_text(encoding="utf-8")
    for said in ("PyPI package small, version 1.0", "CC0-1.0", small.file.sha256, "seed 0", "60 pairs of 60 words"):
        assert said in source
    for part, pairs in _read(folder).items():
        digest = hashlib.sha256((folder / f"{part}.tsv").read_bytes()).hexdigest()
        assert f"| {part}.tsv | {len(pairs)} | {len(pairs)} | {digest} |" in source
    assert small.notice == "small: PyPI small 1.0, us; licence: CC0-1.0"


def test_second_call_touches_nothing(small: catalogue.Entry, tmp_path: Path) -> None:
    folders = {out: catalogue.get("small", out) for out in (None, tmp_path / "mine")}
    shutil.rmtree(tmp_path / "cache" / "packages")
    for out, folder in folders.items():
        before = _stamps(folder)
        assert catalogue.get("small", out) == folder
        assert _stamps(folder) == before


def test_damaged_folder_in_the_cache_is_made_anew(small: catalogue.Entry) -> None:
    folder = catalogue.get("small")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in whole:
        (folder / name).write_bytes(whole[name][:-2])
        assert catalogue.get("small") == folder
        (folder / name).unlink()
        assert catalogue.get("small") == folder
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert [path.name for path in folder.parent.iterdir()] == ["small"]


def test_folders_of_others_are_left_alone(small: catalogue.Entry, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    assert catalogue.get("small", out) == out
    (out / "train.tsv").write_text("my own\tdata\n")
    before = _stamps(out)
    with pytest.raises(DataError, match="mine: exists and is not small as it would be written; choose another folder"):
        catalogue.get("small", out)
    with pytest.raises(DataError, match="exists and is not"):
        catalogue.get("small", tmp_path / "mine" / "train.tsv")
    assert _stamps(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "index", "mine"]


def test_seeds_have_folders_of_their_own(small: catalogue.Entry, tmp_path: Path) -> None:
    first, second = catalogue.get("small"), catalogue.get("small", seed=1)
    assert second == tmp_path / "cache" / "data" / "small-seed1"
    assert {pair.source for pair in _read(first)["test"]} != {pair.source for pair in _read(second)["test"]}
    with pytest.raises(DataError, match="exists and is not"):
        catalogue.get("small", first, seed=1)


def test_unknown_name() -> None:
    with pytest.raises(UsageError, match="no data set is named 'cmudikt'; did you mean cmudict"):
        catalogue.get("cmudikt")
    with pytest.raises(UsageError, match="there are cmudict, trans-de-en, "):
        catalogue.get("nothing like it")


def test_every_entry_says_where_it_is_from() -> None:
    for name, entry in catalogue.ENTRIES.items():
        assert entry.name == name
        for file in (entry.file,) if isinstance(entry, catalogue.Entry) else entry.files:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            for said in (name, file.package, file.version, entry.licence, entry.citation):
                assert said in entry.notice
            assert file.sha256 in entry.source
        assert "\n" not in entry.notice


# --- the real packages ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, list[Pair]]]:
    """Reads a data set's parts, made anew once; packages that the user's own cache holds are not fetched again."""
    folder = tmp_path_factory.mktemp("made")
    return functools.cache(lambda name: _read(catalogue.get(name, folder / name)))


@pytest.mark.network
@pytest.mark.parametrize("name", [name for name, entry in catalogue.ENTRIES.items() if entry.suffix != ".npz"])
def test_real_data(name: str, made: Callable[[str], dict[str, list[Pair]]]) -> None:
    entry, parts = catalogue.ENTRIES[name], made(name)
    assert sum(len(pairs) for pairs in parts.values()) == entry.num_items
    markup = re.compile(r"[\[\]{}<>|*_`~\\\xa0\xad\u0080-\u009f]|&\w+;|::|\(\d|  |^ | $")
    if name in ("movie-ratings", "tweet-entities"):  # what people type may be any of these signs
        markup = re.compile(r"&(?:amp|quot|lt|gt|nbsp|#\d+);|  |^ | $")
    for pairs in parts.values():
        for pair in pairs:
            assert not markup.search(pair.source), pair
            assert not markup.search(pair.target), pair
    same = str if name == "cmudict" else normalized  # 'cause and cause are two words
    sources = {part: {same(pair.source) for pair in pairs} for part, pairs in parts.items()}
    targets = {part: {same(pair.target) for pair in pairs} for part, pairs in parts.items()}
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert not sources[one] & sources[other]
        if (
            name not in ("cmudict", "movie-ratings", "tweet-entities") and entry.suffix != ".jsonl"
        ):  # homophones and labels are in several parts
            assert not targets[one] & targets[other]
    if name == "cmudict":
        sounds = {sound for pairs in parts.values() for pair in pairs for sound in pair.target.split(" ")}
        assert len(sounds) == 39
        assert all(re.fullmatch("[a-z']+", pair.source) for pairs in parts.values() for pair in pairs)


@pytest.mark.network
def test_verses_are_parted_alike_in_all_languages(made: Callable[[str], dict[str, list[Pair]]]) -> None:
    first, *others = (made(f"verses-en-{language}") for language in ("de", "fr", "es"))
    for other in others:
        for part in catalogue.PARTS:
            assert [pair.source for pair in other[part]] == [pair.source for pair in first[part]]


@pytest.mark.network
def test_verses_that_are_told_apart_are_in_the_parts_that_they_are_translated_in(
    made: Callable[[str], dict[str, list[Pair]]],
) -> None:
    """An encoder that has read translations of the training part knows no held-out verse."""
    verses = made("verses-en-de")
    for part in catalogue.PARTS:
        known = {(pair.source, pair.target) for pair in verses[part]}
        told = {tuple(pair.source.split("\t")) for pair in made("same-verse-en-de")[part] if pair.target == "same"}
        assert told == known
        assert len(made("same-verse-en-de")[part]) == 2 * len(verses[part])
