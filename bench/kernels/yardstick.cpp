// Hand-written gathers with AVX-512 or AVX2 and prefetch: what a careful C++ programmer would write for each operation.
// A yardstick for the generated kernels, compiled by bench/kernels/yardstick.py and by nothing else.
//
// V rows of F floats, CSC offsets ptr[V + 1], source ids idx[E]. Rows are shared out in chunks of equal edges
// (bounds[n + 1]) over OpenMP threads. A tile of features is accumulated at a time, in WIDE or NARROW vectors of
// LANES floats (lanes.h). Prefetches run AHEAD edges ahead.
#include <cstdint>
#include <cstring>
#include <limits>

#include "lanes.h"

static const int AHEAD = 8;

static inline void ask(const float* row, int features) {
    const char* first = (const char*)row;
    for (int at = 0; at < features * 4; at += 64) _mm_prefetch(first + at, _MM_HINT_T0);
    _mm_prefetch(first + features * 4 - 1, _MM_HINT_T0);
}

struct Sum {
    static Floats start() { return splat(0.0f); }
    static Floats step(Floats acc, Floats x, float) { return acc + x; }
    static Floats end(Floats acc, bool) { return acc; }
};
struct WeightedSum : Sum {
    static Floats step(Floats acc, Floats x, float w) { return multiply_add(splat(w), x, acc); }
};
struct Max : Sum {
    static Floats start() { return splat(-std::numeric_limits<float>::infinity()); }
    static Floats step(Floats acc, Floats x, float) { return max(acc, x); }
    static Floats end(Floats acc, bool empty) { return empty ? splat(0.0f) : acc; }
};

// CHUNKS registers of accumulators, over the rows of one chunk of edges.
template <class Op, int CHUNKS>
static void tile(const int64_t* ptr, const int32_t* idx, const float* w, const float* x, float* out, int64_t F,
                 int64_t first, int64_t row0, int64_t row1) {
    int features = (int)(F - first < CHUNKS * LANES ? F - first : CHUNKS * LANES);
    Mask last = leading(features - (CHUNKS - 1) * LANES);
    int64_t stop = ptr[row1] - 1;
    for (int64_t row = row0; row < row1; ++row) {
        Floats acc[CHUNKS];
        for (int c = 0; c < CHUNKS; ++c) acc[c] = Op::start();
        for (int64_t e = ptr[row]; e < ptr[row + 1]; ++e) {
            ask(x + (int64_t)idx[e + AHEAD < stop ? e + AHEAD : stop] * F + first, features);
            const float* from = x + (int64_t)idx[e] * F + first;
            float weight = w ? w[e] : 1.0f;
            for (int c = 0; c < CHUNKS - 1; ++c) acc[c] = Op::step(acc[c], load(from + LANES * c), weight);
            acc[CHUNKS - 1] = Op::step(acc[CHUNKS - 1], load(from + LANES * (CHUNKS - 1), last), weight);
        }
        bool empty = ptr[row] == ptr[row + 1];
        float* to = out + row * F + first;
        for (int c = 0; c < CHUNKS - 1; ++c) store(to + LANES * c, Op::end(acc[c], empty));
        store(to + LANES * (CHUNKS - 1), Op::end(acc[CHUNKS - 1], empty), last);
    }
}

template <class Op>
static void gather(const int64_t* ptr, const int32_t* idx, const float* w, const float* x, float* out, int64_t F,
                   const int64_t* bounds, int64_t chunks) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < chunks; ++n)
        for (int64_t first = 0; first < F; first += WIDE * LANES) {
            int64_t width = (F - first + LANES - 1) / LANES;
            int64_t a = bounds[n], b = bounds[n + 1];
            switch (width < WIDE ? width : WIDE) {
#define CASE(k) case k: tile<Op, (k < WIDE ? k : WIDE)>(ptr, idx, w, x, out, F, first, a, b); break;
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
                CASE(9) CASE(10) CASE(11) CASE(12)
            }
        }
}

// The arguments of a maximum are kept as well: positions within the row.
static void gather_max_kept(const int64_t* ptr, const int32_t* idx, const float* x, float* out, int64_t* arg,
                            int64_t F, const int64_t* bounds, int64_t chunks) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < chunks; ++n)
        for (int64_t first = 0; first < F; first += NARROW * LANES) {
            int features = (int)(F - first < NARROW * LANES ? F - first : NARROW * LANES);
            int used = (features + LANES - 1) / LANES;
            int64_t stop = ptr[bounds[n + 1]] - 1;
            for (int64_t row = bounds[n]; row < bounds[n + 1]; ++row) {
                Floats best[NARROW];
                Ints where[NARROW];
                for (int c = 0; c < NARROW; ++c) best[c] = Max::start(), where[c] = splat(0);
                int64_t begin = ptr[row], end = ptr[row + 1];
                for (int64_t e = begin; e < end; ++e) {
                    ask(x + (int64_t)idx[e + AHEAD < stop ? e + AHEAD : stop] * F + first, features);
                    const float* from = x + (int64_t)idx[e] * F + first;
                    Ints here = splat((int32_t)(e - begin));
                    for (int c = 0; c < used; ++c) {
                        Floats v = load(from + LANES * c, leading(features - LANES * c));
                        Mask m = greater(v, best[c]);
                        best[c] = select(m, v, best[c]);
                        where[c] = select(m, here, where[c]);
                    }
                }
                for (int c = 0; c < used; ++c) {
                    Mask m = leading(features - LANES * c);
                    store(out + row * F + first + LANES * c, Max::end(best[c], begin == end), m);
                    store_sum(arg + row * F + first + LANES * c, begin == end ? -1 : begin, where[c], m);
                }
            }
        }
}

