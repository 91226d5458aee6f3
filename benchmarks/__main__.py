"""The benchmark suite: our figures, the peers' beside them, and the machine's limits.

python -m benchmarks cpu                        all parts, about twenty minutes; also `make bench`
python -m benchmarks cpu --only decode,encode   some
python -m benchmarks gpu                        one GPU, within six minutes
python -m benchmarks table FILE.json            a file of results as a Markdown table

Each row's contenders run in turn in one process, a round of each; ratios are taken round by round. Results go to
benchmarks/results, a file for each machine and day; a part that is run again replaces its rows there.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch  # before regard: engines that share this process wait for their threads as PyTorch does by itself
from rich.console import Console

from regard.errors import RegardError, ResourceError, UsageError

if TYPE_CHECKING:
    from benchmarks.results import Report, Row

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("regard", "torch", "transformers", "ctranslate2", "onnxruntime", "torchvision", "numpy", "pillow")
MINUTES = {"cpu": 20.0, "gpu": 4.5}  # a row that has begun is brought to its end


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, shown in (("cpu", "measure on the processor"), ("gpu", "measure on one GPU")):
        one = kinds.add_parser(kind, help=shown, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        one.add_argument("--only", default="", help="parts, with commas between; all by default")
        one.add_argument("--minutes", type=float, default=MINUTES[kind], help="rows that do not fit in are left out")
        one.add_argument("--rounds", type=int, default=7, help="of each contender at most")
        one.add_argument("--row-seconds", type=float, default=20.0 if kind == "cpu" else 6.0, help="rounds of a row")
        one.add_argument("--threads", type=int, default=0, help="of the processor; 0 for torch's choice")
        one.add_argument("--out", type=Path, help="folder of the results; benchmarks/results, and none with --tiny")
        one.add_argument("--device", default="cuda" if kind == "gpu" else "cpu", help="cpu with --tiny")
        one.add_argument("--tiny", action="store_true", help="small models: tests the suite, measures nothing")
    table = kinds.add_parser("table", help="print a file of results as a Markdown table")
    table.add_argument("file", type=Path)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite, or print a table.

    Returns:
        The exit code.
    """
    given = arguments(argv)
    try:
        if given.kind == "table":
            from benchmarks import results

            if not given.file.is_file():
                raise UsageError("there is no such file", where=str(given.file), mend="give one of benchmarks/results")
            print(results.markdown(results.read(given.file)))
            return 0
        measure(given)
    except RegardError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def measure(given: argparse.Namespace) -> None:
    """Measure what was asked for, print the table and write the file after every row."""
    if given.threads:
        os.environ["OMP_NUM_THREADS"] = str(given.threads)  # for the processes that rows start
        torch.set_num_threads(given.threads)

    if given.device == "cuda" and not torch.cuda.is_available():
        mend = "run it on a machine with one; `python -m benchmarks cpu` measures on the processor"
        raise ResourceError("there is no GPU here", where="benchmarks gpu", mend=mend)
    if given.kind == "gpu" and given.device != "cuda" and not given.tiny:
        raise UsageError("the GPU's rows on a processor", where="--device", mend="add --tiny, which tests their code")
    from benchmarks import cpu, gpu, limits, results
    from benchmarks.suite import Setting, run_parts
    from regard.training import hardware

    parts = {"cpu": cpu.PARTS, "gpu": gpu.PARTS}[given.kind]
    wanted = [name for name in given.only.split(",") if name] or list(parts)
    if unknown := [name for name in wanted if name not in parts]:
        raise UsageError(f"no part is called {unknown[0]!r}", where="--only", mend=f"choose from {', '.join(parts)}")
    device, began = hardware.choose(given.device), time.monotonic()
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    console, told = Console(width=None if sys.stdout.isatty() else 200), Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as scratch, told.status("limits of the machine") as status:
        found = limits.measure(device, given.tiny)
        report = _report(given.kind, device, found.named(), busy)
        folder = given.out or (Path(scratch) if given.tiny else RESULTS)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / report.file_name
        kept = results.read(path).rows if path.exists() else []

        def done(row: Row) -> None:
            nonlocal report
            report = report.with_row(row)
            results.write(report.after(kept), path)
            told.print(f"{time.monotonic() - began:5.0f} s  {results.line(row)}", highlight=False, soft_wrap=True)

        setting = Setting(device, found, Path(scratch), given.tiny, given.rounds, given.row_seconds)
        seconds = 60 * given.minutes - (time.monotonic() - began)
        run_parts({name: parts[name] for name in wanted}, setting, seconds=seconds, done=done, say=status.update)
    results.show(report, console)
    told.print(f"{len(report.rows)} rows in {path}; {time.monotonic() - began:.0f} s", soft_wrap=True)


def _report(kind: str, device: torch.device, limits: dict[str, float], busy: float) -> Report:
    """Say what is measured on, and with what."""
    from benchmarks.results import Report
    from regard.training import hardware

    threads = torch.get_num_threads()
    named = hardware.describe(device).partition(f", {threads} thread")[0].partition(", torch ")[0]
    versions = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Report(kind, named, threads, date, versions, limits, busy=busy)


if __name__ == "__main__":
    sys.exit(main())
