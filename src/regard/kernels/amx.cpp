// Products by a processor that multiplies matrices (Intel's AMX): in one instruction sixteen rows × sixteen outputs over 64
// bytes of inputs, into sums of 32 bits.
//
//   bf16   rows, rounded, × weights: sums in float32
//   int8   rows as integers of two bytes, q = 256 · high + low: high with a sign, low without one. Both are multiplied
//          with the weights, exactly, and sum = 256 · Σ high · w + Σ low · w
//
// Rows are laid out in such matrices before: [sixteen rows][step][row][64 bytes], of int8 [sixteen rows][step][high, low][row]
// [64 bytes].

#include "products.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__)

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t SIDE = 16;                  // rows, or outputs, of a matrix
constexpr int64_t SQUARE = SIDE * LINE;       // its bytes
constexpr int64_t FEW_ROWS = 32;              // up to here a thread prepares all rows itself
constexpr int64_t NEAR_BYTES = 1 << 20;       // of panels that rows go through one after the other: half the second cache
constexpr int64_t LAID_BYTES = 1 << 25;       // of rows that are laid out at once, or one chunk's
constexpr int64_t AHEAD_BYTES = 2048;         // weights of few rows are asked for so far ahead

// How many rows those of sums and of rows have.
class Shape {
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
        _tile_loadconfig(&config);
    }
    // Nothing is left to be kept where another thread takes the core.
    ~Shape() {
        if (set_to) _tile_release();
    }
};

// Matrices of rows, and panels, that are multiplied at once.
constexpr int rows_matrices(int64_t kind) { return kind == INT8 ? 2 : 1; }
constexpr int most_panels(int64_t kind) { return kind == INT8 ? 2 : 3; }

// Bytes of a row, laid out.
constexpr int64_t row_bytes(int64_t kind) { return LINE * rows_matrices(kind); }

// Lay a row out that stands at x into its places, SQUARE bytes and more apart.
template <int64_t KIND>
float lay_out(const Matrix& m, const float* x, int16_t* quantized, char* to, int64_t apart) {
    const int64_t steps = steps_of(m);
    if constexpr (KIND == BF16) {
        for (int64_t s = 0, k = 0; s < steps; ++s, k += 32, to += apart) {
            const int64_t left = m.inputs - k;
            const __mmask16 low = left >= 16 ? 0xffff : (1u << left) - 1;
            const __mmask16 high = left >= 32 ? 0xffff : left > 16 ? (1u << (left - 16)) - 1 : 0;
            _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, x + k + 16),
                                                                 _mm512_maskz_loadu_ps(low, x + k)));
        }
        return 1;
    }
    const float scale = quantize(x, m.inputs, m.levels, quantized);
    for (int64_t k = m.inputs; k < steps * LINE; ++k) quantized[k] = 0;
    for (int64_t s = 0; s < steps; ++s, quantized += LINE, to += apart)
        for (int half = 0; half < 2; ++half) {
            const __m512i q = _mm512_loadu_si512(quantized + 32 * half);
            _mm256_storeu_si256((__m256i*)(to + 32 * half), _mm512_cvtepi16_epi8(_mm512_srai_epi16(q, 8)));
            _mm256_storeu_si256((__m256i*)(to + SQUARE + 32 * half), _mm512_cvtepi16_epi8(q));
        }
    return scale;
}

// Rows, sixteen a matrix, of a call: where each of them, and its scale, goes.
template <int64_t KIND>
struct Laid {
    const Call& c;
    int64_t row, rows;  // of the call
    char* to;
    float* scales_N;

    static int64_t bytes(const Matrix& m, int64_t rows) {
        return (rows + SIDE - 1) / SIDE * SIDE * steps_of(m) * row_bytes(KIND);
    }
    // Of sixteen rows.
    const char* at(int64_t sixteen) const { return to + sixteen * SIDE * steps_of(c.m) * row_bytes(KIND); }
    void lay_out_sixteen(int64_t sixteen) const {
        thread_local std::vector<int16_t> quantized;
        if (KIND == INT8) quantized.resize(steps_of(c.m) * LINE);
        for (int64_t r = sixteen * SIDE; r < std::min((sixteen + 1) * SIDE, rows); ++r)
            scales_N[r] = lay_out<KIND>(c.m, c.x + (row + r) * c.stride, quantized.data(),
                                        (char*)at(sixteen) + r % SIDE * LINE, SIDE * row_bytes(KIND));
    }
};

