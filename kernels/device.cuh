/*
 * What the CUDA kernels share: units, FP8 packing, reductions, geometry, the launch.
 *
 * A unit is 8 consecutive elements of a row, starting at a column that is a multiple of 8: one
 * 16-byte load in bf16 and fp16, two in fp32, one 8-byte store in FP8. Units reach beyond the last
 * column; what lies there is read as zero and never from memory.
 *
 * Two geometries. Rows: a block of 256 threads, each with one unit of 4 rows, for what only
 * streams. Tiles: 128 rows by 64 columns, 256 threads, thread t with the unit t % 8 of the 4 rows
 * from 4 * (t / 8) on, for what transposes or sums over rows. Grids stop at 65,535 blocks in y
 * and loop.
 */
#ifndef KERNELS_DEVICE_CUH
#define KERNELS_DEVICE_CUH

#include <cuda_runtime.h>

#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/kernels.h"

#define UNIT 8
#define UNIT_ROWS 4
#define BLOCK_THREADS 256
#define BLOCK_WARPS (BLOCK_THREADS / 32)
#define TILE_ROWS 128
#define TILE_COLS 64
#define TILE_UNITS (TILE_COLS / UNIT)
#define GRID_Y_MAX 65535

static_assert(TILE_ROWS * TILE_COLS == BLOCK_THREADS * UNIT * UNIT_ROWS, "a tile is one block's");
static_assert(TILE_UNITS == 8, "a warp's 4 rows of 8 units are what the swizzle is made for");
static_assert(TILE_ROWS % KERNEL_SUM_ROWS == 0, "a tile holds whole partial sums");
static_assert(KERNEL_FP8_PAD % UNIT == 0, "padded rows are whole units");

/* ---- Units -------------------------------------------------------------------------------- */

/* The elements' bits, as they lie in memory. */
template <int DTYPE> struct unit {
    enum { WORDS = DTYPE == FP8PIPE_FP32 ? UNIT : UNIT / 2 };
    uint32_t word[WORDS];
};

template <int DTYPE> struct element {
    typedef uint16_t bits;
};
template <> struct element<FP8PIPE_FP32> {
    typedef uint32_t bits;
};

/* Element i, i known to the compiler. A NaN stays one, its payload may change. */
template <int DTYPE> __device__ __forceinline__ float unit_value(const unit<DTYPE> &u, int i)
{
    if (DTYPE == FP8PIPE_FP32)
        return float_from_bits(u.word[i]);
    uint32_t pair = u.word[i / 2];
    if (DTYPE == FP8PIPE_BF16)
        return float_from_bits(i % 2 ? pair & 0xffff0000u : pair << 16);
    uint16_t half = (uint16_t)(i % 2 ? pair >> 16 : pair);
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
#else
    return fp16_to_float(half);
#endif
}

/* The first `count` elements of the unit at p, the rest 0. count < UNIT, may be negative. */
template <int DTYPE>
__device__ __forceinline__ unit<DTYPE> unit_load_some(const void *p, int64_t count)
{
    const typename element<DTYPE>::bits *from = (const typename element<DTYPE>::bits *)p;
    unit<DTYPE> u;

#pragma unroll
    for (int i = 0; i < unit<DTYPE>::WORDS; i++)
        u.word[i] = 0;
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        if (i < count) {
            if (DTYPE == FP8PIPE_FP32)
                u.word[i] = from[i];
            else
                u.word[i / 2] |= (uint32_t)from[i] << (i % 2 * 16);
        }
    return u;
}

/* The whole unit at p, which is 16-byte aligned. */
template <int DTYPE> __device__ __forceinline__ unit<DTYPE> unit_load_all(const void *p)
{
    unit<DTYPE> u;

#pragma unroll
    for (int i = 0; i < unit<DTYPE>::WORDS; i += 4) {
        uint4 words = ((const uint4 *)p)[i / 4];
        u.word[i] = words.x;
        u.word[i + 1] = words.y;
        u.word[i + 2] = words.z;
        u.word[i + 3] = words.w;
    }
    return u;
}

