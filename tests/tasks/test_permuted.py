"""Permutation language modelling: orders, batches, loss, memory, scores, and a whole run."""

import json
import math
import random
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.attention import Segments
from regard.errors import ConfigError, UsageError
from regard.models.public import write_folder
from regard.models.xlnet import XLNet
from regard.tasks.filler import Filler
from regard.tasks.permuted import Ordering, Orders, PermutedBatch, PermutedConfig, PermutedTask
from regard.tasks.texts import TextData, TextTokenizerConfig
from regard.training import recipe, run

TINY = {"family": "xlnet", "embed_dim": 16, "num_layers": 2, "num_heads": 2, "mlp_dim": 24, "dropout": 0.0}
TINY["attention_dropout"] = 0.0
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


def texts(count: int = 160, seed: int = 3) -> list[str]:
    """One day many times over: what stands at a place follows from what stands around it."""
    draws = random.Random(seed)
    return [" ".join([draws.choice(DAYS)] * draws.randint(2, 40)) for _ in range(count)]


def make_task(folder: Path, seed: int = 5, is_new: bool = True, **changes: object) -> PermutedTask:
    path = folder / "book.txt"
    path.write_text("\n\n".join(texts()))
    values = {"tokenizer": TextTokenizerConfig("byte-bpe", 300), "model": TINY, "context": 16, "memory": 8}
    config = PermutedConfig(data=TextData(str(path)), **{**values, "batch_tokens": 64, **changes})  # type: ignore[arg-type]
    return PermutedTask.prepare(config, seed, folder, is_new)


def model_of(task: PermutedTask) -> XLNet:
    """A model in float64, moved so far from its start that everything matters."""
    torch.manual_seed(0)
    model = task.build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def remembering(task: PermutedTask) -> PermutedBatch:
    """A batch of pieces some of which have something before them, of unequal lengths, and some not."""
    return next(b for b in map(task.batch, range(200)) if {0} < {*b.before.lengths} and len({*b.before.lengths}) > 2)


class Vocabulary:
    """What orders need of a tokenizer: tokens 0 and 1 stand for no text."""

    vocab_size, special_ids = 30, [0, 1]


@pytest.mark.parametrize(("one_in", "max_span"), [(6, 5), (6, 1), (3, 7), (1, 5)])
@pytest.mark.parametrize("length", [1, 2, 5, 7, 23])
def test_every_token_is_equally_often_a_target(one_in: int, max_span: int, length: int) -> None:
    orders = Orders(Ordering(one_in, max_span), Vocabulary())  # type: ignore[arg-type]
    tokens = np.array([0, *range(2, 2 + length), 1])
    draws, count = np.random.default_rng(0), math.ceil(length / one_in)
    times, firsts, trials = np.zeros(len(tokens)), np.zeros(len(tokens)), 4000
    for _ in range(trials):
        order, places = orders.draw(tokens, draws)
        assert sorted(order[places]) == [*range(count)]
        assert sorted(places) == places.tolist() == np.flatnonzero(order >= 0).tolist()
        assert (np.delete(order, places) == -1).all()
        times[places] += 1
        firsts[order == 0] += 1
    assert times[0] == times[-1] == 0
    # Six standard deviations, of a share of draws that are alike.
    for found, share in ((times, count / length), (firsts, 1 / length)):
        assert found[1:-1] / trials == pytest.approx(share, abs=6 * math.sqrt(share * (1 - share) / trials) + 1e-12)


