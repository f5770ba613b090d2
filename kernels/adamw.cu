/*
 * adamw: all parameters of an optimizer in one launch, a block a tile (kernels/quads.cuh).
 *
 * Parameters are dense and 16-byte aligned, [rows, cols]; FP8 copies are 16-byte aligned with
 * strides that are multiples of 16. The transposed codes of a square tile go through shared memory,
 * to lines of 128 rows.
 *
 * Scaling rule: as quantize, E4M3, with the slot's scale as it is; amax is that of the new master.
 *
 * A thread has the loads of TURN_ROWS rows in flight before it uses the first.
 */
#include <stddef.h>

#include "kernels/adamw.h"
#include "kernels/quads.cuh"

#define TURN_ROWS 2

using fp8pipe_cuda::detail::bytes_transpose;
using fp8pipe_cuda::detail::extremes;
using fp8pipe_cuda::detail::extremes_publish;
using fp8pipe_cuda::detail::fp8_two;

/* ---- Outputs of a quad ---------------------------------------------------------------------- */

static __device__ __forceinline__ void quad_store(float *to, int64_t at, int count, bool whole,
                                                  float4 x)
{
    if (whole) {
        __stcs((float4 *)(to + at), x);
        return;
    }
    if (count > 0)
        to[at] = x.x;
    if (count > 1)
        to[at + 1] = x.y;
    if (count > 2)
        to[at + 2] = x.z;
    if (count > 3)
        to[at + 3] = x.w;
}

static __device__ __forceinline__ uint16_t copy_bits(int32_t dtype, float x)
{
    return dtype == FP8PIPE_BF16 ? bf16_from_float(x) : fp16_from_float(x);
}

static __device__ __forceinline__ void copy_store(const kernel_parameter &parameter, int64_t at,
                                                  int count, bool whole, float4 x)
{
    uint16_t *to = (uint16_t *)parameter.copy + at;
    const uint16_t a = copy_bits(parameter.copy_dtype, x.x);
    const uint16_t b = copy_bits(parameter.copy_dtype, x.y);
    const uint16_t c = copy_bits(parameter.copy_dtype, x.z);
    const uint16_t d = copy_bits(parameter.copy_dtype, x.w);

    if (whole) {
        *(uint2 *)to = make_uint2(a | (uint32_t)b << 16, c | (uint32_t)d << 16);
        return;
    }
    if (count > 0)
        to[0] = a;
    if (count > 1)
        to[1] = b;
    if (count > 2)
        to[2] = c;
    if (count > 3)
        to[3] = d;
}

/* A copy of the tile's parameter in shared memory: global memory is written meanwhile, and would be
 * read again and again for all the compiler knows. After it a barrier. */
static __device__ __forceinline__ void parameter_load(kernel_parameter &to,
                                                      const kernel_parameter *from)
{
    static_assert(sizeof(kernel_parameter) % 8 == 0, "whole words");
    if (threadIdx.x < sizeof(kernel_parameter) / 8)
        ((uint64_t *)&to)[threadIdx.x] = ((const uint64_t *)from)[threadIdx.x];
}

/* ---- FP8 copies of a square tile ----------------------------------------------------------- */

/* Codes, transposed: 128 columns of 8 chunks of 16 rows, the chunks permuted so that the columns
 * that a warp writes, 4 apart, spread over the banks. */
struct codes_tile {
    uint4 chunk[KERNEL_TILE_SIDE * (KERNEL_TILE_SIDE / 16)];
};

static __device__ __forceinline__ int codes_chunk(int col, int chunk)
{
    return col * (KERNEL_TILE_SIDE / 16) + (chunk ^ (col / QUAD % 8));
}

/* The codes of a quad; those beyond `count` are 0. */
static __device__ __forceinline__ uint32_t quad_codes(float4 x, float scale, int count)
{
    const uint32_t codes = fp8_two<FP8PIPE_E4M3>(__fmul_rn(x.x, scale), __fmul_rn(x.y, scale)) |
                           fp8_two<FP8PIPE_E4M3>(__fmul_rn(x.z, scale), __fmul_rn(x.w, scale))
                               << 16;

    return count >= QUAD ? codes : codes & ((1u << (8 * count)) - 1);
}

/* A row's codes; row strides are multiples of 16, so whole words fit wherever a column is. */
static __device__ __forceinline__ void codes_store(const kernel_parameter &parameter, int64_t row,
                                                   int64_t col, int count, uint32_t codes)
{
    if (count > 0)
        *(uint32_t *)(parameter.row + row * parameter.row_stride + col) = codes;
}

