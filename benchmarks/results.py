"""What was measured, as JSON and as a table."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Spread, ratio
from regard.errors import FormatError
from regard.files import write_aside


@dataclass(frozen=True)
class Goal:
    """What one of our figures should be.

    Attributes:
        ours: Its name.
        peer: Beside which; empty for the machine's limit.
        at_least: Times as fast as the peer, or share of the limit.
    """

    ours: str
    peer: str
    at_least: float


@dataclass(frozen=True)
class Figure:
    """What one contender did.

    Attributes:
        name: Who and how.
        is_ours: It is regard.
        amount: Units of work of a round.
        seconds: Of each round; empty where it was not measured.
        limit_s: Seconds that the machine's limit allows a round; None where no limit was worked out.
        peak_bytes: Most memory, what it loads included; None where it is not known.
        note: What else a reader should know: errors of a precision, say.
        reason: Why it was not measured.
    """

    name: str
    is_ours: bool
    amount: float
    seconds: list[float] = field(default_factory=list)
    limit_s: float | None = None
    peak_bytes: int | None = None
    note: str = ""
    reason: str = ""

    @property
    def rate(self) -> Spread | None:
        """Units a second; None where it was not measured."""
        return Spread.of([self.amount / second for second in self.seconds]) if self.seconds else None

    @property
    def of_limit(self) -> float | None:
        """Share of the machine's limit that was reached."""
        if not self.seconds or self.limit_s is None:
            return None
        return self.limit_s / Spread.of(self.seconds).median


@dataclass(frozen=True)
class Row:
    """One kind of work, and who did it.

    Attributes:
        part: Which part of the suite it is of.
        name: The work.
        unit: Of what a rate counts, without "a second".
        reference: Name of the figure that ratios are beside.
        figures: Ours and the peers'.
        goals: What ours should reach.
        what: Sizes, in words.
        when: When it was measured, ISO 8601.
    """

    part: str
    name: str
    unit: str
    reference: str
    figures: list[Figure]
    goals: list[Goal] = field(default_factory=list)
    what: str = ""
    when: str = ""

    def figure(self, name: str) -> Figure | None:
        """Find a figure that was measured."""
        return next((one for one in self.figures if one.name == name and one.seconds), None)

    def times(self, name: str, beside: str) -> Spread | None:
        """Say how many times as fast as another a contender is, as rates compare; None where one is not measured."""
        one, other = self.figure(name), self.figure(beside)
        if one is None or other is None:
            return None
        scale = one.amount / other.amount
        found = ratio(one.seconds, other.seconds)
        return Spread(found.median * scale, found.least * scale, found.greatest * scale)

    def reached(self, goal: Goal) -> float | None:
        """Say how far a goal's figure came; None where that was not measured."""
        if not goal.peer:
            one = self.figure(goal.ours)
            return None if one is None else one.of_limit
        found = self.times(goal.ours, goal.peer)
        return None if found is None else found.median


