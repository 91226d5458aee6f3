"""Optimizers, and their state as named tensors."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import CheckpointError, ConfigError
from regard.training.config import TrainingConfig


def make(model: nn.Module, config: TrainingConfig, rates: Mapping[str, float] | None = None) -> torch.optim.Optimizer:
    """Make an optimizer; the fused kernels, which read each number once.

    Args:
        model: What is trained; frozen parameters are left out.
        config: Which optimizer, and its numbers.
        rates: Factors of the learning rate by parameter name; 1 for those that are not named.

    Returns:
        The optimizer; each group of its parameters has its ``factor`` for :func:`set_rate`.

    Raises:
        ConfigError: A factor is of no parameter.
    """
    rates = rates or {}
    named = dict(model.named_parameters())
    if unknown := [name for name in rates if name not in named]:
        raise ConfigError(f"a learning rate for {unknown[0][:80]!r}, which is no parameter")
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for is_matrix in (True, False):
        decay = config.weight_decay if is_matrix else 0.0
        for name, parameter in named.items():
            if parameter.requires_grad and (parameter.dim() >= 2) is is_matrix:
                factor = float(rates.get(name, 1.0))
                empty: dict[str, Any] = {"params": list[nn.Parameter](), "weight_decay": decay, "factor": factor}
                groups.setdefault((is_matrix, factor), empty)["params"].append(parameter)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(
        list(groups.values()),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate, times each group's factor.

    Args:
        optimizer: From :func:`make`.
        rate: The schedule's.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]


class Turns:
    """The parts of a model that are trained in turns; without any, the whole model at every step.

    Args:
        model: What is trained.
        names: Parts in the order of their turns, with repeats; see :class:`regard.tasks.task.Task`.

    Raises:
        ConfigError: A part has no parameter that is trained.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.names = tuple(names) or ("",)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parts = {
            turn: [p for name, p in trained.items() if not turn or name.startswith(f"{turn}.")] for turn in self.names
        }
        self._trained = list(trained.values())
        for turn, part in self.parts.items():
            if turn and not part:
                raise ConfigError(f"nothing is trained at the turn of {turn!r}")

    def at(self, step: int) -> str:
        """Name the part whose turn a step is; empty for the whole model."""
        return self.names[step % len(self.names)]

    @contextmanager
    def only(self, turn: str) -> Generator[list[nn.Parameter]]:
        """Freeze all but a part for a while: gradients go through the others, and none is computed for them.

        Args:
            turn: From :meth:`at`.

        Yields:
            The part's parameters.
        """
        part = self.parts[turn]
        mine = set(map(id, part))
        others = [parameter for parameter in self._trained if id(parameter) not in mine]
        for parameter in others:
            parameter.requires_grad_(False)
        try:
            yield part
        finally:
            for parameter in others:
                parameter.requires_grad_(True)


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
