"""How much of each input reaches each output, through all layers."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from regard.errors import UsageError
from regard.looking.maps import AttentionMap
from regard.looking.text import visible


def rollout(maps: Sequence[AttentionMap]) -> npt.NDArray[np.float64]:
    """Follow attention through the layers, half of each step taken by the residual connection.

    R = Â_L … Â_2 Â_1 with Â_l = (A_l + I) / 2, rows divided by their sums, A_l the mean of layer l over its heads.

    A query that attends to nothing keeps itself alone.

    Args:
        maps: Self-attention of layers over the same T tokens, the first layer first.

    Returns:
        T × T; row t says how much of each input token is in position t of the last layer; rows sum to 1.

    Raises:
        UsageError: No map, a cross-attention, or maps over different tokens.

    Source: Abnar and Zuidema (2020), "Quantifying Attention Flow in Transformers", section 3.
    """
    if not maps:
        raise UsageError("no layer", where="rollout", mend="give at least one self-attention map")
    tokens = maps[0].query_tokens
    eye_TT = np.eye(len(tokens))
    through_TT = eye_TT
    for one in maps:
        if one.kind != "self" or one.query_tokens != tokens:
            raise UsageError(
                "not self-attention over the tokens of the first layer",
                where=visible(one.layer),
                mend="roll out the layers of one stack",
            )
        step_TT = (one.mean().weights_HTS[0].astype(np.float64) + eye_TT) / 2
        through_TT = step_TT / step_TT.sum(1, keepdims=True) @ through_TT
    return through_TT
