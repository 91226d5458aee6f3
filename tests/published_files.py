"""Tiny GLUE and XNLI folders in the published layout, made up here; a rule on words gives the labels."""

import random
from dataclasses import dataclass
from pathlib import Path

# A line of each file; what is in braces comes from a row. Header lines stand before them, None where there is none.
_PARSES = "( x )\t( y )\t(ROOT (X x))\t(ROOT (X y))"
_MNLI = "{i}\t9{i}\t9{i}n\tfiction\t" + _PARSES + "\t{a}\t{b}"
_MNLI_HEAD = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    "\tsentence1\tsentence2"
)
_FIVE = "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label"
_XNLI = (
    "language\tgold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1"
    "\tsentence2\tpromptID\tpairID\tgenre\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tsentence1_tokenized"
    "\tsentence2_tokenized\tmatch",
    "{lang}\t{label}\t\t\t\t\t{a}\t{b}\t1\t{i}\tfacetoface\t{label}\t{label}\t{label}\t{label}\t{label}\t{a}\t{b}\tTrue",
)
_STS = "{i}\tmain-captions\tMSRvid\t2012test\t0{i}\tnone\tnone\t{a}\t{b}"
_STS_HEAD = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"


def _same(head: str, line: str, test_head: str, test_line: str) -> dict[str, tuple[str | None, str]]:
    return {"train.tsv": (head, line), "dev.tsv": (head, line), "test.tsv": (test_head, test_line)}


_NLI = _same(
    "index\tsentence1\tsentence2\tlabel", "{i}\t{a}\t{b}\t{label}", "index\tsentence1\tsentence2", "{i}\t{a}\t{b}"
)
FILES: dict[str, dict[str, tuple[str | None, str]]] = {
    "glue-cola": {
        "train.tsv": (None, "gj04\t{label}\t{star}\t{a}"),
        "dev.tsv": (None, "gj04\t{label}\t{star}\t{a}"),
        "test.tsv": ("index\tsentence", "{i}\t{a}"),
    },
    "glue-sst-2": _same("sentence\tlabel", "{a} \t{label}", "index\tsentence", "{i}\t{a}"),
    "glue-mrpc": _same(
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "{label}\t70{i}\t71{i}\t{a}\t{b}",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "{i}\t70{i}\t71{i}\t{a}\t{b}",
    ),
    "glue-sts-b": _same(f"{_STS_HEAD}\tscore", f"{_STS}\t{{label}}", _STS_HEAD, _STS),
    "glue-qqp": _same(
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "13{i}\t2{i}\t3{i}\t{a}\t{b}\t{label}",
        "id\tquestion1\tquestion2",
        "{i}\t{a}\t{b}",
    ),
    "glue-mnli": {
        "train.tsv": (f"{_MNLI_HEAD}\tlabel1\tgold_label", f"{_MNLI}\tneutral\t{{label}}"),
        "dev_matched.tsv": (_MNLI_HEAD + _FIVE, _MNLI + "\tneutral" * 5 + "\t{label}"),
        "dev_mismatched.tsv": (_MNLI_HEAD + _FIVE, _MNLI + "\tneutral" * 5 + "\t{label}"),
        "test_matched.tsv": (_MNLI_HEAD, _MNLI),
        "test_mismatched.tsv": (_MNLI_HEAD, _MNLI),
    },
    "glue-qnli": _same(
        "index\tquestion\tsentence\tlabel", "{i}\t{a}\t{b}\t{label}", "index\tquestion\tsentence", "{i}\t{a}\t{b}"
    ),
    "glue-rte": _NLI,
    "glue-wnli": _NLI,
    "glue-ax": {"diagnostic.tsv": ("index\tsentence1\tsentence2", "{i}\t{a}\t{b}")},
    "xnli": {
        "XNLI-MT-1.0/multinli/multinli.train.en.tsv": ("premise\thypo\tlabel", "{a}\t{b}\t{label}"),
        "XNLI-1.0/xnli.dev.tsv": _XNLI,
        "XNLI-1.0/xnli.test.tsv": _XNLI,
    },
}
SINGLE = ("glue-cola", "glue-sst-2")
CLASSES = {
    **dict.fromkeys(("glue-mnli", "glue-ax", "xnli"), ("entailment", "neutral", "contradiction")),
    **dict.fromkeys(("glue-qnli", "glue-rte"), ("entailment", "not_entailment")),
}
LANGUAGES = ("en", "de", "fr")
NOUNS = ["cat", "dog", "owl", "fox", "hen", "cow"]
WORDS = {"yes": ["grows", "sings"], "no": ["shrinks", "sleeps"], "perhaps": ["waits", "looks"]}


@dataclass(frozen=True)
class Row:
    """What a published line says."""

    a: str
    b: str
    label: str
    language: str = "en"


def rows(layout: str, count: int, seed: int, languages: tuple[str, ...] = ("en",)) -> list[Row]:
    """Sentences with a number, so that none comes twice, and quotes that open and do not close."""
    draws = random.Random(f"{layout} {seed}")
    names = CLASSES.get(layout, ("1", "0"))
    made = []
    for i in range(count):
        place = draws.randrange(len(names))
        verb = draws.choice(list(WORDS.values())[place])
        opening = '"' if draws.random() < 0.3 else ""
        label = names[place] if layout != "glue-sts-b" else f"{4.5 if place else 0.75:.3f}"
        a, b = f"{opening}The {draws.choice(NOUNS)} {seed}{i}", f"it {verb}' now"
        made.append(Row(f"{a} {b}" if layout in SINGLE else a, b, label, draws.choice(languages)))
    return made


def write(folder: Path, layout: str, count: int = 60) -> dict[str, list[Row]]:
    """Write all files of a benchmark.

    Returns:
        The rows of each file.
    """
    written = {}
    for seed, (name, (head, line)) in enumerate(FILES[layout].items(), 1):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        languages = LANGUAGES if "{lang}" in line else ("en",)
        written[name] = rows(layout, count if "train" in name else count // 2, seed, languages)
        lines = [] if head is None else [head]
        for i, row in enumerate(written[name]):
            spelling = "contradictory" if "multinli" in name and row.label == "contradiction" else row.label
            star = "*" if row.label == "0" else ""
            lines.append(line.format(i=i, a=row.a, b=row.b, label=spelling, star=star, lang=row.language))
        path.write_text("\n".join(lines) + "\n")
    return written
