"""Where things lie on this machine: the folders that a user names, and the cache."""

from __future__ import annotations

import os
import re
from pathlib import Path

from regard.errors import DataError, ResourceError, UsageError


def on_disk(path: str | Path) -> Path:
    """Tell a folder or file from what only names a model elsewhere: nothing is ever fetched here.

    Args:
        path: What the user gave.

    Returns:
        The path, where something is there or it looks like a path.

    Raises:
        UsageError: It is a URL; or it looks like a model's name on a hub, ``owner/name``, and nothing is there.
    """
    text = str(path)
    if re.match(r"\w{2,}:/", text):  # a Path joins two slashes into one
        raise UsageError("a model is a folder, not a URL", where=text, mend="download it first")
    owner, _, name = text.partition("/")
    is_name = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text)
    if is_name and not os.path.lexists(text) and not os.path.lexists(owner):
        mend = f"fetch it first (git clone, or the hub's own client), then give its folder: ./{name}"
        raise UsageError("no such folder, and regard fetches no model by name", where=text, mend=mend)
    return Path(path)


def existing(path: str | Path) -> Path:
    """Find a model that a setting names.

    Args:
        path: What the user gave.

    Returns:
        The path.

    Raises:
        DataError: Nothing is there.
        UsageError: As of :func:`on_disk`.
    """
    found = on_disk(path)
    if not found.exists():
        raise DataError("no such folder or file", where=str(path))
    return found


def cache_folder() -> Path:
    """Find the folder of what can be made again: REGARD_CACHE, else XDG_CACHE_HOME/regard, else ~/.cache/regard.

    Returns:
        An absolute path, which need not exist.

    Raises:
        ResourceError: No variable is set and there is no home folder.
    """
    if own := os.environ.get("REGARD_CACHE"):
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):
        return Path(shared) / "regard"
    try:
        return Path.home() / ".cache" / "regard"
    except RuntimeError:
        raise ResourceError("there is no home folder for the cache", mend="set REGARD_CACHE to a folder") from None
