"""Optimizers, and their state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from regard.errors import CheckpointError
from regard.training.config import TrainingConfig


def make(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Make an optimizer; the fused kernels, which read each number once.

    Args:
        model: What is trained.
        config: Which optimizer, and its numbers.

    Returns:
        The optimizer, its parameters in the order of the model's names.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices, others = [p for p in trained if p.dim() >= 2], [p for p in trained if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )


def state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Give the optimizer's state as tensors named after the parameters.

    Args:
        optimizer: From :func:`make`.
        model: What it trains.

    Returns:
        ``parameter.key`` → tensor, on the CPU.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}.{key}": value.detach().cpu().contiguous()
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def restore(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put saved state back.

    Args:
        optimizer: A fresh one from :func:`make`.
        model: What it trains.
        tensors: From :func:`state_tensors`.

    Raises:
        CheckpointError: A tensor belongs to no parameter, or has another shape.
    """
    parameters = dict(model.named_parameters())
    for name, tensor in tensors.items():
        owner, _, key = name.rpartition(".")
        parameter = parameters.get(owner)
        if parameter is None or (key != "step" and tensor.shape != parameter.shape):
            raise CheckpointError(f"the optimizer state {name} {tuple(tensor.shape)} fits no parameter")
        optimizer.state[parameter][key] = tensor.to(parameter.device).clone()
