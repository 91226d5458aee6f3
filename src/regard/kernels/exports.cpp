// What other languages call: a plain C interface. Nothing is thrown beyond it: a call returns 0, or 1 if memory ran out (there
// is nothing else that anything here throws for), when what it was to write is of no use.

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "calls.h"

namespace {

template <auto CALL, typename... Given>
int attempt(Given... given) noexcept {
    try {
        CALL(given...);
        return 0;
    } catch (...) {
        return 1;
    }
}

}  // namespace

extern "C" {

int regard_pack(const Matrix* m, const float* weights, int64_t output_step, int64_t input_step, int threads, Team team) {
    return attempt<regard::pack>(m, weights, output_step, input_step, threads, team);
}

int regard_linear(const Matrix* m, const float* x, int64_t rows, int64_t stride, float* y, int threads, Team team) {
    return attempt<regard::linear>(m, x, rows, stride, y, threads, team);
}

int regard_multiply(const Product* product, int threads, Team team) {
    return attempt<regard::multiply>(product, threads, team);
}

int64_t regard_multiplies() { return regard::multiplies(); }

int regard_slots(const Slots* slots, int threads) { return attempt<regard::slots>(slots, threads); }

int regard_sequences(const Sequences* sequences, int threads, Team team) {
    return attempt<regard::sequences>(sequences, threads, team);
}

int regard_sequences_back(const Sequences* sequences, const Gradients* gradients, int threads, Team team) {
    return attempt<regard::sequences_back>(sequences, gradients, threads, team);
}

int regard_weights(const Sequences* sequence, float* weights, int64_t columns, int threads, Team team) {
    return attempt<regard::weights>(sequence, weights, columns, threads, team);
}

int regard_recurrence(const Recurrence* r, int threads, Team team) {
    return attempt<regard::recurrence>(r, threads, team);
}

int regard_recurrence_back(const Recurrence* r, const RecurrenceGradients* gradients, int threads, Team team) {
    return attempt<regard::recurrence_back>(r, gradients, threads, team);
}

int regard_blocks(const Block* const* blocks, const Stores* stores, int64_t count, const Step* step, int threads) {
    return attempt<regard::blocks>(blocks, stores, count, step, threads);
}

int64_t regard_room(const Block* block, const Whole* whole) { return regard::room(block, whole); }

int regard_read(const Block* block, const Whole* whole, int threads, Team team) {
    return attempt<regard::read>(block, whole, threads, team);
}

int regard_log_norms(const float* x, int64_t rows, int64_t count, int64_t stride, double* y, int threads) {
    return attempt<regard::log_norms>(x, rows, count, stride, y, threads);
}

int regard_best(const float* x, int64_t rows, int64_t count, int64_t stride, int64_t most, float* values, int64_t* places,
                int threads) {
    return attempt<regard::best>(x, rows, count, stride, most, values, places, threads);
}

int regard_compare(float* x, int64_t rows, int64_t count, int64_t stride, const int64_t* labels, double smoothing,
                   int64_t differentiates, double* losses, int threads, Team team) {
    return attempt<regard::compare>(x, rows, count, stride, labels, smoothing, differentiates, losses, threads, team);
}

int64_t regard_bytes_of_panel(int64_t kind, int64_t inputs) { return regard::bytes_of_panel(kind, inputs); }

// Ask for huge pages, where the system has them: it is advice.
void regard_huge(void* at, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    madvise(at, (size_t)bytes, MADV_HUGEPAGE);
#else
    (void)at, (void)bytes;
#endif
}

}  // extern "C"
