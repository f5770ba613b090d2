#include "numbers.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"

void *test_calloc(size_t count, size_t bytes)
{
    void *data = calloc(count ? count : 1, bytes);

    if (!data)
        bail("no memory for %zu times %zu bytes", count, bytes);
    return data;
}

/* ---- Random numbers ----------------------------------------------------------------------- */

uint64_t test_random(struct test_rng *rng)
{
    uint64_t x = rng->state += UINT64_C(0x9E3779B97F4A7C15);

    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

int64_t test_random_range(struct test_rng *rng, int64_t low, int64_t high)
{
    return low + (int64_t)(test_random(rng) % (uint64_t)(high - low + 1));
}

double test_random_uniform(struct test_rng *rng)
{
    return (double)(test_random(rng) >> 11) * 0x1p-53;
}

/* Box-Muller; 1 - u keeps the logarithm finite. */
double test_random_normal(struct test_rng *rng)
{
    double radius = sqrt(-2.0 * log(1.0 - test_random_uniform(rng)));

    return radius * cos(2.0 * 3.14159265358979323846 * test_random_uniform(rng));
}

/* ---- Number formats ----------------------------------------------------------------------- */

size_t test_dtype_bytes(enum fp8pipe_dtype dtype)
{
    return dtype == FP8PIPE_FP32 ? 4 : 2;
}

const char *test_dtype_name(enum fp8pipe_dtype dtype)
{
    switch (dtype) {
    case FP8PIPE_FP32:
        return "fp32";
    case FP8PIPE_BF16:
        return "bf16";
    case FP8PIPE_FP16:
        return "fp16";
    }
    return "?";
}

const char *test_format_name(enum fp8pipe_format format)
{
    return format == FP8PIPE_E4M3 ? "e4m3" : "e5m2";
}

/*
 * A 16-bit format of `precision` significant bits, the hidden one too, whose smallest normal number
 * is 2^exponent_min. A significand that rounds up to the next power of two carries into the
 * exponent field by itself.
 */
static uint16_t half_from_double(double value, int precision, int exponent_min)
{
    uint32_t fraction_bits = (uint32_t)precision - 1;
    uint32_t infinity = 0x7FFFu & ~((1u << fraction_bits) - 1);
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs(value);
    int exponent;
    uint64_t bits;

    if (isnan(value))
        return (uint16_t)(sign | infinity | 1u << (fraction_bits - 1));
    if (isinf(value))
        return (uint16_t)(sign | infinity);
    frexp(magnitude, &exponent);
    exponent--; /* magnitude is 2^exponent times [1, 2) */
    if (exponent < exponent_min || magnitude == 0)
        exponent = exponent_min;
    if (exponent > -exponent_min + 1)
        return (uint16_t)(sign | infinity);
    bits = ((uint64_t)(exponent - exponent_min) << fraction_bits) +
           (uint64_t)nearbyint(ldexp(magnitude, (int)fraction_bits - exponent));
    return (uint16_t)(sign | (bits < infinity ? bits : infinity));
}

static double half_to_double(uint16_t bits, int precision, int exponent_min)
{
    int fraction_bits = precision - 1;
    int field = (bits & 0x7FFF) >> fraction_bits;
    int fraction = bits & ((1 << fraction_bits) - 1);
    double value;

    if (field == 0x7FFF >> fraction_bits)
        value = fraction ? NAN : INFINITY;
    else if (field == 0)
        value = ldexp(fraction, exponent_min - fraction_bits);
    else
        value = ldexp(fraction + (1 << fraction_bits), field - 1 + exponent_min - fraction_bits);
    return bits & 0x8000 ? -value : value;
}

uint16_t test_bf16_from_double(double value)
{
    return half_from_double(value, 8, -126);
}

uint16_t test_fp16_from_double(double value)
{
    return half_from_double(value, 11, -14);
}

double test_bf16_to_double(uint16_t bits)
{
    return half_to_double(bits, 8, -126);
}

double test_fp16_to_double(uint16_t bits)
{
    return half_to_double(bits, 11, -14);
}

uint32_t test_float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

float test_float_from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

double test_element_get(enum fp8pipe_dtype dtype, const void *element)
{
    uint16_t half;
    float single;

    if (dtype == FP8PIPE_FP32) {
        memcpy(&single, element, sizeof(single));
        return single;
    }
    memcpy(&half, element, sizeof(half));
    return dtype == FP8PIPE_BF16 ? test_bf16_to_double(half) : test_fp16_to_double(half);
}

void test_element_set(enum fp8pipe_dtype dtype, void *element, double value)
{
    float single = (float)value;
    uint16_t half;

    if (dtype == FP8PIPE_FP32) {
        memcpy(element, &single, sizeof(single));
        return;
    }
    half = dtype == FP8PIPE_BF16 ? test_bf16_from_double(value) : test_fp16_from_double(value);
    memcpy(element, &half, sizeof(half));
}

double test_fp8_value(enum fp8pipe_format format, uint8_t byte)
{
    int fraction_bits = format == FP8PIPE_E4M3 ? 3 : 2;
    int bias = format == FP8PIPE_E4M3 ? 7 : 15;
    int field = (byte & 0x7F) >> fraction_bits;
    int fraction = byte & ((1 << fraction_bits) - 1);
    double value;

    if (format == FP8PIPE_E4M3 && (byte & 0x7F) == 0x7F)
        value = NAN;
    else if (format == FP8PIPE_E5M2 && field == 31)
        value = fraction ? NAN : INFINITY;
    else if (field == 0)
        value = ldexp(fraction, 1 - bias - fraction_bits);
    else
        value = ldexp(fraction + (1 << fraction_bits), field - bias - fraction_bits);
    return byte & 0x80 ? -value : value;
}

double test_fp8_max(enum fp8pipe_format format)
{
    return format == FP8PIPE_E4M3 ? 448.0 : 57344.0;
}

/* ---- References --------------------------------------------------------------------------- */

/* A copy with the contraction contiguous, rows padded with zeros to a multiple of 4. */
static double *pack(int64_t rows, int64_t k, struct test_operand operand)
{
    double *packed = test_calloc((size_t)((rows + 3) / 4 * 4 * k), sizeof(*packed));

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < k; j++)
            packed[i * k + j] = operand.data[i * operand.row_step + j * operand.k_step];
    return packed;
}

