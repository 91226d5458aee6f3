"""The benchmark suite: its statistics, its files, and every row on tiny models."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import results, starting
from benchmarks.__main__ import main
from benchmarks.limits import Limits
from benchmarks.measure import LEAST_ROUNDS, Memory, Spent, Spread, interleave, ratio
from benchmarks.results import Figure, Goal, Report, Row
from benchmarks.suite import NotMeasured, Race, Setting, run_parts
from regard.errors import FormatError, ResourceError

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")


class Clock:
    """Seconds that pass only where a contender lets them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, *seconds: float) -> Callable[[], None]:
        """A contender whose rounds take these; the last again and again."""
        left = list(seconds)

        def run() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def setting(folder: Path, **more: object) -> Setting:
    return Setting(CPU, Limits({"fp32": 1e9}, 1e9), folder, True, **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------- statistics


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """Not that of the medians, which here is 1: a slow moment that meets a round of both changes nothing."""
    assert ratio([1.0, 2.0, 10.0], [2.0, 2.0, 50.0]) == Spread(2.0, 1.0, 5.0)


def test_rounds_are_taken_in_turn() -> None:
    order: list[str] = []
    clock = Clock()
    a, b = clock.taking(3.0, 1.0, 2.0), clock.taking(5.0, 7.0, 11.0)
    contenders = {"a": lambda: (order.append("a"), a())[1], "b": lambda: (order.append("b"), b())[1]}
    spent, failed = interleave(contenders, rounds=3, clock=clock)
    assert order == ["a", "b"] * 3
    assert [one.seconds for one in spent["a"]] == [3.0, 1.0, 2.0]
    assert [one.seconds for one in spent["b"]] == [5.0, 7.0, 11.0]
    assert failed == {}


def test_no_round_begins_when_the_time_is_up_but_for_the_first_few() -> None:
    clock = Clock()
    spent, _ = interleave({"a": clock.taking(2.0)}, rounds=9, budget_s=9.0, clock=clock)
    assert len(spent["a"]) == 5  # the sixth would begin after ten seconds
    spent, _ = interleave({"a": clock.taking(100.0)}, rounds=9, budget_s=9.0, clock=clock)
    assert len(spent["a"]) == LEAST_ROUNDS


def test_one_that_fails_leaves_the_others_going() -> None:
    clock = Clock()
    good = clock.taking(1.0)

    def bad() -> None:
        good()
        raise ValueError("half of it is missing")

    spent, failed = interleave({"bad": bad, "good": good}, rounds=4, clock=clock)
    assert list(spent) == ["good"]
    assert len(spent["good"]) == 4
    assert str(failed["bad"]) == "half of it is missing"


def test_a_round_that_knows_what_it_took_is_believed() -> None:
    spent, _ = interleave({"a": lambda: Spent(17.0, 23)}, rounds=2)
    assert spent["a"] == [Spent(17.0, 23)] * 2


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is known on Linux alone")
def test_peak_memory_counts_what_was_let_go_again() -> None:
    memory = Memory(CPU)
    memory.rest()
    large = torch.ones(40_000_000)  # 160 MB
    del large
    peak = memory.peak()
    memory.rest()
    after = memory.peak()
    assert peak is not None
    assert after is not None
    assert 150e6 < peak < 400e6
    assert after < peak / 2


# ---------------------------------------------------------------------------------------------------------------- rows


def test_a_race_tells_who_was_not_measured_and_why(tmp_path: Path) -> None:
    race = Race("part", "work", "tokens", 6.0, "peer")
    kept = []

    def missing() -> Callable[[], None]:
        import no_such_engine  # noqa: F401

        return lambda: None

    def unfit() -> Callable[[], None]:
        raise NotMeasured("the processor has no such arithmetic")

    def broken() -> Callable[[], None]:
        return lambda: kept.append(1 / 0)

    race.ours("ours", lambda: lambda: Spent(2.0), limit_s=0.5, note=lambda: f"seen {len(kept)}")
    race.peer("peer", lambda: lambda: Spent(3.0), amount=12.0, note=lambda: str(kept[0]))
    race.peer("missing", missing)
    race.peer("unfit", unfit)
    race.peer("broken", broken)
    row = race.run(setting(tmp_path, rounds=3))
    assert {one.name: one.reason for one in row.figures} == {
        "ours": "",
        "peer": "",
        "missing": "no_such_engine is not installed",
        "unfit": "the processor has no such arithmetic",
        "broken": "ZeroDivisionError: division by zero",
    }
    ours, peer = row.figures[:2]
    assert ours.rate == Spread(3.0, 3.0, 3.0)
    assert ours.of_limit == 0.25
    assert (ours.note, peer.note) == ("seen 0", "IndexError: list index out of range")
    assert row.times("ours", "peer") == Spread(0.75, 0.75, 0.75)  # 3 a second beside 4
    assert (ours.is_ours, peer.is_ours) == (True, False)


def test_rows_without_time_left_say_so(tmp_path: Path) -> None:
    clock = Clock()
    rows: list[Row] = []

    def part(_: Setting) -> Iterator[Race]:
        for number in range(3):
            race = Race("part", f"work {number}", "tokens", 1.0, "a")
            race.in_processes = True
            race.ours("a", lambda: clock.taking(10.0))
            yield race

    run_parts({"part": part}, setting(tmp_path, rounds=2), seconds=30.0, done=rows.append, clock=clock)
    assert [[one.reason for one in row.figures] for row in rows] == [[""], [""], ["time"]]


# --------------------------------------------------------------------------------------------------------------- files


def report() -> Report:
    figures = [
        Figure("ours", True, 6.0, [1.0, 2.0, 1.0], 0.5, 7_000_000, "error 1e-03"),
        Figure("peer", False, 6.0, [3.0, 3.0, 2.0]),
        Figure("other", False, 6.0, reason="other is not installed"),
    ]
    goals = [Goal("ours", "peer", 2.5), Goal("ours", "", 0.4), Goal("ours", "other", 2.0)]
    rows = [Row("part", "work", "tokens", "peer", figures, goals, "5 of 7", "2026-11-28T21:00:00+00:00")]
    return Report(
        "cpu", "A Processor (R) 7", 2, "2026-11-28", {"torch": "2.13"}, {"memory read (GB/s)": 35.25}, rows, 1.5
    )


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    assert report().file_name == "a-processor-r-7-2-threads-2026-11-28.json"
    results.write(report(), tmp_path / "r.json")
    assert results.read(tmp_path / "r.json") == report()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": [{"figures": []}]}'])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(FormatError, match="not a file of results"):
        results.read(tmp_path / "r.json")


def test_rows_that_are_measured_again_take_the_place_of_the_old() -> None:
    old, new = report(), report().rows[0]
    other = Row("part", "more work", "tokens", "peer", [], [], "", "")
    again = Row("part", "work", "tokens", "peer", new.figures[:1], [], "", "")
    found = Report("cpu", "x", 2, "2026-11-28", {}, {}).with_row(other).with_row(again).after([*old.rows])
    assert found.rows == [again, other]


def test_the_table_is_printed_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.write(report(), tmp_path / "r.json")
    assert main(["table", str(tmp_path / "r.json")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "A Processor (R) 7, 2 threads; 2026-11-28; load 1.5 before. Limits: memory read (GB/s) 35.2. torch 2.13.",
        "",
        "| work | by | a second | × (least to greatest) | of the limit | peak | goal |  |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| work (5 of 7) | **ours** | 6 tokens | 2.00 (1.50 to 3.00) | 50% | 7 MB | "
        "2.5 × peer: missed, 2.00; 40% of the limit: reached, 50%; 2 × other: not measured | error 1e-03 |",
        "|  | peer | 2 tokens |  |  |  |  |  |",
        "|  | other | not measured (other is not installed) |  |  |  |  |  |",
    ]


def test_a_table_of_no_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'none.json'}: there is no such file")


# ------------------------------------------------------------------------------------------------------ the whole suite


def run(*args: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """The suite in a process of its own, where engines may warn as they like."""
    command = [sys.executable, *(["-c", code] if code else ["-m", "benchmarks"]), *args]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)


def rows_of(folder: Path) -> list[Row]:
    [path] = folder.glob("*.json")
    return results.read(path).rows


def check(rows: list[Row]) -> None:
    """Ours is measured in every row, and every peer, but for what the machine has not."""
    excuses = ("is not installed", "no bf16 arithmetic")
    reasons = {f"{row.name}: {one.name}": one.reason for row in rows for one in row.figures if not one.seconds}
    assert {name: reason for name, reason in reasons.items() if not reason.endswith(excuses)} == {}
    assert all(any(one.is_ours and one.seconds for one in row.figures) for row in rows)
    assert all(any(one.name == row.reference for one in row.figures) for row in rows)
    names = {row.name: {one.name for one in row.figures} for row in rows}
    assert all({goal.ours, goal.peer or goal.ours} <= names[row.name] for row in rows for goal in row.goals)


def test_without_a_gpu_one_line_says_so() -> None:
    done = run("gpu")
    assert done.returncode == ResourceError.exit_code
    assert done.stderr.splitlines() == [
        "error: benchmarks gpu: there is no GPU here; run it on a machine with one; `python -m benchmarks cpu` "
        "measures on the processor"
    ]


def test_an_unknown_part_is_refused() -> None:
    done = run("cpu", "--tiny", "--only", "decode,sleep")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --only: no part is called 'sleep'; choose from decode, ")


@pytest.mark.slow
@pytest.mark.peer
def test_every_row_on_a_processor(tmp_path: Path) -> None:
    from benchmarks.cpu import PARTS

    parts = [part for part in PARTS if part not in ("start", "sharing")]
    done = run("cpu", "--tiny", "--rounds", "1", "--out", str(tmp_path), "--only", ",".join(parts))
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path)
    check(rows)
    assert {row.part for row in rows} == set(parts)
    assert all(row.name.split(",")[0].split(":")[0] in done.stdout for row in rows)


