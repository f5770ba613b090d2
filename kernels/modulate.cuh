/*
 * What the CUDA kernels of modulate and its backward share: views, row sums by the rules of
 * kernels/modulate.h, values to FP8.
 *
 * Kernels come in two kinds. FAST: all matrices bf16, rows and data 16-byte aligned, columns a
 * multiple of 8, so that every unit is one load or store, and sizes for 32-bit numbers. Otherwise
 * the dtype and the alignment of each unit are looked at as it is met.
 */
#ifndef KERNELS_MODULATE_CUH
#define KERNELS_MODULATE_CUH

#include "kernels/device.cuh"

#define TILE_ROWS 128
#define TILE_COLS 64
#define TILE_UNITS (TILE_COLS / UNIT)
#define GRID_Y_MAX fp8pipe_cuda::detail::GRID_MAX

typedef fp8pipe_cuda::detail::transposed_tile<TILE_COLS> transposed_tile;
typedef fp8pipe_cuda::detail::sums_tile<TILE_COLS> sums_tile;
using fp8pipe_cuda::detail::amax_publish;
using fp8pipe_cuda::detail::bytes_transpose;
using fp8pipe_cuda::detail::offset;
using fp8pipe_cuda::detail::target_scale;

static_assert(TILE_ROWS * TILE_COLS == BLOCK_THREADS * UNIT * UNIT_ROWS, "a tile is one block's");
static_assert(TILE_ROWS == fp8pipe_cuda::detail::TILE_HEIGHT, "tiles are as quantize has them");
static_assert(MODULATE_LANES * MODULATE_LANE_RUN * 2 == MODULATE_SEGMENT, "two units a lane");
static_assert(MODULATE_LANE_RUN == UNIT, "a lane adds whole units");

#define WARP_ALL 0xffffffffu

/* ---- Units of views ------------------------------------------------------------------------ */

/* A unit that was loaded; its values are not looked at yet, so that loads overlap. */
template <bool FAST> struct loaded;
template <> struct loaded<true> {
    uint4 bits;
    __device__ __forceinline__ float value(int i) const
    {
        const uint32_t pair = i < 4 ? (i < 2 ? bits.x : bits.y) : (i < 6 ? bits.z : bits.w);

        return float_from_bits(i % 2 ? pair & 0xffff0000u : pair << 16);
    }
};
template <> struct loaded<false> {
    float values[UNIT];
    __device__ __forceinline__ float value(int i) const
    {
        return values[i];
    }
};

template <bool FAST> __device__ __forceinline__ loaded<FAST> view_zeros()
{
    loaded<FAST> u;

    if constexpr (FAST)
        u.bits = make_uint4(0, 0, 0, 0);
    else
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            u.values[i] = 0.0f;
    return u;
}

template <int DTYPE>
__device__ __forceinline__ void view_load_as(float values[UNIT], const void *p, int64_t count)
{
    unit<DTYPE> u;

    if (count >= UNIT && (uintptr_t)p % 16 == 0)
        u = unit_load_all<DTYPE>(p);
    else
        u = unit_load_some<DTYPE>(p, count);
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        values[i] = unit_value(u, i);
}

/* The unit at column `col`; what lies at `cols` and beyond is 0. */
template <bool FAST>
__device__ __forceinline__ loaded<FAST> view_load(const kernel_view &view, int64_t row, int64_t col,
                                                  int64_t cols)
{
    const int64_t at = (int64_t)offset<FAST>(row, view.stride) + col;
    loaded<FAST> u = view_zeros<FAST>();

    if constexpr (FAST) {
        if (col < cols)
            u.bits = *(const uint4 *)((const uint16_t *)view.data + at);
    } else {
        if (view.dtype == FP8PIPE_FP32)
            view_load_as<FP8PIPE_FP32>(u.values, (const uint32_t *)view.data + at, cols - col);
        else if (view.dtype == FP8PIPE_BF16)
            view_load_as<FP8PIPE_BF16>(u.values, (const uint16_t *)view.data + at, cols - col);
        else
            view_load_as<FP8PIPE_FP16>(u.values, (const uint16_t *)view.data + at, cols - col);
    }
    return u;
}

/* Two values as bf16, that of a in the lower half. */
__device__ __forceinline__ uint32_t bf16_pair(float a, float b)
{
#if defined(__CUDA_ARCH__)
    uint32_t pair;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
    return pair;
#else
    return bf16_from_float(a) | (uint32_t)bf16_from_float(b) << 16;
#endif
}

