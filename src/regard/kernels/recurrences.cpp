// Recurrences over sequences of any lengths, and their gradients. Sequences do not see each other: a thread takes some of
// them through all times, and nobody waits in between.
//
// Tokens stand time by time, at each time those of the longest sequences first. What inputs give to the gates is known; a
// step multiplies the states before with the recurrent weights, and applies the cell to both.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "calls.h"
#include "threads.h"
#include "vectors.h"

namespace {

enum Cell : int64_t { ELMAN = 0, GRU = 1, LSTM = 2 };

constexpr int64_t MOST_TOGETHER = 48;  // sequences whose products are one: weights are read once for all of them
constexpr int64_t LEAST_TOGETHER = 6;  // as many rows as a tile of products has
constexpr int64_t SMALL = 1 << 18;     // multiplications that are not worth a second thread

int64_t gates_of(int64_t cell) { return cell == GRU ? 3 : cell == LSTM ? 4 : 1; }

int64_t kept_of(int64_t cell) { return cell == GRU ? 4 : cell == LSTM ? 5 : 0; }

// The weights of each direction as products want them: of states, or, turned round, of the gates' gradients.
std::vector<Matrix> packed(const Recurrence& r, bool is_turned, Room& room, int threads, Team team) {
    const int64_t gates = gates_of(r.cell) * r.hidden;
    const int64_t outputs = is_turned ? r.hidden : gates, inputs = is_turned ? gates : r.hidden;
    const int64_t numbers = (outputs + 15) / 16 * 16 * inputs;
    float* aligned = (float*)(((uintptr_t)room.of(numbers * r.directions + 16) + 63) / 64 * 64);
    std::vector<Matrix> matrices(r.directions);
    for (int64_t d = 0; d < r.directions; ++d) {
        Matrix& m = matrices[d];
        m = {};
        m.outputs = outputs, m.inputs = inputs, m.weights = aligned + d * numbers;
        m.bias = is_turned ? nullptr : r.bias + d * gates;
        regard::pack(&m, r.weights + d * gates * r.hidden, is_turned ? 1 : r.hidden, is_turned ? r.hidden : 1, threads, team);
    }
    return matrices;
}

// Have threads take some sequences of a direction until all are taken: part(direction, first sequence, behind the last).
template <typename Part>
void share_sequences(const Recurrence& r, int threads, Team team, const Part& part) {
    int64_t tokens = 0;
    for (int64_t t = 0; t < r.times; ++t) tokens += r.sizes[t];
    if (r.directions * tokens * gates_of(r.cell) * r.hidden * r.hidden < SMALL) threads = 1;
    // However they are cut, a row's sums are the same.
    const int64_t each = r.directions * r.sequences / threads, tiles = (each + LEAST_TOGETHER - 1) / LEAST_TOGETHER;
    const int64_t together = std::min(std::max<int64_t>(tiles, 1) * LEAST_TOGETHER, MOST_TOGETHER);
    const int64_t blocks = (r.sequences + together - 1) / together;
    take_all(r.directions * blocks, threads, team, [&](int64_t piece) {
        const int64_t d = piece / blocks, block = piece % blocks;
        part(d, share(r.sequences, block, blocks), share(r.sequences, block + 1, blocks));
    });
}

// One token's step, its parts a state's width apart: from what input and state give to the gates to the new state.
template <int64_t CELL>
void step(int64_t size, const float* x, const float* gates, const float* h_before, const float* c_before, float* kept,
          float* h, float* c) {
    for (int64_t j = 0; j < size; j += WIDTH) {
        const int64_t count = size - j;
        auto in = [&](int64_t gate) { return read(x + gate * size + j, count) + read(gates + gate * size + j, count); };
        auto keep = [&](int64_t place, Floats value) { write(value, count, kept + place * size + j); };
        if constexpr (CELL == ELMAN) {
            write(tanh_of(in(0)), count, h + j);
        } else if constexpr (CELL == GRU) {
            Floats reset = sigmoid_of(in(0)), update = sigmoid_of(in(1)), state = read(gates + 2 * size + j, count);
            Floats fresh = tanh_of(read(x + 2 * size + j, count) + reset * state);
            write(fresh + update * (read(h_before + j, count) - fresh), count, h + j);
            keep(0, reset), keep(1, update), keep(2, fresh), keep(3, state);
        } else {
            Floats input = sigmoid_of(in(0)), forget = sigmoid_of(in(1)), fresh = tanh_of(in(2)), output = sigmoid_of(in(3));
            Floats cell = forget * read(c_before + j, count) + input * fresh, squashed = tanh_of(cell);
            write(cell, count, c + j), write(output * squashed, count, h + j);
            keep(0, input), keep(1, forget), keep(2, fresh), keep(3, output), keep(4, squashed);
        }
    }
}

// And back: d_h and d_c, of the new state, become those of the state before, but for what reaches it through its gates.
template <int64_t CELL>
void step_back(int64_t size, const float* h, const float* h_before, const float* c_before, const float* kept, float* d_h,
               float* d_c, float* d_x, float* d_gates) {
    for (int64_t j = 0; j < size; j += WIDTH) {
        const int64_t count = size - j;
        auto of = [&](int64_t place) { return read(kept + place * size + j, count); };
        auto give = [&](int64_t gate, Floats value) { write(value, count, d_x + gate * size + j); };
        const Floats d = read(d_h + j, count);
        if constexpr (CELL == ELMAN) {
            Floats state = read(h + j, count);
            give(0, d * (1.0f - state * state));
            write(Floats{}, count, d_h + j);
        } else if constexpr (CELL == GRU) {
            Floats reset = of(0), update = of(1), fresh = of(2), through = d * update;
            Floats d_fresh = (d - through) * (1.0f - fresh * fresh), d_reset = d_fresh * of(3) * reset * (1.0f - reset);
            Floats d_update = (read(h_before + j, count) - fresh) * d * update * (1.0f - update);
            give(0, d_reset), give(1, d_update), give(2, d_fresh);
            write(d_reset, count, d_gates + j), write(d_update, count, d_gates + size + j);
            write(d_fresh * reset, count, d_gates + 2 * size + j);
            write(through, count, d_h + j);
        } else {
            Floats input = of(0), forget = of(1), fresh = of(2), output = of(3), squashed = of(4);
            Floats d_cell = d * output * (1.0f - squashed * squashed) + read(d_c + j, count);
            give(0, d_cell * fresh * input * (1.0f - input));
            give(1, d_cell * read(c_before + j, count) * forget * (1.0f - forget));
            give(2, d_cell * input * (1.0f - fresh * fresh));
            give(3, d * squashed * output * (1.0f - output));
            write(Floats{}, count, d_h + j), write(d_cell * forget, count, d_c + j);
        }
    }
}

template <int64_t CELL>
struct Run {
    const Recurrence& r;
    const std::vector<Matrix>& matrices;
    const int64_t size = r.hidden, gates = gates_of(CELL) * r.hidden, kept = kept_of(CELL) * r.hidden;
    std::vector<int64_t> starts;  // of each time's tokens; behind the last, how many tokens there are

