"""Runs that were asked for: the last ones are kept, models work one at a time."""

from __future__ import annotations

import base64
import binascii
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.attention import Site, silence
from regard.errors import DataError, FormatError, ResourceError, UsageError
from regard.looking.attention_map import Weights
from regard.looking.doing import Step, next_tokens, text_of
from regard.looking.flow import attention_flow
from regard.looking.form import Address, base_rows, describe, is_large, main_address, read_address, rolls
from regard.looking.maps import Maps
from regard.looking.masked import save_masked
from regard.looking.reading import look
from regard.looking.rollout import rollout
from regard.looking.stacks import Stack, stacks_of
from regard.looking.text import Json
from regard.looking.tiles import Pyramid
from regard.models.interface import ImageEncoder, MaskFiller
from regard.serving.bodies import NextBody, RunBody, SaveBody, TooLargeError, field_error
from regard.tasks.filler import Filler
from regard.tasks.generator import Generator
from regard.tasks.labeller import Labeller
from regard.tasks.translator import Translator
from regard.typed import check_typed

KEPT_RUNS = 16
KEPT_WEIGHTS = 1 << 31  # of all kept runs together; large ones lie on disk
KEPT_PYRAMID_BYTES = 128 << 20
MAX_IMAGE_BYTES = 16 << 20
_WAITING = 8  # requests for one model; more are told to come again


