"""Short runs of a real, tiny task."""

import json
import random
from pathlib import Path

import torch

from regard.data import Pair
from regard.tasks.corpus import Corpus, PairData
from regard.tasks.pairs import PairTokenizer, TokenizerConfig
from regard.tasks.translate import EvaluationConfig, TranslateConfig, TranslateTask
from regard.tasks.translator import build_model
from regard.training.config import TrainingConfig
from regard.training.loop import Trainer
from regard.training.progress import Progress

CPU = torch.device("cpu")
RNN = {"family": "rnn", "embed_dim": 16, "hidden_dim": 24, "attention_dim": 16}
TRANSFORMER = {
    "family": "transformer",
    "embed_dim": 16,
    "mlp_dim": 32,
    "num_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
}


def corpus() -> Corpus:
    draws = random.Random(5)
    words = ["".join(draws.choices("abcdef", k=draws.randint(2, 7))) for _ in range(120)]
    pairs = [Pair(word, word[::-1], line) for line, word in enumerate(dict.fromkeys(words), 1)]
    return Corpus(pairs[:-10], pairs[-10:], [], [], (("words.tsv", len(pairs) - 10),))


def make_task(model: dict, batch_tokens: int = 60, task: type[TranslateTask] = TranslateTask) -> TranslateTask:
    config = TranslateConfig(
        data=PairData("words.tsv"),
        tokenizer=TokenizerConfig("characters", "characters", True, 300),
        model=model,
        batch_tokens=batch_tokens,
        evaluation=EvaluationConfig("exact_match", max_dev=5),
    )
    data = corpus()
    return task(config, data, PairTokenizer.train(data.train, config.tokenizer), 7)


def make_trainer(
    folder: Path, task: TranslateTask, *, identity: str = "same", device: torch.device = CPU, **settings: object
) -> Trainer:
    config = TrainingConfig(**{"max_steps": 20, "learning_rate": 0.01, "warmup_steps": 5, "seed": 7, **settings})
    torch.manual_seed(7)
    model = build_model(task.config.model, task.tokenizer, "model")
    progress = Progress(config.max_steps, 0.0, quiet=True)
    return Trainer(task, model, config, folder, device, progress, {"settings": identity})


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]
