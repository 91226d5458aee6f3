"""Maps of language models and encoders: rows by loops, names of tokens, refusals."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from public_encoder import write_encoder

import regard
from regard.attention import Segments
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions
from regard.errors import ContextError, UsageError
from regard.models.bert import Bert, BertConfig
from regard.models.gpt import GPT, GPTConfig
from regard.tasks.filler import Filler, OwnMasks
from regard.tasks.generator import Generator

TEXT = "the light of day"


@pytest.fixture
def generator() -> Generator:
    tokenizer = Tokenizer.train([TEXT], "byte-bpe", 290)
    torch.manual_seed(3)
    model = GPT(GPTConfig(tokenizer.vocab_size, 16, 2, 2, max_len=40)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return Generator(model, tokenizer, DecodeOptions(max_extra_tokens=4, length_penalty=0.0), 40)


def test_a_language_model_attends_to_what_is_before_as_the_loop_says(generator: Generator) -> None:
    maps = regard.look(generator, "the light", " of day")
    tokens = [generator.start_id, *generator.tokenizer.encode(TEXT)]
    assert maps.layers == ("blocks.0.self_attn", "blocks.1.self_attn")
    first = maps.maps[0]
    assert first.query_tokens == first.key_tokens
    assert "".join(first.query_tokens) == "<s>" + TEXT
    block, length = generator.model.blocks[0], len(tokens)
    with torch.inference_mode():
        segments = Segments.ragged([length])
        x_ND = block.self_norm(generator.model.embed(torch.tensor(tokens), segments))
        attn = block.self_attn
        q, k = (p(x_ND).unflatten(-1, (2, 8)) for p in (attn.q_proj, attn.k_proj))
    for head in range(2):
        for t in range(length):
            scores = (q[t, head] @ k[: t + 1, head].T / math.sqrt(8)).softmax(-1)
            assert np.allclose(first.weights_HTS[head, t, : t + 1], scores, atol=1e-6)
            assert not first.weights_HTS[head, t, t + 1 :].any()


def test_without_an_output_it_writes_one(generator: Generator) -> None:
    maps = regard.look(generator, "the light")
    assert maps.output == generator.generate(["the light"])[0].text
    assert maps.details["complete"] in ("yes", "no, cut at the limit")
    assert "blocks.1.self_attn" in maps._repr_html_()


def test_an_encoder_attends_both_ways_and_names_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    write_encoder(tmp_path / "encoder")
    encoder = regard.load(tmp_path / "encoder")
    maps = regard.look(encoder, "a b c")
    assert maps.output == ""
    one = maps.maps[0]
    assert one.query_tokens == tuple(encoder.tokenizer.encode("a b c").tokens)
    assert one.weights_HTS[:, 0, 1:].all()  # to what stands behind it, too
    assert np.allclose(one.weights_HTS.sum(-1), 1, atol=1e-5)
    with pytest.raises(UsageError, match="an output for a model that writes none"):
        regard.look(encoder, "a b", "c")
    with pytest.raises(UsageError, match="an empty text"):
        regard.look(encoder, "  ")
    with pytest.raises(ContextError, match=r"the text has \d+ tokens; the model's context is 12"):
        regard.look(encoder, "a " * 30)


def test_a_mask_is_among_what_is_attended_to(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([TEXT], "byte-bpe", 290, mask=True)
    torch.manual_seed(3)
    model = Bert(BertConfig(tokenizer.vocab_size, 16, 1, 2, 20, max_len=40))
    filler = Filler(model, OwnMasks(tokenizer), 40)
    maps = regard.look(filler, "the <mask> of day")
    assert "<mask>" in maps.maps[0].query_tokens
    assert maps.output == filler.fill(["the <mask> of day"])[0].text
    assert regard.look(filler, "the light").output == ""
