"""Masked language modelling: batches, loss, parts, scores, and a whole run."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.attention import Segments
from regard.data.tokenizer import Tokenizer
from regard.errors import CheckpointError, ConfigError, DataError, FormatError, UsageError
from regard.tasks.filler import Filler
from regard.tasks.masked import MaskedBatch, MaskedConfig, MaskedTask
from regard.tasks.masking import chance
from regard.tasks.texts import Pieces, TextData, TextTokenizerConfig
from regard.training import recipe, run

TINY = {"family": "bert", "embed_dim": 16, "num_layers": 2, "num_heads": 2, "mlp_dim": 24, "dropout": 0.0}
TINY["attention_dropout"] = 0.0
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


def texts(count: int = 160, seed: int = 3) -> list[str]:
    """One day many times over: what is hidden follows from what stands around it."""
    draws = random.Random(seed)
    return [" ".join([draws.choice(DAYS)] * draws.randint(2, 40)) for _ in range(count)]


def make_task(folder: Path, seed: int = 5, is_new: bool = True, **changes: object) -> MaskedTask:
    path = folder / "book.txt"
    path.write_text("\n\n".join(texts()))
    values = {"tokenizer": TextTokenizerConfig("byte-bpe", 300), "model": TINY, "context": 16, "batch_tokens": 64}
    config = MaskedConfig(data=TextData(str(path)), **{**values, **changes})  # type: ignore[arg-type]
    return MaskedTask.prepare(config, seed, folder, is_new)


def restored(batch: MaskedBatch) -> list[list[int]]:
    """The pieces of a batch as they were before anything was hidden."""
    tokens_N = batch.tokens_N.clone()
    tokens_N[batch.places_M] = batch.labels_M
    return [piece.tolist() for piece in tokens_N.split(list(batch.segments.lengths))]


@pytest.mark.parametrize("context", [3, 5, 16, 500])
def test_each_epoch_reads_every_token_once_in_batches_within_the_budget(context: int) -> None:
    lengths = np.array([1, 2, 0, 39, 16, 14, 15, 998, 7])
    pieces = Pieces(lengths, context, 1003, 7, shared=0, around=2)
    for epoch in range(3):
        counts = [np.zeros(length, int) for length in lengths]
        for batch in pieces.epoch(epoch):
            sizes = batch[:, 2] - batch[:, 1] + 2
            assert (sizes.min(), sizes.max()) >= (3, 3)
            assert sizes.max() <= context
            assert sizes.sum() <= 1003
            for text, start, end in batch:
                counts[text][start:end] += 1
        assert all((count == 1).all() for count in counts)


def test_a_batch_is_a_pure_function_of_seed_and_index(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    batches = [task.batch(n) for n in range(300)]
    again = make_task(tmp_path).batch(43)  # nothing was asked for before
    for name in ("tokens_N", "places_M", "labels_M"):
        assert torch.equal(getattr(again, name), getattr(batches[43], name))
    for n in (0, 43):  # what is hidden is drawn for this batch
        draws = chance(5, n)
        tokens_N = np.concatenate(restored(batches[n]))
        places_M = task.masker.choose(tokens_N, draws)
        assert batches[n].places_M.tolist() == places_M.tolist()
        assert batches[n].tokens_N.tolist() == task.masker.hide(tokens_N, places_M, draws).tolist()
    other = make_task(tmp_path)
    other.seed = 6
    assert not torch.equal(other.batch(43).tokens_N, batches[43].tokens_N)
    # What is hidden in a text differs from epoch to epoch, as in "dynamic" masking.
    per_epoch = len(task.pieces.epoch(0))
    whole = [piece for n in range(per_epoch) for piece in restored(batches[n])]
    assert sorted(whole) != sorted(piece for n in range(per_epoch) for piece in batches[n].tokens_N.split(1))
    short = min((p for p in whole if 6 < len(p) < 16), key=len)
    seen = set()
    for batch in batches:
        start = 0
        for length, piece in zip(batch.segments.lengths, restored(batch), strict=True):
            if piece == short:
                inside = (batch.places_M >= start) & (batch.places_M < start + length)
                seen.add(tuple((batch.places_M[inside] - start).tolist()))
            start += length
    assert len(seen) > 1


def test_pieces_stand_between_start_and_end_and_a_share_is_hidden(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    special = torch.tensor(task.tokenizer.special_ids)
    for n in range(20):
        batch = task.batch(n)
        for piece in restored(batch):
            assert (piece[0], piece[-1]) == (task.tokenizer.start_id, task.tokenizer.end_id)
            assert 3 <= len(piece) <= 16
        size = task.tokens(batch) - 2 * len(batch.segments)
        assert task.count(batch) == len(batch.labels_M) == math.ceil(0.15 * size)
        assert not torch.isin(batch.labels_M, special).any()
        assert task.tokens(batch) <= 64


def test_the_loss_is_that_of_each_hidden_token_of_each_text_alone(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    model = task.build().double().eval()
    batch = task.batch(0)
    assert len(batch.segments) > 2
    want, start = 0.0, 0
    for piece in batch.tokens_N.split(list(batch.segments.lengths)):
        logp_TV = model.head(model(piece, Segments.ragged([len(piece)]))).detach().log_softmax(-1)
        for place, label in zip(batch.places_M.tolist(), batch.labels_M.tolist(), strict=True):
            if start <= place < start + len(piece):
                want -= float(logp_TV[place - start, label])
        start += len(piece)
    loss = task.loss(model, batch)
    assert float(loss.report) == pytest.approx(want, rel=1e-6)
    assert float(loss.sum.detach()) == pytest.approx(want, rel=1e-6)
    assert "of the training part of" in task.name_batch(0)


def test_texts_of_a_batch_cannot_see_each_other(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    model = task.build().eval()
    batch = task.batch(0)
    first = batch.segments.lengths[0]
    changed_N = batch.tokens_N.clone()
    changed_N[:first] = task.tokenizer.mask_id
    with torch.no_grad():
        before, after = model(batch.tokens_N, batch.segments), model(changed_N, batch.segments)
    assert torch.equal(before[first:], after[first:])
    assert not torch.equal(before[:first], after[:first])


PAIRED = {**TINY, "next_sentence": True}


def test_half_of_the_second_parts_are_another_texts(tmp_path: Path) -> None:
    """Each text repeats one day, so whose a part is shows in it."""
    task = make_task(tmp_path, model=PAIRED, context=32, batch_tokens=128)
    start, end = task.tokenizer.start_id, task.tokenizer.end_id
    of_text = {text: task.tokenizer.encode(text) for text in texts()}
    told = []
    for n in range(60):
        batch = task.batch(n)
        for row, types, follows in zip(
            restored(batch), batch.types_N.split(list(batch.segments.lengths)), batch.follows_B, strict=True
        ):
            assert len(row) <= 32
            ends = [place for place, token in enumerate(row) if token == end]
            assert (row[0], len(ends), ends[-1]) == (start, 2, len(row) - 1)
            first, second = row[1 : ends[0]], row[ends[0] + 1 : -1]
            assert first
            assert types.tolist() == [0] * (ends[0] + 1) + [1] * (len(second) + 1)
            whole = first + second
            if not follows:
                assert any(
                    whole == tokens[n : n + len(whole)] for tokens in of_text.values() for n in range(len(tokens))
                )
            told.append(int(follows))
    assert 0.4 < np.mean(told) < 0.6
    again = make_task(tmp_path, model=PAIRED, context=32, batch_tokens=128).batch(43)
    assert torch.equal(again.tokens_N, task.batch(43).tokens_N)
    assert torch.equal(again.follows_B, task.batch(43).follows_B)
    one = TextData(str(tmp_path / "one.txt"), dev=str(tmp_path / "book.txt"), test=str(tmp_path / "book.txt"))
    (tmp_path / "one.txt").write_text("monday " * 50)
    config = MaskedConfig(one, TextTokenizerConfig("byte-bpe", 300), PAIRED)
    with pytest.raises(ConfigError, match="one text alone"):
        MaskedTask.prepare(config, 5, tmp_path / "o", True)


def test_the_next_sentence_weighs_the_same_however_a_batch_is_split(tmp_path: Path) -> None:
    task = make_task(tmp_path, model=PAIRED)
    model = task.build().double().eval()
    assert model.config.pooler
    batch = task.batch(0)
    with torch.no_grad():
        hidden_ND = batch.hidden(model)
        logp_MV = model.head(hidden_ND[batch.places_M]).log_softmax(-1)
        logp_B2 = model.next_sentence(model.pool(hidden_ND, batch.segments)).log_softmax(-1)
    want = -float(logp_MV.gather(-1, batch.labels_M[:, None]).sum())
    want -= 0.15 * (16 - 3) * float(logp_B2.gather(-1, batch.follows_B[:, None]).sum())
    assert float(task.loss(model, batch).sum.detach()) == pytest.approx(want, rel=1e-6)
    assert float(task.loss(model, batch).report) == pytest.approx(want, rel=1e-6)


def test_two_parts_of_one_token_each_are_the_least_that_is_read(tmp_path: Path) -> None:
    task = make_task(tmp_path, model=PAIRED, context=5)
    lengths = {length for n in range(30) for length in task.batch(n).segments.lengths}
    assert lengths == {5}
    scores = task.validate(task.build(), torch.device("cpu"))
    assert 0 <= scores["next_sentence_accuracy"] <= 1


@pytest.mark.slow
def test_whether_a_part_follows_is_learnt(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("\n\n".join(texts(600)))
    settings = {
        "task": "mlm",
        "data": {"train": str(path)},
        "tokenizer": {"kind": "whitespace", "vocab_size": 20},
        "model": {**PAIRED, "embed_dim": 32, "mlp_dim": 64},
        "context": 16,
        "batch_tokens": 512,
        "training": {"max_steps": 600, "learning_rate": 0.003, "warmup_steps": 20, "schedule": "linear"},
    }
    result = run.run(recipe.resolve(settings, [], "test"), tmp_path / "run", device="cpu", quiet=True)
    assert result.scores["next_sentence_accuracy"] > 0.75  # a coin has 0.5; one day in seven is another text's too
    assert "half of other texts" in result.scores["signatures"]["next_sentence_accuracy"]
    assert regard.load(tmp_path / "run").model.next_sentence is not None


def test_a_batch_without_labels_has_no_loss(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    model = task.build()
    none = torch.zeros(0, dtype=torch.int64)
    tokens_N = torch.tensor([task.tokenizer.start_id, task.tokenizer.end_id])
    batch = MaskedBatch(tokens_N, none, none, Segments.ragged([2]), torch.zeros_like(tokens_N))
    loss = task.loss(model, batch)
    loss.sum.backward()
    assert (float(loss.report), task.count(batch)) == (0.0, 0)
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_a_resumed_run_reads_no_text_and_keeps_its_tokenizer(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    (tmp_path / "tokenizer.json").write_text(task.tokenizer.to_json())
    tokens = tmp_path / "tokens" / "train.tokens"
    before = tokens.stat().st_mtime_ns
    again = make_task(tmp_path, is_new=False, tokenizer=TextTokenizerConfig("byte-bpe", 290))
    assert tokens.stat().st_mtime_ns == before
    assert again.digest == task.digest
    assert again.tokenizer.mask_id == task.tokenizer.mask_id
    assert torch.equal(again.batch(9).tokens_N, task.batch(9).tokens_N)
    plain = Tokenizer.train(texts(), "byte-bpe", 300)
    (tmp_path / "tokenizer.json").write_text(plain.to_json())
    with pytest.raises(ConfigError, match="the tokenizer has no mask"):
        make_task(tmp_path, is_new=False)


def test_held_out_texts_are_hidden_alike_in_every_run(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    rows, places = task.held_out("test")
    assert sum(len(row) - 2 for row in rows) == int((task.shards["test"].lengths - 2).sum())
    assert [len(at) for at in places] == [math.ceil(0.15 * (len(row) - 2)) for row in rows]
    other = MaskedTask(MaskedConfig(task.config.data, context=16, batch_tokens=7), task.shards, task.tokenizer, 99, [])
    assert all(np.array_equal(one, two) for one, two in zip(places, other.held_out("test")[1], strict=True))
    model = task.build().eval()
    found, want, right = task.test(task.product(model, torch.device("cpu"))), 0.0, 0
    for row, at in zip(rows, places, strict=True):
        read = torch.from_numpy(row).clone()
        read[at] = task.tokenizer.mask_id
        logp_TV = model.head(model(read, Segments.ragged([len(read)]))).detach().log_softmax(-1)
        want -= sum(float(logp_TV[place, row[place]]) for place in at)
        right += sum(int(logp_TV[place].argmax()) == row[place] for place in at)
    count = sum(map(len, places))
    assert found.measures["masked_perplexity"].value == pytest.approx(math.exp(want / count), rel=1e-5)
    assert found.measures["masked_accuracy"].value == right / count
    how = f"masked_accuracy|masked:{count}|share:0.15|all hidden|context:16|masks:0|version:regard-1"
    assert found.measures["masked_accuracy"].signature == how
    baselines = task.baselines(found)
    alone = torch.tensor([task.tokenizer.start_id, task.tokenizer.mask_id, task.tokenizer.end_id])
    logp_V = model.head(model(alone, Segments.ragged([3]))).detach().log_softmax(-1)[1]
    labels = np.concatenate([row[at] for row, at in zip(rows, places, strict=True)])
    without = baselines["this model without the text around"]
    assert without["masked_perplexity"].value == pytest.approx(math.exp(-float(logp_V[labels].mean())), rel=1e-5)
    shard = task.train
    counts = np.bincount(shard.tokens, minlength=task.tokenizer.vocab_size)
    counts[[task.tokenizer.start_id, task.tokenizer.end_id]] = 0
    frequent = baselines["tokens by their frequency"]
    assert frequent["masked_accuracy"].value == pytest.approx((labels == counts.argmax()).mean())
    share = (counts[labels] + 1) / (counts.sum() + len(counts))
    assert frequent["masked_perplexity"].value == pytest.approx(math.exp(-np.log(share).mean()))


def test_a_part_without_a_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("monday tuesday")
    config = MaskedConfig(TextData(str(tmp_path / "one.txt"), test=str(tmp_path / "one.txt")))
    with pytest.raises(DataError, match="no text in the dev part; give more texts"):
        MaskedTask.prepare(config, 5, tmp_path, True)


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="context is 2; give at least 3"):
        MaskedConfig(TextData("a.txt"), context=2)
    for context in (3, 4):
        with pytest.raises(ConfigError, match=f"context is {context}; give at least 5: two parts, a start and two"):
            MaskedConfig(TextData("a.txt"), model=PAIRED, context=context)
    with pytest.raises(ConfigError, match="batch_tokens is 0"):
        MaskedConfig(TextData("a.txt"), batch_tokens=0)
    for changes, words in (
        ({"max_len": 8}, "context is 16, the model has positions for 8"),
        ({"family": "gpt"}, "'gpt' does not fill in masks"),
        ({"vocab_size": 7}, "vocab_size follows from the data"),
        ({"head": "none"}, "model.head is 'none'; leave it out"),
    ):
        model = {**TINY, **changes} if "family" not in changes else changes
        with pytest.raises(ConfigError, match=words):
            make_task(tmp_path, model=model).build()


def trained(folder: Path) -> run.Result:
    path = folder / "book.txt"
    path.write_text("\n\n".join(texts(400)))
    values = recipe.with_data(recipe.read("mlm"), str(path))
    model = {**TINY, "embed_dim": 32, "mlp_dim": 64, "num_layers": 1}
    values |= {"model": model, "tokenizer": {"vocab_size": 330}, "context": 24, "batch_tokens": 512}
    values["masking"] = {"whole_words": True}
    values["training"] = {"max_steps": 120, "learning_rate": 0.005, "validate_every_steps": 60, "warmup_steps": 20}
    return run.run(recipe.resolve(values), folder / "run", device="cpu", quiet=True)


@pytest.mark.slow
def test_a_run_trains_scores_and_can_be_used(tmp_path: Path) -> None:
    result = trained(tmp_path)
    assert result.metric == "masked_accuracy"
    scores = result.scores
    assert set(scores["baselines"]) == {"tokens by their frequency", "this model without the text around"}
    for of in scores["baselines"].values():
        assert scores["masked_accuracy"] > 1.5 * of["masked_accuracy"]
        assert scores["masked_perplexity"] < 0.7 * of["masked_perplexity"]
    assert "|whole words|context:24|masks:0|version:regard-1|avg:1|seed:1" in scores["signatures"]["masked_accuracy"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "perplexity per masked token" in page
    assert "loss per masked token" in page
    assert "this model without the text around" in page
    loaded = regard.load(tmp_path / "run")
    assert isinstance(loaded, Filler)
    (filled,) = loaded.fill(["friday friday <mask> friday friday"])
    assert filled.text == "friday friday friday friday friday"
    rows = [json.loads(line) for line in (tmp_path / "run" / "outputs.jsonl").read_text().splitlines()]
    assert " <mask>" in rows[0]["source"]
    assert "<mask>" not in rows[0]["output"] + rows[0]["references"][0]
    with pytest.raises(UsageError, match="a model for the task 'mlm'; use it with regard fill"):
        regard.evaluate(tmp_path / "run", "pairs.tsv")
    model = tmp_path / "run" / "model"
    kept = (model / "tokenizer.json").read_text()
    (model / "tokenizer.json").write_text(Tokenizer.train(texts(), "byte-bpe", 280).to_json())
    with pytest.raises(CheckpointError, match="the tokenizer has 280 tokens, the model 2"):
        regard.load(tmp_path / "run")
    plain = kept.replace("<mask>", "<musk>")
    (model / "tokenizer.json").write_text(plain)
    with pytest.raises(FormatError, match="the tokenizer has no <mask>"):
        regard.load(tmp_path / "run")
    (model / "tokenizer.json").unlink()
    with pytest.raises(regard.RegardError, match="the tokenizer is missing"):
        regard.load(tmp_path / "run")
