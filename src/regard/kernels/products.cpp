// Products y = x Wᵀ + b with weights that were laid out once, for few rows (where reading the weights is the limit) and
// for many; products.h says how weights lie.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "products.h"

namespace {

constexpr int MOST_ROWS = WIDTH == 16 ? 12 : 6;
constexpr int64_t SIDE_BY_SIDE = WIDTH == 16 ? 2 : 1;  // panels of many rows: a row's number is brought once for them
constexpr int64_t FEW_ROWS = 48;         // up to here a thread prepares all rows itself, and nobody waits
constexpr int64_t GROUPS = 32;           // of rows that go through a panel one after the other
constexpr int64_t ROW_CHUNK = GROUPS * MOST_ROWS, NUMBER_CHUNK = 768;
constexpr int64_t BLOCK = 16;            // panels that one thread takes at once, at most
constexpr int64_t LAID_BYTES = 1 << 23;  // of rows that are laid out at once, or one chunk's
constexpr int64_t WIDENED_ROWS = 24;     // from here on int8 weights are widened before they are multiplied
constexpr int64_t WIDE_CHUNK = 192;      // pairs of inputs whose int8 weights are widened at once
constexpr int64_t AHEAD_BYTES = WIDTH == 16 ? 4096 : 1024;  // weights are asked for so far ahead
constexpr int64_t NEAR_BYTES = 1 << 18;  // of the second cache: panels that are gone through again, and those to come

// What a tile asks for meanwhile: at its k-th inputs the bytes behind its weights at from + k · step.
struct Ahead {
    int64_t from, step;
};

// Rows of bf16 are multiplied in pairs of inputs where the processor does so, else as the float32 that they are.
#if defined(__AVX512BF16__)
constexpr bool IS_PAIRED = true;
#else
constexpr bool IS_PAIRED = false;
#endif

// Rows as tiles take them are of numbers of 32 bits: float32, pairs of bfloat16, or pairs of integers of 16 bits. So many of
// them go with one step.
constexpr int64_t numbers_of_step(int64_t kind) { return kind == BF16 && !IS_PAIRED ? 2 : 1; }

// Registers of a panel's row of int8's sums; without byte instructions AVX-512 multiplies in halves too.
#if defined(__AVX2__) && !defined(__AVX512BW__)
constexpr int INT8_PARTS = 2;
#else
constexpr int INT8_PARTS = PARTS;
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif

// Panels that are read side by side: as many streams as there are registers for. Beside its sums a tile holds a row of each
// panel, and what is multiplied with it; if they do not fit, sums go to memory at every step. One row waits for memory, and
// has the streams all the same.
constexpr int panels_for(int64_t kind, int rows) {
    if (rows == 1) return 4;
    int parts = kind == INT8 ? INT8_PARTS : PARTS, others = kind == INT8 ? 2 : 1;
    int fit = (REGISTERS - others) / (parts * (rows + 1));
    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// ---------------------------------------------------------------------------------------------------- one tile: floats

// The weights of a panel for one number of a row: one of the two of a step, or all.
template <int64_t KIND, int HALF>
inline void load(const char* at, Floats* w) {
    for (int part = 0; part < PARTS; ++part) {
        Words words = *(const Words*)(at + part * sizeof(Words));
        w[part] = (Floats)(KIND == FP32 || IS_PAIRED ? words : HALF == 0 ? words << 16 : words & 0xffff0000u);
    }
}

template <int64_t KIND>
inline void accumulate(Floats& sum, float x, Floats w) {
#if defined(__AVX512BF16__)
    if constexpr (KIND == BF16) {
        sum = (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(x), (__m512bh)w);
        return;
    }
#endif
    sum += x * w;
}

// Tiles are functions of their own, and go through their sums in loops that are unrolled from the first to the last:
// inlined into others, or with one loop that is not, their sums do not stay in registers. They take two inputs a turn: where
// another guest of the machine has the core's second thread, every instruction counts.
#define TILE __attribute__((noinline)) void

// One number of each row × P panels, added to the sums.
template <int64_t KIND, int R, int P, bool PACKED, int HALF>
inline __attribute__((always_inline)) void add(const float* x, int64_t stride, const char* weights, int64_t bytes,
                                               Floats (&sum)[R][P][PARTS]) {
    Floats w[P][PARTS];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
        load<KIND, HALF>(weights + p * bytes, w[p]);
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; ++part) hold(w[p][part]);  // not to be loaded again for each row
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        float one = PACKED ? x[r] : x[r * stride];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; ++part) accumulate<KIND>(sum[r][p][part], one, w[p][part]);
    }
}

