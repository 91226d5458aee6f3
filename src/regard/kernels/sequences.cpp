// Attention within sequences of any lengths, and its gradients: many queries of many sequences, without padding.
//
// Of one sequence and one group of heads, queries are taken some at a time, so that their scores with all keys stay in
// the processor's caches. The backward pass computes these scores again; nothing as large as them is kept. Whatever is
// multiplied from the right is laid out in panels first, two vectors wide; or, where products may be narrow and the processor
// multiplies matrices, rounded in such matrices.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "matrices.h"

namespace {

constexpr int64_t SMALL = 1 << 15;  // multiplications that are not worth a second thread
constexpr int64_t BREADTH = 2 * WIDTH;   // of a panel
constexpr int64_t ROWS = 6;               // of a tile: with two vectors each they fill the registers
constexpr int64_t SCORES = 1 << 14;       // that are held at once, 64 kB, or those of as many queries as a tile has rows
constexpr int64_t MOST = 8 * ROWS;        // queries that are taken at once
constexpr int64_t KEYS = 256;             // whose gradients are computed at once
constexpr int64_t APART = 512;            // queries that are worth a piece of their own
constexpr int64_t KEPT = 1 << 20;         // numbers of a sequence's keys for which a thread keeps its room
constexpr float NEVER = -std::numeric_limits<float>::infinity();

inline int64_t whole(int64_t count) { return (count + WIDTH - 1) / WIDTH * WIDTH; }

// How many queries are taken at once, where all their scores with so many keys are held.
inline int64_t height_for(int64_t keys) {
    return std::min(std::max(SCORES / std::max(whole(keys), BREADTH) / ROWS * ROWS, ROWS), MOST);
}

// Where A's numbers are: from row to row of the result, and along the sum.
struct Left {
    const float* at;
    int64_t row, step;
};

// C = A B, or C += A B, for R rows and V vectors; B is a panel.
template <int R, int V>
inline void tile(Left a, const float* b, int64_t count, float* c, int64_t stride, bool adds) {
    Floats sums[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[r][v] = adds ? *(const Floats*)(c + r * stride + v * WIDTH) : Floats{};
    for (int64_t i = 0; i < count; ++i, b += V * WIDTH, a.at += a.step) {
        Floats one[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) one[v] = *(const Floats*)(b + v * WIDTH);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) sums[r][v] += a.at[r * a.row] * one[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) *(Floats*)(c + r * stride + v * WIDTH) = sums[r][v];
}

template <int V>
void strip(Left a, int64_t rows, const float* b, int64_t count, float* c, int64_t stride, bool adds) {
    int64_t tiles = (rows + ROWS - 1) / ROWS;  // of like heights: 8 rows are 4 and 4
    for (int64_t t = 0; t < tiles; ++t) {
        int64_t from = rows * t / tiles, height = rows * (t + 1) / tiles - from;
        Left mine{a.at + from * a.row, a.row, a.step};
        float* to = c + from * stride;
        switch (height) {
            case 1: tile<1, V>(mine, b, count, to, stride, adds); break;
            case 2: tile<2, V>(mine, b, count, to, stride, adds); break;
            case 3: tile<3, V>(mine, b, count, to, stride, adds); break;
            case 4: tile<4, V>(mine, b, count, to, stride, adds); break;
            case 5: tile<5, V>(mine, b, count, to, stride, adds); break;
            default: tile<6, V>(mine, b, count, to, stride, adds);
        }
    }
}

// C = A B, or C += A B: `count` products a number. B's panels have `depth` rows, of which `first` … first + count count.
void multiply(Left a, int64_t rows, const float* b, int64_t depth, int64_t first, int64_t count, int64_t columns,
              float* c, int64_t stride, bool adds) {
    for (int64_t j = 0; j < columns; j += BREADTH) {
        int64_t width = std::min(BREADTH, whole(columns - j));
        const float* panel = b + j * depth + first * width;
        if (width == BREADTH)
            strip<2>(a, rows, panel, count, c + j, stride, adds);
        else
            strip<1>(a, rows, panel, count, c + j, stride, adds);
    }
}

// to = factor · from.
inline void scaled(const float* from, int64_t count, float factor, float* to) {
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) *(Floats*)(to + i) = factor * *(const Floats*)(from + i);
    for (; i < count; ++i) to[i] = factor * from[i];
}

inline float dot(const float* a, const float* b, int64_t count) {
    int64_t i = 0;
    Floats sums = {};
    for (; i + WIDTH <= count; i += WIDTH) sums += *(const Floats*)(a + i) * *(const Floats*)(b + i);
    float total = sum(sums);
    for (; i < count; ++i) total += a[i] * b[i];
    return total;
}

// Lay rows out in panels of their columns.
void lay(const float* x, int64_t rows, int64_t stride, int64_t columns, float factor, float* to) {
    for (int64_t j = 0; j < columns; j += BREADTH) {
        int64_t width = std::min(BREADTH, whole(columns - j)), real = std::min(width, columns - j);
        for (int64_t row = 0; row < rows; ++row, to += width) {
            const float* from = x + row * stride + j;
            scaled(from, real, factor, to);
            for (int64_t i = real; i < width; ++i) to[i] = 0;
        }
    }
}

#if defined(__AVX2__)
// Eight rows of eight numbers, turned, each times a factor.
inline void turn(const float* x, int64_t stride, float factor, float* to, int64_t step) {
    __m256 columns[8], factors = _mm256_set1_ps(factor);
    turned(x, stride, 8, columns);
    for (int i = 0; i < 8; ++i) _mm256_storeu_ps(to + i * step, _mm256_mul_ps(factors, columns[i]));
}
#endif

// Lay rows out so that each is a column of the panels.
void lay_turned(const float* x, int64_t rows, int64_t stride, int64_t columns, float factor, float* to) {
    for (int64_t j = 0; j < rows; j += BREADTH) {
        int64_t width = std::min(BREADTH, whole(rows - j)), real = std::min(width, rows - j);
        for (int64_t row = 0; row < real;) {
            const float* from = x + (j + row) * stride;
            int64_t i = 0;
#if defined(__AVX2__)
            if (row + 8 <= real) {
                for (; i + 8 <= columns; i += 8) turn(from + i, stride, factor, to + i * width + row, width);
                for (; i < columns; ++i)
                    for (int64_t r = 0; r < 8; ++r) to[i * width + row + r] = factor * from[r * stride + i];
                row += 8;
                continue;
            }
#endif
            for (; i < columns; ++i) to[i * width + row] = factor * from[i];
            ++row;
        }
        if (real < width)
            for (int64_t i = 0; i < columns; ++i)
                for (int64_t row = real; row < width; ++row) to[i * width + row] = 0;
        to += width * columns;
    }
}

// One sequence and one group of heads.
struct Piece {
    const Sequences& s;
    int64_t sequence, group, queries, keys, q_start, k_start;

