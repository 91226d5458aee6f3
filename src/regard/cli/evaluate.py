"""The verb ``regard evaluate``."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from regard.cli.options import Device, Json, Model, Source, Target, check_model_path, decoding, write_json


def evaluate(
    model: Model,
    *,
    data: Annotated[
        str, Parameter(help="Pairs with the right answers; - reads TSV from standard input.", allow_leading_hyphen=True)
    ],
    source: Source = None,
    target: Target = None,
    beam: Annotated[int | None, Parameter(help="Hypotheses kept; 1 is greedy.")] = None,
    length_penalty: Annotated[float | None, Parameter(help="α of the length penalty.")] = None,
    max_extra_tokens: Annotated[int | None, Parameter(help="Output tokens beyond the input's number.")] = None,
    references: Annotated[
        Literal["line", "source"] | None, Parameter(help="source: any target listed for a source counts.")
    ] = None,
    json: Json = False,
    device: Device = "auto",
) -> None:
    """Score a model on pairs: BLEU, chrF, exact match, token error rate, each with its signature."""
    from regard.data import read_pairs
    from regard.tasks import folder
    from regard.training import hardware

    translator = folder.load(check_model_path(model), hardware.choose(device))
    options = decoding(
        translator.options, beam=beam, n_best=None, length_penalty=length_penalty, max_extra_tokens=max_extra_tokens
    )
    evaluated = translator.evaluate(read_pairs(data, source=source, target=target), options, references)
    how = f"|beam:{options.beam}|lp:{options.length_penalty}"
    if json:
        values = {name: one.value for name, one in evaluated.measures.items()}
        write_json({**values, "signatures": {name: one.signature + how for name, one in evaluated.measures.items()}})
        return
    for name, one in evaluated.measures.items():
        print(f"{name:17} {one.value:8.4f}  {one.signature}{how}")
