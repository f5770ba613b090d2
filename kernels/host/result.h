/*
 * What host kernels share that compute values and quantize them as a struct fp8pipe_quantize_target
 * says: codes, amax, counts, and sums over rows in the order of the CUDA kernels. A kernel calls
 * result_begin; result_row for each piece of a row; result_end.
 */
#ifndef KERNELS_HOST_RESULT_H
#define KERNELS_HOST_RESULT_H

#include "kernels/kernels.h"

struct result {
    const struct fp8pipe_quantize_target *target;
    float scale;
    uint32_t largest;   /* bits of the largest magnitude */
    uint64_t saturated; /* only counted where the target asks */
    uint64_t flushed;
};

/* Reads the scale and writes its inverse, unless the target has no outputs. */
void result_begin(struct result *result, const struct fp8pipe_quantize_target *target);

/* Values of columns col .. col + count - 1 of a row. */
void result_row(struct result *result, int64_t row, int64_t col, const float *values,
                int64_t count);

/* Pads, folds the amax and adds the counts. */
void result_end(struct result *result);

/* *amax = max(*amax, bits); bits of the largest of `count` magnitudes and `largest`. */
void result_amax_fold(uint32_t *amax, uint32_t bits);
uint32_t result_amax(uint32_t largest, const float *values, int64_t count);

/*
 * Sums over the KERNEL_SUM_ROWS rows of a chunk of up to RESULT_COLS columns: 4 rows in ascending
 * order, four such sums as a tree, four of these in ascending order. All rows must be added, those
 * that the matrix does not have as NULL, which are zeros.
 */
#define RESULT_COLS 512
struct result_sums {
    float four[RESULT_COLS];
    float first[RESULT_COLS];
    float second[RESULT_COLS];
    float total[RESULT_COLS];
};
void result_sums_add(struct result_sums *sums, int64_t row, const float *values, int64_t count);

#endif
