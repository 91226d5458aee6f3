// Products by a processor that multiplies matrices (Intel's AMX): in one instruction sixteen rows × sixteen outputs over 64
// bytes of inputs, into sums of 32 bits.
//
//   fp32   rows and weights, each as the sum of three bfloat16: of their nine products the six that float32 does not round
//          away. That is Henry, Tang and Heinecke, Leveraging the bfloat16 Artificial Intelligence Datatype For
//          Higher-Precision Computations (ARITH 2019). Weights lie as for vectors, and are split by whoever multiplies
//   bf16   rows, rounded, × weights: sums in float32
//   int8   rows as integers of two bytes, q = 256 · high + low: high with a sign, low without one. Both are multiplied
//          with the weights, exactly, and sum = 256 · Σ high · w + Σ low · w
//
// Rows are laid out in such matrices before: [sixteen rows][step][row][64 bytes], of int8 [sixteen rows][step][high, low][row]
// [64 bytes], of float32 [sixteen rows][step][part][row][64 bytes].

#include "matrices.h"

#if REGARD_AMX

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t FEW_ROWS = 32;              // up to here a thread prepares all rows itself
constexpr int64_t NEAR_BYTES = 1 << 20;       // of panels that rows go through one after the other: half the second cache
constexpr int64_t LAID_BYTES = 1 << 25;       // of rows that are laid out at once, or one chunk's
constexpr int64_t SUMMED = 4096;              // inputs of rounded weights that are summed at once
constexpr int64_t SPLIT_SUMMED = 768;         // and of those that are split: rows of them take six bytes an input
constexpr int64_t SPLIT_ROWS = 96;            // of fewer rows it takes too long to split the weights,
constexpr int64_t SPLIT_OUTPUTS = 32;         // and of fewer outputs to split the rows
constexpr int64_t SPLIT_CHUNK = 12;           // times sixteen rows, at least, for which a thread splits a block of weights
constexpr int64_t NARROW_ROWS = 4;            // of int8 are multiplied by vectors
constexpr int64_t NARROW_AHEAD_BYTES = 1024;  // whose weights are asked for so far ahead
constexpr int64_t AHEAD_BYTES = 2048;         // weights of few rows are asked for so far ahead

// Bytes of a row, laid out.
constexpr int64_t row_bytes(int64_t kind) { return LINE * rows_matrices(kind); }

// Lay a row out as two bytes a number, SQUARE apart; from step to step it goes two squares.
float halve(const Matrix& m, const float* x, int16_t* quantized, char* to) {
    const int64_t steps = steps_of(m);
    const float scale = quantize(x, m.inputs, m.levels, quantized);
    for (int64_t k = m.inputs; k < steps * LINE; ++k) quantized[k] = 0;
    for (int64_t s = 0; s < steps; ++s, quantized += LINE, to += 2 * SQUARE)
        for (int half = 0; half < 2; ++half) {
            const __m512i q = _mm512_loadu_si512(quantized + 32 * half);
            _mm256_storeu_si256((__m256i*)(to + 32 * half), _mm512_cvtepi16_epi8(_mm512_srai_epi16(q, 8)));
            _mm256_storeu_si256((__m256i*)(to + SQUARE + 32 * half), _mm512_cvtepi16_epi8(q));
        }
    return scale;
}

// Up to sixteen lines, all their inputs, as matrices; says whether they can be split.
template <int PARTS>
bool lines(const float* x, int64_t line, int64_t step, int64_t count, int64_t inputs, bool is_turned, char* to) {
    bool is_finite = true;
    for (int64_t k = 0; k < inputs; k += 2 * SIDE, to += PARTS * SQUARE)
        is_finite &= square<PARTS>(x + k * step, line, step, count, inputs - k, is_turned, to);
    return is_finite;
}

// Rows, sixteen a matrix, of a call: where each of them, and its scale, goes.
template <int64_t KIND>
struct Laid {
    const Call& c;
    int64_t row, rows;  // of the call
    char* to;
    float* scales_N;

    static int64_t bytes(const Matrix& m, int64_t rows) {
        return (rows + SIDE - 1) / SIDE * SIDE * squares_of(m) * row_bytes(KIND);
    }
    char* at(int64_t sixteen) const { return to + sixteen * SIDE * squares_of(c.m) * row_bytes(KIND); }

