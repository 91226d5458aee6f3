"""A trained model as a folder: config.json, model.safetensors, tokenizers, generation_config.json, README.md.

No config selects code: the family is looked up among those that regard has, every key is checked, and sizes are bounded
before anything is built.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from regard import settings
from regard.data import pixels
from regard.data.pieces import FILES, Pieces, save_pieces
from regard.data.pixels import Pixels
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions
from regard.errors import CheckpointError, ConfigError, DataError, FormatError, UsageError
from regard.files import json_bytes, read_config, reading, write_aside
from regard.layers.pooling import Pooling
from regard.models.bert import Bert, BertConfig
from regard.models.gan import Gan
from regard.models.interface import EncoderDecoder, ImageEncoder, LanguageModel, MaskFiller
from regard.models.labelled import Labelled, Tagged
from regard.models.reconstructor import ImageReconstructor
from regard.models.registry import check_bounds, families, family
from regard.models.weights import build_like, gather, map_tensors, write_tensors
from regard.places import on_disk
from regard.tasks.filler import Filler, OwnMasks
from regard.tasks.generator import Generator
from regard.tasks.images.classifier import ImageClassifier, ImageEmbedder
from regard.tasks.images.generator import ImageGenerator
from regard.tasks.images.reconstructor import Reconstructor
from regard.tasks.labeller import Classes, Labeller, Numbers, objective, read_text_pairs
from regard.tasks.pairs import SHARED, SIDES, PairTokenizer
from regard.tasks.plain import CONFIG_CAP_BYTES, FORMAT, MODEL_TYPE, check_format, dtype_name
from regard.tasks.public_pairs import load_public, translates
from regard.tasks.public_text import PublicVocabulary
from regard.tasks.tagger import Tagger
from regard.tasks.translator import Translator

Seeing = ImageEmbedder | ImageClassifier | Reconstructor | ImageGenerator
Product = Translator | Generator | Filler | Labeller | Tagger | Seeing
P = TypeVar("P", bound=Product)


@dataclass(frozen=True)
class FolderConfig:
    """What config.json holds.

    Attributes:
        model_type: ``regard`` says who wrote it.
        format: Of this file.
        task: What the model was trained for.
        family: Of the model.
        settings: Of the family.
        max_tokens: The model's context.
        references: How evaluation groups lines.
        labels: Of a model that labels texts: its classes, or the numbers' mean and deviation.
        pooling: Of a model that labels texts: how a text's vectors become one.
        start_id: Of a language model with a public tokenizer: the token before a text; -1 for none.
        end_ids: Likewise, the tokens that end one; empty where the tokenizer names them itself.
        architectures: Name of the module, for readers; it selects nothing.
        dtype: Of the weights, likewise.
    """

    model_type: Literal["regard"]
    format: int
    task: str
    family: str
    settings: dict[str, Any]
    max_tokens: int
    references: Literal["line", "source"] = "line"
    labels: dict[str, Any] = field(default_factory=dict)
    pooling: Pooling = "mean"
    start_id: int = -1
    end_ids: tuple[int, ...] = ()
    architectures: tuple[str, ...] = ()
    dtype: str = "float32"


def save_tokenizers(folder: Path, tokenizers: Mapping[str, Tokenizer]) -> None:
    """Write tokenizers; what an earlier model left in this folder must not be read as this one's.

    Args:
        folder: An existing folder.
        tokenizers: By the names of their files.
    """
    for stale in (SHARED, *SIDES, *FILES, pixels.FILE):
        if stale not in tokenizers:
            (folder / stale).unlink(missing_ok=True)
    for name, tokenizer in tokenizers.items():
        write_aside(folder / name, tokenizer.to_json())


def save_pair_tokenizer(folder: Path, tokenizer: PairTokenizer) -> None:
    """Write the tokenizers of pairs: tokenizer.json, one for each side, or the files of sentencepiece models.

    Args:
        folder: An existing folder.
        tokenizer: The tokenizers.
    """
    if isinstance(tokenizer.source, Pieces) and isinstance(tokenizer.target, Pieces):
        for stale in (SHARED, *SIDES):
            (folder / stale).unlink(missing_ok=True)
        save_pieces(folder, tokenizer.source, tokenizer.target)
    else:
        save_tokenizers(folder, tokenizer.files())


def save(folder: Path, product: Product, weights: Mapping[str, Tensor] | None = None, card: str = "") -> None:
    """Write a model's folder; each file whole or not at all, the weights last.

    Args:
        folder: Made where it is missing.
        product: The model with its tokenizers.
        weights: Other weights than the model's own; None for its own.
        card: README.md; empty for none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = product.model
    name = next(name for name, known in families().items() if isinstance(model.config, known.config))
    config = FolderConfig(
        model_type="regard",
        format=FORMAT,
        task=product.task,
        family=name,
        settings=settings.plain(model.config),
        max_tokens=product.max_tokens,
        references=product.references if isinstance(product, Translator) else "line",
        labels=_labels(product),
        pooling=product.model.pooling if isinstance(product, Labeller) else "mean",
        **_ends(product),
        architectures=(type(model).__name__,),
        dtype=dtype_name(model),
    )
    if isinstance(product, Translator):
        save_pair_tokenizer(folder, product.tokenizer)
    else:
        save_tokenizers(folder, product.tokenizers())
    if isinstance(product, Seeing):
        product.pixels.save(folder)
    if product.options is not None:
        write_aside(folder / "generation_config.json", json_bytes(settings.plain(product.options)))
    if card:
        write_aside(folder / "README.md", card)
    write_aside(folder / "config.json", json_bytes(settings.plain(config)))
    write_tensors(folder / "model.safetensors", gather(model) if weights is None else weights)


