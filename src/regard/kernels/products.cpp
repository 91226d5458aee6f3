// Products y = x Wᵀ + b with weights that were laid out once, for few rows (where reading the weights is the limit) and
// for many.
//
// Weights stand in panels of 16 outputs, one panel after another, each panel by inputs:
//   fp32   [panel][input][16]
//   bf16   [panel][input][16], outputs in the order 0 8 1 9 … 7 15: a 32-bit word holds two outputs of one register each
//   int8   [panel][pair of inputs][16][2], one scale an output
// The last panel is filled up with zeros, an odd number of inputs too.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "calls.h"
#include "threads.h"
#include "vectors.h"

namespace {

constexpr int PANEL = 16;
constexpr int MOST_ROWS = WIDTH == 16 ? 12 : 6;
constexpr int PARTS = PANEL / WIDTH;  // registers of a panel's row
constexpr int64_t FEW_ROWS = 48;      // up to here a thread prepares all rows itself, and nobody waits
constexpr int64_t GROUPS = 32;           // of rows that go through a panel one after the other
constexpr int64_t ROW_CHUNK = GROUPS * MOST_ROWS, INPUT_CHUNK = 768;
constexpr int64_t BLOCK = 16;            // panels that one thread takes at once, at most
constexpr int64_t LAID_BYTES = 1 << 23;  // of rows that are laid out at once, or one chunk's
constexpr int64_t WIDENED_ROWS = 24;     // from here on int8 weights are widened before they are multiplied
constexpr int64_t WIDE_CHUNK = 192;      // pairs of inputs whose int8 weights are widened at once
constexpr int64_t LINE = 64;             // bytes that memory gives at once
constexpr int64_t AHEAD_BYTES = 1024;    // weights are asked for so far ahead
constexpr int64_t NEAR_BYTES = 1 << 18;  // of the second cache: panels that are gone through again, and those to come

// What a tile asks for meanwhile: at its k-th inputs the bytes behind its weights at from + k · step.
struct Ahead {
    int64_t from, step;
};

enum Kind : int64_t { FP32 = 0, BF16 = 1, INT8 = 2 };

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

enum Act : int64_t { NONE = 0, RELU = 1, GELU_TANH = 2, GELU_QUICK = 3, SILU = 4, GELU = 5 };

// Bytes of a panel's weights for one step of a tile: an input, or a pair of them.
constexpr int64_t step_bytes(int64_t kind) { return PANEL * (kind == FP32 ? 4 : 2); }

int64_t panels_of(const Matrix& m) { return (m.outputs + PANEL - 1) / PANEL; }

int64_t panel_bytes(const Matrix& m) { return (m.kind == INT8 ? (m.inputs + 1) / 2 : m.inputs) * step_bytes(m.kind); }

// ---------------------------------------------------------------------------------------------------- one tile: floats

template <int64_t KIND>
inline void load(const char* at, Floats* w) {
    if constexpr (KIND == FP32) {
        for (int part = 0; part < PARTS; ++part) w[part] = *(const Floats*)(at + part * sizeof(Floats));
    } else {
#if defined(__AVX512F__)
        w[0] = (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)at)), 16);
#else
        for (int part = 0; part < PARTS / 2; ++part) {
            Words both = *(const Words*)(at + part * sizeof(Words));
            w[part] = (Floats)(both << 16);
            w[part + PARTS / 2] = (Floats)(both & 0xffff0000u);
        }
#endif
    }
}

// Tiles are functions of their own, and go through their sums in loops that are unrolled from the first to the last:
// inlined into others, or with one loop that is not, their sums do not stay in registers. They take two inputs a turn: where
// another guest of the machine has the core's second thread, every instruction counts.
#define TILE __attribute__((noinline)) void

// Rows × P panels over some inputs; x by rows (stride), or packed by inputs, R numbers each.
template <int64_t KIND, int R, int P, bool PACKED>
TILE tile(const float* x, int64_t stride, const char* weights, int64_t bytes, int64_t inputs, Ahead ahead, float* out) {
    constexpr int64_t STEP = step_bytes(KIND);
    Floats sum[R][P][PARTS];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; ++part) sum[r][p][part] = Floats{};