    // Says whether numbers can be split, of float32.
    bool lay_out(int64_t sixteen) const {
        const int64_t begin = sixteen * SIDE, end = std::min(begin + SIDE, rows);
        const float* x = c.x + (row + begin) * c.stride;
        if constexpr (KIND == INT8) {
            thread_local std::vector<int16_t> quantized;
            quantized.resize(steps_of(c.m) * LINE);
            for (int64_t r = begin; r < end; ++r, x += c.stride)
                scales_N[r] = halve(c.m, x, quantized.data(), at(sixteen) + (r - begin) * LINE);
            return true;
        } else {
            return lines<rows_matrices(KIND)>(x, c.stride, c.step, end - begin, c.m.inputs, false, at(sixteen));
        }
    }
};

// Sixteen rows, or the last ones, × P panels.
template <int64_t KIND, int P>
void one(const Laid<KIND>& laid, int64_t first, int64_t rows, const char* weights, int64_t panel, int64_t ahead) {
    const Call& c = laid.c;
    const int64_t bytes = squares_bytes(c.m), row = laid.row + first;
    for (int64_t r = 0; r < rows; ++r)  // where sums go is asked for before they are computed
        for (int p = 0; p < P; ++p) __builtin_prefetch(c.y + (row + r) * c.y_row + (panel + p) * PANEL, 1);
    if (KIND != INT8 && (panel + P) * PANEL <= c.m.outputs && !(c.adds && (c.m.bias || KIND == FP32))) {
        float* y = c.y + row * c.y_row + panel * PANEL;
        const float* from = c.adds ? y : c.m.bias ? c.m.bias + panel * PANEL : ZEROS;
        const int64_t bytes_of_row = c.y_row * (int64_t)sizeof(float);
        return squares<KIND, P>(laid.at(first / SIDE), weights, bytes, squares_of(c.m), ahead,
                                {from, c.adds ? bytes_of_row : 0, y, bytes_of_row});
    }
    // The last panel, int8, or what is added to in float32: there sums begin at 0, for the longer they grow the more they round.
    // Others begin at the bias here too: a panel's bits do not hang on those beside it.
    alignas(LINE) float begin[P * PANEL] = {};
    if (KIND != INT8 && c.m.bias)
        std::copy_n(c.m.bias + panel * PANEL, std::min<int64_t>(P * PANEL, c.m.outputs - panel * PANEL), begin);
    alignas(LINE) int32_t sums[(KIND == INT8 ? 2 : 1) * P * SIDE * PANEL];
    squares<KIND, P>(laid.at(first / SIDE), weights, bytes, squares_of(c.m), ahead, {begin, 0, sums, P * LINE});
    if constexpr (KIND == INT8) {
        const int32_t* low = sums + P * SIDE * PANEL;
        for (int64_t i = 0; i < rows * P * PANEL; ++i) sums[i] = (int32_t)((uint32_t)sums[i] * 256 + (uint32_t)low[i]);
        give_int8<P>(c, sums, (int)rows, row, panel, laid.scales_N + first);
    } else {
        give<P>(c, (const float*)sums, (int)rows, row, panel, !c.adds, false);
    }
}

// Whether all of some rows and panels of y is finite.
bool are_finite(const Call& c, int64_t row, int64_t rows, int64_t from, int64_t last) {
    const int64_t first_output = from * PANEL, count = std::min(last * PANEL, c.m.outputs) - first_output;
    __mmask16 not_finite = 0;
    for (int64_t r = row; r < row + rows; ++r)
        for (int64_t j = 0; j < count; j += PANEL)
            not_finite |= _mm512_fpclass_ps_mask(
                _mm512_maskz_loadu_ps(first(count - j), c.y + r * c.y_row + first_output + j), NOT_FINITE);
    return !not_finite;
}

