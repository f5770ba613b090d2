/*
 * GEMMs of any shape: what the backend's GEMM cannot take is padded, or finished by a store kernel,
 * in temporary memory, never in the caller's buffers. Called by launchers.
 */
#ifndef LIB_GEMM_H
#define LIB_GEMM_H

#include "issue.h"

/*
 * D[m,n] (+)= A[m,k] . B[n,k]^T + bias. FP8 operands have rows and contraction padded as fillings
 * are (KERNEL_FP8_PAD, zeros along the contraction). m, n, k >= 0.
 */
struct gemm_request {
    int64_t k;
    struct gemm_operand a;
    struct gemm_operand b;
    struct fp8pipe_matrix d; /* m rows, n cols */
    struct fp8pipe_vector bias;
    bool accumulate;
    bool fast;
};

enum gemm_type gemm_type_of_format(enum fp8pipe_format format);

/* An unquantized matrix as an operand. */
struct gemm_operand gemm_operand_of(const struct fp8pipe_matrix *matrix, bool transposed);

enum fp8pipe_status gemm_run(struct issue *issue, const struct gemm_request *request);

#endif