// Rows × P panels over some steps; x by rows (stride), or packed by numbers, R of them each.
template <int64_t KIND, int R, int P, bool PACKED>
TILE tile(const float* x, int64_t stride, const char* weights, int64_t bytes, int64_t steps, Ahead ahead, float* out) {
    constexpr int64_t NUMBERS = numbers_of_step(KIND), NEXT = PACKED ? R : 1;
    Floats sum[R][P][PARTS];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; ++part) sum[r][p][part] = Floats{};
#pragma GCC unroll 2
    for (int64_t k = 0; k < steps; ++k) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) __builtin_prefetch(weights + p * bytes + ahead.from + k * ahead.step);
        const float* at = x + k * NUMBERS * NEXT;
        add<KIND, R, P, PACKED, 0>(at, stride, weights + k * step_bytes(KIND), bytes, sum);
        if constexpr (NUMBERS == 2) add<KIND, R, P, PACKED, 1>(at + NEXT, stride, weights + k * step_bytes(KIND), bytes, sum);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; ++part)
                *(Floats*)(out + (r * P + p) * PANEL + part * WIDTH) = sum[r][p][part];
}

// -------------------------------------------------------------------------------------------------- one tile: integers

#if defined(__AVX2__) && !defined(__AVX512BW__)
constexpr bool IS_WIDENED = true;  // for more rows weights are made 16 bits once, not for each group of them

inline __m256i plus(__m256i sum, __m256i one, __m256i w) {
#if defined(__AVXVNNI__)
    return _mm256_dpwssd_avx_epi32(sum, one, w);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(one, w));
#endif
}

// Add the products of a pair of inputs with a panel's row of weights. In this order and no other: a compiler brings the
// inputs of all rows into registers before all else, and has none left for sums.
inline void add(__m256i& first, __m256i& second, const int32_t& x, __m256i w, __m256i v) {
#if defined(__AVXVNNI__)
    __m256i one = _mm256_set1_epi32(x);
    first = plus(first, one, w), second = plus(second, one, v);
#else
    __m256i one, other;
    __asm__(
        "vpbroadcastd %[x], %[one]\n\t"
        "vpmaddwd %[w], %[one], %[other]\n\t"
        "vpmaddwd %[v], %[one], %[one]\n\t"
        "vpaddd %[other], %[first], %[first]\n\t"
        "vpaddd %[one], %[second], %[second]"
        : [first] "+x"(first), [second] "+x"(second), [one] "=&x"(one), [other] "=&x"(other)
        : [x] "m"(x), [w] "x"(w), [v] "x"(v));
#endif
}

void widen(const char* weights, int64_t pairs, int16_t* wide) {
    for (int64_t i = 0; i < pairs * PANEL * 2; i += 16)
        *(__m256i_u*)(wide + i) = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(weights + i)));
}