void test_gemm64(int64_t m, int64_t n, int64_t k, struct test_operand a, struct test_operand b,
                 double *d)
{
    double *pa = pack(m, k, a), *pb = pack(n, k, b);

    for (int64_t i = 0; i < m; i += 4) {
        for (int64_t j = 0; j < n; j += 4) {
            double sum[4][4] = {{0}};

            for (int64_t l = 0; l < k; l++)
                for (int64_t r = 0; r < 4; r++)
                    for (int64_t c = 0; c < 4; c++)
                        sum[r][c] += pa[(i + r) * k + l] * pb[(j + c) * k + l];
            for (int64_t r = 0; r < 4 && i + r < m; r++)
                for (int64_t c = 0; c < 4 && j + c < n; c++)
                    d[(i + r) * n + j + c] = sum[r][c];
        }
    }
    free(pa);
    free(pb);
}

double test_relative_error(int64_t count, const double *got, const double *want)
{
    double difference = 0, norm = 0;

    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(got[i]) || !isfinite(want[i]))
            return INFINITY;
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    if (norm == 0)
        return difference == 0 ? 0 : INFINITY;
    return sqrt(difference / norm);
}

/* rounding: the error of rounding the exact result to the output's dtype. */
static double allowed_error(const struct test_precision *precision, int64_t count, double rounding)
{
    bool on_host = precision->backend == FP8PIPE_BACKEND_HOST;
    double sum, bar, typical;

    if (precision->fp8)
        sum = on_host ? 1e-5 : precision->fast ? 3e-3 : 2e-4;
    else
        sum = on_host || precision->in == FP8PIPE_FP32 ? 1e-5 : 5e-5;
    if (count < 64)
        return 2 * sum + rounding;
    if (precision->out == FP8PIPE_FP32)
        return sum;
    typical = precision->out == FP8PIPE_BF16 ? 1.7e-3 : 2.1e-4;
    bar = fmax(sum, precision->out == FP8PIPE_BF16 ? 2e-3 : 4e-4);
    return sqrt(bar * bar + fmax(0, rounding * rounding - typical * typical));
}

double test_gemm_error(const struct test_precision *precision, int64_t m, int64_t n, int64_t k,
                       struct test_operand a, struct test_operand b, const double *bias,
                       const double *before, const double *got)
{
    double *want = test_calloc((size_t)(m * n), sizeof(double));
    double difference = 0, rounding = 0, norm = 0, terms = 0;

    test_gemm64(m, n, k, a, b, want);
    for (int64_t l = 0; l < k; l++) {
        double a_squares = 0, b_squares = 0;

        for (int64_t i = 0; i < m; i++)
            a_squares += pow(a.data[i * a.row_step + l * a.k_step], 2);
        for (int64_t j = 0; j < n; j++)
            b_squares += pow(b.data[j * b.row_step + l * b.k_step], 2);
        terms += a_squares * b_squares;
    }
    for (int64_t i = 0; i < m * n; i++) {
        double added = (bias ? bias[i % n] : 0) + (before ? before[i] : 0);
        uint32_t rounded = 0;

        want[i] += added;
        test_element_set(precision->out, &rounded, want[i]);
        rounding += pow(test_element_get(precision->out, &rounded) - want[i], 2);
        difference += pow(got[i] - want[i], 2);
        norm += pow(want[i], 2);
        terms += pow(added, 2);
    }
    free(want);
    norm = sqrt(norm > terms ? norm : terms);
    if (difference == 0)
        return 0;
    if (!isfinite(difference) || norm == 0)
        return INFINITY;
    return sqrt(difference) / norm / allowed_error(precision, m * n, sqrt(rounding) / norm);
}
