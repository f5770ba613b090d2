/*
 * Numbers for tests: a seeded random generator, the element and FP8 formats by their definition,
 * the float64 GEMM that results are compared with. Leaf, knows nothing of pipes; any thread may
 * call it.
 */
#ifndef TESTS_NUMBERS_H
#define TESTS_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fp8pipe.h"

/* The host's memory, or bail; zeroed; count 0 gives a valid pointer too. */
void *test_calloc(size_t count, size_t bytes);

/* ---- Random numbers ----------------------------------------------------------------------- */

/* splitmix64: any seed is a good one, the same sequence everywhere. */
struct test_rng {
    uint64_t state;
};
uint64_t test_random(struct test_rng *rng);
/* An integer of low .. high, both included. */
int64_t test_random_range(struct test_rng *rng, int64_t low, int64_t high);
double test_random_uniform(struct test_rng *rng); /* [0, 1) */
double test_random_normal(struct test_rng *rng);  /* mean 0, variance 1 */

/* ---- Number formats ----------------------------------------------------------------------- */

size_t test_dtype_bytes(enum fp8pipe_dtype dtype);
const char *test_dtype_name(enum fp8pipe_dtype dtype);    /* "fp32" ... */
const char *test_format_name(enum fp8pipe_format format); /* "e4m3", "e5m2" */

/* Rounds to nearest even, overflow to inf, NaN to a NaN; straight from the double. */
uint16_t test_bf16_from_double(double value);
uint16_t test_fp16_from_double(double value);
double test_bf16_to_double(uint16_t bits);
double test_fp16_to_double(uint16_t bits);
/* The bits of a float, and back. */
uint32_t test_float_bits(float value);
float test_float_from_bits(uint32_t bits);

/* One element of `dtype` at `element`, as a double (exact), and back (rounded). */
double test_element_get(enum fp8pipe_dtype dtype, const void *element);
void test_element_set(enum fp8pipe_dtype dtype, void *element, double value);

/* What an FP8 byte stands for: 1-4-3 with bias 7, or 1-5-2 with bias 15; NaN for its NaNs. */
double test_fp8_value(enum fp8pipe_format format, uint8_t byte);
double test_fp8_max(enum fp8pipe_format format); /* 448 or 57344 */

/* ---- References --------------------------------------------------------------------------- */

/*
 * d[m, n] = sum over k of a[m, k] * b[n, k], float64; all dense. Element [i, k] of an operand is at
 * i * row_step + k * k_step, so a transposed operand is (1, rows) instead of (k, 1).
 */
struct test_operand {
    const double *data;
    int64_t row_step;
    int64_t k_step;
};
void test_gemm64(int64_t m, int64_t n, int64_t k, struct test_operand a, struct test_operand b,
                 double *d);

/* Norm of the difference over the norm of `want`; 0 if both are 0; inf if anything is not
 * finite. */
double test_relative_error(int64_t count, const double *got, const double *want);

struct test_precision {
    enum fp8pipe_backend backend;
    bool fp8;
    enum fp8pipe_dtype in; /* of operands that are not FP8 */
    enum fp8pipe_dtype out;
    bool fast;
};

/*
 * Error of got = A . B^T + bias + before (bias[n] and before[m, n] may be NULL), norm over norm, as
 * a part of the error that is allowed: more than 1 is wrong; inf if anything is not finite.
 *
 * Where terms cancel by chance, as they do in a result of one element, the error is that of the
 * terms: so it is taken over the norm that the terms have with random signs, if that is larger than
 * the result's.
 *
 * Allowed, for FP8 operands: 2e-4 into fp32 with split accumulation, 3e-3 with fast. The host sums
 * in float32, as other GEMMs do on either backend (products of 16-bit operands are exact, tensor
 * cores truncate their sums). Into bf16 2e-3, fast 3e-3: rounding makes 1.7e-3 of that if many
 * significands average. Where the rounding of this very result makes more, the rest is granted; and
 * a result of few elements has the errors of sum and rounding in a row at worst, a sum beside a tie
 * counting twice.
 */
double test_gemm_error(const struct test_precision *precision, int64_t m, int64_t n, int64_t k,
                       struct test_operand a, struct test_operand b, const double *bias,
                       const double *before, const double *got);

#endif
