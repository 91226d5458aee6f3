"""XLNet: a language model of any factorization order, that reads both sides of what it predicts.

Paper: Yang et al. 2019, "XLNet", §2: permutations (§2.2), two streams that share weights (§2.3), memory of earlier
parts of a text and relative positions from Transformer-XL (§2.4; Dai et al. 2019), relative segment encodings (§2.5).
Ours differs in: no padding (flat rows and segments), so that memories of unequal lengths stand side by side; the
queries' stream is computed for targets alone; a target before which nothing stands sees nothing and gets zeros from
attention, where the public implementation takes the mean of all values, its own token's among them; in training, one
dropout of the encoded distances serves all texts of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from regard.attention import Segments, masks
from regard.attention.relative import Standing
from regard.errors import ConfigError, FormatError, UsageError
from regard.layers.relative import Joined, Memory, RelativeBlock, Stream
from regard.models.interface import MaskFiller
from regard.models.public import Layout, Rule, choose, count, expect, number
from regard.models.registry import Family, Size, register
from regard.models.values import ACTIVATION_NAMES, ACTIVATIONS

_MOST_TOKENS = 16_777_216


@dataclass(frozen=True)
class XLNetConfig:
    """Settings of an XLNet.

    Attributes:
        vocab_size: Tokens of the vocabulary.
        embed_dim: Width D.
        num_layers: Blocks.
        num_heads: Heads H.
        mlp_dim: Inner width of the MLPs.
        attention: ``both`` sides of a token are seen, or, whatever the order, the ``past`` alone (Transformer-XL).
        same_length: In the past, every token sees as many places as are remembered, and its own.
        clamp_distance: Distances from here on are encoded alike; 0 tells all apart.
        memory_tokens: Last tokens of a text that are remembered; 0 for all.
        reuse_tokens: First tokens of each part of a text that may be remembered; 0 for all.
        untie: Each block has its own biases of the score; else all share them.
        activation: Of the MLPs.
        head: What is predicted: ``tokens``, or ``none``.
        tie: The output table is the input's.
        dropout: On embeddings, encoded distances and each sublayer's result.
        attention_dropout: On attention weights.
        norm_eps: Of layer norms.
    """

    vocab_size: int
    embed_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    attention: Literal["both", "past"] = "both"
    same_length: bool = False
    clamp_distance: int = 0
    memory_tokens: int = 0
    reuse_tokens: int = 0
    untie: bool = True
    activation: str = "gelu"
    head: Literal["tokens", "none"] = "tokens"
    tie: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_eps: float = 1e-12

    @property
    def fills(self) -> bool:
        """Whether the model fills in masks."""
        return self.head == "tokens" and self.attention == "both"


@dataclass(frozen=True, eq=False)
class Streams:
    """What a part of texts was turned into.

    Attributes:
        hidden_ND: The content's stream: each token, itself among what it has seen.
        targets_PD: The queries' stream: each target's place, without its token; None where there are no targets.
        memory: For the next part of each text; None where it was not asked for.
    """

    hidden_ND: Tensor
    targets_PD: Tensor | None
    memory: Memory | None


class XLNet(MaskFiller):
    """h = E[token], g = w at each target; h, g ← block(h, g), where both attend to h (behind the memory).

    Of the order z, h at z_t sees z_≤t and g at z_t sees z_<t.

    Args:
        config: The settings.

    Raises:
        ConfigError: A choice is unknown, or a number of tokens is none.
        UsageError: The heads do not divide the width.

    Source: Yang et al. 2019, §2.3 and appendix A.2.
    """

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        c = self.config = config
        for name, known in (("attention", ("both", "past")), ("head", ("tokens", "none"))):
            if getattr(c, name) not in known:
                raise ConfigError(f"unknown {name} {getattr(c, name)!r}", mend=f"choose from {', '.join(known)}")
        for name in ("clamp_distance", "memory_tokens", "reuse_tokens"):
            if not 0 <= getattr(c, name) <= _MOST_TOKENS:
                raise ConfigError(f"{name} is {getattr(c, name)}", mend=f"give 0 to {_MOST_TOKENS:,}")
        self.token_embed = nn.Embedding(c.vocab_size, c.embed_dim)
        self.mask_embed_1D = nn.Parameter(torch.empty(1, c.embed_dim))
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(
            RelativeBlock(
                c.embed_dim,
                c.num_heads,
                c.mlp_dim,
                activation=c.activation,
                dropout_p=c.dropout,
                attention_dropout_p=c.attention_dropout,
                norm_eps=c.norm_eps,
            )
            for _ in range(c.num_layers)
        )
        self.output = nn.Linear(c.embed_dim, c.vocab_size) if c.head == "tokens" else None
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if not c.untie:
            first, *rest = (block.self_attn.score for block in self._blocks)
            for score in rest:
                score.content_bias_HK, score.position_bias_HK = first.content_bias_HK, first.position_bias_HK
                score.type_bias_HK = first.type_bias_HK
        if c.tie and self.output is not None:
            self.output.weight = self.token_embed.weight

    @property
    def _blocks(self) -> list[RelativeBlock]:
        return cast(list[RelativeBlock], list(self.blocks))

    def forward(
        self,
        tokens_N: Tensor,
        segments: Segments,
        types_N: Tensor | None = None,
        *,
        order_N: Tensor | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """Encode texts: the content's stream alone.

        Args:
            tokens_N: int64, tokens of the batch.
            segments: Which belong together.
            types_N: As for :meth:`streams`, like the others.
            order_N: None lets every token see all that ``attention`` does.
            memory: What is remembered of each text.

        Returns:
            hidden_ND.
        """
        return self.streams(tokens_N, segments, types_N, order_N=order_N, memory=memory).hidden_ND

    def streams(
        self,
        tokens_N: Tensor,
        segments: Segments,
        types_N: Tensor | None = None,
        *,
        order_N: Tensor | None = None,
        targets_P: Tensor | None = None,
        memory: Memory | None = None,
        remember: bool = False,
    ) -> Streams:
        """Read a part of each text, and predict targets.

        Args:
            tokens_N: int64, tokens of the batch.
            segments: Which belong together.
            types_N: int64, segment type of each token; the score is told whether two are of one. None leaves types out,
                which is the same as one type everywhere. What is remembered is of type 0.
            order_N: int64, rank of each token in the order of its text. A token sees those of no higher rank, a target
                those of a lower one: give the same rank to tokens that are no targets and see each other.
            targets_P: int64, rows of the tokens to predict, text by text; None predicts none.
            memory: What is remembered of each text, from the part before; all of it is seen by all.
            remember: Give the memory for the part that follows.

        Returns:
            The streams; :meth:`head` turns ``targets_PD`` into scores of the targets' tokens.

        Raises:
            UsageError: Targets without an order, or that are not rows in the order of the texts; a memory of another
                model or of other texts.
        """
        joined = None if memory is None else self._joined(memory, segments)
        k_segments = segments if joined is None else joined.segments
        low, high = 1 - max((1, *segments.lengths)), max((1, *k_segments.lengths)) - 1
        k_types_M, k_ranks_M = _behind(joined, types_N, 0), _behind(joined, order_N, torch.iinfo(torch.int64).min)
        remembered_B = k_segments.lengths_B - segments.lengths_B
        standing = Standing(segments, k_segments, low, None, types_N, k_types_M)
        mask = self._mask(standing, remembered_B, order_N, k_ranks_M, strict=False)
        streams = [(self.dropout(self.token_embed(tokens_N)), Stream(standing, mask))]
        if targets_P is not None:
            if order_N is None or k_ranks_M is None:
                raise UsageError("targets without an order", where="XLNet", mend="give order_N")
            standing = _standing_of(targets_P, standing, remembered_B)
            mask = self._mask(standing, remembered_B, order_N[targets_P], k_ranks_M, strict=True)
            g_PD = self.dropout(self.mask_embed_1D.expand(len(targets_P), -1))
            streams.append((g_PD, Stream(standing, mask)))
        encoding_RD = self.dropout(self._blocks[0].self_attn.score.encode(low, high, self.config.clamp_distance))
        read: list[Tensor] = []
        for place, block in enumerate(self._blocks):
            read.append(streams[0][0])
            context_MD = read[-1] if joined is None or memory is None else joined.join(memory.hidden[place], read[-1])
            results = block(streams, context_MD, encoding_RD)
            streams = [(x_ND, told) for x_ND, (_, told) in zip(results, streams, strict=True)]
        hidden_ND, *targets = (self.dropout(x_ND) for x_ND, _ in streams)
        kept = self._remember(read, segments, memory) if remember else None
        return Streams(hidden_ND, targets[0] if targets else None, kept)

    def at(
        self,
        tokens_N: Tensor,
        segments: Segments,
        places_M: Tensor,
        types_N: Tensor | None = None,
        languages_B2: Tensor | None = None,
    ) -> Tensor:
        """Predict masks as targets that all other tokens of their text come before; what stands there none reads."""
        if languages_B2 is not None:
            raise UsageError("languages for a model that is told none", where="XLNet", mend="leave them out")
        if not len(places_M):
            return self(tokens_N, segments, types_N)[places_M]
        order_N = torch.zeros_like(tokens_N).index_fill(0, places_M, 1)
        return cast(Tensor, self.streams(tokens_N, segments, types_N, order_N=order_N, targets_P=places_M).targets_PD)

    def _joined(self, memory: Memory, segments: Segments) -> Joined:
        """How the keys are made of what is remembered and of the content."""
        if len(memory.hidden) != len(self.blocks):
            what = f"a memory of {len(memory.hidden)} layers for a model of {len(self.blocks)}"
            raise UsageError(what, where="XLNet", mend="give what this model remembered")
        return Joined.of(memory.segments, segments)

    def _mask(
        self, standing: Standing, remembered_B: Tensor, ranks: Tensor | None, k_ranks_M: Tensor | None, strict: bool
    ) -> masks.Mask | None:
        """Which keys a stream's queries see; None for all."""
        parts: list[masks.Mask] = []
        if self.config.attention == "past":
            is_content = standing.places_N is None
            parts.append(masks.causal() if is_content else masks.where(lambda at: standing.distance(at) >= 0))
            if self.config.same_length:
                parts.append(masks.where(lambda at: standing.distance(at) <= remembered_B[at.sequence]))
        if ranks is not None and k_ranks_M is not None:
            parts.append(masks.ranks(ranks, standing.q_segments, k_ranks_M, standing.k_segments, strict))
        return reduce(and_, parts) if parts else None

    def _remember(self, read: list[Tensor], segments: Segments, memory: Memory | None) -> Memory:
        """The last of what was remembered and of what was read."""
        c, nothing = self.config, Segments.uniform(len(segments), 0, segments.lengths_B.device)
        before = nothing if memory is None else memory.segments
        joined = Joined.of(before, segments, c.reuse_tokens, c.memory_tokens)
        old = [x_ND[:0] for x_ND in read] if memory is None else memory.hidden
        kept = (joined.join(old_MD, x_ND).detach() for old_MD, x_ND in zip(old, read, strict=True))
        return Memory(tuple(kept), joined.segments)