// Some rows × some panels, whose weights are given: they come from memory for the first rows, but for float32's, which were just
// split, and stay near for all others. Says, if asked, whether all sums are finite.
template <int64_t KIND>
bool multiply(const Laid<KIND>& laid, int64_t begin, int64_t end, const char* weights, int64_t from, int64_t last, bool asks) {
    constexpr int MOST = most_panels(KIND);
    const int64_t bytes = squares_bytes(laid.c.m);
    bool is_finite = true;
    TileConfig tiles;
    for (int64_t row = begin; row < end; row += SIDE) {
        const int64_t rows = std::min(SIDE, end - row), ahead = row == begin && KIND != FP32 ? AHEAD_BYTES : 0;
        tiles.set(rows);
        int64_t panel = from;
        const char* at = weights;
        for (; panel + MOST <= last; panel += MOST, at += MOST * bytes) one<KIND, MOST>(laid, row, rows, at, panel, ahead);
        if (MOST > 2 && last - panel == 2)
            one<KIND, 2>(laid, row, rows, at, panel, ahead);
        else if (panel < last)
            one<KIND, 1>(laid, row, rows, at, panel, ahead);
        if (asks) is_finite &= are_finite(laid.c, laid.row + row, rows, from, last);
        finish(laid.c, laid.row + row, rows, from, last);
    }
    return is_finite;
}

// R rows of int8 × P panels by vectors: of so few rows it is quicker to get at the weights, and the sums are the same. A
// word of four weights is two pairs of 16 bits, of its even and its odd bytes; x has the same pairs of each four inputs.
template <int R, int P>
__attribute__((noinline)) void narrow(const int32_t* x, int64_t x_row, const char* weights, int64_t bytes, int32_t* sums) {
    __m512i sum[R][P];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) sum[r][p] = _mm512_setzero_si512();
    for (int64_t at = 0; at < bytes; at += LINE, x += 2) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            __builtin_prefetch(weights + p * bytes + at + NARROW_AHEAD_BYTES);
            const __m512i w = _mm512_loadu_si512(weights + p * bytes + at), odd = _mm512_srai_epi16(w, 8);
            const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                sum[r][p] = _mm512_dpwssd_epi32(sum[r][p], _mm512_set1_epi32(x[r * x_row]), even);
                sum[r][p] = _mm512_dpwssd_epi32(sum[r][p], _mm512_set1_epi32(x[r * x_row + 1]), odd);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) _mm512_storeu_si512(sums + (r * P + p) * PANEL, sum[r][p]);
}

template <int R>
void narrow_block(const Call& c, const int32_t* x, const float* scales_N, int64_t panel, int64_t last) {
    constexpr int P = 4;
    const int64_t bytes = panel_bytes(c.m), x_row = steps_of(c.m) * LINE / 2, from = panel;
    const char* weights = (const char*)c.m.weights + panel * bytes;
    alignas(LINE) int32_t sums[R * P * PANEL];
    for (; panel + P <= last; panel += P, weights += P * bytes) {
        narrow<R, P>(x, x_row, weights, bytes, sums);
        give_int8<P>(c, sums, R, 0, panel, scales_N);
    }
    for (; panel < last; ++panel, weights += bytes) {
        narrow<R, 1>(x, x_row, weights, bytes, sums);
        give_int8<1>(c, sums, R, 0, panel, scales_N);
    }
    finish(c, 0, R, from, last);
}

// A thread's part of a call of very few rows of int8: it rounds them all, and takes blocks of panels until none is left.
template <int R>
void narrow_rows(const Call& c, std::atomic<int64_t>& next, int64_t block) {
    const int64_t panels = panels_of(c.m), numbers = steps_of(c.m) * LINE;
    thread_local std::vector<int16_t> rows;
    rows.resize(R * numbers);
    float scales_N[R];
    for (int r = 0; r < R; ++r) {
        int16_t* q = rows.data() + r * numbers;
        scales_N[r] = quantize(c.x + r * c.stride, c.m.inputs, c.m.levels, q);
        for (int64_t k = c.m.inputs; k < numbers; ++k) q[k] = 0;
        for (int64_t k = 0; k < numbers; k += 32) {  // of each four inputs 0 2 1 3
            const __m512i four = _mm512_loadu_si512(q + k);
            _mm512_storeu_si512(q + k, _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(four, 0xd8), 0xd8));
        }
    }
    for (int64_t begin; (begin = next.fetch_add(block, std::memory_order_relaxed)) < panels;)
        narrow_block<R>(c, (const int32_t*)rows.data(), scales_N, begin, std::min(begin + block, panels));
}

