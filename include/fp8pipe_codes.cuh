/*
 * libfp8pipe: what kernels that quantize are made of: the scale of a target, FP8 codes of units of
 * values, the largest magnitude, counts of extremes, and tiles in shared memory in which codes are
 * transposed and values summed over rows. A part of fp8pipe_quantize.cuh and of the library's own
 * kernels; nothing here is for users, and all of it may change.
 */
#ifndef FP8PIPE_CODES_CUH
#define FP8PIPE_CODES_CUH

#include <float.h>

#include <fp8pipe_fused.h>
#include <fp8pipe_operand.cuh>

FP8PIPE_CUDA_BEGIN
namespace detail
{
enum {
    TILE_HEIGHT = 128, /* rows of a tile, where nothing else is said */
    SUM_HEIGHT = 64,   /* rows of one partial sum */
    SLAB = 16,         /* rows that one warp sums */
    ANY_FORMAT = -2    /* the target's, known at run time */
};

/* row * stride. SMALL: both are below 2^32. */
template <bool SMALL> FP8PIPE_DEVICE uint64_t offset(int64_t row, int64_t stride)
{
    return SMALL ? (uint64_t)(uint32_t)row * (uint32_t)stride : (uint64_t)(row * stride);
}

/* ---- Largest magnitude -------------------------------------------------------------------- */

/* What is kept of F's values while the amax is looked for, and its float32 bits in the end. A NaN
 * of any payload gives the one with all bits set. */
template <class F> struct folding {
    static FP8PIPE_DEVICE uint32_t fold(uint32_t largest, const typename F::loaded &,
                                        const values &v)
    {
        float most = fp8pipe_float_from_bits(largest);

#pragma unroll
        for (int i = 0; i < UNIT; i++)
            asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(v[i])));
        return fp8pipe_float_bits(most);
    }
    static FP8PIPE_DEVICE uint32_t bits(uint32_t largest)
    {
        return largest;
    }
};

/* All threads of the block, whole warps, call it, once in a kernel. */
static FP8PIPE_DEVICE void amax_publish(uint32_t bits, uint32_t *to)
{
    __shared__ uint32_t largest[32];
    const int thread = threadIdx.x + threadIdx.y * blockDim.x;
    const int warps = (int)(blockDim.x * blockDim.y) / 32;

    bits = __reduce_max_sync(0xffffffffu, bits);
    if (thread % 32 == 0)
        largest[thread / 32] = bits;
    __syncthreads();
    if (thread < 32) {
        bits = __reduce_max_sync(0xffffffffu, thread < warps ? largest[thread] : 0);
        if (thread == 0 && bits != 0)
            atomicMax(to, bits);
    }
}

/* ---- Scale -------------------------------------------------------------------------------- */

static FP8PIPE_DEVICE float target_scale(const fp8pipe_quantize_target &t)
{
    if (t.scale == NULL)
        return 1.0f;
    if (t.own_amax == NULL || *t.has_scale != 0)
        return *t.scale;
    const uint32_t bits = *t.own_amax;
    if (bits == 0 || bits >= 0x7f800000u)
        return 1.0f;
    return fp8pipe_fp8_scale(__fdiv_rn(t.scale_numerator, fp8pipe_float_from_bits(bits)));
}

/* One thread of the whole grid writes. */
static FP8PIPE_DEVICE void publish_scale(const fp8pipe_quantize_target &t)
{
    if (t.scale_inv != NULL &&
        (blockIdx.x | blockIdx.y | blockIdx.z | threadIdx.x | threadIdx.y) == 0)
        *t.scale_inv = __fdiv_rn(1.0f, target_scale(t));
}

/* ---- FP8 ---------------------------------------------------------------------------------- */

/* Two codes, that of a in the lower byte. The instruction saturates inf and gives NaN as 0x7F. */
template <int FORMAT> FP8PIPE_DEVICE uint32_t fp8_two(float a, float b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;

    if (FORMAT == FP8PIPE_E5M2)
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
    else
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
    return pair;
#else
    return fp8pipe_fp8_from_float(a, (enum fp8pipe_format)FORMAT) |
           (uint32_t)fp8pipe_fp8_from_float(b, (enum fp8pipe_format)FORMAT) << 8;
#endif
}

/* The same of a format known at run time, without a branch. */
static FP8PIPE_DEVICE uint32_t fp8_two_any(float a, float b, int format)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    const uint32_t wide = fp8_two<FP8PIPE_E5M2>(a, b), narrow = fp8_two<FP8PIPE_E4M3>(a, b);

    return format == FP8PIPE_E5M2 ? wide : narrow;
#else
    return fp8pipe_fp8_from_float(a, (enum fp8pipe_format)format) |
           (uint32_t)fp8pipe_fp8_from_float(b, (enum fp8pipe_format)format) << 8;
