/*
 * capture, transpose, column_sums, store: what GEMMs need around them.
 *
 * capture      one thread: the inverse of a scale, and the fold of an amax.
 * transpose    FP8 bytes [rows, in_stride] to [cols, out_stride]; 16-byte aligned, strides that are
 *              multiples of 16 bytes, output padding written as zeros.
 * column_sums  partials [rows, cols], dense float32, added up in ascending order of the rows.
 * store        [rows, cols] of any dtypes, strides and alignments, in float32.
 *
 * No scaling here: bytes are moved, sums are float32.
 */
#include <stddef.h>

#include "kernels/activation.h"
#include "kernels/device.cuh"

/* ---- capture ------------------------------------------------------------------------------ */

static __device__ __forceinline__ void capture(const kernel_capture_args &args)
{
    *args.scale_inv = __fdiv_rn(1.0f, *args.scale);
    if (args.amax == NULL)
        return;
    atomicMax(args.amax, *args.own_amax & 0x7fffffffu);
    *args.own_amax = 0;
}

static __global__ void capture_kernel(const __grid_constant__ kernel_capture_args args)
{
    kernel_wait_for_stream();
    capture(args);
}

int kernel_capture_cuda(const struct kernel_capture_args *args, struct CUstream_st *stream)
{
    kernel_geometry geometry;

    geometry.grid = dim3(1);
    geometry.block = dim3(1);
    return kernel_launch(capture_kernel, geometry, *args, stream);
}

/* ---- transpose ---------------------------------------------------------------------------- */

#define TRANSPOSE_COLS 64
#define TRANSPOSE_UNITS (TRANSPOSE_COLS / UNIT)
#define TRANSPOSE_ROWS fp8pipe_cuda::detail::TILE_HEIGHT

static_assert(TRANSPOSE_ROWS * TRANSPOSE_COLS == BLOCK_THREADS * UNIT * UNIT_ROWS,
              "a tile is one block's");

