// What products y = act(x Wᵀ + b) have in common: how weights lie, how rows are rounded, and what becomes of sums.
//
// Weights stand in panels of 16 outputs, one panel after another, each panel by inputs:
//   fp32   [input][16]
//   bf16   [pair of inputs][16][2]
//   int8   [pair of inputs][16][2], one scale an output; for a processor that multiplies matrices [four inputs][16][4]
// The last panel is filled up with zeros, and so are the inputs, to the numbers that are multiplied at once.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "calls.h"
#include "threads.h"
#include "vectors.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__)
#define REGARD_AMX 1
#else
#define REGARD_AMX 0
#endif
constexpr bool HAS_AMX = REGARD_AMX;

namespace regard {
// linear of bf16 and int8 where the processor multiplies matrices; what products.cpp has for these is for others.
void linear_amx(const Matrix* m, const float* x, int64_t rows, int64_t stride, float* y, int threads, Team team);
// Of float32 it says whether it did: not of few rows or outputs, nor where a number or a sum is not finite. Then y is of no use.
bool linear_split(const Matrix* m, const float* x, int64_t rows, int64_t stride, float* y, int threads, Team team);
}  // namespace regard

namespace {

constexpr int PANEL = 16;
constexpr int PARTS = PANEL / WIDTH;  // registers of a panel's row

enum Kind : int64_t { FP32 = 0, BF16 = 1, INT8 = 2 };
enum Act : int64_t { NONE = 0, RELU = 1, GELU_TANH = 2, GELU_QUICK = 3, SILU = 4, GELU = 5 };

constexpr int64_t weight_bytes(int64_t kind) { return kind == FP32 ? 4 : kind == BF16 ? 2 : 1; }

// Inputs that stand side by side for each output.
constexpr int64_t together(int64_t kind) { return kind == FP32 ? 1 : kind == INT8 && HAS_AMX ? 4 : 2; }

// Inputs that are multiplied at once: what a tile takes in one step.
constexpr int64_t step_inputs(int64_t kind) {
    return kind == FP32 ? 1 : HAS_AMX ? LINE / weight_bytes(kind) : together(kind);
}

// Bytes of a panel's weights for one step.
constexpr int64_t step_bytes(int64_t kind) { return PANEL * step_inputs(kind) * weight_bytes(kind); }

inline int64_t panels_of(const Matrix& m) { return (m.outputs + PANEL - 1) / PANEL; }

inline int64_t steps_of(const Matrix& m) { return (m.inputs + step_inputs(m.kind) - 1) / step_inputs(m.kind); }

inline int64_t panel_bytes(const Matrix& m) { return steps_of(m) * step_bytes(m.kind); }

struct Call {
    const Matrix& m;
    const float* x;
    int64_t rows, stride;  // of x
    float* y;
    int64_t y_row;         // numbers from row to row
    int64_t step = 1;      // of x, from input to input
    bool adds = false;     // to what y holds
};

// As an integer of |x|, the greater the greater: what is not a number is above all others.
inline int32_t magnitude(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits & 0x7fffffff;
}

// One row as integers: q = round(x · levels / max |x|), halves to even; its scale is max |x| / levels. A row that holds
// a number that is not finite has the scale NaN.
inline float quantize(const float* x, int64_t inputs, float levels, int16_t* q) {
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

// To the nearest bfloat16, halves to even; what is not a number stays so.
inline uint16_t rounded(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return std::isnan(x) ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Take a tile's sums to y: added to what is there but for the first inputs; the bias with the last.
template <int P>
void give(const Call& c, const float* out, int rows, int64_t row, int64_t panel, bool first, bool last) {
    int64_t from = panel * PANEL, count = std::min<int64_t>(P * PANEL, c.m.outputs - from);
    const float* bias = last && c.m.bias ? c.m.bias + from : nullptr;
    for (int r = 0; r < rows; ++r, out += P * PANEL) {
        float* y = c.y + (row + r) * c.y_row + from;
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
        float* y = c.y + (row + r) * c.y_row + from;
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
inline void finish(const Call& c, int64_t row, int64_t rows, int64_t begin, int64_t end) {
    int64_t from = begin * PANEL, count = std::min(end * PANEL, c.m.outputs) - from;
    for (int64_t n = row; n < row + rows; ++n) {
        float* y = c.y + n * c.y_row + from;
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

}  // namespace