#pragma GCC unroll 2
    for (int64_t k = 0; k < inputs; ++k) {
        Floats w[P][PARTS];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) __builtin_prefetch(weights + p * bytes + ahead.from + k * ahead.step);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            load<KIND>(weights + p * bytes + k * STEP, w[p]);
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; ++part) hold(w[p][part]);  // not to be loaded again for each row
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            float one = PACKED ? x[k * R + r] : x[r * stride + k];
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
                for (int part = 0; part < PARTS; ++part) sum[r][p][part] += one * w[p][part];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; ++part)
                *(Floats*)(out + (r * P + p) * PANEL + part * WIDTH) = sum[r][p][part];
    if (KIND == BF16 && WIDTH == 16)
        for (float* to = out; to < out + R * P * PANEL; to += PANEL) {
            float mixed[PANEL];
            std::memcpy(mixed, to, sizeof mixed);
            for (int j = 0; j < PANEL; ++j) to[j] = mixed[2 * (j % 8) + j / 8];
        }
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

// As an integer of |x|, the greater the greater: what is not a number is above all others.
inline int32_t magnitude(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits & 0x7fffffff;
}

// One row as integers: q = round(x · levels / max |x|), halves to even; its scale is max |x| / levels. A row that holds
// a number that is not finite has the scale NaN.
float quantize(const float* x, int64_t inputs, float levels, int16_t* q) {
    int32_t bits = 0;  // of max |x|
    for (int64_t k = 0; k < inputs; ++k) bits = std::max(bits, magnitude(x[k]));
    if (inputs % 2) q[inputs] = 0;
    float most;
    std::memcpy(&most, &bits, 4);
    if (bits == 0 || bits >= 0x7f800000) {
        std::memset(q, 0, sizeof(int16_t) * inputs);
        return bits ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    }
    float scale = most / levels;
    if (scale < std::numeric_limits<float>::min()) {  // a row of denormal numbers counts as zero
        std::memset(q, 0, sizeof(int16_t) * inputs);
        return 0.0f;
    }
    float inverse = levels / most;
    for (int64_t k = 0; k < inputs; ++k) q[k] = (int16_t)(int32_t)std::nearbyintf(x[k] * inverse);
    return scale;
}

// ------------------------------------------------------------------------------------------------------------ products

struct Call {
    const Matrix& m;
    const float* x;
    int64_t rows, stride;  // of x
    float* y;
};

// Take a tile's sums to y: added to what is there but for the first inputs; the bias with the last.
template <int P>
void give(const Call& c, const float* out, int rows, int64_t row, int64_t panel, bool first, bool last) {
    int64_t from = panel * PANEL, count = std::min<int64_t>(P * PANEL, c.m.outputs - from);
    const float* bias = last && c.m.bias ? c.m.bias + from : nullptr;
    for (int r = 0; r < rows; ++r, out += P * PANEL) {
        float* y = c.y + (row + r) * c.m.outputs + from;
        for (int64_t j = 0; j < count; j += WIDTH) {
            Floats value = *(const Floats*)(out + j);
            if (!first) value += read(y + j, count - j);
            if (bias) value += read(bias + j, count - j);
            write(value, count - j, y + j);
        }
    }
}

// y = (sums · scale of the output · scale of the row) + bias, each rounded by itself, wherever in a tile it stands.
template <int P>
void give_int8(const Call& c, const int32_t* out, int rows, int64_t row, int64_t panel, const float* scales_N) {
    int64_t from = panel * PANEL, count = std::min<int64_t>(P * PANEL, c.m.outputs - from);
    Floats scales[P * PARTS], bias[P * PARTS];
    for (int part = 0; part < P * PARTS; ++part) {
        scales[part] = read(c.m.scales + from + part * WIDTH, count - part * WIDTH);
        if (c.m.bias) bias[part] = read(c.m.bias + from + part * WIDTH, count - part * WIDTH);
    }
    for (int r = 0; r < rows; ++r, out += P * PANEL) {
        float* y = c.y + (row + r) * c.m.outputs + from;
        for (int part = 0; part < P * PARTS; ++part) {
            Floats value = __builtin_convertvector(*(const Ints*)(out + part * WIDTH), Floats) * scales[part] * scales_N[r];
            hold(value);
            if (c.m.bias) value += bias[part];
            write(value, count - part * WIDTH, y + part * WIDTH);
        }
    }
}

