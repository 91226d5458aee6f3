"""Our side: models of random weights, written once as public folders that every engine reads, and how regard runs them.

All engines so multiply the same numbers, and what they write can be compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is on this disk
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from torch import Tensor, nn

from benchmarks.suite import Setting
from regard.attention import Segments
from regard.decoding import DecodeOptions, decode
from regard.models.bert import BertConfig
from regard.models.gpt import GPTConfig
from regard.models.public import read_folder, write_folder
from regard.models.registry import family
from regard.models.states import Steps
from regard.models.swin import SwinConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import VitConfig

GPT2 = GPTConfig(50257, dropout=0.0, attention_dropout=0.0)
TRANSFORMER = TransformerConfig(
    32_000, 32_000, positions="sinusoidal-halves", output_bias=True, max_len=512, dropout=0.0
)
BERT = BertConfig(30_522, head="none", pooler=True, dropout=0.0, attention_dropout=0.0)
VIT = VitConfig(num_classes=1000)
SWIN = SwinConfig(num_classes=1000, window_padding="zeros", window_shrink="both", drop_path=0.0)
FULL: dict[str, Any] = {"gpt": GPT2, "transformer": TRANSFORMER, "bert": BERT, "vit": VIT, "swin": SWIN}
TINY: dict[str, Any] = {
    "gpt": GPTConfig(211, 32, 2, 2, max_len=256, dropout=0.0, attention_dropout=0.0),
    "transformer": TransformerConfig(
        *(199, 199, 32, 64, 2),
        **{"encoder_layers": 2, "decoder_layers": 2, "positions": "sinusoidal-halves", "output_bias": True},
        **{"max_len": 512, "dropout": 0.0},
    ),
    "bert": BertConfig(211, 32, 2, 2, 64, 128, head="none", pooler=True, dropout=0.0, attention_dropout=0.0),
    "vit": VitConfig((32, 32), 3, 10, 8, 32, 2, 2, 64),
    "swin": SwinConfig((32, 32), 3, 10, 4, 16, (2, 2), (2, 4), (4,), "zeros", "both", drop_path=0.0),
}


def config(setting: Setting, name: str) -> Any:
    """Give a family's settings for a run."""
    return (TINY if setting.is_tiny else FULL)[name]


def public(setting: Setting, name: str, settings: Any = None, tag: str = "") -> Path:
    """Give the public folder of a family's model of random weights.

    Args:
        setting: Of the run.
        name: The family.
        settings: Of the model; None for those of the run.
        tag: Of the folder, where the settings are others.

    Returns:
        The folder, made once.
    """
    settings = settings or config(setting, name)

    def make(folder: Path) -> None:
        torch.manual_seed(1)
        model = family(name).build(settings)
        if setting.is_tiny:  # far enough from the start that what a model writes depends on every weight
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 0.2 * torch.randn_like(parameter)
        if isinstance(model, Transformer):
            with torch.no_grad():  # as in Marian's own: outputs start from zeros; start and end are none of their words
                model.source_embed.weight[-1] = 0
                model.output.bias[[0, -1]] = -100
        write_folder(folder, name, model)

    return setting.folder(f"{name}{tag}", make)


def load(folder: Path, device: torch.device, precision: str = "fp32") -> Any:
    """Load a model for use: packed in a precision on a CPU, in bf16 on a GPU.

    Args:
        folder: From :func:`public`.
        device: Where.
        precision: Of the packed weights.

    Returns:
        The model, in evaluation mode.
    """
    model = read_folder(folder)[1].eval()
    if device.type == "cuda":
        return packed(model.to(device, torch.bfloat16), "fp32")  # which changes no more of it
    return packed(model, precision)


def packed(model: nn.Module, precision: str) -> Any:
    """Get a model ready for use, as :func:`regard.load` does."""
    from regard.layers.packed import ready

    return ready(model.eval(), precision)


def prompts(setting: Setting, name: str, count: int, length: int) -> Tensor:
    """Draw prompts: int64, shape (count, length)."""
    settings = config(setting, name)
    size = getattr(settings, "vocab_size", None) or settings.source_vocab_size
    draws = torch.Generator().manual_seed(2)
    return torch.randint(4, size - 4, (count, length), generator=draws).to(setting.device)


def greedy(model: Any, prompts_BT: Tensor, count: int, steps: Steps | None = None) -> list[list[int]]:
    """Write a number of tokens behind each prompt."""
    batch, length = prompts_BT.shape
    options = DecodeOptions(max_extra_tokens=count, length_penalty=0.0)
    segments = Segments.uniform(batch, length - 1, prompts_BT.device)
    found = decode(
        model,
        prompts_BT[:, :-1].flatten(),
        segments,
        start_id=prompts_BT[:, -1],
        end_id=(),
        options=options,
        limits=[count] * batch,
        steps=steps,
    )
    return [best.tokens for best, *_ in found]


def beam(model: Any, sources_BT: Tensor, count: int, beams: int, steps: Steps | None = None) -> list[list[int]]:
    """Translate sources into that many tokens each with beam search."""
    batch, length = sources_BT.shape
    size = model.config.target_vocab_size
    found = decode(
        model,
        sources_BT.flatten(),
        Segments.uniform(batch, length, sources_BT.device),
        start_id=size - 1,
        end_id=(),
        options=DecodeOptions(beam=beams, length_penalty=0.0),
        limits=[count] * batch,
        steps=steps,
    )
    return [best.tokens for best, *_ in found]


def encode(model: Any, texts: Sequence[Tensor]) -> Callable[[], object]:
    """Give a round of encoding texts of any lengths, laid side by side."""
    tokens_N = torch.cat(list(texts))
    lengths = [len(text) for text in texts]

    def run() -> object:
        with torch.inference_mode():
            return model(tokens_N, Segments.ragged(lengths, tokens_N.device))

    return run