def test_targets_lie_in_spans_as_the_paper_has_them() -> None:
    """Of many tokens, spans of n come 1/n as often as single ones; two seldom touch."""
    tokens, seen = np.full(3000, 7), np.zeros(6)
    orders = Orders(Ordering(6, 5), Vocabulary())  # type: ignore[arg-type]
    for seed in range(40):
        _, places = orders.draw(tokens, np.random.default_rng(seed))
        runs = np.diff(np.flatnonzero(np.diff(places, prepend=-9, append=9999) > 1))
        seen += np.bincount(runs, minlength=6)[:6]
    shares = seen[1:] / seen[1:].sum()
    assert shares == pytest.approx(1 / np.arange(1, 6) / sum(1 / n for n in range(1, 6)), abs=0.03)
    alone = Orders(Ordering(6, 1), Vocabulary())  # type: ignore[arg-type]
    places = np.concatenate([alone.draw(tokens, np.random.default_rng(n))[1] for n in range(9)])
    assert (np.diff(places) == 1).mean() < 0.06
    assert len({*np.diff(places[:500]).tolist()}) > 6  # anywhere in their stretches


def test_nothing_is_predicted_where_no_token_stands_for_text() -> None:
    orders = Orders(Ordering(), Vocabulary())  # type: ignore[arg-type]
    for tokens in ([0, 1], [1], []):
        order, places = orders.draw(np.array(tokens, np.int64), np.random.default_rng(0))
        assert (order.tolist(), places.tolist()) == ([-1] * len(tokens), [])