def _ends(product: Product) -> dict[str, Any]:
    if not isinstance(product, Generator) or not isinstance(product.tokenizer, PublicVocabulary):
        return {}
    start = product.start_id
    return {"start_id": -1 if start is None else start, "end_ids": product.end_ids}


def _labels(product: Product) -> dict[str, Any]:
    if isinstance(product, Tagger):
        return Classes(product.names).facts()
    return product.goal.facts() if isinstance(product, Labeller | ImageClassifier) else {}


def load(path: str | Path, device: torch.device | None = None) -> Product:
    """Load a trained model.

    Args:
        path: A run's folder, or the model folder in it; or a public folder of an encoder–decoder.
        device: Where it is to run; None is the CPU.

    Returns:
        The model with its tokenizers.

    Raises:
        DataError: There is no model.
        FormatError: A file is not what it claims to be.
        UsageError: The path looks like a model's name on a hub, and nothing is there.
        CheckpointError: Weights and config do not fit.
    """
    folder = on_disk(path)
    with reading(folder):
        if (folder / "model" / "config.json").exists():
            folder = folder / "model"
        elif (folder / "config.yaml").exists() and (folder / "checkpoints").exists():
            mend = "train it to its end with the same command"
            raise DataError("this run has not finished", where=str(path), mend=mend)
        if not (folder / "config.json").is_file():
            mend = "give a folder that regard train made"
            raise DataError("no model here (no config.json)", where=str(path), mend=mend)
    values = read_config(folder / "config.json", CONFIG_CAP_BYTES)
    kind = values.get("model_type")
    if isinstance(kind, str) and translates(kind):
        translator, notes = load_public(folder, device)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return translator
    if kind != MODEL_TYPE:
        mend = "give a folder that regard train made, or a public encoder–decoder's"
        what = f"model_type is {str(kind)[:40]!r}, not 'regard'"
        raise FormatError(what, where=str(folder / "config.json"), mend=mend)
    if values.get("task") == "none":
        what = f"a {str(values.get('family'))[:40]} that no task of regard has trained is not ready for use"
        raise FormatError(what, where=str(folder / "config.json"))
    config = settings.build(FolderConfig, values, str(folder / "config.json"))
    check_format(config.format, folder)
    if config.max_tokens < 1:
        raise ConfigError(f"max_tokens is {config.max_tokens}", where=str(folder / "config.json"))
    if config.task not in _KINDS:
        raise ConfigError(f"unknown task {config.task[:40]!r}", where=str(folder / "config.json"))
    kind, finish = _KINDS[config.task]
    known = family(config.family)
    if not issubclass(known.build, kind):  # type: ignore[arg-type]
        raise ConfigError(f"a {config.family} is no model for {config.task}", where=str(folder / "config.json"))
    model_config = settings.build(known.config, config.settings, f"{folder / 'config.json'}: settings")
    check_bounds(model_config, str(folder / "config.json"))

    def build(make: Callable[[Any], nn.Module] = known.build) -> Any:
        return build_like(make, model_config, map_tensors(folder / "model.safetensors"), folder)

    return finish(folder, config, model_config, build, device)