def _behind(joined: Joined | None, given_N: Tensor | None, of_remembered: int) -> Tensor | None:
    """Numbers of the keys: one for all that is remembered, then those of the tokens."""
    if joined is None or given_N is None:
        return given_N
    return joined.join(given_N.new_full((len(joined.rows_M) - len(given_N),), of_remembered), given_N)


def _standing_of(targets_P: Tensor, content: Standing, remembered_B: Tensor) -> Standing:
    """Where targets stand: each at its token's place."""
    segments = content.q_segments
    texts_N = segments.sequence_N()
    within = not len(targets_P) or bool((targets_P.min() >= 0) & (targets_P.max() < segments.num_rows))
    if not within or not bool((texts_N[targets_P].diff() >= 0).all()):
        what = f"targets that are not among {segments.num_rows} tokens, or not text by text"
        raise UsageError(what, where="XLNet", mend="give rows of tokens_N in ascending order")
    texts_P = texts_N[targets_P]
    counts = texts_P.bincount(minlength=len(segments)).tolist()
    q_segments = Segments.ragged(counts, targets_P.device)
    q_segments = q_segments if segments.origin is None else replace(q_segments, origin=segments.origin)
    places_P = segments.positions_N()[targets_P] + remembered_B[texts_P]
    q_types_P = None if content.q_types_N is None else content.q_types_N[targets_P]
    return replace(content, q_segments=q_segments, places_N=places_P, q_types_N=q_types_P)


