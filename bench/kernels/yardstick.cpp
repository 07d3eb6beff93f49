// Hand-written gathers with AVX-512 and prefetch: what a careful C++ programmer would write for each operation.
// A yardstick for the generated kernels, compiled by bench/kernels/yardstick.py and by nothing else.
//
// V rows of F floats, CSC offsets ptr[V + 1], source ids idx[E]. Rows are shared out in chunks of equal edges
// (bounds[n + 1]) over OpenMP threads. 128 features at a time stand in registers; prefetches run AHEAD edges ahead.
#include <immintrin.h>
#include <cstdint>
#include <cstring>
#include <limits>

static const int AHEAD = 8;

static inline __mmask16 tail(int features) { return features >= 16 ? 0xFFFF : (__mmask16)((1u << features) - 1); }

static inline void ask(const float* row, int features) {
    const char* first = (const char*)row;
    for (int at = 0; at < features * 4; at += 64) _mm_prefetch(first + at, _MM_HINT_T0);
    _mm_prefetch(first + features * 4 - 1, _MM_HINT_T0);
}

static inline __m512 exp16(__m512 x) {
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(88.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.f));
    return _mm512_scalef_ps(p, n);
}

static inline float exp1(float x) { return _mm512_cvtss_f32(exp16(_mm512_set1_ps(x))); }

struct Sum {
    static __m512 start() { return _mm512_setzero_ps(); }
    static __m512 step(__m512 acc, __m512 x, float) { return _mm512_add_ps(acc, x); }
    static __m512 end(__m512 acc, bool) { return acc; }
};
struct WeightedSum : Sum {
    static __m512 step(__m512 acc, __m512 x, float w) { return _mm512_fmadd_ps(_mm512_set1_ps(w), x, acc); }
};
struct Max : Sum {
    static __m512 start() { return _mm512_set1_ps(-std::numeric_limits<float>::infinity()); }
    static __m512 step(__m512 acc, __m512 x, float) { return _mm512_max_ps(acc, x); }
    static __m512 end(__m512 acc, bool empty) { return empty ? _mm512_setzero_ps() : acc; }
};

// CHUNKS registers of accumulators, over the rows of one chunk of edges.
template <class Op, int CHUNKS>
static void tile(const int64_t* ptr, const int32_t* idx, const float* w, const float* x, float* out, int64_t F,
                 int64_t first, int64_t row0, int64_t row1) {
    int features = (int)(F - first < CHUNKS * 16 ? F - first : CHUNKS * 16);
    __mmask16 last = tail(features - (CHUNKS - 1) * 16);
    int64_t stop = ptr[row1] - 1;
    for (int64_t row = row0; row < row1; ++row) {
        __m512 acc[CHUNKS];
        for (int c = 0; c < CHUNKS; ++c) acc[c] = Op::start();
        for (int64_t e = ptr[row]; e < ptr[row + 1]; ++e) {
            ask(x + (int64_t)idx[e + AHEAD < stop ? e + AHEAD : stop] * F + first, features);
            const float* from = x + (int64_t)idx[e] * F + first;
            float weight = w ? w[e] : 1.0f;
            for (int c = 0; c < CHUNKS - 1; ++c) acc[c] = Op::step(acc[c], _mm512_loadu_ps(from + 16 * c), weight);
            acc[CHUNKS - 1] = Op::step(acc[CHUNKS - 1], _mm512_maskz_loadu_ps(last, from + 16 * (CHUNKS - 1)), weight);
        }
        bool empty = ptr[row] == ptr[row + 1];
        float* to = out + row * F + first;
        for (int c = 0; c < CHUNKS - 1; ++c) _mm512_storeu_ps(to + 16 * c, Op::end(acc[c], empty));
        _mm512_mask_storeu_ps(to + 16 * (CHUNKS - 1), last, Op::end(acc[CHUNKS - 1], empty));
    }
}

template <class Op>
static void gather(const int64_t* ptr, const int32_t* idx, const float* w, const float* x, float* out, int64_t F,
                   const int64_t* bounds, int64_t chunks) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < chunks; ++n)
        for (int64_t first = 0; first < F; first += 128) {
            int64_t width = (F - first + 15) / 16;
            int64_t a = bounds[n], b = bounds[n + 1];
            switch (width < 8 ? width : 8) {
#define CASE(k) case k: tile<Op, k>(ptr, idx, w, x, out, F, first, a, b); break;
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
            }
        }
}

