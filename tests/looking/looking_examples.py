"""Maps and a report small enough to check by eye, with one word in every place."""

import numpy as np

from regard.looking import AttentionMap, ByLength, Curve, Maps, Report, Sample, Score, Table


def some_weights(num_heads: int, num_queries: int, num_keys: int) -> np.ndarray:
    weights = np.random.default_rng(5).random((num_heads, num_queries, num_keys)) ** 4
    return weights / weights.sum(-1, keepdims=True)


def some_maps(word: str = "x") -> Maps:
    """An encoder–decoder of two layers and two heads, three source and five target tokens; `word` in every place."""
    source, target = (word, f"a{word}", f"{word}b"), (word, f"c{word}", "d", "e", "f")
    maps = []
    for i in range(2):
        maps += [
            AttentionMap(f"encoder.{i}.{word}", "self", source, source, some_weights(2, 3, 3)),
            AttentionMap(f"decoder.{i}.self.{word}", "self", target, target, some_weights(2, 5, 5)),
            AttentionMap(f"decoder.{i}.cross.{word}", "cross", target, source, some_weights(2, 5, 3)),
        ]
    return Maps(word, word, word, tuple(maps), {word: word})


def some_report(word: str = "x") -> Report:
    """Everything a report can hold, with `word` in every place."""
    scores = [Score(word, 3.0, word, word, word, "lower"), Score(f"{word}2", 0.5, "", "", word)]
    return Report(
        title=word,
        command=word,
        started=word,
        seconds=61,
        hardware=word,
        settings={word: {word: word, "list": [word, 1, 2.5, None, True]}},
        curves=[Curve(word, [1, 2, 3], [3.0, 2.0, 1.5], word), Curve(f"{word}2", [1, 3], [3.0, 2.5], word)],
        scores=scores,
        baselines=[Score(word, 4.0, word, word, f"other {word}", "lower")],
        tables=[Table(word, word, [word, f"{word} 2"], [[word, "1.5"], [word, ""]])],
        by_length=[ByLength(word, [word, f"{word} long"], [3, 4], {word: [1.0, 2.0], f"other {word}": [1.5, None]})],
        samples=[Sample(word, word, word, "right"), Sample(word, word, word, "wrong"), Sample(word, word, word)],
        maps=[some_maps(word)],
        notes=[word],
        lead=word,
        data={word: word},
    )
