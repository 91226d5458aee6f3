"""Dropout whose random bits are drawn quickly on a CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

STEPS = 2**16  # of a probability: a number is dropped by sixteen bits of its own


class Dropout(nn.Dropout):
    """y = x · m / (1 − p), each number of m 0 with probability p, else 1; the identity outside training.

    PyTorch's own draws on a CPU take longer than the matrix product before them. Here four numbers share one draw of 64
    bits, and p counts in steps of 2⁻¹⁶; what is kept is divided by the probability that it really has. The bits are
    those of a quick generator, SFC64, whose seed is drawn from torch's own: they follow from its seed alone, and are
    drawn alike where a forward pass runs again.

    Source: Srivastava et al. 2014, §4 and §10; SFC64: Doty-Humphrey, PractRand.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Drop numbers.

        Args:
            input: Floats of any shape.

        Returns:
            As many, some of them zero in training.
        """
        if not (self.training and self.p) or input.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(input)
        dropped = round(self.p * STEPS)
        if dropped == STEPS:
            return super().forward(input)
        words = np.random.SFC64(int(torch.empty((), dtype=torch.int64).random_())).random_raw(-(-input.numel() // 4))
        drawn = words.view(np.int16)[: input.numel()]
        factors = (drawn >= dropped - STEPS // 2).astype(np.float64 if input.dtype == torch.float64 else np.float32)
        factors *= STEPS / (STEPS - dropped)
        return input * torch.from_numpy(factors).view(input.shape).to(input.dtype)
