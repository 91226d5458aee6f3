"""Heads of every family's attention: recorded as loops say, silenced wherever they attend, switched off for good."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from attention import oracle
from models.battery import cases, forward, model_of, outputs, ragged, row
from torch import Tensor, nn

from regard.attention import Segments, Site, record, recording, scores, silence, switch_off
from regard.attention.masks import Grid
from regard.attention.relative import RelativeAt
from regard.errors import UsageError
from regard.models.interface import EncoderDecoder, LanguageModel
from regard.models.rnn import RNN

every_family = pytest.mark.parametrize(("name", "config"), cases(nn.Module))
every_writer = pytest.mark.parametrize(("name", "config"), cases(EncoderDecoder | LanguageModel))


def heads_of(model: nn.Module) -> dict[str, int]:
    """How many heads each layer has, as seen when it attends."""
    if not any(isinstance(module, Site) for module in model.modules()):
        return {}
    with torch.no_grad(), record(model, queries=[0]) as rows:
        outputs(model)
    return {name: len(calls[0].heads) for name, calls in rows.items()}


def some_off(model: nn.Module) -> dict[str, list[int]]:
    """Of each layer its last head; of every second one the first head too."""
    return {
        name: sorted({*([0] if place % 2 else []), count - 1})
        for place, (name, count) in enumerate(heads_of(model).items())
    }


# ------------------------------------------------------------------------------------------------------------- recorded


def score_of(score: Any) -> oracle.Score:
    """The score as a function of a head and two vectors."""
    if isinstance(score, scores.General):
        return oracle.general(score.weight_HKK.detach().numpy())
    if isinstance(score, scores.Additive):
        return oracle.additive(score.v_HK.detach().numpy())
    if isinstance(score, scores.Dot):
        return oracle.dot(1.0)
    assert type(score) is scores.ScaledDot
    return oracle.dot(None)


def xlnet_score(at: RelativeAt, sequence: int, q_BTHK: np.ndarray, k_BSHK: np.ndarray, clamp: int) -> np.ndarray:
    """(q + u) · k / √K + (q + w) · W_r PE(d) / √K + (q + x) · s / √K by loops, places and types as they are told."""
    where, inner = at.where, at.score
    u, w, x, types, r = (
        one.detach().numpy()
        for one in (
            inner.content_bias_HK,
            inner.position_bias_HK,
            inner.type_bias_HK,
            inner.type_embed_2HK,
            inner.r_proj.weight,
        )
    )
    queries, heads, size = q_BTHK.shape
    keys, dim = len(k_BSHK), r.shape[1]
    q_start, k_start = int(where.q_segments.starts_B[sequence]), int(where.k_segments.starts_B[sequence])
    found = np.zeros((heads, queries, keys))
    for t in range(queries):
        place = t + keys - queries if where.places_N is None else int(where.places_N[q_start + t])
        for s in range(keys):
            distance = place - s
            distance = max(-clamp, min(clamp, distance)) if clamp else distance
            wave = np.array(oracle.sinusoid(distance, dim, halves=True))
            for h in range(heads):
                q, k = q_BTHK[t, h], k_BSHK[s, h]
                total = (q + u[h]) @ k + (q + w[h]) @ (r[h * size : (h + 1) * size] @ wave)
                if where.q_types_N is not None:
                    same = int(where.q_types_N[q_start + t]) == int(where.k_types_M[k_start + s])
                    total += (q + x[h]) @ types[0 if same else 1, h]
                found[h, t, s] = total / math.sqrt(size)
    return found


@every_family
def test_recorded_rows_are_the_softmax_of_what_went_into_attend(
    name: str, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a few queries, so that a sequence has several; scores, softmax and shared heads by loops in float64."""
    model = model_of(name, config)
    names = {id(module): site for site, module in model.named_modules() if isinstance(module, Site)}
    if not names:
        return
    calls: list[tuple[Any, ...]] = []
    offer = recording.offer

    def watched(site: Any, *given: Any) -> None:
        calls.append((names[id(site)], *given))
        offer(site, *given)

    monkeypatch.setattr(recording, "offer", watched)
    monkeypatch.setattr(recording, "BLOCK_BYTES", 900)
    with torch.no_grad(), record(model) as rows:
        outputs(model)
    assert {call[0] for call in calls} == set(rows) == set(names.values())
    left = {site: list(found) for site, found in rows.items()}
    for site, q_NHK, k_MGK, q_segments, k_segments, mask, bias, score in calls:
        for sequence, queries in enumerate(q_segments.lengths):
            if not queries:
                continue
            keys, heads, groups = k_segments.lengths[sequence], q_NHK.shape[1], k_MGK.shape[1]
            q_start, k_start = int(q_segments.starts_B[sequence]), int(k_segments.starts_B[sequence])
            q_THK, k_SGK = q_NHK[q_start : q_start + queries].numpy(), k_MGK[k_start : k_start + keys].numpy()
            k_SHK = np.stack([k_SGK[:, h * groups // heads] for h in range(heads)], 1)
            at = Grid(
                torch.tensor(sequence),
                torch.arange(heads)[:, None, None],
                torch.arange(queries)[:, None],
                torch.arange(keys),
                torch.tensor(keys - queries),
            )
            shape = (heads, queries, keys)
            allowed = np.ones(shape, bool) if mask is None else mask.allow(at).expand(1, *shape)[0].numpy()
            added = np.zeros(shape) if bias is None else bias(at).detach().expand(1, *shape)[0].double().numpy()
            if isinstance(score, RelativeAt):
                wanted = xlnet_score(score, sequence, q_THK, k_SHK, config.clamp_distance)
            else:
                pair = score_of(score)
                wanted = np.zeros(shape)
                for h, t, s in np.ndindex(*shape):
                    wanted[h, t, s] = pair(h, q_THK[t, h].tolist(), k_SHK[s, h].tolist(), 0)
            weights_HTS = np.zeros(shape)
            for h, t in np.ndindex(heads, queries):
                powers = {s: math.exp(wanted[h, t, s] + added[h, t, s]) for s in range(keys) if allowed[h, t, s]}
                for s, power in powers.items():
                    weights_HTS[h, t, s] = power / sum(powers.values())
            got = left[site].pop(0)
            assert (got.queries, got.num_queries) == (tuple(range(queries)), queries)
            np.testing.assert_allclose(got.weights_HTS.numpy(), weights_HTS, atol=1e-12, rtol=0)
    assert not any(left.values())


# ------------------------------------------------------------------------------------------------------------- silenced


@every_family
def test_switched_off_for_good_is_silenced(name: str, config: Any) -> None:
    model = model_of(name, config)
    off = some_off(model)
    if not off:
        with pytest.raises(UsageError, match="no layer 'encoder' attends"):
            silence(model, {"encoder": [0]})
        return
    with torch.no_grad():
        plain = outputs(model)
        with silence(model, off):
            silent = outputs(model)
        assert (silent - plain).abs().max() > 1e-4
        assert torch.equal(outputs(model), plain)
        masked = copy.deepcopy(model)
        if isinstance(model, RNN):
            with pytest.raises(UsageError, match="a StateAttention has no weights of its own that read a head"):
                switch_off(masked, off)
            assert torch.equal(outputs(masked), plain)
            without_context(masked)
        else:
            switch_off(masked, off)
        torch.testing.assert_close(outputs(masked), silent, atol=1e-12, rtol=0)


def without_context(model: RNN) -> None:
    """Zero what reads the one head's context, wherever it goes: into the recurrence or above it, and to the output."""
    c = model.config
    width = c.hidden_dim * model.encoder.directions
    reader = model.above if c.attends == "after" else model.decoder
    if reader is not None:
        reader.layers.weight_ih_l0[:, -width:] = 0
    model.output_proj.weight[:, c.hidden_dim : c.hidden_dim + width] = 0


@every_writer
def test_silenced_in_training_and_in_cached_decoding_with_beams(name: str, config: Any) -> None:
    model = model_of(name, config)
    off = some_off(model)
    if not off:
        return
    sources, targets = ragged(config)
    targets = [target[:1] * 3 for target in targets]
    with silence(model, off), torch.inference_mode():
        wanted = torch.stack(forward(model, sources, targets))
        state = model.start(row(sources), Segments.ragged([len(source) for source in sources]), 2)
        found: list[Tensor] = []
        for tokens_B in torch.tensor(targets).T:
            logits_RV, state = model.step(tokens_B.repeat_interleave(2), state)
            found += [logits_RV]
    torch.testing.assert_close(torch.stack(found, 1)[::2], wanted, atol=1e-10, rtol=0)
    # Beams of a tree sum over their nodes in an order of their own: equal but for the last bits.
    torch.testing.assert_close(torch.stack(found, 1)[::2], torch.stack(found, 1)[1::2], atol=1e-13, rtol=0)
    # No gradient goes through layers with all heads silent; it goes around them.
    if isinstance(model, RNN):
        return
    heads = {site: list(range(n)) for site, n in heads_of(model).items() if not site.startswith("encoder")}
    with silence(model, heads):
        torch.cat(forward(model.train(), sources, targets)).square().sum().backward()
    for site in heads:
        module = model.get_submodule(site)
        assert not module.v_proj.weight.grad.any()
        assert not module.q_proj.weight.grad.any()
        assert not module.out_proj.weight.grad.any()
        assert module.out_proj.bias is None or module.out_proj.bias.grad.any()
