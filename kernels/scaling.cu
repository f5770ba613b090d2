/*
 * scale_update: all slots of a scaling in one launch.
 *
 * window [slots, history - 1] float32 bits, aligned to the element. A warp a slot, or, where the
 * window is long, a block a slot. What counts is how long it waits for memory: everything that a
 * slot needs is asked for at once, before any of it is looked at, the window in 16-byte pieces but
 * for its ends.
 *
 * Scaling rule: see struct fp8pipe_scaling_options. Bits of non-negative floats order like the
 * floats, so the largest is an unsigned maximum.
 *
 * any_nonfinite: each block ORs its slots' flags into scratch[1] and counts itself in scratch[0];
 * the block that finds itself last publishes the OR and clears both words. The fence orders a
 * block's OR before its count, so the last block sees every OR. *skip_if is read by every block
 * before it counts itself, so it may be any_nonfinite.
 */
#include "fp8.h"
#include <stddef.h>

#include "kernels/device.cuh"

/* A block of so many threads, and the longest history for which a warp has the window in flight at
 * once. */
#define UPDATE_THREADS 128
#define UPDATE_WARPS (UPDATE_THREADS / 32)
#define UPDATE_BLOCKS 4
#define UPDATE_PIECES 8
#define WARP_SLOT_HISTORY (32 * UPDATE_PIECES * 4)

/* The largest of the window's entries that a slot's thread `first` of `step` looks at. */
template <int STEP>
static __device__ __forceinline__ uint32_t window_max(const uint32_t *window, int64_t count,
                                                      int first)
{
    const int64_t misaligned = (int64_t)((0 - (uintptr_t)window / 4) % 4);
    const int64_t head = min(misaligned, count);
    const int64_t pieces = (count - head) / 4;
    const int64_t tail = head + 4 * pieces;
    const uint4 *const piece = (const uint4 *)(window + head);
    const uint32_t left = first < head ? window[first] : 0;
    const uint32_t right = tail + first < count ? window[tail + first] : 0;
    uint32_t largest = 0;

    for (int64_t base = first; base < pieces; base += STEP * UPDATE_PIECES) {
        uint4 in[UPDATE_PIECES];

#pragma unroll
        for (int i = 0; i < UPDATE_PIECES; i++)
            in[i] = base + i * STEP < pieces ? piece[base + i * STEP] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < UPDATE_PIECES; i++)
            largest = max(largest, max(max(in[i].x, in[i].y), max(in[i].z, in[i].w)));
    }
    return max(largest, max(left, right));
}

/* SLOT_THREADS: 32, or UPDATE_THREADS. */
template <int SLOT_THREADS>
static __global__ void __launch_bounds__(UPDATE_THREADS, UPDATE_BLOCKS)
    scale_update_kernel(const __grid_constant__ kernel_scale_update_args args)
{
    __shared__ uint32_t warps[UPDATE_WARPS];
    const int64_t slot =
        (int64_t)blockIdx.x * (UPDATE_THREADS / SLOT_THREADS) + threadIdx.x / SLOT_THREADS;
    const int lane = threadIdx.x % SLOT_THREADS;
    const bool mine = lane == 0 && slot < args.slots;
    uint32_t last = 0;
    uint32_t cursor = 0;
    float numerator = 0.0f;
    uint32_t amax = 0;

    kernel_wait_for_stream();
    const bool skip = args.skip_if != NULL && *args.skip_if != 0;
    if (slot < args.slots)
        last = args.amax[slot];
    if (mine) {
        numerator = args.numerator[slot];
        cursor = args.history > 1 ? args.cursor[slot] : 0;
    }
    if (slot < args.slots && args.algorithm == FP8PIPE_AMAX_MAX)
        amax = window_max<SLOT_THREADS>(args.window + slot * (args.history - 1), args.history - 1,
                                        lane);
    amax = __reduce_max_sync(0xffffffffu, amax);
    if (SLOT_THREADS > 32) {
        if (threadIdx.x % 32 == 0)
            warps[threadIdx.x / 32] = amax;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < UPDATE_WARPS; i++)
            amax = max(amax, warps[i]);
    }

    const bool nonfinite = last >= 0x7f800000u;
    /* The barrier also keeps the slot's other threads from reading after its first has written. */
    const bool any = __syncthreads_or(nonfinite && !skip) != 0;
    if (mine && last != 0)
        args.amax[slot] = 0;
    if (skip)
        return;
    if (mine) {
        args.nonfinite[slot] = nonfinite;
        if (last != 0 && !nonfinite) {
            if (args.history > 1) {
                args.window[slot * (args.history - 1) + cursor] = last;
                args.cursor[slot] = cursor + 1 == args.history - 1 ? 0 : cursor + 1;
            }
            args.scale[slot * KERNEL_SCALE_STRIDE] =
                fp8_scale(__fdiv_rn(numerator, float_from_bits(max(amax, last))));
            args.has_scale[slot] = 1;
        }
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
    geometry.block = dim3(UPDATE_THREADS);
    if (args->history > WARP_SLOT_HISTORY && args->algorithm == FP8PIPE_AMAX_MAX) {
        geometry.grid = dim3((unsigned)args->slots);
        return kernel_launch(scale_update_kernel<UPDATE_THREADS>, geometry, *args, stream);
    }
    geometry.grid = dim3((unsigned)kernel_divide_up(args->slots, UPDATE_WARPS));
    return kernel_launch(scale_update_kernel<32>, geometry, *args, stream);
}
