"""What the page "look" is given: one form for every kind of map. docs/maps.md describes it.

A run whose weights are few is written whole; of a larger one the page fetches what it shows, by a map's address:

    3.2          layer 3, head 2
    3.mean       layer 3, the mean of its heads
    s0.rollout   stack 0, attention followed through its layers; s0.flow likewise
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.errors import UsageError
from regard.looking.attention_map import AttentionMap, Side, Weights
from regard.looking.flow import MAX_PIPES, attention_flow
from regard.looking.maps import Maps
from regard.looking.places import Boxes, Places
from regard.looking.png import address, png_size
from regard.looking.rollout import over_picture, rollout
from regard.looking.stacks import Stack, stacks_of
from regard.looking.text import Json, visible

FORMAT = "regard-look-1"
MAX_WHOLE = 1 << 24  # weights that a file holds; a browser takes four bytes for each
MAX_SENT = 1 << 22  # weights that are sent at once where the rest can be fetched
MAX_ROLLED = 2048  # tokens; a product of so large matrices takes a second a layer
_EXACT = 1 << 20  # up to so many weights a file has every bit; beyond, their square roots in 65,535 steps
_MAIN_MEAN = 1 << 26  # weights of a layer whose heads are not averaged unless asked for
_FLOW_WORK = 4_000_000  # pipes × flows that a file waits for


def describe(
    maps: Maps,
    *,
    whole: bool,
    model: str = "",
    number: int | None = None,
    asked: Mapping[str, Json] | None = None,
) -> dict[str, Json]:
    """Write a run for the page.

    Args:
        maps: The run.
        whole: Every weight is in it; False leaves out those of a large run, to be fetched.
        model: The model's name.
        number: The run's number, where it can be fetched.
        asked: What was asked for.

    Returns:
        JSON data.

    Raises:
        UsageError: A whole run of more than MAX_WHOLE weights.
    """
    total = sum(one.weights_HTS.size for one in maps.maps)
    if whole and total > MAX_WHOLE:
        what = f"{total:,} weights; a page holds {MAX_WHOLE:,}"
        raise UsageError(what, where="look", mend="look at fewer layers (--layers), or open it without -o")
    holds = whole or not is_large(maps)
    main = main_address(maps)
    sides: list[Side] = []
    for side in (side for one in maps.maps for side in (one.queries, one.keys)):
        if side not in sides:
            sides.append(side)
    layers: list[Json] = [
        {
            "name": one.layer,
            "kind": one.kind,
            "queries": sides.index(one.queries),
            "keys": sides.index(one.keys),
            "shape": list(one.weights_HTS.shape),
            **({"weights": coded(one.weights_HTS, exact=total <= _EXACT)} if holds else {}),
        }
        for one in maps.maps
    ]
    stacks = stacks_of(maps)
    through: list[Json] = []
    for i, stack in enumerate(stacks):
        if holds and rolls(stack):
            through.append(_through(i, "rollout", rollout(stack.maps)))
        if whole and _flows(stack, whole=True):
            through.append(_through(i, "flow", attention_flow(stack.maps)))
    return {
        "format": FORMAT,
        "id": number,
        "model": model,
        "title": maps.title,
        "source": maps.source,
        "output": maps.output,
        "details": maps.details,
        "scores": maps.scores,
        "asked": asked,
        "pictures": [_picture(one.name, one.png) for one in maps.pictures],
        "sides": [_side(side) for side in sides],
        "layers": layers,
        "stacks": [
            {
                "title": stack.title,
                "about": stack.about,
                "layers": stack.indices,
                "rolls": rolls(stack),
                "flows": _flows(stack, whole=whole),
            }
            for stack in stacks
        ],
        "through": through,
        "main": {"layer": main.index, "head": main.head},
    }


@dataclass(frozen=True)
class Address:
    """Where a map of a run is.

    Attributes:
        index: Which layer, or, for rollout and flow, which stack.
        head: A head's number, "mean", "rollout" or "flow".
    """

    index: int
    head: int | str


def read_address(text: str) -> Address:
    """Read a map's address.

    Args:
        text: As the page writes it.

    Returns:
        Its parts; whether the run has such a map is another matter.

    Raises:
        UsageError: No address.
    """
    if found := re.fullmatch(r"s([0-9]{1,6})\.(rollout|flow)", text):
        return Address(int(found[1]), found[2])
    if found := re.fullmatch(r"([0-9]{1,6})\.(mean|[0-9]{1,6})", text):
        return Address(int(found[1]), found[2] if found[2] == "mean" else int(found[2]))
    raise UsageError(f"{visible(text[:40])!r} is no map's address", where="map", mend="write 3.2, 3.mean or s0.rollout")


def rolls(stack: Stack) -> bool:
    """Say whether a stack's rollout is offered: it has one, and it is not too large."""
    return stack.rolls and len(stack.maps[0].query_tokens) <= MAX_ROLLED


