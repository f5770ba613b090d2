/*
 * A plan's key in cuBLASLt's terms.
 *
 * D[m,n] = A[m,k] . B[n,k]^T in row-major terms is D^T[n,m] = B . A^T in cuBLASLt's column-major
 * ones: its A is B, its B is A, and a row-major [rows, cols] is a column-major cols x rows. An
 * operand that is not transposed here is k x rows there: its A needs op T, its B op N, which is
 * what FP8 demands.
 */
#ifndef LIB_CUDA_PLAN_DESCRIBE_H
#define LIB_CUDA_PLAN_DESCRIBE_H

#include "plan.h"

/* The first error of a row of calls. */
#define TRY(error, call)                                                                           \
    do {                                                                                           \
        if ((error) == CUBLAS_STATUS_SUCCESS)                                                      \
            (error) = (call);                                                                      \
    } while (0)

/* Stands for any aligned device pointer, where nothing is run. */
#define PLAN_SOME_POINTER ((void *)(uintptr_t)PLAN_ALIGN_MAX)

/* The pointers of one call, as gemm_args has them. NULL: the descriptor has none. */
struct plan_pointers {
    const void *a_scale;
    const void *b_scale;
    const void *bias;
    const void *d_scale;
    const void *d_amax;
};

cublasStatus_t plan_point(const struct cublaslt *lt, cublasLtMatmulDescOpaque_t *desc,
                          const struct plan_pointers *to);

/* Descriptors and layouts of a plan that was all zero; the algorithm is still to come. */
cublasStatus_t plan_describe(const struct cublaslt *lt, struct plan *plan,
                             const struct plan_key *key);

/* What an algorithm for the key may ask for. */
cublasStatus_t plan_preference(const struct cublaslt *lt,
                               cublasLtMatmulPreferenceOpaque_t *preference,
                               const struct plan_key *key, uint64_t workspace_bytes);

#endif
