"""A trained language model with its tokenizer: what goes on from prompts, and scores texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from regard.attention import Segments
from regard.attention.segments import round_up
from regard.data.batching import like_lengths
from regard.decoding import DecodeOptions, Draft, Lookup, Proposer, decode, window_start
from regard.decoding.fixed import FixedSteps, How, steps_for
from regard.errors import ContextError, DataError, UsageError
from regard.metrics.language import likelihood
from regard.metrics.measure import Measure
from regard.models.interface import LanguageModel
from regard.tasks.task import evaluating
from regard.tasks.written import Written
from regard.typed import check_texts


@dataclass(frozen=True)
class Generation:
    """What a model went on with.

    Attributes:
        text: What the tokens add to the prompt's text, a space before the first word with it; a stop text is cut off.
        logprob: Natural-log probability of its tokens, and of the end where it came.
        tokens: How many.
        ended: By the model's own end or a stop text; False where the limit cut it.
        token_ids: The tokens themselves, those of a stop text among them.
        proposed: Tokens that were proposed ahead while it was written.
        accepted: Of these, the ones that came.
    """

    text: str
    logprob: float
    tokens: int
    ended: bool
    token_ids: tuple[int, ...] = ()
    proposed: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Window:
    """A piece of a text that the model reads at once.

    Attributes:
        start: Place of its first token in the text.
        end: Place behind its last token.
        skip: Tokens at its start that only give context: their scores count in an earlier window.
    """

    start: int
    end: int
    skip: int


def windows(length: int, context: int, stride: int) -> Iterator[Window]:
    """Cut a text of too many tokens into windows, each token scored once, with context before it.

    Args:
        length: Tokens of the text.
        context: Tokens that the model reads at once.
        stride: Tokens by which one window is ahead of the one before; 1 to ``context``.

    Yields:
        The windows, in order.
    """
    done = 1  # the first token of a text is given, not predicted
    for start in range(0, max(length - 1, 1), stride):
        end = min(start + context, length)
        if end > done:
            yield Window(start, end, done - start - 1)
            done = end
        if end == length:
            return


class Vocabulary(Protocol):
    """A tokenizer, as a language model uses it.

    Attributes:
        start_id: Token before a text; None where the model knows none.
        end_ids: Tokens that end a text.
    """

    @property
    def start_id(self) -> int | None: ...
    @property
    def end_ids(self) -> tuple[int, ...]: ...

    def encode(self, text: str) -> list[int]:
        """Turn a text into tokens, without start and end."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text."""
        ...


def begun(tokenizer: Vocabulary, text: str) -> list[int]:
    """Turn the beginning of a text into tokens, the start before it: once, where the text spells it itself."""
    start_id, ids = tokenizer.start_id, tokenizer.encode(text)
    return ids if start_id is None or ids[:1] == [start_id] else [start_id, *ids]


