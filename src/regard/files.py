"""Files written whole or not at all (aside in the same folder, synced, renamed into place), and read without trust."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from regard.errors import CheckpointError, DataError, FormatError, NumericError, ResourceError

TEMPORARY_PREFIX = ".tmp-"  # what a killed process leaves behind starts with this

_MENDS = {
    errno.ENOSPC: "free some space on this disk",
    errno.EDQUOT: "free some of your quota on this disk",
    errno.EFBIG: "raise the limit on the size of files",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder on a disk that is not read-only",
}


class Sink:
    """A file that is being written.

    Args:
        file: Where the bytes go.

    Attributes:
        size_bytes: How many bytes were written so far.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes.

        Args:
            data: The bytes; of a memoryview, whose items are bytes too.
        """
        self._file.write(data)
        self._digest.update(data)
        self.size_bytes += len(data)

    @property
    def sha256(self) -> str:
        """SHA-256 of what was written so far, in hexadecimal: no second reading of the file is needed."""
        return self._digest.hexdigest()


@contextmanager
def writing(path: Path) -> Generator[None, None, None]:
    """Turn what the operating system refuses in this block into one line for the user.

    Args:
        path: The file or folder that is being written.

    Yields:
        Nothing.

    Raises:
        ResourceError: The disk is full or read-only, a permission is missing, or the like.
    """
    try:
        yield
    except OSError as error:
        cause = f"cannot be written: {error.strerror or error}"
        raise ResourceError(cause, where=str(path), mend=_MENDS.get(error.errno or 0)) from error


@contextmanager
def synced_file(path: Path) -> Generator[Sink, None, None]:
    """Write a new file; after the block its content outlasts a power cut.

    Args:
        path: Where nothing is yet.

    Yields:
        What the block writes to.
    """
    with open(path, "xb") as file:
        yield Sink(file)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def written_aside(path: Path) -> Generator[Sink, None, None]:
    """Write a file so that, at any moment, the path holds either all of the old bytes or all of the new ones.

    Args:
        path: The file to make or to replace; its folder exists.

    Yields:
        What the block writes to. Where the block raises, the path is left as it was and nothing lies beside it.

    Raises:
        ResourceError: The disk is full or read-only, a permission is missing, or the like.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")
    with writing(path):
        try:
            with synced_file(temporary) as sink:
                yield sink
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def folder_aside(path: Path) -> Generator[Path, None, None]:
    """Make a folder so that, at any moment, the path holds either nothing or all of it.

    Args:
        path: Where nothing is yet, or an empty folder; its parents are made.

    Yields:
        The folder to fill, beside it. Where the block raises, nothing is left of it.

    Raises:
        ResourceError: The disk is full or read-only, a permission is missing, or the like.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.mkdir()
            yield temporary
            sync_folder(temporary)
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(path.parent)


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Hold a folder for this process alone, as long as the block runs; a killed process lets go by itself.

    Args:
        folder: An existing folder.

    Raises:
        ResourceError: Another process holds it.
    """
    with reading(folder):
        handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            mend = "wait for it, or stop it"
            raise ResourceError("another process works here", where=str(folder), mend=mend) from error
        yield
    finally:
        os.close(handle)


def write_aside(path: Path, data: bytes | str) -> None:
    """Write a whole file as `written_aside` does.

    Args:
        path: The file to make or to replace; its folder exists.
        data: Its content; text becomes UTF-8.

    Raises:
        ResourceError: The disk is full or read-only, a permission is missing, or the like.
    """
    with written_aside(path) as sink:
        sink.write(data.encode() if isinstance(data, str) else data)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder outlast a power cut.

    Args:
        folder: The folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems have no such call; they rename in order anyhow
            raise
    finally:
        os.close(descriptor)


def json_bytes(value: Any) -> bytes:
    """Write a value as one line of JSON that reads back as the same value (tuples as lists).

    Args:
        value: Of dicts with string keys, lists, tuples, strings, integers, booleans, None and finite floats.

    Returns:
        ASCII with a line feed at its end; equal values whose keys stand in the same order give equal bytes.

    Raises:
        NumericError: A number is not finite: JSON has none such.
        TypeError: A key is not a string (JSON would make it one), or a value is of another type.
    """
    _check_json(value, "$")
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def _check_json(value: Any, where: str) -> None:
    """Refuse what JSON would change; json.dumps itself does not say where the value stands."""
    match value:
        case float() if not math.isfinite(value):
            raise NumericError(f"{value} cannot be saved as JSON", where=where)
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise TypeError(f"{where}: the key {key!r} is not a string")
                _check_json(item, f"{where}.{key}")
        case list() | tuple():
            for index, item in enumerate(value):
                _check_json(item, f"{where}[{index}]")


