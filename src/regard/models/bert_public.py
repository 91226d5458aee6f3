"""BERT's public checkpoints and sizes, those of its kin, and their enrolment.

Each of them has a layout: BERT and MiniLM, RoBERTa, XLM-R, ELECTRA, RoFormer with rotary positions, and XLM with
languages in the place of types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.attention.positions import sinusoidal
from regard.errors import FormatError
from regard.models.bert import Bert, BertConfig
from regard.models.public import Layout, Rule, both
from regard.models.registry import Family, Size, register
from regard.models.values import ACTIVATION_NAMES, ACTIVATIONS, architecture, choose, count, expect, flag, number
from regard.models.weights import check_sines


def _read(
    values: Mapping[str, Any],
    where: str,
    *,
    heads: Mapping[str, dict[str, Any]],
    behind_padding: bool = False,
    rotary: float = 0.0,
    masked_activation: str = "",
) -> BertConfig:
    expect(values, where, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    expect(values, where, rotary_value=False)
    places = count(values, "max_position_embeddings", where)
    first = count(values, "pad_token_id", where, _ROBERTA_PADDING) + 1 if behind_padding else 0
    if not 0 <= first < max(places, 1):
        what = f"pad_token_id is {first - 1}, and positions count from behind it, in a table of {places}"
        raise FormatError(what, where=where, mend="see that pad_token_id is the one that the model was trained with")
    width = count(values, "hidden_size", where)
    token_dim = count(values, "embedding_size", where, width)
    head = heads[architecture(values, where, heads)]
    return BertConfig(
        vocab_size=count(values, "vocab_size", where),
        embed_dim=width,
        num_layers=count(values, "num_hidden_layers", where),
        num_heads=count(values, "num_attention_heads", where),
        mlp_dim=count(values, "intermediate_size", where),
        max_len=places - first,
        token_dim=0 if token_dim == width else token_dim,
        first_position=first,
        rotary_base=rotary,
        num_types=count(values, "type_vocab_size", where, 2),
        activation=choose(values, "hidden_act", ACTIVATIONS, where),
        head_activation=masked_activation if head["head"] == "masked" else "",
        tie=bool(values.get("tie_word_embeddings", True)),
        dropout=number(values, "hidden_dropout_prob", where, 0.1),
        attention_dropout=number(values, "attention_probs_dropout_prob", where, 0.1),
        norm_eps=number(values, "layer_norm_eps", where, 1e-12),
        **head,
    )


def _write(config: BertConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed_dim,
        "embedding_size": config.token_dim or config.embed_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_len + config.first_position,
        "type_vocab_size": config.num_types,
        "pad_token_id": max(config.first_position - 1, 0),  # RoBERTa counts positions from behind its number
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "tie_word_embeddings": config.tie,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
    }


def _body(config: BertConfig) -> Iterator[Rule]:
    yield Rule("embeddings.word_embeddings.weight", "token_embed.weight")
    if not config.rotary_base:
        yield Rule("embeddings.position_embeddings.weight", "position_embed.weight")
    yield Rule("embeddings.token_type_embeddings.weight", "type_embed.weight")
    yield from both("embeddings.LayerNorm", "embed_norm")
    if config.token_dim:
        yield from both("embeddings_project", "embed_proj")
    for theirs, ours in (
        ("attention.self.value", "self_attn.v_proj"),
        ("attention.output.dense", "self_attn.out_proj"),
        ("attention.output.LayerNorm", "self_norm"),
        ("intermediate.dense", "mlp.up_proj"),
        ("output.dense", "mlp.down_proj"),
        ("output.LayerNorm", "mlp_norm"),
    ):
        yield from both(f"encoder.layer.{{i}}.{theirs}", f"blocks.{{i}}.{ours}")
    for word in ("query", "key"):
        turned = config.num_heads if config.rotary_base else 0
        yield from both(
            f"encoder.layer.{{i}}.attention.self.{word}", f"blocks.{{i}}.self_attn.{word[0]}_proj", alternating=turned
        )
    if config.pooler:
        yield from both("pooler.dense", "pooler")


def _bert_rules(config: BertConfig) -> Iterator[Rule]:
    yield from _body(config)
    if config.head == "masked":
        yield from both("cls.predictions.transform.dense", "transform", outside=True)
        yield from both("cls.predictions.transform.LayerNorm", "transform_norm", outside=True)
        yield Rule("cls.predictions.decoder.weight", "output.weight", outside=True)
        copies = ("cls.predictions.decoder.bias",)
        yield Rule("cls.predictions.bias", "output.bias", outside=True, copies=copies)
    if config.next_sentence:
        yield from both("cls.seq_relationship", "next_sentence", outside=True)


def _roberta_rules(config: BertConfig) -> Iterator[Rule]:
    yield from _body(config)
    if config.head == "masked":
        yield from both("lm_head.dense", "transform", outside=True)
        yield from both("lm_head.layer_norm", "transform_norm", outside=True)
        yield Rule("lm_head.decoder.weight", "output.weight", outside=True)
        yield Rule("lm_head.bias", "output.bias", outside=True, copies=("lm_head.decoder.bias",))


def _electra_rules(config: BertConfig) -> Iterator[Rule]:
    yield from _body(config)
    if config.head == "replaced":
        yield from both("discriminator_predictions.dense", "transform", outside=True)
        yield from both("discriminator_predictions.dense_prediction", "output", outside=True)
    elif config.head == "masked":
        yield from both("generator_predictions.dense", "transform", outside=True)
        yield from both("generator_predictions.LayerNorm", "transform_norm", outside=True)
        yield from both("generator_lm_head", "output", outside=True)


def _xlm_rules(config: BertConfig) -> Iterator[Rule]:
    yield Rule("embeddings.weight", "token_embed.weight")
    yield Rule("position_embeddings.weight", "position_embed.weight")
    if config.num_languages:
        yield Rule("lang_embeddings.weight", "language_embed.weight")
    yield from both("layer_norm_emb", "embed_norm")
    for theirs, ours in (
        *((f"attentions.{{i}}.{part}_lin", f"self_attn.{part}_proj") for part in ("q", "k", "v", "out")),
        ("layer_norm1.{i}", "self_norm"),
        ("ffns.{i}.lin1", "mlp.up_proj"),
        ("ffns.{i}.lin2", "mlp.down_proj"),
        ("layer_norm2.{i}", "mlp_norm"),
    ):
        yield from both(theirs, f"blocks.{{i}}.{ours}")
    if config.head == "masked":
        yield Rule("pred_layer.proj.weight", "output.weight", outside=True)
        yield Rule("pred_layer.proj.bias", "output.bias", outside=True)


_BERT_HEADS: dict[str, dict[str, Any]] = {
    "BertModel": {"head": "none", "pooler": True},
    "BertForMaskedLM": {"head": "masked"},
    "BertForPreTraining": {"head": "masked", "pooler": True, "next_sentence": True},
}
_ROBERTA_HEADS: dict[str, dict[str, Any]] = {
    "{}Model": {"head": "none", "pooler": True},
    "{}ForMaskedLM": {"head": "masked"},
}
_ROFORMER_HEADS: dict[str, dict[str, Any]] = {
    "RoFormerModel": {"head": "none"},
    "RoFormerForMaskedLM": {"head": "masked"},
}
_ROBERTA_PADDING = 1  # where config.json does not say it
_ROFORMER_BASE, _ROFORMER_TABLE = 10000.0, "encoder.embed_positions.weight"
_ELECTRA_HEADS: dict[str, dict[str, Any]] = {
    "ElectraModel": {"head": "none"},
    "ElectraForPreTraining": {"head": "replaced"},
    "ElectraForMaskedLM": {"head": "masked"},
}


_XLM_HEADS: dict[str, dict[str, Any]] = {
    "XLMModel": {"head": "none"},
    "XLMWithLMHeadModel": {"head": "masked"},
}


def _read_xlm(values: Mapping[str, Any], where: str) -> BertConfig:
    expect(values, where, is_encoder=True, causal=False, asm=False)
    width = count(values, "emb_dim", where)
    num_languages = count(values, "n_langs", where, 1)
    num_languages = num_languages if num_languages > 1 and flag(values, "use_lang_emb", where, True) else 0
    numbers = values.get("lang2id")
    names = (
        {number: name for name, number in numbers.items() if type(number) is int} if isinstance(numbers, dict) else {}
    )
    is_named = len(names) == num_languages and all(0 <= number < num_languages for number in names)
    return BertConfig(
        vocab_size=count(values, "vocab_size" if "vocab_size" in values else "n_words", where),
        embed_dim=width,
        num_layers=count(values, "n_layers", where),
        num_heads=count(values, "n_heads", where),
        mlp_dim=4 * width,
        max_len=count(values, "max_position_embeddings", where),
        num_types=0,
        num_languages=num_languages,
        languages=tuple(names[number] for number in sorted(names)) if is_named else (),
        activation="gelu" if flag(values, "gelu_activation", where, True) else "relu",
        transform=False,
        tie=flag(values, "tie_word_embeddings", where, True),
        dropout=number(values, "dropout", where, 0.1),
        attention_dropout=number(values, "attention_dropout", where, 0.1),
        norm_eps=number(values, "layer_norm_eps", where, 1e-12),
        **_XLM_HEADS[architecture(values, where, _XLM_HEADS)],
    )


def _write_xlm(config: BertConfig) -> dict[str, Any]:
    numbers = {name: number for number, name in enumerate(config.languages)}
    named = {"lang2id": numbers, "id2lang": {str(number): name for name, number in numbers.items()}} if numbers else {}
    return {
        **named,
        "vocab_size": config.vocab_size,
        "emb_dim": config.embed_dim,
        "n_layers": config.num_layers,
        "n_heads": config.num_heads,
        "max_position_embeddings": config.max_len,
        "n_langs": config.num_languages or 1,
        "use_lang_emb": config.num_languages > 0,
        "gelu_activation": config.activation == "gelu",
        "tie_word_embeddings": config.tie,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
        "pad_token_id": min(2, config.vocab_size - 1),
    }


def _architecture(heads: Mapping[str, dict[str, Any]], config: BertConfig) -> str:
    """The class with just these heads; empty where there is none."""
    plain = {"pooler": False, "next_sentence": False}
    found = (n for n, of in heads.items() if all(getattr(config, key) == value for key, value in (plain | of).items()))
    return next(found, "")


def _is_roberta(config: BertConfig) -> bool:
    return config.first_position > 0 and config.num_types > 0


def _is_electra(config: BertConfig) -> bool:
    has_its_own = config.token_dim > 0 or config.head == "replaced" or not (config.pooler or config.head == "masked")
    return not config.first_position and has_its_own and config.num_types > 0


def _is_bert(config: BertConfig) -> bool:
    other = config.first_position or config.token_dim or config.num_languages
    return not other and config.transform and config.num_types > 0


def _is_xlm(config: BertConfig) -> bool:
    other = config.first_position or config.token_dim or config.num_types or config.num_languages == 1
    plain = config.mlp_dim == 4 * config.embed_dim and config.activation in ("gelu", "relu")
    return not other and plain and not (config.head == "masked" and config.transform)


def _is_roformer(config: BertConfig) -> bool:
    return not (config.first_position or config.num_languages) and config.transform and config.num_types > 0


def _lacks(config: BertConfig, rotary: float = 0.0, masked_activation: str = "") -> str:
    if config.reset_positions and not config.num_languages:
        return "counts positions through two texts"
    fixed = masked_activation if config.head == "masked" else ""
    if config.activates_head not in ("", fixed or config.activation):
        return f"the head's activation is {fixed or 'that of the MLPs'}"
    if config.rotary_base == rotary:
        return ""
    return f"rotary positions have the base {rotary:,.0f}" if rotary else "has no rotary positions"


def _tables(config: BertConfig) -> dict[str, Tensor]:
    places_T = torch.arange(config.max_len)
    return {_ROFORMER_TABLE: sinusoidal(places_T, config.embed_dim // config.num_heads, "halves", _ROFORMER_BASE)}


def _check(config: BertConfig, theirs: Mapping[str, Tensor], where: str) -> None:
    check_sines(theirs, (_ROFORMER_TABLE,), config.embed_dim // config.num_heads, where)


def _layout(
    heads: Mapping[str, dict[str, Any]],
    is_kind: Callable[[BertConfig], bool],
    behind_padding: bool = False,
    rotary: float = 0.0,
    masked_activation: str = "",
    **rest: Any,
) -> Layout:
    return Layout(
        architecture=partial(_architecture, heads),
        fits=lambda config: is_kind(config) and bool(_architecture(heads, config)),
        lacks=partial(_lacks, rotary=rotary, masked_activation=masked_activation),
        embed="embeddings.word_embeddings.weight",
        buffers=("embeddings.position_ids", "embeddings.token_type_ids", _ROFORMER_TABLE),
        read=partial(
            _read, heads=heads, behind_padding=behind_padding, rotary=rotary, masked_activation=masked_activation
        ),
        write=_write,
        **rest,
    )


def _roberta(model_type: str, name: str) -> Layout:
    return _layout(
        {form.format(name): of for form, of in _ROBERTA_HEADS.items()},
        _is_roberta,
        behind_padding=True,
        masked_activation="gelu",  # whatever hidden_act says
        model_type=model_type,
        prefix="roberta.",
        rules=_roberta_rules,
        head="lm_head.decoder.weight",
    )


_PUBLIC = (
    _layout(
        _ELECTRA_HEADS,
        _is_electra,
        masked_activation="gelu",
        model_type="electra",
        prefix="electra.",
        rules=_electra_rules,
        head="generator_lm_head.weight",
    ),
    _roberta("roberta", "Roberta"),
    _roberta("xlm-roberta", "XLMRoberta"),
    _layout(
        _BERT_HEADS,
        _is_bert,
        model_type="bert",
        prefix="bert.",
        rules=_bert_rules,
        head="cls.predictions.decoder.weight",
    ),
    _layout(
        _ROFORMER_HEADS,
        _is_roformer,
        rotary=_ROFORMER_BASE,
        model_type="roformer",
        prefix="roformer.",
        rules=_bert_rules,
        head="cls.predictions.decoder.weight",
        tables=_tables,
        check=_check,
    ),
    Layout(
        model_type="xlm",
        architecture=partial(_architecture, _XLM_HEADS),
        prefix="transformer.",
        rules=_xlm_rules,
        head="pred_layer.proj.weight",
        embed="embeddings.weight",
        buffers=("position_ids",),
        read=_read_xlm,
        write=_write_xlm,
        fits=lambda config: _is_xlm(config) and bool(_architecture(_XLM_HEADS, config)),
        lacks=_lacks,
    ),
)

# Devlin et al. 2019, §3: BASE and LARGE; counted with their heads.
_BASE = BertConfig(30522, pooler=True, next_sentence=True)
_LARGE = replace(_BASE, embed_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096)
_ROBERTA = replace(_LARGE, vocab_size=50265, first_position=2, num_types=1, pooler=False, next_sentence=False)
_NOTE = "30,522 tokens, 512 positions, with masked head and pooler. "

register(
    Family(
        name="bert",
        config=BertConfig,
        build=Bert,
        tiny=(
            BertConfig(23, 16, 2, 2, 24, 64, pooler=True, next_sentence=True),
            BertConfig(23, 16, 1, 4, 20, 64, token_dim=8, head="replaced", tie=False),
            BertConfig(23, 16, 1, 2, 20, 64, first_position=2, num_types=1, tie=False),
            BertConfig(23, 16, 1, 2, 20, 64, num_types=0, num_languages=3, transform=False, attention_dropout=0.0),
            BertConfig(23, 16, 2, 2, 20, 64, rotary_base=1000.0),
        ),
        sizes=(
            Size("bert-base", _BASE, "110 M", _NOTE + "Without the heads 109.5 M, which the paper rounds."),
            Size("bert-large", _LARGE, "340 M", _NOTE + "The paper rounds."),
            # Liu et al. 2019, §4.
            Size("roberta-large", _ROBERTA, "355 M", "50,265 byte-level BPE tokens, 514 positions, with masked head."),
        ),
        public=_PUBLIC,
    )
)
