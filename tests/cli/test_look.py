"""`regard look` as a person types it."""

import json
import subprocess
from pathlib import Path

import pytest
from cli_tools import COMMAND
from public_translator import write_translator

TEXT = "Nobody sang yesterday."


@pytest.fixture(scope="module")
def marian(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "marian"
    write_translator(path)
    return path


def test_the_command_serves_an_input_and_refuses_what_it_cannot(marian, cli, tmp_path):
    told = cli(["look", marian, "--port", "99999"])
    assert (told.returncode, told.stderr) == (2, "regard: --port: port 99999; it is 0 to 65535; 0 is any free one\n")
    assert cli(["look"]).returncode == 2
    assert cli(["look", marian, "a", "b", "c"]).returncode == 2
    assert cli(["look", marian, "-o", "x.html"]).returncode == 2
    assert cli(["look", marian, "a", "-o", "x.pdf"]).returncode == 2
    assert cli(["look", marian, "a", "b", "-o", "x.json"]).returncode == 2
    assert cli(["look", marian, "--lecture"]).returncode == 2
    assert cli(["look", "http://example.org/model", "a"]).returncode == 2
    done = cli(["look", marian, TEXT, "nobody", "-o", "two.html"])
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "two.html").read_text()
    store = json.loads(page.split('<script type="application/json" id="look">')[1].split("</script>")[0])
    assert [run["source"] for run in store["runs"]] == [TEXT, "nobody"]
    with subprocess.Popen(
        [COMMAND, "look", marian, TEXT, "--no-browser"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("page: http://127.0.0.1:")
        process.send_signal(2)
        assert process.wait(30) == 130


@pytest.mark.slow
def test_pictures_of_lectures_are_one_page_that_loads_nothing(cli, tmp_path):
    done = cli(["look", "--lecture", "-o", "lecture.html"], seconds=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"page: {tmp_path / 'lecture.html'}\n"
    page = (tmp_path / "lecture.html").read_text()
    for title in ("Position encodings", "Masks", "A head step by step", "Cost against length"):
        assert title in page
    assert "default-src 'none'" in page
    assert cli(["look", "--lecture", "-o", "lecture.json"]).returncode == 2
