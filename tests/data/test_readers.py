"""Readers: what was written is what is read, and every bad file is named with its line."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Pair, read_lines, read_pairs, split_pairs
from regard.errors import DataError, FormatError, RegardError, ResourceError, UsageError

# Everything that a line may hold: NEL, U+2028, form feed and the other line ends of str.splitlines are no line ends
# here, a byte order mark is one only at the start of a file, and a carriage return only before a line feed.
_LINE_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\t\ufeff"), min_size=1).filter(
    lambda text: not text.isspace()
)
_ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(
    lambda text: not text.isspace()
)
_LINES = st.lists(st.tuples(_LINE_TEXT, _LINE_TEXT), min_size=1, max_size=5)
_ANYS = st.lists(st.tuples(_ANY_TEXT, _ANY_TEXT), min_size=1, max_size=5)


def _texts(pairs: list[Pair]) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in pairs]


def _write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readers")


# --- what was written is what is read ---------------------------------------------------------------------------


@given(texts=_LINES, end=st.sampled_from(["\n", "\r\n"]), mark=st.booleans(), last=st.booleans())
def test_tsv_round_trip(folder: Path, texts: list[tuple[str, str]], end: str, mark: bool, last: bool) -> None:
    body = end.join(f"{source}\t{target}" for source, target in texts) + (end if last else "")
    pairs = read_pairs(_write(folder / "pairs.tsv", "\ufeff" * mark + body))
    assert _texts(pairs) == texts
    assert [pair.line for pair in pairs] == list(range(1, len(texts) + 1))


@given(texts=_LINES, end=st.sampled_from(["\n", "\r\n"]), mark=st.booleans())
def test_parallel_round_trip(folder: Path, texts: list[tuple[str, str]], end: str, mark: bool) -> None:
    for side, code in enumerate(("de", "en")):
        _write(folder / f"train.{code}", "\ufeff" * mark + "".join(text[side] + end for text in texts))
    pairs = read_pairs(f"{folder}/train.de,{folder}/train.en")
    assert _texts(pairs) == texts
    assert pairs == read_pairs(folder / "train", source="de", target="en")
    assert [pair.line for pair in pairs] == list(range(1, len(texts) + 1))


@given(texts=_ANYS, mark=st.booleans(), end=st.sampled_from(["\n", "\r\n"]))
def test_csv_round_trip(folder: Path, texts: list[tuple[str, str]], mark: bool, end: str) -> None:
    path = folder / "pairs.csv"
    with path.open("w", encoding="utf-8-sig" if mark else "utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator=end)
        writer.writerow(["extra", "target", "source"])
        writer.writerows(["x", target, source] for source, target in texts)
    pairs = read_pairs(path)
    assert _texts(pairs) == texts
    # A row starts where the line ends inside earlier quotes have been counted too.
    starts, line = [], 2
    for source, target in texts:
        starts.append(line)
        line += 1 + source.count("\n") + target.count("\n")
    assert [pair.line for pair in pairs] == starts


@given(texts=_ANYS, ascii_only=st.booleans(), mark=st.booleans())
def test_jsonl_round_trip(folder: Path, texts: list[tuple[str, str]], ascii_only: bool, mark: bool) -> None:
    rows = [{"n": 1, "en": target, "de": source} for source, target in texts]
    body = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)
    pairs = read_pairs(_write(folder / "pairs.jsonl", "\ufeff" * mark + body), source="de", target="en")
    assert _texts(pairs) == texts
    assert [pair.line for pair in pairs] == list(range(1, len(texts) + 1))


@given(texts=_ANYS, kind=st.sampled_from(["string", "large_string", "dictionary"]))
def test_parquet_round_trip(folder: Path, texts: list[tuple[str, str]], kind: str) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    types = {
        "string": pa.string(),
        "large_string": pa.large_string(),
        "dictionary": pa.dictionary(pa.int32(), pa.string()),
    }
    columns = {
        name: pa.array([text[side] for text in texts], types[kind]) for side, name in enumerate(("source", "target"))
    }
    parquet.write_table(pa.table({"n": list(range(len(texts))), **columns}), folder / "pairs.parquet")
    pairs = read_pairs(folder / "pairs.parquet")
    assert _texts(pairs) == texts
    assert [pair.line for pair in pairs] == list(range(1, len(texts) + 1))


@given(lines=st.lists(_LINE_TEXT | st.just(""), min_size=1, max_size=5), end=st.sampled_from(["\n", "\r\n"]))
def test_lines_round_trip(folder: Path, lines: list[str], end: str) -> None:
    path = _write(folder / "text.txt", "".join(line + end for line in lines))
    if any(lines):
        assert read_lines(path) == lines
    else:
        with pytest.raises(DataError, match="empty"):
            read_lines(path)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_only_line_feeds_end_lines(tmp_path: Path, separator: str) -> None:
    path = _write(tmp_path / "pairs.tsv", f"eins{separator}zwei\tone{separator}two\ndrei\tthree\n")
    assert read_pairs(path) == [Pair(f"eins{separator}zwei", f"one{separator}two", 1), Pair("drei", "three", 2)]


def test_one_row_is_enough(tmp_path: Path) -> None:
    assert read_pairs(_write(tmp_path / "pairs.tsv", "ja\tyes")) == [Pair("ja", "yes", 1)]


def test_standard_input_is_tsv() -> None:
    code = "from regard.data import read_lines, read_pairs; print(ascii(read_pairs('-')))"
    done = subprocess.run(
        [sys.executable, "-c", code], input="größer\tlarger\n".encode(), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == r"[Pair(source='gr\xf6\xdfer', target='larger', line=1)]"


def test_readers_are_light() -> None:
    code = "import sys; import regard.data.catalogue; print(*{'torch', 'numpy', 'pyarrow'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b""


# --- columns ----------------------------------------------------------------------------------------------------


def test_tsv_header_is_used_only_with_names(tmp_path: Path) -> None:
    path = _write(tmp_path / "pairs.tsv", "en\tde\nyes\tja\n")
    assert read_pairs(path) == [Pair("en", "de", 1), Pair("yes", "ja", 2)]
    assert read_pairs(path, source="de", target="en") == [Pair("ja", "yes", 2)]


def test_one_name_leaves_the_other_at_its_default(tmp_path: Path) -> None:
    path = _write(tmp_path / "pairs.tsv", "id\ttarget\tde\n7\tyes\tja\n")
    assert read_pairs(path, source="de") == [Pair("ja", "yes", 2)]


# --- bad input: file, what is in it, error, and all that its message has to say -----------------------------------

_BAD: list[tuple[str, str, str | bytes, type[RegardError], list[str]]] = [
    ("UTF-8 in TSV", "p.tsv", b"a\tb\nc\td\xff\n", FormatError, ["p.tsv, line 2", "byte 4", "0xff", "UTF-8"]),
    ("UTF-8 after a mark", "p.tsv", b"\xef\xbb\xbfa\t\xff\n", FormatError, ["line 1", "byte 6"]),
    ("UTF-8 cut short", "p.tsv", b"a\tb\xc3", FormatError, ["line 1", "byte 4", "0xc3"]),
    ("UTF-16", "p.tsv", "a\tb\n".encode("utf-16"), FormatError, ["line 1", "byte 1", "0xff", "save the file as UTF-8"]),
    ("surrogate as UTF-8", "p.tsv", "a\tb\ud800\n", FormatError, ["line 1", "byte 4", "0xed"]),
    ("NUL in TSV", "p.tsv", b"a\tb\nc\0\td\n", FormatError, ["line 2", "NUL at byte 2"]),
    ("NUL in CSV", "p.csv", b"source,target\na,\0b\n", FormatError, ["line 2", "NUL at byte 3"]),
    ("empty TSV", "p.tsv", b"", DataError, ["p.tsv", "empty"]),
    ("only a mark", "p.tsv", b"\xef\xbb\xbf", DataError, ["line 1", "blank"]),
    ("empty CSV", "p.csv", b"", DataError, ["p.csv", "empty"]),
    ("CSV with a header only", "p.csv", b"source,target\n", DataError, ["p.csv", "empty"]),
    ("empty JSONL", "p.jsonl", b"", DataError, ["p.jsonl", "empty"]),
    ("one column", "p.tsv", b"a\tb\nonly\n", DataError, ["line 2", "1 columns instead of 2"]),
    ("three columns", "p.tsv", b"a\tb\tc\n", DataError, ["line 1", "3 columns instead of 2", "name the columns"]),
    ("blank line", "p.tsv", b"a\tb\n\nc\td\n", DataError, ["line 2", "blank"]),
    ("empty source", "p.tsv", b"a\tb\n\td\n", DataError, ["line 2", "source side is empty"]),
    ("blank target", "p.tsv", "a\tb\nc\t \u2003\n", DataError, ["line 2", "target side is empty"]),
    ("empty CSV cell", "p.csv", b"source,target\na,b\nc,\n", DataError, ["line 3", "target side is empty"]),
    ("empty JSON string", "p.jsonl", b'{"source": "", "target": "b"}\n', DataError, ["line 1", "source side is empty"]),
    ("CSV column", "p.csv", b"source_,target\na,b\n", DataError, ["line 1", "'source'", "'source_', 'target'"]),
    ("CSV column twice", "p.csv", b"source,source,target\na,b,c\n", DataError, ["line 1", "2 columns", "'source'"]),
    ("CSV row", "p.csv", b"source,target\na,b\na,b,c\n", DataError, ["line 3", "3 columns instead of 2"]),
    ("CSV after a long row", "p.csv", b'source,target\n"a\nb",c\nd\n', DataError, ["line 4", "1 columns"]),
    ("CSV semicolons", "p.csv", b"source;target\na;b\n", DataError, ["line 1", "semicolons"]),
    ("CSV quotes", "p.csv", b'source,target\na,b\n"c,d\n', FormatError, ["line 3", "not CSV"]),
    ("JSON cut short", "p.jsonl", b'{"source": "a"\n', FormatError, ["line 1", "not JSON", "character 15"]),
    ("JSON array", "p.jsonl", b'["a", "b"]\n', FormatError, ["line 1", "an array instead of an object"]),
    ("JSON number", "p.jsonl", b'{"source": "a", "target": 3}\n', FormatError, ["line 1", "'target' is a number"]),
    ("JSON null", "p.jsonl", b'{"source": null, "target": "b"}\n', FormatError, ["line 1", "'source' is null"]),
    ("JSON key", "p.jsonl", b'{"source": "a", "tgt": "b"}\n', DataError, ["line 1", "no key 'target'", "'tgt'"]),
    ("JSON blank line", "p.jsonl", b'\n{"source": "a", "target": "b"}\n', DataError, ["line 1", "blank"]),
    ("JSON surrogate", "p.jsonl", rb'{"source": "a\ud800", "target": "b"}', FormatError, ["source: lone surrogate"]),
    ("JSON NUL", "p.jsonl", rb'{"source": "a", "target": "b\u0000"}', FormatError, ["target: NUL at character 2"]),
    ("JSON huge integer", "p.jsonl", b'{"n": ' + b"1" * 5000 + b"}", FormatError, ["line 1", "not JSON"]),
    ("no extension", "pairs", b"a\tb\n", DataError, ["no extension", ".tsv", "train.de,train.en"]),
    ("another extension", "p.xlsx", b"a\tb\n", DataError, [".xlsx", ".parquet"]),
    ("JSON that is no JSONL", "p.json", b"[]", DataError, [".jsonl"]),
    ("plain text", "p.txt", b"a\tb\n", DataError, [".tsv"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "error", "said"), [case[1:] for case in _BAD], ids=[case[0] for case in _BAD])
def test_bad_pairs(tmp_path: Path, name: str, data: str | bytes, error: type[RegardError], said: list[str]) -> None:
    with pytest.raises(error) as caught:
        read_pairs(_write(tmp_path / name, data))
    _check(caught.value, error, str(tmp_path / name), said)


def _check(error: RegardError, kind: type[RegardError], path: str, said: list[str]) -> None:
    message = str(error)
    assert type(error) is kind
    assert "\n" not in message
    assert path in message
    for words in said:
        assert words in message.replace(path, os.path.basename(path))
    assert error.exit_code == (4 if kind is ResourceError else 2 if kind is UsageError else 3)


def test_tsv_with_names_checks_every_row(tmp_path: Path) -> None:
    path = _write(tmp_path / "p.tsv", "de\ten\nja\tyes\tperhaps\n")
    with pytest.raises(DataError, match="line 2: 3 columns instead of 2"):
        read_pairs(path, source="de", target="en")
    with pytest.raises(DataError, match="line 1: no column is named 'fr'; the names are 'de', 'en'"):
        read_pairs(path, source="fr", target="en")
    with pytest.raises(UsageError, match="both 'de'"):
        read_pairs(path, source="de", target="de")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_json_a_hundred_thousand_deep(tmp_path: Path, opening: str) -> None:
    path = _write(tmp_path / "p.jsonl", '{"source": "a", "target": "b"}\n{"source": ' + opening * 100_000)
    with pytest.raises(FormatError, match="line 2: JSON nested too deeply"):
        read_pairs(path, text_cap_bytes=1_000_000)
    with pytest.raises(DataError, match="line 2: longer than 65,536 bytes"):
        read_pairs(path)


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.jsonl", "p.txt"])
def test_line_at_and_over_the_cap(tmp_path: Path, name: str) -> None:
    read = read_lines if name == "p.txt" else read_pairs
    head, row = {
        "p.tsv": ("", "{}\tb"),
        "p.csv": ("source,target\r\n", "{},b"),
        "p.jsonl": ("", '{{"target": "b", "source": "{}"}}'),
        "p.txt": ("", "{}"),
    }[name]
    most = 200 - len(row.format(""))
    assert len(read(_write(tmp_path / name, f"{head}{row.format('a' * most)}\r\n"), text_cap_bytes=200)) == 1
    line = 2 if head else 1
    for end in ("\r\n", "", "x" * 1000):
        path = _write(tmp_path / name, f"{head}{row.format('a' * (most + 1))}{end}")
        with pytest.raises(DataError, match=f"line {line}: longer than 200 bytes"):
            read(path, text_cap_bytes=200)


def test_csv_cell_of_many_lines_over_the_cap(tmp_path: Path) -> None:
    path = _write(tmp_path / "p.csv", 'source,target\n"' + "a\n" * 500 + '",b\n')
    with pytest.raises(DataError, match="line 2, source: longer than 200 bytes"):
        read_pairs(path, text_cap_bytes=200)


def test_a_million_letters_are_refused_in_no_time(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1: longer than"):
        read_pairs(_write(tmp_path / "p.tsv", b"a" * (1 << 20)))


def test_a_file_without_line_ends_does_not_fill_memory(tmp_path: Path) -> None:
    with (tmp_path / "p.tsv").open("wb") as file:
        file.truncate(8 << 30)  # sparse: takes no room on the disk
    code = (
        "import resource; from regard.data import read_pairs\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        f"read_pairs({str(tmp_path / 'p.tsv')!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "line 1: longer than 65,536 bytes" in done.stderr.splitlines()[-1]


def test_parallel_files_of_unequal_length(tmp_path: Path) -> None:
    source, target = _write(tmp_path / "t.de", "eins\nzwei\ndrei\n"), _write(tmp_path / "t.en", "one\n\n")
    with pytest.raises(DataError) as caught:
        read_pairs(f"{source},{target}")
    _check(caught.value, DataError, str(source), ["3 lines", f"{target} has 2"])
    with pytest.raises(DataError) as caught:
        read_pairs(f"{target},{source}")
    _check(caught.value, DataError, str(target), ["2 lines", f"{source} has 3"])


def test_parallel_files_name_the_blank_side(tmp_path: Path) -> None:
    _write(tmp_path / "t.de", "eins\nzwei\n")
    _write(tmp_path / "t.en", "one\n \n")
    with pytest.raises(DataError) as caught:
        read_pairs(tmp_path / "t", source="de", target="en")
    _check(caught.value, DataError, f"{tmp_path}/t.en, line 2", ["empty"])
    _write(tmp_path / "t.en", "")
    with pytest.raises(DataError) as caught:
        read_pairs(tmp_path / "t", source="de", target="en")
    _check(caught.value, DataError, f"{tmp_path}/t.en", ["the file is empty"])


def test_parallel_files_take_no_names(tmp_path: Path) -> None:
    _write(tmp_path / "t.de", "ja\n")
    _write(tmp_path / "t.en", "yes\n")
    with pytest.raises(UsageError, match="no column names"):
        read_pairs(f"{tmp_path}/t.en,{tmp_path}/t.de", source="de", target="en")
    with pytest.raises(UsageError, match="not two files"):
        read_pairs(f"{tmp_path}/t.en,{tmp_path}/t.de,{tmp_path}/t.de")
    comma = _write(tmp_path / "a,b.tsv", "ja\tyes\n")
    assert read_pairs(comma) == [Pair("ja", "yes", 1)]


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    _write(tmp_path / "train.tsv", "ja\tyes\n")
    with pytest.raises(DataError) as caught:
        read_pairs(tmp_path / "train1.tsv")
    _check(
        caught.value, DataError, str(tmp_path / "train1.tsv"), ["no such file", f"did you mean {tmp_path}/train.tsv?"]
    )
    with pytest.raises(DataError, match="no such file; check the name"):
        read_pairs(tmp_path / "quite-another.jsonl")
    with pytest.raises(DataError, match=f"there is no folder {tmp_path}/gone"):
        read_pairs(tmp_path / "gone" / "train.tsv")
    with pytest.raises(DataError, match="no such file"):
        read_lines(tmp_path / "train.txt")
    with pytest.raises(DataError, match="not a file name"):
        read_lines("")


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.jsonl", "p.parquet", "p"])
def test_folder_instead_of_a_file(tmp_path: Path, name: str) -> None:
    if name == "p.parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="this is a folder"):
        read_pairs(tmp_path / name)


def test_unreadable_file(tmp_path: Path) -> None:
    path = _write(tmp_path / "p.tsv", "ja\tyes\n")
    path.chmod(0)
    code = "import os, sys; from regard.data import read_pairs; os.getuid() or os.setuid(65534); read_pairs('p.tsv')"
    # Root may read anything, so the child gives that up; it inherits the folder as its working folder.
    tmp_path.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("regard.errors.ResourceError: p.tsv: not allowed to read it")
    assert ResourceError.exit_code == 4


def test_names_that_are_no_text_stay_on_one_line(tmp_path: Path) -> None:
    for name in ("a\nb.tsv", os.fsdecode(b"\xff.tsv")):
        with pytest.raises(DataError, match="no such file") as caught:
            read_pairs(tmp_path / name)
        assert str(caught.value).isprintable()


def test_hostile_header_is_not_shown_whole(tmp_path: Path) -> None:
    path = _write(tmp_path / "p.csv", ",".join(f"c{n}\x1b[31m{'x' * 50}" for n in range(900)) + "\n1\n")
    with pytest.raises(DataError, match="no column is named 'source'") as caught:
        read_pairs(path)
    assert len(str(caught.value)) < 800
    assert str(caught.value).isprintable()


# --- Parquet ----------------------------------------------------------------------------------------------------


def test_bad_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "p.parquet"

    def read(**columns: object) -> None:
        parquet.write_table(pa.table(columns), path)
        read_pairs(path, text_cap_bytes=100)

    with pytest.raises(DataError, match="no column is named 'target'; the names are 'tgt', 'source'"):
        read(source=["a"], tgt=["b"])
    with pytest.raises(FormatError, match="'target' holds int64"):
        read(source=["a"], target=[1])
    with pytest.raises(DataError, match="row 2: 'target' is null"):
        read(source=["a", "b"], target=["c", None])
    with pytest.raises(DataError, match="row 2: the source side is empty"):
        read(source=["a", ""], target=["c", "d"])
    with pytest.raises(DataError, match="row 1, target: longer than 100 bytes"):
        read(source=["a"], target=["ö" * 51])
    with pytest.raises(DataError, match="the file is empty"):
        read(source=pa.array([], pa.string()), target=pa.array([], pa.string()))
    invalid = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")])
    with pytest.raises(FormatError, match="not UTF-8"):
        read(source=invalid, target=["b"])
    whole = path.read_bytes()
    for data in (b"", b"PAR1", whole[:-9], b"x" * 1000, whole[:4] + bytes(len(whole) - 300) + whole[-296:]):
        path.write_bytes(data)
        with pytest.raises(FormatError, match="not Parquet"):
            read_pairs(path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path) -> None:
    path = _write(tmp_path / "p.parquet", b"PAR1")
    # -S leaves out installed packages; what is ours is found through the path.
    source = Path(sys.modules["regard"].__path__[0]).parent
    code = f"import sys; sys.path.insert(0, {str(source)!r}); import regard.data; regard.data.read_pairs({str(path)!r})"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("regard.errors.ResourceError")
    assert "pip install 'regard[parquet]'" in last


def two_texts(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write rows in the format that the name says."""
    names, kind = list(rows[0]), path.suffix
    if kind == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == ".tsv":
        path.write_text("".join("\t".join(cells) + "\n" for cells in [names, *(row.values() for row in rows)]))
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([names, *(row.values() for row in rows)])
    return path


