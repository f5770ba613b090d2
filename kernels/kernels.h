/*
 * Arguments and meaning of every kernel, once, for both backends.
 *
 * Each kernel has a CUDA launcher `kernel_<name>_cuda(args, stream)`, which checks, launches and
 * returns the launch's error, and a host twin `kernel_<name>_host(args)`, which runs at once. Both
 * give the same bits, except where a comment says otherwise. All pointers are the backend's memory;
 * an empty matrix (rows or cols 0) launches nothing.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <stdint.h>

#include "fp8pipe_fused.h"
#include "kernels/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* FP8 operands of a GEMM need rows and contraction lengths padded to this many bytes. */
#define KERNEL_FP8_PAD 16

/* A slot's scale is the first of so many floats: cuBLASLt takes FP8 scales at multiples of 16 bytes
 * alone. */
#define KERNEL_SCALE_STRIDE 4

/* Column sums are made of partial sums over tiles of this many rows. */
#define KERNEL_SUM_ROWS 64

/*
 * amax: *amax = max(*amax, max over the bits of |x|), as uint32 bits of float32 (fp16 and bf16 are
 * widened exactly), so that inf and NaN exceed all finite values. Nothing is read nor written when
 * skip_if is not NULL and *skip_if is not 0 on the device.
 */
struct kernel_amax_args {
    struct fp8pipe_matrix x;
    const int32_t *skip_if;
    uint32_t *amax;
};

/*
 * quantize: out = cast(float32(x) * scale) in `format`: round to nearest even, saturating (inf too)
 * to the largest finite value, -0 kept, NaN 0x7F (both signs).
 *
 *   scale      *has_scale != 0: *scale. Otherwise scale_numerator / own amax, where own amax is the
 *              float of the bits in *own_amax (NULL: has_scale is known to be set): 1 if it is 0,
 *              inf or NaN; the quotient is kept between FLT_MIN and
 *              FLT_MAX.
 *   scale_inv  *scale_inv = 1 / scale, float32 division.
 *   row        [x.rows, row_stride] bytes; columns x.cols .. row_stride-1 are written as zeros.
 *              NULL: not wanted. row_stride >= x.cols, a multiple of KERNEL_FP8_PAD; 16-byte
 *              aligned.
 *   transposed [x.cols, transposed_stride] bytes; columns x.rows .. transposed_stride-1 are zeros.
 *              NULL: not wanted. transposed_stride >= x.rows, a multiple of KERNEL_FP8_PAD; 16-byte
 *              aligned.
 *   amax       *amax = max(*amax, bits of |x|) over all elements, padding never; NULL: not folded.
 *   partials   [ceil(x.rows / KERNEL_SUM_ROWS), x.cols] float32: sums of x over the rows of each
 *              tile, in a fixed order (the CUDA order may differ from the host's); NULL: none.
 *   extremes   [2]: added are the numbers of elements that saturate (|x * scale| > the largest
 *              finite value, inf too, NaN not) and of those flushed to zero (x != 0, code 0 or
 *              0x80); NULL: not counted.
 *
 * x may be empty in rows: then only scale_inv is written. x's rows may be aligned to the element
 * only; x.stride >= x.cols.
 */
struct kernel_quantize_args {
    struct fp8pipe_matrix x;
    enum fp8pipe_format format;
    float scale_numerator;
    const float *scale;
    const int32_t *has_scale;
    const uint32_t *own_amax;
    float *scale_inv;
    uint8_t *row;
    int64_t row_stride;
    uint8_t *transposed;
    int64_t transposed_stride;
    uint32_t *amax;
    float *partials;
    uint64_t *extremes;
};

