/*
 * scale_update: all slots of a scaling in one launch.
 *
 * window [slots, history - 1] float32 bits, aligned to the element. A warp a slot, or, where the
 * window is long, a block a slot.
 *
 * Scaling rule: see struct fp8pipe_scaling_options. Bits of non-negative floats order like the
 * floats, so the largest is an unsigned maximum.
 *
 * any_nonfinite: each block ORs its slots' flags into scratch[1] and counts itself in scratch[0];
 * the block that finds itself last publishes the OR and clears both words. The fence orders a
 * block's OR before its count, so the last block sees every OR.
 */
#include "fp8.h"
#include <stddef.h>

#include "kernels/device.cuh"

#define BLOCK_SLOT_HISTORY 1024

static_assert(BLOCK_THREADS % 32 == 0, "blocks are whole warps");

static __device__ __forceinline__ uint32_t window_max(const uint32_t *window, int64_t count,
                                                      int first, int step)
{
    uint32_t largest = 0;

#pragma unroll 4
    for (int64_t i = first; i < count; i += step)
        largest = max(largest, window[i]);
    return largest;
}

/* `last` is finite and above 0, `amax` what the slot is scaled by. */
static __device__ void slot_move(const kernel_scale_update_args &args, int64_t slot, uint32_t last,
                                 uint32_t amax)
{
    const float scale = __fdiv_rn(args.numerator[slot], float_from_bits(amax));

    if (args.history > 1) {
        const uint32_t cursor = args.cursor[slot];
        args.window[slot * (args.history - 1) + cursor] = last;
        args.cursor[slot] = cursor + 1 == args.history - 1 ? 0 : cursor + 1;
    }
    args.scale[slot] = fp8_scale(scale);
    args.has_scale[slot] = 1;
}

/* SLOT_THREADS: 32, or BLOCK_THREADS. */
template <int SLOT_THREADS>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    scale_update_kernel(const __grid_constant__ kernel_scale_update_args args)
{
    __shared__ uint32_t warps[BLOCK_WARPS];
    const int64_t slot =
        (int64_t)blockIdx.x * (BLOCK_THREADS / SLOT_THREADS) + threadIdx.x / SLOT_THREADS;
    const int lane = threadIdx.x % SLOT_THREADS;
    uint32_t last = 0;
    uint32_t amax = 0;

    if (slot < args.slots) {
        last = args.amax[slot];
        if (args.algorithm == FP8PIPE_AMAX_MAX)
            amax = window_max(args.window + slot * (args.history - 1), args.history - 1, lane,
                              SLOT_THREADS);
    }
    amax = __reduce_max_sync(0xffffffffu, amax);
    if (SLOT_THREADS > 32) {
        if (threadIdx.x % 32 == 0)
            warps[threadIdx.x / 32] = amax;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BLOCK_WARPS; i++)
            amax = max(amax, warps[i]);
    }

    const bool nonfinite = last >= 0x7f800000u;
    /* The barrier also keeps the slot's other threads from reading after its first has written. */
    const bool any = __syncthreads_or(nonfinite) != 0;
    if (lane == 0 && slot < args.slots) {
        args.nonfinite[slot] = nonfinite;
        if (last != 0)
            args.amax[slot] = 0;
        if (last != 0 && !nonfinite)
            slot_move(args, slot, last, max(amax, last));
    }
    if (threadIdx.x == 0) {
        if (any)
            atomicOr(&args.scratch[1], 1u);
        __threadfence();
        if (atomicAdd(&args.scratch[0], 1u) == gridDim.x - 1) {
            __threadfence();
            *args.any_nonfinite = (int32_t)atomicExch(&args.scratch[1], 0u);
            atomicExch(&args.scratch[0], 0u);
        }
    }
}

int kernel_scale_update_cuda(const struct kernel_scale_update_args *args,
                             struct CUstream_st *stream)
{
    kernel_geometry geometry;

    if (args->slots < 0 || args->slots > INT32_MAX || args->history < 1 || args->scratch == NULL ||
        args->any_nonfinite == NULL)
        return (int)cudaErrorInvalidValue;
    if (args->slots == 0)
        return 0;
    geometry.block = dim3(BLOCK_THREADS);
    if (args->history > BLOCK_SLOT_HISTORY && args->algorithm == FP8PIPE_AMAX_MAX) {
        geometry.grid = dim3((unsigned)args->slots);
        return kernel_launch(scale_update_kernel<BLOCK_THREADS>, geometry, *args, stream);
    }
    geometry.grid = dim3((unsigned)kernel_divide_up(args->slots, BLOCK_WARPS));
    return kernel_launch(scale_update_kernel<32>, geometry, *args, stream);
}
