/*
 * Rows of the caller's matrices as float32, for the host kernels and GEMM. The dtype is looked at
 * once a row (or a piece of one), so that the loops inside vectorise.
 */
#ifndef KERNELS_HOST_CONVERT_H
#define KERNELS_HOST_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "fp8pipe.h"
#include "kernels/convert.h"

/*
 * Runs `body` for i = 0 .. count-1, in runs of a fixed length and then what is left: at -O2 gcc
 * vectorises only loops whose number of turns it knows and that fills its vectors.
 */
#define VECTOR_RUN 16
#define VECTOR_LOOP(i, count, body)                                                                \
    do {                                                                                           \
        int64_t i##_whole = (count) - (count) % VECTOR_RUN;                                        \
                                                                                                   \
        for (int64_t i##_run = 0; i##_run < i##_whole; i##_run += VECTOR_RUN) {                    \
            for (int64_t i = i##_run; i < i##_run + VECTOR_RUN; i++) {                             \
                body;                                                                              \
            }                                                                                      \
        }                                                                                          \
        for (int64_t i = i##_whole; i < (count); i++) {                                            \
            body;                                                                                  \
        }                                                                                          \
    } while (0)

static inline size_t dtype_bytes(enum fp8pipe_dtype dtype)
{
    return dtype == FP8PIPE_FP32 ? sizeof(float) : sizeof(uint16_t);
}

/* Address of element [row, col]. The matrix is not empty. */
static inline void *matrix_at(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col)
{
    size_t element = (size_t)row * (size_t)matrix->stride + (size_t)col;

    return (char *)matrix->data + element * dtype_bytes(matrix->dtype);
}

/* to[0 .. count-1] = from, exactly. */
static inline void row_load(float *restrict to, const void *restrict from, enum fp8pipe_dtype dtype,
                            int64_t count)
{
    if (dtype == FP8PIPE_FP32) {
        const float *values = from;

        VECTOR_LOOP(i, count, to[i] = values[i]);
    } else if (dtype == FP8PIPE_BF16) {
        const uint16_t *values = from;

        VECTOR_LOOP(i, count, to[i] = bf16_to_float(values[i]));
    } else {
        const uint16_t *values = from;

        VECTOR_LOOP(i, count, to[i] = fp16_to_float(values[i]));
    }
}

/* to[0 .. count-1] = from, rounded to nearest even, overflow to inf. */
static inline void row_store(void *restrict to, enum fp8pipe_dtype dtype,
                             const float *restrict from, int64_t count)
{
    if (dtype == FP8PIPE_FP32) {
        float *values = to;

        VECTOR_LOOP(i, count, values[i] = from[i]);
    } else if (dtype == FP8PIPE_BF16) {
        uint16_t *values = to;

        VECTOR_LOOP(i, count, values[i] = bf16_from_float(from[i]));
    } else {
        uint16_t *values = to;

        VECTOR_LOOP(i, count, values[i] = fp16_from_float(from[i]));
    }
}

#endif
