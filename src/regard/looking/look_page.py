"""The page of maps: the alignment or the picture, every layer and head, rollout."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from regard.looking.heat import heat_map, mask_image, scale_legend
from regard.looking.maps import AttentionMap, Maps, Side, Weights
from regard.looking.overlay import (
    HOW_PLACES,
    HOW_TOKENS,
    can_roll,
    check_size,
    pane,
    sharp,
    side_json,
    thumbnail,
    weights_json,
)
from regard.looking.page import document, pairs, section
from regard.looking.places import Picture, Places
from regard.looking.png import address, png_size
from regard.looking.rollout import rollout
from regard.looking.text import Json, escape, script_json, token_label, visible

LONG_TOKENS = 34  # from here on a matrix needs the whole width of the page
_HOW = "A row is a token that attends, a column one that is attended to. Point at a cell, or use the arrow keys."


@dataclass(frozen=True)
class Group:
    """Maps of one stack: the same kind, the same tokens or picture, the same name but for numbers."""

    title: str
    about: str
    maps: list[AttentionMap]
    picture: Picture | None = None


@dataclass(frozen=True)
class _Store:
    """What the page's script reads.

    Attributes:
        maps: What a thumbnail shows.
        weights: Weights that several thumbnails share, with their sides.
    """

    maps: list[Json]
    weights: list[Json]


def look_page(maps: Maps) -> str:
    """Draw what a model looked at: one large map, its tokens, and a picture of every layer and head to choose from.

    Args:
        maps: The weights.

    Returns:
        A whole HTML document.

    Raises:
        UsageError: More tokens than a picture can hold, or more weights than a page.
    """
    groups = groups_of(maps)
    check_size([one for group in groups if group.picture for one in group.maps])
    main = maps.main()
    first = next(g for g, group in enumerate(groups) if any(one.layer == main.layer for one in group.maps))
    shown: list[str] = []
    lines: list[str] = []
    grids: list[str] = []
    store = _Store([], [])
    for g, group in enumerate(groups):
        one = main if g == first else group.maps[-1].mean()
        hidden = "" if g == first else " hidden"
        shown.append(_shown(group, one, hidden))
        if not group.picture:
            lines.append(_token_lines(one, g, hidden))
        grids.append(_heads(group, g, store, main.layer if g == first else ""))
    chosen = next(one for one in groups[first].maps if one.layer == main.layer)
    title = ("Alignment: " if chosen.kind == "cross" else "") + _mean_title(chosen)
    texts = [one for group in groups if not group.picture for one in group.maps]
    longest = max((len(side) for one in texts for side in (one.query_tokens, one.key_tokens)), default=0)
    told = [
        {
            "queries": [] if group.picture else [token_label(t) for t in group.maps[0].query_tokens],
            "keys": [] if group.picture else [token_label(t) for t in group.maps[0].key_tokens],
            "how": _how(group),
        }
        for group in groups
    ]
    pair = [f'<dt>Source</dt><dd class="text" dir="auto">{escape(maps.source)}</dd>']
    if maps.output:
        pair.append(f'<dt>Output</dt><dd class="text" dir="auto">{escape(maps.output)}</dd>')
    many = len(store.maps) > 1
    body = f"""
