// The matrices of a processor that multiplies matrices (Intel's AMX): sixteen rows of 64 bytes.

#pragma once

#include "products.h"

#if REGARD_AMX

namespace {

constexpr int64_t SIDE = 16;             // rows, or outputs, of a matrix
constexpr int64_t SQUARE = SIDE * LINE;  // its bytes

// How the processor's matrices are set up: those of sums and of rows have so many rows.
class TileConfig {
    struct alignas(64) Config {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    };
    int64_t set_to = 0;

  public:
    void set(int64_t rows) {
        if (rows == set_to) return;
        set_to = rows;
        Config config{};
        config.palette = 1;
        for (int i = 0; i < 7; ++i) config.rows[i] = (uint8_t)(i == 6 ? SIDE : rows), config.bytes[i] = LINE;
        __asm__ volatile("" ::: "memory");  // the compiler does not know that all of it is read
        _tile_loadconfig(&config);
    }
    // Nothing is left to be kept where another thread takes the core.
    ~TileConfig() {
        if (set_to) _tile_release();
    }
};

// Matrices of rows, and of weights, for one step, and panels that are multiplied at once.
constexpr int rows_matrices(int64_t kind) { return kind == INT8 ? 2 : kind == FP32 ? 3 : 1; }
constexpr int weights_matrices(int64_t kind) { return kind == FP32 ? 3 : 1; }
constexpr int most_panels(int64_t kind) { return kind == BF16 ? 3 : 2; }

// Inputs that such matrices hold, how many a product takes, and the bytes of a panel.
constexpr int64_t inputs_of_square(int64_t kind) { return kind == INT8 ? LINE : LINE / 2; }
inline int64_t squares_of(const Matrix& m) { return (m.inputs + inputs_of_square(m.kind) - 1) / inputs_of_square(m.kind); }
inline int64_t squares_bytes(const Matrix& m) { return squares_of(m) * weights_matrices(m.kind) * SQUARE; }

// The places where two rows of sixteen numbers of 16 bits become sixteen pairs.
const __m512i PAIRS = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20,
                                       4, 19, 3, 18, 2, 17, 1, 16, 0);

// Sixteen rows of sixteen words become columns.
inline void turn(__m512i (&x)[16]) {
    __m512i y[16];
    for (int i = 0; i < 16; i += 2) {  // pairs of rows, then of pairs: by four words
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {
            x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + 2 + j]);
            x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + 2 + j]);
        }
    for (int i = 0; i < 4; ++i) {  // quarters: of x[i], x[i + 4], x[i + 8] and x[i + 12]
        __m512i low = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88), high = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        __m512i more = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        __m512i most = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
        y[i] = _mm512_shuffle_i32x4(low, more, 0x88), y[i + 8] = _mm512_shuffle_i32x4(low, more, 0xdd);
        y[i + 4] = _mm512_shuffle_i32x4(high, most, 0x88), y[i + 12] = _mm512_shuffle_i32x4(high, most, 0xdd);
    }
    for (int i = 0; i < 16; ++i) x[i] = y[i];
}

inline __mmask16 first(int64_t count) { return count >= 16 ? 0xffff : count > 0 ? (1u << count) - 1 : 0; }

constexpr int NOT_FINITE = 0x99;  // of _mm512_fpclass_ps_mask

