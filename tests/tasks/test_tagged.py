"""Tags of words: reader, first tokens, loss, spans, a whole run."""

import random
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import regard
from regard.attention import Segments
from regard.data import read_pairs
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError, UsageError
from regard.metrics.labels import spans, tagging
from regard.tasks.corpus import PairData
from regard.tasks.encoders import LabelTokenizerConfig
from regard.tasks.labeller import TextPairs
from regard.tasks.tagged import TaggedConfig, TaggedTask
from regard.tasks.tagger import Tagger, encode_words
from regard.training import recipe, run

TINY = {"family": "bert", "embed_dim": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 32}


def sentences(count: int = 300, seed: int = 3) -> list[tuple[list[str], list[str]]]:
    """A name is one word or two; what kind it is stands in the word before it."""
    draws = random.Random(seed)
    made = {}
    for _ in range(count):
        kind, size = draws.choice(["person", "place"]), draws.randint(1, 2)
        names = draws.choices(["Paris", "London", "Florence", "Jordan"], k=size)
        before = ["met", "greeted"] if kind == "person" else ["in", "near"]
        words = ["we", draws.choice(before), *names, draws.choice(["today", "yesterday"]), str(draws.randint(0, 99))]
        made[" ".join(words)] = (words, ["O", "O", f"B-{kind}", *[f"I-{kind}"] * (size - 1), "O", "O"])
    return list(made.values())


def write(folder: Path, table: list[tuple[list[str], list[str]]] | None = None) -> Path:
    path = folder / "tags.conll"
    table = sentences() if table is None else table
    path.write_text("\n".join("".join(f"{w} X {t}\n" for w, t in zip(*one, strict=True)) for one in table))
    return path


def make_task(folder: Path, **changes: object) -> TaggedTask:
    data = PairData(str(write(folder)), max_tokens=changes.pop("max_tokens", 40))  # type: ignore[arg-type]
    values = {"tokenizer": LabelTokenizerConfig("byte-bpe", 290), "model": TINY, "batch_tokens": 200}
    return TaggedTask.prepare(TaggedConfig(data=data, **{**values, **changes}), 5, folder, True)  # type: ignore[arg-type]


def test_sentences_are_read_from_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.conll"
    path.write_text("-DOCSTART- -X- O\n\n# a comment\nU.N. NNP B-org\nofficial NN O\n\n\t\nEkeus\tB-per\n")
    assert [(p.source, p.target, p.line) for p in read_pairs(path)] == [
        ("U.N. official", "B-org O", 4),
        ("Ekeus", "B-per", 8),
    ]
    path.write_text("a B-x\nb\n")
    with pytest.raises(DataError, match=r"line 2: a word without a tag"):
        read_pairs(path)
    path.write_text("\n\n")
    with pytest.raises(DataError):
        read_pairs(path)
    with pytest.raises(UsageError, match="columns without names"):
        read_pairs(path, source="word", target="tag")


@pytest.mark.parametrize("seed", range(10))
def test_spans_are_those_of_seqeval(seed: int) -> None:
    from seqeval.metrics import accuracy_score, f1_score
    from seqeval.metrics.sequence_labeling import get_entities

    draws = random.Random(seed)
    names = ["O", "O", "B-a", "I-a", "B-b", "I-b"]
    wanted = [draws.choices(names, k=draws.randint(1, 12)) for _ in range(30)]
    predicted = [[tag if draws.random() < 0.7 else draws.choice(names) for tag in tags] for tags in wanted]
    for tags in wanted:
        assert spans(tags) == {(kind, start, end + 1) for kind, start, end in get_entities(tags)}
    found = tagging(predicted, wanted)
    assert found["span_f1"].value == pytest.approx(f1_score(wanted, predicted))
    assert found["accuracy"].value == pytest.approx(accuracy_score(wanted, predicted))


def drawn_spans(draws: random.Random, forms: str) -> list[str]:
    """Well-formed tags; of the forms the first begins a span, then inside, the last word, and a word alone."""
    begin, inside, last, alone = forms
    tags: list[str] = []
    for _ in range(draws.randint(1, 6)):
        kind, size = draws.choice("ab"), draws.randint(0, 4)
        whole = [f"{begin}-{kind}", *[f"{inside}-{kind}"] * (size - 2), f"{last}-{kind}"]
        tags += whole if size > 1 else [f"{alone}-{kind}"] if size else ["O"]
    return tags