/* The codes of the thread's 4 rows from 4 * turn on. */
static __device__ __forceinline__ void codes_put(codes_tile &tile, int turn,
                                                 const uint32_t codes[4])
{
    uint32_t *words = (uint32_t *)tile.chunk;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t out[4];

    bytes_transpose(out, codes[0], codes[1], codes[2], codes[3]);
#pragma unroll
    for (int i = 0; i < QUAD; i++)
        words[codes_chunk(lane * QUAD + i, warp) * 4 + turn] = out[i];
}

/* After a barrier. */
static __device__ __forceinline__ void
codes_write(const codes_tile &tile, const kernel_parameter &parameter, int64_t row, int64_t col)
{
#pragma unroll
    for (int i = threadIdx.x; i < KERNEL_TILE_SIDE * (KERNEL_TILE_SIDE / 16); i += BLOCK_THREADS) {
        const int c = i / (KERNEL_TILE_SIDE / 16);
        const int chunk = i % (KERNEL_TILE_SIDE / 16);

        if (col + c < parameter.cols && row + chunk * 16 < parameter.transposed_stride)
            *(uint4 *)(parameter.transposed + (col + c) * parameter.transposed_stride + row +
                       chunk * 16) = tile.chunk[codes_chunk(c, chunk)];
    }
}

/* A square tile's first row and column. */
static __device__ __forceinline__ void tile_corner(const kernel_parameter &parameter,
                                                   uint32_t index, int64_t *row, int64_t *col)
{
    const uint32_t across = (uint32_t)((parameter.cols + KERNEL_TILE_SIDE - 1) / KERNEL_TILE_SIDE);

    *row = (int64_t)(index / across) * KERNEL_TILE_SIDE;
    *col = (int64_t)(index % across) * KERNEL_TILE_SIDE;
}

static __device__ __forceinline__ uint32_t quad_amax(uint32_t largest, float4 x, int count)
{
    if (count > 0)
        largest = max(largest, __float_as_uint(x.x) & 0x7fffffffu);
    if (count > 1)
        largest = max(largest, __float_as_uint(x.y) & 0x7fffffffu);
    if (count > 2)
        largest = max(largest, __float_as_uint(x.z) & 0x7fffffffu);
    if (count > 3)
        largest = max(largest, __float_as_uint(x.w) & 0x7fffffffu);
    return largest;
}

/*
 * Of `count` elements. Told from the scaled value, not from its code: the least E4M3 value is 2^-9,
 * half of it rounds to 0. (ptxas 13.0 was seen to test another register than the code's.)
 */
static __device__ __forceinline__ void quad_extremes(extremes &e, float4 x, float scale, int count)
{
    const float values[QUAD] = {x.x, x.y, x.z, x.w};

#pragma unroll
    for (int i = 0; i < QUAD; i++)
        if (i < count) {
            const float scaled = fabsf(__fmul_rn(values[i], scale));

            e.saturated += scaled > FP8_E4M3_MAX;
            e.flushed += values[i] != 0.0f && scaled <= 0x1p-10f;
        }
}

/* ---- The step ------------------------------------------------------------------------------ */

struct quad_state {
    float4 master;
    float4 first;
    float4 second;
    float4 average;
    uint4 gradient;
};

static __device__ __forceinline__ void element_step(const adamw_factors &factors, float &master,
                                                    float &first, float &second, float gradient)
{
    const adamw_element old = {master, first, second};
    const adamw_element next = adamw_step(&factors, old, gradient);

    master = next.master;
    first = next.first;
    second = next.second;
}

/* A quad's step, in registers. */
static __device__ __forceinline__ void quad_step(const adamw_factors &factors, quad_state &s,
                                                 int32_t dtype)
{
    const float4 g = gradient_values(dtype, s.gradient);

    element_step(factors, s.master.x, s.first.x, s.second.x, g.x);
    element_step(factors, s.master.y, s.first.y, s.second.y, g.y);
    element_step(factors, s.master.z, s.first.z, s.second.z, g.z);
    element_step(factors, s.master.w, s.first.w, s.second.w, g.w);
}

static __device__ __forceinline__ float4 quad_average(const adamw_factors &factors, float4 average,
                                                      float4 x)
{
    return make_float4(
        adamw_average(&factors, average.x, x.x), adamw_average(&factors, average.y, x.y),
        adamw_average(&factors, average.z, x.z), adamw_average(&factors, average.w, x.w));
}

/* What a thread gathers over its quads. */
struct gathered {
    uint32_t largest;
    extremes counts;
};

/* TURN_ROWS quads from quad `i` on: their loads, their steps, their stores, and their codes.
 * WHOLE: of a tile that is. */