// Two times sixteen numbers, to the nearest bfloat16: the i-th word is the i-th of either.
inline __m512i pairs(__m512 low, __m512 high) {
    return _mm512_permutexvar_epi16(PAIRS, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

// The same as sums of so many bfloat16: the first is the nearest, each next one the nearest to what is left, and three are all of
// a float32. Says whether all are finite, and not so great that the nearest is not; of one part it does not look.
template <int PARTS>
bool split(__m512 low, __m512 high, __m512i (&parts)[PARTS]) {
    __mmask16 not_finite = 0;
#pragma GCC unroll 3
    for (int part = 0; part < PARTS; ++part) {
        parts[part] = pairs(low, high);
        if (part + 1 == PARTS) break;
        low = _mm512_sub_ps(low, (__m512)_mm512_slli_epi32(parts[part], 16));
        high = _mm512_sub_ps(high, (__m512)_mm512_and_si512(parts[part], _mm512_set1_epi32((int)0xffff0000)));
        if (part == 0) not_finite = _mm512_fpclass_ps_mask(_mm512_add_ps(low, high), NOT_FINITE);
    }
    return !not_finite;
}

// Up to sixteen lines (rows, or outputs) of up to 32 inputs, as sums of bfloat16 and filled up with zeros: as a matrix of lines,
// or turned, of pairs of inputs; a matrix for each part. Either lines or inputs stand side by side. Pairs are of neighbours, as in
// packed weights; where numbers are split, of inputs sixteen apart, which is less work. Says what split says.
template <int PARTS = 1>
bool square(const float* x, int64_t line, int64_t step, int64_t lines, int64_t inputs, bool is_turned, char* to) {
    const bool by_lines = step == 1;
    __m512i words[PARTS][16], parts[PARTS];
    bool is_finite = true;
    for (int i = 0; i < 16; ++i) {
        if (by_lines) {
            const __mmask16 low = i < lines ? first(inputs) : 0, high = i < lines ? first(inputs - 16) : 0;
            const __m512 one = _mm512_maskz_loadu_ps(low, x + i * line), other = _mm512_maskz_loadu_ps(high, x + i * line + 16);
            if constexpr (PARTS == 1)
                parts[0] = (__m512i)_mm512_cvtne2ps_pbh(other, one);
            else
                is_finite &= split(one, other, parts);
        } else {
            if (PARTS > 1) __builtin_prefetch(x + (i + 64) * step), __builtin_prefetch(x + (i + 80) * step);
            const int64_t low = PARTS == 1 ? 2 * i : i, high = PARTS == 1 ? low + 1 : low + 16;
            is_finite &= split(_mm512_maskz_loadu_ps(low < inputs ? first(lines) : 0, x + low * step),
                               _mm512_maskz_loadu_ps(high < inputs ? first(lines) : 0, x + high * step), parts);
        }
        for (int part = 0; part < PARTS; ++part)
            if (by_lines == is_turned)
                words[part][i] = parts[part];
            else
                _mm512_storeu_si512(to + part * SQUARE + i * LINE, parts[part]);
    }
    for (int part = 0; by_lines == is_turned && part < PARTS; ++part) {
        turn(words[part]);
        for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + part * SQUARE + i * LINE, words[part][i]);
    }
    return is_finite;
}

// Where sums begin, and where they go: bytes from row to row.
struct Sums {
    const void* from;
    int64_t from_row;
    void* to;
    int64_t to_row;
};

alignas(LINE) const float ZEROS[3 * PANEL] = {};

// Three parts of sixteen rows × those of P panels, added to the sums.
template <int P>
inline __attribute__((always_inline)) void thirds(const char* x, const char* weights, int64_t bytes) {
    const char* other = weights + bytes;
    _tile_loadd(4, x, LINE);
    _tile_loadd(6, weights + 2 * SQUARE, LINE);
    _tile_dpbf16ps(0, 4, 6);  // first · third
    if constexpr (P > 1) {
        _tile_loadd(6, other + 2 * SQUARE, LINE);
        _tile_dpbf16ps(1, 4, 6);
    }
    _tile_loadd(5, x + SQUARE, LINE);
    if constexpr (P > 1) {
        _tile_loadd(6, other + SQUARE, LINE);
        _tile_dpbf16ps(1, 5, 6);  // second · second
        _tile_dpbf16ps(1, 4, 6);  // first · second
    }
    _tile_loadd(6, weights + SQUARE, LINE);
    _tile_dpbf16ps(0, 5, 6);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(6, weights, LINE);
    _tile_dpbf16ps(0, 5, 6);  // second · first
    _tile_dpbf16ps(0, 4, 6);  // first · first
    if constexpr (P > 1) {
        _tile_loadd(6, other, LINE);
        _tile_dpbf16ps(1, 5, 6);
        _tile_dpbf16ps(1, 4, 6);
    }
    _tile_loadd(5, x + 2 * SQUARE, LINE);
    if constexpr (P > 1) {
        _tile_dpbf16ps(1, 5, 6);  // third · first
        _tile_loadd(6, weights, LINE);
    }
    _tile_dpbf16ps(0, 5, 6);
}

// Sixteen rows, or less (int8: high and low bytes), × P panels; the sums of low bytes stand behind those of high ones.
//
// Of six matrices that are read only two or three are kept: a core has few that are free to be loaded while others are still
// multiplied with, and at times hardly any, as if another guest of the machine had its second thread. With all eight in use, two
// of rows and two of weights, a product took 8.6 ns at its best and 30 at other times; as bf16 has it here, 9.4 and 18.
//
// Of float32 the six products of parts that matter are summed: what is left out is less than what float32 rounds. Each part of the
// rows meets those of the weights, so that each is read as seldom as five matrices allow.
template <int64_t KIND, int P>
__attribute__((noinline)) void squares(const char* x, const char* weights, int64_t bytes, int64_t steps, int64_t ahead,
                                       const Sums& sums) {
    __asm__ volatile("" ::: "memory");  // what is read was written
    const char* from = (const char*)sums.from;
    _tile_loadd(0, from, sums.from_row);
    if constexpr (P > 1) _tile_loadd(1, from + LINE, sums.from_row);
    if constexpr (P > 2) _tile_loadd(2, from + 2 * LINE, sums.from_row);
    if constexpr (KIND == INT8) _tile_zero(2);
    if constexpr (KIND == INT8 && P > 1) _tile_zero(3);
    for (int64_t s = 0; s < steps; ++s, x += rows_matrices(KIND) * SQUARE, weights += weights_matrices(KIND) * SQUARE) {
        if (ahead) {  // of this step's panels, or of those that come next
            const int64_t coming = ahead + (s + ahead / SQUARE < steps ? 0 : (P - 1) * bytes);
            for (int p = 0; p < P; ++p)
                for (int64_t line = 0; line < SQUARE; line += LINE) __builtin_prefetch(weights + p * bytes + coming + line);
        }
        if constexpr (KIND == FP32) {
            thirds<P>(x, weights, bytes);
            continue;
        }
        _tile_loadd(4, x, LINE);
        _tile_loadd(6, weights, LINE);
        if constexpr (KIND == BF16) {
            _tile_dpbf16ps(0, 4, 6);
            if constexpr (P > 1) {
                _tile_loadd(6, weights + bytes, LINE);
                _tile_dpbf16ps(1, 4, 6);
            }
            if constexpr (P > 2) {
                _tile_loadd(6, weights + 2 * bytes, LINE);
                _tile_dpbf16ps(2, 4, 6);
            }
        } else {
            _tile_loadd(5, x + SQUARE, LINE);
            _tile_dpbssd(0, 4, 6);
            _tile_dpbusd(2, 5, 6);
            if constexpr (P > 1) {
                _tile_loadd(6, weights + bytes, LINE);
                _tile_dpbssd(1, 4, 6);
                _tile_dpbusd(3, 5, 6);
            }
        }
    }
    char* to = (char*)sums.to;
    _tile_stored(0, to, sums.to_row);
    if constexpr (P > 1) _tile_stored(1, to + LINE, sums.to_row);
    if constexpr (P > 2) _tile_stored(2, to + 2 * LINE, sums.to_row);
    if constexpr (KIND == INT8) _tile_stored(2, to + P * SQUARE, P * LINE);
    if constexpr (KIND == INT8 && P > 1) _tile_stored(3, to + P * SQUARE + LINE, P * LINE);
}

// Sixteen rows, or less, × some panels, whose weights are given, and their bytes: up to three at once.
inline void products_of(const char* x, const char* weights, int64_t bytes, int64_t panels, int64_t steps, float* to,
                        int64_t to_row) {
    const auto sums = [&] { return Sums{ZEROS, 0, to, to_row * (int64_t)sizeof(float)}; };
    for (; panels > 2; panels -= 3, weights += 3 * bytes, to += 3 * PANEL) squares<BF16, 3>(x, weights, bytes, steps, 0, sums());
    if (panels == 2) squares<BF16, 2>(x, weights, bytes, steps, 0, sums());
    if (panels == 1) squares<BF16, 1>(x, weights, bytes, steps, 0, sums());
}

}  // namespace

#endif
