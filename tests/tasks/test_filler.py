"""Filling in masks: right candidates, whatever stands beside; own and public models; what is refused."""

import json
import random
from pathlib import Path

import pytest
import torch
from public_masked import write

import regard
from regard.attention import Segments
from regard.data.tokenizer import Kind, Tokenizer
from regard.errors import ContextError, DataError, FormatError, UsageError
from regard.models.bert import Bert, BertConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.public import write_folder
from regard.tasks import folder
from regard.tasks.embedder import Embedder
from regard.tasks.filler import Filler, OwnMasks, load_filler

BERT_TEXTS = ["the light of the [MASK]", "[MASK]", "In the [MASK] was the [MASK] word."]
ROBERTA_TEXTS = ["the light of the <mask>", "<mask>", "in the <mask> was the <mask> word"]


def tokenizer(kind: Kind = "byte-bpe") -> Tokenizer:
    draws = random.Random(3)
    words = ["light", "dark", "day", "night", "of", "the"]
    return Tokenizer.train([" ".join(draws.choices(words, k=9)) for _ in range(80)], kind, 300, mask=True)


def filler(kind: Kind = "byte-bpe", max_len: int = 24) -> Filler:
    torch.manual_seed(4)
    made = tokenizer(kind)
    model = Bert(BertConfig(made.vocab_size, 16, 2, 2, 24, max_len, num_types=1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return Filler(model, OwnMasks(made))


def test_candidates_are_the_most_probable_tokens() -> None:
    made = filler()
    text = "the <mask> of day<mask>"
    (found,) = made.fill([text], 3)
    ids = made.tokenizer.encode(text)
    places = [n for n, token in enumerate(ids) if token == made.mask_id]
    assert len(places) == 2
    hidden = made.model(torch.tensor(ids), Segments.ragged([len(ids)]))
    p_NV = made.model.head(hidden).detach().double().softmax(-1)
    best = []
    for place, candidates in zip(places, found.masks, strict=True):
        ranked = sorted(range(p_NV.shape[1]), key=lambda token, at=place: -float(p_NV[at, token]))[:3]
        best.append(ranked[0])
        assert [one.token for one in candidates] == ranked
        assert [one.probability for one in candidates] == pytest.approx(p_NV[place, ranked].tolist(), rel=1e-6)
        assert [one.text for one in candidates] == made.tokenizer.inner.pieces(ranked)
    for place, token in zip(places, best, strict=True):
        ids[place] = token
    assert found.text == made.tokenizer.decode(ids)
    everything = made.fill([text], 10**6)[0].masks[0]
    assert len(everything) == p_NV.shape[1]
    assert sum(one.probability for one in everything) == pytest.approx(1)


def test_what_a_text_gets_does_not_depend_on_those_beside_it() -> None:
    made = filler()
    texts = ["the <mask>", "<mask> of the night and <mask> the day", "light <mask> dark", "<mask>"]
    together = made.fill(texts)
    for text, one, other in zip(texts, together, made.fill(texts, batch_tokens=1), strict=True):
        (alone,) = made.fill([text])
        for found in (other, alone):
            assert found.text == one.text
            for mine, theirs in zip(found.masks, one.masks, strict=True):
                assert [c.token for c in mine] == [c.token for c in theirs]
                assert [c.probability for c in mine] == pytest.approx([c.probability for c in theirs], rel=1e-4)
    assert len({tuple(c.probability for c in one.masks[0]) for one in together}) == 4
    assert made.fill([]) == []


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "wordpiece", "unigram", "characters", "whitespace"])
def test_a_mask_takes_the_place_of_a_token_as_in_training(kind: Kind) -> None:
    made = filler(kind)
    inner = made.tokenizer.inner
    whole = inner.encode("the light of")
    starts = [*inner.word_starts()[whole].tolist(), True]
    words = [n for n in range(len(whole)) if kind == "characters" or ((starts[n] or n == 0) and starts[n + 1])]
    assert words or kind == "unigram"
    for hidden in words:
        before, after = (inner.decode(part) for part in (whole[:hidden], whole[hidden + 1 :]))
        if kind in ("wordpiece", "whitespace", "bpe", "unigram"):
            before, after = before + " " * bool(before), " " * bool(after) + after.lstrip()
        read = made.tokenizer.encode(before + "<mask>" + after)
        assert read == [inner.start_id, *whole[:hidden], made.mask_id, *whole[hidden + 1 :], inner.end_id]
    if kind not in ("characters", "byte-bpe"):
        around = inner.encode("the"), inner.encode("of")
        assert made.tokenizer.encode("the <mask> of") == [
            *(inner.start_id, *around[0]),
            *(made.mask_id, *around[1], inner.end_id),
        ]
    if kind != "characters":
        assert made.tokenizer.encode("the <mask> of") == made.tokenizer.encode("the<mask> of")
    # Nothing but the mask is special.
    for text in ("</s> <mask>", "<s><mask>", "<unk> <mask>"):
        assert made.tokenizer.encode(text).count(made.mask_id) == 1
        assert made.tokenizer.encode(text).count(inner.end_id) == 1
        assert made.tokenizer.encode(text).count(inner.start_id) == 1