// sum of sigmoid(a[dst] + b[src]) * x[src].
static void gather_gated(const int64_t* ptr, const int32_t* idx, const float* a, const float* b, const float* x,
                         float* out, int64_t F, const int64_t* bounds, int64_t chunks) {
    const Floats one = splat(1.0f);
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < chunks; ++n)
        for (int64_t first = 0; first < F; first += NARROW * LANES) {
            int features = (int)(F - first < NARROW * LANES ? F - first : NARROW * LANES);
            int used = (features + LANES - 1) / LANES;
            int64_t stop = ptr[bounds[n + 1]] - 1;
            for (int64_t row = bounds[n]; row < bounds[n + 1]; ++row) {
                Floats acc[NARROW], own[NARROW];
                for (int c = 0; c < used; ++c) {
                    acc[c] = splat(0.0f);
                    own[c] = load(a + row * F + first + LANES * c, leading(features - LANES * c));
                }
                for (int64_t e = ptr[row]; e < ptr[row + 1]; ++e) {
                    int64_t ahead = (int64_t)idx[e + AHEAD < stop ? e + AHEAD : stop] * F + first;
                    ask(b + ahead, features);
                    ask(x + ahead, features);
                    int64_t from = (int64_t)idx[e] * F + first;
                    for (int c = 0; c < used; ++c) {
                        Mask m = leading(features - LANES * c);
                        Floats gate = own[c] + load(b + from + LANES * c, m);
                        gate = one / (one + exponential(splat(0.0f) - gate));
                        acc[c] = multiply_add(gate, load(x + from + LANES * c, m), acc[c]);
                    }
                }
                for (int c = 0; c < used; ++c)
                    store(out + row * F + first + LANES * c, acc[c], leading(features - LANES * c));
            }
        }
}

// softmax over leaky_relu(a[dst] + b[src], 0.2) of x[src], one pass with a running maximum.
static void gather_softmax(const int64_t* ptr, const int32_t* idx, const float* a, const float* b, const float* x,
                           float* out, float* tops, float* denominators, int64_t F, const int64_t* bounds,
                           int64_t chunks) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < chunks; ++n)
        for (int64_t first = 0; first < F; first += WIDE * LANES) {
            int features = (int)(F - first < WIDE * LANES ? F - first : WIDE * LANES);
            int used = (features + LANES - 1) / LANES;
            int64_t stop = ptr[bounds[n + 1]] - 1;
            for (int64_t row = bounds[n]; row < bounds[n + 1]; ++row) {
                Floats acc[WIDE];
                for (int c = 0; c < WIDE; ++c) acc[c] = splat(0.0f);
                float top = -std::numeric_limits<float>::max(), weight = 0;
                for (int64_t e = ptr[row]; e < ptr[row + 1]; ++e) {
                    int64_t ahead = idx[e + AHEAD < stop ? e + AHEAD : stop];
                    ask(x + ahead * F + first, features);
                    _mm_prefetch((const char*)(b + ahead), _MM_HINT_T0);
                    float score = a[row] + b[idx[e]];
                    score = score > 0 ? score : 0.2f * score;
                    if (score > top) {
                        float shrink = exponential(top - score);
                        weight *= shrink;
                        for (int c = 0; c < used; ++c) acc[c] = acc[c] * splat(shrink);
                        top = score;
                    }
                    float share = exponential(score - top);
                    weight += share;
                    const float* from = x + (int64_t)idx[e] * F + first;
                    for (int c = 0; c < used; ++c)
                        acc[c] = multiply_add(splat(share), load(from + LANES * c, leading(features - LANES * c)), acc[c]);
                }
                bool empty = ptr[row] == ptr[row + 1];
                Floats scale = splat(empty ? 0.0f : 1.0f / weight);
                for (int c = 0; c < used; ++c)
                    store(out + row * F + first + LANES * c, acc[c] * scale, leading(features - LANES * c));
                tops[row] = empty ? -std::numeric_limits<float>::infinity() : top;
                denominators[row] = weight;
            }
        }
}

extern "C" {
void yardstick_sum(const int64_t* ptr, const int32_t* idx, const float* x, float* out, int64_t F,
                   const int64_t* bounds, int64_t chunks) {
    gather<Sum>(ptr, idx, nullptr, x, out, F, bounds, chunks);
}
void yardstick_weighted_sum(const int64_t* ptr, const int32_t* idx, const float* w, const float* x, float* out,
                            int64_t F, const int64_t* bounds, int64_t chunks) {
    gather<WeightedSum>(ptr, idx, w, x, out, F, bounds, chunks);
}
void yardstick_max(const int64_t* ptr, const int32_t* idx, const float* x, float* out, int64_t* arg, int64_t F,
                   const int64_t* bounds, int64_t chunks) {
    gather_max_kept(ptr, idx, x, out, arg, F, bounds, chunks);
}
void yardstick_gated(const int64_t* ptr, const int32_t* idx, const float* a, const float* b, const float* x,
                     float* out, int64_t F, const int64_t* bounds, int64_t chunks) {
    gather_gated(ptr, idx, a, b, x, out, F, bounds, chunks);
}
void yardstick_softmax(const int64_t* ptr, const int32_t* idx, const float* a, const float* b, const float* x,
                       float* out, float* tops, float* denominators, int64_t F, const int64_t* bounds,
                       int64_t chunks) {
    gather_softmax(ptr, idx, a, b, x, out, tops, denominators, F, bounds, chunks);
}
}
