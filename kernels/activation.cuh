/*
 * GELU (tanh and erf), SiLU and their derivatives on the device, made for speed: those of
 * activation.h with the hardware's approximations of 2^p (to 2^-22) and 1 / d (to one unit in the
 * last place), and with 2^p s(p) for 1 - s, which is exact where s is near 1.
 *
 * Beyond float32's range values are x or 0 as they should be; an infinite x gives what the formula
 * gives, inf or NaN. Derivatives take x to be within a bound beyond which they are 0 or 1. A NaN
 * stays one. Against the formulas in exact arithmetic a value is off by at most 5e-7 |x|, a
 * derivative by at most 5e-7 (tests/activation-t.c, tests/activation_cuda-t.c).
 */
#ifndef KERNELS_ACTIVATION_CUH
#define KERNELS_ACTIVATION_CUH

#include "fp8pipe_quantize_kernel.cuh"
#include "kernels/activation.h"

namespace activation
{
/* inf from 128 on, 0 below -126. */
__device__ __forceinline__ float power_of_two(float p)
{
    float power;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(p));
    return power;
}

/* 0 from 2^126 on. */
__device__ __forceinline__ float reciprocal(float d)
{
    float q;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(q) : "f"(d));
    return q;
}

/* 1 / (1 + 2^p) */
__device__ __forceinline__ float sigmoid(float p)
{
    return reciprocal(__fadd_rn(power_of_two(p), 1.0f));
}

/* s + slope s (1 - s), where s = sigmoid(p), |p| < 126. */
__device__ __forceinline__ float sigmoid_slope(float p, float slope)
{
    const float power = power_of_two(p);
    const float s = reciprocal(__fadd_rn(power, 1.0f));

    return __fmul_rn(s, __fmaf_rn(slope, __fmul_rn(power, s), 1.0f));
}

/* -2 sqrt(2/pi) log2(e) (x + 0.044715 x^3) */
__device__ __forceinline__ float gelu_tanh_power(float x, float square)
{
    return __fmul_rn(x, __fmaf_rn(square, -0.102943240f, -2.30220819f));
}

__device__ __forceinline__ float gelu_tanh(float x)
{
    return __fmul_rn(x, sigmoid(gelu_tanh_power(x, __fmul_rn(x, x))));
}

__device__ __forceinline__ float gelu_tanh_slope(float x)
{
    const float square = __fmul_rn(x, x);

    return sigmoid_slope(gelu_tanh_power(x, square),
                         __fmul_rn(x, __fmaf_rn(square, 0.214064448f, 1.59576912f)));
}

__device__ __forceinline__ float silu(float x)
{
    return __fmul_rn(x, sigmoid(__fmul_rn(x, -1.44269504f)));
}

__device__ __forceinline__ float silu_slope(float x)
{
    return sigmoid_slope(__fmul_rn(x, -1.44269504f), x);
}

/* F(x), F the normal distribution: see activation_gelu_erf_part(). *density = exp(-x^2/2) */
__device__ __forceinline__ float normal(float x, float *density)
{
    const float u = reciprocal(__fmaf_rn(0.48f, fabsf(x), 1.0f));
    float tail = -0.0458233617f;

    *density = power_of_two(__fmul_rn(__fmul_rn(x, x), -0.721347520f));
    tail = __fmaf_rn(tail, u, 0.235816430f);
    tail = __fmaf_rn(tail, u, -0.446280813f);
    tail = __fmaf_rn(tail, u, 0.282908851f);
    tail = __fmaf_rn(tail, u, 0.0809010886f);
    tail = __fmaf_rn(tail, u, 0.201583101f);
    tail = __fmaf_rn(tail, u, 0.190894707f);
    tail = __fmul_rn(tail, __fmul_rn(u, *density));
    return x < 0.0f ? tail : __fsub_rn(1.0f, tail);
}

__device__ __forceinline__ float gelu_erf(float x)
{
    float density;

    return __fmul_rn(x, normal(x, &density));
}