// Rows, packed by inputs, × some inputs of a panel of widened weights, added to their sums.
template <int R>
TILE tile_wide(const int32_t* x, const int16_t* wide, int64_t pairs, int32_t* sums) {
    __m256i_u* at = (__m256i_u*)sums;
    __m256i sum[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r][0] = at[2 * r], sum[r][1] = at[2 * r + 1];
#pragma GCC unroll 2
    for (int64_t k = 0; k < pairs; ++k) {
        __m256i w = *(const __m256i_u*)(wide + k * 32), v = *(const __m256i_u*)(wide + k * 32 + 16);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) add(sum[r][0], sum[r][1], x[k * R + r], w, v);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) at[2 * r] = sum[r][0], at[2 * r + 1] = sum[r][1];
}
#else
constexpr bool IS_WIDENED = false;
inline void widen(const char*, int64_t, int16_t*) {}
template <int R>
void tile_wide(const int32_t*, const int16_t*, int64_t, int32_t*) {}
#endif

// Exact: |activation| ≤ levels, |weight| ≤ 127, and levels · 127 · inputs < 2³¹. A pair of inputs is one 32-bit number.
template <int R, int P, bool PACKED>
TILE tile_int8(const int32_t* x, int64_t stride, const char* weights, int64_t bytes, int64_t pairs, Ahead ahead,
               int32_t* out) {
#if defined(__AVX512BW__)
    __m512i sum[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) sum[r][p] = _mm512_setzero_si512();
    for (int64_t k = 0; k < pairs; ++k) {
        __m512i w[P];
        for (int p = 0; p < P; ++p)
            w[p] = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)(weights + p * bytes + k * 32)));
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            __m512i one = _mm512_set1_epi32(PACKED ? x[k * R + r] : x[r * stride + k]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p)
#if defined(__AVX512VNNI__)
                sum[r][p] = _mm512_dpwssd_epi32(sum[r][p], one, w[p]);
#else
                sum[r][p] = _mm512_add_epi32(sum[r][p], _mm512_madd_epi16(one, w[p]));
#endif
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) _mm512_storeu_si512(out + (r * P + p) * PANEL, sum[r][p]);
#elif defined(__AVX2__)
    __m256i sum[R][P][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) sum[r][p][0] = sum[r][p][1] = _mm256_setzero_si256();
    for (int64_t k = 0; k < pairs; ++k) {
        __m256i w[P][2];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            const char* at = weights + p * bytes + k * 32;
            __builtin_prefetch(weights + p * bytes + ahead.from + k * ahead.step);
#pragma GCC unroll 2
            for (int part = 0; part < 2; ++part)
                w[p][part] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(at + 16 * part)));
        }
        if constexpr (R == 1) {  // its inputs are brought once for all panels
            __m256i one = _mm256_set1_epi32(x[k]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p)
                sum[0][p][0] = plus(sum[0][p][0], one, w[p][0]), sum[0][p][1] = plus(sum[0][p][1], one, w[p][1]);
            continue;
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p)
                add(sum[r][p][0], sum[r][p][1], PACKED ? x[k * R + r] : x[r * stride + k], w[p][0], w[p][1]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            __m256i_u* to = (__m256i_u*)(out + (r * P + p) * PANEL);
            to[0] = sum[r][p][0], to[1] = sum[r][p][1];
        }
#else
    int32_t sum[R][P][PANEL] = {};
    for (int64_t k = 0; k < pairs; ++k)
        for (int r = 0; r < R; ++r) {
            int16_t pair[2];
            std::memcpy(pair, PACKED ? x + k * R + r : x + r * stride + k, sizeof pair);
            for (int p = 0; p < P; ++p) {
                const int8_t* w = (const int8_t*)weights + p * bytes + k * 2 * PANEL;
                for (int j = 0; j < PANEL; ++j) sum[r][p][j] += pair[0] * w[2 * j] + pair[1] * w[2 * j + 1];
            }
        }
    std::memcpy(out, sum, sizeof sum);
#endif
}

// The rows of a call, in groups of nearly one size.
struct Groups {
    int64_t rows, count;
    explicit Groups(int64_t rows) : rows(rows), count((rows + MOST_ROWS - 1) / MOST_ROWS) {}
    int64_t first(int64_t group) const { return group * (rows / count) + std::min(group, rows % count); }
};

