"""From text to tokens and back, on the tokenizers library.

============ ====================================================== ===============================================
kind         what a token is                                        loses
============ ====================================================== ===============================================
byte-bpe     merged bytes (Radford et al. 2019, §2.2)               nothing
bpe          merged characters of words (Sennrich et al. 2016)      a space at the start, the character ▁
wordpiece    pieces of words (Schuster & Nakajima 2012)             spacing, joiners; the never seen becomes <unk>
unigram      pieces by a unigram model (Kudo 2018)                  a space at the start, the character ▁; <unk>
characters   single characters, bytes where unseen                  nothing
whitespace   what stands between spaces: phonemes, words            spacing; what it has never seen becomes <unk>
============ ====================================================== ===============================================

Fitting wordpiece and unigram breaks ties differently from process to process (the library's doing); the others fit
alike every time. A run saves its tokenizers, so resuming never fits again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import ConfigError, DataError, FormatError, ResourceError

Kind = Literal["byte-bpe", "bpe", "wordpiece", "unigram", "characters", "whitespace"]

# A tokenizer.json over this is refused before it is read: a quarter of a million tokens take some 20 MB.
FILE_CAP_BYTES = 1 << 27

START, END, UNKNOWN, MASK = "<s>", "</s>", "<unk>", "<mask>"
# Text is cut inside whatever spells a special token or a byte token, so that no such token can be learnt from text.
_SPELLED = Regex(r"<(?=/?s>|unk>|mask>|0x[0-9A-F]{2}>)")

# What byte-level tokens call space, line feed, tab and carriage return.
_BYTE_SPACES = ("Ġ", "Ċ", "ĉ", "č")


class TextTokenizer(Protocol):
    """What tasks need of a tokenizer.

    Attributes:
        start_id: What an output starts from.
        end_id: What ends a text.
        vocab_size: Tokens of the vocabulary.
    """

    start_id: int
    end_id: int
    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """Turn a text into tokens, without start and end."""
        ...

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Turn texts into arrays of tokens."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text; start and end vanish, <unk> shows."""
        ...

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Show tokens one by one, as a reader would write them."""
        ...


class Tokenizer:
    """A trained tokenizer with a start and an end token, and maybe a mask. Text that spells a special token is text.

    Args:
        inner: The library's tokenizer, which has the special tokens.

    Raises:
        FormatError: It lacks a start or an end token, or its tokens are not numbered from 0 without a gap.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self.inner = inner
        # Without this, a user's "</s>" would end the sentence.
        inner.encode_special_tokens = True
        # A file from elsewhere may ask for either; nothing is ever cut silently, and there is no padding.
        inner.no_truncation()
        inner.no_padding()
        start, end = inner.token_to_id(START), inner.token_to_id(END)
        if start is None or end is None:
            raise FormatError(f"the tokenizer has no {START} or no {END}")
        self.start_id: int = start
        self.end_id: int = end
        self.end_ids: tuple[int, ...] = (end,)
        # Added, not learnt: a tokenizer without a mask may know the word.
        added = inner.get_added_tokens_decoder()
        self.mask_id: int | None = next((n for n, token in added.items() if token.content == MASK), None)
        self.vocab_size: int = inner.get_vocab_size()
        if {*inner.get_vocab().values()} != {*range(self.vocab_size)}:
            raise FormatError(f"the tokenizer's {self.vocab_size} tokens are not numbered from 0 without a gap")

    @staticmethod
    def train(
        texts: Iterable[str], kind: Kind, vocab_size: int = 8000, min_count: int = 1, mask: bool = False
    ) -> Tokenizer:
        """Fit a tokenizer; on the training part only.

        Args:
            texts: Training texts.
            kind: What a token is; see the table above.
            vocab_size: Tokens at most, special ones included.
            min_count: Characters and words rarer than this get no token of their own.
            mask: There is a further special token, ``<mask>``, that hides others.

        Returns:
            The tokenizer.

        Raises:
            ConfigError: The kind is unknown, or the vocabulary too small for the alphabet.
            DataError: There is no text.
        """
        if kind not in get_args(Kind):
            raise ConfigError(f"unknown tokenizer kind {kind!r}", mend=f"choose from {', '.join(get_args(Kind))}")
        texts = list(texts)
        if not any(texts):
            raise DataError(
                "no text to train a tokenizer on", mend="give more texts: some are held out to validate and test"
            )
        # The library takes memory for all tokens at once; a text has fewer pieces than this, so the result is the same.
        most = min(vocab_size, 1024 + 4 * sum(map(len, texts)))
        inner, trainer = _untrained(kind, texts, most - mask, min_count)
        if trainer is not None:
            try:
                inner.train_from_iterator(texts, trainer, len(texts))
            except Exception as error:  # the library raises bare Exception
                what = f"a vocabulary of {vocab_size} does not work: {str(error)[:200]}"
                raise ConfigError(what, mend="give a larger one") from error
            if kind == "bpe":
                _add_bytes(inner)
            if kind == "unigram":
                _round_scores(inner)
        # Added behind the model's own, so that no text can reach them.
        inner.add_special_tokens([AddedToken(START, special=True), AddedToken(END, special=True)])
        if mask:
            # Where a token takes the space before it along, so does the mask that stands for one.
            inner.add_special_tokens([AddedToken(MASK, special=True, lstrip=kind != "characters")])
        if inner.get_vocab_size() > vocab_size:
            needed = inner.get_vocab_size()
            raise ConfigError(f"a vocabulary of {vocab_size} cannot hold the alphabet", mend=f"give at least {needed}")
        return Tokenizer(inner)

    def encode(self, text: str) -> list[int]:
        """Turn a text into tokens, without start and end."""
        return self._encoded(text).ids

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Turn texts into arrays of tokens, on all cores."""
        try:
            encoded = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError as error:
            raise FormatError("no text, or one with a lone surrogate", mend="remove it") from error
        except Exception as error:  # the library raises bare Exception, as where a file lacks its unknown token
            raise FormatError(f"the tokenizer fails: {str(error)[:200]}") from error
        return [np.array(one.ids, np.int32) for one in encoded]

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text; start and end vanish, <unk> shows."""
        kept = [token for token in tokens if token not in (self.start_id, self.end_id)]
        return self.inner.decode(kept, skip_special_tokens=False)

    def decode_all(self, rows: Sequence[np.ndarray]) -> list[str]:
        """Turn arrays of tokens, without start and end, into texts, on all cores."""
        return self.inner.decode_batch([row.tolist() for row in rows], skip_special_tokens=False)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Show tokens one by one, as a reader would write them; bytes that are no text on their own as ``<0x..>``."""
        pieces = (self.inner.decode([token], skip_special_tokens=False) for token in tokens)
        names = (self.inner.id_to_token(token) or "" for token in tokens)
        return [piece if piece and "�" not in piece else name for piece, name in zip(pieces, names, strict=True)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Say which characters of the text each token came from, as (start, end)."""
        return self._encoded(text).offsets

    def word_starts(self) -> np.ndarray:
        """Say which tokens begin a word: what stands between spaces; of wordpiece, marks are words of their own.

        Returns:
            bool, one for each token of the vocabulary; special tokens begin one.
        """
        inner = self.inner
        names = [inner.id_to_token(token) or "" for token in range(self.vocab_size)]
        if isinstance(inner.model, models.WordLevel):
            starts = [True] * len(names)
        elif isinstance(inner.model, models.WordPiece):
            starts = [not name.startswith("##") for name in names]
        elif isinstance(inner.pre_tokenizer, pre_tokenizers.ByteLevel):
            starts = [name[:1] in _BYTE_SPACES for name in names]  # bytes are named by letters
        elif inner.pre_tokenizer is not None:
            starts = [name.startswith("▁") for name in names]
        else:
            starts = [name.isspace() for name in names]
        found = np.array(starts, bool)
        found[self.special_ids] = True
        return found

    @property
    def unknown_id(self) -> int | None:
        """The token of what has never been seen; None where there is none."""
        return self.inner.token_to_id(UNKNOWN)

    @property
    def special_ids(self) -> list[int]:
        """Tokens that stand for no text of their own: start, end, mask, and what has never been seen."""
        ids = (self.start_id, self.end_id, self.mask_id, self.unknown_id)
        return [token for token in ids if token is not None]

    def _encoded(self, text: str) -> tokenizers.Encoding:
        try:
            return self.inner.encode(text, add_special_tokens=False)
        except TypeError as error:
            raise FormatError("no text, or one with a lone surrogate", mend="remove it") from error
        except Exception as error:  # as above
            raise FormatError(f"the tokenizer fails: {str(error)[:200]}") from error

    def to_json(self) -> str:
        """Write the tokenizer in the tokenizer.json format."""
        return self.inner.to_str(pretty=True)

    @staticmethod
    def read(path: Path) -> Tokenizer:
        """Read a tokenizer.json.

        Args:
            path: The file.

        Returns:
            The tokenizer.

        Raises:
            FormatError: It is not a tokenizer, or has no start and end.
        """
        size_bytes = path.stat().st_size if path.is_file() else 0
        if size_bytes > FILE_CAP_BYTES:
            raise FormatError(f"{size_bytes:,} bytes; at most {FILE_CAP_BYTES:,} are read", where=str(path))
        try:
            inner = tokenizers.Tokenizer.from_str(path.read_text("utf-8"))
        except PermissionError as error:
            raise ResourceError("cannot be read: permission denied", where=str(path)) from error
        except Exception as error:  # the library raises bare Exception
            raise FormatError(f"not a tokenizer: {str(error)[:200]!a}", where=str(path)) from error
        try:
            return Tokenizer(inner)
        except FormatError as error:
            raise FormatError(error.what, where=str(path)) from error