// Few rows: each thread lays them all out for itself, and takes blocks of panels until none is left.
template <int64_t KIND>
void few(const Call& c, int threads, Team team) {
    const bool is_narrow = KIND == INT8 && c.rows <= NARROW_ROWS;
    const int64_t panels = panels_of(c.m), at_once = is_narrow ? 4 : most_panels(KIND);
    const int64_t block = threads > 1 ? std::max<int64_t>(panels / (4 * threads) / at_once, 1) * at_once : panels;
    const int64_t blocks = (panels + block - 1) / block;
    std::atomic<int64_t> next{0};  // panel that nobody has taken
    Threads::run((int)std::min<int64_t>(threads, blocks), [&](int) {
        if (next.load(std::memory_order_relaxed) >= panels) return;
        if (is_narrow) switch (c.rows) {
            case 1: return narrow_rows<1>(c, next, block);
            case 2: return narrow_rows<2>(c, next, block);
            case 3: return narrow_rows<3>(c, next, block);
            default: return narrow_rows<4>(c, next, block);
        }
        thread_local Room room;
        float scales_N[FEW_ROWS];
        const Laid<KIND> laid{c, 0, c.rows, room.bytes(Laid<KIND>::bytes(c.m, c.rows)), scales_N};
        for (int64_t at = 0; at * SIDE < c.rows; ++at) laid.lay_out(at);
        for (int64_t begin; (begin = next.fetch_add(block, std::memory_order_relaxed)) < panels;)
            multiply<KIND>(laid, 0, c.rows, (const char*)c.m.weights + begin * panel_bytes(c.m), begin,
                           std::min(begin + block, panels), false);
    }, team, threads);
}

// Where a block of panels is, and whether they could be split.
struct Weights {
    const char* at;
    bool fit;
};

// Many rows are laid out by all threads, which then take blocks of panels × chunks of them until none is left, whose weights
// find(first panel, the one behind the last) finds. Says whether all could be split, and, if it must be so, whether all sums are
// finite (where parts overflow, the whole may not); then it ends where they are not, and y is of no use.
template <int64_t KIND, typename Find>
bool many(const Call& c, int threads, Team team, const Find& find, bool must_fit = false) {
    constexpr int MOST = most_panels(KIND);
    thread_local Room room;
    thread_local std::vector<float> scales;
    std::atomic<bool> fit{true};
    const int64_t panels = panels_of(c.m), bytes = std::max<int64_t>(Laid<KIND>::bytes(c.m, SIDE), 1);
    const int64_t most = std::min(std::max<int64_t>(LAID_BYTES / bytes, 1) * SIDE, c.rows);
    char* to = room.bytes(Laid<KIND>::bytes(c.m, most));
    if ((int64_t)scales.size() < most) scales.resize(most);
    for (int64_t row = 0; row < c.rows && (fit || !must_fit); row += most) {
        const Laid<KIND> laid{c, row, std::min(most, c.rows - row), to, scales.data()};
        // As many panels as stay near, and enough pieces for every thread to have some.
        const int64_t near = std::min(NEAR_BYTES / std::max<int64_t>(squares_bytes(c.m), 1), panels / (2 * threads));
        const int64_t block = std::max<int64_t>(near / MOST, 1) * MOST, blocks = (panels + block - 1) / block;
        const int64_t sixteens = (laid.rows + SIDE - 1) / SIDE;
        const int64_t chunks = std::max<int64_t>(std::min(4 * threads / blocks, sixteens / (KIND == FP32 ? SPLIT_CHUNK : 1)), 1);
        take_all(sixteens, threads, team, [&](int64_t at) {
            if (!laid.lay_out(at)) fit = false;
        });
        take_all(chunks * blocks, threads, team, [&](int64_t at) {
            if (must_fit && !fit) return;
            const int64_t from = at / chunks * block, last = std::min(from + block, panels), chunk = at % chunks;
            const int64_t begin = share(sixteens, chunk, chunks) * SIDE;
            const int64_t end = std::min(share(sixteens, chunk + 1, chunks) * SIDE, laid.rows);
            const Weights weights = find(from, last);
            if (!multiply<KIND>(laid, begin, end, weights.at, from, last, must_fit) || !weights.fit) fit = false;
        });
    }
    return fit;
}

