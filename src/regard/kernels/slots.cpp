// Attention of a few queries into the slots of a cache.

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

// A query, its scores, and where its result goes.
struct Query {
    const float *q, *mask;
    float *scores, *y;
};

// What is left of products where a head is no whole number of vectors.
template <int R, int KEYS>
__attribute__((noinline)) void rest(const Slots& s, const Query* queries, const float* k, int64_t from, float* totals) {
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < KEYS; ++n)
            for (int64_t i = from; i < s.key; ++i) totals[r * KEYS + n] += k[n * s.k_row + i] * queries[r].q[i];
}

// Products of R queries and KEYS keys: eight of them have as many sums under way as keep a processor busy.
template <int R, int KEYS>
void multiply(const Slots& s, const Query* queries, const float* k, int64_t j) {
    static_assert(R * KEYS <= 8);
    int64_t whole = s.key / WIDTH * WIDTH;
    const float* q[R];
    for (int r = 0; r < R; ++r) q[r] = queries[r].q;
    Floats sums[8] = {};
    for (int64_t i = 0; i < whole; i += WIDTH) {
        Floats one[KEYS];
#pragma GCC unroll 8
        for (int n = 0; n < KEYS; ++n) one[n] = *(const Floats*)(k + n * s.k_row + i);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            Floats query = *(const Floats*)(q[r] + i);
#pragma GCC unroll 8
            for (int n = 0; n < KEYS; ++n) {
                sums[r * KEYS + n] += one[n] * query;
                hold(sums[r * KEYS + n]);
            }
        }
    }
    float totals[8];
    sums_of(sums, totals);
    if (whole < s.key) rest<R, KEYS>(s, queries, k, whole, totals);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) std::memcpy(queries[r].scores + j, totals + r * KEYS, sizeof(float) * KEYS);
}

// Products of R queries with the first keys of a slot.
template <int R>
void score(const Slots& s, const Query* queries, const float* k, int64_t keys) {
    constexpr int KEYS = 8 / R;
    int64_t j = 0;
    for (; j + KEYS <= keys; j += KEYS) multiply<R, KEYS>(s, queries, k + j * s.k_row, j);
    for (; j < keys; ++j) multiply<R, 1>(s, queries, k + j * s.k_row, j);
}

// Make weights of products: exp(score − the greatest), score = scale · product + mask; their sum is given. There is room up
// to a whole vector behind them.
float weigh(float* scores, const float* mask, float scale, int64_t keys) {
    constexpr float LOST = -std::numeric_limits<float>::infinity();
    int64_t whole = keys / WIDTH * WIDTH;
    for (int64_t j = 0; j < whole; j += WIDTH) {
        Floats score = *(const Floats*)(scores + j) * scale;
        *(Floats*)(scores + j) = mask ? score + *(const Floats*)(mask + j) : score;
    }
    for (int64_t j = whole; j < keys; ++j) scores[j] = mask ? scores[j] * scale + mask[j] : scores[j] * scale;
    for (int64_t j = keys; j % WIDTH; ++j) scores[j] = LOST;
    Floats mosts = all(LOST);
    for (int64_t j = 0; j < keys; j += WIDTH) {
        Floats score = *(const Floats*)(scores + j);
        mosts = score > mosts ? score : mosts;  // what is not a number counts in the sum
    }
    float most = LOST;
    for (int i = 0; i < WIDTH; ++i) most = std::max(most, mosts[i]);
    if (most == LOST) most = 0;  // the sum is 0, or the others are not numbers
    Floats total = {};
    for (int64_t j = 0; j < keys; j += WIDTH) {
        Floats weight = exp_of(*(Floats*)(scores + j) - most);
        *(Floats*)(scores + j) = weight;
        total += weight;
    }
    return sum(total);
}

// Weighted sums of the first values of a slot, from column i on as far as PARTS vectors go; where they end is given.
template <int R, int PARTS>
int64_t collect(const Slots& s, const Query* queries, const float* sums, const float* v, int64_t keys, int64_t i) {
    for (; i + PARTS * WIDTH <= s.value; i += PARTS * WIDTH) {
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
    if constexpr (PARTS > 1) return collect<R, PARTS / 2>(s, queries, sums, v, keys, i);
    return i;
}

template <int R>
void some(const Slots& s, Query* queries, const float* k, const float* v, int64_t keys) {
    score<R>(s, queries, k, keys);
    float sums[R];
    bool is_lost[R];
    for (int r = 0; r < R; ++r) {
        sums[r] = weigh(queries[r].scores, queries[r].mask, s.scale, keys);
        is_lost[r] = sums[r] == 0;
        if (is_lost[r]) {
            std::memset(queries[r].scores, 0, sizeof(float) * keys);
            sums[r] = 1;
        }
    }
    int64_t done = collect<R, 8 / R>(s, queries, sums, v, keys, 0);
    for (int r = 0; r < R; ++r)
        for (int64_t i = done; i < s.value; ++i) {
            float total = 0;
            for (int64_t j = 0; j < keys; ++j) total += queries[r].scores[j] * v[j * s.v_row + i];
            queries[r].y[i] = total / sums[r];
        }
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

}  // namespace

namespace regard {

// y = softmax(scale · q kᵀ + mask) v; zeros where a query has no key.
void slots(const Slots* slots, int threads) {
    const Slots& s = *slots;
    int64_t pieces = s.slots * s.groups, work = s.slots * s.queries * s.heads * s.keys * (s.key + s.value);
    threads = (int)std::max<int64_t>(std::min<int64_t>({threads, pieces, 1 + work / SMALL}), 1);
    Threads::run(threads, [&](int number) {
        thread_local std::vector<float> room;
        for (int64_t piece = share(pieces, number, threads); piece < share(pieces, number + 1, threads); ++piece)
            group(s, piece / s.groups, piece % s.groups, room);
    });
}

}  // namespace regard
