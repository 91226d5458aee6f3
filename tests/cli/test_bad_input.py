"""Every mistake gets one line that says what, where and how to mend, its exit code, and leaves everything as it was."""

import json
import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_tools import RNN, SETTINGS, TRANSFORMER, Cli, Trained, settings, snapshot

from regard.models.weights import read_tensors, write_tensors

RunCli = Callable[..., subprocess.CompletedProcess[str]]
NOBODY = 65534
MIB = 1 << 20


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Check what a refusal looks like.

    Args:
        done: The finished process.
        code: The exit code.
        words: What the one line has to hold.
    """
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stderr.startswith("regard: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith("\n")
    assert len(done.stderr) < 1000
    assert "internal error" not in done.stderr
    for word in words:
        assert word in done.stderr, (word, done.stderr)


@pytest.fixture
def model(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the model's folder, to be damaged."""
    shutil.copytree(trained.out / "model", tmp_path / "model")
    return tmp_path / "model"


# ------------------------------------------------------------------------------------------------- texts and options

TRANSLATE = [
    (["--beam", "0"], "abc", 2, ("beam is 0", "give 1 to 1024")),
    (["--beam", "-1"], "abc", 2, ("beam is -1", "give 1 to 1024")),
    (["--beam", "1000000000"], "abc", 2, ("beam is 1000000000", "give 1 to 1024")),
    (["--beam", "nan"], "abc", 2, ("nan", "--beam", "see --help")),
    (["--n-best", "0"], "abc", 2, ("n_best is 0",)),
    (["--n-best", "5", "--beam", "2"], "abc", 2, ("n_best is 5 with beam 2",)),
    (["--sample", "--temperature", "-1"], "abc", 2, ("temperature is -1", "give a number above 0")),
    (["--sample", "--temperature", "0"], "abc", 2, ("temperature is 0", "sampling off")),
    (["--sample", "--temperature", "nan"], "abc", 2, ("temperature is nan", "give a number")),
    (["--sample", "--beam", "3"], "abc", 2, ("sampling with beam 3", "beam 1")),
    (["--sample", "--top-k", "-1"], "abc", 2, ("top_k is -1",)),
    (["--sample", "--top-p", "0"], "abc", 2, ("top_p is 0", "above 0, at most 1")),
    (["--sample", "--top-p", "nan"], "abc", 2, ("top_p is nan",)),
    (["--sample", "--seed", "-1"], "abc", 2, ("seed is -1",)),
    (["--length-penalty", "nan"], "abc", 2, ("length_penalty is nan", "0 to 10")),
    (["--max-extra-tokens", "1000000000"], "abc", 2, ("max_extra_tokens is 1000000000", "100,000")),
    (["--max-extra-tokens", "-1"], "abc", 2, ("max_extra_tokens is -1",)),
    (["--max-extra-tokens", "nan"], "abc", 2, ("nan", "--max-extra-tokens")),
    (["--batch", "0"], "abc", 2, ("--batch is 0", "at least 1")),
    (["--no-such"], "abc", 2, ("--no-such", "see --help")),
    (["--device", "cuda:99"], "abc", 2, ("no device 'cuda:99' here", "give auto")),
    (["--device", "toaster"], "abc", 2, ("no device 'toaster' here",)),
    ([], b"ab\xffc\n", 3, ("standard input, line 1, byte 3", "not UTF-8")),
    ([], b"abc\n\xed\xa0\x80\n", 3, ("standard input, line 2, byte 1", "not UTF-8")),
    ([], b"abc\na\0c\n", 3, ("standard input, line 2, byte 2", "NUL")),
    ([], b"abc\n" + b"a" * MIB, 3, ("standard input, line 2", "65,536 bytes", "split the line")),
    ([], "abc\n" + "a" * 64, 2, ("line 2", "65 tokens", "context is 64", "split the text")),
]


@pytest.mark.parametrize(
    ("args", "stdin", "code", "words"), TRANSLATE, ids=[f"{' '.join(row[0])} {row[1][:12]!r}" for row in TRANSLATE]
)
def test_translate(
    args: list[str], stdin: str | bytes, code: int, words: tuple[str, ...], trained: Trained, cli: Cli, tmp_path: Path
) -> None:
    before = snapshot(trained.out)
    done = cli(["translate", trained.out, *args], stdin=stdin, seconds=5)
    refused(done, code, *words)
    assert done.stdout in ("", "c b a\n")  # a good line before the bad one is answered
    assert snapshot(trained.out) == before
    assert list(tmp_path.iterdir()) == []


