"""Instruction tuning: the loss is over answers alone; a public model is gone on from, saved and loaded."""

import json
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

import regard
from regard.attention import Segments
from regard.errors import CheckpointError, ConfigError, ContextError, DataError
from regard.models.gpt import GPT, GPTConfig
from regard.models.public import write_folder
from regard.tasks.corpus import PairData
from regard.tasks.generator import Generation, Generator
from regard.tasks.instruct import InstructConfig, InstructTask
from regard.tasks.language import TextTokenizerConfig
from regard.training import recipe, run

TINY = {"family": "gpt", "embed_dim": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.0, "attention_dropout": 0.0}


def write(folder: Path, count: int = 200) -> Path:
    """Numbers, and a word to be said."""
    path, numbers = folder / "answers.tsv", random.Random(3).sample(range(1000), count)
    path.write_text("".join(f"{n} say {'yes' if n % 2 else 'no'}\t{'yes' if n % 2 else 'no'}\n" for n in numbers))
    return path


def make_task(folder: Path, **changes: object) -> InstructTask:
    data = PairData(str(write(folder)), max_tokens=changes.pop("max_tokens", 40))  # type: ignore[arg-type]
    values = {"tokenizer": TextTokenizerConfig("byte-bpe", 290), "model": TINY, "batch_tokens": 120}
    return InstructTask.prepare(InstructConfig(data, **{**values, **changes}), 5, folder, True)  # type: ignore[arg-type]


def write_gpt(folder: Path) -> None:
    """A tiny public GPT-2 with a byte-level tokenizer of its own."""
    folder.mkdir()
    tokenizer = Library(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.train_from_iterator(["some text to begin with"] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(5)
    write_folder(folder, "gpt", GPT(GPTConfig(tokenizer.get_vocab_size(), 16, 2, 2, max_len=64, dropout=0.0)))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "bos_token_id": 0, "eos_token_id": 0}))


def test_prompts_cost_nothing_and_answers_what_the_loop_says(tmp_path: Path) -> None:
    task = make_task(tmp_path, template="Q: {source} A: ")
    model = task.build().double().eval()
    batch, want, count, v = task.batch(0), 0.0, 0, task.vocabulary
    for n in task.order.at(0):
        pair = task.corpus.train[task.kept[n]]
        prompt = [v.start_id, *v.encode(f"Q: {pair.source} A: ")]
        for token in [*v.encode(pair.target), v.end_ids[0]]:
            logits = model.head(model(torch.tensor(prompt), Segments.ragged([len(prompt)])))[-1].detach()
            want -= float(logits.log_softmax(-1)[token])
            prompt.append(token)
            count += 1
    assert float(task.loss(model, batch).report) == pytest.approx(want, rel=1e-6)
    assert task.count(batch) == count < task.tokens(batch)


def test_what_does_not_fit_is_left_out_and_counted_or_refused(tmp_path: Path) -> None:
    lengths = sorted(len(ids) - 1 for ids, _ in make_task(tmp_path).train)
    task = make_task(tmp_path, max_tokens=lengths[-1] - 1)
    assert 0 < len(task.train) < len(task.corpus.train)
    assert any("training pairs over" in note for note in task.notes)
    assert "line" in task.name_batch(0)
    with pytest.raises(ContextError, match="none of"):
        make_task(tmp_path, max_tokens=3)
    for template in ("no place", "{source} {source}"):
        with pytest.raises(ConfigError, match=r"write \{source\} once"):
            make_task(tmp_path, template=template)


