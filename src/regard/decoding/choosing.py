"""From scores to tokens: what is needed of a whole vocabulary is its normalizer and its few best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from regard.decoding.options import DecodeOptions
from regard.kernels import native

_CHUNK = 128  # tokens whose best is found first
_BLOCK = 1 << 16  # numbers that are worked on at once: they stay in the processor's caches
_NEAR = 64  # of the most probable tokens, so many are looked at first: nearly every draw falls among them


def widened(logits_RV: Tensor) -> Tensor:
    """Give scores in float32 at least: of sums over a vocabulary, half precision loses most digits."""
    return logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))


def log_norms(logits_RV: Tensor) -> Tensor:
    """Compute log Σ exp, which turns scores into log-probabilities.

    Sums of a few exponentials are added up in float64, in an order that does not depend on the batch: so adding up
    hundreds of steps rounds the same in any.

    Args:
        logits_RV: Scores.

    Returns:
        float64, one a row.
    """
    if (kernel := _kernel(logits_RV)) is not None:
        norms_R = torch.empty(len(logits_RV), dtype=torch.float64)
        kernel.log_norms(
            *(logits_RV.data_ptr(), *logits_RV.shape, logits_RV.stride(0)),
            *(norms_R.data_ptr(), native.threads()),
        )
        return norms_R
    if logits_RV.is_cuda or logits_RV.numel() <= _BLOCK or torch.compiler.is_compiling():
        return _log_norms(logits_RV)
    rows = max(_BLOCK // logits_RV.shape[1], 1)
    room_RV = torch.empty_like(logits_RV[:rows])
    return torch.cat([_log_norms(part_RV, room_RV[: len(part_RV)]) for part_RV in logits_RV.split(rows)])


def _log_norms(logits_RV: Tensor, room_RV: Tensor | None = None) -> Tensor:
    most_R1 = logits_RV.amax(-1, keepdim=True)
    sum_R = torch.sub(logits_RV, most_R1, out=room_RV).exp_().sum(-1, dtype=torch.float64)
    return most_R1[:, 0].double() + sum_R.log_()


def _kernel(logits_RV: Tensor) -> native.Kernel | None:
    """Our own kernels, where they are loaded and serve these scores."""
    is_served = logits_RV.is_cpu and logits_RV.dtype == torch.float32 and logits_RV.stride(-1) == 1
    is_served = is_served and not torch.compiler.is_compiling()
    return native.loaded() if is_served else None


def best(logits_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the best tokens of each row, best first.

    Without our own kernels the best of each chunk of the vocabulary come first: the best of all are in the chunks with
    the best bests.

    Args:
        logits_RV: Scores.
        count: How many; no more than there are.

    Returns:
        Their scores and the tokens, (R, count); of equal bests the first, where one is asked for.
    """
    rows, size = logits_RV.shape
    if 0 < count <= min(_NEAR, size) and (kernel := _kernel(logits_RV)) is not None:
        values_RM, tokens_RM = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.int64)
        kernel.best(
            *(logits_RV.data_ptr(), rows, size, logits_RV.stride(0), count),
            *(values_RM.data_ptr(), tokens_RM.data_ptr(), native.threads()),
        )
        return values_RM, tokens_RM
    chunks = size // _CHUNK
    if chunks <= 2 * count or (count == 1 and logits_RV.is_cuda):  # where one call takes longer than the work
        return tuple(logits_RV.max(-1, keepdim=True)) if count == 1 else tuple(logits_RV.topk(count))  # type: ignore[return-value]
    whole_RCW = logits_RV[:, : chunks * _CHUNK].unflatten(1, (chunks, _CHUNK))
    bests_RC = whole_RCW.amax(-1)
    chunk_RM = bests_RC.argmax(-1, keepdim=True) if count == 1 else bests_RC.topk(count, sorted=False).indices
    near_RN = whole_RCW.gather(1, chunk_RM[..., None].expand(-1, -1, _CHUNK)).flatten(1)
    near_RN = torch.cat([near_RN, logits_RV[:, chunks * _CHUNK :]], 1)
    value_RM, place_RM = near_RN.max(-1, keepdim=True) if count == 1 else near_RN.topk(count)
    inside_RM = chunk_RM.gather(1, (place_RM // _CHUNK).clamp(max=chunk_RM.shape[1] - 1)) * _CHUNK + place_RM % _CHUNK
    behind = count * _CHUNK
    return value_RM, torch.where(place_RM < behind, inside_RM, place_RM - behind + chunks * _CHUNK)


class Chosen(NamedTuple):
    """A token of each row.

    Attributes:
        token_R: int64, the tokens.
        told: float64, what the host is told: the tokens once more, and their log-probabilities.
    """

    token_R: Tensor
    told: Tensor

    @staticmethod
    def of(value_R1: Tensor, token_R1: Tensor, norms_R: Tensor) -> Chosen:
        """Make it of scores, tokens, and what the rows' scores add up to, see :func:`log_norms`."""
        token_R = token_R1[:, 0]
        return Chosen(token_R, torch.stack((token_R.double(), value_R1[:, 0].double() - norms_R)))

    def of_rows(self, rows_R: Tensor) -> Chosen:
        """Give some of the rows."""
        return Chosen(self.token_R[rows_R], self.told[:, rows_R])


def choose(logits_RV: Tensor) -> Chosen:
    """Choose the best token of each row, from a model's own scores.

    Args:
        logits_RV: Scores.

    Returns:
        The tokens.
    """
    logits_RV = widened(logits_RV)
    return Chosen.of(*best(logits_RV, 1), log_norms(logits_RV))


@runtime_checkable
class ChoosingSteps(Protocol):
    """What takes a step and chooses by itself, where nothing but a model's own scores decides."""

    def choose(self, tokens_R: Tensor, state: Any) -> tuple[Chosen, Any]:
        """Read one token a row, and choose the best of those that may follow.

        Args:
            tokens_R: int64, tokens.
            state: Where decoding stands; it is used up.

        Returns:
            What was chosen, and the new state.
        """
        ...


class Told:
    """What was chosen, on its way to the host, which need not wait for what the device is asked for after it.

    Args:
        chosen: The tokens.
    """

    def __init__(self, chosen: Chosen) -> None:
        self._host, self._event = chosen.told, None
        if self._host.is_cuda:
            with torch.cuda.device(self._host.device):
                self._host = torch.empty_like(self._host, device="cpu", pin_memory=True)
                self._host.copy_(chosen.told, non_blocking=True)
                self._event = torch.cuda.Event()
                self._event.record()

    def numbers(self) -> tuple[list[int], list[float]]:
        """Give the tokens and their log-probabilities, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        tokens, logprobs = self._host.tolist()
        return [int(token) for token in tokens], logprobs


def penalized(logits_RV: Tensor, seen: Sequence[Sequence[int]], factor: float) -> Tensor:
    """Make tokens that were there before less likely (Keskar et al. 2019, §4.1).

    Args:
        logits_RV: Scores.
        seen: Tokens that were there, of each row.
        factor: Divides what is positive, multiplies what is negative.

    Returns:
        The scores.
    """
    row_N = np.repeat(np.arange(len(seen)), [len(tokens) for tokens in seen])
    token_N = np.fromiter((token for tokens in seen for token in tokens), np.int64, len(row_N))
    at = torch.from_numpy(row_N).to(logits_RV.device), torch.from_numpy(token_N).to(logits_RV.device)
    before_N = logits_RV[at]
    after_N = torch.where(before_N > 0, before_N / factor, before_N * factor)
    return logits_RV.index_put(at, after_N)  # a token that is there twice is given the same number twice


def draw(logits_RV: Tensor, norms_R: Tensor, options: DecodeOptions, points_R: np.ndarray) -> Tensor:
    """Choose a token of each row by a number that was drawn.

    Probabilities stand side by side, the greatest first; those that are left out leave the rest to the others; the
    token is the one in whose stretch the number falls.

    Args:
        logits_RV: Scores; −∞ is never drawn.
        norms_R: Their normalizers, what is never drawn among them: they scale nothing that is left out.
        options: Temperature, and what is left out.
        points_R: From 0 to 1, 1 excluded.

    Returns:
        int64, (R, 1), tokens.
    """
    rows, size = logits_RV.shape
    most_R1 = logits_RV.amax(-1, keepdim=True).double()
    if options.temperature == 1.0 and not options.banned:
        sums_R = (norms_R - most_R1[:, 0]).exp()
    else:
        # The best at 0 first, so that the smallest temperature makes the others impossible and not everything infinite.
        sums_R = ((logits_RV.double() - most_R1) / options.temperature).exp_().sum(-1)
    token_R = np.zeros(rows, np.int64)
    open_R = np.arange(rows)
    is_whole = options.top_p == 1.0 and options.min_p == 0.0 and not 0 < options.top_k < size
    reach = min(size, options.top_k or size)
    # What top-p leaves out depends on all that top-k has left: probabilities add up to 1 in between.
    is_scaled = reach < size and options.top_p < 1.0
    for most in sorted({reach if is_scaled else min(n, reach) for n in (_NEAR, 16 * _NEAR, size)}):
        at_R = torch.from_numpy(open_R).to(logits_RV.device)
        value_RM, index_RM = (
            x.cpu().numpy() for x in best(logits_RV if len(open_R) == rows else logits_RV[at_R], most)
        )
        with np.errstate(over="ignore"):  # −∞ is what the smallest temperature makes of all but the best
            shifted_RM = (value_RM.astype(np.float64) - most_R1.cpu().numpy()[open_R]) / options.temperature
        probability_RM = np.exp(shifted_RM) / sums_R.cpu().numpy()[open_R, None]
        cumulative_RM = probability_RM.cumsum(-1)
        top_R1 = options.top_p * cumulative_RM[:, -1:] if is_scaled else options.top_p
        keep_RM = (cumulative_RM - probability_RM < top_R1) & (probability_RM >= options.min_p * probability_RM[:, :1])
        still = []
        for place, row in enumerate(open_R):
            kept = int(keep_RM[place].sum())
            is_closed = kept < most or most == reach
            if not is_closed and not is_whole:
                still.append(row)
                continue
            point = points_R[row] * (cumulative_RM[place, kept - 1] if is_closed else 1.0)
            rank = int(np.searchsorted(cumulative_RM[place, :kept], point, side="right"))
            if rank == kept and not is_closed:
                still.append(row)
                continue
            token_R[row] = index_RM[place, min(rank, kept - 1)]
        open_R = np.array(still, np.int64)
        if not still:
            break
    return torch.from_numpy(token_R).to(logits_RV.device)[:, None]
