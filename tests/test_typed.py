"""What programs give: one string is no list of texts, and nothing else is a text."""

from collections.abc import Callable
from typing import Any

import pytest

from regard.errors import UsageError
from regard.tasks.embedder import Embedder
from regard.tasks.filler import Filler
from regard.tasks.generator import Generator
from regard.tasks.labeller import Labeller
from regard.tasks.tagger import Tagger
from regard.tasks.translator import Translator
from regard.typed import check_texts

# Before a model does anything: none is needed.
CALLS: dict[str, Callable[[Any], Any]] = {
    "translate": lambda texts: Translator.translate(object.__new__(Translator), texts),
    "generate": lambda texts: Generator.generate(object.__new__(Generator), texts),
    "score": lambda texts: Generator.score(object.__new__(Generator), texts),
    "evaluate": lambda texts: Generator.evaluate(object.__new__(Generator), texts),
    "fill": lambda texts: Filler.fill(object.__new__(Filler), texts),
    "classify": lambda texts: Labeller.classify(object.__new__(Labeller), texts),
    "tag": lambda texts: Tagger.tag(object.__new__(Tagger), texts),
    "embed": lambda texts: Embedder.embed(object.__new__(Embedder), texts, "mean"),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_string_is_not_read_letter_by_letter(name: str) -> None:
    for wrong, shown in (("der hund", "'der hund'"), (b"der hund", "bytes"), (None, "NoneType"), (7, "int")):
        with pytest.raises(UsageError, match=rf"^{name}: {shown} is no list; give a list of texts: \[text\]$"):
            CALLS[name](wrong)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_text_is_refused(name: str) -> None:
    for wrong in (None, 7, b"der hund", [1, 2]):
        with pytest.raises(UsageError, match=f"^{name}: text 2 is of the type {type(wrong).__name__}; give strings"):
            CALLS[name](["der hund", wrong])


def test_texts_are_taken_as_they_are_given() -> None:
    assert check_texts(("a", ""), "here") == ["a", ""]
    assert check_texts((text for text in "ab"), "here") == ["a", "b"]
    assert check_texts(["a", ("b", "c"), ["d"]], "here", in_parts=True) == ["a", ("b", "c"), ["d"]]
    with pytest.raises(UsageError, match="text 1"):
        check_texts([("b", "c")], "here")
