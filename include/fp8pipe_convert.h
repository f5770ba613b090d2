/*
 * libfp8pipe: conversions between float32 and bf16, fp16, E4M3 and E5M2, for host and device from
 * one source. For kernels and functions of the caller's: what the library does itself, to the bit.
 *
 * Widening is exact, NaN payloads included. Narrowing to bf16 and fp16 rounds to nearest even,
 * overflows to inf, makes exact subnormals and keeps -0 and the sign of a NaN, which becomes quiet.
 *
 *   E4M3  1 sign, 4 exponent (bias 7), 3 mantissa bits; no inf; NaN 0x7F and 0xFF; largest 448.
 *   E5M2  1 sign, 5 exponent (bias 15), 2 mantissa bits; inf 0x7C; NaN 0x7D-0x7F; largest 57344.
 *
 * From float to FP8: rounded to nearest even, saturating (inf too) to the largest finite value, -0
 * kept, every NaN 0x7F, subnormals exact. To float: exact, inf and NaN as themselves.
 *
 * Free of branches, so that loops over them vectorise; the default rounding mode is assumed, while
 * flushing of float32 subnormals, on by some callers' choice, changes nothing.
 */
#ifndef FP8PIPE_CONVERT_H
#define FP8PIPE_CONVERT_H

#include <float.h>
#include <stdint.h>

#include <fp8pipe.h>

/* ---- 16 bits ------------------------------------------------------------------------------ */

#if defined(__CUDACC__)
#define FP8PIPE_CONVERT_FN static __host__ __device__ __forceinline__
#else
#define FP8PIPE_CONVERT_FN static inline
#endif

FP8PIPE_CONVERT_FN uint32_t fp8pipe_float_bits(float x)
{
#if defined(__CUDA_ARCH__)
    return __float_as_uint(x);
#else
    uint32_t bits;

    /* The builtin stays a register move under -fno-builtin. */
    __builtin_memcpy(&bits, &x, sizeof(bits));
    return bits;
#endif
}

FP8PIPE_CONVERT_FN float fp8pipe_float_from_bits(uint32_t bits)
{
#if defined(__CUDA_ARCH__)
    return __uint_as_float(bits);
#else
    float x;

    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
#endif
}

/*
 * condition ? a : b, as masks: behind a branch, float arithmetic that may raise an exception flag
 * keeps compilers from vectorising.
 */
FP8PIPE_CONVERT_FN uint32_t fp8pipe_convert_select(int condition, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)condition;

    return (a & mask) | (b & ~mask);
}

/*
 * Code, without sign, of the finite |x| of bits `magnitude` in a smaller format with
 * `mantissa_bits`, whose least normal has the float32 exponent `exponent_least`. Adding a power of
 * two whose last place is the format's step at |x| makes the hardware round |x| to the format, to
 * nearest even, subnormals too. The magnitude must not be the bits of a product just computed:
 * something that is not float arithmetic has to lie between, or the compiler may fuse the two.
 */
FP8PIPE_CONVERT_FN uint32_t fp8pipe_convert_round(uint32_t magnitude, int mantissa_bits,
                                                  uint32_t exponent_least)
{
    uint32_t least = exponent_least << 23;
    uint32_t exponent = magnitude & 0x7f800000u;
    uint32_t magic;
    float sum;

    /* Signed comparisons: those are what SSE2 has; no operand reaches 2^31. */
    exponent = (int32_t)exponent > (int32_t)least ? exponent : least;
    magic = exponent + ((uint32_t)(23 - mantissa_bits) << 23);
#if defined(__CUDA_ARCH__)
    sum = __fadd_rn(fp8pipe_float_from_bits(magnitude), fp8pipe_float_from_bits(magic));
#else
    sum = fp8pipe_float_from_bits(magnitude) + fp8pipe_float_from_bits(magic);
#endif
    return fp8pipe_float_bits(sum) - magic + ((exponent - least) >> (23 - mantissa_bits));
}

FP8PIPE_CONVERT_FN float fp8pipe_bf16_to_float(uint16_t x)
{
    return fp8pipe_float_from_bits((uint32_t)x << 16);
}

FP8PIPE_CONVERT_FN uint16_t fp8pipe_bf16_from_float(float x)
{
    uint32_t bits = fp8pipe_float_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;

    return (uint16_t)fp8pipe_convert_select((int32_t)(bits & 0x7fffffffu) > 0x7f800000, quiet,
                                            rounded);
}