def test_a_batch_is_a_pure_function_of_seed_and_index(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    batches = [task.batch(n) for n in range(300)]
    again = make_task(tmp_path).batch(43)  # nothing was asked for before
    for name in ("tokens_N", "order_N", "targets_P", "before_M"):
        assert torch.equal(getattr(again, name), getattr(batches[43], name))
    assert torch.equal(task.batch(43).order_N, batches[43].order_N)  # whatever was asked for since
    other = make_task(tmp_path)
    other.seed = 6  # the same pieces in other orders
    assert torch.equal(other.batch(43).tokens_N, batches[43].tokens_N)
    assert not torch.equal(other.batch(43).order_N, batches[43].order_N)
    # A text that is left whole comes once in each epoch, in another order.
    orders = set()
    whole = int(np.argmax(np.where(task.train.lengths <= 16, task.train.lengths, 0)))
    for index, batch in enumerate(batches):
        for (text, start, _), order in zip(
            task.pieces.at(index), batch.order_N.split(batch.segments.lengths), strict=True
        ):
            if (text, start) == (whole, 0):
                orders.add(tuple(order.tolist()))
    assert len(orders) > 3


def test_an_epoch_reads_every_token_once_with_what_stands_before(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    special, counts = torch.tensor(task.tokenizer.special_ids), [np.zeros(n, int) for n in task.train.lengths]
    for index in range(len(task.pieces.epoch(0))):
        batch = task.batch(index)
        assert task.tokens(batch) == len(batch.tokens_N) <= 64
        assert task.count(batch) == len(batch.labels_P) == len(batch.targets_P)
        assert not torch.isin(batch.labels_P, special).any()
        rows, before = batch.tokens_N.split(batch.segments.lengths), batch.before_M.split(batch.before.lengths)
        targets = (batch.order_N >= 0).split(batch.segments.lengths)
        for (text, start, end), row, old, wanted in zip(task.pieces.at(index), rows, before, targets, strict=True):
            counts[text][start:end] += 1
            tokens = task.train.tokens[task.train.starts[text] : task.train.starts[text + 1]].tolist()
            assert row.tolist() == tokens[start:end]
            assert old.tolist() == tokens[max(start - 8, 0) : start]
            assert int(wanted.sum()) == math.ceil(int((~torch.isin(row, special)).sum()) / 6)
    assert all((count == 1).all() for count in counts)


def test_a_target_sees_neither_its_own_token_nor_later_ones(tmp_path: Path) -> None:
    task = make_task(tmp_path, ordering=Ordering(2, 3))
    model, batch = model_of(task), remembering(task)

    def logits(tokens_N: torch.Tensor) -> torch.Tensor:
        changed = PermutedBatch(tokens_N, batch.order_N, batch.targets_P, batch.segments, batch.before_M, batch.before)
        seen: list[torch.Tensor] = []
        task.criterion = lambda model, hidden_PD, *_: seen.append(model.head(hidden_PD))  # type: ignore[assignment, func-returns-value]
        with torch.no_grad():
            task.loss(model, changed)
        return seen[0]

    before, text_N = logits(batch.tokens_N), batch.segments.sequence_N()
    for row in range(len(batch.tokens_N)):
        changed_N = batch.tokens_N.clone()
        changed_N[row] = (changed_N[row] + 1) % task.tokenizer.vocab_size
        moved_P = (logits(changed_N) != before).any(-1)
        same_text = text_N[batch.targets_P] == text_N[row]
        sees = same_text & (batch.order_N[batch.targets_P] > batch.order_N[row])
        assert moved_P.tolist() == sees.tolist()


@pytest.mark.parametrize("part", ["piece", "memory"])
def test_texts_of_a_batch_cannot_see_each_other(part: str, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    model, batch = model_of(task), remembering(task)
    values = {
        name: getattr(batch, name) for name in ("tokens_N", "order_N", "targets_P", "segments", "before_M", "before")
    }
    lengths = batch.segments.lengths if part == "piece" else batch.before.lengths
    changed = next(n for n, length in enumerate(lengths) if length)
    name, start = ("tokens_N" if part == "piece" else "before_M"), sum(lengths[:changed])
    values[name] = values[name].clone()
    values[name][start : start + lengths[changed]] = 3

    def hidden(one: PermutedBatch) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        head, model.head = model.head, lambda hidden_PD: seen.append(hidden_PD) or head(hidden_PD)  # type: ignore[method-assign]
        task.loss(model, one)
        del model.head
        return seen[0].detach()

    own = batch.segments.sequence_N()[batch.targets_P] == changed
    one, other = hidden(batch), hidden(PermutedBatch(**values))
    assert torch.equal(one[~own], other[~own])
    assert not torch.equal(one[own], other[own])


def test_the_loss_with_a_memory_is_that_of_one_long_piece(tmp_path: Path) -> None:
    """Where the first part of a long piece sees itself alone: relative positions make the two the same."""
    task = make_task(tmp_path)
    model, batch = model_of(task), remembering(task)
    want, right = 0.0, 0.0
    rows, before = batch.tokens_N.split(batch.segments.lengths), batch.before_M.split(batch.before.lengths)
    for row, old, order in zip(rows, before, batch.order_N.split(batch.segments.lengths), strict=True):
        places = (order >= 0).nonzero()[:, 0]
        order_T = torch.cat([torch.full_like(old, -2), order])
        read = model.streams(
            torch.cat([old, row]), Segments.ragged([len(old) + len(row)]), order_N=order_T, targets_P=places + len(old)
        )
        logp_PV = model.head(read.targets_PD).detach().log_softmax(-1)
        want -= float(logp_PV.gather(-1, row[places, None]).sum())
        alone = model.streams(row, Segments.ragged([len(row)]), order_N=order, targets_P=places)
        right -= float(model.head(alone.targets_PD).detach().log_softmax(-1).gather(-1, row[places, None]).sum())
    loss = task.loss(model, batch)
    assert float(loss.report) == pytest.approx(want, rel=1e-10)
    assert abs(right - want) > 1e-3  # without what stands before it would be another


def test_no_gradient_goes_back_into_what_is_remembered(tmp_path: Path) -> None:
    """The gradient is that of the loss with the memory held fast, in bfloat16 too, where weights are cast once."""
    task = make_task(tmp_path)
    model, batch = model_of(task), remembering(task)
    memory = model.streams(batch.before_M, batch.before, remember=True).memory
    read = model.streams(
        batch.tokens_N, batch.segments, order_N=batch.order_N, targets_P=batch.targets_P, memory=memory
    )
    task.criterion(model, read.targets_PD, batch.labels_P, 0.0).sum.backward()
    want = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    task.loss(model, batch).sum.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert found.keys() == want.keys()
    assert all(torch.equal(found[name], want[name]) for name in want)
    assert model.blocks[0].self_attn.v_proj.weight.grad.any()
    model.float().zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = task.loss(model, batch)
    loss.sum.backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if name in want)


def test_without_a_memory_nothing_stands_before(tmp_path: Path) -> None:
    task = make_task(tmp_path, memory=0)
    model = model_of(task)
    batch = next(b for b, n in ((task.batch(n), n) for n in range(99)) if task.pieces.at(n)[:, 1].any())
    assert len(batch.before_M) == 0
    read = model.streams(batch.tokens_N, batch.segments, order_N=batch.order_N, targets_P=batch.targets_P)
    want = task.criterion(model, read.targets_PD, batch.labels_P, 0.0)
    assert float(task.loss(model, batch).report) == float(want.report)


def test_a_batch_without_targets_has_no_loss(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    model, none = model_of(task), torch.zeros(0, dtype=torch.int64)
    tokens_N = torch.tensor([task.tokenizer.start_id, task.tokenizer.end_id])
    batch = PermutedBatch(tokens_N, torch.full((2,), -1), none, Segments.ragged([2]), none, Segments.ragged([0]))
    loss = task.loss(model, batch)
    loss.sum.backward()
    assert (float(loss.report), task.count(batch)) == (0.0, 0)
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.peer
def test_the_loss_is_that_of_the_public_model(tmp_path: Path) -> None:
    """One piece at a time, since their memories have one length; told by their masks what ours tells by ranks."""
    transformers = pytest.importorskip("transformers")
    task = make_task(tmp_path)
    model, batch = model_of(task).float(), remembering(task)  # as theirs encodes distances
    write_folder(tmp_path, "xlnet", model)
    theirs = transformers.XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    theirs.config.mem_len = theirs.transformer.mem_len = 8
    want = 0.0
    rows, before = batch.tokens_N.split(batch.segments.lengths), batch.before_M.split(batch.before.lengths)
    for row, old, order in zip(rows, before, batch.order_N.split(batch.segments.lengths), strict=True):
        targets = (order >= 0).nonzero()[:, 0]
        if not len(targets):
            continue
        with torch.no_grad():
            mems = theirs(old[None], use_mems=True).mems if len(old) else None
            hides = (order[None] > order[:, None]) | ((order[None] == order[:, None]) & (order[None] >= 0))
            mapping = torch.nn.functional.one_hot(targets, len(row)).float()
            labels = row[targets][None]
            out = theirs(
                row[None], mems=mems, perm_mask=hides[None].float(), target_mapping=mapping[None], labels=labels
            )
        want += float(out.loss) * len(targets)
    assert float(task.loss(model, batch).report) == pytest.approx(want, rel=2e-6)


def test_a_resumed_run_reads_no_text_and_keeps_its_tokenizer(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    (tmp_path / "tokenizer.json").write_text(task.tokenizer.to_json())
    tokens = tmp_path / "tokens" / "train.tokens"
    before = tokens.stat().st_mtime_ns
    again = make_task(tmp_path, is_new=False, tokenizer=TextTokenizerConfig("byte-bpe", 290))
    assert tokens.stat().st_mtime_ns == before
    assert again.digest == task.digest
    assert torch.equal(again.batch(9).order_N, task.batch(9).order_N)


def test_held_out_texts_are_scored_at_the_same_targets_in_every_run(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    model = model_of(task).float()
    other = PermutedTask(
        PermutedConfig(task.config.data, context=16, memory=8, batch_tokens=7), task.shards, task.tokenizer, 99, []
    )
    scored, want, right, count = [], 0.0, 0, 0
    for one in (task, other):
        seen = set()
        for batch in one.held_out("test"):
            parts = (batch.tokens_N, batch.order_N)
            seen |= {
                tuple(map(tuple, of)) for of in zip(*(x.split(batch.segments.lengths) for x in parts), strict=True)
            }
        scored.append({(tuple(map(int, a)), tuple(map(int, b))) for a, b in seen})
    assert scored[0] == scored[1]
    for batch in other.held_out("test"):
        assert len(batch.segments) == 1  # of seven tokens at most
        loss, count = other.loss(model, batch), count + other.count(batch)
        want += float(loss.report)
    shard = task.shards["test"]
    pieces = [min(16, n - a) - (a == 0) - (a + 16 >= n) for n in shard.lengths for a in range(0, n, 16)]
    assert count == sum(math.ceil(n / 6) for n in pieces)
    found = task.test(task.product(model, torch.device("cpu")))
    assert found.measures["target_perplexity"].value == pytest.approx(math.exp(want / count), rel=1e-5)
    how = f"target_accuracy|target:{count}|one in:6|spans:5|context:16|memory:8|orders:0|version:regard-1"
    assert found.measures["target_accuracy"].signature == how
    labels = np.concatenate([batch.labels_P.numpy() for batch in task.held_out("test")])
    for batch in task.held_out("test"):
        with torch.no_grad():
            mem = model.streams(batch.before_M, batch.before, remember=True).memory
            read = model.streams(
                batch.tokens_N, batch.segments, order_N=batch.order_N, targets_P=batch.targets_P, memory=mem
            )
            right += int((model.head(read.targets_PD).argmax(-1) == batch.labels_P).sum())
    assert found.measures["target_accuracy"].value == right / count
    baselines = task.baselines(found)
    counts = np.bincount(task.train.tokens, minlength=task.tokenizer.vocab_size)
    counts[[task.tokenizer.start_id, task.tokenizer.end_id]] = 0
    share = (counts[labels] + 1) / (counts.sum() + len(counts))
    frequent = baselines["tokens by their frequency"]
    assert frequent["target_perplexity"].value == pytest.approx(math.exp(-np.log(share).mean()))
    assert frequent["target_accuracy"].value == pytest.approx((labels == counts.argmax()).mean())
    alone = torch.tensor([task.tokenizer.start_id, 9, task.tokenizer.end_id])
    read = model.streams(alone, Segments.ragged([3]), order_N=torch.tensor([0, 1, 0]), targets_P=torch.tensor([1]))
    logp_V = model.head(read.targets_PD)[0].detach().log_softmax(-1)
    without = baselines["this model without the text around"]
    assert without["target_perplexity"].value == pytest.approx(math.exp(-float(logp_V[labels].mean())), rel=1e-5)


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for values, words in (
        ({"context": 0}, "context is 0"),
        ({"batch_tokens": 0}, "batch_tokens is 0"),
        ({"memory": -1}, "memory is -1; give tokens, or 0 for none"),
    ):
        with pytest.raises(ConfigError, match=words):
            PermutedConfig(TextData("a.txt"), **values)  # type: ignore[arg-type]
    for ordering, words in (((0, 5), "ordering.one_in is 0"), ((6, 0), "ordering.max_span is 0")):
        with pytest.raises(ConfigError, match=words):
            Ordering(*ordering)
    for changes, words in (
        ({"family": "bert"}, "'bert' does not predict in any order"),
        ({"vocab_size": 7}, "vocab_size follows from the data"),
        ({"head": "none"}, "model.head is 'none', model.attention 'both'; leave them out"),
        ({"attention": "past"}, "model.head is 'tokens', model.attention 'past'; leave them out"),
    ):
        model = {**TINY, **changes} if "family" not in changes else changes
        with pytest.raises(ConfigError, match=words):
            make_task(tmp_path, model=model).build()


def trained(folder: Path, written: list[str], changed: Mapping[str, Any] = {}, **training: Any) -> run.Result:
    path = folder / "book.txt"
    path.write_text("\n\n".join(written))
    values = recipe.with_data(recipe.read("plm"), str(path))
    model = {**TINY, "embed_dim": 32, "mlp_dim": 64, "num_layers": 1, **changed}
    values |= {"model": model, "tokenizer": {"kind": "whitespace"}, "context": 24, "memory": 12, "batch_tokens": 512}
    values["training"] = {"max_steps": 150, "learning_rate": 0.005, "validate_every_steps": 50, "warmup_steps": 20}
    values["training"] |= training
    return run.run(recipe.resolve(values), folder / "run", device="cpu", quiet=True)


@pytest.mark.slow
def test_a_run_that_was_killed_ends_bit_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a later epoch, with dropout, between two checkpoints."""
    how = {"max_steps": 40, "checkpoint_every_steps": 10, "validate_every_steps": 20, "threads": 1}
    loss, ends = PermutedTask.loss, []
    for name, last in (("whole", 99), ("killed", 34)):
        (tmp_path / name).mkdir()
        calls = 0

        def counted(self: PermutedTask, model: XLNet, batch: PermutedBatch, last: int = last) -> Any:
            nonlocal calls
            calls += 1
            if calls > last:
                raise RuntimeError("killed")
            return loss(self, model, batch)

        monkeypatch.setattr(PermutedTask, "loss", counted)
        with nullcontext() if name == "whole" else pytest.raises(RuntimeError, match="killed"):
            trained(tmp_path / name, texts(60), {"dropout": 0.2}, **how)
    monkeypatch.setattr(PermutedTask, "loss", loss)
    trained(tmp_path / "killed", texts(60), {"dropout": 0.2}, **how)
    for name in ("whole", "killed"):
        log = [json.loads(line) for line in (tmp_path / name / "run" / "metrics.jsonl").read_text().splitlines()]
        values = [{key: value for key, value in line.items() if key not in ("seconds", "waited_s")} for line in log]
        ends.append((values, (tmp_path / name / "run" / "model" / "model.safetensors").read_bytes()))
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_what_cannot_be_known_is_not_learnt(tmp_path: Path) -> None:
    """Of words drawn alike and apart the entropy is ln 7: less than that would be a leak."""
    draws = random.Random(1)
    written = [" ".join(draws.choices(DAYS, k=draws.randint(20, 60))) for _ in range(400)]
    scores = trained(tmp_path, written).scores
    assert 6.8 < scores["target_perplexity"] < 7.3


@pytest.mark.slow
def test_a_run_learns_all_there_is_to_know_and_can_be_used(tmp_path: Path) -> None:
    result = trained(tmp_path, texts(400))
    assert result.metric == "target_accuracy"
    scores = result.scores
    assert set(scores["baselines"]) == {"tokens by their frequency", "this model without the text around"}
    # Of a day, said again and again, every token follows from those around it: the entropy is next to nothing.
    assert scores["target_accuracy"] > 0.99
    assert scores["target_perplexity"] < 1.1
    for of in scores["baselines"].values():
        assert of["target_perplexity"] > 4
    assert (
        "one in:6|spans:5|context:24|memory:12|orders:0|version:regard-1|avg:1|seed:1"
        in scores["signatures"]["target_accuracy"]
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "perplexity per predicted token" in page
    assert "loss per target" in page
    loaded = regard.load(tmp_path / "run")
    assert isinstance(loaded, Filler)
    (filled,) = loaded.fill(["friday friday <mask> friday friday"])
    assert filled.text == "friday friday friday friday friday"
    rows = [json.loads(line) for line in (tmp_path / "run" / "outputs.jsonl").read_text().splitlines()]
    assert " <mask>" in rows[0]["source"]
    assert "<mask>" not in rows[0]["output"] + rows[0]["references"][0]
    with pytest.raises(UsageError, match="a model for the task 'mlm'; use it with regard fill"):
        regard.evaluate(tmp_path / "run", "pairs.tsv")
    maps = regard.look(loaded, "friday <mask> friday")
    assert maps.output == "friday friday friday"
    # None looks at a mask but itself.
    weights_HTS = maps.maps[0].weights_HTS
    masked = maps.maps[0].query_tokens.index("<mask>")
    assert (np.delete(weights_HTS[:, :, masked], masked, axis=1) == 0).all()
    # As transformers reads it.
    regard.convert(tmp_path / "run", tmp_path / "public", "huggingface")
    public = regard.load(tmp_path / "public")
    assert isinstance(public, Filler)
    assert public.fill(["monday <mask> monday"])[0].masks == loaded.fill(["monday <mask> monday"])[0].masks
