/*
 * E4M3 and E5M2 conversion, for host and device from one source.
 *
 *   E4M3  1 sign, 4 exponent (bias 7), 3 mantissa bits; no inf; NaN 0x7F and 0xFF; largest 448.
 *   E5M2  1 sign, 5 exponent (bias 15), 2 mantissa bits; inf 0x7C; NaN 0x7D-0x7F; largest 57344.
 *
 * From float: rounded to nearest even, saturating (inf too) to the largest finite value, -0 kept,
 * every NaN 0x7F, subnormals exact. To float: exact, inf and NaN as themselves. Free of branches,
 * so that loops over them vectorise.
 */
#ifndef KERNELS_FP8_H
#define KERNELS_FP8_H

#include <float.h>
#include <stdint.h>

#include "fp8pipe.h"
#include "kernels/convert.h"

#define FP8_FN CONVERT_FN

#define FP8_E4M3_MAX 448.0f
#define FP8_E5M2_MAX 57344.0f

/* `largest`: bits of the largest finite value. Saturating before rounding gives the same code. */
FP8_FN uint8_t fp8_round(float x, uint32_t largest, int mantissa_bits, uint32_t exponent_least)
{
    uint32_t bits = float_bits(x);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t clamped = (int32_t)magnitude < (int32_t)largest ? magnitude : largest;
    uint32_t code = convert_round(clamped, mantissa_bits, exponent_least);

    code |= (bits >> 24) & 0x80u;
    return (uint8_t)convert_select((int32_t)magnitude > 0x7f800000, 0x7f, code);
}

FP8_FN uint8_t fp8_e4m3_from_float(float x)
{
    return fp8_round(x, 0x43e00000u, 3, 121);
}

FP8_FN uint8_t fp8_e5m2_from_float(float x)
{
    return fp8_round(x, 0x47600000u, 2, 113);
}

FP8_FN float fp8_e4m3_to_float(uint8_t code)
{
    uint32_t magnitude = code & 0x7fu;
    uint32_t normal = (magnitude << 20) + (120u << 23);
    uint32_t subnormal = float_bits((float)(int32_t)magnitude * (1.0f / (1 << 9)));
    uint32_t bits = convert_select((int32_t)magnitude < 0x08, subnormal, normal);

    bits = convert_select(magnitude == 0x7f, 0x7fc00000, bits);
    return float_from_bits(bits | (uint32_t)(code & 0x80u) << 24);
}

/* E5M2 is the upper byte of fp16. */
FP8_FN float fp8_e5m2_to_float(uint8_t code)
{
    return fp16_to_float((uint16_t)(code << 8));
}

FP8_FN uint8_t fp8_from_float(float x, enum fp8pipe_format format)
{
    return format == FP8PIPE_E5M2 ? fp8_e5m2_from_float(x) : fp8_e4m3_from_float(x);
}

FP8_FN float fp8_to_float(uint8_t code, enum fp8pipe_format format)
{
    return format == FP8PIPE_E5M2 ? fp8_e5m2_to_float(code) : fp8_e4m3_to_float(code);
}

FP8_FN float fp8_max(enum fp8pipe_format format)
{
    return format == FP8PIPE_E5M2 ? FP8_E5M2_MAX : FP8_E4M3_MAX;
}

/* A scale from its quotient fp8_max * 2^-margin / amax: kept between FLT_MIN and FLT_MAX, so that
 * it and its inverse are positive and finite. */
FP8_FN float fp8_scale(float quotient)
{
    return quotient > FLT_MAX ? FLT_MAX : quotient < FLT_MIN ? FLT_MIN : quotient;
}

#endif
