"""The lecture on masks: who may attend to whom, and why there is no padding."""

from torch import Tensor

from regard.looking.lecture.layout import Picture, beside, named, scientific, signed
from regard.looking.lecture.numbers.masking import mask_matrices, packed, sees_nothing, shifted_windows
from regard.looking.svg import px
from regard.looking.text import escape

_TOLD = {
    "window(-1, -1)": ("none", "every query sees every key"),
    "causal()": ("causal", "no key ahead: what comes next is to be predicted"),
    "window(2, 1)": ("window", "two keys back, one ahead: cost grows with n, not n²"),
    "causal() & window(3, -1)": ("causal and window", "masks combine: a key must pass both"),
    "prefix(4)": ("prefix", "a prefix of 4 that all see, causal behind it"),
    "documents(ids)": ("packed documents", "three texts in one row stay apart"),
    "documents(ids) & causal()": ("documents and causal", "as language models are trained"),
    "blocks(4)": ("blocks", "a query sees its own block of 4"),
    "blocks(4, shift=2)": ("shifted blocks", "the cuts have moved by 2"),
}


def pictures() -> list[Picture]:
    """Draw them, from what is computed now."""
    return [_masks(), _windows(), _nothing(), _packed()]


def _masks() -> Picture:
    places = [str(i) for i in range(10)]
    cards = []
    for code, allowed_TS in mask_matrices().items():
        name, told = _TOLD[code]
        drawn = signed(name, allowed_TS.double(), rows=places, columns=places, decimals=None, note="")
        cards.append(f'<div class="mask">{drawn}<p class="soft">{told}</p><code>{escape(code)}</code></div>')
    return Picture(
        "Who may attend to whom",
        (
            "A row is a query, a column a key; a filled cell may attend. What is not allowed gets the weight 0, and "
            "the other weights of the row still sum to 1.",
            "A mask is a function of where a score stands, `allow(query, key)`: one definition serves dense kernels "
            "and those that skip whole blocks.",
        ),
        ("A = softmax(E over the allowed keys)",),
        "Causal: Vaswani et al. 2017, §3.2.3; window: Beltagy et al. 2020, §3.1; prefix: Raffel et al. 2020, "
        "§3.2.1; blocks: Liu et al. 2021, §3.2, in one dimension",
        f'<div class="masks">{"".join(cards)}</div>',
        mask_matrices,
        wide=True,
    )


def _windows() -> Picture:
    parts = []
    for shift, sees_NN in shifted_windows().items():
        group_N = _groups(sees_NN)
        name = f"shift {shift}"
        parts.append(named(name, _grid(group_N, 4, name), "the grid"))
        parts.append(signed(name, sees_NN.double(), decimals=None, note="16 × 16"))
    return Picture(
        "Shifted windows of a picture (Swin)",
        (
            "An image of 4 × 4 tokens. Tokens of one number attend to each other. In one layer windows are cut on "
            "the grid, in the next the cuts are shifted by half a window, so that what a window knows gets out of "
            "it.",
            "Shifted windows are wrapped around, which keeps all of them of one size; a mask keeps apart the ends "
            "that only the wrapping brought together. So there are 9 groups, not 4.",
        ),
        ("t sees s where group(t) = group(s)",),
        "Liu et al. 2021, §3.2 and figure 4; windows of 2 × 2",
        beside(*parts),
        shifted_windows,
        wide=True,
    )


def _groups(sees_NN: Tensor) -> list[int]:
    """Number the groups of tokens that see each other, in the order of their first tokens."""
    firsts = sees_NN.int().argmax(1).tolist()
    order = {first: number for number, first in enumerate(dict.fromkeys(firsts))}
    return [order[first] for first in firsts]