    Piece(const Sequences& given, int64_t number, int64_t which) : s(given), sequence(number), group(which) {
        queries = s.q_lengths[sequence], keys = s.k_lengths[sequence];
        q_start = s.q_starts[sequence], k_start = s.k_starts[sequence];
    }

    const float* q(int64_t query, int64_t head) const { return s.q + (q_start + query) * s.q_row + head * s.q_head; }
    const float* k() const { return s.k + k_start * s.k_row + group * s.k_head; }
    const float* v() const { return s.v + k_start * s.v_row + group * s.v_head; }
    const float* mask(int64_t query, int64_t head) const {
        if (!s.mask) return nullptr;
        return s.mask + (s.first_mask + sequence) % s.masks * s.mask_sequence + head * s.mask_head + query * s.mask_row;
    }
    int64_t at(int64_t query, int64_t head) const { return (q_start + query) * s.heads + head; }

    // The first key that a query sees, and the one behind the last.
    int64_t first(int64_t query) const {
        return s.back < 0 ? 0 : std::min(std::max<int64_t>(query + keys - queries - s.back, 0), keys);
    }
    int64_t last(int64_t query) const {
        return s.ahead < 0 ? keys : std::min(std::max<int64_t>(query + keys - queries + s.ahead + 1, 0), keys);
    }

    int64_t height() const { return height_for(keys); }
};

// j, j + 1, …
inline Ints count_from(int32_t j) {
    Ints numbers;
    for (int i = 0; i < WIDTH; ++i) numbers[i] = i;
    return numbers + j;
}

// What one query sees of some keys.
struct Sight {
    const float* mask;  // or null
    int64_t least, most, count;