/* The quantize of x that a target asks for; the pass for its own amax is another launch. */
static inline struct kernel_quantize_args
kernel_quantize_of(const struct fp8pipe_quantize_target *target, const struct fp8pipe_matrix *x)
{
    struct kernel_quantize_args args;

    args.x = *x;
    args.format = target->format;
    args.scale_numerator = target->scale_numerator;
    args.scale = target->scale;
    args.has_scale = target->has_scale;
    args.own_amax = target->own_amax;
    args.scale_inv = target->scale_inv;
    args.row = target->row;
    args.row_stride = target->row_stride;
    args.transposed = target->transposed;
    args.transposed_stride = target->transposed_stride;
    args.amax = target->amax;
    args.partials = target->partials;
    args.extremes = target->extremes;
    return args;
}

/* The other way round. A kernel finds the own amax complete: the library has launched the pass for
 * it in front. */
static inline struct fp8pipe_quantize_target
kernel_quantize_target(const struct kernel_quantize_args *args)
{
    struct fp8pipe_quantize_target target;

    target.rows = args->x.rows;
    target.cols = args->x.cols;
    target.format = args->format;
    target.scale_numerator = args->scale_numerator;
    target.scale = args->scale;
    target.has_scale = args->has_scale;
    target.own_amax = (uint32_t *)(uintptr_t)args->own_amax;
    target.scale_inv = args->scale_inv;
    target.row = args->row;
    target.row_stride = args->row_stride;
    target.transposed = args->transposed;
    target.transposed_stride = args->transposed_stride;
    target.amax = args->amax;
    target.partials = args->partials;
    target.extremes = args->extremes;
    return target;
}

/*
 * activation: values[i, c] = activation(x + bias), or, with dy, dy * activation'(x + bias), in
 * float32 (kernels/activation.h); see struct fp8pipe_activation_op. They go to `result`, rounded to
 * its dtype, and where the target says, the pass for the own amax included.
 *
 *   target  rows >= 1, cols >= 1: of the values; nothing else of it is read if scale_inv is NULL.
 *           SWIGLU: forward x has 2 * cols columns, backward dy has cols / 2.
 *   result  data NULL: not wanted. May be x or dy itself unless SWIGLU.
 *   bias    data NULL: none; else x.cols entries.
 *
 * Rows may be aligned to the element only. NaNs may differ in sign and payload between backends.
 */
struct kernel_activation_args {
    struct fp8pipe_quantize_target target;
    struct fp8pipe_matrix x;
    struct fp8pipe_matrix dy;
    struct fp8pipe_matrix result;
    struct fp8pipe_vector bias;
    enum fp8pipe_activation activation;
    int32_t backward;
};

/*
 * capture: what a quantize does besides its bytes, for bytes that a GEMM has written:
 * *scale_inv = 1 / *scale, float32 division; amax not NULL: *amax = max(*amax, |*own_amax|), as
 * unsigned bits, and *own_amax = 0.
 */
struct kernel_capture_args {
    const float *scale;
    float *scale_inv;
    uint32_t *own_amax; /* bits of float32; left alone where amax is NULL */
    uint32_t *amax;
};

/* transpose: out[c, r] = in[r, c] (bytes); columns rows .. out_stride-1 of out are zeros. Strides
 * are multiples of KERNEL_FP8_PAD, pointers 16-byte aligned. */
struct kernel_transpose_args {
    const uint8_t *in; /* [rows, in_stride] */
    uint8_t *out;      /* [cols, out_stride] */
    int64_t rows;
    int64_t cols;
    int64_t in_stride;
    int64_t out_stride;
    struct kernel_capture_args capture; /* scale_inv not NULL: done in the same launch */
};

/* partial sums of x as in quantize: partials[ceil(x.rows / KERNEL_SUM_ROWS), x.cols], float32. */
struct kernel_partials_args {
    struct fp8pipe_matrix x;
    float *partials;
};

/* column_sums: out[c] = (accumulate ? out[c] : 0) + sum over r of partials[r, c], r ascending in a
 * fixed order. rows = 0: zeros, or nothing when accumulating. */
