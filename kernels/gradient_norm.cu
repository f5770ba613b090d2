/*
 * gradient_norm: a block for each tile of the optimizer's parameters (kernels/quads.cuh), then one
 * block for their sums. Gradients are dense and 16-byte aligned, [rows, cols], of any dtype. Only
 * the result is scaled.
 */
#include <stddef.h>

#include "kernels/quads.cuh"

#define TURN_ROWS 4
#define FINAL_THREADS 1024

/* All threads call it; thread 0 has the sum: over each warp by halves, then the warps in order. */
template <int WARPS> static __device__ __forceinline__ double block_sum(double sum)
{
    __shared__ double warps[WARPS];

#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        sum = __dadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, half));
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < WARPS; i++)
            sum = __dadd_rn(sum, warps[i]);
    return sum;
}

/* The square is exact in float64, so that fusing it with the sum rounds nothing away. */
static __device__ __forceinline__ double square_add(double sum, float x)
{
    return __fma_rn((double)x, (double)x, sum);
}

/* The squares of a thread's quads, in order. */
template <bool WHOLE>
static __device__ __forceinline__ double quads_sum(const kernel_parameter &parameter,
                                                   const quads &q)
{
    double sum = 0.0;

#pragma unroll 1
    for (int i = 0; i < THREAD_QUADS; i += TURN_ROWS) {
        uint4 bits[TURN_ROWS];

#pragma unroll
        for (int j = 0; j < TURN_ROWS; j++) {
            const int count = WHOLE ? QUAD : quad_count(q, i + j);

            bits[j] = gradient_load(parameter, q.at + (i + j) * q.pitch, count,
                                    WHOLE || (q.aligned && count == QUAD));
        }
#pragma unroll
        for (int j = 0; j < TURN_ROWS; j++) {
            /* What is not there was read as 0, and adds nothing. */
            const float4 x = gradient_values(parameter.gradient_dtype, bits[j]);

            sum = square_add(sum, x.x);
            sum = square_add(sum, x.y);
            sum = square_add(sum, x.z);
            sum = square_add(sum, x.w);
        }
    }
    return sum;
}

static __global__ void __launch_bounds__(BLOCK_THREADS)
    gradient_partials_kernel(const __grid_constant__ kernel_gradient_norm_args args)
{
    const kernel_tile tile = args.tiles[blockIdx.x];
    const kernel_parameter &parameter = args.parameters[tile.parameter];
    const quads q = quads_of(parameter, tile.index);
    const double sum = block_sum<BLOCK_WARPS>(q.whole ? quads_sum<true>(parameter, q)
                                                      : quads_sum<false>(parameter, q));

    if (threadIdx.x == 0)
        args.partials[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(FINAL_THREADS)
    gradient_norm_kernel(const __grid_constant__ kernel_gradient_norm_args args)
{
    double sum = 0.0;

#pragma unroll 8
    for (int64_t i = threadIdx.x; i < args.tile_count; i += FINAL_THREADS)
        sum = __dadd_rn(sum, args.partials[i]);
    sum = block_sum<FINAL_THREADS / 32>(sum);
    if (threadIdx.x != 0)
        return;
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

int kernel_gradient_norm_cuda(const struct kernel_gradient_norm_args *args,
                              struct CUstream_st *stream)
{
    int error = 0;

    if (args->tile_count < 0 || args->tile_count > INT32_MAX ||
        (args->tile_count > 0 &&
         (args->parameters == NULL || args->tiles == NULL || args->partials == NULL)))
        return (int)cudaErrorInvalidValue;
    if (args->tile_count > 0)
        error = kernel_launch(gradient_partials_kernel,
                              quads_geometry(args->tile_count, BLOCK_THREADS), *args, stream);
    return error != 0 ? error
                      : kernel_launch(gradient_norm_kernel, quads_geometry(1, FINAL_THREADS), *args,
                                      stream);
}
