"""Public translation models from a folder: tokenizers, special tokens, outputs, against the public implementation."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from public_translator import CODE, SENTENCES, train, write_translator

import regard
from regard.data import pieces
from regard.data.pieces import Pieces
from regard.errors import ContextError, DataError, FormatError, RegardError, ResourceError, UsageError
from regard.models.public import read_folder, write_folder
from regard.tasks import folder

TEXTS = [
    "The captain sold a boat.",
    "",
    "nobody was looking for the key, again",
    f"{CODE}The committee sang at home.",
    ">>xyz<< The committee",
    "Ünseen 漢字 characters",
    "two  spaces and a\ttab ",
]


@pytest.fixture
def public(tmp_path: Path) -> Path:
    write_translator(tmp_path)
    return tmp_path


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**kept, **values}))


def theirs_of(public: Path) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without its punctuation normalizer, which encoding does not use
        tokenizer = transformers.MarianTokenizer.from_pretrained(public)
    return tokenizer, transformers.MarianMTModel.from_pretrained(public).eval()


@pytest.mark.peer
@pytest.mark.parametrize("apart", [False, True])
def test_tokens_and_texts_are_theirs(apart: bool, tmp_path: Path) -> None:
    write_translator(tmp_path, apart=apart)
    tokenizer, _ = theirs_of(tmp_path)
    ours = regard.load(tmp_path).tokenizer
    for text in TEXTS:
        assert [*ours.source.encode(text), ours.source.end_id] == tokenizer(text).input_ids, text
        wanted = tokenizer(text_target=text).input_ids
        assert [*ours.target.encode(text), ours.target.end_id] == wanted, text
        if ours.target.vocabulary["<unk>"] not in wanted and CODE not in text:
            assert ours.target.decode(wanted) == tokenizer.decode(wanted, skip_special_tokens=True) != "" or not text
    assert ours.source.encode(TEXTS[3])[0] == ours.source.vocabulary[CODE]
    assert ours.target.decode([ours.target.unknown_id]) == "<unk>"


@pytest.mark.peer
@pytest.mark.parametrize("beam", [1, 3])
def test_translations_are_theirs(beam: int, public: Path) -> None:
    change(public, "generation_config.json", num_beams=beam)
    tokenizer, model = theirs_of(public)
    translator = regard.load(public)
    assert translator.options.beam == beam
    texts = [text for text in TEXTS if text]
    ours = translator.translate(texts)
    for text, output in zip(texts, ours, strict=True):
        rows = tokenizer([text], return_tensors="pt")
        most = rows.input_ids.shape[1] + translator.options.max_extra_tokens
        out = model.generate(**rows, max_new_tokens=most, forced_eos_token_id=None)[0]
        if beam == 1 or len(out) < most:
            kept = [token for token in out.tolist()[1:] if token != translator.tokenizer.target.end_id]
            assert output == translator.tokenizer.target.decode(kept)
    assert len(set(ours)) > 3
    assert translator.translate([""]) == [""]


@pytest.mark.peer
@pytest.mark.parametrize(("beam", "power"), [(2, 1.0), (4, 2.0)])
def test_a_beam_search_is_over_when_theirs_is(beam: int, power: float, public: Path) -> None:
    config = json.loads((public / "config.json").read_text())
    ids = {key: config[key] for key in ("pad_token_id", "decoder_start_token_id", "eos_token_id")}
    _, ours, _ = read_folder(public)
    found: dict[Any, list[list[int]]] = {False: [], True: [], "never": []}
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter.copy_(0.25 * torch.randn_like(parameter)) if parameter.dim() > 1 else None
            ours.output.bias[0] = 1.0
        write_folder(public, "transformer", ours, ids)
        for early, outputs in found.items():
            how = {"num_beams": beam, "length_penalty": power, "early_stopping": early}
            change(public, "generation_config.json", **(how if early else {**how, "early_stopping": None}))
            tokenizer, model = theirs_of(public)
            translator = regard.load(public)
            options = replace(translator.options, max_extra_tokens=5)
            texts = SENTENCES[::4]
            for text, (output, *_) in zip(texts, translator.hypotheses(texts, options), strict=True):
                rows = tokenizer([text], return_tensors="pt")
                most = rows.input_ids.shape[1] + options.max_extra_tokens + 1
                wanted = model.generate(**rows, max_new_tokens=most, forced_eos_token_id=None)[0].tolist()[1:]
                # At the limit ours gives what is there before the last token, theirs one token more.
                if len(wanted) < most and output.ended:
                    assert [*output.token_ids, 0] == wanted
                outputs.append([*output.token_ids, *[0] * output.ended])
    assert found[True] != found[False]
    assert sum(one[-1] == 0 for one in found[False]) > 6


def test_what_the_folder_says_is_followed(public: Path) -> None:
    translator = regard.load(public)
    size = translator.model.config.target_vocab_size
    target = translator.tokenizer.target
    assert (target.start_id, target.end_id) == (size - 1, 0)
    assert translator.options.banned == (size - 1,)
    assert (translator.options.length_penalty, translator.options.length_offset) == (0.5, 0.0)
    assert translator.max_tokens == 128
    with pytest.raises(ContextError, match="the model's context is 128"):
        translator.translate(["again " * 200])
    # The banned token has the highest score of all, and never comes.
    best = translator.hypotheses(["The captain sang."])[0][0]
    assert best.token_ids
    assert size - 1 not in best.token_ids
    change(public, "tokenizer_config.json", model_max_length=7)
    assert regard.load(public).max_tokens == 7
    change(public, "generation_config.json", bad_words_ids=[[size - 1], [3, 4]])
    with pytest.warns(UserWarning, match="1 bad words of several tokens are not watched for"):
        assert regard.load(public).options.banned == (size - 1,)
    # What generation_config.json does not say, config.json does.
    (public / "generation_config.json").unlink()
    change(public, "config.json", num_beams=2, eos_token_id=[0])
    assert regard.load(public).options.beam == 2


@pytest.mark.peer
@pytest.mark.parametrize("how", [{"suppress_tokens": [5, 7, 8, 11, 14]}, {"repetition_penalty": 1.4}])
def test_what_is_never_chosen_or_twice_is_theirs(how: dict[str, Any], public: Path) -> None:
    plain = regard.load(public).translate(SENTENCES)
    change(public, "generation_config.json", **how)
    tokenizer, model = theirs_of(public)
    translator = regard.load(public)
    outputs = [outputs[0] for outputs in translator.hypotheses(SENTENCES)]
    assert [one.text for one in outputs] != plain
    for text, output in zip(SENTENCES, outputs, strict=True):
        rows = tokenizer([text], return_tensors="pt")
        most = rows.input_ids.shape[1] + translator.options.max_extra_tokens
        wanted = model.generate(**rows, max_new_tokens=most, forced_eos_token_id=None)[0].tolist()[1:]
        assert [*output.token_ids, *[0] * output.ended] == wanted


def test_what_is_not_done_is_told_in_one_line(public: Path) -> None:
    change(
        public, "generation_config.json", max_length=512, forced_eos_token_id=0, min_length=0, renormalize_logits=False
    )
    assert regard.load(public)  # as real folders have it: nothing to tell
    change(public, "generation_config.json", no_repeat_ngram_size=3, max_length=20, num_beams=2, repetition_penalty=1.2)
    with pytest.warns(UserWarning, match="no_repeat_ngram_size, max_length, repetition_penalty$") as told:
        regard.load(public)
    assert len(told) == 1


def test_text_cannot_spell_a_special_token(public: Path) -> None:
    source = regard.load(public).tokenizer.source
    special = {source.start_id, source.end_id}
    for text in ("</s>", "a </s> b", "<pad>", "<pad></s>", "\u2581</s>", ">></s><<"):
        tokens = source.encode(text)
        assert tokens
        assert not special & {*tokens}, text
    # Characters that a model has never seen come out of it in one piece, whatever they spell.
    model = train(["abba cab", "bab abc cab", "a b c"], 12)
    few = Pieces(model, {"</s>": 0, "<unk>": 1, "\u2581": 2, "a": 3, "<pad>": 4}, 4, 0, 5, "test")
    assert few.encode("</s>")[-1] == 1
    assert few.encode("<pad>")[-1] == 1
    with pytest.raises(FormatError, match="lone surrogate"):
        source.encode("\ud800")
    assert source.pieces([source.encode("captain")[0], source.end_id])[-1] == "</s>"


def test_a_folder_of_our_own_keeps_such_tokenizers(public: Path, tmp_path: Path) -> None:
    translator = regard.load(public)
    out = tmp_path / "own"
    folder.save(out, translator)
    again = regard.load(out)
    assert (again.options, again.max_tokens) == (translator.options, translator.max_tokens)
    assert again.translate(TEXTS) == translator.translate(TEXTS)
    assert not (out / "target_vocab.json").exists()
    (out / "pieces.json").write_text('{"start_id": 1, "end_id": true}')
    with pytest.raises(FormatError, match="needs the whole numbers start_id, end_id"):
        regard.load(out)


def test_without_the_package_it_is_said(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    with pytest.raises(ResourceError, match=r"needs the sentencepiece package; pip install 'regard\[sentencepiece\]'"):
        regard.load(public)


def spoil_model(public: Path) -> None:
    (public / "source.spm").write_bytes(b"\x80\x04 no model")


def spoil_vocabulary(**values: Any) -> Callable[[Path], None]:
    return lambda public: change(public, "vocab.json", **values)


def spoil(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda public: change(public, name, **values)


BAD = {
    "model": (spoil_model, "not a sentencepiece model"),
    "no target": (lambda public: (public / "target.spm").unlink(), "no tokenizer is here"),
    "no vocabulary": (lambda public: (public / "vocab.json").unlink(), "no tokenizer is here"),
    "vocabulary's kind": (lambda public: (public / "vocab.json").write_text("[]"), "not a JSON object"),
    "beyond": (spoil("vocab.json", ab=10**6), "numbers pieces beyond the model's"),
    "no number": (spoil("vocab.json", ab="x"), "numbers pieces beyond the model's"),
    "alike": (spoil("vocab.json", ab=1), "numbers two pieces alike"),
    "two ends": (spoil("generation_config.json", eos_token_id=[0, 5]), r"eos_token_id is \[0, 5\], not one token"),
    "start": (spoil("generation_config.json", decoder_start_token_id=10**6), "the start token is 1000000"),
    "bad words": (spoil("generation_config.json", bad_words_ids=[3]), "bad_words_ids is no list of lists"),
    "suppressed": (spoil("generation_config.json", suppress_tokens=[[3]]), "suppress_tokens is no list of tokens"),
    "repetition": (spoil("generation_config.json", repetition_penalty=0), "repetition_penalty is 0"),
    "first": (
        spoil("generation_config.json", forced_bos_token_id=7),
        "forced_bos_token_id is 7: outputs begin with it",
    ),
    "far words": (spoil("generation_config.json", bad_words_ids=[[10**6]]), "names a token beyond"),
    "early": (spoil("generation_config.json", early_stopping="maybe"), "early_stopping is maybe"),
    "beams": (spoil("generation_config.json", num_beams=10**6), "beam is 1000000"),
    "penalty": (spoil("generation_config.json", length_penalty="x"), "length_penalty is -1.0"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_in_one_line(name: str, public: Path) -> None:
    damage, message = BAD[name]
    damage(public)
    with pytest.raises(DataError, match=message) as caught:
        regard.load(public)
    assert "\n" not in str(caught.value)


def test_a_model_elsewhere_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "Helsinki-NLP/opus-mt-de-en"
    for load in (regard.load, folder.load):
        with pytest.raises(UsageError, match=r"fetches no model by name; fetch it first .*: \./opus-mt-de-en"):
            load(name)
        with pytest.raises(UsageError, match="not a URL"):
            load(f"https://example.org/{name}")
        with pytest.raises(UsageError, match="not a URL"):
            load(Path(f"https://example.org/{name}"))
        for path in ("runs", "./runs/none", "/nowhere/at/all", tmp_path / "a" / "b"):
            with pytest.raises(RegardError, match=r"no model here|missing"):
                load(path)
    (tmp_path / "Helsinki-NLP").mkdir()  # now it looks like a path of this machine
    with pytest.raises(RegardError, match=r"no model here|missing"):
        regard.load(name)
    write_translator(tmp_path / "Helsinki-NLP" / "opus-mt-de-en")
    assert regard.load(name).translate([SENTENCES[0]])
    assert isinstance(regard.load(name).tokenizer.source, Pieces)
    assert pieces.has_pieces(Path(name))
    assert torch.is_grad_enabled()
