"""Steps of fixed shapes: one graph serves every step, whatever the lengths and however many sources are left.

The caches are those of the model's own states and stay where they are, so texts join, leave and are read anew as ever;
a step alone works on all slots up to their capacity, those not in use among them. What the host knows of the past, and
of beams that share it, is laid out as tensors of one shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from regard.attention import KVCache
from regard.attention.past import Past
from regard.attention.tree import FixedTree, Tree
from regard.errors import UsageError
from regard.models.causal import CausalStack, StackState
from regard.models.transformer import Transformer, TransformerState

How = Literal["compile", "graph", "compiled graph"]

_MOST_GRAPHS = 8  # of batches before: the next one's caches often lie where another's were


class _Kind(NamedTuple):
    """What a graph is made for, but for shapes."""

    beams: int  # of a tree; 0 for rows that each have their slot
    least: int  # tokens of a context, 1 at most


Step = Callable[[_Kind, list[Tensor], list[Tensor]], Tensor]


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
        self._graphs: dict[tuple[object, ...], _Graph | None] = {}
        self._bare: Step = self._run if how == "graph" else torch.compile(self._run, dynamic=False)  # type: ignore[assignment]
        self._step: Step = self._bare if how == "compile" else self._captured

    def step(self, tokens_R: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read one token a row.

        Args:
            tokens_R: int64, tokens.
            state: Where decoding stands: a state of the model's.

        Returns:
            logits_RV, and the new state.
        """
        past, contexts = state.past, getattr(state, "contexts", ())
        segments = past.new(state.beams)
        after = past.after(segments)
        caches = [cache.reserve(after.max_len) for cache in state.caches]
        slots, capacity = caches[0].k_store.shape[:2]
        more = (slots - past.slots) * state.beams
        laid = [nn.functional.pad(x, (0, more)) for x in (tokens_R, past.lengths_B)]
        is_tree = isinstance(past, Tree)
        laid += past.laid(segments, slots, capacity) if is_tree else ()
        least = 0
        if contexts:
            read = contexts[0].past
            least = min(read.least, 1)
            # Slots not in use have a token each: numbers stay finite.
            laid.append(nn.functional.pad(read.lengths_B, (0, len(contexts[0].k_store) - read.slots), value=1))
        stores = [store for cache in (*caches, *contexts) for store in (cache.k_store, cache.v_store)]
        logits = self._step(_Kind(state.beams if is_tree else 0, least), laid, stores)
        return logits[: len(tokens_R)], replace(state, caches=tuple(replace(cache, past=after) for cache in caches))

    def _run(self, kind: _Kind, laid: list[Tensor], stores: list[Tensor]) -> Tensor:
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

    def _captured(self, kind: _Kind, laid: list[Tensor], stores: list[Tensor]) -> Tensor:
        # A graph reads and writes where it was captured. Other caches may come to lie there, in other shapes.
        weights = next(self.model.parameters())
        places = (x.data_ptr() for x in (weights, *stores))
        where = (kind, weights.dtype, *(x.shape for x in (*laid, stores[0], stores[-1])), *places)
        if where not in self._graphs:  # many a step comes once, as that from which beams part
            while len(self._graphs) >= _MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[where] = None
            return self._bare(kind, laid, stores)
        graph = self._graphs[where] = self._graphs[where] or _Graph(self._bare, kind, laid, stores)
        return graph.replay(laid)


def steps_for(model: nn.Module, how: How | None, made: dict[How, FixedSteps]) -> FixedSteps | None:
    """Give what takes a model's steps in its place.

    Args:
        model: In evaluation mode.
        how: As of :class:`FixedSteps`; None for the model itself.
        made: What was made before; what is made is added.

    Returns:
        It; None where the model takes its own: another family does.
    """
    if how is None or not isinstance(model, CausalStack | Transformer):
        return None
    if how not in made:
        made[how] = FixedSteps(model, how)
    return made[how]


class _Graph:
    """One step on one set of caches, as the device runs it."""

    def __init__(self, run: Step, kind: _Kind, laid: list[Tensor], stores: list[Tensor]) -> None:
        self.laid = [x.clone() for x in laid]
        self.run, self.logits = _capture(lambda: run(kind, self.laid, stores))

    def replay(self, laid: list[Tensor]) -> Tensor:
        """Run the step on new tokens."""
        for mine, new in zip(self.laid, laid, strict=True):
            mine.copy_(new)
        self.run()
        return self.logits.clone()


def _capture(work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Capture work as a CUDA graph: give what runs it again, and where its result will be."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        # What is set up at first use, compiled code too, is not captured; it writes what the first run writes again.
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the device
        result = work()
    return graph.replay, result