def _options(folder: Path) -> DecodeOptions:
    file = folder / "generation_config.json"
    return settings.build(DecodeOptions, read_config(file, CONFIG_CAP_BYTES), str(file))


def load_as(kind: type[P], path: str | Path, device: torch.device | None = None) -> P:
    """Load a trained model of one kind.

    Args:
        kind: What it has to be.
        path: A run's folder, or the model folder in it.
        device: Where it is to run; None is the CPU.

    Returns:
        The model with its tokenizers.

    Raises:
        UsageError: It is of another kind.
    """
    product = load(path, device)
    if not isinstance(product, kind):
        verbs = " or ".join(f"regard {verb}" for verb in product.verbs)
        raise UsageError(f"a model for the task {product.task!r}", where=str(path), mend=f"use it with {verbs}")
    return product


def _translator(
    folder: Path,
    config: FolderConfig,
    model_config: Any,
    build: Callable[..., Any],
    device: torch.device | None,
) -> Translator:
    tokenizer = PairTokenizer.read(folder)
    if tokenizer is None:
        raise DataError("the tokenizer is missing", where=str(folder), mend="give a folder that is whole")
    sizes = tokenizer.source.vocab_size, tokenizer.target.vocab_size
    if (model_config.source_vocab_size, model_config.target_vocab_size) != sizes:
        raise CheckpointError(f"the tokenizers have {sizes} tokens, the model other vocabularies", where=str(folder))
    return Translator(build(), tokenizer, _options(folder), config.max_tokens, config.references, device)


def _generator(
    folder: Path,
    config: FolderConfig,
    model_config: Any,
    build: Callable[..., Any],
    device: torch.device | None,
) -> Generator:
    if not (folder / SHARED).exists():
        raise DataError("the tokenizer is missing", where=str(folder), mend="give a folder that is whole")
    if config.end_ids:
        inner = read_text_pairs(folder / SHARED)
        ids = (config.start_id, *config.end_ids)
        if inner.vocab_size > model_config.vocab_size or not all(-1 <= n < model_config.vocab_size for n in ids):
            sizes = f"the tokenizer has {inner.vocab_size} tokens, the model {model_config.vocab_size}"
            raise CheckpointError(sizes, where=str(folder))
        start = None if config.start_id < 0 else config.start_id
        vocabulary = PublicVocabulary(inner.inner, start, config.end_ids)
        return Generator(build(), vocabulary, _options(folder), config.max_tokens, device)
    tokenizer = Tokenizer.read(folder / SHARED)
    if model_config.vocab_size != tokenizer.vocab_size:
        sizes = f"the tokenizer has {tokenizer.vocab_size} tokens, the model {model_config.vocab_size}"
        raise CheckpointError(sizes, where=str(folder))
    return Generator(build(), tokenizer, _options(folder), config.max_tokens, device)


def _filler(
    folder: Path, config: FolderConfig, model_config: Any, build: Callable[..., Any], device: torch.device | None
) -> Filler:
    if not (folder / SHARED).exists():
        raise DataError("the tokenizer is missing", where=str(folder), mend="give a folder that is whole")
    tokenizer = Tokenizer.read(folder / SHARED)
    if model_config.vocab_size != tokenizer.vocab_size:
        sizes = f"the tokenizer has {tokenizer.vocab_size} tokens, the model {model_config.vocab_size}"
        raise CheckpointError(sizes, where=str(folder))
    try:
        return Filler(build(), OwnMasks(tokenizer), config.max_tokens, device)
    except FormatError as error:  # no mask, or no head for one
        raise FormatError(error.what, where=error.where or str(folder), mend=error.mend) from error