def test_a_prompt_is_answered_wherever_there_is_room_for_one_token_however_long_the_right_answer(
    tmp_path: Path,
) -> None:
    """A token of a text is a character here; the start token is one more."""
    lines = [f"{n:02} say yes\tyes\n" for n in range(60)]
    (tmp_path / "train.tsv").write_text("".join(lines))
    prompts = [("ask", "yes " * 50), ("a" * 17, "b"), ("a" * 18, "b"), ("a" * 19, "b")]
    (tmp_path / "test.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in prompts))
    data = PairData(str(tmp_path / "train.tsv"), test=str(tmp_path / "test.tsv"), max_tokens=20)
    config = InstructConfig(data, template="{source}\n", tokenizer=TextTokenizerConfig("characters", 400), model=TINY)
    task = InstructTask.prepare(config, 5, tmp_path, True)
    product = task.product(task.build(), torch.device("cpu"))
    asked = []
    plain = product.generate

    def heard(texts: list[str], *rest: object, **named: object) -> list[Generation]:
        asked.extend(texts)
        return plain(texts, *rest, **named)  # type: ignore[arg-type]

    product.generate = heard  # type: ignore[method-assign]
    outputs = task.test(product).outputs
    assert asked == [f"{one}\n" for one, _ in prompts[:2]]
    assert outputs[2:] == ["", ""]
    assert "2 test prompts of 20 tokens or more are not answered." in task.notes


def test_what_is_gone_on_from_has_to_be_named(tmp_path: Path) -> None:
    values = recipe.with_data(recipe.read("instruct"), str(write(tmp_path)))
    unnamed, named = (recipe.resolve(values, sets, "instruct").settings for sets in ([], ["model.family=gpt"]))
    with pytest.raises(ConfigError, match=r"no model to go on from; give --set init=FOLDER; or, .* model\.family=gpt"):
        InstructTask.prepare(unnamed, 1, tmp_path, True)
    assert InstructTask.prepare(named, 1, tmp_path, True).config.model == {"family": "gpt"}
    with pytest.raises(DataError, match=r"^nix: no such folder or file$"):
        make_task(tmp_path, init="nix")


@pytest.mark.parametrize("task", ["lm", "mlm"])
def test_a_run_of_a_language_model_is_gone_on_from_and_another_is_refused(task: str, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("\n\n".join(f"{n} say yes {n} say no" for n in range(200)))
    family = {"lm": "gpt", "mlm": "bert"}[task]
    values = {
        "task": task,
        "data": {"train": str(tmp_path / "book.txt")},
        "tokenizer": {"kind": "byte-bpe", "vocab_size": 290},
        "model": {**TINY, "family": family},
        "context": 40,
        "training": {"max_steps": 2, "validate_every_steps": 2, "threads": 1},
    }
    run.run(recipe.resolve(values), tmp_path / "book", device="cpu", quiet=True)
    for place in (tmp_path / "book", tmp_path / "book" / "model"):
        if task == "mlm":
            with pytest.raises(ConfigError, match="a model for the task 'mlm' does not go on from texts; give"):
                make_task(tmp_path, init=str(place))
            continue
        instruct = make_task(tmp_path, init=str(place))
        begun, learnt = instruct.build(), regard.load(place)
        assert torch.equal(next(begun.parameters()), next(learnt.model.parameters()))
        assert instruct.vocabulary.encode("12 say yes") == learnt.tokenizer.encode("12 say yes")
        with pytest.raises(ConfigError, match=r"data\.max_tokens is 41, the model reads 40; set data\.max_tokens: 40"):
            make_task(tmp_path, init=str(place), max_tokens=41)


@pytest.mark.slow
def test_a_public_model_learns_to_answer_is_saved_and_answers(tmp_path: Path) -> None:
    write_gpt(tmp_path / "gpt")
    values = recipe.with_data(recipe.read("instruct"), str(write(tmp_path, 600)))
    values |= {"init": str(tmp_path / "gpt"), "batch_tokens": 512, "data": {**values["data"], "max_tokens": 60}}
    values["training"] = {"max_steps": 160, "learning_rate": 0.01, "validate_every_steps": 80, "warmup_steps": 5}
    result = run.run(recipe.resolve(values), tmp_path / "run", device="cpu", quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "outputs.jsonl").read_text().splitlines()]
    assert {row["output"] for row in rows} == {"yes", "no"}  # it has learnt to answer, and to end
    assert result.scores["exact_match"] > 0.9
    assert set(result.scores["baselines"]) == {"copy of the prompt", "the commonest answer"}
    loaded = regard.load(tmp_path / "run")
    assert isinstance(loaded, Generator)
    assert loaded.start_id is None
    assert loaded.end_ids == (0,)
    (one,) = loaded.generate([rows[0]["source"] + "\n"])
    assert (one.text, one.ended) == (rows[0]["output"], True)
    again = run.run(recipe.resolve(values), tmp_path / "run", device="cpu", quiet=True)
    assert again.scores["exact_match"] == result.scores["exact_match"]
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    (tmp_path / "run" / "model" / "config.json").write_text(json.dumps({**config, "end_ids": [9999]}))
    with pytest.raises(CheckpointError, match=r"the tokenizer has \d+ tokens, the model"):
        regard.load(tmp_path / "run")


def test_a_model_that_cannot_end_or_reads_less_is_refused(tmp_path: Path) -> None:
    write_gpt(tmp_path / "gpt")
    with pytest.raises(ConfigError, match=r"data\.max_tokens is 500, the model reads 64"):
        make_task(tmp_path, init=str(tmp_path / "gpt"), max_tokens=500)
    config = json.loads((tmp_path / "gpt" / "config.json").read_text())
    (tmp_path / "gpt" / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    with pytest.raises(DataError, match="no token that ends a text"):
        make_task(tmp_path, init=str(tmp_path / "gpt"))
