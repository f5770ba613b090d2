/*
 * GELU (tanh and erf), SiLU and their derivatives in float32, for host and device from one source
 * that gives the same bits on both: fused multiply-adds are written as such and no other operation
 * is fused, 1/d is rounded as IEEE says, exp is a polynomial.
 *
 *   gelu_tanh(x) = x s(t), t = 2 sqrt(2/pi) (x + 0.044715 x^3), s(t) = 1 / (1 + exp(-t))
 *   gelu_erf(x)  = x F(x), F the normal distribution: F(-a) = exp(-a^2/2) R(a) for a >= 0, R a
 *                  polynomial in 1 / (1 + 0.48 a)
 *   silu(x)      = x s(x)
 *
 * Beyond a bound on |x|, where s and F are 0 or 1 to float32, x is taken to be at the bound, so
 * that nothing overflows; values are then x or 0, for an infinite x what the formula gives: inf or
 * NaN. A NaN stays one.
 *
 * Against the formulas in exact arithmetic a value is off by at most 2.5e-7 |x|, a derivative by at
 * most 2.5e-7 (tests/activation-t.c).
 */
#ifndef KERNELS_ACTIVATION_H
#define KERNELS_ACTIVATION_H

#include "kernels/convert.h"

#define ACTIVATION_FN CONVERT_FN

/* bf16 numbers. */
#define ACTIVATION_GELU_TANH_BOUND 9.875f
#define ACTIVATION_GELU_ERF_BOUND 12.75f
#define ACTIVATION_SILU_BOUND 85.0f

ACTIVATION_FN float activation_fma(float a, float b, float c)
{
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

/*
 * 1 / d, rounded to nearest, for 1 <= d < 2^126. On the device an approximation that is right to
 * one unit in the last place, and one step of Newton's, which rounds it: what __frcp_rn does,
 * without its branch for numbers out of this range.
 */
ACTIVATION_FN float activation_reciprocal(float d)
{
#if defined(__CUDA_ARCH__)
    float q;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(q) : "f"(d));
    return __fmaf_rn(q, __fmaf_rn(-d, q, 1.0f), q);
#else
    return 1.0f / d;
#endif
}

/* x between -bound and bound; a NaN stays one. */
ACTIVATION_FN float activation_clamp(float x, float bound)
{
#if defined(__CUDA_ARCH__)
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-bound));
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(bound));
    return x;
#else
    x = x < -bound ? -bound : x;
    return x > bound ? bound : x;
#endif
}

/*
 * 2^p for |p| < 126, to 2e-7: 2^n from the sum with 1.5 * 2^23, whose lowest bits are n, times a
 * polynomial of p - n, which lies within half of 0.
 */
ACTIVATION_FN float activation_exp2(float p)
{
    const float shifted = p + 12582912.0f;
    const float f = p - (shifted - 12582912.0f);
    float power = 0.00132764635f;

    power = activation_fma(power, f, 0.00967554135f);
    power = activation_fma(power, f, 0.0555071330f);
    power = activation_fma(power, f, 0.240221197f);
    power = activation_fma(power, f, 0.693146967f);
    power = activation_fma(power, f, 1.0f);
    return float_from_bits(float_bits(power) + (float_bits(shifted) << 23));
}

/* s = 1 / (1 + 2^p) and s (1 - s), which is not made of 1 - s: that is not exact near s = 1. */
struct activation_sigmoid {
    float s;
    float slope;
};

ACTIVATION_FN struct activation_sigmoid activation_sigmoid(float p)
{
    const float power = activation_exp2(p);
    struct activation_sigmoid sigmoid;

    sigmoid.s = activation_reciprocal(1.0f + power);
    sigmoid.slope = power * sigmoid.s * sigmoid.s;
    return sigmoid;
}

/* Of x within the bound. Constants are in units of log2: -2 sqrt(2/pi) log2(e) and so on. */
ACTIVATION_FN struct activation_sigmoid activation_gelu_tanh_part(float x)
{
    return activation_sigmoid(x * activation_fma(x * x, -0.102943240f, -2.30220819f));
}

ACTIVATION_FN struct activation_sigmoid activation_silu_part(float x)
{
    return activation_sigmoid(x * -1.44269504f);
}

/* F(x); *density = exp(-x^2/2) */
ACTIVATION_FN float activation_gelu_erf_part(float x, float *density)
{
    const float a = x < 0.0f ? -x : x;
    const float u = activation_reciprocal(activation_fma(0.48f, a, 1.0f));
    float tail = -0.0458233617f;

    *density = activation_exp2(x * x * -0.721347520f);
    tail = activation_fma(tail, u, 0.235816430f);
    tail = activation_fma(tail, u, -0.446280813f);
    tail = activation_fma(tail, u, 0.282908851f);
    tail = activation_fma(tail, u, 0.0809010886f);
    tail = activation_fma(tail, u, 0.201583101f);
    tail = activation_fma(tail, u, 0.190894707f);
    tail = tail * u * *density;
    return x < 0.0f ? tail : 1.0f - tail;
}

/* A product with 0 and not 0: an infinite x then gives NaN. */
ACTIVATION_FN float activation_times(float x, float part, float bound)
{
    return x * (x < -bound ? 0.0f : part);
}

ACTIVATION_FN float activation_silu(float x)
{
    return activation_times(x, activation_silu_part(activation_clamp(x, ACTIVATION_SILU_BOUND)).s,
                            ACTIVATION_SILU_BOUND);
}

ACTIVATION_FN float activation_silu_slope(float x)
{
    const float clamped = activation_clamp(x, ACTIVATION_SILU_BOUND);
    const struct activation_sigmoid part = activation_silu_part(clamped);

    return activation_fma(clamped, part.slope, part.s);
}

ACTIVATION_FN float activation_gelu_tanh(float x)
{
    return activation_times(
        x, activation_gelu_tanh_part(activation_clamp(x, ACTIVATION_GELU_TANH_BOUND)).s,
        ACTIVATION_GELU_TANH_BOUND);
}

ACTIVATION_FN float activation_gelu_tanh_slope(float x)
{
    const float clamped = activation_clamp(x, ACTIVATION_GELU_TANH_BOUND);
    const struct activation_sigmoid part = activation_gelu_tanh_part(clamped);
    const float slope_of_t = activation_fma(clamped * clamped, 0.214064448f, 1.59576912f);

    return activation_fma(clamped * part.slope, slope_of_t, part.s);
}

ACTIVATION_FN float activation_gelu_erf(float x)
{
    float density;

    return activation_times(
        x, activation_gelu_erf_part(activation_clamp(x, ACTIVATION_GELU_ERF_BOUND), &density),
        ACTIVATION_GELU_ERF_BOUND);
}

ACTIVATION_FN float activation_gelu_erf_slope(float x)
{
    const float clamped = activation_clamp(x, ACTIVATION_GELU_ERF_BOUND);
    float density;
    const float part = activation_gelu_erf_part(clamped, &density);

    return activation_fma(clamped * 0.398942280f, density, part);
}

#endif
