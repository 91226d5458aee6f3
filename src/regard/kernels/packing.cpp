// Weights laid out for products; products.h says how.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "products.h"

namespace {

// Lay one panel out: the outputs of its columns, some inputs at a time, so that both sides are read and written in order.
void pack_panel(const Matrix& m, const float* weights, int64_t output_step, int64_t input_step, int64_t panel) {
    constexpr int64_t SOME = 64;
    float some[SOME][PANEL] = {}, inverse[PANEL] = {};
    int64_t columns = std::min<int64_t>(PANEL, m.outputs - panel * PANEL);
    char* to = (char*)m.weights + panel * panel_bytes(m);
    const int64_t filled = m.inputs / together(m.kind) * together(m.kind) * PANEL * weight_bytes(m.kind);
    std::memset(to + filled, 0, panel_bytes(m) - filled);
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
            const int64_t group = together(m.kind), at = (from + k) / group * group * PANEL + (from + k) % group;
            for (int j = 0; j < PANEL; ++j) {
                if (m.kind == FP32) {
                    ((float*)to)[at + j * group] = some[k][j];
                } else if (m.kind == BF16) {
                    ((uint16_t*)to)[at + j * group] = rounded(some[k][j]);
                } else {
                    float steps = std::nearbyintf(some[k][j] * inverse[j]);
                    ((int8_t*)to)[at + j * group] = std::isfinite(steps) ? (int8_t)steps : 0;
                }
            }
        }
    }
}

}  // namespace

namespace regard {

// Lay weights out as m says, into m's own, and find the scales of int8; outputs and inputs lie some numbers apart.
void pack(const Matrix* m, const float* weights, int64_t output_step, int64_t input_step, int threads, Team team) {
    take_all(panels_of(*m), threads, team,
             [&](int64_t panel) { pack_panel(*m, weights, output_step, input_step, panel); });
}

// Bytes of a panel of packed weights.
int64_t bytes_of_panel(int64_t kind, int64_t inputs) { return panel_bytes(Matrix{kind, PANEL, inputs}); }

}  // namespace regard
