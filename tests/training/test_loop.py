"""The training loop on a real, tiny task: golden losses, accumulation, what it refuses, what it keeps."""

import json
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from small_runs import RNN, TRANSFORMER, losses, make_task, make_trainer

from regard.errors import CheckpointError, NumericError
from regard.tasks.pairs import PairBatch
from regard.tasks.task import Loss
from regard.tasks.translate import TranslateTask

# Losses of steps 1, 6, 11 and 16; they move only when the order of batches, the models, Adam or dropout's seeds do.
GOLDEN = {
    "rnn": [5.56289, 4.79181, 3.48185, 2.93958],
    "transformer": [6.07203, 4.56435, 3.70971, 2.95888],
}


@pytest.mark.parametrize("model", [RNN, TRANSFORMER], ids=lambda m: m["family"])
def test_golden_losses(tmp_path: Path, model: dict) -> None:
    make_trainer(tmp_path, make_task(model)).run()
    assert losses(tmp_path)[::5] == pytest.approx(GOLDEN[model["family"]], rel=2e-4)


def test_accumulated_micro_batches_are_one_batch(tmp_path: Path) -> None:
    """The same examples in one, two and four micro-batches: the same losses, though the micro-batches are uneven."""

    class Parts(TranslateTask):
        parts = 1

        def batch(self, index: int) -> PairBatch:
            step, part = divmod(index, self.parts)
            examples = self.kept[step * 12 : step * 12 + 12]
            cuts = [0, 1, 5, 6, 12] if self.parts == 4 else [0, 5, 12] if self.parts == 2 else [0, 12]
            return self.train.batch(examples[cuts[part] : cuts[part + 1]])

    runs = []
    for parts in (1, 2, 4):
        task = make_task({**RNN, "dropout": 0.0}, task=Parts)
        task.parts = parts  # type: ignore[attr-defined]
        folder = tmp_path / str(parts)
        folder.mkdir()
        make_trainer(folder, task, max_steps=6, accumulate=parts, clip_norm=0.5).run()
        runs.append(losses(folder))
    assert runs[1] == pytest.approx(runs[0], rel=1e-5)
    assert runs[2] == pytest.approx(runs[0], rel=1e-5)


class Poisoned(TranslateTask):
    """A task whose fourth micro-batch has a loss, or a gradient, that is no number."""

    where = "loss"

    def loss(self, model, batch) -> Loss:
        loss = super().loss(model, batch)
        if not torch.equal(batch.source_M, self.batch(3).source_M):
            return loss
        if self.where == "loss":
            return Loss(loss.sum * float("inf"), loss.report * float("inf"))
        return Loss(loss.sum * 1e38 * 1e38, loss.report)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_number_that_is_not_finite_stops_before_the_update(tmp_path: Path, where: str) -> None:
    task = make_task(RNN, task=Poisoned)
    task.where = where  # type: ignore[attr-defined]
    trainer = make_trainer(tmp_path, task, checkpoint_every_steps=3)
    with pytest.raises(NumericError) as error:
        trainer.run()
    assert trainer.standing.step == 3
    kept = trainer.store.newest()
    assert kept is not None
    assert kept.step == 3
    for name, value in trainer.model.state_dict().items():
        if name in kept.model:
            assert torch.equal(value, kept.model[name]), name  # as after step 3
    lines = sorted(task.corpus.train[i].line for i in task.kept[task.order.at(3)])
    assert f"lines {', '.join(map(str, lines[:8]))}" in str(error.value)
    assert "words.tsv" in str(error.value)
    assert "step 4" in str(error.value)
    assert len(losses(tmp_path)) == 3


class Ignored(TranslateTask):
    """A task in which no label of the second micro-batch counts."""

    def is_ignored(self, batch: PairBatch) -> bool:
        return torch.equal(batch.source_M, self.batch(1).source_M)

    def count(self, batch: PairBatch) -> int:
        return 0 if self.is_ignored(batch) else super().count(batch)

    def loss(self, model, batch) -> Loss:
        loss = super().loss(model, batch)
        return Loss(loss.sum * 0, loss.report * 0) if self.is_ignored(batch) else loss


def test_a_step_without_labels_has_zero_loss_and_is_counted_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make_task(RNN, task=Ignored)
    trainer = make_trainer(tmp_path, task, max_steps=4)
    trainer.run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "labels" in line]
    assert [line["labels"] > 0 for line in steps] == [True, False, True, True]
    assert steps[1]["loss"] == steps[1]["grad_norm"] == 0.0
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    told = [line for line in capsys.readouterr().err.splitlines() if "no label" in line]
    assert len(told) == 1
    assert "step 2 " in told[0]
    assert task.name_batch(1) in told[0]


