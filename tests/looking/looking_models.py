"""Tiny models of every kind that is looked at, ready to be used, with weights that matter."""

from typing import Any

import torch
from torch import nn

from regard.data import Pair
from regard.data.pixels import Pixels
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions
from regard.models.bert import Bert, BertConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.labelled import Labelled, Tagged
from regard.models.vit import Vit, VitConfig
from regard.tasks.filler import Filler, OwnMasks
from regard.tasks.generator import Generator
from regard.tasks.images.classifier import ImageClassifier
from regard.tasks.labeller import Classes, Labeller, TextPairs
from regard.tasks.pairs import PairTokenizer, TokenizerConfig
from regard.tasks.tagger import Tagger
from regard.tasks.translator import Translator, build_model

TEXT = "the light of day and the dark of night"
PAIRS = [Pair(f"word {number} of many", f"{number} wort", number) for number in range(40)]
SIZES = {"embed_dim": 16, "mlp_dim": 24, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
RECURRENT = {"family": "rnn", "embed_dim": 8, "hidden_dim": 16, "attention_dim": 12}


def spread(model: Any) -> Any:
    """Move the weights so far that outputs are not flat."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def a_translator(max_tokens: int = 40, **model: Any) -> Translator:
    tokenizer = PairTokenizer.train(PAIRS, TokenizerConfig("byte-bpe", "whitespace", True, 300))
    made = spread(build_model(model or {"family": "transformer", **SIZES}, tokenizer, "test"))
    return Translator(made, tokenizer, DecodeOptions(3, length_penalty=0.0, max_extra_tokens=6), max_tokens)


def a_generator() -> Generator:
    tokenizer = Tokenizer.train([TEXT], "byte-bpe", 290)
    model: nn.Module = spread(GPT(GPTConfig(tokenizer.vocab_size, 16, 2, 2, max_len=40)))
    return Generator(model, tokenizer, DecodeOptions(max_extra_tokens=4, length_penalty=0.0), 40)


def a_filler() -> Filler:
    tokenizer = Tokenizer.train([TEXT], "byte-bpe", 290, mask=True)
    return Filler(spread(Bert(BertConfig(tokenizer.vocab_size, 16, 2, 2, 20, max_len=40))), OwnMasks(tokenizer), 40)


def _encoder(tokenizer: Tokenizer) -> Bert:
    return Bert(BertConfig(tokenizer.vocab_size, 16, 2, 2, 20, max_len=40, head="none"))


def a_labeller(names: tuple[str, ...] = ("dark", "light", "neither")) -> Labeller:
    tokenizer = Tokenizer.train([TEXT], "byte-bpe", 290)
    model = spread(Labelled(_encoder(tokenizer), len(names), "mean"))
    return Labeller(model, TextPairs.around(tokenizer), Classes(names), 40)


def a_tagger() -> Tagger:
    tokenizer = Tokenizer.train([TEXT], "byte-bpe", 290)
    return Tagger(spread(Tagged(_encoder(tokenizer), 3)), TextPairs.around(tokenizer), ("O", "B-x", "I-x"), 40)


def an_image_classifier() -> ImageClassifier:
    model = spread(Vit(VitConfig((12, 20), 1, 3, 4, 16, 2, 2, 24)))
    return ImageClassifier(model, Pixels((12, 20), (0.5,), (0.25,)), Classes(("disc", "ring", "bar")))