// Numbers of a row as tiles take it.
inline int64_t numbers_of(const Matrix& m) { return steps_of(m) * numbers_of_step(m.kind); }

template <int64_t KIND, int R, int P, bool PACKED>
void one(const Call& c, const void* x, int64_t stride, int64_t row, int64_t panel, int64_t from, int64_t numbers,
         Ahead ahead, const float* scales_N) {
    int64_t bytes = panel_bytes(c.m), steps = numbers / numbers_of_step(KIND);
    const char* weights = (const char*)c.m.weights + panel * bytes;
    if constexpr (KIND == INT8) {
        alignas(64) int32_t out[R * P * PANEL];
        tile_int8<R, P, PACKED>((const int32_t*)x, stride, weights, bytes, steps, ahead, out);
        give_int8<P>(c, out, R, row, panel, scales_N);
    } else {
        alignas(64) float out[R * P * PANEL];
        weights += from / numbers_of_step(KIND) * step_bytes(KIND);
        tile<KIND, R, P, PACKED>((const float*)x, stride, weights, bytes, steps, ahead, out);
        give<P>(c, out, R, row, panel, from == 0, from + numbers == numbers_of(c.m));
    }
}

// Some rows (R of them) × some panels.
template <int64_t KIND, bool PACKED, int R = MOST_ROWS>
void strip(const Call& c, int rows, const void* x, int64_t stride, int64_t row, int64_t panel, int64_t end,
           int64_t from, int64_t numbers, Ahead ahead, const float* scales_N) {
    if constexpr (R > 1) {
        if (rows < R)
            return strip<KIND, PACKED, R - 1>(c, rows, x, stride, row, panel, end, from, numbers, ahead, scales_N);
    }
    constexpr int P = panels_for(KIND, R);
    for (; panel + P <= end; panel += P)
        one<KIND, R, P, PACKED>(c, x, stride, row, panel, from, numbers, ahead, scales_N);
    for (; panel < end; ++panel) one<KIND, R, 1, PACKED>(c, x, stride, row, panel, from, numbers, ahead, scales_N);
}

// One row as tiles take it, filled up with zeros; int8 has a scale.
template <int64_t KIND>
float prepare(const Matrix& m, const float* x, int32_t* to) {
    if constexpr (KIND == INT8) return quantize(x, m.inputs, m.levels, (int16_t*)to);
    for (int64_t k = 0; k < m.inputs; ++k) {
        if (IS_PAIRED)
            ((uint16_t*)to)[k] = rounded(x[k]);
        else
            to[k] = rounded(x[k]) << 16;
    }
    if (m.inputs % 2) {
        if (IS_PAIRED)
            ((uint16_t*)to)[m.inputs] = 0;
        else
            to[m.inputs] = 0;
    }
    return 1;
}

// Lay some numbers of a group of rows out number by number.
void interleave(const int32_t* x, int64_t stride, int64_t rows, int64_t numbers, int32_t* out) {
    int64_t k = 0;
#if defined(__AVX2__)
    // Eight rows and numbers at a time. What is written of fewer rows runs over into the next numbers, which are written after;
    // more rows are two times eight, which may overlap.
    __m256 columns[8];
    for (; k + 8 <= numbers && (rows >= 8 || (numbers - k - 8) * rows >= 8 - rows); k += 8)
        for (int64_t row = 0; row < rows; row = row == 0 && rows > 8 ? rows - 8 : rows) {
            turned((const float*)x + row * stride + k, stride, std::min<int64_t>(rows, 8), columns);
            for (int i = 0; i < 8; ++i) _mm256_storeu_ps((float*)out + (k + i) * rows + row, columns[i]);
        }
#endif
    for (; k < numbers; ++k)
        for (int64_t r = 0; r < rows; ++r) out[k * rows + r] = x[r * stride + k];
}

