"""Attention maps of an encoder–decoder: run it on one input, record every layer, name the tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from regard.attention import Rows, Site, record
from regard.errors import ContextError, UsageError
from regard.looking.maps import AttentionMap, Maps
from regard.tasks.pairs import EncodedPairs
from regard.tasks.task import Product
from regard.tasks.translator import Translator, hidden


def can_look(product: Product | Translator) -> bool:
    """Say whether a model attends at all."""
    return any(isinstance(module, Site) for module in product.model.modules())


def look(
    translator: Translator, text: str, target: str | None = None, layers: str | Sequence[str] | None = None
) -> Maps:
    """Show what a model looks at while it reads a text and writes the other side.

    The output is decoded first (or given), then read once more as a whole with every layer recorded: the weights are
    those of decoding, exactly. Rows of cross-attention are named by the token that they help to write.

    Args:
        translator: The model.
        text: Input.
        target: Output to look at; None decodes it.
        layers: Names or patterns of layers; None for all.

    Returns:
        The maps.

    Raises:
        UsageError: The text is empty, or the model has no attention.
        ContextError: The text is longer than the model's context.
    """
    if not text.strip():
        raise UsageError("an empty text", where="look", mend="give some words")
    if not can_look(translator):
        raise UsageError("this model has no attention to look at", where="look", mend="train one with attention")
    details: dict[str, str] = {}
    if target is None:
        best = translator.hypotheses([text])[0][0]
        target, target_ids, ended = best.text, np.array(best.token_ids, np.int32), best.ended
        details = {
            "log-probability": f"{best.logprob:.3f}",
            "complete": "yes" if best.ended else "no, cut at the limit",
        }
    else:
        target_ids, ended = translator.tokenizer.target.encode_all([target])[0], True
    # An empty output is possible: then its end token alone is shown.
    encoded = EncodedPairs(translator.tokenizer.source.encode_all([text]), [target_ids], translator.tokenizer)
    sides = {"input": int(encoded.source_lengths[0])}
    if not details:  # what the model wrote itself fits it, however long
        sides["output"] = int(encoded.target_lengths[0])
    for side, length in sides.items():
        if length > translator.max_tokens:
            what = f"the {side} has {length} tokens; the model's context is {translator.max_tokens}"
            raise ContextError(what, where="look", mend="split the text")
    batch = encoded.batch([0]).to(translator.device)
    model = translator.model.eval()
    with torch.inference_mode(), record(model, layers) as rows:
        model.start(batch.source_M, batch.source_segments, 1)  # type: ignore[operator]
        of_source = {name for name in rows if rows[name]}
        hidden(model, batch)
    source = tuple(translator.tokenizer.source.pieces(encoded.sources[0].tolist()))
    read, written = (
        tuple(translator.tokenizer.target.pieces(t.tolist())) for t in (encoded.targets[0][:-1], encoded.targets[0][1:])
    )
    if not ended:  # what would have come after the limit was never written
        written = (*written[:-1], "…")
    maps: list[AttentionMap] = []
    for name in rows:
        if name in of_source:
            maps.append(_map(name, "self", source, source, rows[name][:1]))
        elif rows[name]:
            within = rows[name][0].within
            queries, keys = (read, read) if within else (written, source)
            maps.append(_map(name, "self" if within else "cross", queries, keys, rows[name]))
    return Maps(title=text, source=text, output=target, maps=tuple(maps), details=details)


def _map(name: str, kind: str, queries: tuple[str, ...], keys: tuple[str, ...], rows: Sequence[Rows]) -> AttentionMap:
    """Join the rows of one layer; a recurrent decoder may attend once a step."""
    weights_HTS = torch.cat([one.weights_HTS.float() for one in rows], 1)
    return AttentionMap(name, kind, queries, keys, weights_HTS.cpu().numpy())  # type: ignore[arg-type]
