/*
 * Arguments and meaning of the kernels of fp8pipe_modulate and its backward, once, for both
 * backends; the arithmetic of their row sums, from one source for both, so that both give the same
 * bits. Included by kernels/kernels.h, whose conventions hold.
 */
#ifndef KERNELS_MODULATE_H
#define KERNELS_MODULATE_H

#include <math.h>
#include <stdint.h>

#include "fp8pipe_fused.h"
#include "kernels/convert.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A matrix whose shape is known otherwise. data NULL: absent. stride 0: one row, which stands for
 * all. Rows may be aligned to the element only.
 */
struct kernel_view {
    void *data;
    int64_t stride; /* elements */
    enum fp8pipe_dtype dtype;
};

/*
 * modulate: see struct fp8pipe_modulate_op. The row of gate, scale and shift that token i takes is
 * rows_of[i], or i if rows_of is NULL.
 *
 *   x_out   may be x itself; else no output overlaps anything.
 *   norm    LAYER and RMS need mean and rstd, [rows] each, which are written; NONE takes neither.
 *   weight  [cols] float32 or NULL, bias likewise; with NONE too, where n = x'.
 *   target  of z, in float32, as struct fp8pipe_quantize_target says; with partial sums in the
 *           order of kernel_quantize. own_amax given: the pass for it, which the device skips if
 *           *has_scale is set, is part of this; *own_amax is 0 before. scale_inv NULL: nothing is
 *           quantized, and the other outputs are NULL.
 *
 * rows and cols >= 1. Values of NaN may differ in sign and payload between the backends.
 */
struct kernel_modulate_args {
    int64_t rows;
    int64_t cols;
    struct kernel_view x;
    struct kernel_view y;
    struct kernel_view gate;
    struct kernel_view x_out;
    struct kernel_view scale;
    struct kernel_view shift;
    struct kernel_view z;
    const int32_t *rows_of;
    enum fp8pipe_norm norm;
    float epsilon;
    const float *weight;
    const float *bias;
    float *mean;
    float *rstd;
    struct fp8pipe_quantize_target target;
};

/*
 * modulate_backward: see struct fp8pipe_modulate_backward_op. Each output may be absent.
 *
 *   dgate, dscale, dshift  [rows, cols]: written for each token, not summed.
 *   *_partials  [chunks + groups, cols] float32, chunks = ceil(rows / KERNEL_SUM_ROWS): the sums
 *               over the tokens of chunk b that take row r are row b + r. As rows_of (NULL: all 0)
 *               does not decrease, no two pairs that occur have the same. Rows for pairs that do
 *               not occur are not written. NULL: not wanted.
 *   weight_partials, bias_partials  [chunks, cols] float32.
 *   row_means   [2 * rows] float32, scratch; needed with a norm.
 *   target      of dy if y is given, else of dx.
 */
struct kernel_modulate_backward_args {
    int64_t rows;
    int64_t cols;
    struct kernel_view dz;
    struct kernel_view dx_out;
    struct kernel_view x_out;
    struct kernel_view y;
    struct kernel_view gate;
    struct kernel_view scale;
    const int32_t *rows_of;
    enum fp8pipe_norm norm;
    const float *weight;
    const float *bias;
    const float *mean;
    const float *rstd;
    struct kernel_view dx;
    struct kernel_view dy;
    struct kernel_view dgate;
    struct kernel_view dscale;
    struct kernel_view dshift;
    float *gate_partials;
    float *scale_partials;
    float *shift_partials;
    float *weight_partials;
    float *bias_partials;
    float *row_means;
    struct fp8pipe_quantize_target target;
};

/*
 * group_sums: out[r, c] = the sum over chunks b, ascending, of partials[b + r, c], for the chunks
 * with tokens of row r; 0 if there are none. rows: tokens, may be 0. groups, cols >= 1.
 */
struct kernel_group_sums_args {
    const float *partials;
    const int32_t *rows_of; /* NULL: all 0 */
    int64_t rows;
    int64_t groups;
    int64_t cols;
    struct kernel_view out;
};

void kernel_modulate_host(const struct kernel_modulate_args *args);
void kernel_modulate_backward_host(const struct kernel_modulate_backward_args *args);
void kernel_group_sums_host(const struct kernel_group_sums_args *args);

struct CUstream_st;
int kernel_modulate_cuda(const struct kernel_modulate_args *args, struct CUstream_st *stream);
int kernel_modulate_backward_cuda(const struct kernel_modulate_backward_args *args,
                                  struct CUstream_st *stream);
int kernel_group_sums_cuda(const struct kernel_group_sums_args *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

/* ---- Row sums ------------------------------------------------------------------------------- */

/*
 * A row is cut into segments of 512 columns, beyond the last column zeros. Of a segment, lane l of
 * 32 adds up, from 0, elements 8l .. 8l + 7 and then 256 + 8l .. 256 + 8l + 7; the lanes are then
 * added as a tree: l and l + 16, l + 8, ... Segments are added, or merged, in ascending order.
 */
#define MODULATE_SEGMENT 512
#define MODULATE_LANES 32
#define MODULATE_LANE_RUN 8

/* Mean of `count` values, and the sum of their squared distances from it. */
struct modulate_moments {
    float count;
    float mean;
    float square;
};

/* `to` becomes that of both sets of values. count >= 1. */
CONVERT_FN void modulate_merge(struct modulate_moments *to, float count, float mean, float square)
{
    float total = to->count + count;
    float part = count / total;
    float delta = mean - to->mean;

    if (to->count == 0.0f) {
        to->mean = mean;
        to->square = square;
    } else {
        to->mean = to->mean + delta * part;
        to->square = to->square + (square + delta * delta * (to->count * part));
    }
    to->count = total;
}

CONVERT_FN float modulate_rstd(float square, int64_t cols, float epsilon)
{
    return 1.0f / sqrtf(square / (float)cols + epsilon);
}

/* Columns of segment k. */
CONVERT_FN int64_t modulate_segment_cols(int64_t k, int64_t cols)
{
    int64_t left = cols - k * MODULATE_SEGMENT;

    return left < MODULATE_SEGMENT ? left : MODULATE_SEGMENT;
}

/* The gradient of x' through the norm, from dn, that of the normalised value n; mean_dn and
 * mean_dnn: means over the row of dn and of dn * n. */
CONVERT_FN float modulate_norm_backward(enum fp8pipe_norm norm, float dn, float n, float rstd,
                                        float mean_dn, float mean_dnn)
{
    if (norm == FP8PIPE_NORM_NONE) {
        return dn;
    }
    if (norm == FP8PIPE_NORM_LAYER) {
        dn = dn - mean_dn;
    }
    return (dn - n * mean_dnn) * rstd;
}

#endif
