"""Published files: every row as it stands in them, quotes and all; bad ones are named with their line."""

from pathlib import Path

import published_files
import pytest

from regard.data.benchmarks import LAYOUTS, Columns, layout, locate, read_published
from regard.errors import ConfigError, DataError, FormatError

# Which cells hold the texts and the label, by their places, as the processors of transformers 4 take them.
PLACES = {
    "glue-cola": (3, None, 1),
    "glue-sst-2": (0, None, 1),
    "glue-mrpc": (3, 4, 0),
    "glue-sts-b": (7, 8, -1),
    "glue-qqp": (3, 4, 5),
    "glue-mnli": (8, 9, -1),
    "glue-qnli": (1, 2, -1),
    "glue-rte": (1, 2, -1),
    "glue-wnli": (1, 2, -1),
    "glue-ax": (1, 2, None),
    "xnli": (6, 7, 1),
}


def columns(name: str, file: str) -> Columns:
    of = LAYOUTS[name]
    own = of.train_columns if "train" in file else of.test_columns if "test" not in file or name == "xnli" else None
    return own or of.columns


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_row_is_read_as_it_stands(name: str, tmp_path: Path) -> None:
    written = published_files.write(tmp_path, name, 20)
    assert set(published_files.FILES) == set(LAYOUTS) == set(PLACES)
    for file, rows in written.items():
        path = locate(tmp_path, Path(file).name, LAYOUTS[name])
        is_hidden = name != "xnli" and ("test" in file or "diagnostic" in file)
        found = read_published(path, columns(name, file), LAYOUTS[name], is_hidden=is_hidden)
        texts = [pair.source.split("\t") for pair in found.pairs]
        space = " " if name == "glue-sst-2" and not is_hidden else ""
        single = name in published_files.SINGLE
        assert texts == [[row.a + space] if single else [row.a, row.b] for row in rows]
        assert any('"' in text for text, *_ in texts)
        assert [pair.target for pair in found.pairs] == ["" if is_hidden else row.label for row in rows]
        first = 1 if name == "glue-cola" and not is_hidden else 2
        assert [pair.line for pair in found.pairs] == list(range(first, first + len(rows)))
        if is_hidden:
            assert found.keys == [str(n) for n in range(len(rows))]
        elif "xnli" in file:
            assert found.keys == [row.language for row in rows]
        if not is_hidden and "multinli" not in file:
            lines = (tmp_path / file).read_text("utf-8-sig").splitlines()[first - 1 :]
            for line, pair in zip(lines, found.pairs, strict=True):
                cells, (a, b, label) = line.split("\t"), PLACES[name]
                assert pair.source == (cells[a] if b is None else f"{cells[a]}\t{cells[b]}")
                assert pair.target == cells[label]


def test_colas_star_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("clc95\t0\t*\tIn which way is \"Sandy very anxious?\ngj04\t1\t\tTab's off.\n")
    of = layout("glue-cola")
    found = read_published(str(tmp_path / "dev.tsv"), of.test_columns, of)
    assert [(pair.source, pair.target) for pair in found.pairs] == [
        ('In which way is "Sandy very anxious?', "0"),
        ("Tab's off.", "1"),
    ]


def test_short_rows_are_left_out_of_qqp_alone_and_never_of_a_hidden_file(tmp_path: Path) -> None:
    for name, lines in (
        ("glue-qqp", ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\tWhy?", "4\t5\t6\tA?\t\t0"]),
        ("glue-rte", ["index\tsentence1\tsentence2\tlabel", "0\tA\tB\tentailment", "1\tC"]),
    ):
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    of = layout("glue-qqp")
    found = read_published(str(tmp_path / "glue-qqp.tsv"), of.columns, of)
    assert ([(pair.source, pair.target) for pair in found.pairs], found.skipped) == ([("A?\t", "0")], 1)
    rte = layout("glue-rte")
    with pytest.raises(
        DataError, match=r"glue-rte\.tsv, line 3: a row that lacks cells; take the file as it is published"
    ):
        read_published(str(tmp_path / "glue-rte.tsv"), rte.columns, rte)
    (tmp_path / "test.tsv").write_text("id\tquestion1\tquestion2\n0\tA?\n")
    with pytest.raises(DataError, match=r"test\.tsv, line 2: a row that lacks cells"):
        read_published(str(tmp_path / "test.tsv"), of.columns, of, is_hidden=True)
    # What is not read may lack, and what is behind the last column is not read, as everyone does.
    (tmp_path / "more.tsv").write_text(
        "index\tsentence1\tsentence2\tlabel\tnote\n0\tA\tB\tentailment\n1\tC\tD\tentailment\tx\ty\n"
    )
    assert [pair.source for pair in read_published(str(tmp_path / "more.tsv"), rte.columns, rte).pairs] == [
        "A\tB",
        "C\tD",
    ]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("index\tsentence1\tsentence2\tlabel\n0\tA\tB\tmaybe\n", DataError, "line 2: the label 'maybe' is none of the"),
        (
            "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t\n",
            DataError,
            "line 2: the label '' is none of the benchmark's",
        ),
        ("index\tsentence1\tsentence\tlabel\n0\tA\tB\tentailment\n", DataError, "no column is named 'sentence2'"),
        ("index\tsentence1\tsentence2\n0\tA\tB\n", DataError, "no column is named 'label'"),
        ("index\tsentence1\tsentence2\tlabel\n0\t \t\tentailment\n", DataError, "line 2: the text is empty"),
        ("index\tsentence1\tsentence2\tlabel\n", DataError, "the file is empty"),
        ("", DataError, "the file is empty"),
        ("index\tsentence1\tsentence2\tlabel\n0\tA\0\tB\tentailment\n", FormatError, "line 2: NUL"),
    ],
)
def test_bad_files_are_named(text: str, error: type[Exception], said: str, tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text(text)
    of = layout("glue-rte")
    with pytest.raises(error, match=said):
        read_published(str(path), of.columns, of)


def test_files_are_found_in_the_folder_or_the_one_above(tmp_path: Path) -> None:
    published_files.write(tmp_path / "CoLA", "glue-cola", 20)
    of = layout("glue-cola")
    assert locate(tmp_path, "dev.tsv", of) == locate(tmp_path / "CoLA", "dev.tsv", of) == str(tmp_path / "CoLA/dev.tsv")
    with pytest.raises(DataError, match=r"tain\.tsv: no such file; give the folder with tain\.tsv, or with CoLA/"):
        locate(tmp_path, "tain.tsv", of)
    with pytest.raises(ConfigError, match="unknown layout 'cola'; choose from glue-cola, "):
        layout("cola")
