/*
 * GEMMs of any shape: what the backend's GEMM cannot take is padded, or finished by a store kernel,
 * in temporary memory, never in the caller's buffers. Called by launchers.
 */
#ifndef LIB_GEMM_H
#define LIB_GEMM_H

#include "issue.h"

/*
 * With P = A[m,k] . B[n,k]^T + bias, and D added where accumulating: D = activation(P) + residual.
 * FP8 operands have rows and contraction padded as fillings are (KERNEL_FP8_PAD, zeros along the
 * contraction). m, n, k >= 0.
 */
struct gemm_request {
    int64_t k;
    struct gemm_operand a;
    struct gemm_operand b;
    struct fp8pipe_matrix d; /* m rows, n cols */
    struct fp8pipe_vector bias;
    struct fp8pipe_matrix residual; /* data NULL: none; else of D's shape and dtype, or D itself */
    enum fp8pipe_activation activation;
    bool accumulate; /* not together with a residual */
    bool fast;
};

/* D as FP8 bytes that the GEMM itself writes: rows of n bytes, 16-byte aligned. */
struct gemm_fp8 {
    uint8_t *data;
    enum fp8pipe_format format;
    const float *scale;
    uint32_t *amax; /* set to the bits of max|activation(P)| */
};

enum gemm_type gemm_type_of_format(enum fp8pipe_format format);

/* An unquantized matrix as an operand. */
struct gemm_operand gemm_operand_of(const struct fp8pipe_matrix *matrix, bool transposed);

enum fp8pipe_status gemm_run(struct issue *issue, const struct gemm_request *request);

/* D = cast(activation(P) * *scale) into `out`; of request->d only the shape is read. ENOTSUP, with
 * nothing enqueued, where the backend's GEMM cannot do this. */
enum fp8pipe_status gemm_run_fp8(struct issue *issue, const struct gemm_request *request,
                                 const struct gemm_fp8 *out);

#endif
