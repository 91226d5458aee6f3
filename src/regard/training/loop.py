"""The training loop: one for every task.

What happens at a step is a function of the weights, the optimizer's state and the number of the step alone: the order
of batches and the seeds of dropout are computed from (seed, step). A checkpoint therefore holds no generators and no
data position, and a run that was killed and resumed is bit-equal to one that was not. The exception is a run whose time
is limited: its learning rate follows the clock.
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batching import prefetch
from regard.errors import CheckpointError, Interrupted, NumericError
from regard.files import write_aside, writing
from regard.models.weights import fit, gather
from regard.tasks.task import Task
from regard.training import blocks, optimizers, schedules
from regard.training.checkpoints import Store
from regard.training.config import TrainingConfig
from regard.training.progress import Progress


@dataclass
class Standing:
    """Where a run stands, besides its weights: what a checkpoint's JSON holds.

    Attributes:
        step: Steps done.
        seconds: Seconds of training so far, validation included.
        tokens: Real tokens read so far.
        best_step: Step of the best validation; 0 before the first.
        best: Its monitored metric, greater being better, and its negative loss.
        stale: Validations since.
        validations: Every validation: step, seconds, and metrics.
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    best_step: int = 0
    best: list[float] | None = None
    stale: int = 0
    validations: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """Trains a model on a task until its steps, its time or its patience end.

    Args:
        task: What is trained on.
        model: What is trained; moved to the device.
        config: How.
        folder: The run's folder; checkpoints and metrics.jsonl go there.
        device: Where.
        progress: What the user sees.
        identity: What a checkpoint must have been made with to be resumed: hashes of settings and data.
        events: Called with (name, value, step) for each number that is logged; TensorBoard, for one.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        config: TrainingConfig,
        folder: Path,
        device: torch.device,
        progress: Progress,
        identity: dict[str, str],
        events: Callable[[str, float, int], None] | None = None,
    ) -> None:
        self.task, self.model, self.config, self.device = task, model.to(device), config, device
        self.progress, self.identity, self.events = progress, identity, events
        self.store, self.log_path = Store(folder / "checkpoints"), folder / "metrics.jsonl"
        blocks.quicken(model, config.precision)
        if config.compile:
            blocks.compile_blocks(model)
            task.compile_criterion()
        if config.checkpoint_activations:
            blocks.checkpoint_blocks(model)
        self.optimizer = optimizers.make(model, config, task.rates(model))
        self.turns = optimizers.Turns(model, task.turns)
        self.standing = Standing()
        self._signal = 0
        self._lines: list[str] = []

    def run(self) -> Standing:
        """Train, from the newest sound checkpoint where there is one.

        Returns:
            Where the run stands at its end.

        Raises:
            Interrupted: SIGTERM or Ctrl-C came; the state was saved.
            NumericError: A loss or gradient is not finite; the weights are as before the step.
        """
        self._resume()
        # Only a process's main thread may handle signals; elsewhere, as in a notebook's worker, they are not ours.
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        handlers = {number: signal.signal(number, self._on_signal) for number in numbers}
        standing = self.standing
        batches = prefetch(self.task.batch, standing.step * self.config.accumulate, 8)
        try:
            self._clock = time.perf_counter() - standing.seconds
            while not self._is_over():
                asked = time.perf_counter()
                ready = [next(batches) for _ in range(self.config.accumulate)]
                self._step(ready, time.perf_counter() - asked)
                at_end = standing.step == self.config.max_steps or self._out_of_time()
                if standing.step % self.config.validate_every_steps == 0 or at_end:
                    self._validate()
                elif self._is_multiple(self.config.checkpoint_every_steps):
                    self._save()
                if self._signal:
                    self._stop()
        finally:
            batches.close()  # type: ignore[attr-defined] - it is a generator
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return standing

    def final_weights(self) -> tuple[dict[str, Tensor], list[int]]:
        """Give the weights of the final model: the average up to the best checkpoint.

        Returns:
            The weights by name, and the steps that they are the mean of.
        """
        steps = self._averaged_steps()
        total: dict[str, Tensor] = {}
        for step in steps:
            for name, tensor in self.store.load_model(step).items():
                wide = tensor.double() if tensor.is_floating_point() else tensor
                total[name] = total[name] + wide if name in total and tensor.is_floating_point() else wide
        like = self.store.load_model(steps[-1])
        mean = {n: (t / len(steps)).to(like[n].dtype) if t.is_floating_point() else t for n, t in total.items()}
        return mean, steps

    def _is_over(self) -> bool:
        patience = self.config.patience
        return (
            self.standing.step >= self.config.max_steps
            or self._out_of_time()
            or bool(patience and self.standing.stale >= patience)
        )

    def _out_of_time(self) -> bool:
        return bool(self.config.max_seconds) and self.standing.seconds >= self.config.max_seconds

    def _is_multiple(self, every: int) -> bool:
        return bool(every) and self.standing.step % every == 0

    def _step(self, batches: list[Any], waited_s: float) -> None:
        """One optimizer step over the micro-batches; nothing is changed where a number is not finite.

        Micro-batches of one step have one turn, so a part that is not trained has no gradient, and neither it nor its
        optimizer's state moves.
        """
        config, standing = self.config, self.standing
        first = standing.step * config.accumulate
        rate = config.learning_rate * schedules.factor(standing.step + 1, standing.seconds, config)
        count = sum(self.task.count(batch) for batch in batches)
        turn = self.turns.at(standing.step)
        self.model.train()
        reports: list[Tensor] = []
        with self.turns.only(turn) as trained:
            for place, batch in enumerate(batches):
                torch.manual_seed(_seed(config.seed, first + place))
                with torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
                    loss = self.task.turn_loss(self.model, batch.to(self.device), turn)
                reports.append(loss.report)
                (loss.sum / max(count, 1)).backward()
        norm = float(nn.utils.clip_grad_norm_(trained, config.clip_norm or math.inf))
        mean = sum(map(float, reports)) / max(count, 1)  # only now is the device waited for
        if not (math.isfinite(mean) and math.isfinite(norm)):
            self._refuse_update(mean, norm, range(first, first + len(batches)))
        optimizers.set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        tokens = sum(self.task.tokens(batch) for batch in batches)
        if not count:
            named = self._named(range(first, first + len(batches)))
            self.progress.say(f"warning: step {standing.step + 1} has no label to learn from: {named}")
        standing.step += 1
        standing.tokens += tokens
        standing.seconds = time.perf_counter() - self._clock
        named = {"turn": turn} if turn else {}
        values = {"loss": mean, "learning_rate": rate, "grad_norm": norm}
        self._log(values, {"tokens": tokens, "labels": count, "waited_s": round(waited_s, 4), **named}, turn)
        self.progress.step(standing.step, standing.seconds, tokens, mean)

    def _refuse_update(self, mean: float, norm: float, indices: range) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self._flush()
        raise NumericError(
            f"loss {mean}, gradient norm {norm} at step {self.standing.step + 1}",
            where=self._named(indices),
            mend="the weights are as before the step; lower the learning rate or look at these lines",
        )

    def _named(self, indices: range) -> str:
        return "; ".join(self.task.name_batch(index) for index in indices)

    def _validate(self) -> None:
        """Score the model, note whether it is the best so far, save."""
        standing = self.standing
        self.progress.validating()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            scores = dict(self.task.validate(self.model, self.device))
        if not math.isfinite(scores["loss"]):
            self._flush()
            raise NumericError(
                f"the development loss is {scores['loss']} after step {standing.step}",
                where=str(self.log_path.parent),
                mend="checkpoints from before are sound; lower the learning rate",
            )
        # Equal metrics, as early in training, are told apart by the loss.
        rank = [scores[self.task.monitor] * (1 if self.task.higher_is_better else -1), -scores["loss"]]
        better = standing.best is None or rank > standing.best
        if better:
            standing.best_step, standing.best, standing.stale = standing.step, rank, 0
        else:
            standing.stale += 1
        standing.seconds = time.perf_counter() - self._clock
        standing.validations.append({"step": standing.step, "seconds": standing.seconds, **scores})
        self._log({f"dev_{name}": score for name, score in scores.items()}, {})
        self._save()
        self.task.illustrate(self.model, self.device, standing.step)
        self.progress.validated(standing.step, standing.seconds, scores, self.task.monitor, better)

    def _averaged_steps(self) -> list[int]:
        """Name the checkpoints of the average: validations up to the best one."""
        validated = [int(v["step"]) for v in self.standing.validations if v["step"] <= self.standing.best_step]
        return validated[-self.config.average :]

    def _save(self) -> None:
        standing = self.standing
        self._flush()
        state = {"standing": standing.__dict__, "identity": self.identity}
        tensors = optimizers.state_tensors(self.optimizer, self.model)
        self.store.save(standing.step, gather(self.model), tensors, state)
        validated = [int(v["step"]) for v in standing.validations]
        # The next best may come any time: keep what its average would need.
        recent = validated[-max(self.config.average, self.config.keep) :]
        newest = self.store.steps()[-self.config.keep :]
        self.store.keep({*newest, *recent, *self._averaged_steps()})

    def _resume(self) -> None:
        checkpoint = self.store.newest()
        for line in self.store.damaged:
            self.progress.say(f"damaged and left aside: {line}")
        if checkpoint is None:
            if self.store.damaged:
                folder = str(self.store.folder)
                raise CheckpointError(
                    "no checkpoint is sound", where=folder, mend="move the run's folder away to start over"
                )
            self._truncate_log(0)
            return
        if checkpoint.state["identity"] != self.identity:
            changed = [k for k, v in self.identity.items() if checkpoint.state["identity"].get(k) != v]
            raise CheckpointError(
                f"the run was started with other {' and '.join(changed)}",
                where=str(self.store.folder),
                mend="give another --out, or the settings and data it was started with",
            )
        # Damaged newer ones must not count as kept, or be taken for this run's when their step comes again.
        self.store.keep([step for step in self.store.steps() if step <= checkpoint.step])
        fit(checkpoint.model, self.model, where=str(self.store.folder))
        optimizers.restore(self.optimizer, self.model, checkpoint.optimizer)
        self.standing = Standing(**checkpoint.state["standing"])
        self._truncate_log(self.standing.step)
        self.progress.say(f"resuming after step {self.standing.step}")

    def _log(self, values: dict[str, float], more: dict[str, float | str], turn: str = "") -> None:
        """Note numbers; they reach the file with the next checkpoint, or every hundred steps."""
        step = self.standing.step
        line = {"step": step, **values, **more, "seconds": round(self.standing.seconds, 3)}
        self._lines.append(json.dumps(line, allow_nan=False))
        if self.events is not None:
            for name, value in values.items():
                self.events(f"{turn}/{name}" if turn else name, value, step)
        if len(self._lines) >= 100:
            self._flush()

    def _flush(self) -> None:
        if self._lines:
            with writing(self.log_path), self.log_path.open("a", encoding="utf-8") as file:
                file.write("\n".join(self._lines) + "\n")
            self._lines = []

    def _truncate_log(self, step: int) -> None:
        """Drop what was logged after the checkpoint, and a line that a kill cut short: those steps come again."""
        if not self.log_path.exists():
            return
        kept = []
        for line in self.log_path.read_text("utf-8").splitlines():
            try:
                number = json.loads(line)["step"]
            except (ValueError, KeyError, TypeError):
                break
            if number <= step:
                kept.append(line)
        write_aside(self.log_path, "".join(f"{line}\n" for line in kept))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        self.progress.say("finishing the step and saving …")

    def _stop(self) -> None:
        if self.standing.step not in self.store.steps():
            self._save()
        raise Interrupted(
            f"stopped after step {self.standing.step}, state saved",
            signal_number=self._signal,
            where=str(self.log_path.parent),
            mend="the same command goes on from there",
        )


def _seed(seed: int, index: int) -> int:
    """Mix a run's seed and a micro-batch's number into a seed for dropout (splitmix64's finalizer)."""
    mask = 2**64 - 1
    x = (seed * 0x9E3779B97F4A7C15 + index + 1) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return (x ^ (x >> 31)) & (2**63 - 1)
