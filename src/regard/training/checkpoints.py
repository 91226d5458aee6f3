"""Checkpoints: a run's weights, optimizer and state at a step, whole or not there, verified byte for byte when read.

::

    checkpoints/step-00001234/model.safetensors      weights by name
                              optimizer.safetensors  the optimizer's tensors
                              state.json             everything else
                              manifest.json          size and SHA-256 of the three, written last

A checkpoint is written in a `.tmp-` folder, which takes its name when all of it is on the disk: a killed run leaves a
whole checkpoint or none. Where there is one of the same step already, that one is renamed to `.old-step-…` first, which
counts for as long as there is no other of its step. One process at a time writes to a store.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import CheckpointError, ResourceError
from regard.files import TEMPORARY_PREFIX, Source, json_bytes, reading, sync_folder, synced_file, writing
from regard.models.weights import fit, gather, put_tensors, read_tensors, take_tensors, write_tensors

__all__ = ["Checkpoint", "Store", "fit", "gather", "read_tensors", "write_tensors"]

_MODEL, _OPTIMIZER, _STATE, _MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"
_FORMAT = 1  # of the layout above; a change of it gets the next number
_OLD_PREFIX = ".old-"
_FOLDER_NAME = re.compile(rf"(?:{re.escape(_OLD_PREFIX)})?step-([0-9]{{8,20}})")
_MAX_JSON_BYTES = 1 << 26


@dataclass(frozen=True)
class Checkpoint:
    """A run at a step.

    Attributes:
        step: Optimizer steps done.
        model: Weights by name.
        optimizer: The optimizer's tensors by name.
        state: Everything else, as JSON has it.
    """

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


@dataclass(frozen=True)
class _Record:
    """What a manifest says of a file."""

    size_bytes: int
    sha256: str


class Store:
    """The checkpoints of a run.

    Args:
        folder: Where they stand; made by the first save.

    Attributes:
        damaged: One line for each damaged checkpoint that the last call of `newest` passed over.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[str] = []

    def save(
        self, step: int, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> Path:
        """Write a checkpoint; one of the same step is replaced.

        Args:
            step: Optimizer steps done.
            model: Weights by name.
            optimizer: The optimizer's tensors by name.
            state: What JSON can hold.

        Returns:
            The checkpoint's folder.

        Raises:
            ResourceError: The disk is full or read-only, a permission is missing; other checkpoints are untouched.
            NumericError: A number in the state is not finite.
        """
        text = json_bytes(dict(state))
        if len(text) > _MAX_JSON_BYTES:
            raise ResourceError(f"a state of {len(text)} bytes is over the limit of {_MAX_JSON_BYTES}")
        final = self.folder / _name(step)
        old = self.folder / f"{_OLD_PREFIX}{final.name}"
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = self._aside(step)
            try:
                _write(temporary, step, model, optimizer, text)
                if os.path.lexists(final):
                    _remove(old)
                    final.rename(old)
                temporary.rename(final)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_folder(self.folder)
            _remove(old)
        return final

    def steps(self) -> list[int]:
        """List the steps of which there is a checkpoint, whose content is not looked at.

        Returns:
            Steps in ascending order.
        """
        return [step for step, folder in self._folders().items() if (folder / _MANIFEST).exists()]

    def newest(self) -> Checkpoint | None:
        """Read the newest checkpoint that is whole; `damaged` then says which newer ones are not, and why.

        Returns:
            The checkpoint; None where there is none.
        """
        self.damaged = []
        for step in reversed(self._folders()):
            try:
                return self.load(step)
            except CheckpointError as error:
                self.damaged.append(str(error))
        return None

    def load(self, step: int) -> Checkpoint:
        """Read a checkpoint and verify all of it.

        Args:
            step: Its step.

        Returns:
            The checkpoint.

        Raises:
            CheckpointError: It is missing or damaged.
        """
        folder, records = self._manifest(step)
        with _verified(folder / _STATE, records) as source:
            state = source.json(source.size_bytes, cap_bytes=_MAX_JSON_BYTES, what="the state")
        with _verified(folder / _OPTIMIZER, records) as source:
            optimizer = take_tensors(source)
        with _verified(folder / _MODEL, records) as source:
            model = take_tensors(source)
        return Checkpoint(step, model, optimizer, state)

    def load_model(self, step: int) -> dict[str, Tensor]:
        """Read and verify a checkpoint's weights alone.

        Args:
            step: Its step.

        Returns:
            Weights by name.

        Raises:
            CheckpointError: They are missing or damaged.
        """
        folder, records = self._manifest(step)
        with _verified(folder / _MODEL, records) as source:
            return take_tensors(source)

    def keep(self, steps: Collection[int]) -> None:
        """Remove all other checkpoints, and what killed processes left behind.

        Args:
            steps: Steps whose checkpoints stay.

        Raises:
            ResourceError: A permission is missing, or the like.
        """
        with writing(self.folder):
            folders = self._folders()
            for path in self._entries():
                if path.name.startswith((TEMPORARY_PREFIX, _OLD_PREFIX)) and path not in folders.values():
                    _remove(path)
            for step, folder in folders.items():
                if step not in steps:
                    folder.rename(aside := self._aside(step))  # a kill must not leave half of it under its name
                    _remove(aside)
                elif folder.name != _name(step):
                    folder.rename(self.folder / _name(step))  # what was to replace it never came

    def _entries(self) -> list[Path]:
        with reading(self.folder):
            return sorted(self.folder.iterdir()) if self.folder.exists() else []

    def _folders(self) -> dict[int, Path]:
        """The folder that holds each step's checkpoint, by ascending step."""
        found: dict[int, Path] = {}
        for path in self._entries():  # .old-step-… comes before step-…, which counts where both are there
            match = _FOLDER_NAME.fullmatch(path.name)
            if match and path.name.removeprefix(_OLD_PREFIX) == _name(int(match[1])):
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    def _aside(self, step: int) -> Path:
        """A path in the store where nothing is, nor counts."""
        path = self.folder / f"{TEMPORARY_PREFIX}{_name(step)}-{os.getpid()}"
        _remove(path)
        return path

    def _manifest(self, step: int) -> tuple[Path, dict[str, _Record]]:
        """A checkpoint's folder, and what its manifest says of each file."""
        folders = self._folders()
        if step not in folders:
            mend = f"choose from {', '.join(map(str, folders))}" if folders else None
            raise CheckpointError(f"there is no checkpoint of step {step}", where=str(self.folder), mend=mend)
        folder = folders[step]
        if folder.is_symlink():
            raise CheckpointError("is a link, which is not followed here", where=str(folder))
        with Source(folder / _MANIFEST, follow_links=False) as source:
            manifest = source.json(source.size_bytes, cap_bytes=_MAX_JSON_BYTES, what="the manifest")
            match manifest:
                case {"format": int(number)} if number != _FORMAT:
                    raise source.error(f"is of format {number}, and this version of regard reads format {_FORMAT}")
                case {"step": int(number)} if number != step:
                    raise source.error(f"belongs to step {number}")
                case {"files": {**files}}:
                    pass
                case _:
                    raise source.error("names no files")
            records: dict[str, _Record] = {}
            for name in (_MODEL, _OPTIMIZER, _STATE):
                match files.pop(name, None):
                    case {"bytes": int(size_bytes), "sha256": str(sha256)}:
                        records[name] = _Record(size_bytes, sha256)
                    case _:
                        raise source.error(f"does not say size and SHA-256 of {name}")
            if files:
                raise source.error(f"names {ascii(min(files))[:80]}, which is no file of a checkpoint")
            # Whatever else was changed in it, the same content written again is not the same bytes.
            if hashlib.sha256(_manifest_bytes(step, records)).hexdigest() != source.sha256:
                raise source.error("is not as it was written")
        return folder, records


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _write(folder: Path, step: int, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], state: bytes) -> None:
    """Make a folder with a checkpoint in it, all of it on the disk."""
    folder.mkdir()
    records: dict[str, _Record] = {}
    for name, tensors in ((_MODEL, model), (_OPTIMIZER, optimizer)):
        with synced_file(folder / name) as sink:
            put_tensors(sink, tensors, {}, where=name)
        records[name] = _Record(sink.size_bytes, sink.sha256)
    with synced_file(folder / _STATE) as sink:
        sink.write(state)
    records[_STATE] = _Record(sink.size_bytes, sink.sha256)
    with synced_file(folder / _MANIFEST) as sink:
        sink.write(_manifest_bytes(step, records))
    sync_folder(folder)


def _manifest_bytes(step: int, records: Mapping[str, _Record]) -> bytes:
    files = {name: {"bytes": record.size_bytes, "sha256": record.sha256} for name, record in records.items()}
    return json_bytes({"format": _FORMAT, "step": step, "files": files})


@contextmanager
def _verified(path: Path, records: Mapping[str, _Record]) -> Generator[Source, None, None]:
    """Open a file of a checkpoint; the block reads all of it, and what it read is checked after."""
    record = records[path.name]
    with Source(path, follow_links=False) as source:
        if source.size_bytes != record.size_bytes:
            raise source.error(f"holds {source.size_bytes} bytes, and the manifest says {record.size_bytes}")
        yield source
        if source.sha256 != record.sha256:
            raise source.error("has been changed or damaged: its SHA-256 is not the manifest's")


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