// Sixteen rows, or less (int8: high and low bytes), × P panels; the sums of low bytes stand behind those of high ones.
//
// Of six matrices that are read only two or three are kept: a core has few that are free to be loaded while others are still
// multiplied with, and at times hardly any, as if another guest of the machine had its second thread. With two matrices of
// weights more (and all eight in use) a product took 8.6 ns at its best and 30 at other times, so 9.4 and 18 (bf16).
template <int64_t KIND, int P>
__attribute__((noinline)) void squares(const char* x, const char* weights, int64_t bytes, int64_t steps, int64_t ahead,
                                       void* sums) {
    __asm__ volatile("" ::: "memory");  // what is read was written
    _tile_zero(0);
    if constexpr (P > 1) _tile_zero(1);
    if constexpr (P > 2) _tile_zero(2);
    if constexpr (KIND == INT8) _tile_zero(2);
    if constexpr (KIND == INT8 && P > 1) _tile_zero(3);
    for (int64_t s = 0; s < steps; ++s, x += rows_matrices(KIND) * SQUARE, weights += SQUARE) {
        if (ahead) {  // of this step's panels, or of those that come next
            const int64_t coming = ahead + (s + ahead / SQUARE < steps ? 0 : (P - 1) * bytes);
            for (int p = 0; p < P; ++p)
                for (int64_t line = 0; line < SQUARE; line += LINE) __builtin_prefetch(weights + p * bytes + coming + line);
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
    char* to = (char*)sums;
    _tile_stored(0, to, P * LINE);
    if constexpr (P > 1) _tile_stored(1, to + LINE, P * LINE);
    if constexpr (P > 2) _tile_stored(2, to + 2 * LINE, P * LINE);
    if constexpr (KIND == INT8) _tile_stored(2, to + P * SQUARE, P * LINE);
    if constexpr (KIND == INT8 && P > 1) _tile_stored(3, to + P * SQUARE + LINE, P * LINE);
}

// Sixteen rows, or the last ones, × P panels.
template <int64_t KIND, int P>
void one(const Laid<KIND>& laid, int64_t first, int64_t rows, int64_t panel, int64_t ahead) {
    const Call& c = laid.c;
    const int64_t bytes = panel_bytes(c.m), row = laid.row + first;
    for (int64_t r = 0; r < rows; ++r)  // where sums go is asked for before they are computed
        for (int p = 0; p < P; ++p) __builtin_prefetch(c.y + (row + r) * c.m.outputs + (panel + p) * PANEL, 1);
    alignas(64) int32_t sums[rows_matrices(KIND) * P * SIDE * PANEL];
    squares<KIND, P>(laid.at(first / SIDE), (const char*)c.m.weights + panel * bytes, bytes, steps_of(c.m), ahead, sums);
    if constexpr (KIND == INT8) {
        const int32_t* low = sums + P * SIDE * PANEL;
        for (int64_t i = 0; i < rows * P * PANEL; ++i) sums[i] = (int32_t)((uint32_t)sums[i] * 256 + (uint32_t)low[i]);
        give_int8<P>(c, sums, (int)rows, row, panel, laid.scales_N + first);
    } else {
        give<P>(c, (const float*)sums, (int)rows, row, panel, true, true);
    }
}

// Some rows × some panels: the panels come from memory for the first rows, and stay near for all others.
template <int64_t KIND>
void multiply(const Laid<KIND>& laid, int64_t begin, int64_t end, int64_t from, int64_t last) {
    constexpr int MOST = most_panels(KIND);
    Shape shape;
    for (int64_t row = begin; row < end; row += SIDE) {
        const int64_t rows = std::min(SIDE, end - row), ahead = row == begin ? AHEAD_BYTES : 0;
        shape.set(rows);
        int64_t panel = from;
        for (; panel + MOST <= last; panel += MOST) one<KIND, MOST>(laid, row, rows, panel, ahead);
        if (MOST > 2 && last - panel == 2)
            one<KIND, 2>(laid, row, rows, panel, ahead);
        else if (panel < last)
            one<KIND, 1>(laid, row, rows, panel, ahead);
        finish(laid.c, laid.row + row, rows, from, last);
    }
}

// Few rows: each thread lays them all out for itself, and takes blocks of panels until none is left.
template <int64_t KIND>
void few(const Call& c, int threads, Team team) {
    constexpr int MOST = most_panels(KIND);
    const int64_t panels = panels_of(c.m);
    const int64_t block = threads > 1 ? std::max<int64_t>(panels / (4 * threads) / MOST, 1) * MOST : panels;
    const int64_t blocks = (panels + block - 1) / block;
    std::atomic<int64_t> next{0};
    Threads::run((int)std::min<int64_t>(threads, blocks), [&](int) {
        if (next.load(std::memory_order_relaxed) >= blocks) return;
        thread_local std::vector<char> room;
        if ((int64_t)room.size() < Laid<KIND>::bytes(c.m, c.rows)) room.resize(Laid<KIND>::bytes(c.m, c.rows));
        float scales_N[FEW_ROWS];
        const Laid<KIND> laid{c, 0, c.rows, room.data(), scales_N};
        for (int64_t at = 0; at * SIDE < c.rows; ++at) laid.lay_out_sixteen(at);
        for (int64_t at; (at = next.fetch_add(1, std::memory_order_relaxed)) < blocks;)
            multiply<KIND>(laid, 0, c.rows, at * block, std::min((at + 1) * block, panels));
    }, team, threads);
}

// Many rows are laid out by all threads, which then take blocks of panels × chunks of them until none is left.
template <int64_t KIND>
void many(const Call& c, int threads, Team team) {
    constexpr int MOST = most_panels(KIND);
    thread_local std::vector<char> room;
    thread_local std::vector<float> scales;
    const int64_t panels = panels_of(c.m), bytes = Laid<KIND>::bytes(c.m, SIDE);
    const int64_t most = std::min(std::max<int64_t>(LAID_BYTES / bytes, 1) * SIDE, c.rows);
    if ((int64_t)room.size() < Laid<KIND>::bytes(c.m, most)) room.resize(Laid<KIND>::bytes(c.m, most));
    if ((int64_t)scales.size() < most) scales.resize(most);
    for (int64_t row = 0; row < c.rows; row += most) {
        const Laid<KIND> laid{c, row, std::min(most, c.rows - row), room.data(), scales.data()};
        // As many panels as stay near, and enough pieces for every thread to have some.
        const int64_t fit = std::min(NEAR_BYTES / panel_bytes(c.m), panels / (2 * threads));
        const int64_t block = std::max<int64_t>(fit / MOST, 1) * MOST, blocks = (panels + block - 1) / block;
        const int64_t sixteens = (laid.rows + SIDE - 1) / SIDE;
        const int64_t chunks = std::min(std::max<int64_t>(4 * threads / blocks, 1), sixteens);
        take_all(sixteens, threads, team, [&](int64_t at) { laid.lay_out_sixteen(at); });
        take_all(chunks * blocks, threads, team, [&](int64_t at) {
            const int64_t first = at / chunks * block, chunk = at % chunks;
            const int64_t begin = share(sixteens, chunk, chunks) * SIDE;
            const int64_t end = std::min(share(sixteens, chunk + 1, chunks) * SIDE, laid.rows);
            multiply<KIND>(laid, begin, end, first, std::min(first + block, panels));
        });
    }
}

template <int64_t KIND>
void product(const Call& c, int threads, Team team) {
    if (c.rows <= FEW_ROWS) return few<KIND>(c, threads, team);
    many<KIND>(c, threads, team);
}

}  // namespace

namespace regard {

// y = act(x Wᵀ + b) with weights of bf16 or int8, as linear has it.
void linear_amx(const Matrix* m, const float* x, int64_t rows, int64_t stride, float* y, int threads, Team team) {
    const Call c{*m, x, rows, stride, y};
    if (m->kind == BF16) return product<BF16>(c, threads, team);
    product<INT8>(c, threads, team);
}

}  // namespace regard

#endif
