/*
 * amax, quantize and partials: the kernels of fp8pipe_quantize_kernel.cuh over a matrix as it is.
 *
 * x [rows, cols] bf16, fp16 or fp32, any row stride; 16-byte aligned rows take 16-byte loads,
 * others are read element by element. FP8 rows and transposed rows are 16-byte aligned with
 * strides that are multiples of 16 bytes, padding written as zeros. Every element of x is read
 * once.
 *
 * Scaling rule: code = cast(float32(x) * scale), one scale for the tensor, read or made on the
 * device from *has_scale, *scale and *own_amax; *scale_inv = 1 / scale. The amax is the largest
 * of the bits of |x|, one atomicMax a block.
 */
#include <stddef.h>

#include "fp8pipe_quantize_launch.cuh"
#include "kernels/quantize.cuh"

using fp8pipe_cuda::detail::run;
using fp8pipe_cuda::detail::run_amax;

template <int DTYPE> static identity<DTYPE> identity_of(const struct fp8pipe_matrix &x)
{
    return {fp8pipe_cuda::detail::view_of<DTYPE>(x, "x")};
}

/* Calls call(identity of x), or returns what an unknown dtype is worth. */
template <class CALL> static int with_identity(const struct fp8pipe_matrix &x, const CALL &call)
{
    switch (x.dtype) {
    case FP8PIPE_FP32:
        return (int)call(identity_of<FP8PIPE_FP32>(x));
    case FP8PIPE_BF16:
        return (int)call(identity_of<FP8PIPE_BF16>(x));
    case FP8PIPE_FP16:
        return (int)call(identity_of<FP8PIPE_FP16>(x));
    }
    return (int)cudaErrorInvalidValue;
}

static bool matrix_valid(const struct fp8pipe_matrix &x)
{
    return x.rows >= 0 && x.cols >= 0 && x.stride >= x.cols;
}

/* What has neither codes nor scale. */
static fp8pipe_quantize_target target_of(const struct fp8pipe_matrix &x)
{
    fp8pipe_quantize_target t = {};

    t.rows = x.rows;
    t.cols = x.cols;
    return t;
}

int kernel_amax_cuda(const struct kernel_amax_args *args, struct CUstream_st *stream)
{
    if (!matrix_valid(args->x) || args->amax == NULL)
        return (int)cudaErrorInvalidValue;
    return with_identity(args->x, [=](const auto &x) {
        return run_amax(target_of(args->x), x, args->skip_if, args->amax, stream);
    });
}

int kernel_partials_cuda(const struct kernel_partials_args *args, struct CUstream_st *stream)
{
    fp8pipe_quantize_target t = target_of(args->x);

    t.partials = args->partials;
    if (!matrix_valid(args->x) || args->partials == NULL)
        return (int)cudaErrorInvalidValue;
    return with_identity(args->x, [=](const auto &x) { return run(t, x, stream); });
}

/* Whether an FP8 output of rows of `stride` bytes, `cols` of them meant, keeps the rules. */
static bool output_valid(const uint8_t *data, int64_t stride, int64_t cols)
{
    return data == NULL ||
           ((uintptr_t)data % 16 == 0 && stride % KERNEL_FP8_PAD == 0 && stride >= cols);
}

int kernel_quantize_cuda(const struct kernel_quantize_args *args, struct CUstream_st *stream)
{
    const fp8pipe_quantize_target t = kernel_quantize_target(args);

    if (!matrix_valid(args->x) || args->scale == NULL || args->scale_inv == NULL ||
        (args->own_amax != NULL && args->has_scale == NULL) ||
        !output_valid(args->row, args->row_stride, args->x.cols) ||
        !output_valid(args->transposed, args->transposed_stride, args->x.rows))
        return (int)cudaErrorInvalidValue;
    return with_identity(args->x, [=](const auto &x) { return run(t, x, stream); });
}
