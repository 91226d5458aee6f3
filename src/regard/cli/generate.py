"""The verb ``regard generate``."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from regard.cli.options import (
    Compiled,
    Device,
    Json,
    Precision,
    answers,
    check_model_path,
    decoding,
    in_batches,
    make_ready,
    write_json,
    write_line,
)
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.tasks.images.generator import ImageGenerator


def generate(
    model: Annotated[str, Parameter(help="A run's folder or its model folder, a public folder, or a .gguf file.")],
    *,
    tokens: Annotated[int | None, Parameter(help="Tokens to write at most.")] = None,
    beam: Annotated[int | None, Parameter(help="Hypotheses kept; 1 is greedy.")] = None,
    sample: Annotated[bool | None, Parameter(help="Draw tokens, or take the best.")] = None,
    temperature: Annotated[float | None, Parameter(help="Of the draws; below 1 sharpens.")] = None,
    top_k: Annotated[int | None, Parameter(help="Draw among the k most probable.")] = None,
    top_p: Annotated[float | None, Parameter(help="Draw among the most probable that reach this probability.")] = None,
    min_p: Annotated[float | None, Parameter(help="Draw among those this times as probable as the best.")] = None,
    repetition_penalty: Annotated[float | None, Parameter(help="Above 1: what was there is less likely.")] = None,
    stop: Annotated[list[str] | None, Parameter(negative="", help="A text that ends the output. Repeatable.")] = None,
    seed: Annotated[int | None, Parameter(help="Of the draws. [default for images: 1]")] = None,
    full: Annotated[
        str | None,
        Parameter(
            help="Where the context is too short: error; cut the output; slide past the prompt's beginning; or roll: "
            "read the last half anew whenever it is full, and write on. [default: error with --tokens, else cut]"
        ),
    ] = None,
    batch: Annotated[int | None, Parameter(help="Lines answered together. [default: 64; 1 on a terminal]")] = None,
    speculate: Annotated[
        int | None, Parameter(help="Tokens proposed ahead and read in one pass; what is written stays the same.")
    ] = None,
    draft: Annotated[
        str | None,
        Parameter(help="A smaller model with the same tokenizer that proposes them. [default: the text so far]"),
    ] = None,
    stream: Annotated[bool, Parameter(negative="", help="Print pieces as they come, line after line.")] = False,
    compiled: Compiled = False,
    count: Annotated[int | None, Parameter(help="Images to make.")] = None,
    out: Annotated[
        Path | None, Parameter(name=("--out", "-o"), help="Where images go: one sheet (.png), or a new folder.")
    ] = None,
    json: Json = False,
    device: Device = "auto",
    precision: Precision = "fp32",
) -> None:
    """Go on from each line of standard input: what is written, line breaks as spaces; --json keeps them.

    From a blank line a new text begins.

    A model of images makes --count of them instead, the same for the same --seed, and writes them to --out.

    Example: regard generate runs/book --sample --top-p 0.9 <<< "In the beginning"

    Example: regard generate runs/gan --count 64 --seed 1 -o sheet.png
    """
    texts = {
        **{"tokens": tokens, "beam": beam, "sample": sample, "temperature": temperature, "top-k": top_k},
        **{"top-p": top_p, "min-p": min_p, "repetition-penalty": repetition_penalty, "stop": stop, "full": full},
        **{"batch": batch, "stream": stream or None, "compile": compiled or None},
        **{"speculate": speculate, "draft": draft},
    }
    batch = (1 if stream or sys.stdin.isatty() else 64) if batch is None else batch
    if batch < 1:
        raise UsageError(f"--batch is {batch}", mend="give at least 1")
    if stream and (json or batch > 1 or (beam or 1) > 1):
        raise UsageError("--stream with --json, a batch or beams", mend="leave one out")
    from regard import api
    from regard.decoding.options import MAX_EXTRA_TOKENS
    from regard.tasks.generator import Generation, Generator
    from regard.tasks.images.generator import ImageGenerator

    if tokens is not None and not 0 <= tokens <= MAX_EXTRA_TOKENS:
        raise UsageError(f"--tokens is {tokens}", mend=f"give 0 to {MAX_EXTRA_TOKENS:,}")
    loaded = api.load_for_use(check_model_path(model), device)
    if isinstance(loaded, ImageGenerator):
        if given := [f"--{name}" for name, value in texts.items() if value is not None]:
            raise UsageError(f"{' and '.join(given)} for a model of images", where=model, mend="leave it out")
        make_ready(loaded, precision)
        _make_images(loaded, 64 if count is None else count, 1 if seed is None else seed, out, json)
        return
    if not isinstance(loaded, Generator):
        mend = "give a causal language model, or one that makes images"
        raise UsageError("this model does not go on from texts and makes no images", where=model, mend=mend)
    if given := [f"--{name}" for name, value in {"count": count, "out": out}.items() if value is not None]:
        raise UsageError(f"{' and '.join(given)} for a model of texts", where=model, mend="leave it out")
    default = loaded.options
    if sample is False or (sample is None and beam is not None and beam > 1):
        default = replace(default, sample=False, temperature=1.0, top_k=0, top_p=1.0)
    options = decoding(
        default,
        beam=beam,
        n_best=None,
        length_penalty=None,
        max_extra_tokens=tokens,
        sample=bool(sample),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    draws = {"temperature": temperature, "top-k": top_k, "top-p": top_p, "min-p": min_p, "seed": seed}
    unused = [f"--{name}" for name, value in draws.items() if value is not None]
    if unused and not options.sample:
        raise UsageError(f"{' and '.join(unused)} without --sample", mend="add --sample, or leave it out")
    more: dict[str, Any] = {"min_p": min_p, "repetition_penalty": repetition_penalty, "speculate": speculate}
    more = {key: value for key, value in more.items() if value is not None}
    options = replace(options, **more, stop=options.stop if stop is None else tuple(stop))
    proposing: Generator | None = None
    if draft is not None:
        if not options.speculate:
            raise UsageError("--draft without --speculate", mend="add --speculate N, or leave it out")
        small = api.load_for_use(check_model_path(draft), device)
        if not isinstance(small, Generator):
            raise UsageError("this draft does not go on from texts", where=draft, mend="give a causal language model")
        proposing = small
        make_ready(proposing, precision)
    if compiled and options.speculate:
        raise UsageError("--compile with --speculate", mend="leave one out: what is proposed ahead is read at once")
    make_ready(loaded, precision, compiled)
    full = full or ("cut" if tokens is None else "error")

    def show(one: Generation) -> None:
        if json:
            counts = {"proposed": one.proposed, "accepted": one.accepted} if options.speculate else {}
            row = {"text": one.text, "logprob": one.logprob, "tokens": one.tokens, "ended": one.ended}
            write_json({**row, **counts})
        else:
            write_line(" ".join(one.text.splitlines()))

    def go_on(texts: Sequence[str], first: int) -> list[Generation]:
        how: dict[str, Any] = {"on_full": full, "first": first, "draft": proposing}
        if not stream:
            return loaded.generate(texts, options, **how)
        return loaded.generate(texts, options, **how, listen=lambda _, piece: _write(piece))

    def answer(texts: list[str], done: int) -> None:
        for one in answers(texts, done, go_on):
            write_line("") if stream else show(one)

    in_batches(sys.stdin, batch, answer)


def _make_images(maker: ImageGenerator, count: int, seed: int, out: Path | None, json: bool) -> None:
    """Write images as one sheet, or each as a file of a new folder: all of them, or nothing."""
    from regard.data.readers.picture import EXTENSIONS
    from regard.data.sheets import MAX_SHEET, sheet
    from regard.files import folder_aside, write_aside

    if out is None:
        raise UsageError("no place for the images", mend="give -o sheet.png, or -o FOLDER for a file each")
    as_sheet = out.suffix.lower() == ".png"
    if out.suffix.lower() in EXTENSIONS and not as_sheet:
        raise UsageError(
            f"a sheet is a .png, not a {out.suffix}", where=str(out), mend="give -o sheet.png, or a folder"
        )
    if as_sheet and count > MAX_SHEET:
        raise UsageError(f"{count:,} images on one sheet", mend=f"ask for {MAX_SHEET:,} at most, or give a folder")
    if not as_sheet and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError("there is something already", where=str(out), mend="give a new folder")
    images_NCYX = maker.generate(count, seed)
    if as_sheet:
        write_aside(out, sheet(images_NCYX, columns=math.ceil(math.sqrt(count))))
        files = [str(out)]
    else:
        digits = len(str(count - 1))
        names = [f"{number:0{digits}}.png" for number in range(count)]
        with folder_aside(out) as folder:
            for name, image_CYX in zip(names, images_NCYX, strict=True):
                (folder / name).write_bytes(sheet(image_CYX[None], columns=1, least_side=1))
        files = [str(out / name) for name in names]
    for number, file in enumerate(files):
        if json:
            write_json({"file": file, "seed": seed, **({} if as_sheet else {"number": number})})
        else:
            write_line(file)


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()