@pytest.mark.parametrize("kind", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_two_columns_are_two_texts(tmp_path: Path, kind: str) -> None:
    rows = [
        {"label": "yes", "hypo": '"B", he said', "a,b": "first", "premise": "A, a"},
        {"label": "no", "hypo": "C", "a,b": "second", "premise": "D" if kind == ".tsv" else "D\td"},
    ]
    path = two_texts(tmp_path / f"p{kind}", rows)
    found = read_pairs(path, source="premise, hypo", target="label")
    assert [(one.texts, one.target) for one in found] == [
        (("A, a", '"B", he said'), "yes"),
        ((rows[1]["premise"], "C"), "no"),
    ]
    assert found[0].source == 'A, a\t"B", he said'
    assert [one.source for one in read_pairs(path, source="a,b", target="label")] == ["first", "second"]
    with pytest.raises(DataError, match="3 columns for the source; name one text, or two"):
        read_pairs(path, source="premise,hypo,label", target="label")
    with pytest.raises(DataError, match="'hypos'"):
        read_pairs(path, source="premise,hypos", target="label")
    path = two_texts(tmp_path / f"q{kind}", [rows[0], rows[0] | {"hypo": " "}])
    with pytest.raises(DataError, match=r"(line 3|row 2|line 2): one of two texts is empty"):
        read_pairs(path, source="premise,hypo", target="label")


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_a_tab_in_a_text_makes_no_second(tmp_path: Path, kind: str) -> None:
    rows = [{"source": f"Reverse:\t{n}", "target": "yes"} for n in range(100)]
    found = read_pairs(two_texts(tmp_path / f"p{kind}", rows))
    assert [one.texts for one in found] == [(row["source"],) for row in rows]
    splits = split_pairs(found, seed=4)  # what stands before the tab is no group
    assert [len(splits.train), len(splits.dev), len(splits.test)] == [90, 5, 5]


def test_texts_that_share_their_first_are_in_one_part() -> None:
    pairs = [Pair.of((f"Premise {n // 3}", f"hypothesis {n}"), "yes", n + 1) for n in range(300)]
    splits = split_pairs(pairs, seed=4)
    first = [{pair.source.split("\t")[0] for pair in part} for part in (splits.train, splits.dev, splits.test)]
    assert [len(part) for part in first] == [90, 5, 5]
    assert len(set.union(*first)) == 100
