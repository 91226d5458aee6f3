"""The pasts of beams as a tree: one slot a source, whose places are nodes; beams with a common past share its nodes.

A node is written once and never moves. Which nodes a beam has behind it is a bool for each; another order of beams is
another order of these. Nodes that no beam has behind it any more are taken again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.attention import masks
from regard.attention.masks import Mask
from regard.attention.past import Past
from regard.attention.segments import Segments

_STEP = 8  # places: what is read grows by so many, so that few shapes are met


class Tree(Past):
    """B slots with K beams each.

    Args:
        reach_BKW: bool, on the host: the nodes that each beam has behind it.
        depth_BK: int64, on the host: how many these are.
        device: Where the caches are.
        uniform: As for :class:`~regard.attention.past.Past`.
    """

    def __init__(
        self,
        reach_BKW: Tensor,
        depth_BK: Tensor,
        device: torch.device,
        uniform: dict[tuple[int, int], Segments] | None = None,
    ) -> None:
        self.reach_BKW, self.depth_BK = reach_BKW, depth_BK
        super().__init__(depth_BK.flatten().to(device), None, 0, uniform)
        used_W = reach_BKW.flatten(0, 1).any(0).nonzero()
        self.max_len = -(-(int(used_W[-1]) + 1) // _STEP) * _STEP if len(used_W) else 0
        self._tree_places: tuple[Tensor, Tensor] | None = None
        self._nodes_BK: Tensor | None = None
        self._mask: Mask | None = None

    @staticmethod
    def grown(past: Past, beams: int) -> Tree:
        """Let several beams go on from each slot's past.

        Args:
            past: What is behind them.
            beams: How many.

        Returns:
            The tree, whose nodes are the places.
        """
        lengths = past.lengths_B.tolist() if past.known is None else past.known
        lengths_B1 = torch.tensor(lengths, dtype=torch.int64)[:, None]
        reach_B1W = (torch.arange(past.max_len) < lengths_B1)[:, None]
        return Tree(reach_B1W.repeat(1, beams, 1), lengths_B1.repeat(1, beams), past.lengths_B.device)

    @property
    def slots(self) -> int:
        return len(self.reach_BKW)

    @property
    def on_host(self) -> bool:
        return True

    @property
    def rows(self) -> int:
        return self.depth_BK.numel()

    @property
    def beams(self) -> int:
        """Beams of a slot."""
        return self.reach_BKW.shape[1]

    @property
    def deepest(self) -> int:
        return int(self.depth_BK.max()) if self.rows else 0

    @property
    def mask(self) -> Mask:
        if self._mask is None:
            reach = _wide(self.reach_BKW, self.max_len)[:, None, :, : self.max_len]
            self._mask = masks.tensor(reach.to(self.lengths_B.device))
        return self._mask

    def after(self, segments: Segments) -> Tree:
        if self._after is None or self._after[0] is not segments:
            nodes_BK = self._nodes()
            most = int(nodes_BK.max()) + 1 if nodes_BK.numel() else 0
            reach_BKW = _wide(self.reach_BKW, most).scatter(2, nodes_BK[..., None], True)
            tree = Tree(reach_BKW, self.depth_BK + 1, self.lengths_B.device, self._uniform)
            self._after = segments, tree
        return self._after[1]  # pyrefly: ignore[bad-return]

    def _nodes(self) -> Tensor:
        """Find the first node of each slot that no beam has behind it, for each beam one."""
        if self._nodes_BK is None:
            taken_BW = _wide(self.reach_BKW, self.reach_BKW.shape[2] + self.beams).any(1)
            self._nodes_BK = taken_BW.byte().sort(stable=True, dim=1).indices[:, : self.beams]
        return self._nodes_BK

    def places(self, segments: Segments) -> tuple[Tensor, Tensor]:
        if self._tree_places is None:
            slot_N = torch.arange(self.slots).repeat_interleave(self.beams)
            both = (one.to(self.lengths_B.device) for one in (slot_N, self._nodes().flatten()))
            slot_N, node_N = both
            self._tree_places = slot_N, node_N
        return self._tree_places

    def positions_N(self, segments: Segments) -> Tensor:
        return self.lengths_B

    def segments(self, capacity: int) -> Segments:
        if self._segments is None or self._segments[0] != capacity:
            # The mask says what counts: up to the bound every place is as good as filled.
            known = (self.max_len,) * self.slots
            lengths_B = torch.full((self.slots,), self.max_len, dtype=torch.int64, device=self.lengths_B.device)
            slots = Segments.slots(lengths_B, capacity, self.max_len, clean=True, known_lengths=known)
            self._segments = capacity, slots
        return self._segments[1]

    def laid(self, segments: Segments, slots: int, capacity: int) -> tuple[Tensor, Tensor, Tensor]:
        """Lay out what a step of fixed shapes needs, see :class:`FixedTree`.

        Args:
            segments: A new node for each beam.
            slots: Slots that there are, those not in use among them: their beams have one node, the first.
            capacity: Places of a slot.

        Returns:
            slot_R, node_R and reach_BKW, of all slots and places, on the device.
        """
        device, more = self.lengths_B.device, slots - self.slots
        reach_BKW = torch.zeros(slots, self.beams, capacity, dtype=torch.bool)
        grown_BKW = self.after(segments).reach_BKW[:, :, :capacity]
        reach_BKW[: self.slots, :, : grown_BKW.shape[2]] = grown_BKW
        reach_BKW[self.slots :, :, 0] = True
        node_R = nn.functional.pad(self._nodes().flatten(), (0, more * self.beams))
        slot_R = torch.arange(slots).repeat_interleave(self.beams)
        return slot_R.to(device), node_R.to(device), reach_BKW.to(device)

    def order(self, slots: Sequence[int], parents_BK: Tensor) -> Tree:
        """Let beams go on from others of their slot.

        Args:
            slots: For each new slot the old one.
            parents_BK: For each new beam the old one.

        Returns:
            The tree.
        """
        index_BK = torch.tensor(slots, dtype=torch.int64)[:, None], parents_BK
        uniform = self._uniform if len(slots) == self.slots else None
        return Tree(self.reach_BKW[index_BK], self.depth_BK[index_BK], self.lengths_B.device, uniform)

    def put(self, index: Sequence[int], other: Past) -> tuple[Past, Tensor, Tensor | None]:
        beams, device = self.beams, self.lengths_B.device
        slots = torch.tensor(index[::beams], dtype=torch.int64) // beams
        width = max(self.reach_BKW.shape[2], other.max_len * (1 if isinstance(other, Tree) else beams))
        more = max(max(index, default=-1) // beams + 1 - self.slots, 0)
        reach_BKW = nn.functional.pad(_wide(self.reach_BKW, width), (0, 0, 0, 0, 0, more))
        depth_BK = nn.functional.pad(self.depth_BK, (0, 0, 0, more))
        reach_BKW[slots] = False
        if isinstance(other, Tree):
            reach_BKW[slots, :, : other.reach_BKW.shape[2]] = other.reach_BKW
            depth_BK[slots] = other.depth_BK
            slot, place = slots, torch.arange(other.max_len).expand(len(slots), -1)
        else:  # a past of its own for each beam, one behind the other
            lengths_BK = torch.tensor(other.known, dtype=torch.int64).view(-1, beams)
            for beam in range(beams):
                nodes_W = beam * other.max_len + torch.arange(other.max_len)
                reach_BKW[slots[:, None], beam, nodes_W] = nodes_W < beam * other.max_len + lengths_BK[:, beam, None]
            depth_BK[slots] = lengths_BK
            slot = slots.repeat_interleave(beams)
            first = torch.arange(beams).repeat(len(slots)) * other.max_len
            place = first[:, None] + torch.arange(other.max_len)
        return Tree(reach_BKW, depth_BK, device), slot.to(device), place.to(device)


class FixedTree(Past):
    """A tree in a step of fixed shapes: where its new nodes go, and which nodes each beam has behind it then.

    Args:
        depth_R: int64, tokens behind each beam.
        slot_R: int64, the slot of each beam's new node.
        node_R: int64, its place.
        reach_BKW: bool, the nodes that each beam has behind it, the new one among them; of all places.
        deepest: No beam has more tokens behind it.
    """

    def __init__(self, depth_R: Tensor, slot_R: Tensor, node_R: Tensor, reach_BKW: Tensor, deepest: int) -> None:
        super().__init__(depth_R, None, reach_BKW.shape[2], deepest=deepest)
        self.reach_BKW, self._new = reach_BKW, (slot_R, node_R)

    @property
    def slots(self) -> int:
        return self.reach_BKW.shape[0]

    @property
    def mask(self) -> Mask:
        return masks.tensor(self.reach_BKW[:, None])

    @property
    def rows(self) -> int:
        return self.lengths_B.shape[0]

    def after(self, segments: Segments) -> FixedTree:
        return self

    def places(self, segments: Segments) -> tuple[Tensor, Tensor]:
        return self._new

    def positions_N(self, segments: Segments) -> Tensor:
        return self.lengths_B

    def segments(self, capacity: int) -> Segments:
        # The mask says what counts, as in a tree.
        lengths_B = torch.full((self.slots,), capacity, dtype=torch.int64, device=self.lengths_B.device)
        return Segments.slots(lengths_B, capacity, capacity, True, (capacity,) * self.slots, capacity)


def _wide(reach_BKW: Tensor, width: int) -> Tensor:
    """Give at least so many nodes."""
    more = width - reach_BKW.shape[2]
    return nn.functional.pad(reach_BKW, (0, more)) if more > 0 else reach_BKW


def reordered(past: Past, rows_R: Tensor, count: int) -> tuple[list[int], Past]:
    """Let rows go on from others, the rows of a slot side by side.

    Args:
        past: What is behind the rows so far.
        rows_R: int64, on the host, for each new row the old one that it continues, all of a slot from one slot.
        count: Slots that go on. Where each has several rows that were one, they become the beams of a tree.

    Returns:
        For each new slot the old one, and the new past.
    """
    rows, before = rows_R.tolist(), past.rows // max(past.slots, 1)
    each = len(rows) // max(count, 1)
    slots = [row // before for row in rows[:: max(each, 1)]]
    if isinstance(past, Tree):
        return slots, past.order(slots, rows_R.view(count, -1) % before)
    past = past if slots == list(range(past.slots)) else past.select(slots)
    return slots, past if each <= 1 else Tree.grown(past, each)
