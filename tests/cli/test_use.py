"""The command line and the Python API as a person uses them, on models that the command itself trained."""

import json
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sacrebleu
import yaml
from cli_tools import COMMAND, SETTINGS, Cli, Trained, settings, snapshot

import regard
from regard.cli.main import VERBS as TOLD
from regard.data import read_pairs
from regard.tasks.translator import Translator

RunCli = Callable[..., subprocess.CompletedProcess[str]]
# Pipes as Python has them where nobody asked for more.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_train_prints_the_score_the_baselines_and_the_report(trained: Trained) -> None:
    lines = trained.done.stdout.splitlines()
    scores = json.loads((trained.out / "scores.json").read_text())
    assert lines[0] == f"exact_match {scores['exact_match']:.4f} on held-out data"
    baselines = [f"  {name}: {of['exact_match']:.4f}" for name, of in scores["baselines"].items()]
    assert len(baselines) == 2
    assert lines[1:3] == baselines
    assert lines[3:] == [f"report: {trained.out / 'report.html'}"]
    assert scores["exact_match"] > 0.8  # it learnt
    assert all(of["exact_match"] < 0.2 for of in scores["baselines"].values())


def test_progress_in_a_file_is_not_folded(trained: Trained) -> None:
    lines = trained.done.stderr.splitlines()
    assert any(len(line) > 80 and line.endswith(f"Python {sys.version.split()[0]}") for line in lines), lines
    assert sum(line.startswith("step 240 ") and "exact_match" in line for line in lines) == 1


