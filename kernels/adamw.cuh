/*
 * adamw: all parameters of an optimizer in one launch, in parts of tiles (kernels/quads.cuh), a
 * block each. For kernels/adamw.cu, and bench/adamw_variants.cu, which compares shapes.
 *
 * Parameters are dense and 16-byte aligned, [rows, cols]; FP8 copies are 16-byte aligned with
 * strides that are multiples of 16. The transposed codes of a square part go through shared memory.
 *
 * Scaling rule: as quantize, E4M3, with the slot's scale as it is; amax is that of the new master.
 *
 * A step is bound by memory, and what counts is how early the loads are: warp 0 makes the group's
 * factors while the others already load, and a thread has the loads of FLIGHT quads in flight
 * before it uses the first.
 */
#ifndef KERNELS_ADAMW_CUH
#define KERNELS_ADAMW_CUH

#include <stddef.h>

#include "kernels/adamw.h"
#include "kernels/quads.cuh"

/*
 * A thread has QUADS quads of a part, 4, 8 or 16; BLOCKS fit on a multiprocessor. EXACT: quotients
 * and roots by the compiler; else by the same operations, checked once a quad.
 */
template <int QUADS_, int FLIGHT_, int BLOCKS_, bool EXACT_> struct adamw_shape {
    enum {
        QUADS = QUADS_,
        FLIGHT = FLIGHT_,
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
        BLOCKS = BLOCKS_ < 2 ? BLOCKS_ : 2, /* its code needs more registers */
#else
        BLOCKS = BLOCKS_,
#endif
        PARTS = THREAD_QUADS / QUADS_,
        ROWS = BLOCK_WARPS * QUADS_, /* of a square part */
        CHUNKS = ROWS / 16
    };
    static constexpr bool EXACT = EXACT_;
    static_assert(QUADS == 4 || QUADS == 8 || QUADS == 16, "four rows are transposed at a time");
    static_assert(FLIGHT == 1 || FLIGHT == 2 || FLIGHT == 4, "which are whole flights");
};