template <int R = MOST_ROWS>
void group_wide(int64_t rows, const int32_t* x, const int16_t* wide, int64_t from, int64_t pairs, int32_t* sums) {
    if constexpr (R > 1) {
        if (rows < R) return group_wide<R - 1>(rows, x, wide, from, pairs, sums);
    }
    tile_wide<R>(x + from * R, wide, pairs, sums);
}

// Where sums go is asked for before they are computed.
inline void ask_for_y(const Call& c, int64_t rows, int64_t row, int64_t panel) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t p = 0; p < SIDE_BY_SIDE; ++p)
            __builtin_prefetch(c.y + (row + r) * c.y_row + (panel + p) * PANEL, 1);
}

// A panel of int8 × groups of rows, packed by inputs: what is widened at once stays in the first cache for all of them.
void panel_wide(const Call& c, const Groups& groups, const int32_t* packed, int64_t pairs, int64_t row, int64_t panel,
                const float* scales_N) {
    alignas(64) int16_t wide[WIDE_CHUNK * PANEL * 2];
    alignas(64) int32_t sums[ROW_CHUNK * PANEL];
    std::memset(sums, 0, sizeof(int32_t) * groups.rows * PANEL);
    const char* weights = (const char*)c.m.weights + panel * panel_bytes(c.m);
    for (int64_t from = 0; from < pairs; from += WIDE_CHUNK) {
        int64_t some = std::min(WIDE_CHUNK, pairs - from), bytes = some * PANEL * 2;
        widen(weights + from * PANEL * 2, some, wide);
        for (int64_t group = 0; group < groups.count; ++group) {
            int64_t first = groups.first(group), rows = groups.first(group + 1) - first;
            // Asked for meanwhile: a part of what is widened next, and at last where the sums go.
            for (int64_t at = bytes * group / groups.count; at < bytes * (group + 1) / groups.count; at += LINE)
                __builtin_prefetch(weights + from * PANEL * 2 + bytes + at);
            if (from + some == pairs) ask_for_y(c, rows, row + first, panel);
            group_wide(rows, packed + first * pairs, wide, from, some, sums + first * PANEL);
        }
    }
    give_int8<1>(c, sums, (int)groups.rows, row, panel, scales_N);
}

// A thread's part of a call of few rows: it lays them all out for itself, and takes blocks of panels until none is left.
template <int64_t KIND>
void few(const Call& c, std::atomic<int64_t>& next, int64_t block) {
    const int64_t panels = panels_of(c.m);
    if (next.load(std::memory_order_relaxed) >= panels) return;
    const void* x = c.x;
    int64_t stride = c.stride;
    const int64_t numbers = numbers_of(c.m);
    thread_local std::vector<int32_t> prepared;
    float scales_N[FEW_ROWS];
    if constexpr (KIND != FP32) {
        stride = numbers;
        prepared.resize(c.rows * numbers);
        for (int64_t n = 0; n < c.rows; ++n)
            scales_N[n] = prepare<KIND>(c.m, c.x + n * c.stride, prepared.data() + n * numbers);
        x = prepared.data();
    }
    Groups groups(c.rows);
    const bool is_wide = KIND == INT8 && IS_WIDENED && c.rows >= WIDENED_ROWS;
    thread_local std::vector<int32_t> packed;
    if (is_wide) {
        packed.resize(c.rows * numbers);
        for (int64_t group = 0; group < groups.count; ++group) {
            int64_t row = groups.first(group);
            interleave((const int32_t*)x + row * stride, stride, groups.first(group + 1) - row, numbers,
                       packed.data() + row * numbers);
        }
    }
    int64_t step = block;
    Ahead ahead{AHEAD_BYTES, step_bytes(KIND)};
    // Of several groups the first finds the panels in memory, the others in a cache. So that it does not wait, each
    // group asks for a part of the panels that come next.
    if (groups.count > 1) {
        step = 4 * panel_bytes(c.m) <= NEAR_BYTES ? 2 : 1;
        ahead.step /= groups.count;
    }
    for (int64_t begin; (begin = next.fetch_add(block, std::memory_order_relaxed)) < panels;) {
        const int64_t end = std::min(begin + block, panels);
        if (is_wide)
            for (int64_t panel = begin; panel < end; ++panel)
                panel_wide(c, groups, packed.data(), numbers, 0, panel, scales_N);
        else
            for (int64_t panel = begin; panel < end; panel += step)
                for (int64_t group = 0; group < groups.count; ++group) {
                    int64_t row = groups.first(group);
                    if (groups.count > 1) ahead.from = step * panel_bytes(c.m) + group * ahead.step * steps_of(c.m);
                    strip<KIND, false>(c, groups.first(group + 1) - row, (const float*)x + row * stride, stride, row,
                                       panel, std::min(panel + step, end), 0, numbers, ahead, scales_N + row);
                }
        finish(c, 0, c.rows, begin, end);
    }
}

