"""Scores of models that fill in masks on any texts: beside the task's own figures, and beside a loop."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from public_masked import write

import regard
from regard.attention import Segments
from regard.errors import DataError
from regard.tasks import masked_texts
from regard.tasks.masked import MaskedConfig, MaskedTask
from regard.tasks.texts import TextData, TextTokenizerConfig

TEXTS = ["The light of the night", "in the beginning was the word " * 5, "", "day"]
SIZES = {"embed_dim": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 24}


def test_texts_have_the_figures_that_the_run_gave_its_own_test_part(tmp_path: Path) -> None:
    draws = np.random.default_rng(3)
    texts = [" ".join(draws.choice(["day", "night", "light", "dark"], size=n)) for n in draws.integers(2, 40, 160)]
    (tmp_path / "book.txt").write_text("\n\n".join(texts))
    data = TextData(str(tmp_path / "book.txt"))
    config = MaskedConfig(data, TextTokenizerConfig("byte-bpe", 300), {"family": "bert", **SIZES}, context=16)
    task = MaskedTask.prepare(config, 5, tmp_path, True)
    shard = task.shards["test"]
    held_out = [
        task.tokenizer.decode(shard.tokens[a : a + n]) for a, n in zip(shard.starts, shard.lengths, strict=False)
    ]
    assert set(held_out) <= set(texts)
    assert len(task.held_out("test")[0]) > len(held_out)
    product = task.product(task.build(), torch.device("cpu"))
    want = task.test(product).measures
    found = masked_texts.evaluate(product, held_out)
    assert {name: (one.value, one.signature) for name, one in found.items()} == {
        name: (pytest.approx(one.value, rel=1e-6), one.signature) for name, one in want.items()
    }


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_public_model_is_scored_as_by_the_loop(
    kind: str, tmp_path: Path, run_cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Each piece alone through the model: whole texts, the tokens around each, and a share hidden at once."""
    model = write(tmp_path, kind).eval()
    filler = regard.load(tmp_path)
    inner = filler.tokenizer.inner
    special = {
        inner.token_to_id(name) for name in ("[CLS]", "[SEP]", "[UNK]", "[MASK]", "<s>", "</s>", "<unk>", "<mask>")
    }
    read: list[tuple[list[int], list[int]]] = []
    plain = filler.predict

    def heard(rows, places, *rest):
        read.extend((row.tolist(), at.tolist()) for row, at in zip(rows, places, strict=True))
        return plain(rows, places, *rest)

    filler.predict = heard
    found = masked_texts.evaluate(filler, TEXTS)
    rest = [inner.encode(text, add_special_tokens=False).ids for text in TEXTS]
    start, end = inner.encode("").ids
    pieces = [[start, *ids[n : n + 14], end] for ids in rest for n in range(0, len(ids), 14)]
    assert len(read) == len(pieces) > 4
    nats, right, count = 0.0, 0, 0
    for (row, at), piece in zip(read, pieces, strict=True):
        text = [n for n, token in enumerate(piece) if token not in special]
        assert set(at) <= set(text)
        assert len(at) == -(-15 * len(text) // 100)
        assert row == [filler.mask_id if n in at else token for n, token in enumerate(piece)]
        with torch.inference_mode():
            hidden_ND = model(torch.tensor(row), Segments.ragged([len(row)]))
            logp_NV = model.head(hidden_ND).double().log_softmax(-1)
        nats -= sum(float(logp_NV[n, piece[n]]) for n in at)
        right += sum(int(logp_NV[n].argmax()) == piece[n] for n in at)
        count += len(at)
    assert found["masked_perplexity"].value == pytest.approx(np.exp(nats / count), rel=1e-6)
    assert found["masked_accuracy"].value == right / count
    (tmp_path / "t.txt").write_text("\n\n".join(TEXTS))
    done = run_cli(["evaluate", tmp_path, "--data", tmp_path / "t.txt", "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    values = json.loads(done.stdout)
    assert values["masked_accuracy"] == right / count
    assert values["signatures"]["masked_accuracy"].startswith(f"masked_accuracy|masked:{count}|share:0.15|all hidden")


def test_texts_without_a_token_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "bert")
    with pytest.raises(DataError, match="no token to hide"):
        masked_texts.evaluate(regard.load(tmp_path), ["", " "])
