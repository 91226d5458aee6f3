"""Cross-lingual masked language modelling: what a batch holds, what is held out, what is learnt, and a whole run."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.data.split import normalized
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, DataError, UsageError
from regard.models.bert import Bert, BertConfig
from regard.tasks import crosslingual
from regard.tasks.crosslingual import CrosslingualConfig, CrosslingualData, CrosslingualTask
from regard.tasks.filler import Filler
from regard.tasks.labelled import LabelledTask
from regard.tasks.labeller import Classes
from regard.tasks.texts import TextTokenizerConfig
from regard.training import recipe, run

TINY = {"family": "bert", "embed_dim": 32, "num_layers": 2, "num_heads": 2, "mlp_dim": 64, "rotary_base": 100.0}
TINY |= {"dropout": 0.0, "attention_dropout": 0.0}
NUMBERS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fuenf", "six": "sechs"}


def pairs(count: int = 400, seed: int = 3) -> list[tuple[str, str]]:
    """Numbers in two languages: a word follows from its translation, and from nothing else."""
    draws = random.Random(seed)
    made = dict.fromkeys(tuple(draws.choices(list(NUMBERS), k=draws.randint(4, 8))) for _ in range(count))
    return [(" ".join(words), " ".join(NUMBERS[word] for word in words)) for words in made]


def write(folder: Path, count: int = 400) -> dict[str, str]:
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs(count)))
    (folder / "more.txt").write_text("\n\n".join(a.upper() for a, _ in pairs(60, 4)))
    return {"en-de": str(folder / "pairs.tsv"), "en": str(folder / "more.txt")}


def make_task(folder: Path, seed: int = 5, is_new: bool = True, **changes: object) -> CrosslingualTask:
    data = CrosslingualData(write(folder))
    values = {"tokenizer": TextTokenizerConfig("whitespace", 40), "model": TINY, "context": 24, "batch_tokens": 96}
    return CrosslingualTask.prepare(CrosslingualConfig(data, **{**values, **changes}), seed, folder, is_new)  # type: ignore[arg-type]


def test_the_tokenizer_is_fit_on_so_much_text_of_each_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    train = Tokenizer.train

    def heard(some: Iterable[str], *rest: object, **named: object) -> Tokenizer:
        seen.extend(some)
        return train(seen, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Tokenizer, "train", staticmethod(heard))
    monkeypatch.setattr(crosslingual, "TOKENIZER_BYTES", 4000)
    make_task(tmp_path)
    sizes = {True: 0, False: 0}
    for text in seen:
        sizes[set(text.split()) <= {*NUMBERS.values()}] += len(text)
    assert all(2000 <= size < 2100 for size in sizes.values())


def test_a_batch_holds_single_texts_or_translations_side_by_side(tmp_path: Path) -> None:
    task = make_task(tmp_path, translation=0.25)
    assert task.languages == ("de", "en")
    back = {b: a for a, b in pairs()}
    start, end = task.tokenizer.start_id, task.tokenizer.end_id
    kinds, turns = [], set()
    for n in range(80):
        batch = task.batch(n)
        tokens_N = batch.tokens_N.clone()
        tokens_N[batch.places_M] = batch.labels_M
        sizes = list(batch.segments.lengths)
        for row, types, two in zip(tokens_N.split(sizes), batch.types_N.split(sizes), batch.languages_B2, strict=True):
            ends = (row == end).nonzero()[:, 0].tolist()
            assert (int(row[0]), ends[-1]) == (start, len(row) - 1)
            if len(ends) == 1:
                assert not types.any()
                assert two[0] == two[1]
                text = task.tokenizer.decode(row.tolist())
                words = NUMBERS.values() if two[0] == 0 else [*NUMBERS, *map(str.upper, NUMBERS)]
                assert set(text.split()) <= set(words), (text, two)
            else:
                assert types.tolist() == [0] * (ends[0] + 1) + [1] * (len(row) - ends[0] - 1)
                sides = [
                    task.tokenizer.decode(part.tolist()) for part in row.split([ends[0] + 1, len(row) - ends[0] - 1])
                ]
                assert sorted(two.tolist()) == [0, 1]
                german, english = sides if two[0] == 0 else sides[::-1]
                assert back[german] == english
                turns.add(two[0].item())
        kinds.append(any((batch.types_N == 1).tolist()))
        assert all(any((types == 1).tolist()) == kinds[-1] for types in batch.types_N.split(sizes))  # one kind a batch
    assert [sum(kinds[n : n + 4]) for n in range(0, 80, 4)] == [1] * 20
    assert turns == {0, 1}
    assert not any((make_task(tmp_path, translation=0.0).batch(n).types_N == 1).any() for n in range(20))


def test_a_batch_is_a_pure_function_of_seed_and_index(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    batches = [task.batch(n) for n in range(90)]
    for n in (89, 4, 61):
        again = make_task(tmp_path, is_new=False).batch(n)  # nothing was asked for before
        for name in ("tokens_N", "places_M", "labels_M", "types_N", "languages_B2"):
            assert torch.equal(getattr(again, name), getattr(batches[n], name))
    assert not torch.equal(make_task(tmp_path, seed=6).batch(4).tokens_N[:20], batches[4].tokens_N[:20])


def test_no_text_of_the_training_part_is_held_out_in_any_language(tmp_path: Path) -> None:
    """A text that stands beside German in the one part and alone in another would be known already."""
    data = write(tmp_path)
    held_out = {normalized(line) for line in (tmp_path / "pairs.tsv").read_text().split("\n")}
    (tmp_path / "more.txt").write_text("\n\n".join(a for a, _ in pairs()) + "\n\nseven")  # every English side once more
    config = CrosslingualConfig(CrosslingualData(data), TextTokenizerConfig("whitespace", 40), TINY)
    task = CrosslingualTask.prepare(config, 5, tmp_path, True)
    assert held_out

    def of(part: str) -> set[bytes]:
        shard = task.texts[part]["en"]
        return {shard.tokens[a:b].tobytes() for a, b in zip(shard.starts[:-1], shard.starts[1:], strict=True)}

    beside = {
        task._pair(part, 0, n)[side][0].tobytes()
        for part in ("dev", "test")
        for n in range(len(task.paired[part]["en-de"][0]))
        for side in (0,)
    }
    train = {task._inside(task.texts["train"]["en"], n).tobytes() for n in range(len(task.texts["train"]["en"]))}
    assert not train & beside
    assert not of("train") & of("test")
    assert len(train) > 100


def test_what_is_held_out_is_the_same_for_every_run_and_hidden_on_one_side(tmp_path: Path) -> None:
    task, other = make_task(tmp_path), make_task(tmp_path, seed=9, translation=0.0)
    beside = task.beside("test")
    assert [*beside] == ["de beside en", "en beside de"]
    for name, rows in beside.items():
        for row, places, (types, two) in zip(rows.rows, rows.places, rows.told, strict=True):
            assert types[places].all()  # the first text is whole in sight
            assert task.languages[two[1]] == name.split()[0]
            assert len(places) == np.ceil(0.15 * (int(types.sum()) - 1))
            assert len(row) == len(types)
    assert [*task.alone("test")] == ["de", "en"]
    assert len(task.alone("test", 3)["de"].rows) == 3
    assert [len(rows.rows) for rows in other.alone("test").values()] != []


@pytest.mark.slow
def test_a_hidden_word_is_read_off_the_translation(tmp_path: Path) -> None:
    """Alone a number can be guessed once in six times; beside its translation it is known."""
    settings = {
        "task": "xlm",
        "data": {"train": write(tmp_path, 1500)},
        "tokenizer": {"kind": "whitespace", "vocab_size": 40},
        "model": TINY,
        "context": 24,
        "batch_tokens": 512,
        "translation": 0.8,
        "training": {"max_steps": 700, "learning_rate": 0.005, "warmup_steps": 30, "schedule": "linear", "seed": 3},
    }
    out = tmp_path / "run"
    result = run.run(recipe.resolve(settings, [], "test"), out, device="cpu", quiet=True)
    assert result.scores["masked_accuracy/de beside en"] > 0.9
    assert result.scores["masked_accuracy/en beside de"] > 0.9
    assert result.scores["masked_accuracy/de"] < 0.4
    assert "|de beside en|" in result.scores["signatures"]["masked_accuracy/de beside en"]
    assert 0 < result.scores["baselines"]["tokens by their frequency"]["masked_accuracy/de"] < 0.4
    assert "accuracy at masked places, de beside en" in (out / "report.html").read_text()

    filler = regard.load(out)
    assert isinstance(filler, Filler)
    assert filler.model.config.languages == ("de", "en")
    assert filler.fill(["eins <mask> drei"], language="de")[0].text.split()[1] in NUMBERS.values()
    assert filler.fill(["one <mask> three"], language="en")[0].text.split()[1].lower() in NUMBERS
    for names, words in (("", "has to be told the language"), ("fr", "unknown language 'fr'")):
        with pytest.raises(UsageError, match=words):
            filler.fill(["eins <mask> drei"], language=names)
    with pytest.raises(UsageError, match="told the language"):
        regard.look(out, "eins zwei")
    assert regard.look(out, "eins zwei", language="de").maps
    # Fine-tuning begins from it, and goes on telling languages.
    same = [(f"{a}\t{a}", "same") for a, _ in pairs(60)] + [
        (f"{a}\t{b}", "other") for (a, _), (b, _) in zip(pairs(60), pairs(60)[1:], strict=False)
    ]
    (tmp_path / "same.jsonl").write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in same))
    labelled = {
        "task": "classify",
        "data": {"train": str(tmp_path / "same.jsonl"), "max_tokens": 24},
        "init": str(out),
        "languages": "en",
        "training": {"max_steps": 2, "learning_rate": 0.001},
    }
    tuned = run.run(recipe.resolve(labelled, [], "test"), tmp_path / "tuned", device="cpu", quiet=True)
    assert 0 <= tuned.scores["accuracy"] <= 1
    labeller = regard.load(tmp_path / "tuned")
    table = labeller.model.encoder.language_embed.weight
    assert torch.equal(table, filler.model.language_embed.weight)  # what one language learns must not part from others
    assert not torch.equal(labeller.model.encoder.token_embed.weight, filler.model.token_embed.weight)
    # A drawn language says nothing of the class, and is the same whenever a batch is made.
    drawing = recipe.resolve({**labelled, "draw_languages": True}, [], "test").settings
    tasks = [LabelledTask.prepare(Classes, drawing, 3, tmp_path / "drawn", True) for _ in range(2)]
    assert [task.build().config.languages for task in tasks] == [("de", "en")] * 2
    told = [tasks[0].batch(n).languages_B2 for n in range(8)]
    assert torch.equal(tasks[1].batch(7).languages_B2, told[7])
    assert 0.3 < torch.cat(told).double().mean() < 0.7
    assert not torch.equal(told[0], told[1])
    assert labeller.classify([("one two", "eins zwei")], languages="en,de")[0].label in ("same", "other")
    apart = [labeller.classify([("one", "one")], languages=names)[0].probabilities["same"] for names in ("en", "en,de")]
    assert apart[0] != apart[1]
    with pytest.raises(UsageError, match="told the language"):
        labeller.classify(["one two"])
    with pytest.raises(UsageError, match="told the language"):
        run.run(
            recipe.resolve({**labelled, "languages": ""}, [], "test"), tmp_path / "untold", device="cpu", quiet=True
        )


def test_bad_settings_are_told_in_one_line(tmp_path: Path) -> None:
    path = str(tmp_path / "pairs.tsv")
    for train, words in (
        ({}, "no data"),
        ({"en-en": path}, "names neither a language nor two"),
        ({"en-": path}, "names neither"),
        ({"a-b-c": path}, "names neither"),
        ({False: path}, "is no name"),
        ({"en": 3}, "is 3"),
    ):
        with pytest.raises(ConfigError, match=words):
            CrosslingualData(train)  # type: ignore[arg-type]
    alone = CrosslingualData({"en": path})
    with pytest.raises(ConfigError, match="there are no pairs"):
        CrosslingualConfig(alone)
    for share in (-0.1, 1.1):
        with pytest.raises(ConfigError, match="translation is"):
            CrosslingualConfig(alone, translation=share)
    with pytest.raises(DataError, match="no pair has at most 8 tokens"):
        make_task(tmp_path, context=8)
    long = make_task(tmp_path, context=15)
    assert "training pairs over 15 tokens are not read side by side" in long.notes[0]
    assert Bert(BertConfig(9, 8, 1, 1, 8)).number_languages("") is None
    with pytest.raises(UsageError, match="leave it out"):
        Bert(BertConfig(9, 8, 1, 1, 8)).number_languages("de")
