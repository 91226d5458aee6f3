"""BERT and its kin: a bidirectional encoder of post-norm blocks, trained to fill in what is masked.

Papers: Devlin et al. 2019, "BERT", §3; RoBERTa (Liu et al. 2019): no next sentence, positions begin later; XLM
(Conneau & Lample 2019): languages instead of segment types, no layer before the output; XLM-R (Conneau et al. 2020) is
RoBERTa over many languages; ELECTRA (Clark et al. 2020): a narrower token table, and a head that tells replaced
tokens; MiniLM (Wang et al. 2020) is a small BERT; RoFormer (Su et al. 2021): rotary positions in the place of a table.
Ours differs in: no padding (flat rows and segments), and so no
padding token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.attention.positions import LearnedPositions
from regard.errors import ConfigError, ContextError, UsageError
from regard.layers.block import Block
from regard.layers.mlp import activation_named
from regard.models.interface import MaskFiller


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
        first_position: Position of a text's first token in the table (RoBERTa: behind its padding token's number).
        rotary_base: Rotary positions in attention with this base, and no table (RoFormer); 0 for the table.
        num_types: Segment types.
        num_languages: Languages, of which a text or its parts may be told (XLM); 0 for none.
        languages: Their names, by number; empty where nobody has named them.
        reset_positions: Of two texts that are read together, the second's positions begin anew (XLM's translation
            language modelling).
        activation: Of the MLPs.
        head_activation: Of the head's layer; empty for that of the MLPs.
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
    rotary_base: float = 0.0
    num_types: int = 2
    num_languages: int = 0
    languages: tuple[str, ...] = ()
    reset_positions: bool = False
    activation: str = "gelu"
    head_activation: str = ""
    head: Literal["masked", "replaced", "none"] = "masked"
    transform: bool = True
    pooler: bool = False
    next_sentence: bool = False
    tie: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_eps: float = 1e-12

    @property
    def fills(self) -> bool:
        """Whether the model fills in masks."""
        return self.head == "masked"

    @property
    def activates_head(self) -> str:
        """The activation in the head; empty where none is."""
        has_layer = self.head == "replaced" or (self.head == "masked" and self.transform)
        return (self.head_activation or self.activation) if has_layer else ""


class Bert(MaskFiller):
    """x = norm(E[token] + P[position] + T[type] + L[language]); x ← block(x); no P where positions are rotary.

    Args:
        config: The settings.

    Raises:
        ConfigError: A head or an activation is unknown, the next sentence is to be told without a pooler, or names and
            number of the languages differ.
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
        if c.languages and len(c.languages) != c.num_languages:
            raise ConfigError(f"{len(c.languages)} names of {c.num_languages} languages", mend="name each of them once")
        token_dim = c.token_dim or c.embed_dim
        self.token_embed = nn.Embedding(c.vocab_size, token_dim)
        self.position_embed = None if c.rotary_base else LearnedPositions(c.max_len + c.first_position, token_dim)
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
                rotary_base=c.rotary_base or None,
                norm_eps=c.norm_eps,
            )
            for _ in range(c.num_layers)
        )
        self.pooler = nn.Linear(c.embed_dim, c.embed_dim) if c.pooler else None
        self.next_sentence = nn.Linear(c.embed_dim, 2) if c.next_sentence else None
        self.head_activation = activation_named(c.head_activation or c.activation)
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
        x_NE = self.token_embed(tokens_N)
        if self.position_embed is not None:
            x_NE = x_NE + self.position_embed(positions_N + first, segments.max_len + first)
        if self.type_embed is not None:
            x_NE = x_NE + (self.type_embed.weight[0] if types_N is None else self.type_embed(types_N))
        if languages_N is not None:
            if self.language_embed is None:
                raise UsageError("languages for a model that has none", where="Bert", mend="set num_languages")
            x_NE = x_NE + self.language_embed(languages_N)
        x_ND = self.embed_proj(self.dropout(self.embed_norm(x_NE)))
        for block in self.blocks:
            x_ND = block(x_ND, segments, positions_N=positions_N)
        return x_ND

    def told(self, segments: Segments, types_N: Tensor, languages_B2: Tensor | None = None) -> dict[str, Tensor]:
        """Turn which of two texts each token is of into what :meth:`forward` is told of it.

        Args:
            segments: Which tokens belong together.
            types_N: int64, 0 in the first text of a row, with the token before and the one behind it; 1 in the second.
            languages_B2: int64, the two languages of each row; None where none is told.

        Returns:
            Types where there is more than one, languages, and positions where they begin anew: the second text's tokens
            count from 1 then, as those of the first do behind the start token.

        Source: Conneau & Lample 2019, §3.3.
        """
        given = {"types_N": types_N} if self.config.num_types > 1 else {}
        if languages_B2 is not None:
            given["languages_N"] = languages_B2[segments.sequence_N(), types_N]
        if self.config.reset_positions:
            places_N, sequence_N = segments.positions_N(), segments.sequence_N()
            first_B = torch.zeros_like(segments.lengths_B).index_add(0, sequence_N, 1 - types_N)
            given["positions_N"] = torch.where(types_N > 0, places_N - first_B[sequence_N] + 1, places_N)
        return given

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages that it is told."""
        return self.config.languages

    def number_languages(self, names: str) -> tuple[int, int] | None:
        """Find the numbers of two texts' languages."""
        languages = self.languages
        known = ", ".join(languages)
        if not names:
            if languages:
                mend = f"name it with languages: {known}; of two texts as {languages[0]},{languages[-1]}"
                raise UsageError("this model has to be told the language", mend=mend)
            return None
        one, _, other = names.partition(",")
        for name in (one, other or one):
            if name not in languages:
                mend = f"choose from {known}" if known else "leave it out: the model is told none"
                raise UsageError(f"unknown language {name[:40]!r}", mend=mend)
        return languages.index(one), languages.index(other or one)

    def at(
        self,
        tokens_N: Tensor,
        segments: Segments,
        places_M: Tensor,
        types_N: Tensor | None = None,
        languages_B2: Tensor | None = None,
    ) -> Tensor:
        """Encode texts, and keep the rows of the masks."""
        if types_N is None:
            return self(tokens_N, segments)[places_M]
        return self(tokens_N, segments, **self.told(segments, types_N, languages_B2))[places_M]

    def before_output(self, hidden_ND: Tensor) -> Tensor:
        """Transform each token's vector where the head does so; its last layer scores tokens, or whether one is new."""
        if self.transform is None:
            return hidden_ND
        hidden_ND = self.head_activation(self.transform(hidden_ND))
        return hidden_ND if self.transform_norm is None else self.transform_norm(hidden_ND)

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