<h1>{escape(maps.title)}</h1>
<dl class="pair">{"".join(pair)}</dl>
<div class="looking{" long" if longest > LONG_TOKENS or not many else ""}">
<figure class="shown">
<figcaption><h2>{escape(title[0].upper() + title[1:])}</h2><p class="about mono">{escape(chosen.layer)}</p></figcaption>
{"".join(shown)}
<output aria-live="polite">{_how(groups[first])}</output>
{scale_legend(hidden=bool(groups[first].picture)) if texts else ""}
{"".join(lines)}
</figure>
<div{"" if many else " hidden"}>{"".join(grids)}</div>
</div>
{section("Details", "", pairs(maps.details.items())) if maps.details else ""}"""
    stored = script_json({"groups": told, "maps": store.maps, "weights": store.weights})
    return document(maps.title, "Attention", body, stored, kind="look")


def _mean_title(one: AttentionMap) -> str:
    num_heads = len(one.weights_HTS)
    kind = "cross-attention" if one.kind == "cross" else "self-attention"
    return f"{kind}, mean of {num_heads} heads" if num_heads > 1 else kind


def _how(group: Group) -> str:
    if not group.picture:
        return _HOW
    return HOW_PLACES if isinstance(group.maps[0].queries, Places) else HOW_TOKENS


def _shown(group: Group, one: AttentionMap, hidden: str) -> str:
    """Draw the large map of a stack."""
    label = _mean_title(group.maps[-1])
    if group.picture:
        return f'<div class="map seen"{hidden}>{pane(one, group.picture, label)}</div>'
    picture = heat_map(one.weights_HTS[0], one.query_tokens, one.key_tokens, label=label)
    return f'<div class="map scroll"{hidden}>{picture}</div>'


def groups_of(maps: Maps) -> list[Group]:
    """Sort maps into stacks, those that align first. A name's numbers count layers, the rest of it names the stack."""
    stacks: dict[tuple[object, ...], list[AttentionMap]] = {}
    for one in maps.maps:
        stack = re.sub(r"\d+", "*", one.layer)
        stacks.setdefault((one.kind == "self", stack, _ground(one.queries), _ground(one.keys)), []).append(one)
    found = []
    for (_, stack, *_), members in sorted(stacks.items(), key=lambda item: bool(item[0][0])):
        on = next((side.picture for side in (members[0].keys, members[0].queries) if isinstance(side, Places)), None)
        picture = None if on is None else maps.pictures[on]
        found.append(Group(_stack_title(members[0], maps), str(stack), members, picture))
    return found


def _ground(side: Side) -> object:
    """Tell sides apart that cannot share a picture; its grid may change from layer to layer."""
    return (side.picture, side.before) if isinstance(side, Places) else side


def _stack_title(one: AttentionMap, maps: Maps) -> str:
    if isinstance(one.keys, Places) or isinstance(one.queries, Places):
        if one.kind == "self":
            return "Self-attention over the picture"
        ways = {True: "the picture", False: "tokens"}
        asks, answers = (ways[isinstance(side, Places)] for side in (one.queries, one.keys))
        return f"Cross-attention, {asks} to {answers}"
    if one.kind == "cross":
        return "Cross-attention, output to source"
    cross = next((other for other in maps.maps if other.kind == "cross"), None)
    if cross is None or cross.queries == cross.keys:
        return "Self-attention"
    return f"Self-attention of the {'source' if one.queries == cross.keys else 'output'}"