// Some chunks of a call's rows, laid out by numbers: chunk by chunk, and in each some numbers after the other, groups of rows.
struct Laid {
    int64_t row, rows, chunks, numbers, some;  // some: numbers that are multiplied at once
    int32_t* to;
    float* scales_N;  // int8 alone

    int64_t first(int64_t chunk) const { return share(rows, chunk, chunks); }
    Groups groups(int64_t chunk) const { return Groups(first(chunk + 1) - first(chunk)); }
    int32_t* at(int64_t chunk, int64_t from, int64_t first_row, const Groups& groups) const {
        return to + first(chunk) * numbers + from * groups.rows + first_row * std::min(some, numbers - from);
    }
};

template <int64_t KIND>
void lay_out(const Call& c, const Laid& laid, int64_t chunk, int64_t group) {
    thread_local std::vector<int32_t> prepared;
    const Groups groups = laid.groups(chunk);
    const int64_t numbers = laid.numbers, first = groups.first(group), rows = groups.first(group + 1) - first;
    const int64_t row = laid.first(chunk) + first;
    const int32_t* x = (const int32_t*)c.x + (laid.row + row) * c.stride;
    int64_t stride = c.stride;
    if constexpr (KIND != FP32) {
        prepared.resize(rows * numbers);
        for (int64_t r = 0; r < rows; ++r)
            laid.scales_N[row + r] = prepare<KIND>(c.m, (const float*)x + r * stride, prepared.data() + r * numbers);
        x = prepared.data(), stride = numbers;
    }
    for (int64_t from = 0; from < numbers; from += laid.some)
        interleave(x + from, stride, rows, std::min(laid.some, numbers - from), laid.at(chunk, from, first, groups));
}

// A chunk of rows × some panels.
template <int64_t KIND>
void multiply(const Call& c, const Laid& laid, int64_t chunk, int64_t begin, int64_t end) {
    const Groups groups = laid.groups(chunk);
    const int64_t row = laid.row + laid.first(chunk);
    const float* scales_N = KIND == INT8 ? laid.scales_N + laid.first(chunk) : nullptr;
    int64_t from = 0;
    do
        for (int64_t panel = begin; panel < end; panel += SIDE_BY_SIDE) {
            if constexpr (KIND == INT8 && IS_WIDENED) {
                panel_wide(c, groups, laid.at(chunk, 0, 0, groups), laid.numbers, row, panel, scales_N);
                continue;
            }
            for (int64_t group = 0; group < groups.count; ++group) {
                const int64_t first = groups.first(group), rows = groups.first(group + 1) - first;
                ask_for_y(c, rows, row + first, panel);
                strip<KIND, true>(c, (int)rows, laid.at(chunk, from, first, groups), 0, row + first, panel,
                                  std::min(panel + SIDE_BY_SIDE, end), from, std::min(laid.some, laid.numbers - from),
                                  {AHEAD_BYTES, step_bytes(KIND)}, KIND == INT8 ? scales_N + first : nullptr);
            }
        }
    while ((from += laid.some) < laid.numbers);  // once at least: without inputs there is a bias
    finish(c, row, groups.rows, begin, end);
}

