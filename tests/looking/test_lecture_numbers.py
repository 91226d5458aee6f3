"""The numbers of the pictures of lectures, beside loops in float64."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from regard.attention import MultiHeadAttention
from regard.layers.recurrent import Recurrent, StateAttention
from regard.looking.lecture.numbers import costs, heads, masking, permuting, positions, recurrent, scaling

TIGHT = {"rtol": 0, "atol": 1e-12}


def encoded(position, dim):
    row = []
    for i in range(dim // 2):
        angle = position / 10000 ** (2 * i / dim)
        row += [math.sin(angle), math.cos(angle)]
    return row


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(scores):
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    return [power / sum(powers) for power in powers]


def times(rows, weight_OI, bias_O=None):
    """x Wᵀ + b, number by number."""
    bias = [0.0] * len(weight_OI) if bias_O is None else bias_O
    return [[dot(row, w) + b for w, b in zip(weight_OI, bias, strict=True)] for row in rows]


def attended(q_TK, k_SK, v_SK, scale, sees=lambda t, s: True):
    """Weights and results of one head."""
    weights, results = [], []
    for t, q in enumerate(q_TK):
        seen = [s for s in range(len(k_SK)) if sees(t, s)]
        shares = dict(zip(seen, softmax([scale * dot(q, k_SK[s]) for s in seen]), strict=True)) if seen else {}
        weights.append([shares.get(s, 0.0) for s in range(len(k_SK))])
        results.append([dot(weights[-1], [v[i] for v in v_SK]) for i in range(len(v_SK[0]))])
    return weights, results


def layer_oracle(layer, x, context=None, sees=lambda t, s: True):
    """Weights of each head, and the layer's result, from its parameters alone."""
    context = x if context is None else context
    projected = []
    for rows, proj in ((x, layer.q_proj), (context, layer.k_proj), (context, layer.v_proj)):
        bias = None if proj.bias is None else proj.bias.tolist()
        projected.append(times(rows.tolist(), proj.weight.tolist(), bias))
    size, weights, joined = layer.head_dim, [], [[] for _ in range(len(x))]
    for head in range(layer.num_heads):
        q, k, v = ([row[head * size : (head + 1) * size] for row in rows] for rows in projected)
        of_head, results = attended(q, k, v, 1 / math.sqrt(size), sees)
        weights.append(of_head)
        joined = [row + more for row, more in zip(joined, results, strict=True)]
    out = layer.out_proj
    return weights, times(joined, out.weight.tolist(), None if out.bias is None else out.bias.tolist())


def close(tensor, expected, **tolerance):
    np.testing.assert_allclose(tensor.detach().numpy(), np.asarray(expected), **(tolerance or TIGHT))


# ---------------------------------------------------------------------------------------------------------- positions


def test_sinusoids():
    close(positions.sinusoids(), [encoded(p, 64) for p in range(50)], rtol=0, atol=1e-7)


def test_products_of_sinusoids_depend_on_the_distance():
    products_NN, by_distance_M, spread = positions.sinusoid_products()

    def expected(distance):
        return sum(math.cos(distance / 10000 ** (2 * i / 64)) for i in range(32))

    close(products_NN, [[expected(p - q) for q in range(50)] for p in range(50)])
    close(by_distance_M, [expected(d) for d in range(201)])
    assert 0 < spread < 1e-12


def test_a_step_is_one_matrix():
    shift_DD, error = positions.sinusoid_shift()
    expected = [[0.0] * 8 for _ in range(8)]
    for i in range(4):
        angle = 3 / 10000 ** (2 * i / 8)
        expected[2 * i][2 * i] = expected[2 * i + 1][2 * i + 1] = math.cos(angle)
        expected[2 * i][2 * i + 1], expected[2 * i + 1][2 * i] = math.sin(angle), -math.sin(angle)
    close(shift_DD, expected)
    for p in (0, 41, 99):
        np.testing.assert_allclose([dot(row, encoded(p, 8)) for row in expected], encoded(p + 3, 8), **TIGHT)
    assert 0 < error < 1e-12