    // A vector of scores, which begins at key j, without what is not seen.
    Floats operator()(int64_t j, Floats x) const {
        if (mask && j + WIDTH <= count) {
            Floats more = *(const Floats*)(mask + j);
            x = more == NEVER ? more : x + more;  // what is closed is closed to what is no number too
        } else if (mask)
            for (int64_t i = j; i < count; ++i) x[i - j] = mask[i] == NEVER ? NEVER : x[i - j] + mask[i];
        if (j >= least && j + WIDTH <= most) return x;
        Ints key = count_from((int32_t)j);
        return (key >= (int32_t)least) & (key < (int32_t)most) ? x : all(NEVER);
    }
};

// Which weights of one query and head are dropped: it follows from the seed, the query's row, the head and the key alone.
struct Drops {
    uint32_t dropped, first;
    float kept;  // factor of those that are not

    Drops(const Sequences& s, int64_t at) : dropped((uint32_t)s.dropped) {
        uint64_t x = (uint64_t)s.seed + (uint64_t)(at + 1) * 0x9e3779b97f4a7c15u;  // splitmix64 (Steele et al. 2014)
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        first = (uint32_t)((x ^ (x >> 31)) >> 32);
        kept = (float)(4294967296.0 / (4294967296.0 - (double)dropped));
    }

    // Factors of the weights of the keys j, j + 1, …: 0, or `kept`.
    Floats operator()(int64_t j) const {
        Words x = (Words)count_from((int32_t)j) * 0x9e3779b9u + first;
        x = (x ^ (x >> 16)) * 0x7feb352du;  // a mixer of 32 bits, of little bias (Wellons, hash-prospector)
        x = (x ^ (x >> 15)) * 0x846ca68bu;
        x = x ^ (x >> 16);
        return x < dropped ? Floats{} : all(kept);
    }
};

// Some queries of a head: the keys that they see, in whole panels, and their scores.
struct Some {
    int64_t head, from, rows, first, count, stride;

    Some(const Piece& piece, int64_t number, int64_t query, int64_t height) : head(number), from(query), rows(height) {
        // Both ends move ahead with the query.
        see(piece, piece.first(from) / BREADTH * BREADTH, piece.last(from + rows - 1));
    }

    void see(const Piece& piece, int64_t least, int64_t behind) {
        first = least, count = std::max<int64_t>(behind - first, 0);
        // What is computed of the last panel is all of it.
        stride = std::min((count + BREADTH - 1) / BREADTH * BREADTH, whole(piece.keys - first));
    }

    // Bring rows together: far apart they would take each other's place in the cache.
    void gather(const float* x, int64_t row, int64_t size, float* near) const {
        for (int64_t r = 0; r < rows; ++r) std::memcpy(near + r * size, x + r * row, sizeof(float) * size);
    }

    // Products of rows with the keys, or values, that are seen.
    void products(const float* near, int64_t size, const float* turned, float* to) const {
        multiply({near, size, 1}, rows, turned + first * size, size, 0, size, stride, to, stride, false);
    }

