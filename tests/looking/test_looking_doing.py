"""What may come next, and how probable it is: by the definitions, for tokens that are chosen one by one."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from looking_models import (
    RECURRENT,
    TEXT,
    a_filler,
    a_generator,
    a_labeller,
    a_tagger,
    a_translator,
    an_image_classifier,
)

from regard.attention import Segments, silence
from regard.data import Pair
from regard.decoding import DecodeOptions
from regard.errors import ContextError, DataError, UsageError
from regard.looking import Maps, png
from regard.looking.doing import likeliest, next_tokens, text_of
from regard.looking.reading import look
from regard.tasks.generator import Generator
from regard.tasks.translator import Translator

SOURCE = "word 7 of many"
WRITERS = {"transformer": a_translator, "rnn": lambda: a_translator(**RECURRENT), "gpt": a_generator}
every_writer = pytest.mark.parametrize("name", WRITERS)
LAYER = {"transformer": "decoder.1.cross_attn", "rnn": "attention", "gpt": "blocks.1.self_attn"}


def ends(product: Any) -> tuple[int, ...]:
    return (product.tokenizer.target.end_id,) if isinstance(product, Translator) else product.end_ids


@torch.inference_mode()
def by_steps(product: Any, ids: list[int]) -> list[np.ndarray]:
    """ln p of every token behind the text, behind its first output token, …: by the steps of decoding."""
    if isinstance(product, Translator):
        tokenizer = product.tokenizer
        source, start = [*tokenizer.source.encode(SOURCE), tokenizer.source.end_id], tokenizer.target.start_id
    else:
        *source, start = [product.start_id, *product.tokenizer.encode(SOURCE)]
    state = product.model.start(torch.tensor(source), Segments.ragged([len(source)]), 1)
    found = []
    for token in (start, *ids):
        logits_RV, state = product.model.step(torch.tensor([token]), state)
        found.append(logits_RV[0].double().log_softmax(-1).numpy())
    return found


@every_writer
def test_candidates_are_the_likeliest_tokens_of_the_whole_vocabulary(name: str) -> None:
    product = WRITERS[name]()
    chosen = [11, 23]
    for count, logp_V in enumerate(by_steps(product, chosen)):
        step = next_tokens(product, SOURCE, chosen[:count], 7)
        assert not step.ended
        order = np.argsort(-logp_V)[:7]
        assert [one.token for one in step.candidates] == order.tolist()
        for one in step.candidates:
            assert one.probability == pytest.approx(math.exp(logp_V[one.token]), rel=1e-4)
            assert one.is_end == (one.token in ends(product))
    most = next_tokens(product, SOURCE, [], 50).candidates
    assert len(most) == min(50, len(logp_V))
    assert sum(one.probability for one in most) <= 1 + 1e-12
    # An end as likely as the likeliest token is marked.
    best, end = int(by_steps(product, [])[0].argmax()), ends(product)[0]
    product.model.output = copy.deepcopy(product.model.output)  # a table of its own
    with torch.no_grad():
        for parameter in product.model.output.parameters():
            parameter[end] = parameter[best]
    first, second, *others = next_tokens(product, SOURCE, [], 7).candidates
    assert {(first.token, first.is_end), (second.token, second.is_end)} == {(best, False), (end, True)}
    assert not any(one.is_end for one in others)


@every_writer
def test_taking_the_first_each_time_is_greedy_decoding(name: str) -> None:
    product = WRITERS[name]()
    options = DecodeOptions(1, length_penalty=0.0, max_extra_tokens=9)
    if isinstance(product, Translator):
        written = product.hypotheses([SOURCE], options)[0][0]
    else:
        written = product.generate([SOURCE], options)[0]
    ids: list[int] = []
    while not (step := next_tokens(product, SOURCE, ids, 1)).ended and len(ids) < len(written.token_ids):
        ids.append(step.candidates[0].token)
    assert tuple(ids) == written.token_ids
    assert text_of(product, ids) == written.text
    if written.ended:
        assert step.candidates[0].is_end
    end = ends(product)[0]
    done = next_tokens(product, SOURCE, [*ids, end], 3)
    assert (done.candidates, done.ended) == ((), True)
    assert text_of(product, [*ids, end]) == written.text


def test_tokens_are_shown_as_a_reader_writes_them() -> None:
    product = a_generator()
    every = {one.token: one for one in next_tokens(product, SOURCE, [], 50).candidates}
    for token, one in every.items():
        assert one.text == ("</s>" if one.is_end else product.tokenizer.decode([token]))
    translator = a_translator()
    found = next_tokens(translator, SOURCE, [], 50).candidates
    assert [one.text for one in found] == translator.tokenizer.target.pieces([one.token for one in found])


@every_writer
def test_what_cannot_come_next_is_refused(name: str) -> None:
    product = WRITERS[name]()
    size = len(by_steps(product, [])[0])
    for k in (0, 51):
        with pytest.raises(UsageError, match=f"{k} candidates; ask for 1 to 50"):
            next_tokens(product, SOURCE, [], k)
    for wrong in (size, -1):
        with pytest.raises(UsageError, match=f"token {wrong} of {size}; tokens are 0 to {size - 1}"):
            next_tokens(product, SOURCE, [3, wrong])
        with pytest.raises(UsageError, match=f"token {wrong} of {size}"):
            text_of(product, [wrong])
    with pytest.raises(UsageError, match="tokens behind an end"):
        next_tokens(product, SOURCE, [3, ends(product)[0], 3])
    with pytest.raises(UsageError, match="an empty text"):
        next_tokens(product, " ", [])
    # The longest output that is read, and one token more.
    taken = 1 if isinstance(product, Translator) else 1 + len(product.tokenizer.encode(SOURCE))
    assert next_tokens(product, SOURCE, [3] * (40 - taken)).candidates
    with pytest.raises(ContextError, match="has 41 tokens; the model's context is 40"):
        next_tokens(product, SOURCE, [3] * (41 - taken))
    with pytest.raises(ContextError, match=r"has \d+ tokens; the model's context is 40"):
        next_tokens(product, "word " * 60)


def test_models_that_write_nothing_say_so() -> None:
    for product in (a_filler(), a_tagger(), a_labeller()):
        with pytest.raises(UsageError, match="an output for a model that writes none"):
            next_tokens(product, "the light")
        with pytest.raises(UsageError, match="an output for a model that writes none"):
            look(product, "the light", target_ids=[3])


# --------------------------------------------------------------------------------------------------------------- scores


@every_writer
def test_maps_of_chosen_tokens_are_of_exactly_these(name: str) -> None:
    """Tokens that no tokenizer would make of their text, one by one."""
    product = WRITERS[name]()
    chosen, end = [11, 23, 12], ends(product)[0]
    logp = by_steps(product, chosen)
    total = sum(logp[n][token] for n, token in enumerate(chosen))
    open_maps, maps = look(product, SOURCE, target_ids=chosen), look(product, SOURCE, target_ids=[*chosen, end])
    assert open_maps.output == maps.output == text_of(product, chosen)
    assert open_maps.scores == pytest.approx(
        {"log-probability": total, "log-probability per token": total / 3}, rel=1e-4
    )
    total += logp[3][end]
    assert maps.scores == pytest.approx({"log-probability": total, "log-probability per token": total / 4}, rel=1e-4)
    assert "complete" not in maps.details
    one = maps.maps[-1]
    if isinstance(product, Generator):
        assert one.query_tokens[-3:] == tuple(product.tokenizer.decode([token]) for token in chosen)
    else:
        pieces = product.tokenizer.target.pieces([*chosen, end])
        assert list(one.query_tokens) == pieces
        assert list(open_maps.maps[-1].query_tokens) == [*pieces[:-1], "…"]
    assert look(product, SOURCE, target_ids=[]).maps
    with pytest.raises(UsageError, match="an output as text and as tokens"):
        look(product, SOURCE, "a", target_ids=[3])
    with pytest.raises(ContextError, match=r"tokens; the model's context is 40"):
        look(product, SOURCE, target_ids=[3] * 40)


@every_writer
def test_a_given_output_and_a_written_one_are_scored_alike(name: str) -> None:
    product = WRITERS[name]()
    if isinstance(product, Translator):
        written = product.hypotheses([SOURCE])[0][0]
        (given,) = product.score([Pair(SOURCE, "3 wort", 1)])
    else:
        written, ids = product.generate([SOURCE])[0], product.tokenizer.encode(" wort")
        row = np.array([product.start_id, *product.tokenizer.encode(SOURCE), *ids])
        given = product.foresee([row], [len(ids)])[0][0], len(ids)
    maps = look(product, SOURCE)
    assert maps.scores["log-probability"] == pytest.approx(written.logprob, rel=1e-4)
    count = len(written.token_ids) + written.ended
    assert maps.scores["log-probability per token"] == pytest.approx(written.logprob / count, rel=1e-4)
    assert maps.details == {"complete": "yes" if written.ended else "no, cut at the limit"}
    maps = look(product, SOURCE, "3 wort" if isinstance(product, Translator) else " wort")
    assert maps.scores["log-probability"] == pytest.approx(given[0], rel=1e-4)
    assert maps.scores["log-probability per token"] == pytest.approx(given[0] / given[1], rel=1e-4)
    again = Maps.from_json(maps.to_json())
    assert again.scores == maps.scores


def test_a_token_over_the_seam_belongs_to_the_output() -> None:
    """Where the text ends inside a token of the whole, that token is neither's, and is scored as written."""
    product = a_generator()
    both, seams = product.tokenizer.encode(TEXT), 0
    for cut in range(1, len(TEXT)):
        ids = product.tokenizer.encode(TEXT[:cut])
        same = next((n for n in range(len(ids)) if ids[n] != both[n]), len(ids))
        seams += same < len(ids)
        ((total, _),) = product.foresee([np.array([product.start_id, *both])], [len(both) - same])
        scores = look(product, TEXT[:cut], TEXT[cut:], "blocks.0.*").scores
        assert scores["log-probability"] == pytest.approx(total, rel=1e-4)
        assert scores["log-probability per token"] == pytest.approx(total / (len(both) - same), rel=1e-4)
    assert seams > 3
    assert look(product, TEXT, "").scores == {}


