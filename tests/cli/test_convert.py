"""The verb ``regard convert``."""

import json
from pathlib import Path

import pytest
from cli_tools import Cli, Trained, snapshot

import regard
from regard.models.public import write_folder
from regard.models.vit import Vit, VitConfig
from regard.models.weights import read_tensors


def test_a_trained_run_goes_out_and_comes_back(trained_transformer: Trained, cli: Cli, tmp_path: Path) -> None:
    before = snapshot(trained_transformer.out)
    done = cli(["convert", trained_transformer.out, "--to", "huggingface", "-o", "hub"])
    assert done.returncode == 0, done.stderr
    tensors = read_tensors(tmp_path / "hub" / "model.safetensors")
    count = sum(parameter.numel() for parameter in regard.load(trained_transformer.out).model.parameters())
    size = sum(path.stat().st_size for path in (tmp_path / "hub").iterdir())
    wanted = f"hub: a transformer, {len(tensors)} tensors, {count:,} parameters, {size:,} bytes\n"
    assert done.stdout == wanted
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["architectures"] == ["MarianMTModel"]
    assert cli(["convert", "hub", "--to", "regard", "--out", "back"]).returncode == 0
    words = "abcde\nfedcb\n\nab\n"
    outputs = [
        cli(["translate", path, "--beam", "1"], stdin=words) for path in (trained_transformer.out, "hub", "back")
    ]
    assert {(done.returncode, done.stdout) for done in outputs} == {(0, outputs[0].stdout)}
    assert len(outputs[0].stdout.splitlines()) == 4
    assert snapshot(trained_transformer.out) == before


def test_beams_that_are_ranked_otherwise_are_told(trained_transformer: Trained, cli: Cli, tmp_path: Path) -> None:
    one = regard.load(trained_transformer.out)
    values = json.loads((trained_transformer.out / "model" / "generation_config.json").read_text())
    folder = tmp_path / "beams"
    folder.mkdir()
    for path in (trained_transformer.out / "model").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "generation_config.json").write_text(json.dumps({**values, "beam": 4, "length_penalty": 0.6}))
    done = cli(["convert", folder, "--to", "huggingface", "-o", "hub"])
    assert done.returncode == 0
    assert done.stderr.startswith("regard: note: the form divides by length^α, not by ((5 + length) / 6)^α")
    assert len(done.stderr.splitlines()) == 1
    again = regard.load(tmp_path / "hub").options
    assert (again.beam, again.length_penalty, again.length_offset) == (4, 0.6, 0.0)
    assert one.options.length_offset == 5.0
    (folder / "generation_config.json").write_text(json.dumps({**values, "beam": 1}))
    assert cli(["convert", folder, "--to", "huggingface", "-o", "greedy"]).stderr == ""


def test_a_model_of_images_goes_to_every_form(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "timm").mkdir()
    write_folder(tmp_path / "timm", "vit", Vit(VitConfig((12, 8), 3, 5, 4, 16, 1, 2, 24)), form="timm")
    for path, form, out in (("timm", "regard", "mine"), ("mine", "huggingface", "hub")):
        done = cli(["convert", path, "--to", form, "-o", out])
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{out}: a vit, ")
    # Straight from one public form to the other; norms have timm's epsilon, so nothing stands in the way.
    assert cli(["convert", "hub", "--to", "timm", "-o", "again"]).returncode == 0
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "timm/model.safetensors").read_bytes()
    done = cli(["convert", "again", "--to", "timm", "-o", "no"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "regard: again: the model is in the form 'timm' already; give another form\n"


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["RUN", "--to", "huggingface", "-o", "hub"], 3, "a 'rnn' has no public layout; keep it in regard's own form"),
        (["RUN", "--to", "regard", "-o", "hub"], 2, "in the form 'regard' already"),
        (["RUN", "--to", "onnx", "-o", "hub"], 2, "choose from huggingface, timm, regard"),
        (["RUN", "--to", "huggingface", "-o", "."], 2, "something is there already"),
        (["RUN", "--to", "huggingface"], 2, "--out"),
        (["nothing", "--to", "huggingface", "-o", "hub"], 3, "no model here"),
        (["owner/name", "--to", "regard", "-o", "hub"], 2, "regard fetches no model by name"),
        (["https://example.org/m", "--to", "regard", "-o", "hub"], 2, "not a URL"),
        (["odd.gguf", "--to", "regard", "-o", "hub"], 3, "not a GGUF file"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    args: list[str], code: int, words: str, trained: Trained, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "odd.gguf").write_bytes(b"no such thing")
    done = cli(["convert", *(str(trained.out) if arg == "RUN" else arg for arg in args)])
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["odd.gguf"]
    assert done.returncode == code


def test_a_full_disk_leaves_nothing(trained_transformer: Trained, cli: Cli, tmp_path: Path) -> None:
    done = cli(["convert", trained_transformer.out, "--to", "huggingface", "-o", "hub"], file_bytes=20_000)
    assert done.returncode == 4
    assert "cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_public_folder_translates_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    from public_translator import write_translator

    write_translator(tmp_path / "owner" / "name")
    done = cli(["translate", "owner/name"], stdin="The captain sang.\n\nnobody\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 3
    done = cli(["translate", "owners/name"], stdin="The captain sang.\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "regard fetches no model by name; fetch it first" in done.stderr