def _grid(group_N: list[int], width: int, label: str) -> str:
    """Draw the tokens of a grid, a number and a colour for each group."""
    parts = []
    for at, group in enumerate(group_N):
        y, x = divmod(at, width)
        parts.append(f'<rect class="cell g{group % 6}" x="{x * 34}" y="{y * 34}" width="33" height="33"/>')
        parts.append(f'<text class="figure" text-anchor="middle" x="{x * 34 + 16.5}" y="{y * 34 + 21}">{group}</text>')
    side = width * 34
    head = f'viewBox="0 0 {side} {side}" width="{side}" height="{side}"'
    return f'<svg class="matrix" {head} role="img" aria-label="groups of tokens, {label}">{"".join(parts)}</svg>'


def _nothing() -> Picture:
    allowed_TS, y_NK, row_S = sees_nothing()
    places = [str(i) for i in range(4)]
    softmax = f"softmax(−∞, −∞, −∞, −∞) = ({', '.join(f'{value:.0f}' for value in row_S.tolist())})"
    return Picture(
        "A query that sees nothing",
        (
            "Query 0 may attend to no key. Softmax over no numbers is 0/0, and one such row would spoil a whole "
            "batch. Here the result of such a query is zero and no gradient goes through it, whatever kernel "
            "computes it.",
            f"Softmax alone: {softmax}. `Attn`: row 0 is ({', '.join(f'{v:.0f}' for v in y_NK[0].tolist())}).",
        ),
        ("no key allowed:  y_{t} = 0",),
        "A convention; compare softmax over an empty set",
        beside(
            signed("allowed", allowed_TS.double(), rows=places, columns=places, decimals=None, note="4 × 4"),
            "→",
            signed("`Attn`", y_NK, rows=places),
        ),
        sees_nothing,
    )


def _packed() -> Picture:
    sequence_N, position_N, sees_NN, difference = packed()
    sequences, positions = sequence_N.tolist(), position_N.tolist()
    lengths = [sequences.count(number) for number in range(3)]
    padded = 3 * max(lengths)
    square = _boxes(
        [(p, s, s, str(p)) for s, p in zip(sequences, positions, strict=True)]
        + [(p, s, -1, "–") for s, length in enumerate(lengths) for p in range(length, max(lengths))],
        "a batch with padding",
    )
    row = _boxes(
        [(i, 0, s, str(p)) for i, (s, p) in enumerate(zip(sequences, positions, strict=True))],
        "the same batch as one row of tokens",
    )
    return Picture(
        "Why there is no padding",
        (
            f"Three sentences of {lengths[0]}, {lengths[1]} and {lengths[2]} tokens. Filled up to the longest they "
            f"are {padded} places, {padded - len(sequences)} of them empty, and every layer has to be told which.",
            f"Here a batch is one row of its {len(sequences)} tokens, and `Segments` say which belong together. "
            "Layer norm, MLP and embedding see rows of vectors; attention alone asks where a sentence begins. "
            "Positions count from 0 in each.",
            f"Together or each alone, the results differ by {scientific(difference)} at most.",
        ),
        ("t sees s where segment(t) = segment(s)",),
        "Krell et al. 2021, §3, packs sentences into rows of one length; here rows have no length to fill",
        named("with padding", square, f"{padded} places")
        + named("`Segments`", row, f"{len(sequences)} tokens; the numbers are positions")
        + signed("who sees whom", sees_NN.double(), decimals=None, note="14 × 14"),
        packed,
    )


def _boxes(boxes: list[tuple[int, int, int, str]], label: str) -> str:
    """Draw tokens as boxes: column, row, group (−1 for padding), text."""
    parts = []
    for x, y, group, text in boxes:
        kind = "empty" if group < 0 else f"g{group}"
        parts.append(f'<rect class="cell {kind}" x="{x * 30 + 0.5}" y="{y * 30 + 0.5}" width="28" height="28"/>')
        parts.append(
            f'<text class="figure" text-anchor="middle" x="{px(x * 30 + 14.5)}" y="{y * 30 + 19}">{text}</text>'
        )
    width, height = 30 * (1 + max(x for x, *_ in boxes)), 30 * (1 + max(y for _, y, *_ in boxes))
    head = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg class="matrix" {head} role="img" aria-label="{label}">{"".join(parts)}</svg>'
