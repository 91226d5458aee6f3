// Attention of a few queries into the slots of a cache, and the normalizers of scores: what a step of decoding does beside
// its products.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "calls.h"
#include "threads.h"
#include "vectors.h"

namespace {

constexpr int64_t SMALL = 1 << 15;  // multiplications that are not worth a second thread
constexpr int64_t NUMBERS = 1 << 14;

// A query, its scores, and where its result goes.
struct Query {
    const float *q, *mask;
    float *scores, *y;
};

// Scores of R queries with the first keys of a slot.
template <int R>
void score(const Slots& s, const Query* queries, const float* k, int64_t keys) {
    int64_t whole = s.key / WIDTH * WIDTH;
    for (int64_t j = 0; j < keys; ++j, k += s.k_row) {
        Floats sums[R] = {};
        for (int64_t i = 0; i < whole; i += WIDTH) {
            Floats one = *(const Floats*)(k + i);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sums[r] += one * *(const Floats*)(queries[r].q + i);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            float total = sum(sums[r]);
            for (int64_t i = whole; i < s.key; ++i) total += k[i] * queries[r].q[i];
            queries[r].scores[j] = queries[r].mask ? total * s.scale + queries[r].mask[j] : total * s.scale;
        }
    }
}

// Make weights of scores: exp(score − the greatest); their sum is given. There is room up to a whole vector behind them.
float weigh(float* scores, int64_t keys) {
    float most = -std::numeric_limits<float>::infinity();
    bool is_lost = true;
    for (int64_t j = 0; j < keys; ++j) {
        most = std::max(most, scores[j]);
        is_lost &= scores[j] == -std::numeric_limits<float>::infinity();
    }
    if (is_lost) return 0;
    if (most == -std::numeric_limits<float>::infinity()) most = 0;  // the others are not numbers
    for (int64_t j = keys; j % WIDTH; ++j) scores[j] = -std::numeric_limits<float>::infinity();
    Floats total = {};
    for (int64_t j = 0; j < keys; j += WIDTH) {
        Floats weight = exp_of(*(Floats*)(scores + j) - most);
        *(Floats*)(scores + j) = weight;
        total += weight;
    }
    return sum(total);
}

// Weighted sums of the first values of a slot.
template <int R>
void collect(const Slots& s, const Query* queries, const float* sums, const float* v, int64_t keys) {
    constexpr int PARTS = 2;
    int64_t whole = s.value / (PARTS * WIDTH) * (PARTS * WIDTH);
    for (int64_t i = 0; i < whole; i += PARTS * WIDTH) {
        Floats total[R][PARTS] = {};
        const float* at = v + i;
        for (int64_t j = 0; j < keys; ++j, at += s.v_row) {
            Floats one[PARTS];
            for (int part = 0; part < PARTS; ++part) one[part] = *(const Floats*)(at + part * WIDTH);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r)
                for (int part = 0; part < PARTS; ++part) total[r][part] += queries[r].scores[j] * one[part];
        }
        for (int r = 0; r < R; ++r)
            for (int part = 0; part < PARTS; ++part)
                *(Floats*)(queries[r].y + i + part * WIDTH) = total[r][part] / sums[r];
    }
    for (int r = 0; r < R; ++r)
        for (int64_t i = whole; i < s.value; ++i) {
            float total = 0;
            for (int64_t j = 0; j < keys; ++j) total += queries[r].scores[j] * v[j * s.v_row + i];
            queries[r].y[i] = total / sums[r];
        }
}

template <int R>
void some(const Slots& s, Query* queries, const float* k, const float* v, int64_t keys) {
    score<R>(s, queries, k, keys);
    float sums[R];
    bool is_lost[R];
    for (int r = 0; r < R; ++r) {
        sums[r] = weigh(queries[r].scores, keys);
        is_lost[r] = sums[r] == 0;
        if (is_lost[r]) {
            std::memset(queries[r].scores, 0, sizeof(float) * keys);
            sums[r] = 1;
        }
    }
    collect<R>(s, queries, sums, v, keys);
    for (int r = 0; r < R; ++r)
        if (is_lost[r]) std::memset(queries[r].y, 0, sizeof(float) * s.value);
}

// All queries that read one slot's keys of one group of heads.
void group(const Slots& s, int64_t slot, int64_t g, std::vector<float>& room) {
    int64_t keys = s.lengths ? std::min(s.lengths[slot], s.keys) : s.keys;
    const float *k = s.k + slot * s.k_slot + g * s.key, *v = s.v + slot * s.v_slot + g * s.value;
    int64_t each = s.heads / s.groups, stride = (keys + WIDTH - 1) / WIDTH * WIDTH;
    room.resize(4 * stride + 1);
    Query queries[4];
    int count = 0;
    for (int64_t t = 0; t < s.queries; ++t)
        for (int64_t h = g * each; h < (g + 1) * each; ++h) {
            int64_t row = slot * s.queries + t;
            queries[count] = {s.q + row * s.q_row + h * s.q_head,
                              s.mask ? s.mask + slot * s.mask_slot + h * s.mask_head + t * s.mask_row : nullptr,
                              room.data() + count * stride, s.y + (row * s.heads + h) * s.value};
            bool is_last = t + 1 == s.queries && h + 1 == (g + 1) * each;
            if (++count < 4 && !is_last) continue;
            switch (count) {
                case 1: some<1>(s, queries, k, v, keys); break;
                case 2: some<2>(s, queries, k, v, keys); break;
                case 3: some<3>(s, queries, k, v, keys); break;
                default: some<4>(s, queries, k, v, keys);
            }
            count = 0;
        }
}

