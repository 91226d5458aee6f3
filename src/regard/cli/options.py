"""Options that several verbs share, and what they do with standard input and output."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypeVar

from cyclopts import Parameter

from regard.errors import ContextError, DataError, FormatError, UsageError
from regard.typed import TEXT_CAP_BYTES

if TYPE_CHECKING:
    from regard.decoding import DecodeOptions

T = TypeVar("T")
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object a line.")]
Device = Annotated[str, Parameter(help="Where it runs: auto, cpu, cuda, cuda:1, …")]
Precision = Annotated[
    Literal["fp32", "bf16", "int8"],
    Parameter(
        help="Of the weights: fewer bytes are read sooner, and say less. int8 is the quickest, on the CPU; bf16 is for "
        "it, and for what writes on a GPU."
    ),
]
Compiled = Annotated[
    bool, Parameter(name="--compile", negative="", help="On a GPU: compile steps first, for half a minute.")
]
Model = Annotated[str, Parameter(help="A run's folder, or the model folder in it.")]
Source = Annotated[str | None, Parameter(help="Column (or suffix of parallel files) of the source; two texts: A,B.")]
Target = Annotated[str | None, Parameter(help="Column (or suffix of parallel files) of the target.")]


def check_model_path(path: str) -> str:
    """Refuse a model given as a URL: nothing is ever fetched here."""
    if "://" in path:
        raise UsageError("a model is a folder, not a URL", where=path, mend="download it first")
    return path


def make_ready(product: Any, precision: str, compiled: bool = False) -> None:
    """Get a model ready for use where it is; where packing rounds its weights, say on standard error how far.

    Args:
        product: The loaded model.
        precision: Of the weights.
        compiled: Its steps are to be compiled.

    Raises:
        UsageError: They are, and it is on no GPU; or the precision is not to be had there.
    """
    from regard.api import make_quick
    from regard.layers.packed import packing_error

    if error := packing_error(make_quick(product, precision, compiled)):
        print(f"regard: {precision} weights: products differ by up to {error:.1e} of the greatest", file=sys.stderr)


def lines(stream: TextIO) -> Iterator[str]:
    """Read lines as they come, without their ends.

    Args:
        stream: Standard input, read as bytes underneath.

    Yields:
        Text of each line.

    Raises:
        FormatError: A line is not UTF-8 or holds NUL; line and byte are named.
        DataError: A line is over the cap.
    """
    number = 0
    while raw := stream.buffer.readline(TEXT_CAP_BYTES + 2):
        number += 1
        where = f"standard input, line {number}"
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        if len(raw) > TEXT_CAP_BYTES:
            raise DataError(f"over {TEXT_CAP_BYTES:,} bytes", where=where, mend="split the line")
        if b"\0" in raw:
            raise FormatError("a NUL byte", where=f"{where}, byte {raw.index(0) + 1}")
        try:
            yield raw.decode()
        except UnicodeDecodeError as error:
            raise FormatError("not UTF-8", where=f"{where}, byte {error.start + 1}") from error


def in_batches(stream: TextIO, batch: int, answer: Callable[[list[str], int], None]) -> None:
    """Answer lines as they come, some together; what came before a bad line is answered before the error is told.

    Args:
        stream: Standard input.
        batch: Lines that are answered together.
        answer: Told the lines, and how many came before them.

    Raises:
        UsageError: The batch is below 1.
    """
    if batch < 1:
        raise UsageError(f"--batch is {batch}", mend="give at least 1")
    waiting: list[str] = []
    done = 0
    coming = lines(stream)
    while True:
        try:
            text = next(coming, None)
        except DataError:
            answer(waiting, done)
            raise
        if text is None:
            break
        waiting.append(text)
        if len(waiting) == batch:
            answer(waiting, done)
            done += batch
            waiting = []
    answer(waiting, done)


def write_line(text: str) -> None:
    """Print a line and hand it on at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    write_line(json.dumps(value, ensure_ascii=False, allow_nan=False))


def decoding(
    default: DecodeOptions,
    *,
    beam: int | None,
    n_best: int | None,
    length_penalty: float | None,
    max_extra_tokens: int | None,
    sample: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> DecodeOptions:
    """Change a model's decoding by what the user typed.

    Args:
        default: The model's own.
        beam: Hypotheses kept; None as in ``default``, and so for the rest.
        n_best: Outputs of each input.
        length_penalty: α.
        max_extra_tokens: Tokens beyond the input's number.
        sample: Draw tokens.
        temperature: Of the draws.
        top_k: Of the draws.
        top_p: Of the draws.
        seed: Of the draws.

    Returns:
        The options.
    """
    typed = {
        **{"beam": beam, "n_best": n_best, "length_penalty": length_penalty, "max_extra_tokens": max_extra_tokens},
        **{"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed},
    }
    changes: dict[str, Any] = {key: value for key, value in typed.items() if value is not None}
    if sample:
        changes = {"sample": True, "beam": 1, "n_best": 1, **changes}
    elif n_best is not None and beam is None:
        changes["beam"] = max(default.beam, n_best)
    elif beam is not None and n_best is None:
        changes["n_best"] = min(default.n_best, beam) if beam > 0 else default.n_best
    return replace(default, **changes)


def answers(
    texts: Sequence[str], first: int, answer: Callable[[Sequence[str], int], Iterable[T]], mend: str | None = None
) -> Iterator[T]:
    """Answer lines; where one is bad, those before it are answered, and it is named.

    Args:
        texts: The lines.
        first: Lines that came before them.
        answer: From lines, and how many came before them, to an answer each.
        mend: What to do about a line that is too long; None as the model says it.

    Yields:
        The answers.

    Raises:
        ContextError: A line is too long for the model.
        DataError: A line has not what it needs.
    """
    try:
        yield from list(answer(texts, first))
        return
    except (ContextError, DataError):
        pass
    for place, text in enumerate(texts, first):
        try:
            yield from list(answer([text], place))
        except (ContextError, DataError) as error:
            where = f"standard input, line {place + 1}"
            raise type(error)(error.what, where=where, mend=mend or error.mend) from error


def leaving_blank(answer: Callable[[list[str]], Iterable[T]]) -> Callable[[Sequence[str], int], list[T | None]]:
    """Have the lines answered that are not blank.

    Args:
        answer: From lines to an answer each.

    Returns:
        The same of any lines; a blank one has None.
    """

    def answer_all(texts: Sequence[str], first: int) -> list[T | None]:
        found = iter(answer([text for text in texts if text.strip()]))
        return [next(found) if text.strip() else None for text in texts]

    return answer_all


def for_named(paths: list[str], answer: Callable[[list[str]], Iterable[T]], write: Callable[[T | None], None]) -> None:
    """Answer lines that name files.

    Where a file is bad, those before it are answered before the error is told, which names the file.

    Args:
        paths: The lines.
        answer: From the names to an answer each.
        write: Prints an answer, or None for a blank line.
    """
    found: Iterable[T | None]
    try:
        found = leaving_blank(answer)(paths, 0)
    except DataError:
        found = (one for path in paths for one in leaving_blank(answer)([path], 0))
    for one in found:
        write(one)