def _untrained(
    kind: Kind, texts: Sequence[str], vocab_size: int, min_count: int
) -> tuple[tokenizers.Tokenizer, trainers.Trainer | None]:
    """Make the parts of a tokenizer; no trainer where counting is all the training there is."""
    size = max(vocab_size - 2, 0)  # start and end come later
    quiet = {"show_progress": False}
    if kind == "byte-bpe":
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        return inner, trainers.BpeTrainer(vocab_size=size, min_frequency=2, initial_alphabet=alphabet, **quiet)
    if kind == "bpe":
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = _words()
        inner.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        return inner, trainers.BpeTrainer(vocab_size=max(size - 256, 0), min_frequency=2, **quiet)
    if kind == "unigram":
        inner = tokenizers.Tokenizer(models.Unigram())
        inner.pre_tokenizer = _words()
        inner.decoder = decoders.Metaspace()
        return inner, trainers.UnigramTrainer(vocab_size=size, special_tokens=[UNKNOWN], unk_token=UNKNOWN, **quiet)
    if kind == "wordpiece":
        inner = tokenizers.Tokenizer(models.WordPiece(unk_token=UNKNOWN))
        inner.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        inner.decoder = decoders.WordPiece()
        return inner, trainers.WordPieceTrainer(vocab_size=size, special_tokens=[UNKNOWN], **quiet)
    if kind == "characters":
        counts = Counter(char for text in texts for char in text)
        kept = [char for char, count in counts.most_common(max(size - 256, 0)) if count >= min_count]
        vocabulary = {token: index for index, token in enumerate([*_bytes(), *sorted(kept)])}
        inner = tokenizers.Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
        inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        return inner, None
    counts = Counter(word for text in texts for word in text.split() if word not in (START, END, UNKNOWN, MASK))
    kept = [word for word, count in counts.most_common(max(size - 1, 0)) if count >= min_count]
    vocabulary = {token: index for index, token in enumerate([UNKNOWN, *sorted(kept)])}
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner, None


