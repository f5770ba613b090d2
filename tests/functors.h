/*
 * Functors of fp8pipe_quantize.cuh for tests, callable from C. tests/functors.cu is built as a
 * user's file is, tests/functors_debug.cu with FP8PIPE_DEBUG.
 */
#ifndef TESTS_FUNCTORS_H
#define TESTS_FUNCTORS_H

#include <stdbool.h>
#include <stdint.h>

#include "fp8pipe_fused.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* value = x * gate + bias, each a rounding of its own; stored to `out` too, unless it is NONE. */
struct functor_gated {
    struct fp8pipe_matrix x;    /* [rows, cols] */
    struct fp8pipe_matrix gate; /* [rows, cols], or through rows_of, or one row */
    struct fp8pipe_matrix bias; /* [1, cols], of x's dtype */
    struct fp8pipe_matrix out;  /* [rows, cols]; may be x */
    const int32_t *rows_of;
    bool aligned; /* the functor says whether it is; of kind 0 alone */
};

/* Dtypes of x, gate and out by the kind. */
#define FUNCTOR_GATED_KINDS 3
#define FUNCTOR_GATED_DTYPES                                                                       \
    {                                                                                              \
        {FP8PIPE_BF16, FP8PIPE_FP32, FP8PIPE_BF16}, {FP8PIPE_FP16, FP8PIPE_BF16, FP8PIPE_FP16},    \
        {                                                                                          \
            FP8PIPE_FP32, FP8PIPE_FP16, FP8PIPE_BF16                                               \
        }                                                                                          \
    }
enum fp8pipe_status functor_gated(int kind, const struct functor_gated *gated,
                                  struct fp8pipe_stream *stream,
                                  const struct fp8pipe_quantize_target *target);

/* value = a * b of x = [a, b], bf16 [rows, 2 * cols], which become b + 1 and a + 1. */
enum fp8pipe_status functor_halves(const struct fp8pipe_matrix *x, struct fp8pipe_stream *stream,
                                   const struct fp8pipe_quantize_target *target);

/* out = x, float32 to any dtype, without a target. */
enum fp8pipe_status functor_convert(const struct fp8pipe_matrix *x,
                                    const struct fp8pipe_matrix *out, struct CUstream_st *stream);

/* What a functor does wrong in the debug build. */
enum functor_fault {
    FAULT_NONE,
    FAULT_ROW,
    FAULT_COLUMN,
    FAULT_ROWS_OF,
    FAULT_RESULT,
    FAULT_DTYPE
};
/* Returns the cudaError_t of the kernel. */
int functor_fault_run(enum functor_fault fault);

#ifdef __cplusplus
}
#endif

#endif
