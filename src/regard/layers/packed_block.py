"""Packed blocks by our own kernel: cached decoding, one call in the place of hundreds; and whole sequences.

The kernel checks nothing. Whatever does not look exactly as it expects goes module by module, where it is served or
refused as ever; see :mod:`regard.layers.bound_blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from regard.attention import KVCache, MultiHeadAttention, Segments
from regard.attention.backends import static
from regard.attention.backends.dense import added
from regard.attention.groups import plan
from regard.attention.masks import Mask
from regard.attention.positions import Bias, SmallerWindow, WindowBias, sinusoidal
from regard.kernels import calls, native, sequences, slots
from regard.kernels.blocks import Step, Whole, pointers
from regard.layers.block import Block
from regard.layers.bound_blocks import Binding, Bound
from regard.layers.windows import Windows

MANY_ROWS = 256  # from here on what lies between the products is worth all of PyTorch's threads, and a call of its own


class PackedBlock:
    """:func:`regard.layers.block.extend_all` and :meth:`regard.layers.block.Block.forward` of packed blocks.

    Of cached decoding it serves as many new tokens for each slot, behind others or first of all, fewer than
    :data:`MANY_ROWS` at once; of whole sequences, which longer prompts are too, blocks without cross-attention, under a
    mask that is a band, or within windows. All in float32 without a gradient. Where the weights are bfloat16 and the
    processor multiplies matrices, attention within whole sequences rounds what it multiplies too.

    Args:
        block: The block, whose linear layers are packed for our own kernels; it is asked at each call whether it is
            still what it was.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self._stack, self._alone = Binding(block), Binding(block)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what points into this process's memory; copies of models are made through here."""
        return {"block": self.block}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["block"])

    def __call__(
        self,
        blocks: Sequence[Block],
        x_ND: Tensor,
        segments: Segments,
        caches: Sequence[KVCache],
        contexts: Sequence[KVCache | None],
        context_segments: Segments | None,
        mask: Mask | None,
    ) -> tuple[Tensor, list[KVCache]] | None:
        """Run blocks over new tokens: this one, and those behind it that are alike.

        Args:
            blocks: This one, and those behind it.
            x_ND: New tokens.
            segments: How many for each slot of the caches.
            caches: Self-attention's past of each.
            contexts: Cross-attention's keys and values of each; None for a block without.
            context_segments: Which of the new tokens read the same context; None is ``segments``.
            mask: For self-attention.

        Returns:
            y_ND of the last block that it ran, and the caches of those with the new tokens; None where it serves not
            even this one, and nothing has changed.

        Raises:
            UsageError: The new tokens are not of one sequence for each slot, or the mask does not cover them.
            ContextError: A slot would hold more than its capacity.
        """
        rows, kernel = x_ND.shape[0], _kernel(x_ND)
        if rows >= MANY_ROWS:
            return self._prompt(x_ND, segments, caches[0], contexts[0], mask)
        if not caches[0].past.on_host or not rows or segments.form != "uniform":
            return None
        if kernel is None:
            return None
        reading = segments if context_segments is None else context_segments
        bound = self._stack.of(blocks)
        if bound is None or (count := _count(bound, reading, rows, caches, contexts)) == 0:
            return None
        if x_ND.shape[1:] != (bound.weights[0].width,):
            return None
        grown = [cache.after(segments, rows) for cache in caches[:count]]
        made = self._step(x_ND, segments, caches[0], grown[0], reading, contexts[0], mask)
        if made is None:
            return None
        step, kept = made
        x_ND = x_ND.contiguous()
        y_ND = torch.empty_like(x_ND)
        step.x, step.y = x_ND.data_ptr(), y_ND.data_ptr()
        stores: list[int] = []
        for one in chain.from_iterable(zip(grown, contexts[:count], strict=True)):
            stores += (0, 0) if one is None else (one.k_store.data_ptr(), one.v_store.data_ptr())
        places = pointers([addressof(one) for one in bound.weights[:count]])
        kernel.blocks(places, pointers(stores), count, addressof(step), native.threads())
        del kept  # not before: the kernel was given places in it
        return y_ND, grown

    def whole(
        self,
        x_ND: Tensor,
        segments: Segments,
        mask: Mask | None,
        bias: Bias | None,
        positions_N: Tensor | None,
        windows: Windows | None,
        cache: KVCache | None = None,
    ) -> Tensor | None:
        """Run the block over whole sequences; see :meth:`regard.layers.block.Block.forward`.

        Args:
            x_ND: Tokens.
            segments: Which belong together.
            mask: For self-attention.
            bias: For self-attention's scores.
            positions_N: Position of each token that attends; None counts from 0 in each sequence.
            windows: What self-attention sees in the place of whole sequences.
            cache: An empty one, where keys and values are kept; None for nowhere.

        Returns:
            y_ND; None where it does not serve.

        Raises:
            UsageError: The sequences are not as many as the cache's slots, or the bias does not cover the windows.
            ContextError: A slot would hold more than its capacity.
        """
        kernel, attn = _kernel(x_ND), self.block.self_attn
        if kernel is None or self.block.cross_attn is not None or segments.form == "slots":
            return None
        if (bound := self._alone.of([self.block])) is None:
            return None
        width, rows = bound.weights[0].width, segments.num_rows
        if x_ND.shape != (rows, width) or (windows is not None and rows != windows.num_rows):
            return None
        attended = segments if windows is None else windows.segments
        if (seen := _seen(attn, attended, mask, bias, windows)) is None:
            return None
        how, kept = seen
        x_ND = x_ND.contiguous()
        y_ND = torch.empty_like(x_ND)
        given = Whole(x=x_ND.data_ptr(), y=y_ND.data_ptr(), rows=rows, laid=attended.num_rows, sequences=how)
        if windows is not None and (places_M := windows.places_M) is not None:
            given.places = places_M.data_ptr()
        if attn.rotary_base is not None:
            if positions_N is not None and (positions_N.shape != (attended.num_rows,) or not positions_N.is_cpu):
                return None
            turns_MK = _turns(attn, attended, positions_N)
            given.turns, kept = turns_MK.data_ptr(), (*kept, turns_MK)
        if cache is not None:
            cache.after(segments, rows)  # refuses what does not fit
            slot_N, place_N = cache.past.places(segments)
            given.k, given.v = cache.k_store.data_ptr(), cache.v_store.data_ptr()
            given.k_slot, given.v_slot = cache.k_store.stride(0), cache.v_store.stride(0)
            given.slot, given.place, kept = slot_N.data_ptr(), place_N.data_ptr(), (*kept, slot_N, place_N)
        block = addressof(bound.weights[0])
        room = x_ND.new_empty(kernel.room(block, addressof(given)))
        given.room = room.data_ptr()
        kernel.read(block, addressof(given), native.threads(), native.team())
        del kept  # not before: the kernel was given places in it
        return y_ND

    def _prompt(
        self, x_ND: Tensor, segments: Segments, cache: KVCache, context: KVCache | None, mask: Mask | None
    ) -> tuple[Tensor, list[KVCache]] | None:
        """Run the block over the first tokens of all slots: nothing is before them, so they attend to themselves."""
        if cache.max_len or context is not None or not _fits(cache, self.block.self_attn):
            return None
        y_ND = self.whole(x_ND, segments, mask, None, None, None, cache)
        return None if y_ND is None else (y_ND, [cache.after(segments, len(x_ND))])

    def _step(
        self,
        x_ND: Tensor,
        segments: Segments,
        cache: KVCache,
        grown: KVCache,
        reading: Segments,
        context: KVCache | None,
        mask: Mask | None,
    ) -> tuple[Step, tuple[Any, ...]] | None:
        """Say where new keys go and what is attended to, and which tensors have to live as long as that counts."""
        attn, cross = self.block.self_attn, self.block.cross_attn
        slot_N, place_N = cache.past.places(segments)
        if place_N.shape != x_ND.shape[:1]:  # a tree takes a token a beam
            return None
        if mask is not None:
            longest = max(grown.segments.known_lengths or (), default=0)
            mask.check(len(segments), attn.num_heads, segments.max_len, longest)
        read, kept = _read(attn, segments, grown, mask, x_ND)
        step = Step(0, 0, x_ND.shape[0], slot_N.data_ptr(), place_N.data_ptr(), 0, read)
        kept = (*kept, slot_N, place_N)
        if attn.rotary_base is not None:
            turns_NK = _turns(attn, segments, cache.positions_N(segments))
            step.turns, kept = turns_NK.data_ptr(), (*kept, turns_NK)
        if cross is not None and context is not None:
            step.cross_slots, more = _read(cross, reading, context, None, x_ND)
            kept = (*kept, *more)
        return step, kept


