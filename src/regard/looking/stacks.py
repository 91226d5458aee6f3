"""Layers that belong together: the same kind, over the same tokens or picture, the same name but for numbers."""

import re
from dataclasses import dataclass

from regard.looking.attention_map import AttentionMap, Side
from regard.looking.maps import Maps
from regard.looking.places import Boxes, Picture, Places


@dataclass(frozen=True)
class Stack:
    """Maps of one stack of layers.

    Attributes:
        title: What attends to what.
        about: The layers' name, with * for their numbers.
        indices: Which of the maps they are, in the order of the forward pass.
        maps: The maps.
        picture: The picture that a side is on; None where both are texts.
    """

    title: str
    about: str
    indices: list[int]
    maps: list[AttentionMap]
    picture: Picture | None = None

    @property
    def rolls(self) -> bool:
        """Say whether attention can be followed through it: several layers over the same rows, all of which meet."""
        first = self.maps[0]
        meets = not isinstance(first.queries, Places) or first.queries.num_windows == 1
        alike = all(one.kind == "self" and one.queries == first.queries for one in self.maps)
        return meets and alike and len(self.maps) > 1


def stacks_of(maps: Maps) -> list[Stack]:
    """Sort maps into stacks, those that align first. A name's numbers count layers, the rest of it names the stack.

    Args:
        maps: The maps of one run.

    Returns:
        The stacks; every map is in one.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    for i, one in enumerate(maps.maps):
        about = re.sub(r"\d+", "*", one.layer)
        found.setdefault((one.kind == "self", about, _ground(one.queries), _ground(one.keys)), []).append(i)
    stacks = []
    for (_, about, *_), indices in sorted(found.items(), key=lambda item: bool(item[0][0])):
        members = [maps.maps[i] for i in indices]
        sides = (members[0].keys, members[0].queries)
        on = next((side.picture for side in sides if isinstance(side, Places | Boxes)), None)
        picture = None if on is None else maps.pictures[on]
        stacks.append(Stack(_title(members[0], maps), str(about), indices, members, picture))
    return stacks


def _ground(side: Side) -> object:
    """Tell sides apart that cannot share a picture; a grid may change from layer to layer."""
    return (side.picture, side.before) if isinstance(side, Places) else side


def _title(one: AttentionMap, maps: Maps) -> str:
    if any(isinstance(side, Places | Boxes) for side in (one.keys, one.queries)):
        if one.kind == "self":
            return "Self-attention over the picture"
        asks, answers = (
            "the picture" if isinstance(side, Places | Boxes) else "tokens" for side in (one.queries, one.keys)
        )
        return f"Cross-attention, {asks} to {answers}"
    if one.kind == "cross":
        return "Cross-attention, output to source"
    cross = next((other for other in maps.maps if other.kind == "cross"), None)
    if cross is None or cross.queries == cross.keys:
        return "Self-attention"
    return f"Self-attention of the {'source' if one.queries == cross.keys else 'output'}"
