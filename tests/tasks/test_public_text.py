"""Public causal models from a folder: what stands before a prompt, and how texts go on, against the public library."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import regard
from regard.decoding import DecodeOptions
from regard.errors import FormatError
from regard.looking.doing import text_of
from regard.models.llama import Llama, LlamaConfig
from regard.models.public import write_folder
from regard.tasks.generator import Generator, begun

TEXTS = ["the light", "a", "<s>the light"]
START = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
FRAMES: dict[str, Any] = {
    "none": None,
    "offsets alone": processors.ByteLevel(trim_offsets=True),
    "start": START,
    "both": processors.Sequence([processors.ByteLevel(), START]),
}


def byte_tokenizer() -> Tokenizer:
    """Bytes alone, after three special tokens."""
    names = ["<s>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(names[:3])
    return made


def write(folder: Path, tokenizer: Tokenizer, max_len: int = 128, **more: Any) -> None:
    """Write a tiny Llama, whose config names a start and an end as nearly all of them do."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(3)
    model = Llama(LlamaConfig(tokenizer.get_vocab_size(), 16, 2, 4, 2, mlp_dim=24, max_len=max_len))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    write_folder(folder, "llama", model, {"bos_token_id": 0, "eos_token_id": 1})
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, **more}))


def framed_by(processor: Any) -> Tokenizer:
    made = byte_tokenizer()
    if processor is not None:
        made.post_processor = processor
    return made


