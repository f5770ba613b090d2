/*
 * What the CUDA kernels share beside fp8pipe_operand.cuh and fp8pipe_quantize_launch.cuh: short
 * names for units, geometry, the launch.
 *
 * A unit is 8 consecutive elements of a row, starting at a column that is a multiple of 8: one
 * 16-byte load in bf16 and fp16, two in fp32, one 8-byte store in FP8. Units reach beyond the last
 * column; what lies there is read as zero and never from memory.
 *
 * Geometry of what only streams: a block of up to 256 threads, each with one unit of 4 rows. Grids
 * stop at 65,535 blocks in y and loop.
 */
#ifndef KERNELS_DEVICE_CUH
#define KERNELS_DEVICE_CUH

#include <cuda_runtime.h>

#include "fp8pipe_quantize_launch.cuh"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/kernels.h"

#define UNIT_ROWS 4
#define BLOCK_THREADS 256
#define BLOCK_WARPS (BLOCK_THREADS / 32)

using fp8pipe_cuda::UNIT;

static_assert(KERNEL_FP8_PAD % UNIT == 0, "padded rows are whole units");
static_assert(KERNEL_SUM_ROWS == fp8pipe_cuda::detail::SUM_HEIGHT, "one height of partial sums");

/* ---- Units -------------------------------------------------------------------------------- */

/* Those of fp8pipe_operand.cuh, by the names that these kernels use. */
template <int DTYPE> using unit = fp8pipe_cuda::raw<DTYPE>;
template <int DTYPE> using element = fp8pipe_cuda::detail::element<DTYPE>;

/* Element i, i known to the compiler. A NaN stays one, its payload may change. */
template <int DTYPE> __device__ __forceinline__ float unit_value(const unit<DTYPE> &u, int i)
{
    return fp8pipe_cuda::detail::value(u, i);
}

/* The first `count` elements of the unit at p, the rest 0. */
template <int DTYPE>
__device__ __forceinline__ unit<DTYPE> unit_load_some(const void *p, int64_t count)
{
    return fp8pipe_cuda::detail::load_some<DTYPE>(p, count);
}

/* The whole unit at p, which is 16-byte aligned. */
template <int DTYPE> __device__ __forceinline__ unit<DTYPE> unit_load_all(const void *p)
{
    return fp8pipe_cuda::detail::load_all<DTYPE>(p);
}

/* ---- Geometry and launch ------------------------------------------------------------------ */

typedef fp8pipe_cuda::detail::geometry kernel_geometry;

static inline int64_t kernel_divide_up(int64_t a, int64_t b)
{
    return fp8pipe_cuda::detail::divide_up(a, b);
}

/* Blocks as wide as the rows need, up to 128 units, each thread with UNIT_ROWS rows. */
static inline kernel_geometry kernel_rows(int64_t rows, int64_t cols)
{
    return fp8pipe_cuda::detail::rows_geometry(rows, cols, UNIT_ROWS);
}

/* Whether every row of x starts at a multiple of 16 bytes. */
static inline bool kernel_rows_aligned(const struct fp8pipe_matrix *x)
{
    const int64_t bytes = x->dtype == FP8PIPE_FP32 ? 4 : 2;

    return (uintptr_t)x->data % 16 == 0 && (x->rows <= 1 || x->stride * bytes % 16 == 0);
}

/*
 * Launches a kernel, which may begin early: it calls kernel_wait_for_stream() before it touches
 * memory or ends. Returns what the launch itself said; see fp8pipe_cuda::detail::launch().
 */
template <typename ARGS>
static inline int kernel_launch(void (*kernel)(const ARGS), const kernel_geometry &geometry,
                                const ARGS &args, cudaStream_t stream)
{
    void *pointers[] = {(void *)&args};

    return (int)fp8pipe_cuda::detail::launch(
        (const void *)kernel, geometry, pointers, stream,
        fp8pipe_cuda::detail::may_begin_early<ARGS>((const void *)kernel));
}

static __device__ __forceinline__ void kernel_wait_for_stream()
{
    fp8pipe_cuda::detail::wait_for_stream();
}

#endif
