"""What is done to blocks changes memory and time, and no number."""

from functools import partial
from pathlib import Path

import pytest
import torch
from small_runs import CPU, RNN, TRANSFORMER, losses, make_task, make_trainer
from torch import Tensor, nn

from regard.attention import Segments
from regard.attention.compiling import compiled
from regard.attention.masks import causal
from regard.attention.recording import record
from regard.errors import ConfigError
from regard.layers.block import Block
from regard.models.xlnet import XLNet, XLNetConfig
from regard.training import blocks

DROPPING = {**TRANSFORMER, "encoder_layers": 2, "dropout": 0.3, "attention_dropout": 0.2, "mlp_dropout": 0.1}


def found(folder: Path, **settings: object) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and last weights of a short run."""
    folder.mkdir()
    trainer = make_trainer(folder, make_task(DROPPING), max_steps=6, accumulate=2, **settings)
    trainer.run()
    return losses(folder), {name: one.detach().clone() for name, one in trainer.model.named_parameters()}


def test_weights_that_lie_turned_are_trained_row_by_row() -> None:
    turned, model = torch.randn(5, 7), nn.Linear(5, 7)
    model.weight.data = turned.T
    blocks.quicken(model, "fp32")
    assert model.weight.is_contiguous()
    assert torch.equal(model.weight, turned.T)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_forgetting_inside_blocks_trains_bit_for_bit_alike(precision: str, tmp_path: Path) -> None:
    (kept, weights), (again, others) = (
        found(tmp_path / str(forgets), precision=precision, checkpoint_activations=forgets) for forgets in (False, True)
    )
    assert again == kept
    assert all(torch.equal(others[name], weights[name]) for name in weights)


def test_a_forgetting_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole, weights = found(tmp_path / "whole", checkpoint_activations=True, validate_every_steps=3)
    (folder := tmp_path / "parts").mkdir()
    for steps in (3, 6):
        trainer = make_trainer(
            folder,
            make_task(DROPPING),
            max_steps=steps,
            accumulate=2,
            checkpoint_activations=True,
            validate_every_steps=3,
        )
        trainer.run()
    assert losses(folder) == whole
    assert all(torch.equal(one, weights[name]) for name, one in trainer.model.named_parameters())


def saved_numbers(run: nn.Module, x_ND: Tensor, segments: Segments) -> int:
    """Numbers that are kept for the backward pass, parameters not counted."""
    kept: dict[int, int] = {}
    parameters = {one.data_ptr() for one in run.parameters()}

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y_ND = x_ND
        for block in run.children():
            y_ND = block(y_ND, segments)
        y_ND.sum().backward()
    return sum(kept.values())


def test_between_the_passes_only_what_enters_a_block_is_kept() -> None:
    stack, segments = nn.Sequential(*(Block(16, 2, 64) for _ in range(4))), Segments.ragged([9, 5])
    x_ND = torch.randn(14, 16)
    before = saved_numbers(stack, x_ND, segments)
    blocks.checkpoint_blocks(stack)
    # The input of each block, the lengths and starts that go in beside it, and a byte or two of bookkeeping.
    assert saved_numbers(stack, x_ND, segments) <= 4 * 14 * 16 + 100 < before / 10


def test_what_runs_again_is_not_recorded_again() -> None:
    stack, segments = nn.Sequential(Block(16, 2, 32), Block(16, 2, 32)), Segments.ragged([4, 6])
    blocks.checkpoint_blocks(stack)
    with record(stack) as rows:
        y_ND = stack[1](stack[0](torch.randn(10, 16), segments), segments)
        y_ND.sum().backward()
        assert [len(rows[name]) for name in rows] == [2, 2]
        stack[0](torch.randn(10, 16), segments)
    assert [len(rows[name]) for name in rows] == [4, 2]


def test_blocks_with_several_streams_forget_too() -> None:
    model = XLNet(XLNetConfig(30, embed_dim=16, num_heads=2, num_layers=2, mlp_dim=32, dropout=0.2)).train()
    tokens_N, segments = torch.randint(0, 30, (11,)), Segments.ragged([7, 4])

    def gradients() -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(2)
        model.head(model(tokens_N, segments)).logsumexp(-1).sum().backward()
        return [one.grad.clone() for one in model.parameters() if one.grad is not None]

    kept = gradients()
    blocks.checkpoint_blocks(model)
    assert all(map(torch.equal, gradients(), kept))


def test_a_model_without_blocks_has_nothing_to_forget(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoint_activations is true for a model without Transformer blocks"):
        make_trainer(tmp_path, make_task(RNN), checkpoint_activations=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own, where a graph breaks
def test_compiled_blocks_forget_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    kept, again = (
        found(tmp_path / str(forgets), compile=True, checkpoint_activations=forgets)[0] for forgets in (False, True)
    )
    assert again == kept


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_few_graphs_serve_twenty_ragged_batches(
    dropout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an encoder block, a decoder block and the loss: what comes before and after attention, and a few forms."""
    graphs: list[int] = []
    now = 0

    def counting(graph, inputs):  # type: ignore[no-untyped-def]
        graphs.append(now)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    layers = {"encoder_layers": 3, "decoder_layers": 3, "attention_dropout": dropout}
    tasks = [make_task({**DROPPING, **layers}, batch_tokens=61 + 4 * number) for number in range(20)]
    model = make_trainer(tmp_path, tasks[0], compile=True).model.train()
    batches = [next(b for b in map(task.batch, range(9)) if b.source_segments.form == "ragged") for task in tasks]
    assert len({(one.source_M.shape, len(one.source_segments)) for one in batches}) > 15
    for number, (task, batch) in enumerate(zip(tasks, batches, strict=True)):
        now = number
        task.criterion = tasks[0].criterion
        task.loss(model, batch.to(CPU)).sum.backward()
    assert set(graphs) == {0}  # sizes are variables, and all layers of a kind share their graphs
    assert len(graphs) <= 18


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_uniform_batches_of_any_size_are_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[object] = []

    def counting(graph, inputs):  # type: ignore[no-untyped-def]
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    stack = nn.Sequential(*(Block(16, 2, 32) for _ in range(3)))
    blocks.compile_blocks(stack, backend=counting, fullgraph=True)
    for count, length in ((3, 9), (4, 7), (2, 12), (5, 5)):
        segments = Segments.uniform(count, length)
        y_ND = torch.randn(count * length, 16, requires_grad=True)
        for block in stack:
            y_ND = block(y_ND, segments, mask=causal())
        y_ND.sum().backward()
    assert len(graphs) == 1


def test_a_function_may_have_many_graphs() -> None:
    """Of what torch gives a function by itself, blocks of several kinds would run out without a word."""
    torch.compiler.reset()
    graphs: list[object] = []

    def counting(graph, inputs):  # type: ignore[no-untyped-def]
        graphs.append(graph)
        return graph.forward

    add = compiled(lambda x, n: x + n, dynamic=False, backend=counting)
    for number in range(20):
        assert add(torch.zeros(2), number).tolist() == [number, number]
    assert len(graphs) == 20