// The greatest number of a part of a row, and Σ exp(number − the greatest).
struct LogNorm {
    float most;
    double sum;
};

LogNorm norm_of(const float* x, int64_t count) {
    int64_t whole = count / WIDTH * WIDTH;
    Floats mosts = all(-std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < whole; i += WIDTH) {
        Floats one = *(const Floats*)(x + i);
        mosts = mosts > one ? mosts : one;  // not a number counts here, or in the sum
    }
    float most = -std::numeric_limits<float>::infinity();
    for (int j = 0; j < WIDTH; ++j) most = std::max(most, mosts[j]);
    for (int64_t i = whole; i < count; ++i) most = std::max(most, x[i]);
    const float shift = std::isinf(most) && most < 0 ? 0 : most;  // all are impossible, or not numbers
    Doubles sums = {};
    for (int64_t i = 0; i < whole; i += WIDTH)
        sums += __builtin_convertvector(exp_of(*(const Floats*)(x + i) - shift), Doubles);
    double total = 0;
    for (int j = 0; j < WIDTH; ++j) total += sums[j];
    Floats rest = all(-std::numeric_limits<float>::infinity());
    for (int64_t i = whole; i < count; ++i) rest[i - whole] = x[i] - shift;
    rest = exp_of(rest);
    for (int j = 0; j < WIDTH; ++j) total += rest[j];
    return {most, total};
}

inline bool is_before(float a, float b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

// Nearly all numbers are below the last one that is held: many are compared with it at once.
void best_of(const float* x, int64_t count, int64_t most, float* values, int64_t* places) {
    int64_t held = 0;
    auto offer = [&](int64_t i) {
        if (held == most && !is_before(x[i], values[most - 1])) return;
        int64_t at = held < most ? held++ : most - 1;
        for (; at && is_before(x[i], values[at - 1]); --at) values[at] = values[at - 1], places[at] = places[at - 1];
        values[at] = x[i], places[at] = i;
    };
    constexpr int64_t STEP = 4 * WIDTH;
    int64_t i = 0;
    for (; i < count && held < most; ++i) offer(i);
    for (; i + STEP <= count; i += STEP) {
        const Floats last = all(values[most - 1]);
        Ints above = {};
        for (int64_t j = 0; j < STEP; j += WIDTH) above |= ~(*(const Floats*)(x + i + j) <= last);
        if (any(above))
            for (int64_t j = 0; j < STEP; ++j) offer(i + j);
    }
    for (; i < count; ++i) offer(i);
}

}  // namespace

extern "C" {

// y = softmax(scale · q kᵀ + mask) v; zeros where a query has no key.
void regard_slots(const Slots* slots, int threads) {
    const Slots& s = *slots;
    int64_t pieces = s.slots * s.groups, work = s.slots * s.queries * s.heads * s.keys * (s.key + s.value);
    threads = (int)std::max<int64_t>(std::min<int64_t>({threads, pieces, 1 + work / SMALL}), 1);
    Threads::run(threads, [&](int number) {
        thread_local std::vector<float> room;
        for (int64_t piece = share(pieces, number, threads); piece < share(pieces, number + 1, threads); ++piece)
            group(s, piece / s.groups, piece % s.groups, room);
    });
}

// log Σ exp of each row, its sum in float64.
void regard_log_norms(const float* x, int64_t rows, int64_t count, int64_t stride, double* y, int threads) {
    // Parts of a row whatever the threads, so that the sum is the same.
    const int64_t parts = std::max<int64_t>((count + NUMBERS - 1) / NUMBERS, 1);
    thread_local std::vector<LogNorm> room;
    room.resize(rows * parts);
    LogNorm* norms = room.data();
    threads = (int)std::max<int64_t>(std::min<int64_t>({threads, rows * parts, 1 + rows * count / NUMBERS}), 1);
    Threads::run(threads, [&](int number) {
        for (int64_t at = share(rows * parts, number, threads); at < share(rows * parts, number + 1, threads); ++at) {
            int64_t row = at / parts, begin = share(count, at % parts, parts), end = share(count, at % parts + 1, parts);
            norms[at] = norm_of(x + row * stride + begin, end - begin);
        }
    });
    for (int64_t row = 0; row < rows; ++row, norms += parts) {
        float most = norms[0].most;
        for (int64_t part = 1; part < parts; ++part) most = std::max(most, norms[part].most);
        if (std::isinf(most) && most < 0) most = 0;
        double total = 0;
        for (int64_t part = 0; part < parts; ++part) total += norms[part].sum * std::exp((double)norms[part].most - most);
        y[row] = most + std::log(total);
    }
}

// The best so many of each row, best first, of equal ones the first first; what is not a number is better than all others.
void regard_best(const float* x, int64_t rows, int64_t count, int64_t stride, int64_t most, float* values, int64_t* places,
                 int threads) {
    threads = (int)std::max<int64_t>(std::min<int64_t>({threads, rows, 1 + rows * count / NUMBERS}), 1);
    Threads::run(threads, [&](int number) {
        for (int64_t row = share(rows, number, threads); row < share(rows, number + 1, threads); ++row)
            best_of(x + row * stride, count, most, values + row * most, places + row * most);
    });
}

}  // extern "C"
