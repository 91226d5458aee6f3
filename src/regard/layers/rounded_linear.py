"""Linear layers for training on a CPU that multiplies matrices of bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.kernels import rounded


class RoundedLinear(nn.Linear):
    """y = x Wᵀ + b in float32; of x and W rounded under autocast to bfloat16 on a CPU, else split, where that pays.

    See :func:`regard.kernels.rounded.linear`. Compiled, it is PyTorch's layer.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Multiply.

        Args:
            input: x, (…, in_features).

        Returns:
            y, (…, out_features).
        """
        if torch.compiler.is_compiling():
            return super().forward(input)
        found = rounded.linear(input, self.weight, self.bias)
        return super().forward(input) if found is None else found
