"""An encoder with a layer on top that labels whole texts, or each token: fine-tuning (Devlin et al. 2019, §4.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.layers.pooling import Pooling, check_pooling, pool
from regard.models.bert import Bert


class Labelled(nn.Module):
    """outputs = W · dropout(pool(encoder(tokens))) + b.

    Args:
        encoder: The encoder.
        num_outputs: Numbers for each text: one a class, or one.
        pooling: How a text's vectors become one.

    Raises:
        UsageError: The pooling is unknown.
    """

    def __init__(self, encoder: Bert, num_outputs: int, pooling: Pooling) -> None:
        super().__init__()
        check_pooling(pooling)
        self.encoder, self.pooling, self.config = encoder, pooling, encoder.config
        self.dropout = nn.Dropout(encoder.config.dropout)
        self.output = nn.Linear(encoder.config.embed_dim, num_outputs)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)

    def forward(
        self,
        tokens_N: Tensor,
        segments: Segments,
        types_N: Tensor | None = None,
        languages_B2: Tensor | None = None,
    ) -> Tensor:
        """Label texts.

        Args:
            tokens_N: int64, tokens of the batch.
            segments: Which belong together.
            types_N: int64, which of two texts a token is of; None is the first everywhere.
            languages_B2: int64, the languages of the two texts of each row; None where none is told.

        Returns:
            outputs_BO, at least float32.
        """
        types_N = torch.zeros_like(tokens_N) if types_N is None else types_N
        told = self.encoder.told(segments, types_N, languages_B2)
        pooled_BD = pool(self.encoder(tokens_N, segments, **told), segments, self.pooling)
        outputs_BO = self.output(self.dropout(pooled_BD))
        return outputs_BO.to(torch.promote_types(outputs_BO.dtype, torch.float32))


class Tagged(nn.Module):
    """outputs_n = W · dropout(encoder(tokens)_n) + b, for every token n (Devlin et al. 2019, §5.3).

    Args:
        encoder: The encoder.
        num_outputs: Tags.
    """

    def __init__(self, encoder: Bert, num_outputs: int) -> None:
        super().__init__()
        self.encoder, self.config = encoder, encoder.config
        self.dropout = nn.Dropout(encoder.config.dropout)
        self.output = nn.Linear(encoder.config.embed_dim, num_outputs)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)

    def forward(self, tokens_N: Tensor, segments: Segments) -> Tensor:
        """Tag tokens.

        Args:
            tokens_N: int64, tokens of the batch.
            segments: Which belong together.

        Returns:
            outputs_NO, at least float32.
        """
        outputs_NO = self.output(self.dropout(self.encoder(tokens_N, segments)))
        return outputs_NO.to(torch.promote_types(outputs_NO.dtype, torch.float32))
