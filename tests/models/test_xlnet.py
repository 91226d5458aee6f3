"""What every XLNet has to do; that its numbers are the public ones', test_xlnet_public.py shows."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.attention import Segments, record
from regard.errors import ConfigError, UsageError
from regard.models.registry import family
from regard.models.weights import fit, gather
from regard.models.xlnet import Streams, XLNet, XLNetConfig
from regard.tasks.task import cross_entropy

LENGTHS = (5, 1, 11, 3)
BOTH = XLNetConfig(23, 16, 2, 2, 24)
PAST = replace(BOTH, attention="past")
every_config = pytest.mark.parametrize("config", family("xlnet").tiny, ids=lambda c: f"{c.attention}-{c.head}")


def model_of(config: XLNetConfig, seed: int = 0) -> XLNet:
    torch.manual_seed(seed)
    model = XLNet(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def orders(lengths: tuple[int, ...], seed: int = 0) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.cat([torch.randperm(length, generator=draws) for length in lengths])


def given(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> dict[str, Tensor]:
    draws, count = torch.Generator().manual_seed(seed), sum(lengths)
    return {
        "tokens_N": torch.randint(0, 23, (count,), generator=draws),
        "types_N": torch.randint(0, 2, (count,), generator=draws),
        "order_N": orders(lengths, seed),
    }


def run(model: XLNet, told: dict[str, Any], lengths: tuple[int, ...] = LENGTHS, **more: Any) -> Streams:
    """Every token a target, where nothing else is said."""
    more.setdefault("targets_P", torch.arange(sum(lengths)))
    return model.streams(segments=Segments.ragged(lengths), **told, **more)


def far(one: Tensor, other: Tensor) -> list[float]:
    """How far each row moved."""
    return (one - other).abs().amax(-1).tolist()


@every_config
def test_a_text_alone_equals_itself_in_any_batch(config: XLNetConfig) -> None:
    model, told = model_of(config), given()
    first = run(model, told, remember=True)
    targets = torch.tensor([1, 4, 5, 8, 9, 16, 18])
    assert first.memory is not None
    second = run(model, given(seed=1), targets_P=targets, memory=first.memory)
    starts = Segments.ragged(LENGTHS).starts_B.tolist()
    for b, length in enumerate(LENGTHS):
        own, own_next = ({name: rows.split(LENGTHS)[b] for name, rows in of.items()} for of in (told, given(seed=1)))
        alone = run(model, own, (length,), remember=True)
        assert torch.allclose(alone.hidden_ND, first.hidden_ND.split(LENGTHS)[b], atol=1e-10, rtol=0)
        assert torch.allclose(alone.targets_PD, first.targets_PD.split(LENGTHS)[b], atol=1e-10, rtol=0)
        mine = (targets >= starts[b]) & (targets < starts[b] + length)
        after = run(model, own_next, (length,), targets_P=targets[mine] - starts[b], memory=alone.memory)
        assert torch.allclose(after.hidden_ND, second.hidden_ND.split(LENGTHS)[b], atol=1e-10, rtol=0)
        assert torch.allclose(after.targets_PD, second.targets_PD[mine], atol=1e-10, rtol=0)
        without = run(model, own_next, (length,), targets_P=targets[mine] - starts[b])
        assert (without.hidden_ND - after.hidden_ND).abs().max() > 1e-3
    # Other texts change nothing.
    tokens = told["tokens_N"].clone()
    tokens[6:] = (tokens[6:] + 1) % 23
    assert torch.equal(run(model, {**told, "tokens_N": tokens}).targets_PD[:6], first.targets_PD[:6])


@pytest.mark.parametrize("config", [BOTH, PAST], ids=lambda c: c.attention)
def test_no_target_sees_itself_or_what_comes_later(config: XLNetConfig) -> None:
    model, told = model_of(config), given((11,))
    before = run(model, told, (11,))
    ranks = told["order_N"]
    for changed in range(11):
        tokens = told["tokens_N"].clone()
        tokens[changed] = (tokens[changed] + 1) % 23
        after = run(model, {**told, "tokens_N": tokens}, (11,))
        moved, moved_content = far(before.targets_PD, after.targets_PD), far(before.hidden_ND, after.hidden_ND)
        for place in range(11):
            # The past alone is seen through what others of the past have seen of it: all within the order.
            seen = bool(ranks[changed] < ranks[place]) and (config.attention == "both" or changed < place)
            assert moved[place] > 1e-4 if seen else moved[place] == 0
            assert moved_content[place] > 1e-4 if seen or place == changed else moved_content[place] == 0


def test_the_order_matters_and_tokens_of_one_rank_see_each_other() -> None:
    model, told = model_of(BOTH), given()
    other = {**told, "order_N": orders(LENGTHS, 5)}
    moved = far(run(model, told).targets_PD, run(model, other).targets_PD)
    assert min(moved[6:17]) > 1e-3  # the long text's targets; what a text of one token sees is nothing, in any order
    assert moved[5] == 0
    # One rank for all is no order; and a target before which nothing comes sees nothing but its place.
    flat = run(model, {**told, "order_N": torch.zeros(sum(LENGTHS), dtype=torch.int64)})
    plain = model(told["tokens_N"], Segments.ragged(LENGTHS), told["types_N"])
    assert torch.allclose(flat.hidden_ND, plain, atol=1e-12, rtol=0)
    assert max(far(flat.targets_PD, flat.targets_PD[:1].expand_as(flat.targets_PD))) < 1e-12
    # The order of places is the past alone.
    past = XLNet(PAST).double().eval()
    past.load_state_dict(model.state_dict())
    in_order = run(model, {**told, "order_N": Segments.ragged(LENGTHS).positions_N()})
    by_setting = past(told["tokens_N"], Segments.ragged(LENGTHS), told["types_N"])
    assert torch.allclose(in_order.hidden_ND, by_setting, atol=1e-12, rtol=0)


def test_only_targets_are_computed_and_they_are_those_of_all() -> None:
    model, told = model_of(BOTH), given()
    rows: list[int] = []
    model.blocks[0].mlp.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    targets = torch.tensor([0, 3, 7, 12, 13, 19])
    some = run(model, told, targets_P=targets)
    assert rows == [20, 6]
    assert torch.allclose(some.targets_PD, run(model, told).targets_PD[targets], atol=1e-12, rtol=0)
    assert run(model, told, targets_P=targets[:0]).targets_PD.shape == (0, 16)
    assert run(model, told, targets_P=None).targets_PD is None


def test_types_are_told_apart_and_not_named() -> None:
    model, told = model_of(BOTH), given()
    one = run(model, told).targets_PD
    swapped = run(model, {**told, "types_N": 1 - told["types_N"]}).targets_PD
    assert torch.allclose(one, swapped, atol=1e-12, rtol=0)
    same = run(model, {**told, "types_N": torch.zeros_like(told["types_N"])}).targets_PD
    assert max(far(one, same)) > 1e-3
    # One type for all says the same of every key, which softmax does not see.
    assert torch.allclose(same, run(model, {**told, "types_N": None}).targets_PD, atol=1e-12, rtol=0)


@pytest.mark.parametrize("parts", [((5, 1, 11, 3), (2, 4, 1, 6)), ((0, 7, 2, 0), (3, 0, 5, 4), (1, 2, 0, 9))])
def test_parts_with_a_memory_are_the_whole_text(parts: tuple[tuple[int, ...], ...]) -> None:
    """Where the past alone is seen and all is remembered, it is the same whether a text is read at once or in parts."""
    model = model_of(PAST)
    whole = tuple(map(sum, zip(*parts, strict=True)))
    told = given(whole)
    told["types_N"].zero_()  # as what is remembered is
    told["order_N"] = Segments.ragged(whole).positions_N()
    at_once = run(model, told, whole)
    texts = {name: list(rows.split(whole)) for name, rows in told.items()}
    memory, read, predicted = None, [[] for _ in whole], [[] for _ in whole]
    begun = [0] * len(whole)
    for lengths in parts:
        ends = [a + b for a, b in zip(begun, lengths, strict=True)]
        piece = {
            name: torch.cat([text[a:b] for text, a, b in zip(of, begun, ends, strict=True)])
            for name, of in texts.items()
        }
        out = run(model, piece, lengths, memory=memory, remember=True)
        memory, begun = out.memory, ends
        assert memory is not None
        assert memory.segments.lengths == tuple(ends)
        for b, (hidden, target) in enumerate(
            zip(out.hidden_ND.split(lengths), out.targets_PD.split(lengths), strict=True)
        ):
            read[b].append(hidden)
            predicted[b].append(target)
    for got, want in ((read, at_once.hidden_ND), (predicted, at_once.targets_PD)):
        assert torch.allclose(torch.cat([torch.cat(of) for of in got]), want, atol=1e-10, rtol=0)


def test_a_memory_keeps_as_many_tokens_as_it_is_told() -> None:
    """The first block reads embeddings: what is remembered of it are rows of the table, by hand."""
    model = model_of(replace(BOTH, memory_tokens=4, reuse_tokens=3))
    tokens = [torch.tensor(row) for row in ([1, 2, 3, 4, 5], [6], [7, 8, 9])]
    first = model.streams(torch.cat(tokens), Segments.ragged([5, 1, 3]), remember=True).memory
    assert first is not None
    assert torch.equal(first.hidden[0], model.token_embed.weight[[1, 2, 3, 6, 7, 8, 9]])
    later = torch.tensor([11, 12, 13, 14, 15, 16])
    second = model.streams(later, Segments.ragged([2, 4, 0]), memory=first, remember=True).memory
    assert second is not None
    assert second.segments.lengths == (4, 4, 3)
    assert torch.equal(second.hidden[0], model.token_embed.weight[[2, 3, 11, 12, 6, 13, 14, 15, 7, 8, 9]])
    assert not any(hidden.requires_grad for hidden in second.hidden)
    # Other texts of it.
    chosen = second.select(torch.tensor([2, 0, 2]))
    assert chosen.segments.lengths == (3, 4, 3)
    assert torch.equal(chosen.hidden[0], model.token_embed.weight[[7, 8, 9, 2, 3, 11, 12, 7, 8, 9]])


@every_config
def test_every_parameter_learns_and_goes_through_a_file(config: XLNetConfig) -> None:
    model, told = model_of(config), given()
    out = run(model, told, remember=True)
    after = run(model, told, memory=out.memory)
    predicted = torch.cat([out.targets_PD, after.targets_PD])
    (model.head(predicted) if model.output is not None else predicted[:, ::2]).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-9, name
    weights = gather(model)
    assert sum(weight.numel() for weight in weights.values()) == sum(p.numel() for p in model.parameters())
    other = model_of(config, seed=1)
    fit(weights, other, where="here")
    assert torch.equal(run(other, told).targets_PD, out.targets_PD)
    shared = {id(block.self_attn.score.content_bias_HK) for block in other.blocks}
    assert len(shared) == (config.num_layers if config.untie else 1)
    if other.output is not None:
        assert (other.output.weight is other.token_embed.weight) == config.tie


@every_config
def test_attention_is_recorded_in_every_layer(config: XLNetConfig) -> None:
    model, told = model_of(config), given()
    plain = run(model, told)
    with record(model) as rows:
        assert torch.equal(run(model, told).targets_PD, plain.targets_PD)
    assert sorted(rows) == [f"blocks.{i}.self_attn" for i in range(config.num_layers)]
    for calls in rows.values():
        content, queries = calls[: len(LENGTHS)], calls[len(LENGTHS) :]
        assert [one.sequence for one in calls] == [0, 1, 2, 3] * 2
        assert all(one.within for one in content)
        assert not any(one.within for one in queries)
        for one, ranks in zip(queries, told["order_N"].split(LENGTHS), strict=True):
            allowed_TS = ranks[None] < ranks[:, None]
            if config.attention == "past":
                allowed_TS = allowed_TS.tril()
            assert torch.equal(one.weights_HTS > 0, allowed_TS.expand_as(one.weights_HTS))
        for one in content:
            assert torch.allclose(one.weights_HTS.sum(-1), torch.ones(1, dtype=torch.float64), atol=1e-12, rtol=0)


def test_dropout_acts_in_training_alone() -> None:
    model, told = model_of(replace(BOTH, dropout=0.3, attention_dropout=0.0)), given()
    plain = run(model, told).targets_PD
    model.train()
    assert not torch.equal(run(model, told).targets_PD, plain)
    model.eval()
    assert torch.equal(run(model, told).targets_PD, plain)


def test_it_learns_what_can_be_known() -> None:
    """Of four texts all follows from what comes before it in the order, but for what comes first: it sees nothing.

    What is best said there is that it is one of four, so the loss falls from ln 23 to 4 ln 4 / 20, and not below.
    """
    torch.manual_seed(0)
    model = XLNet(replace(BOTH, embed_dim=32, mlp_dim=64)).eval()
    texts = [torch.tensor([3, 7, 1, 9, 4]), torch.tensor([2]), torch.arange(11), torch.tensor([20, 21, 22])]
    told = {"tokens_N": torch.cat(texts), "order_N": orders(LENGTHS)}
    firsts = told["tokens_N"][told["order_N"] == 0]
    assert len(firsts.unique()) == 4
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, foreach=True)
    for _ in range(60):
        loss = cross_entropy(model.head(run(model, told).targets_PD), told["tokens_N"], 0.0).sum / 20
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert 4 * math.log(4) / 20 < float(loss.detach()) < 4 * math.log(4) / 20 + 0.02


def test_no_text_and_texts_without_tokens() -> None:
    model = model_of(BOTH)
    none = torch.zeros(0, dtype=torch.int64)
    for segments in (Segments.ragged([]), Segments.ragged([0, 0])):
        out = model.streams(none, segments, none, order_N=none, targets_P=none, remember=True)
        assert out.hidden_ND.shape == out.targets_PD.shape == (0, 16)
        again = model.streams(none, segments, none, order_N=none, targets_P=none, memory=out.memory, remember=True)
        assert again.memory.segments.lengths == segments.lengths


def test_what_does_not_fit_is_refused() -> None:
    model, told = model_of(BOTH), given()
    tokens, segments = told["tokens_N"], Segments.ragged(LENGTHS)
    with pytest.raises(UsageError, match="targets without an order"):
        model.streams(tokens, segments, targets_P=torch.tensor([1]))
    for targets in ([20], [-1], [7, 2]):
        with pytest.raises(UsageError, match="not among 20 tokens, or not text by text"):
            run(model, told, targets_P=torch.tensor(targets))
    memory = run(model, told, remember=True).memory
    assert memory is not None
    with pytest.raises(UsageError, match="4 texts are remembered, 2 are read"):
        model(tokens[:3], Segments.ragged([1, 2]), memory=memory)
    with pytest.raises(UsageError, match="a memory of 1 layers for a model of 2"):
        model(tokens, segments, memory=replace(memory, hidden=memory.hidden[:1]))
    with pytest.raises(UsageError, match="without a head"):
        model_of(replace(BOTH, head="none")).head(torch.zeros(1, 16).double())
    with pytest.raises(UsageError, match="does not divide into 3 heads"):
        XLNet(replace(BOTH, num_heads=3))
    for change in ({"attention": "left"}, {"head": "some"}, {"memory_tokens": -1}, {"clamp_distance": 10**9}):
        with pytest.raises(ConfigError):
            XLNet(replace(BOTH, **change))