def _words() -> pre_tokenizers.PreTokenizer:
    """Cut text into words, each with the space before it as ▁."""
    return pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Split(_SPELLED, "merged_with_previous")])


def _add_bytes(inner: tokenizers.Tokenizer) -> None:
    """Give a trained BPE model a token for each byte, for characters that it has never seen."""
    trained = json.loads(inner.to_str())["model"]
    vocabulary = trained["vocab"]
    vocabulary |= {token: len(vocabulary) + place for place, token in enumerate(_bytes())}
    inner.model = models.BPE(vocabulary, [tuple(pair) for pair in trained["merges"]], byte_fallback=True)


def _round_scores(inner: tokenizers.Tokenizer) -> None:
    """Round a trained unigram model's scores: the library reads longer decimals back one bit off."""
    trained = json.loads(inner.to_str())["model"]
    inner.model = models.Unigram([(piece, round(score, 9)) for piece, score in trained["vocab"]], trained["unk_id"])


def _bytes() -> list[str]:
    """Name the 256 byte tokens as byte fallback expects them."""
    return [f"<0x{byte:02X}>" for byte in range(256)]


def read_library(path: Path) -> tokenizers.Tokenizer:
    """Read anyone's tokenizer.json as the library's own tokenizer.

    Args:
        path: The file.

    Returns:
        The tokenizer.

    Raises:
        DataError: There is no such file.
        FormatError: It is too large, or no tokenizer.
    """
    if not path.is_file():
        raise DataError(f"no {path.name} here", where=str(path.parent), mend="give a folder that is whole")
    if path.stat().st_size > FILE_CAP_BYTES:
        raise FormatError(f"over {FILE_CAP_BYTES:,} bytes", where=str(path))
    try:
        return tokenizers.Tokenizer.from_str(path.read_text("utf-8"))
    except Exception as error:  # the library raises bare Exceptions
        raise FormatError(f"not a tokenizer ({str(error)[:80]})", where=str(path)) from error
