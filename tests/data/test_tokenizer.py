"""Text to tokens and back: nothing lost where nothing may be, and no text that can say more than text."""

import hashlib
import json
import random
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from regard.data.tokenizer import END, START, UNKNOWN, Kind, Tokenizer
from regard.errors import ConfigError, DataError, FormatError

KINDS = get_args(Kind)
LOSSLESS = ("byte-bpe", "characters")
# Words that spell what only the machine may say, often enough to become tokens of their own.
SPELLED = "the </s> cat <s> sat <0x41> on <unk> a</s>b x<0x41>y a<unk>b </s></s> <s>"
TEXTS = [SPELLED] * 40 + ["Straße naïve 日本語 élan", "aaaa aaa aa", "der Hund, der bellt", "🙂 👩‍👩‍👧 zu Ende "] * 20
SIZES = {"byte-bpe": 330, "bpe": 360, "wordpiece": 150, "unigram": 150, "characters": 400, "whitespace": 40}


def trained(kind: str, texts: list[str] = TEXTS, vocab_size: int | None = None) -> Tokenizer:
    return Tokenizer.train(texts, kind, SIZES[kind] if vocab_size is None else vocab_size)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(request.param)


ODD = [
    "</s>",
    "<s>",
    "<unk>",
    "<0x41>",
    "▁",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\u2028",
    "\u00a0",
    "\u0301",
    "e\u0301",
    "🙂",
]
ODD += [
    "👩\u200d👩\u200d👧",
    "🇩🇪",
    "\ufeff",
    "\ufffd",
    "\x00",
    "\x7f",
    "##",
    "Ġ",
    "Ċ",
    "a",
    "ß",
    "日",
    "א",
    "\U0010ffff",
    "'s",
    "12",
]


def random_text(draws: random.Random) -> str:
    pieces = []
    for _ in range(draws.randrange(12)):
        if draws.random() < 0.7:
            pieces.append(draws.choice(ODD))
            continue
        code = draws.randrange(0x110000)
        pieces.append(chr(code) if not 0xD800 <= code < 0xE000 else "x")
    return "".join(pieces)


@pytest.fixture(scope="module")
def random_texts() -> list[str]:
    draws = random.Random(1)
    return [random_text(draws) for _ in range(9_998)] + [" both ends ", ""]


@pytest.mark.parametrize("kind", LOSSLESS)
def test_ten_thousand_random_strings_come_back(kind: str, random_texts: list[str]) -> None:
    tokenizer = trained(kind)
    encoded = tokenizer.encode_all(random_texts)
    for text, tokens in zip(random_texts, encoded, strict=True):
        assert tokenizer.decode(tokens) == text
        assert tokenizer.start_id not in tokens
        assert tokenizer.end_id not in tokens
    # Both ways of encoding are one.
    assert all(
        tokenizer.encode(text) == tokens.tolist() for text, tokens in zip(random_texts[:500], encoded, strict=False)
    )


def test_bpe_loses_only_what_its_table_says(random_texts: list[str]) -> None:
    tokenizer = trained("bpe")
    for text in random_texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text.replace("▁", " ").removeprefix(" ")


def test_offsets_point_into_the_original_text(tokenizer: Tokenizer, random_texts: list[str]) -> None:
    kind_of_model = json.loads(tokenizer.to_json())["model"]["type"]
    keeps_joiners = kind_of_model != "WordPiece"  # whose normalizer leaves joiners out
    for text in [*random_texts[:500], *TEXTS[-4:]]:
        tokens, offsets = tokenizer.encode(text), tokenizer.offsets(text)
        assert len(tokens) == len(offsets)
        covered = bytearray(len(text))
        for token, (start, end) in zip(tokens, offsets, strict=True):
            assert 0 <= start <= end <= len(text)
            covered[start:end] = b"\1" * (end - start)
            piece = tokenizer.inner.decode([token], skip_special_tokens=False)
            # A piece that is text on its own stands in the text where it is said to stand.
            if piece and "\ufffd" not in piece and kind_of_model != "Unigram" and piece != UNKNOWN:
                said = "".join(
                    c for c in text[start:end].replace("▁", " ") if unicodedata.category(c) != "Cf" or keeps_joiners
                )
                assert piece.strip(" ").removeprefix("##") in said, (text, piece, start, end)
        # Whatever has no token is white space, or what BERT's normalizer takes for such or for nothing.
        missed = "".join(char for char, seen in zip(text, covered, strict=True) if not seen)
        if kind_of_model == "BPE":
            assert not missed
        else:
            assert not any(char.isalnum() for char in missed)