/*
 * Units at column `col` of the rows row, row + step, ...: all loads are issued before the first is
 * used. Rows beyond x.rows are zeros. ALIGNED: x's rows are 16-byte aligned.
 */
template <int DTYPE, bool ALIGNED>
__device__ __forceinline__ void units_load(unit<DTYPE> u[UNIT_ROWS], const fp8pipe_matrix &x,
                                           int64_t row, int64_t step, int64_t col)
{
    const int64_t bytes = sizeof(typename element<DTYPE>::bits);
    const char *p = (const char *)x.data + (row * x.stride + col) * bytes;
    const int64_t pitch = step * x.stride * bytes;

    if (ALIGNED && col + UNIT <= x.cols) {
#pragma unroll
        for (int i = 0; i < UNIT_ROWS; i++) {
#pragma unroll
            for (int j = 0; j < unit<DTYPE>::WORDS; j++)
                u[i].word[j] = 0;
            if (row + i * step < x.rows)
                u[i] = unit_load_all<DTYPE>(p + i * pitch);
        }
    } else {
#pragma unroll
        for (int i = 0; i < UNIT_ROWS; i++)
            u[i] = unit_load_some<DTYPE>(p + i * pitch, row + i * step < x.rows ? x.cols - col : 0);
    }
}

/* ---- Largest magnitude -------------------------------------------------------------------- */

/* 16-bit magnitudes order like the float32 ones that they widen to: two are compared at once. */
template <int DTYPE>
__device__ __forceinline__ uint32_t amax_fold(uint32_t largest, const unit<DTYPE> &u)
{
#pragma unroll
    for (int i = 0; i < unit<DTYPE>::WORDS; i++)
        largest = DTYPE == FP8PIPE_FP32 ? max(largest, u.word[i] & 0x7fffffffu)
                                        : __vmaxu2(largest, u.word[i] & 0x7fff7fffu);
    return largest;
}

/* The float32 bits of what amax_fold() folded. */
template <int DTYPE> __device__ __forceinline__ uint32_t amax_bits(uint32_t largest)
{
    if (DTYPE == FP8PIPE_FP32)
        return largest;
    uint16_t one = (uint16_t)max(largest & 0xffffu, largest >> 16);
    return float_bits(DTYPE == FP8PIPE_BF16 ? bf16_to_float(one) : fp16_to_float(one));
}

/* All threads of the block call it, once in a kernel: *to = max(*to, every thread's bits). */
__device__ __forceinline__ void amax_publish(uint32_t bits, uint32_t *to)
{
    __shared__ uint32_t warps[BLOCK_WARPS];
    const int thread = threadIdx.x + threadIdx.y * blockDim.x;

    bits = __reduce_max_sync(0xffffffffu, bits);
    if (thread % 32 == 0)
        warps[thread / 32] = bits;
    __syncthreads();
    if (thread == 0) {
#pragma unroll
        for (int i = 1; i < BLOCK_WARPS; i++)
            bits = max(bits, warps[i]);
        if (bits != 0)
            atomicMax(to, bits);
    }
}

/* ---- FP8 ---------------------------------------------------------------------------------- */

/* Two codes, that of a in the lower byte. The instruction saturates inf and gives NaN as 0x7F. */
template <int FORMAT> __device__ __forceinline__ uint32_t fp8_pair(float a, float b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;

    if (FORMAT == FP8PIPE_E5M2)
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
    else
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
    return pair;
#else
    return fp8_from_float(a, (enum fp8pipe_format)FORMAT) |
           (uint32_t)fp8_from_float(b, (enum fp8pipe_format)FORMAT) << 8;
#endif
}

/* The codes of a unit's elements times scale; those at `count` and beyond are 0. */
template <int DTYPE, int FORMAT>
__device__ __forceinline__ uint2 unit_quantize(const unit<DTYPE> &u, float scale, int64_t count)
{
    uint32_t pair[UNIT / 2];

#pragma unroll
    for (int i = 0; i < UNIT / 2; i++)
        pair[i] = fp8_pair<FORMAT>(__fmul_rn(unit_value(u, 2 * i), scale),
                                   __fmul_rn(unit_value(u, 2 * i + 1), scale));
    uint2 codes = make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
    if (count < UNIT) {
        uint64_t keep = count > 0 ? ((uint64_t)1 << (8 * count)) - 1 : 0;
        codes.x &= (uint32_t)keep;
        codes.y &= (uint32_t)(keep >> 32);
    }
    return codes;
}

