/*
 * One quantize, as ops and linears need it: finds the scale, writes the copies that are wanted into
 * a filling or into temporary memory, and the column sums. Called by launchers.
 */
#ifndef LIB_QUANTIZE_H
#define LIB_QUANTIZE_H

#include "gemm.h"
#include "scaling.h"
#include "tensor.h"

struct quantize_request {
    struct fp8pipe_scaling *scaling;
    uint32_t slot;
    bool fold;
    struct fp8pipe_matrix x;
    struct filling *kept; /* NULL, or the filling to allocate and write, with its shape set */
    bool row;             /* wanted, in temporary memory if not kept */
    bool transposed;
    float *sums; /* NULL or [x.cols] */
    bool sums_accumulate;
};

/* The copies as GEMM operands; data is NULL where not wanted. */
struct quantized {
    struct gemm_operand row;
    struct gemm_operand transposed;
};

enum fp8pipe_status quantize_run(struct issue *issue, const struct quantize_request *request,
                                 struct quantized *out);

/* A filling's copies as operands. */
struct gemm_operand quantize_row_of(const struct filling *filling);
struct gemm_operand quantize_transposed_of(const struct filling *filling);

/* sums (+)= column sums of an unquantized matrix. */
enum fp8pipe_status quantize_sums(struct issue *issue, const struct fp8pipe_matrix *x, float *sums,
                                  bool accumulate);

#endif
