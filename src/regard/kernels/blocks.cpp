// Transformer blocks in one call: over a few new tokens, where what stands between their products is as short as a call from
// Python, and all of it together would take as long as the products; and over whole sequences, where what stands between
// goes through memory as seldom as can be.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "products.h"

namespace {

constexpr int64_t NUMBERS = 1 << 14;  // that are not worth a second thread
constexpr int64_t NEAR = 768 * 3072;  // numbers that are held at once between two products

// Share rows out to threads, where they hold enough numbers.
template <typename Part>
void by_rows(int64_t rows, int64_t width, int threads, Team team, const Part& part) {
    int count = (int)std::max<int64_t>(std::min<int64_t>({threads, rows, 1 + rows * width / NUMBERS}), 1);
    auto take = [&](int number) {
        for (int64_t row = share(rows, number, count); row < share(rows, number + 1, count); ++row) part(row);
    };
    Threads::run(count, take, team, threads);
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
    for (int64_t i = 0; i < width; i += WIDTH) {
        Floats one = (*(const Floats*)(x + i) - mean) * scale;
        if (norm.weight) one *= *(const Floats*)(norm.weight + i);
        if (norm.bias) one += *(const Floats*)(norm.bias + i);
        *(Floats*)(y + i) = one;
    }
}

inline void add(const float* x, int64_t width, float* y) {
    for (int64_t i = 0; i < width; ++i) y[i] += x[i];
}

inline void put(const float* x, int64_t count, float* to) { std::memcpy(to, x, sizeof(float) * count); }

// Turn the heads of a row by its angles: (a, b) ← (a cos − b sin, a sin + b cos), a and b half a head apart.
void turn(float* x, int64_t heads, int64_t key, const float* turns) {
    int64_t half = key / 2;
    for (int64_t h = 0; h < heads; ++h, x += key)
        for (int64_t i = 0; i < half; ++i) {
            float one = x[i], other = x[i + half];
            x[i] = one * turns[half + i] - other * turns[i];
            x[i + half] = one * turns[i] + other * turns[half + i];
        }
}

// The MLP's inner activations, gated where it has a gate: `gated` has room for the gate's.
void inner(const Block& b, const float* x, int64_t rows, float* to, float* gated, int threads, Team team) {
    regard::linear(b.up, x, rows, b.width, to, threads, team);
    if (!b.gate) return;
    int64_t width = b.up->outputs;
    regard::linear(b.gate, x, rows, b.width, gated, threads, team);
    by_rows(rows, width, threads, team, [&](int64_t row) {
        for (int64_t i = row * width; i < (row + 1) * width; ++i) to[i] *= gated[i];
    });
}

// y ← y + update, or norm(y + update).
void after(const Block& b, const Norm& norm, const float* update, int64_t rows, float* y, int threads, Team team) {
    by_rows(rows, b.width, threads, team, [&](int64_t row) {
        float* to = y + row * b.width;
        add(update + row * b.width, b.width, to);
        if (!b.is_pre) norm_row(norm, to, to, b.width);
    });
}

// A few new tokens.
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
        by_rows(s.rows, b.width, threads, nullptr,
                [&](int64_t row) { norm_row(norm, s.y + row * b.width, to + row * b.width, b.width); });
        return to;
    }

    void after(const Norm& norm, const float* from) const { ::after(b, norm, from, s.rows, s.y, threads, nullptr); }

    // Keep the keys and values of the new rows where they belong.
    void keep(float* joint, int64_t stride) const {
        const Slots& a = s.self;
        for (int64_t row = 0; row < s.rows; ++row) {
            float* one = joint + row * stride;
            if (s.turns) turn(one, a.heads + a.groups, a.key, s.turns + row * a.key);
            one += a.heads * a.key;
            put(one, a.groups * a.key, stores.k + s.slot[row] * a.k_slot + s.place[row] * a.k_row);
            put(one + a.groups * a.key, a.groups * a.value, stores.v + s.slot[row] * a.v_slot + s.place[row] * a.v_row);
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
        float* to = hidden.of(s.rows * b.up->outputs);
        inner(b, x, s.rows, to, b.gate ? gated.of(s.rows * b.gate->outputs) : nullptr, threads, nullptr);
        after(b.mlp_norm, product(*b.down, to, update));
    }
};

// Whole sequences, some at a time, so that what products give stays in the processor's caches for the next one. What a row
// goes through between two products, it goes through at once: residual and norm, and the way into windows and back.
struct Reader {
    const Block& b;
    const Whole& w;
    int threads;
    Team team;

    int64_t joint_width() const { return b.self_in->outputs; }
    int64_t context_width() const { return b.self_out->inputs; }
    int64_t inner_width() const { return b.up->outputs + (b.gate ? b.gate->outputs : 0); }

    // How many of some rows are worked on at once: about as many each time.
    int64_t rows_at_once(int64_t rows) const {
        const int64_t near = std::max<int64_t>(NEAR / std::max(joint_width() + context_width(), inner_width()), 16);
        const int64_t times = std::max<int64_t>((rows + near / 2) / near, 1);
        return (rows + times - 1) / times;
    }