// Rows are laid out by numbers, and threads take chunks of them × blocks of panels until none is left: one that is held up
// takes fewer. What is computed follows from the chunk and the block alone.
template <int64_t KIND>
void many(const Call& c, int threads, Team team) {
    thread_local std::vector<int32_t> room;
    thread_local std::vector<float> scales;
    const int64_t panels = panels_of(c.m), numbers = numbers_of(c.m), bytes = std::max<int64_t>(4 * numbers, 1);
    const int64_t most = std::min(std::max<int64_t>(LAID_BYTES / (bytes * ROW_CHUNK), 1) * ROW_CHUNK, c.rows);
    if ((int64_t)room.size() < most * numbers) room.resize(most * numbers);
    if ((int64_t)scales.size() < most) scales.resize(most);
    for (int64_t row = 0; row < c.rows; row += most) {
        const int64_t rows = std::min(most, c.rows - row), chunks = (rows + ROW_CHUNK - 1) / ROW_CHUNK;
        // Enough blocks for every thread to have some.
        const int64_t each = std::max<int64_t>(std::min(BLOCK, panels * chunks / (4 * threads)), 1);
        const int64_t blocks = (panels + each - 1) / each;
        const Laid laid{row, rows, chunks, numbers, KIND == INT8 ? numbers : NUMBER_CHUNK, room.data(), scales.data()};
        take_all(chunks * GROUPS, threads, team, [&](int64_t at) {
            if (at % GROUPS < laid.groups(at / GROUPS).count) lay_out<KIND>(c, laid, at / GROUPS, at % GROUPS);
        });
        take_all(chunks * blocks, threads, team, [&](int64_t at) {
            const int64_t block = at % blocks;
            multiply<KIND>(c, laid, at / blocks, share(panels, block, blocks), share(panels, block + 1, blocks));
        });
    }
}

template <int64_t KIND>
void product(const Call& c, int threads, Team team) {
    if constexpr (HAS_AMX && KIND != FP32) {
        regard::linear_amx(&c.m, c.x, c.rows, c.stride, c.y, threads, team);
    } else if (c.rows > FEW_ROWS) {
        if constexpr (HAS_AMX)
            if (regard::linear_split(&c.m, c.x, c.rows, c.stride, c.y, threads, team)) return;
        many<KIND>(c, threads, team);
    } else {
        // Some blocks for every thread, each of whole strides of a tile of one row. Groups ask for what lies behind their
        // panels, which is another thread's behind a block: of several groups blocks are larger.
        const int64_t panels = panels_of(c.m), each = panels / ((c.rows > MOST_ROWS ? 2 : 4) * threads) / 4 * 4;
        const int64_t block = threads > 1 ? std::max<int64_t>(each, 4) : panels;
        std::atomic<int64_t> next{0};
        Threads::run((int)std::min<int64_t>(threads, (panels + block - 1) / block),
                     [&](int) { few<KIND>(c, next, block); }, team, threads);
    }
}

}  // namespace

namespace regard {

// y = act(x Wᵀ + b): rows of x are stride numbers apart, those of y as many as there are outputs.
void linear(const Matrix* m, const float* x, int64_t rows, int64_t stride, float* y, int threads, Team team) {
    if (!rows || !m->outputs) return;
    Call c{*m, x, rows, stride, y, m->outputs};
    switch (m->kind) {
        case FP32: return product<FP32>(c, threads, team);
        case BF16: return product<BF16>(c, threads, team);
        default: return product<INT8>(c, threads, team);
    }
}

}  // namespace regard
