"""Tiny masked language models as public folders: config.json, model.safetensors, tokenizer.json and its settings."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.models.bert import Bert, BertConfig
from regard.models.public import write_folder

TEXT = "the light of the day and the dark of the night in the beginning was the word"


def write(folder: Path, kind: str, head: str = "masked") -> Bert:
    """Write one that reads sixteen tokens.

    Args:
        folder: Where to.
        kind: ``bert`` (word pieces, lower case, [MASK]) or ``roberta`` (bytes, <mask>).
        head: Of the model.

    Returns:
        The model.
    """
    torch.manual_seed(0)
    made = _bert() if kind == "bert" else _roberta()
    more = {"num_types": 2} if kind == "bert" else {"num_types": 1, "first_position": 2}
    pooled = {"pooler": head == "none"}
    model = Bert(BertConfig(made.get_vocab_size(), 16, 2, 2, 24, 16, head=head, **more, **pooled))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    write_folder(folder, "bert", model)
    made.save(str(folder / "tokenizer.json"))
    names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    if kind == "roberta":
        names = {"unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>"}
    mask = "[MASK]" if kind == "bert" else "<mask>"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": mask, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return model


def _bert() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator([TEXT], trainers.WordPieceTrainer(vocab_size=60, special_tokens=special))
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def _roberta() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator([TEXT], trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    return made