@dataclass(frozen=True)
class Opened:
    """A model that can be looked into.

    Attributes:
        name: What it is called in the page.
        path: Where it was loaded from.
        product: As `regard.load` gave it.
    """

    name: str
    path: Path
    product: Any

    @property
    def sees(self) -> bool:
        """Say whether it takes images."""
        return isinstance(self.product.model, ImageEncoder)

    @property
    def writes(self) -> bool:
        """Say whether it writes a text."""
        return isinstance(self.product, Translator | Generator)

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages that a text can be told to be in."""
        model = self.product.model
        reads = model.encoder if isinstance(self.product, Labeller) else model
        return reads.languages if isinstance(reads, MaskFiller) else ()

    def describe(self, number: int) -> dict[str, Json]:
        """Write what the page needs to know."""
        product = self.product
        sites = [(name, one) for name, one in product.model.named_modules() if isinstance(one, Site)]
        return {
            "id": number,
            "name": self.name,
            "task": product.task,
            "takes": "image" if self.sees else "text",
            "writes": self.writes,
            "steps": self.writes,
            "languages": list(self.languages),
            "mask": product.tokenizer.mask if isinstance(product, Filler) else None,
            "sites": [{"name": name, "heads": one.num_heads} for name, one in sites],
            "parameters": sum(one.numel() for one in product.model.parameters()),
            "max_tokens": None if self.sees else product.max_tokens,
        }


@dataclass
class _Run:
    maps: Maps
    model: str
    asked: Mapping[str, Json] | None
    stacks: list[Stack]
    large: dict[Address, Weights] = field(default_factory=dict)  # what was computed of it: means, rollouts
    flows: dict[tuple[int, int], npt.NDArray[np.float32]] = field(default_factory=dict)


class Runs:
    """Models, and what was asked of them.

    Args:
        models: The models.
        saves_to: Folder in which masked models are saved.
    """

    def __init__(self, models: Sequence[Opened], saves_to: Path) -> None:
        self.models, self._saves_to = tuple(models), saves_to
        self._runs: OrderedDict[int, _Run] = OrderedDict()
        self._pyramids: OrderedDict[tuple[int, Address], Pyramid] = OrderedDict()
        self._next = 1
        self._working, self._looking = threading.Lock(), threading.RLock()
        self._places = threading.BoundedSemaphore(_WAITING)

    def add(self, body: RunBody) -> dict[str, Json]:
        """Look at an input.

        Args:
            body: What was asked.

        Returns:
            The run for the page, with its number.

        Raises:
            UsageError: A field that does not fit the model.
        """
        opened = self._model(body.model)
        with self._turn():
            maps = self._see(opened, body) if opened.sees else self._read(opened, body)
        asked = {"model": body.model, "text": body.text, "target": body.target, "language": body.language}
        return self.get(self.keep(maps, opened.name, {**asked, "off": body.off}))

    def show(self, model: int, text: str, *, target: str | None, layers: Sequence[str] | None, language: str) -> int:
        """Look at an input that was named where the server was started: a text, or a path.

        Args:
            model: The model's number.
            text: The input.
            target: An output; None lets the model write one.
            layers: Names or patterns of layers; None for all.
            language: Of the text.

        Returns:
            The run's number.
        """
        opened = self._model(model)
        maps = look(opened.product, text, target, layers, language)
        shown = None if opened.sees else text
        return self.keep(
            maps, opened.name, {"model": model, "text": shown, "target": target, "language": language, "off": {}}
        )

    def keep(self, maps: Maps, model: str, asked: Mapping[str, Json] | None) -> int:
        """Take a run in.

        Args:
            maps: What was looked at.
            model: The model's name.
            asked: What was asked for; None where nobody can ask again.

        Returns:
            The run's number.
        """
        with self._looking:
            number = self._next
            self._next += 1
            self._runs[number] = _Run(maps, model, asked, stacks_of(maps))
            self._forget()
            if is_large(maps):  # what is looked at first is there when the page asks
                self._pyramid(number, main_address(maps)).tile(1, 0, 0)
        return number

    def get(self, number: int) -> dict[str, Json]:
        """Give a run for the page.

        Args:
            number: Its number.

        Returns:
            As `describe` writes it.
        """
        run = self._run(number)
        return describe(run.maps, whole=False, model=run.model, number=number, asked=run.asked)

    def json(self, number: int) -> str:
        """Give all weights of a run as `Maps.to_json` writes them."""
        return self._run(number).maps.to_json()

    def row(self, number: int, address: str, query: int) -> bytes:
        """Give what one query attends to.

        Args:
            number: The run's number.
            address: The map's.
            query: From 0.

        Returns:
            float32, little-endian, of every key.

        Raises:
            UsageError: There is no such map or query.
        """
        run, at = self._run(number), read_address(address)
        with self._looking:
            if at.head == "flow":
                stack = self._stack(run, at)
                if (at.index, query) not in run.flows:
                    run.flows[at.index, query] = attention_flow(stack.maps, [query])[0].astype(np.float32)
                return run.flows[at.index, query].astype("<f4").tobytes()
            weights_TS = self._weights(run, at)
            if not 0 <= query < len(weights_TS):
                raise field_error(f"query {query} of {len(weights_TS)}", "query")
            return weights_TS[query].astype("<f4").tobytes()

    def tile(self, number: int, address: str, level: int, y: int, x: int) -> bytes:
        """Give a part of a map at a zoom; see :class:`regard.looking.tiles.Pyramid`.

        Args:
            number: The run's number.
            address: The map's.
            level: From 0, the map itself.
            y: Row of the tile.
            x: Column of the tile.

        Returns:
            A byte a cell.
        """
        with self._looking:
            return self._pyramid(number, read_address(address)).tile(level, y, x).tobytes()

    def base(self, number: int, layer: int) -> bytes:
        """Give what the thumbnails of a layer over a picture show; see :func:`regard.looking.form.base_rows`."""
        run = self._run(number)
        if not 0 <= layer < len(run.maps.maps):
            raise field_error(f"layer {layer} of {len(run.maps.maps)}", "layer")
        if isinstance(run.maps.maps[layer].keys, tuple):
            raise field_error("this layer attends to a text", "layer")
        return base_rows(run.maps.maps[layer]).astype("<f4").tobytes()

    def next(self, body: NextBody) -> dict[str, Json]:
        """Say what can come next in an output.

        Args:
            body: The input and what has been written.

        Returns:
            Candidates with their probabilities.

        Raises:
            UsageError: The model writes nothing.
        """
        opened = self._model(body.model)
        if not opened.writes:
            raise field_error("this model writes nothing", "model")
        text = check_typed(body.text, "text")
        with self._turn(), _off(opened, body.off):
            step: Step = next_tokens(opened.product, text, body.so_far, body.count)
        found: list[Json] = [
            {"token": one.token, "text": one.text, "probability": one.probability, "end": one.is_end}
            for one in step.candidates
        ]
        return {"text": text_of(opened.product, body.so_far, text), "candidates": found, "ended": step.ended}

    def save(self, body: SaveBody) -> str:
        """Save a model without some heads.

        Args:
            body: The heads, and the new folder's name.

        Returns:
            The folder.
        """
        opened, out = self._model(body.model), self._saves_to / body.name
        with self._turn():
            save_masked(opened.path, body.off, out)
        return str(out)

    def _read(self, opened: Opened, body: RunBody) -> Maps:
        if body.text is None or body.image is not None:
            raise field_error("this model reads a text", "text" if body.text is None else "image")
        text = check_typed(body.text, "text")
        if body.target is not None:
            if not opened.writes:
                raise field_error("this model writes nothing", "target")
            if body.target:
                check_typed(body.target, "target")
        if body.language and not opened.languages:
            raise field_error("this model is told no language", "language")
        with _off(opened, body.off):
            return look(opened.product, text, body.target, language=body.language, target_ids=body.target_ids)

    def _see(self, opened: Opened, body: RunBody) -> Maps:
        if body.image is None or body.text is not None:
            raise field_error("this model sees an image file", "image" if body.image is None else "text")
        if body.target is not None or body.target_ids is not None:
            raise field_error("this model writes nothing", "target")
        if len(body.image) > MAX_IMAGE_BYTES * 4 // 3 + 4:
            raise TooLargeError(f"a picture of over {MAX_IMAGE_BYTES:,} bytes", where="image", mend="make it smaller")
        try:
            data = base64.b64decode(body.image, validate=True)
        except binascii.Error as error:
            raise FormatError("not base64", where="image") from error
        name = body.name.rsplit("/", 1)[-1].rsplit("\\", 1)[-1] or "picture"
        with TemporaryDirectory(prefix="regard-look-") as folder, _off(opened, body.off):
            path = Path(folder) / "picture"
            path.write_bytes(data)
            try:
                maps = look(opened.product, path)
            except DataError as error:  # the file's place is nobody's business
                raise type(error)(error.what, where="image", mend=error.mend) from error
        pictures = tuple(replace(one, name=name) for one in maps.pictures)
        return replace(maps, title=name, source=name, pictures=pictures)

    def _model(self, number: int) -> Opened:
        if not 0 <= number < len(self.models):
            raise field_error(f"model {number} of {len(self.models)}", "model")
        return self.models[number]

    def _run(self, number: int) -> _Run:
        with self._looking:
            if number not in self._runs:
                raise GoneError(f"run {number} is not there, or no longer", mend="run the input again")
            self._runs.move_to_end(number)
            return self._runs[number]

    def _forget(self) -> None:
        """Let the runs go that were not asked for longest; their files go with them."""
        while len(self._runs) > KEPT_RUNS or (len(self._runs) > 2 and self._kept() > KEPT_WEIGHTS):
            number, _ = self._runs.popitem(last=False)
            for key in [key for key in self._pyramids if key[0] == number]:
                del self._pyramids[key]

    def _kept(self) -> int:
        return sum(one.weights_HTS.size for run in self._runs.values() for one in run.maps.maps)

    def _stack(self, run: _Run, at: Address) -> Stack:
        if at.index >= len(run.stacks) or not run.stacks[at.index].rolls:
            raise field_error("there is no such stack of layers", "map")
        return run.stacks[at.index]

    def _weights(self, run: _Run, at: Address) -> Weights:
        """Find a map, or compute it once."""
        if isinstance(at.head, int):
            if at.index >= len(run.maps.maps) or at.head >= len(run.maps.maps[at.index].weights_HTS):
                raise field_error("there is no such layer or head", "map")
            return run.maps.maps[at.index].weights_HTS[at.head]
        if at not in run.large:
            if at.head == "mean":
                if at.index >= len(run.maps.maps):
                    raise field_error("there is no such layer", "map")
                heads_HTS = run.maps.maps[at.index].weights_HTS
                run.large[at] = (heads_HTS if len(heads_HTS) == 1 else run.maps.maps[at.index].mean().weights_HTS)[0]
            else:
                stack = self._stack(run, at)
                if at.head != "rollout" or not rolls(stack):
                    raise field_error("this stack has no such map as a whole", "map")
                run.large[at] = rollout(stack.maps).astype(np.float32)
        return run.large[at]

    def _pyramid(self, number: int, at: Address) -> Pyramid:
        """Find the pyramid of a map, or begin one; those that were not asked for longest make room."""
        if (number, at) not in self._pyramids:
            self._pyramids[number, at] = Pyramid(self._weights(self._run(number), at))
        self._pyramids.move_to_end((number, at))
        while len(self._pyramids) > 1 and sum(p.size_bytes for p in self._pyramids.values()) > KEPT_PYRAMID_BYTES:
            self._pyramids.popitem(last=False)
        return self._pyramids[number, at]

    def _turn(self) -> _Turn:
        return _Turn(self._places, self._working)


class GoneError(UsageError):
    """A run is not kept any more."""

    http_status = 404


class BusyError(ResourceError):
    """Too many requests wait for a model."""

    http_status = 503


class _Turn:
    """A place in the line for the models, which work one at a time: each takes every core."""

    def __init__(self, places: threading.BoundedSemaphore, working: threading.Lock) -> None:
        self._places, self._working = places, working

    def __enter__(self) -> None:
        if not self._places.acquire(blocking=False):
            raise BusyError(f"{_WAITING} requests wait already", mend="come again in a while")
        self._working.acquire()

    def __exit__(self, *_: object) -> None:
        self._working.release()
        self._places.release()


def _off(opened: Opened, heads: Mapping[str, Sequence[int]]) -> AbstractContextManager[Any]:
    """Switch heads off for a while; none is no change."""
    chosen = {layer: list(found) for layer, found in heads.items() if found}
    return silence(opened.product.model, chosen) if chosen else nullcontext()
