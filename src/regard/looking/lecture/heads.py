"""The lecture on multi-head attention: one layer step by step, cross-attention, shared keys."""

from collections.abc import Callable

from torch import Tensor

from regard.looking.lecture.layout import Picture, beside, named, scientific, signed
from regard.looking.lecture.numbers.heads import cross_attention, head_steps, shared_heads

_WORDS = ("the", "cat", "sat", "down")
_TARGET, _SOURCE = ("the", "house", "is"), ("das", "Haus", "ist", "sehr", "alt")
_VASWANI = "Vaswani et al. 2017, §3.2"


def pictures() -> list[Picture]:
    """Draw them, from what is computed now."""
    return [*_steps(), _cross(), _shared()]


def _steps() -> list[Picture]:
    (x, w_q, w_k, w_v, w_o, q, k, v, scores, scaled, masked, weights, heads, joined, y, recorded, difference) = (
        head_steps()
    )
    project = Picture(
        "1 · Project",
        (
            "One row a word. Three matrices make of each row a query (what it looks for), a key (what it is found "
            "by) and a value (what it hands over). With two heads of size 3, the first three columns are head 0’s.",
        ),
        ("Q = X W_{Q}", "K = X W_{K}", "V = X W_{V}"),
        f"{_VASWANI}.2; D = 6, H = 2 heads, K = 3",
        "".join(
            beside(
                signed("`X`", x, rows=_WORDS),
                "·",
                signed(f"`W_{{{name}}}`", w),
                "=",
                signed(f"`{name}`, head 0", p[:, 0], rows=_WORDS),
                signed(f"`{name}`, head 1", p[:, 1]),
            )
            for name, w, p in (("Q", w_q, q), ("K", w_k, k), ("V", w_v, v))
        ),
        head_steps,
        wide=True,
    )
    compare = Picture(
        "2 · Compare",
        ("Each query meets each key, head by head: row `t`, column `s` is `q_{t} · k_{s}`.",),
        ("E = Q K^{T}",),
        f"{_VASWANI}.1",
        _both(lambda h: beside(_head(f"`Q_{{{h}}}`", q, h), "·", _keys(k, h), "=", _square(f"`E_{{{h}}}`", scores, h))),
        None,
        wide=True,
    )
    largest = float(scores.abs().max())
    scale = Picture(
        "3 · Scale and mask",
        (
            "Scores are divided by √3, and keys ahead of the query are taken out: −∞ becomes the weight 0.",
            "A word that is to be predicted must not be looked at.",
        ),
        ("E / √K, then −∞ where s > t",),
        f"{_VASWANI}.1 and §3.2.3",
        _both(
            lambda h: beside(
                _square(f"`E_{{{h}}}`", scores, h, largest),
                "→",
                _square(f"`E_{{{h}}} / √K`", scaled, h, largest),
                "→",
                _square("masked", masked, h, largest),
            )
        ),
        None,
        wide=True,
    )
    weigh = Picture(
        "4 · Weigh",
        (
            "Softmax makes weights of scores: each row is positive and sums to 1. The first word can only look at "
            "itself.",
            "The layer’s own weights, recorded while it runs, are these; largest difference: "
            f"{scientific((recorded - weights).abs().max())}.",
        ),
        ("a_{t,s} = exp(e_{t,s}) / Σ_{r} exp(e_{t,r})",),
        "Vaswani et al. 2017, equation 1",
        _both(lambda h: beside(_square("masked", masked, h, largest), "→", _square(f"`A_{{{h}}}`", weights, h, 1.0))),
        None,
        wide=True,
    )
    gather = Picture(
        "5 · Gather",
        ("Each word takes the mean of the values, weighted by its row: head 0 and head 1 look at different things.",),
        ("head_{h} = A_{h} V_{h}",),
        "Vaswani et al. 2017, equation 1",
        _both(
            lambda h: beside(
                _square(f"`A_{{{h}}}`", weights, h, 1.0),
                "·",
                _head(f"`V_{{{h}}}`", v, h),
                "=",
                _head(f"head {h}", heads, h),
            )
        ),
        None,
        wide=True,
    )
    join = Picture(
        "6 · Put side by side and mix",
        (
            "The heads’ results stand side by side again, and a last matrix mixes them: the layer gives as many "
            "rows, as wide, as it was given.",
            f"Step by step or by the layer, the results differ by {scientific(difference)} at most.",
        ),
        ("Y = Concat(head_{1}, …, head_{H}) W_{O}",),
        f"{_VASWANI}.2",
        beside(signed("heads", joined, rows=_WORDS), "·", signed("`W_{O}`", w_o), "=", signed("`Y`", y, rows=_WORDS)),
        None,
        wide=True,
    )
    return [project, compare, scale, weigh, gather, join]