def test_the_memory_of_a_whole_process_is_its_own() -> None:
    large = b"x" * (300 << 20)
    spent = starting.whole([sys.executable, "-c", "import time; time.sleep(0.2)"])()
    assert spent.seconds > 0.2
    assert spent.peak_bytes is not None
    assert 4e6 < spent.peak_bytes < len(large) / 4
    spent = starting.whole([sys.executable, "-c", "b'x' * (200 << 20)"])()
    assert spent.peak_bytes is not None
    assert spent.peak_bytes > 200 << 20
    with pytest.raises(RuntimeError, match="ValueError: gone"):
        starting.whole([sys.executable, "-c", "raise ValueError('gone')"])()


@pytest.mark.slow
@pytest.mark.peer
def test_rows_of_whole_processes(tmp_path: Path) -> None:
    done = run("cpu", "--tiny", "--rounds", "1", "--out", str(tmp_path), "--only", "start,sharing")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path)
    check(rows)
    assert [row.part for row in rows] == ["start", "sharing", "sharing"]
    assert all(one.peak_bytes is not None and one.peak_bytes > 50e6 for one in rows[0].figures)


@pytest.mark.slow
@pytest.mark.peer
def test_every_row_of_the_gpu_on_a_processor(tmp_path: Path) -> None:
    from benchmarks.gpu import PARTS

    done = run("gpu", "--tiny", "--device", "cpu", "--rounds", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path)
    check(rows)
    assert len({row.name for row in rows}) == len(rows) > len(PARTS)


