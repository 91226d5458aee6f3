"""A quick start: Python does not look for garbage while a command's modules are loaded.

By itself it does so whenever enough objects were made, and goes through all that there are. Loading torch makes
hundreds of thousands, which all stay; a fifth of the time from the shell to a model's first token went into that.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

# More objects than are made until the work begins; a command that goes on without saying so is tidied now and then.
_MANY = 1_000_000

_usual: tuple[int, int, int] | None = None  # when garbage is looked for else


@contextmanager
def collecting_later() -> Generator[None]:
    """Put off looking for garbage until :func:`collect_from_now`, or the end; nothing where nobody looks for any."""
    global _usual  # Python's own setting is one for all of the process
    if gc.isenabled() and gc.get_threshold()[0]:
        _usual = gc.get_threshold()
        gc.set_threshold(max(_usual[0], _MANY), *_usual[1:])
    try:
        yield
    finally:
        _resume()


def collect_from_now() -> None:
    """Look for garbage again, if that was put off, among what is made from now on: what is loaded stays."""
    if _usual is not None:
        gc.freeze()
    _resume()


def _resume() -> None:
    global _usual
    if _usual is not None:
        gc.set_threshold(*_usual)
        _usual = None