    Sight sight(const Piece& piece, int64_t r) const {
        const float* mask = piece.mask(from + r, head);
        return {mask ? mask + first : nullptr, piece.first(from + r) - first, piece.last(from + r) - first, count};
    }
};

// Additive scores of some queries with the keys that they see, both in whole vectors: vectorᵀ tanh(q + k).
void add(const Some& some, const float* q, const float* keys, const float* vector, int64_t width, float* scores) {
    for (int64_t r = 0; r < some.rows; ++r)
        for (int64_t j = 0; j < some.stride; ++j) {
            Floats sums = {};
            if (j < some.count)
                for (int64_t i = 0; i < width; i += WIDTH) {
                    Floats inner = *(const Floats*)(q + r * width + i) + *(const Floats*)(keys + j * width + i);
                    sums += *(const Floats*)(vector + i) * tanh_of(inner);
                }
            scores[r * some.stride + j] = sum(sums);
        }
}

// Their gradients, added to what is there: with h = tanh(q + k), those of q and k are dS · vector ∘ (1 − h²), that of the
// vector dS · h. The vector's are summed up query by query first: there are very many.
void add_back(const Some& some, const float* q, const float* keys, const float* vector, int64_t width,
              const float* grads, float* query_grads, float* key_grads, float* vector_grads) {
    float* part = vector_grads + width;
    for (int64_t r = 0; r < some.rows; ++r) {
        std::memset(part, 0, sizeof(float) * width);
        for (int64_t j = 0; j < some.count; ++j) {
            float grad = grads[r * some.stride + j];
            if (grad == 0) continue;  // not seen, as half of all keys under a causal mask
            for (int64_t i = 0; i < width; i += WIDTH) {
                Floats h = tanh_of(*(const Floats*)(q + r * width + i) + *(const Floats*)(keys + j * width + i));
                Floats inner = grad * *(const Floats*)(vector + i) * (1 - h * h);
                *(Floats*)(query_grads + r * width + i) += inner;
                *(Floats*)(key_grads + j * width + i) += inner;
                *(Floats*)(part + i) += grad * h;
            }
        }
        for (int64_t i = 0; i < width; ++i) vector_grads[i] += part[i];
    }
}

// Rows in whole vectors, filled up with zeros.
void widen(const float* x, int64_t rows, int64_t stride, int64_t columns, float* to) {
    int64_t width = whole(columns);
    for (int64_t row = 0; row < rows; ++row, to += width) {
        std::memcpy(to, x + row * stride, sizeof(float) * columns);
        std::memset(to + columns, 0, sizeof(float) * (width - columns));
    }
}

struct Rooms {
    Room turned, plain, scores, out, values, value_grads, key_grads, score_grads, near_q, near_y, q_panels, y_panels;
    Room vector, vector_grads;
};

// Lay the keys of a piece out as its scores need them.
const float* lay_keys(const Piece& p, Rooms& room) {
    const Sequences& s = p.s;
    float* keys = room.turned.of(whole(p.keys) * whole(s.key));
    if (s.vector)
        widen(p.k(), p.keys, s.k_row, s.key, keys);
    else
        lay_turned(p.k(), p.keys, s.k_row, s.key, s.scale, keys);
    return keys;
}

// Weights from the scores of some queries, before they are divided by their sums, times the factors of dropout; and one over
// these sums, 0 where no key is seen.
void normalize(const Piece& p, const Some& some, float* scores, float* inverses) {
    const Sequences& s = p.s;
    const int64_t end = some.stride;
    for (int64_t r = 0; r < some.rows; ++r) {
        float* row = scores + r * some.stride;
        const Sight sight = some.sight(p, r);
        Floats mosts = all(NEVER);
        for (int64_t j = 0; j < end; j += WIDTH) {
            Floats one = sight(j, *(Floats*)(row + j));
            *(Floats*)(row + j) = one;
            mosts = mosts > one ? mosts : one;
        }
        float most = NEVER;
        for (int i = 0; i < WIDTH; ++i) most = std::max(most, mosts[i]);
        if (most == NEVER) most = 0;
        Floats sums = {};
        for (int64_t j = 0; j < end; j += WIDTH) {
            Floats weight = exp_of(*(Floats*)(row + j) - most);
            *(Floats*)(row + j) = weight;
            sums += weight;
        }
        if (s.dropped) {
            const Drops drops(s, p.at(some.from + r, some.head));
            for (int64_t j = 0; j < end; j += WIDTH) *(Floats*)(row + j) *= drops(some.first + j);
        }
        float total = sum(sums);
        inverses[r] = total == 0 ? 0 : 1 / total;
        if (float* norms = s.norms) {
            norms += 2 * p.at(some.from + r, some.head);
            norms[0] = most, norms[1] = inverses[r];
        }
    }
}

// The same from queries and keys.
void weigh(const Piece& p, const Some& some, const float* keys, Rooms& room, float* scores, float* inverses) {
    const Sequences& s = p.s;
    const int64_t key = whole(s.key);
    float* near = room.near_q.of(p.height() * key);
    if (s.vector) {
        float* vector = room.vector.of(key);
        widen(s.vector + some.head * s.key, 1, s.key, s.key, vector);
        widen(p.q(some.from, some.head), some.rows, s.q_row, s.key, near);
        add(some, near, keys + some.first * key, vector, key, scores);
    } else {
        some.gather(p.q(some.from, some.head), s.q_row, s.key, near);
        some.products(near, s.key, keys, scores);
    }
    normalize(p, some, scores, inverses);
}

// A query's context from its sum over the values; zeros without a key, whatever the values are.
inline void divided(const float* sum, int64_t count, float inverse, float* y) {
    if (inverse == 0)
        std::memset(y, 0, sizeof(float) * count);
    else
        scaled(sum, count, inverse, y);
}

#if REGARD_AMX

inline int64_t squares_of(int64_t count, int64_t side) { return (count + side - 1) / side; }

// Whether all values of a piece are finite, as bfloat16 too.
bool are_finite(const Piece& p) {
    constexpr float LARGEST = 3.38e38f;  // that is no infinity in bfloat16
    for (int64_t row = 0; row < p.keys; ++row)
        for (int64_t i = 0; i < p.s.value; i += WIDTH) {
            const Floats x = read(p.v() + row * p.s.v_row + i, p.s.value - i);
            if (any(!((x <= LARGEST) & (x >= -LARGEST)))) return false;
        }
    return true;
}

// Contexts of the queries `from` … `behind` of a piece by matrices of bfloat16. Queries, times the scale, and weights stand
// sixteen a matrix, keys and values in panels of sixteen keys, or of sixteen numbers of all values.
void forward_narrow(const Piece& p, int64_t from, int64_t behind, Rooms& room) {
    constexpr int64_t INPUTS = 2 * SIDE, HIGH = 3 * SIDE;  // inputs of a matrix, and queries taken at once
    const Sequences& s = p.s;
    const int64_t heads = s.heads / s.groups, steps = squares_of(s.key, INPUTS), key_steps = squares_of(p.keys, INPUTS);
    const int64_t key_panels = squares_of(p.keys, SIDE), value_panels = squares_of(s.value, SIDE), width = value_panels * SIDE;
    char* keys = room.turned.bytes(key_panels * steps * SQUARE);
    char* values = room.values.bytes(value_panels * key_steps * SQUARE);
    for (int64_t j = 0; j < key_panels; ++j)
        for (int64_t i = 0; i < steps; ++i)
            square(p.k() + j * SIDE * s.k_row + i * INPUTS, s.k_row, 1, p.keys - j * SIDE, s.key - i * INPUTS, true,
                   keys + (j * steps + i) * SQUARE);
    for (int64_t j = 0; j < value_panels; ++j)
        for (int64_t i = 0; i < key_steps; ++i)
            square(p.v() + i * INPUTS * s.v_row + j * SIDE, 1, s.v_row, s.value - j * SIDE, p.keys - i * INPUTS, true,
                   values + (j * key_steps + i) * SQUARE);
    float *scores = room.scores.of(HIGH * whole(p.keys)), *out = room.out.of(SIDE * width);
    float* near = room.near_q.of(SIDE * s.key);
    char* left = room.q_panels.bytes(std::max(steps, key_steps) * SQUARE);
    float inverses[HIGH];
    TileConfig tiles;
    tiles.set(SIDE);
    for (int64_t head = p.group * heads; head < (p.group + 1) * heads; ++head)
        for (int64_t query = from; query < behind; query += HIGH) {
            const Some some(p, head, query, std::min(HIGH, behind - query));
            for (int64_t r = 0; r < some.rows; r += SIDE) {
                const int64_t rows = std::min(SIDE, some.rows - r);
                for (int64_t i = 0; i < rows; ++i) scaled(p.q(query + r + i, head), s.key, s.scale, near + i * s.key);
                for (int64_t i = 0; i < steps; ++i)
                    square(near + i * INPUTS, s.key, 1, rows, s.key - i * INPUTS, false, left + i * SQUARE);
                products_of(left, keys + some.first / SIDE * steps * SQUARE, steps * SQUARE, some.stride / SIDE, steps,
                            scores + r * some.stride, some.stride);
            }
            normalize(p, some, scores, inverses);
            for (int64_t r = 0; r < some.rows; r += SIDE) {
                const int64_t rows = std::min(SIDE, some.rows - r), seen = squares_of(some.stride, INPUTS);
                for (int64_t i = 0; i < seen; ++i)
                    square(scores + r * some.stride + i * INPUTS, some.stride, 1, rows, some.stride - i * INPUTS, false,
                           left + i * SQUARE);
                products_of(left, values + some.first / INPUTS * SQUARE, key_steps * SQUARE, value_panels, seen, out, width);
                for (int64_t i = 0; i < rows; ++i)
                    divided(out + i * width, s.value, inverses[r + i], s.y + p.at(query + r + i, head) * s.value);
            }
        }
}

#endif

// Contexts of the queries `from` … `behind` of a piece.
void forward(const Piece& p, int64_t from, int64_t behind, Rooms& room) {
    const Sequences& s = p.s;
#if REGARD_AMX
    // Keys that a query does not see have weight 0, times a value: what is not finite would reach it, from further away.
    if (s.narrow && !s.vector && are_finite(p)) return forward_narrow(p, from, behind, room);
#endif
    int64_t heads = s.heads / s.groups, width = whole(s.value);
    const float* keys = lay_keys(p, room);
    float* values = room.plain.of(p.keys * width);
    lay(p.v(), p.keys, s.v_row, s.value, 1, values);
    float *scores = room.scores.of(p.height() * whole(p.keys)), *out = room.out.of(p.height() * width);
    float inverses[MOST];
    for (int64_t head = p.group * heads; head < (p.group + 1) * heads; ++head)
        for (int64_t query = from; query < behind; query += p.height()) {
            Some some(p, head, query, std::min(p.height(), behind - query));
            weigh(p, some, keys, room, scores, inverses);
            Left weights{scores, some.stride, 1};
            multiply(weights, some.rows, values, p.keys, some.first, some.count, s.value, out, width, false);
            for (int64_t r = 0; r < some.rows; ++r)
                divided(out + r * width, s.value, inverses[r], s.y + p.at(query + r, head) * s.value);
        }
}

// Weights of the queries `from` … `behind` of a piece over so many keys, those behind the piece's own among them.
void show(const Piece& p, int64_t from, int64_t behind, Rooms& room, float* weights, int64_t columns) {
    const int64_t heads = p.s.heads / p.s.groups;
    const float* keys = lay_keys(p, room);
    float* scores = room.scores.of(p.height() * whole(p.keys));
    float inverses[MOST];
    for (int64_t head = p.group * heads; head < (p.group + 1) * heads; ++head)
        for (int64_t query = from; query < behind; query += p.height()) {
            Some some(p, head, query, std::min(p.height(), behind - query));
            weigh(p, some, keys, room, scores, inverses);
            for (int64_t r = 0; r < some.rows; ++r) {
                float* row = weights + (head * p.queries + query + r) * columns;
                // What the query does not see is 0, whatever its other weights are.
                const int64_t begin = inverses[r] == 0 ? columns : p.first(query + r);
                const int64_t end = std::max(begin, inverses[r] == 0 ? columns : p.last(query + r));
                std::memset(row, 0, sizeof(float) * begin);
                scaled(scores + r * some.stride + begin - some.first, end - begin, inverses[r], row + begin);
                std::memset(row + end, 0, sizeof(float) * (columns - end));
            }
        }
}

// Write the real columns of some rows, each times a factor.
void give(const float* from, int64_t rows, int64_t width, int64_t columns, float factor, float* to, int64_t stride) {
    for (int64_t row = 0; row < rows; ++row) scaled(from + row * width, columns, factor, to + row * stride);
}

// Gradients of a piece: with P = softmax(scale · Q Kᵀ), factors M of dropout, dP = M ∘ dY Vᵀ and
// dS = P ∘ (dP − rowsum(dY ∘ Y)), dV = (M ∘ P)ᵀ dY, dQ = scale · dS K, dK = scale · dSᵀ Q.
void backward(const Piece& p, const Gradients& g, Rooms& room) {
    const Sequences& s = p.s;
    int64_t heads = s.heads / s.groups, key = whole(s.key), value = whole(s.value);
    int64_t most_rows = std::min(p.queries, MOST), most_keys = std::min(whole(p.keys), KEYS);
    float *turned_keys = room.turned.of(whole(p.keys) * key), *turned_values = room.values.of(whole(p.keys) * s.value);
    float *keys = room.plain.of(p.keys * key), *key_grads = room.key_grads.of(p.keys * key);
    float* value_grads = room.value_grads.of(p.keys * value);
    float *q = room.near_q.of(most_rows * key), *q_panels = room.q_panels.of(most_rows * key);
    float *dy = room.near_y.of(most_rows * s.value), *y_panels = room.y_panels.of(most_rows * value);
    float *weights = room.scores.of(most_rows * most_keys), *grads = room.score_grads.of(most_rows * most_keys);
    float* query_grads = room.out.of(most_rows * key);
    float *vector = room.vector.of(key), *vector_grads = room.vector_grads.of(2 * key);
    if (s.vector)
        widen(p.k(), p.keys, s.k_row, s.key, keys);
    else {
        lay_turned(p.k(), p.keys, s.k_row, s.key, s.scale, turned_keys);
        lay(p.k(), p.keys, s.k_row, s.key, s.scale, keys);
    }
    lay_turned(p.v(), p.keys, s.v_row, s.value, 1, turned_values);
    std::memset(key_grads, 0, sizeof(float) * p.keys * key);
    std::memset(value_grads, 0, sizeof(float) * p.keys * value);
    for (int64_t head = p.group * heads; head < (p.group + 1) * heads; ++head) {
        if (s.vector) {
            widen(s.vector + head * s.key, 1, s.key, s.key, vector);
            std::memset(vector_grads, 0, sizeof(float) * key);
        }
        const int64_t row = s.vector ? key : s.key;
        for (int64_t query = 0; query < p.queries; query += MOST) {
            Some some(p, head, query, std::min(MOST, p.queries - query));
            if (s.vector)
                widen(p.q(query, head), some.rows, s.q_row, s.key, q);
            else
                some.gather(p.q(query, head), s.q_row, s.key, q);
            some.gather(g.y + (p.q_start + query) * g.y_row + head * g.y_head, g.y_row, s.value, dy);
            float means[MOST];
            for (int64_t r = 0; r < some.rows; ++r) {
                int64_t at = p.at(query + r, head);
                if (s.norms[2 * at + 1] == 0) {  // no key: nothing passes, whatever is there
                    std::memset(q + r * row, 0, sizeof(float) * s.key);
                    std::memset(dy + r * s.value, 0, sizeof(float) * s.value);
                }
                means[r] = dot(dy + r * s.value, s.y + at * s.value, s.value);
            }
            if (!s.vector) lay(q, some.rows, s.key, s.key, 1, q_panels);
            lay(dy, some.rows, s.value, s.value, 1, y_panels);
            const int64_t begin = some.first, end = begin + some.count;
            if (begin == end || s.vector) std::memset(query_grads, 0, sizeof(float) * some.rows * key);
            for (int64_t first = begin; first < end; first += KEYS) {
                some.see(p, first, std::min(first + KEYS, end));
                if (s.vector)
                    add(some, q, keys + first * key, vector, key, weights);
                else
                    some.products(q, s.key, turned_keys, weights);
                some.products(dy, s.value, turned_values, grads);
                for (int64_t r = 0; r < some.rows; ++r) {
                    float *weight = weights + r * some.stride, *grad = grads + r * some.stride;
                    const float* norms = s.norms + 2 * p.at(query + r, head);
                    const float most = norms[0], inverse = norms[1], mean = means[r];
                    if (inverse == 0) {
                        std::memset(weight, 0, sizeof(float) * some.stride);
                        std::memset(grad, 0, sizeof(float) * some.stride);
                        continue;
                    }
                    const Sight sight = some.sight(p, r);
                    const Drops drops(s, p.at(query + r, head));
                    const int64_t stride = some.stride;
                    const bool drop = s.dropped;
                    for (int64_t j = 0; j < stride; j += WIDTH) {
                        Floats one = exp_of(sight(j, *(Floats*)(weight + j)) - most) * inverse;
                        Floats factor = drop ? drops(first + j) : all(1);
                        *(Floats*)(weight + j) = one * factor;
                        *(Floats*)(grad + j) = one * (factor * *(Floats*)(grad + j) - mean);
                    }
                }
                multiply({weights, 1, some.stride}, some.count, y_panels, some.rows, 0, some.rows, s.value,
                         value_grads + first * value, value, true);
                if (s.vector) {
                    add_back(some, q, keys + first * key, vector, key, grads, query_grads, key_grads + first * key,
                             vector_grads);
                    continue;
                }
                multiply({grads, some.stride, 1}, some.rows, keys, p.keys, first, some.count, s.key, query_grads, key,
                         first > begin);
                multiply({grads, 1, some.stride}, some.count, q_panels, some.rows, 0, some.rows, s.key,
                         key_grads + first * key, key, true);
            }
            for (int64_t r = 0; r < some.rows; ++r)
                if (s.norms[2 * p.at(query + r, head) + 1] == 0)
                    std::memset(query_grads + r * key, 0, sizeof(float) * key);
            give(query_grads, some.rows, key, s.key, 1, g.q + p.at(query, head) * s.key, s.heads * s.key);
        }
        if (s.vector) std::memcpy(g.vector + (p.sequence * s.heads + head) * s.key, vector_grads, sizeof(float) * s.key);
    }
    int64_t to = p.k_start * s.groups + p.group;
    give(key_grads, p.keys, key, s.key, s.scale, g.k + to * s.key, s.groups * s.key);
    give(value_grads, p.keys, value, s.value, 1, g.v + to * s.value, s.groups * s.value);
}

Rooms& my_rooms() {
    thread_local Rooms rooms;
    return rooms;
}

// Have threads take pieces until none is left. Each piece is computed by one alone, in the same way: who has it is no matter.
template <typename Part>
void share_out(int64_t pieces, int64_t work, bool keeps, int threads, Team team, const Part& part) {
    std::atomic<int64_t> next{0};
    auto take = [&] {
        struct Mine {
            Rooms& room;
            bool keeps;
            ~Mine() {  // also where memory ran out
                if (!keeps) room = Rooms();
            }
        } mine{my_rooms(), keeps};
        for (int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) part(piece, mine.room);
    };
    int count = (int)std::max<int64_t>(std::min<int64_t>({threads, pieces, 1 + work / SMALL}), 1);
    Threads::run(count, [&](int) { take(); }, team, threads);
}

// Whether what the longest sequence needs is little enough to be kept for the next call.
bool is_kept(const Sequences& s) {
    int64_t most = s.sequences ? *std::max_element(s.k_lengths, s.k_lengths + s.sequences) : 0;
    return most * (s.key + s.value) <= KEPT;
}

struct Part {
    int64_t sequence, from, behind;
};

// Sequences, the long ones in several parts where sequences and groups alone are too few.
std::vector<Part> parts_of(const Sequences& s, int threads) {
    std::vector<Part> parts;
    for (int64_t i = 0; i < s.sequences; ++i) {
        // Cut where queries are taken anew, so that the same ones are taken together for any number of threads. (Of narrow
        // ones it does not matter: what a row gives does not hang on those beside it.)
        int64_t height = height_for(s.k_lengths[i]), apart = (APART + height - 1) / height * height;
        int64_t each = s.sequences * s.groups < 4 * threads ? apart : std::max<int64_t>(s.q_lengths[i], 1);
        for (int64_t from = 0; from < s.q_lengths[i]; from += each)
            parts.push_back({i, from, std::min(from + each, s.q_lengths[i])});
    }
    return parts;
}

// Multiplications of the forward pass; a tanh is worth some.
int64_t multiplications(const Sequences& s) {
    int64_t scores = 0;
    for (int64_t i = 0; i < s.sequences; ++i) scores += s.q_lengths[i] * s.k_lengths[i];
    return scores * s.heads * ((s.vector ? 16 : 1) * s.key + s.value);
}

}  // namespace