def test_what_cannot_be_filled_in_is_refused() -> None:
    made = filler(max_len=12)
    with pytest.raises(DataError, match="fill, text 9: no <mask> in it; write <mask> where a word is to be filled in"):
        made.fill(["<mask>", "the day"], first=7)
    with pytest.raises(ContextError, match="fill, text 2: 14 tokens; the model reads 12"):
        made.fill(["<mask>", "<mask>" * 12])
    with pytest.raises(UsageError, match="top_k is 0"):
        made.fill(["<mask>"], 0)
    made.fill(["<mask>" * 10])
    with pytest.raises(FormatError, match="without a head that fills in masks"):
        Filler(Bert(BertConfig(30, 16, 1, 2, 24, 12, head="none")), OwnMasks(tokenizer()))


def test_a_saved_model_is_the_same(tmp_path: Path) -> None:
    made = filler()
    folder.save(tmp_path / "model", made)
    assert not (tmp_path / "model" / "generation_config.json").exists()
    loaded = regard.load(tmp_path)
    assert isinstance(loaded, Filler)
    assert loaded.max_tokens == 24
    texts = ["the <mask>", "<mask> of the night"]
    assert loaded.fill(texts) == made.fill(texts)
    config = tmp_path / "model" / "config.json"
    values = json.loads(config.read_text())
    values["settings"]["head"] = "none"
    config.write_text(json.dumps(values))
    with pytest.raises(regard.RegardError):
        regard.load(tmp_path)


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_what_is_filled_in_is_theirs(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write(tmp_path, kind)
    loaded = regard.load(tmp_path)
    assert isinstance(loaded, Filler)
    theirs = transformers.pipeline("fill-mask", model=str(tmp_path), device="cpu", top_k=7)
    texts = BERT_TEXTS if kind == "bert" else ROBERTA_TEXTS
    for text, filled in zip(texts, loaded.fill(texts, 7), strict=True):
        want = theirs(text)
        want = want if isinstance(want[0], list) else [want]
        assert len(want) == len(filled.masks) == text.count(loaded.mask)
        for candidates, their in zip(filled.masks, want, strict=True):
            assert [one.token for one in candidates] == [one["token"] for one in their]
            assert [one.text for one in candidates] == [one["token_str"] for one in their]
            assert [one.probability for one in candidates] == pytest.approx([one["score"] for one in their], rel=1e-4)
        if len(want) == 1:
            assert filled.text == want[0][0]["sequence"]


def test_a_public_folder_gives_what_its_head_is_for(tmp_path: Path) -> None:
    write(tmp_path, "bert")
    filled = regard.load(tmp_path)
    assert isinstance(filled, Filler)
    assert (filled.mask, filled.max_tokens) == ("[MASK]", 16)
    with pytest.raises(ContextError, match="fill, text 1: 17 tokens; the model reads 16"):
        filled.fill(["[MASK]" * 15])
    want = filled.fill(BERT_TEXTS)
    (tmp_path / "tokenizer_config.json").unlink()  # nothing names the mask: it is known by its spelling
    assert regard.load(tmp_path).fill(BERT_TEXTS) == want
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": {"content": "light"}}))
    assert regard.load(tmp_path).mask == "light"
    (tmp_path / "special_tokens_map.json").unlink()
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace("[MASK]", "[MUSK]"))
    with pytest.raises(FormatError, match="the tokenizer has no token for masks"):
        regard.load(tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"no tokenizer\.json here"):
        regard.load(tmp_path)


def test_an_encoder_without_the_head_gives_vectors(tmp_path: Path) -> None:
    write(tmp_path, "bert", head="none")
    assert isinstance(regard.load(tmp_path), Embedder)
    with pytest.raises(FormatError, match="this bert fills in no masks"):
        load_filler(tmp_path)
    other = tmp_path / "gpt"
    other.mkdir()
    write_folder(other, "gpt", GPT(GPTConfig(30, 16, 1, 2, max_len=8)))
    with pytest.raises(FormatError, match="this gpt fills in no masks"):
        load_filler(other)