__device__ __forceinline__ uint32_t fp16_pair(float a, float b)
{
#if defined(__CUDA_ARCH__)
    uint32_t pair;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
    return pair;
#else
    return fp16_from_float(a) | (uint32_t)fp16_from_float(b) << 16;
#endif
}

__device__ __forceinline__ uint4 bf16_unit(const float values[UNIT])
{
    return make_uint4(bf16_pair(values[0], values[1]), bf16_pair(values[2], values[3]),
                      bf16_pair(values[4], values[5]), bf16_pair(values[6], values[7]));
}

/* One store of 16 bytes. What an assignment of values just made becomes are four of 4 bytes, which
 * together ask the memory for four times as much. */
__device__ __forceinline__ void unit_store(uint16_t *p, uint4 bits)
{
#if defined(__CUDA_ARCH__)
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
                 "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
                 : "memory");
#else
    *(uint4 *)p = bits;
#endif
}

/* Stores those of the unit's values that lie before `cols`. */
template <bool FAST>
__device__ __forceinline__ void view_store(const kernel_view &view, int64_t row, int64_t col,
                                           int64_t cols, const float values[UNIT])
{
    const int64_t at = (int64_t)offset<FAST>(row, view.stride) + col;

    if constexpr (FAST) {
        if (col < cols)
            unit_store((uint16_t *)view.data + at, bf16_unit(values));
    } else if (view.dtype == FP8PIPE_FP32) {
        float *to = (float *)view.data + at;
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            if (col + i < cols)
                to[i] = values[i];
    } else {
        uint16_t *to = (uint16_t *)view.data + at;
#pragma unroll
        for (int i = 0; i < UNIT; i += 2) {
            const uint32_t pair = view.dtype == FP8PIPE_BF16 ? bf16_pair(values[i], values[i + 1])
                                                             : fp16_pair(values[i], values[i + 1]);
            if (col + i < cols)
                to[i] = (uint16_t)pair;
            if (col + i + 1 < cols)
                to[i + 1] = (uint16_t)(pair >> 16);
        }
    }
}

/* Values as a matrix of `dtype` holds them. */
__device__ __forceinline__ void values_round(float values[UNIT], int dtype)
{
    if (dtype == FP8PIPE_FP32)
        return;
#pragma unroll
    for (int i = 0; i < UNIT; i += 2) {
        if (dtype == FP8PIPE_BF16) {
            const uint32_t pair = bf16_pair(values[i], values[i + 1]);
            values[i] = float_from_bits(pair << 16);
            values[i + 1] = float_from_bits(pair & 0xffff0000u);
        } else {
            const uint32_t pair = fp16_pair(values[i], values[i + 1]);
            values[i] = fp16_to_float((uint16_t)pair);
            values[i + 1] = fp16_to_float((uint16_t)(pair >> 16));
        }
    }
}

/* Eight entries of a float32 vector of `cols`, which is aligned to 4 bytes. */
__device__ __forceinline__ void vector_load(float values[UNIT], const float *vector, int64_t col,
                                            int64_t cols)
{
    view_load_as<FP8PIPE_FP32>(values, vector + col, cols - col);
}

/* ---- Row sums ------------------------------------------------------------------------------ */

/* All lanes get the sum of the warp's, added as the tree of kernels/modulate.h. */
__device__ __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int step = MODULATE_LANES / 2; step > 0; step /= 2)
        value = __fadd_rn(value, __shfl_xor_sync(WARP_ALL, value, step));
    return value;
}

/* sum + the unit's values, in ascending order. */
__device__ __forceinline__ float unit_sum(float sum, const float values[UNIT])
{
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        sum = __fadd_rn(sum, values[i]);
    return sum;
}

/* sum + the squares of the distances from `middle` of those values that lie before `cols`. */
__device__ __forceinline__ float unit_squares(float sum, const float values[UNIT], float middle,
                                              int64_t col, int64_t cols)
{
#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        const float distance = __fsub_rn(values[i], middle);

        sum = __fadd_rn(sum, col + i < cols ? __fmul_rn(distance, distance) : 0.0f);
    }
    return sum;
}

__device__ __forceinline__ int64_t row_of(const int32_t *rows_of, int64_t row)
{
    return rows_of != NULL ? rows_of[row] : row;
}

/* ---- From x' to z ----------------------------------------------------------------------- */

/* Units of scale and shift, zeros where absent. */
template <bool FAST> struct modulation {
    loaded<FAST> scale;
    loaded<FAST> shift;
};