__device__ __forceinline__ float gelu_erf_slope(float x)
{
    float density;
    const float part = normal(x, &density);

    return __fmaf_rn(__fmul_rn(x, 0.398942280f), density, part);
}

/* ---- Of units ------------------------------------------------------------------------------ */

using fp8pipe_cuda::operand;
using fp8pipe_cuda::place;
using fp8pipe_cuda::raw;
using fp8pipe_cuda::result;
using fp8pipe_cuda::UNIT;
using fp8pipe_cuda::values;

#define ACTIVATION_EACH(expression)                                                                \
    do {                                                                                           \
        _Pragma("unroll") for (int i = 0; i < UNIT; i++) v[i] = expression;                        \
    } while (0)

/* The bound of A's derivative, a bf16 number. */
template <int A> __device__ __forceinline__ constexpr float bound()
{
    return A == FP8PIPE_ACTIVATION_GELU_TANH  ? ACTIVATION_GELU_TANH_BOUND
           : A == FP8PIPE_ACTIVATION_GELU_ERF ? ACTIVATION_GELU_ERF_BOUND
                                              : ACTIVATION_SILU_BOUND;
}

/* x within the bound of A's derivative; a NaN stays one. */
template <int A> __device__ __forceinline__ values within(const values &x)
{
    values v;

    ACTIVATION_EACH(activation_clamp(x[i], bound<A>()));
    return v;
}

/* The same, two at a time. */
template <int A> __device__ __forceinline__ values within(raw<FP8PIPE_BF16> x)
{
    const uint32_t one = fp8pipe_float_bits(bound<A>());
    const uint32_t most = one >> 16 | one, least = most | 0x80008000u;

#pragma unroll
    for (int i = 0; i < raw<FP8PIPE_BF16>::WORDS; i++) {
        asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(x.word[i]) : "r"(least));
        asm("min.NaN.bf16x2 %0, %0, %1;" : "+r"(x.word[i]) : "r"(most));
    }
    return widen(x);
}

/* Activation A, SiLU for SWIGLU. */
template <int A> __device__ __forceinline__ values forward(const values &x)
{
    values v;

    if (A == FP8PIPE_ACTIVATION_GELU_TANH)
        ACTIVATION_EACH(gelu_tanh(x[i]));
    else if (A == FP8PIPE_ACTIVATION_GELU_ERF)
        ACTIVATION_EACH(gelu_erf(x[i]));
    else
        ACTIVATION_EACH(silu(x[i]));
    return v;
}

/* Its derivative. X: raw or values. */
template <int A, class X> __device__ __forceinline__ values slope(const X &in)
{
    const values x = within<A>(in);
    values v;

    if (A == FP8PIPE_ACTIVATION_GELU_TANH)
        ACTIVATION_EACH(gelu_tanh_slope(x[i]));
    else if (A == FP8PIPE_ACTIVATION_GELU_ERF)
        ACTIVATION_EACH(gelu_erf_slope(x[i]));
    else
        ACTIVATION_EACH(silu_slope(x[i]));
    return v;
}

__device__ __forceinline__ values product(const values &a, const values &b)
{
    values v;

    ACTIVATION_EACH(__fmul_rn(a[i], b[i]));
    return v;
}

/* ---- Functors: bf16 without a bias, aligned ------------------------------------------------ */

template <int A> struct plain_forward {
    operand<FP8PIPE_BF16> x;
    result<FP8PIPE_BF16> y;
    typedef raw<FP8PIPE_BF16> loaded;

    bool aligned() const
    {
        return x.aligned() && y.aligned();
    }
    FP8PIPE_DEVICE loaded load(const place &at) const
    {
        return x.load(at);
    }
    FP8PIPE_DEVICE values compute(const place &at, const loaded &in) const
    {
        const values v = forward<A>(widen(in));
        y.store(at, v);
        return v;
    }
};