    Run(const Recurrence& r, const std::vector<Matrix>& matrices) : r(r), matrices(matrices), starts(r.times + 1, 0) {
        for (int64_t t = 0; t < r.times; ++t) starts[t + 1] = starts[t] + r.sizes[t];
    }

    int64_t token(int64_t d, int64_t t, int64_t sequence) const { return d * starts[r.times] + starts[t] + sequence; }

    // The states before a time, one after the other.
    const float* before(const float* start, const float* states, int64_t d, int64_t t, int64_t sequence) const {
        return t ? states + token(d, t - 1, sequence) * size : start + (d * r.sequences + sequence) * size;
    }

    void forward(int64_t d, int64_t from, int64_t behind) const {
        thread_local Room products, unkept;
        float *given = products.of((behind - from) * gates), *scratch = r.kept ? nullptr : unkept.of(kept);
        for (int64_t t = 0; t < r.times; ++t) {
            const int64_t end = std::min(behind, r.sizes[t]), next = t + 1 < r.times ? r.sizes[t + 1] : 0;
            if (end <= from) return;
            const float* h = before(r.start_h, r.h, d, t, from);
            regard::linear(&matrices[d], h, end - from, size, given, 1, nullptr);
            for (int64_t i = from; i < end; ++i) {
                const int64_t at = token(d, t, i), last = (d * r.sequences + i) * size;
                const float* c = CELL == LSTM ? before(r.start_c, r.c, d, t, i) : nullptr;
                float *to_h = r.h + at * size, *to_c = CELL == LSTM ? r.c + at * size : nullptr;
                step<CELL>(size, r.x + at * gates, given + (i - from) * gates, h + (i - from) * size, c,
                           r.kept ? r.kept + at * kept : scratch, to_h, to_c);
                if (i < next) continue;
                std::memcpy(r.last_h + last, to_h, sizeof(float) * size);
                if (CELL == LSTM) std::memcpy(r.last_c + last, to_c, sizeof(float) * size);
            }
        }
    }

