"""Tokens of many texts in one file, mapped into memory: what is trained on may be larger than it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path

import numpy as np

from regard.data.tokenizer import Tokenizer
from regard.errors import CheckpointError
from regard.files import json_bytes, read_config, write_aside, written_aside

TEXTS_AT_ONCE = 1000
TOKENS_AT_ONCE = 1 << 20


class Shard:
    """Texts as tokens: start, the text's own, end; one text behind the other.

    Args:
        tokens: All tokens.
        starts: Place of each text's first token, and the number of all tokens.
        num_bytes: Bytes of the texts in UTF-8.
        num_words: Words of the texts: what stands between spaces.
        digest: SHA-256 of the texts.
        num_lost: Texts that their tokens do not give back byte by byte.
        num_unknown: Tokens that stand for what the tokenizer has never seen.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        starts: np.ndarray,
        num_bytes: int,
        num_words: int,
        digest: str,
        num_lost: int = 0,
        num_unknown: int = 0,
    ) -> None:
        self.tokens, self.starts = tokens, starts
        self.num_bytes, self.num_words, self.digest = num_bytes, num_words, digest
        self.num_lost, self.num_unknown = num_lost, num_unknown

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, start and end counted."""
        return np.diff(self.starts)

    def counts(self, vocab_size: int) -> np.ndarray:
        """Count how often each token of a vocabulary occurs: some at a time, since what counts copies them to int64."""
        places = range(0, len(self.tokens), TOKENS_AT_ONCE)
        some = (self.tokens[place : place + TOKENS_AT_ONCE] for place in places)
        return sum((np.bincount(tokens, minlength=vocab_size) for tokens in some), np.zeros(vocab_size, np.int64))

    @staticmethod
    def write(path: Path, texts: Iterable[str], tokenizer: Tokenizer) -> Shard:
        """Tokenize texts into a file, and map it.

        Args:
            path: The file, without its extension: ``.tokens``, ``.starts`` and ``.json`` are added.
            texts: The texts; read once.
            tokenizer: What a token is.

        Returns:
            The texts.
        """
        dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
        path.parent.mkdir(parents=True, exist_ok=True)
        starts, num_bytes, num_words, num_lost, num_unknown, state = [0], 0, 0, 0, 0, sha256()
        with written_aside(_beside(path, ".tokens")) as file:
            for some in _some(texts):
                rows = tokenizer.encode_all(some)
                for text, tokens, restored in zip(some, rows, tokenizer.decode_all(rows), strict=True):
                    data = text.encode()
                    num_bytes, num_words = num_bytes + len(data), num_words + len(text.split())
                    num_lost += restored != text
                    num_unknown += int((tokens == tokenizer.unknown_id).sum())
                    state.update(data + b"\0")
                    whole = np.concatenate([[tokenizer.start_id], tokens, [tokenizer.end_id]]).astype(dtype)
                    file.write(whole.tobytes())
                    starts.append(starts[-1] + len(whole))
        with written_aside(_beside(path, ".starts")) as file:
            file.write(np.array(starts, np.int64).tobytes())
        facts = {"dtype": dtype.name, "bytes": num_bytes, "words": num_words, "sha256": state.hexdigest()}
        facts |= {"lost": num_lost, "unknown": num_unknown}
        write_aside(_beside(path, ".json"), json_bytes(facts))
        return Shard.read(path)

    @staticmethod
    def read(path: Path) -> Shard:
        """Map what :meth:`write` wrote.

        Args:
            path: The file, without its extension.

        Returns:
            The texts.

        Raises:
            CheckpointError: The files do not belong together.
        """
        facts = read_config(_beside(path, ".json"))
        starts = np.fromfile(_beside(path, ".starts"), np.int64)
        dtype, file = np.dtype(facts["dtype"]), _beside(path, ".tokens")
        tokens = np.memmap(file, dtype, "r") if file.stat().st_size else np.zeros(0, dtype)  # nothing cannot be mapped
        if not len(starts) or starts[-1] != len(tokens):
            raise CheckpointError(
                "the tokens are cut short", where=str(path), mend="remove the run's tokens folder: it is made anew"
            )
        lost, unknown = int(facts["lost"]), int(facts["unknown"])
        return Shard(tokens, starts, int(facts["bytes"]), int(facts["words"]), str(facts["sha256"]), lost, unknown)

    @staticmethod
    def there(path: Path) -> bool:
        """Whether :meth:`write` came to its end: the facts are written last; those of older versions lack some."""
        facts = _beside(path, ".json")
        return facts.exists() and "lost" in read_config(facts)


def _beside(path: Path, extension: str) -> Path:
    """Name one of a shard's files; a dot in the shard's own name, as of the language zh.Hans, begins no extension."""
    return path.with_name(path.name + extension)


def _some(texts: Iterable[str]) -> Iterator[list[str]]:
    source = iter(texts)
    while some := list(islice(source, TEXTS_AT_ONCE)):
        yield some