// max(x, 0), x · Φ(x), or x · sigmoid(gate(x)); NaN stays NaN.
template <int64_t ACT>
Floats activated(Floats x) {
    if constexpr (ACT == RELU) return x < Floats{} ? Floats{} : x;
    if constexpr (ACT == GELU) {
        Floats above = above_of(x < Floats{} ? -x : x);
        return x * (x < Floats{} ? above : 1.0f - above);
    }
    Floats gate = ACT == GELU_TANH ? x * (1.59576912f + 0.0713548163f * x * x) : ACT == GELU_QUICK ? x * 1.702f : x;
    gate = -gate;
    return gate > 88.0f ? x * 0.0f : x / (1.0f + exp_of(gate > 88.0f ? all(88.0f) : gate));
}

template <int64_t ACT>
void activate(float* y, int64_t count) {
    int64_t whole = count / WIDTH * WIDTH;
    for (int64_t j = 0; j < whole; j += WIDTH) *(Floats*)(y + j) = activated<ACT>(*(Floats*)(y + j));
    Floats rest = activated<ACT>(read(y + whole, count - whole));
    write(rest, count - whole, y + whole);
}

// Apply the activation to some panels of some rows of y.
void finish(const Call& c, int64_t row, int64_t rows, int64_t begin, int64_t end) {
    int64_t from = begin * PANEL, count = std::min(end * PANEL, c.m.outputs) - from;
    for (int64_t n = row; n < row + rows; ++n) {
        float* y = c.y + n * c.m.outputs + from;
        switch (c.m.act) {
            case RELU: activate<RELU>(y, count); break;
            case GELU_TANH: activate<GELU_TANH>(y, count); break;
            case GELU_QUICK: activate<GELU_QUICK>(y, count); break;
            case SILU: activate<SILU>(y, count); break;
            case GELU: activate<GELU>(y, count); break;
            default: return;
        }
    }
}

// The rows of a call, in groups of nearly one size.
struct Groups {
    int64_t rows, count;
    explicit Groups(int64_t rows) : rows(rows), count((rows + MOST_ROWS - 1) / MOST_ROWS) {}
    int64_t first(int64_t group) const { return group * (rows / count) + std::min(group, rows % count); }
};

template <int64_t KIND, int R, int P, bool PACKED>
void one(const Call& c, const void* x, int64_t stride, int64_t row, int64_t panel, int64_t from, int64_t inputs,
         Ahead ahead, const float* scales_N) {
    int64_t bytes = panel_bytes(c.m);
    const char* weights = (const char*)c.m.weights + panel * bytes;
    if constexpr (KIND == INT8) {
        alignas(64) int32_t out[R * P * PANEL];
        tile_int8<R, P, PACKED>((const int32_t*)x, stride, weights, bytes, inputs, ahead, out);
        give_int8<P>(c, out, R, row, panel, scales_N);
    } else {
        alignas(64) float out[R * P * PANEL];
        weights += from * step_bytes(KIND);
        tile<KIND, R, P, PACKED>((const float*)x, stride, weights, bytes, inputs, ahead, out);
        give<P>(c, out, R, row, panel, from == 0, from + inputs == c.m.inputs);
    }
}

