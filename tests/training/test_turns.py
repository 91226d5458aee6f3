"""Parts of a model in turns, learning rates by parameter, frozen weights: what moves at a step, and what does not."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.tasks.task import Batch, Loss, Task
from regard.training import optimizers
from regard.training.config import TrainingConfig
from regard.training.loop import Trainer
from regard.training.progress import Progress
from regard.training.report import _curves


@dataclass(frozen=True)
class Rows(Batch):
    x_BD: Tensor


class Two(nn.Module):
    """Two parts that meet in the loss, the name of one the beginning of the other's, and a third that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 5)
        self.partner = nn.Linear(5, 2)
        self.still = nn.Linear(2, 2)
        self.still.requires_grad_(False)

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.still(self.partner(torch.tanh(self.part(x_BD))))


class Turning(Task):
    """Each part pulls the outputs its own way; batch ``index`` is a pure function of the index."""

    unit, monitor, higher_is_better = "row", "loss", False
    turns = ("partner", "partner", "part")

    def __init__(self, turns: tuple[str, ...] | None = None, rates: dict[str, float] | None = None, rows: int = 4):
        self.turns = type(self).turns if turns is None else turns
        self.rows, self._rates = rows, rates or {}
        self.asked: list[str] = []

    def rates(self, model: nn.Module) -> dict[str, float]:
        return self._rates

    def batch(self, index: int) -> Rows:
        draws = torch.Generator().manual_seed(index * self.rows // 4)
        all_BD = torch.randn(4, 3, generator=draws)
        first = index * self.rows % 4
        return Rows(all_BD[first : first + self.rows])

    def name_batch(self, index: int) -> str:
        return f"batch {index}"

    def count(self, batch: Rows) -> int:
        return len(batch.x_BD)

    tokens = count

    def turn_loss(self, model: nn.Module, batch: Rows, turn: str) -> Loss:
        self.asked.append(turn)
        sign = -1 if turn == "part" else 1
        total = (model(batch.x_BD) - sign).square().sum()
        return Loss(total, total.detach())

    def validate(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        return {"loss": 1.0}


def make_trainer(folder: Path, task: Task, **settings: object) -> Trainer:
    folder.mkdir(exist_ok=True)
    values = {"max_steps": 8, "learning_rate": 0.05, "schedule": "constant", "warmup_steps": 0, "optimizer": "adamw"}
    config = TrainingConfig(**{**values, "weight_decay": 0.1, "validate_every_steps": 100, **settings})  # type: ignore[arg-type]
    torch.manual_seed(3)
    progress = Progress(8, 0.0, quiet=True)
    trainer = Trainer(task, Two(), config, folder, torch.device("cpu"), progress, {"settings": "same"})
    trainer._clock = 0.0  # for steps that are taken one by one
    return trainer


def everything(trainer: Trainer) -> dict[str, Tensor]:
    state = optimizers.state_tensors(trainer.optimizer, trainer.model)
    weights = {name: p.detach() for name, p in trainer.model.named_parameters()}
    return {name: tensor.clone() for name, tensor in {**state, **weights}.items()}


def test_at_a_turn_only_its_part_moves(tmp_path: Path) -> None:
    task = Turning()
    trainer = make_trainer(tmp_path, task)
    before = everything(trainer)
    for step in range(7):
        turn = ("partner", "partner", "part")[step % 3]
        trainer._step([task.batch(step)], 0.0)
        now = everything(trainer)
        moved = {n.split(".")[0] for n in now if n not in before or not torch.equal(now[n], before[n])}
        assert moved == {turn}
        assert all(p.grad is None for p in trainer.model.parameters())
        asked = {name: p.requires_grad for name, p in trainer.model.named_parameters()}
        assert asked == {name: not name.startswith("still") for name in asked}
        steps = {name: float(value) for name, value in now.items() if name.endswith(".step")}
        done = {"partner": step + 1 - (step + 1) // 3, "part": (step + 1) // 3}
        assert steps == {name: done[name.split(".")[0]] for name in steps}
        before = now
    assert task.asked == ["partner", "partner", "part"] * 2 + ["partner"]


def test_without_turns_all_but_the_frozen_moves(tmp_path: Path) -> None:
    task = Turning(turns=())
    trainer = make_trainer(tmp_path, task)
    before = everything(trainer)
    trainer._step([task.batch(0)], 0.0)
    now = everything(trainer)
    moved = {n.split(".")[0] for n in before if not torch.equal(now[n], before[n])}
    assert moved == {"part", "partner"}
    assert not any(name.startswith("still") for name in now if name not in before)  # nor has it a state
    assert task.asked == [""]


@pytest.mark.parametrize("stop", [4, 5, 7])
def test_a_run_resumed_within_a_cycle_is_bit_equal(tmp_path: Path, stop: int) -> None:
    whole = make_trainer(tmp_path / "whole", Turning(), max_steps=10)
    whole.run()
    make_trainer(tmp_path / "parts", Turning(), max_steps=stop).run()
    rest = make_trainer(tmp_path / "parts", task := Turning(), max_steps=10)
    rest.run()
    assert len(task.asked) == 10 - stop
    wanted, got = everything(whole), everything(rest)
    assert wanted.keys() == got.keys()
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)


def test_accumulated_micro_batches_are_one_turn(tmp_path: Path) -> None:
    runs = []
    for rows in (4, 2, 1):
        task = Turning(rows=rows)
        trainer = make_trainer(tmp_path / str(rows), task, max_steps=7, accumulate=4 // rows, clip_norm=0.5)
        trainer.run()
        assert task.asked[: 12 // rows] == [t for t in ("partner", "partner", "part") for _ in range(4 // rows)]
        runs.append(everything(trainer))
    for other in runs[1:]:
        for name, wanted in runs[0].items():
            torch.testing.assert_close(other[name], wanted, rtol=1e-4, atol=1e-6)


def test_the_gradient_of_the_part_alone_is_clipped(tmp_path: Path) -> None:
    task = Turning()
    trainer = make_trainer(tmp_path, task, max_steps=3, clip_norm=1e-3)
    trainer.run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "loss" in line]
    assert [line["turn"] for line in lines] == ["partner", "partner", "part"]
    torch.manual_seed(3)
    model = Two()
    ((model(task.batch(0).x_BD) - 1).square().sum() / 4).backward()
    norm = torch.cat([p.grad.flatten() for p in model.partner.parameters()]).norm()  # type: ignore[union-attr]
    assert lines[0]["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    # Adam's first moment after one step is (1 − β1) · gradient: it was clipped to the limit, and the part's alone.
    fresh = make_trainer(tmp_path / "one", task, max_steps=1, clip_norm=1e-3)
    fresh.run()
    state = optimizers.state_tensors(fresh.optimizer, fresh.model)
    moments = torch.cat([value.flatten() for name, value in state.items() if name.endswith("exp_avg")])
    assert float(moments.norm()) == pytest.approx(0.1 * 1e-3, rel=1e-3)


def test_rates_are_factors_of_the_learning_rate(tmp_path: Path) -> None:
    rates = {"part.weight": 0.25, "part.bias": 0.5, "partner.weight": 0.0}
    steps = {}
    for name, given in (("with", rates), ("without", {})):
        trainer = make_trainer(tmp_path / name, Turning((), given), weight_decay=0.0, warmup_steps=4)
        before = everything(trainer)
        trainer._step([trainer.task.batch(0)], 0.0)
        now = everything(trainer)
        steps[name] = {key: now[key] - before[key] for key in before}
    for key, step in steps["without"].items():
        torch.testing.assert_close(steps["with"][key], rates.get(key, 1.0) * step, rtol=1e-4, atol=1e-7)
    assert steps["with"]["partner.weight"].abs().max() == 0
    # The first step of Adam is as long as the rate: here a quarter of the peak, for the warm-up.
    assert steps["without"]["partner.weight"].abs().max() == pytest.approx(0.05 / 4, rel=1e-3)


def test_weight_decay_and_rates_do_not_mix() -> None:
    model = Two()
    config = TrainingConfig(optimizer="adamw", weight_decay=0.1)
    optimizer = optimizers.make(model, config, {"part.weight": 0.5, "part.bias": 0.5})
    names = {p: name for name, p in model.named_parameters()}
    groups = [([names[p] for p in g["params"]], g["weight_decay"], g["factor"]) for g in optimizer.param_groups]
    assert groups == [
        (["part.weight"], 0.1, 0.5),
        (["partner.weight"], 0.1, 1.0),
        (["part.bias"], 0.0, 0.5),
        (["partner.bias"], 0.0, 1.0),
    ]


def test_parts_and_rates_that_the_model_has_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'par'"):
        make_trainer(tmp_path, Turning(("par",)))
    with pytest.raises(ConfigError, match="'still'"):
        make_trainer(tmp_path, Turning(("part", "still")))
    with pytest.raises(ConfigError, match=r"'part\.other'"):
        make_trainer(tmp_path, Turning((), {"part.other": 0.5}))


def test_each_part_has_its_own_curve(tmp_path: Path) -> None:
    task = Turning()
    trainer = make_trainer(tmp_path, task, max_steps=5)
    standing = trainer.run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
    curves = {curve.name: curve for curve in _curves(tmp_path / "metrics.jsonl", standing, task)}
    assert list(curves) == ["partner", "part", "development"]
    for name, steps in (("partner", [1, 2, 4, 5]), ("part", [3])):
        assert list(curves[name].steps) == steps
        assert list(curves[name].values) == [losses[step] for step in steps]
    assert curves["part"].chart == curves["partner"].chart == "loss per row"