template <bool WHOLE>
static __device__ __forceinline__ void
quads_turn(const kernel_parameter &parameter, const adamw_factors &factors, const quads &q, int i,
           float scale, bool quantize, int64_t row, int64_t col, uint32_t codes[TURN_ROWS],
           gathered &g)
{
    quad_state s[TURN_ROWS];
    int count[TURN_ROWS];

#pragma unroll
    for (int j = 0; j < TURN_ROWS; j++) {
        const int64_t at = q.at + (i + j) * q.pitch;

        count[j] = WHOLE ? QUAD : quad_count(q, i + j);
        const bool whole = WHOLE || (q.aligned && count[j] == QUAD);
        s[j].master = quad_load(parameter.master, at, count[j], whole);
        s[j].first = quad_load(parameter.first, at, count[j], whole);
        s[j].second = quad_load(parameter.second, at, count[j], whole);
        s[j].gradient = gradient_load(parameter, at, count[j], whole);
        if (parameter.average != NULL)
            s[j].average = quad_load(parameter.average, at, count[j], whole);
    }
#pragma unroll
    for (int j = 0; j < TURN_ROWS; j++) {
        const int64_t at = q.at + (i + j) * q.pitch;
        const bool whole = WHOLE || (q.aligned && count[j] == QUAD);

        quad_step(factors, s[j], parameter.gradient_dtype);
        quad_store(parameter.master, at, count[j], whole, s[j].master);
        quad_store(parameter.first, at, count[j], whole, s[j].first);
        quad_store(parameter.second, at, count[j], whole, s[j].second);
        g.largest = quad_amax(g.largest, s[j].master, count[j]);
        if (parameter.average != NULL)
            quad_store(parameter.average, at, count[j], whole,
                       quad_average(factors, s[j].average, s[j].master));
        if (parameter.copy != NULL)
            copy_store(parameter, at, count[j], whole, s[j].master);
        codes[j] = 0;
        if (quantize) {
            codes[j] = quad_codes(s[j].master, scale, count[j]);
            codes_store(parameter, row + i + j, col, count[j], codes[j]);
            if (parameter.extremes != NULL)
                quad_extremes(g.counts, s[j].master, scale, count[j]);
        }
    }
}

/* All threads call it: the largest of their bits is folded into both words (NULL: not). */
static __device__ __forceinline__ void fold_publish(uint32_t bits, uint32_t *amax, uint32_t *own)
{
    __shared__ uint32_t warps[BLOCK_WARPS];

    bits = __reduce_max_sync(0xffffffffu, bits);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = bits;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
#pragma unroll
    for (int i = 1; i < BLOCK_WARPS; i++)
        bits = max(bits, warps[i]);
    bits = adamw_amax(bits);
    if (bits == 0)
        return;
    atomicMax(amax, bits);
    if (own != NULL)
        atomicMax(own, bits);
}

/* All quads of a tile. row, col: of the thread's first quad. */
template <bool WHOLE>
static __device__ __forceinline__ gathered quads_step(const kernel_parameter &parameter,
                                                      const adamw_factors &factors, const quads &q,
                                                      float scale, bool quantize, int64_t row,
                                                      int64_t col, codes_tile &codes)
{
    gathered g = {0, {0, 0}};

#pragma unroll 1
    for (int turn = 0; turn < THREAD_QUADS / 4; turn++) {
        uint32_t quad[4];

#pragma unroll
        for (int half = 0; half < 4; half += TURN_ROWS)
            quads_turn<WHOLE>(parameter, factors, q, turn * 4 + half, scale, quantize, row, col,
                              quad + half, g);
        if (quantize)
            codes_put(codes, turn, quad);
    }
    return g;
}

static __device__ __forceinline__ void tile_step(const kernel_adamw_args &args,
                                                 const kernel_tile &tile,
                                                 const kernel_parameter &parameter,
                                                 const adamw_factors &factors, codes_tile &codes)
{
    const quads q = quads_of(parameter, tile.index);
    const bool scaled = parameter.row != NULL;
    const bool quantize = scaled && (args.own_amax == NULL || *parameter.has_scale != 0);
    const float scale = quantize ? *parameter.scale : 1.0f;
    int64_t row = 0, col = 0;

    if (scaled)
        tile_corner(parameter, tile.index, &row, &col);
    const int64_t thread_row = row + threadIdx.x / 32 * THREAD_QUADS;
    const int64_t thread_col = col + threadIdx.x % 32 * QUAD;
    const gathered g = q.whole ? quads_step<true>(parameter, factors, q, scale, quantize,
                                                  thread_row, thread_col, codes)
                               : quads_step<false>(parameter, factors, q, scale, quantize,
                                                   thread_row, thread_col, codes);
    if (!scaled)
        return;
    fold_publish(g.largest, parameter.amax,
                 quantize ? (uint32_t *)NULL : args.own_amax + tile.parameter);
    if (!quantize)
        return;
    if (parameter.extremes != NULL)
        extremes_publish(g.counts, parameter.extremes);
    /* fold_publish had the barrier after the last codes_put. */
    codes_write(codes, parameter, row, col);
    if (tile.index == 0 && threadIdx.x == 0)
        *parameter.scale_inv = __fdiv_rn(1.0f, scale);
}