// Some rows (R of them) × some panels.
template <int64_t KIND, bool PACKED, int R = MOST_ROWS>
void strip(const Call& c, int rows, const void* x, int64_t stride, int64_t row, int64_t panel, int64_t end,
           int64_t from, int64_t inputs, Ahead ahead, const float* scales_N) {
    if constexpr (R > 1) {
        if (rows < R)
            return strip<KIND, PACKED, R - 1>(c, rows, x, stride, row, panel, end, from, inputs, ahead, scales_N);
    }
    constexpr int P = panels_for(KIND, R);
    for (; panel + P <= end; panel += P)
        one<KIND, R, P, PACKED>(c, x, stride, row, panel, from, inputs, ahead, scales_N);
    for (; panel < end; ++panel) one<KIND, R, 1, PACKED>(c, x, stride, row, panel, from, inputs, ahead, scales_N);
}

// Lay some inputs of a group of rows out by inputs.
void interleave(const int32_t* x, int64_t stride, int64_t rows, int64_t inputs, int32_t* out) {
    int64_t k = 0;
#if defined(__AVX2__)
    // Eight rows and inputs at a time. What is written of fewer rows runs over into the next inputs, which are written after;
    // more rows are two times eight, which may overlap.
    __m256 columns[8];
    for (; k + 8 <= inputs && (rows >= 8 || (inputs - k - 8) * rows >= 8 - rows); k += 8)
        for (int64_t row = 0; row < rows; row = row == 0 && rows > 8 ? rows - 8 : rows) {
            turned((const float*)x + row * stride + k, stride, std::min<int64_t>(rows, 8), columns);
            for (int i = 0; i < 8; ++i) _mm256_storeu_ps((float*)out + (k + i) * rows + row, columns[i]);
        }
#endif
    for (; k < inputs; ++k)
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
    for (int64_t r = 0; r < rows; ++r) __builtin_prefetch(c.y + (row + r) * c.m.outputs + panel * PANEL, 1);
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
    int64_t stride = c.stride, inputs = c.m.inputs;
    thread_local std::vector<int16_t> quantized;
    float scales_N[FEW_ROWS];
    if constexpr (KIND == INT8) {
        inputs = (inputs + 1) / 2, stride = inputs;
        quantized.resize(c.rows * inputs * 2);
        for (int64_t n = 0; n < c.rows; ++n)
            scales_N[n] = quantize(c.x + n * c.stride, c.m.inputs, c.m.levels, quantized.data() + n * inputs * 2);
        x = quantized.data();
    }
    Groups groups(c.rows);
    const bool is_wide = KIND == INT8 && IS_WIDENED && c.rows >= WIDENED_ROWS;
    thread_local std::vector<int32_t> packed;
    if (is_wide) {
        packed.resize(c.rows * inputs);
        for (int64_t group = 0; group < groups.count; ++group) {
            int64_t row = groups.first(group);
            interleave((const int32_t*)x + row * stride, stride, groups.first(group + 1) - row, inputs,
                       packed.data() + row * inputs);
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
                panel_wide(c, groups, packed.data(), inputs, 0, panel, scales_N);
        else
            for (int64_t panel = begin; panel < end; panel += step)
                for (int64_t group = 0; group < groups.count; ++group) {
                    int64_t row = groups.first(group);
                    if (groups.count > 1) ahead.from = step * panel_bytes(c.m) + group * ahead.step * inputs;
                    strip<KIND, false>(c, groups.first(group + 1) - row, (const float*)x + row * stride, stride, row,
                                       panel, std::min(panel + step, end), 0, inputs, ahead, scales_N + row);
                }
        finish(c, 0, c.rows, begin, end);
    }
}

// Some chunks of a call's rows, laid out by inputs: chunk by chunk, and in each some inputs after the other, groups of rows.
struct Laid {
    int64_t row, rows, chunks, inputs, some;  // some: inputs (int8: pairs) that are multiplied at once
    int32_t* numbers;
    float* scales_N;  // int8 alone

    int64_t first(int64_t chunk) const { return share(rows, chunk, chunks); }
    Groups groups(int64_t chunk) const { return Groups(first(chunk + 1) - first(chunk)); }
    int32_t* at(int64_t chunk, int64_t from, int64_t first_row, const Groups& groups) const {
        return numbers + first(chunk) * inputs + from * groups.rows + first_row * std::min(some, inputs - from);
    }
};

template <int64_t KIND>
void lay_out(const Call& c, const Laid& laid, int64_t chunk, int64_t group) {
    thread_local std::vector<int16_t> quantized;
    const Groups groups = laid.groups(chunk);
    const int64_t inputs = laid.inputs, first = groups.first(group), rows = groups.first(group + 1) - first;
    const int64_t row = laid.first(chunk) + first;
    const float* x = c.x + (laid.row + row) * c.stride;
    if constexpr (KIND == INT8) {
        quantized.resize(rows * inputs * 2);
        for (int64_t r = 0; r < rows; ++r)
            laid.scales_N[row + r] =
                quantize(x + r * c.stride, c.m.inputs, c.m.levels, quantized.data() + r * inputs * 2);
        interleave((const int32_t*)quantized.data(), inputs, rows, inputs, laid.at(chunk, 0, first, groups));
    } else {
        for (int64_t from = 0; from < inputs; from += laid.some)
            interleave((const int32_t*)x + from, c.stride, rows, std::min(laid.some, inputs - from),
                       laid.at(chunk, from, first, groups));
    }
}

// A chunk of rows × some panels.
template <int64_t KIND>
void multiply(const Call& c, const Laid& laid, int64_t chunk, int64_t begin, int64_t end) {
    const Groups groups = laid.groups(chunk);
    const int64_t row = laid.row + laid.first(chunk);
    const float* scales_N = KIND == INT8 ? laid.scales_N + laid.first(chunk) : nullptr;
    for (int64_t from = 0; from < laid.inputs; from += laid.some)
        for (int64_t panel = begin; panel < end; ++panel) {
            if constexpr (KIND == INT8 && IS_WIDENED) {
                panel_wide(c, groups, laid.at(chunk, 0, 0, groups), laid.inputs, row, panel, scales_N);
                continue;
            }
            for (int64_t group = 0; group < groups.count; ++group) {
                const int64_t first = groups.first(group), rows = groups.first(group + 1) - first;
                ask_for_y(c, rows, row + first, panel);
                strip<KIND, true>(c, (int)rows, laid.at(chunk, from, first, groups), 0, row + first, panel, panel + 1, from,
                                  std::min(laid.some, laid.inputs - from), {AHEAD_BYTES, step_bytes(KIND)},
                                  KIND == INT8 ? scales_N + first : nullptr);
            }
        }
    finish(c, row, groups.rows, begin, end);
}

// Rows are laid out by inputs, and threads take chunks of them × blocks of panels until none is left: one that is held up
// takes fewer. What is computed follows from the chunk and the block alone.
template <int64_t KIND>
void many(const Call& c, int threads, Team team) {
    thread_local std::vector<int32_t> numbers;
    thread_local std::vector<float> scales;
    const int64_t panels = panels_of(c.m), inputs = KIND == INT8 ? (c.m.inputs + 1) / 2 : c.m.inputs;
    const int64_t most = std::min(std::max<int64_t>(LAID_BYTES / (4 * inputs * ROW_CHUNK), 1) * ROW_CHUNK, c.rows);
    if ((int64_t)numbers.size() < most * inputs) numbers.resize(most * inputs);
    if ((int64_t)scales.size() < most) scales.resize(most);
    for (int64_t row = 0; row < c.rows; row += most) {
        const int64_t rows = std::min(most, c.rows - row), chunks = (rows + ROW_CHUNK - 1) / ROW_CHUNK;
        // Enough blocks for every thread to have some.
        const int64_t each = std::max<int64_t>(std::min(BLOCK, panels * chunks / (4 * threads)), 1);
        const int64_t blocks = (panels + each - 1) / each;
        const Laid laid{row, rows, chunks, inputs, KIND == INT8 ? inputs : INPUT_CHUNK, numbers.data(), scales.data()};
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
    if (c.rows > FEW_ROWS) return many<KIND>(c, threads, team);
    // Some blocks for every thread, each of whole strides of a tile of one row. Groups ask for what lies behind their panels,
    // which is another thread's behind a block: of several groups blocks are larger.
    const int64_t panels = panels_of(c.m), each = panels / ((c.rows > MOST_ROWS ? 2 : 4) * threads) / 4 * 4;
    const int64_t block = threads > 1 ? std::max<int64_t>(each, 4) : panels;
    std::atomic<int64_t> next{0};
    Threads::run((int)std::min<int64_t>(threads, (panels + block - 1) / block),
                 [&](int) { few<KIND>(c, next, block); }, team, threads);
}

// ------------------------------------------------------------------------------------------------------------- packing

// To the nearest bfloat16, halves to even; what is not a number stays so.
inline uint16_t rounded(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return std::isnan(x) ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Lay one panel out: the outputs of its columns, some inputs at a time, so that both sides are read and written in order.
void pack_panel(const Matrix& m, const float* weights, int64_t output_step, int64_t input_step, int64_t panel) {
    constexpr int64_t SOME = 64;
    float some[SOME][PANEL] = {}, inverse[PANEL] = {};
    int64_t columns = std::min<int64_t>(PANEL, m.outputs - panel * PANEL);
    char* to = (char*)m.weights + panel * panel_bytes(m);
    weights += panel * PANEL * output_step;
    if (m.kind == INT8)
        for (int64_t j = 0; j < columns; ++j) {
            int32_t bits = 0;
            for (int64_t k = 0; k < m.inputs; ++k)
                bits = std::max(bits, magnitude(weights[j * output_step + k * input_step]));
            float most;
            std::memcpy(&most, &bits, 4);
            ((float*)m.scales)[panel * PANEL + j] = most / 127;
            inverse[j] = 127 / most;
        }
    for (int64_t from = 0; from < m.inputs; from += SOME) {
        int64_t count = std::min(SOME, m.inputs - from);
        if (input_step == 1) {
            for (int64_t j = 0; j < columns; ++j)
                for (int64_t k = 0; k < count; ++k) some[k][j] = weights[j * output_step + from + k];
        } else {
            for (int64_t k = 0; k < count; ++k)
                for (int64_t j = 0; j < columns; ++j) some[k][j] = weights[j * output_step + (from + k) * input_step];
        }
        for (int64_t k = 0; k < count; ++k) {
            if (m.kind == FP32) {
                std::memcpy(to + (from + k) * sizeof some[0], some[k], sizeof some[0]);
            } else if (m.kind == BF16) {
                auto* row = (uint16_t*)to + (from + k) * PANEL;
                for (int j = 0; j < PANEL; ++j) row[j] = rounded(some[k][j % 2 * (PANEL / 2) + j / 2]);
            } else {
                auto* row = (int8_t*)to + (from + k) / 2 * PANEL * 2 + (from + k) % 2;
                for (int j = 0; j < PANEL; ++j) {
                    float steps = std::nearbyintf(some[k][j] * inverse[j]);
                    row[2 * j] = std::isfinite(steps) ? (int8_t)steps : 0;
                }
            }
        }
    }
    if (m.kind == INT8 && m.inputs % 2)
        for (int j = 0; j < PANEL; ++j) to[m.inputs / 2 * PANEL * 2 + 2 * j + 1] = 0;
}

}  // namespace

namespace regard {

// Lay weights out as m says, into m's own, and find the scales of int8; outputs and inputs lie some numbers apart.
void pack(const Matrix* m, const float* weights, int64_t output_step, int64_t input_step, int threads, Team team) {
    take_all(panels_of(*m), threads, team,
             [&](int64_t panel) { pack_panel(*m, weights, output_step, input_step, panel); });
}

// y = act(x Wᵀ + b): rows of x are stride numbers apart, those of y as many as there are outputs.
void linear(const Matrix* m, const float* x, int64_t rows, int64_t stride, float* y, int threads, Team team) {
    if (!rows || !m->outputs) return;
    Call c{*m, x, rows, stride, y};
    switch (m->kind) {
        case FP32: return product<FP32>(c, threads, team);
        case BF16: return product<BF16>(c, threads, team);
        default: return product<INT8>(c, threads, team);
    }
}

}  // namespace regard
