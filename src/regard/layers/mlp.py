"""The position-wise MLP: the same two layers at every token."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from regard.errors import ConfigError

# Named once; a name that is not here is refused. GELU exact and its tanh approximation are different functions.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu-tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "silu": nn.functional.silu,
}


class MLP(nn.Module):
    """W_2 dropout(f(W_1 x + b_1)) + b_2.

    Args:
        embed_dim: Width D.
        mlp_dim: Inner width F.
        activation: A name in :data:`ACTIVATIONS`.
        dropout_p: Probability, in training, that an inner activation is dropped.

    Raises:
        ConfigError: The activation has no such name.

    Source: Vaswani et al. 2017, §3.3, equation 2.
    """

    def __init__(self, embed_dim: int, mlp_dim: int, activation: str = "relu", dropout_p: float = 0.0) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ConfigError(f"unknown activation {activation!r}", mend=f"choose from {', '.join(ACTIVATIONS)}")
        self.activation = ACTIVATIONS[activation]
        self.up_proj = nn.Linear(embed_dim, mlp_dim)
        self.down_proj = nn.Linear(mlp_dim, embed_dim)
        self.dropout = nn.Dropout(dropout_p)
        for projection in (self.up_proj, self.down_proj):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(self, x_ND: Tensor) -> Tensor:
        """Transform each token by itself.

        Args:
            x_ND: Tokens.

        Returns:
            y_ND.
        """
        return self.down_proj(self.dropout(self.activation(self.up_proj(x_ND))))