def test_rotated_products():
    products_NM, alike_NM, encoded_N, moved = positions.rotary_products()
    torch.manual_seed(0)
    q_MK, k_MK = torch.randn(2, 100, 64, dtype=torch.float64).tolist()

    def turned(q, k, distance):
        """The real part of Σ q_i k̄_i e^{i φ}: coordinate i is paired with i + 32."""
        total = 0.0
        for i in range(32):
            a, b = complex(q[i], q[i + 32]), complex(k[i], k[i + 32])
            angle = distance / 10000 ** (2 * i / 64)
            total += (a * complex(math.cos(angle), math.sin(angle)) * b.conjugate()).real
        return total

    for distance, pair in product((0, 1, 53, 128), (0, 7, 99)):
        assert abs(float(products_NM[distance, pair]) - turned(q_MK[pair], k_MK[pair], distance)) < 1e-10
        assert abs(float(alike_NM[distance, pair]) - turned(k_MK[pair], k_MK[pair], distance)) < 1e-10
    close(encoded_N, [dot(encoded(d, 64), encoded(0, 64)) for d in range(129)])
    assert 0 < moved < 1e-9


def test_alibi():
    bias_HTS = positions.alibi()
    expected = [[[-abs(t - s) / 4 ** (h + 1) for s in range(8)] for t in range(8)] for h in range(4)]
    close(bias_HTS, expected, rtol=0, atol=0)


def test_buckets_of_distances():
    distances_N, buckets_N = positions.relative_buckets()
    assert distances_N.tolist() == list(range(-160, 161))
    for distance, bucket in zip(distances_N.tolist(), buckets_N.tolist(), strict=True):
        far = abs(distance)
        own = far if far < 8 else min(15, 8 + int(math.log(far / 8) / math.log(128 / 8) * 8 + 1e-6))
        assert bucket == own + (16 if distance < 0 else 0), distance


# -------------------------------------------------------------------------------------------------------------- order


def test_permuted_sentences():
    x, p, y, moved, weights, moved_weights, difference, encoding, placed, placed_moved, broken = (
        one.detach() for one in permuting.permutation()
    )
    torch.manual_seed(0)
    layer = MultiHeadAttention(4, 1).double()
    close(x, torch.randn(5, 4, dtype=torch.float64), rtol=0, atol=0)
    order = [3, 4, 2, 0, 1]
    assert p.tolist() == [[float(order[t] == s) for s in range(5)] for t in range(5)]
    close(encoding, [encoded(position, 4) for position in range(5)])
    px = torch.stack([x[at] for at in order])
    for given, drawn, seen in ((x, y, weights), (px, moved, moved_weights)):
        expected_weights, expected = layer_oracle(layer, given)
        close(seen, expected_weights[0])
        close(drawn, expected)
    for given, drawn in ((x, placed), (px, placed_moved)):
        close(drawn, layer_oracle(layer, given + encoding)[1])

    def apart(of_permuted, of_plain):
        return max(abs(float(of_permuted[t, i] - of_plain[order[t], i])) for t in range(5) for i in range(4))

    assert float(difference) == pytest.approx(apart(moved, y), abs=1e-15)
    assert difference < 1e-12
    assert float(broken) == pytest.approx(apart(placed_moved, placed), abs=1e-15)
    assert broken > 0.1


# -------------------------------------------------------------------------------------------------------------- masks

IDS = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
RULES = {
    "window(-1, -1)": lambda t, s: True,
    "causal()": lambda t, s: s <= t,
    "window(2, 1)": lambda t, s: t - 2 <= s <= t + 1,
    "causal() & window(3, -1)": lambda t, s: t - 3 <= s <= t,
    "prefix(4)": lambda t, s: s < 4 or s <= t,
    "documents(ids)": lambda t, s: IDS[t] == IDS[s],
    "documents(ids) & causal()": lambda t, s: IDS[t] == IDS[s] and s <= t,
    "blocks(4)": lambda t, s: t // 4 == s // 4,
    "blocks(4, shift=2)": lambda t, s: (t + 2) // 4 == (s + 2) // 4,
}


