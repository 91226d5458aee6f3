"""BERT and its kin: a bidirectional encoder of post-norm blocks, trained to fill in what is masked.

Papers: Devlin et al. 2019, "BERT", §3; RoBERTa (Liu et al. 2019): no next sentence, positions begin later; XLM
(Conneau & Lample 2019): languages instead of segment types, no layer before the output; XLM-R (Conneau et al. 2020) is
RoBERTa over many languages; ELECTRA (Clark et al. 2020): a narrower token table, and a head that tells replaced
tokens; MiniLM (Wang et al. 2020) is a small BERT. Ours differs in: no padding (flat rows and segments), and so no
padding token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.attention.positions import LearnedPositions
from regard.errors import ConfigError, ContextError, FormatError, UsageError
from regard.layers.block import Block
from regard.layers.mlp import ACTIVATIONS
from regard.models.public import Layout, Rule, choose, count, expect, number
from regard.models.registry import Family, Size, register


@dataclass(frozen=True)
class BertConfig:
    """Settings of a BERT.

    Attributes:
        vocab_size: Tokens of the vocabulary.
        embed_dim: Width D.
        num_layers: Blocks.
        num_heads: Heads H.
        mlp_dim: Inner width of the MLPs.
        max_len: Tokens of a text at most.
        token_dim: Width of the tables, projected to D (ELECTRA); 0 is D.
        first_position: Position of a text's first token in the table (RoBERTa: 2).
        num_types: Segment types.
        num_languages: Languages, of which a text or its parts may be told (XLM); 0 for none.
        activation: Of the MLPs and heads.
        head: What is predicted: ``masked`` tokens, which tokens were ``replaced`` (ELECTRA's discriminator), or
            ``none``.
        transform: The masked head has a layer and a norm before the output (XLM has not).
        pooler: The first token's vector goes through a layer with tanh.
        next_sentence: From there it is told whether the second text follows the first.
        tie: The output table is the input's.
        dropout: On embeddings and each sublayer's result.
        attention_dropout: On attention weights.
        norm_eps: Of layer norms.
    """

    vocab_size: int
    embed_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    max_len: int = 512
    token_dim: int = 0
    first_position: int = 0
    num_types: int = 2
    num_languages: int = 0
    activation: str = "gelu"
    head: Literal["masked", "replaced", "none"] = "masked"
    transform: bool = True
    pooler: bool = False
    next_sentence: bool = False
    tie: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_eps: float = 1e-12


class Bert(nn.Module):
    """x = norm(E[token] + P[position] + T[type] + L[language]); x ← block(x).

    Args:
        config: The settings.

    Raises:
        ConfigError: A head is unknown, or the next sentence is to be told without a pooler.
        UsageError: The heads do not divide the width.

    Source: Devlin et al. 2019, §3 and appendix A.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        c = self.config = config
        if c.head not in ("masked", "replaced", "none"):
            raise ConfigError(f"unknown head {c.head!r}", mend="choose from masked, replaced, none")
        if c.next_sentence and not c.pooler:
            raise ConfigError("next_sentence is told from the pooler", mend="set pooler: true")
        token_dim = c.token_dim or c.embed_dim
        self.token_embed = nn.Embedding(c.vocab_size, token_dim)
        self.position_embed = LearnedPositions(c.max_len + c.first_position, token_dim)
        self.type_embed = nn.Embedding(c.num_types, token_dim) if c.num_types else None
        self.language_embed = nn.Embedding(c.num_languages, token_dim) if c.num_languages else None
        self.embed_norm = nn.LayerNorm(token_dim, c.norm_eps)
        self.embed_proj = nn.Linear(token_dim, c.embed_dim) if c.token_dim else nn.Identity()
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(
            Block(
                c.embed_dim,
                c.num_heads,
                c.mlp_dim,
                norm="post",
                activation=c.activation,
                dropout_p=c.dropout,
                attention_dropout_p=c.attention_dropout,
                norm_eps=c.norm_eps,
            )
            for _ in range(c.num_layers)
        )
        self.pooler = nn.Linear(c.embed_dim, c.embed_dim) if c.pooler else None
        self.next_sentence = nn.Linear(c.embed_dim, 2) if c.next_sentence else None
        self.activation = ACTIVATIONS[c.activation]
        self.transform: nn.Linear | None = None
        self.transform_norm: nn.LayerNorm | None = None
        self.output: nn.Linear | None = None
        if c.head == "replaced":
            self.transform, self.output = nn.Linear(c.embed_dim, c.embed_dim), nn.Linear(c.embed_dim, 1)
        elif c.head == "masked":
            if c.transform:
                self.transform, self.transform_norm = (
                    nn.Linear(c.embed_dim, token_dim),
                    nn.LayerNorm(token_dim, c.norm_eps),
                )
            self.output = nn.Linear(token_dim, c.vocab_size)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if c.head == "masked" and c.tie and self.output is not None:
            self.output.weight = self.token_embed.weight

    @property
    def max_tokens(self) -> int:
        """Tokens of a text at most."""
        return self.config.max_len

    def forward(
        self,
        tokens_N: Tensor,
        segments: Segments,
        types_N: Tensor | None = None,
        languages_N: Tensor | None = None,
        positions_N: Tensor | None = None,
    ) -> Tensor:
        """Encode texts.

        Args:
            tokens_N: int64, tokens of the batch.
            segments: Which belong together.
            types_N: int64, segment type of each token; None is 0 everywhere.
            languages_N: int64, language of each token; None adds no language.
            positions_N: int64, position of each token, where a text begins anew inside a sequence; None counts from 0.

        Returns:
            hidden_ND.

        Raises:
            ContextError: A text is longer than the table of positions.
            UsageError: Languages are given to a model without.
        """
        first, limit = self.config.first_position, self.config.max_len
        if (
            segments.max_len > limit and positions_N is None and max(segments.lengths) > limit
        ):  # the bound is rounded up
            raise ContextError(f"a text of {max(segments.lengths)} tokens; the model reads {limit}")
        positions_N = segments.positions_N() if positions_N is None else positions_N
        x_NE = self.token_embed(tokens_N) + self.position_embed(positions_N + first, segments.max_len + first)
        if self.type_embed is not None:
            x_NE = x_NE + (self.type_embed.weight[0] if types_N is None else self.type_embed(types_N))
        if languages_N is not None:
            if self.language_embed is None:
                raise UsageError("languages for a model that has none", where="Bert", mend="set num_languages")
            x_NE = x_NE + self.language_embed(languages_N)
        x_ND = self.embed_proj(self.dropout(self.embed_norm(x_NE)))
        for block in self.blocks:
            x_ND = block(x_ND, segments)
        return x_ND

    def head(self, hidden_ND: Tensor) -> Tensor:
        """Predict what the head is for, at each token.

        Args:
            hidden_ND: From :meth:`forward`, all rows or those of interest.

        Returns:
            logits_NV of the tokens; or logits_N1 of the token being replaced.

        Raises:
            UsageError: The model has no head.
        """
        if self.output is None:
            raise UsageError("a model without a head", where="Bert.head", mend="set head")
        if self.transform is not None:
            hidden_ND = self.activation(self.transform(hidden_ND))
            hidden_ND = hidden_ND if self.transform_norm is None else self.transform_norm(hidden_ND)
        return self.output(hidden_ND)

    def pool(self, hidden_ND: Tensor, segments: Segments) -> Tensor:
        """Give one vector for each text: tanh of a layer over its first token's.

        Args:
            hidden_ND: From :meth:`forward`.
            segments: Which rows belong together; each has a token.

        Returns:
            pooled_BD.

        Raises:
            UsageError: The model has no pooler.
        """
        if self.pooler is None:
            raise UsageError("a model without a pooler", where="Bert.pool", mend="set pooler: true, or take the mean")
        return torch.tanh(self.pooler(hidden_ND[segments.starts_B]))


# ------------------------------------------------------------------------------------------------- public checkpoints

_NAMES = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu-tanh", "silu": "silu"}


def _read(values: Mapping[str, Any], where: str, *, heads: Mapping[str, dict[str, Any]], first: int = 0) -> BertConfig:
    expect(values, where, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    named = values.get("architectures") or [next(iter(heads))]
    architecture = str(named[0] if isinstance(named, list) else named)
    if architecture not in heads:
        raise FormatError(f"architecture {architecture[:40]!r}", where=where, mend=f"known: {', '.join(heads)}")
    width = count(values, "hidden_size", where)
    token_dim = count(values, "embedding_size", where, width)
    return BertConfig(
        vocab_size=count(values, "vocab_size", where),
        embed_dim=width,
        num_layers=count(values, "num_hidden_layers", where),
        num_heads=count(values, "num_attention_heads", where),
        mlp_dim=count(values, "intermediate_size", where),
        max_len=count(values, "max_position_embeddings", where) - first,
        token_dim=0 if token_dim == width else token_dim,
        first_position=first,
        num_types=count(values, "type_vocab_size", where, 2),
        activation=choose(values, "hidden_act", _NAMES, where),
        tie=bool(values.get("tie_word_embeddings", True)),
        dropout=number(values, "hidden_dropout_prob", where, 0.1),
        attention_dropout=number(values, "attention_probs_dropout_prob", where, 0.1),
        norm_eps=number(values, "layer_norm_eps", where, 1e-12),
        **heads[architecture],
    )


def _write(config: BertConfig) -> dict[str, Any]:
    theirs = {ours: name for name, ours in _NAMES.items()}
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed_dim,
        "embedding_size": config.token_dim or config.embed_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_len + config.first_position,
        "type_vocab_size": config.num_types,
        "pad_token_id": max(config.first_position - 1, 0),  # RoBERTa counts positions from behind its padding token
        "hidden_act": theirs[config.activation],
        "tie_word_embeddings": config.tie,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
    }


def _both(theirs: str, ours: str, **how: Any) -> Iterator[Rule]:
    for end in ("weight", "bias"):
        yield Rule(f"{theirs}.{end}", f"{ours}.{end}", **how)


def _body(config: BertConfig) -> Iterator[Rule]:
    yield Rule("embeddings.word_embeddings.weight", "token_embed.weight")
    yield Rule("embeddings.position_embeddings.weight", "position_embed.weight")
    yield Rule("embeddings.token_type_embeddings.weight", "type_embed.weight")
    yield from _both("embeddings.LayerNorm", "embed_norm")
    if config.token_dim:
        yield from _both("embeddings_project", "embed_proj")
    for theirs, ours in (
        *((f"attention.self.{word}", f"self_attn.{word[0]}_proj") for word in ("query", "key", "value")),
        ("attention.output.dense", "self_attn.out_proj"),
        ("attention.output.LayerNorm", "self_norm"),
        ("intermediate.dense", "mlp.up_proj"),
        ("output.dense", "mlp.down_proj"),
        ("output.LayerNorm", "mlp_norm"),
    ):
        yield from _both(f"encoder.layer.{{i}}.{theirs}", f"blocks.{{i}}.{ours}")
    if config.pooler:
        yield from _both("pooler.dense", "pooler")


def _bert_rules(config: BertConfig) -> Iterator[Rule]:
    yield from _body(config)
    if config.head == "masked":
        yield from _both("cls.predictions.transform.dense", "transform", outside=True)
        yield from _both("cls.predictions.transform.LayerNorm", "transform_norm", outside=True)
        yield Rule("cls.predictions.decoder.weight", "output.weight", outside=True)
        copies = ("cls.predictions.decoder.bias",)
        yield Rule("cls.predictions.bias", "output.bias", outside=True, copies=copies)
    if config.next_sentence:
        yield from _both("cls.seq_relationship", "next_sentence", outside=True)


def _roberta_rules(config: BertConfig) -> Iterator[Rule]:
    yield from _body(config)
    if config.head == "masked":
        yield from _both("lm_head.dense", "transform", outside=True)
        yield from _both("lm_head.layer_norm", "transform_norm", outside=True)
        yield Rule("lm_head.decoder.weight", "output.weight", outside=True)
        yield Rule("lm_head.bias", "output.bias", outside=True, copies=("lm_head.decoder.bias",))


def _electra_rules(config: BertConfig) -> Iterator[Rule]:
    yield from _body(config)
    if config.head == "replaced":
        yield from _both("discriminator_predictions.dense", "transform", outside=True)
        yield from _both("discriminator_predictions.dense_prediction", "output", outside=True)
    elif config.head == "masked":
        yield from _both("generator_predictions.dense", "transform", outside=True)
        yield from _both("generator_predictions.LayerNorm", "transform_norm", outside=True)
        yield from _both("generator_lm_head", "output", outside=True)


_BERT_HEADS: dict[str, dict[str, Any]] = {
    "BertModel": {"head": "none", "pooler": True},
    "BertForMaskedLM": {"head": "masked"},
    "BertForPreTraining": {"head": "masked", "pooler": True, "next_sentence": True},
}
_ROBERTA_HEADS: dict[str, dict[str, Any]] = {
    "{}Model": {"head": "none", "pooler": True},
    "{}ForMaskedLM": {"head": "masked"},
}
_ELECTRA_HEADS: dict[str, dict[str, Any]] = {
    "ElectraModel": {"head": "none"},
    "ElectraForPreTraining": {"head": "replaced"},
    "ElectraForMaskedLM": {"head": "masked"},
}


def _architecture(heads: Mapping[str, dict[str, Any]], config: BertConfig) -> str:
    """The class with just these heads; empty where there is none."""
    plain = {"pooler": False, "next_sentence": False}
    found = (n for n, of in heads.items() if all(getattr(config, key) == value for key, value in (plain | of).items()))
    return next(found, "")


def _is_roberta(config: BertConfig) -> bool:
    return config.first_position == 2


def _is_electra(config: BertConfig) -> bool:
    has_its_own = config.token_dim > 0 or config.head == "replaced" or not (config.pooler or config.head == "masked")
    return not config.first_position and has_its_own


def _is_bert(config: BertConfig) -> bool:
    return not (config.first_position or config.token_dim or config.num_languages) and config.transform


def _layout(
    heads: Mapping[str, dict[str, Any]], is_kind: Callable[[BertConfig], bool], first: int = 0, **rest: Any
) -> Layout:
    return Layout(
        architecture=partial(_architecture, heads),
        fits=lambda config: is_kind(config) and bool(_architecture(heads, config)),
        embed="embeddings.word_embeddings.weight",
        buffers=("embeddings.position_ids", "embeddings.token_type_ids"),
        read=partial(_read, heads=heads, first=first),
        write=_write,
        **rest,
    )


def _roberta(model_type: str, name: str) -> Layout:
    return _layout(
        {form.format(name): of for form, of in _ROBERTA_HEADS.items()},
        _is_roberta,
        2,
        model_type=model_type,
        prefix="roberta.",
        rules=_roberta_rules,
        head="lm_head.decoder.weight",
    )


_PUBLIC = (
    _layout(
        _ELECTRA_HEADS,
        _is_electra,
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
