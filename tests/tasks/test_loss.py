"""The loss is a sum and a count: no padding, no batch and no accumulation can change it."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.decoding import DecodeOptions, decode
from regard.models.interface import EncoderDecoder
from regard.models.registry import families
from regard.tasks.task import cross_entropy

TRANSLATING = {name: one for name, one in families().items() if issubclass(one.build, EncoderDecoder)}
EACH = [
    pytest.param(name, config, id=f"{name}-{i}") for name, f in TRANSLATING.items() for i, config in enumerate(f.tiny)
]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_equals_torchs_cross_entropy(smoothing: float) -> None:
    logits_NV = (3 * torch.randn(13, 7, dtype=torch.float64)).requires_grad_()
    labels_N = torch.randint(0, 7, (13,))
    ours = cross_entropy(logits_NV, labels_N, smoothing)
    wanted = nn.functional.cross_entropy(logits_NV, labels_N, label_smoothing=smoothing, reduction="sum")
    assert abs(ours.sum - wanted) < 1e-10
    (got,), (right,) = (torch.autograd.grad(loss, [logits_NV]) for loss in (ours.sum, wanted))
    assert (got - right).abs().max() < 1e-10
    # What is logged has no smoothing, and no gradient.
    plain = nn.functional.cross_entropy(logits_NV, labels_N, reduction="sum")
    assert abs(ours.report - plain) < 1e-10
    assert not ours.report.requires_grad


def test_low_precision_is_summed_in_single_precision() -> None:
    logits_NV, labels_N = torch.randn(50, 1000), torch.randint(0, 1000, (50,))
    half = cross_entropy(logits_NV.bfloat16(), labels_N, 0.1)
    assert half.sum.dtype == torch.float32
    wanted = cross_entropy(logits_NV.bfloat16().double(), labels_N, 0.1)
    assert float(half.sum) == pytest.approx(float(wanted.sum), rel=1e-6)


def test_no_row_no_loss() -> None:
    assert float(cross_entropy(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), 0.1).sum) == 0.0


def test_micro_batches_are_weighted_by_their_tokens() -> None:
    """Parts of (10, 10 tokens) and (4, 1 token): the mean is 14/11, not the 2.5 of two means."""

    def rows(total: float, count: int) -> Tensor:
        """Logits over two tokens, of which the right one, 0, costs total/count each."""
        p = torch.exp(torch.tensor(-total / count, dtype=torch.float64))
        return torch.stack([p, 1 - p]).log().expand(count, 2)

    parts = [rows(10.0, 10), rows(4.0, 1)]
    losses = [cross_entropy(part, torch.zeros(len(part), dtype=torch.int64), 0.0) for part in parts]
    assert [float(loss.sum) for loss in losses] == pytest.approx([10.0, 4.0], abs=1e-12)
    count = sum(len(part) for part in parts)
    assert float(sum(loss.sum for loss in losses)) / count == pytest.approx(14 / 11, abs=1e-12)
    whole = cross_entropy(torch.cat(parts), torch.zeros(count, dtype=torch.int64), 0.0)
    assert float(whole.sum) / count == pytest.approx(14 / 11, abs=1e-12)


def gradients(model: nn.Module, sources: list[list[int]], targets: list[list[int]], parts: int) -> list[Tensor]:
    """Of the mean loss per token, summed over so many micro-batches."""
    model.zero_grad()
    count = sum(len(target) - 1 for target in targets)
    size = len(sources) // parts
    for start in range(0, len(sources), size):
        some, others = sources[start : start + size], targets[start : start + size]
        hidden_ND = model(
            torch.tensor([token for source in some for token in source]),
            Segments.ragged([len(source) for source in some]),
            torch.tensor([token for target in others for token in target[:-1]]),
            Segments.ragged([len(target) - 1 for target in others]),
        )
        labels_N = torch.tensor([token for target in others for token in target[1:]])
        (cross_entropy(model.head(hidden_ND), labels_N, 0.1).sum / count).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("name", "config"), EACH)
def test_gradients_do_not_depend_on_accumulation(name: str, config: object) -> None:
    model = families()[name].build(config).double().eval()
    lengths = (1, 9, 3, 3, 12, 2, 5, 7)
    sources = [torch.randint(0, 23, (length,)).tolist() for length in lengths]
    targets = [torch.randint(0, 23, (length + 1,)).tolist() for length in reversed(lengths)]
    whole = gradients(model, sources, targets, 1)
    assert max(float(gradient.abs().max()) for gradient in whole) > 1e-2
    for parts in (2, 4, 8):
        for one, other in zip(whole, gradients(model, sources, targets, parts), strict=True):
            assert (one - other).abs().max() < 1e-10


@pytest.mark.parametrize("name", TRANSLATING)
def test_a_true_end_is_learnt(name: str) -> None:
    """Targets end in the end token, which is a label like any other: the model learns to stop where they stop."""
    config = families()[name].tiny[0]
    model = families()[name].build(config).eval()
    start, end = 0, 1
    written: list[list[int]] = [[], [5], [6, 7], [8, 9, 10], [11, 12, 13, 14]]
    sources = [[place + 2, 9] for place in range(5)]
    targets = [[start, *tokens, end] for tokens in written]
    source_M, source_segments = torch.tensor(sources).flatten(), Segments.uniform(5, 2)
    read, labels = (
        [target[:-1] for target in targets],
        torch.tensor([token for target in targets for token in target[1:]]),
    )
    target_N, target_segments = (
        torch.tensor([t for target in read for t in target]),
        Segments.ragged([len(t) for t in read]),
    )
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(
            model.head(model(source_M, source_segments, target_N, target_segments)), labels, 0.0
        ).sum.backward()
        optimizer.step()
    outputs = decode(
        model, source_M, source_segments, start_id=start, end_id=end, options=DecodeOptions(max_extra_tokens=20)
    )
    assert [(best.tokens, best.ended) for (best,) in outputs] == [(tokens, True) for tokens in written]