struct kernel_column_sums_args {
    const float *partials; /* [rows, cols] */
    int64_t rows;
    int64_t cols;
    float *out;
    int32_t accumulate;
};

/*
 * store: to = activation((accumulate ? to : 0) + from + bias) + residual, elementwise in float32,
 * in this order, then rounded to to.dtype (nearest even; overflow gives inf). from.data NULL: 0.
 * bias.data NULL: 0; bias.count = to.cols. residual.data NULL: 0; else of to's shape and dtype.
 * from and residual may be the same matrix as to; otherwise neither overlaps it.
 */
struct kernel_store_args {
    struct fp8pipe_matrix to;
    struct fp8pipe_matrix from;
    struct fp8pipe_vector bias;
    int32_t accumulate;
    enum fp8pipe_activation activation; /* not SWIGLU */
    struct fp8pipe_matrix residual;
};

/*
 * scale_update: one launch for all slots of a scaling; see struct fp8pipe_scaling_options for the
 * rule. history[0] of a slot is amax[slot]; entries 1 .. history-1 are the history-1 entries of
 * window[slot], a ring whose oldest entry, overwritten next, is at cursor[slot].
 * nonfinite[slot] = 1 if that slot's last was inf or NaN in this update, else 0; *any_nonfinite is
 * their OR, written once by the last block to finish; scratch[0..1] are 0 between launches.
 * skip_if: not NULL and *skip_if not 0 on the device: amax becomes 0 and nothing else is written.
 */
struct kernel_scale_update_args {
    int64_t slots;
    int64_t history;
    enum fp8pipe_amax algorithm;
    const float *numerator; /* [slots] fp8_max * 2^-margin */
    float *scale;           /* [slots, KERNEL_SCALE_STRIDE]; the first of each */
    int32_t *has_scale;     /* [slots] set to 1 by the first update that moves the slot */
    uint32_t *amax;         /* [slots] bits of float32 */
    uint32_t *window;       /* [slots, history - 1] bits of float32 */
    uint32_t *cursor;       /* [slots] 0 .. history-2; unused when history is 1 */
    int32_t *nonfinite;     /* [slots] */
    int32_t *any_nonfinite;
    uint32_t *scratch;      /* [2] */
    const int32_t *skip_if; /* may be any_nonfinite */
};

void kernel_amax_host(const struct kernel_amax_args *args);
void kernel_quantize_host(const struct kernel_quantize_args *args);
void kernel_capture_host(const struct kernel_capture_args *args);
void kernel_transpose_host(const struct kernel_transpose_args *args);
void kernel_partials_host(const struct kernel_partials_args *args);
void kernel_column_sums_host(const struct kernel_column_sums_args *args);
void kernel_store_host(const struct kernel_store_args *args);
void kernel_activation_host(const struct kernel_activation_args *args);
void kernel_scale_update_host(const struct kernel_scale_update_args *args);

/* Launchers on the device that is current; 0 or a cudaError_t. `stream` is a cudaStream_t. */
struct CUstream_st;
int kernel_amax_cuda(const struct kernel_amax_args *args, struct CUstream_st *stream);
int kernel_quantize_cuda(const struct kernel_quantize_args *args, struct CUstream_st *stream);
int kernel_capture_cuda(const struct kernel_capture_args *args, struct CUstream_st *stream);
int kernel_transpose_cuda(const struct kernel_transpose_args *args, struct CUstream_st *stream);
int kernel_partials_cuda(const struct kernel_partials_args *args, struct CUstream_st *stream);
int kernel_column_sums_cuda(const struct kernel_column_sums_args *args, struct CUstream_st *stream);
int kernel_store_cuda(const struct kernel_store_args *args, struct CUstream_st *stream);
int kernel_activation_cuda(const struct kernel_activation_args *args, struct CUstream_st *stream);
int kernel_scale_update_cuda(const struct kernel_scale_update_args *args,
                             struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#include "kernels/modulate.h"

#endif
