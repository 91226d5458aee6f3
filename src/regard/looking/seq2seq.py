"""Attention maps of an encoder–decoder: run it on one input, record every layer, name the tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from regard.attention import Site, record
from regard.errors import UsageError
from regard.looking.attention_map import AttentionMap
from regard.looking.doing import check_ids, check_length, check_text, log_probability, text_of
from regard.looking.maps import Maps
from regard.looking.spill import Sheets
from regard.tasks.pairs import EncodedPairs
from regard.tasks.task import Product, evaluating
from regard.tasks.translator import Translator, hidden


def can_look(product: Product | Translator) -> bool:
    """Say whether a model attends at all."""
    return any(isinstance(module, Site) for module in product.model.modules())


def look(
    translator: Translator,
    text: str,
    target: str | None = None,
    layers: str | Sequence[str] | None = None,
    target_ids: Sequence[int] | None = None,
) -> Maps:
    """Show what a model looks at while it reads a text and writes the other side.

    The output is decoded first (or given), then read once more as a whole with every layer recorded: the weights are
    those of decoding, exactly. Rows of cross-attention are named by the token that they help to write.

    Args:
        translator: The model.
        text: Input.
        target: Output to look at; None decodes it.
        layers: Names or patterns of layers; None for all.
        target_ids: Instead of ``target``, the output's tokens without its start. Where the last of them is no end, the
            output counts as not ended.

    Returns:
        The maps.

    Raises:
        UsageError: The text is empty, the model has no attention, or a token is none of the model's.
        ContextError: The text, or an output that is given, is longer than the model's context.
    """
    check_text(text)
    if not can_look(translator):
        raise UsageError("this model has no attention to look at", where="look", mend="train one with attention")
    details: dict[str, str] = {}
    if target_ids is not None:
        tokens, ended = check_ids(translator, target_ids)
        target, written_ids = text_of(translator, tokens), np.array(tokens, np.int32)
    elif target is None:
        best = translator.hypotheses([text])[0][0]
        target, written_ids, ended = best.text, np.array(best.token_ids, np.int32), best.ended
        details = {"complete": "yes" if ended else "no, cut at the limit"}
    else:
        written_ids, ended = translator.tokenizer.target.encode_all([target])[0], True
    # An empty output is possible: then its end token alone is shown.
    encoded = EncodedPairs(translator.tokenizer.source.encode_all([text]), [written_ids], translator.tokenizer)
    check_length("input", int(encoded.source_lengths[0]), translator.max_tokens)
    if not details:  # what the model wrote itself fits it, however long
        check_length("output", int(encoded.target_lengths[0]), translator.max_tokens)
    batch = encoded.batch([0]).to(translator.device)
    model = translator.model
    with torch.inference_mode(), evaluating(model):
        sheets = Sheets(len(encoded.sources[0]))
        with record(model, layers, sink=sheets):
            model.start(batch.source_M, batch.source_segments, 1)
            of_source = set(sheets.within)
            sheets.num_queries = len(batch.target_N)  # a recurrent decoder may attend once a step
            hidden_ND = hidden(model, batch)
        # What would have come after the limit was never written, and does not count.
        labels = batch.labels_N.tolist()[: len(written_ids) + ended]
        scores = log_probability(model, hidden_ND[: len(labels)], labels)
    source = tuple(translator.tokenizer.source.pieces(encoded.sources[0].tolist()))
    read, written = (
        tuple(translator.tokenizer.target.pieces(t.tolist())) for t in (encoded.targets[0][:-1], encoded.targets[0][1:])
    )
    if not ended:  # what would have come after the limit was never written
        written = (*written[:-1], "…")
    maps: list[AttentionMap] = []
    for name, within in sheets.within.items():
        queries, keys = (source, source) if name in of_source else (read, read) if within else (written, source)
        maps.append(AttentionMap(name, "self" if within else "cross", queries, keys, sheets.weights(name)))
    return Maps(title=text, source=text, output=target, maps=tuple(maps), details=details, scores=scores)
