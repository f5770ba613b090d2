/*
 * gradient_norm: a block for each tile of the optimizer's parameters (kernels/quads.cuh); the last
 * one to finish adds up their sums. Gradients are dense and 16-byte aligned, [rows, cols], of any
 * dtype. Only the result is scaled.
 */
#include <stddef.h>

#include "kernels/quads.cuh"

#define FLIGHT 8 /* quads that a thread loads before it uses the first */
#define BLOCKS 4 /* on a multiprocessor */

/* All threads call it; thread 0 has the sum: over each warp by halves, then the warps in order. */
static __device__ __forceinline__ double block_sum(double sum, double warps[BLOCK_WARPS])
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        sum = __dadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, half));
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < BLOCK_WARPS; i++)
            sum = __dadd_rn(sum, warps[i]);
    return sum;
}

/* The square is exact in float64, so that fusing it with the sum rounds nothing away. */
static __device__ __forceinline__ double square_add(double sum, float x)
{
    return __fma_rn((double)x, (double)x, sum);
}

/* The squares of a thread's quads. WHOLE: all are aligned and have 4 elements. */
template <bool WHOLE>
static __device__ __forceinline__ double quads_sum(const void *gradient, int32_t dtype,
                                                   const quads &q)
{
    double sum[QUAD] = {0.0, 0.0, 0.0, 0.0};

#pragma unroll 1
    for (int i = 0; i < THREAD_QUADS; i += FLIGHT) {
        uint4 bits[FLIGHT];

#pragma unroll
        for (int j = 0; j < FLIGHT; j++) {
            const int count = WHOLE ? QUAD : quad_count(q, i + j);

            bits[j] = gradient_load(gradient, dtype, q.at + (i + j) * q.pitch, count,
                                    WHOLE || (q.aligned && count == QUAD));
        }
#pragma unroll
        for (int j = 0; j < FLIGHT; j++) {
            /* What is not there was read as 0, and adds nothing. */
            const float4 x = gradient_values(dtype, bits[j]);

            sum[0] = square_add(sum[0], x.x);
            sum[1] = square_add(sum[1], x.y);
            sum[2] = square_add(sum[2], x.z);
            sum[3] = square_add(sum[3], x.w);
        }
    }
    return __dadd_rn(__dadd_rn(sum[0], sum[1]), __dadd_rn(sum[2], sum[3]));
}

static __device__ __forceinline__ double tile_sum(const kernel_gradient_norm_args &args)
{
    const kernel_tile tile = args.tiles[blockIdx.x];
    const kernel_parameter &parameter = args.parameters[tile.parameter];
    const void *gradient = parameter.gradient;
    const int32_t dtype = parameter.gradient_dtype;
    const quads q = quads_of<THREAD_QUADS>(parameter, tile.index, 0);

    if (q.whole && dtype == FP8PIPE_FP32)
        return quads_sum<true>(gradient, FP8PIPE_FP32, q);
    if (q.whole && dtype == FP8PIPE_BF16)
        return quads_sum<true>(gradient, FP8PIPE_BF16, q);
    return quads_sum<false>(gradient, dtype, q);
}

/* One thread's: what comes of the sum of all squares. */
static __device__ __forceinline__ void norm_write(const kernel_gradient_norm_args &args, double sum)
{
    const float scale = args.gradient_scale != NULL ? *args.gradient_scale : 1.0f;
    const float norm = __double2float_rn(__dmul_rn(__dsqrt_rn(sum), fabs((double)scale)));
    const float ratio = __fdiv_rn(args.max_norm, __fadd_rn(norm, 1e-6f));

    if (args.norm != NULL)
        *args.norm = norm;
    if (args.clip != NULL)
        *args.clip = args.max_norm > 0.0f && ratio < 1.0f ? __fmul_rn(scale, ratio) : scale;
    if (args.nonfinite != NULL)
        *args.nonfinite = (__float_as_uint(norm) & 0x7fffffffu) >= 0x7f800000u;
}

static __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS)
    gradient_norm_kernel(const __grid_constant__ kernel_gradient_norm_args args)
{
    __shared__ double warps[BLOCK_WARPS];
    __shared__ bool last;

    kernel_wait_for_stream();
    /* Without a tile there is one block, which is the last one. */
    const double partial = block_sum(args.tile_count > 0 ? tile_sum(args) : 0.0, warps);
    if (threadIdx.x == 0) {
        if (args.tile_count > 0)
            args.partials[blockIdx.x] = partial;
        /* The partial is seen by whoever sees the count; the last one sees all. */
        __threadfence();
        last = atomicAdd(args.scratch, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last)
        return;
    double sum = 0.0;
#pragma unroll 16
    for (int64_t i = threadIdx.x; i < args.tile_count; i += BLOCK_THREADS)
        sum = __dadd_rn(sum, __ldcg(&args.partials[i]));
    sum = block_sum(sum, warps);
    if (threadIdx.x != 0)
        return;
    norm_write(args, sum);
    *args.scratch = 0;
}

int kernel_gradient_norm_cuda(const struct kernel_gradient_norm_args *args,
                              struct CUstream_st *stream)
{
    if (args->tile_count < 0 || args->tile_count > INT32_MAX || args->scratch == NULL ||
        (args->tile_count > 0 &&
         (args->parameters == NULL || args->tiles == NULL || args->partials == NULL)))
        return (int)cudaErrorInvalidValue;
    return kernel_launch(gradient_norm_kernel,
                         quads_geometry(args->tile_count > 0 ? args->tile_count : 1, BLOCK_THREADS),
                         *args, stream);
}
