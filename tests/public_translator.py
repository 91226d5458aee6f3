"""A tiny translation model as a public folder: Marian's files, with sentencepiece models trained on the spot."""

import io
import json
from pathlib import Path

import sentencepiece
import torch

from regard.models.public import write_folder
from regard.models.transformer import Transformer, TransformerConfig

CODE = ">>fra<<"
SENTENCES = [
    f"{who} {what} {where}"
    for who in ("A nurse", "The old captain", "Nobody", "Her two brothers", "The committee")
    for what in ("sold a boat", "was looking for the key", "sang", "cannot be found", "voted against it")
    for where in ("in the harbour.", "yesterday.", "at home,", "again", "on the stairs of the town hall!")
]


def train(sentences: list[str], size: int) -> bytes:
    """Train a sentencepiece model."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=made, vocab_size=size, hard_vocab_limit=False, minloglevel=2
    )
    return made.getvalue()


def write_translator(folder: Path, *, apart: bool = False) -> None:
    """Write one that reads 128 tokens; its start token would always win, were it not banned.

    Args:
        folder: Made where it is missing.
        apart: The two sides have vocabularies of their own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = train(SENTENCES, 90), train([text.lower()[::-1] for text in SENTENCES], 70)
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)
    sides = []
    for model in models:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        sides.append([processor.id_to_piece(number) for number in range(processor.vocab_size())])
    # Numbered as they are not in the models: the end is 0, padding the last.
    names = [[name for name in side if name not in ("<unk>", "<s>", "</s>")] for side in sides]
    first, last = ["</s>", "<unk>", CODE], ["<pad>"]
    if apart:  # its number is the same on both sides
        first, last = first + last, []
    else:
        names = [[*dict.fromkeys([*names[0], *names[1]])]] * 2
    vocabularies = [{name: number for number, name in enumerate([*first, *side, *last])} for side in names]
    sizes = [len(one) for one in vocabularies]
    for name, vocabulary in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=True):
        if apart or name == "vocab.json":
            (folder / name).write_text(json.dumps(vocabulary))
    pad = vocabularies[0]["<pad>"]
    torch.manual_seed(0)
    config = TransformerConfig(
        sizes[0],
        sizes[1],
        16,
        24,
        2,
        encoder_layers=1,
        decoder_layers=1,
        activation="silu",
        share="target" if apart else "all",
        positions="sinusoidal-halves",
        max_len=128,
        output_bias=True,
    )
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
        model.output.bias[pad] += 50.0
        model.output.bias[0] += 1.0
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0}
    write_folder(folder, "transformer", model, ids)
    more = {"num_beams": 1, "length_penalty": 0.5, "bad_words_ids": [[pad]]}
    (folder / "generation_config.json").write_text(json.dumps({**ids, **more}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": apart, "model_max_length": 512}))