def _flows(stack: Stack, *, whole: bool) -> bool:
    num_tokens = len(stack.maps[0].query_tokens)
    pipes = len(stack.maps) * num_tokens**2
    return stack.rolls and pipes <= MAX_PIPES and (not whole or pipes * num_tokens**2 <= _FLOW_WORK)


def coded(weights: npt.NDArray[np.floating], *, exact: bool) -> dict[str, Json]:
    """Write weights as compressed base64.

    Args:
        weights: Any shape.
        exact: As little-endian float32; else as square roots in steps of 1/65535: half of the size, four decimals of
            large weights and two digits of small ones (beside a token that takes nearly all, hundreds share 0.01).

    Returns:
        The name of the coding, and the data.
    """
    stored = weights.astype("<f4") if exact else np.rint(65535 * np.sqrt(np.clip(weights, 0, 1))).astype("<u2")
    data = base64.b64encode(zlib.compress(stored.tobytes(), 6 if exact else 1)).decode("ascii")
    return {"coding": "f4" if exact else "root-u2", "data": data}


def _through(stack: int, how: str, weights_TT: npt.NDArray[np.float64]) -> dict[str, Json]:
    exact = weights_TT.size <= _EXACT
    return {"stack": stack, "how": how, "shape": list(weights_TT.shape), "weights": coded(weights_TT, exact=exact)}


def _picture(name: str, data: bytes) -> dict[str, Json]:
    height, width = png_size(data)
    return {"name": name, "width": width, "height": height, "src": address(data)}


def _side(side: Side) -> dict[str, Json]:
    if isinstance(side, Places):
        return {"kind": "places", **side.to_json()}  # type: ignore[dict-item]
    if isinstance(side, Boxes):
        boxes = [list(box) for box in side.boxes]
        return {"kind": "boxes", "picture": side.picture, "before": side.before, "boxes": boxes, "names": side.labels}
    return {"kind": "tokens", "tokens": list(side)}


def main_address(maps: Maps) -> Address:
    """Choose the map to show first: the last that aligns, else the last.

    Args:
        maps: The run.

    Returns:
        The mean of its heads; the first head where averaging would take long.
    """
    cross = [i for i, one in enumerate(maps.maps) if one.kind == "cross"]
    layer = cross[-1] if cross else len(maps.maps) - 1
    return Address(layer, "mean" if maps.maps[layer].weights_HTS.size <= _MAIN_MEAN else 0)


def is_large(maps: Maps) -> bool:
    """Say whether the page fetches parts of a run instead of all its weights."""
    return sum(one.weights_HTS.size for one in maps.maps) > MAX_SENT


def base_rows(one: AttentionMap) -> npt.NDArray[np.float32]:
    """Give what thumbnails over a picture show: what each head's default query attends to, the mean of heads first.

    Args:
        one: A layer whose keys are places or boxes.

    Returns:
        A row for the mean, where there are several heads, and one for each head: laid over the grid of places (NaN
        where the query cannot attend), or one weight for each box after the tokens before.
    """
    heads: Sequence[Weights] = [*one.weights_HTS]
    if len(heads) > 1:
        heads = [one.mean().weights_HTS[0], *heads]
    if isinstance(one.keys, Places):
        return np.stack([over_picture(head, one.queries, one.keys).reshape(-1) for head in heads]).astype(np.float32)
    return np.stack([head[0] for head in heads])