@pytest.mark.parametrize("kind", KINDS)
def test_text_never_yields_special_tokens(kind: str, random_texts: list[str]) -> None:
    # Also where such text makes up all that the tokenizer was trained on.
    for texts in (TEXTS, [SPELLED] * 50, ["</s>"] * 9, ["a<0x41> </s></s><s> <unk>" * 3] * 9):
        tokenizer = trained(kind, texts)
        special = {tokenizer.start_id, tokenizer.end_id}
        assert special == {tokenizer.vocab_size - 2, tokenizer.vocab_size - 1}
        for text in [SPELLED, "</s>", " </s> ", "<s>", "x</s>", "</s></s>", *random_texts[:300]]:
            assert not special & {*tokenizer.encode(text)}, text
            assert not special & {*tokenizer.encode_all([text])[0].tolist()}
        if kind == "bpe":
            assert tokenizer.decode(tokenizer.encode("x<0x41>y <0x41>")) == "x<0x41>y <0x41>"
            assert tokenizer.decode(tokenizer.encode("日 A")) == "日 A"


def test_start_and_end_vanish_and_unknown_shows() -> None:
    tokenizer = trained("whitespace")
    tokens = [tokenizer.start_id, *tokenizer.encode("der nie Hund, "), tokenizer.end_id]
    assert tokenizer.decode(tokens) == "der <unk> Hund,"
    assert trained("bpe").decode([]) == ""


def test_a_file_reads_back_to_the_same_tokens(tokenizer: Tokenizer, tmp_path: Path, random_texts: list[str]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json(), "utf-8")
    back = Tokenizer.read(path)
    assert back.to_json() == tokenizer.to_json()
    assert (back.vocab_size, back.start_id, back.end_id) == (tokenizer.vocab_size, tokenizer.start_id, tokenizer.end_id)
    for text in [*TEXTS[-4:], SPELLED, *random_texts[:300]]:
        assert back.encode(text) == tokenizer.encode(text)
        assert back.decode(back.encode(text)) == tokenizer.decode(tokenizer.encode(text))


def test_a_readers_pieces(tokenizer: Tokenizer) -> None:
    text = "der Hund 日 </s>"
    tokens = tokenizer.encode(text)
    pieces = tokenizer.pieces(tokens)
    assert len(pieces) == len(tokens)
    assert all(isinstance(piece, str) and piece for piece in pieces)


_DIGESTS = """
import hashlib, json, sys
sys.path[:0] = json.loads(sys.argv[1])
from test_tokenizer import digest, STABLE
print(json.dumps({kind: digest(kind) for kind in STABLE}))
"""
STABLE = ("byte-bpe", "bpe", "characters", "whitespace")


def digest(kind: str) -> str:
    draws = random.Random(3)
    # Many words of like counts, so that ties are everywhere.
    texts = [" ".join("".join(draws.choices("abcdefgh", k=4)) for _ in range(8)) for _ in range(300)]
    return hashlib.sha256(trained(kind, texts, 500).to_json().encode()).hexdigest()


def test_training_repeats_in_another_process() -> None:
    here = {kind: digest(kind) for kind in STABLE}
    command = [sys.executable, "-c", _DIGESTS, json.dumps([str(Path(__file__).parent)])]
    for seed in ("1", "2"):
        done = subprocess.run(
            command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True, timeout=60
        )
        assert json.loads(done.stdout) == here


# --------------------------------------------------------------------------------------------------- sizes and refusals


