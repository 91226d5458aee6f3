"""The modules that attend, found by name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from regard.errors import UsageError


class Site(nn.Module):
    """Base of every module that attends: what can be recorded, and whose heads can be switched off.

    Attributes:
        num_heads: Query heads.
    """

    num_heads: int = 1

    def readers(self, heads: Sequence[int]) -> list[Tensor]:
        """Find the weights that read some heads' contexts: where they are zero, these heads change nothing.

        Args:
            heads: Query heads.

        Returns:
            Parameters, or views of parts of them.

        Raises:
            UsageError: A head is out of range; or what reads the contexts is none of this module's own weights.
        """
        what = f"a {type(self).__name__} has no weights of its own that read a head"
        raise UsageError(what, where="switch_off", mend="silence its heads while the model runs")


def find_sites(model: nn.Module, patterns: Sequence[str], where: str) -> dict[str, Site]:
    """Find the modules that attend.

    Args:
        model: The model.
        patterns: Names, or patterns with ``*``.
        where: What asks, for messages.

    Returns:
        Those that a pattern fits, by name, in the model's order.

    Raises:
        UsageError: A pattern fits none.
    """
    sites = {name: module for name, module in model.named_modules() if isinstance(module, Site)}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in sites):
            known = ", ".join(sites) or "none"
            raise UsageError(f"no layer {pattern!r} attends", where=where, mend=f"layers that do: {known}")
    return {name: site for name, site in sites.items() if any(fnmatchcase(name, one) for one in patterns)}


def columns(projection: nn.Module, heads: Sequence[int], num_heads: int) -> list[Tensor]:
    """Find the weights of an output projection that read some of the heads that it joins: W_O[:, h K : (h + 1) K].

    Args:
        projection: The output projection, from (H · K) to D.
        heads: Query heads.
        num_heads: How many there are.

    Returns:
        A view for each.

    Raises:
        UsageError: A head is out of range, or the weights are packed.
    """
    check_heads(heads, num_heads, "switch_off")
    if not isinstance(projection, nn.Linear):
        raise UsageError("packed weights do not change", where="switch_off", mend="switch off, then pack")
    weight_DHK = projection.weight.unflatten(1, (num_heads, -1))
    return [weight_DHK[:, head] for head in heads]


def check_heads(heads: Sequence[int], num_heads: int, where: str) -> None:
    """Refuse heads that a layer does not have.

    Args:
        heads: Query heads.
        num_heads: How many there are.
        where: What asks, for messages.

    Raises:
        UsageError: One is out of range.
    """
    if any(not 0 <= head < num_heads for head in heads):
        raise UsageError(f"heads {list(heads)} of {num_heads}", where=where, mend=f"heads are 0 to {num_heads - 1}")
