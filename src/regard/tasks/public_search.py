"""How outputs are chosen, as public folders say it: what of it is done here, and what is told or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.decoding.options import EarlyStopping
from regard.errors import FormatError
from regard.files import read_config
from regard.tasks.plain import KEPT_CONFIG

# When a beam search is over, in their words and ours.
EARLY: dict[bool | str, EarlyStopping] = {True: "full", False: "current", "never": "longest"}
# Settings that change what comes out and are not done here, with all values that change nothing. What only makes an
# output end at a limit, as forced_eos_token_id, is not among them; nor is what a search costs.
_LEFT_OUT: dict[str, tuple[Any, ...]] = {
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0, 0.0),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1, 1.0),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "guidance_scale": (1, 1.0),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0, 0.0),
    "renormalize_logits": (False,),
    "sequence_bias": ([], {}),
    "token_healing": (False,),
    "watermarking_config": (),
}


@dataclass(frozen=True)
class PublicSearch:
    """What a folder says of choosing outputs.

    Attributes:
        values: All of it.
        where: The file that says it.
        banned: Tokens that are never chosen.
        penalty: Divides the scores of tokens that were there before.
        stop: Texts that end an output.
        early_stopping: When a beam search is over.
    """

    values: Mapping[str, Any]
    where: str
    banned: tuple[int, ...]
    penalty: float
    stop: tuple[str, ...]
    early_stopping: EarlyStopping

    def notes(self, more: Mapping[str, tuple[Any, ...]] | None = None) -> list[str]:
        """Name what is asked for and not done here, in one line.

        Args:
            more: Further settings that are not done, with all values that change nothing.

        Returns:
            The line, or none.
        """
        every = {**_LEFT_OUT, **(more or {})}
        asked = [name for name, neutral in every.items() if self.values.get(name) not in (None, *neutral)]
        if longer := [word for word in self.values.get("bad_words_ids") or [] if len(word) != 1]:
            asked.append(f"bad_words_ids ({len(longer)} bad words of several tokens are not watched for)")
        return [f"{self.where}: not done here, outputs may differ: {', '.join(asked)}"] if asked else []


def read_search(folder: Path, vocab_size: int) -> PublicSearch:
    """Read how outputs are chosen: in generation_config.json, or where there is none in config.json.

    Args:
        folder: A public folder.
        vocab_size: Tokens that the model chooses from.

    Returns:
        What it says.

    Raises:
        FormatError: A setting is of another kind, or names a token that the model has not.
    """
    names = ("generation_config.json", KEPT_CONFIG, "config.json")
    file = next((folder / name for name in names if (folder / name).is_file()), folder / names[-1])
    values, where = {key: value for key, value in read_config(file).items() if value is not None}, str(file)
    words, tokens = values.get("bad_words_ids") or [], values.get("suppress_tokens") or []
    if not isinstance(words, list) or not all(_are_tokens(word) for word in words):
        raise FormatError("bad_words_ids is no list of lists of tokens", where=where)
    if not _are_tokens(tokens):
        raise FormatError("suppress_tokens is no list of tokens", where=where)
    banned = tuple(dict.fromkeys([*(word[0] for word in words if len(word) == 1), *tokens]))
    if any(not 0 <= token < vocab_size for token in banned):
        what = f"bad_words_ids or suppress_tokens names a token beyond the {vocab_size}"
        raise FormatError(what, where=where)
    penalty, stop = values.get("repetition_penalty", 1.0), values.get("stop_strings") or ()
    if type(penalty) not in (int, float) or penalty <= 0:
        raise FormatError(f"repetition_penalty is {str(penalty)[:40]}", where=where)
    stop = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stop, Sequence) or not all(isinstance(one, str) and one for one in stop):
        raise FormatError("stop_strings is no list of texts", where=where)
    early = values.get("early_stopping", False)
    if type(early) not in (bool, str) or early not in EARLY:
        raise FormatError(f"early_stopping is {str(early)[:40]}", where=where, mend="write true, false or never")
    return PublicSearch(values, where, banned, float(penalty), tuple(stop), EARLY[early])


def _are_tokens(given: Any) -> bool:
    return isinstance(given, list) and all(type(token) is int for token in given)