@pytest.mark.peer
@pytest.mark.parametrize("frame", FRAMES)
def test_before_a_prompt_stands_what_their_tokenizer_puts_there(frame: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write(tmp_path, framed_by(FRAMES[frame]))
    loaded = regard.load(tmp_path)
    assert isinstance(loaded, Generator)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS[:2]:
        assert begun(loaded.tokenizer, text) == theirs(text).input_ids
    # A prompt may begin with the start, as templates for chats do; ours then puts no second one there.
    assert begun(loaded.tokenizer, TEXTS[2]) == [0, *theirs(TEXTS[0], add_special_tokens=False).input_ids]
    assert loaded.score(["the light"])[0][1] == len(begun(loaded.tokenizer, "the light"))  # and the end


def word_tokenizer() -> Tokenizer:
    """Words and letters, with the space before them as Llama's sentencepiece tokenizers have it."""
    words = ["▁the", "▁cat", "▁dog", "▁sat", "▁", *"abcdeghost.", *(f"▁w{n}" for n in range(30))]
    made = Tokenizer(
        models.BPE({name: n for n, name in enumerate(["<s>", "</s>", "<unk>", *words])}, [], unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.post_processor = START
    made.add_special_tokens(["<s>", "</s>", "<unk>"])
    return made


@pytest.mark.peer
def test_what_is_written_keeps_the_space_before_its_first_word(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write(tmp_path, word_tokenizer())
    loaded = regard.load(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    spaces = 0
    for seed in range(12):
        options = DecodeOptions(max_extra_tokens=6, length_penalty=0.0, sample=True, seed=seed)
        heard: list[str] = []
        (one,) = loaded.generate(["a cat"], options, listen=lambda _, piece, heard=heard: heard.append(piece))
        before = theirs("a cat").input_ids
        whole = theirs.decode([*before, *one.token_ids], skip_special_tokens=True)
        assert "a cat" + one.text == whole
        assert "".join(heard) == one.text
        assert text_of(loaded, one.token_ids, "a cat") == one.text
        spaces += one.text.startswith(" ")
        if len(one.text) > 3:  # a stop text at the seam ends it there
            (cut,) = loaded.generate(["a cat"], replace(options, stop=(one.text[:2],)))
            assert (cut.text, cut.ended) == ("", True)
            assert len(cut.token_ids) < len(one.token_ids)
    assert 3 < spaces < 12


def test_a_stop_text_of_any_length_ends_the_output_where_it_ends(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    write(tmp_path, tokenizer, 256)
    loaded = regard.load(tmp_path)
    banned = tuple(n for n in range(tokenizer.get_vocab_size()) if not tokenizer.decode([n]).isalpha())
    options = DecodeOptions(max_extra_tokens=220, length_penalty=0.0, sample=True, seed=2, banned=banned)
    (whole,) = loaded.generate(["the light"], options)
    assert len(whole.text) == 220  # a token is a letter
    for length in (1, 30, 64, 65, 90, 150):
        stop, heard = whole.text[20 : 20 + length], list[str]()
        how = replace(options, stop=(stop,))
        (one,) = loaded.generate(["the light"], how, listen=lambda _, piece, heard=heard: heard.append(piece))
        assert one.text == whole.text[: whole.text.index(stop)] == "".join(heard)
        assert (one.ended, len(one.token_ids)) == (True, len(one.text) + length)


@pytest.mark.parametrize("asked", [True, False])
def test_add_bos_token_counts_and_where_the_tokenizer_differs_it_is_told(asked: bool, tmp_path: Path) -> None:
    write(tmp_path, framed_by(START if asked else None), add_bos_token=asked)
    assert regard.load(tmp_path).start_id == (0 if asked else None)
    write(tmp_path, framed_by(None if asked else START), add_bos_token=asked, bos_token={"content": "<s>"})
    with pytest.warns(UserWarning, match=rf"add_bos_token is {str(asked).lower()} and counts: tokenizer.json puts"):
        assert regard.load(tmp_path).start_id == (0 if asked else None)


def test_other_tokens_around_a_text_are_told_or_refused(tmp_path: Path) -> None:
    special = [("<s>", 0), ("</s>", 1)]
    write(tmp_path, framed_by(processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special)))
    with pytest.warns(UserWarning, match="puts tokens behind a text; prompts go on without them"):
        assert regard.load(tmp_path).start_id == 0
    write(tmp_path, framed_by(processors.TemplateProcessing(single="<s> </s> $A", special_tokens=special)))
    with pytest.raises(FormatError, match="the tokenizer puts 2 tokens before a text"):
        regard.load(tmp_path)
    write(tmp_path, byte_tokenizer(), add_bos_token=True, bos_token="<none>")
    with pytest.raises(FormatError, match="add_bos_token is true, and bos_token is no token"):
        regard.load(tmp_path)


HOW: list[dict[str, Any]] = [
    {"repetition_penalty": 1.6},
    {"suppress_tokens": [*range(40, 160)]},
    {"bad_words_ids": [[n] for n in range(40, 160)]},
]


@pytest.mark.peer
@pytest.mark.parametrize("how", HOW, ids=lambda how: next(iter(how)))
def test_texts_go_on_as_the_folder_says(how: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write(tmp_path, framed_by(START))
    plain = [one.token_ids for one in regard.load(tmp_path).generate(TEXTS)]
    (tmp_path / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 1, **how}))
    loaded = regard.load(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    outputs = loaded.generate(TEXTS)
    assert [one.token_ids for one in outputs] != plain
    for text, output in zip(TEXTS, outputs, strict=True):
        ids = torch.tensor([begun(loaded.tokenizer, text)])
        most = {"max_new_tokens": loaded.options.max_extra_tokens, "pad_token_id": 0}
        wanted = theirs.generate(ids, attention_mask=torch.ones_like(ids), **most)[0, ids.shape[1] :].tolist()
        assert [*output.token_ids, *[1] * output.ended] == wanted


def test_what_is_not_done_is_told_in_one_line(tmp_path: Path) -> None:
    write(tmp_path, framed_by(START))
    whole = regard.load(tmp_path).generate(["the light"])[0].text
    stop = whole[5:7]
    asked = {
        "do_sample": True,
        "temperature": 0.6,
        "num_beams": 3,
        "max_length": 9,
        "min_length": 0,
        "stop_strings": stop,
    }
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, **asked}))
    assert regard.load(tmp_path).generate(["the light"])[0].text == whole[: whole.index(stop)]
    more = {"no_repeat_ngram_size": 2, "sequence_bias": [[[9], 50.0]], "bad_words_ids": [[4], [5, 6]]}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, **more}))
    line = r"outputs may differ: no_repeat_ngram_size, sequence_bias, bad_words_ids \(1 bad words"
    with pytest.warns(UserWarning, match=line) as told:
        assert regard.load(tmp_path).options.banned == (4,)
    assert len(told) == 1
