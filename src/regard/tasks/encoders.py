"""Where fine-tuning starts from: a public encoder with its tokenizer, or a fresh one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.data import pretrained
from regard.data.tokenizer import Kind, Tokenizer
from regard.errors import ConfigError
from regard.files import read_config
from regard.models.bert import Bert
from regard.models.public import read_folder
from regard.places import existing
from regard.tasks.building import build
from regard.tasks.corpus import CATALOGUE
from regard.tasks.filler import Filler
from regard.tasks.folder import load_as
from regard.tasks.labeller import TextPairs, read_text_pairs
from regard.tasks.plain import CONFIG_CAP_BYTES, MODEL_TYPE


@dataclass(frozen=True)
class LabelTokenizerConfig:
    """How texts become tokens where the model starts from nothing.

    Attributes:
        kind: What a token is.
        vocab_size: Tokens at most.
    """

    kind: Kind = "byte-bpe"
    vocab_size: int = 8000


@dataclass(frozen=True)
class Start:
    """What fine-tuning starts from.

    Attributes:
        tokenizer: The encoder's.
        encoder: Makes the encoder.
    """

    tokenizer: TextPairs
    encoder: Callable[[], Bert]


def start(
    init: str,
    max_tokens: int,
    dropout: float,
    model: Mapping[str, Any],
    tokenizer: LabelTokenizerConfig,
    texts: Iterable[str],
    kept: Path | None,
) -> Start:
    """Load an encoder, or get ready to build one.

    Args:
        init: A public folder, a run's folder of ours, or ``catalogue:NAME`` for weights inside a package; empty for a
            fresh encoder.
        max_tokens: Tokens of a text at most.
        dropout: Of a public encoder; below 0 as its maker set it.
        model: ``family`` and settings of a fresh one.
        tokenizer: How texts become its tokens.
        texts: What a fresh tokenizer is fit on.
        kept: Where a resumed run has its tokenizer; None for a new run.

    Returns:
        The start.

    Raises:
        ConfigError: The folder holds no encoder, or one that reads less.
    """
    if init:
        is_named = init.startswith(CATALOGUE)
        source = pretrained.get(init.removeprefix(CATALOGUE)) if is_named else existing(init)
        encoder, found = _read(source, init)
        if encoder.max_tokens < max_tokens:
            what = f"data.max_tokens is {max_tokens}, the encoder reads {encoder.max_tokens}"
            raise ConfigError(what, where=init)
        for module in encoder.modules() if dropout >= 0 else ():
            if isinstance(module, torch.nn.Dropout):
                module.p = dropout
        return Start(found, encoder.float)
    if kept is not None and kept.exists():
        found = read_text_pairs(kept)
    else:
        found = TextPairs.around(Tokenizer.train(texts, tokenizer.kind, tokenizer.vocab_size))
    values = {"max_len": max_tokens, "head": "none", **model}
    given = {"vocab_size": found.vocab_size}
    return Start(found, lambda: build(values, "bert", given, Bert, "label texts", "model"))


def _read(source: Path, init: str) -> tuple[Bert, TextPairs]:
    """Read an encoder and its tokenizer; of a masked model of ours the encoder without its head."""
    folder = source / "model" if (source / "model" / "config.json").is_file() else source
    tokenizer = folder / "tokenizer.json"
    if read_config(folder / "config.json", CONFIG_CAP_BYTES).get("model_type") == MODEL_TYPE:
        whole = load_as(Filler, source).model
        encoder = Bert(replace(whole.config, head="none", pooler=False, next_sentence=False))
        encoder.load_state_dict({name: whole.state_dict()[name] for name in encoder.state_dict()})
        return encoder, read_text_pairs(tokenizer)
    name, encoder, _ = read_folder(folder)
    if not isinstance(encoder, Bert):
        raise ConfigError(f"a {name} is no encoder", where=init, mend="give a bidirectional one")
    return encoder, read_text_pairs(tokenizer)
