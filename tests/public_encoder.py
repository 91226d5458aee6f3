"""A tiny encoder as a public folder: config.json, model.safetensors, tokenizer.json."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from regard.models.bert import Bert, BertConfig
from regard.models.public import write_folder

WORDS = ["[PAD]", "[CLS]", "[SEP]", *"abcdefghijklmnop"]


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[PAD]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    made.enable_padding(length=16)  # as files of sentence encoders have it; we do not pad
    made.enable_truncation(6)
    return made


def write_encoder(folder: Path) -> None:
    """Write one that reads twelve tokens, with vectors of sixteen numbers."""
    torch.manual_seed(0)
    model = Bert(BertConfig(len(WORDS), 16, 2, 2, 24, 12, head="none", pooler=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    write_folder(folder, "bert", model)
    tokenizer().save(str(folder / "tokenizer.json"))
