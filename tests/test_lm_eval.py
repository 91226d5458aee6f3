"""Our models in EleutherAI's harness, beside its own ``hf`` model on the same weights. ``make lm-eval`` runs these."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import regard
from regard.attention import Segments
from regard.data.tokenizer import Tokenizer
from regard.decoding import DecodeOptions
from regard.errors import ContextError, UsageError
from regard.lm_eval import adapter, options
from regard.models.gpt import GPT, GPTConfig
from regard.models.public import write_folder
from regard.tasks.generator import Generator

WORDS = "the light of day and dark of night, water over earth. Let there be heaven"
TEXTS = ["the light of night", "water and earth, day and night.", "Let there be light", "dark"]
LONG = "the water of night and the earth of day over heaven and dark, light over light. " * 3
CONTEXT = 48


@pytest.fixture(scope="module")
def harness() -> Any:
    return pytest.importorskip("lm_eval", reason="make lm-eval installs the harness in an environment of its own")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A public folder of a GPT-2 whose scores differ widely."""
    path = tmp_path_factory.mktemp("gpt2")
    tokenizer = Tokenizer.train([WORDS], "byte-bpe", 290)
    torch.manual_seed(4)
    model = GPT(GPTConfig(tokenizer.vocab_size, 16, 2, 2, max_len=CONTEXT))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    ends = {"bos_token_id": tokenizer.end_id, "eos_token_id": tokenizer.end_id}
    write_folder(path, "gpt", model, ends)
    (path / "tokenizer.json").write_text(tokenizer.to_json())
    return path


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three tasks of the harness on files of ours: choices, running text, and writing."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    rows = [
        {"question": f"{text} {number}:", "choices": ["night", "heaven and earth", "day."], "answer": number % 3}
        for number, text in enumerate([*TEXTS, LONG])
    ]
    kinds: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
        "choices": (
            rows,
            {
                "output_type": "multiple_choice",
                "doc_to_text": "{{question}}",
                "doc_to_target": "answer",
                "doc_to_choice": "choices",
                "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
            },
        ),
        "running": (
            [{"text": text} for text in [*TEXTS, LONG]],
            {
                "output_type": "loglikelihood_rolling",
                "doc_to_text": "",
                "doc_to_target": "{{text}}",
                "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
            },
        ),
        "writing": (
            [{"text": text, "answer": "no such text"} for text in [*TEXTS, LONG]],
            {
                "output_type": "generate_until",
                "doc_to_text": "{{text}}",
                "doc_to_target": "{{answer}}",
                "generation_kwargs": {"until": ["e", "\n\n"], "max_gen_toks": 20, "do_sample": False},
                "metric_list": [{"metric": "exact_match"}],
            },
        ),
    }
    for name, (rows, values) in kinds.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / f"{name}.jsonl")}}}
        task = {"task": f"regard_{name}", **data, "test_split": "test", **values}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(task))
    return tmp_path


def run(harness: Any, model: Any, tasks: Path, *names: str) -> Any:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    wanted = [f"regard_{name}" for name in names or ("choices", "running", "writing")]
    return harness.simple_evaluate(model, tasks=wanted, task_manager=manager, log_samples=True, bootstrap_iters=0)


def answers(done: Any, name: str) -> list[Any]:
    samples = sorted(done["samples"][f"regard_{name}"], key=lambda one: one["doc_id"])
    return [one["resps"] for one in samples]


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_all_answers_are_those_of_the_harness_own_model(harness: Any, folder: Path, tasks: Path) -> None:
    import transformers
    from lm_eval.models.huggingface import HFLM

    own = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="</s>", bos_token="</s>", pad_token="</s>"
    )
    peer = HFLM(transformers.GPT2LMHeadModel.from_pretrained(folder), tokenizer=own, batch_size=3, max_length=CONTEXT)
    wants = run(harness, peer, tasks)
    got = run(harness, adapter(folder, batch_tokens=70), tasks)
    assert own.eos_token_id == regard.load(folder).end_ids[0]
    assert len(own(LONG)["input_ids"]) > 2 * CONTEXT
    greedy = set()
    for want, mine in zip(answers(wants, "choices"), answers(got, "choices"), strict=True):
        for ((logprob, is_greedy),), ((our_logprob, ours_greedy),) in zip(want, mine, strict=True):
            assert our_logprob == pytest.approx(logprob, abs=1e-4)
            assert ours_greedy == is_greedy
            greedy.add(is_greedy)
    for ((want,),), ((mine,),) in zip(answers(wants, "running"), answers(got, "running"), strict=True):
        assert mine == pytest.approx(want, abs=1e-4)
    assert answers(got, "writing") == answers(wants, "writing")
    assert any(one[0][0] for one in answers(got, "writing"))
    for name, metrics in wants["results"].items():
        for metric, value in metrics.items():
            if isinstance(value, float):
                assert got["results"][name][metric] == pytest.approx(value, rel=1e-4), (name, metric)


class WithoutEnd:
    """A tokenizer whose texts have a start and no end, as the harness counts them."""

    end_ids: tuple[int, ...] = ()

    def __init__(self, inner: Tokenizer) -> None:
        self.start_id, self.encode, self.decode = inner.start_id, inner.encode, inner.decode


