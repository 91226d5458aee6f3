// Vectors of the processor's width, and what is computed with them.

#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX2__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef double Doubles __attribute__((vector_size(8 * WIDTH), aligned(8), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

namespace {

constexpr int64_t LINE = 64;  // bytes that memory gives at once

// Memory that grows, and begins with a line: what is used is written before.
struct Room {
    std::vector<float> numbers;
    float* of(int64_t count) {
        constexpr int64_t SPARE = LINE / sizeof(float) - 1;
        if ((int64_t)numbers.size() < count + SPARE) numbers.resize(count + SPARE);
        return (float*)(((uintptr_t)numbers.data() + LINE - 1) / LINE * LINE);
    }
    char* bytes(int64_t count) { return (char*)of((count + (int64_t)sizeof(float) - 1) / (int64_t)sizeof(float)); }
};

inline Floats all(float x) {
    Floats y = {};
    return y + x;
}

// Have a number stay in a register: the compiler might rather load it again wherever it is used.
inline void hold(Floats& x) {
#if defined(__x86_64__)
    __asm__("" : "+x"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#else
    (void)x;
#endif
}

// So many numbers, a vector at most, filled up with zeros.
inline Floats read(const float* x, int64_t count) {
    if (count >= WIDTH) return *(const Floats*)x;
    Floats y = {};
    if (count > 0) std::memcpy(&y, x, sizeof(float) * count);
    return y;
}

inline void write(Floats x, int64_t count, float* y) {
    if (count >= WIDTH)
        *(Floats*)y = x;
    else if (count > 0)
        std::memcpy(y, &x, sizeof(float) * count);
}

inline float sum(Floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#elif defined(__AVX2__)
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
    return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

// The sums of eight vectors.
inline void sums_of(const Floats (&x)[8], float* y) {
#if defined(__AVX2__)
    __m256 a[8];
    for (int i = 0; i < 8; ++i) {
#if defined(__AVX512F__)
        a[i] = _mm256_add_ps(_mm512_castps512_ps256((__m512)x[i]), (__m256)_mm512_extractf64x4_pd((__m512d)x[i], 1));
#else
        a[i] = (__m256)x[i];
#endif
    }
    for (int count = 4; count > 1; count /= 2)  // neighbours, within each half of a vector
        for (int i = 0; i < count; ++i) a[i] = _mm256_hadd_ps(a[2 * i], a[2 * i + 1]);
    _mm256_storeu_ps(y, _mm256_add_ps(_mm256_permute2f128_ps(a[0], a[1], 0x20), _mm256_permute2f128_ps(a[0], a[1], 0x31)));
#else
    for (int i = 0; i < 8; ++i) y[i] = sum(x[i]);
#endif
}

// Whether any of some comparisons holds.
inline bool any(Ints x) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)x, (__m256i)x);
#else
    return x[0] | x[1] | x[2] | x[3];
#endif
}

#if defined(__AVX2__)
// The eight columns of eight rows of numbers, moved and not computed with; where there are fewer rows, the last counts
// several times.
inline void turned(const float* x, int64_t stride, int64_t rows, __m256 (&columns)[8]) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(x + (i < rows ? i : rows - 1) * stride);
    for (int i = 0; i < 8; i += 2) b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + 2 + j], 0x44);
            a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + 2 + j], 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        columns[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
        columns[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
    }
}
#endif

// exp(x) for x ≤ 88, to two units of the last place: 2^n · e^r with n whole and |r| ≤ ln 2 / 2, e^r by its Taylor
// polynomial of degree 7 (the rest is below r^8 / 8! < 6e-9). Below the least normal number it is 0; NaN stays NaN.
inline Floats exp_of(Floats x) {
    constexpr float LEAST = -87.33654f, SHIFT = 12582912.0f;  // 1.5 · 2^23: added to x, it rounds to whole numbers
    const Floats least = all(LEAST), shift = all(SHIFT);
    Floats inside = x < least ? least : x;
    Floats shifted = inside * 1.44269504f + shift;
    Floats n = shifted - shift;
    Floats r = inside - n * 0.693145752f;  // ln 2 in two parts, the first with few bits: n times it is exact
    r = r - n * 1.42860677e-6f;
    Floats y = all(1.98412698e-4f);
    y = y * r + 1.38888889e-3f;
    y = y * r + 8.33333333e-3f;
    y = y * r + 4.16666667e-2f;
    y = y * r + 1.66666667e-1f;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    Ints power = ((Ints)shifted - (Ints)shift + 127) << 23;
    y = y * (Floats)power;
    return x < least ? Floats{} : y;
}

// tanh(x), to some units of 1e-7: 1 − 2 / (e^2x + 1), which is 1 in float32 from 10 on. NaN stays NaN.
inline Floats tanh_of(Floats x) {
    const Floats most = all(10.0f), least = all(-10.0f);
    x = x > most ? most : x;
    x = x < least ? least : x;
    return 1.0f - 2.0f / (exp_of(2.0f * x) + 1.0f);
}

// 1 / (1 + e^−x), to a few units of the last place. NaN stays NaN.
inline Floats sigmoid_of(Floats x) {
    const Floats most = all(88.0f);
    x = -x;
    return 1.0f / (1.0f + exp_of(x > most ? most : x));
}

// The chance that a number of the standard normal distribution is above z ≥ 0: e^(−z²/2) · t · q(t) with t = 1 / (1 + 0.23 z),
// the form of Abramowitz & Stegun 1964, 7.1.26. Up to rounding it is right to 2e-7 of itself: q is a minimax fit as far as
// e^(−z²/2) is not 0. NaN stays NaN.
inline Floats above_of(Floats z) {
    Floats t = 1.0f / (1.0f + 0.23f * z);
    Floats y = all(-0.073434222f);
    y = y * t + 0.26689589f;
    y = y * t + -0.23143754f;
    y = y * t + 0.25012629f;
    y = y * t + 0.0012400077f;
    y = y * t + 0.10545347f;
    y = y * t + 0.089256797f;
    y = y * t + 0.091899381f;
    return y * t * exp_of(-0.5f * z * z);
}

}  // namespace
