"""The lecture on order: self-attention without positions does not see it."""

from torch import Tensor

from regard.looking.lecture.layout import Picture, beside, scientific, signed
from regard.looking.lecture.numbers.permuting import permutation

_WORDS = ("the", "dog", "bites", "a", "man")
_MOVED = ("a", "man", "bites", "the", "dog")


def pictures() -> list[Picture]:
    """Draw them, from what is computed now."""
    (
        x_ND,
        p_NN,
        y_ND,
        moved_ND,
        weights_NN,
        moved_weights_NN,
        difference,
        encoding_ND,
        placed_ND,
        placed_moved_ND,
        broken,
    ) = permutation()
    px_ND, py_ND, p_placed_ND = p_NN @ x_ND, p_NN @ y_ND, p_NN @ placed_ND
    words = Picture(
        "1 · The same words in another order",
        (
            "`X` has one row a word. `P` has a single 1 in each row and column: `P X` has the same rows in another "
            "order. “the dog bites a man” becomes “a man bites the dog”.",
        ),
        ("X ↦ P X",),
        "Vaswani et al. 2017, §3.5, on why order has to be told; here vectors from N(0, 1), D = 4",
        beside(
            _rows("`P`", p_NN, _MOVED, columns=_WORDS, decimals=0),
            "·",
            _rows("`X`", x_ND, _WORDS),
            "=",
            _rows("`P X`", px_ND, _MOVED),
        ),
        permutation,
        wide=True,
    )
    weights = Picture(
        "2 · The weights move along",
        (
            "Which word attends to which, and how much, is computed from the two words alone. So rows and columns "
            "of the weights change places, and nothing else.",
        ),
        ("A(P X) = P A(X) P^{T}",),
        "Vaswani et al. 2017, equation 1",
        beside(
            _rows("`A(X)`", weights_NN, _WORDS, columns=_WORDS, largest=1),
            "→",
            _rows("`A(P X)`", moved_weights_NN, _MOVED, columns=_MOVED, largest=1),
        ),
        None,
        wide=True,
    )
    results = Picture(
        "3 · So does the result",
        (
            "Each word gets the same vector in both sentences: the layer cannot know who bites whom. This holds for "
            "every number of heads, and for a whole stack of such layers.",
            f"Largest difference of the last two: {scientific(difference)}.",
        ),
        ("Attn(P X) = P Attn(X)",),
        "Yun et al. 2020, claim 1",
        beside(
            _rows("`Attn(X)`", y_ND, _WORDS),
            "→",
            _rows("`P Attn(X)`", py_ND, _MOVED),
            "=",
            _rows("`Attn(P X)`", moved_ND, _MOVED),
        ),
        None,
        wide=True,
    )
    largest = float(placed_ND.abs().max())
    positions = Picture(
        "4 · With positions it no longer holds",
        (
            "The encoding `E` belongs to the place, not to the word: it stays where it is when words move. Now "
            "“dog” in front and “dog” at the end are different rows, and so are their results.",
            f"Largest difference of the last two: {scientific(broken)}.",
        ),
        ("Attn(P X + E) ≠ P Attn(X + E)",),
        "Vaswani et al. 2017, §3.5",
        beside(
            _rows("`E`", encoding_ND, [str(i) for i in range(5)]),
            "→",
            _rows("`P Attn(X + E)`", p_placed_ND, _MOVED, largest=largest),
            "≠",
            _rows("`Attn(P X + E)`", placed_moved_ND, _MOVED, largest=largest),
        ),
        None,
        wide=True,
    )
    return [words, weights, results, positions]


def _rows(
    name: str,
    values_NX: Tensor,
    rows: tuple[str, ...] | list[str],
    columns: tuple[str, ...] = (),
    decimals: int = 2,
    largest: float | None = None,
) -> str:
    return signed(name, values_NX, rows=rows, columns=columns, decimals=decimals, largest=largest)