// The arguments of a maximum are kept as well: positions within the row.
static void gather_max_kept(const int64_t* ptr, const int32_t* idx, const float* x, float* out, int64_t* arg,
                            int64_t F, const int64_t* bounds, int64_t chunks) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < chunks; ++n)
        for (int64_t first = 0; first < F; first += 64) {
            int features = (int)(F - first < 64 ? F - first : 64), used = (features + 15) / 16;
            int64_t stop = ptr[bounds[n + 1]] - 1;
            for (int64_t row = bounds[n]; row < bounds[n + 1]; ++row) {
                __m512 best[4];
                __m512i where[4];
                for (int c = 0; c < 4; ++c) best[c] = Max::start(), where[c] = _mm512_setzero_si512();
                int64_t begin = ptr[row], end = ptr[row + 1];
                for (int64_t e = begin; e < end; ++e) {
                    ask(x + (int64_t)idx[e + AHEAD < stop ? e + AHEAD : stop] * F + first, features);
                    const float* from = x + (int64_t)idx[e] * F + first;
                    __m512i here = _mm512_set1_epi32((int)(e - begin));
                    for (int c = 0; c < used; ++c) {
                        __m512 v = _mm512_maskz_loadu_ps(tail(features - 16 * c), from + 16 * c);
                        __mmask16 m = _mm512_cmp_ps_mask(v, best[c], _CMP_GT_OQ);
                        best[c] = _mm512_mask_mov_ps(best[c], m, v);
                        where[c] = _mm512_mask_mov_epi32(where[c], m, here);
                    }
                }
                for (int c = 0; c < used; ++c) {
                    __mmask16 m = tail(features - 16 * c);
                    _mm512_mask_storeu_ps(out + row * F + first + 16 * c, m, Max::end(best[c], begin == end));
                    __m512i base = _mm512_set1_epi64(begin == end ? -1 : begin);
                    __m512i low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(where[c]));
                    __m512i high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(where[c], 1));
                    int64_t* to = arg + row * F + first + 16 * c;
                    _mm512_mask_storeu_epi64(to, (__mmask8)m, _mm512_add_epi64(low, base));
                    _mm512_mask_storeu_epi64(to + 8, (__mmask8)(m >> 8), _mm512_add_epi64(high, base));
                }
            }
        }
}

// sum of sigmoid(a[dst] + b[src]) * x[src], 64 features at a time.
static void gather_gated(const int64_t* ptr, const int32_t* idx, const float* a, const float* b, const float* x,
                         float* out, int64_t F, const int64_t* bounds, int64_t chunks) {
    const __m512 one = _mm512_set1_ps(1.0f);
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < chunks; ++n)
        for (int64_t first = 0; first < F; first += 64) {
            int features = (int)(F - first < 64 ? F - first : 64), used = (features + 15) / 16;
            int64_t stop = ptr[bounds[n + 1]] - 1;
            for (int64_t row = bounds[n]; row < bounds[n + 1]; ++row) {
                __m512 acc[4], own[4];
                for (int c = 0; c < used; ++c) {
                    acc[c] = _mm512_setzero_ps();
                    own[c] = _mm512_maskz_loadu_ps(tail(features - 16 * c), a + row * F + first + 16 * c);
                }
                for (int64_t e = ptr[row]; e < ptr[row + 1]; ++e) {
                    int64_t ahead = (int64_t)idx[e + AHEAD < stop ? e + AHEAD : stop] * F + first;
                    ask(b + ahead, features);
                    ask(x + ahead, features);
                    int64_t from = (int64_t)idx[e] * F + first;
                    for (int c = 0; c < used; ++c) {
                        __mmask16 m = tail(features - 16 * c);
                        __m512 gate = _mm512_add_ps(own[c], _mm512_maskz_loadu_ps(m, b + from + 16 * c));
                        gate = exp16(_mm512_sub_ps(_mm512_setzero_ps(), gate));
                        gate = _mm512_div_ps(one, _mm512_add_ps(one, gate));
                        acc[c] = _mm512_fmadd_ps(gate, _mm512_maskz_loadu_ps(m, x + from + 16 * c), acc[c]);
                    }
                }
                for (int c = 0; c < used; ++c)
                    _mm512_mask_storeu_ps(out + row * F + first + 16 * c, tail(features - 16 * c), acc[c]);
            }
        }
}

// softmax over leaky_relu(a[dst] + b[src], 0.2) of x[src], one pass with a running maximum.
static void gather_softmax(const int64_t* ptr, const int32_t* idx, const float* a, const float* b, const float* x,
                           float* out, float* tops, float* denominators, int64_t F, const int64_t* bounds,
                           int64_t chunks) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < chunks; ++n)
        for (int64_t first = 0; first < F; first += 128) {
            int features = (int)(F - first < 128 ? F - first : 128), used = (features + 15) / 16;
            int64_t stop = ptr[bounds[n + 1]] - 1;
            for (int64_t row = bounds[n]; row < bounds[n + 1]; ++row) {
                __m512 acc[8];
                for (int c = 0; c < 8; ++c) acc[c] = _mm512_setzero_ps();
                float top = -std::numeric_limits<float>::max(), weight = 0;
                for (int64_t e = ptr[row]; e < ptr[row + 1]; ++e) {
                    int64_t ahead = idx[e + AHEAD < stop ? e + AHEAD : stop];
                    ask(x + ahead * F + first, features);
                    _mm_prefetch((const char*)(b + ahead), _MM_HINT_T0);
                    float score = a[row] + b[idx[e]];
                    score = score > 0 ? score : 0.2f * score;
                    if (score > top) {
                        float shrink = exp1(top - score);
                        weight *= shrink;
                        for (int c = 0; c < used; ++c) acc[c] = _mm512_mul_ps(acc[c], _mm512_set1_ps(shrink));
                        top = score;
                    }
                    float share = exp1(score - top);
                    weight += share;
                    const float* from = x + (int64_t)idx[e] * F + first;
                    for (int c = 0; c < used; ++c)
                        acc[c] = _mm512_fmadd_ps(_mm512_set1_ps(share),
                                                 _mm512_maskz_loadu_ps(tail(features - 16 * c), from + 16 * c), acc[c]);
                }
                bool empty = ptr[row] == ptr[row + 1];
                __m512 scale = _mm512_set1_ps(empty ? 0.0f : 1.0f / weight);
                for (int c = 0; c < used; ++c)
                    _mm512_mask_storeu_ps(out + row * F + first + 16 * c, tail(features - 16 * c),
                                          _mm512_mul_ps(acc[c], scale));
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
