"""What a user sees while a model trains: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar


class Progress:
    """Shows steps, loss, rate and time left, on standard error.

    Args:
        max_steps: Steps of the run.
        max_seconds: Seconds of the run; 0 for no limit.
        quiet: Show nothing but what :meth:`say` is given.

    Attributes:
        reads: What the rate counts: real tokens, or images.
    """

    reads: str = "token"

    def __init__(self, max_steps: int, max_seconds: float, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.max_steps, self.max_seconds, self.quiet = max_steps, max_seconds, quiet
        self._bar: Bar | None = None
        self._rate = self._loss = 0.0
        self._mark, self._tokens, self._losses = time.perf_counter(), 0, (0.0, 0)
        self._next_line = 0.0

    def __enter__(self) -> Progress:
        """Open the live line where there is a terminal."""
        if self.console.is_terminal and not self.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            self._bar = Bar(*columns, console=self.console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("training", total=1.0, text="")
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """Print a line, whole: the terminal may fold it, a file need not."""
        self.console.print(text, markup=False, soft_wrap=True)

    def step(self, step: int, seconds: float, tokens: int, loss: float) -> None:
        """Note a step.

        Args:
            step: Steps done.
            seconds: Seconds of training so far.
            tokens: What was read in this step.
            loss: Its mean loss.
        """
        self._tokens += tokens
        self._losses = (self._losses[0] + loss, self._losses[1] + 1)
        now = time.perf_counter()
        if now - self._mark < 1.0:
            return
        self._rate = self._tokens / (now - self._mark)
        self._loss = self._losses[0] / self._losses[1]
        self._mark, self._tokens, self._losses = now, 0, (0.0, 0)
        done = max(step / self.max_steps, seconds / self.max_seconds if self.max_seconds else 0.0)
        left = seconds / done - seconds
        rate = f"{self._rate:,.0f} {self.reads}s/s"
        text = f"step {step:,}/{self.max_steps:,}  loss {self._loss:.3f}  {rate}  {_clock(left)} left"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, text=text)
        elif not self.quiet and seconds >= self._next_line:
            self._next_line = seconds + 15
            self.say(text)

    def validating(self) -> None:
        """Say that the model is being scored."""
        if self._bar is not None:
            self._bar.update(self._task, text="scoring the development part …")

    def validated(self, step: int, seconds: float, scores: Mapping[str, float], monitor: str, best: bool) -> None:
        """Show a validation.

        Args:
            step: Steps done.
            seconds: Seconds of training so far.
            scores: Metrics by name.
            monitor: The one that decides.
            best: Whether it is the best so far.
        """
        if not self.quiet:
            shown = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
            self.say(f"step {step:,}  {_clock(seconds)}  dev: {shown}{f'  (best {monitor})' if best else ''}")
        self._mark, self._tokens = time.perf_counter(), 0


def _clock(seconds: float) -> str:
    """Show seconds as 1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