@dataclass(frozen=True)
class Report:
    """All rows of one machine and day.

    Attributes:
        kind: ``cpu`` or ``gpu``.
        hardware: The processor or card.
        threads: Of torch.
        date: ISO 8601.
        versions: Of what took part.
        limits: What was measured of the machine: GFLOP/s and GB/s by name.
        rows: In the order of the suite.
        busy: The machine's load as the run began: other work on it.
    """

    kind: str
    hardware: str
    threads: int
    date: str
    versions: dict[str, str]
    limits: dict[str, float]
    rows: list[Row] = field(default_factory=list)
    busy: float = 0.0

    @property
    def file_name(self) -> str:
        """Name of the JSON file."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.hardware.lower()).strip("-")
        threads = f"-{self.threads}-threads" if self.kind == "cpu" else ""
        return f"{slug}{threads}-{self.date}.json"

    def with_row(self, row: Row) -> Report:
        """Put a row in, in the place of one of the same name."""
        place = {(one.part, one.name): n for n, one in enumerate(self.rows)}.get((row.part, row.name))
        rows = [*self.rows, row] if place is None else [*self.rows[:place], row, *self.rows[place + 1 :]]
        return dataclasses.replace(self, rows=rows)

    def after(self, rows: list[Row]) -> Report:
        """Put rows of an earlier run in front; those of this one replace them."""
        report = dataclasses.replace(self, rows=rows)
        for row in self.rows:
            report = report.with_row(row)
        return report


def write(report: Report, path: Path) -> None:
    """Write a report as JSON, whole or not at all."""
    write_aside(path, json.dumps(dataclasses.asdict(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: Path) -> Report:
    """Read a report.

    Raises:
        FormatError: The file is none.
    """
    try:
        values = json.loads(path.read_text("utf-8"))
        rows = [_row(one) for one in values.pop("rows")]
        return Report(**values, rows=rows)
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError("not a file of results", where=str(path), mend="give one of benchmarks/results") from error


def _row(values: dict[str, Any]) -> Row:
    figures = [Figure(**one) for one in values.pop("figures")]
    goals = [Goal(**one) for one in values.pop("goals")]
    return Row(**values, figures=figures, goals=goals)


COLUMNS = ("work", "by", "a second", "× (least to greatest)", "of the limit", "peak", "goal", "")


def number(value: float) -> str:
    """Write a figure with three digits that count.

    Example:
        >>> [number(n) for n in (0.0123, 4.567, 45.67, 12345.6)]
        ['0.0123', '4.57', '45.7', '12,346']
    """
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def lines(report: Report) -> Iterator[tuple[str, ...]]:
    """Give the table's lines: one a contender, the work named in the first of a row's."""
    for row in report.rows:
        name = f"{row.name} ({row.what})" if row.what else row.name
        for figure in row.figures:
            yield (name, *_cells(row, figure))
            name = ""


def _cells(row: Row, figure: Figure) -> tuple[str, ...]:
    rate = figure.rate
    who = f"**{figure.name}**" if figure.is_ours else figure.name
    if rate is None:
        return who, f"not measured ({figure.reason})", "", "", "", "", ""
    times = row.times(figure.name, row.reference)
    ratios = "" if times is None or figure.name == row.reference else _spread(times)
    share = "" if figure.of_limit is None else f"{figure.of_limit:.0%}"
    peak = "" if figure.peak_bytes is None else f"{figure.peak_bytes / 1e6:,.0f} MB"
    goals = "; ".join(_goal(row, goal) for goal in row.goals if goal.ours == figure.name)
    return who, f"{number(rate.median)} {row.unit}", ratios, share, peak, goals, figure.note


def _spread(times: Spread) -> str:
    return f"{times.median:.2f} ({times.least:.2f} to {times.greatest:.2f})"


def _goal(row: Row, goal: Goal) -> str:
    reached = row.reached(goal)
    wanted = f"{goal.at_least:.3g} × {goal.peer}" if goal.peer else f"{goal.at_least:.0%} of the limit"
    if reached is None:
        return f"{wanted}: not measured"
    shown = f"{reached:.2f}" if goal.peer else f"{reached:.0%}"
    return f"{wanted}: {'reached' if reached >= goal.at_least else 'missed'}, {shown}"


def heading(report: Report) -> str:
    """Say where, when and with what a report was measured."""
    threads = f", {report.threads} thread{'s' if report.threads != 1 else ''}" if report.kind == "cpu" else ""
    limits = ", ".join(f"{name} {number(value)}" for name, value in report.limits.items())
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return f"{report.hardware}{threads}; {report.date}; load {report.busy:.1f} before. Limits: {limits}. {versions}."


def markdown(report: Report) -> str:
    """Write a report as a Markdown table."""
    head = [f"{heading(report)}\n", f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    return "\n".join([*head, *(f"| {' | '.join(cells)} |" for cells in lines(report))])


def line(row: Row) -> str:
    """Say in a line what came of a row."""
    rates = (f"{one.name} {number(one.rate.median)}" if one.rate else f"{one.name} –" for one in row.figures)
    return f"{row.name}: {', '.join(rates)} {row.unit}/s"


def show(report: Report, console: Console) -> None:
    """Print a report as a table."""
    table = Table(*COLUMNS, title=heading(report), title_justify="left")
    for cells in lines(report):
        if cells[0] and table.rows:
            table.add_section()
        table.add_row(*(cell.strip("*") for cell in cells), style="bold" if cells[1].startswith("**") else "")
    console.print(table)
