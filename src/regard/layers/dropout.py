"""Dropout whose random bits are drawn quickly on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

STEPS = 2**16  # of a probability: a number is dropped by sixteen bits of its own


class Dropout(nn.Dropout):
    """y = x · m / (1 − p), each number of m 0 with probability p, else 1; the identity outside training.

    PyTorch's own draws on a CPU take longer than the matrix product before them. Here four numbers share one draw of 64
    bits, and p counts in steps of 2⁻¹⁶; what is kept is divided by the probability that it really has. The draws come
    from torch's own generator: they follow from its seed alone, and are drawn alike where a forward pass runs again.

    Source: Srivastava et al. 2014, §4 and §10.
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
        words = torch.empty(-(-input.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        drawn = words.view(torch.int16)[: input.numel()].view(input.shape)
        factors = (drawn >= dropped - STEPS // 2).to(input.dtype).mul_(STEPS / (STEPS - dropped))
        return input * factors