def sha256(path: Path) -> str:
    """Hash a file.

    Args:
        path: The file.

    Returns:
        Its SHA-256 in hexadecimal.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Source:
    """A file of anyone's, read once and hashed on the way: the bytes that are verified are the bytes that are used.

    Args:
        path: The file.
        follow_links: Whether it may be a symbolic link.

    Attributes:
        path: The file.
        size_bytes: Its size.

    Raises:
        CheckpointError: It is missing or not a regular file.
        ResourceError: It may not be read.
    """

    def __init__(self, path: Path, *, follow_links: bool) -> None:
        # O_NONBLOCK: a pipe in the file's place must not make us wait for its other end.
        flags = os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
        self.path = path
        with reading(path):
            self._file = open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags))  # noqa: SIM115
        status = os.fstat(self._file.fileno())
        self.size_bytes = status.st_size
        self._digest = hashlib.sha256()
        if not stat.S_ISREG(status.st_mode):
            self._file.close()
            raise self.error("is not a regular file")

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        """SHA-256 of what was read so far, in hexadecimal; what was mapped is not in it."""
        return self._digest.hexdigest()

    def error(self, cause: str) -> CheckpointError:
        """Say what is wrong with the file.

        Args:
            cause: One clause.

        Returns:
            The error to raise.
        """
        return CheckpointError(cause, where=str(self.path))

    def fill(self, view: memoryview) -> None:
        """Read as many bytes as there is room for.

        Args:
            view: The room; its items are bytes.

        Raises:
            CheckpointError: The file ends before.
        """
        with reading(self.path):
            if self._file.readinto(view) != len(view):
                raise self.error("ends early")
        self._digest.update(view)

    def map(self, num_bytes: int) -> memoryview:
        """Map the next bytes, 1 or more, instead of reading them: private and writable memory, which is not hashed."""
        begin = self._file.tell()
        before = begin % mmap.ALLOCATIONGRANULARITY
        try:
            room = mmap.mmap(self._file.fileno(), before + num_bytes, access=mmap.ACCESS_COPY, offset=begin - before)
        except ValueError:
            raise self.error("ends early") from None
        except OSError as error:
            raise ResourceError(f"cannot be mapped: {error.strerror}", where=str(self.path)) from error
        self._file.seek(num_bytes, os.SEEK_CUR)
        return memoryview(room)[before:]

    def json(self, num_bytes: int, *, cap_bytes: int, what: str) -> dict[str, Any]:
        """Read a JSON object.

        Args:
            num_bytes: Its size.
            cap_bytes: Refuse a larger one.
            what: Its name in errors.

        Returns:
            The object.

        Raises:
            CheckpointError: It is over the cap, or not a JSON object in UTF-8 with distinct keys and finite numbers.
        """
        if num_bytes > cap_bytes:
            raise self.error(f"{what} of {num_bytes} bytes is over the limit of {cap_bytes}")
        text = bytearray(num_bytes)
        self.fill(memoryview(text))
        try:
            value = json.loads(
                text.decode(), object_pairs_hook=_distinct_keys, parse_float=_finite, parse_constant=_finite
            )
        except RecursionError:
            raise self.error(f"{what} is nested too deeply") from None
        except ValueError as error:
            raise self.error(f"{what} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise self.error(f"{what} is not a JSON object")
        return value


@contextmanager
def reading(path: Path) -> Generator[None, None, None]:
    """Turn what the operating system refuses in this block into one line for the user.

    Args:
        path: The file or folder that is being read.

    Yields:
        Nothing.

    Raises:
        CheckpointError: It is missing, a link where none is followed, or the like.
        ResourceError: It may not be read.
    """
    try:
        yield
    except PermissionError as error:
        raise ResourceError("cannot be read: permission denied", where=str(path)) from error
    except OSError as error:
        causes = {errno.ENOENT: "is missing", errno.ELOOP: "is a link, which is not followed here"}
        cause = causes.get(error.errno or 0, f"cannot be read: {error.strerror or error}")
        raise CheckpointError(cause, where=str(path)) from error


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_config(path: Path, cap_bytes: int = 1 << 24) -> dict[str, Any]:
    """Read a JSON object that lies beside a model.

    Args:
        path: The file; a link is followed.
        cap_bytes: Refuse a larger one.

    Returns:
        The object.

    Raises:
        DataError: The file is missing.
        FormatError: It is over the cap, or no JSON object in UTF-8 with distinct keys and finite numbers.
    """
    try:
        with Source(path, follow_links=True) as source:
            return source.json(source.size_bytes, cap_bytes=cap_bytes, what="the config")
    except CheckpointError as error:
        mend = "give a folder that is whole"
        if not path.exists():
            raise DataError("the file is missing", where=str(path), mend=mend) from error
        raise FormatError(error.what, where=str(path), mend=mend) from error
