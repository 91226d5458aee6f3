"""Greedy, beam search and sampling, batched. An output depends on its input alone, not on its batch, up to rounding."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.decoding.choosing import ChoosingSteps, Chosen, Told, best, draw, log_norms, penalized, widened
from regard.decoding.lanes import Group, Hypothesis, Lane, filled, penalty, window_start
from regard.decoding.options import DecodeOptions
from regard.decoding.speculating import Proposer
from regard.errors import NumericError, UsageError
from regard.kernels import native
from regard.layers.packed import is_packed
from regard.layers.packed_block import MANY_ROWS
from regard.models.interface import EncoderDecoder, LanguageModel
from regard.models.states import Room, Steps

# Where the next step begins before the host knows what this one gave: it does its own work meanwhile.
_RUNS_AHEAD = ("cuda",)


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
    is_over: Callable[[int, list[int]], bool] | None = None,
    listen: Callable[[int, int], None] | None = None,
    lanes: int | None = None,
    proposer: Proposer | None = None,
    steps: Steps | None = None,
) -> list[list[Hypothesis]]:
    """Decode sources.

    Beam search keeps, for each source, the K best prefixes by log-probability. A prefix that ends among the K best
    continuations is set aside; a source is done when K are, or when no prefix can still beat the worst of them, see
    ``early_stopping`` of the options; or at its limit, where the prefixes are given as they are, with ``ended`` False.
    K = 1 is greedy; a K that holds every prefix is exhaustive search.

    Args:
        model: What decodes; in evaluation mode.
        source_M: int64, source tokens of all sources; of a language model's prompts, all but the last token of each.
        segments: Which belong together.
        start_id: Token that every output starts from; or int64, one for each source: the last token of a prompt.
        end_id: Token that ends an output, or several.
        options: How outputs are chosen.
        places: Place of each source in the user's input, for the draws; None numbers them from 0.
        limits: Tokens of each output at most; None is the source's length and ``max_extra_tokens``.
        prompts: Tokens of each prompt, for the repetition penalty, for windows and for what is proposed ahead.
        context: Tokens that a language model reads at once; a text that outgrows it goes on from its last ones, see
            :func:`window_start`. None where the limits leave room.
        is_over: Says of a source's index and an output's tokens whether they end it, as a stop text does; the last of
            them counts.
        listen: Told each token of each source's only beam as it is chosen, but for one that ends it: the source's
            index, and the token.
        lanes: Sources that are decoded side by side: whenever outputs have ended, the next sources take their place.
            None decodes all at once.
        proposer: What proposes tokens ahead where ``options.speculate`` asks for them.
        steps: Takes the model's steps in its place, see :class:`regard.decoding.fixed.FixedSteps`; None is the model.

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
    if not len(limits):
        return []
    first_B = torch.as_tensor(start_id).expand(len(limits)).tolist()
    end_ids = (end_id,) if isinstance(end_id, int) else tuple(end_id)
    search = _Search(model, first_B, end_ids, options, places or range(len(limits)), prompts, context)
    search.is_over, search.listen, search.proposer = is_over, listen, proposer
    search.steps = steps or model
    lanes = len(limits) if lanes is None else min(max(lanes, 1), len(limits))
    found = search.run(source_M, segments, limits, lanes)
    ranked = (sorted(done, key=lambda h: -h.score) for done in found)
    return [hypotheses[: options.n_best] for hypotheses in ranked]