    // How many sequences are attended within at once, from one on; one at least.
    int64_t sequences_from(int64_t first) const {
        const int64_t* lengths = w.sequences.q_lengths;
        const int64_t most = rows_at_once(w.laid);
        int64_t behind = first, rows = 0;
        while (behind < w.sequences.sequences && (behind == first || rows + lengths[behind] <= most)) rows += lengths[behind++];
        return behind - first;
    }

    // The most rows of sequences that are attended within at once.
    int64_t most_rows_attended() const {
        int64_t most = 0;
        for (int64_t i = 0; i < w.sequences.sequences; ++i) most = std::max(most, w.sequences.q_lengths[i]);
        return std::min(std::max(most, rows_at_once(w.laid)), w.laid);
    }

    int64_t room() const {
        const int64_t attending = most_rows_attended() * (joint_width() + context_width() + 2 * b.width);
        return w.rows * b.width + std::max(attending, rows_at_once(w.rows) * (inner_width() + b.width));
    }

    int64_t place(int64_t row) const { return w.places ? w.places[row] : row; }

    // What self-attention works on, rows of the sequences: norm(x), or x as it is.
    const float* before(int64_t first, int64_t rows, float* to) const {
        if (!b.is_pre && !w.places) return w.x + first * b.width;
        by_rows(rows, b.width, threads, team, [&](int64_t row) {
            const int64_t at = place(first + row), width = b.width;
            if (at < 0)
                std::memset(to + row * width, 0, sizeof(float) * width);
            else if (b.is_pre)
                norm_row(b.self_norm, w.x + at * width, to + row * width, width);
            else
                put(w.x + at * width, width, to + row * width);
        });
        return to;
    }

    // y = x + update, or norm(x + update), and what the MLP works on: its norm, or y as it is.
    void between(int64_t first, int64_t rows, const float* update, float* normed) const {
        by_rows(rows, b.width, threads, team, [&](int64_t row) {
            const int64_t at = place(first + row), width = b.width;
            if (at < 0) return;
            float* y = w.y + at * width;
            for (int64_t i = 0; i < width; ++i) y[i] = w.x[at * width + i] + update[row * width + i];
            if (b.is_pre)
                norm_row(b.mlp_norm, y, normed + at * width, width);
            else
                norm_row(b.self_norm, y, y, width);
        });
    }

    void turn_and_keep(int64_t row, float* joint) const {
        const Sequences& a = w.sequences;
        const int64_t keys = a.groups * a.key, values = a.groups * a.value;
        if (w.turns) turn(joint, a.heads + a.groups, a.key, w.turns + row * a.key);
        if (!w.k) return;
        joint += a.heads * a.key;
        put(joint, keys, w.k + w.slot[row] * w.k_slot + w.place[row] * keys);
        put(joint + keys, values, w.v + w.slot[row] * w.v_slot + w.place[row] * values);
    }

    void attend(float* normed, float* rest) const {
        std::vector<int64_t> starts;
        for (int64_t from = 0, count; from < w.sequences.sequences; from += count) {
            count = sequences_from(from);
            Sequences a = w.sequences;
            const int64_t first = a.q_starts[from], rows = a.q_starts[from + count - 1] + a.q_lengths[from + count - 1] - first;
            if (!rows) continue;
            starts.assign(a.q_starts + from, a.q_starts + from + count);
            for (int64_t& start : starts) start -= first;
            float *laid = rest, *update = laid + rows * b.width, *joint = update + rows * b.width;
            const int64_t stride = joint_width();
            regard::linear(b.self_in, before(first, rows, laid), rows, b.width, joint, threads, team);
            if (w.turns || w.k)
                by_rows(rows, stride, threads, team,
                        [&](int64_t row) { turn_and_keep(first + row, joint + row * stride); });
            a.sequences = count, a.q_starts = a.k_starts = starts.data(), a.q_lengths += from, a.k_lengths += from;
            a.first_mask = from, a.narrow = b.self_in->kind == BF16;
            a.q = joint, a.k = joint + a.heads * a.key, a.v = a.k + a.groups * a.key, a.y = joint + rows * stride;
            a.q_row = a.k_row = a.v_row = stride, a.q_head = a.k_head = a.key, a.v_head = a.value;
            regard::sequences(&a, threads, team);
            regard::linear(b.self_out, a.y, rows, context_width(), update, threads, team);
            between(first, rows, update, normed);
        }
    }

    // y = block(x)
    void run() const {
        float *normed = w.room, *update = normed + w.rows * b.width;
        attend(normed, update);
        const float* x = b.is_pre ? normed : w.y;
        for (int64_t row = 0, rows; row < w.rows; row += rows) {
            rows = std::min(rows_at_once(w.rows), w.rows - row);
            float* to = update + rows * b.width;
            inner(b, x + row * b.width, rows, to, to + rows * b.up->outputs, threads, team);
            regard::linear(b.down, to, rows, b.up->outputs, update, threads, team);
            after(b, b.mlp_norm, update, rows, w.y + row * b.width, threads, team);
        }
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

// Numbers that `read` needs room for.
int64_t room(const Block* block, const Whole* whole) { return Reader{*block, *whole, 1, nullptr}.room(); }

// y = x through a block, over whole sequences; without cross-attention.
void read(const Block* block, const Whole* whole, int threads, Team team) {
    if (whole->rows) Reader{*block, *whole, threads, team}.run();
}

}  // namespace regard