template <bool FAST> __device__ __forceinline__ modulation<FAST> modulation_none()
{
    return {view_zeros<FAST>(), view_zeros<FAST>()};
}

template <bool FAST>
__device__ __forceinline__ modulation<FAST> modulation_load(const kernel_modulate_args &args,
                                                            int64_t r, int64_t col)
{
    modulation<FAST> by = modulation_none<FAST>();

    if (args.scale.data != NULL)
        by.scale = view_load<FAST>(args.scale, r, col, args.cols);
    if (args.shift.data != NULL)
        by.shift = view_load<FAST>(args.shift, r, col, args.cols);
    return by;
}

template <bool FAST>
__device__ __forceinline__ void
modulate_values(float values[UNIT], const kernel_modulate_args &args, const modulation<FAST> &by,
                int64_t col, float mean, float rstd)
{
    float factor[UNIT];

    if (args.norm != FP8PIPE_NORM_NONE)
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            values[i] = __fmul_rn(__fsub_rn(values[i], mean), rstd);
    if (args.weight != NULL) {
        vector_load(factor, args.weight, col, args.cols);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            values[i] = __fmul_rn(values[i], factor[i]);
    }
    if (args.bias != NULL) {
        vector_load(factor, args.bias, col, args.cols);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            values[i] = __fadd_rn(values[i], factor[i]);
    }
    if (args.scale.data != NULL)
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            values[i] = __fmul_rn(values[i], __fadd_rn(1.0f, by.scale.value(i)));
    if (args.shift.data != NULL)
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            values[i] = __fadd_rn(values[i], by.shift.value(i));
}

/* ---- Values to FP8 ------------------------------------------------------------------------- */

/* A thread's part of what is found out about the values of a launch. */
struct found {
    uint32_t largest; /* bits of the largest magnitude */
    uint32_t saturated;
    uint32_t flushed;
};

__device__ __forceinline__ void found_amax(found &f, const float values[UNIT], int64_t count)
{
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        if (i < count)
            f.largest = max(f.largest, float_bits(values[i]) & 0x7fffffffu);
}

__device__ __forceinline__ void found_extremes(found &f, const float values[UNIT], float scale,
                                               enum fp8pipe_format format, int64_t count)
{
    fp8pipe_cuda::detail::extremes e = {f.saturated, f.flushed};
    fp8pipe_cuda::values v;

#pragma unroll
    for (int i = 0; i < UNIT; i++)
        v[i] = i < count ? values[i] : 0.0f;
    fp8pipe_cuda::detail::extremes_count(e, v, scale, format);
    f.saturated = e.saturated;
    f.flushed = e.flushed;
}

/* The codes of a unit's values; those at `count` and beyond are 0. */
__device__ __forceinline__ uint2 values_quantize(const float values[UNIT], float scale,
                                                 enum fp8pipe_format format, int64_t count)
{
    uint32_t pair[UNIT / 2];
    float scaled[UNIT];

#pragma unroll
    for (int i = 0; i < UNIT; i++)
        scaled[i] = __fmul_rn(values[i], scale);
    if (format == FP8PIPE_E5M2)
#pragma unroll
        for (int i = 0; i < UNIT / 2; i++)
            pair[i] = fp8pipe_cuda::detail::fp8_two<FP8PIPE_E5M2>(scaled[2 * i], scaled[2 * i + 1]);
    else
#pragma unroll
        for (int i = 0; i < UNIT / 2; i++)
            pair[i] = fp8pipe_cuda::detail::fp8_two<FP8PIPE_E4M3>(scaled[2 * i], scaled[2 * i + 1]);
    uint2 codes = make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
    if (count < UNIT) {
        const uint64_t keep = count > 0 ? ((uint64_t)1 << (8 * count)) - 1 : 0;

        codes.x &= (uint32_t)keep;
        codes.y &= (uint32_t)(keep >> 32);
    }
    return codes;
}

/* By all threads of a block, at its end; the target has outputs. */
__device__ __forceinline__ void target_publish(const fp8pipe_quantize_target &target,
                                               const found &f, float scale)
{
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *target.scale_inv = __fdiv_rn(1.0f, scale);
    if (target.extremes != NULL) {
        const uint32_t saturated = __reduce_add_sync(WARP_ALL, f.saturated);
        const uint32_t flushed = __reduce_add_sync(WARP_ALL, f.flushed);

        if (threadIdx.x % 32 == 0 && saturated != 0)
            atomicAdd((unsigned long long *)&target.extremes[0], saturated);
        if (threadIdx.x % 32 == 0 && flushed != 0)
            atomicAdd((unsigned long long *)&target.extremes[1], flushed);
    }
    if (target.amax != NULL)
        amax_publish(f.largest, target.amax);
}

