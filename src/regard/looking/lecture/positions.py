"""The lecture on position encodings."""

from regard.looking.lecture.layout import Picture, beside, curves, named, numbers, scientific, signed
from regard.looking.lecture.numbers.positions import (
    alibi,
    relative_buckets,
    rotary_products,
    sinusoid_products,
    sinusoid_shift,
    sinusoids,
)
from regard.looking.matrix import picture
from regard.looking.svg import Series


def pictures() -> list[Picture]:
    """Draw them, from what is computed now."""
    return [_sinusoids(), _products(), _shift(), _rotary(), _alibi(), _buckets()]


def _sinusoids() -> Picture:
    encoding_ND = sinusoids()
    drawn = picture(
        encoding_ND.tolist(), label="sinusoidal position encoding", y_label="position p", x_label="dimension", largest=1
    )
    return Picture(
        "Sines and cosines of many wavelengths",
        (
            "Each row is the vector that is added to the token at that position. Even dimensions hold sines, odd "
            "ones cosines; from left to right a wave takes from `2π` to almost `10000 · 2π` positions.",
            "The left tells neighbours apart, the right tells the beginning from the end, like the digits of a "
            "clock: no two rows are alike, and none is larger than 1.",
        ),
        ("PE_{p, 2i} = sin(p / 10000^{2i/D})", "PE_{p, 2i+1} = cos(p / 10000^{2i/D})"),
        "Vaswani et al. 2017, §3.5; here 50 positions, D = 64",
        named("`PE`", drawn, "50 × 64; blue above 0, orange below") + numbers(encoding_ND),
        sinusoids,
    )


def _products() -> Picture:
    products_NN, by_distance_M, spread = sinusoid_products()
    drawn = picture(
        products_NN.tolist(), label="dot products of position encodings", y_label="p", x_label="q", largest=32, cell=7
    )
    distances = list(range(len(by_distance_M)))
    curve = curves(
        [Series("PE(0) · PE(d)", distances, by_distance_M.tolist())], x_label="distance d", y_label="dot product"
    )
    return Picture(
        "Two encodings tell how far apart they are",
        (
            "The product of two rows is the same along every diagonal: it depends on the distance alone. It is "
            "largest, `D / 2` = 32, where a position meets itself, and falls off to both sides, in waves.",
            "It is also symmetric: the product alone does not say which of the two comes first. The projections "
            "`W_{Q}` and `W_{K}` can learn to.",
            f"Products of equal distance differ here by {scientific(spread)} at most, which is rounding.",
        ),
        ("PE_{p} · PE_{q} = Σ_{i} cos((p − q) ω_{i})", "ω_{i} = 10000^{−2i/D}"),
        "Follows from Vaswani et al. 2017, §3.5; D = 64",
        named("`PE PE^{T}`", drawn, "50 × 50") + numbers(products_NN, 1) + curve,
        sinusoid_products,
    )


def _shift() -> Picture:
    shift_DD, error = sinusoid_shift()
    return Picture(
        "A step of k places is one matrix",
        (
            "For a fixed distance, the encoding of the later position is a linear function of that of the earlier "
            "one, wherever the two stand. Each pair of sine and cosine is turned by its own angle, so the matrix is "
            "made of 2 × 2 rotations.",
            f"Over 100 positions, `PE_{{p+3}}` and `M_{{3}} PE_{{p}}` differ by {scientific(error)} at most.",
        ),
        (
            "PE_{p+k} = M_{k} PE_{p}",
            "block i: cos k ω_{i} on the diagonal, ± sin k ω_{i} beside it",
        ),
        "Vaswani et al. 2017, §3.5; here k = 3, D = 8",
        signed("`M_{3}`", shift_DD, decimals=2, largest=1),
        sinusoid_shift,
    )


def _rotary() -> Picture:
    products_NM, alike_NM, encoded_N, moved = rotary_products()
    distances = list(range(len(products_NM)))
    series = [
        Series("one pair", distances, products_NM[:, 0].tolist()),
        Series("mean of 100 pairs", distances, products_NM.mean(1).tolist()),
        Series("mean, k = q", distances, alike_NM.mean(1).tolist()),
        Series("2 PE(0) · PE(d)", distances, (2 * encoded_N).tolist()),
    ]
    return Picture(
        "Rotated queries and keys",
        (
            "Nothing is added: queries and keys are turned, pair of coordinates by pair, by angles that grow with "
            "their positions. Then `q · k` depends on the distance of the two, and on nothing else about where they "
            "stand.",
            "A random pair goes up and down; over many pairs the mean stays near 0. Where key and query are the "
            "same vector, the product falls with the distance, on average as twice the product of sinusoidal "
            "encodings does.",
            f"With both 1000 places further on, no product changes by more than {scientific(moved)}.",
        ),
        ("(R_{p} q) · (R_{s} k) = q · R_{s−p} k", "R_{p} turns pair i by the angle p · 10000^{−2i/K}"),
        "Su et al. 2021, §3.2.2 and §3.4.3; q, k from N(0, 1), K = 64, 100 pairs",
        curves(series, x_label="distance d", y_label="q · k"),
        rotary_products,
    )


def _alibi() -> Picture:
    bias_HTS = alibi()
    tokens = [str(i) for i in range(bias_HTS.shape[-1])]
    drawn = [
        signed(f"head {head}", bias_TS, rows=tokens, columns=tokens, decimals=None, largest=1.75, note=f"m = {slope}")
        for head, (bias_TS, slope) in enumerate(zip(bias_HTS, ("1/4", "1/16", "1/64", "1/256"), strict=True))
    ]
    return Picture(
        "A penalty that grows with the distance",
        (
            "ALiBi adds no encoding either. It takes from each score a number proportional to the distance, at a "
            "rate of its own for each head: the first sees its surroundings, the last almost everything.",
            "The rule does not end anywhere, so a model can be run on longer texts than it was trained on. The "
            "paper uses it under a causal mask; here both sides are shown.",
        ),
        ("e_{t,s} = q_{t} · k_{s} / √K − m_{h} · |t − s|", "m_{h} = 2^{−8(h+1)/H}"),
        "Press et al. 2022, §3; H = 4 heads, 8 tokens",
        beside(*drawn) + numbers(bias_HTS.flatten(0, 1), 3),
        alibi,
        wide=True,
    )


def _buckets() -> Picture:
    distances_N, buckets_N = relative_buckets()
    return Picture(
        "Learned biases share far distances",
        (
            "T5 learns a number for each head and bucket of distances. Near distances have buckets of their own; "
            "from 8 on they are shared, the wider the further, and from 128 on all share the last.",
            "Keys behind a query and keys ahead of it have 16 buckets each.",
        ),
        ("e_{t,s} = q_{t} · k_{s} + b_{h, bucket(t−s)}",),
        "Raffel et al. 2020, §2.1; 32 buckets, greatest distance 128",
        curves(
            [Series("bucket", distances_N.tolist(), buckets_N.tolist())],
            x_label="distance from key forward to query, t − s",
            y_label="bucket",
        ),
        relative_buckets,
    )