def test_a_run_with_other_settings_is_not_resumed(tmp_path: Path) -> None:
    make_trainer(tmp_path, make_task(RNN), max_steps=2).run()
    with pytest.raises(CheckpointError, match="other settings"):
        make_trainer(tmp_path, make_task(RNN), max_steps=2, identity="another").run()


def test_the_best_stays_and_the_average_is_the_mean(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_task(RNN), validate_every_steps=4, average=3, keep=1)
    standing = trainer.run()
    steps = [int(v["step"]) for v in standing.validations]
    assert steps == [4, 8, 12, 16, 20]
    ranks = [(v["exact_match"], -v["loss"]) for v in standing.validations]
    assert standing.best_step == steps[ranks.index(max(ranks))]
    mean, averaged = trainer.final_weights()
    assert averaged == [step for step in steps if step <= standing.best_step][-3:]
    parts = [trainer.store.load_model(step) for step in averaged]
    for name, value in mean.items():
        wanted = torch.stack([part[name].double() for part in parts]).mean(0).float()
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-7)


def test_patience_and_time_end_a_run(tmp_path: Path) -> None:
    for name, settings in (("patience", {"patience": 2, "learning_rate": 0.0}), ("time", {"max_seconds": 1e-6})):
        folder = tmp_path / name
        folder.mkdir()
        standing = make_trainer(folder, make_task(RNN), validate_every_steps=2, **settings).run()
        assert standing.step == (6 if name == "patience" else 1)
        assert standing.validations[-1]["step"] == standing.step


class Slow(TranslateTask):
    """A task whose batches are not ready in time."""

    def batch(self, index: int) -> PairBatch:
        time.sleep(0.3)
        return super().batch(index)


def test_what_is_waited_for_data_is_noted(tmp_path: Path) -> None:
    waits = []
    for task in (TranslateTask, Slow):
        (folder := tmp_path / task.__name__).mkdir()
        make_trainer(folder, make_task({**RNN, "dropout": 0.0}, task=task), max_steps=5, accumulate=2).run()
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        waits.append([line["waited_s"] for line in lines if "loss" in line])
    # The first step waits for its two batches; one a step less for the one that was made beside the step before.
    assert waits[1][0] >= 0.5
    assert sum(waits[1]) > 1.0 > sum(waits[0]) >= 0


# ------------------------------------------------------------------------------------------------------------- compiled


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own, where a graph breaks
@pytest.mark.parametrize(
    "model", [RNN, {**RNN, "attends": "before"}, TRANSFORMER], ids=["after", "before", "transformer"]
)
def test_a_compiled_loss_trains_alike(model: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = partial(torch.compile, backend="aot_eager")  # all but the making of kernels, which needs a C++ compiler
    monkeypatch.setattr(torch, "compile", traced)
    runs = []
    for number, is_compiled in enumerate((False, True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        make_trainer(folder, make_task({**model, "dropout": 0.0}), max_steps=4, compile=is_compiled).run()
        runs.append(losses(folder))
    assert runs[1] == pytest.approx(runs[0], rel=1e-5)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["in the kernel", "between graphs"])
def test_on_cuda_few_graphs_serve_batches_of_all_sizes(dropout: float, tmp_path: Path) -> None:
    """Attention without dropout is part of a block's graph; with it, it runs between graphs."""
    task = make_task({**TRANSFORMER, "dropout": 0.0, "attention_dropout": dropout}, batch_tokens=200)
    device = torch.device("cuda")
    batches = [task.batch(number).to(device) for number in range(8)]
    batches = [b for b in batches if b.source_segments.form == b.target_segments.form == "ragged"]
    assert len({batch.source_M.shape for batch in batches}) > 1
    model = make_trainer(tmp_path, task, device=device).model.train(dropout > 0)
    expected = [float(task.loss(model.eval(), batch).report) for batch in batches]
    compiled = make_trainer(tmp_path, task, device=device, compile=True).model.train(dropout > 0)
    with torch.autocast("cuda", torch.bfloat16):
        task.loss(compiled, batches[0]).sum.backward()
        with torch.compiler.set_stance("default" if dropout else "fail_on_recompile"):
            got = [float(task.loss(compiled, batch).report) for batch in batches]
    assert got == pytest.approx(expected, rel=0.05)
