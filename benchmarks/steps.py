"""Steps of training, as a run of ours takes them: how a model is made ready, its loss, and a round of one step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.decode import NO_BF16
from benchmarks.limits import has_bf16
from benchmarks.suite import NotMeasured, Round, Setting
from regard.tasks.vocabulary import VocabularyLoss
from regard.training import blocks, optimizers
from regard.training.config import TrainingConfig


def compiled(setting: Setting) -> Callable[..., Any]:
    """Give ``torch.compile``; in a tiny run without its second half, which takes its time whatever the size."""
    return partial(torch.compile, backend="eager") if setting.is_tiny else torch.compile


def loss_of(
    model: nn.Module, setting: Setting, precision: str = "fp32", compiles: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    """Bring a model of ours to training as a run does, and give its loss: the mean over tokens.

    Args:
        model: With a vocabulary; moved to the device, in place.
        setting: Of the run.
        precision: ``fp32`` or ``bf16``.
        compiles: As ``training.compile`` does: block by block, for any number of tokens.

    Returns:
        From hidden rows and labels to the loss.
    """
    model.to(setting.device).train()
    blocks.quicken(model, precision)
    criterion = VocabularyLoss()
    if compiles:
        compile_blocks(model, setting)
        criterion = criterion if setting.is_tiny else criterion.compiled()
    return lambda hidden_ND, labels_N: criterion(model, hidden_ND, labels_N, 0.0).sum / len(labels_N)


def compile_blocks(model: nn.Module, setting: Setting) -> None:
    """Compile a model of ours as training does; in a tiny run as far as it takes no time."""
    blocks.compile_blocks(model, **({"backend": "eager"} if setting.is_tiny else {}))


def step(model: nn.Module, loss: Callable[[], Tensor], setting: Setting, precision: str) -> Round:
    """Give a round of one step, with the optimizer that our training makes, for ours and theirs alike."""
    device = setting.device
    if precision == "bf16" and device.type == "cpu" and not has_bf16():
        raise NotMeasured(NO_BF16)
    optimizer = optimizers.make(model, TrainingConfig(max_steps=1, learning_rate=1e-4))

    def run() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            mean = loss()
        mean.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run