#endif
}

/* The codes of v times scale. `format`: of ANY_FORMAT. */
template <int FORMAT> FP8PIPE_DEVICE uint2 fp8_unit(const values &v, float scale, int format)
{
    uint32_t pair[UNIT / 2];

#pragma unroll
    for (int i = 0; i < UNIT / 2; i++) {
        const float a = __fmul_rn(v[2 * i], scale), b = __fmul_rn(v[2 * i + 1], scale);

        pair[i] = FORMAT == ANY_FORMAT ? fp8_two_any(a, b, format) : fp8_two<FORMAT>(a, b);
    }
    return make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
}

/* Of v, the first `count`; the rest become 0. */
static FP8PIPE_DEVICE values values_cut(values v, int count)
{
    if (count < UNIT)
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            v[i] = i < count ? v[i] : 0.0f;
    return v;
}

/* Of codes, the first `count`; the rest become 0. */
static FP8PIPE_DEVICE uint2 fp8_cut(uint2 codes, int count)
{
    if (count < UNIT) {
        const uint64_t keep = ((uint64_t)1 << (8 * count)) - 1;

        codes.x &= (uint32_t)keep;
        codes.y &= (uint32_t)(keep >> 32);
    }
    return codes;
}

/* A thread's count of values that saturate, and of those that are flushed to zero. */
struct extremes {
    uint32_t saturated;
    uint32_t flushed;
};

/*
 * By the bits of |v * scale|, which order as integers: what was decided from the codes, ptxas 13.0
 * read from another register. Half of the least subnormal, 2^-10 or 2^-17, is rounded to 0.
 */
static FP8PIPE_DEVICE void extremes_count(extremes &e, const values &v, float scale, int format)
{
    const bool wide = format == FP8PIPE_E5M2;
    const uint32_t largest = fp8pipe_float_bits(wide ? FP8PIPE_E5M2_MAX : FP8PIPE_E4M3_MAX);
    const uint32_t flushed = (wide ? 110u : 117u) << 23;

#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        const uint32_t bits = fp8pipe_float_bits(__fmul_rn(v[i], scale)) & 0x7fffffffu;

        e.saturated += bits > largest && bits <= 0x7f800000u ? 1 : 0;
        e.flushed += bits <= flushed && (fp8pipe_float_bits(v[i]) & 0x7fffffffu) != 0 ? 1 : 0;
    }
}

/* All threads of the block, whole warps, call it. */
static FP8PIPE_DEVICE void extremes_publish(const extremes &e, uint64_t *to)
{
    const uint32_t saturated = __reduce_add_sync(0xffffffffu, e.saturated);
    const uint32_t flushed = __reduce_add_sync(0xffffffffu, e.flushed);

    if ((threadIdx.x + threadIdx.y * blockDim.x) % 32 != 0)
        return;
    if (saturated != 0)
        atomicAdd((unsigned long long *)to, (unsigned long long)saturated);
    if (flushed != 0)
        atomicAdd((unsigned long long *)to + 1, (unsigned long long)flushed);
}

/* ---- Transposing bytes through shared memory ---------------------------------------------- */

/* Column i of four rows of four bytes, as one word. */
static FP8PIPE_DEVICE void bytes_transpose(uint32_t out[4], uint32_t a, uint32_t b, uint32_t c,
                                           uint32_t d)
{
    const uint32_t ab01 = __byte_perm(a, b, 0x5140);
    const uint32_t ab23 = __byte_perm(a, b, 0x7362);
    const uint32_t cd01 = __byte_perm(c, d, 0x5140);
    const uint32_t cd23 = __byte_perm(c, d, 0x7362);

    out[0] = __byte_perm(ab01, cd01, 0x5410);
    out[1] = __byte_perm(ab01, cd01, 0x7632);
    out[2] = __byte_perm(ab23, cd23, 0x5410);
    out[3] = __byte_perm(ab23, cd23, 0x7632);
}

/*
 * A tile of FP8 codes, transposed: WIDTH columns of HEIGHT bytes, in CHUNKS of 16 bytes (16 rows).
 * Chunk c of a column lies at c ^ (column / 8 % 8). A warp writes one word of the same column of
 * each of 8 units, for 4 row groups of the same chunk: 8 chunks x 4 words, all 32 banks. 8 threads
 * read 8 neighbouring chunks of one column: all 32 banks.
 */