def test_masks():
    drawn = masking.mask_matrices()
    assert list(drawn) == list(RULES)
    for name, allows in RULES.items():
        assert drawn[name].tolist() == [[allows(t, s) for s in range(10)] for t in range(10)], name


def test_shifted_windows():
    drawn = masking.shifted_windows()
    assert list(drawn) == [0, 1]
    for shift, sees_NN in drawn.items():

        def window(at, shift=shift):
            y, x = divmod(at, 4)
            return (y + shift) // 2, (x + shift) // 2

        assert sees_NN.tolist() == [[window(t) == window(s) for s in range(16)] for t in range(16)]


def test_a_query_without_keys_gives_zeros():
    allowed_TS, y_NK, row_S = masking.sees_nothing()
    torch.manual_seed(0)
    q, k, v = (one[:, 0].tolist() for one in torch.randn(3, 4, 1, 3, dtype=torch.float64))
    assert allowed_TS.tolist() == [[s < t for s in range(4)] for t in range(4)]
    close(y_NK, attended(q, k, v, 1 / math.sqrt(3), lambda t, s: s < t)[1])
    assert y_NK[0].tolist() == [0.0, 0.0, 0.0]
    assert all(map(math.isnan, row_S.tolist()))


def test_segments():
    sequence_N, position_N, sees_NN, difference = masking.packed()
    sequences = [0] * 5 + [1] * 2 + [2] * 7
    assert sequence_N.tolist() == sequences
    assert position_N.tolist() == [*range(5), *range(2), *range(7)]
    assert sees_NN.tolist() == [[a == b for b in sequences] for a in sequences]
    assert difference < 1e-12


# -------------------------------------------------------------------------------------------------------------- scale


def test_softmax_by_head_size():
    draws, keys, sizes = 3, 5, (2, 7)
    measured = scaling.softmax_by_head_size(draws, keys, sizes)
    torch.manual_seed(0)
    for row, size in enumerate(sizes):
        q, k = (torch.randn(*shape, size).double().tolist() for shape in ((draws, 1, 1), (draws, keys, 1)))
        for name, scale in (("q · k", 1.0), ("q · k / √K", 1 / math.sqrt(size))):
            scores = [[scale * dot(q[b][0][0], k[b][s][0]) for s in range(keys)] for b in range(draws)]
            flat = [score for of_draw in scores for score in of_draw]
            mean = sum(flat) / len(flat)
            spread = math.sqrt(sum((score - mean) ** 2 for score in flat) / (len(flat) - 1))
            largest = entropy = norm = 0.0
            for a in map(softmax, scores):
                largest += max(a) / draws
                entropy -= sum(share * math.log(share) for share in a) / draws
                entries = [a[i] * ((i == j) - a[j]) for i in range(keys) for j in range(keys)]
                norm += math.sqrt(sum(entry**2 for entry in entries)) / draws
            close(measured[name][row], [spread, largest, entropy, norm], rtol=0, atol=1e-5)


# -------------------------------------------------------------------------------------------------------------- heads


def test_head_steps():
    (x, w_q, w_k, w_v, w_o, q, k, v, scores, scaled, masked, weights, results, joined, y, recorded, difference) = (
        one.detach() for one in heads.head_steps()
    )
    torch.manual_seed(4)
    layer = MultiHeadAttention(6, 2, use_bias=False).double()
    close(x, torch.randn(4, 6, dtype=torch.float64), rtol=0, atol=0)
    for drawn, proj in ((w_q, layer.q_proj), (w_k, layer.k_proj), (w_v, layer.v_proj), (w_o, layer.out_proj)):
        close(drawn, [[proj.weight[o, i].item() for o in range(6)] for i in range(6)], rtol=0, atol=0)
    for drawn, proj in ((q, layer.q_proj), (k, layer.k_proj), (v, layer.v_proj)):
        rows = times(x.tolist(), proj.weight.tolist())
        close(drawn, [[row[:3], row[3:]] for row in rows])
    for h, t, s in product(range(2), range(4), range(4)):
        expected = dot(q[t, h].tolist(), k[s, h].tolist())
        assert float(scores[h, t, s]) == pytest.approx(expected, abs=1e-12)
        assert float(scaled[h, t, s]) == pytest.approx(expected / math.sqrt(3), abs=1e-12)
        assert float(masked[h, t, s]) == (float(scaled[h, t, s]) if s <= t else -math.inf)
    expected_weights, expected = layer_oracle(layer, x, sees=lambda t, s: s <= t)
    close(weights, expected_weights)
    close(recorded, expected_weights)  # what the layer itself had is what is drawn
    close(y, expected)
    for h, t, i in product(range(2), range(4), range(3)):
        mean = sum(expected_weights[h][t][s] * float(v[s, h, i]) for s in range(4))
        assert float(results[t, h, i]) == float(joined[t, 3 * h + i]) == pytest.approx(mean, abs=1e-12)
    assert difference < 1e-12


