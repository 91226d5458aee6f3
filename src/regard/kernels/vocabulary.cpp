// What is done with a vocabulary's scores: their normalizers, the best of them, and how far they are from the right tokens.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "calls.h"
#include "threads.h"
#include "vectors.h"

namespace {

constexpr int64_t NUMBERS = 1 << 14;  // that are not worth a second thread
constexpr int64_t FEW = 8;            // vectors of exponentials that are summed in float32

// The greatest number of a part of a row, and Σ exp(number − the greatest).
struct LogNorm {
    float most;
    double sum;
};

// The exponentials are kept, if there is a place for them; it may be where the numbers are.
LogNorm norm_of(const float* x, int64_t count, float* kept = nullptr) {
    int64_t whole = count / WIDTH * WIDTH;
    Floats mosts = all(-std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < whole; i += WIDTH) {
        Floats one = *(const Floats*)(x + i);
        mosts = mosts > one ? mosts : one;  // not a number counts here, or in the sum
    }
    float most = -std::numeric_limits<float>::infinity();
    for (int j = 0; j < WIDTH; ++j) most = std::max(most, mosts[j]);
    for (int64_t i = whole; i < count; ++i) most = std::max(most, x[i]);
    const float shift = std::isinf(most) && most < 0 ? 0 : most;  // all are impossible, or not numbers
    // Few are summed as they are, which costs no more than the rounding of their exponentials; these sums in float64.
    Doubles sums = {};
    for (int64_t i = 0; i < whole;) {
        Floats some = {};
        for (int64_t end = std::min(i + FEW * WIDTH, whole); i < end; i += WIDTH) {
            const Floats one = exp_of(*(const Floats*)(x + i) - shift);
            if (kept) *(Floats*)(kept + i) = one;
            some += one;
        }
        sums += __builtin_convertvector(some, Doubles);
    }
    double total = 0;
    for (int j = 0; j < WIDTH; ++j) total += sums[j];
    Floats rest = all(-std::numeric_limits<float>::infinity());
    for (int64_t i = whole; i < count; ++i) rest[i - whole] = x[i] - shift;
    rest = exp_of(rest);
    for (int j = 0; j < WIDTH; ++j) total += rest[j];
    if (kept) write(rest, count - whole, kept + whole);
    return {most, total};
}

inline bool is_before(float a, float b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

// Nearly all numbers are below the last one that is held: many are compared with it at once.
void best_of(const float* x, int64_t count, int64_t most, float* values, int64_t* places) {
    int64_t held = 0;
    auto offer = [&](int64_t i) {
        if (held == most && !is_before(x[i], values[most - 1])) return;
        int64_t at = held < most ? held++ : most - 1;
        for (; at && is_before(x[i], values[at - 1]); --at) values[at] = values[at - 1], places[at] = places[at - 1];
        values[at] = x[i], places[at] = i;
    };
    constexpr int64_t STEP = 4 * WIDTH;
    int64_t i = 0;
    for (; i < count && held < most; ++i) offer(i);
    for (; i + STEP <= count; i += STEP) {
        const Floats last = all(values[most - 1]);
        Ints above = {};
        for (int64_t j = 0; j < STEP; j += WIDTH) above |= ~(*(const Floats*)(x + i + j) <= last);
        if (any(above))
            for (int64_t j = 0; j < STEP; ++j) offer(i + j);
    }
    for (; i < count; ++i) offer(i);
}

// Σ x, a few vectors of them in float32, these sums in float64.
double total_of(const float* x, int64_t count) {
    Doubles sums = {};
    for (int64_t i = 0; i < count;) {
        Floats some = {};
        for (int64_t end = std::min(i + FEW * WIDTH, count); i < end; i += WIDTH) some += read(x + i, count - i);
        sums += __builtin_convertvector(some, Doubles);
    }
    double total = 0;
    for (int j = 0; j < WIDTH; ++j) total += sums[j];
    return total;
}

// −log p(label), behind it in `losses`, and before it (1 − smoothing) times that less smoothing times the mean of all log p. The
// gradient of this one is p − (1 − smoothing) · onehot(label) − smoothing / count.
void compare_one(float* x, int64_t count, int64_t label, double smoothing, bool differentiates, double* losses) {
    const double right = x[label], mean = smoothing != 0 ? total_of(x, count) / count : 0;
    const LogNorm norm = norm_of(x, count, differentiates ? x : nullptr);
    const double log_norm = norm.most + std::log(norm.sum), loss = log_norm - right;
    losses[0] = (1 - smoothing) * loss + (smoothing != 0 ? smoothing * (log_norm - mean) : 0);
    losses[1] = loss;
    if (!differentiates) return;
    const Floats scale = all((float)(1 / norm.sum)), less = all((float)(smoothing / count));
    for (int64_t i = 0; i < count; i += WIDTH) write(read(x + i, count - i) * scale - less, count - i, x + i);
    x[label] -= (float)(1 - smoothing);
}

}  // namespace

namespace regard {

// log Σ exp of each row.
void log_norms(const float* x, int64_t rows, int64_t count, int64_t stride, double* y, int threads) {
    // Parts of a row whatever the threads, so that the sum is the same.
    const int64_t parts = std::max<int64_t>((count + NUMBERS - 1) / NUMBERS, 1);
    thread_local std::vector<LogNorm> room;
    room.resize(rows * parts);
    LogNorm* norms = room.data();
    threads = (int)std::max<int64_t>(std::min<int64_t>({threads, rows * parts, 1 + rows * count / NUMBERS}), 1);
    Threads::run(threads, [&](int number) {
        for (int64_t at = share(rows * parts, number, threads); at < share(rows * parts, number + 1, threads); ++at) {
            int64_t row = at / parts, begin = share(count, at % parts, parts), end = share(count, at % parts + 1, parts);
            norms[at] = norm_of(x + row * stride + begin, end - begin);
        }
    });
    for (int64_t row = 0; row < rows; ++row, norms += parts) {
        float most = norms[0].most;
        for (int64_t part = 1; part < parts; ++part) most = std::max(most, norms[part].most);
        if (std::isinf(most) && most < 0) most = 0;
        double total = 0;
        for (int64_t part = 0; part < parts; ++part) total += norms[part].sum * std::exp((double)norms[part].most - most);
        y[row] = most + std::log(total);
    }
}

// The best so many of each row, best first, of equal ones the first first; what is not a number is better than all others.
void best(const float* x, int64_t rows, int64_t count, int64_t stride, int64_t most, float* values, int64_t* places,
                 int threads) {
    threads = (int)std::max<int64_t>(std::min<int64_t>({threads, rows, 1 + rows * count / NUMBERS}), 1);
    Threads::run(threads, [&](int number) {
        for (int64_t row = share(rows, number, threads); row < share(rows, number + 1, threads); ++row)
            best_of(x + row * stride, count, most, values + row * most, places + row * most);
    });
}

// Of each row, whose right token is its label: the smoothed loss and the plain one; and the gradient, if it is asked for, in
// the scores' place.
void compare(float* x, int64_t rows, int64_t count, int64_t stride, const int64_t* labels, double smoothing,
             int64_t differentiates, double* losses, int threads, Team team) {
    threads = (int)std::max<int64_t>(std::min<int64_t>({threads, rows, 1 + rows * count / NUMBERS}), 1);
    take_all(rows, threads, team, [&](int64_t row) {
        compare_one(x + row * stride, count, labels[row], smoothing, differentiates, losses + 2 * row);
    });
}

}  // namespace regard