class _Search:
    """Sources being decoded, some of them at a time."""

    def __init__(
        self,
        model: EncoderDecoder | LanguageModel,
        first_B: Sequence[int],
        end_ids: tuple[int, ...],
        options: DecodeOptions,
        places: Sequence[int],
        prompts: Sequence[Sequence[int]] | None,
        context: int | None,
    ) -> None:
        self.model, self.first_B, self.end_ids, self.options, self.places = model, first_B, end_ids, options, places
        self.prompts, self.context = prompts, context
        self.is_over: Callable[[int, list[int]], bool] | None = None
        self.listen: Callable[[int, int], None] | None = None
        self.proposer: Proposer | None = None
        self.steps: Steps = model
        self.device, self.lengths = torch.device("cpu"), tuple[int, ...]()
        self.is_packed = isinstance(model, nn.Module) and is_packed(model)

    def run(self, source_M: Tensor, segments: Segments, limits: Sequence[int], lanes: int) -> list[list[Hypothesis]]:
        """Decode all sources, in their order, so many side by side."""
        self.device, self.lengths = source_M.device, segments.lengths
        sources = source_M.split(list(segments.lengths))
        all_lanes = [Lane(number, limit) for number, limit in enumerate(limits)]
        most = max((len(source) + limit for source, limit in zip(sources, limits, strict=True)), default=0) + 1
        most = most if self.context is None else min(most, self.context)
        longest = max(segments.lengths, default=0)
        if isinstance(self.model, EncoderDecoder):
            room = Room(lanes, max(limits) + 1, max(limits) + 1, longest, self.options.beam)
        else:
            room = Room(lanes, most + self.options.speculate, max(limits) + 1, beams=self.options.beam)
        o, waiting, group = self.options, deque(all_lanes), Group([], None)
        is_plain = o.beam == 1 and not (o.sample or o.banned or o.speculate) and o.repetition_penalty == 1.0
        chooses = is_plain and isinstance(self.steps, ChoosingSteps)
        self._take_step = self.steps.choose if chooses else self.steps.step  # type: ignore[union-attr]
        while waiting or group.lanes:
            free = lanes - len(group.lanes)
            if waiting and (not group.lanes or free >= max(lanes // 8, 1)):
                self._admit(group, [waiting.popleft() for _ in range(min(free, len(waiting)))], sources, room)
                continue
            rows = len(group.lanes) * group.width * (self.options.speculate + 1)
            with native.alone(self.is_packed and rows < MANY_ROWS):
                if self.options.beam == 1:
                    self._step_ahead(group)
                else:
                    self._step(group)
        return [lane.done for lane in all_lanes]

    def _admit(self, group: Group, lanes: list[Lane], sources: Sequence[Tensor], room: Room) -> None:
        """Read new sources in one pass, and let them join those that are being decoded."""
        read = [sources[lane.number] for lane in lanes]
        segments, tokens_N = Segments.ragged([len(source) for source in read], self.device), torch.cat(list(read))
        with native.alone(self.is_packed and len(tokens_N) < MANY_ROWS):
            fresh = Group(lanes, self.model.start(tokens_N, segments, 1, room))
        if self.proposer is not None:
            self.proposer.admit(len(group.lanes), tokens_N, segments, room)
        if self.options.beam > 1:  # the beams of a source part at its first token
            self._step(fresh)
        if not fresh.lanes:
            return
        if group.lanes:
            if group.scored is not None:  # new rows have not read their newest tokens, so nor may these
                lengths = [self.lengths[lane.number] + len(lane.tokens[0]) for lane in group.lanes]
                group.state, group.scored = group.state.rewind(lengths), None
            before = len(group.lanes) * fresh.width
            rows_R = torch.arange(before, before + len(fresh.lanes) * fresh.width)
            fresh.state = group.state.put(rows_R, fresh.state)
        group.lanes, group.state = group.lanes + fresh.lanes, fresh.state

    def _read(self, group: Group, ahead: Sequence[Sequence[int]] = ()) -> Any:
        """Read the newest token of each row, and what is proposed to come; give scores of what follows, or a choice."""
        if group.scored is not None:
            scored, group.scored = group.scored, None
            return scored
        self._make_room(group)
        tokens: list[int] = []
        for place, lane in enumerate(group.lanes):
            for row in lane.tokens:
                tokens.append(row[-1] if row else self.first_B[lane.number])
            tokens += ahead[place] if ahead else ()
        tokens_N = torch.tensor(tokens, dtype=torch.int64, device=self.device)
        if ahead and ahead[0]:
            scored, group.state = self.model.extend(tokens_N, group.state)  # type: ignore[union-attr]
        else:
            scored, group.state = self._take_step(tokens_N, group.state)
        return scored

    def _scores(self, logits_NV: Tensor, seen: Callable[[], list[list[int]]]) -> tuple[Tensor, Tensor]:
        """Give the scores among which tokens are chosen, and their normalizers."""
        logits_NV = widened(logits_NV)
        if self.options.repetition_penalty != 1.0:
            logits_NV = penalized(logits_NV, seen(), self.options.repetition_penalty)
        norms_N = log_norms(logits_NV)
        if self.options.banned:
            banned = torch.tensor(self.options.banned, device=logits_NV.device)
            logits_NV = logits_NV.index_fill(1, banned, -torch.inf)
        return logits_NV, norms_N

    def _step_ahead(self, group: Group) -> None:
        """Choose the next token of each lane; and those after it, as long as they are what was proposed."""
        ahead = self._proposals(group)
        each = len(ahead[0]) + 1
        scored = self._read(group, ahead)

        def seen() -> list[list[int]]:
            texts = [self._text(lane, lane.tokens[0]) for lane in group.lanes]
            return [text + list(more[:done]) for text, more in zip(texts, ahead, strict=True) for done in range(each)]

        if isinstance(scored, Tensor):
            logits_NV, norms_N = self._scores(scored, seen)
            if self.options.sample:
                points = [
                    self._point(lane.number, len(lane.tokens[0]) + done) for lane in group.lanes for done in range(each)
                ]
                token_N1 = draw(logits_NV, norms_N, self.options, np.array(points))
                value_N1 = logits_NV.gather(1, token_N1)
            else:
                value_N1, token_N1 = best(logits_NV, 1)
            scored = Chosen.of(value_N1, token_N1, norms_N)
        told = Told(scored)  # on its way before the next step: the host works while the device takes that
        self._run_ahead(group, scored.token_R)
        tokens, logprobs = told.numbers()
        if any(value != value for value in logprobs):
            raise NumericError("the model's scores are not numbers", where="decoding", mend="its weights are damaged")
        kept: list[int] = []
        taken: list[int] = []
        for place, lane in enumerate(group.lanes):
            lane.proposed += each - 1
            done = 0
            while True:
                at = place * each + done
                goes_on = self._take(lane, tokens[at], logprobs[at])
                done += 1
                if not goes_on or done == each or ahead[place][done - 1] != tokens[at]:
                    break
                lane.accepted += 1
            if goes_on:
                kept.append(place)
            taken.append(done)
        if each > 1 and min(taken) < each:
            lengths = [len(self._text(lane, lane.tokens[0])) - 1 for lane in group.lanes]
            group.state = group.state.rewind(lengths)
        self._leave(group, kept)

    def _run_ahead(self, group: Group, tokens_R: Tensor) -> None:
        """Read tokens that the host does not know yet, where that is of use: nobody has to read a text anew."""
        if self.device.type not in _RUNS_AHEAD or self.options.speculate or isinstance(self.model, EncoderDecoder):
            return
        written = [(len(lane.tokens[0]), lane.limit) for lane in group.lanes]
        if any(count >= limit for count, limit in written):
            return  # one is at its limit: there may be no room for more
        if not self.end_ids and all(count + 1 == limit for count, limit in written):
            return  # nothing is asked about what comes next
        if self.context is not None:
            before = self.lengths if self.prompts is None else [len(prompt) - 1 for prompt in self.prompts]
            if any(before[lane.number] + len(lane.tokens[0]) + 2 > self.context for lane in group.lanes):
                return
        group.scored, group.state = self._take_step(tokens_R, group.state)

    def _take(self, lane: Lane, token: int, logprob: float) -> bool:
        """Add a token to a lane's only prefix, and say whether it goes on."""
        (tokens,) = lane.tokens
        if logprob == -np.inf:
            return False
        logprob += lane.logprobs[0]
        stopped = len(tokens) < lane.limit and self._stops(lane, tokens, token)
        if token in self.end_ids or stopped:
            self._finish(lane, [*tokens, token] if stopped else tokens, logprob, True)
            return False
        if len(tokens) == lane.limit:
            self._finish(lane, tokens, lane.logprobs[0], False)
            return False
        tokens.append(token)
        lane.logprobs[0] = logprob
        if self.listen is not None:
            self.listen(lane.number, token)
        if len(tokens) == lane.limit and not self.end_ids:  # what comes next could not end it either
            self._finish(lane, tokens, logprob, False)
            return False
        return True

    def _leave(self, group: Group, kept: list[int], width: int = 1, parents: list[list[int]] | None = None) -> None:
        """Let lanes leave that are done, the last ones filling the gaps, and rows go on from their parents."""
        order = list(range(len(kept))) if len(kept) == len(group.lanes) else filled(kept)
        gone = len(order) < len(group.lanes)
        if parents is None:
            rows = order
        else:
            found = dict(zip(kept, parents, strict=True))
            rows = [place * width + parent for place in order for parent in found[place]]
        if order and (gone or rows != list(range(len(group.lanes) * width))):
            sources_B = torch.tensor(order) if gone else None
            group.state = group.state.select(torch.tensor(rows), sources_B)
            if group.scored is not None:
                rows_R, scored = torch.tensor(rows, device=self.device), group.scored
                group.scored = scored[rows_R] if isinstance(scored, Tensor) else scored.of_rows(rows_R)
        if gone and self.proposer is not None:
            self.proposer.keep(order)
        group.lanes = [group.lanes[place] for place in order]
        group.scored = group.scored if order else None

    def _step(self, group: Group) -> None:
        """Choose the next tokens of each lane's beams, and set finished ones aside."""
        beam, width = self.options.beam, group.width
        rows = [(lane, tokens) for lane in group.lanes for tokens in lane.tokens]
        logits_RV = self._read(group)
        logits_RV, norms_R = self._scores(logits_RV, lambda: [self._text(lane, tokens) for lane, tokens in rows])
        # At most E K of the (E + 1) K best continuations end, so K remain; a stop text rarely comes by many tokens.
        most = (len(self.end_ids) + 1) * beam + (16 if self.is_over else 0)
        value_RM, token_RM = best(logits_RV, min(most, logits_RV.shape[1]))
        logp_RM = (value_RM.double() - norms_R[:, None]).cpu().numpy()
        past_BK = np.array([lane.logprobs for lane in group.lanes])
        total_BN = (past_BK[..., None] + logp_RM.reshape(len(group.lanes), width, -1)).reshape(len(group.lanes), -1)
        if np.isnan(total_BN).any():
            raise NumericError("the model's scores are not numbers", where="decoding", mend="its weights are damaged")
        place_BC = np.argsort(-total_BN, 1, kind="stable")[:, :most]
        parent_BC = place_BC // logp_RM.shape[1]
        total_BC = np.take_along_axis(total_BN, place_BC, 1)
        token_BC = np.take_along_axis(token_RM.cpu().numpy().reshape(len(group.lanes), -1), place_BC, 1)
        kept: list[int] = []
        parents: list[list[int]] = []
        for place, lane in enumerate(group.lanes):
            found = zip(token_BC[place].tolist(), parent_BC[place].tolist(), total_BC[place].tolist(), strict=True)
            chosen = self._choose(lane, list(found))
            if chosen:
                kept.append(place)
                parents.append(chosen)
        self._leave(group, kept, width, parents)

    def _choose(self, lane: Lane, found: list[tuple[int, int, float]]) -> list[int]:
        """Go on with the best continuations (token, prefix, log-probability) of a lane that do not end.

        Args:
            lane: The lane.
            found: The best first.

        Returns:
            For each of its new rows the old one; none where it is done.
        """
        beam, length = self.options.beam, len(lane.tokens[0])
        going: list[tuple[int, int, float]] = []
        ended_here: set[int] = set()
        for rank, (token, parent, logprob) in enumerate(found):
            if logprob == -np.inf:
                continue
            tokens = lane.tokens[parent]
            stopped = length < lane.limit and self._stops(lane, tokens, token)
            if token in self.end_ids or stopped:
                ended_here.add(parent)
                if rank < beam and (len(lane.done) < beam or self.options.early_stopping != "full"):
                    self._finish(lane, [*tokens, token] if stopped else tokens, logprob, True)
            elif len(going) < beam:
                going.append((token, parent, logprob))
        if lane.is_done([logprob for _, _, logprob in going], self.options):
            return []
        if length == lane.limit:
            self._cut(lane, ended_here)
            return []
        # Too few tokens for all beams: the others are impossible from here on.
        going += [(going[0][0], 0, -np.inf)] * (beam - len(going))
        lane.tokens = [[*lane.tokens[parent], token] for token, parent, _ in going]
        lane.logprobs = [logprob for _, _, logprob in going]
        return [parent for _, parent, _ in going]

    def _make_room(self, group: Group) -> None:
        """Read the last tokens of texts that have outgrown the context anew: exact with positions of any kind."""
        if self.context is None or self.prompts is None:
            return
        rows: list[int] = []
        windows: list[list[int]] = []
        for place, lane in enumerate(group.lanes):
            written = len(lane.tokens[0])
            length = len(self.prompts[lane.number]) + written
            start = window_start(length, self.context)
            if not written or start == window_start(length - 1, self.context):
                continue
            rows += range(place * group.width, (place + 1) * group.width)
            windows += [self._text(lane, tokens)[start:-1] for tokens in lane.tokens]
        if rows:
            tokens = [token for window in windows for token in window]
            tokens_N = torch.tensor(tokens, dtype=torch.int64, device=self.device)
            segments = Segments.ragged([len(window) for window in windows], self.device)
            with native.together():
                anew = self.model.start(tokens_N, segments, 1)
            group.state = group.state.put(torch.tensor(rows), anew)

    def _text(self, lane: Lane, tokens: list[int]) -> list[int]:
        """Give the prompt and what is written."""
        return [*(() if self.prompts is None else self.prompts[lane.number]), *tokens]

    def _proposals(self, group: Group) -> list[list[int]]:
        """Ask what may come next, as many tokens for each lane; none where a text is about to fill the context."""
        count = self.options.speculate
        if self.proposer is None or not count or self.prompts is None:
            return [[] for _ in group.lanes]
        texts = [self._text(lane, lane.tokens[0]) for lane in group.lanes]
        # The token at the limit comes from the scores behind those that are proposed, where nothing is scored after it.
        room = max(lane.limit - len(lane.tokens[0]) for lane in group.lanes) - (not self.end_ids)
        count = min(count, room, count if self.context is None else self.context - max(map(len, texts)))
        if count < 1:
            return [[] for _ in group.lanes]
        points = [
            [self._point(lane.number, len(lane.tokens[0]) + ahead) for ahead in range(count)]
            if self.options.sample
            else []
            for lane in group.lanes
        ]
        found = self.proposer.propose(texts, count, self.options, points)
        most = max(map(len, found))
        return [[*some, *[0] * (most - len(some))] for some in found]

    def _point(self, number: int, step: int) -> float:
        """Draw the number that decides on a token: of a stream of its source's own."""
        stream = np.random.Philox(key=[self.options.seed, self.places[number]], counter=[0, 0, 0, step])
        return np.random.Generator(stream).random()

    def _stops(self, lane: Lane, tokens: list[int], token: int) -> bool:
        """Whether a token that is no end ends its output all the same."""
        over = self.is_over
        return over is not None and token not in self.end_ids and over(lane.number, [*tokens, token])

    def _finish(self, lane: Lane, tokens: list[int], logprob: float, ended: bool) -> None:
        score = logprob / penalty(len(tokens) + 1, self.options.length_penalty, self.options.length_offset)
        lane.done.append(Hypothesis(list(tokens), logprob, score, ended, lane.proposed, lane.accepted))
        if len(lane.done) > self.options.beam:
            lane.done.remove(min(lane.done, key=lambda h: h.score))

    def _cut(self, lane: Lane, ended: set[int]) -> None:
        """Stop at the limit, and say so: give prefixes as they are where too few outputs ended by themselves."""
        missing = max(self.options.n_best - len(lane.done), 0)
        # A prefix that has just ended is among the results already.
        done = {row for row in ended if any(lane.tokens[row] == h.tokens for h in lane.done)}
        for row in sorted(range(len(lane.tokens)), key=lambda row: -lane.logprobs[row])[:missing]:
            if lane.logprobs[row] > -np.inf and row not in done:
                self._finish(lane, lane.tokens[row], lane.logprobs[row], False)