def test_stop_texts_are_read_and_no_end_is_counted() -> None:
    product = a_generator()
    written = product.generate([SOURCE], DecodeOptions(max_extra_tokens=9, length_penalty=0.0))[0]
    stop = product.tokenizer.decode(written.token_ids[2:3])
    product.options = DecodeOptions(max_extra_tokens=9, length_penalty=0.0, stop=(stop,))
    cut = product.generate([SOURCE])[0]
    assert stop not in cut.text
    assert cut.ended
    maps = look(product, SOURCE)
    assert maps.output == cut.text
    assert maps.scores["log-probability per token"] == pytest.approx(cut.logprob / cut.tokens, rel=1e-9)


def test_classes_are_scored_the_ten_best_first(tmp_path: Any) -> None:
    product = a_labeller()
    maps = look(product, "the light")
    label = product.classify(["the light"])[0]
    assert maps.output == label.label == next(iter(maps.scores))
    assert maps.scores == label.probabilities
    assert list(maps.scores.values()) == sorted(label.probabilities.values(), reverse=True)
    many = a_labeller(tuple(f"class {n}" for n in range(13)))
    maps = look(many, "the light")
    probabilities = many.classify(["the light"])[0].probabilities
    assert maps.scores == {
        name: probabilities[name] for name in sorted(probabilities, key=lambda n: -probabilities[n])[:10]
    }
    assert len(maps.scores) == 10
    assert likeliest({}) == {}
    (tmp_path / "disc.png").write_bytes(png.png(np.arange(240, dtype=np.uint8).reshape(12, 20, 1)))
    seen = an_image_classifier()
    assert look(seen, tmp_path / "disc.png").scores == seen.classify([tmp_path / "disc.png"])[0].probabilities