template <int A> struct plain_backward {
    operand<FP8PIPE_BF16> x;
    operand<FP8PIPE_BF16> dy;
    result<FP8PIPE_BF16> dx;
    struct loaded {
        raw<FP8PIPE_BF16> x;
        raw<FP8PIPE_BF16> dy;
    };

    bool aligned() const
    {
        return x.aligned() && dy.aligned() && dx.aligned();
    }
    FP8PIPE_DEVICE loaded load(const place &at) const
    {
        return {x.load(at), dy.load(at)};
    }
    FP8PIPE_DEVICE values compute(const place &at, const loaded &in) const
    {
        const values v = product(slope<A>(in.x), widen(in.dy));
        dx.store(at, v);
        return v;
    }
};

struct gated_forward {
    int64_t half; /* a multiple of UNIT, as in the next */
    operand<FP8PIPE_BF16> x;
    result<FP8PIPE_BF16> y;
    struct loaded {
        raw<FP8PIPE_BF16> x;
        raw<FP8PIPE_BF16> gate;
    };

    bool aligned() const
    {
        return half % UNIT == 0 && x.aligned() && y.aligned();
    }
    FP8PIPE_DEVICE loaded load(const place &at) const
    {
        return {x.load(at), x.load(at, half)};
    }
    FP8PIPE_DEVICE values compute(const place &at, const loaded &in) const
    {
        const values v = product(forward<FP8PIPE_ACTIVATION_SILU>(widen(in.x)), widen(in.gate));
        y.store(at, v);
        return v;
    }
};

struct gated_backward {
    int64_t half;
    operand<FP8PIPE_BF16> x;
    operand<FP8PIPE_BF16> dy;
    result<FP8PIPE_BF16> dx;
    struct loaded {
        raw<FP8PIPE_BF16> x;
        raw<FP8PIPE_BF16> gate;
        raw<FP8PIPE_BF16> dy;
    };

    bool aligned() const
    {
        return half % UNIT == 0 && x.aligned() && dy.aligned() && dx.aligned();
    }
    FP8PIPE_DEVICE loaded load(const place &at) const
    {
        const int64_t back = at.col < half ? 0 : -half;

        /* In the second half the gate is the unit itself, and not used. */
        return {x.load(at, back), x.load(at, back + half), dy.load(at, back)};
    }
    FP8PIPE_DEVICE values compute(const place &at, const loaded &in) const
    {
        const values dy = widen(in.dy);
        const values v = at.col >= half ? product(dy, forward<FP8PIPE_ACTIVATION_SILU>(widen(in.x)))
                                        : product(product(dy, widen(in.gate)),
                                                  slope<FP8PIPE_ACTIVATION_SILU>(in.x));
        dx.store(at, v);
        return v;
    }
};
} /* namespace activation */

/* Of plain backward's, two of loads and much to compute: fewer blocks. */
template <int A> struct fp8pipe_cuda::detail::tuning<activation::plain_backward<A>> {
    typedef row_shape<4, 4, 3> rows;
    typedef tile_shape<4, 4, 8, 3, 4> tiles;
};
template <int A> struct fp8pipe_cuda::detail::tuning<activation::plain_forward<A>> {
    typedef row_shape<4, 4, 4> rows;
    typedef tile_shape<4, 4, 8, 4, 4> tiles;
};
template <> struct fp8pipe_cuda::detail::tuning<activation::gated_forward> {
    typedef row_shape<4, 4, 3> rows;
    typedef tile_shape<4, 4, 8, 3, 4> tiles;
};
template <> struct fp8pipe_cuda::detail::tuning<activation::gated_backward> {
    typedef row_shape<4, 2, 3> rows;
    typedef tile_shape<4, 2, 8, 3, 4> tiles;
};

/* Of values that cost this much to make, one kernel for both formats is as fast. */
template <int A>
struct fp8pipe_cuda::detail::by_format<activation::plain_forward<A>> : std::false_type {
};
template <int A>
struct fp8pipe_cuda::detail::by_format<activation::plain_backward<A>> : std::false_type {
};
template <> struct fp8pipe_cuda::detail::by_format<activation::gated_forward> : std::false_type {
};
template <> struct fp8pipe_cuda::detail::by_format<activation::gated_backward> : std::false_type {
};

#endif