# ------------------------------------------------------------------------------------------------- public checkpoints

_SIDES = {"bi": "both", "uni": "past"}
_HEADS = {"XLNetLMHeadModel": "tokens", "XLNetModel": "none"}


def _read(values: Mapping[str, Any], where: str) -> XLNetConfig:
    expect(values, where, bi_data=False)
    named = values.get("architectures") or ["XLNetLMHeadModel"]
    architecture = str(named[0] if isinstance(named, list) else named)
    if architecture not in _HEADS:
        raise FormatError(f"architecture {architecture[:40]!r}", where=where, mend=f"known: {', '.join(_HEADS)}")
    width, heads = count(values, "d_model", where), count(values, "n_head", where)
    if values.get("d_head") is not None and count(values, "d_head", where) * heads != width:
        raise FormatError(f"d_head is {values['d_head']}; only d_model / n_head is known here", where=where)
    optional = {
        name: 0 if values.get(name) is None else count(values, name, where) for name in ("mem_len", "reuse_len")
    }
    dropout = number(values, "dropout", where, 0.1)
    return XLNetConfig(
        vocab_size=count(values, "vocab_size", where),
        embed_dim=width,
        num_layers=count(values, "n_layer", where),
        num_heads=heads,
        mlp_dim=count(values, "d_inner", where),
        attention=cast(Any, choose(values, "attn_type", _SIDES, where)),
        same_length=bool(values.get("same_length", False)),
        clamp_distance=max(count(values, "clamp_len", where, -1), 0),
        memory_tokens=optional["mem_len"],
        reuse_tokens=optional["reuse_len"],
        untie=bool(values.get("untie_r", True)),
        # The public implementation takes "gelu" for the exact one, whatever the weights were trained with.
        activation=choose(values, "ff_activation", ACTIVATIONS, where),
        head=cast(Any, _HEADS[architecture]),
        tie=bool(values.get("tie_word_embeddings", True)),
        dropout=dropout,
        attention_dropout=number(values, "attention_dropout", where, dropout),
        norm_eps=number(values, "layer_norm_eps", where, 1e-12),
    )