namespace regard {

// y = dropout(softmax(score + mask)) v within each sequence; zeros where a query has no key.
void sequences(const Sequences* sequences, int threads, Team team) {
    const Sequences& s = *sequences;
    const std::vector<Part> parts = parts_of(s, threads);
    share_out(parts.size() * s.groups, multiplications(s), is_kept(s), threads, team, [&](int64_t number, Rooms& room) {
        const Part& part = parts[number / s.groups];
        forward(Piece(s, part.sequence, number % s.groups), part.from, part.behind, room);
    });
}

// The weights themselves, of one sequence: (heads, queries, columns), zeros where a key is not seen, and behind the last.
void weights(const Sequences* sequence, float* weights, int64_t columns, int threads, Team team) {
    const Sequences& s = *sequence;
    const std::vector<Part> parts = parts_of(s, threads);
    share_out(parts.size() * s.groups, multiplications(s), is_kept(s), threads, team, [&](int64_t number, Rooms& room) {
        const Part& part = parts[number / s.groups];
        show(Piece(s, 0, number % s.groups), part.from, part.behind, room, weights, columns);
    });
}

// Gradients of the queries, keys and values.
void sequences_back(const Sequences* sequences, const Gradients* gradients, int threads, Team team) {
    const Sequences& s = *sequences;
    share_out(s.sequences * s.groups, 3 * multiplications(s), is_kept(s), threads, team, [&](int64_t number, Rooms& room) {
        backward(Piece(s, number / s.groups, number % s.groups), *gradients, room);
    });
}

}  // namespace regard