def _kernel(x_ND: Tensor) -> native.Kernel | None:
    """Give the kernels, where they may be asked for something of these rows."""
    if torch.compiler.is_compiling() or (x_ND.requires_grad and torch.is_grad_enabled()):
        return None
    return native.load()[0] if native.are_plain(x_ND) else None


def _count(
    bound: Bound,
    reading: Segments,
    rows: int,
    caches: Sequence[KVCache],
    contexts: Sequence[KVCache | None],
) -> int:
    """Say how many of the blocks one call can run with these caches."""
    first: tuple[object, ...] | None = None
    for at in range(bound.most):
        block, cache, context = bound.blocks[at], caches[at], contexts[at]
        alike = (cache.past, cache.k_store.shape)
        alike += () if context is None else (context.past, context.k_store.shape)
        if not _fits(cache, block.self_attn) or not _reads(block, reading, rows, context):
            return at
        if alike != (first := first or alike):
            return at
    return bound.most


def _fits(cache: KVCache, attn: MultiHeadAttention) -> bool:
    """Whether keys and values lie as the kernel reads and writes them."""
    k_store, v_store, sizes = cache.k_store, cache.v_store, (attn.num_kv_heads, attn.head_dim)
    if k_store.shape[2:] != sizes or v_store.shape != k_store.shape:
        return False
    return all(x.dtype == torch.float32 and x.is_cpu and x.is_contiguous() for x in (k_store, v_store))


