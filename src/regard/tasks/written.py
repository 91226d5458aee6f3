"""What a model writes, as text: behind its prompt, up to a stop text, and in pieces as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

# Of a prompt's tokens so many are read again with what comes after: some tokenizers' spaces hang on what is before.
_BEFORE = 8
# A stop text has at most a token for each byte; and so many more are read, for tokens among them that are no text.
_SLACK = 64


class Written:
    """The text behind a prompt.

    Args:
        decode: Turns tokens into text.
        prompt: The prompt's tokens.
        stops: Texts that end the output.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt: Sequence[int], stops: Sequence[str] = ()) -> None:
        self.decode, self.stops = decode, stops
        self._before = list(prompt[-_BEFORE:])
        self._read = decode(self._before)
        self._tail = _SLACK + max((len(stop.encode()) for stop in stops), default=0)
        self._tokens: list[int] = []
        self._said = 0

    def text(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text: what they add to the prompt's, a space before the first word with them."""
        whole = self.decode([*self._before, *tokens])
        # A character that the prompt had begun is another one there: what both begin with is the prompt's.
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(whole, self._read, strict=False))
        return whole[sum(1 for _ in alike) :]

    def cut(self, text: str) -> str:
        """Give what stands before the first stop text."""
        return text[: min((place for stop in self.stops if (place := text.find(stop)) >= 0), default=len(text))]

    def is_over(self, tokens: Sequence[int]) -> bool:
        """Say whether the last token brings a stop text to its end."""
        is_whole = len(tokens) <= self._tail
        text = self.text(tokens) if is_whole else self.decode(list(tokens[-self._tail :]))
        return self.cut(text) != text

    def push(self, token: int) -> str:
        """Take a token, and give what can be said by now: a character, or a stop text, may be half there."""
        self._tokens.append(token)
        text = self.text(self._tokens)
        safe = len(self.cut(text.rstrip("\ufffd")))
        for stop in self.stops:
            for held in range(1, len(stop)):
                if text.endswith(stop[:held]):
                    safe = min(safe, len(text) - held)
        piece, self._said = text[self._said : max(safe, self._said)], max(safe, self._said)
        return piece

    def rest(self, text: str) -> str:
        """Give what is left to be said of the whole text."""
        return text[self._said :]
