"""Sentencepiece models of public folders: XLNet's, XLM-R's and Pegasus' numbers and texts, and files that lie."""

import io
import json
import random
import re
import struct
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from public_translator import SENTENCES

import regard
from regard.data import spiece
from regard.data.pieces import read_numbered
from regard.data.spiece import read_model, read_spiece
from regard.errors import FormatError, RegardError
from regard.models.public import write_folder
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.xlnet import XLNet, XLNetConfig
from regard.tasks.filler import Filler

# No letters that several pieces of equal scores make up: of equals the library and the package choose differently.
ODD = "In 2005, he paid 1,000 marks, naïve café, Größe ½ Ⅳ ﬁne 漢字 テスト x² … \"q\" ''z'' ``y`` a\u0301 1999,"
XLNET = ["<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
RANGES = (
    (32, 127),
    (160, 0x250),
    (0x300, 0x370),
    (0x2000, 0x2100),
    (0xAC00, 0xB000),
    (0x3040, 0x3100),
    (0x1F300, 0x1F700),
)
RANGES += ((0xFF00, 0xFFF0), (0, 0xD800), (0xE000, 0x110000))


def train(folder: Path, file: str, config: dict[str, Any], **how: Any) -> sentencepiece.SentencePieceProcessor:
    """Train a model, and lay it into a folder as its makers do."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SENTENCES, *[ODD] * 20]),
        model_writer=made,
        vocab_size=160,
        hard_vocab_limit=False,
        minloglevel=2,
        **how,
    )
    (folder / file).write_bytes(made.getvalue())
    (folder / "config.json").write_text(json.dumps(config))
    return sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())


def xlnet(folder: Path, **how: Any) -> sentencepiece.SentencePieceProcessor:
    given = {"bos_id": -1, "eos_id": -1, "control_symbols": XLNET}
    return train(folder, "spiece.model", {"model_type": "xlnet"}, **{**given, **how})


def pegasus(folder: Path) -> sentencepiece.SentencePieceProcessor:
    numbers = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    return train(folder, "spiece.model", {"model_type": "pegasus"}, user_defined_symbols=["<n>"], **numbers)


def texts(count: int, seed: int = 0) -> list[str]:
    """Random characters of many scripts, ordinary sentences, odd spaces, and special tokens spelled out."""
    draws = random.Random(seed)
    words = [*" ".join([*SENTENCES, ODD]).split(), "  ", "\t", "▁", "\u3000", "\xa0", "\n", "<cls>", "<eod>", "<unk>"]
    words += ["<mask>", "<mask_1>", "<unk_7>", "<n>", "</s>", "<pad>"]
    made = [lambda: "".join(chr(draws.randrange(*draws.choice(RANGES))) for _ in range(draws.randrange(25)))]
    made += [lambda: " ".join(draws.choices(words, k=draws.randrange(12)))]
    made += [lambda: "".join(draws.choices("a e n t o.▁ \t\n<>cls/1,0é", k=draws.randrange(20)))]
    return [draws.choice(made)() for _ in range(count)]


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["xlnet", "xlm-roberta"])
def test_tokens_types_and_texts_are_theirs(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    if kind == "xlnet":
        xlnet(tmp_path)
        theirs = transformers.XLNetTokenizer.from_pretrained(tmp_path)
    else:
        train(tmp_path, "sentencepiece.bpe.model", {"model_type": kind})
        theirs = transformers.XLMRobertaTokenizer.from_pretrained(tmp_path)
    ours = read_spiece(tmp_path, kind)
    assert ours.get_vocab() == theirs.get_vocab()
    for text in texts(3000):
        if kind == "xlnet" and re.search(r"\d,", unicodedata.normalize("NFKC", text)):
            continue  # theirs lets a number take its comma along, which the published code does not
        want = theirs(text).input_ids
        assert ours.encode(text).ids == want, text
        for skip in (True, False):
            told = theirs.decode(want, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(want, skip_special_tokens=skip) == told, text
    for one, two in zip(texts(200, 1), texts(200, 2), strict=True):
        if "," in one + two or not two:  # theirs takes an empty second text for none
            continue
        want = theirs(one, two, return_token_type_ids=True)
        found = ours.encode(one, two)
        assert found.ids == want.input_ids
        assert kind != "xlnet" or found.type_ids == want.token_type_ids


def published(processor: sentencepiece.SentencePieceProcessor, text: str, lower: bool) -> list[int]:
    """What the published code of XLNet does: preprocess_text and encode_pieces, in our words."""
    text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
    text = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    found: list[str] = []
    for piece in processor.encode(text.lower() if lower else text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            parts = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and parts[0][0] == "▁":
                parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
            found += [*parts, ","]
        else:
            found.append(piece)
    return [processor.piece_to_id(piece) for piece in found]


@pytest.mark.parametrize("lower", [False, True])
def test_tokens_are_those_of_the_published_code_of_xlnet(lower: bool, tmp_path: Path) -> None:
    """But for enclosing marks, which the library takes for accents, and tokens spelled out, which it takes for them."""
    processor = xlnet(tmp_path, split_by_number=False, split_by_unicode_script=False)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    names = [processor.id_to_piece(number) for number in range(processor.vocab_size())]
    assert any(name[-1] == "," and name[-2:-1].isdigit() for name in names)
    ours, read = read_spiece(tmp_path, "xlnet"), 0
    for text in texts(3000):
        plain = unicodedata.normalize("NFKD", text)
        if "<" not in plain and not any(
            unicodedata.category(char) in ("Me", "Mc", "Mn") for char in plain if not unicodedata.combining(char)
        ):
            assert ours.encode(text, add_special_tokens=False).ids == published(processor, text, lower), text
            read += 1
    assert read > 1000
    around = ours.encode("a captain", "again")
    assert [ours.id_to_token(one) for one in around.ids[-2:]] == ["<sep>", "<cls>"]
    assert around.type_ids[-1] == 2
    assert ours.encode("a captain").type_ids[-2:] == [0, 2]


def test_pegasus_numbers_are_the_models_103_higher_and_none_is_spelled(tmp_path: Path) -> None:
    processor = pegasus(tmp_path)
    ours = read_numbered(tmp_path, 0, 1, processor.vocab_size() + 103, 103)
    assert [
        ours.vocabulary[name]
        for name in ("<pad>", "</s>", "<mask_1>", "<mask_2>", "<unk_2>", "<unk_102>", "<unk>", "<n>")
    ] == [*(0, 1, 2, 3, 4, 104, 105, 106)]
    for text in texts(3000):
        want = [number + 103 for number in processor.encode(text)]
        assert ours.encode(text) == want, text
        if 105 not in want:
            assert ours.decode([*want, 1]) == processor.decode([number - 103 for number in want]).strip(), text


@pytest.mark.peer
def test_pegasus_sentences_are_theirs(tmp_path: Path) -> None:
    """Theirs cuts a space at the end off as a token, which the model's own code has not."""
    transformers = pytest.importorskip("transformers")
    processor = pegasus(tmp_path)
    # Theirs numbers them in the order in which they are told.
    config = {"mask_token": "<mask_1>", "mask_token_sent": "<mask_2>"}
    theirs = transformers.PegasusTokenizer.from_pretrained(tmp_path, **config)
    ours = read_numbered(tmp_path, 0, 1, processor.vocab_size() + 103, 103)
    assert {name: theirs.get_vocab()[name] for name in ours.vocabulary} == ours.vocabulary
    for text in [
        *SENTENCES,
        ODD,
        *(" ".join(processor.normalize(text).replace("▁", " ").split()) for text in texts(3000)),
    ]:
        if (
            "<" in text
            or "▁" in text
            or any(unicodedata.category(char)[0] == "M" for char in unicodedata.normalize("NFKC", text))
        ):
            continue  # what they take for special, and what the library makes of marks
        want = theirs(text).input_ids
        assert [*ours.encode(text), 1] == want, text
        if 105 not in want:
            assert ours.decode(want) == theirs.decode(want, skip_special_tokens=True).strip(), text


def test_a_public_xlnet_with_its_own_file_fills_in_masks(tmp_path: Path) -> None:
    processor = xlnet(tmp_path)
    torch.manual_seed(0)
    model = XLNet(XLNetConfig(processor.vocab_size(), 16, 2, 2, 24)).eval()
    write_folder(tmp_path, "xlnet", model)
    loaded = regard.load(tmp_path)
    assert isinstance(loaded, Filler)
    (filled,) = loaded.fill(["the captain <mask> a boat"], top_k=3)
    ids = loaded.tokenizer.encode("the captain <mask> a boat")
    place = ids.index(loaded.mask_id)
    assert [processor.id_to_piece(one) for one in ids[-2:]] == ["<sep>", "<cls>"]
    order = torch.zeros(len(ids), dtype=torch.int64)
    order[place] = 1
    read = model.streams(
        torch.tensor(ids), regard.Segments.ragged([len(ids)]), order_N=order, targets_P=torch.tensor([place])
    )
    logp_V = model.head(read.targets_PD)[0].detach().double().log_softmax(-1)
    assert [one.token for one in filled.masks[0]] == logp_V.topk(3).indices.tolist()
    assert filled.masks[0][0].probability == pytest.approx(float(logp_V.max().exp()), rel=1e-5)
    (tmp_path / "spiece.model").unlink()
    with pytest.raises(RegardError, match=r"no tokenizer.json here"):
        regard.load(tmp_path)


def test_a_public_pegasus_with_its_own_file_translates_and_goes_through_our_form(tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    size = pegasus(tmp_path / "public").vocab_size() + 103
    torch.manual_seed(0)
    config = TransformerConfig(
        *(size, size, 16, 24, 2), encoder_layers=1, decoder_layers=1, norm="pre",
        activation="relu", share="all", positions="sinusoidal-halves", max_len=64, output_bias=True
    )  # fmt: skip
    ids = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1}
    write_folder(tmp_path / "public", "transformer", Transformer(config), ids)
    assert json.loads((tmp_path / "public" / "config.json").read_text())["model_type"] == "pegasus"
    loaded = regard.load(tmp_path / "public")
    assert loaded.tokenizer.source.encode("the captain")[0] > 105
    regard.convert(tmp_path / "public", tmp_path / "ours", "regard")
    again = regard.load(tmp_path / "ours")
    for text in texts(50):
        assert again.tokenizer.source.encode(text) == loaded.tokenizer.source.encode(text)
    (tmp_path / "public" / "tokenizer_config.json").write_text(json.dumps({"offset": "many"}))
    with pytest.raises(FormatError, match="offset is many; there are"):
        regard.load(tmp_path / "public")
    (tmp_path / "public" / "tokenizer_config.json").write_text(json.dumps({"offset": 104}))
    with pytest.raises(FormatError, match="numbers pieces beyond the model's"):
        regard.load(tmp_path / "public")


def field(number: int, value: bytes) -> bytes:
    """A field of bytes, of fewer than 2^28."""
    size = bytes((len(value) >> shift & 127) | 128 for shift in (0, 7, 14)) + bytes([len(value) >> 21])
    return bytes([number << 3 | 2]) + size + value


def charsmap(units: list[int], text: bytes = b"x\0") -> Callable[[bytes], bytes]:
    table = struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + text
    return lambda data: data + field(3, field(2, table))


LIES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda data: b"", "not a sentencepiece model"),
    "a pickle": (lambda data: b"\x80\x04 no model", "not a sentencepiece model"),
    "cut short": (lambda data: data[:-9], "not a sentencepiece model"),
    "a length without end": (lambda data: b"\x0a" + b"\xff" * 12, "not a sentencepiece model"),
    "another kind": (lambda data: data + field(2, b"\x18\x02"), "of another kind than unigram; give tokenizer.json"),
    "an unknown beyond": (lambda data: data + field(2, b"\xc0\x02\xff\x7f"), "numbers do not go together"),
    "a score of nothing": (
        lambda data: data + field(1, b"\x0a\x01q\x15\x00\x00\xc0\x7f"),
        "numbers do not go together",
    ),
    "a table that leads out": (charsmap([0x7FFFFFFF, 0]), "not a sentencepiece model"),
    "a table too short": (charsmap([1 << 10, 97]), "not a sentencepiece model"),
    "a table of bytes": (charsmap([0] * 256, b"\xff\0"), "not a sentencepiece model"),
    "no tokens around": (lambda data: data.replace(b"<sep>", b"<sap>"), "the pieces lack <sep>"),
}