@pytest.mark.parametrize("forms", ["BIES", "BILU"])
def test_spans_with_marked_ends_are_those_of_seqeval(forms: str) -> None:
    from seqeval.metrics import f1_score
    from seqeval.metrics.sequence_labeling import get_entities
    from seqeval.scheme import BILOU, IOBES

    draws = random.Random(11)
    wanted = [drawn_spans(draws, forms) for _ in range(60)]
    predicted = []
    for tags in wanted:  # the second half of each is another sentence's
        half, other = len(tags) // 2, drawn_spans(draws, forms)
        cut = next((n for n in range(half, len(tags)) if tags[n][0] in ("O", forms[0], forms[3])), len(tags))
        predicted.append([*tags[:cut], *other, *["O"] * len(tags)][: len(tags)])
        if predicted[-1][-1][0] in forms[:2]:
            predicted[-1] = tags
    scheme = {"BIES": IOBES, "BILU": BILOU}[forms]
    theirs = f1_score(wanted, predicted, mode="strict", scheme=scheme)
    assert 0.3 < theirs < 0.95
    assert tagging(predicted, wanted)["span_f1"].value == pytest.approx(theirs)
    # Tags in any order, as an untrained model gives them: as seqeval reads them without a scheme, which knows E and S.
    names = ["O", "O", *(f"{form}-{kind}" for form in "BIES" for kind in "ab")]
    as_bilou = str.maketrans("ES", "LU") if forms == "BILU" else {}
    for _ in range(300):
        tags = draws.choices(names, k=draws.randint(1, 12))
        found = spans([tag.translate(as_bilou) for tag in tags])
        assert found == {(kind, start, end + 1) for kind, start, end in get_entities(tags)}


def test_parts_of_speech_are_scored_by_accuracy(tmp_path: Path) -> None:
    table = [(words, ["PRON", "VERB", *["PROPN"] * (len(words) - 4), "ADV", "NUM"]) for words, _ in sentences()]
    # That there are spans is seen in training alone.
    write(tmp_path, [(["odd", "one"], ["B-x", "I-x"])]).rename(tmp_path / "test.conll")
    data = PairData(str(write(tmp_path, table)), test=str(tmp_path / "test.conll"), max_tokens=40)
    task = TaggedTask.prepare(TaggedConfig(data=data, model=TINY), 5, tmp_path, True)
    model, device = task.build(), torch.device("cpu")
    assert task.monitor == "accuracy"
    assert {*task.validate(model, device)} == {"loss", "accuracy"}
    evaluated = task.test(task.product(model, device))
    assert [*evaluated.measures] == ["accuracy"]
    assert all([*of] == ["accuracy"] for of in task.baselines(evaluated).values())
    assert make_task(tmp_path).monitor == "span_f1"


