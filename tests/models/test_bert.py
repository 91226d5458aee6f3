"""What every BERT has to do; that its numbers are the public ones', test_public.py shows."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from regard.attention import Segments, record
from regard.errors import ConfigError, ContextError, UsageError
from regard.models.bert import Bert, BertConfig
from regard.models.registry import family
from regard.models.weights import fit, gather

LENGTHS = (5, 1, 11, 3)
every_config = pytest.mark.parametrize("config", family("bert").tiny, ids=lambda c: f"{c.head}-{c.num_types}")


def model_of(config: BertConfig, seed: int = 0) -> Bert:
    torch.manual_seed(seed)
    model = Bert(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def inputs(config: BertConfig) -> dict[str, Tensor]:
    count = sum(LENGTHS)
    draws = {"tokens_N": torch.randint(0, config.vocab_size, (count,))}
    if config.num_types > 1:
        draws["types_N"] = torch.randint(0, config.num_types, (count,))
    if config.num_languages:
        draws["languages_N"] = torch.randint(0, config.num_languages, (count,))
    return draws


@every_config
def test_a_text_alone_equals_itself_in_any_batch(config: BertConfig) -> None:
    model, given = model_of(config), inputs(config)
    together = model.head(model(segments=Segments.ragged(LENGTHS), **given)).split(LENGTHS)
    for place, length in enumerate(LENGTHS):
        own = {name: values.split(LENGTHS)[place] for name, values in given.items()}
        alone = model.head(model(segments=Segments.uniform(1, length), **own))
        assert torch.allclose(alone, together[place], atol=1e-10, rtol=0)
    # Every token sees those behind it.
    changed = given["tokens_N"].clone()
    changed[4] = (changed[4] + 1) % config.vocab_size
    after = model.head(model(segments=Segments.ragged(LENGTHS), **{**given, "tokens_N": changed})).split(LENGTHS)
    assert (after[0][0] - together[0][0]).abs().max() > 1e-4
    assert torch.equal(after[2], together[2])


@every_config
def test_every_parameter_learns_and_goes_through_a_file(config: BertConfig) -> None:
    model, given = model_of(config), inputs(config)
    segments = Segments.ragged(LENGTHS)
    hidden_ND = model(segments=segments, **given)
    loss = model.head(hidden_ND).square().sum()
    if model.next_sentence is not None:
        loss = loss + model.next_sentence(model.pool(hidden_ND, segments)).square().sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if not name.endswith("k_proj.bias"):  # moves all scores of a query alike, and softmax does not see it
            assert parameter.grad.abs().max() > 1e-9, name
    other = model_of(config, seed=1)
    fit(gather(model), other, where="here")
    assert torch.equal(other(segments=segments, **given), hidden_ND)
    assert (other.output.weight is other.token_embed.weight) == (config.head == "masked" and config.tie)


@every_config
def test_attention_is_recorded_in_every_layer(config: BertConfig) -> None:
    model, given = model_of(config), inputs(config)
    plain = model(segments=Segments.ragged(LENGTHS), **given)
    with record(model) as rows:
        assert torch.equal(model(segments=Segments.ragged(LENGTHS), **given), plain)
    assert sorted(rows) == [f"blocks.{i}.self_attn" for i in range(config.num_layers)]
    for calls in rows.values():
        assert sorted(call.weights_HTS.shape[-1] for call in calls) == sorted(LENGTHS)


@pytest.mark.parametrize("first", [0, 2])
def test_the_longest_text_fits_and_one_token_more_is_refused_with_both_numbers(first: int) -> None:
    """RoBERTa's table begins with two places that no text uses: 514 of them hold 512 tokens."""
    model = model_of(BertConfig(23, 16, 1, 2, 20, 512, first_position=first))
    assert model.position_embed.weight.shape[0] == 512 + first
    tokens = torch.randint(0, 23, (513,))
    assert model(tokens[:512], Segments.uniform(1, 512)).isfinite().all()
    with pytest.raises(ContextError, match="a text of 513 tokens; the model reads 512"):
        model(tokens, Segments.uniform(1, 513))


def test_positions_may_begin_anew_inside_a_text() -> None:
    model = model_of(BertConfig(23, 16, 1, 2, 20, 64))
    tokens, again = torch.randint(0, 23, (6,)), torch.tensor([0, 1, 2, 0, 1, 2])
    seen: list[Tensor] = []
    model.position_embed.register_forward_hook(lambda _, __, out: seen.append(out))
    model(tokens, Segments.uniform(1, 6), positions_N=again)
    assert torch.equal(seen[0], model.position_embed.weight[again])


def test_rotary_positions_tell_distances_alone() -> None:
    model = model_of(BertConfig(23, 16, 2, 2, 20, 64, rotary_base=100.0))
    assert model.position_embed is None
    tokens, segments = torch.randint(0, 23, (6,)), Segments.uniform(1, 6)
    here = model(tokens, segments)
    assert torch.allclose(model(tokens, segments, positions_N=torch.arange(6) + 1000), here, atol=1e-10, rtol=0)
    assert (model(tokens, segments, positions_N=torch.tensor([0, 1, 2, 0, 1, 2])) - here).abs().max() > 1e-4
    assert (model(tokens.flip(0), segments).flip(0) - here).abs().max() > 1e-4  # an order is seen at all


def test_of_two_texts_type_language_and_position_are_told() -> None:
    segments, types_N = Segments.ragged([5, 3]), torch.tensor([0, 0, 0, 1, 1, 0, 0, 0])
    plain = model_of(BertConfig(23, 16, 1, 2, 20, 64, num_types=1))
    assert plain.told(segments, types_N) == {}
    typed = model_of(BertConfig(23, 16, 1, 2, 20, 64))
    assert typed.told(segments, types_N)["types_N"] is types_N
    several = model_of(BertConfig(23, 16, 1, 2, 20, 64, num_types=0, num_languages=3, reset_positions=True))
    told = several.told(segments, types_N, torch.tensor([[2, 1], [0, 2]]))
    assert told["languages_N"].tolist() == [2, 2, 2, 1, 1, 0, 0, 0]
    # <s> a </s> b </s>: b's first token stands where a's does.
    assert told["positions_N"].tolist() == [0, 1, 2, 1, 2, 0, 1, 2]
    assert [*told] == ["languages_N", "positions_N"]


def test_what_a_model_has_not_is_refused() -> None:
    bare = model_of(BertConfig(23, 16, 1, 2, 20, 64, head="none"))
    hidden_ND = bare(torch.zeros(3, dtype=torch.int64), Segments.uniform(1, 3))
    with pytest.raises(UsageError, match="without a head"):
        bare.head(hidden_ND)
    with pytest.raises(UsageError, match="without a pooler"):
        bare.pool(hidden_ND, Segments.uniform(1, 3))
    with pytest.raises(UsageError, match="languages"):
        bare(torch.zeros(3, dtype=torch.int64), Segments.uniform(1, 3), languages_N=torch.zeros(3, dtype=torch.int64))
    for change in (
        {"head": "some"},
        {"next_sentence": True},
        {"head_activation": "no"},
        {"languages": ("de",), "num_languages": 2},
    ):
        with pytest.raises(ConfigError):
            Bert(replace(BertConfig(23, 16, 1, 2, 20, 64), **change))
