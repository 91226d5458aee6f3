"""What every family has to do, for each of its tiny settings. Registration enrols a family here."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models.battery import (
    SOURCE_LENGTHS,
    TARGET_LENGTHS,
    TEXT_LENGTHS,
    Rows,
    cases,
    forward,
    images,
    model_of,
    ragged,
    row,
    seen,
    tokens,
    vocabularies,
)
from torch import nn

from regard.attention import Segments, Site, record
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.models.interface import EncoderDecoder, ImageEncoder, LanguageModel
from regard.models.reconstructor import ImageReconstructor
from regard.models.registry import check_bounds, families, family
from regard.models.weights import fit, gather, read_tensors, write_tensors
from regard.tasks.task import cross_entropy

every_model = pytest.mark.parametrize(("name", "config"), cases(EncoderDecoder | LanguageModel))
every_image_encoder = pytest.mark.parametrize(("name", "config"), cases(ImageEncoder))
every_kind = pytest.mark.parametrize(
    ("name", "config"), cases(EncoderDecoder | LanguageModel | ImageEncoder | ImageReconstructor)
)


# The loss per token that eight examples have to reach, from ln 23 or more, with Adam at 0.02.
STEPS, BOUND = 80, 0.25


@every_kind
def test_builds_on_the_meta_device(name: str, config: Any) -> None:
    with torch.device("meta"):
        bare = family(name).build(config)
    built = family(name).build(config)
    assert all(parameter.device.type == "meta" for parameter in bare.parameters())
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (bare, built)]
    assert counts[0] == counts[1] > 0
    assert {n: p.shape for n, p in bare.named_parameters()} == {n: p.shape for n, p in built.named_parameters()}


@pytest.mark.parametrize("size", [pytest.param(size, id=size.name) for f in families().values() for size in f.sizes])
def test_published_sizes_build_on_the_meta_device(size: Any) -> None:
    check_bounds(size.config, size.name)
    build = next(f.build for f in families().values() if size in f.sizes)
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in build(size.config).parameters()) > 1_000_000


@every_model
def test_forward_and_gradients(name: str, config: Any) -> None:
    model = model_of(name, config)
    sources, targets = ragged(config)
    logits = forward(model, sources, targets)
    assert [part.shape for part in logits] == [(length, vocabularies(config)[1]) for length in TARGET_LENGTHS]
    assert all(part.isfinite().all() for part in logits)
    assert torch.cat(logits).std() > 0.05
    cross_entropy(torch.cat(logits), row(tokens(TARGET_LENGTHS, vocabularies(config)[1], 3)), 0.1).sum.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        # A bias on keys moves all scores of a query alike, and softmax does not see it.
        if not parameter_name.endswith("k_proj.bias"):
            assert parameter.grad.abs().max() > 1e-9, parameter_name


@every_model
def test_same_seed_same_model_and_dropout_only_in_training(name: str, config: Any) -> None:
    sources, targets = ragged(config)
    first, second = (torch.cat(forward(model_of(name, config), sources, targets)) for _ in range(2))
    assert torch.equal(first, second)
    model = model_of(name, config).train()
    assert not torch.equal(torch.cat(forward(model, sources, targets)), first)
    assert torch.equal(torch.cat(forward(model.eval(), sources, targets)), first)


def is_tied(config: Any) -> bool:
    return config.tie if hasattr(config, "tie") else config.share != "none"


def tied(model: nn.Module) -> set[frozenset[str]]:
    """Groups of names that are one parameter."""
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return {frozenset(group) for group in names.values() if len(group) > 1}


@every_model
def test_weights_go_through_a_file(name: str, config: Any, tmp_path: Path) -> None:
    model, other = model_of(name, config, torch.float32), model_of(name, config, torch.float32, seed=1)
    sources, targets = ragged(config)
    weights = gather(model)
    assert sum(weight.numel() for weight in weights.values()) == sum(p.numel() for p in model.parameters())
    assert not any(torch.equal(weight, gather(other)[key]) for key, weight in weights.items())
    ties = tied(other)
    assert bool(ties) == is_tied(config)
    write_tensors(tmp_path / "model.safetensors", weights)
    fit(read_tensors(tmp_path / "model.safetensors"), other, where="model.safetensors")
    back = gather(other)
    assert back.keys() == weights.keys()
    assert all(back[key].numpy().tobytes() == weight.numpy().tobytes() for key, weight in weights.items())
    assert torch.equal(torch.cat(forward(model, sources, targets)), torch.cat(forward(other, sources, targets)))
    # Tied tables are still one after loading: what changes one changes the other.
    assert tied(other) == ties
    parameters = dict(other.named_parameters(remove_duplicate=False))
    for group in ties:
        first, *rest = sorted(group)
        with torch.no_grad():
            parameters[first][0, 0] = 12345.0
        assert all(parameters[other_name][0, 0] == 12345.0 for other_name in rest)


@every_kind
def test_weights_that_do_not_fit_are_refused(name: str, config: Any) -> None:
    model = model_of(name, config)
    weights = gather(model)
    key = next(iter(weights))
    spoilt = {**weights, key: torch.full_like(weights[key], torch.nan)}
    for wrong in ({k: v for k, v in weights.items() if k != key}, {**weights, "more": torch.zeros(1)}, spoilt):
        with pytest.raises(CheckpointError):
            fit(wrong, model, where="here")
    assert all(torch.equal(weight, gather(model)[k]) for k, weight in weights.items())


@every_model
def test_attention_is_recorded_for_every_layer_that_attends(name: str, config: Any) -> None:
    model = model_of(name, config)
    sources, targets = ragged(config)
    sites = [site_name for site_name, module in model.named_modules() if isinstance(module, Site)]
    if not sites:
        assert config.attention == "none"
        with pytest.raises(UsageError):
            record(model)
        return
    plain = torch.cat(forward(model, sources, targets))
    with record(model) as rows:
        recorded = torch.cat(forward(model, sources, targets))
    assert torch.equal(plain, recorded)
    assert sorted(rows) == sorted(sites)
    for site_name in sites:
        calls, is_text = rows[site_name], isinstance(model, LanguageModel)
        is_encoder, is_decoder = (site_name.startswith(part) for part in ("encoder", "decoder"))
        assert {call.sequence for call in calls} == set(range(len(sources)))
        for call in calls:
            sums = call.weights_HTS.sum(-1)
            assert torch.allclose(sums, torch.ones_like(sums), atol=1e-12, rtol=0)
            keys = TEXT_LENGTHS if is_text else TARGET_LENGTHS if call.within and is_decoder else SOURCE_LENGTHS
            assert call.weights_HTS.shape[-1] == keys[call.sequence]
        queries = sum(len(call.queries) for call in calls)
        assert queries == sum(TEXT_LENGTHS if is_text else SOURCE_LENGTHS if is_encoder else TARGET_LENGTHS)


@every_model
def test_overfits_eight_examples(name: str, config: Any) -> None:
    torch.manual_seed(0)
    model = family(name).build(config)  # in float32, in evaluation mode: without dropout
    model.eval()
    sources = tokens((3, 4, 5, 6, 3, 4, 5, 6), vocabularies(config)[0], 5)
    targets = tokens((4, 3, 6, 5, 3, 6, 4, 5), vocabularies(config)[1], 6)
    read, labels = [target[:-1] for target in targets], row([target[1:] for target in targets])
    optimizer = torch.optim.Adam(model.parameters(), 2e-2, foreach=True)
    for _ in range(STEPS):
        loss = cross_entropy(torch.cat(forward(model, sources, read)), labels, 0.0).sum / len(labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < BOUND, float(loss.detach())


@every_model
def test_a_sequence_alone_equals_itself_in_any_batch(name: str, config: Any) -> None:
    model = model_of(name, config)
    sources, targets = ragged(config)
    together = forward(model, sources, targets)
    for place, part in enumerate(together):
        (alone,) = forward(model, [sources[place]], [targets[place]])
        assert torch.allclose(alone, part, atol=1e-10, rtol=0)
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        shuffled = forward(model, [sources[place] for place in order], [targets[place] for place in order])
        for place, part in zip(order, shuffled, strict=True):
            assert torch.allclose(part, together[place], atol=1e-10, rtol=0)
    # The other sequence of a pair matters, so that the equality above says something.
    swapped = forward(model, [sources[1], sources[0]], targets[:2])
    assert (swapped[0] - together[0]).abs().max() > 1e-3


@every_model
def test_nothing_leaks_from_the_future(name: str, config: Any) -> None:
    model = model_of(name, config)
    sources, targets = ragged(config)
    before = forward(model, sources, targets)
    for changed in (1, 2, 6, 12):
        others = [
            [(token + 1) % vocabularies(config)[1] if place >= changed else token for place, token in enumerate(target)]
            for target in targets
        ]
        after = forward(model, sources, others)
        for old, new in zip(before, after, strict=True):
            assert torch.equal(old[:changed], new[:changed])
            assert len(old) <= changed or (old[changed] - new[changed]).abs().max() > 1e-3


def check_steps(model: nn.Module, config: Any, prompts: int, steps: int, beams: int) -> None:
    """Step by step with beams that are reordered, repeated and dropped = the full forward over what each row holds."""
    draws = np.random.default_rng(0)
    sources = tokens(draws.integers(1, 12, prompts), vocabularies(config)[0], 7)
    step = torch.inference_mode()(model.step)
    state = torch.inference_mode()(model.start)(row(sources), Segments.ragged([len(s) for s in sources]), beams)
    histories: Rows = [[] for _ in range(prompts * beams)]
    logits_RTV = torch.zeros(prompts * beams, 0, vocabularies(config)[1], dtype=torch.float64)
    for number in range(steps):
        newest = draws.integers(0, vocabularies(config)[1], len(histories))
        for history, token in zip(histories, newest, strict=True):
            history.append(int(token))
        logits_RV, state = step(torch.from_numpy(newest), state)
        logits_RTV = torch.cat([logits_RTV, logits_RV[:, None]], 1)
        if number % 3 == 1:
            leave = number % 2 == 0 and len(sources) > 2
            kept = (
                np.delete(np.arange(len(sources)), draws.integers(len(sources))) if leave else np.arange(len(sources))
            )
            rows = (kept[:, None] * beams + draws.integers(0, beams, (len(kept), beams))).flatten()
            state = state.select(torch.from_numpy(rows), torch.from_numpy(kept) if leave else None)
            histories = [list(histories[r]) for r in rows]
            logits_RTV, sources = logits_RTV[rows], [sources[place] for place in kept]
    every_source = [source for source in sources for _ in range(beams)]
    with torch.inference_mode():
        full = torch.stack(forward(model, every_source, histories))
    assert logits_RTV.shape == full.shape
    assert (logits_RTV - full).abs().max() < 1e-10
    # A fresh state that was never reordered, fed with the same tokens, stands where this one stands.
    fresh = torch.inference_mode()(model.start)(row(sources), Segments.ragged([len(s) for s in sources]), beams)
    for tokens_R in torch.tensor(histories).T:
        fresh_RV, fresh = step(tokens_R, fresh)
    assert (fresh_RV - logits_RTV[:, -1]).abs().max() < 1e-10
    newest_R = torch.arange(len(histories)) % vocabularies(config)[1]
    assert (step(newest_R, fresh)[0] - step(newest_R, state)[0]).abs().max() < 1e-10


@every_model
@pytest.mark.parametrize("beams", [1, 3])
def test_step_by_step_equals_the_full_forward(name: str, config: Any, beams: int) -> None:
    check_steps(model_of(name, config), config, prompts=20, steps=20, beams=beams)


@pytest.mark.slow
@every_model
def test_step_by_step_equals_the_full_forward_at_length(name: str, config: Any) -> None:
    check_steps(model_of(name, config), config, prompts=200, steps=64, beams=2)


@every_kind
@pytest.mark.parametrize("value", [10**9, -1])
def test_sizes_that_no_model_has_are_refused(name: str, config: Any, value: int) -> None:
    endings = ("_layers", "_dim", "_size", "_channels", "_classes")
    names = [field.name for field in dataclasses.fields(config) if field.name.endswith(endings)]
    assert len(names) >= 3
    for field_name in names:
        wrong = (8, value) if isinstance(getattr(config, field_name), tuple) else value
        with pytest.raises(ConfigError, match=re.escape(f"here: {field_name} is {wrong}")):
            check_bounds(dataclasses.replace(config, **{field_name: wrong}), "here")
    check_bounds(config, "here")


@every_kind
def test_zero_is_refused_where_it_means_nothing(name: str, config: Any) -> None:
    for field in dataclasses.fields(config):
        if not field.name.endswith(("_layers", "_dim", "_heads", "vocab_size", "max_len", "_channels", "_classes")):
            continue
        none = dataclasses.replace(config, **{field.name: 0})
        if field.default == 0:
            check_bounds(none, "here")
            family(name).build(none)
        else:
            with pytest.raises(ConfigError, match=f"{field.name} is 0; give 1 to"):
                check_bounds(none, "here")


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown model family 'transfomer'; choose from bert, .*gpt, .*llama, .*rnn, .*transformer"
    ):
        family("transfomer")


# --------------------------------------------------------------------------------------------------------------- images


@every_image_encoder
def test_images_forward_and_gradients(name: str, config: Any) -> None:
    model = model_of(name, config)
    pixels = images(config, 5)
    features = model(pixels)
    grid = features.grid_BYXD()
    assert grid.shape == (5, *features.grid, features.hidden_ND.shape[1])
    assert features.segments.lengths == (features.num_extra + features.grid[0] * features.grid[1],) * 5
    assert torch.equal(grid[3, -1, -1], features.hidden_ND.unflatten(0, (5, -1))[3, -1])
    assert model.pool(features).shape == (5, model.width)
    assert (model.head is None) == (config.num_classes == 0)
    out = seen(model, pixels)
    assert out.shape == (5, config.num_classes or model.width)
    assert out.isfinite().all()
    assert out.std(0).min() > 1e-3
    (out * torch.randn_like(out)).sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        if not parameter_name.endswith("k_proj.bias"):
            assert parameter.grad.abs().max() > 1e-9, parameter_name


@every_image_encoder
def test_images_are_the_same_alone_and_in_any_batch(name: str, config: Any) -> None:
    model = model_of(name, config)
    for pixels in (images(config, 4), images(config, 4, more=8)):  # positions stretch, windows are padded
        together = seen(model, pixels)
        for place in range(4):
            assert torch.allclose(seen(model, pixels[place : place + 1])[0], together[place], atol=1e-10, rtol=0)
        order = [2, 0, 3, 1]
        assert torch.allclose(seen(model, pixels[order]), together[order], atol=1e-10, rtol=0)
        assert (together[0] - together[1]).abs().max() > 1e-3


@every_image_encoder
def test_images_of_other_channels_are_refused(name: str, config: Any) -> None:
    model = model_of(name, config)
    pixels = images(config, 2)
    for wrong in (torch.cat([pixels, pixels], 1), pixels[0]):
        with pytest.raises(UsageError) as caught:
            model(wrong)
        assert "\n" not in str(caught.value)


@every_image_encoder
def test_images_dropout_is_for_training_alone(name: str, config: Any) -> None:
    pixels = images(config, 6)
    first, second = (seen(model_of(name, config), pixels) for _ in range(2))
    assert torch.equal(first, second)
    model = model_of(name, config)
    torch.manual_seed(5)
    assert torch.equal(seen(model, pixels), first)
    in_training = seen(model.train(), pixels)
    if any(getattr(config, field, 0) for field in ("dropout", "attention_dropout", "drop_path")):
        assert not torch.equal(in_training, first)


@every_image_encoder
def test_images_weights_go_through_a_file(name: str, config: Any, tmp_path: Path) -> None:
    model, other = model_of(name, config, torch.float32), model_of(name, config, torch.float32, seed=1)
    pixels = images(config, 3, dtype=torch.float32)
    assert not torch.equal(seen(model, pixels), seen(other, pixels))
    weights, parameters = gather(model), dict(other.named_parameters())
    assert weights.keys() >= parameters.keys()
    assert not any(torch.equal(weights[key], parameter) for key, parameter in parameters.items())
    write_tensors(tmp_path / "model.safetensors", weights)
    fit(read_tensors(tmp_path / "model.safetensors"), other, where="model.safetensors")
    back = gather(other)
    assert back.keys() == weights.keys()
    assert all(back[key].numpy().tobytes() == weight.numpy().tobytes() for key, weight in weights.items())
    assert torch.equal(seen(model, pixels), seen(other, pixels))


@every_image_encoder
def test_images_attention_is_recorded_in_every_layer(name: str, config: Any) -> None:
    model = model_of(name, config)
    pixels = images(config, 3)
    sites = [site_name for site_name, module in model.named_modules() if isinstance(module, Site)]
    if not sites:
        with pytest.raises(UsageError):
            record(model)
        return
    plain = seen(model, pixels)
    with record(model) as rows:
        recorded = seen(model, pixels)
    assert torch.equal(plain, recorded)
    assert sorted(rows) == sorted(sites)
    for calls in rows.values():
        for call in calls:
            sums = call.weights_HTS.sum(-1)
            assert torch.allclose(sums, torch.ones_like(sums), atol=1e-12, rtol=0)
        assert len({(call.sequence, call.queries) for call in calls}) == len(calls) >= 3


@every_image_encoder
def test_images_depth_rises_from_the_pixels_to_the_end(name: str, config: Any) -> None:
    model = family(name).build(dataclasses.replace(config, num_classes=config.num_classes or 5))
    depths = {parameter_name: model.depth(parameter_name) for parameter_name, _ in model.named_parameters()}
    assert set(depths.values()) == set(range(model.num_depths))
    assert all(depth == model.num_depths - 1 for key, depth in depths.items() if key.startswith("head."))


@every_image_encoder
def test_images_overfits_eight(name: str, config: Any) -> None:
    torch.manual_seed(0)
    model = family(name).build(dataclasses.replace(config, num_classes=config.num_classes or 5))
    model.eval()
    pixels = images(config, 8, dtype=torch.float32)
    labels = torch.arange(8) % model.config.num_classes
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, foreach=True)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(model.classify(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < BOUND, float(loss.detach())