def test_the_loss_is_over_the_first_token_of_each_word(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    model = task.build().double().eval()
    batch, want, words = task.batch(0), 0.0, 0
    for n in task.order.at(0):
        ids, tags = [task.tokenizer.inner.token_to_id("<s>")], []
        for word, tag in zip(task.words["training"][n], task.tags["training"][n], strict=True):
            tags.append((len(ids), task.names.index(tag)))
            part = word if len(ids) == 1 else f" {word}"
            ids += task.tokenizer.inner.encode(part, add_special_tokens=False).ids
        ids.append(task.tokenizer.inner.token_to_id("</s>"))
        logp = model(torch.tensor(ids), Segments.ragged([len(ids)])).detach().log_softmax(-1)
        want -= sum(float(logp[row, tag]) for row, tag in tags)
        words += len(tags)
    assert float(task.loss(model, batch).report) == pytest.approx(want, rel=1e-6)
    assert task.count(batch) == words
    assert task.tokens(batch) > words


def as_roberta(texts: list[str], prefix: bool) -> TextPairs:
    inner = Tokenizer.train(texts, "byte-bpe", 400).inner
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    start, end = (("<s>", inner.token_to_id("<s>")), ("</s>", inner.token_to_id("</s>")))
    inner.post_processor = processors.RobertaProcessing(end, start, trim_offsets=True, add_prefix_space=prefix)
    return TextPairs(inner)


def as_llama(texts: list[str]) -> TextPairs:
    """No words are cut apart beforehand, so a token may reach from one into the next."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    inner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    return TextPairs(inner)


KINDS = ("byte-bpe", "bpe", "unigram", "wordpiece", "characters", "whitespace")


@pytest.mark.parametrize("kind", [*KINDS, "roberta", "roberta with a space", "llama"])
def test_words_are_read_as_in_a_text(kind: str) -> None:
    draws = random.Random(7)
    made = ["".join(draws.choices("abcdé", k=draws.randint(1, 6))) for _ in range(50)]
    lines = [draws.choices(made, k=8) for _ in range(300)]
    texts = [" ".join(words) for words in lines]
    if kind == "llama":
        tokenizer = as_llama(texts)
    elif kind.startswith("roberta"):
        tokenizer = as_roberta(texts, prefix="space" in kind)
    else:
        tokenizer = TextPairs.around(Tokenizer.train(texts, kind, 400))  # type: ignore[arg-type]
    rows = encode_words(tokenizer, lines)
    for (ids, firsts), words, (whole, _) in zip(
        rows, lines, tokenizer.encode_all([(text,) for text in texts]), strict=True
    ):
        assert ids.tolist() == whole.tolist()
        ends = [*firsts[1:], len(ids)]
        for word, first, end in zip(words, firsts, ends, strict=True):
            text = tokenizer.inner.decode(ids[first : max(end, first + 1)].tolist(), skip_special_tokens=True)
            if kind == "llama":  # the token at the seam belongs to both
                assert word in text + tokenizer.inner.decode([int(ids[min(end, len(ids) - 1)])])
            else:
                assert text.strip() == word
    if kind in ("byte-bpe", "roberta"):  # tokens with the space before them are used, of all words but the first
        whole = {token for ids, _ in rows for token in ids.tolist()}
        assert sum(tokenizer.inner.id_to_token(token).startswith("Ġ") for token in whole) > 40
    (together, _), (apart, _) = encode_words(tokenizer, [["abcd"], ["ab", "cd"]])
    assert together.tolist() != apart.tolist()


def test_words_are_found_again_behind_a_normalizer() -> None:
    inner = Tokenizer.train(["cafe of the film"], "wordpiece", 300).inner
    inner.normalizer = normalizers.BertNormalizer(clean_text=True, strip_accents=True, lowercase=True)
    ((ids, firsts),) = encode_words(TextPairs(inner), [["\u200b", "CAFE\u0301", "of", "Ⓕ", "the\u00ad"]])
    assert firsts[0] == -1
    pieces = [inner.id_to_token(token) for token in ids]
    assert [pieces[first] for first in firsts[1:]] == ["cafe", "of", "<unk>", "the"]
    inner.normalizer = normalizers.NFKC()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    (ids, firsts), (_, none) = encode_words(TextPairs(inner), [["ﬁlm", "\uff4f\uff46", "the"], []])
    assert len(none) == 0
    assert [inner.id_to_token(ids[first]) for first in firsts] == ["film", "of", "the"]


def test_words_beyond_the_cut_have_no_label_and_are_outside(tmp_path: Path) -> None:
    task = make_task(tmp_path, max_tokens=8)
    assert max(len(ids) for ids, _ in task.rows["training"]) == 8
    assert any((firsts < 0).any() for _, firsts in task.rows["training"])
    assert any("over 8 tokens the beginning is read" in note for note in task.notes)
    batch = task.batch(0)
    assert task.count(batch) == sum((task.rows["training"][n][1] >= 0).sum() for n in task.order.at(0))
    tagger = task.product(task.build(), torch.device("cpu"))
    (tags,) = tagger.tag(["word " * 20])
    assert tags[8:] == ["O"] * 12


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("".join(f"a b {n}\tO O\n" for n in range(100)))
    config = TaggedConfig(PairData(str(path)), model=TINY)
    with pytest.raises(DataError, match=r"line \d+: 2 tags for 3 words"):
        TaggedTask.prepare(config, 5, tmp_path, True)
    path.write_text("".join(f"a b {n}\tO O O\n" for n in range(100)))
    with pytest.raises(DataError, match="no word has a tag"):
        TaggedTask.prepare(config, 5, tmp_path, True)


@pytest.mark.slow
def test_a_run_learns_what_a_dictionary_cannot_and_can_be_used(tmp_path: Path) -> None:
    values = recipe.with_data(recipe.read("tag"), str(write(tmp_path, sentences(900))))
    values |= {"init": "", "model": {**TINY, "num_layers": 2, "dropout": 0.0, "attention_dropout": 0.0}}
    values |= {"tokenizer": {"kind": "whitespace", "vocab_size": 300}, "batch_tokens": 256}
    values["training"] = {"max_steps": 250, "learning_rate": 0.005, "validate_every_steps": 50, "warmup_steps": 20}
    result = run.run(recipe.resolve(values), tmp_path / "run", device="cpu", quiet=True)
    assert result.metric == "span_f1"
    assert result.scores["span_f1"] > 0.95
    assert result.scores["baselines"]["each word's commonest tag"]["span_f1"] < 0.8
    loaded = regard.load(tmp_path / "run")
    assert isinstance(loaded, Tagger)
    lines = ["we met Paris London today 3", "we in Jordan today 3", ""]
    want = [["O", "O", "B-person", "I-person", "O", "O"], ["O", "O", "B-place", "O", "O"], []]
    assert loaded.tag(lines) == want
    assert [loaded.tag([line])[0] for line in lines] == want
    assert loaded.tag([line.split() for line in lines]) == want
    with pytest.raises(DataError, match="an empty word"):
        loaded.tag([["a", ""]])
    assert np.isfinite(result.scores["accuracy"])