def test_tags_and_masks_are_scored() -> None:
    tagger, words = a_tagger(), "the light of day"
    with torch.inference_mode():
        one = tagger.tokenizer.inner.encode(words)
        p_NV = tagger.model(torch.tensor(one.ids), Segments.ragged([len(one.ids)])).softmax(-1)
    firsts = [next(n for n, (_, end) in enumerate(one.offsets) if end > begin) for begin in (0, 3, 9, 12)]
    assert look(tagger, words).scores == pytest.approx(
        {"mean probability of the tags": sum(float(p_NV[n].max()) for n in firsts) / 4}, rel=1e-5
    )
    filler = a_filler()
    text = "the <mask> of <mask>"
    filled = filler.fill([text])[0]
    maps = look(filler, text)
    assert maps.output == filled.text
    assert list(maps.scores) == [f"mask {n}: {best[0].text.strip()}" for n, best in enumerate(filled.masks, 1)]
    assert list(maps.scores.values()) == [best[0].probability for best in filled.masks]
    assert look(filler, "the light").scores == {}


def test_scores_are_finite_numbers() -> None:
    maps = look(a_labeller(), "the light")
    for wrong in (math.inf, math.nan):
        with pytest.raises(DataError, match=f"the score 'x' is {wrong}; scores are finite"):
            Maps(maps.title, maps.source, maps.output, maps.maps, scores={"x": wrong})
    text = maps.to_json()
    old = text.replace(f', "scores": {{{text.split(chr(34) + "scores" + chr(34) + ": {")[1].split("}")[0]}}}', "")
    assert '"scores"' not in old
    assert Maps.from_json(old).scores == {}
    for wrong in ("true", '"1"', "null", "[]"):
        with pytest.raises(DataError, match="'scores' holds something other than numbers"):
            Maps.from_json(old[:-1] + f', "scores": {{"x": {wrong}}}}}')
    with pytest.raises(DataError, match="'scores' is missing or is no dict"):
        Maps.from_json(old[:-1] + ', "scores": 3}')


# ------------------------------------------------------------------------------------------------------------- silenced


@every_writer
def test_all_of_it_works_with_heads_silenced(name: str) -> None:
    product = WRITERS[name]()
    plain, open_step = look(product, SOURCE, target_ids=[11, 23]), next_tokens(product, SOURCE, [11, 23])
    with silence(product.model, {LAYER[name]: [0]}):
        silent, step = look(product, SOURCE, target_ids=[11, 23]), next_tokens(product, SOURCE, [11, 23])
        logp = by_steps(product, [11, 23])
        written = look(product, SOURCE)
    assert silent.scores["log-probability"] == pytest.approx(logp[0][11] + logp[1][23], rel=1e-4)
    assert silent.scores["log-probability"] != pytest.approx(plain.scores["log-probability"], rel=1e-3)
    assert step.candidates[0].probability == pytest.approx(math.exp(logp[2].max()), rel=1e-4)
    assert step != open_step
    assert written.scores
    if name != "rnn":  # the layers before it look as they did, and those behind it elsewhere
        assert np.array_equal(silent.maps[0].weights_HTS, plain.maps[0].weights_HTS)