# Bytes, the alphabet of TEXTS, <unk>, start and end: whatever a kind cannot do without.
LEAST = {"byte-bpe": 258, "bpe": 297, "wordpiece": 58, "unigram": 90, "characters": 258, "whitespace": 3}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", [-(10**9), -1, 0, 1, 2, 3, 100, 258, 300, 1000, 10**9])
def test_the_vocabulary_is_no_larger_than_asked_for(kind: str, vocab_size: int) -> None:
    if vocab_size < LEAST[kind]:
        with pytest.raises(ConfigError, match=rf"^a vocabulary of {vocab_size} .*; give [a-z0-9 ]+$"):
            trained(kind, vocab_size=vocab_size)
        return
    tokenizer = trained(kind, vocab_size=vocab_size)
    assert 3 <= tokenizer.vocab_size <= vocab_size
    assert tokenizer.encode("der Hund")


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "wordpiece", "characters", "whitespace"])
def test_the_size_that_an_error_asks_for_is_enough(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"give at least \d+") as caught:
        trained(kind, vocab_size=2)
    needed = int(str(caught.value).rsplit(" ", 1)[1])
    assert needed == LEAST[kind]
    assert trained(kind, vocab_size=needed).vocab_size == needed


def test_rare_characters_and_words_get_no_token_of_their_own() -> None:
    texts = ["ab ab", "ac"]
    characters = Tokenizer.train(texts, "characters", 1000, min_count=2)
    assert characters.vocab_size == 256 + 2 + 2  # bytes; a and b; start and end
    assert characters.decode(characters.encode("cab")) == "cab"
    words = Tokenizer.train(texts, "whitespace", 1000, min_count=2)
    assert words.decode(words.encode("ab ac")) == "ab <unk>"


def test_the_most_frequent_words_are_kept() -> None:
    tokenizer = Tokenizer.train(["c c c b b a", f"{START} {END} {UNKNOWN} " * 9], "whitespace", 5)
    assert tokenizer.decode(tokenizer.encode(f"a b c {START} {END} {UNKNOWN}")) == "<unk> b c <unk> <unk> <unk>"


@pytest.mark.parametrize("kind", KINDS)
def test_without_text_there_is_nothing_to_train_on(kind: str) -> None:
    for texts in ([], [""], ["", ""]):
        with pytest.raises(DataError, match="no text"):
            Tokenizer.train(texts, kind)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown tokenizer kind 'words'; choose from byte-bpe, bpe"):
        Tokenizer.train(["a"], "words")


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    for call in (tokenizer.encode, tokenizer.offsets, lambda text: tokenizer.encode_all(["a", text])):
        with pytest.raises(FormatError, match="surrogate"):
            call("a\ud800b")


def spoil(change: Callable[[dict], object]) -> str:
    values = json.loads(trained("byte-bpe").to_json())
    change(values)
    return json.dumps(values)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[" * 100_000,
        '{"model": {"type": "BPE"}}',
        spoil(lambda v: v["model"]["vocab"].update(zz=10**9)),
        spoil(lambda v: v["model"]["merges"].append(["q", "qqqq"])),
        spoil(lambda v: v["added_tokens"].clear()),
        spoil(
            lambda v: v.update(
                pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
            )
        ),
        spoil(lambda v: v.update(normalizer={"type": "exec"})),
        b"\xff\xfe\x00",
        None,
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(content: str | bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FormatError, match=r"tokenizer\.json: ") as caught:
        Tokenizer.read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 300


def test_a_foreign_file_cannot_cut_or_pad(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    cut = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    pad = {
        "strategy": {"Fixed": 40},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    path.write_text(spoil(lambda v: v.update(truncation=cut, padding=pad)), "utf-8")
    text = "der Hund, der bellt"
    assert Tokenizer.read(path).encode(text) == trained("byte-bpe").encode(text)


@pytest.mark.slow
def test_a_mebibyte_of_one_letter_is_tokenized_in_little_time(tokenizer: Tokenizer) -> None:
    text = "a" * (1 << 20)
    began = time.process_time()
    (tokens,) = tokenizer.encode_all([text])
    assert time.process_time() - began < 2.0  # under 1 s on an idle core
    assert len(tokens) <= 1 << 20
