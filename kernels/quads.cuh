/*
 * Tiles of parameters (kernels/optimizer.h) as the optimizer's CUDA kernels walk them: a block of
 * 256 threads for a part of a tile, all of it or a half, quarter or eighth, of which each thread
 * has QUADS quads, 16 or fewer.
 *
 * Parameters are dense and 16-byte aligned, [rows, cols]. Quads take 16-byte loads, 8-byte ones of
 * 16-bit dtypes, where cols is a multiple of 4 (in flat tiles everywhere but at the end); others go
 * element by element. A warp's quads of a square tile are 128 columns of one row: whole lines.
 */
#ifndef KERNELS_QUADS_CUH
#define KERNELS_QUADS_CUH

#include "kernels/device.cuh"

#define QUAD 4
#define THREAD_QUADS 16 /* KERNEL_TILE_ELEMENTS of 256 threads */

static_assert(BLOCK_THREADS * THREAD_QUADS * QUAD == KERNEL_TILE_ELEMENTS, "a tile is a block's");
static_assert(KERNEL_TILE_SIDE == 32 * QUAD, "a warp's quads are one row of a square tile");
static_assert(KERNEL_TILE_SIDE == BLOCK_WARPS * THREAD_QUADS, "a warp has 16 rows of it");

/* ---- Quads of a tile ---------------------------------------------------------------------- */

/* What a thread has of a part of a tile: quad i stands at element `at` + i * pitch. */
struct quads {
    int64_t at;
    int64_t pitch;
    int64_t end;  /* flat: the parameter's elements */
    int64_t row;  /* square: the part's first row */
    int64_t col;  /* square: the part's first column */
    int32_t rows; /* square: of the thread's rows, those that there are; may be negative */
    int32_t cols; /* square: of a quad's 4 columns, those that there are; may be negative */
    bool square;
    bool aligned; /* quads of 4 elements are: 16 bytes of float32, 8 of 16-bit dtypes */
    bool whole;   /* all quads of the part are aligned and have 4 elements: the same in a block */
};

/* Part `part` of a tile: of a square one 8 * QUADS rows, of a flat one as many elements. */
template <int QUADS>
static __device__ __forceinline__ quads quads_of(const kernel_parameter &parameter, uint32_t index,
                                                 int part)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    quads q;

    q.square = parameter.square != 0;
    q.end = parameter.rows * parameter.cols;
    q.aligned = !q.square || parameter.cols % QUAD == 0;
    if (q.square) {
        const uint32_t across =
            (uint32_t)((parameter.cols + KERNEL_TILE_SIDE - 1) / KERNEL_TILE_SIDE);

        q.row = (int64_t)(index / across) * KERNEL_TILE_SIDE + part * BLOCK_WARPS * QUADS;
        q.col = (int64_t)(index % across) * KERNEL_TILE_SIDE;
        q.whole = q.aligned && q.row + BLOCK_WARPS * QUADS <= parameter.rows &&
                  q.col + KERNEL_TILE_SIDE <= parameter.cols;
        const int64_t row = q.row + warp * QUADS, col = q.col + lane * QUAD;
        q.at = row * parameter.cols + col;
        q.pitch = parameter.cols;
        q.rows = (int32_t)min((int64_t)QUADS, parameter.rows - row);
        q.cols = (int32_t)min((int64_t)QUAD, parameter.cols - col);
    } else {
        const int64_t first =
            (int64_t)index * KERNEL_TILE_ELEMENTS + part * QUADS * (BLOCK_THREADS * QUAD);

        q.whole = first + QUADS * (BLOCK_THREADS * QUAD) <= q.end;
        q.at = first + threadIdx.x * QUAD;
        q.pitch = BLOCK_THREADS * QUAD;
        q.row = 0;
        q.col = 0;
        q.rows = 0;
        q.cols = 0;
    }
    return q;
}

/* How many elements quad i has, 0 to 4. */
static __device__ __forceinline__ int quad_count(const quads &q, int i)
{
    if (q.square)
        return i < q.rows ? max(q.cols, 0) : 0;
    return (int)max((int64_t)0, min((int64_t)QUAD, q.end - (q.at + i * q.pitch)));
}

static __device__ __forceinline__ float4 quad_load(const float *from, int64_t at, int count,
                                                   bool whole)
{
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    if (whole)
        return *(const float4 *)(from + at);
    if (count > 0)
        x.x = from[at];
    if (count > 1)
        x.y = from[at + 1];
    if (count > 2)
        x.z = from[at + 2];
    if (count > 3)
        x.w = from[at + 3];
    return x;
}

/* The bits of a gradient's quad, as they lie in memory: of 16-bit ones in x and y. */
static __device__ __forceinline__ uint4 gradient_load(const void *gradient, int32_t dtype,
                                                      int64_t at, int count, bool whole)
{
    uint4 bits = make_uint4(0, 0, 0, 0);

    if (dtype == FP8PIPE_FP32) {
        const float4 x = quad_load((const float *)gradient, at, count, whole);

        return make_uint4(__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z),
                          __float_as_uint(x.w));
    }
    const uint16_t *from = (const uint16_t *)gradient + at;
    if (whole) {
        const uint2 pairs = *(const uint2 *)from;

        bits.x = pairs.x;
        bits.y = pairs.y;
        return bits;
    }
    if (count > 0)
        bits.x = from[0];
    if (count > 1)
        bits.x |= (uint32_t)from[1] << 16;
    if (count > 2)
        bits.y = from[2];
    if (count > 3)
        bits.y |= (uint32_t)from[3] << 16;
    return bits;
}

static __device__ __forceinline__ float4 gradient_values(int32_t dtype, uint4 bits)
{
    if (dtype == FP8PIPE_FP32)
        return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y),
                           __uint_as_float(bits.z), __uint_as_float(bits.w));
    if (dtype == FP8PIPE_BF16)
        return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                           __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
    return make_float4(fp16_to_float((uint16_t)bits.x), fp16_to_float((uint16_t)(bits.x >> 16)),
                       fp16_to_float((uint16_t)bits.y), fp16_to_float((uint16_t)(bits.y >> 16)));
}

static inline kernel_geometry quads_geometry(int64_t blocks, int threads)
{
    kernel_geometry geometry;

    geometry.grid = dim3((unsigned)blocks);
    geometry.block = dim3((unsigned)threads);
    return geometry;
}

#endif