    // Gradients of the last states are where those of the first ones go, and are taken back time by time.
    void backward(const RecurrenceGradients& g, int64_t d, int64_t from, int64_t behind) const {
        thread_local Room products;
        float* through = products.of((behind - from) * size);
        for (int64_t t = r.times - 1; t >= 0; --t) {
            const int64_t end = std::min(behind, r.sizes[t]), first = token(d, t, from);
            if (end <= from) continue;
            float* d_h = g.start_h + (d * r.sequences + from) * size;
            const float* h = before(r.start_h, r.h, d, t, from);
            for (int64_t i = 0; i < end - from; ++i) {
                const int64_t at = first + i;
                const float* c = CELL == LSTM ? before(r.start_c, r.c, d, t, from + i) : nullptr;
                float* d_c = CELL == LSTM ? g.start_c + (d * r.sequences + from + i) * size : nullptr;
                for (int64_t j = 0; j < size; ++j) d_h[i * size + j] += g.h[at * size + j];
                step_back<CELL>(size, r.h + at * size, h + i * size, c, r.kept + at * kept, d_h + i * size, d_c,
                                g.x + at * gates, g.gates + at * gates);
            }
            regard::linear(&matrices[d], g.gates + first * gates, end - from, gates, through, 1, nullptr);
            for (int64_t i = 0; i < (end - from) * size; ++i) d_h[i] += through[i];
        }
    }
};

template <int64_t CELL>
void forward(const Recurrence& r, int threads, Team team) {
    thread_local Room room;
    const std::vector<Matrix> matrices = packed(r, false, room, threads, team);
    const Run<CELL> run(r, matrices);
    share_sequences(r, threads, team, [&](int64_t d, int64_t from, int64_t behind) { run.forward(d, from, behind); });
}

template <int64_t CELL>
void backward(const Recurrence& r, const RecurrenceGradients& g, int threads, Team team) {
    thread_local Room room;
    const std::vector<Matrix> matrices = packed(r, true, room, threads, team);
    const Run<CELL> run(r, matrices);
    share_sequences(r, threads, team, [&](int64_t d, int64_t from, int64_t behind) { run.backward(g, d, from, behind); });
}

}  // namespace

namespace regard {

// Run all directions over all times.
void recurrence(const Recurrence* r, int threads, Team team) {
    switch (r->cell) {
        case ELMAN: return forward<ELMAN>(*r, threads, team);
        case GRU: return forward<GRU>(*r, threads, team);
        default: return forward<LSTM>(*r, threads, team);
    }
}

// Gradients of what inputs and states gave to the gates, and of the first states.
void recurrence_back(const Recurrence* r, const RecurrenceGradients* gradients, int threads, Team team) {
    switch (r->cell) {
        case ELMAN: return backward<ELMAN>(*r, *gradients, threads, team);
        case GRU: return backward<GRU>(*r, *gradients, threads, team);
        default: return backward<LSTM>(*r, *gradients, threads, team);
    }
}

}  // namespace regard
