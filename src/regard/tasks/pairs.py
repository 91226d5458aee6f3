"""Pairs of texts as batches of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from regard.attention import Segments
from regard.data.examples import Pair
from regard.data.pieces import has_pieces, load_pieces
from regard.data.tokenizer import Kind, TextTokenizer, Tokenizer
from regard.errors import ContextError, DataError
from regard.tasks.task import Batch

SHARED, SIDES = "tokenizer.json", ("source_tokenizer.json", "target_tokenizer.json")


@dataclass(frozen=True)
class TokenizerConfig:
    """How texts become tokens.

    Attributes:
        source: What a source token is.
        target: What a target token is; ignored where one tokenizer is shared.
        shared: One tokenizer, fit on both sides.
        vocab_size: Tokens of each tokenizer at most.
        min_count: Of ``characters`` and ``whitespace``: rarer ones get no token of their own.
    """

    source: Kind = "byte-bpe"
    target: Kind = "byte-bpe"
    shared: bool = True
    vocab_size: int = 8000
    min_count: int = 1


@dataclass(frozen=True)
class PairBatch(Batch):
    """Sources and targets of a batch: flat rows and their segments.

    Attributes:
        source_M: int64, source tokens, each sequence with its end token.
        source_segments: Which belong together.
        target_N: int64, target tokens from the start token on: what the decoder reads.
        labels_N: int64, the same one place ahead, to the end token: what it predicts.
        target_segments: Which belong together.
    """

    source_M: Tensor
    source_segments: Segments
    target_N: Tensor
    labels_N: Tensor
    target_segments: Segments


@dataclass(frozen=True)
class PairTokenizer:
    """The two sides' tokenizers; one and the same where they are shared.

    Attributes:
        source: For sources.
        target: For targets.
    """

    source: TextTokenizer
    target: TextTokenizer

    @staticmethod
    def train(pairs: Sequence[Pair], config: TokenizerConfig) -> PairTokenizer:
        """Fit tokenizers on the training part.

        Args:
            pairs: Training pairs.
            config: What tokens are.

        Returns:
            The tokenizers.
        """
        sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
        if config.shared:
            both = Tokenizer.train([*sources, *targets], config.source, config.vocab_size, config.min_count)
            return PairTokenizer(both, both)
        return PairTokenizer(
            Tokenizer.train(sources, config.source, config.vocab_size, config.min_count),
            Tokenizer.train(targets, config.target, config.vocab_size, config.min_count),
        )

    @staticmethod
    def read(folder: Path) -> PairTokenizer | None:
        """Read the tokenizers of a folder.

        Args:
            folder: Where.

        Returns:
            The tokenizers; None where there is none.
        """
        if has_pieces(folder):
            return PairTokenizer(*load_pieces(folder))
        if (folder / SHARED).exists():
            both = Tokenizer.read(folder / SHARED)
            return PairTokenizer(both, both)
        names = [folder / name for name in SIDES]
        return PairTokenizer(*map(Tokenizer.read, names)) if all(name.exists() for name in names) else None

    def files(self) -> dict[str, Any]:
        """Give the tokenizers by the names of their files: one, or one for each side where they differ."""
        return {SHARED: self.source} if self.shared else dict(zip(SIDES, (self.source, self.target), strict=True))

    @property
    def shared(self) -> bool:
        """Whether both sides have one tokenizer."""
        return self.source is self.target

    def encode(self, pairs: Sequence[Pair]) -> EncodedPairs:
        """Tokenize pairs.

        Args:
            pairs: Any pairs.

        Returns:
            Their tokens.
        """
        sources = self.source.encode_all([pair.source for pair in pairs])
        targets = self.target.encode_all([pair.target for pair in pairs])
        return EncodedPairs(sources, targets, self)


class EncodedPairs:
    """Tokens of many pairs, ready to be put into batches.

    Args:
        sources: Tokens of each source, without start and end.
        targets: Tokens of each target, likewise.
        tokenizer: For the start and end tokens.
    """

    def __init__(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], tokenizer: PairTokenizer) -> None:
        end = np.array([tokenizer.source.end_id], np.int32)
        start, stop = np.array([tokenizer.target.start_id], np.int32), np.array([tokenizer.target.end_id], np.int32)
        self.sources = [np.concatenate([tokens, end]) for tokens in sources]
        self.targets = [np.concatenate([start, tokens, stop]) for tokens in targets]
        self.source_lengths = np.array([len(tokens) for tokens in self.sources], np.int64)
        self.target_lengths = np.array([len(tokens) - 1 for tokens in self.targets], np.int64)

    def __len__(self) -> int:
        """Count the pairs."""
        return len(self.sources)

    def batch(self, indices: Sequence[int] | np.ndarray) -> PairBatch:
        """Put some pairs into a batch.

        Args:
            indices: Which ones, in the order of the batch.

        Returns:
            The batch, on the CPU.
        """
        sources, targets = [self.sources[i] for i in indices], [self.targets[i] for i in indices]
        return PairBatch(
            source_M=_row(sources),
            source_segments=Segments.ragged([len(tokens) for tokens in sources]),
            target_N=_row([tokens[:-1] for tokens in targets]),
            labels_N=_row([tokens[1:] for tokens in targets]),
            target_segments=Segments.ragged([len(tokens) - 1 for tokens in targets]),
        )

    def check(
        self,
        max_source_tokens: int,
        max_target_tokens: int,
        where: str,
        on_long: Literal["error", "drop"],
        name: Callable[[int], str] | None = None,
    ) -> list[int]:
        """Find the pairs that fit.

        Args:
            max_source_tokens: Tokens of a source at most, its end included.
            max_target_tokens: Tokens of a target at most, its end included.
            where: File, for messages.
            on_long: ``error`` refuses a long pair, ``drop`` leaves it out.
            name: Says where pair number i comes from; None counts pairs from 1.

        Returns:
            Indices of the pairs that fit.

        Raises:
            ContextError: A pair is too long and ``on_long`` is ``error``.
            DataError: No pair fits.
        """
        fits = (self.source_lengths <= max_source_tokens) & (self.target_lengths <= max_target_tokens)
        if on_long == "error" and not fits.all():
            first = int(np.argmin(fits))
            lengths = f"{self.source_lengths[first]} and {self.target_lengths[first]} tokens"
            limits = f"{max_source_tokens} and {max_target_tokens}"
            which, at = (f"pair {first + 1}", where) if name is None else ("a pair", name(first))
            raise ContextError(f"{which} has {lengths}; at most {limits} fit", where=at)
        if not fits.any():
            raise DataError(f"none of {len(self)} pairs has at most {max_source_tokens} tokens", where=where)
        return np.nonzero(fits)[0].tolist()


def _row(arrays: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.int64)) if arrays else torch.zeros(0, dtype=torch.int64)
