/*
 * amax and quantize.
 *
 * x [rows, cols] bf16, fp16 or fp32, any row stride; 16-byte aligned rows take 16-byte loads,
 * others are read element by element. FP8 rows and transposed rows are 16-byte aligned with
 * strides that are multiples of 16 bytes, padding written as zeros. Every element of x is read
 * once.
 *
 * Scaling rule: code = cast(float32(x) * scale), one scale for the tensor, read or made on the
 * device from *has_scale, *scale and *own_amax; *scale_inv = 1 / scale. The amax is the largest
 * of the bits of |x|, one atomicMax a block.
 *
 * Three kernels: rows only (streams), tiles (what transposes or sums), and no elements at all.
 */
#include <float.h>
#include <stddef.h>

#include "kernels/device.cuh"

/* ---- amax --------------------------------------------------------------------------------- */

template <int DTYPE, bool ALIGNED>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    amax_kernel(const __grid_constant__ kernel_amax_args args)
{
    const fp8pipe_matrix &x = args.x;
    const int64_t col = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * UNIT;
    const int64_t step = (int64_t)gridDim.y * blockDim.y * UNIT_ROWS;
    uint32_t largest = 0;

    if (args.skip_if != NULL && *args.skip_if != 0)
        return;
    if (col < x.cols)
        for (int64_t row = (int64_t)blockIdx.y * blockDim.y * UNIT_ROWS + threadIdx.y; row < x.rows;
             row += step) {
            unit<DTYPE> u[UNIT_ROWS];

            units_load<DTYPE, ALIGNED>(u, x, row, blockDim.y, col);
#pragma unroll
            for (int i = 0; i < UNIT_ROWS; i++)
                largest = amax_fold<DTYPE>(largest, u[i]);
        }
    amax_publish(amax_bits<DTYPE>(largest), args.amax);
}

template <int DTYPE> static int amax_launch(const kernel_amax_args &args, cudaStream_t stream)
{
    const kernel_geometry geometry = kernel_rows(args.x.rows, args.x.cols);

    if (kernel_rows_aligned(&args.x))
        return kernel_launch(amax_kernel<DTYPE, true>, geometry, args, stream);
    return kernel_launch(amax_kernel<DTYPE, false>, geometry, args, stream);
}

int kernel_amax_cuda(const struct kernel_amax_args *args, struct CUstream_st *stream)
{
    const struct fp8pipe_matrix *x = &args->x;

    if (x->rows < 0 || x->cols < 0 || x->stride < x->cols || args->amax == NULL)
        return (int)cudaErrorInvalidValue;
    if (x->rows == 0 || x->cols == 0)
        return 0;
    switch (x->dtype) {
    case FP8PIPE_FP32:
        return amax_launch<FP8PIPE_FP32>(*args, stream);
    case FP8PIPE_BF16:
        return amax_launch<FP8PIPE_BF16>(*args, stream);
    case FP8PIPE_FP16:
        return amax_launch<FP8PIPE_FP16>(*args, stream);
    }
    return (int)cudaErrorInvalidValue;
}

/* ---- quantize ----------------------------------------------------------------------------- */

/* Blocks that a multiprocessor's registers are to hold; converting in software takes more. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
#define TILE_BLOCKS(dtype) ((dtype) == FP8PIPE_FP32 ? 3 : 4)
#else
#define TILE_BLOCKS(dtype) 2
#endif

static __device__ __forceinline__ float quantize_scale(const kernel_quantize_args &args)
{
    if (args.own_amax == NULL || *args.has_scale != 0)
        return *args.scale;
    const uint32_t bits = *args.own_amax;
    if (bits == 0 || bits >= 0x7f800000u)
        return 1.0f;
    const float scale = __fdiv_rn(args.scale_numerator, float_from_bits(bits));
    return fp8_scale(scale);
}

static __device__ __forceinline__ void quantize_publish_scale(const kernel_quantize_args &args,
                                                              float scale)
{
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0 && threadIdx.y == 0)
        *args.scale_inv = __fdiv_rn(1.0f, scale);
}

static __global__ void quantize_empty_kernel(const __grid_constant__ kernel_quantize_args args)
{
    quantize_publish_scale(args, quantize_scale(args));
}

template <int DTYPE, int FORMAT, bool ALIGNED>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    quantize_rows_kernel(const __grid_constant__ kernel_quantize_args args)
{
    const fp8pipe_matrix &x = args.x;
    const int64_t col = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * UNIT;
    const int64_t step = (int64_t)gridDim.y * blockDim.y * UNIT_ROWS;
    int64_t row = (int64_t)blockIdx.y * blockDim.y * UNIT_ROWS + threadIdx.y;
    uint32_t largest = 0;

    if (col < args.row_stride)
        for (; row < x.rows; row += step) {
            unit<DTYPE> u[UNIT_ROWS];

            units_load<DTYPE, ALIGNED>(u, x, row, blockDim.y, col);
            /* Read after the loads are on their way; all but the first time from the L1 cache. */
            const float scale = quantize_scale(args);
#pragma unroll
            for (int i = 0; i < UNIT_ROWS; i++) {
                const int64_t r = row + i * blockDim.y;

                largest = amax_fold<DTYPE>(largest, u[i]);
                if (r < x.rows)
                    *(uint2 *)(args.row + r * args.row_stride + col) =
                        unit_quantize<DTYPE, FORMAT>(u[i], scale, x.cols - col);
            }
        }
    quantize_publish_scale(args, quantize_scale(args));
    if (args.amax != NULL)
        amax_publish(amax_bits<DTYPE>(largest), args.amax);
}