FP8PIPE_CONVERT_FN float fp8pipe_fp16_to_float(uint16_t x)
{
    uint32_t magnitude = x & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = (magnitude << 13) + (224u << 23);
    uint32_t subnormal = fp8pipe_float_bits((float)(int32_t)magnitude * (1.0f / (1 << 24)));
    uint32_t bits = fp8pipe_convert_select((int32_t)magnitude < 0x400, subnormal, normal);

    bits = fp8pipe_convert_select((int32_t)magnitude < 0x7c00, bits, special);
    return fp8pipe_float_from_bits(bits | (uint32_t)(x & 0x8000u) << 16);
}

FP8PIPE_CONVERT_FN uint16_t fp8pipe_fp16_from_float(float x)
{
    uint32_t bits = fp8pipe_float_bits(x);
    uint32_t magnitude = bits & 0x7fffffffu;
    /* 2^16 has the code of inf. */
    uint32_t clamped = (int32_t)magnitude < (143 << 23) ? magnitude : 143u << 23;
    uint32_t code = fp8pipe_convert_round(clamped, 10, 113);

    code = fp8pipe_convert_select((int32_t)magnitude > 0x7f800000, 0x7e00, code);
    return (uint16_t)(code | ((bits >> 16) & 0x8000u));
}

/* ---- FP8 ---------------------------------------------------------------------------------- */

#define FP8PIPE_E4M3_MAX 448.0f
#define FP8PIPE_E5M2_MAX 57344.0f

/* `largest`: bits of the largest finite value. Saturating before rounding gives the same code. */
FP8PIPE_CONVERT_FN uint8_t fp8pipe_fp8_round(float x, uint32_t largest, int mantissa_bits,
                                             uint32_t exponent_least)
{
    uint32_t bits = fp8pipe_float_bits(x);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t clamped = (int32_t)magnitude < (int32_t)largest ? magnitude : largest;
    uint32_t code = fp8pipe_convert_round(clamped, mantissa_bits, exponent_least);

    code |= (bits >> 24) & 0x80u;
    return (uint8_t)fp8pipe_convert_select((int32_t)magnitude > 0x7f800000, 0x7f, code);
}

FP8PIPE_CONVERT_FN uint8_t fp8pipe_e4m3_from_float(float x)
{
    return fp8pipe_fp8_round(x, 0x43e00000u, 3, 121);
}

FP8PIPE_CONVERT_FN uint8_t fp8pipe_e5m2_from_float(float x)
{
    return fp8pipe_fp8_round(x, 0x47600000u, 2, 113);
}

FP8PIPE_CONVERT_FN float fp8pipe_e4m3_to_float(uint8_t code)
{
    uint32_t magnitude = code & 0x7fu;
    uint32_t normal = (magnitude << 20) + (120u << 23);
    uint32_t subnormal = fp8pipe_float_bits((float)(int32_t)magnitude * (1.0f / (1 << 9)));
    uint32_t bits = fp8pipe_convert_select((int32_t)magnitude < 0x08, subnormal, normal);

    bits = fp8pipe_convert_select(magnitude == 0x7f, 0x7fc00000, bits);
    return fp8pipe_float_from_bits(bits | (uint32_t)(code & 0x80u) << 24);
}

/* E5M2 is the upper byte of fp16. */
FP8PIPE_CONVERT_FN float fp8pipe_e5m2_to_float(uint8_t code)
{
    return fp8pipe_fp16_to_float((uint16_t)(code << 8));
}

FP8PIPE_CONVERT_FN uint8_t fp8pipe_fp8_from_float(float x, enum fp8pipe_format format)
{
    return format == FP8PIPE_E5M2 ? fp8pipe_e5m2_from_float(x) : fp8pipe_e4m3_from_float(x);
}

FP8PIPE_CONVERT_FN float fp8pipe_fp8_to_float(uint8_t code, enum fp8pipe_format format)
{
    return format == FP8PIPE_E5M2 ? fp8pipe_e5m2_to_float(code) : fp8pipe_e4m3_to_float(code);
}

FP8PIPE_CONVERT_FN float fp8pipe_fp8_max(enum fp8pipe_format format)
{
    return format == FP8PIPE_E5M2 ? FP8PIPE_E5M2_MAX : FP8PIPE_E4M3_MAX;
}

/* A scale from its quotient, fp8_max * 2^-margin / amax: kept between FLT_MIN and FLT_MAX, so that
 * it and its inverse are positive and finite. */
FP8PIPE_CONVERT_FN float fp8pipe_fp8_scale(float quotient)
{
    return quotient > FLT_MAX ? FLT_MAX : quotient < FLT_MIN ? FLT_MIN : quotient;
}

#endif
