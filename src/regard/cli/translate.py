"""The verb ``regard translate``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import Parameter

from regard.cli.options import (
    Compiled,
    Device,
    Json,
    Model,
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


def translate(
    model: Model,
    *,
    beam: Annotated[int | None, Parameter(help="Hypotheses kept; 1 is greedy.")] = None,
    n_best: Annotated[int | None, Parameter(help="Outputs of each line.")] = None,
    length_penalty: Annotated[float | None, Parameter(help="α of the length penalty.")] = None,
    max_extra_tokens: Annotated[int | None, Parameter(help="Output tokens beyond the input's number.")] = None,
    sample: Annotated[bool, Parameter(negative="", help="Draw tokens instead of taking the best.")] = False,
    temperature: Annotated[float | None, Parameter(help="Of the draws; below 1 sharpens.")] = None,
    top_k: Annotated[int | None, Parameter(help="Draw among the k most probable.")] = None,
    top_p: Annotated[float | None, Parameter(help="Draw among the most probable that reach this probability.")] = None,
    seed: Annotated[int | None, Parameter(help="Of the draws.")] = None,
    batch: Annotated[
        int | None,
        Parameter(help="Lines translated together; 1 answers each at once, as on a terminal. [default: 256]"),
    ] = None,
    compiled: Compiled = False,
    json: Json = False,
    device: Device = "auto",
    precision: Precision = "fp32",
) -> None:
    """Translate standard input: one line in, one line out, in order; blank lines stay blank.

    Example: cat x.de | regard translate runs/mine > y.en
    """
    batch = (1 if sys.stdin.isatty() else 256) if batch is None else batch
    draws = {"temperature": temperature, "top-k": top_k, "top-p": top_p, "seed": seed}
    unused = [f"--{name}" for name, value in draws.items() if value is not None]
    if unused and not sample:
        raise UsageError(f"{' and '.join(unused)} without --sample", mend="add --sample, or leave it out")
    if batch < 1:
        raise UsageError(f"--batch is {batch}", mend="give at least 1")
    from regard.tasks import folder
    from regard.tasks.translator import Translator
    from regard.training import hardware

    translator = folder.load_as(Translator, check_model_path(model), hardware.choose(device))
    options = decoding(
        translator.options,
        beam=beam,
        n_best=n_best,
        length_penalty=length_penalty,
        max_extra_tokens=max_extra_tokens,
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    make_ready(translator, precision, compiled)

    def answer(texts: list[str], done: int) -> None:
        for outputs in answers(texts, done, lambda some, first: translator.hypotheses(some, options, first=first)):
            if json:
                best = outputs[0]
                shown: dict[str, Any] = {"text": best.text, "logprob": best.logprob}
                shown |= {"tokens": best.tokens, "ended": best.ended}
                if options.n_best > 1:
                    shown["n_best"] = [{"text": o.text, "logprob": o.logprob, "score": o.score} for o in outputs]
                write_json(shown)
            else:
                # Always as many lines as were asked for, so that outputs can be told apart.
                for number in range(options.n_best):
                    write_line(outputs[number].text if number < len(outputs) else "")

    in_batches(sys.stdin, batch, answer)
