"""Attention as data: who attended to what, with which weight.

    maps.alignment().weights_HTS      the picture of a translation
    maps.weights("decoder.layers.5.cross_attn", head=3)
    maps.save("look.html")            the same with pictures; look.json with every number

A side of a map is a text's tokens, or the places or boxes of a picture (`regard.looking.places`).

Legend: T queries, S keys, H heads.
"""

from __future__ import annotations

import base64
import html
import json
import math
import os
import sys
import tempfile
import webbrowser
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from regard.errors import DataError, FormatError, UsageError
from regard.files import write_aside
from regard.looking.attention_map import AttentionMap, Side, Weights
from regard.looking.flow import attention_flow
from regard.looking.places import Boxes, Picture, Places, check_pictures, read_places
from regard.looking.rollout import rollout
from regard.looking.text import visible

_FORMAT, _TEXT_FORMAT = "regard-maps-2", "regard-maps-1"  # the latter knew no pictures
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Link:
    """One query and one key that it attends to.

    Attributes:
        query: Index of the query.
        query_token: Its token.
        key: Index of the key.
        key_token: Its token.
        weight: The weight, 0 to 1.
    """

    query: int
    query_token: str
    key: int
    key_token: str
    weight: float


@dataclass(frozen=True, eq=False)
class Maps:
    """What a model looked at while it read one input and wrote one output.

    Args:
        title: A line that names the picture.
        source: The input as the user gave it.
        output: What the model wrote; empty where it writes nothing.
        maps: The layers, in the order of the forward pass; each name once.
        details: Anything worth a line below the picture: model, score, device.
        pictures: The pictures that places are on.
        scores: What the model makes of its output, by name: natural-log probabilities, or probabilities of choices.

    Raises:
        DataError: No map at all, a layer twice, a picture too few, or a score that is not finite.
    """

    title: str
    source: str
    output: str
    maps: tuple[AttentionMap, ...]
    details: dict[str, str] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that layers can be told apart and pictures be found."""
        object.__setattr__(self, "maps", tuple(self.maps))
        object.__setattr__(self, "pictures", tuple(self.pictures))
        if not self.maps:
            raise DataError("no attention map", where="maps", mend="record at least one layer")
        for name, score in self.scores.items():
            if not math.isfinite(score):
                raise DataError(f"the score {visible(name)!r} is {score}", where="maps", mend="scores are finite")
        names = [one.layer for one in self.maps]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"layer {visible(name)!r} is there twice", where="maps", mend="name each call of it")
        for one in self.maps:
            for side in (one.queries, one.keys):
                if isinstance(side, Places | Boxes):
                    check_pictures(self.pictures, side, one.layer)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in the order of the forward pass."""
        return tuple(one.layer for one in self.maps)

    def weights(self, layer: str, head: int | None = None) -> Weights:
        """Give the weights of one layer.

        Args:
            layer: The layer's name.
            head: One head, from 0; None for all.

        Returns:
            Weights, H × T × S for all heads, T × S for one.

        Raises:
            UsageError: No such layer or head.
        """
        one = self._layer(layer)
        if head is None:
            return one.weights_HTS
        num_heads = len(one.weights_HTS)
        if not 0 <= head < num_heads:
            raise UsageError(
                f"head {head} of {num_heads}", where=visible(layer), mend=f"heads are 0 to {num_heads - 1}"
            )
        return one.weights_HTS[head]

    def alignment(self, layer: str | None = None) -> AttentionMap:
        """Give the alignment of output and source: one cross-attention layer, averaged over its heads.

        A recurrent model has one such layer. In a Transformer every decoder layer has one; which of them aligns words
        best is a matter of the model, often the one before the last. The last is taken: the output is read off it.

        Args:
            layer: Another cross-attention layer; None for the last.

        Returns:
            A map with one head.

        Raises:
            UsageError: The model has no cross-attention, or the layer is none.
        """
        if layer is None:
            cross = [one for one in self.maps if one.kind == "cross"]
            if not cross:
                raise UsageError(
                    "no cross-attention to align with", where="alignment", mend=f"{self._known()}; use weights()"
                )
            return cross[-1].mean()
        one = self._layer(layer)
        if one.kind != "cross":
            raise UsageError("is self-attention and aligns nothing", where=visible(layer), mend="use weights()")
        return one.mean()

    def top(self, k: int = 3, layer: str | None = None) -> list[list[Link]]:
        """List for each query the keys with the largest weights, averaged over heads.

        Args:
            k: Keys for a query; fewer where there are fewer.
            layer: A layer; None for the alignment, or for the last layer of a model without cross-attention.

        Returns:
            For each query its links, the strongest first; of equal weights the earlier key first.

        Raises:
            UsageError: k under 1, or no such layer.
        """
        if k < 1:
            raise UsageError(f"k is {k}", where="top", mend="it is 1 or more")
        one = self.main() if layer is None else self._layer(layer).mean()
        weights_TS = one.weights_HTS[0]
        order_TS = np.argsort(-weights_TS, axis=1, kind="stable")[:, :k]
        return [
            [Link(t, query, int(s), one.key_name(t, int(s)), float(weights_TS[t, s])) for s in order_TS[t]]
            for t, query in enumerate(one.query_tokens)
        ]

    def main(self) -> AttentionMap:
        """Give the one map to show first: the alignment, or the last layer's mean where nothing is aligned.

        Returns:
            A map with one head.
        """
        return self.alignment() if any(one.kind == "cross" for one in self.maps) else self.maps[-1].mean()

    def to_json(self) -> str:
        """Write everything as JSON, with the shortest decimals that give the same float32 back.

        Returns:
            ASCII text; `from_json` reads it.
        """
        maps = [
            {
                "layer": one.layer,
                "kind": one.kind,
                "queries": one.queries.to_json() if isinstance(one.queries, Places | Boxes) else one.queries,
                "keys": one.keys.to_json() if isinstance(one.keys, Places | Boxes) else one.keys,
                "weights": [[[float(str(w)) for w in row] for row in head] for head in one.weights_HTS],
            }
            for one in self.maps
        ]
        fields: dict[str, object] = {"title": self.title, "source": self.source, "output": self.output}
        fields |= {"details": self.details, "scores": self.scores}
        pictures = [{"name": one.name, "png": base64.b64encode(one.png).decode("ascii")} for one in self.pictures]
        return json.dumps({"format": _FORMAT, **fields, "maps": maps, "pictures": pictures}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Maps:
        """Read what `to_json` wrote, now or before there were pictures or scores.

        Args:
            text: JSON.

        Returns:
            Equal maps.

        Raises:
            FormatError: Not JSON, or JSON of something else.
            DataError: Weights that are none.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormatError("not JSON", where="maps", mend="give a file that save('….json') wrote") from error
        if not isinstance(data, dict) or data.get("format") not in (_FORMAT, _TEXT_FORMAT):
            raise FormatError(f"not {_FORMAT}", where="maps", mend="give a file that save('….json') wrote")
        details = _read(data, "details", dict)
        if not all(isinstance(value, str) for value in details.values()):
            raise FormatError("'details' holds something other than text", where="maps")
        scores = _read(data, "scores", dict) if "scores" in data else {}
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in scores.values()):
            raise FormatError("'scores' holds something other than numbers", where="maps")
        maps = tuple(_read_map(one) for one in _read(data, "maps", list))
        title, source, output = (_read(data, key, str) for key in ("title", "source", "output"))
        pictures = () if data["format"] == _TEXT_FORMAT else tuple(map(_read_picture, _read(data, "pictures", list)))
        return cls(title, source, output, maps, details, pictures, scores)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (.html) or the numbers (.json), whole or not at all.

        Args:
            path: The file; its suffix chooses.

        Raises:
            UsageError: Another suffix.
            ResourceError: The file cannot be written.
        """
        suffix = Path(path).suffix.lower()
        if suffix not in (".html", ".json"):
            raise UsageError(f"suffix {suffix!r}", where=visible(str(path)), mend="it is .html or .json")
        write_aside(Path(path), self._page() if suffix == ".html" else self.to_json())

    def rollout(self, layers: str | None = None) -> npt.NDArray[np.float64]:
        """Follow attention through a stack of layers; see :func:`regard.looking.rollout.rollout`.

        Args:
            layers: A pattern of layers, as ``encoder.*``; None where the model has one stack of self-attention.

        Returns:
            T × T; row t says how much of each input is in position t of the last layer; rows sum to 1.

        Raises:
            UsageError: No such layers, several stacks, or layers that attention cannot be followed through.
        """
        return rollout(self._stack(layers))

    def flow(self, layers: str | None = None) -> npt.NDArray[np.float64]:
        """Follow attention through a stack of layers as a flow; see :func:`regard.looking.flow.attention_flow`.

        Args:
            layers: As for `rollout`.

        Returns:
            T × T; rows sum to 1.

        Raises:
            UsageError: As for `rollout`, or too many weights.
        """
        return attention_flow(self._stack(layers))

    def show(self) -> None:
        """Show the page: in a notebook below the cell, else in the browser, from a temporary file.

        Raises:
            UsageError: More weights than a page holds.
            ResourceError: The file cannot be written.
        """
        if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
            shell.display_pub.publish({"text/html": self._repr_html_(), "text/plain": repr(self)})
            return
        folder = Path(tempfile.mkdtemp(prefix="regard-look-"))
        self.save(folder / "look.html")
        webbrowser.open((folder / "look.html").as_uri())

    def _repr_html_(self) -> str:
        """Show the page in a notebook, in a frame of its own: its style and script touch nothing of the notebook."""
        page = html.escape(self._page(), quote=True)
        style = "width:100%;height:760px;border:0"
        may = "allow-scripts allow-downloads"
        return f'<iframe sandbox="{may}" title="attention maps" style="{style}" srcdoc="{page}"></iframe>'

    def _page(self) -> str:
        from regard.looking.look_page import look_page  # the page draws maps: importing it above would be a circle

        return look_page(self)

    def _stack(self, layers: str | None) -> list[AttentionMap]:
        """Find the layers of one stack."""
        found = [one for one in self.maps if one.kind == "self" and fnmatchcase(one.layer, layers or "*")]
        if not found:
            raise UsageError(f"no self-attention named {visible(layers or '*')!r}", where="maps", mend=self._known())
        if layers is None and any(one.queries != found[0].queries for one in found):
            raise UsageError("several stacks of layers", where="maps", mend=f"name one; {self._known()}")
        return found

    def _layer(self, name: str) -> AttentionMap:
        for one in self.maps:
            if one.layer == name:
                return one
        raise UsageError(f"no layer {visible(name)!r}", where="maps", mend=self._known())

    def _known(self) -> str:
        return f"layers are {', '.join(visible(name) for name in self.layers)}"


def _read(data: dict[str, object], key: str, kind: type[Kind]) -> Kind:
    value = data.get(key)
    if not isinstance(value, kind):
        raise FormatError(f"{key!r} is missing or is no {kind.__name__}", where="maps")
    return value


def _read_map(data: object) -> AttentionMap:
    if not isinstance(data, dict):
        raise FormatError("a map is no object", where="maps")
    kind = _read(data, "kind", str)
    if kind not in ("self", "cross"):
        raise FormatError(f"kind is {visible(kind)!r}", where="maps", mend="it is 'self' or 'cross'")
    queries, keys = (_read_side(data, new, old) for new, old in (("queries", "query_tokens"), ("keys", "key_tokens")))
    try:
        weights = np.asarray(_read(data, "weights", list), dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError("'weights' is no array of numbers", where="maps") from error
    checked: Literal["self", "cross"] = "self" if kind == "self" else "cross"
    return AttentionMap(_read(data, "layer", str), checked, queries, keys, weights)


def _read_side(data: dict[str, object], key: str, old: str) -> Side:
    if isinstance(data.get(key), dict):
        return read_places(_read(data, key, dict))
    return tuple(_read(data, old if old in data else key, list))


def _read_picture(data: object) -> Picture:
    if not isinstance(data, dict):
        raise FormatError("a picture is no object", where="maps")
    try:
        png = base64.b64decode(_read(data, "png", str), validate=True)
    except ValueError as error:
        raise FormatError("'png' is not base64", where="maps") from error
    return Picture(_read(data, "name", str), png)