def small(ends: bool) -> Generator:
    tokenizer = Tokenizer.train([WORDS], "byte-bpe", 290)
    torch.manual_seed(5)
    model = GPT(GPTConfig(tokenizer.vocab_size, 16, 2, 2, max_len=CONTEXT)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return Generator(model, tokenizer if ends else WithoutEnd(tokenizer), DecodeOptions(), CONTEXT)


def log_softmax(g: Generator, tokens: list[int]) -> torch.Tensor:
    """ln p of the next token, from one forward pass over the whole text."""
    with torch.inference_mode():
        return g.model.head(g.model(torch.tensor(tokens), Segments.ragged([len(tokens)])))[-1].log_softmax(-1)


def test_ends_of_texts_are_foreseen_as_by_the_loop_whatever_stands_beside() -> None:
    g = small(ends=True)
    rows = [[g.start_id, *g.tokenizer.encode(text)][:CONTEXT] for text in [*TEXTS, LONG]]
    for row in rows[:2]:  # one that ends as the model itself would go on, and one that nearly does
        for _ in range(3):
            row.append(int(log_softmax(g, row).argmax()))
    rows[1][-2] = (rows[1][-2] + 1) % 200
    counts = [3, 3, 0, len(rows[3]) - 1, 30]
    for batch_tokens in (1, 50, 4096):
        found = g.foresee([torch.tensor(row).numpy() for row in rows], counts, batch_tokens=batch_tokens)
        for row, count, (logprob, is_greedy) in zip(rows, counts, found, strict=True):
            steps = [(log_softmax(g, row[:n]), row[n]) for n in range(len(row) - count, len(row))]
            assert logprob == pytest.approx(sum(float(logp[token]) for logp, token in steps), rel=1e-9)
            assert is_greedy == all(int(logp.argmax()) == token for logp, token in steps)
    assert [is_greedy for _, is_greedy in found[:2]] == [True, False]


def test_what_a_task_asks_of_writing_is_done_or_refused() -> None:
    asked = {"until": ["\n", ""], "max_gen_toks": 7, "do_sample": False, "temperature": 0.0}
    assert options(asked) == DecodeOptions(max_extra_tokens=7, stop=("\n",), length_penalty=0.0)
    draws = options({**asked, "do_sample": True, "temperature": 0.7, "top_k": 5})
    assert (draws.sample, draws.temperature, draws.top_k) == (True, 0.7, 5)
    with pytest.raises(UsageError, match="'num_beams' is not known here"):
        options({**asked, "num_beams": 4})
    with pytest.raises(UsageError, match="temperature is 0"):
        options({**asked, "do_sample": True})


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_running_text_has_the_figures_of_evaluate(harness: Any, tasks: Path) -> None:
    g = small(ends=False)
    (tasks / "running.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    done = run(harness, adapter(g), tasks, "running")["results"]["regard_running"]
    own = g.evaluate(TEXTS)
    assert done["word_perplexity,none"] == pytest.approx(own["word_perplexity"].value, rel=1e-6)
    assert done["bits_per_byte,none"] == pytest.approx(own["bits_per_byte"].value, rel=1e-6)
    with_end = small(ends=True)
    assert done["bits_per_byte,none"] != pytest.approx(with_end.evaluate(TEXTS)["bits_per_byte"].value, rel=1e-3)


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_requests_are_answered_in_their_order_with_their_own_settings(harness: Any) -> None:
    g = small(ends=True)
    lm = adapter(g)
    how = [{"max_gen_toks": 5}, {"max_gen_toks": 9, "until": ["e"]}, {"max_gen_toks": 5}, {"max_gen_toks": 30}]
    asked = [SimpleNamespace(args=(text, one)) for text, one in zip([*TEXTS[:3], LONG], how, strict=True)]
    lm.cache_hook = SimpleNamespace(add_partial=lambda kind, args, answer: kept.append((kind, *args, answer)))
    kept: list[Any] = []
    got = lm.generate_until(asked)
    for request, text in zip(asked, got, strict=True):
        prompt, one = request.args
        own = DecodeOptions(max_extra_tokens=one["max_gen_toks"], stop=tuple(one.get("until", ())), length_penalty=0.0)
        assert text == g.generate([prompt], own, on_full="slide")[0].text
        assert ("generate_until", prompt, one, text) in kept
    first = lm.loglikelihood([SimpleNamespace(args=("", "the light")), SimpleNamespace(args=("the", " light"))])
    tokens = [g.start_id, *g.tokenizer.encode("the light")]
    nats = [float(log_softmax(g, tokens[:n])[tokens[n]]) for n in range(1, len(tokens))]
    given = len(g.tokenizer.encode("the"))
    assert first[0][0] == pytest.approx(math.fsum(nats), rel=1e-9)
    assert first[1][0] == pytest.approx(math.fsum(nats[given:]), rel=1e-9)
    with pytest.raises(ContextError, match=f"the context is {CONTEXT}"):
        lm.loglikelihood([SimpleNamespace(args=("the", LONG))])


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_evaluated_is_refused(harness: Any) -> None:
    g = small(ends=False)
    g.start_id = None
    with pytest.raises(UsageError, match="neither start nor end"):
        adapter(g)
    assert adapter(g, prefix_token_id=3).prefix_token_id == 3
    with pytest.raises(UsageError, match=r"URL|fetched"):
        adapter("https://example.org/model")