static __global__ void __launch_bounds__(BLOCK_THREADS, 2)
    adamw_kernel(const __grid_constant__ kernel_adamw_args args)
{
    __shared__ codes_tile codes;
    __shared__ kernel_parameter parameter;
    __shared__ adamw_factors factors;

    if (args.skip_if != NULL && *args.skip_if != 0)
        return;
    if (blockIdx.x < args.tile_count) {
        const kernel_tile tile = args.tiles[blockIdx.x];

        parameter_load(parameter, &args.parameters[tile.parameter]);
        if (threadIdx.x == 0)
            factors = adamw_factors_of(&args, &args.groups[args.parameters[tile.parameter].group],
                                       *args.steps + 1);
        __syncthreads();
        tile_step(args, tile, parameter, factors, codes);
    }
    /* Every block has read the count of steps before it counts itself; the last one moves it. */
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(args.scratch, 1u) == gridDim.x - 1) {
            __threadfence();
            *args.steps += 1;
            *args.scratch = 0;
        }
    }
}

/* ---- The first FP8 copies of what has no scale --------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK_THREADS)
    adamw_first_kernel(const __grid_constant__ kernel_adamw_args args)
{
    __shared__ codes_tile codes;
    __shared__ kernel_parameter parameter;
    const kernel_tile tile = args.tiles[blockIdx.x];
    int64_t row, col;

    if (args.skip_if != NULL && *args.skip_if != 0)
        return;
    parameter_load(parameter, &args.parameters[tile.parameter]);
    __syncthreads();
    if (parameter.row == NULL || *parameter.has_scale != 0)
        return;
    const uint32_t amax = args.own_amax[tile.parameter];
    const float scale =
        amax == 0 || amax >= 0x7f800000u
            ? 1.0f
            : fp8_scale(__fdiv_rn(parameter.scale_numerator, float_from_bits(amax)));
    const quads q = quads_of(parameter, tile.index);
    tile_corner(parameter, tile.index, &row, &col);
    const int64_t thread_row = row + threadIdx.x / 32 * THREAD_QUADS;
    const int64_t thread_col = col + threadIdx.x % 32 * QUAD;
    extremes counts = {0, 0};
    for (int turn = 0; turn < THREAD_QUADS / 4; turn++) {
        float4 x[4];
        uint32_t quad[4];

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int i = turn * 4 + j;
            const int count = quad_count(q, i);

            x[j] =
                quad_load(parameter.master, q.at + i * q.pitch, count, q.aligned && count == QUAD);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int count = quad_count(q, turn * 4 + j);

            quad[j] = quad_codes(x[j], scale, count);
            codes_store(parameter, thread_row + turn * 4 + j, thread_col, count, quad[j]);
            if (parameter.extremes != NULL)
                quad_extremes(counts, x[j], scale, count);
        }
        codes_put(codes, turn, quad);
    }
    if (parameter.extremes != NULL)
        extremes_publish(counts, parameter.extremes);
    __syncthreads();
    codes_write(codes, parameter, row, col);
    if (tile.index == 0 && threadIdx.x == 0)
        *parameter.scale_inv = __fdiv_rn(1.0f, scale);
}

/* ---- Launches ------------------------------------------------------------------------------ */

static bool adamw_valid(const struct kernel_adamw_args *args)
{
    return args->tile_count >= 0 && args->tile_count <= INT32_MAX && args->steps != NULL &&
           args->scratch != NULL && (!args->first || args->own_amax != NULL) &&
           (args->tile_count == 0 ||
            (args->parameters != NULL && args->tiles != NULL && args->groups != NULL));
}

int kernel_adamw_cuda(const struct kernel_adamw_args *args, struct CUstream_st *stream)
{
    /* One block at least: the count of steps moves without any element. */
    const kernel_geometry geometry =
        quads_geometry(args->tile_count > 0 ? args->tile_count : 1, BLOCK_THREADS);

    if (!adamw_valid(args))
        return (int)cudaErrorInvalidValue;
    if (!args->first)
        return kernel_launch(adamw_kernel, geometry, *args, stream);
    return args->tile_count == 0 ? 0 : kernel_launch(adamw_first_kernel, geometry, *args, stream);
}
