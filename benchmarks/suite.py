"""A row of the suite: contenders that are made, warmed up, and timed in turn; what cannot be measured says why."""

from __future__ import annotations

import datetime
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from benchmarks.limits import Limits
from benchmarks.measure import Memory, interleave, wait
from benchmarks.results import Figure, Goal, Row

Round = Callable[[], object]


class NotMeasured(Exception):  # noqa: N818 - nothing is wrong
    """A contender cannot take part here; the message says why."""


@dataclass(frozen=True)
class Setting:
    """How a run of the suite is made.

    Attributes:
        device: Where.
        limits: Of the machine.
        scratch: A folder for models.
        is_tiny: Small models and few rounds: every line of code runs, and the figures mean nothing.
        rounds: Of each contender at most.
        row_s: Seconds that a row's rounds may take.
    """

    device: torch.device
    limits: Limits
    scratch: Path
    is_tiny: bool = False
    rounds: int = 7
    row_s: float = 30.0

    @property
    def dtype(self) -> torch.dtype:
        """Of weights that are only used: bf16 on a GPU."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    @property
    def warm(self) -> int:
        """Rounds that are not counted: on a GPU kernels are chosen and shapes compiled in more than one."""
        return 3 if self.device.type == "cuda" else 1

    def size(self, full: int, tiny: int) -> int:
        """Choose a size."""
        return tiny if self.is_tiny else full

    def folder(self, name: str, make: Callable[[Path], None]) -> Path:
        """Give a folder of that name, made at its first use."""
        folder = self.scratch / name
        if not folder.exists():
            folder.mkdir(parents=True)
            try:
                make(folder)
            except BaseException:
                folder.rename(self.scratch / f"{name}-failed-{time.monotonic_ns()}")
                raise
        return folder


@dataclass
class _Contender:
    name: str
    make: Callable[[], Round]
    is_ours: bool
    amount: float
    limit_s: float | None
    note: str | Callable[[], str]


@dataclass
class Race:
    """One row in the making.

    Attributes:
        part: Of the suite.
        name: The work.
        unit: What a rate counts.
        amount: Units of a round.
        reference: Name of the contender that ratios are beside.
        goals: What ours should reach.
        what: Sizes, in words.
        rounds: Of each at most; 0 for the run's.
        in_processes: A round is of processes of its own: nothing is to be warmed up, and they know their memory.
    """

    part: str
    name: str
    unit: str
    amount: float
    reference: str
    goals: Iterable[Goal] = ()
    what: str = ""
    rounds: int = 0
    in_processes: bool = False
    _contenders: list[_Contender] = field(default_factory=list)

    def ours(
        self,
        name: str,
        make: Callable[[], Round],
        *,
        amount: float | None = None,
        limit_s: float | None = None,
        note: str | Callable[[], str] = "",
    ) -> None:
        """Enter one of ours.

        Args:
            name: How.
            make: Builds what is needed, and gives a round.
            amount: Units of its round, where they are others.
            limit_s: Seconds that the machine's limit allows a round.
            note: What else a reader should know, asked for after the rounds.
        """
        self._contenders.append(_Contender(name, make, True, amount or self.amount, limit_s, note))

    def peer(
        self,
        name: str,
        make: Callable[[], Round],
        *,
        amount: float | None = None,
        limit_s: float | None = None,
        note: str | Callable[[], str] = "",
    ) -> None:
        """Enter a peer."""
        self._contenders.append(_Contender(name, make, False, amount or self.amount, limit_s, note))

    def skipped(self, reason: str) -> Row:
        """Give the row with nothing measured."""
        return self._row([self._blank(one, reason) for one in self._contenders])

    def run(self, setting: Setting, say: Callable[[str], None] = lambda line: None) -> Row:
        """Make all contenders, and time them in turn.

        Args:
            setting: How.
            say: Told what is being done.

        Returns:
            The row; what failed says so in it.
        """
        rounds: dict[str, Round] = {}
        figures: dict[str, Figure] = {}
        for one in self._contenders:
            say(f"{self.name}: {one.name}")
            figures[one.name] = self._blank(one, "")
            memory = Memory(setting.device)
            try:
                rounds[one.name] = one.make()
                if not self.in_processes:
                    figures[one.name] = replace(
                        figures[one.name], peak_bytes=_warm(rounds[one.name], memory, setting.warm)
                    )
            except Exception as error:
                rounds.pop(one.name, None)
                figures[one.name] = self._blank(one, _reason(error))
        say(f"{self.name}: rounds")
        most = min(self.rounds or setting.rounds, setting.rounds)
        spent, failed = interleave(rounds, rounds=most, budget_s=setting.row_s, device=setting.device)
        for one in self._contenders:
            if one.name in spent:
                note = _told(one.note)
                seconds = [round_.seconds for round_ in spent[one.name]]
                peaks = [figures[one.name].peak_bytes, *(round_.peak_bytes for round_ in spent[one.name])]
                peak = max((peak for peak in peaks if peak is not None), default=None)
                figures[one.name] = replace(figures[one.name], seconds=seconds, peak_bytes=peak, note=note)
            elif one.name in failed:
                figures[one.name] = self._blank(one, _reason(failed[one.name]))
        return self._row(list(figures.values()))

    def _blank(self, one: _Contender, reason: str) -> Figure:
        return Figure(one.name, one.is_ours, one.amount, limit_s=one.limit_s, reason=reason)

    def _row(self, figures: list[Figure]) -> Row:
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        goals = list(self.goals)
        return Row(self.part, self.name, self.unit, self.reference, figures, goals, self.what, when)


def _warm(run: Round, memory: Memory, count: int) -> int | None:
    """Run for all that is done once, and see what memory that takes beside what was loaded."""
    wait(memory.device)
    memory.rest()
    for _ in range(count):
        run()
    wait(memory.device)
    return memory.peak()


def _told(note: str | Callable[[], str]) -> str:
    if isinstance(note, str):
        return note
    try:
        return note()
    except Exception as error:
        return _reason(error)


def _reason(error: Exception) -> str:
    """Say in a few words what went wrong."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    line = next(iter(str(error).strip().splitlines()), "")[:120]
    return line if isinstance(error, NotMeasured) else f"{type(error).__name__}: {line}"


Part = Callable[[Setting], Iterator[Race]]


def run_parts(
    parts: dict[str, Part],
    setting: Setting,
    *,
    seconds: float,
    done: Callable[[Row], None],
    say: Callable[[str], None] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run parts of the suite until the time is up; rows for which there is none left are told as such.

    Args:
        parts: By name, in order.
        setting: How.
        seconds: Time for all.
        done: Given each row.
        say: Told what is being done.
        clock: Seconds.
    """
    began = clock()
    for part in parts.values():
        for race in part(setting):
            if clock() - began > seconds:
                done(race.skipped("time"))
                continue
            done(race.run(setting, say))
            if "torch._dynamo" in sys.modules:  # or graphs of rows before would count against those to come
                torch.compiler.reset()
            gc.collect()
            if setting.device.type == "cuda":
                torch.cuda.empty_cache()
