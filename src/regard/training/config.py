"""Settings of training, the same for every task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.errors import ConfigError


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained. A step is an optimizer step, whatever the accumulation.

    Attributes:
        max_steps: Steps of the whole run; the end of the cosine and linear schedules.
        max_seconds: Seconds of training, validation included, after which it ends; 0 for no limit. Falling schedules
            then follow the clock where it is ahead of the steps.
        accumulate: Micro-batches of a step; the loss is the mean over all their tokens.
        optimizer: ``adam``, or ``adamw`` with decoupled weight decay.
        learning_rate: The schedule's peak.
        schedule: See :func:`regard.training.schedules.factor`.
        warmup_steps: Steps of linear warm-up.
        final_ratio: Of the peak, at the end of the cosine and linear schedules.
        beta1: Of Adam.
        beta2: Of Adam.
        epsilon: Of Adam.
        weight_decay: On matrices; norms, biases and vectors are left alone.
        clip_norm: Largest norm of the gradient; 0 for no limit.
        precision: ``fp32``, or ``bf16``: products of bfloat16, by autocast or, on a CPU that multiplies matrices, by
            our own kernels.
        compile: Compile the Transformer blocks and the loss with ``torch.compile``: worth its half minute on a GPU.
            Recurrences, and ragged attention with dropout on its weights, run uncompiled.
        checkpoint_activations: Keep only what enters each Transformer block, and compute what is inside again in the
            backward pass: the same numbers from less memory, in more time.
        validate_every_steps: Steps between validations; each saves a checkpoint.
        checkpoint_every_steps: Steps between checkpoints besides; 0 for none.
        patience: Validations without a new best after which training ends; 0 for no limit.
        average: Checkpoints, up to the best, whose weights are averaged for the final model; 1 for the best alone.
        keep: Newest checkpoints that are kept, besides those that the average needs.
        threads: CPU threads; 0 tries at the start of the run whether all or one are quicker, and keeps to it when the
            run is resumed.
        seed: Of everything that is drawn.
    """

    max_steps: int = 100_000
    max_seconds: float = 0.0
    accumulate: int = 1
    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: float = 7e-4
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant"] = "inverse-sqrt"
    warmup_steps: int = 4000
    final_ratio: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    checkpoint_activations: bool = False
    validate_every_steps: int = 1000
    checkpoint_every_steps: int = 0
    patience: int = 0
    average: int = 1
    keep: int = 2
    threads: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A number is out of its range.
        """
        at_least_one = ("max_steps", "accumulate", "validate_every_steps", "average", "keep")
        not_negative = (
            *("max_seconds", "warmup_steps", "final_ratio", "weight_decay", "clip_norm"),
            *("checkpoint_every_steps", "patience", "threads", "learning_rate", "epsilon", "seed"),
        )
        for names, least in ((at_least_one, 1), (not_negative, 0)):
            for name in names:
                if not getattr(self, name) >= least:
                    raise ConfigError(
                        f"{name} is {getattr(self, name)}", where="training", mend=f"give at least {least}"
                    )
        if self.seed >= 2**63:
            raise ConfigError(f"seed is {self.seed}", where="training", mend="give a number below 2^63")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", where="training", mend="give a number in [0, 1)")
