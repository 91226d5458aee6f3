"""transformers: reads the public folders that we write, as a user of it would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def load(
    kind: str,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    attention: str = "sdpa",
) -> Any:
    """Load a model in evaluation mode.

    Args:
        kind: Name of its class.
        folder: A public folder.
        device: Where.
        dtype: Of the weights.
        attention: ``sdpa`` or ``eager``.

    Returns:
        The model.
    """
    model = getattr(transformers, kind).from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    return model.to(device).eval()


def greedy(model: Any, prompts_BT: Tensor, count: int, **more: Any) -> list[list[int]]:
    """Write a number of tokens behind each prompt."""
    found = model.generate(
        prompts_BT,
        attention_mask=torch.ones_like(prompts_BT),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        **more,
    )
    return found[:, prompts_BT.shape[1] :].tolist()


def beam(model: Any, sources_BT: Tensor, count: int, beams: int) -> list[list[int]]:
    """Translate with beam search into that many tokens each."""
    found = model.generate(
        sources_BT,
        attention_mask=torch.ones_like(sources_BT),
        num_beams=beams,
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        length_penalty=0.0,
        early_stopping=False,
    )
    return found[:, 1:].tolist()


def encode(model: Any, texts: Sequence[Tensor], **more: Any) -> Callable[[], object]:
    """Give a round of encoding texts of any lengths, padded to the longest."""
    ids_BT, mask_BT = padded(texts)

    def run() -> object:
        with torch.inference_mode():
            return model(input_ids=ids_BT, attention_mask=mask_BT, **more)

    return run


def padded(texts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Lay texts out as a rectangle with its mask."""
    ids_BT = torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
    lengths_B1 = torch.tensor([[len(text)] for text in texts], device=ids_BT.device)
    return ids_BT, (torch.arange(ids_BT.shape[1], device=ids_BT.device) < lengths_B1).long()
