"""What a report says about its numbers."""

import re
from dataclasses import replace

import numpy as np
import pytest
from looking_examples import some_report

from regard.errors import DataError, ResourceError
from regard.looking import AttentionMap, Curve, Maps, Score, report_page
from regard.looking.heat import MAX_TOKENS


def told(ours, theirs, *, unit="%", better="lower"):
    """The page's text for one metric, tags taken out."""
    score = Score("error", ours, unit, "sig", "ours", better)
    baselines = [Score("error", value, unit, "sig", name, better) for name, value in theirs.items()]
    page = report_page(replace(some_report(), scores=[score], baselines=baselines))
    return re.sub(r"<[^>]*>", "\n", page.split("<h2>Result</h2>")[1].split("</section>")[0])


@pytest.mark.parametrize(
    ("ours", "theirs", "options", "expected"),
    [
        (6.9, {"a": 7.5, "b": 8.0}, {}, "0.60 points below a, the best baseline"),
        (6.9, {"a": 7.5, "b": 6.0}, {}, "0.90 points above b, the best baseline"),
        (30.0, {"a": 27.5, "b": 28.0}, {"unit": "", "better": "higher"}, "2.00 above b, the best baseline"),
        (30.0, {"a": 27.5, "b": 32.0}, {"unit": "dB", "better": "higher"}, "2.00 dB below b, the best baseline"),
        (30.0, {"a": 30.001}, {}, "equal to a, the best baseline"),
    ],
)
def test_the_score_is_set_against_the_best_baseline(ours, theirs, options, expected):
    text = told(ours, theirs, **options)
    assert f"\n{expected}\n" in text
    assert f"\nours; {options.get('better', 'lower')} is better\n" in text


def test_bars_are_in_the_order_of_merit():
    def order(text):
        return [line for line in text.splitlines() if line in ("ours", "a", "b")][:3]

    assert order(told(7.0, {"a": 6.0, "b": 8.0})) == ["a", "ours", "b"]
    assert order(told(7.0, {"a": 6.0, "b": 8.0}, better="higher")) == ["b", "ours", "a"]


def test_signatures_are_shown_once_and_whole():
    score = Score("error", 1.0, "%", "sig|n:9|beam:4", "ours", "lower")
    notes = ("sig|n:9", "sig|n:8", "measured elsewhere", "sig|n:9|beam:4", "")
    baselines = [Score("error", 2.0, "%", note, f"other {i}", "lower") for i, note in enumerate(notes)]
    page = report_page(replace(some_report(), scores=[score], baselines=baselines))
    shown = re.findall(r'<p class="signature mono">([^<]*)</p>', page)
    assert shown == ["sig|n:9|beam:4", "sig|n:8", "measured elsewhere"]


def test_a_score_without_baselines_claims_nothing():
    assert "baseline" not in told(7.0, {})


def test_a_map_that_is_too_long_does_not_cost_the_report():
    tokens = tuple("a" * (MAX_TOKENS + 1))
    long = Maps("long one", "s", "o", (AttentionMap("l", "self", tokens, tokens, np.eye(len(tokens))[None]),))
    page = report_page(replace(some_report(), maps=[long]))
    assert "long one" in page
    assert f"Over {MAX_TOKENS} tokens: too long to draw." in page


def test_empty_parts_are_left_out():
    bare = replace(
        some_report(),
        curves=[],
        scores=[],
        baselines=[],
        tables=[],
        by_length=[],
        figures=[],
        samples=[],
        maps=[],
        notes=[],
        data={},
        settings={},
    )
    assert re.findall("<h2>(.*?)</h2>", report_page(bare)) == ["Repeat it"]
    assert re.findall("<h2>(.*?)</h2>", report_page(some_report())) == [
        "Result",
        "x",
        "By source length",
        "Learning curves",
        "Pictures",
        "Samples",
        "What it looked at",
        "Where it looked",
        "Data",
        "Repeat it",
        "Settings",
        "Notes",
    ]


def test_the_command_keeps_its_lines():
    page = report_page(replace(some_report(), command="regard train \\\n  --seed 1"))
    assert "<pre>regard train \\\n  --seed 1</pre>" in page


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match="curve 'dev': 2 steps, 1 values"):
        Curve("dev", [1, 2], [1.0])
    with pytest.raises(DataError, match="BLEU of ours: score nan"):
        Score("BLEU", float("nan"), "", "", "ours")


def test_save_writes_the_page_or_raises(tmp_path):
    some_report().save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text("utf-8") == report_page(some_report())
    with pytest.raises(ResourceError, match="cannot be written"):
        some_report().save(tmp_path / "none" / "report.html")
