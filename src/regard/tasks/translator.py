"""A trained encoder–decoder with its tokenizers: what translates, scores and is evaluated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from regard.attention import Segments
from regard.data import Pair
from regard.data.batching import like_lengths
from regard.decoding import DecodeOptions, Hypothesis, decode
from regard.decoding.fixed import FixedSteps, How, steps_for
from regard.errors import ContextError
from regard.metrics.strings import measure
from regard.models.interface import EncoderDecoder
from regard.tasks.building import build
from regard.tasks.pairs import PairBatch, PairTokenizer
from regard.tasks.task import Evaluated, evaluating
from regard.typed import check_texts


@dataclass(frozen=True)
class Translation:
    """An output.

    Attributes:
        text: The output as text.
        logprob: Natural-log probability of its tokens and end.
        score: Log-probability over the length penalty.
        tokens: Tokens, the end not counted.
        token_ids: The tokens themselves.
        ended: False where the length limit cut it.
    """

    text: str
    logprob: float
    score: float
    tokens: int
    ended: bool
    token_ids: tuple[int, ...] = ()


class Translator:
    """A trained model with its tokenizers: what ``regard.load`` gives for pairs.

    Args:
        model: The model.
        tokenizer: Its tokenizers.
        options: How outputs are chosen where the caller does not say.
        max_tokens: Tokens of an input at most, its end included.
        references: How :meth:`evaluate` groups lines.
        device: Where it runs.

    Attributes:
        steps: How steps are taken, see :class:`regard.decoding.fixed.FixedSteps`; None is by the model.
    """

    task = "translate"
    verbs = ("translate", "evaluate", "score", "look")
    steps: How | None = None

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: PairTokenizer,
        options: DecodeOptions,
        max_tokens: int,
        references: Literal["line", "source"] = "line",
        device: torch.device | None = None,
    ) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.model, self.tokenizer = model.to(self.device).eval(), tokenizer
        self.options, self.max_tokens, self.references = options, max_tokens, references
        self._fixed: dict[How, FixedSteps] = {}

    def tokenizers(self) -> dict[str, Any]:
        """Give the tokenizers by the names of their files."""
        return self.tokenizer.files()

    def translate(self, texts: Sequence[str], options: DecodeOptions | None = None) -> list[str]:
        """Write the other side of each text.

        Args:
            texts: Inputs; a blank one gives a blank output.
            options: How outputs are chosen; None as the model was made for.

        Returns:
            The best output of each.
        """
        return [outputs[0].text for outputs in self.hypotheses(texts, options)]

    def hypotheses(
        self, texts: Sequence[str], options: DecodeOptions | None = None, *, batch_tokens: int = 4096, first: int = 0
    ) -> list[list[Translation]]:
        """Write the other side of each text, with log-probabilities and the n best.

        Args:
            texts: Inputs; a blank one gives a blank output.
            options: How outputs are chosen; None as the model was made for.
            batch_tokens: Source tokens of a batch at most, for each beam.
            first: Place of the first text in the user's input, for draws.

        Returns:
            For each text its outputs, best first, at most ``n_best``.

        Raises:
            ContextError: A text has more tokens than the model's context.
        """
        texts = check_texts(texts, "translate")
        options = self.options if options is None else options
        results = [[Translation("", 0.0, 0.0, 0, True)] for _ in texts]
        places = [place for place, text in enumerate(texts) if text.strip()]
        sources = self._sources([texts[place] for place in places])
        lengths = np.array([len(tokens) for tokens in sources], np.int64)
        with evaluating(self.model):
            for batch in like_lengths(lengths, max(batch_tokens // options.beam, 1)):
                where = [places[index] for index in batch]
                outputs = self._decode([sources[index] for index in batch], where, options, first)
                for place, hypotheses in zip(where, outputs, strict=True):
                    results[place] = [self._translation(h) for h in hypotheses]
        return results

    def score(self, pairs: Sequence[Pair], batch_tokens: int = 4096) -> list[tuple[float, int]]:
        """Compute log p(target | source).

        Args:
            pairs: Pairs of texts.
            batch_tokens: Tokens of a batch at most.

        Returns:
            For each pair the natural-log probability of the target and its end, and the number of tokens that is over.

        Raises:
            ContextError: A side has more tokens than the model's context.
        """
        encoded = self.tokenizer.encode(pairs)
        encoded.check(self.max_tokens, self.max_tokens, "score", "error") if pairs else None
        totals = [(0.0, 0)] * len(pairs)
        lengths = np.maximum(encoded.source_lengths, encoded.target_lengths)
        with evaluating(self.model), torch.inference_mode():
            for indices in like_lengths(lengths, batch_tokens):
                batch = encoded.batch(indices).to(self.device)
                logp_NV = self.model.head(hidden(self.model, batch)).double().log_softmax(-1)
                logp_N = logp_NV.gather(-1, batch.labels_N[:, None])[:, 0].cpu()
                for index, part in zip(indices, logp_N.split(list(batch.target_segments.lengths)), strict=True):
                    totals[index] = (float(part.sum()), len(part))
        return totals

    def evaluate(
        self,
        pairs: Sequence[Pair],
        options: DecodeOptions | None = None,
        references: Literal["line", "source"] | None = None,
        on_long: Literal["error", "empty"] = "error",
    ) -> Evaluated:
        """Translate the sources and score the outputs.

        Args:
            pairs: Sources with right answers.
            options: How outputs are chosen; None as the model was made for.
            references: ``line`` or ``source``; None as the model was made for.
            on_long: What a source over the model's context gives: an error, or an empty output.

        Returns:
            Scores, inputs and outputs.

        Raises:
            ContextError: A source is over the context and ``on_long`` is ``error``.
        """
        sources, targets = grouped(pairs, self.references if references is None else references)
        readable = sources
        if on_long == "empty":
            lengths = (len(tokens) + 1 for tokens in self.tokenizer.source.encode_all(sources))
            readable = [s if n <= self.max_tokens else "" for s, n in zip(sources, lengths, strict=True)]
        outputs = self.translate(readable, options)
        return Evaluated(measure(outputs, targets), sources, targets, outputs)

    def _sources(self, texts: Sequence[str]) -> list[np.ndarray]:
        sources = []
        for text, tokens in zip(texts, self.tokenizer.source.encode_all(texts), strict=True):
            if len(tokens) + 1 > self.max_tokens:
                shown = text if len(text) <= 40 else f"{text[:40]}…"
                lengths = f"the input {shown!r} has {len(tokens) + 1} tokens; the model's context is {self.max_tokens}"
                raise ContextError(lengths, mend="split the text")
            sources.append(np.append(tokens, self.tokenizer.source.end_id))
        return sources

    def _decode(
        self, sources: Sequence[np.ndarray], places: Sequence[int], options: DecodeOptions, first: int
    ) -> list[list[Hypothesis]]:
        source_M = torch.from_numpy(np.concatenate(sources).astype(np.int64)).to(self.device)
        return decode(
            self.model,
            source_M,
            Segments.ragged([len(tokens) for tokens in sources], self.device),
            start_id=self.tokenizer.target.start_id,
            end_id=self.tokenizer.target.end_id,
            options=options,
            places=[first + place for place in places],
            steps=steps_for(self.model, self.steps, self._fixed),
        )

    def _translation(self, hypothesis: Hypothesis) -> Translation:
        text = self.tokenizer.target.decode(hypothesis.tokens)
        # One output is one line; a line break can only come from a byte that the model made up.
        text = " ".join(text.splitlines())
        return Translation(
            text,
            hypothesis.logprob,
            hypothesis.score,
            len(hypothesis.tokens),
            hypothesis.ended,
            tuple(hypothesis.tokens),
        )


def hidden(model: EncoderDecoder, batch: PairBatch) -> torch.Tensor:
    """Run a model over a batch of pairs."""
    return model(batch.source_M, batch.source_segments, batch.target_N, batch.target_segments)


def grouped(pairs: Sequence[Pair], references: Literal["line", "source"]) -> tuple[list[str], list[list[str]]]:
    """Give inputs and the acceptable outputs of each.

    Args:
        pairs: Pairs, some of which may share their source.
        references: ``line`` keeps every line; ``source`` brings lines with one source together.

    Returns:
        Inputs, in the order of their first line, and outputs.
    """
    if references == "line":
        return [pair.source for pair in pairs], [[pair.target] for pair in pairs]
    targets: dict[str, list[str]] = defaultdict(list)
    for pair in pairs:
        targets[pair.source].append(pair.target)
    return list(targets), list(targets.values())


def build_model(model: Mapping[str, Any], tokenizer: PairTokenizer, where: str) -> EncoderDecoder:
    """Build a model for these vocabularies.

    Args:
        model: ``family`` and its settings.
        tokenizer: What the vocabularies are.
        where: For messages.

    Returns:
        The model, with fresh weights.

    Raises:
        ConfigError: The family is unknown or of another kind, or a setting is wrong.
    """
    sizes = {"source_vocab_size": tokenizer.source.vocab_size, "target_vocab_size": tokenizer.target.vocab_size}
    return build(model, "transformer", sizes, EncoderDecoder, "read one text and write another", where)
