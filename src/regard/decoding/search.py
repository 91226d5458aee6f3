"""Greedy, beam search and sampling, batched. An output depends on its input alone, not on its batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from regard.attention import Segments
from regard.decoding.options import DecodeOptions
from regard.errors import NumericError, UsageError
from regard.models.interface import EncoderDecoder, LanguageModel


@dataclass(frozen=True)
class Hypothesis:
    """An output.

    Attributes:
        tokens: Without start and end.
        logprob: Natural-log probability of the tokens, and of the end where it came.
        score: ``logprob`` over the length penalty: what hypotheses are ranked by.
        ended: The end token was chosen; False where the limit cut the output.
    """

    tokens: list[int]
    logprob: float
    score: float
    ended: bool


@dataclass
class _Source:
    """What is known of one source while it is decoded."""

    limit: int
    done: list[Hypothesis] = field(default_factory=list)


def penalty(length: int, alpha: float, offset: float = 5.0) -> float:
    """Compute ((k + length) / (k + 1))^α, the length counted with the end token (k is 5 in Wu et al. 2016, eq. 14)."""
    return ((offset + length) / (offset + 1)) ** alpha


def window_start(length: int, context: int) -> int:
    """Say where a model's window begins in a text that may be longer than its context.

    A window that is full gives up its older tokens when one more comes: the last ⌊context/2⌋ (at least one) stay, the
    new one among them, and are read again. Where it begins depends on the text's length alone, so going on from a text
    that was written so far is going on with it.

    Args:
        length: Tokens of the text so far.
        context: Tokens that the model reads at once.

    Returns:
        Place of the window's first token.

    Example:
        >>> [window_start(length, 6) for length in (5, 6, 7, 10, 11)]
        [0, 0, 4, 4, 8]
    """
    step = context + 1 - max(context // 2, 1)
    return max(-(-(length - context) // step), 0) * step


@torch.inference_mode()
def decode(
    model: EncoderDecoder | LanguageModel,
    source_M: Tensor,
    segments: Segments,
    *,
    start_id: int | Tensor,
    end_id: int | Sequence[int],
    options: DecodeOptions,
    places: Sequence[int] | None = None,
    limits: Sequence[int] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    context: int | None = None,
    is_over: Callable[[list[int]], bool] | None = None,
    listen: Callable[[int, int], None] | None = None,
) -> list[list[Hypothesis]]:
    """Decode a batch of sources.

    Beam search keeps, for each source, the K best prefixes by log-probability. A prefix that ends among the K best
    continuations is set aside; a source is done when K are, or when no prefix can still beat the worst of them, or at
    its limit, where the prefixes are given as they are, with ``ended`` False. K = 1 is greedy; a K that holds every
    prefix is exhaustive search.

    Args:
        model: What decodes; in evaluation mode.
        source_M: int64, source tokens of all sources; of a language model's prompts, all but the last token of each.
        segments: Which belong together.
        start_id: Token that every output starts from; or int64, one for each source: the last token of a prompt.
        end_id: Token that ends an output, or several.
        options: How outputs are chosen.
        places: Place of each source in the user's input, for the draws; None numbers them from 0.
        limits: Tokens of each output at most; None is the source's length and ``max_extra_tokens``.
        prompts: Tokens of each prompt, for the repetition penalty and for windows.
        context: Tokens that a language model reads at once; a text that outgrows it goes on from its last ones, see
            :func:`window_start`. None where the limits leave room.
        is_over: Says of an output's tokens whether they end it, as a stop text does; the last of them counts.
        listen: Told each token of each source's only beam as it is chosen, but for one that ends it: the source's
            index, and the token.

    Returns:
        For each source up to ``n_best`` hypotheses, best first.

    Raises:
        NumericError: The model gives scores that are not numbers.
        UsageError: A banned token is none of the model's, or every one is banned.
    """
    if options.banned:
        size = model.config.target_vocab_size if isinstance(model, EncoderDecoder) else model.config.vocab_size
        banned = set(options.banned)
        if max(banned) >= size or len(banned) == size:
            what = f"banned is {str(options.banned)[:60]}, of {size} tokens"
            raise UsageError(what, where="decoding", mend="give some of the model's tokens, not all")
    if limits is None:
        room = model.max_target_tokens if isinstance(model, EncoderDecoder) else None
        limits = [length + options.max_extra_tokens for length in segments.lengths]
        limits = limits if room is None else [min(limit, room) for limit in limits]
    sources = [_Source(limit) for limit in limits]
    if not sources:
        return []
    first_B = torch.as_tensor(start_id, device=source_M.device).expand(len(sources))
    end_ids = (end_id,) if isinstance(end_id, int) else tuple(end_id)
    search = _Search(model, source_M, segments, first_B, end_ids, options, places or range(len(sources)), sources)
    search.prompts, search.context, search.is_over, search.listen = prompts, context, is_over, listen
    while search.alive:
        search.step()
    ranked = (sorted(source.done, key=lambda h: -h.score) for source in sources)
    return [hypotheses[: options.n_best] for hypotheses in ranked]


class _Search:
    """A batch being decoded: rows = the sources that are still alive × beams."""

    def __init__(
        self,
        model: EncoderDecoder | LanguageModel,
        source_M: Tensor,
        segments: Segments,
        first_B: Tensor,
        end_ids: tuple[int, ...],
        options: DecodeOptions,
        places: Sequence[int],
        sources: list[_Source],
    ) -> None:
        self.model, self.options, self.end_ids, self.places, self.sources = model, options, end_ids, places, sources
        self.prompts: Sequence[Sequence[int]] | None = None
        self.context: int | None = None
        self.is_over: Callable[[list[int]], bool] | None = None
        self.listen: Callable[[int, int], None] | None = None
        self.state = model.start(source_M, segments, options.beam)
        self.alive = list(range(len(sources)))
        self.banned = list(options.banned)
        count, beam = len(sources), options.beam
        self.last_R = first_B.repeat_interleave(beam)
        # Tokens and log-probabilities of each prefix. All but one beam start impossible, so that the first step does
        # not find the same continuation K times.
        self.tokens_BKT = np.zeros((count, beam, 0), np.int64)
        self.logprob_BK = np.full((count, beam), -np.inf)
        self.logprob_BK[:, 0] = 0.0

    def step(self) -> None:
        """Read the newest tokens, choose the next ones, set finished ones aside."""
        self._make_room()
        logits_RV, self.state = self.model.step(self.last_R, self.state)
        if self.options.repetition_penalty != 1.0:
            logits_RV = self._penalized(logits_RV)
        # In float64, so that adding up hundreds of steps rounds the same in any batch.
        logp_RV = logits_RV.double().log_softmax(-1)
        if self.options.banned:
            logp_RV[:, self.banned] = -math.inf
        token_BC, beam_BC, logprob_BC = self._draw(logp_RV) if self.options.sample else self._best(logp_RV)
        if np.isnan(logprob_BC).any():
            raise NumericError("the model's scores are not numbers", where="decoding", mend="its weights are damaged")
        beam, length = self.options.beam, self.tokens_BKT.shape[2]
        kept_B: list[int] = []
        tokens_BK: list[list[int]] = []
        parents_BK: list[list[int]] = []
        logprob_BK: list[list[float]] = []
        for place, number in enumerate(self.alive):
            source = self.sources[number]
            next_tokens: list[int] = []
            next_parents: list[int] = []
            next_logprobs: list[float] = []
            ended_here: set[int] = set()
            for rank, (token, parent, logprob) in enumerate(
                zip(token_BC[place].tolist(), beam_BC[place].tolist(), logprob_BC[place].tolist(), strict=True)
            ):
                if logprob == -np.inf:
                    continue
                stopped = length < source.limit and self._stops(place, parent, token)
                if token in self.end_ids or stopped:
                    ended_here.add(parent)
                    if rank < beam and len(source.done) < beam:
                        tokens = self.tokens_BKT[place, parent]
                        self._finish(source, np.append(tokens, token) if stopped else tokens, logprob, True)
                elif len(next_tokens) < beam:
                    next_tokens.append(token)
                    next_parents.append(parent)
                    next_logprobs.append(logprob)
            if self._is_done(source, next_logprobs):
                continue
            if length == source.limit:
                self._cut(source, place, ended_here)
                continue
            missing = beam - len(next_tokens)
            kept_B.append(place)
            self._tell(place, next_tokens[0])
            tokens_BK.append(next_tokens + [next_tokens[0]] * missing)
            parents_BK.append(next_parents + [0] * missing)
            logprob_BK.append(next_logprobs + [-np.inf] * missing)
        self._go_on(kept_B, tokens_BK, parents_BK, logprob_BK)

    def _make_room(self) -> None:
        """Read the last tokens of texts that have outgrown the context anew: exact with positions of any kind."""
        written, beam = self.tokens_BKT.shape[2], self.options.beam
        if self.context is None or self.prompts is None or not written:
            return
        rows: list[int] = []
        windows: list[list[int]] = []
        for place, number in enumerate(self.alive):
            length = len(self.prompts[number]) + written
            start = window_start(length, self.context)
            if start == window_start(length - 1, self.context):
                continue
            rows += range(place * beam, (place + 1) * beam)
            windows += [[*self.prompts[number], *tokens.tolist()][start:-1] for tokens in self.tokens_BKT[place]]
        if rows:
            tokens = [token for window in windows for token in window]
            tokens_N = torch.tensor(tokens, dtype=torch.int64, device=self.last_R.device)
            segments = Segments.ragged([len(window) for window in windows], self.last_R.device)
            anew = self.model.start(tokens_N, segments, 1)
            self.state = self.state.put(torch.tensor(rows, device=self.last_R.device), anew)

    def _stops(self, place: int, parent: int, token: int) -> bool:
        """Whether a token that is no end ends its output all the same."""
        return (
            self.is_over is not None
            and token not in self.end_ids
            and self.is_over([*self.tokens_BKT[place, parent].tolist(), token])
        )

    def _tell(self, place: int, token: int) -> None:
        if self.listen is not None and self.options.beam == 1:
            self.listen(self.alive[place], token)

    def _penalized(self, logits_RV: Tensor) -> Tensor:
        """Make tokens that were there before less likely."""
        beam, factor = self.options.beam, self.options.repetition_penalty
        seen_RV = torch.zeros_like(logits_RV, dtype=torch.bool)
        for place, number in enumerate(self.alive):
            prompt = [] if self.prompts is None else self.prompts[number]
            for row, tokens in enumerate(self.tokens_BKT[place], place * beam):
                seen_RV[row, torch.tensor([*prompt, *tokens.tolist()], dtype=torch.int64)] = True
        return torch.where(seen_RV, torch.where(logits_RV > 0, logits_RV / factor, logits_RV * factor), logits_RV)

    def _best(self, logp_RV: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find the (E + 1) K best continuations of each source: at most E K of them end, so K remain."""
        beam, vocabulary = self.options.beam, logp_RV.shape[-1]
        most = (len(self.end_ids) + 1) * beam + (16 if self.is_over else 0)  # a stop text rarely comes by many tokens
        total_BKV = torch.from_numpy(self.logprob_BK).to(logp_RV.device)[..., None] + logp_RV.unflatten(0, (-1, beam))
        best_BC = total_BKV.flatten(1).topk(min(most, beam * vocabulary), sorted=True)
        index_BC = best_BC.indices.cpu().numpy()
        return index_BC % vocabulary, index_BC // vocabulary, best_BC.values.cpu().numpy()

    def _draw(self, logp_RV: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw a continuation of each source from its own stream of numbers."""
        options, step = self.options, self.tokens_BKT.shape[2]
        # The best at 0 first, so that the smallest temperature makes the others impossible and not everything infinite.
        sorted_RV = (
            ((logp_RV - logp_RV.amax(-1, keepdim=True)) / options.temperature)
            .softmax(-1)
            .sort(dim=-1, descending=True, stable=True)
        )
        probability_RV = sorted_RV.values
        before_RV = probability_RV.cumsum(-1) - probability_RV
        keep_RV = (before_RV < options.top_p) & (probability_RV >= options.min_p * probability_RV[:, :1])
        if options.top_k:
            keep_RV[:, options.top_k :] = False
        cumulative_RV = (probability_RV * keep_RV).cumsum(-1).cpu().numpy()
        rank_R = []
        for row, number in enumerate(self.alive):
            stream = np.random.Philox(key=[options.seed, self.places[number]], counter=[0, 0, 0, step])
            point = np.random.Generator(stream).random() * cumulative_RV[row, -1]
            rank_R.append(int(np.searchsorted(cumulative_RV[row], point, side="right")))
        rank_R1 = torch.tensor(rank_R, device=logp_RV.device)[:, None].clamp(max=logp_RV.shape[-1] - 1)
        token_R1 = sorted_RV.indices.gather(-1, rank_R1)
        logprob_R1 = self.logprob_BK + logp_RV.gather(-1, token_R1).cpu().numpy()
        token_BC = token_R1.cpu().numpy()
        return token_BC, np.zeros_like(token_BC), logprob_R1

    def _finish(self, source: _Source, tokens: np.ndarray, logprob: float, ended: bool) -> None:
        score = logprob / penalty(len(tokens) + 1, self.options.length_penalty, self.options.length_offset)
        source.done.append(Hypothesis(tokens.tolist(), float(logprob), float(score), ended))

    def _is_done(self, source: _Source, live: list[float]) -> bool:
        """Whether nothing that is still going can enter the results."""
        if not live or len(source.done) >= self.options.beam:
            return True
        if len(source.done) < self.options.n_best:
            return False
        # A log-probability only falls; the penalty that helps it most is that of the longest output.
        reachable = live[0] / penalty(source.limit + 1, self.options.length_penalty, self.options.length_offset)
        worst = sorted((h.score for h in source.done), reverse=True)[self.options.n_best - 1]
        return worst >= reachable

    def _cut(self, source: _Source, place: int, ended: set[int]) -> None:
        """Stop at the limit, and say so: give prefixes as they are where too few outputs ended by themselves."""
        missing = max(self.options.n_best - len(source.done), 0)
        # A prefix that has just ended is among the results already.
        done = {beam for beam in ended if any(self.tokens_BKT[place, beam].tolist() == h.tokens for h in source.done)}
        for beam in np.argsort(-self.logprob_BK[place], kind="stable")[:missing]:
            if self.logprob_BK[place, beam] > -np.inf and beam not in done:
                self._finish(source, self.tokens_BKT[place, beam], self.logprob_BK[place, beam], False)

    def _go_on(
        self, kept_B: list[int], tokens_BK: list[list[int]], parents_BK: list[list[int]], logprob_BK: list[list[float]]
    ) -> None:
        """Bring tokens, log-probabilities and the model's state into the new order; sources that are done leave."""
        beam, device = self.options.beam, self.last_R.device
        if not kept_B:
            self.alive = []
            return
        kept, parents, tokens = np.array(kept_B), np.array(parents_BK), np.array(tokens_BK)
        rows_R = (kept[:, None] * beam + parents).flatten()
        if len(rows_R) != self.last_R.shape[0] or (rows_R != np.arange(len(rows_R))).any():
            sources_B = None if len(kept) == len(self.alive) else torch.from_numpy(kept).to(device)
            self.state = self.state.select(torch.from_numpy(rows_R).to(device), sources_B)
        past_BKT = np.take_along_axis(self.tokens_BKT[kept], parents[..., None], 1)
        self.tokens_BKT = np.concatenate([past_BKT, tokens[..., None]], -1)
        self.logprob_BK = np.array(logprob_BK)
        self.last_R = torch.from_numpy(tokens.flatten()).to(device)
        self.alive = [self.alive[place] for place in kept_B]