template <int DTYPE, int FORMAT, bool ALIGNED, bool SUMS>
static __global__ void __launch_bounds__(BLOCK_THREADS, TILE_BLOCKS(DTYPE))
    quantize_tiles_kernel(const __grid_constant__ kernel_quantize_args args)
{
    __shared__ transposed_tile transposed;
    __shared__ sums_tile sums;
    const fp8pipe_matrix &x = args.x;
    const int64_t tile_col = (int64_t)blockIdx.x * TILE_COLS;
    const int64_t col = tile_col + threadIdx.x % TILE_UNITS * UNIT;
    const int64_t rows = args.transposed != NULL ? args.transposed_stride : x.rows;
    int64_t tile_row = (int64_t)blockIdx.y * TILE_ROWS;
    uint32_t largest = 0;

    for (; tile_row < rows; tile_row += (int64_t)gridDim.y * TILE_ROWS) {
        const int64_t row = tile_row + threadIdx.x / TILE_UNITS * UNIT_ROWS;
        unit<DTYPE> u[UNIT_ROWS];
        uint2 codes[UNIT_ROWS];

        units_load<DTYPE, ALIGNED>(u, x, row, 1, col);
        const float scale = quantize_scale(args);
#pragma unroll
        for (int i = 0; i < UNIT_ROWS; i++) {
            largest = amax_fold<DTYPE>(largest, u[i]);
            codes[i] =
                unit_quantize<DTYPE, FORMAT>(u[i], scale, row + i < x.rows ? x.cols - col : 0);
            if (args.row != NULL && row + i < x.rows && col < args.row_stride)
                *(uint2 *)(args.row + (row + i) * args.row_stride + col) = codes[i];
        }
        if (args.transposed != NULL)
            transposed_put(transposed, codes);
        if (SUMS)
            sums_put<DTYPE>(sums, u);
        __syncthreads();
        if (args.transposed != NULL)
            transposed_write(transposed, args.transposed, args.transposed_stride, tile_row,
                             tile_col, x.cols);
        if (SUMS)
            sums_write(sums, args.partials, x, tile_row, tile_col);
        __syncthreads();
    }
    quantize_publish_scale(args, quantize_scale(args));
    if (args.amax != NULL)
        amax_publish(amax_bits<DTYPE>(largest), args.amax);
}

template <int DTYPE, int FORMAT, bool ALIGNED>
static int quantize_launch_tiles(const kernel_quantize_args &args, cudaStream_t stream)
{
    const kernel_geometry geometry =
        kernel_tiles(args.transposed != NULL ? args.transposed_stride : args.x.rows,
                     args.row != NULL ? args.row_stride : args.x.cols);

    if (args.partials != NULL)
        return kernel_launch(quantize_tiles_kernel<DTYPE, FORMAT, ALIGNED, true>, geometry, args,
                             stream);
    return kernel_launch(quantize_tiles_kernel<DTYPE, FORMAT, ALIGNED, false>, geometry, args,
                         stream);
}

template <int DTYPE, int FORMAT>
static int quantize_launch(const kernel_quantize_args &args, cudaStream_t stream)
{
    const bool aligned = kernel_rows_aligned(&args.x);

    if (args.row != NULL && args.transposed == NULL && args.partials == NULL) {
        const kernel_geometry geometry = kernel_rows(args.x.rows, args.row_stride);

        if (aligned)
            return kernel_launch(quantize_rows_kernel<DTYPE, FORMAT, true>, geometry, args, stream);
        return kernel_launch(quantize_rows_kernel<DTYPE, FORMAT, false>, geometry, args, stream);
    }
    if (aligned)
        return quantize_launch_tiles<DTYPE, FORMAT, true>(args, stream);
    return quantize_launch_tiles<DTYPE, FORMAT, false>(args, stream);
}

template <int DTYPE>
static int quantize_launch(const kernel_quantize_args &args, cudaStream_t stream)
{
    switch (args.format) {
    case FP8PIPE_E4M3:
        return quantize_launch<DTYPE, FP8PIPE_E4M3>(args, stream);
    case FP8PIPE_E5M2:
        return quantize_launch<DTYPE, FP8PIPE_E5M2>(args, stream);
    }
    return (int)cudaErrorInvalidValue;
}

/* Whether an FP8 output of rows of `stride` bytes, `cols` of them meant, keeps the rules. */
static bool quantize_output_valid(const uint8_t *data, int64_t stride, int64_t cols)
{
    return data == NULL ||
           ((uintptr_t)data % 16 == 0 && stride % KERNEL_FP8_PAD == 0 && stride >= cols);
}

int kernel_quantize_cuda(const struct kernel_quantize_args *args, struct CUstream_st *stream)
{
    const struct fp8pipe_matrix *x = &args->x;

    if (x->rows < 0 || x->cols < 0 || x->stride < x->cols || args->scale == NULL ||
        args->scale_inv == NULL || (args->own_amax != NULL && args->has_scale == NULL) ||
        !quantize_output_valid(args->row, args->row_stride, x->cols) ||
        !quantize_output_valid(args->transposed, args->transposed_stride, x->rows))
        return (int)cudaErrorInvalidValue;
    if (x->rows == 0 || x->cols == 0) {
        kernel_geometry one;

        one.grid = dim3(1);
        one.block = dim3(1);
        return kernel_launch(quantize_empty_kernel, one, *args, stream);
    }
    switch (x->dtype) {
    case FP8PIPE_FP32:
        return quantize_launch<FP8PIPE_FP32>(*args, stream);
    case FP8PIPE_BF16:
        return quantize_launch<FP8PIPE_BF16>(*args, stream);
    case FP8PIPE_FP16:
        return quantize_launch<FP8PIPE_FP16>(*args, stream);
    }
    return (int)cudaErrorInvalidValue;
}
