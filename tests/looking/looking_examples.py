"""Maps and a report small enough to check by eye, with one word in every place."""

import numpy as np

from regard.looking import AttentionMap, ByLength, Curve, Figure, Maps, Picture, Places, Report, Sample, Score, Table
from regard.looking.png import png


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


def a_png(height: int = 8, width: int = 12, channels: int = 3) -> bytes:
    """Every pixel another colour."""
    count = height * width * channels
    return png((np.arange(count) * 7919 % 256).astype(np.uint8).reshape(height, width, channels))


def some_pictures(word: str = "x") -> Maps:
    """Every kind of map that has a picture: one grid, windows, words to places, places to words; `word` everywhere."""
    seen = Places(0, (2, 3), (word,))
    windows = Places(0, (2, 4), windows=((0, 1, 4, 5), (2, 3, 6, -1)))
    words, other = (word, f"c{word}", "d"), Places(1, (3, 2))
    maps = [
        AttentionMap(f"0.look.{word}", "self", seen, seen, some_weights(2, 7, 7)),
        AttentionMap(f"1.look.{word}", "self", seen, seen, some_weights(3, 7, 7)[::-1]),
        AttentionMap(f"0.part.{word}", "self", windows, windows, some_weights(2, 8, 4)),
        AttentionMap(f"0.say.{word}", "cross", words, other, some_weights(1, 3, 6)),
        AttentionMap(f"0.hear.{word}", "cross", other, words, some_weights(2, 6, 3)),
        AttentionMap(f"0.text.{word}", "self", words, words, some_weights(2, 3, 3)),
    ]
    pictures = (Picture(word, a_png()), Picture(f"{word}.png", a_png(9, 6, 1)))
    return Maps(word, word, word, tuple(maps), {word: word}, pictures)


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
        samples=[
            Sample(word, word, word, "right", a_png()),
            Sample(word, word, word, "wrong"),
            Sample(word, word, word),
        ],
        figures=[Figure(word, word, a_png(), word), Figure(f"{word}2", "", a_png(300, 500, 1))],
        maps=[some_maps(word), some_pictures(word)],
        notes=[word],
        lead=word,
        data={word: word},
    )
