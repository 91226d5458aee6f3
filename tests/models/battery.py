"""What tests of every family share: tiny models with weights that matter, and a way to run them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.models.gan import Gan
from regard.models.interface import EncoderDecoder, ImageEncoder, LanguageModel
from regard.models.reconstructor import ImageReconstructor
from regard.models.registry import families, family
from regard.models.xlnet import XLNet

Rows = list[list[int]]


def cases(kind: Any) -> list[Any]:
    """The tiny settings of every family whose model is of a kind."""
    return [
        pytest.param(name, config, id=f"{name}-{place}")
        for name, one in families().items()
        if issubclass(one.build, kind)
        for place, config in enumerate(one.tiny)
    ]


def model_of(name: str, config: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    """A model with fresh weights, moved so far that its outputs are not flat; zeros that a start may have are gone."""
    torch.manual_seed(seed)
    model = family(name).build(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def tokens(lengths: Sequence[int], vocab_size: int, seed: int) -> Rows:
    draws = np.random.default_rng(seed)
    return [draws.integers(0, vocab_size, length).tolist() for length in lengths]


def row(sequences: Rows) -> Tensor:
    return torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.int64)


def vocabularies(config: Any) -> tuple[int, int]:
    """Tokens that may stand in a source, and in a target."""
    if hasattr(config, "vocab_size"):
        return config.vocab_size, config.vocab_size
    return config.source_vocab_size, config.target_vocab_size


def forward(model: nn.Module, sources: Rows, targets: Rows) -> tuple[Tensor, ...]:
    """Logits of each target, all in one batch. A language model reads source and target as one text."""
    lengths = [len(target) for target in targets]
    if isinstance(model, LanguageModel):
        texts = [source + target for source, target in zip(sources, targets, strict=True)]
        logits = model.head(model(row(texts), Segments.ragged([len(text) for text in texts])))
        return tuple(
            part[len(source) :] for part, source in zip(logits.split([*map(len, texts)]), sources, strict=True)
        )
    hidden_ND = model(
        row(sources), Segments.ragged([len(source) for source in sources]), row(targets), Segments.ragged(lengths)
    )
    return model.head(hidden_ND).split(lengths)


SOURCE_LENGTHS, TARGET_LENGTHS = (5, 1, 11, 3, 7), (2, 13, 1, 3, 7)
TEXT_LENGTHS = tuple(source + target for source, target in zip(SOURCE_LENGTHS, TARGET_LENGTHS, strict=True))


def ragged(config: Any) -> tuple[Rows, Rows]:
    source, target = vocabularies(config)
    return tokens(SOURCE_LENGTHS, source, 1), tokens(TARGET_LENGTHS, target, 2)


def images(config: Any, count: int, seed: int = 1, dtype: torch.dtype = torch.float64, more: int = 0) -> Tensor:
    """Images of the size that the model is made for, or so many pixels higher and twice as many wider."""
    height, width = config.image_size
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(count, config.num_channels, height + more, width + 2 * more, generator=draws, dtype=dtype)


def seen(model: ImageEncoder, pixels_BCYX: Tensor) -> Tensor:
    """What comes out at the end: scores of classes, or vectors where there is no head."""
    return model.pool(model(pixels_BCYX)) if model.head is None else model.classify(pixels_BCYX)


def outputs(model: nn.Module) -> Tensor:
    """What a model of any family makes of some ragged texts, or of two images; the same at every call."""
    config = model.config
    if isinstance(model, EncoderDecoder | LanguageModel):
        return torch.cat(forward(model, *ragged(config)))
    if isinstance(model, ImageEncoder):
        return seen(model, images(config, 2))
    if isinstance(model, ImageReconstructor):
        pixels = images(config, 2)
        grid = model.patches(pixels)
        return model(pixels, torch.rand(2, grid[0] * grid[1], generator=torch.Generator().manual_seed(3))).predicted_BTF
    if isinstance(model, Gan):
        draws = torch.Generator().manual_seed(3)
        return model.discriminator(model(torch.randn(3, config.latent_dim, generator=draws, dtype=torch.float64)))
    tokens_N, segments = row(tokens(SOURCE_LENGTHS, config.vocab_size, 1)), Segments.ragged(SOURCE_LENGTHS)
    types_N = torch.arange(len(tokens_N)) % 2
    if isinstance(model, XLNet):  # both streams
        return model.at(tokens_N, segments, torch.arange(0, len(tokens_N), 2), types_N)
    numbers = {"types_N": types_N} if config.num_types > 1 else {}
    return model(tokens_N, segments, **numbers, **({"languages_N": types_N} if config.num_languages else {}))
