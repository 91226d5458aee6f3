"""Heads switched off: what a model does without some of its heads, for a while or for good.

    with silence(model, {"encoder.0.self_attn": [1, 3]}):
        model(...)
    switch_off(model, {"encoder.0.self_attn": [1, 3]})

The context of a head, its weighted sum of values, is exactly zero; what follows, the output projection and its bias,
works as ever. A silenced head still has weights, and :class:`~regard.attention.record` shows them.

Source: Michel et al. 2019, §2.3, whose ξ_h is 0 here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from fnmatch import fnmatchcase
from types import TracebackType

import torch
from torch import Tensor, nn

from regard.attention.sites import Site, check_heads, find_sites
from regard.errors import UsageError

Heads = Mapping[str, Sequence[int]]


class silence:  # noqa: N801 - used like a function: with silence(model, heads)
    """Give zeros for the contexts of some heads inside a ``with`` block: in training, evaluation and cached decoding.

    No gradient goes through a silenced head. Blocks may stand in one another: then all their heads are silent. What a
    backward pass computes anew (activation checkpoints) has to run inside the block, and in its thread, too.

    Args:
        model: The model.
        heads: Query heads by the name of their layer, or by a pattern with ``*``; of two that fit, both count.

    Raises:
        UsageError: The model has no such layer; no layer or no head is named; a head is out of range, which is known
            when the layer attends; or the block ended and a layer never attended, or only compiled.
    """

    def __init__(self, model: nn.Module, heads: Heads) -> None:
        self._chosen = _chosen(model, heads, "silence")
        self._silenced: set[Site] = set()

    def __enter__(self) -> silence:
        """Start to silence."""
        self._silenced.clear()
        self._token = _active.set((*_active.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let all heads be heard again."""
        _active.reset(self._token)
        missed = [name for site, (name, _) in self._chosen.items() if site not in self._silenced]
        if kind is None and missed:
            what = f"{', '.join(missed)} never attended, and no head of it was silenced"
            raise UsageError(what, where="silence", mend="run the model, uncompiled, inside the with block")

    def _apply(self, site: Site, context_NHV: Tensor) -> Tensor:
        heads = self._chosen[site][1]
        check_heads(heads, context_NHV.shape[1], "silence")
        self._silenced.add(site)
        return context_NHV.index_fill(1, torch.tensor(heads, device=context_NHV.device), 0.0)


def switch_off(model: nn.Module, heads: Heads) -> None:
    """Zero for good the weights that read some heads: the model computes what it does in :class:`silence`.

    W_O[:, h K : (h + 1) K] = 0; a bias stays.

    Args:
        model: The model, which is changed; not at all where something is refused.
        heads: As for :class:`silence`.

    Raises:
        UsageError: The model has no such layer; no layer or no head is named; a head is out of range; or a layer has no
            weights of its own that read its heads.
    """
    chosen = _chosen(model, heads, "switch_off")
    with torch.no_grad():
        # What is refused is refused before anything is changed.
        for weights in [weights for site, (_, some) in chosen.items() for weights in site.readers(some)]:
            weights.zero_()


def _chosen(model: nn.Module, heads: Heads, where: str) -> dict[Site, tuple[str, list[int]]]:
    """Find the layers that are named, each with its name and its heads."""
    if not heads:
        raise UsageError("heads is empty", where=where, mend="name a layer and some of its heads")
    for pattern, some in heads.items():
        if not len(some):
            raise UsageError(f"no head of {pattern!r}", where=where, mend="name some, or leave the layer out")
    return {
        site: (name, sorted({head for pattern, some in heads.items() if fnmatchcase(name, pattern) for head in some}))
        for name, site in find_sites(model, list(heads), where).items()
    }


_active: ContextVar[tuple[silence, ...]] = ContextVar("regard_silenced", default=())


def is_silenced(*sites: Site) -> bool:
    """Say whether heads of one of some layers are silent.

    Args:
        *sites: The layers.

    Returns:
        Whether some are, here and now.
    """
    return any(site in one._chosen for one in _active.get() for site in sites)


def heard(site: Site | None, context_NHV: Tensor) -> Tensor:
    """Give an attention call's contexts without those of silenced heads; :func:`regard.attention.attend` calls this."""
    if site is None or torch.compiler.is_compiling():
        return context_NHV
    for one in _active.get():
        if site in one._chosen:
            context_NHV = one._apply(site, context_NHV)
    return context_NHV