def test_a_run_folder_holds_what_readme_names(trained: Trained) -> None:
    out = trained.out
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["training"]["max_steps"] == 240
    assert config["training"]["beta2"] == 0.98  # resolved: defaults are written too
    log = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if "loss" in line] == list(range(1, 241))
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-00000120", "step-00000240"]
    scores = json.loads((out / "scores.json").read_text())
    assert {"bleu", "chrf", "exact_match", "token_error_rate", "baselines", "signatures", "steps"} <= scores.keys()
    assert scores["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    outputs = [json.loads(line) for line in (out / "outputs.jsonl").read_text().splitlines()]
    assert all(row.keys() == {"source", "references", "output"} for row in outputs)
    right = sum(row["output"] in row["references"] for row in outputs) / len(outputs)
    assert right == pytest.approx(scores["exact_match"])
    assert "<html" in (out / "report.html").read_text()
    names = {"config.json", "model.safetensors", "generation_config.json", "README.md"}
    assert {path.name for path in (out / "model").iterdir()} == {
        *names,
        "source_tokenizer.json",
        "target_tokenizer.json",
    }


def test_a_transformer_has_one_tokenizer(trained_transformer: Trained) -> None:
    names = {"config.json", "model.safetensors", "generation_config.json", "README.md", "tokenizer.json"}
    assert {path.name for path in (trained_transformer.out / "model").iterdir()} == names


@pytest.mark.slow
def test_the_same_command_again_harms_nothing(trained: Trained, cli: Cli) -> None:
    before = snapshot(trained.out)
    done = cli(trained.args)
    assert done.returncode == 0, done.stderr
    assert done.stdout == trained.done.stdout
    assert "resuming after step 240" in done.stderr
    after = snapshot(trained.out)
    changed = {Path(name).name for name in after if before.get(name) != after[name] and "tensorboard" not in name}
    assert changed <= {"report.html", "README.md", "scores.json"}  # they hold the time of day
    assert before.keys() <= after.keys()


@pytest.mark.slow
def test_a_command_that_was_wrong_can_be_mended_in_the_same_folder(pairs: Path, tmp_path: Path, cli: Cli) -> None:
    args = ["train", "translate", "--data", pairs, "--out", tmp_path / "run", "--quiet"]
    few = settings(*SETTINGS, "training.max_steps=1", "tokenizer.vocab_size=300", "model.embed_dim=16")
    for wrong in ("model.num_heads=3", "tokenizer.vocab_size=7", "data.max_tokens=1"):
        done = cli([*args, *few, "--set", wrong])
        assert done.returncode == 3, done.stderr
        assert list((tmp_path / "run").iterdir()) == []
    done = cli([*args, *few])
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def test_file(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("test") / "test.tsv"
    lines = pairs.read_text().splitlines()[:40]
    lines[3] = lines[3].split("\t")[0] + "\ta wrong answer that is long"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_evaluate_equals_sacrebleu_on_the_outputs_of_translate(trained: Trained, test_file: Path, cli: Cli) -> None:
    rows = [line.split("\t") for line in test_file.read_text().splitlines()]
    sources, targets = [row[0] for row in rows], [row[1] for row in rows]
    outputs = cli(["translate", trained.out], stdin="\n".join(sources)).stdout.splitlines()
    bleu = sacrebleu.corpus_bleu(outputs, [targets]).score
    chrf = sacrebleu.corpus_chrf(outputs, [targets]).score
    assert 50 < bleu < 99
    done = cli(["evaluate", trained.out, "--data", test_file, "--json"])
    scores = json.loads(done.stdout)
    assert scores["bleu"] == pytest.approx(bleu)
    assert scores["chrf"] == pytest.approx(chrf)
    assert scores["exact_match"] == sum(map(str.__eq__, outputs, targets)) / len(targets)
    assert f"version:{sacrebleu.__version__}|beam:4|lp:0.6" in scores["signatures"]["bleu"]
    text = cli(["evaluate", trained.out, "--data", test_file]).stdout
    assert re.search(rf"^bleu +{bleu:.4f}  \S+$", text, re.M)
    assert re.search(rf"^chrf +{chrf:.4f}  \S+$", text, re.M)
    evaluated = regard.evaluate(trained.out, str(test_file))
    assert evaluated.outputs == outputs
    assert {name: one.value for name, one in evaluated.measures.items()} == pytest.approx(
        {name: scores[name] for name in evaluated.measures}
    )


def test_translate_answers_line_by_line_in_order(translator: Translator, trained: Trained, cli: Cli) -> None:
    done = cli(["translate", trained.out], stdin=b"abcd\n\n   \r\nfed\r\ncabb")
    assert done.returncode == 0, done.stderr
    best = [translator.hypotheses([text])[0][0].text for text in ("abcd", "fed", "cabb")]
    assert best[0] == "d c b a"
    assert done.stdout == f"{best[0]}\n\n\n{best[1]}\n{best[2]}\n"
    assert done.stderr == ""
    ends = [cli(["translate", trained.out, "--json"], stdin=f"fed{end}").stdout for end in ("", "\n", "\r\n")]
    assert ends[0] == ends[1] == ends[2]  # to the last digit of the log-probability


def test_translate_of_nothing_is_nothing(trained: Trained, cli: Cli) -> None:
    done = cli(["translate", trained.out], stdin=b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_translate_by_the_installed_command(trained: Trained, run_cli: RunCli) -> None:
    done = run_cli(["translate", trained.out], stdin="abcd\nfade\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "d c b a\ne d a f\n", "")


def test_translate_json_and_n_best(translator: Translator, trained: Trained, cli: Cli) -> None:
    one = [
        json.loads(line) for line in cli(["translate", trained.out, "--json"], stdin="abcd\n\nfed").stdout.splitlines()
    ]
    assert [row["text"] for row in one] == ["d c b a", "", "d e f"]
    assert one[0].keys() == {"text", "logprob", "tokens", "ended"}
    assert one[0]["logprob"] == pytest.approx(translator.hypotheses(["abcd"])[0][0].logprob, abs=1e-4)
    several = cli(["translate", trained.out, "--n-best", "3", "--json"], stdin="abcd\nfed").stdout.splitlines()
    for row in map(json.loads, several):
        scores = [best["score"] for best in row["n_best"]]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert row["n_best"][0]["text"] == row["text"]
    text = cli(["translate", trained.out, "--n-best", "3"], stdin="abcd\nfed").stdout.splitlines()
    assert text == [best["text"] for row in map(json.loads, several) for best in row["n_best"]]


def test_beam_changes_the_search(trained: Trained, cli: Cli) -> None:
    rows = [
        json.loads(cli(["translate", trained.out, "--beam", beam, "--json"], stdin="fedcbafedcba").stdout)
        for beam in ("1", "6")
    ]
    assert rows[0] != rows[1]


def test_lines_before_a_bad_one_are_answered(trained: Trained, cli: Cli) -> None:
    for batch in ("1", "2", "256"):
        for bad, code, words in ((b"a\xff", 3, "line 4, byte 2"), (b"a" * 99, 2, "line 4: the input")):
            done = cli(["translate", trained.out, "--batch", batch], stdin=b"abcd\n\nfed\n" + bad + b"\nabc\n")
            assert done.stdout == "d c b a\n\nd e f\n", (batch, bad)
            assert done.returncode == code
            assert words in done.stderr


def test_translate_into_head_is_quiet(trained: Trained) -> None:
    script = 'yes abcd | head -2000 | "$0" translate "$1" --beam 1 --batch 16 | head -1; echo "${PIPESTATUS[2]}"'
    done = subprocess.run(
        ["bash", "-c", script, COMMAND, trained.out],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=BUFFERED,
    )
    assert done.stdout == "d c b a\n0\n"
    assert done.stderr == ""


def test_translate_answers_a_line_before_the_next_is_written(trained: Trained) -> None:
    command = [COMMAND, "translate", str(trained.out), "--batch", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=BUFFERED, text=True, bufsize=1) as process:
        timer = threading.Timer(30, process.kill)  # an answer that does not come must not hang the tests
        timer.start()
        assert process.stdin is not None
        assert process.stdout is not None
        for text, answer in (("abcd", "d c b a\n"), ("", "\n"), ("fed", "d e f\n")):
            process.stdin.write(text + "\n")
            assert process.stdout.readline() == answer
        process.stdin.close()
        assert process.wait(10) == 0
        timer.cancel()


def test_score_equals_python(translator: Translator, trained: Trained, test_file: Path, cli: Cli) -> None:
    rows = [json.loads(line) for line in cli(["score", trained.out, "--data", test_file, "--json"]).stdout.splitlines()]
    expected = translator.score(read_pairs(test_file))
    assert [(row["logprob"], row["tokens"]) for row in rows] == [(pytest.approx(lp), n) for lp, n in expected]
    assert min(row["logprob"] for row in rows) == rows[3]["logprob"]  # the wrong answer
    piped = cli(["score", trained.out, "--data", "-"], stdin=test_file.read_bytes()).stdout
    assert piped == "".join(f"{row['logprob']:.6f}\t{row['tokens']}\n" for row in rows)


@pytest.mark.parametrize("which", ["trained", "trained_transformer"])
def test_look_writes_a_page_and_numbers(which: str, request: pytest.FixtureRequest, tmp_path: Path, cli: Cli) -> None:
    model = request.getfixturevalue(which).out
    done = cli(["look", model, "abcd", "-o", "page.html"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"page: {tmp_path / 'page.html'}"
    page = (tmp_path / "page.html").read_text()
    assert "abcd" in page
    # Nothing is loaded from anywhere, and the policy lets nothing in.
    outside = re.sub(r"<script>.*?</script>", "", page.replace('<link rel="icon" href="data:', ""), flags=re.DOTALL)
    assert not re.search(r"<(?:link |iframe|img|object|embed)|@import|url\((?!data:)|\bsrc=", outside)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    done = cli(["look", model, "abcd", "--target", "d c", "-o", "maps.json"])
    assert done.returncode == 0, done.stderr
    maps = json.loads((tmp_path / "maps.json").read_text())
    assert maps["output"] == "d c"
    for one in maps["maps"]:
        assert all(sum(row) == pytest.approx(1, abs=1e-5) for head in one["weights"] for row in head)


def test_sizes_are_counted(cli: Cli) -> None:
    rows = {row["name"]: row for row in map(json.loads, cli(["sizes", "--json"]).stdout.splitlines())}
    base, big = rows["transformer-base"], rows["transformer-big"]
    # By hand, V = 37,000: 6 · (4d² + 2df) + 6 · (8d² + 2df) matrices, biases and norms apart, and one shared table.
    for row, d, f in ((base, 512, 2048), (big, 1024, 4096)):
        matrices = 6 * (4 * d * d + 2 * d * f) + 6 * (8 * d * d + 2 * d * f) + 37_000 * d
        assert matrices <= row["parameters"] < 1.01 * matrices
    assert "65" in str(base["paper"])
    assert "213" in str(big["paper"])
    text = cli(["sizes"]).stdout
    assert f"{base['parameters']:,}" in text


def test_data_list_names_sets_and_licences(cli: Cli) -> None:
    from regard.data.catalogue import ENTRIES

    rows = [json.loads(line) for line in cli(["data", "list", "--json"]).stdout.splitlines()]
    assert {row["name"] for row in rows} == {*ENTRIES} >= {"cmudict"}
    assert all(row["licence"] and max(row.get(unit, 0) for unit in ("pairs", "texts", "images")) > 0 for row in rows)
    lines = cli(["data", "list"]).stdout.splitlines()
    assert len(lines) == len(rows)


def test_doctor_says_what_there_is(cli: Cli) -> None:
    import torch

    facts = json.loads(cli(["doctor", "--json"]).stdout)
    assert facts["regard"] == regard.__version__
    assert torch.__version__ in facts["device"]
    assert facts["threads"] == str(torch.get_num_threads())
    assert cli(["doctor"]).stdout.startswith("regard ")


def test_train_list_names_tasks_and_recipes(cli: Cli) -> None:
    out = cli(["train", "--list"]).stdout
    assert out.startswith("translate ")
    assert "transformer-base" in out


VERBS = ("train", "evaluate", "translate", "embed", "score", "look", "convert", "sizes", "doctor")
VERBS = (*VERBS, "fill", "data list", "data get")


@pytest.mark.parametrize("verb", sorted({*VERBS, *TOLD}))
def test_every_verb_has_help_with_an_example(verb: str, cli: Cli) -> None:
    done = cli([*verb.split(), "--help"])
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: regard {verb}")
    assert f"Example: regard {verb}" in done.stdout
    if verb in TOLD:
        assert f"Example: regard {TOLD[verb][1]}" in " ".join(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("verb", [(), ("train",), ("data", "list")])
def test_help_waits_for_nothing(verb: tuple[str, ...]) -> None:
    def seconds(command: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # 0.3 s; on a slow or busy machine four times what the parser of the command line takes to be imported.
    parser = [sys.executable, "-c", "import cyclopts"]
    both = [(seconds([COMMAND, *verb, "--help"]), seconds(parser)) for _ in range(5)]
    ours, least = (min(one) for one in zip(*both, strict=True))
    assert ours < max(0.3, 4 * least)
    program = (
        "import sys; from regard.cli.main import app;"
        f"app({[*verb, '--help']!r}, exit_on_error=False);"
        "print([name for name in ('torch', 'numpy', 'tokenizers', 'sacrebleu') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(run_cli: RunCli) -> None:
    assert run_cli(["--version"]).stdout.strip() == regard.__version__


def test_no_color(run_cli: RunCli) -> None:
    forced = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b[" in run_cli(["--help"], env=forced).stdout  # it has colours to leave out
    plain = run_cli(["--help"], env={**forced, "NO_COLOR": "1"}).stdout
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", plain)
    assert "\x1b" not in run_cli(["--help"]).stdout


@pytest.mark.slow
def test_python_api(pairs: Path, trained: Trained, tmp_path: Path, translator: Translator) -> None:
    values = {"training.max_steps": 2, "tokenizer.vocab_size": 300, "model.embed_dim": 16, "model.num_heads": 2}
    few = {"evaluation.monitor": "loss", "decoding.beam": 1, "decoding.max_extra_tokens": 0}
    result = regard.train("translate", data=str(pairs), out=tmp_path / "run", settings={**values, **few}, quiet=True)
    assert result.standing.step == 2
    assert result.scores == json.loads((tmp_path / "run" / "scores.json").read_text())
    assert "regard.train" in (tmp_path / "run" / "report.html").read_text()
    for path in (trained.out, str(trained.out), trained.out / "model"):
        assert regard.load(path).translate(["abcd"]) == ["d c b a"]
    maps = regard.look(translator, "abcd")
    assert maps.output == "d c b a"
    shown = maps._repr_html_()
    assert shown.startswith("<iframe ")
    assert "abcd" in shown


def test_python_m_regard(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "regard", "--version"], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.strip() == regard.__version__
    assert os.listdir(tmp_path) == []


def test_n_best_gives_as_many_lines_for_every_input(trained: Trained, cli: Cli) -> None:
    done = cli(["translate", trained.out, "--n-best", "3"], stdin="abc\n\nfed\n")
    lines = done.stdout.split("\n")
    assert len(lines) == 10  # three for each, and what follows the last line's end
    assert lines[3:6] == ["", "", ""]
    assert lines[0] == "c b a"
    assert lines[6] == "d e f"


@pytest.mark.parametrize("option", ["--temperature", "--top-k", "--top-p", "--seed"])
def test_options_of_sampling_need_sampling(trained: Trained, cli: Cli, option: str) -> None:
    done = cli(["translate", trained.out, option, "1"], stdin="abc\n")
    assert done.returncode == 2
    assert f"{option} without --sample" in done.stderr
    assert cli(["translate", trained.out, option, "1", "--sample"], stdin="abc\n").returncode == 0


def test_a_byte_order_mark_is_no_text(trained: Trained, cli: Cli) -> None:
    assert cli(["translate", trained.out], stdin="\ufeffabc\n").stdout == "c b a\n"
