"""From what a model computes for a token to a score for every token of its vocabulary."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.errors import UsageError


class TokenScorer(nn.Module):
    """Base of what scores every token of a vocabulary: logits = output(before_output(hidden)).

    A loss that never holds all logits reads the two apart; see :mod:`regard.tasks.vocabulary`.

    Attributes:
        output: A linear layer, the last, with a row for each token; None for a model without a head.
    """

    output: Any

    def before_output(self, hidden_ND: Tensor) -> Tensor:
        """Compute what the last layer reads; most families have nothing there.

        Args:
            hidden_ND: From ``forward``, all rows or those of interest.

        Returns:
            What stands before the last layer, a row for each.
        """
        return hidden_ND

    def last(self) -> nn.Linear:
        """Give the last layer.

        Returns:
            ``output``.

        Raises:
            UsageError: The model has no head.
        """
        if self.output is None:
            raise UsageError("a model without a head", where=type(self).__name__, mend="set head in its settings")
        return self.output

    def head(self, hidden_ND: Tensor) -> Tensor:
        """Score every token of the vocabulary.

        Args:
            hidden_ND: From ``forward``, all rows or those of interest.

        Returns:
            logits_NV.

        Raises:
            UsageError: The model has no head.
        """
        return self.last()(self.before_output(hidden_ND))
