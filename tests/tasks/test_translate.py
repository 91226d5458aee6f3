"""A trained model as its user holds it: texts in, texts out; and as a folder, good or bad."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu
import torch

from regard.attention import Segments
from regard.data import Pair
from regard.decoding import DecodeOptions
from regard.errors import CheckpointError, ConfigError, ContextError, DataError, FormatError, RegardError
from regard.models.registry import family
from regard.models.weights import gather, read_tensors, write_tensors
from regard.tasks import folder
from regard.tasks.baselines import Lexicon, copy_source
from regard.tasks.pairs import PairTokenizer, TokenizerConfig
from regard.tasks.translator import Translator, grouped

TEXTS = ["der Hund bellt", "die Katze schläft tief", "ein Vogel singt", "der Vogel", "die Katze bellt", "tief"]
PAIRS = [Pair(text, text[::-1], line) for line, text in enumerate(TEXTS, 1)]


def translator(name: str = "transformer", shared: bool = True, seed: int = 0, **changes: object) -> Translator:
    """With random weights, whose distributions are not flat."""
    config = (
        TokenizerConfig("characters", "characters", shared, 400)
        if shared
        else TokenizerConfig("characters", "whitespace", False, 400)
    )
    tokenizer = PairTokenizer.train(PAIRS, config)
    sizes = {"source_vocab_size": tokenizer.source.vocab_size, "target_vocab_size": tokenizer.target.vocab_size}
    tiny = replace(family(name).tiny[0], **{**sizes, "share": "all" if shared else "none", **changes})
    torch.manual_seed(seed)
    model = family(name).build(tiny)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return Translator(model, tokenizer, DecodeOptions(beam=2, n_best=2, max_extra_tokens=5), 40)


# ------------------------------------------------------------------------------------------------------------ translate


@pytest.mark.parametrize("name", ["transformer", "rnn"])
def test_order_is_kept_and_blank_lines_stay_blank(name: str) -> None:
    model = translator(name, shared=False)
    texts = ["", *TEXTS, " \t", TEXTS[0], "\u2003"]
    got = model.hypotheses(texts)
    alone = [model.hypotheses([text])[0] for text in texts]
    assert [[o.text for o in outputs] for outputs in got] == [[o.text for o in outputs] for outputs in alone]
    for text, outputs in zip(texts, got, strict=True):
        if not text.strip():
            assert [(o.text, o.logprob, o.tokens, o.ended) for o in outputs] == [("", 0.0, 0, True)]
        else:
            assert len(outputs) == 2
            assert outputs[0].score >= outputs[1].score
            assert all(len(o.text.splitlines()) <= 1 for o in outputs)
    assert len({outputs[0].text for outputs in got}) > 3
    assert model.hypotheses([]) == []
    # Neither the size of batches nor the mode the model was left in changes an output.
    model.model.train()
    again = model.hypotheses(texts, batch_tokens=1)
    assert model.model.training
    assert [[o.text for o in outputs] for outputs in again] == [[o.text for o in outputs] for outputs in got]


def test_draws_depend_on_the_place_in_the_users_input() -> None:
    model, options = translator(shared=False), DecodeOptions(sample=True, max_extra_tokens=5, seed=3)
    texts = ["der Hund", "", "der Hund", " ", "ein Vogel", "die Katze"]
    whole = [outputs[0].text for outputs in model.hypotheses(texts, options)]
    parts = [
        model.hypotheses(texts[:3], options),
        model.hypotheses(texts[3:5], options, first=3),
        model.hypotheses(texts[5:], options, first=5),
    ]
    assert [outputs[0].text for part in parts for outputs in part] == whole
    assert whole[0] != whole[2]
    assert [outputs[0].text for outputs in model.hypotheses(texts, replace(options, seed=4))] != whole


def test_a_text_over_the_context_is_refused_with_both_lengths() -> None:
    model = translator()
    model.hypotheses(["x" * 39])
    with pytest.raises(ContextError, match=r"has 41 tokens; the model's context is 40; split the text") as caught:
        model.hypotheses(["ok", "x" * 40])
    assert "\n" not in str(caught.value)
    with pytest.raises(ContextError, match=r"pair 2 has 4 and 51 tokens; at most 40 and 40 fit"):
        model.score([Pair("abc", "def", 1), Pair("abc", "x" * 50, 2)])
    with pytest.raises(FormatError, match="surrogate"):
        model.hypotheses(["a\ud800"])


def test_a_line_break_that_the_model_makes_is_a_space() -> None:
    model = translator()
    with torch.no_grad():
        for parameter in model.model.decoder.parameters():
            parameter.zero_()
        (newline,) = model.tokenizer.target.encode("\n")
        # A last norm that gives the newline's own vector: the output is newlines to the limit.
        row = model.model.output.weight[newline]
        model.model.decoder[-1].mlp_norm.bias.copy_(20 * row / row.norm())
    (outputs,) = model.hypotheses(["ab"], DecodeOptions(max_extra_tokens=2))
    assert (outputs[0].tokens, outputs[0].ended) == (5, False)
    assert outputs[0].text.strip() == ""
    assert "\n" not in outputs[0].text


# --------------------------------------------------------------------------------------------------- score and evaluate


@pytest.mark.parametrize("name", ["transformer", "rnn"])
def test_a_score_is_the_sum_over_the_target_and_its_end(name: str) -> None:
    model = translator(name, shared=False)
    pairs = [*PAIRS, Pair("Hund", "tkriw", 7)]
    got = model.score(pairs, batch_tokens=30)
    for pair, (total, count) in zip(pairs, got, strict=True):
        source = [*model.tokenizer.source.encode(pair.source), model.tokenizer.source.end_id]
        target = [
            model.tokenizer.target.start_id,
            *model.tokenizer.target.encode(pair.target),
            model.tokenizer.target.end_id,
        ]
        assert count == len(target) - 1
        wanted = 0.0
        for place in range(1, len(target)):
            with torch.inference_mode():
                hidden = model.model(
                    torch.tensor(source),
                    Segments.ragged([len(source)]),
                    torch.tensor(target[:place]),
                    Segments.ragged([place]),
                )
                logits = model.model.head(hidden)[-1].tolist()
            wanted += logits[target[place]] - math.log(sum(map(math.exp, logits)))
        assert total == pytest.approx(wanted, abs=1e-4)
    assert model.score([]) == []


def test_a_score_agrees_with_decoding() -> None:
    model = translator(shared=False)
    with torch.no_grad():
        model.model.output.bias[model.tokenizer.target.end_id] += 3
    ended = 0
    for text, outputs in zip(TEXTS, model.hypotheses(TEXTS, DecodeOptions(4, 4, max_extra_tokens=10)), strict=True):
        for output in (output for output in outputs if output.ended):
            ((total, count),) = model.score([Pair(text, output.text, 1)])
            assert (total, count) == (pytest.approx(output.logprob, abs=1e-4), output.tokens + 1)
            ended += 1
    assert ended > 3


def test_references_are_grouped_by_source() -> None:
    pairs = [Pair("a", "1", 1), Pair("b", "2", 2), Pair("a", "3", 3), Pair("a", "1", 4)]
    assert grouped(pairs, "line") == (["a", "b", "a", "a"], [["1"], ["2"], ["3"], ["1"]])
    assert grouped(pairs, "source") == (["a", "b"], [["1", "3", "1"], ["2"]])


def test_evaluation_scores_what_is_translated() -> None:
    model = translator()
    pairs = [*PAIRS, Pair(TEXTS[0], "and another", 7)]
    by_line, by_source = model.evaluate(pairs), model.evaluate(pairs, references="source")
    assert by_line.sources == [*TEXTS, TEXTS[0]]
    assert by_source.sources == TEXTS
    assert by_source.references[0] == [TEXTS[0][::-1], "and another"]
    assert by_source.outputs == [outputs[0].text for outputs in model.hypotheses(TEXTS)]
    streams = [[pair.target for pair in PAIRS], ["and another", *[None] * 5]]
    assert by_source.measures["chrf"].value == sacrebleu.corpus_chrf(by_source.outputs, streams).score
    # A right answer among several is right.
    right = [Pair(text, output, 1) for text, output in zip(TEXTS, by_source.outputs, strict=True)]
    perfect = model.evaluate([*PAIRS, *right], references="source")
    assert perfect.measures["exact_match"].value == 1.0
    assert model.evaluate([*PAIRS, *right]).measures["exact_match"].value == 0.5


# --------------------------------------------------------------------------------------------------------------- folder


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["transformer", "rnn"])
def test_a_folder_comes_back(name: str, shared: bool, tmp_path: Path) -> None:
    model = translator(name, shared)
    model.references = "source"
    folder.save(tmp_path / "m", model, card="# A card\n")
    back = folder.load(tmp_path / "m")
    weights, read = gather(model.model), gather(back.model)
    assert {k: v.numpy().tobytes() for k, v in weights.items()} == {k: v.numpy().tobytes() for k, v in read.items()}
    assert back.model.config == model.model.config
    assert (back.options, back.max_tokens, back.references) == (model.options, 40, "source")
    assert back.tokenizer.shared == shared
    assert not back.model.training
    assert back.hypotheses(TEXTS) == model.hypotheses(TEXTS)
    assert back.score(PAIRS) == model.score(PAIRS)
    names = {"tokenizer.json"} if shared else {"source_tokenizer.json", "target_tokenizer.json"}
    assert {p.name for p in (tmp_path / "m").iterdir()} == names | {
        "config.json",
        "model.safetensors",
        "generation_config.json",
        "README.md",
    }
    # A run's folder is as good as the model's folder in it.
    (tmp_path / "run").mkdir()
    (tmp_path / "m").rename(tmp_path / "run" / "model")
    assert folder.load(tmp_path / "run").hypotheses(TEXTS[:1]) == model.hypotheses(TEXTS[:1])


def test_other_weights_can_be_saved(tmp_path: Path) -> None:
    model, other = translator(), translator(seed=1)
    folder.save(tmp_path, model, gather(other.model))
    assert folder.load(tmp_path).hypotheses(TEXTS) == other.hypotheses(TEXTS) != model.hypotheses(TEXTS)


def test_a_folder_is_written_over(tmp_path: Path) -> None:
    for shared in (True, False, True):
        model = translator(shared=shared)
        folder.save(tmp_path, model)
        assert folder.load(tmp_path).hypotheses(TEXTS) == model.hypotheses(TEXTS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "m"
    folder.save(path, translator(shared=False))
    return path


def rewrite(path: Path, change: Callable[[dict], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def config(change: Callable[[dict], object]) -> Callable[[Path], None]:
    return lambda path: rewrite(path / "config.json", change)


def weights(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        tensors = read_tensors(path / "model.safetensors")
        change(tensors)
        write_tensors(path / "model.safetensors", tensors)

    return spoil


def swap(path: Path) -> None:
    (path / "source_tokenizer.json").rename(path / "x")
    (path / "target_tokenizer.json").rename(path / "source_tokenizer.json")
    (path / "x").rename(path / "target_tokenizer.json")


def first(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return tensors[min(tensors)]


BAD: dict[str, tuple[Callable[[Path], object], type[RegardError], str]] = {
    "no config": (
        lambda p: (p / "config.json").unlink(),
        DataError,
        "no model here (no config.json); give a folder that regard train made",
    ),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), CheckpointError, "model.safetensors: "),
    "no tokenizer": (lambda p: (p / "target_tokenizer.json").unlink(), DataError, "the tokenizer is missing"),
    "no options": (
        lambda p: (p / "generation_config.json").unlink(),
        DataError,
        "generation_config.json: the file is missing",
    ),
    "not JSON": (lambda p: (p / "config.json").write_text("{"), FormatError, "config.json: the config is n"),
    "deep JSON": (lambda p: (p / "config.json").write_text("[" * 100_000), FormatError, "config.json: the config is n"),
    "a list": (lambda p: (p / "config.json").write_text("[]"), FormatError, "the config is not a JSON object"),
    "long": (lambda p: (p / "config.json").write_text(" " * (1 << 21)), FormatError, "the config of 2097152 bytes"),
    "binary": (lambda p: (p / "config.json").write_bytes(b"\xff\xfe{}"), FormatError, "config.json: the config is n"),
    "foreign": (config(lambda c: c.update(model_type="bert")), FormatError, "model_type is 'bert', not 'regard'"),
    "newer": (config(lambda c: c.update(format=2)), FormatError, "format 2; this version reads 1"),
    "unknown key": (
        config(lambda c: c.update(famly="rnn")),
        ConfigError,
        "config.json: unknown key 'famly'; did you mean family?",
    ),
    "unknown setting": (
        config(lambda c: c["settings"].update(num_head=2)),
        ConfigError,
        "unknown key 'num_head'; did you mean num_heads?",
    ),
    "wrong type": (
        config(lambda c: c["settings"].update(num_heads="2")),
        ConfigError,
        "settings.num_heads: expected int, got '2'",
    ),
    "unknown family": (
        config(lambda c: c.update(family="../../os")),
        ConfigError,
        "unknown model family '../../os'; choose from bert, ",
    ),
    "a billion layers": (
        config(lambda c: c["settings"].update(encoder_layers=10**9)),
        ConfigError,
        "encoder_layers is 1000000000",
    ),
    "more than the file has": (
        config(lambda c: c["settings"].update(embed_dim=4096)),
        CheckpointError,
        "the config describes ",
    ),
    "other width": (config(lambda c: c["settings"].update(mlp_dim=25)), CheckpointError, "does not fit the model"),
    "no heads": (config(lambda c: c["settings"].update(num_heads=0)), ConfigError, "num_heads is 0"),
    "swapped tokenizers": (swap, CheckpointError, "the tokenizers have "),
    "NaN": (weights(lambda t: first(t).fill_(math.nan)), CheckpointError, "not finite"),
    "infinite": (weights(lambda t: first(t).view(-1)[-1:].fill_(math.inf)), CheckpointError, "not finite"),
    "missing tensor": (weights(lambda t: t.pop(min(t))), CheckpointError, "1 missing: "),
    "more tensors": (weights(lambda t: t.update(more=torch.zeros(1))), CheckpointError, "1 unknown: 'more'"),
    "cut weights": (
        lambda p: (p / "model.safetensors").write_bytes((p / "model.safetensors").read_bytes()[:-1]),
        CheckpointError,
        "truncated",
    ),
    "a pickle": (lambda p: (p / "model.safetensors").write_bytes(b"\x80\x04" + b"x" * 40), CheckpointError, "pickle"),
    "bad option": (
        lambda p: rewrite(p / "generation_config.json", lambda o: o.update(beam=10**9)),
        RegardError,
        "beam is 1000000000",
    ),
    "no tokenizer's JSON": (
        lambda p: (p / "source_tokenizer.json").write_text("{}"),
        FormatError,
        "source_tokenizer.json: not a tokenizer",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_in_one_line(name: str, saved: Path, tmp_path: Path) -> None:
    spoil, error, words = BAD[name]
    path = tmp_path / "m"
    shutil.copytree(saved, path)
    folder.load(path)
    spoil(path)
    with pytest.raises(error) as caught:
        folder.load(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    if name != "bad option":
        assert str(path) in str(caught.value) or name == "unknown family"


def test_where_nothing_is_or_a_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model here"):
        folder.load(tmp_path / "nothing")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").touch()
    with pytest.raises(DataError, match="this run has not finished"):
        folder.load(tmp_path)


# ------------------------------------------------------------------------------------------------------------ baselines


def test_a_lexicon_learns_who_goes_with_whom() -> None:
    """The textbook's three pairs: only together do they say that das is the and Buch is book."""
    pairs = [("das Haus", "the house"), ("das Buch", "the book"), ("ein Buch", "a book")]
    lexicon = Lexicon([(source.split(), target.split()) for source, target in pairs])
    assert lexicon.best == {"das": "the", "Haus": "house", "Buch": "book", "ein": "a"}
    assert lexicon(["ein", "Haus", "nie", "das"]) == ["a", "house", "the"]
    assert lexicon([]) == []


def test_one_round_of_expectation_and_maximization_by_hand() -> None:
    """Pairs (a → x y), (a → x): each of x, y is shared by a and the null word alike; a → x 2 · 1/2, a → y 1/2."""
    lexicon = Lexicon([(["a"], ["x", "y"]), (["a"], ["x"]), (["b", "b"], ["y"])], rounds=1)
    assert lexicon.best == {"a": "x", "b": "y"}


def test_a_lexicon_of_pairs_without_targets_gives_nothing() -> None:
    assert Lexicon([(["a"], [])])(["a"]) == []


def test_the_copy_is_a_copy() -> None:
    assert copy_source(("a", "b")) == ["a", "b"]