@pytest.mark.slow
@pytest.mark.peer
def test_a_peer_that_is_not_installed_is_told_and_the_rest_measured(tmp_path: Path) -> None:
    code = "import sys; sys.modules['onnxruntime'] = None; from benchmarks.__main__ import main; sys.exit(main())"
    done = run("cpu", "--tiny", "--rounds", "1", "--out", str(tmp_path), "--only", "encode", code=code)
    assert done.returncode == 0, done.stderr
    for row in rows_of(tmp_path):
        reasons = {one.name: one.reason for one in row.figures}
        assert reasons["onnxruntime fp32"] == reasons["onnxruntime int8"] == "onnxruntime is not installed"
        assert reasons["transformers fp32"] == reasons["regard fp32"] == ""


_AGREE = """
import json, sys, tempfile
from pathlib import Path
import numpy as np, torch
from benchmarks import ours
from benchmarks.decode import onnx_gpt2
from benchmarks.encode import onnx_bert
from benchmarks.limits import Limits
from benchmarks.suite import Setting
from benchmarks.peers import ct2, hf, onnx_graph

cpu = torch.device("cpu")
found = {}
with tempfile.TemporaryDirectory() as scratch:
    setting = Setting(cpu, Limits({}, 1.0), Path(scratch), True)
    gpt, prompts = ours.public(setting, "gpt"), ours.prompts(setting, "gpt", 3, 9)
    written = ours.greedy(ours.load(gpt, cpu), prompts, 20)
    found["varied"] = len({token for row in written for token in row}) > 10
    found["transformers"] = hf.greedy(hf.load("GPT2LMHeadModel", gpt, cpu), prompts, 20) == written
    folder = setting.folder("gpt-ctranslate2", lambda folder: ct2.write_gpt2(folder, gpt))
    found["CTranslate2"] = ct2.greedy(ct2.generator(folder, "float32"), prompts, 20)() == written
    session = onnx_graph.session(onnx_gpt2(setting) / "model.onnx")
    found["onnxruntime"] = onnx_graph.greedy(session, prompts, 20)() == written
    bert, texts = ours.public(setting, "bert"), [torch.randint(4, 200, (n,)) for n in (5, 17, 11)]
    hidden = ours.encode(ours.load(bert, cpu), texts)()
    def flat(rows):
        return torch.cat([torch.as_tensor(row)[: len(text)] for row, text in zip(rows, texts)])
    theirs = hf.encode(hf.load("BertModel", bert, cpu), texts)().last_hidden_state
    found["BERT in transformers"] = bool((flat(theirs) - hidden).abs().max() < 1e-4)
    session = onnx_graph.session(onnx_bert(setting) / "model.onnx")
    found["BERT in onnxruntime"] = bool((flat(onnx_graph.encode(session, texts)()) - hidden).abs().max() < 1e-4)
    marian, sources = ours.public(setting, "transformer"), ours.prompts(setting, "transformer", 3, 7)
    best = ours.beam(ours.load(marian, cpu), sources, 12, 4)
    found["beam in transformers"] = hf.beam(hf.load("MarianMTModel", marian, cpu), sources, 12, 4) == best
    folder = setting.folder("transformer-ctranslate2", lambda folder: ct2.write_marian(folder, marian))
    words = ct2.beam(ct2.translator(folder, "float32"), sources, 12, 4)()
    found["beam in CTranslate2"] = [[int(word.strip("w<>")) for word in row] for row in words] == best
    for name, kind in (("vit", "ViTForImageClassification"), ("swin", "SwinForImageClassification")):
        public, pixels = ours.public(setting, name), torch.randn(2, 3, 32, 32)
        model = ours.load(public, cpu)
        with torch.inference_mode():
            scores = hf.load(kind, public, cpu)(pixels).logits
            found[name] = bool((model.head(model.pool(model(pixels))) - scores).abs().max() < 1e-4)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.peer
def test_every_engine_computes_the_same_from_our_folders() -> None:
    """Otherwise their rates would be of other work."""
    for package in ("ctranslate2", "onnx", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} comes with pip install 'regard[bench]'")
    done = run(code=_AGREE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found
    assert [name for name, agrees in found.items() if not agrees] == []
