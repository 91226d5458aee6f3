"""Steps of fixed shapes: one graph serves every step, whatever the lengths and however many sources are left.

The caches are those of the model's own states and stay where they are, so texts join, leave and are read anew as ever;
a step alone works on all slots up to their capacity, those not in use among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from regard.attention import KVCache, Segments
from regard.attention.past import Past
from regard.errors import UsageError
from regard.models.causal import CausalStack, StackState
from regard.models.states import Room

Step = Callable[[Tensor, Tensor, list[Tensor], list[Tensor]], Tensor]
How = Literal["compile", "graph", "compiled graph"]

_MOST_GRAPHS = 4  # caches of as many batches: those of the next batch often lie where another's were


class FixedSteps:
    """A causal stack whose steps are compiled, or captured as a CUDA graph, or both.

    Args:
        model: The stack, in evaluation mode.
        how: ``compile`` compiles the step by ``torch.compile``; ``graph`` captures it on the device, and runs it
            without Python; ``compiled graph`` captures it compiled.

    Raises:
        UsageError: ``how`` is unknown, or a graph is to be captured where there is no CUDA.
    """

    def __init__(self, model: CausalStack, how: How = "compile") -> None:
        if how not in get_args(How):
            raise UsageError(f"unknown steps {how!r}", mend=f"choose {', '.join(get_args(How))}")
        if how != "compile" and next(model.parameters()).device.type != "cuda":
            raise UsageError("a CUDA graph of a model that is not on CUDA", mend="choose compile, or move the model")
        self.model, self.config = model, model.config
        self.max_tokens = model.max_tokens
        self._graphs: dict[tuple[object, ...], _Graph] = {}
        self._bare: Step = self._run if how == "graph" else torch.compile(self._run, dynamic=False)  # type: ignore[assignment]
        self._step: Step = self._bare if how == "compile" else self._captured

    def start(self, prompt_N: Tensor, segments: Segments, beams: int, room: Room | None = None) -> StackState:
        """Read prompts; see :meth:`regard.models.interface.LanguageModel.start`.

        Args:
            prompt_N: int64, tokens of the prompts.
            segments: Which belong together.
            beams: Rows of each prompt: 1.
            room: What the batch may come to hold.

        Returns:
            The state.

        Raises:
            UsageError: There are several beams.
        """
        if beams != 1:
            raise UsageError(f"fixed steps with beam {beams}", mend="decode with beam 1")
        return self.model.start(prompt_N, segments, beams, room)

    def extend(self, tokens_N: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        """Read several tokens a row: as the model does, not as a fixed step.

        Args:
            tokens_N: int64, tokens.
            state: Where decoding stands.

        Returns:
            logits_NV, and the new state.
        """
        return self.model.extend(tokens_N, state)

    def step(self, tokens_R: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        """Read one token a row.

        Args:
            tokens_R: int64, tokens.
            state: Where decoding stands.

        Returns:
            logits_RV, and the new state.
        """
        past, rows = state.past, len(tokens_R)
        after = past.after(past.new())
        caches = [cache.reserve(after.max_len) for cache in state.caches]
        more = len(caches[0].k_store) - rows
        tokens_B, lengths_B = (nn.functional.pad(x, (0, more)) for x in (tokens_R, past.lengths_B))
        keys, values = [cache.k_store for cache in caches], [cache.v_store for cache in caches]
        logits_BV = self._step(tokens_B, lengths_B, keys, values)
        return logits_BV[:rows], StackState(tuple(replace(cache, past=after) for cache in caches))

    def _run(self, tokens_B: Tensor, lengths_B: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        past = Past(lengths_B, None, keys[0].shape[1])
        state = StackState(tuple(KVCache(k, v, past) for k, v in zip(keys, values, strict=True)))
        return self.model.extend(tokens_B, state)[0]

    def _captured(self, tokens_B: Tensor, lengths_B: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        # A graph reads and writes where it was captured. Other caches may come to lie there, in other shapes.
        where = tuple((x.data_ptr(), x.shape) for x in (*keys, *values, *self.model.parameters()))
        if where not in self._graphs:
            while len(self._graphs) >= _MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[where] = _Graph(self._bare, tokens_B, lengths_B, keys, values)
        return self._graphs[where].replay(tokens_B, lengths_B)


class _Graph:
    """One step on one set of caches, as the device runs it."""

    def __init__(
        self, run: Step, tokens_B: Tensor, lengths_B: Tensor, keys: list[Tensor], values: list[Tensor]
    ) -> None:
        self.tokens_B, self.lengths_B = tokens_B.clone(), lengths_B.clone()
        self.run, self.logits_BV = _capture(lambda: run(self.tokens_B, self.lengths_B, keys, values))

    def replay(self, tokens_B: Tensor, lengths_B: Tensor) -> Tensor:
        """Run the step on new tokens."""
        self.tokens_B.copy_(tokens_B)
        self.lengths_B.copy_(lengths_B)
        self.run()
        return self.logits_BV.clone()


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