class Generator:
    """A language model that goes on from prompts: what ``regard.load`` gives for causal models.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        options: How texts go on where the caller does not say.
        max_tokens: Tokens of a text at most.
        device: Where it runs.

    Attributes:
        steps: How steps are taken, see :class:`regard.decoding.fixed.FixedSteps`; None is by the model.
    """

    task = "lm"
    verbs = ("generate", "score")
    steps: How | None = None

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Vocabulary,
        options: DecodeOptions,
        max_tokens: int,
        device: torch.device | None = None,
    ) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.model, self.tokenizer = model.to(self.device).eval(), tokenizer
        self.options, self.max_tokens = options, max_tokens
        self.start_id, self.end_ids = tokenizer.start_id, tokenizer.end_ids
        self._fixed: dict[How, FixedSteps] = {}

    def tokenizers(self) -> dict[str, Any]:
        """Give the tokenizer by the name of its file."""
        return {"tokenizer.json": self.tokenizer}

    def generate(
        self,
        prompts: Sequence[str],
        options: DecodeOptions | None = None,
        *,
        on_full: str | None = None,
        first: int = 0,
        listen: Callable[[int, str], None] | None = None,
        batch_tokens: int = 4096,
        draft: Generator | None = None,
    ) -> list[Generation]:
        """Go on from prompts; an output does not depend on the prompts beside it, up to rounding.

        Products of more rows may add in another order; where two tokens are level, or weights are rounded, as in
        bfloat16, a last digit can decide.

        Whenever outputs have ended, the next prompts take their place.

        Args:
            prompts: Texts; an empty one starts a new text.
            options: How texts go on; None as the model was made for.
            on_full: What happens where prompt and output are more than the context: ``error`` refuses the prompt
                beforehand, ``cut`` ends the output there, ``slide`` reads only as many of a prompt's last tokens as
                leave room, ``roll`` writes on beyond it: whenever the context is full, its last half is read anew.
                None is ``error`` where the caller says how many tokens are wanted, else ``cut``.
            first: Number of the first prompt in the user's input, for draws and messages.
            listen: Told each piece of text as it comes: the prompt's index, and the piece.
            batch_tokens: Tokens that are held side by side at most, prompts and outputs.
            draft: A smaller model of the same vocabulary that proposes tokens where ``options.speculate`` asks for
                them; None looks them up in the text so far.

        Returns:
            For each prompt what the model goes on with.

        Raises:
            ContextError: A prompt leaves too little room, and ``on_full`` is ``error``; or none at all.
            DataError: An empty prompt for a model without a start token.
            UsageError: ``on_full`` is unknown, no prompt leaves room for so many tokens, or a draft of another
                vocabulary or with nothing to propose.
        """
        prompts = check_texts(prompts, "generate")
        on_full = on_full or ("cut" if options is None else "error")
        options = self.options if options is None else options
        if on_full not in ("error", "cut", "slide", "roll"):
            raise UsageError(f"unknown choice {on_full!r}", mend="choose error, cut, slide or roll")
        if on_full in ("error", "slide") and options.max_extra_tokens >= self.max_tokens:
            what = f"{options.max_extra_tokens} tokens to write; the context is {self.max_tokens}"
            raise UsageError(what, mend="ask for fewer, or choose cut or roll")
        rows = [self._prompt(text, first + n) for n, text in enumerate(prompts)]
        limits = []
        for number, row in enumerate(rows):
            room = options.max_extra_tokens if on_full == "roll" else self.max_tokens - len(row)
            if room < options.max_extra_tokens and on_full == "slide":
                rows[number] = row[options.max_extra_tokens - self.max_tokens :]
                room = options.max_extra_tokens
            if room < (1 if on_full == "cut" else options.max_extra_tokens):
                sizes = f"{len(row)} tokens and {options.max_extra_tokens} are to be written"
                what = f"{sizes}; the model's context is {self.max_tokens}"
                mend = "shorten it, ask for fewer tokens, or choose cut, slide or roll"
                raise ContextError(what, where=f"prompt {first + number + 1}", mend=mend)
            limits.append(min(room, options.max_extra_tokens))
        outputs: list[Generation | None] = [None] * len(rows)
        proposer = self._proposer(options, draft)
        # Slots of one size for needs that are alike: a prompt that needs much leaves no others waiting for its room.
        sizes = [round_up(min(len(row) + n, self.max_tokens)) for row, n in zip(rows, limits, strict=True)]
        with evaluating(self.model):
            for size in sorted(set(sizes), reverse=True):
                batch = [n for n, own in enumerate(sizes) if own == size]
                lanes = max(batch_tokens // (size * options.beam), 1)
                some = [rows[n] for n in batch], [limits[n] for n in batch], [first + n for n in batch]
                found = self._decode(*some, options, listen, batch, lanes, proposer)
                for n, output in zip(batch, found, strict=True):
                    outputs[n] = output
        return [output for output in outputs if output is not None]

    def has_room(self, prompt: str) -> bool:
        """Say whether a prompt can be gone on from: it has a token, and the context has room for one more."""
        return 0 < len(begun(self.tokenizer, prompt)) < self.max_tokens

    def score(self, texts: Sequence[str], *, stride: int = 0, batch_tokens: int = 4096) -> list[tuple[float, int]]:
        """Compute ln p of whole texts, the end counted where the model knows one.

        Args:
            texts: Texts; those over the context are read in windows.
            stride: Tokens by which a window is ahead of the one before; 0 is half the context.
            batch_tokens: Tokens of a batch at most.

        Returns:
            For each text its natural-log probability, and the number of tokens that it is over.

        Raises:
            DataError: An empty text for a model that knows neither start nor end.
        """
        rows = []
        for text in check_texts(texts, "score"):
            rows.append(np.array([*begun(self.tokenizer, text), *self.end_ids[:1]], np.int64))
            if not len(rows[-1]):
                raise DataError("an empty text", where="score", mend="give some words")
        return self.score_tokens(rows, stride=stride, batch_tokens=batch_tokens)

    def evaluate(self, texts: Sequence[str]) -> dict[str, Measure]:
        """Score how well the model foresees texts.

        Args:
            texts: Texts.

        Returns:
            ``bits_per_byte``, ``perplexity`` and ``word_perplexity``; ``perplexity`` alone where tokens do not give a
            text back.
        """
        texts = check_texts(texts, "evaluate")
        scored = self.score(texts)
        nats, tokens = -sum(total for total, _ in scored), sum(count for _, count in scored)
        sizes = sum(len(text.split()) for text in texts), sum(len(text.encode()) for text in texts)
        lost = sum(self.tokenizer.decode(self.tokenizer.encode(text)) != text for text in texts)
        return likelihood(nats, tokens, *sizes, self.signature(), lost)

    def signature(self) -> str:
        """Say how texts over the context are read."""
        return f"context:{self.max_tokens}|stride:{max(self.max_tokens // 2, 1)}"

    def score_tokens(
        self, rows: Sequence[np.ndarray], *, stride: int = 0, batch_tokens: int = 4096
    ) -> list[tuple[float, int]]:
        """Compute ln p of texts as tokens; the first token of each is given.

        Args:
            rows: Tokens of each text.
            stride: As for :meth:`score`.
            batch_tokens: Tokens of a batch at most.

        Returns:
            For each text its natural-log probability, and the number of tokens that it is over.
        """
        stride = stride or max(self.max_tokens // 2, 1)
        pieces = [(n, w) for n, row in enumerate(rows) for w in windows(len(row), self.max_tokens + 1, stride)]
        totals, counts = np.zeros(len(rows)), np.zeros(len(rows), np.int64)
        for n, logp_M, _ in self._read(rows, pieces, batch_tokens):
            totals[n] += float(logp_M.sum())
            counts[n] += len(logp_M)
        return [(float(total), int(count)) for total, count in zip(totals, counts, strict=True)]

    def foresee(
        self, rows: Sequence[np.ndarray], counts: Sequence[int], *, batch_tokens: int = 4096
    ) -> list[tuple[float, bool]]:
        """Compute ln p of the ends of texts, given what stands before them.

        Args:
            rows: int64, tokens of each text, at most one more than the context.
            counts: Tokens of each end; at least one less than the text has.
            batch_tokens: Tokens of a batch at most.

        Returns:
            For each text the natural-log probability of its end, and whether each of its tokens was the likeliest.
        """
        found = [(0.0, True)] * len(rows)
        pieces = [(n, Window(0, len(row), len(row) - 1 - counts[n])) for n, row in enumerate(rows)]
        for n, logp_M, best_M in self._read(rows, pieces, batch_tokens):
            found[n] = float(logp_M.sum()), bool(best_M.all())
        return found

    def _read(
        self, rows: Sequence[np.ndarray], pieces: Sequence[tuple[int, Window]], batch_tokens: int
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Read windows of texts, and give ln p of the tokens that count in each, and which were the likeliest."""
        lengths = np.array([w.end - w.start - 1 for _, w in pieces], np.int64)
        filled = np.flatnonzero(lengths)
        with evaluating(self.model), torch.inference_mode():
            for batch in like_lengths(lengths[filled], batch_tokens):
                some = [pieces[n] for n in filled[np.array(batch)]]
                read = [rows[n][w.start : w.end].astype(np.int64) for n, w in some]
                tokens_N = torch.from_numpy(np.concatenate([row[:-1] for row in read])).to(self.device)
                labels_M = np.concatenate([row[w.skip + 1 :] for row, (_, w) in zip(read, some, strict=True)])
                counted_N = np.concatenate(
                    [np.arange(len(r) - 1) >= w.skip for r, (_, w) in zip(read, some, strict=True)]
                )
                hidden_ND = self.model(tokens_N, Segments.ragged([len(row) - 1 for row in read], self.device))
                hidden_MD = hidden_ND[torch.from_numpy(np.flatnonzero(counted_N)).to(self.device)]
                logp_M, best_M = self._logp(hidden_MD, torch.from_numpy(labels_M).to(self.device))
                sizes = [len(row) - 1 - w.skip for row, (_, w) in zip(read, some, strict=True)]
                for (n, _), logp, best in zip(some, logp_M.split(sizes), best_M.split(sizes), strict=True):
                    yield n, logp, best

    def _logp(self, hidden_MD: torch.Tensor, labels_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute ln p of labels, and whether each is the likeliest; some rows at a time: all scores are large."""
        parts, best = [torch.empty(0, dtype=torch.float64)], [torch.empty(0, dtype=torch.bool)]
        for hidden, labels in zip(hidden_MD.split(1024), labels_M.split(1024), strict=True):
            logp_MV = self.model.head(hidden).double().log_softmax(-1)
            parts.append(logp_MV.gather(-1, labels[:, None])[:, 0].cpu())
            best.append((logp_MV.argmax(-1) == labels).cpu())
        return torch.cat(parts), torch.cat(best)

    def _prompt(self, text: str, number: int) -> list[int]:
        row = begun(self.tokenizer, text)
        if not row:
            what = "an empty text, and the model has no start token"
            raise DataError(what, where=f"prompt {number + 1}", mend="give some words")
        return row

    def _decode(
        self,
        rows: Sequence[Sequence[int]],
        limits: Sequence[int],
        places: Sequence[int],
        options: DecodeOptions,
        listen: Callable[[int, str], None] | None,
        batch: Sequence[int],
        lanes: int,
        proposer: Proposer | None,
    ) -> list[Generation]:
        read = [row[window_start(len(row), self.max_tokens) : -1] for row in rows]
        last_B = torch.tensor([row[-1] for row in rows], device=self.device)
        tokens_N = torch.tensor([token for row in read for token in row], dtype=torch.int64, device=self.device)
        written = [Written(self.tokenizer.decode, row, options.stop) for row in rows]

        def heard(number: int, token: int) -> None:
            if listen is not None and (piece := written[number].push(token)):
                listen(batch[number], piece)

        found = decode(
            self.model,
            tokens_N,
            Segments.ragged([len(row) for row in read], self.device),
            start_id=last_B,
            end_id=self.end_ids,
            options=options,
            places=places,
            limits=limits,
            prompts=rows,
            context=self.max_tokens,
            is_over=(lambda number, tokens: written[number].is_over(tokens)) if options.stop else None,
            listen=heard if listen is not None else None,
            lanes=lanes,
            proposer=proposer,
            steps=None if options.speculate else steps_for(self.model, self.steps, self._fixed),
        )
        outputs = []
        for number, (best, *_) in enumerate(found):
            text = written[number].cut(written[number].text(best.tokens))
            counts = best.proposed, best.accepted
            outputs.append(Generation(text, best.logprob, len(best.tokens), best.ended, tuple(best.tokens), *counts))
            if listen is not None and (piece := written[number].rest(outputs[-1].text)):
                listen(batch[number], piece)
        return outputs

    def _proposer(self, options: DecodeOptions, draft: Generator | None) -> Proposer | None:
        """Choose what proposes tokens ahead."""
        if draft is None:
            return Lookup() if options.speculate else None
        if not options.speculate:
            raise UsageError("a draft, and nothing to propose", where="generate", mend="set speculate to 1 or more")
        if draft.model.config.vocab_size != self.model.config.vocab_size or draft.end_ids != self.end_ids:
            sizes = f"{draft.model.config.vocab_size} tokens and the model {self.model.config.vocab_size}"
            what = f"the draft knows {sizes}, or they end texts differently"
            raise UsageError(what, where="generate", mend="give a draft with the same tokenizer")
        return Draft(draft.model, draft.max_tokens)
