"""The position-wise MLP: the same two layers at every token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.errors import ConfigError

# Named once; a name that is not here is refused. GELU exact and its tanh approximation are different functions.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu-tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "gelu-quick": lambda x: x * torch.sigmoid(1.702 * x),  # Hendrycks & Gimpel 2016, §2
    "silu": nn.functional.silu,
}


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """Find an activation.

    Args:
        name: In :data:`ACTIVATIONS`.

    Returns:
        The function.

    Raises:
        ConfigError: None has this name.
    """
    if name not in ACTIVATIONS:
        raise ConfigError(f"unknown activation {name!r}", mend=f"choose from {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class MLP(nn.Module):
    """W_2 dropout(f(W_1 x + b_1)) + b_2; gated: W_2 dropout(f(W_g x + b_g) · (W_1 x + b_1)) + b_2.

    Args:
        embed_dim: Width D.
        mlp_dim: Inner width F.
        activation: A name in :data:`ACTIVATIONS`.
        dropout_p: Probability, in training, that an inner activation is dropped.
        gated: Multiply by an activated gate; with ``silu`` that is SwiGLU.
        use_bias: Projections have biases.

    Raises:
        ConfigError: The activation has no such name.

    Source: Vaswani et al. 2017, §3.3, equation 2; gated: Shazeer 2020, equation 6.
    """

    def __init__(
        self,
        embed_dim: int,
        mlp_dim: int,
        activation: str = "relu",
        dropout_p: float = 0.0,
        *,
        gated: bool = False,
        use_bias: bool = True,
    ) -> None:
        super().__init__()
        self.activation = activation_named(activation)
        self.gate_proj = nn.Linear(embed_dim, mlp_dim, bias=use_bias) if gated else None
        self.up_proj = nn.Linear(embed_dim, mlp_dim, bias=use_bias)
        self.down_proj = nn.Linear(mlp_dim, embed_dim, bias=use_bias)
        self.dropout = nn.Dropout(dropout_p)
        for projection in (self.gate_proj, self.up_proj, self.down_proj):
            if projection is not None:
                nn.init.xavier_uniform_(projection.weight)
                if projection.bias is not None:
                    nn.init.zeros_(projection.bias)

    def forward(self, x_ND: Tensor) -> Tensor:
        """Transform each token by itself.

        Args:
            x_ND: Tokens.

        Returns:
            y_ND.
        """
        if self.gate_proj is None:
            return self.down_proj(self.dropout(self.activation(self.up_proj(x_ND))))
        return self.down_proj(self.dropout(self.activation(self.gate_proj(x_ND)) * self.up_proj(x_ND)))