/* ---- Transposing bytes through shared memory ---------------------------------------------- */

/* Column i of four rows of four bytes, as one word. */
__device__ __forceinline__ void bytes_transpose(uint32_t out[4], uint32_t a, uint32_t b, uint32_t c,
                                                uint32_t d)
{
    uint32_t ab01 = __byte_perm(a, b, 0x5140);
    uint32_t ab23 = __byte_perm(a, b, 0x7362);
    uint32_t cd01 = __byte_perm(c, d, 0x5140);
    uint32_t cd23 = __byte_perm(c, d, 0x7362);

    out[0] = __byte_perm(ab01, cd01, 0x5410);
    out[1] = __byte_perm(ab01, cd01, 0x7632);
    out[2] = __byte_perm(ab23, cd23, 0x5410);
    out[3] = __byte_perm(ab23, cd23, 0x7632);
}

/*
 * A tile of FP8 codes, transposed: 64 columns of 128 bytes, each 8 chunks of 16 bytes (16 rows).
 * Chunk c of a column lies at c ^ (column / 8). A warp writes one word of the same column of each
 * of 8 units, for 4 row groups of the same chunk: 8 chunks x 4 words, all 32 banks. 8 threads read
 * the 8 chunks of one column: all 32 banks.
 */
struct transposed_tile {
    uint4 chunk[TILE_COLS * (TILE_ROWS / 16)];
};
static_assert(TILE_ROWS / 16 == 8, "8 chunks of 16 bytes are one pass over the banks");

__device__ __forceinline__ int transposed_chunk(int col, int chunk)
{
    return col * (TILE_ROWS / 16) + (chunk ^ (col / UNIT));
}

/* The thread's unit of 4 rows. */
__device__ __forceinline__ void transposed_put(transposed_tile &tile, const uint2 codes[UNIT_ROWS])
{
    uint32_t *words = (uint32_t *)tile.chunk;
    const int col = threadIdx.x % TILE_UNITS * UNIT;
    const int group = threadIdx.x / TILE_UNITS;
    uint32_t out[UNIT];

    bytes_transpose(out, codes[0].x, codes[1].x, codes[2].x, codes[3].x);
    bytes_transpose(out + 4, codes[0].y, codes[1].y, codes[2].y, codes[3].y);
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        words[transposed_chunk(col + i, group / 4) * 4 + group % 4] = out[i];
}

/*
 * Writes the tile at column `col`, row `row` of the matrix before it was transposed. `to` has
 * `cols` rows of `stride` bytes, all of which are written.
 */
__device__ __forceinline__ void transposed_write(const transposed_tile &tile, uint8_t *to,
                                                 int64_t stride, int64_t row, int64_t col,
                                                 int64_t cols)
{
#pragma unroll
    for (int i = threadIdx.x; i < TILE_COLS * (TILE_ROWS / 16); i += BLOCK_THREADS) {
        const int c = i / (TILE_ROWS / 16);
        const int chunk = i % (TILE_ROWS / 16);

        if (col + c < cols && row + chunk * 16 < stride)
            *(uint4 *)(to + (col + c) * stride + row + chunk * 16) =
                tile.chunk[transposed_chunk(c, chunk)];
    }
}

/* ---- Partial sums over a tile's rows ------------------------------------------------------ */

struct sums_tile {
    float warp[BLOCK_WARPS][TILE_COLS];
};
static_assert(32 / TILE_UNITS * UNIT_ROWS * (BLOCK_WARPS / (TILE_ROWS / KERNEL_SUM_ROWS)) ==
                  KERNEL_SUM_ROWS,
              "four warps sum the rows of one partial");

