// What the kernels are given; the same structures stand in native.py and blocks.py. Strides are in numbers.

#pragma once

#include <cstdint>

extern "C" {

// A packed matrix W of y = act(x Wᵀ + b).
struct Matrix {
    int64_t kind, outputs, inputs, act, levels;  // levels: the greatest quantized activation, int8 alone
    const void* weights;
    const float* scales;  // int8 alone
    const float* bias;    // or null
};

// Attention of the same number of queries into each slot.
struct Slots {
    const float *q, *k, *v;
    float* y;
    const float* mask;       // or null
    const int64_t* lengths;  // or null
    int64_t slots, queries, heads, groups, key, value, keys;
    int64_t q_row, q_head, k_slot, k_row, v_slot, v_row;
    int64_t mask_slot, mask_head, mask_row;
    float scale;
};

// A norm over the width: of layers (mean and variance), or root mean square.
struct Norm {
    int64_t is_rms;
    const float *weight, *bias;  // or null
    float eps;
};

// A Transformer block: its weights.
struct Block {
    int64_t is_pre, width;  // a multiple of 16
    Norm self_norm, cross_norm, mlp_norm;
    const Matrix *self_in, *self_out, *cross_in, *cross_out;  // cross: null where there is none
    const Matrix *gate, *up, *down;                           // gate: null where there is none
};

// What a block is given in one step: new rows, where their keys and values go, and what is attended to.
struct Step {
    const float* x;
    float* y;
    int64_t rows;
    const int64_t *slot, *place;  // of each row's key and value
    const float* turns;           // for each row sines, then cosines, of half a head each; or null
    Slots self, cross;            // without q and y
};

void regard_pack(const Matrix* m, const float* weights, int64_t output_step, int64_t input_step, int threads);
void regard_linear(const Matrix* m, const float* x, int64_t rows, int64_t stride, float* y, int threads);
void regard_slots(const Slots* slots, int threads);
void regard_block(const Block* block, const Step* step, int threads);
}