def _write(config: XLNetConfig) -> dict[str, Any]:
    sides = {ours: name for name, ours in _SIDES.items()}
    values = {
        "vocab_size": config.vocab_size,
        "d_model": config.embed_dim,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "d_head": config.embed_dim // config.num_heads,
        "d_inner": config.mlp_dim,
        "attn_type": sides[config.attention],
        "same_length": config.same_length,
        "bi_data": False,
        "clamp_len": config.clamp_distance or -1,
        "mem_len": config.memory_tokens or None,
        "reuse_len": config.reuse_tokens or None,
        "untie_r": config.untie,
        "ff_activation": ACTIVATION_NAMES[config.activation],
        "tie_word_embeddings": config.tie,
        "dropout": config.dropout,
        "layer_norm_eps": config.norm_eps,
    }
    # Theirs has one dropout; a second one is kept for us to read.
    return (
        values
        if config.attention_dropout == config.dropout
        else {**values, "attention_dropout": config.attention_dropout}
    )


def _rules(config: XLNetConfig) -> Iterator[Rule]:
    width, heads = config.embed_dim, config.num_heads
    split = (width, heads, width // heads)
    yield Rule("mask_emb", "mask_embed_1D", shape=(1, 1, width))
    yield Rule("word_embedding.weight", "token_embed.weight")
    layer, block = "layer.{i}.rel_attn.", "blocks.{i}.self_attn."
    for theirs, ours in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("r", "score.r_proj")):
        yield Rule(layer + theirs, f"{block}{ours}.weight", transposed=True, shape=split)
    yield Rule(layer + "o", f"{block}out_proj.weight", shape=split)
    owner = f"{block if config.untie else 'blocks.0.self_attn.'}score."
    for theirs, ours in (("w", "content"), ("r", "position"), ("s", "type")):
        yield Rule(f"{layer}r_{theirs}_bias", f"{owner}{ours}_bias_HK")
    yield Rule(layer + "seg_embed", f"{block}score.type_embed_2HK")
    for end in ("weight", "bias"):
        yield Rule(f"{layer}layer_norm.{end}", f"blocks.{{i}}.self_norm.{end}")
        yield Rule(f"layer.{{i}}.ff.layer_norm.{end}", f"blocks.{{i}}.mlp_norm.{end}")
        yield Rule(f"layer.{{i}}.ff.layer_1.{end}", f"blocks.{{i}}.mlp.up_proj.{end}")
        yield Rule(f"layer.{{i}}.ff.layer_2.{end}", f"blocks.{{i}}.mlp.down_proj.{end}")
        if config.head == "tokens":
            yield Rule(f"lm_loss.{end}", f"output.{end}", outside=True)


_PUBLIC = Layout(
    model_type="xlnet",
    architecture=lambda config: next(name for name, head in _HEADS.items() if head == config.head),
    prefix="transformer.",
    rules=_rules,
    head="lm_loss.weight",
    embed="word_embedding.weight",
    buffers=(),
    read=_read,
    write=_write,
)

_BASE = XLNetConfig(32000)
_LARGE = replace(_BASE, embed_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096)
_NOTE = (
    "32,000 SentencePiece tokens, with head. {why} of it project encoded distances, which BERT has not; the two "
    "streams share all weights, and the second one adds one vector alone."
)
_LIKE_BERT = 'The paper prints "a similar model size" to BERT-large\'s (340 M) alone. '

register(
    Family(
        name="xlnet",
        config=XLNetConfig,
        build=XLNet,
        tiny=(
            XLNetConfig(23, 16, 2, 2, 24),
            XLNetConfig(23, 12, 2, 3, 20, "past", untie=False, tie=False, clamp_distance=4, memory_tokens=5),
            XLNetConfig(23, 16, 1, 4, 20, activation="relu", head="none", attention_dropout=0.0, norm_eps=1e-6),
        ),
        sizes=(
            # Yang et al. 2019, §3.4 (the hyperparameters of BERT-base) and §3.1 with appendix A.4.1.
            Size("xlnet-base", _BASE, None, _NOTE.format(why="7.1 M")),
            Size("xlnet-large", _LARGE, None, _LIKE_BERT + _NOTE.format(why="25.2 M")),
        ),
        public=(_PUBLIC,),
    )
)