def _read(
    attn: MultiHeadAttention, segments: Segments, cache: KVCache, mask: Mask | None, like: Tensor
) -> tuple[calls.Slots, tuple[Tensor | None, ...]]:
    """Describe what some queries attend to."""
    like_BTHK = like.new_empty(0, 0, attn.num_heads, 0)
    attn_mask, lengths_B = static.limits(like_BTHK, segments, cache.segments, mask)
    seen = cache.segments.max_len
    k_BSGK, v_BSGK = cache.k_BCGK[:, :seen], cache.v_BCGK[:, :seen]
    # Keys and values are those of each block: where they lie is told at the call.
    found, (_, _, *kept) = slots.describe(segments.max_len, attn.num_heads, k_BSGK, v_BSGK, attn_mask, lengths_B, None)
    return found, tuple(kept)


def _reads(block: Block, reading: Segments, rows: int, context: KVCache | None) -> bool:
    """Whether there is a context where a block reads one, and each of its slots has as many of the rows."""
    if context is None or block.cross_attn is None:
        return context is None and block.cross_attn is None
    is_even = reading.form == "uniform" and reading.num_rows == rows and len(reading) == context.past.slots
    return is_even and _fits(context, block.cross_attn)


def _turns(attn: MultiHeadAttention, segments: Segments, positions_N: Tensor | None) -> Tensor:
    """Give sines, then cosines, of half a head for each token; None counts from 0 in each sequence."""
    size, base = attn.head_dim, attn.rotary_base or 0.0
    if positions_N is None:
        return segments.derived(("turns", size, base), lambda: _turns(attn, segments, segments.positions_N()))
    return sinusoidal(positions_N, size, "halves", base).float().contiguous()


def _seen(
    attn: MultiHeadAttention, segments: Segments, mask: Mask | None, bias: Bias | None, windows: Windows | None
) -> tuple[calls.Sequences, tuple[Tensor | None, ...]] | None:
    """Describe what the tokens of whole sequences attend to, and which tensors have to live as long as that counts.

    None where it is no band of their sequence, nor windows that are the same in every image.
    """
    attn_mask_BHTS, band = None, (-1, -1)
    if windows is None:
        found = band if mask is None else mask.window()
        if found is None or bias is not None:
            return None
        band = (min(found[0], segments.num_rows), min(found[1], segments.num_rows))
    elif mask is not None or not isinstance(bias, WindowBias | SmallerWindow | None):
        return None
    elif bias is not None or windows.mask is not None:
        for given in (windows.mask, bias):
            if given is not None:
                given.check(len(segments), attn.num_heads, segments.max_len, segments.max_len)
        one, like_BTHK = windows.of_one_image, torch.empty(0, 0, attn.num_heads, 0, dtype=torch.float32, device="cpu")
        attn_mask = added(plan(one, one).groups[0], windows.mask, bias, like_BTHK)
        if attn_mask is not None:
            attn_mask_BHTS = sequences.addend(attn_mask.expand(-1, attn.num_heads, -1, -1), like_BTHK)
            if attn_mask_BHTS.requires_grad or not attn_mask_BHTS.is_cpu:
                return None
    rows = (segments.starts_B.to(torch.int64).contiguous(), segments.lengths_B.to(torch.int64).contiguous())
    if not rows[0].is_cpu:
        return None
    sizes = (attn.num_heads, attn.num_kv_heads, attn.head_dim)
    return sequences.within(rows, *sizes, band, attn_mask_BHTS), (*rows, attn_mask_BHTS)