/* The warp's 16 rows, in one fixed order: 4 rows of a thread, then a tree over the 4 threads. */
template <int DTYPE>
__device__ __forceinline__ void sums_put(sums_tile &sums, const unit<DTYPE> u[UNIT_ROWS])
{
    const int lane = threadIdx.x % 32;
    float *to = &sums.warp[threadIdx.x / 32][lane % TILE_UNITS * UNIT];

#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        float sum = unit_value(u[0], i);
#pragma unroll
        for (int j = 1; j < UNIT_ROWS; j++)
            sum = __fadd_rn(sum, unit_value(u[j], i));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 8));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 16));
        if (lane < TILE_UNITS)
            to[i] = sum;
    }
}

/* After a barrier. `row`, `col`: the tile's first, of x. */
__device__ __forceinline__ void sums_write(const sums_tile &sums, float *partials,
                                           const fp8pipe_matrix &x, int64_t row, int64_t col)
{
    const int part = threadIdx.x / TILE_COLS;
    const int c = threadIdx.x % TILE_COLS;
    const int warps = BLOCK_WARPS / (TILE_ROWS / KERNEL_SUM_ROWS);

    if (part >= TILE_ROWS / KERNEL_SUM_ROWS || col + c >= x.cols ||
        row + part * KERNEL_SUM_ROWS >= x.rows)
        return;
    float sum = sums.warp[part * warps][c];
#pragma unroll
    for (int i = 1; i < warps; i++)
        sum = __fadd_rn(sum, sums.warp[part * warps + i][c]);
    partials[(row / KERNEL_SUM_ROWS + part) * x.cols + col + c] = sum;
}

/* ---- Geometry and launch ------------------------------------------------------------------ */

static inline int64_t kernel_divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

struct kernel_geometry {
    dim3 grid;
    dim3 block;
};

/* Blocks as wide as the rows need, up to 128 units. */
static inline kernel_geometry kernel_rows(int64_t rows, int64_t cols)
{
    const int64_t units = kernel_divide_up(cols, UNIT);
    int64_t width = 1;

    while (width < units && width < 128)
        width *= 2;
    const int64_t height = BLOCK_THREADS / width;
    const int64_t tiles = kernel_divide_up(rows, height * UNIT_ROWS);
    kernel_geometry g;
    g.grid = dim3((unsigned)kernel_divide_up(units, width),
                  (unsigned)(tiles < GRID_Y_MAX ? tiles : GRID_Y_MAX));
    g.block = dim3((unsigned)width, (unsigned)height);
    return g;
}

static inline kernel_geometry kernel_tiles(int64_t rows, int64_t cols)
{
    const int64_t tiles = kernel_divide_up(rows, TILE_ROWS);
    kernel_geometry g;

    g.grid = dim3((unsigned)kernel_divide_up(cols, TILE_COLS),
                  (unsigned)(tiles < GRID_Y_MAX ? tiles : GRID_Y_MAX));
    g.block = dim3(BLOCK_THREADS);
    return g;
}

/* Whether every row of x starts at a multiple of 16 bytes. */
static inline bool kernel_rows_aligned(const struct fp8pipe_matrix *x)
{
    const int64_t bytes = x->dtype == FP8PIPE_FP32 ? 4 : 2;

    return (uintptr_t)x->data % 16 == 0 && (x->rows <= 1 || x->stride * bytes % 16 == 0);
}

/*
 * Launches and returns what the launch itself said. The runtime keeps that error as the thread's
 * last one as well: it is taken back, and an older error, which is somebody else's, is left alone.
 */
template <typename ARGS>
static inline int kernel_launch(void (*kernel)(const ARGS), const kernel_geometry &geometry,
                                const ARGS &args, cudaStream_t stream)
{
    void *pointers[] = {(void *)&args};
    cudaError_t error =
        cudaLaunchKernel((const void *)kernel, geometry.grid, geometry.block, pointers, 0, stream);

    if (error != cudaSuccess && cudaPeekAtLastError() == error)
        (void)cudaGetLastError();
    return (int)error;
}

#endif