def _heads(group: Group, g: int, store: _Store, chosen: str) -> str:
    """Draw the thumbnails of a stack: a row a layer, a column a head, their mean first."""
    most = max(len(one.weights_HTS) for one in group.maps)
    columns = most + 1 if most > 1 else 1
    cells = ["<span></span>"]
    cells += [f'<span class="col">{name}</span>' for name in (["mean", *range(most)] if most > 1 else [""])]
    kind = "cross-attention" if group.maps[0].kind == "cross" else "self-attention"
    for one in group.maps:
        number = " ".join(re.findall(r"\d+", one.layer)) or token_label(one.layer, 14)
        cells.append(f'<span class="row">{escape(number)}</span>')
        pictures: list[tuple[str, Weights]] = [(_mean_title(one), one.mean().weights_HTS[0])]
        if len(one.weights_HTS) > 1:
            pictures += [(f"{kind}, head {h}", weights) for h, weights in enumerate(one.weights_HTS)]
        stored = _share(store, one, one.weights_HTS) if group.picture else {}
        for h, (title, weights) in enumerate(pictures):
            entry = {"group": g, "layer": visible(one.layer), **stored, "head": h - 1 if len(pictures) > 1 else 0}
            pressed = h == 0 and one.layer == chosen
            cells.append(_tile(title, one, weights, entry, store, group.picture, pressed=pressed))
        cells += ["<span></span>"] * (columns - len(pictures))
    rolled = can_roll(group.maps) if group.picture else group.maps[0].kind == "self" and len(group.maps) > 1
    if rolled:
        through = rollout(group.maps).astype(np.float32)
        title = f"rollout through {len(group.maps)} layers, residual connections included"
        last = replace(group.maps[-1], layer=group.about)
        stored = _share(store, last, through[None]) if group.picture else {}
        entry = {"group": g, "layer": visible(group.about), **stored, "head": 0}
        cells.append(f'<span class="row">all</span>{_tile(title, last, through, entry, store, group.picture)}')
    look = f";--pic:url({address(group.picture.png)})" if group.picture else ""
    grid = f'<div class="heads" style="--n:{columns}{look}" data-wide="{columns}">{"".join(cells)}</div>'
    grid = grid.replace('tabindex="-1"', 'tabindex="0"', 1) if 'tabindex="0"' not in grid else grid
    told = "; all: rollout through the layers" if rolled else ""
    laid = group.picture and isinstance(group.maps[0].keys, Places)
    told += ". The strongest shade of each is its own largest weight" if laid else ""
    about = f'<p class="about"><span class="mono">{escape(group.about)}</span>{told}</p>'
    return f'<div class="group"><h2>{group.title}</h2>{about}<div class="scroll">{grid}</div></div>'


def _share(store: _Store, one: AttentionMap, weights_HTS: npt.NDArray[np.floating]) -> dict[str, Json]:
    """Store a layer's weights once for all its heads, and say where."""
    sides = {"q": side_json(one.queries), "k": side_json(one.keys)}
    store.weights.append({"shape": list(weights_HTS.shape), "data": weights_json(weights_HTS), **sides})
    return {"shared": len(store.weights) - 1}


def _tile(
    title: str,
    one: AttentionMap,
    weights_TS: Weights,
    entry: dict[str, Json],
    store: _Store,
    picture: Picture | None,
    *,
    pressed: bool = False,
) -> str:
    """Draw a thumbnail, and store what the script needs to show its map."""
    entry["title"] = title[0].upper() + title[1:]
    if picture is None:
        entry["weights"] = base64.b64encode(weights_TS.astype("<f4").tobytes()).decode("ascii")
    store.maps.append(entry)
    if picture is None or not isinstance(one.keys, Places):
        (height, width), mask, under = weights_TS.shape, mask_image(weights_TS), ""
    else:
        (height, width), mask = png_size(picture.png), thumbnail(weights_TS, one.queries, one.keys)
        under = f'<b class="{sharp(picture.png)}"></b>'
    ratio = min(max(width / height, 0.5), 2.0)
    name = escape(f"{title}, {one.layer}")
    look = f"aspect-ratio:{ratio:.3f};--m:url({mask})"
    state = f'aria-pressed="{"true" if pressed else "false"}" tabindex="{0 if pressed else -1}"'
    return (
        f'<button type="button" class="tile" data-map="{len(store.maps) - 1}" {state} title="{name}"'
        f' aria-label="{name}" style="{look}">{under}<i></i></button>'
    )


def _token_lines(one: AttentionMap, g: int, hidden: str) -> str:
    def line(side: str, name: str, tokens: Sequence[str]) -> str:
        chips = "".join(f'<span class="tok">{escape(token_label(t, 40))}</span>' for t in tokens)
        return f'<dt class="soft">{name}</dt><dd data-side="{side}" dir="auto">{chips}</dd>'

    queries, keys = line("q", "attends", one.query_tokens), line("k", "is attended to", one.key_tokens)
    return f'<dl class="tokens" data-group="{g}"{hidden}>{queries}{keys}</dl>'