template <int WIDTH, int HEIGHT = TILE_HEIGHT> struct transposed_tile {
    enum { CHUNKS = HEIGHT / 16 };
    static_assert(CHUNKS % 8 == 0, "8 chunks of 16 bytes are one pass over the banks");
    uint4 chunk[WIDTH * CHUNKS];

    /* The unit at column `col` of the rows 4 * group .. 4 * group + 3. */
    FP8PIPE_DEVICE void put(unsigned col, unsigned group, const uint2 codes[4])
    {
        const unsigned part = group / 4 ^ (col / UNIT % 8);
        uint32_t *to = (uint32_t *)chunk + (col * CHUNKS + part) * 4 + group % 4;
        uint32_t out[UNIT];

        bytes_transpose(out, codes[0].x, codes[1].x, codes[2].x, codes[3].x);
        bytes_transpose(out + 4, codes[0].y, codes[1].y, codes[2].y, codes[3].y);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            to[i * CHUNKS * 4] = out[i];
    }

    /*
     * After a barrier: writes the tile at column `col`, row `row` of the matrix before it was
     * transposed. `to` has `cols` rows of `stride` bytes, all of which are written. SMALL: cols and
     * stride are below 2^31.
     */
    template <int THREADS, bool SMALL>
    FP8PIPE_DEVICE void write(uint8_t *to, int64_t stride, int64_t row, int64_t col,
                              int64_t cols) const
    {
        enum { STEP = THREADS / CHUNKS };
        static_assert(THREADS % CHUNKS == 0 && WIDTH % STEP == 0, "whole columns each time");
        const unsigned part = threadIdx.x % CHUNKS;
        const unsigned first = threadIdx.x / CHUNKS;
        uint8_t *corner = to + row + part * 16;
        const int left = (int)min((int64_t)WIDTH, cols - col);

        if (part * 16 < (unsigned)min((int64_t)HEIGHT, stride - row))
#pragma unroll
            for (unsigned i = 0; i < WIDTH; i += STEP) {
                const unsigned c = first + i;
                const uint4 *from = &chunk[c * CHUNKS + (part ^ (c / UNIT % 8))];

                if ((int)c < left)
                    *(uint4 *)(corner + offset<SMALL>(col + c, stride)) = *from;
            }
    }
};

/* ---- Partial sums over a tile's rows ------------------------------------------------------ */

/* Sums of 16 rows each, made by one warp: 4 rows of a thread, then a tree over its 4 threads. */
template <int WIDTH, int HEIGHT = TILE_HEIGHT> struct sums_tile {
    alignas(8) float slab[HEIGHT / SLAB][WIDTH]; /* stored by twos */

    /*
     * `sum`: the thread's, over its 4 rows. Lanes 8 and 16 apart have the other rows: of what two
     * lanes have each adds up a half, 4 columns and then 2, so that all sums are made once. Which 2
     * depends on the unit as well: 16 lanes then store to all 32 banks.
     */
    FP8PIPE_DEVICE void put(unsigned col, unsigned group, const float sum[UNIT])
    {
        const bool upper = group % 2 != 0;
        const bool right = (group / 2 ^ col / UNIT / 4) % 2 != 0;
        float four[UNIT / 2], two[UNIT / 4];

#pragma unroll
        for (int i = 0; i < UNIT / 2; i++) {
            const float kept = upper ? sum[i + 4] : sum[i], given = upper ? sum[i] : sum[i + 4];

            four[i] = __fadd_rn(kept, __shfl_xor_sync(0xffffffffu, given, 8));
        }
#pragma unroll
        for (int i = 0; i < UNIT / 4; i++) {
            const float kept = right ? four[i + 2] : four[i], given = right ? four[i] : four[i + 2];

            two[i] = __fadd_rn(kept, __shfl_xor_sync(0xffffffffu, given, 16));
        }
        *(float2 *)&slab[group / 4][col + upper * 4 + right * 2] = make_float2(two[0], two[1]);
    }

    /* After a barrier. `row`, `col`: the tile's first. SMALL: rows and columns are below 2^31. */
    template <int THREADS, bool SMALL>
    FP8PIPE_DEVICE void write(const fp8pipe_quantize_target &t, int64_t row, int64_t col) const
    {
        enum { SUMS = WIDTH * (HEIGHT / SUM_HEIGHT), EACH = SUM_HEIGHT / SLAB };

#pragma unroll
        for (int pass = 0; pass < SUMS; pass += THREADS) {
            const unsigned i = pass + threadIdx.x;
            const unsigned part = i / WIDTH, c = i % WIDTH;

            if ((SUMS % THREADS == 0 || i < SUMS) && col + c < t.cols &&
                row + part * SUM_HEIGHT < t.rows) {
                float sum = slab[part * EACH][c];

#pragma unroll
                for (int j = 1; j < EACH; j++)
                    sum = __fadd_rn(sum, slab[part * EACH + j][c]);
                t.partials[offset<SMALL>(row / SUM_HEIGHT + part, t.cols) + col + c] = sum;
            }
        }
    }
};
} /* namespace detail */
FP8PIPE_CUDA_END

#endif
