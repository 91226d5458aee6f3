"""How good outputs are, as strings: BLEU, chrF, exact match, token error rate.

BLEU and chrF are sacreBLEU's, with its signature. The other two suit short outputs, such as pronunciations.
"""

from __future__ import annotations

from collections.abc import Sequence

from regard.errors import DataError
from regard.metrics.measure import Measure


def edit_distance(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    """Count the insertions, deletions and substitutions that turn one sequence into the other (Levenshtein 1966)."""
    row = list(range(len(reference) + 1))
    for i, item in enumerate(hypothesis, 1):
        previous, row[0] = row[0], i
        for j, wanted in enumerate(reference, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (item != wanted))
    return row[-1]


def measure(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Measure]:
    """Score outputs.

    Args:
        hypotheses: One output for each input.
        references: Acceptable outputs of each input, at least one.

    Returns:
        The four measures by name. An exact match equals any reference; the token error rate is the edits to the nearest
        reference over that reference's tokens, tokens being what stands between spaces.

    Raises:
        DataError: The two differ in number, are empty, or an input has no reference.
    """
    if len(hypotheses) != len(references) or not hypotheses or not all(references):
        raise DataError(f"{len(hypotheses)} outputs to score against {len(references)} references")
    exact = sum(h in refs for h, refs in zip(hypotheses, references, strict=True)) / len(hypotheses)
    edits = tokens = 0
    for hypothesis, refs in zip(hypotheses, references, strict=True):
        words = hypothesis.split()
        nearest = min((edit_distance(words, ref.split()), len(ref.split())) for ref in refs)
        edits, tokens = edits + nearest[0], tokens + nearest[1]
    most = max(map(len, references))
    count = f"n:{len(hypotheses)}|refs:{'1' if most == 1 else f'any of up to {most}'}"
    return {
        **_sacrebleu(hypotheses, references, most),
        "exact_match": Measure("exact_match", exact, f"exact_match|{count}|case:mixed|version:regard-1"),
        "token_error_rate": Measure(
            "token_error_rate",
            edits / max(tokens, 1),
            f"token_error_rate|{count}|tok:space|case:mixed|version:regard-1",
        ),
    }


def _sacrebleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], most: int) -> dict[str, Measure]:
    from sacrebleu.metrics import BLEU, CHRF  # 0.3 s to import; not everyone who imports regard scores

    streams = [[refs[i] if i < len(refs) else None for refs in references] for i in range(most)]
    measures = {}
    for name, metric in (("bleu", BLEU(tokenize="13a")), ("chrf", CHRF())):
        score = metric.corpus_score(list(hypotheses), streams)  # type: ignore[arg-type]
        measures[name] = Measure(name, float(score.score), str(metric.get_signature()))
    return measures