namespace adamw
{
using fp8pipe_cuda::detail::bytes_transpose;
using fp8pipe_cuda::detail::extremes;
using fp8pipe_cuda::detail::extremes_publish;
using fp8pipe_cuda::detail::fp8_two;

/* ---- Outputs of a quad ---------------------------------------------------------------------- */

static __device__ __forceinline__ void quad_store(float *to, int64_t at, int count, bool whole,
                                                  float4 x)
{
    if (whole) {
        *(float4 *)(to + at) = x;
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

/* Two elements of a copy, that of a in the lower half. */
static __device__ __forceinline__ uint32_t copy_two(int32_t dtype, float a, float b)
{
    uint32_t pair;

    if (dtype == FP8PIPE_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
    return pair;
}

static __device__ __forceinline__ void copy_store(const kernel_parameter &parameter, int64_t at,
                                                  int count, bool whole, float4 x)
{
    uint16_t *to = (uint16_t *)parameter.copy + at;
    const uint2 pairs = make_uint2(copy_two(parameter.copy_dtype, x.x, x.y),
                                   copy_two(parameter.copy_dtype, x.z, x.w));

    if (whole) {
        *(uint2 *)to = pairs;
        return;
    }
    if (count > 0)
        to[0] = (uint16_t)pairs.x;
    if (count > 1)
        to[1] = (uint16_t)(pairs.x >> 16);
    if (count > 2)
        to[2] = (uint16_t)pairs.y;
    if (count > 3)
        to[3] = (uint16_t)(pairs.y >> 16);
}

/* ---- FP8 copies of a square part ----------------------------------------------------------- */

/*
 * Codes, transposed: 128 columns of CHUNKS chunks of 16 rows. A chunk is left free after every 4
 * columns, so that the columns that a warp writes, 4 apart, spread over the banks.
 */
template <int CHUNKS> struct codes_part {
    uint4 chunk[KERNEL_TILE_SIDE / QUAD * (QUAD * CHUNKS + 1)];

    static __device__ __forceinline__ int at(int col, int chunk)
    {
        return col / QUAD * (QUAD * CHUNKS + 1) + col % QUAD * CHUNKS + chunk;
    }
    /* The codes of 4 rows, from row 4 * `rows` of the part on. */
    __device__ __forceinline__ void put(int rows, const uint32_t codes[4])
    {
        uint32_t *words = (uint32_t *)chunk;
        uint32_t out[4];

        bytes_transpose(out, codes[0], codes[1], codes[2], codes[3]);
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            words[at(threadIdx.x % 32 * QUAD + i, rows / 4) * 4 + rows % 4] = out[i];
    }
    /* After a barrier. row, col: of the part. */
    __device__ __forceinline__ void write(const kernel_parameter &parameter, int64_t row,
                                          int64_t col) const
    {
#pragma unroll
        for (int i = threadIdx.x; i < KERNEL_TILE_SIDE * CHUNKS; i += BLOCK_THREADS) {
            const int c = i / CHUNKS;
            const int down = i % CHUNKS;

            if (col + c < parameter.cols && row + down * 16 < parameter.transposed_stride)
                *(uint4 *)(parameter.transposed + (col + c) * parameter.transposed_stride + row +
                           down * 16) = chunk[at(c, down)];
        }
    }
};

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

/* ---- The arithmetic ------------------------------------------------------------------------ */

/* What a block's parameter is stepped by. */
struct step_factors {
    adamw_factors group;
    float inverse; /* 1 / second_divisor, rounded */
    int64_t t;
};

static __device__ __forceinline__ bool between(float magnitude, float least, float most)
{
    return __float_as_uint(magnitude) - __float_as_uint(least) <=
           __float_as_uint(most) - __float_as_uint(least);
}

/*
 * The root and the quotients as the compiler has them, rounded to nearest, but without its branches
 * for what over- or underflows on the way: where magnitudes are in these bounds nothing does.
 * Kept apart from adamw_step(), which they must equal bit by bit.
 */
static __device__ __forceinline__ float root(float x)
{
    float inverse;

    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    const float s = __fmul_rn(x, inverse);
    return __fmaf_rn(__fmaf_rn(-s, s, x), __fmul_rn(inverse, 0.5f), s);
}

/* inverse: of b, nearly. */
static __device__ __forceinline__ float quotient(float a, float b, float inverse)
{
    const float q = __fmul_rn(a, inverse);

    return __fmaf_rn(__fmaf_rn(-b, q, a), inverse, q);
}

static __device__ __forceinline__ float quotient(float a, float b)
{
    float inverse;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
    return quotient(a, b, __fmaf_rn(inverse, __fmaf_rn(-b, inverse, 1.0f), inverse));
}

/* A quad's step, in registers. */
template <bool EXACT>
static __device__ __forceinline__ void quad_step(const step_factors &factors, float4 &master,
                                                 float4 &first, float4 &second, float4 gradient)
{
    const adamw_factors &group = factors.group;
    const float g[QUAD] = {gradient.x, gradient.y, gradient.z, gradient.w};
    float m[QUAD] = {first.x, first.y, first.z, first.w};
    float v[QUAD] = {second.x, second.y, second.z, second.w};
    float x[QUAD] = {master.x, master.y, master.z, master.w};
    float change[QUAD];
    bool usual = !EXACT;

#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        m[i] = adamw_first(&group, m[i], g[i]);
        v[i] = adamw_second(&group, v[i], g[i]);
        x[i] = __fmul_rn(x[i], group.decay);
        change[i] = __fmul_rn(group.step, m[i]);
        if (!EXACT)
            usual = usual && between(v[i], 0x1p-96f, 0x1p+40f) &&
                    between(fabsf(change[i]), 0x1p-90f, 0x1p+60f);
    }
    /* second_divisor is 2^-12 to 1, so that what change is divided by is 2^-48 to 2^33. */
    if (usual && group.epsilon <= 0x1p+30f) {
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            change[i] = quotient(
                change[i], __fadd_rn(quotient(root(v[i]), group.second_divisor, factors.inverse),
                                     group.epsilon));
    } else {
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            change[i] =
                __fdiv_rn(change[i], __fadd_rn(__fdiv_rn(__fsqrt_rn(v[i]), group.second_divisor),
                                               group.epsilon));
    }
    master = make_float4(__fsub_rn(x[0], change[0]), __fsub_rn(x[1], change[1]),
                         __fsub_rn(x[2], change[2]), __fsub_rn(x[3], change[3]));
    first = make_float4(m[0], m[1], m[2], m[3]);
    second = make_float4(v[0], v[1], v[2], v[3]);
}

static __device__ __forceinline__ float4 quad_average(const adamw_factors &factors, float4 average,
                                                      float4 x)
{
    return make_float4(
        adamw_average(&factors, average.x, x.x), adamw_average(&factors, average.y, x.y),
        adamw_average(&factors, average.z, x.z), adamw_average(&factors, average.w, x.w));
}

/* ---- A part -------------------------------------------------------------------------------- */

/* What of a parameter is known when the kernel is compiled. ANY: nothing, parts are not whole. */
template <bool ANY_, int DTYPE_, bool AVERAGE_> struct kind {
    static constexpr bool ANY = ANY_;
    static constexpr bool FEWER = AVERAGE_; /* in flight, so that registers suffice */

    static __device__ __forceinline__ int32_t dtype(const kernel_parameter &parameter)
    {
        return ANY ? parameter.gradient_dtype : DTYPE_;
    }
    static __device__ __forceinline__ bool average(const kernel_parameter &parameter)
    {
        return ANY ? parameter.average != NULL : AVERAGE_;
    }
};

struct quad_state {
    float4 master;
    float4 first;
    float4 second;
    float4 average;
    uint4 gradient;
};

/* What a thread gathers over its quads. */
struct gathered {
    uint32_t largest;
    extremes counts;
};

/* Where a thread stands: its quads, and in a square part the first one's row and column. */
struct standing {
    quads q;
    int64_t row;
    int64_t col;
    float scale;
    bool quantize;
};

template <class KIND>
static __device__ __forceinline__ quad_state state_load(const kernel_parameter &parameter,
                                                        const quads &q, int i)
{
    const int64_t at = q.at + i * q.pitch;
    const int count = KIND::ANY ? quad_count(q, i) : QUAD;
    const bool whole = !KIND::ANY || (q.aligned && count == QUAD);
    quad_state s;

    s.master = quad_load(parameter.master, at, count, whole);
    s.gradient = gradient_load(parameter.gradient, KIND::dtype(parameter), at, count, whole);
    s.first = quad_load(parameter.first, at, count, whole);
    s.second = quad_load(parameter.second, at, count, whole);
    if (KIND::average(parameter))
        s.average = quad_load(parameter.average, at, count, whole);
    return s;
}

/* Steps quad i, writes it, and returns its codes. */
template <class SHAPE, class KIND>
static __device__ __forceinline__ uint32_t state_step(const kernel_parameter &parameter,
                                                      const step_factors &factors,
                                                      const standing &here, int i, quad_state &s,
                                                      gathered &g)
{
    const quads &q = here.q;
    const int64_t at = q.at + i * q.pitch;
    const int count = KIND::ANY ? quad_count(q, i) : QUAD;
    const bool whole = !KIND::ANY || (q.aligned && count == QUAD);
    uint32_t codes = 0;

    quad_step<SHAPE::EXACT || KIND::ANY>(factors, s.master, s.first, s.second,
                                         gradient_values(KIND::dtype(parameter), s.gradient));
    quad_store(parameter.master, at, count, whole, s.master);
    quad_store(parameter.first, at, count, whole, s.first);
    quad_store(parameter.second, at, count, whole, s.second);
    g.largest = quad_amax(g.largest, s.master, count);
    if (KIND::average(parameter))
        quad_store(parameter.average, at, count, whole,
                   quad_average(factors.group, s.average, s.master));
    if (parameter.copy != NULL)
        copy_store(parameter, at, count, whole, s.master);
    if (here.quantize) {
        codes = quad_codes(s.master, here.scale, count);
        codes_store(parameter, here.row + i, here.col, count, codes);
        if (parameter.extremes != NULL)
            quad_extremes(g.counts, s.master, here.scale, count);
    }
    return codes;
}

/* All quads of a part. Has one barrier, for `factors`, once the first loads are on their way. */
template <class SHAPE, class KIND>
static __device__ __forceinline__ gathered part_step(const kernel_parameter &parameter,
                                                     const step_factors &factors,
                                                     const standing &here,
                                                     codes_part<SHAPE::CHUNKS> &codes)
{
    enum {
        FLIGHT = KIND::ANY                          ? 1
                 : KIND::FEWER && SHAPE::FLIGHT > 1 ? SHAPE::FLIGHT / 2
                                                    : (int)SHAPE::FLIGHT
    };
    gathered g = {0, {0, 0}};
    uint32_t quad[4] = {0, 0, 0, 0}; /* codes of the last rows */

    /* Not unrolled: a block runs through it once, and would have to fetch all that code. */
#pragma unroll 1
    for (int i = 0; i < SHAPE::QUADS; i += FLIGHT) {
        quad_state s[FLIGHT];

#pragma unroll
        for (int j = 0; j < FLIGHT; j++)
            s[j] = state_load<KIND>(parameter, here.q, i + j);
        if (i == 0)
            __syncthreads();
#pragma unroll
        for (int j = 0; j + FLIGHT < 4; j++)
            quad[j] = quad[j + FLIGHT];
#pragma unroll
        for (int j = 0; j < FLIGHT; j++)
            quad[4 - FLIGHT + j] =
                state_step<SHAPE, KIND>(parameter, factors, here, i + j, s[j], g);
        if (here.quantize && (i + FLIGHT) % 4 == 0)
            codes.put((threadIdx.x / 32 * SHAPE::QUADS + i + FLIGHT - 4) / 4, quad);
    }
    return g;
}

/* By what is usual; the rest as ANY. */
template <class SHAPE>
static __device__ __forceinline__ gathered part_run(const kernel_parameter &parameter,
                                                    const step_factors &factors,
                                                    const standing &here,
                                                    codes_part<SHAPE::CHUNKS> &codes)
{
    const bool fp32 = parameter.gradient_dtype == FP8PIPE_FP32;

    if (!here.q.whole || parameter.gradient_dtype == FP8PIPE_FP16)
        return part_step<SHAPE, kind<true, 0, false>>(parameter, factors, here, codes);
    if (parameter.average != NULL)
        return fp32 ? part_step<SHAPE, kind<false, FP8PIPE_FP32, true>>(parameter, factors, here,
                                                                        codes)
                    : part_step<SHAPE, kind<false, FP8PIPE_BF16, true>>(parameter, factors, here,
                                                                        codes);
    return fp32
               ? part_step<SHAPE, kind<false, FP8PIPE_FP32, false>>(parameter, factors, here, codes)
               : part_step<SHAPE, kind<false, FP8PIPE_BF16, false>>(parameter, factors, here,
                                                                    codes);
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

/* ---- The kernel's frame -------------------------------------------------------------------- */

/* Threads beyond the words have nothing. */
static __device__ __forceinline__ uint64_t parameter_word(const kernel_parameter *from)
{
    static_assert(sizeof(kernel_parameter) % 8 == 0, "whole words");
    return threadIdx.x < sizeof(kernel_parameter) / 8 ? ((const uint64_t *)from)[threadIdx.x] : 0;
}

/* A copy of the tile's parameter in shared memory: global memory is written meanwhile, and would be
 * read again and again for all the compiler knows. After it a barrier. */
static __device__ __forceinline__ void parameter_put(kernel_parameter &to, uint64_t word)
{
    if (threadIdx.x < sizeof(kernel_parameter) / 8)
        ((uint64_t *)&to)[threadIdx.x] = word;
}

/* A warp's: lanes 0 and 1 raise a beta each. */
static __device__ __forceinline__ void factors_make(step_factors &factors,
                                                    const kernel_adamw_args &args, uint32_t group)
{
    const fp8pipe_parameter_group &from = args.groups[group];
    const int lane = threadIdx.x % 32;
    const int64_t t = *args.steps + 1;
    const double power = adamw_power((double)(lane == 1 ? from.beta2 : from.beta1), t);
    const double second = __shfl_sync(0xffffffffu, power, 1);

    if (lane != 0)
        return;
    factors.group = adamw_factors_of(&args, &from, power, second);
    factors.inverse = __frcp_rn(factors.group.second_divisor);
    factors.t = t;
}

/*
 * Counts a block, once it has read the count of steps, and returns how many were counted before.
 * Releases the read: the last one, which moves the steps, acquires them all.
 */
static __device__ __forceinline__ uint32_t block_count(uint32_t *scratch)
{
    uint32_t before;

    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(scratch))
                 : "memory");
    return before;
}

template <class SHAPE>
static __global__ void __launch_bounds__(BLOCK_THREADS, SHAPE::BLOCKS)
    adamw_kernel(const __grid_constant__ kernel_adamw_args args)
{
    __shared__ codes_part<SHAPE::CHUNKS> codes;
    __shared__ kernel_parameter parameter;
    __shared__ step_factors factors;

    kernel_wait_for_stream();
    const kernel_tile tile = args.tiles[blockIdx.x / SHAPE::PARTS];
    const int part = (int)(blockIdx.x % SHAPE::PARTS);
    const int32_t skip = args.skip_if != NULL ? *args.skip_if : 0;
    const uint64_t word = parameter_word(&args.parameters[tile.parameter]);
    standing here;
    uint32_t before = 0;

    if (skip != 0)
        return;
    parameter_put(parameter, word);
    __syncthreads();
    if (threadIdx.x < 32)
        factors_make(factors, args, parameter.group);
    if (threadIdx.x == 0)
        before = block_count(args.scratch);
    const bool scaled = parameter.row != NULL;
    here.q = quads_of<SHAPE::QUADS>(parameter, tile.index, part);
    here.quantize = scaled && (args.own_amax == NULL || *parameter.has_scale != 0);
    here.scale = scaled ? *parameter.scale : 1.0f;
    here.row = here.q.row + threadIdx.x / 32 * SHAPE::QUADS;
    here.col = here.q.col + threadIdx.x % 32 * QUAD;
    const gathered g = part_run<SHAPE>(parameter, factors, here, codes);
    if (scaled) {
        fold_publish(g.largest, parameter.amax,
                     here.quantize ? (uint32_t *)NULL : args.own_amax + tile.parameter);
        if (here.quantize) {
            if (parameter.extremes != NULL)
                extremes_publish(g.counts, parameter.extremes);
            /* fold_publish had the barrier after the last codes.put(). */
            codes.write(parameter, here.q.row, here.q.col);
            if (tile.index == 0 && part == 0 && threadIdx.x == 0)
                *parameter.scale_inv = __fdiv_rn(1.0f, here.scale);
        }
    }
    if (threadIdx.x == 0 && before == gridDim.x - 1) {
        __threadfence();
        *args.steps = factors.t;
        *args.scratch = 0;
    }
}

/* Without a tile. */
static __global__ void adamw_empty_kernel(const __grid_constant__ kernel_adamw_args args)
{
    kernel_wait_for_stream();
    if (args.skip_if == NULL || *args.skip_if == 0)
        *args.steps += 1;
}

static inline bool valid(const struct kernel_adamw_args *args)
{
    return args->tile_count >= 0 && args->tile_count <= INT32_MAX && args->steps != NULL &&
           args->scratch != NULL && (!args->first || args->own_amax != NULL) &&
           (args->tile_count == 0 ||
            (args->parameters != NULL && args->tiles != NULL && args->groups != NULL));
}

/* A step, not what follows one. */
template <class SHAPE>
static inline int run(const struct kernel_adamw_args *args, struct CUstream_st *stream)
{
    if (!valid(args) || args->tile_count > INT32_MAX / SHAPE::PARTS)
        return (int)cudaErrorInvalidValue;
    if (args->tile_count == 0)
        return kernel_launch(adamw_empty_kernel, quads_geometry(1, 1), *args, stream);
    return kernel_launch(adamw_kernel<SHAPE>,
                         quads_geometry(args->tile_count * SHAPE::PARTS, BLOCK_THREADS), *args,
                         stream);
}
} // namespace adamw

#endif
