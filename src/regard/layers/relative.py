"""Blocks that attend by relative position, to earlier parts of a text too, in streams that share weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.attention import Segments, Site, attend
from regard.attention.masks import Mask
from regard.attention.relative import RelativeAt, Standing
from regard.attention.scores import Relative
from regard.attention.sites import columns
from regard.errors import UsageError
from regard.layers.mlp import MLP


@dataclass(frozen=True, eq=False)
class Memory:
    """What was computed of the earlier parts of texts: a value that is passed in and returned, never kept on a module.

    Attributes:
        hidden: hidden_MD that each block read, one tensor a block; no gradient goes back through them.
        segments: Which rows belong together, one sequence a text; lengths may differ, and be 0.
    """

    hidden: tuple[Tensor, ...]
    segments: Segments

    def select(self, texts_B: Tensor) -> Memory:
        """Go on with other texts: in another order, some left out, some repeated.

        Args:
            texts_B: int64, for each new text the old one that it continues.

        Returns:
            Their memory.
        """
        chosen = Segments.ragged([self.segments.lengths[text] for text in texts_B.tolist()], texts_B.device)
        rows_M = self.segments.starts_B[texts_B[chosen.sequence_N()]] + chosen.positions_N()
        return Memory(tuple(hidden_MD[rows_M] for hidden_MD in self.hidden), chosen)


@dataclass(frozen=True, eq=False)
class Joined:
    """Two batches of the same texts, text by text one behind the other.

    Attributes:
        rows_M: int64, for each row of both where it stands in the first batch's rows followed by the second's.
        segments: Which rows belong together.
    """

    rows_M: Tensor
    segments: Segments

    @staticmethod
    def of(first: Segments, second: Segments, take: int = 0, keep: int = 0) -> Joined:
        """Join.

        Args:
            first: Sequences of the first batch.
            second: Sequences of the second, as many.
            take: Take only so many first rows of each sequence of the second; 0 takes all.
            keep: Keep only so many last rows of each joined sequence; 0 keeps all.

        Returns:
            How they are joined.

        Raises:
            UsageError: The batches do not have the same number of sequences.
        """
        if len(first) != len(second):
            what = f"{len(first)} texts are remembered, {len(second)} are read"
            raise UsageError(what, where="memory", mend="give the memory of these texts; Memory.select chooses")
        taken = [min(length, take) if take else length for length in second.lengths]
        whole = [before + after for before, after in zip(first.lengths, taken, strict=True)]
        kept = [min(length, keep) if keep else length for length in whole]
        device = second.lengths_B.device
        segments = Segments.ragged(kept, device)
        left_B = torch.tensor([a - b for a, b in zip(whole, kept, strict=True)], dtype=torch.int64, device=device)
        sequence_M = segments.sequence_N()
        place_M = segments.positions_N() + left_B[sequence_M]
        behind_M = place_M - first.lengths_B[sequence_M]
        rows_M = torch.where(
            behind_M < 0,
            first.starts_B[sequence_M] + place_M,
            first.num_rows + second.starts_B[sequence_M] + behind_M,
        )
        return Joined(rows_M, segments if second.origin is None else replace(segments, origin=second.origin))

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """Bring rows together.

        Args:
            first: Rows of the first batch.
            second: Rows of the second.

        Returns:
            Rows of both.
        """
        return torch.cat([first, second])[self.rows_M]


@dataclass(frozen=True, eq=False)
class Stream:
    """What one stream's queries are told.

    Attributes:
        standing: Where they stand, and where the keys.
        mask: Which keys they see; None is all of their text.
    """

    standing: Standing
    mask: Mask | None


class RelativeAttention(Site):
    """Concat(head_1 … head_H) W_O with head_h = attend(x W_Q,h, c W_K,h, c W_V,h) by the relative score.

    Args:
        embed_dim: Width D.
        num_heads: Heads H.
        dropout_p: Probability, in training, that an attention weight is dropped.

    Raises:
        UsageError: Heads do not divide the width.

    Source: Dai et al. 2019, §3.3; Yang et al. 2019, §2.3 to §2.5.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout_p: float = 0.0) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise UsageError(f"width {embed_dim} does not divide into {num_heads} heads", mend="change one of them")
        self.num_heads, self.head_dim, self.dropout_p = num_heads, embed_dim // num_heads, dropout_p
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.score = Relative(num_heads, self.head_dim, embed_dim, types=True)

    def readers(self, heads: Sequence[int]) -> list[Tensor]:
        return columns(self.out_proj, heads, self.num_heads)

    def attended(self, context_MD: Tensor, encoding_RD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project what is attended to, once for all streams.

        Args:
            context_MD: The attended rows.
            encoding_RD: The encoded distances.

        Returns:
            k_MHK, v_MHK and r_RHK.
        """
        k_MHK, v_MHK = (
            proj(context_MD).unflatten(-1, (self.num_heads, self.head_dim)) for proj in (self.k_proj, self.v_proj)
        )
        return k_MHK, v_MHK, self.score.project(encoding_RD)

    def forward(self, x_ND: Tensor, attended: tuple[Tensor, Tensor, Tensor], stream: Stream) -> Tensor:
        """Attend.

        Args:
            x_ND: What queries are made of.
            attended: From :meth:`attended`.
            stream: Where the queries stand, and what they see.

        Returns:
            y_ND. A query that sees nothing gets zeros.
        """
        k_MHK, v_MHK, r_RHK = attended
        context_NHK = attend(
            self.q_proj(x_ND).unflatten(-1, (self.num_heads, self.head_dim)),
            k_MHK,
            v_MHK,
            stream.standing.q_segments,
            stream.standing.k_segments,
            mask=stream.mask,
            score=RelativeAt(self.score, r_RHK, stream.standing),
            dropout_p=self.dropout_p if self.training else 0.0,
            site=self,
        )
        return self.out_proj(context_NHK.flatten(-2))


class RelativeBlock(nn.Module):
    """x ← norm(x + attention(x)); x ← norm(x + MLP(x)): for each of several streams, with the same weights.

    Args:
        embed_dim: Width D.
        num_heads: Heads H.
        mlp_dim: Inner width F of the MLP.
        activation: Of the MLP.
        dropout_p: Of each sublayer's result, and of the MLP's inner activations.
        attention_dropout_p: Of attention weights.
        norm_eps: Added to the variance in norms.

    Source: Yang et al. 2019, §2.3 and appendix A.2.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        *,
        activation: str = "gelu",
        dropout_p: float = 0.0,
        attention_dropout_p: float = 0.0,
        norm_eps: float = 1e-12,
    ) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(embed_dim, num_heads, attention_dropout_p)
        self.self_norm = nn.LayerNorm(embed_dim, norm_eps)
        self.mlp = MLP(embed_dim, mlp_dim, activation, dropout_p)
        self.mlp_norm = nn.LayerNorm(embed_dim, norm_eps)
        self.dropout = nn.Dropout(dropout_p)

    def forward(
        self, streams: list[tuple[Tensor, Stream]], context_MD: Tensor, encoding_RD: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the block.

        Args:
            streams: x_ND of each stream, and what its queries are told.
            context_MD: What all streams attend to: the content, behind what is remembered.
            encoding_RD: The encoded distances.

        Returns:
            y_ND of each stream.
        """
        attended = self.self_attn.attended(context_MD, encoding_RD)
        results: list[Tensor] = []
        for x_ND, stream in streams:
            x_ND = self.self_norm(x_ND + self.dropout(self.self_attn(x_ND, attended, stream)))
            results.append(self.mlp_norm(x_ND + self.dropout(self.mlp(x_ND))))
        return tuple(results)
