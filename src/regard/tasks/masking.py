"""Which tokens of a text are hidden, and what stands in their place.

Papers: Devlin et al. 2019, §3.1 and appendix A.1; masks drawn anew each time a text is read: Liu et al. 2019, §4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from regard.errors import ConfigError


@dataclass(frozen=True)
class Masking:
    """How tokens are hidden in training.

    Attributes:
        prob: Share of the tokens that are to be predicted.
        mask_prob: Share of those that the mask stands for.
        random_prob: Share of those that any other token stands for; the rest stay as they are.
        whole_words: The tokens of a word are chosen together.
    """

    prob: float = 0.15
    mask_prob: float = 0.8
    random_prob: float = 0.1
    whole_words: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: A share is none, or those of mask and random tokens are more than 1 together.
        """
        if not 0 < self.prob <= 1:
            raise ConfigError(f"masking.prob is {self.prob}", mend="give a share in (0, 1]")
        for name, value in {"mask_prob": self.mask_prob, "random_prob": self.random_prob}.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"masking.{name} is {value}", mend="give a share in [0, 1]")
        # A sum such as 0.8 + 0.2 may be the last digit over 1.
        if self.mask_prob + self.random_prob > 1 + 1e-9:
            shares = f"masking.mask_prob {self.mask_prob} and masking.random_prob {self.random_prob}"
            raise ConfigError(f"{shares} are more than 1 together", mend="lower one of them")


class Maskable(Protocol):
    """A tokenizer, as far as hiding needs one.

    Attributes:
        mask_id: Its mask; None where it has none.
        vocab_size: How many tokens it has.
        special_ids: Those that stand for no text.
    """

    @property
    def mask_id(self) -> int | None: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def special_ids(self) -> Sequence[int]: ...

    def word_starts(self) -> np.ndarray:
        """Say of each token whether a word begins with it."""
        ...


class Masker:
    """Hides tokens; special ones never.

    Args:
        config: How.
        tokenizer: It has a mask.

    Raises:
        ConfigError: It has none.
    """

    def __init__(self, config: Masking, tokenizer: Maskable) -> None:
        if tokenizer.mask_id is None:
            mend = "give another --out: tokenizers for masked models have one"
            raise ConfigError("the tokenizer has no mask", where="tokenizer.json", mend=mend)
        self.config, self.mask_id = config, tokenizer.mask_id
        self.is_text_V = np.ones(tokenizer.vocab_size, bool)
        self.is_text_V[tokenizer.special_ids] = False
        self.text_ids = np.flatnonzero(self.is_text_V)
        self.starts_V = tokenizer.word_starts() if config.whole_words else np.ones(tokenizer.vocab_size, bool)

    def choose(self, tokens_N: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        """Draw the tokens that are to be predicted.

        Tokens (or whole words) are taken in random order until they are the wanted share of all that stand for text:
        never less than it, and at least one, where there is text at all.

        Args:
            tokens_N: Tokens, those around texts among them.
            draws: Where chance comes from.

        Returns:
            places_M, ascending.
        """
        is_text_N = self.is_text_V[tokens_N]
        starts_N = self.starts_V[tokens_N]
        starts_N[1:] |= ~is_text_N[:-1]
        text_places = np.flatnonzero(is_text_N)
        if not len(text_places):
            return text_places
        _, word = np.unique(np.cumsum(starts_N)[text_places], return_inverse=True)
        sizes = np.bincount(word)
        order = draws.permutation(len(sizes))
        before = np.cumsum(sizes[order]) - sizes[order]
        is_chosen = np.zeros(len(sizes), bool)
        is_chosen[order[before < self.config.prob * len(text_places)]] = True
        return text_places[is_chosen[word]]

    def hide(self, tokens_N: np.ndarray, places_M: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        """Put the mask, or another token, in the place of chosen ones; some stay.

        Args:
            tokens_N: Tokens.
            places_M: Which are chosen.
            draws: Where chance comes from.

        Returns:
            The changed copy.
        """
        share_M = draws.random(len(places_M))
        others_M = draws.choice(self.text_ids, len(places_M)) if len(places_M) else places_M
        until_random = self.config.mask_prob + self.config.random_prob
        new_M = np.where(share_M < until_random, others_M, tokens_N[places_M])
        hidden_N = tokens_N.copy()
        hidden_N[places_M] = np.where(share_M < self.config.mask_prob, self.mask_id, new_M)
        return hidden_N

    def hide_all(self, tokens_N: np.ndarray, places_M: np.ndarray) -> np.ndarray:
        """Put the mask in every chosen place: what scores are computed on.

        Args:
            tokens_N: Tokens.
            places_M: Which are chosen.

        Returns:
            The changed copy.
        """
        hidden_N = tokens_N.copy()
        hidden_N[places_M] = self.mask_id
        return hidden_N


def chance(seed: int, number: int) -> np.random.Generator:
    """Give the draws that belong to a number, whatever was drawn before.

    Args:
        seed: Of the run.
        number: Of the batch, say.

    Returns:
        The draws; others than those that cut and shuffle texts with the same two numbers.
    """
    return np.random.Generator(np.random.Philox(counter=[0, 0, 0, 1], key=[seed, number]))