def test_a_long_line_under_the_cap_is_no_hang(trained: Trained, cli: Cli) -> None:
    done = cli(["translate", trained.out], stdin="a" * 65_536, seconds=5)
    refused(done, 2, "65537 tokens", "context is 64")


LOOK = [
    ([""], 2, ("an empty text", "give some words")),
    ([" \t "], 2, ("an empty text", "give some words")),
    (["a" * 64], 2, ("65 tokens", "64")),
    (["abc", "--target", "a " * 70], 2, ("71 tokens", "64")),
    (["ab\udcff"], 3, ("text, character 3", "not UTF-8")),
    (["abc", "--target", "ab\udcff"], 3, ("target, character 3", "not UTF-8")),
    (["a" * 65_537], 2, ("65,537 bytes", "split the text")),
    (["abc", "--layers", "nowhere"], 2, ("no layer 'nowhere'", "attention")),
    (["abc", "-o", "page.png"], 2, ("page.png", "give .html or .json")),
    (["abc", "-o", "none/page.html"], 4, ("none/page.html",)),
]


@pytest.mark.parametrize(("args", "code", "words"), LOOK, ids=[" ".join(row[0])[:24] for row in LOOK])
def test_look(args: list[str], code: int, words: tuple[str, ...], trained: Trained, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("old")
    out = [] if "-o" in args else ["-o", "page.html"]
    refused(cli(["look", trained.out, *args, *out], seconds=5), code, *words)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page.html", "old")]


def test_a_lone_surrogate_as_the_shell_gives_it(trained: Trained, run_cli: RunCli) -> None:
    refused(run_cli(["look", trained.out, b"ab\xff", "-o", "page.html"]), 3, "text, character 3", "not UTF-8")


def test_a_card_that_is_not_there(trained: Trained, cli: Cli) -> None:
    refused(cli(["translate", trained.out, "--device", "cuda:99"], stdin="abc"), 2, "no device 'cuda:99' here", "cpu")


VERBS = [
    (["bogus"], 2, ("bogus", "see --help")),
    (["translate"], 2, ("model", "see --help")),
    (["train"], 2, ("no task", "choose from translate")),
    (["train", "paint", "--out", "x"], 2, ("unknown task 'paint'", "choose from translate")),
    (["train", "translate", "--data", "x.tsv"], 2, ("no folder for the run", "--out")),
    (["train", "translate", "--out", "x"], 2, ("no training data", "--data")),
    (["data", "get", "nothing"], 2, ("nothing", "cmudict")),
    (["train", "translate", "--data", "catalogue:nothing", "--out", "x"], 2, ("nothing", "cmudict")),
    (["translate", "https://example.org/model"], 2, ("https://example.org/model", "not a URL", "download it first")),
    (["look", "hf://a/b", "abc", "-o", "x.html"], 2, ("hf://a/b", "not a URL")),
    (["evaluate", "s3://a/b", "--data", "x.tsv"], 2, ("s3://a/b", "not a URL")),
    (["score", "http://a/b", "--data", "x.tsv"], 2, ("http://a/b", "not a URL")),
    (["translate", "nowhere"], 3, ("nowhere", "no model here", "regard train")),
    (["translate", "../../nowhere"], 3, ("../../nowhere", "no model here")),
    (["translate", "a\nb"], 3, ("no model here",)),
    (["translate", "x" * 300], 3, ("File name too long",)),
]


@pytest.mark.parametrize(("args", "code", "words"), VERBS, ids=[" ".join(row[0])[:40] for row in VERBS])
def test_verbs(args: list[str], code: int, words: tuple[str, ...], cli: Cli, tmp_path: Path) -> None:
    refused(cli(args), code, *words)
    assert snapshot(tmp_path) == {}


# ----------------------------------------------------------------------------------------------------- model folders


class Runs:
    """A pickle that would leave a file behind."""

    def __reduce__(self) -> tuple:
        return (os.system, ("touch /tmp/regard-was-run",))


def pickled(model: Path) -> None:
    (model / "model.safetensors").write_bytes(pickle.dumps(Runs()))


def truncated(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def huge_header(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + path.read_bytes()[8:])


def changed(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """Damage weights."""

    def damage(model: Path) -> None:
        tensors = read_tensors(model / "model.safetensors")
        change(tensors)
        write_tensors(model / "model.safetensors", tensors)

    return damage


def config(**values: object) -> Callable[[Path], None]:
    """Change config.json."""

    def damage(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return damage


def of_model(**values: object) -> Callable[[Path], None]:
    """Change the model's settings in config.json."""

    def damage(model: Path) -> None:
        path = model / "config.json"
        whole = json.loads(path.read_text())
        path.write_text(json.dumps({**whole, "settings": {**whole["settings"], **values}}))

    return damage


def written(name: str, text: str | bytes) -> Callable[[Path], None]:
    return lambda model: (model / name).write_bytes(text.encode() if isinstance(text, str) else text)


def linked(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "config.json").mkdir()


def not_finite(tensors: dict) -> None:
    tensors["head.weight" if "head.weight" in tensors else next(iter(tensors))].view(-1)[0] = float("nan")


WEIGHTS = "model/model.safetensors"
MODELS = {
    "pickle": (pickled, (WEIGHTS, "is a pickle", "none is read")),
    "truncated": (truncated, (WEIGHTS, "truncated")),
    "huge header": (huge_header, (WEIGHTS, "header of 4611686018427387904 bytes")),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), (WEIGHTS, "is missing")),
    "tensor missing": (changed(lambda t: t.pop(sorted(t)[0])), (WEIGHTS, "1 missing: '")),
    "tensor too many": (changed(lambda t: t.update(more=next(iter(t.values())))), (WEIGHTS, "1 unknown: 'more'")),
    "shape": (changed(lambda t: t.update({k: v[:-1] for k, v in t.items()})), (WEIGHTS, "of another shape", "not [")),
    "NaN": (changed(not_finite), (WEIGHTS, "not finite")),
    "unknown key": (config(colour="red"), ("model/config.json", "unknown key 'colour'", "known: ")),
    "auto_map": (config(auto_map={"AutoModel": "evil.Model"}), ("model/config.json", "unknown key 'auto_map'")),
    "unknown setting": (of_model(colour=1), ("model/config.json", "unknown key 'colour'", "known: ")),
    "other type": (config(model_type="bert"), ("model/config.json", "model_type is 'bert', not 'regard'")),
    "other format": (config(format=99), ("model", "format 99", "use the version")),
    "other family": (
        config(family="mamba"),
        ("unknown model family 'mamba'", "choose from bert, "),
    ),
    "another kind": (config(family="gpt"), ("model/config.json", "a gpt is no model for translate")),
    "other task": (config(task="fly"), ("model/config.json", "unknown task 'fly'")),
    "10^9 layers": (of_model(encoder_layers=10**9), ("model/config.json", "encoder_layers is 1000000000")),
    "10^9 wide": (of_model(embed_dim=10**9), ("model/config.json", "embed_dim is 1000000000")),
    "all that is allowed": (of_model(hidden_dim=260_000), (WEIGHTS, "numbers, the file holds")),
    "no layers": (of_model(encoder_layers=0), ("model/config.json", "encoder_layers is 0")),
    "other cell": (of_model(cell="evil.Cell"), ("model/config.json", "'evil.Cell' is not allowed", "gru")),
    "wrong type": (of_model(hidden_dim="48"), ("model/config.json", "expected int, got '48'")),
    "context": (config(max_tokens=-3), ("model/config.json", "max_tokens is -3")),
    "other vocabulary": (of_model(target_vocab_size=17), ("model", "tokenizers have")),
    "no config": (lambda model: (model / "config.json").unlink(), ("model", "no model here", "regard train")),
    "config a folder": (linked, ("model", "no model here")),
    "empty config": (written("config.json", ""), ("model/config.json", "the config is n")),
    "no object": (written("config.json", "[]"), ("model/config.json", "not a JSON object")),
    "no UTF-8": (written("config.json", b"\xff\xfe"), ("model/config.json", "the config is n")),
    "deep": (written("config.json", "[" * 100_000), ("model/config.json", "the config is n")),
    "large": (written("config.json", " " * (2 * MIB)), ("model/config.json", "2097152 bytes")),
    "no tokenizer": (lambda model: (model / "source_tokenizer.json").unlink(), ("model", "tokenizer is missing")),
    "bad tokenizer": (written("source_tokenizer.json", "{}"), ("model/source_tokenizer.json", "not a tokenizer")),
    "no decoding": (lambda m: (m / "generation_config.json").unlink(), ("model/generation_config.json", "is missing")),
    "bad decoding": (written("generation_config.json", '{"beam": 0}'), ("model/generation_config.json", "beam is 0")),
    "key in decoding": (written("generation_config.json", '{"bean": 1}'), ("generation_config.json", "mean beam?")),
}


@pytest.mark.parametrize("name", MODELS)
def test_model_folders(name: str, model: Path, cli: Cli) -> None:
    damage, words = MODELS[name]
    damage(model)
    before = snapshot(model.parent)
    done = cli(["translate", "model"], stdin="abc\n", seconds=10)
    refused(done, 3, *words)
    assert done.stdout == ""
    assert snapshot(model.parent) == before
    assert not Path("/tmp/regard-was-run").exists()


def test_a_transformer_of_an_unknown_activation(trained_transformer: Trained, tmp_path: Path, cli: Cli) -> None:
    shutil.copytree(trained_transformer.out / "model", tmp_path / "model")
    for value, words in (
        ({"activation": "swoosh"}, ("model/config.json", "unknown activation 'swoosh'", "relu")),
        ({"num_heads": 3}, ("model/config.json", "does not divide into 3 heads")),
        ({"encoder_layers": 10**9}, ("encoder_layers is 1000000000",)),
    ):
        of_model(**value)(tmp_path / "model")
        refused(cli(["translate", "model"], stdin="abc", seconds=5), 3, *words)
        shutil.copy(trained_transformer.out / "model" / "config.json", tmp_path / "model" / "config.json")


def test_a_run_that_has_not_finished(trained: Trained, tmp_path: Path, cli: Cli) -> None:
    shutil.copytree(trained.out, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    refused(cli(["translate", "run"], stdin="abc"), 3, "run", "has not finished", "same command")


# ------------------------------------------------------------------------------------------------------------- data

GOOD = "".join(f"a{number}\tb{number}\n" for number in range(40))
DATA = {
    "missing": ("nowhere.tsv", {}, ("nowhere.tsv", "no such file", "check the name")),
    "nearly": ("pair.tsv", {"pairs.tsv": GOOD}, ("pair.tsv", "no such file", "did you mean pairs.tsv?")),
    "a folder": (".", {}, ("folder", "name a file in it")),
    "empty": ("x.tsv", {"x.tsv": ""}, ("x.tsv", "the file is empty", "at least one line")),
    "one row": ("x.tsv", {"x.tsv": "a\tb\n"}, ("too few to split", "give more data")),
    "one column": ("x.tsv", {"x.tsv": "a\tb\nc\n"}, ("x.tsv, line 2",)),
    "three columns": ("x.tsv", {"x.tsv": "a\tb\nc\td\te\n"}, ("x.tsv, line 2",)),
    "empty side": ("x.tsv", {"x.tsv": "a\tb\nc\t\n"}, ("x.tsv, line 2",)),
    "no UTF-8": ("x.tsv", {"x.tsv": b"a\tb\nc\t\xff\n"}, ("x.tsv, line 2", "byte 3", "not UTF-8", "save the file")),
    "NUL": ("x.tsv", {"x.tsv": b"a\tb\nc\t\0\n"}, ("x.tsv, line 2", "NUL at byte 3", "remove it")),
    "1 MiB": ("x.tsv", {"x.tsv": "a\t" + "b" * MIB}, ("x.tsv, line 1", "65,536")),
    "csv column": ("x.csv", {"x.csv": "source,goal\na,b\n"}, ("x.csv", "'target'", "goal")),
    "csv quotes": ("x.csv", {"x.csv": 'source,target\n"a,b\n'}, ("x.csv, line 2", "quotes")),
    "unequal": ("x.de,x.en", {"x.de": "a\nb\n", "x.en": "a\n"}, ("x.de", "2 lines, but x.en has 1", "line N")),
    "three files": ("a,b,c", {}, ("a,b,c", "not two files")),
    "malformed JSON": ("x.jsonl", {"x.jsonl": '{"source": \n'}, ("x.jsonl, line 1", "not JSON", "one JSON object")),
    "deep JSON": ("x.jsonl", {"x.jsonl": '{"source": ' + "[" * 60_000 + "\n"}, ("x.jsonl, line 1", "JSON")),
    "deeper JSON": ("x.jsonl", {"x.jsonl": "[" * 100_000 + "\n"}, ("x.jsonl, line 1", "65,536 bytes")),
    "JSON type": ("x.jsonl", {"x.jsonl": '{"source": 1, "target": "a"}\n'}, ("line 1", "'source' is a number")),
    "JSON key": ("x.jsonl", {"x.jsonl": '{"source": "a", "goal": "a"}\n'}, ("line 1", "no key 'target'", "goal")),
    "no extension": ("x", {"x": GOOD}, ("x", "no extension", ".tsv")),
    "json": ("x.json", {"x.json": "[]"}, ("x.json", "name the file .jsonl")),
    "txt": ("x.txt", {"x.txt": GOOD}, ("x.txt", "name the file .tsv")),
    "parquet": ("x.parquet", {"x.parquet": b"PAR1 no parquet PAR1"}, ("x.parquet", "Parquet")),
}


# One row can be scored, though not trained on.
@pytest.mark.parametrize(
    ("name", "verb"),
    [
        (name, verb)
        for name in DATA
        for verb in ("train", "evaluate", "score")
        if (name, verb == "train") != ("one row", False)
    ],
)
def test_data_files(name: str, verb: str, trained: Trained, tmp_path: Path, cli: Cli) -> None:
    data, files, words = DATA[name]
    for file, content in files.items():
        (tmp_path / file).write_bytes(content.encode() if isinstance(content, str) else content)
    before = snapshot(tmp_path)
    args = {
        "train": ["train", "translate", "--data", data, "--out", "run", *settings(*SETTINGS, *RNN)],
        "evaluate": ["evaluate", trained.out, "--data", data],
        "score": ["score", trained.out, "--data", data],
    }
    code = 2 if name == "three files" else 3
    done = cli(args[verb], seconds=10)
    refused(done, code, *words)
    assert done.stdout == ""
    assert snapshot(tmp_path) == before


def test_columns_that_are_not_there(trained: Trained, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "x.tsv").write_text("de\ten\na\tb\n")
    args = ["score", trained.out, "--data", "x.tsv"]
    refused(cli([*args, "--source", "de", "--target", "fr"]), 3, "x.tsv, line 1", "'fr'", "de")
    refused(cli([*args, "--source", "de", "--target", "de"]), 2, "both 'de'", "name two columns")


def test_score_over_the_context(trained: Trained, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "x.tsv").write_text("abc\tc b a\n" + "a" * 70 + "\tb\n")
    for verb in ("score", "evaluate"):
        refused(cli([verb, trained.out, "--data", "x.tsv"]), 2, "71", "64", "tokens")


def test_bad_bytes_on_standard_input_of_score(trained: Trained, cli: Cli) -> None:
    refused(cli(["score", trained.out, "--data", "-"], stdin=b"a\tb\n\xff\tb\n"), 3, "standard input, line 2", "byte 1")


# ---------------------------------------------------------------------------------------------------------- training

SETS = [
    ("recipe", ["--recipe", "no-such"], 2, ("unknown recipe 'no-such'", "choose from")),
    ("recipe, nearly", ["--recipe", "transformer-bass"], 2, ("did you mean transformer-base?",)),
    ("recipe file", ["--recipe", "none.yaml"], 2, ("none.yaml", "no such recipe file")),
    ("recipe no YAML", ["--recipe", "bad.yaml"], 3, ("bad.yaml", "line 2", "not YAML")),
    ("recipe no UTF-8", ["--recipe", "bytes.yaml"], 3, ("bytes.yaml", "UTF-8")),
    ("recipe a list", ["--recipe", "list.yaml"], 3, ("list.yaml", "not a mapping", "key: value")),
    ("key", ["--set", "training.max_step=1"], 3, ("unknown key 'max_step'", "did you mean max_steps?")),
    ("section", ["--set", "trainig.max_steps=1"], 3, ("unknown key 'trainig'", "did you mean training?")),
    ("type", ["--set", "training.max_steps=many"], 3, ("training.max_steps", "expected int, got 'many'")),
    ("NaN", ["--set", "training.learning_rate=.nan"], 3, ("learning_rate", "expected float, got nan")),
    ("range", ["--set", "training.max_steps=0"], 3, ("max_steps is 0", "at least 1")),
    ("no equals", ["--set", "training.max_steps"], 3, ("--set", "'training.max_steps'", "section.key=value")),
    ("no YAML", ["--set", "training.max_steps=[1"], 3, ("--set training.max_steps", "not YAML")),
    ("choice", ["--set", "training.optimizer=sgdd"], 3, ("'sgdd' is not allowed", "choose from adam, adamw")),
    ("decoding", ["--set", "decoding.beam=0"], 3, ("beam is 0", "give 1 to 1024")),
    ("batch", ["--set", "batch_tokens=0"], 3, ("batch_tokens is 0",)),
    ("validation", ["--set", "evaluation.max_dev=0"], 3, ("max_dev is 0", "at least 1")),
    ("context", ["--set", "data.max_tokens=0"], 3, ("max_tokens is 0",)),
    ("smoothing", ["--set", "label_smoothing=1.5"], 3, ("label_smoothing is 1.5",)),
    ("layers", ["--set", "model.encoder_layers=1000000000"], 3, ("encoder_layers is 1000000000", "give 1 to 1,000")),
    ("activation", ["--set", "model={activation: swoosh, share: target}"], 3, ("activation 'swoosh'", "relu")),
    ("family", ["--set", "model.family=no"], 3, ("family",)),
    ("code", ["--set", "model=!!python/object/apply:os.system ['touch /tmp/regard-was-run']"], 3, ("not YAML",)),
    ("vocabulary", ["--set", "tokenizer.vocab_size=3"], 3, ("vocabulary of 3", "give at least")),
    ("all long", ["--set", "data.max_tokens=1"], 3, ("pairs.tsv", "none of 518 pairs has at most 1 tokens")),
    ("device", ["--device", "cuda:99"], 2, ("no device 'cuda:99' here",)),
]


@pytest.mark.parametrize(("args", "code", "words"), [row[1:] for row in SETS], ids=[row[0] for row in SETS])
def test_settings(args: list[str], code: int, words: tuple[str, ...], pairs: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "bytes.yaml").write_bytes(b"task: \xff\n")
    before = snapshot(tmp_path)
    done = cli(
        ["train", "translate", "--data", pairs, "--out", "run", "--quiet", *settings(*SETTINGS, *RNN), *args],
        seconds=20,
    )
    refused(done, code, *words)
    assert snapshot(tmp_path) == before
    assert not Path("/tmp/regard-was-run").exists()


def test_out_of_another_run(trained: Trained, cli: Cli) -> None:
    before = snapshot(trained.out)
    done = cli([*trained.args, "--set", "training.max_steps=9"])
    refused(done, 2, str(trained.out), "training.max_steps", "another --out")
    assert snapshot(trained.out) == before


@pytest.mark.slow
def test_out_of_other_data(trained: Trained, tmp_path: Path, cli: Cli) -> None:
    shutil.copytree(trained.out, tmp_path / "run")
    (tmp_path / "pairs.tsv").write_text(trained.pairs.read_text() + "zzz\tz z z\n")
    config = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(config.replace(str(trained.pairs), "pairs.tsv"))
    before = snapshot(tmp_path)
    args = [part.replace(str(trained.out), "run").replace(str(trained.pairs), "pairs.tsv") for part in trained.args]
    refused(cli([*args, "--quiet"]), 3, "run/checkpoints", "other settings and data", "another --out")
    after = snapshot(tmp_path)
    assert {name: after[name] for name in before} == before


def test_out_a_foreign_folder_or_a_file(pairs: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    before = snapshot(tmp_path)
    args = ["train", "translate", "--data", pairs]
    refused(cli([*args, "--out", "run"]), 2, "run", "not empty and holds no run", "another --out")
    refused(cli([*args, "--out", "file"]), 4, "file", "cannot use the folder")
    refused(cli([*args, "--out", "file/run"]), 4, "file/run", "cannot use the folder")
    refused(cli(["translate", "file"], stdin="abc"), 3, "file", "no model here")
    assert snapshot(tmp_path) == before


@pytest.mark.slow
def test_a_loss_that_is_not_finite(pairs: Path, tmp_path: Path, cli: Cli) -> None:
    values = settings(*SETTINGS, *TRANSFORMER, "training.schedule=linear", "training.warmup_steps=0")
    args = ["train", "translate", "--data", pairs, "--quiet", *values]
    # In the step after: the loss is not finite, and nothing is changed by it.
    done = cli([*args, "--out", "a", *settings("training.learning_rate=1e30")])
    refused(done, 5, "at step 2", "lines ", "pairs.tsv", "weights are as before the step", "lower the learning rate")
    assert not (tmp_path / "a" / "checkpoints").exists()
    # In a validation: the checkpoint before is there and sound, and the bad weights are not saved.
    done = cli([*args, "--out", "b", *settings("training.learning_rate=1e30", "training.validate_every_steps=1")])
    refused(done, 5, "b: the development loss is nan after step 1", "lower the learning rate")
    assert not (tmp_path / "b" / "checkpoints").exists()
    assert not (tmp_path / "b" / "model").exists()


# --------------------------------------------------------------------------------------------- permissions and disks


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that everyone may enter; the tests' own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.fixture
def user() -> int | None:
    """Whom to run as where permissions matter: root may do anything."""
    return NOBODY if os.geteuid() == 0 else None


@pytest.fixture
def readable(trained: Trained, common: Path) -> list[str]:
    """The training command over data that everyone may read."""
    shutil.copy(trained.pairs, common / "pairs.tsv")
    os.chmod(common / "pairs.tsv", 0o644)
    return [part.replace(str(trained.pairs), "pairs.tsv") for part in trained.args]


def test_data_that_may_not_be_read(common: Path, user: int | None, trained: Trained, cli: Cli) -> None:
    (common / "x.tsv").write_text(GOOD)
    os.chmod(common / "x.tsv", 0)
    args = ["train", "translate", "--data", "x.tsv", "--out", "run"]
    refused(cli(args, cwd=common, user=user), 4, "x.tsv", "not allowed to read it", "change its permissions")


@pytest.mark.parametrize("name", ["model", "model/config.json", WEIGHTS, "model/source_tokenizer.json"])
def test_a_model_that_may_not_be_read(name: str, common: Path, user: int | None, trained: Trained, cli: Cli) -> None:
    shutil.copytree(trained.out / "model", common / "model")
    for path in (common / "model").iterdir():
        os.chmod(path, 0o644)
    os.chmod(common / "model", 0o755)
    os.chmod(common / name, 0)
    try:
        done = cli(["translate", "model"], stdin="abc", cwd=common, user=user)
    finally:
        os.chmod(common / name, 0o755)
    refused(done, 4, name, "ermi")


def test_a_folder_that_may_not_be_written(
    common: Path, user: int | None, readable: list[str], trained: Trained, cli: Cli
) -> None:
    (common / "closed").mkdir(mode=0o755)
    os.chmod(common / "closed", 0o555)
    args = [part.replace(str(trained.out), "closed/run") for part in readable]
    refused(cli(args, cwd=common, user=user), 4, "closed/run", "cannot use the folder", "ermission")
    args = [part.replace(str(trained.out), "closed") for part in readable]
    refused(cli([*args, "--quiet"], cwd=common, user=user), 4, "closed", "ermission")
    assert list((common / "closed").iterdir()) == []
    shutil.copytree(trained.out / "model", common / "model")
    for path in [common / "model", *(common / "model").iterdir()]:
        os.chmod(path, 0o755)
    done = cli(["look", "model", "abc", "-o", "closed/page.html"], cwd=common, user=user)
    refused(done, 4, "closed/page.html", "ermission", "choose a folder")


@pytest.mark.slow
@pytest.mark.parametrize("file_bytes", [2_000, 100_000])
def test_a_full_disk(file_bytes: int, trained: Trained, tmp_path: Path, cli: Cli) -> None:
    args = [part.replace(str(trained.out), "run") for part in trained.args]
    few = settings("training.max_steps=2", "training.validate_every_steps=1", "evaluation.monitor=loss")
    done = cli([*args, "--quiet", *few], file_bytes=file_bytes)
    refused(done, 4, "run", "File too large", "raise the limit")
    assert list(tmp_path.rglob(".tmp-*")) == []
    assert not (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_a_page_on_a_full_disk_leaves_the_old_one(trained: Trained, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "page.html").write_text("old")
    done = cli(["look", trained.out, "abc", "-o", "page.html"], file_bytes=1000)
    refused(done, 4, "page.html", "File too large", "raise the limit")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page.html", "old")]


def test_compiling_without_a_compiler(tmp_path: Path, run_cli: RunCli) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{n} a\t{n} b\n" for n in range(100)))
    args = ["train", "translate", "--data", "pairs.tsv", "--out", "run", "--quiet", "--device", "cpu"]
    done = run_cli([*args, "--set", "training.compile=true"], env={"CXX": "/no/such/c++"})
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert "training.compile: compiling for a CPU needs a C++ compiler, and there is no /no/such/c++" in done.stderr
    assert not (tmp_path / "run").exists()