@pytest.mark.parametrize("name", LIES)
def test_files_that_lie_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    xlnet(tmp_path)
    spoil, message = LIES[name]
    path = tmp_path / "spiece.model"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(FormatError, match=message):
        read_spiece(tmp_path, "xlnet")


def test_a_table_whose_value_lies_inside_a_character_is_refused(tmp_path: Path) -> None:
    """Root → children at 256; there 'a' has a value; its value's unit names the text."""
    units = [0] * 768
    units[0] = 256 << 10
    units[256 ^ 97] = (512 ^ 256 ^ 97) << 10 | 1 << 8 | 97
    at = 256 ^ 97 ^ 512 ^ 256 ^ 97
    xlnet(tmp_path)
    path, texts_of = tmp_path / "spiece.model", "é\0".encode()
    kept = path.read_bytes()
    for value, is_good in ((0, True), (1, False), (99, False)):
        units[at] = value
        path.write_bytes(charsmap(units, texts_of)(kept))
        if is_good:
            assert read_spiece(tmp_path, "xlnet").normalizer.normalize_str("bat") == "bét"
        else:
            with pytest.raises(FormatError, match="not a sentencepiece model"):
                read_spiece(tmp_path, "xlnet")


def test_spoilt_bytes_never_end_in_anything_but_one_line(tmp_path: Path) -> None:
    xlnet(tmp_path)
    path, draws = tmp_path / "spiece.model", random.Random(0)
    whole = path.read_bytes()
    told: list[str] = []
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(draws.randint(1, 4)):
            data[draws.randrange(3000 if draws.random() < 0.5 else len(data))] = draws.randrange(256)
        path.write_bytes(data)
        try:
            made = read_spiece(tmp_path, "xlnet")
            for text in texts(20):
                made.encode(text)
        except RegardError as error:
            told.append(str(error))

    assert len(told) > 10
    assert not any("\n" in line for line in told)


def test_a_file_beyond_the_cap_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xlnet(tmp_path)
    monkeypatch.setattr(spiece, "MODEL_CAP_BYTES", 100)
    with pytest.raises(FormatError, match="over 100 bytes"):
        read_model(tmp_path / "spiece.model")
