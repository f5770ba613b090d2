/*
 * Arguments and meaning of the optimizer's kernels: as kernels/kernels.h, which includes this.
 *
 * The parameters and their tiles are tables in the backend's memory, made once. A tile is what one
 * block works on: of a parameter with FP8 copies KERNEL_TILE_SIDE x KERNEL_TILE_SIDE elements,
 * numbered along the rows first; of any other KERNEL_TILE_ELEMENTS consecutive ones. The tiles of a
 * parameter cover it; an empty parameter has none.
 *
 * A tile is cut into quads of 4 elements along a row, 16 for each of 256 threads, so that the order
 * of sums is defined: thread t has, for i = 0 .. 15, of a square tile the columns from 4 * (t % 32)
 * on of row 16 * (t / 32) + i; of a flat one the elements from 1024 * i + 4 * t on.
 */
#ifndef KERNELS_OPTIMIZER_H
#define KERNELS_OPTIMIZER_H

#include <stdint.h>

#include "fp8pipe.h"
#include "fp8pipe_optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KERNEL_TILE_SIDE 128
#define KERNEL_TILE_ELEMENTS (KERNEL_TILE_SIDE * KERNEL_TILE_SIDE)

/* Matrices are [rows, cols], dense, 16-byte aligned; their rows are where cols allows it. */
struct kernel_parameter {
    float *master;
    const void *gradient;
    float *first;
    float *second;
    float *average; /* NULL: none */
    void *copy;     /* BF16 or FP16; NULL: none */
    int64_t rows;
    int64_t cols;
    int32_t gradient_dtype;
    int32_t copy_dtype;
    uint32_t group;
    int32_t square; /* its tiles are: it is the weight of a linear */
    /* NULL: no FP8 copies yet, or ever. E4M3, as kernel_quantize_args has them; padding stays. */
    uint8_t *row;
    uint8_t *transposed;
    int64_t row_stride;
    int64_t transposed_stride;
    float *scale_inv;
    const float *scale;
    const int32_t *has_scale;
    uint32_t *amax;
    uint64_t *extremes;
    float scale_numerator;
    int32_t reserved;
};

struct kernel_tile {
    uint32_t parameter;
    uint32_t index;
};

/*
 * adamw: one step of all parameters, as kernels/adamw.h and include/fp8pipe_optimizer.h define it.
 *
 *   skip_if   not NULL and *skip_if not 0: nothing is read nor written.
 *   steps     t - 1; the last block to finish adds 1. scratch is 0 between launches.
 *   FP8       row = cast(master * scale) of the new master, scale_inv = 1 / scale, max|master| is
 *             folded into amax (a NaN as 0x7fc00000, whatever its bits). A parameter without a
 *             scale (*has_scale 0) has its largest bits folded into own_amax[parameter] too; its
 *             copies are left alone until a second launch.
 *   extremes  of a slot: as a quantize of the new master counts them; NULL: not counted.
 *   own_amax  [parameters], zeros before; NULL: every slot has a scale.
 *   first     1: instead of a step, what follows one with the same arguments and own_amax: row,
 *             transposed and scale_inv of the parameters without a scale, by scale_numerator / own
 *             amax, as quantize does.
 */
struct kernel_adamw_args {
    const struct kernel_parameter *parameters;
    const struct kernel_tile *tiles;
    int64_t tile_count; /* 0 to INT32_MAX */
    const struct fp8pipe_parameter_group *groups;
    float lr;
    const float *lr_device;      /* NULL: 1 */
    const float *gradient_scale; /* NULL: 1 */
    const int32_t *skip_if;
    int64_t *steps;
    uint32_t *scratch;
    uint32_t *own_amax;
    int32_t first;
};

/*
 * gradient_norm: norm = |gradient_scale| * sqrt(sum of squares) of all gradients. Squares and sums
 * are float64, exact and rounded: each thread its quads in order, in 4 sums by the place in the
 * quad, of which (0 + 1) + (2 + 3); then over a warp by halves (16, 8, 4, 2, 1), then the warps in
 * order: partials[tile]. Likewise the partials: thread t of 256 takes t, t + 256, ..., then warps
 * and their sums. norm is rounded once. For clip, which is in float32, and nonfinite see struct
 * fp8pipe_gradient_norm_op. Outputs that are NULL are not wanted. scratch is 0 between launches.
 */
struct kernel_gradient_norm_args {
    const struct kernel_parameter *parameters;
    const struct kernel_tile *tiles;
    int64_t tile_count;
    double *partials; /* [tile_count] */
    uint32_t *scratch;
    float max_norm;
    const float *gradient_scale; /* NULL: 1 */
    float *norm;
    float *clip;
    int32_t *nonfinite;
};

void kernel_adamw_host(const struct kernel_adamw_args *args);
void kernel_gradient_norm_host(const struct kernel_gradient_norm_args *args);

struct CUstream_st;
int kernel_adamw_cuda(const struct kernel_adamw_args *args, struct CUstream_st *stream);
int kernel_gradient_norm_cuda(const struct kernel_gradient_norm_args *args,
                              struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