def _labeller(
    folder: Path, config: FolderConfig, model_config: Any, build: Callable[..., Any], device: torch.device | None
) -> Labeller:
    goal = objective(config.task, config.labels, str(folder / "config.json"))
    tokenizer = read_text_pairs(folder / SHARED)
    if tokenizer.vocab_size > model_config.vocab_size:
        sizes = f"the tokenizer has {tokenizer.vocab_size} tokens, the model {model_config.vocab_size}"
        raise CheckpointError(sizes, where=str(folder))

    def make(encoder: BertConfig) -> Labelled:
        return Labelled(Bert(encoder), goal.num_outputs, config.pooling)

    model = build(make)
    return Labeller(model, tokenizer, goal, config.max_tokens, device)


def _tagger(
    folder: Path, config: FolderConfig, model_config: Any, build: Callable[..., Any], device: torch.device | None
) -> Tagger:
    goal = objective(Classes.task, config.labels, str(folder / "config.json"))
    tokenizer = read_text_pairs(folder / SHARED)
    if tokenizer.vocab_size > model_config.vocab_size:
        sizes = f"the tokenizer has {tokenizer.vocab_size} tokens, the model {model_config.vocab_size}"
        raise CheckpointError(sizes, where=str(folder))

    def make(encoder: BertConfig) -> Tagged:
        return Tagged(Bert(encoder), goal.num_outputs)

    return Tagger(build(make), tokenizer, config.labels["names"], config.max_tokens, device)


def _image_classifier(
    folder: Path, config: FolderConfig, model_config: Any, build: Callable[..., Any], device: torch.device | None
) -> ImageClassifier:
    goal = objective(Classes.task, config.labels, str(folder / "config.json"))
    if model_config.num_classes != goal.num_outputs:
        what = f"{goal.num_outputs} classes for a head of {model_config.num_classes}"
        raise CheckpointError(what, where=str(folder / "config.json"))
    return ImageClassifier(build(), Pixels.read(folder), Classes(tuple(config.labels["names"])), device)


def _image_embedder(
    folder: Path, config: FolderConfig, model_config: Any, build: Callable[..., Any], device: torch.device | None
) -> ImageEmbedder:
    return ImageEmbedder(build(), Pixels.read(folder), config.task, device)


def _reconstructor(
    folder: Path, config: FolderConfig, model_config: Any, build: Callable[..., Any], device: torch.device | None
) -> Reconstructor:
    return Reconstructor(build(), Pixels.read(folder), device)


def _image_generator(
    folder: Path, config: FolderConfig, model_config: Any, build: Callable[..., Any], device: torch.device | None
) -> ImageGenerator:
    pixels = Pixels.read(folder)
    if (pixels.size, len(pixels.mean)) != (tuple(model_config.image_size), model_config.num_channels):
        what = f"images of {list(pixels.size)} pixels and {len(pixels.mean)} channels, and the model makes others"
        raise CheckpointError(what, where=str(folder))
    return ImageGenerator(build(), pixels, device)


# What each task's folder holds: the kind of model, and what is made of it.
_KINDS: dict[str, tuple[type, Callable[..., Any]]] = {
    Translator.task: (EncoderDecoder, _translator),
    Generator.task: (LanguageModel, _generator),
    Filler.task: (MaskFiller, _filler),
    Classes.task: (Bert, _labeller),
    Numbers.task: (Bert, _labeller),
    Tagger.task: (Bert, _tagger),
    "classify-images": (ImageEncoder, _image_classifier),
    "contrast": (ImageEncoder, _image_embedder),
    Reconstructor.task: (ImageReconstructor, _reconstructor),
    ImageGenerator.task: (Gan, _image_generator),
}