/* Thread t has the unit t % 8 of the 4 rows from 4 * (t / 8) on. */
static __global__ void __launch_bounds__(BLOCK_THREADS)
    transpose_kernel(const __grid_constant__ kernel_transpose_args args)
{
    __shared__ fp8pipe_cuda::detail::transposed_tile<TRANSPOSE_COLS> tile;
    const int64_t tile_col = (int64_t)blockIdx.x * TRANSPOSE_COLS;
    const int unit_col = threadIdx.x % TRANSPOSE_UNITS * UNIT;
    const int group = threadIdx.x / TRANSPOSE_UNITS;
    int64_t tile_row = (int64_t)blockIdx.y * TRANSPOSE_ROWS;

    kernel_wait_for_stream();
    if (args.capture.scale_inv != NULL && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        capture(args.capture);
    for (; tile_row < args.out_stride; tile_row += (int64_t)gridDim.y * TRANSPOSE_ROWS) {
        const int64_t row = tile_row + group * UNIT_ROWS;
        const int64_t col = tile_col + unit_col;
        uint2 codes[UNIT_ROWS];

#pragma unroll
        for (int i = 0; i < UNIT_ROWS; i++) {
            codes[i] = make_uint2(0, 0);
            if (row + i < args.rows && col < args.cols)
                codes[i] = *(const uint2 *)(args.in + (row + i) * args.in_stride + col);
        }
        tile.put(unit_col, group, codes);
        __syncthreads();
        tile.write<BLOCK_THREADS, false>(args.out, args.out_stride, tile_row, tile_col, args.cols);
        __syncthreads();
    }
}

int kernel_transpose_cuda(const struct kernel_transpose_args *args, struct CUstream_st *stream)
{
    kernel_geometry geometry;

    if (args->rows < 0 || args->cols < 0 || args->in_stride < args->cols ||
        args->out_stride < args->rows || args->in_stride % KERNEL_FP8_PAD != 0 ||
        args->out_stride % KERNEL_FP8_PAD != 0 || (uintptr_t)args->in % 16 != 0 ||
        (uintptr_t)args->out % 16 != 0)
        return (int)cudaErrorInvalidValue;
    if (args->rows == 0 || args->cols == 0)
        return 0;
    const int64_t down = kernel_divide_up(args->out_stride, TRANSPOSE_ROWS);
    geometry.grid = dim3(
        (unsigned)kernel_divide_up(args->cols, TRANSPOSE_COLS),
        (unsigned)(down < fp8pipe_cuda::detail::GRID_MAX ? down : fp8pipe_cuda::detail::GRID_MAX));
    geometry.block = dim3(BLOCK_THREADS);
    return kernel_launch(transpose_kernel, geometry, *args, stream);
}

/* ---- column_sums -------------------------------------------------------------------------- */

#define SUMS_COLS 32
#define SUMS_ROWS 64

static_assert(BLOCK_THREADS % SUMS_COLS == 0 && SUMS_ROWS % (BLOCK_THREADS / SUMS_COLS) == 0,
              "each thread loads whole rows of the strip");

/*
 * A block brings 64 rows of 32 columns into shared memory at once, then one warp adds them up in
 * order: the loads overlap although the sum may not.
 */
static __global__ void __launch_bounds__(BLOCK_THREADS)
    column_sums_kernel(const __grid_constant__ kernel_column_sums_args args)
{
    __shared__ float strip[SUMS_ROWS][SUMS_COLS];
    const int lane = threadIdx.x % SUMS_COLS;
    const int64_t col = (int64_t)blockIdx.x * SUMS_COLS + lane;
    float sum = 0.0f;

    kernel_wait_for_stream();
    for (int64_t row = 0; row < args.rows; row += SUMS_ROWS) {
        const int count = (int)(args.rows - row < SUMS_ROWS ? args.rows - row : SUMS_ROWS);
        float loaded[SUMS_ROWS / (BLOCK_THREADS / SUMS_COLS)];

#pragma unroll
        for (int i = 0; i < SUMS_ROWS / (BLOCK_THREADS / SUMS_COLS); i++) {
            const int r = threadIdx.x / SUMS_COLS + i * (BLOCK_THREADS / SUMS_COLS);
            loaded[i] =
                r < count && col < args.cols ? args.partials[(row + r) * args.cols + col] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < SUMS_ROWS / (BLOCK_THREADS / SUMS_COLS); i++)
            strip[threadIdx.x / SUMS_COLS + i * (BLOCK_THREADS / SUMS_COLS)][lane] = loaded[i];
        __syncthreads();
        if (threadIdx.x < SUMS_COLS) {
            if (count == SUMS_ROWS) {
#pragma unroll 16
                for (int r = 0; r < SUMS_ROWS; r++)
                    sum = __fadd_rn(sum, strip[r][lane]);
            } else {
                for (int r = 0; r < count; r++)
                    sum = __fadd_rn(sum, strip[r][lane]);
            }
        }
    }
    if (threadIdx.x < SUMS_COLS && col < args.cols)
        args.out[col] = args.accumulate ? __fadd_rn(args.out[col], sum) : sum;
}

int kernel_column_sums_cuda(const struct kernel_column_sums_args *args, struct CUstream_st *stream)
{
    kernel_geometry geometry;

    if (args->rows < 0 || args->cols < 0)
        return (int)cudaErrorInvalidValue;
    if (args->cols == 0 || (args->rows == 0 && args->accumulate))
        return 0;
    geometry.grid = dim3((unsigned)kernel_divide_up(args->cols, SUMS_COLS));
    geometry.block = dim3(BLOCK_THREADS);
    return kernel_launch(column_sums_kernel, geometry, *args, stream);
}

/* ---- store -------------------------------------------------------------------------------- */

struct store_launch_args {
    kernel_store_args args;
    bool to_aligned;
    bool from_aligned;
    bool residual_aligned;
};

static __device__ __forceinline__ float vector_value(const fp8pipe_vector &v, int64_t i)
{
    if (v.dtype == FP8PIPE_FP32)
        return ((const float *)v.data)[i];
    const uint16_t bits = ((const uint16_t *)v.data)[i];
    return v.dtype == FP8PIPE_BF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

template <int DTYPE> static __device__ __forceinline__ uint32_t element_bits(float value)
{
    if (DTYPE == FP8PIPE_FP32)
        return float_bits(value);
    return DTYPE == FP8PIPE_BF16 ? bf16_from_float(value) : fp16_from_float(value);
}

template <int DTYPE>
static __device__ __forceinline__ void values_store(void *p, const float values[UNIT],
                                                    int64_t count, bool aligned)
{
    if (aligned && count >= UNIT) {
        uint32_t word[unit<DTYPE>::WORDS];
#pragma unroll
        for (int i = 0; i < unit<DTYPE>::WORDS; i++)
            word[i] = DTYPE == FP8PIPE_FP32
                          ? element_bits<DTYPE>(values[i])
                          : element_bits<DTYPE>(values[2 * i % UNIT]) |
                                element_bits<DTYPE>(values[(2 * i + 1) % UNIT]) << 16;
#pragma unroll
        for (int i = 0; i < unit<DTYPE>::WORDS; i += 4)
            ((uint4 *)p)[i / 4] = make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        if (i < count)
            ((typename element<DTYPE>::bits *)p)[i] =
                (typename element<DTYPE>::bits)element_bits<DTYPE>(values[i]);
}

template <int DTYPE>
static __device__ __forceinline__ void *matrix_unit(const fp8pipe_matrix &m, int64_t row,
                                                    int64_t col)
{
    return (char *)m.data + (row * m.stride + col) * (int64_t)sizeof(typename element<DTYPE>::bits);
}

template <int DTYPE>
static __device__ __forceinline__ unit<DTYPE> matrix_load(const fp8pipe_matrix &m, int64_t row,
                                                          int64_t col, bool aligned)
{
    const void *p = matrix_unit<DTYPE>(m, row, col);

    if (aligned && col + UNIT <= m.cols)
        return unit_load_all<DTYPE>(p);
    return unit_load_some<DTYPE>(p, m.cols - col);
}

static __device__ __forceinline__ void values_activate(float values[UNIT], int activation)
{
    if (activation == FP8PIPE_ACTIVATION_GELU_TANH) {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            values[i] = activation_gelu_tanh(values[i]);
    } else if (activation == FP8PIPE_ACTIVATION_GELU_ERF) {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            values[i] = activation_gelu_erf(values[i]);
    } else if (activation == FP8PIPE_ACTIVATION_SILU) {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            values[i] = activation_silu(values[i]);
    }
}

/* to, from and residual may be one matrix: each thread reads its unit before it writes it. */
template <int TO, int FROM>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    store_kernel(const __grid_constant__ store_launch_args launch)
{
    const kernel_store_args &args = launch.args;
    const int64_t col = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * UNIT;
    const int64_t step = (int64_t)gridDim.y * blockDim.y * UNIT_ROWS;
    int64_t first = (int64_t)blockIdx.y * blockDim.y * UNIT_ROWS + threadIdx.y;
    float bias[UNIT];

    kernel_wait_for_stream();
    if (col >= args.to.cols)
        return;
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        bias[i] = args.bias.data != NULL && col + i < args.to.cols
                      ? vector_value(args.bias, col + i)
                      : 0.0f;
    for (; first < args.to.rows; first += step)
#pragma unroll 1
        for (int j = 0; j < UNIT_ROWS; j++) {
            const int64_t row = first + j * blockDim.y;
            float values[UNIT] = {0};

            if (row >= args.to.rows)
                break;
            if (args.accumulate) {
                unit<TO> u = matrix_load<TO>(args.to, row, col, launch.to_aligned);
#pragma unroll
                for (int i = 0; i < UNIT; i++)
                    values[i] = unit_value(u, i);
            }
            if (args.from.data != NULL) {
                unit<FROM> u = matrix_load<FROM>(args.from, row, col, launch.from_aligned);
#pragma unroll
                for (int i = 0; i < UNIT; i++)
                    values[i] = __fadd_rn(values[i], unit_value(u, i));
            }
            if (args.bias.data != NULL)
#pragma unroll
                for (int i = 0; i < UNIT; i++)
                    values[i] = __fadd_rn(values[i], bias[i]);
            values_activate(values, args.activation);
            if (args.residual.data != NULL) {
                unit<TO> u = matrix_load<TO>(args.residual, row, col, launch.residual_aligned);
#pragma unroll
                for (int i = 0; i < UNIT; i++)
                    values[i] = __fadd_rn(values[i], unit_value(u, i));
            }
            values_store<TO>(matrix_unit<TO>(args.to, row, col), values, args.to.cols - col,
                             launch.to_aligned);
        }
}

template <int TO> static int store_launch(const store_launch_args &launch, cudaStream_t stream)
{
    const kernel_geometry geometry = kernel_rows(launch.args.to.rows, launch.args.to.cols);

    switch (launch.args.from.dtype) {
    case FP8PIPE_FP32:
        return kernel_launch(store_kernel<TO, FP8PIPE_FP32>, geometry, launch, stream);
    case FP8PIPE_BF16:
        return kernel_launch(store_kernel<TO, FP8PIPE_BF16>, geometry, launch, stream);
    case FP8PIPE_FP16:
        return kernel_launch(store_kernel<TO, FP8PIPE_FP16>, geometry, launch, stream);
    }
    return (int)cudaErrorInvalidValue;
}

int kernel_store_cuda(const struct kernel_store_args *args, struct CUstream_st *stream)
{
    store_launch_args launch;

    if (args->to.rows < 0 || args->to.cols < 0 || args->to.stride < args->to.cols ||
        (args->from.data != NULL &&
         (args->from.rows != args->to.rows || args->from.cols != args->to.cols ||
          args->from.stride < args->from.cols)) ||
        (args->bias.data != NULL && args->bias.count != args->to.cols) ||
        (args->residual.data != NULL &&
         (args->residual.rows != args->to.rows || args->residual.cols != args->to.cols ||
          args->residual.stride < args->to.cols || args->residual.dtype != args->to.dtype)) ||
        (unsigned)args->activation > FP8PIPE_ACTIVATION_SILU)
        return (int)cudaErrorInvalidValue;
    if (args->to.rows == 0 || args->to.cols == 0)
        return 0;
    launch.args = *args;
    launch.to_aligned = kernel_rows_aligned(&args->to);
    launch.from_aligned = kernel_rows_aligned(&args->from);
    launch.residual_aligned = kernel_rows_aligned(&args->residual);
    switch (args->to.dtype) {
    case FP8PIPE_FP32:
        return store_launch<FP8PIPE_FP32>(launch, stream);
    case FP8PIPE_BF16:
        return store_launch<FP8PIPE_BF16>(launch, stream);
    case FP8PIPE_FP16:
        return store_launch<FP8PIPE_FP16>(launch, stream);
    }
    return (int)cudaErrorInvalidValue;
}