def _both(draw: Callable[[int], str]) -> str:
    return "".join(draw(head) for head in (0, 1))


def _head(name: str, x_NHK: Tensor, head: int) -> str:
    return signed(name, x_NHK[:, head], rows=_WORDS)


def _keys(k_NHK: Tensor, head: int) -> str:
    return signed(f"`K_{{{head}}}^{{T}}`", k_NHK[:, head].T, columns=_WORDS)


def _square(name: str, x_HTS: Tensor, head: int, largest: float | None = None) -> str:
    return signed(name, x_HTS[head], rows=_WORDS, columns=_WORDS, largest=largest)


def _cross() -> Picture:
    weights_HTS = cross_attention()
    return Picture(
        "Cross-attention",
        (
            "Queries come from one text, keys and values from another: each word of the translation looks at the "
            "words of the source. The matrix is as high as the one and as wide as the other; nothing else changes.",
            "The weights here are those of a layer that has learned nothing yet.",
        ),
        ("Q = Y W_{Q}", "K = X W_{K}", "V = X W_{V}"),
        f"{_VASWANI}.3; Bahdanau et al. 2015, §3.1",
        beside(
            *(
                signed(f"`A_{{{h}}}`", a_TS, rows=_TARGET, columns=_SOURCE, largest=1.0)
                for h, a_TS in enumerate(weights_HTS)
            )
        ),
        cross_attention,
    )


def _shared() -> Picture:
    key_heads, kept = shared_heads()
    names = {8: "multi-head", 2: "grouped-query", 1: "multi-query"}
    parts = [
        named(names[groups], _links(of_H.tolist(), names[groups]), f"G = {groups}; {kept[groups]} numbers a token")
        for groups, of_H in key_heads.items()
    ]
    return Picture(
        "Heads that share keys",
        (
            "A model that writes keeps keys and values of every earlier token. Where several query heads read the "
            "same key head, there is less to keep and, above all, less to read at each step.",
            "Above: 8 query heads. Below: the `G` key–value heads. Heads of one key head still have their own "
            "queries, so they still look at different places.",
        ),
        ("query head h reads key head ⌊h G / H⌋", "kept for each token: 2 G K numbers"),
        "Shazeer 2019; Ainslie et al. 2023, §2.2; H = 8, K = 8",
        "".join(parts),
        shared_heads,
    )


def _links(key_heads: list[int], label: str) -> str:
    """Draw query heads above, key heads below, a line where one reads the other."""
    step, groups = 36, max(key_heads) + 1
    width = step * len(key_heads)
    each = width / groups
    parts: list[str] = []
    for head, group in enumerate(key_heads):
        x, to = step * (head + 0.5), each * (group + 0.5)
        parts.append(f'<line class="link" x1="{x:g}" y1="28" x2="{to:g}" y2="66"/>')
        parts.append(f'<rect class="cell g{group % 6}" x="{x - 13:g}" y="2" width="26" height="26"/>')
        parts.append(f'<text class="figure" text-anchor="middle" x="{x:g}" y="19.5">{head}</text>')
    for group in range(groups):
        x = each * (group + 0.5)
        parts.append(f'<rect class="cell g{group % 6}" x="{x - 13:g}" y="66" width="26" height="26"/>')
        parts.append(f'<text class="figure" text-anchor="middle" x="{x:g}" y="83.5">{group}</text>')
    head = f'viewBox="0 0 {width} 94" width="{width}" height="94"'
    return f'<svg class="matrix" {head} role="img" aria-label="{label}: query and key heads">{"".join(parts)}</svg>'