def test_cross_attention():
    torch.manual_seed(1)
    layer = MultiHeadAttention(6, 2).double()
    target, source = (torch.randn(length, 6, dtype=torch.float64) for length in (3, 5))
    close(heads.cross_attention(), layer_oracle(layer, target, source)[0])


def test_shared_heads():
    key_heads, kept = heads.shared_heads()
    assert {groups: of_H.tolist() for groups, of_H in key_heads.items()} == {
        groups: [h * groups // 8 for h in range(8)] for groups in (8, 2, 1)
    }
    assert kept == {groups: 2 * groups * 8 for groups in (8, 2, 1)}


# ---------------------------------------------------------------------------------------------------------- recurrent


def test_a_step_of_a_recurrent_decoder():
    h, s, query, keys, hidden, v, e, a, c, recorded = recurrent.decoder_step()
    torch.manual_seed(0)
    encoder = Recurrent("gru", 5, 3, bidirectional=True).double()
    layer = StateAttention(4, 6, 7).double()
    words = 2 * torch.randn(5, 5, dtype=torch.float64)
    close(h, encoder.layers(words)[0].detach())  # PyTorch's own
    close(s, 2 * torch.randn(1, 4, dtype=torch.float64), rtol=0, atol=0)
    expected_query = times(s.tolist(), layer.q_proj.weight.tolist(), layer.q_proj.bias.tolist())
    expected_keys = times(h.tolist(), layer.k_proj.weight.tolist())
    close(query, expected_query)
    close(keys, expected_keys)
    squashed = [[math.tanh(a + b) for a, b in zip(expected_query[0], row, strict=True)] for row in expected_keys]
    close(hidden, squashed)
    close(v, layer.score.v_HK[0].detach(), rtol=0, atol=0)
    energies = [dot(row, v.tolist()) for row in squashed]
    close(e, energies)
    close(a, softmax(energies))
    close(recorded, softmax(energies))
    close(c, [[dot(softmax(energies), h[:, i].tolist()) for i in range(6)]])


# -------------------------------------------------------------------------------------------------------------- costs


def test_bytes_are_counted_while_they_are_alive():
    with costs.Alive() as alive:
        a = torch.zeros(1000)
        b = a + 1
        assert alive.now_bytes == alive.peak_bytes == 8000
        del a
        b = b.view(10, 100) + 1  # a view is no new bytes; the new tensor is there before the old one goes
        b.add_(1)
        assert alive.now_bytes == 4000
    assert alive.peak_bytes == 8000


def test_costs_of_short_sequences():
    seconds, peak_bytes = costs.costs(width=8, lengths=(3, 7))
    assert list(seconds) == list(peak_bytes) == ["GRU", "convolution", "attention", "attention, fused"]
    assert all(bool((one > 0).all()) for one in seconds.values())
    assert peak_bytes["convolution"].tolist() == [2 * 4 * 8 * 3, 2 * 4 * 8 * 7]  # its input, laid out anew; its output
    # The formula holds scores and weights of four heads at once.
    assert all(peak >= 2 * 4 * 4 * n * n for peak, n in zip(peak_bytes["attention"].tolist(), (3, 7), strict=True))


def test_no_length_is_begun_after_the_limit():
    seconds, peak_bytes = costs.costs(width=8, lengths=(3, 7), limit_s=-1.0)
    assert all(bool(one.isnan().all()) for told in (seconds, peak_bytes) for one in told.values())