// A block of panels as matrices, in a room of the thread's own where they stay near: panel(number) says where one is.
template <int PARTS, typename Panel>
Weights laid_panels(const Matrix& m, int64_t from, int64_t last, int64_t output, int64_t input, const Panel& panel) {
    thread_local Room room;
    const int64_t bytes = (m.inputs + 2 * SIDE - 1) / (2 * SIDE) * PARTS * SQUARE;
    char* to = room.bytes((last - from) * bytes);
    bool is_finite = true;
    for (int64_t one = from; one < last; ++one)
        is_finite &= lines<PARTS>(panel(one), output, input, m.outputs - one * PANEL, m.inputs, true, to + (one - from) * bytes);
    return {to, is_finite};
}

// y = act(x Wᵀ + b), or added to what y holds, some inputs after the others; of these each block of weights is laid out by the
// thread that takes it: panel(number, input) says where. Says what `many` says.
template <int64_t KIND, typename Panel>
bool by_inputs(const Call& c, int64_t w_output, int64_t w_input, int threads, Team team, const Panel& panel,
               bool must_fit = false) {
    constexpr int64_t MOST = KIND == FP32 ? SPLIT_SUMMED : SUMMED;
    const int64_t times = std::max<int64_t>((c.m.inputs + MOST - 1) / MOST, 1);
    int64_t begin = 0;
    for (int64_t time = 0, end; time < times; ++time, begin = end) {
        end = std::min(share((c.m.inputs + 2 * SIDE - 1) / (2 * SIDE), time + 1, times) * 2 * SIDE, c.m.inputs);
        Matrix m{KIND, c.m.outputs, end - begin, time + 1 < times ? NONE : c.m.act};
        m.bias = begin ? nullptr : c.m.bias;
        const Call some{m, c.x + begin * c.step, c.rows, c.stride, c.y, c.y_row, c.step, c.adds || begin};
        const auto find = [&](int64_t from, int64_t last) {
            return laid_panels<weights_matrices(KIND)>(m, from, last, w_output, w_input,
                                                       [&](int64_t one) { return panel(one, begin); });
        };
        if (!many<KIND>(some, threads, team, find, must_fit) && must_fit) return false;
    }
    return true;
}

template <int64_t KIND>
void product(const Call& c, int threads, Team team) {
    if (c.rows <= FEW_ROWS) return few<KIND>(c, threads, team);
    many<KIND>(c, threads, team,
               [&](int64_t from, int64_t) { return Weights{(const char*)c.m.weights + from * panel_bytes(c.m), true}; });
}

}  // namespace

namespace regard {

// y = act(x Wᵀ + b) with weights of bf16 or int8, as linear has it.
void linear_amx(const Matrix* m, const float* x, int64_t rows, int64_t stride, float* y, int threads, Team team) {
    const Call c{*m, x, rows, stride, y, m->outputs};
    if (m->kind == BF16) return product<BF16>(c, threads, team);
    product<INT8>(c, threads, team);
}

bool linear_split(const Matrix* m, const float* x, int64_t rows, int64_t stride, float* y, int threads, Team team) {
    if (rows < SPLIT_ROWS || m->outputs < SPLIT_OUTPUTS) return false;
    const auto panel = [&](int64_t number, int64_t input) {
        return (const float*)m->weights + (number * m->inputs + input) * PANEL;
    };
    return by_inputs<FP32>({*m, x, rows, stride, y, m->outputs}, 1, PANEL, threads, team, panel, true);
}

bool multiplies() { return true; }

void multiply(const Product* p, int threads, Team team) {
    if (!p->rows || !p->outputs) return;
    Matrix m{p->parts == 1 ? BF16 : FP32, p->outputs, p->inputs};
    m.bias = p->bias;
    const Call c{m, p->x, p->rows, p->x_row, p->y, p->y_row, p->x_input, p->adds != 0};
    const auto panel = [&](int64_t number, int64_t input) {
        return p->w + number * PANEL * p->w_output + input * p->w_input;
    };
    if (p->parts == 1)
        by_inputs<BF16>(c, p->w_output, p->w_input, threads, team, panel);
    else
        by_inputs<FP32>(c, p->w_output, p->w_input, threads, team, panel);
}

}  // namespace regard

#else

namespace regard {

bool multiplies() { return false; }
void multiply(const Product*, int, Team) {}

}  // namespace regard

#endif
