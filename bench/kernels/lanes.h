// The machine's widest vector of floats and what the gathers do with it: 16 floats with AVX-512, 8 with AVX2.
// A gather accumulates WIDE vectors at a time where a vector needs one register, and NARROW vectors where it needs more.
#pragma once
#include <immintrin.h>
#include <cstdint>

#if defined(__AVX512F__)

// 32 registers.
static const int LANES = 16, WIDE = 8, NARROW = 4;
typedef __m512 Floats;
typedef __m512i Ints;  // int32
typedef __mmask16 Mask;

static inline Floats splat(float x) { return _mm512_set1_ps(x); }
static inline Ints splat(int32_t x) { return _mm512_set1_epi32(x); }
static inline float first_lane(Floats x) { return _mm512_cvtss_f32(x); }

// The first `count` lanes; all of them where `count` is larger.
static inline Mask leading(int count) { return count >= LANES ? 0xFFFF : (Mask)((1u << count) - 1); }

static inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
static inline Floats load(const float* from, Mask m) { return _mm512_maskz_loadu_ps(m, from); }
static inline void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
static inline void store(float* to, Floats x, Mask m) { _mm512_mask_storeu_ps(to, m, x); }

// Stores base + x as int64.
static inline void store_sum(int64_t* to, int64_t base, Ints x, Mask m) {
    __m512i low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(x));
    __m512i high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(x, 1));
    _mm512_mask_storeu_epi64(to, (__mmask8)m, _mm512_add_epi64(low, _mm512_set1_epi64(base)));
    _mm512_mask_storeu_epi64(to + 8, (__mmask8)(m >> 8), _mm512_add_epi64(high, _mm512_set1_epi64(base)));
}

static inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline Floats subtract_product(Floats c, Floats a, Floats b) { return _mm512_fnmadd_ps(a, b, c); }
static inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
static inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
static inline Floats nearest(Floats x) { return _mm512_roundscale_ps(x, 0); }
static inline Mask greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
static inline Floats select(Mask m, Floats yes, Floats no) { return _mm512_mask_mov_ps(no, m, yes); }
static inline Ints select(Mask m, Ints yes, Ints no) { return _mm512_mask_mov_epi32(no, m, yes); }

// x * 2^n.
static inline Floats scale(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }

#elif defined(__AVX2__) && defined(__FMA__)

// 16 registers.
static const int LANES = 8, WIDE = 12, NARROW = 4;
typedef __m256 Floats;
typedef __m256i Ints;  // int32
typedef __m256i Mask;  // int32, -1 where a lane is chosen

static inline Floats splat(float x) { return _mm256_set1_ps(x); }
static inline Ints splat(int32_t x) { return _mm256_set1_epi32(x); }
static inline float first_lane(Floats x) { return _mm256_cvtss_f32(x); }

// The first `count` lanes; all of them where `count` is larger.
static inline Mask leading(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
static inline Floats load(const float* from, Mask m) { return _mm256_maskload_ps(from, m); }
static inline void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
static inline void store(float* to, Floats x, Mask m) { _mm256_maskstore_ps(to, m, x); }

// Stores base + x as int64.
static inline void store_sum(int64_t* to, int64_t base, Ints x, Mask m) {
    __m256i low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(x));
    __m256i high = _mm256_cvtepi32_epi64(_mm256_extracti128_si256(x, 1));
    __m256i low_m = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(m));
    __m256i high_m = _mm256_cvtepi32_epi64(_mm256_extracti128_si256(m, 1));
    _mm256_maskstore_epi64((long long*)to, low_m, _mm256_add_epi64(low, _mm256_set1_epi64x(base)));
    _mm256_maskstore_epi64((long long*)(to + 4), high_m, _mm256_add_epi64(high, _mm256_set1_epi64x(base)));
}

static inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline Floats subtract_product(Floats c, Floats a, Floats b) { return _mm256_fnmadd_ps(a, b, c); }
static inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
static inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
static inline Floats nearest(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline Mask greater(Floats a, Floats b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
static inline Floats select(Mask m, Floats yes, Floats no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(m)); }
static inline Ints select(Mask m, Ints yes, Ints no) { return _mm256_blendv_epi8(no, yes, m); }

// x * 2^n, for whole n and a normal result: n is added to the exponent.
static inline Floats scale(Floats x, Floats n) {
    __m256i added = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), added));
}

#else
#error "the yardstick needs AVX-512, or AVX2 and FMA"
#endif

// e^x, and e^-87 or e^88 beyond these, so that the result is a normal number.
static inline Floats exponential(Floats x) {
    x = min(max(x, splat(-87.0f)), splat(88.0f));
    Floats n = nearest(x * splat(1.44269504f));
    Floats r = subtract_product(x, n, splat(0.693359375f));
    r = subtract_product(r, n, splat(-2.12194440e-4f));
    Floats p = splat(1.f / 720);
    p = multiply_add(p, r, splat(1.f / 120));
    p = multiply_add(p, r, splat(1.f / 24));
    p = multiply_add(p, r, splat(1.f / 6));
    p = multiply_add(p, r, splat(0.5f));
    p = multiply_add(p, r, splat(1.f));
    p = multiply_add(p, r, splat(1.f));
    return scale(p, n);
}

static inline float exponential(float x) { return first_lane(exponential(splat(x))); }
