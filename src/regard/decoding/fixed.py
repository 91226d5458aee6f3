"""Steps of fixed shapes: one graph serves every step, whatever the lengths and however many sources are left.

The caches are those of the model's own states and stay where they are, so texts join, leave and are read anew as ever;
a step alone works on all slots up to their capacity, those not in use among them. What the host knows of the past, and
of beams that share it, is laid out as tensors of one shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from operator import is_
from typing import Any, Literal, NamedTuple, TypeGuard, TypeVar, get_args

import torch
from torch import Tensor, nn

from regard.attention import KVCache
from regard.attention.compiling import compiled
from regard.attention.past import Past
from regard.attention.recording import is_watched
from regard.attention.silencing import is_silenced
from regard.attention.sites import Site
from regard.attention.tree import FixedTree, Tree
from regard.decoding.choosing import Chosen, choose
from regard.errors import UsageError
from regard.models.causal import CausalStack, StackState
from regard.models.transformer import Transformer, TransformerState

How = Literal["compile", "graph", "compiled graph"]

# Of batches before: the next one's caches often lie where another's were. And steps that came once.
_MOST_GRAPHS, _MOST_ONCE = 8, 64


class _Kind(NamedTuple):
    """What a graph is made for, but for shapes."""

    beams: int  # of a tree; 0 for rows that each have their slot
    least: int  # tokens of a context, 1 at most
    chooses: bool = False  # tokens, in the place of scores


Step = Callable[[_Kind, list[Tensor], list[Tensor]], tuple[Tensor, ...]]


class FixedSteps:
    """A model's steps of one token, compiled, or captured as a CUDA graph, or both.

    Args:
        model: A causal stack or a Transformer, in evaluation mode.
        how: ``compile`` compiles the step by ``torch.compile``; ``graph`` captures it on the device, and runs it
            without Python; ``compiled graph`` captures it compiled.

    Raises:
        UsageError: ``how`` is unknown, or a graph is to be captured where there is no CUDA.
    """

    def __init__(self, model: CausalStack | Transformer, how: How = "compile") -> None:
        if how not in get_args(How):
            raise UsageError(f"unknown steps {how!r}", mend=f"choose {', '.join(get_args(How))}")
        if how != "compile" and next(model.parameters()).device.type != "cuda":
            raise UsageError("a CUDA graph of a model that is not on CUDA", mend="choose compile, or move the model")
        self.model = model
        self._parts = _Parts(model)
        self._graphs: dict[tuple[object, ...], _Graph] = {}
        self._once: dict[tuple[object, ...], None] = {}
        self._newest: tuple[KVCache, ...] | None = None
        self._bare: Step = self._run if how == "graph" else compiled(self._run, dynamic=False)
        self._step: Step = self._bare if how == "compile" else self._captured

    def step(self, tokens_R: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read one token a row; where somebody looks on, or heads are silent, as the model does it.

        Args:
            tokens_R: int64, tokens.
            state: Where decoding stands: a state of the model's.

        Returns:
            logits_RV, and the new state.
        """
        if self._goes_on(state):
            (logits_RV,), state = self._taken(tokens_R, state, False)
            return logits_RV[: len(tokens_R)], state
        return self.model.step(tokens_R, state)

    def choose(self, tokens_R: Tensor, state: Any) -> tuple[Chosen, Any]:
        """Read one token a row, and choose the best of those that may follow, all in one; see :meth:`step`.

        Args:
            tokens_R: int64, tokens.
            state: Where decoding stands: a state of the model's.

        Returns:
            What was chosen, and the new state.
        """
        if self._goes_on(state):
            found, state = self._taken(tokens_R, state, True)
            return Chosen(found[0][: len(tokens_R)], found[1][:, : len(tokens_R)]), state
        logits_RV, state = self.model.step(tokens_R, state)
        return choose(logits_RV), state

    def _goes_on(self, state: Any) -> bool:
        """Say whether a graph serves; the model may be another, but for a step right behind the last one."""
        if state.caches is not self._newest and not self._parts.are_same():
            self._parts = _Parts(self.model)
            self._graphs.clear()
        return not self._parts.are_seen()

    def _taken(self, tokens_R: Tensor, state: Any, chooses: bool) -> tuple[tuple[Tensor, ...], Any]:
        past, contexts = state.past, getattr(state, "contexts", ())
        segments = past.new(state.beams)
        after = past.after(segments)
        caches = [cache.reserve(after.max_len) for cache in state.caches]
        slots, capacity = caches[0].k_store.shape[:2]
        more = (slots - past.slots) * state.beams
        laid = [tokens_R, past.lengths_B]
        laid = [nn.functional.pad(x, (0, more)) for x in laid] if more else laid
        is_tree = isinstance(past, Tree)
        laid += past.laid(segments, slots, capacity) if is_tree else ()
        least = 0
        if contexts:
            read = contexts[0].past
            least = min(read.least, 1)
            # Slots not in use have a token each: numbers stay finite.
            laid.append(nn.functional.pad(read.lengths_B, (0, len(contexts[0].k_store) - read.slots), value=1))
        stores = [store for cache in (*caches, *contexts) for store in (cache.k_store, cache.v_store)]
        found = self._step(_Kind(state.beams if is_tree else 0, least, chooses), laid, stores)
        self._newest = tuple(KVCache(cache.k_store, cache.v_store, after) for cache in caches)
        return found, replace(state, caches=self._newest)

    def _run(self, kind: _Kind, laid: list[Tensor], stores: list[Tensor]) -> tuple[Tensor, ...]:
        logits_RV = self._scored(kind, laid, stores)
        return tuple(choose(logits_RV)) if kind.chooses else (logits_RV,)

    def _scored(self, kind: _Kind, laid: list[Tensor], stores: list[Tensor]) -> Tensor:
        tokens_B, lengths_B, *more = laid
        capacity, layers = stores[0].shape[1], len(self.model.blocks)
        model = self.model
        most = model.max_target_tokens if isinstance(model, Transformer) else model.max_tokens - 1
        deepest = capacity if most is None else min(capacity, most)
        if kind.beams:
            past: Past = FixedTree(lengths_B, more[0], more[1], more[2], deepest)
        else:
            past = Past(lengths_B, None, capacity, deepest=deepest)
        caches = tuple(KVCache(stores[2 * n], stores[2 * n + 1], past) for n in range(layers))
        beams = kind.beams or 1
        if isinstance(model, CausalStack):
            return model.step(tokens_B, StackState(caches, beams))[0]
        read = Past(more[-1], None, stores[-1].shape[1], least=kind.least)
        contexts = tuple(KVCache(stores[2 * n], stores[2 * n + 1], read) for n in range(layers, 2 * layers))
        return model.step(tokens_B, TransformerState(caches, contexts, beams))[0]

    def _captured(self, kind: _Kind, laid: list[Tensor], stores: list[Tensor]) -> tuple[Tensor, ...]:
        # A graph reads and writes where it was captured. Other caches may come to lie there, in other shapes.
        shapes = (x.shape for x in (*laid, stores[0], stores[-1]))
        where = (kind, stores[0].dtype, *shapes, *(x.data_ptr() for x in stores))
        graph = self._graphs.pop(where, None)
        if graph is None:
            if where not in self._once:  # many a step comes once, as that from which beams part
                _put(self._once, where, None, _MOST_ONCE)
                return self._bare(kind, laid, stores)
            graph = _Graph(self._bare, kind, laid, stores)
        _put(self._graphs, where, graph, _MOST_GRAPHS)
        return graph.replay(laid)


