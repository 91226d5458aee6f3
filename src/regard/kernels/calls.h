// What the kernels are given; the same structures stand in calls.py and blocks.py. Strides are in numbers.

#pragma once

#include <cstdint>

// A packed matrix W of y = act(x Wᵀ + b).
struct Matrix {
    int64_t kind, outputs, inputs, act, levels;  // levels: the greatest quantized activation, int8 alone
    const void* weights;
    const float* scales;  // int8 alone
    const float* bias;    // or null
};

// y = x Wᵀ + b, or y += x Wᵀ + b, of float32, with float32 sums. x and W are rounded to bfloat16, or taken as sums of three
// such numbers, which loses nothing; but then what is not finite, or nearly beyond float32, gives NaN, and so may such a sum. Of x rows or inputs stand
// side by side, of W outputs or inputs.
struct Product {
    int64_t rows, outputs, inputs;
    const float *x, *w;
    const float* bias;  // or null
    float* y;
    int64_t x_row, x_input, w_output, w_input, y_row;  // numbers from one to the next
    int64_t adds;
    int64_t parts;  // 1 or 3
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

// Attention within sequences of any lengths, whose queries, and keys, stand one after the other.
struct Sequences {
    const float *q, *k, *v;
    float* y;            // (queries, heads, value)
    float* norms;        // (queries, heads, 2): the greatest score, and one over the sum of exp(score − greatest); or null
    const float* mask;   // added to the scores; or null
    const float* vector; // (heads, key): the score is vectorᵀ tanh(q + k); or null, and it is scale · q · k
    const int64_t *q_starts, *q_lengths, *k_starts, *k_lengths;
    int64_t sequences, heads, groups, key, value;
    int64_t q_row, q_head, k_row, k_head, v_row, v_head;
    int64_t masks, first_mask;  // sequence i has the mask of first_mask + i modulo masks, at least 1
    int64_t mask_sequence, mask_head, mask_row;
    int64_t back, ahead;  // how far a query sees, counted from the end: the last stands at the last key; −1 is all the way
    int64_t narrow;         // the forward pass may round what it multiplies to bfloat16; sums are float32
    int64_t seed, dropped;  // of 2³² weights so many are dropped, which ones follows from the seed; 0 for none
    float scale;
};

// What the gradients are of: y's, and where those of queries, (rows, heads, size), and of keys and values, (rows, groups,
// size), go.
struct Gradients {
    const float* y;
    int64_t y_row, y_head;
    float *q, *k, *v;
    float* vector;  // (sequences, heads, key), of additive scores: each sequence's part; or null
};

// Runs work(data) in so many threads at once: GOMP_parallel of the OpenMP library that the caller's other work uses.
typedef void (*Team)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

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

// What blocks are given in one step: new rows, where their keys and values go, and what is attended to.
struct Step {
    const float* x;
    float* y;
    int64_t rows;
    const int64_t *slot, *place;  // of each row's key and value
    const float* turns;           // for each row sines, then cosines, of half a head each; or null
    Slots self, cross;            // without q, k, v and y
};

// What a block is given of whole sequences.
struct Whole {
    const float* x;
    float* y;
    float* room;            // of numbers: see regard_room
    int64_t rows, laid;     // of x and y, and of the sequences that self-attention sees
    const int64_t* places;  // of each of these its row of x, each of which has one, or −1 for zeros; null: they are the same
    const float* turns;     // for each of these sines, then cosines, of half a head each; or null
    float *k, *v;           // where the keys and values are kept; null: nowhere
    const int64_t *slot, *place;  // of each row's key and value
    int64_t k_slot, v_slot;       // numbers from slot to slot
    Sequences sequences;          // without q, k, v and y and how these lie
};

// Where one block's keys and values lie.
struct Stores {
    float *k, *v;
    const float *cross_k, *cross_v;  // null where there is no cross-attention
};

// A recurrence in one or both directions, without gaps: tokens time by time, at each time the longest sequences first.
struct Recurrence {
    int64_t cell, directions, sequences, hidden, times;  // cell: 0 Elman, 1 GRU, 2 LSTM
    const int64_t* sizes;           // how many sequences have a token at each time; none has fewer than the next
    const float* x;                 // (directions, tokens, gates): what inputs give to them
    const float *weights, *bias;    // (directions, gates, hidden), (directions, gates): from states to gates
    const float *start_h, *start_c; // (directions, sequences, hidden); c of LSTMs alone, as below
    float *h, *c;                   // (directions, tokens, hidden)
    float *last_h, *last_c;         // (directions, sequences, hidden)
    float* kept;                    // (directions, tokens, of GRU 4, of LSTM 5 · hidden), for gradients; or null
};

// The gradient of h, and where those of what inputs and states gave to the gates go; both are one but for a GRU. start_h and
// start_c hold the gradients of the last states, and then those of the first.
struct RecurrenceGradients {
    const float* h;
    float *x, *gates;
    float *start_h, *start_c;
};

// Each may throw std::bad_alloc, in whatever thread memory ran out.
namespace regard {
void pack(const Matrix* m, const float* weights, int64_t output_step, int64_t input_step, int threads, Team team);
int64_t bytes_of_panel(int64_t kind, int64_t inputs);
void linear(const Matrix* m, const float* x, int64_t rows, int64_t stride, float* y, int threads, Team team);
bool multiplies();  // whether the processor multiplies matrices; else multiply does nothing
void multiply(const Product* product, int threads, Team team);
void slots(const Slots* slots, int threads);
void sequences(const Sequences* sequences, int threads, Team team);
void weights(const Sequences* sequence, float* weights, int64_t columns, int threads, Team team);
void sequences_back(const Sequences* sequences, const Gradients* gradients, int threads, Team team);
void recurrence(const Recurrence* r, int threads, Team team);
void recurrence_back(const Recurrence* r, const RecurrenceGradients* gradients, int threads, Team team);
void blocks(const Block* const* blocks, const Stores* stores, int64_t count, const Step* step, int threads);
int64_t room(const Block* block, const Whole* whole);
void read(const Block* block, const Whole* whole, int threads, Team team);
void log_norms(const float* x, int64_t rows, int64_t count, int64_t stride, double* y, int threads);
void best(const float* x, int64_t rows, int64_t count, int64_t stride, int64_t most, float* values, int64_t* places,
          int threads);
void compare(float* x, int64_t rows, int64_t count, int64_t stride, const int64_t* labels, double smoothing, int64_t differentiates,
             double* losses, int threads, Team team);
}  // namespace regard
