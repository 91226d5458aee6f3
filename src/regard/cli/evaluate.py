"""The verb ``regard evaluate``."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from regard.cli.options import (
    Device,
    Json,
    Model,
    Precision,
    Source,
    Target,
    check_model_path,
    decoding,
    make_ready,
    write_json,
)
from regard.errors import UsageError


def evaluate(
    model: Model,
    *,
    data: Annotated[
        str,
        Parameter(
            help="Pairs with the right answers, as labelled texts (- reads TSV from standard input); texts; or labelled"
            " images.",
            allow_leading_hyphen=True,
        ),
    ],
    source: Source = None,
    target: Target = None,
    beam: Annotated[int | None, Parameter(help="Hypotheses kept; 1 is greedy.")] = None,
    length_penalty: Annotated[float | None, Parameter(help="α of the length penalty.")] = None,
    max_extra_tokens: Annotated[int | None, Parameter(help="Output tokens beyond the input's number.")] = None,
    references: Annotated[
        Literal["line", "source"] | None, Parameter(help="source: any target listed for a source counts.")
    ] = None,
    language: Annotated[str, Parameter(help="Of the texts, for a model that is told it.")] = "",
    json: Json = False,
    device: Device = "auto",
    precision: Precision = "fp32",
) -> None:
    """Score a model, each metric with its signature.

    On pairs BLEU, chrF, exact match and token error rate; a language model on texts: bits per byte and perplexity;
    a model that fills in masks: accuracy and perplexity at hidden tokens; on labelled texts and images accuracy, F1,
    Matthews, correlations of numbers, F1 of spans.
    """
    from regard import api
    from regard.data import read_pairs
    from regard.data.documents import read_documents
    from regard.data.images import read_images
    from regard.metrics.language import LOST
    from regard.tasks import labelled, masked_texts, tagged
    from regard.tasks.filler import Filler
    from regard.tasks.generator import Generator
    from regard.tasks.images import classify as classify_images
    from regard.tasks.images.classifier import ImageClassifier
    from regard.tasks.labeller import Labeller
    from regard.tasks.tagger import Tagger
    from regard.tasks.translator import Translator

    loaded = api.load_for_use(check_model_path(model), device)
    make_ready(loaded, precision)
    how = ""
    if isinstance(loaded, Generator):
        measures = loaded.evaluate(list(read_documents(data)))
        if "bits_per_byte" not in measures:
            print(f"regard: note: {LOST}", file=sys.stderr)
    elif isinstance(loaded, Filler):
        measures = masked_texts.evaluate(loaded, list(read_documents(data)), language=language)
    elif isinstance(loaded, Translator):
        options = decoding(
            loaded.options, beam=beam, n_best=None, length_penalty=length_penalty, max_extra_tokens=max_extra_tokens
        )
        measures = loaded.evaluate(read_pairs(data, source=source, target=target), options, references).measures
        how = f"|beam:{options.beam}|lp:{options.length_penalty}"
    elif isinstance(loaded, ImageClassifier):
        images = read_images(data, image=source, label=target, **loaded.pixels.framing)
        measures = classify_images.evaluate(loaded, images).measures
    elif isinstance(loaded, Labeller):
        measures = labelled.evaluate(loaded, read_pairs(data, source=source, target=target), language)
    elif isinstance(loaded, Tagger):
        measures = tagged.evaluate(loaded, read_pairs(data, source=source, target=target))
    else:
        raise UsageError(
            "this model writes nothing that could be scored", where=model, mend=f"use regard {loaded.verbs[0]}"
        )
    if json:
        values = {name: one.value for name, one in measures.items()}
        write_json({**values, "signatures": {name: one.signature + how for name, one in measures.items()}})
        return
    for name, one in measures.items():
        print(f"{name:17} {one.value:8.4f}  {one.signature}{how}")