def _put(kept: dict[Any, Any], key: object, value: object, most: int) -> None:
    """Keep something as the newest, and the oldest no longer where they are too many."""
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value


class _Parts:
    """What a graph was captured from: modules, their tensors, and where these lie."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self.sites = [module for module in modules if isinstance(module, Site)]
        self.held = [one for module in modules for one in (module._modules, module._parameters, module._buffers)]
        self.hooks = [one for module in modules for one in (module._forward_hooks, module._forward_pre_hooks)]
        self.parts = self._now()
        self.tensors = [part for part in self.parts if isinstance(part, Tensor)]
        self.places = [x.data_ptr() for x in self.tensors]

    def _now(self) -> list[object]:
        return list(chain.from_iterable([one.values() for one in self.held]))

    def are_same(self) -> bool:
        """Say whether nothing has taken the place of anything."""
        now = self._now()
        are_same = len(now) == len(self.parts) and all(map(is_, now, self.parts))
        return are_same and [x.data_ptr() for x in self.tensors] == self.places

    def are_seen(self) -> bool:
        """Say whether a step is more than what it gives: a recorder, silent heads, or hooks are asked on the way."""
        return any(self.hooks) or is_watched(*self.sites) or is_silenced(*self.sites)


def takes_steps(model: nn.Module) -> TypeGuard[CausalStack | Transformer]:
    """Say whether a model's steps can be of fixed shapes."""
    return isinstance(model, CausalStack | Transformer)


def steps_for(model: nn.Module, how: How | None, made: dict[How, FixedSteps]) -> FixedSteps | None:
    """Give what takes a model's steps in its place.

    Args:
        model: In evaluation mode.
        how: As of :class:`FixedSteps`; None for the model itself.
        made: What was made before; what is made is added.

    Returns:
        It; None where the model takes its own: another family does.
    """
    if how is None or not takes_steps(model):
        return None
    if how not in made or made[how].model is not model:
        made[how] = FixedSteps(model, how)
    return made[how]


class _Graph:
    """One step on one set of caches, as the device runs it."""

    def __init__(self, run: Step, kind: _Kind, laid: list[Tensor], stores: list[Tensor]) -> None:
        self.laid = [x.clone() for x in laid]
        self.run, self.found = _capture(lambda: run(kind, self.laid, stores), stores[0].device)

    def replay(self, laid: list[Tensor]) -> tuple[Tensor, ...]:
        """Run the step on new tokens."""
        for mine, new in zip(self.laid, laid, strict=True):
            mine.copy_(new)
        self.run()
        return tuple(one.clone() for one in self.found)


T = TypeVar("T")


def _capture(work: Callable[[], T], device: torch.device) -> tuple[Callable[[], None], T]:
    """Capture work as a CUDA graph: give what runs it again, and where its result will be."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):  # streams are the current device's, whatever the tensors are on
        now, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(now)
        with torch.cuda.stream(aside):
            # What is set up at first use, compiled code too, is not captured; it writes what the first run writes.
            for _ in range(2):
                work()
        now.wait_stream(aside)
        # By itself it captures on a stream of whichever device came first; and other threads may use this one.
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            result = work()

    def again() -> None:
        with torch.cuda.device(device):
            graph.replay()

    return again, result