/* ---- Sums over the rows of a tile ---------------------------------------------------------- */

/* The place of a thread in a tile: unit threadIdx.x % 8 of the four rows 4 * group .. */
__device__ __forceinline__ int tile_group()
{
    return threadIdx.x / TILE_UNITS;
}

__device__ __forceinline__ int tile_thread_col()
{
    return threadIdx.x % TILE_UNITS * UNIT;
}

/* After a barrier: column c of the sums of four warps, those of one chunk. */
__device__ __forceinline__ float column_sums_get(const sums_tile &sums, int part, int c)
{
    const int warps = KERNEL_SUM_ROWS / (32 / TILE_UNITS * UNIT_ROWS);
    float sum = sums.slab[part * warps][c];

#pragma unroll
    for (int i = 1; i < warps; i++)
        sum = __fadd_rn(sum, sums.slab[part * warps + i][c]);
    return sum;
}

/* After a barrier: the partial sums of a tile at [row, col]. */
__device__ __forceinline__ void partials_write(const sums_tile &sums, float *partials, int64_t rows,
                                               int64_t cols, int64_t row, int64_t col)
{
    const int part = threadIdx.x / TILE_COLS;
    const int c = threadIdx.x % TILE_COLS;

    if (part < TILE_ROWS / KERNEL_SUM_ROWS && col + c < cols && row + part * KERNEL_SUM_ROWS < rows)
        partials[(row / KERNEL_SUM_ROWS + part) * cols + col + c] = column_sums_get(sums, part, c);
}

/* ---- What the launchers ask ---------------------------------------------------------------- */

static inline kernel_geometry tiles_geometry(int64_t rows, int64_t cols)
{
    const int64_t tiles = kernel_divide_up(rows, TILE_ROWS);
    kernel_geometry g;

    g.grid = dim3((unsigned)kernel_divide_up(cols, TILE_COLS),
                  (unsigned)(tiles < GRID_Y_MAX ? tiles : GRID_Y_MAX));
    g.block = dim3(BLOCK_THREADS);
    return g;
}

static inline bool view_fast(const struct kernel_view *view)
{
    return view->data == NULL || (view->dtype == FP8PIPE_BF16 && (uintptr_t)view->data % 16 == 0 &&
                                  view->stride % UNIT == 0 && view->stride <= INT32_MAX / 2);
}

/* What FAST asks of a shape and of outputs in FP8; view_fast() does of each matrix. */
static inline bool shape_fast(int64_t rows, int64_t cols,
                              const struct fp8pipe_quantize_target *target)
{
    const int64_t limit = INT32_MAX / 2;

    return cols % UNIT == 0 && rows <= limit && cols <= limit &&
           (target->scale_inv == NULL ||
            (target->row_stride <= limit && target->transposed_stride <= limit));
}

static inline bool view_valid(const struct kernel_view *view)
{
    const uintptr_t bytes = view->dtype == FP8PIPE_FP32 ? 4 : 2;

    return view->data == NULL ||
           ((unsigned)view->dtype <= FP8PIPE_FP16 && (uintptr_t)view->data % bytes == 0);
}

static inline bool target_output_valid(const uint8_t *data, int64_t stride, int64_t cols)
{
    return data == NULL ||
           ((uintptr_t)data % 16 == 0 && stride % KERNEL_FP8_PAD == 0 && stride >= cols);
}

static inline bool target_valid(const struct fp8pipe_quantize_target *target, int64_t rows,
                                int64_t cols)
{
    return target->scale_inv == NULL ||
           (target->rows == rows && target->cols == cols && target->scale != NULL &&
            (target->own_amax == NULL || target->has_scale != NULL) &&
            target_output_valid(target->row, target->row_stride, cols) &&
            target_output_valid(target->transposed, target->transposed_stride, rows));
}

/* Rows and columns that the tiles must cover: padding of the outputs too. */
static inline int64_t target_rows(const struct fp8pipe_quantize_target *target, int64_t rows)
{
    return target->scale_inv != NULL && target->transposed != NULL ? target->transposed_stride
                                                                   : rows;
}

static inline int64_t target_cols(const struct fp8pipe_quantize_target *target, int64_t cols)
{
    return target->scale_inv != NULL && target->row != NULL ? target->row_stride : cols;
}

#endif
