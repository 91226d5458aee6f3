"""Stochastic depth: in training some sequences go past a sublayer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.errors import ConfigError


class DropPath(nn.Module):
    """y = b · x / (1 − p), with b drawn for each sequence, 0 with probability p; the identity outside training.

    Args:
        p: Probability in [0, 1).

    Raises:
        ConfigError: It is outside.

    Source: Huang et al. 2016, §3; scaled in training instead of in use, as dropout is.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ConfigError(f"drop_path is {p}", mend="give a probability in [0, 1)")
        self.p = p

    def forward(self, update_ND: Tensor, segments: Segments) -> Tensor:
        """Drop the update of some sequences.

        Args:
            update_ND: What a sublayer adds.
            segments: Which rows are one sequence.

        Returns:
            The update, scaled.
        """
        if not (self.training and self.p):
            return update_ND
        kept_B = torch.rand(len(segments), device=update_ND.device) >= self.p
        scale_B = kept_B.to(update_ND.dtype) / (1 - self.p)
        if segments.form == "uniform":
            return (update_ND.unflatten(0, (len(segments), -1)) * scale_B[:, None, None]).flatten(0, 1)
        return update_ND * scale_B[segments.sequence_N()][:, None]
