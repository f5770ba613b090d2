/*
 * Conversion between float32, bf16 and fp16, for host and device from one source.
 *
 * Widening is exact, NaN payloads included. Narrowing rounds to nearest even, overflows to inf,
 * makes exact subnormals and keeps -0 and the sign of a NaN, which becomes quiet. Free of branches,
 * so that loops over them vectorise; the default rounding mode is assumed, while flushing of
 * float32 subnormals, on by some callers' choice, changes nothing.
 */
#ifndef KERNELS_CONVERT_H
#define KERNELS_CONVERT_H

#include <stdint.h>

#if defined(__CUDACC__)
#define CONVERT_FN static __host__ __device__ __forceinline__
#else
#define CONVERT_FN static inline
#endif

CONVERT_FN uint32_t float_bits(float x)
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

CONVERT_FN float float_from_bits(uint32_t bits)
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
CONVERT_FN uint32_t convert_select(int condition, uint32_t a, uint32_t b)
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
CONVERT_FN uint32_t convert_round(uint32_t magnitude, int mantissa_bits, uint32_t exponent_least)
{
    uint32_t least = exponent_least << 23;
    uint32_t exponent = magnitude & 0x7f800000u;
    uint32_t magic;
    float sum;

    /* Signed comparisons: those are what SSE2 has; no operand reaches 2^31. */
    exponent = (int32_t)exponent > (int32_t)least ? exponent : least;
    magic = exponent + ((uint32_t)(23 - mantissa_bits) << 23);
#if defined(__CUDA_ARCH__)
    sum = __fadd_rn(float_from_bits(magnitude), float_from_bits(magic));
#else
    sum = float_from_bits(magnitude) + float_from_bits(magic);
#endif
    return float_bits(sum) - magic + ((exponent - least) >> (23 - mantissa_bits));
}

CONVERT_FN float bf16_to_float(uint16_t x)
{
    return float_from_bits((uint32_t)x << 16);
}

CONVERT_FN uint16_t bf16_from_float(float x)
{
    uint32_t bits = float_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;

    return (uint16_t)convert_select((int32_t)(bits & 0x7fffffffu) > 0x7f800000, quiet, rounded);
}

CONVERT_FN float fp16_to_float(uint16_t x)
{
    uint32_t magnitude = x & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = (magnitude << 13) + (224u << 23);
    uint32_t subnormal = float_bits((float)(int32_t)magnitude * (1.0f / (1 << 24)));
    uint32_t bits = convert_select((int32_t)magnitude < 0x400, subnormal, normal);

    bits = convert_select((int32_t)magnitude < 0x7c00, bits, special);
    return float_from_bits(bits | (uint32_t)(x & 0x8000u) << 16);
}

CONVERT_FN uint16_t fp16_from_float(float x)
{
    uint32_t bits = float_bits(x);
    uint32_t magnitude = bits & 0x7fffffffu;
    /* 2^16 has the code of inf. */
    uint32_t clamped = (int32_t)magnitude < (143 << 23) ? magnitude : 143u << 23;
    uint32_t code = convert_round(clamped, 10, 113);

    code = convert_select((int32_t)magnitude > 0x7f800000, 0x7e00, code);
    return (uint16_t)(code | ((bits >> 16) & 0x8000u));
}

#endif
