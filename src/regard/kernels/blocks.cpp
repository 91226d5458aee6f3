// Transformer blocks over a few new tokens in one call: what stands between their products is as short as a call from
// Python, and all of it together would take as long as the products.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "calls.h"
#include "threads.h"
#include "vectors.h"

namespace {

constexpr int64_t NUMBERS = 1 << 14;  // that are not worth a second thread

// Share rows out to threads, where they hold enough numbers.
template <typename Part>
void by_rows(int64_t rows, int64_t width, int threads, const Part& part) {
    threads = (int)std::max<int64_t>(std::min<int64_t>({threads, rows, 1 + rows * width / NUMBERS}), 1);
    Threads::run(threads, [&](int number) {
        for (int64_t row = share(rows, number, threads); row < share(rows, number + 1, threads); ++row) part(row);
    });
}

// Σ f(x) of a row, whose width is a multiple of 16.
template <typename Each>
float total(const float* x, int64_t width, const Each& each) {
    Floats sums = {};
    for (int64_t i = 0; i < width; i += WIDTH) sums += each(*(const Floats*)(x + i));
    return sum(sums);
}

// y = norm(x) of one row.
void norm_row(const Norm& norm, const float* x, float* y, int64_t width) {
    float mean = norm.is_rms ? 0 : total(x, width, [](Floats one) { return one; }) / width;
    float variance = total(x, width, [=](Floats one) { return (one - mean) * (one - mean); }) / width;
    float scale = 1 / std::sqrt(variance + norm.eps);
    for (int64_t i = 0; i < width; ++i) {
        float one = (x[i] - mean) * scale * (norm.weight ? norm.weight[i] : 1);
        y[i] = norm.bias ? one + norm.bias[i] : one;
    }
}

struct Run {
    const Block& b;
    const Stores& stores;
    const Step& s;
    int threads;
    Room &normed, &projected, &update, &hidden, &gated;

    float* product(const Matrix& m, const float* x, Room& to) const {
        float* y = to.of(s.rows * m.outputs);
        regard::linear(&m, x, s.rows, m.inputs, y, threads, nullptr);
        return y;
    }

    // What a sublayer works on: norm(y), or y as it is.
    const float* before(const Norm& norm) const {
        if (!b.is_pre) return s.y;
        float* to = normed.of(s.rows * b.width);
        by_rows(s.rows, b.width, threads,
                [&](int64_t row) { norm_row(norm, s.y + row * b.width, to + row * b.width, b.width); });
        return to;
    }

    // y ← y + update, or norm(y + update).
    void after(const Norm& norm, const float* from) const {
        by_rows(s.rows, b.width, threads, [&](int64_t row) {
            float* y = s.y + row * b.width;
            for (int64_t i = 0; i < b.width; ++i) y[i] += from[row * b.width + i];
            if (!b.is_pre) norm_row(norm, y, y, b.width);
        });
    }

    // Turn the heads of a row by its angles: (a, b) ← (a cos − b sin, a sin + b cos), a and b half a head apart.
    static void turn(float* x, int64_t heads, int64_t key, const float* turns) {
        int64_t half = key / 2;
        for (int64_t h = 0; h < heads; ++h, x += key)
            for (int64_t i = 0; i < half; ++i) {
                float one = x[i], other = x[i + half];
                x[i] = one * turns[half + i] - other * turns[i];
                x[i + half] = one * turns[i] + other * turns[half + i];
            }
    }

    // Keep the keys and values of the new rows where they belong.
    void keep(float* joint, int64_t stride) const {
        const Slots& a = s.self;
        int64_t queries = a.heads * a.key, keys = a.groups * a.key, values = a.groups * a.value;
        for (int64_t row = 0; row < s.rows; ++row) {
            float* one = joint + row * stride;
            if (s.turns) turn(one, a.heads + a.groups, a.key, s.turns + row * a.key);
            std::memcpy(stores.k + s.slot[row] * a.k_slot + s.place[row] * a.k_row, one + queries, 4 * keys);
            std::memcpy(stores.v + s.slot[row] * a.v_slot + s.place[row] * a.v_row, one + queries + keys, 4 * values);
        }
    }

    const float* attend(Slots a, const float* q, int64_t stride, const float* k, const float* v) const {
        a.q = q, a.q_row = stride, a.q_head = a.key, a.k = k, a.v = v;
        a.y = hidden.of(s.rows * a.heads * a.value);
        regard::slots(&a, threads);
        return a.y;
    }

    // y ← block(y)
    void run() const {
        float* joint = product(*b.self_in, before(b.self_norm), projected);
        int64_t stride = b.self_in->outputs;
        keep(joint, stride);
        after(b.self_norm, product(*b.self_out, attend(s.self, joint, stride, stores.k, stores.v), update));
        if (b.cross_in) {
            const float *q = product(*b.cross_in, before(b.cross_norm), projected), *k = stores.cross_k;
            const float* context = attend(s.cross, q, b.cross_in->outputs, k, stores.cross_v);
            after(b.cross_norm, product(*b.cross_out, context, update));
        }
        const float* x = before(b.mlp_norm);
        float* inner = product(*b.up, x, hidden);
        if (b.gate) {
            const float* gate = product(*b.gate, x, gated);
            int64_t width = b.up->outputs;
            by_rows(s.rows, width, threads, [&](int64_t row) {
                for (int64_t i = row * width; i < (row + 1) * width; ++i) inner[i] *= gate[i];
            });
        }
        after(b.mlp_norm, product(*b.down, inner, update));
    }
};

}  // namespace

namespace regard {

// y = x through one block after the other, of one width, the keys and values of each kept among those that it attends to.
void blocks(const Block* const* blocks, const Stores* stores, int64_t count, const Step* step, int threads) {
    if (!step->rows || !count) return;
    thread_local Room normed, projected, update, hidden, gated;
    std::memcpy(step->y, step->x, sizeof(float) * step->rows * blocks[0]->width);
    for (int64_t i = 0; i < count; ++i)
        Run{*blocks[i], stores[i], *step, threads, normed, projected, update, hidden, gated}.run();
}

}  // namespace regard
