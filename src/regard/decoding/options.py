"""What a user may ask of decoding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from regard.errors import UsageError

MAX_BEAMS = 1024
MAX_AHEAD = 64
MAX_EXTRA_TOKENS = 100_000
EarlyStopping = Literal["full", "current", "longest"]


@dataclass(frozen=True)
class DecodeOptions:
    """How outputs are chosen.

    Attributes:
        beam: Hypotheses kept for each input; 1 is greedy.
        n_best: Outputs given for each input, at most ``beam``.
        length_penalty: α of ((5 + length) / 6)^α, by which log-probabilities are divided to compare lengths; 0 compares
            them as they are (Wu et al. 2016, §7, equation 14).
        max_extra_tokens: An output has at most as many tokens as the input and this many more, the end not counted;
            what goes on from a prompt, at most this many.
        sample: Draw each token instead of taking the best.
        temperature: Logits are divided by it before drawing; below 1 sharpens.
        top_k: Draw among the k most probable; 0 for all.
        top_p: Draw among the most probable that together reach this probability, of what ``top_k`` leaves.
        min_p: Draw among those at least this times as probable as the best (Nguyen et al. 2024).
        repetition_penalty: The score of a token that is in the prompt or the output already is divided by this where it
            is positive, multiplied where it is negative; 1 changes nothing (Keskar et al. 2019, §4.1).
        stop: Texts that end an output; they are cut off.
        seed: Of the draws; the same input at the same place draws the same number in any batch.
        length_offset: The 5 of the penalty's formula; 0 divides by length^α, as many public models expect.
        banned: Tokens that are never chosen, by number: those of public models that no training ever reached.
        speculate: Tokens that are proposed ahead and read in one pass with the newest one; 0 for none. What is written
            stays the same.
        early_stopping: When a beam search leaves a source: ``full`` as soon as as many outputs have ended as there are
            beams; else better ones take the places of the worst, until no prefix would beat the worst of them, were it
            to end at its present length (``current``), or at the limit (``longest``).

    Source:
        Of ``early_stopping`` transformers' beam search, which has True, False and "never" for it.
    """

    beam: int = 1
    n_best: int = 1
    length_penalty: float = 0.6
    max_extra_tokens: int = 50
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    length_offset: float = 5.0
    banned: tuple[int, ...] = ()
    speculate: int = 0
    early_stopping: EarlyStopping = "full"

    def __post_init__(self) -> None:
        """Refuse what cannot be done.

        Raises:
            UsageError: A number is out of its range, or a count is not whole.
        """
        whole = ("beam", "n_best", "max_extra_tokens", "top_k", "seed", "speculate")
        for name in whole:
            if type(getattr(self, name)) is not int:
                raise UsageError(f"{name} is {getattr(self, name)!r}", mend="give a whole number")
        checks = (
            (1 <= self.beam <= MAX_BEAMS, f"beam is {self.beam}", f"give 1 to {MAX_BEAMS}"),
            (1 <= self.n_best <= self.beam, f"n_best is {self.n_best} with beam {self.beam}", "give 1 up to the beam"),
            (0 <= self.length_penalty <= 10, f"length_penalty is {self.length_penalty}", "give a number from 0 to 10"),
            (0 <= self.length_offset <= 1000, f"length_offset is {self.length_offset}", "give a number from 0 to 1000"),
            (
                0 <= self.max_extra_tokens <= MAX_EXTRA_TOKENS,
                f"max_extra_tokens is {self.max_extra_tokens}",
                f"give 0 to {MAX_EXTRA_TOKENS:,}",
            ),
            (
                0 < self.temperature < math.inf,
                f"temperature is {self.temperature}",
                "give a number above 0; for the best token leave sampling off",
            ),
            (self.top_k >= 0, f"top_k is {self.top_k}", "give a count, or 0 for all"),
            (0 < self.top_p <= 1, f"top_p is {self.top_p}", "give a probability above 0, at most 1"),
            (0 <= self.min_p <= 1, f"min_p is {self.min_p}", "give a share from 0 to 1"),
            (
                0 < self.repetition_penalty < math.inf,
                f"repetition_penalty is {self.repetition_penalty}",
                "give a number above 0, 1 for none",
            ),
            (all(self.stop), "an empty text in stop", "leave it out"),
            (not (self.sample and self.beam > 1), f"sampling with beam {self.beam}", "sample with beam 1"),
            (0 <= self.speculate <= MAX_AHEAD, f"speculate is {self.speculate}", f"give 0 to {MAX_AHEAD}"),
            (not (self.speculate and self.beam > 1), f"speculating with beam {self.beam}", "speculate with beam 1"),
            (
                self.early_stopping in get_args(EarlyStopping),
                f"early_stopping is {self.early_stopping!r}",
                f"choose from {', '.join(get_args(EarlyStopping))}",
            ),
            (0 <= self.seed < 2**63, f"seed is {self.seed}", "give 0 to 2^63 - 1"),
            (
                all(type(token) is int and token >= 0 for token in self.banned),
                f"banned is {str(self.banned)[:60]}",
                "give numbers of tokens",
            ),
        )
        for good, what, mend in checks:
            if not good:  # NaN fails every comparison, so it is refused too
                raise UsageError(what, mend=mend)
